"""The best method for a base model and texts, from views of the texts alone or from labels.

A dozen forward passes (inputs and masks) give every second layer, pooled; each readout is scored behind a few filters. Two
thirds of the texts choose; the others only report what the choice is worth, beside the papers' methods.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..methods import Method
from .readouts import Progress, Readout, of_base, opened, positions, read, readout_of, shared, vectors
from .views import Items, drawn, pairs_of, script_of, views_of

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# Filters that are tried on every readout, and those that need a whole eigendecomposition: on the best readouts alone.
FILTERS: dict[str, dict[str, Any]] = {
    "none": {},
    "center": {"kind": "center"},
    "abtt-1": {"kind": "abtt", "r": 1},
    "abtt-2": {"kind": "abtt", "r": 2},
    "whiten-half": {"kind": "whiten", "power": 0.5},
    "whiten": {"kind": "whiten", "power": 1.0},
}
# Whitening in full helps views to find each other, and harms labels, except in search.
USES = {"pairs": ("whiten-half",), "topics": ("whiten-half",), "search": ("whiten-half", "whiten")}
# The mean of a text holds its words, so that views which share words find each other. The end of a template does not, and
# is better by labels than views show: on three real bases by so much.
END_BONUS = 0.1
# Items that choose, and items that report, at most.
MOST_CHOOSING, MOST_REPORTING = 400, 330
AUTO_TEXTS = 300
CHOOSE = 2 / 3
# Bytes of vectors that a pass may hold.
_MOST_BYTES = 1 << 30
# A text of 16 bits holds a vector's difference from the mean, times so much: small numbers have few digits there.
_SCALE = 64.0
_VERSION = 1
# Of a whitening filter.
_TEXTS_A_DIMENSION = 4
_PROMPTEOL = {"CJK": "这句话：“{text}”用一个词概括就是：“"}


@dataclass(frozen=True)
class Pass:
    """One input with one set of masks, which every readout of it shares.

    Args:
        method: The pass at full depth.
        poolings: What is read.
        first: The lowest layer whose mask is changed, from 0; None: none is.
    """

    method: Method
    poolings: tuple[str, ...]
    first: int | None = None

    def of(self, readout: Readout, depth: int) -> Method:
        """The method whose model gives a readout of this pass.

        Example:
            >>> twice = Pass(Method("echo", pooling="mean", setting="mask0-bidir", k=3), ("mean",), first=3)
            >>> str(twice.of(Readout(5, "mean"), 6))
            'echo:pooling=mean,setting=mask0-bidir,k=2,layer=5'
        """
        method, pooling = self.method, readout.pooling
        if pooling == "end":
            name = "prompteol"
        elif pooling.startswith("reba"):
            name = "reba"
        else:
            name = {"reba": "echo", "prompteol": "classical"}.get(method.name, method.name)
        template = method.template or ("prompteol" if method.name == "prompteol" != name else None)
        masks = {} if self.first is None else {"k": readout.layer - self.first}
        layer = None if readout.layer == depth else readout.layer
        short = None if pooling == "end" else pooling.removeprefix("reba-")
        return replace(method, name=name, pooling=short, template=template, layer=layer, **masks)

    def readouts(self, layers: Sequence[int]) -> list[Readout]:
        """All readouts at some layers; below the first changed mask another pass has them."""
        return [Readout(layer, each) for each in self.poolings for layer in layers if layer > (self.first or 0)]


def passes_of(depth: int, script: str, small: bool = False) -> list[Pass]:
    """The inputs and masks that are tried, for a base of L layers (``depth``).

    Args:
        depth: L.
        script: Of the texts, for the wording of PromptEOL; see :func:`~st_reba.evaluation.views.script_of`.
        small: Fewer, for ``build(base, "auto")``.

    Example:
        >>> [len(passes_of(30, "LATIN", small)) for small in (False, True)]
        [12, 5]
    """
    once, twice = Method("classical", pooling="mean"), Method("reba", pooling="mean")
    word = Method("prompteol", template=_PROMPTEOL.get(script))
    again = Method("echo", pooling="mean")

    def masked(method: Method, first: int, poolings: tuple[str, ...], setting: str = "mask0-bidir") -> Pass:
        return Pass(replace(method, setting=setting, k=depth - first), poolings, first)

    reba = ("mean", "last", "reba-mean", "reba-last")
    third, half = depth // 3, depth // 2
    found = [
        Pass(word, ("end", "mean")),
        Pass(once, ("mean", "last")),
        Pass(twice, reba),
        masked(once, half, ("mean",)),
        masked(again, half, ("mean",)),
    ]
    if small:
        return found
    return [
        *found,
        Pass(Method("echo", pooling="mean", template="echo"), ("mean",)),
        masked(once, third, ("mean",)),
        masked(again, third, ("mean",)),
        masked(word, half, ("end", "mean")),
        masked(word, third, ("end",)),
        masked(once, half, ("mean",), "inplace-bidir"),
        masked(again, half, ("mean",), "inplace-bidir"),
    ]


@dataclass(frozen=True, eq=False)
class Scored:
    """A readout behind a filter, and what its vectors say of each item that chooses."""

    method: Method
    filter: str
    cost: float
    evidence: Tensor = field(repr=False)

    @property
    def score(self) -> float:
        """The mean over the items."""
        return float(self.evidence.mean())


class Fitted:
    """Filters fitted on vectors: one mean and one covariance for all of them, in float32 on the vectors' device.

    Args:
        sample: [N, d].

    Example:
        >>> vectors = torch.randn(400, 8, generator=torch.manual_seed(0)) + 2
        >>> Fitted(vectors).apply("center", vectors).mean(dim=0).abs().max().item() < 1e-5
        True
    """

    def __init__(self, sample: Tensor) -> None:
        self.mean = sample.mean(dim=0)
        centered = sample - self.mean
        self.covariance = centered.T @ centered / len(sample)
        self.found: dict[str, Any] = {}

    def apply(self, name: str, units: Tensor) -> Tensor:
        """Vectors behind a filter of ``FILTERS``, scaled to length 1."""
        if name == "none":
            return units
        vectors = units - self.mean
        options = FILTERS[name]
        if options["kind"] == "abtt":
            top = self._top()[:, : options["r"]]
            vectors = vectors - (vectors @ top) @ top.T
        elif options["kind"] == "whiten":
            variances, directions = self._principal()
            vectors = vectors @ directions / variances.clamp_min(variances[-1] * 1e-6) ** (options["power"] / 2)
        return torch.nn.functional.normalize(vectors, dim=1)

    def _top(self) -> Tensor:
        """The first directions, by a few steps of subspace iteration: d² work in place of d³."""
        if "top" not in self.found:
            generator = torch.Generator().manual_seed(0)
            start = torch.randn(len(self.mean), 6, generator=generator).to(self.mean)
            basis = torch.linalg.qr(self.covariance @ start)[0]
            for _ in range(12):
                basis = torch.linalg.qr(self.covariance @ basis)[0]
            inner = torch.linalg.eigh(basis.T @ self.covariance @ basis)[1]
            self.found["top"] = (basis @ inner).flip(dims=(1,))
        return self.found["top"]

    def _principal(self) -> tuple[Tensor, Tensor]:
        if "principal" not in self.found:
            self.found["principal"] = tuple(torch.linalg.eigh(self.covariance))
        return self.found["principal"]


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
        return torch.nn.functional.normalize(self.differences.float() / _SCALE + self.mean, dim=1)


def held(model: SentenceTransformer, readouts: Sequence[Readout], texts: Sequence[str], progress: Progress | None) -> Any:
    """Run texts through a model once, and keep every readout's vectors in 16 bits."""
    found: dict[Readout, Held] = {}
    for rows, batch in read(model, readouts, texts, progress=progress):
        for readout, each in batch.items():
            units = torch.nn.functional.normalize(each, dim=1)
            if readout not in found:
                found[readout] = Held(len(texts), units)
            found[readout].put(rows, units)
    return found


class Search:
    """Runs passes over the items that choose, and scores their readouts.

    Args:
        base: Of :func:`~st_reba.evaluation.readouts.opened`.
        items: The items that choose.
        use: One of ``USES``.
        folder: Where finished passes are kept; None: nowhere.
        progress: Called after each batch.
    """

    def __init__(
        self, base: SentenceTransformer, items: Items, use: str, folder: Path | None, progress: Progress | None
    ) -> None:
        self.base, self.items, self.use, self.folder, self.progress = base, items, use, folder, progress
        self.transformer: Any = base[0]
        self.depth = _depth(base)
        # Not all of many layers: neighbours are alike.
        self.step = -(-self.depth // 16)
        self.plain = sum(positions(self.transformer, items.texts)) * self.depth
        self.seconds: dict[str, float] = {}

    def scored(self, each: Pass) -> list[Scored]:
        """The readouts of a pass: every second of the layers first, then the neighbours of the best."""
        path = None if self.folder is None else self.folder / f"{self._key(each)}.npz"
        if path is not None and path.exists():
            return self._stored(path, each)
        started = time.perf_counter()
        model = of_base(self.base, each.method)
        layers = self._layers(each)
        cost = sum(positions(model[0], self.items.texts)) / self.plain
        vectors = held(model, each.readouts(layers), self.items.texts, self.progress)
        self.seconds[f"{each.method}: run"] = time.perf_counter() - started
        found: dict[tuple[Readout, str], Tensor] = {}
        coarse = layers[::-2]
        for pooling in each.poolings:
            self._score(found, vectors, [Readout(layer, pooling) for layer in coarse])
            best = max((key for key in found if key[0].pooling == pooling), key=lambda key: float(found[key].mean()))[0].layer
            near = [layer for layer in layers if abs(layers.index(layer) - layers.index(best)) == 1]
            self._score(found, vectors, [Readout(layer, pooling) for layer in near if layer not in coarse])
            top = max((key for key in found if key[0].pooling == pooling), key=lambda key: float(found[key].mean()))[0]
            self._score(found, vectors, [top], USES[self.use])
        made = [
            Scored(each.of(readout, self.depth), name, cost * readout.layer, evidence)
            for (readout, name), evidence in found.items()
        ]
        if path is not None:
            self._store(path, made)
        self.seconds[f"{each.method}: all"] = time.perf_counter() - started
        return made

    def _layers(self, each: Pass) -> list[int]:
        """Layers that are read, ascending, the last among them; fewer where their vectors would not fit."""
        width = int(getattr(self.transformer.config.get_text_config(), "hidden_size", 1024))
        one = 2 * width * len(self.items.texts) * len(each.poolings)
        lowest = 1 if each.first is None else each.first + 1
        step = max(self.step, -(-(self.depth - lowest + 1) * one // _MOST_BYTES))
        return list(range(self.depth, lowest - 1, -step))[::-1]

    def _score(
        self,
        found: dict[tuple[Readout, str], Tensor],
        vectors: Mapping[Readout, Held],
        readouts: Iterable[Readout],
        names: Sequence[str] = ("none", "center", "abtt-1", "abtt-2"),
    ) -> None:
        for readout in readouts:
            units = vectors[readout].units()
            fitted = Fitted(units)
            for name in names:
                if FILTERS[name].get("kind") == "whiten" and len(units) < 2 * units.shape[1]:
                    continue
                evidence = self.items.evidence(fitted.apply(name, units)).cpu()
                found[readout, name] = evidence + _bonus(self.items, readout.pooling)

    def _key(self, each: Pass) -> str:
        """A name that no other pass, base, texts or version of this code has."""
        model = self.transformer.model
        weight = model.get_input_embeddings().weight
        sample = weight[: 1 << 6].detach().float().cpu().numpy().tobytes()
        parts = [str(_VERSION), self.use, repr(each), repr(self.items), model.config.to_json_string(), str(model.dtype)]
        return hashlib.sha256(b"\0".join([*(part.encode() for part in parts), sample])).hexdigest()[:24]

    def _store(self, path: Path, made: Sequence[Scored]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [{"method": one.method.to_dict(), "filter": one.filter, "cost": one.cost} for one in made]
        part = path.with_suffix(".part")
        with part.open("wb") as out:
            np.savez(out, rows=json.dumps(rows), evidence=torch.stack([one.evidence for one in made]).numpy())
        os.replace(part, path)

    def _stored(self, path: Path, each: Pass) -> list[Scored]:
        with np.load(path) as stored:
            rows, evidence = json.loads(str(stored["rows"])), torch.from_numpy(stored["evidence"])
        return [Scored(Method(**row["method"]), row["filter"], row["cost"], one) for row, one in zip(rows, evidence, strict=True)]


def chosen(scored: Sequence[Scored], most_cost: float | None = None) -> Scored:
    """The cheapest of those that cannot be told from the best: behind it by no more than one standard error.

    Args:
        scored: All that was scored, on the same items.
        most_cost: What the choice may cost, as a multiple of one pass of the text through the base.
    """
    allowed = [one for one in scored if most_cost is None or one.cost <= most_cost]
    if not allowed:
        raise ValueError(f"most_cost={most_cost}: the cheapest method costs {min(one.cost for one in scored):.2f}.")
    best = max(allowed, key=lambda one: one.score)

    def behind(one: Scored) -> bool:
        difference = best.evidence - one.evidence
        return float(difference.mean()) <= float(difference.std()) / len(difference) ** 0.5

    return min((one for one in allowed if behind(one)), key=lambda one: (one.cost, -one.score))


@dataclass(frozen=True)
class Row:
    """A method of a report.

    Args:
        name: What it is called.
        method: The method, its filter's file among it.
        score, error: On the items that report: the mean, and its standard error.
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
        items: What scored them: ``"views"``, ``"pairs"``, ``"classes"`` or ``"ranking"``.
        counts: Items that chose, and that report.
        tried: Number of methods that were scored.
        seconds: Of the search.
        folder: Where recipe, filter, model and this report are.
        notes: What makes the choice less certain.
    """

    method: Method
    rows: tuple[Row, ...]
    items: str
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
            f"Chosen of {self.tried} by {self.counts[0]} items ({self.items}), in {self.seconds:.0f} s: {self.method}",
            f"On {self.counts[1]} other items, which did not choose:",
            "",
            f"| {'method':32} | score | ± 1 s.e. | cost | s / 1,000 texts | MB |",
            f"|{'-' * 34}|--:|--:|--:|--:|--:|",
        ]
        lines += [
            f"| {row.name:32} | {row.score:.3f} | {row.error:.3f} | {row.cost:.2f} | {row.seconds:.1f} | {row.megabytes:.0f} |"
            for row in self.rows
        ]
        lines += ["", "Cost: positions times layers, as a multiple of one pass of the text through the whole base."]
        return "\n".join([*lines, *self.notes])


def papers_of(depth: int, script: str, best: Callable[[Method], float]) -> dict[str, Method]:
    """The papers' methods at their published settings; NoSink's k is the better of two by the items that choose."""
    masked = [Method("nosink", setting="mask0-bidir", k=depth - first) for first in (depth // 2, depth // 3)]
    return {
        "classical, last": Method("classical", pooling="last"),
        "classical, mean": Method("classical", pooling="mean"),
        "Echo-2, last": Method("echo", pooling="last"),
        "Echo-2, mean": Method("echo", pooling="mean"),
        "ReBA-2, last": Method("reba", pooling="last"),
        "ReBA-2, mean": Method("reba", pooling="mean"),
        "PromptEOL": Method("prompteol", template=_PROMPTEOL.get(script)),
        "NoSink, MASK0-BIDIR": max(masked, key=best),
    }


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
    """Find which method suits a base and texts; write its recipe, the model, and a report.

    Without labels a text is shown by views, two crops and two halves, and vectors are good if they find each other among
    those of the other texts. With labels, these choose, and the texts only fit the filter. Two thirds choose; the others
    report. The same call goes on where it was stopped.

    Args:
        base: As for :func:`st_reba.build`.
        texts: Texts like those to be embedded; None: those of the labels.
        out: A folder: ``recipe.yaml``, ``filter.safetensors`` if a filter was chosen, ``model``, ``report.md``,
            ``report.json``, and ``passes``, which can be deleted.
        labels: Rows ``(text, text, score)``, ``(text, class)`` or ``(query, document, relevance)``.
        kind: Of the labels: ``"pairs"``, ``"classes"`` or ``"ranking"``.
        use: What the vectors are for: ``"pairs"`` (which texts mean the same), ``"topics"``, ``"search"``, where whitening
            in full is tried too.
        sample: Draw so many of the texts.
        most_cost: What the method may cost, as a multiple of one pass of the text through the base.
        seed: Of all draws.
        say: Gets a line for each step.
        progress: Called after each batch with its number of texts and of positions.
        **loading: Further arguments of ``build``, as ``dtype``, ``device`` and ``max_seq_length``.

    Raises:
        ValueError: Too few texts, or an argument that cannot be.

    Example:
        >>> import st_reba.evaluation
        >>> texts = [f"the {animal} sleeps in house number {n}" for n in range(30) for animal in ("cat", "dog", "fox")]
        >>> report = st_reba.evaluation.tune("mini", texts, "tuned", say=lambda line: None)  # doctest: +SKIP
    """
    if use not in USES or kind not in ("pairs", "classes", "ranking"):
        raise ValueError(f"use={use!r}, kind={kind!r}: choose from {', '.join(USES)}, and from pairs, classes, ranking.")
    if texts is None and labels is None:
        raise ValueError("Give texts, or labels, or both.")
    started, folder = time.perf_counter(), Path(out)
    found = drawn(pairs_of(labels or (), kind).texts if texts is None else texts, sample, seed)
    first, second = (views_of(found) if labels is None else pairs_of(labels, kind)).split(CHOOSE, seed)
    hidden = set(second.texts)
    first, second = first.at_most(MOST_CHOOSING, seed), second.at_most(MOST_REPORTING, seed)
    model = opened(base, **loading)
    script = script_of(" ".join(found[:200]))
    passes = passes_of(_depth(model), script)
    search = Search(model, first, use, folder / "passes", progress)
    scored: list[Scored] = []
    for number, each in enumerate(passes, 1):
        before = time.perf_counter()
        scored += search.scored(each)
        best = max(scored, key=lambda one: one.score)
        spent = time.perf_counter() - before
        say(f"{number}/{len(passes)} {each.method}: {spent:.0f} s; best so far {best.score:.3f}: {best.method}, {best.filter}")
    choice = chosen(scored, most_cost)
    # A filter has seen no text that reports.
    fit = [text for text in found if text not in hidden and not hidden & set(views_of([text]).texts)]
    method = choice.method
    if choice.filter != "none":
        method = replace(method, filter=str(folder / "filter.safetensors"))
        fitted_filter(of_base(model, choice.method), choice.filter, fit).save(method.filter)
    rows = reported(model, method, papers_of(_depth(model), script, lambda each: _score_of(scored, each)), second)
    notes = _notes(first, len(found), found, labels is None)
    counts = len(first.places), len(second.places)
    report = Report(method, rows, first.kind, counts, len(scored), time.perf_counter() - started, str(folder), notes)
    write(report, base, model, loading)
    say(str(report))
    return report


def fitted_filter(model: SentenceTransformer, name: str, texts: Sequence[str]) -> Any:
    """Fit a filter of ``FILTERS`` on a model's vectors of texts, and where these are too few of their views too."""
    from ..encode import encode_texts
    from ..filters import Filter

    options = dict(FILTERS[name])
    sample = list(texts)
    least = _TEXTS_A_DIMENSION * (model.get_embedding_dimension() or 0) if options["kind"] == "whiten" else 0
    if len(sample) < least:
        sample = list(dict.fromkeys([*sample, *views_of(texts).texts]))
    found = np.asarray(encode_texts(model, sample), np.float32)
    return Filter.fit(found, options.pop("kind"), **options)


def reported(
    base: SentenceTransformer, method: Method, papers: Mapping[str, Method], items: Items
) -> tuple[Row, ...]:
    """The choice and the papers' methods on items that did not choose."""
    named = {"chosen": method, **papers}
    depth, transformer = _depth(base), base[0]
    plain = sum(positions(transformer, items.texts)) * depth
    rows: dict[str, Row] = {}
    groups = shared(list(dict.fromkeys(named.values())), depth)
    for first, group in groups.items():
        ran = of_base(base, replace(first, filter=None), check=False)
        cost = sum(positions(ran[0], items.texts)) / plain
        started = time.perf_counter()
        found = vectors(base, group, items.texts, check=False)
        seconds = (time.perf_counter() - started) * 1000 / len(items.texts)
        whole = (readout_of(first, depth) or Readout(depth, "")).layer
        for name in (name for name, each in named.items() if each in group):
            each = named[name]
            readout = readout_of(each, depth) or Readout(depth, "")
            evidence = items.evidence(torch.nn.functional.normalize(torch.from_numpy(found[each]), dim=1))
            evidence = evidence + _bonus(items, readout.pooling)
            error = float(evidence.std()) / len(evidence) ** 0.5
            size = _megabytes(of_base(base, replace(each, filter=None), check=False))
            share = readout.layer / whole
            rows[name] = Row(name, each, float(evidence.mean()), error, cost * readout.layer, seconds * share, size)
    return tuple(rows[name] for name in named)


def write(report: Report, base: Any, model: SentenceTransformer, loading: Mapping[str, Any]) -> None:
    """Write recipe, model and report into the folder."""
    import yaml

    from ..hub import save

    folder = Path(report.folder)
    values = report.method.to_dict()
    if report.method.filter is not None:
        values["filter"] = Path(report.method.filter).name
    recipe = {"base": os.fspath(base) if isinstance(base, (str, os.PathLike)) else model[0].base_model, "method": values}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True), encoding="utf-8")
    (folder / "report.md").write_text(f"{report}\n", encoding="utf-8")
    (folder / "report.json").write_text(json.dumps(report.to_dict(), indent=1, ensure_ascii=False), encoding="utf-8")
    save(of_base(model, report.method), folder / "model", overwrite=True)


def _notes(items: Items, texts: int, found: Sequence[str], unlabelled: bool) -> tuple[str, ...]:
    notes = []
    if unlabelled:
        notes.append(
            "Scores are views': how far crops and halves of a text find each other among those of the others, 0 to 1. They "
            f"tell methods apart, and are no quality that others know. The end of a template has {END_BONUS} more, as it "
            "holds no words that views could share."
        )
    if len(items.places) < 200:
        notes.append(f"Only {len(items.places)} items chose: with 200 or more the choice is steadier.")
    counts = Counter(map(script_of, found))
    if sum(count > texts / 20 for count in counts.values()) > 1:
        notes.append("The texts are in several scripts. Where languages are not compared, tune on each by itself.")
    return tuple(notes)


def _score_of(scored: Sequence[Scored], method: Method) -> float:
    """What a method without a filter scored, whatever it is called."""
    mine = replace(method, name="classical", pooling="mean") if method.name == "nosink" else method
    return next((one.score for one in scored if one.filter == "none" and one.method == mine), -1.0)


def _bonus(items: Items, pooling: str) -> float:
    return END_BONUS if pooling == "end" and items.kind == "views" else 0.0


def _depth(model: Any) -> int:
    return int(model[0].depth)


def _megabytes(model: SentenceTransformer) -> float:
    return sum(each.numel() * each.element_size() for each in model.parameters()) / 1e6


def auto(base: Any, texts: Iterable[str], *, use: str = "pairs", seed: int = 0, **rest: Any) -> SentenceTransformer:
    """What ``build(base, "auto", texts=…)`` does: :func:`tune` with fewer passes, where 300 texts at most all choose.

    Args:
        base: As for ``build``.
        texts: Texts like those to be embedded.
        use, seed: As for :func:`tune`.
        **rest: Further arguments of ``build``.
    """
    loading = {name: value for name, value in rest.items() if value is not None and name != "check"}
    if use not in USES:
        raise ValueError(f"use={use!r}: choose from {', '.join(USES)}.")
    from ..filters import with_filter

    found = drawn(texts, AUTO_TEXTS, seed)
    model = opened(base, **loading)
    passes = passes_of(_depth(model), script_of(" ".join(found)), small=True)
    search = Search(model, views_of(found), use, None, None)
    choice = chosen([scored for each in passes for scored in search.scored(each)])
    made = of_base(model, choice.method)
    return made if choice.filter == "none" else with_filter(made, fitted_filter(made, choice.filter, found))
