"""The best method for a base model and texts, from views of the texts alone or from labels."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from sentence_transformers import SentenceTransformer

from ..filters import with_filter
from ..hub.save import check_free
from ..linear_filter import Filter
from ..methods import Method
from ..recipe import find_recipe
from .readouts import build_with_prompts, load_base
from .retrieval_items import read_rankings
from .statistics import check_seed
from .tasks import read_task
from .trials import Candidate, Trials, select_best
from .tune_plan import (
    Purpose,
    TuningPlan,
    plan_by_labels,
    plan_by_views,
    plan_for_auto,
    plan_search_by_labels,
    plan_search_by_views,
)
from .tune_report import FILTER_FILE, ReportEntry, TuneReport, write_report

logger = logging.getLogger(__name__)

# Options of `build` that are passed on to the built model, besides prompts.
_MODEL_OPTIONS = ("similarity_fn_name", "truncate_dim", "model_card_data")


def tune(
    base: Any,
    texts: Iterable[str] | None = None,
    out: str | os.PathLike[str] = "tuned",
    *,
    purpose: Purpose = "similarity",
    labels: Any = None,
    sample: int = 1000,
    max_cost: float | None = None,
    seed: int = 0,
    report_step: Callable[[str], object] = print,
    **loading_options: Any,
) -> TuneReport:
    """Find which method suits a base and texts; write its recipe, the model and a report.

    Without labels, vectors are judged by whether parts of a text find each other among the parts of
    all texts; for search, by whether a sentence, encoded as a query, finds the rest of its text,
    encoded as a document. With labels, the method is selected by them, and the texts are used only
    to fit the filter, and to choose wordings in their script. If it is stopped, the same call
    resumes it.

    Args:
        base: As for :func:`st_reba.build`.
        texts: Texts like those to be embedded; None: those of the labels.
        out: The folder of ``recipe.yaml`` and its filter, ``model``, ``report.md``,
            ``report.json``; and ``passes``, which can be deleted.
        purpose: ``"similarity"``: for the vectors that ``encode`` gives, for pairs, clusters and
            classes. ``"search"``: for those that ``encode_query`` and ``encode_document`` give; the
            texts are documents of two sentences or more.
        labels: Pairs, classes or a reranking task: what :func:`~st_reba.evaluation.tasks.read_task`
            gives or reads. For search: queries with their documents, as
            :func:`~st_reba.evaluation.retrieval_items.read_rankings` reads them.
        sample: Number of texts to draw.
        max_cost: Highest cost of the method, as a multiple of one pass of the text through the
            base.
        seed: Seed of all draws.
        report_step: Gets a line for each step.
        **loading_options: Further arguments of ``build``, such as ``dtype``, ``device`` and
            ``max_seq_length``. ``prompts`` stand before the texts of every method that is tried.

    Raises:
        ValueError: Too few texts, or an invalid argument.
    """
    start_time = time.perf_counter()
    folder = Path(out)
    check_seed(seed)
    check_purpose(purpose)
    default_prompt_name = loading_options.get("default_prompt_name")
    if default_prompt_name is not None:
        raise ValueError(
            f"default_prompt_name={default_prompt_name!r} cannot be in the recipe that tune writes. "
            "Drop it, or use build(…, 'auto', texts=…)."
        )
    if max_cost is not None and not max_cost > 0:
        raise ValueError(f"max_cost={max_cost} (--max-cost) must be a number above 0.")
    _check_folder(folder, base)
    plan = _make_plan(texts, labels, purpose, sample, seed)
    recipe = find_recipe(base, loading_options)
    if recipe is not None:
        base = recipe.base
        loading_options = {**recipe.loading, **loading_options}
    base_model = load_base(base, **loading_options)
    filter_kinds = plan.filter_kinds(base_model)
    trials = Trials(base_model, plan.selection_items, filter_kinds, folder / "passes")
    candidates = run_trials(trials, plan.methods(trials.depth), report_step)
    best_candidate = select_best(candidates, max_cost, plan.find_default(candidates, base_model))
    report_step("scoring the choice, and what it is compared with, on the rest of the texts")
    length = loading_options.get("max_seq_length")
    unfiltered_method = replace(best_candidate.method, max_seq_length=length)
    # The scores that are reported need a filter that has not seen the test items.
    provisional_filter = _fit_filter(plan, base_model, best_candidate)
    filter_path = None
    if provisional_filter is not None:
        filter_path = str(folder / FILTER_FILE)
    reported_method = replace(unfiltered_method, filter=filter_path)
    choice = ReportEntry("chosen", reported_method, provisional_filter)
    report = TuneReport(
        method=reported_method,
        rows=plan.report(base_model, choice, candidates),
        kind=plan.selection_items.kind,
        selection_count=plan.selection_items.item_count,
        test_count=plan.test_items.item_count,
        tried_count=len(candidates),
        seconds=time.perf_counter() - start_time,
        pass_seconds=trials.pass_seconds,
        folder=str(folder),
        notes=tuple(plan.notes(best_candidate)),
    )
    model = build_with_prompts(base_model, unfiltered_method, **_model_options(loading_options))
    if provisional_filter is not None:
        report_step("fitting the filter that is saved on all texts")
    saved_filter = _fit_filter(plan.with_all_texts(), base_model, best_candidate)
    if saved_filter is not None:
        model = with_filter(model, saved_filter)
    write_report(report, base, model, saved_filter, loading_options)
    return report


def _check_folder(folder: Path, base: Any) -> None:
    """Refuse to write over files that tune did not write."""
    base_path = Path(base).absolute() if isinstance(base, (str, os.PathLike)) else None
    problem = None
    if folder.is_dir():
        if base_path is not None and base_path.exists() and base_path.parent == folder.absolute():
            problem = "holds the base"
        elif any(folder.iterdir()) and not _is_of_tune(folder):
            problem = "holds files of something else"
    elif folder.exists():
        problem = "is not a folder"
    if problem is not None:
        raise ValueError(
            f"out={str(folder)!r} {problem}. Name a folder that is new, or that tune wrote."
        )
    check_free(folder / "model", overwrite=True)


def _is_of_tune(folder: Path) -> bool:
    """Whether tune wrote a folder, or was stopped while it did."""
    if (folder / "passes").is_dir():
        return True
    try:
        report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(report, dict) and report.keys() >= {"method", "rows", "tried_count"}


def _fit_filter(
    plan: TuningPlan, base_model: SentenceTransformer, candidate: Candidate
) -> Filter | None:
    """Fit the filter of a candidate; None: it has none."""
    if candidate.filter_kind is None:
        return None
    unfiltered_model = build_with_prompts(base_model, candidate.method)
    return plan.fit_filter(unfiltered_model, candidate.filter_kind)


def _make_plan(
    texts: Iterable[str] | None,
    labels: Any,
    purpose: Purpose,
    sample: int,
    seed: int,
) -> TuningPlan:
    """Read the labels, and draw selection and test items; arguments as for :func:`tune`."""
    if purpose == "search":
        if labels is None:
            return plan_search_by_views(() if texts is None else texts, sample, seed)
        return plan_search_by_labels(read_rankings(labels), texts, sample, seed)
    if labels is None:
        return plan_by_views(() if texts is None else texts, sample, seed)
    return plan_by_labels(read_task(labels), texts, sample, seed)


def run_trials(
    trials: Trials,
    methods: Sequence[Method],
    report_step: Callable[[str], object],
) -> list[Candidate]:
    """Score methods, one pass after another."""
    passes = trials.plan_passes(methods, report_step)
    candidates: list[Candidate] = []
    report_step(f"{len(passes)} passes through the base")
    for pass_number, methods_of_pass in enumerate(passes, 1):
        start_time = time.perf_counter()
        candidates += trials.score_pass(methods_of_pass)
        seconds = time.perf_counter() - start_time
        best_candidate = max(candidates, key=lambda candidate: candidate.score)
        progress = f"{pass_number}/{len(passes)} {methods_of_pass[0]}: {seconds:.0f} s"
        report_step(f"{progress}; best {best_candidate.score:.3f}: {best_candidate.method}")
    return candidates


def build_for_texts(
    base: Any,
    texts: Iterable[str],
    *,
    purpose: Purpose = "similarity",
    seed: int = 0,
    check: bool,
    **loading_options: Any,
) -> SentenceTransformer:
    """``build(base, "auto", texts=…)``: like :func:`tune`, with fewer passes and without a report.

    Args:
        base, texts, purpose, seed: As for :func:`tune`.
        check, loading_options: Further arguments of ``build``.
    """
    check_seed(seed)
    check_purpose(purpose)
    plan = plan_for_auto(texts, purpose, seed)
    base_options = {name: value for name, value in loading_options.items() if value is not None}
    base_model = load_base(base, **base_options)
    trials = Trials(base_model, plan.selection_items, plan.filter_kinds(base_model))
    candidates = run_trials(trials, plan.methods(trials.depth, is_small=True), logger.info)
    best_candidate = select_best(candidates, default=plan.find_default(candidates, base_model))
    model = build_with_prompts(
        base_model,
        best_candidate.method,
        check=check,
        **_model_options(loading_options),
    )
    if best_candidate.filter_kind is None:
        return model
    return with_filter(model, plan.fit_filter(model, best_candidate.filter_kind))


def _model_options(loading_options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: loading_options[name] for name in _MODEL_OPTIONS if name in loading_options}


def check_purpose(purpose: str) -> None:
    """Refuse a purpose that is not known."""
    purposes = get_args(Purpose)
    if purpose not in purposes:
        raise ValueError(f"purpose={purpose!r} is not known. Choose from {', '.join(purposes)}.")
