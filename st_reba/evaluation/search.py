"""The search: inputs and masks (passes) with the layers and poolings that are read of each, and what chooses."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse.linalg import eigsh
from sentence_transformers import SentenceTransformer
from torch import Tensor
from torch.nn.functional import normalize

from ..encode import computed_positions, encode_texts
from ..files import whole_path
from ..filters import Filter
from ..methods import Method
from ..modules.version import __version__
from .readouts import Readout, of_base, read
from .views import evidence, views_of

# Wordings of PromptEOL in the language of a script. Only labels can judge others than the first: they are better by
# labels, and not by parts of texts.
_WORDINGS = {
    "CJK": ("prompteol-zh", "prompteol-example-zh", "prompteol-topic-4-zh"),
    "": ("prompteol", "prompteol-says", "prompteol-example", "prompteol-topic-4"),
}
# Layers that are read of a pass at most; principal directions that the filter takes away.
_MOST_LAYERS, DIRECTIONS = 16, 2
# Texts that a filter needs at the least; each dimension needs one more.
_FEWEST = 100
# Bytes of vectors that a pass may hold.
_MOST_BYTES = 1 << 30


@dataclass(frozen=True)
class Pass:
    """One input with one set of masks, which all readouts of it share.

    Args:
        method: The pass at full depth.
        poolings: Poolings of each layer that is read.
        first: The lowest layer whose mask is changed, from 0; None: none is.
        outputs: Read the attention outputs at the end too, from a third of the depth on.
    """

    method: Method
    poolings: tuple[str, ...]
    first: int | None = None
    outputs: bool = False

    def of(self, readout: Readout, depth: int) -> Method:
        """The method whose model gives a readout of this pass, of a base with L layers (``depth``)."""
        method, pooling = self.method, readout.pooling
        plain = {"reba": "echo", "prompteol": "classical"}.get(method.name, method.name)
        name = "prompteol" if pooling == "end" else "reba" if pooling.startswith("reba") else plain
        values: dict[str, Any] = {"name": name, "pooling": None if pooling == "end" else pooling.removeprefix("reba-")}
        values["layer"] = None if readout.layer == depth else readout.layer
        if readout.first is not None:
            values |= {"read": "attention", "layer": (readout.first, readout.layer)}
        if method.name == "prompteol" != name:
            values["template"] = method.template or "prompteol"
        if self.first is not None:
            values["k"] = readout.layer - self.first
        return replace(method, **values)

    def readouts(self, depth: int) -> list[Readout]:
        """The readouts of the layers above the lowest changed mask, of some of them where there are many."""
        layers = range(depth, self.first or 0, -max(1, -(-depth // _MOST_LAYERS)))
        found = [Readout(layer, pooling) for pooling in self.poolings for layer in layers]
        return [*found, Readout(depth, "end", depth // 3 + 1)] if self.outputs else found


def passes_of(depth: int, script: str, *, small: bool = False, labelled: bool = False) -> list[Pass]:
    """The inputs and masks that are tried.

    Args:
        depth: The base's number of layers L.
        script: Script of the texts, for the wording of PromptEOL; see :func:`~st_reba.evaluation.views.script_of`.
        small: The few that cover most, for ``build(base, "auto")``.
        labelled: Try repeated texts too, which parts of texts cannot judge.
    """
    once, twice = Method("classical", pooling="mean"), Method("echo", pooling="mean")
    (word, both), *others = _prompts(script)
    third, half = depth // 3, depth // 2

    def masked(method: Method, first: int) -> Pass:
        return Pass(replace(method, setting="mask0-bidir", k=depth - first), ("mean",), first)

    found = [Pass(word, ("end", "mean"), outputs=True), Pass(both, ("end",), outputs=True)]
    found += [Pass(once, ("mean", "last")), masked(once, half)]
    if not small:
        found += [masked(word, half), masked(word, third), masked(once, third)]
    if labelled:
        found.append(Pass(replace(twice, name="reba"), ("mean", "last", "reba-mean", "reba-last")))
        found += [Pass(replace(twice, template="echo"), ("mean",)), masked(twice, half), masked(twice, third)]
        found += [Pass(each, ("end",), outputs=True) for both in others for each in both]
    return found


def _prompts(script: str) -> list[tuple[Method, Method]]:
    """PromptEOL and ReverseEOL in each wording."""
    names = _WORDINGS.get(script, _WORDINGS[""])
    words = [Method("prompteol", template=None if name == "prompteol" else name) for name in names]
    both = [Method("prompteol", template=name.replace("prompteol", "reverseol")) for name in names]
    return list(zip(words, both, strict=True))


def papers_of(depth: int, script: str, scores: Mapping[Method, float]) -> dict[str, Method]:
    """The papers' methods at their published settings; NoSink's k is the better of the search's two."""
    passes = [Method("classical", pooling="mean", setting="mask0-bidir", k=depth - n) for n in (depth // 2, depth // 3)]
    masked = max(passes, key=lambda each: scores.get(each, -1.0))
    return {
        "classical, last": Method("classical", pooling="last"),
        "classical, mean": Method("classical", pooling="mean"),
        "Echo-2, last": Method("echo", pooling="last"),
        "Echo-2, mean": Method("echo", pooling="mean"),
        "ReBA-2, last": Method("reba", pooling="last"),
        "ReBA-2, mean": Method("reba", pooling="mean"),
        "PromptEOL": _prompts(script)[0][0],
        "NoSink, MASK0-BIDIR": replace(masked, name="nosink"),
    }


def filtered(units: Tensor, sample: Tensor | None = None) -> Tensor:
    """Vectors without their mean and two principal directions (All-but-the-Top), scaled to length 1.

    Args:
        units: [M, d] of length 1.
        sample: [N, d] to fit the filter on; None: ``units``.
    """
    mean = (sample := units if sample is None else sample).mean(dim=0)
    covariance = torch.cov(sample.T, correction=0).cpu().numpy()
    # A few directions take d² work, a whole decomposition d³.
    found = eigsh(covariance, k=DIRECTIONS, v0=np.ones(len(covariance), covariance.dtype), tol=1e-5)[1]
    top = torch.from_numpy(np.ascontiguousarray(found)).to(units)
    vectors = units - mean
    return normalize(vectors - (vectors @ top) @ top.T, dim=1)


@dataclass(frozen=True, eq=False)
class Scored:
    """A method with its ``evidence`` on each item that chooses, [N] float32, whose mean is the score."""

    method: Method
    filter_kind: str | None  # that of the filter which follows
    cost: float  # positions times layers, in passes of the text through the whole base
    evidence: Tensor

    @property
    def score(self) -> float:
        """The mean over the items."""
        return float(self.evidence.mean())


def chosen(scored: Sequence[Scored], most_cost: float | None = None) -> Scored:
    """The best by score, of several the cheapest.

    Args:
        scored: All that was scored, on the same items.
        most_cost: Highest cost of the choice.

    Raises:
        ValueError: Nothing is as cheap.
    """
    allowed = [one for one in scored if most_cost is None or one.cost <= most_cost]
    if not allowed:
        raise ValueError(f"most_cost={most_cost}: the cheapest method costs {min(one.cost for one in scored):.2f}.")
    return max(allowed, key=lambda one: (one.score, -one.cost))


class Search:
    """Runs passes over the items that choose, and scores their readouts.

    Args:
        base: A model from :func:`~st_reba.evaluation.readouts.opened`.
        items: The items that choose. Views judge vectors with a filter, as it helps nearly always; labels judge both.
        texts: Texts to fit a filter on; with too few there is none.
        folder: Where finished passes are kept; None: nowhere.
    """

    def __init__(self, base: SentenceTransformer, items: Any, texts: Sequence[str], folder: Path | None = None) -> None:
        self.base, self.items, self.folder = base, items, folder
        self.seconds = 0.0  # in forward passes
        transformer: Any = base[0]
        self.depth: int = transformer.depth
        self.plain = self.count_positions(base) * self.depth
        self.filters = self.usable_filters(texts)

    @property
    def text_count(self) -> int:
        """Number of texts that a pass runs."""
        return len(self.items.texts)

    def count_positions(self, model: SentenceTransformer) -> int:
        """Positions that a model computes for the items."""
        return sum(computed_positions(model[0], self.items.texts, {}))

    def usable_filters(self, texts: Sequence[str]) -> list[str | None]:
        """Kinds of filters that are tried, None for none."""
        usable = bool(sample_of(texts, self.base.get_embedding_dimension() or 0))
        return [None] if not usable else ["abtt"] if self.items.kind == "Views" else [None, "abtt"]

    def judged(
        self, model: SentenceTransformer, readouts: Sequence[Readout]
    ) -> Iterator[tuple[Readout, str | None, Tensor]]:
        """Run a pass, and give the evidence of each readout with each filter."""
        started = time.perf_counter()
        made = read(model, readouts, self.items.texts)
        self.seconds += time.perf_counter() - started
        for readout, vectors in made.items():
            units = normalize(torch.from_numpy(vectors).to(model.device), dim=1)
            for kind in self.filters:
                yield readout, kind, evidence(self.items, units if kind is None else filtered(units)).cpu()

    def scored(self, each: Pass) -> list[Scored]:
        """All that is read from a pass, run now or found in the folder."""
        path = None if self.folder is None else self.folder / f"{self._key(each)}.pt"
        if path is not None and path.exists():
            rows = torch.load(path, weights_only=True)
            return [Scored(**{**row, "method": Method.parse(row["method"])}) for row in rows]
        model = of_base(self.base, each.method)
        readouts, cost = each.readouts(self.depth), self.count_positions(model) / self.plain
        # Where not all fit, the pass runs again.
        step = max(1, _MOST_BYTES // (4 * (model.get_embedding_dimension() or 1) * self.text_count))
        found = []
        for start in range(0, len(readouts), step):
            for readout, kind, values in self.judged(model, readouts[start : start + step]):
                found.append(Scored(each.of(readout, self.depth), kind, cost * readout.layer, values))
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            with whole_path(path) as part:
                torch.save([{**vars(one), "method": str(one.method)} for one in found], part)
        return found

    def _key(self, each: Pass) -> str:
        """A name that no other pass, base, texts or version of this code has."""
        model: Any = self.base[0].model
        weights = model.get_input_embeddings().weight[:64].detach().float().cpu().numpy().tobytes()
        known = (model.config.to_json_string(), model.dtype, self.base.max_seq_length, self.plain)
        facts = (__version__, self.filters, each, self.items, *known)
        return hashlib.sha256(repr(facts).encode() + weights).hexdigest()[:24]


def sample_of(texts: Sequence[str], width: int) -> list[str]:
    """Texts to fit a filter for d dimensions (``width``): with their views if too few, none if these are too few."""
    least = max(_FEWEST, width)
    if len(texts) >= least:
        return list(texts)
    more = list(dict.fromkeys([*texts, *views_of(texts).texts])) if texts else []
    return more[:least] if len(more) >= least else []


def fitted_filter(model: SentenceTransformer, texts: Sequence[str]) -> Filter:
    """Fit the filter on a model's vectors of texts."""
    sample = sample_of(texts, model.get_embedding_dimension() or 0)
    return Filter.fit(encode_texts(model, sample), "abtt", r=DIRECTIONS, model=model)
