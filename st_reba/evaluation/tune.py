"""The best method for a base model and texts, from views of the texts alone or from labels.

A dozen forward passes give every second layer, pooled; each readout is scored behind a few filters. Two thirds of the
items choose; the others only report what the choice is worth, beside the papers' methods.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import normalize

from ..methods import Method
from .candidates import LABELLED, USES, Scored, Use, chosen, papers_of, passes_of
from .readouts import of_base, opened, positions, readout_of, shared, vectors
from .search import Search, depth_of, fitted_filter, scores_of
from .views import Items, drawn, pairs_of, script_of, views_of

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

KINDS = ("pairs", "classes", "ranking")
# Of the items, these choose; and so many choose and report at the most.
CHOOSE, MOST_CHOOSING, MOST_REPORTING, AUTO_CHOOSING = 2 / 3, 400, 300, 300
# What a built model keeps of the arguments that loaded its base.
_KEPT = ("prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim", "model_card_data")


@dataclass(frozen=True)
class Row:
    """A method of a report.

    Args:
        name: What it is called.
        method: The method, its filter's file among it.
        score, error: The mean over the items that report, and its standard error.
        cost: Positions times layers, as a multiple of one pass of the text through the base.
        seconds: For 1,000 of the texts that were run, as measured.
        megabytes: Of the model's weights.
    """

    name: str
    method: Method
    score: float
    error: float
    cost: float
    seconds: float
    megabytes: float


@dataclass(frozen=True)
class Report:
    """What was found.

    Args:
        method: The choice.
        rows: It and the papers' methods, on items that did not choose.
        kind: Of the items: ``"views"``, or of the labels.
        counts: Items that chose, and that report.
        tried: How many methods were scored.
        seconds: Of the search.
        folder: Where recipe, filter, model and this report are.
        notes: What the scores are, and what makes the choice less certain.
    """

    method: Method
    rows: tuple[Row, ...]
    kind: str
    counts: tuple[int, int]
    tried: int
    seconds: float
    folder: str
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [
            f"Of {self.tried}, {self.counts[0]} items ({self.kind}) chose in {self.seconds:.0f} s: {self.method}",
            f"On {self.counts[1]} other items, which did not choose:\n",
            "| method | score | ± 1 s.e. | cost | s / 1,000 texts | MB |",
            "|---|--:|--:|--:|--:|--:|",
        ]
        for row in self.rows:
            numbers = f"{row.score:.3f} | {row.error:.3f} | {row.cost:.2f} | {row.seconds:.1f} | {row.megabytes:.0f}"
            lines.append(f"| {row.name} | {numbers} |")
        lines.append("\nCost: positions times layers, as a multiple of one pass of the text through the whole base.")
        return "\n".join([*lines, *self.notes])


def tune(
    base: Any,
    texts: Iterable[str] | None = None,
    out: str | os.PathLike[str] = "tuned",
    *,
    labels: Sequence[tuple[Any, ...]] | None = None,
    kind: str = "pairs",
    use: str = "pairs",
    sample: int = 1000,
    most_cost: float | None = None,
    seed: int = 0,
    say: Callable[[str], object] = print,
    **loading: Any,
) -> Report:
    """Find which method suits a base and texts; write its recipe, the model and a report.

    Without labels a text is shown by views, two crops and two halves, and vectors are good if they find each other
    among those of the other texts. With labels, these choose, and the texts only fit the filter. The same call goes on
    where it was stopped.

    Args:
        base: As for :func:`st_reba.build`.
        texts: Texts like those to be embedded; None: those of the labels.
        out: A folder: ``recipe.yaml``, ``filter.safetensors`` if a filter was chosen, ``model``, ``report.md``,
            ``report.json``, and ``passes``, which can be deleted.
        labels: Rows ``(text, text, score)``, ``(text, class)`` or ``(query, document, relevance)``.
        kind: Of the labels: ``"pairs"``, ``"classes"`` or ``"ranking"``.
        use: What the vectors are for: ``"pairs"`` (which texts mean the same), ``"topics"`` or ``"search"``.
        sample: Draw so many of the texts.
        most_cost: What the method may cost, as a multiple of one pass of the text through the base.
        seed: Of all draws.
        say: Gets a line for each step, and the report.
        **loading: Further arguments of ``build``, as ``dtype``, ``device`` and ``max_seq_length``.

    Raises:
        ValueError: Too few texts, or an argument that cannot be.

    Example:
        >>> texts = [f"the {animal} sleeps in house number {n}" for n in range(40) for animal in ("cat", "dog")]
        >>> report = tune("mini", texts, "tuned", say=lambda line: None)  # doctest: +SKIP
    """
    _check(use, kind)
    if texts is None and labels is None:
        raise ValueError("Give texts, or labels, or both.")
    started, folder = time.perf_counter(), Path(out)
    found = drawn(pairs_of(labels or (), kind).texts if texts is None else texts, sample, seed)
    if labels is None:
        fit = sorted(found)
        Random(seed).shuffle(fit)
        fit, rest = fit[: round(CHOOSE * len(fit))], fit[round(CHOOSE * len(fit)) :]
        first, second = views_of(fit), views_of(rest)
    else:
        first, second = pairs_of(labels, kind).split(CHOOSE, seed)
        # A filter sees no text that reports.
        fit = [text for text in found if text not in set(second.texts)]
    first, second = first.at_most(MOST_CHOOSING, seed), second.at_most(MOST_REPORTING, seed)
    model = opened(base, **loading)
    depth, script = depth_of(model), script_of(" ".join(found[:200]))
    how = USES[use] if labels is None else LABELLED
    search, passes = Search(model, first, fit, how, folder / "passes"), passes_of(depth, script)
    scored: list[Scored] = []
    for number, each in enumerate(passes, 1):
        before = time.perf_counter()
        scored += search.scored(each)
        best, spent = max(scored, key=lambda one: one.score), time.perf_counter() - before
        say(f"{number}/{len(passes)} {each.method}: {spent:.0f} s; best {best.score:.3f}: {best.method}, {best.filter}")
    choice = chosen(scored, most_cost)
    method = choice.method
    if choice.filter != "none":
        method = replace(method, filter=str(folder / "filter.safetensors"))
        fitted_filter(of_base(model, choice.method), choice.filter, fit).save(method.filter)
    papers = papers_of(depth, script, lambda each: _score_of(scored, each))
    rows = reported(model, {"chosen": method, **papers}, second, how)
    counts, notes = (len(first.places), len(second.places)), _notes(first, how, found)
    seconds = time.perf_counter() - started
    report = Report(method, rows, first.kind, counts, len(scored), seconds, str(folder), notes)
    _write(report, base, of_base(model, method, **{name: loading[name] for name in _KEPT if name in loading}), loading)
    say(str(report))
    return report


def auto(base: Any, texts: Iterable[str], *, use: str = "pairs", seed: int = 0, **rest: Any) -> SentenceTransformer:
    """What ``build(base, "auto", texts=…)`` does: :func:`tune` with five passes, and no texts that report.

    Args:
        base: As for :func:`st_reba.build`.
        texts: Texts like those to be embedded.
        use, seed: As for :func:`tune`.
        **rest: Further arguments of ``build``.
    """
    from ..filters import with_filter

    _check(use)
    found = drawn(texts, 1000, seed)
    model = opened(base, **{name: value for name, value in rest.items() if value is not None and name != "check"})
    search = Search(model, views_of(found).at_most(AUTO_CHOOSING, seed), found, USES[use])
    passes = passes_of(search.depth, script_of(" ".join(found)), small=True)
    choice = chosen([scored for each in passes for scored in search.scored(each)])
    made = of_base(model, choice.method, **{name: rest[name] for name in _KEPT if name in rest})
    return made if choice.filter == "none" else with_filter(made, fitted_filter(made, choice.filter, found))


def reported(base: SentenceTransformer, methods: Mapping[str, Method], items: Items, use: Use) -> tuple[Row, ...]:
    """Score named methods on items, by one pass for all that share it, and say what they cost."""
    depth, transformer = depth_of(base), base[0]
    plain = sum(positions(transformer, items.texts)) * depth
    rows: dict[str, Row] = {}
    for first, group in shared(list(dict.fromkeys(methods.values())), depth).items():
        ran = of_base(base, replace(first, filter=None), check=False)
        cost = sum(positions(ran[0], items.texts)) / plain
        started = time.perf_counter()
        found = vectors(base, group, items.texts, check=False)
        seconds = (time.perf_counter() - started) * 1000 / len(items.texts)
        whole = readout_of(first, depth)
        for name, method in methods.items():
            if method in group and whole is not None:
                readout = readout_of(method, depth) or whole
                evidence = scores_of(items, normalize(torch.from_numpy(found[method]), dim=1), use, readout.pooling)
                error, share = float(evidence.std()) / len(evidence) ** 0.5, readout.layer / whole.layer
                size = _megabytes(of_base(base, replace(method, filter=None), check=False))
                spent = cost * readout.layer, seconds * share
                rows[name] = Row(name, method, float(evidence.mean()), error, *spent, size)
    return tuple(rows[name] for name in methods)


def _write(report: Report, base: Any, model: Any, loading: Mapping[str, Any]) -> None:
    """Write recipe, model and report into the folder."""
    import yaml

    from ..hub.save import save
    from ..recipe import LOADING, Recipe

    folder, values = Path(report.folder), report.method.to_dict()
    if report.method.filter is not None:
        values["filter"] = Path(report.method.filter).name
    named = os.fspath(base) if isinstance(base, (str, os.PathLike)) else str(model[0].base_model)
    recipe = Recipe(named, {name: loading[name] for name in LOADING if name in loading}, values).to_dict()
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True), encoding="utf-8")
    (folder / "report.md").write_text(f"{report}\n", encoding="utf-8")
    (folder / "report.json").write_text(json.dumps(asdict(report), indent=1, ensure_ascii=False), encoding="utf-8")
    save(model, folder / "model", overwrite=True)


def _check(use: str, kind: str = "pairs") -> None:
    for name, value, known in (("use", use, USES), ("kind", kind, KINDS)):
        if value not in known:
            raise ValueError(f"{name}={value!r} is not known. Choose from {', '.join(known)}.")


def _notes(items: Items, use: Use, texts: Sequence[str]) -> tuple[str, ...]:
    notes = []
    if items.kind == "views":
        bonus = f" A template's end has {use.end_bonus} more." if use.end_bonus else ""
        notes.append(
            "A score is how far crops and halves of a text find each other among those of the others, 0 to 1: it tells "
            f"methods apart, and is no quality that others know.{bonus}"
        )
    if len(items.places) < 200:
        notes.append(f"Only {len(items.places)} items chose: with 200 or more the choice is steadier.")
    if sum(count > len(texts) / 20 for count in Counter(map(script_of, texts)).values()) > 1:
        notes.append("The texts are in several scripts. Where languages are not compared, tune on each by itself.")
    return tuple(notes)


def _score_of(scored: Sequence[Scored], method: Method) -> float:
    """What NoSink's method scored: by another name it is a pass of the search."""
    mine = replace(method, name="classical", pooling="mean")
    return max((one.score for one in scored if one.method == mine), default=-1.0)


def _megabytes(model: SentenceTransformer) -> float:
    return sum(each.numel() * each.element_size() for each in model.parameters()) / 1e6
