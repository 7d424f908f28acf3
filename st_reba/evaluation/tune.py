"""The best method for a base model and texts, from views of the texts alone or from labels."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from torch.nn.functional import normalize

from ..encode import copied_positions
from ..filters import with_filter
from ..hub.save import save
from ..methods import Method
from ..recipe import LOADING, recipe_for, save_recipe
from .readouts import of_base, opened, shared, vectors
from .search import Scored, Search, chosen, fitted_filter, papers_of, passes_of
from .statistics import check_seed
from .tasks import Task, read_task, warn_of_dropped
from .views import draw_texts, evidence, script_of, views_of

LABELLED = ("STS", "PairClassification", "Classification", "Reranking")
# Of the items, these choose; and so many choose and report at the most.
CHOOSE, MOST_CHOOSING, MOST_REPORTING, AUTO_CHOOSING = 2 / 3, 400, 300, 300
# What a built model keeps of the arguments that loaded its base.
_KEPT = ("prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim", "model_card_data")


@dataclass(frozen=True)
class TuneRow:
    """A method on the items that report.

    Args:
        name, method: Its name in the report, and the method, with its filter's file.
        score, error: The mean over the items, and its standard error.
        cost: Positions times layers, as a multiple of one pass of the text through the base.
        seconds: For 1,000 of the texts that were run, as measured.
        megabytes: Size of the model's weights.
    """

    name: str
    method: Method
    score: float
    error: float
    cost: float
    seconds: float
    megabytes: float


@dataclass(frozen=True)
class TuneReport:
    """The choice, and beside it the papers' methods, on items that did not choose.

    Args:
        method: The choice.
        rows: A row a method, the choice first.
        kind: ``"Views"``, or the kind of the labelled items.
        counts: Items that chose, and that report.
        tried: Number of methods and layers that were scored.
        seconds, passes: Seconds in all, and in the search's forward passes alone.
        folder: Where recipe, filter, model and this report are.
        notes: How to read the scores, and reasons to doubt the choice.
    """

    method: Method
    rows: tuple[TuneRow, ...]
    kind: str
    counts: tuple[int, int]
    tried: int
    seconds: float
    passes: float
    folder: str
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        named = {"Views": "texts", "Classification": "labelled texts", "Reranking": "labelled queries"}
        items = named.get(self.kind, "labelled pairs")
        lines = [
            f"Chosen: {self.method}\n",
            f"{self.counts[0]} {items} chose it from {self.tried} methods and layers, in {self.seconds:.0f} seconds, "
            f"{self.passes:.0f} of them in forward passes.",
            f"Scores on {self.counts[1]} other {items}, which had no part in the choice:\n",
            "| method | score | standard error | work | seconds per 1,000 texts | MB |",
            "|---|--:|--:|--:|--:|--:|",
        ]
        for row in self.rows:
            numbers = f"{row.score:.3f} | {row.error:.3f} | {row.cost:.2f} | {row.seconds:.1f} | {row.megabytes:.0f}"
            lines.append(f"| {row.name} | {numbers} |")
        lines.append("\nWork: positions times layers, as a multiple of one pass of the text through the whole base.")
        return "\n".join([*lines, *self.notes])


def tune(
    base: Any,
    texts: Iterable[str] | None = None,
    out: str | os.PathLike[str] = "tuned",
    *,
    labels: Any = None,
    sample: int = 1000,
    most_cost: float | None = None,
    seed: int = 0,
    say: Callable[[str], object] = print,
    **loading: Any,
) -> TuneReport:
    """Find which method suits a base and texts; write its recipe, the model and a report.

    Without labels vectors are good if parts of a text find each other among those of the other texts. With labels,
    these choose, and the texts only fit the filter. The same call goes on where it was stopped.

    Args:
        base: As for :func:`st_reba.build`.
        texts: Texts like those to be embedded; None: those of the labels.
        out: The folder of ``recipe.yaml`` and its filter, ``model``, ``report.md``, ``report.json``; and ``passes``,
            which can be deleted.
        labels: Pairs, classes or a reranking task: what :func:`~st_reba.evaluation.tasks.read_task` gives or reads.
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
    if most_cost is not None and not most_cost > 0:
        raise ValueError(f"most_cost={most_cost} (--most-cost) must be a number above 0.")
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"out={str(folder)!r} is no folder. Name one that is new, or that tune wrote.")
    task = None if labels is None else read_task(labels)
    if task is not None:
        warn_of_dropped(task)
    found = draw_texts(getattr(task, "texts", ()) if texts is None else texts, sample, seed)
    choosing, reporting, fit = _view_parts(found, seed) if task is None else _labelled_parts(task, found, seed)
    if isinstance(base, (str, os.PathLike)) and (recipe := recipe_for(base, loading)):
        base, loading = recipe.base, {**recipe.loading, **loading}
    model = opened(base, **loading)
    search, script = Search(model, choosing, fit, folder / "passes"), script_of(" ".join(found[:200]))
    passes = passes_of(search.depth, script, labelled=labels is not None)
    scored: list[Scored] = []
    for number, each in enumerate(passes, 1):
        before = time.perf_counter()
        scored += search.scored(each)
        best, spent = max(scored, key=lambda one: one.score), time.perf_counter() - before
        say(f"{number}/{len(passes)} {each.method}: {spent:.0f} s; best {best.score:.3f}: {best.method}")
    choice = chosen(scored, most_cost)
    method = replace(choice.method, max_seq_length=loading.get("max_seq_length"))
    if choice.filtered:
        method = replace(method, filter=str(path := folder / "filter.safetensors"))
        fitted_filter(of_base(model, choice.method), fit).save(path)
    papers = papers_of(search.depth, script, {one.method: one.score for one in scored})
    report = TuneReport(
        method=method,
        rows=reported(model, {"chosen": method, **papers}, reporting),
        kind=choosing.kind,
        counts=(len(choosing.items), len(reporting.items)),
        tried=len(scored),
        seconds=time.perf_counter() - started,
        passes=search.seconds,
        folder=str(folder),
        notes=_notes(choosing, found),
    )
    _write(report, base, of_base(model, method, **{name: loading[name] for name in _KEPT if name in loading}), loading)
    return report


def auto(base: Any, texts: Iterable[str], *, seed: int = 0, check: bool, **rest: Any) -> SentenceTransformer:
    """``build(base, "auto", texts=…)``: :func:`tune` with fewer passes, and no texts that report.

    Args:
        base, texts, seed: As for :func:`tune`.
        check, rest: Further arguments of ``build``.
    """
    found = draw_texts(texts, 1000, seed)
    Random(seed).shuffle(found)
    model = opened(base, **{name: value for name, value in rest.items() if value is not None})
    search = Search(model, views_of(found[:AUTO_CHOOSING]), found)
    passes = passes_of(search.depth, script_of(" ".join(found)), small=True)
    choice = chosen([scored for each in passes for scored in search.scored(each)])
    made = of_base(model, choice.method, check=check, **{name: rest[name] for name in _KEPT if name in rest})
    return with_filter(made, fitted_filter(made, found)) if choice.filtered else made


def reported(base: SentenceTransformer, methods: Mapping[str, Method], items: Task) -> tuple[TuneRow, ...]:
    """Score named methods on items, by one pass for all that share it, and say what they cost."""
    transformer: Any = base[0]
    plain = sum(copied_positions(transformer, items.texts, {})) * transformer.depth
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
            spent = sum(copied_positions(model[0], items.texts, {})) * model[0].depth / plain
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
    count = round(CHOOSE * len(found))
    return found[:count], found[count:]


def _part(task: Task, items: Iterable[tuple[Any, ...]]) -> Task:
    places: dict[str, int] = {}

    def place(of: Any) -> Any:
        return tuple(map(place, of)) if isinstance(of, tuple) else places.setdefault(task.texts[of], len(places))

    mine = tuple((*map(place, item[:-1]), item[-1]) for item in items)
    return Task(task.name, task.kind, tuple(places), mine)


def _write(report: TuneReport, base: Any, model: Any, loading: Mapping[str, Any]) -> None:
    folder = Path(report.folder)
    places = (base, loading.get("tokenizer"))  # objects, where a loaded model is the base
    named, tokenizer = (os.fspath(each) if isinstance(each, (str, os.PathLike)) else None for each in places)
    given: dict[str, Any] = {**{name: loading.get(name) for name in LOADING}, "tokenizer": tokenizer}
    save_recipe(folder / "recipe.yaml", named or str(model[0].base_model), report.method, **given)
    (folder / "report.md").write_text(f"{report}\n", encoding="utf-8")
    (folder / "report.json").write_text(json.dumps(asdict(report), indent=1, ensure_ascii=False), encoding="utf-8")
    save(model, folder / "model", overwrite=True)


def _notes(items: Task, texts: Sequence[str]) -> tuple[str, ...]:
    notes = []
    if items.kind == "Views":
        notes.append("A score (0 to 1) says how well parts of a text find each other. It only compares methods.")
    if len(items.items) < 200:
        notes.append(f"Only {len(items.items)} items chose: with 200 or more the choice is steadier.")
    if sum(count > len(texts) / 20 for count in Counter(map(script_of, texts)).values()) > 1:
        notes.append("The texts are in several scripts. Where languages are not compared, tune on each by itself.")
    return tuple(notes)
