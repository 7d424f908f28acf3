"""The best method for a base model and texts, from views of the texts alone or from labels."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, get_args

import torch
from sentence_transformers import SentenceTransformer
from torch.nn.functional import normalize

from ..encode import computed_positions
from ..filters import Filter, with_filter
from ..methods import Method
from ..recipe import recipe_for
from .readouts import depth_of, of_base, opened, shared, vectors
from .retrieval_labels import read_rankings
from .search import Pass, Scored, Search, chosen, fitted_filter, papers_of, passes_of
from .statistics import check_seed
from .tasks import Task, read_task, warn_of_dropped
from .tune_plan import (
    CHOOSING_SHARE,
    MOST_CHOOSING,
    MOST_REPORTING,
    Purpose,
    TuneReport,
    TuneRow,
    TuningPlan,
    write_report,
)
from .tune_retrieval import RetrievalPlan, plan_by_labels, plan_by_views, plan_for_auto
from .views import draw_texts, evidence, script_of, views_of

LABELLED = ("STS", "PairClassification", "Classification", "Reranking")
# For `auto`: how many texts are drawn, and how many of them choose.
AUTO_SAMPLE, AUTO_CHOOSING = 1000, 300
# What a built model keeps of the arguments that loaded its base.
_KEPT = ("prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim", "model_card_data")


def tune(
    base: Any,
    texts: Iterable[str] | None = None,
    out: str | os.PathLike[str] = "tuned",
    *,
    purpose: Purpose = "similarity",
    labels: Any = None,
    sample: int = 1000,
    most_cost: float | None = None,
    seed: int = 0,
    say: Callable[[str], object] = print,
    **loading: Any,
) -> TuneReport:
    """Find which method suits a base and texts; write its recipe, the model and a report.

    Without labels vectors are good if parts of a text find each other among those of the other texts; for search, if
    a sentence of a text, encoded as a query, finds the rest of it, encoded as a document. With labels, these choose,
    and the texts only fit the filter. The same call goes on where it was stopped.

    Args:
        base: As for :func:`st_reba.build`.
        texts: Texts like those to be embedded; None: those of the labels.
        out: The folder of ``recipe.yaml`` and its filter, ``model``, ``report.md``, ``report.json``; and ``passes``,
            which can be deleted.
        purpose: ``"similarity"``: of vectors that ``encode`` gives, for pairs, clusters and classes. ``"search"``: of
            those that ``encode_query`` and ``encode_document`` give; the texts are documents of two sentences or more.
        labels: Pairs, classes or a reranking task: what :func:`~st_reba.evaluation.tasks.read_task` gives or reads.
            For search: queries with their documents, as
            :func:`~st_reba.evaluation.retrieval_labels.read_rankings` reads them.
        sample: Draw so many of the texts.
        most_cost: Highest cost of the method, as a multiple of one pass of the text through the base.
        seed: Seed of all draws.
        say: Gets a line for each step.
        **loading: Further arguments of ``build``, as ``dtype``, ``device`` and ``max_seq_length``.

    Raises:
        ValueError: Too few texts, or an argument that cannot be.
    """
    started, folder = time.perf_counter(), Path(out)
    check_seed(seed)
    check_purpose(purpose)
    if most_cost is not None and not most_cost > 0:
        raise ValueError(f"most_cost={most_cost} (--most-cost) must be a number above 0.")
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"out={str(folder)!r} is no folder. Name one that is new, or that tune wrote.")
    plan: TuningPlan
    if purpose == "search":
        plan = _search_plan(texts, labels, sample, seed)
    else:
        plan = _similarity_plan(texts, labels, sample, seed)
    if isinstance(base, (str, os.PathLike)) and (recipe := recipe_for(base, loading)):
        base, loading = recipe.base, {**recipe.loading, **loading}
    model = opened(base, **loading)
    search = plan.open_search(model, folder / "passes")
    passes = plan.passes(search.depth)
    scored: list[Scored] = []
    for number, each in enumerate(passes, 1):
        before = time.perf_counter()
        scored += search.scored(each)
        best, spent = max(scored, key=lambda one: one.score), time.perf_counter() - before
        say(f"{number}/{len(passes)} {each.method}: {spent:.0f} s; best {best.score:.3f}: {best.method}")
    choice = chosen(scored, most_cost)
    method = replace(choice.method, max_seq_length=loading.get("max_seq_length"))
    if choice.filter_kind is not None:
        method = replace(method, filter=str(path := folder / "filter.safetensors"))
        plan.fit_filter(of_base(model, choice.method), choice.filter_kind).save(path)
    report = TuneReport(
        method=method,
        rows=plan.rows(model, method, scored),
        kind=plan.kind,
        counts=plan.counts,
        tried=len(scored),
        seconds=time.perf_counter() - started,
        passes=search.seconds,
        folder=str(folder),
        notes=plan.notes(choice),
    )
    made = of_base(model, method, **{name: loading[name] for name in _KEPT if name in loading})
    write_report(report, base, made, loading)
    return report


def auto(
    base: Any, texts: Iterable[str], *, purpose: str = "similarity", seed: int = 0, check: bool, **rest: Any
) -> SentenceTransformer:
    """``build(base, "auto", texts=…)``: :func:`tune` with fewer passes, and no texts that report.

    Args:
        base, texts, purpose, seed: As for :func:`tune`.
        check, rest: Further arguments of ``build``.
    """
    check_purpose(purpose)
    plan: TuningPlan
    if purpose == "search":
        plan = plan_for_auto(texts, AUTO_SAMPLE, seed)
    else:
        found = draw_texts(texts, AUTO_SAMPLE, seed)
        Random(seed).shuffle(found)
        items = views_of(found[:AUTO_CHOOSING])
        plan = SimilarityPlan(items, items, found, found)
    model = opened(base, **{name: value for name, value in rest.items() if value is not None})
    search = plan.open_search(model, None)
    passes = plan.passes(search.depth, small=True)
    choice = chosen([scored for each in passes for scored in search.scored(each)])
    made = of_base(model, choice.method, check=check, **{name: rest[name] for name in _KEPT if name in rest})
    return with_filter(made, plan.fit_filter(made, choice.filter_kind)) if choice.filter_kind else made


def check_purpose(purpose: str) -> None:
    """Refuse a purpose that is not known."""
    if purpose not in get_args(Purpose):
        raise ValueError(f"purpose={purpose!r} is not known. Choose from {', '.join(get_args(Purpose))}.")


class SimilarityPlan(TuningPlan):
    """Choose by parts of texts, or by labelled items.

    Args:
        choosing, reporting: The items that choose, and that report.
        fit: Texts that filters are fitted on.
        texts: All texts.
    """

    def __init__(self, choosing: Task, reporting: Task, fit: Sequence[str], texts: Sequence[str]) -> None:
        super().__init__(choosing.kind, (len(choosing.items), len(reporting.items)))
        self.choosing = choosing
        self.reporting = reporting
        self.fit = fit
        self.texts = texts
        self.script = script_of(" ".join(texts[:200]))

    def open_search(self, base: SentenceTransformer, passes_folder: Path | None) -> Search:
        """The search over the items that choose, whose finished passes are kept in a folder."""
        return Search(base, self.choosing, self.fit, passes_folder)

    def passes(self, depth: int, *, small: bool = False) -> list[Pass]:
        """The inputs and masks that are tried."""
        return passes_of(depth, self.script, small=small, labelled=self.kind != "Views")

    def fit_filter(self, model: SentenceTransformer, filter_kind: str) -> Filter:
        """Fit a filter for a model without one; there is one kind."""
        return fitted_filter(model, self.fit)

    def rows(self, base: SentenceTransformer, method: Method, candidates: Sequence[Scored]) -> tuple[TuneRow, ...]:
        """The choice, and the papers' methods, on the items that report."""
        scores = {candidate.method: candidate.score for candidate in candidates}
        papers = papers_of(depth_of(base), self.script, scores)
        return reported(base, {"chosen": method, **papers}, self.reporting)

    def notes(self, choice: Scored) -> tuple[str, ...]:
        """How to read the scores, and reasons to doubt the choice."""
        return _notes(self.choosing, self.texts)


def _similarity_plan(texts: Iterable[str] | None, labels: Any, sample: int, seed: int) -> SimilarityPlan:
    task = None if labels is None else read_task(labels)
    if task is not None:
        warn_of_dropped(task)
    found = draw_texts(getattr(task, "texts", ()) if texts is None else texts, sample, seed)
    choosing, reporting, fit = _view_parts(found, seed) if task is None else _labelled_parts(task, found, seed)
    return SimilarityPlan(choosing, reporting, fit, found)


def _search_plan(texts: Iterable[str] | None, labels: Any, sample: int, seed: int) -> RetrievalPlan:
    if labels is None:
        return plan_by_views(() if texts is None else texts, sample, seed)
    task = read_rankings(labels)
    warn_of_dropped(task)
    return plan_by_labels(task, texts, sample, seed)


def reported(base: SentenceTransformer, methods: Mapping[str, Method], items: Task) -> tuple[TuneRow, ...]:
    """Score named methods on items, by one pass for all that share it, and say what they cost."""
    transformer: Any = base[0]
    plain = sum(computed_positions(transformer, items.texts, {})) * transformer.depth
    rows: dict[str, TuneRow] = {}
    for first, group in shared(list(dict.fromkeys(methods.values())), transformer.depth).items():
        started = time.perf_counter()
        found = vectors(base, group, items.texts, check=False)
        seconds = (time.perf_counter() - started) * 1000 / len(items.texts)
        built: dict[Method, Any] = {each: of_base(base, replace(each, filter=None), check=False) for each in group}
        for name, method in methods.items():
            if method not in group:
                continue
            values, model = evidence(items, normalize(torch.from_numpy(found[method]), dim=1)), built[method]
            spent = sum(computed_positions(model[0], items.texts, {})) * model[0].depth / plain
            error, share = float(values.std()) / len(values) ** 0.5, model[0].depth / built[first][0].depth
            size = sum(each.nbytes for each in model.parameters()) / 1e6
            rows[name] = TuneRow(name, method, float(values.mean()), error, spent, seconds * share, size)
    return tuple(rows[name] for name in methods)


def _view_parts(texts: Sequence[str], seed: int) -> tuple[Task, Task, list[str]]:
    """Views that choose, views that report, and the texts that a filter may be fitted on."""
    choosing, reporting = _divided(sorted(texts), seed)
    return views_of(choosing[:MOST_CHOOSING]), views_of(reporting[:MOST_REPORTING]), choosing


def _labelled_parts(task: Task, texts: Sequence[str], seed: int) -> tuple[Task, Task, list[str]]:
    """The same of labelled items; a filter sees no text that reports."""
    if task.kind not in LABELLED or task.train or len(task.items) < 30:
        raise ValueError(f"labels: {task}. Give 30 or more items of {', '.join(LABELLED)}, without train.")
    choosing, reporting = _divided(task.items, seed)
    first, second = _part(task, choosing[:MOST_CHOOSING]), _part(task, reporting[:MOST_REPORTING])
    hidden = set(second.texts)
    return first, second, [text for text in texts if text not in hidden]


def _divided(items: Iterable[Any], seed: int) -> tuple[list[Any], list[Any]]:
    found = list(items)
    Random(seed).shuffle(found)
    count = round(CHOOSING_SHARE * len(found))
    return found[:count], found[count:]


def _part(task: Task, items: Iterable[tuple[Any, ...]]) -> Task:
    places: dict[str, int] = {}

    def place(of: Any) -> Any:
        return tuple(map(place, of)) if isinstance(of, tuple) else places.setdefault(task.texts[of], len(places))

    mine = tuple((*map(place, item[:-1]), item[-1]) for item in items)
    return Task(task.name, task.kind, tuple(places), mine)


def _notes(items: Task, texts: Sequence[str]) -> tuple[str, ...]:
    notes = []
    if items.kind == "Views":
        notes.append("A score (0 to 1) says how well parts of a text find each other. It only compares methods.")
    if len(items.items) < 200:
        notes.append(f"Only {len(items.items)} items chose: with 200 or more the choice is steadier.")
    if sum(count > len(texts) / 20 for count in Counter(map(script_of, texts)).values()) > 1:
        notes.append("The texts are in several scripts. Where languages are not compared, tune on each by itself.")
    return tuple(notes)
