"""The best method for a base model and texts, from views of the texts alone or from labels.

A dozen forward passes give every second layer, pooled; each readout is scored behind a few filters. Two thirds of the
items choose; the others only report what the choice is worth, beside the papers' methods.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from ..methods import Method
from .candidates import FILTERS, LABELLED, USES, Fitted, Pass, Scored, Use, chosen, papers_of, passes_of
from .readouts import Progress, Readout, of_base, opened, positions, read, readout_of, shared, vectors
from .views import Items, drawn, pairs_of, script_of, views_of

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

KINDS = ("pairs", "classes", "ranking")
# Of the items, these choose; and so many choose and report at the most.
CHOOSE, MOST_CHOOSING, MOST_REPORTING, AUTO_CHOOSING = 2 / 3, 300, 200, 240
# What a built model keeps of the arguments that loaded its base.
_KEPT = ("prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim", "model_card_data")
# Bytes of vectors that a pass may hold; numbers are held as so many times their value, where 16 bits are finer.
_MOST_BYTES, _SCALE = 1 << 30, 64.0
# Texts that a filter needs: at the least, and for each dimension.
_FEWEST, _TEXTS_A_DIMENSION = 100, {"abtt": 1, "whiten": 4}
# Changes with what is stored of a pass, or how it comes about.
_VERSION = 2


class Held:
    """Vectors of length 1 in 16 bits, as differences from the first batch's mean."""

    def __init__(self, count: int, batch: Tensor) -> None:
        self.mean = batch.mean(dim=0)
        self.differences = torch.empty(count, batch.shape[1], dtype=torch.float16, device=batch.device)

    def put(self, rows: Sequence[int], units: Tensor) -> None:
        """Keep a batch's vectors."""
        self.differences[list(rows)] = ((units - self.mean) * _SCALE).half()

    def units(self) -> Tensor:
        """All vectors, [N, d] float32."""
        return normalize(self.differences.float() / _SCALE + self.mean, dim=1)


class Search:
    """Runs passes over the items that choose, and scores their readouts.

    Args:
        base: Of :func:`~st_reba.evaluation.readouts.opened`.
        items: The items that choose.
        texts: What a filter will be fitted on; those that they are too few for are not tried.
        use: How views choose.
        folder: Where finished passes are kept; None: nowhere.
        progress: Called after each batch with its number of texts and of positions.
    """

    def __init__(
        self,
        base: SentenceTransformer,
        items: Items,
        texts: Sequence[str],
        use: Use,
        folder: Path | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.base, self.items, self.use, self.folder, self.progress = base, items, use, folder, progress
        self.depth = depth_of(base)
        self.plain = sum(positions(base[0], items.texts)) * self.depth
        self.width = base.get_embedding_dimension() or 0
        self.filters = [name for name in FILTERS if sample_of(texts, self.width, name) is not None]

    def scored(self, each: Pass) -> list[Scored]:
        """All that is read from a pass, run now or found in the folder."""
        path = None if self.folder is None else self.folder / f"{self._key(each)}.npz"
        if path is not None and path.exists():
            return _stored(path)
        model = of_base(self.base, each.method)
        layers = self._layers(each)
        held: dict[Readout, Held] = {}
        for rows, batch in read(model, each.readouts(layers), self.items.texts, progress=self.progress):
            for readout, pooled in batch.items():
                units = normalize(pooled, dim=1)
                held.setdefault(readout, Held(len(self.items.texts), units)).put(rows, units)
        cost = sum(positions(model[0], self.items.texts)) / self.plain
        made = [
            Scored(each.of(readout, self.depth), name, cost * readout.layer, evidence)
            for pooling in each.poolings
            for (readout, name), evidence in self._searched(held, layers, pooling).items()
        ]
        if path is not None:
            _store(path, made)
        return made

    def _searched(
        self, held: Mapping[Readout, Held], layers: Sequence[int], pooling: str
    ) -> dict[tuple[Readout, str], Tensor]:
        """Every second of the layers that are read, then the neighbours of the best, then whitening of these three."""
        found: dict[tuple[Readout, str], Tensor] = {}

        def score(places: Iterable[int], names: Sequence[str]) -> None:
            for place in places:
                readout = Readout(layers[place], pooling)
                units = held[readout].units()
                fitted = Fitted(units)
                for name in names:
                    found[readout, name] = scores_of(self.items, fitted.apply(name, units), self.use, pooling).cpu()

        def near() -> list[int]:
            best = layers.index(max(found, key=lambda key: float(found[key].mean()))[0].layer)
            return [place for place in (best - 1, best, best + 1) if 0 <= place < len(layers)]

        everywhere = [name for name in self.use.filters if name in self.filters] or ["none"]
        score(range(len(layers) - 1, -1, -2), everywhere)
        score([place for place in near() if (Readout(layers[place], pooling), everywhere[0]) not in found], everywhere)
        if self.use.whitens and "whiten-half" in self.filters:
            score(near(), ["whiten-half"])
        return found

    def _layers(self, each: Pass) -> list[int]:
        """The layers that are read, ascending, the last among them: not all of many, nor more than fit."""
        lowest = 1 if each.first is None else each.first + 1
        one = 2 * self.width * len(self.items.texts) * len(each.poolings)
        step = max(-(-self.depth // 16), -(-(self.depth - lowest + 1) * one // _MOST_BYTES))
        return list(range(self.depth, lowest - 1, -step))[::-1]

    def _key(self, each: Pass) -> str:
        """A name that no other pass, base, texts or version of this code has."""
        model: Any = self.base[0].model
        weights = model.get_input_embeddings().weight[:64].detach().float().cpu().numpy().tobytes()
        facts = (_VERSION, self.use, self.filters, each, self.items, model.config.to_json_string(), model.dtype)
        return hashlib.sha256(repr(facts).encode() + weights).hexdigest()[:24]


def _store(path: Path, made: Sequence[Scored]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"method": one.method.to_dict(), "filter": one.filter, "cost": one.cost} for one in made]
    part = path.with_suffix(".part")
    with part.open("wb") as out:
        np.savez(out, rows=json.dumps(rows), evidence=torch.stack([one.evidence for one in made]).numpy())
    os.replace(part, path)


def _stored(path: Path) -> list[Scored]:
    with np.load(path) as file:
        rows, evidence = json.loads(str(file["rows"])), torch.from_numpy(file["evidence"])
    return [
        Scored(Method(**row["method"]), row["filter"], row["cost"], each)
        for row, each in zip(rows, evidence, strict=True)
    ]


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

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        rows = [{**asdict(row), "method": row.method.to_dict()} for row in self.rows]
        return {**asdict(self), "method": self.method.to_dict(), "rows": rows}

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
    progress: Progress | None = None,
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
        progress: Called after each batch with its number of texts and of positions.
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
    search, passes = Search(model, first, fit, how, folder / "passes", progress), passes_of(depth, script)
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


def sample_of(texts: Sequence[str], width: int, name: str) -> list[str] | None:
    """What a filter of ``FILTERS`` for d dimensions (``width``) is fitted on.

    The texts; if they are too few their views too; None if these are too few.
    """
    least = max(_FEWEST, _TEXTS_A_DIMENSION.get(FILTERS[name].get("kind", ""), 0) * width)
    if len(texts) >= least or name == "none":
        return list(texts)
    more = list(dict.fromkeys([*texts, *views_of(texts).texts]))
    return more[:least] if len(more) >= least else None


def fitted_filter(model: SentenceTransformer, name: str, texts: Sequence[str]) -> Any:
    """Fit a filter of ``FILTERS`` on a model's vectors of texts."""
    from ..encode import encode_texts
    from ..filters import Filter

    options = dict(FILTERS[name])
    sample = sample_of(texts, model.get_embedding_dimension() or 0, name) or list(texts)
    return Filter.fit(encode_texts(model, sample), options.pop("kind"), model=model, **options)


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


def scores_of(items: Items, units: Tensor, use: Use, pooling: str) -> Tensor:
    """What vectors of length 1 say of each item, [number of items]."""
    bonus = use.end_bonus if pooling == "end" and items.kind == "views" else 0.0
    return items.evidence(units, use.halves) + bonus


def depth_of(model: SentenceTransformer) -> int:
    """Number of layers L."""
    transformer: Any = model[0]
    return int(transformer.depth)


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
    (folder / "report.json").write_text(json.dumps(report.to_dict(), indent=1, ensure_ascii=False), encoding="utf-8")
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
