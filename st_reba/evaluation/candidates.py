"""What a search tries: inputs and masks (passes), layers and poolings of each, and filters behind them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..filters import MOST_GAIN
from ..methods import Method
from .readouts import Readout

FILTERS: dict[str, dict[str, Any]] = {
    "none": {},
    "center": {"kind": "center"},
    "abtt-1": {"kind": "abtt", "r": 1},
    "abtt-2": {"kind": "abtt", "r": 2},
    "whiten-half": {"kind": "whiten", "power": 0.5},
}
# PromptEOL in the language of a script.
_PROMPTEOL = {"CJK": "这句话：“{text}”用一个词概括就是：“"}


class Use(NamedTuple):
    """How views choose for what the vectors are for; docs/how-to/tune.md says by which evidence.

    Args:
        filters: Tried on every readout; ``whiten-half`` is tried on the best.
        halves: Weight of disjoint halves, beside 1 for overlapping crops.
        end_bonus: Added to a template's end. A mean holds the words that views share, an end does not: it knows better
            which texts mean the same than views show.
    """

    filters: tuple[str, ...] = ("abtt-2",)
    halves: float = 0.5
    end_bonus: float = 0.0


USES = {
    "pairs": Use(end_bonus=0.1),
    "topics": Use(),
    "search": Use(halves=0.0),
}
# Labels need no such care.
LABELLED = Use(("none", "center", "abtt-1", "abtt-2"))


@dataclass(frozen=True)
class Pass:
    """One input with one set of masks, which all readouts of it share.

    Args:
        method: The pass at full depth.
        poolings: What is read.
        first: The lowest layer whose mask is changed, from 0; None: none is.
    """

    method: Method
    poolings: tuple[str, ...]
    first: int | None = None

    def of(self, readout: Readout, depth: int) -> Method:
        """The method whose model gives a readout of this pass, of a base with L layers (``depth``).

        Example:
            >>> masked = Pass(Method("echo", pooling="mean", setting="mask0-bidir", k=3), ("mean",), first=3)
            >>> str(masked.of(Readout(5, "mean"), 6))
            'echo:pooling=mean,setting=mask0-bidir,k=2,layer=5'
        """
        method, pooling = self.method, readout.pooling
        if pooling == "end":
            name = "prompteol"
        elif pooling.startswith("reba"):
            name = "reba"
        else:
            name = {"reba": "echo", "prompteol": "classical"}.get(method.name, method.name)
        values: dict[str, Any] = {"name": name, "pooling": None if pooling == "end" else pooling.removeprefix("reba-")}
        values["layer"] = None if readout.layer == depth else readout.layer
        if method.name == "prompteol" != name:
            values["template"] = method.template or "prompteol"
        if self.first is not None:
            values["k"] = readout.layer - self.first
        return replace(method, **values)

    def readouts(self, layers: Sequence[int]) -> list[Readout]:
        """All readouts of some layers."""
        return [Readout(layer, pooling) for pooling in self.poolings for layer in layers]


def passes_of(depth: int, script: str, small: bool = False) -> list[Pass]:
    """The inputs and masks that are tried.

    Args:
        depth: The base's number of layers L.
        script: Of the texts, for the wording of PromptEOL; see :func:`~st_reba.evaluation.views.script_of`.
        small: The five that cover most, for ``build(base, "auto")``.

    Example:
        >>> [len(passes_of(30, "LATIN", small)) for small in (False, True)]
        [12, 5]
    """
    once, twice = Method("classical", pooling="mean"), Method("echo", pooling="mean")
    word = Method("prompteol", template=_PROMPTEOL.get(script))
    third, half = depth // 3, depth // 2

    def masked(method: Method, first: int, *poolings: str, setting: str = "mask0-bidir") -> Pass:
        return Pass(replace(method, setting=setting, k=depth - first), poolings, first)

    found = [
        Pass(word, ("end", "mean")),
        Pass(once, ("mean", "last")),
        Pass(replace(twice, name="reba"), ("mean", "last", "reba-mean", "reba-last")),
        masked(once, half, "mean"),
        masked(twice, half, "mean"),
    ]
    more = [
        Pass(replace(twice, template="echo"), ("mean",)),
        masked(once, third, "mean"),
        masked(twice, third, "mean"),
        masked(word, half, "end", "mean"),
        masked(word, third, "end"),
        masked(once, half, "mean", setting="inplace-bidir"),
        masked(twice, half, "mean", setting="inplace-bidir"),
    ]
    return found if small else [*found, *more]


def papers_of(depth: int, script: str, score: Callable[[Method], float]) -> dict[str, Method]:
    """The papers' methods at their published settings; NoSink's k is that of two which scores higher."""
    masked = [Method("nosink", setting="mask0-bidir", k=depth - first) for first in (depth // 2, depth // 3)]
    return {
        "classical, last": Method("classical", pooling="last"),
        "classical, mean": Method("classical", pooling="mean"),
        "Echo-2, last": Method("echo", pooling="last"),
        "Echo-2, mean": Method("echo", pooling="mean"),
        "ReBA-2, last": Method("reba", pooling="last"),
        "ReBA-2, mean": Method("reba", pooling="mean"),
        "PromptEOL": Method("prompteol", template=_PROMPTEOL.get(script)),
        "NoSink, MASK0-BIDIR": max(masked, key=score),
    }


class Fitted:
    """Filters fitted on vectors: one mean and one covariance for all, in float32 on the vectors' device.

    Args:
        sample: [N, d].

    Example:
        >>> vectors = torch.nn.functional.normalize(torch.arange(24.0).view(6, 4).sin() + 2)
        >>> bool(Fitted(vectors).apply("none", vectors) is vectors)
        True
    """

    def __init__(self, sample: Tensor) -> None:
        self.mean = sample.mean(dim=0)
        centered = sample - self.mean
        self.covariance = centered.T @ centered / len(sample)
        self._top: Tensor | None = None

    def apply(self, name: str, units: Tensor) -> Tensor:
        """Vectors [M, d] of length 1 behind a filter, scaled to length 1; whiten's but for a rotation."""
        options = FILTERS[name]
        if not options:
            return units
        vectors = units - self.mean
        if options["kind"] == "abtt":
            top = self.top()[:, : options["r"]]
            vectors = vectors - (vectors @ top) @ top.T
        elif options["kind"] == "whiten":
            variances, directions = torch.linalg.eigh(self.covariance)
            vectors = vectors @ directions / variances.clamp_min(MOST_GAIN**-2) ** (options["power"] / 2)
        return torch.nn.functional.normalize(vectors, dim=1)

    def top(self) -> Tensor:
        """The first directions, [d, 6], by subspace iteration: d² work where a decomposition takes d³."""
        if self._top is None:
            start = torch.randn(len(self.mean), 6, generator=torch.Generator().manual_seed(0)).to(self.mean)
            basis = torch.linalg.qr(self.covariance @ start)[0]
            for _ in range(12):
                basis = torch.linalg.qr(self.covariance @ basis)[0]
            inner = torch.linalg.eigh(basis.T @ self.covariance @ basis)[1]
            self._top = (basis @ inner).flip(dims=(1,))
        return self._top


@dataclass(frozen=True, eq=False)
class Scored:
    """A method behind a filter, and what its vectors say of each item that chooses.

    Args:
        method: The method.
        filter: One of ``FILTERS``.
        cost: Positions times layers, as a multiple of one pass of the text through the base.
        evidence: [number of items] float32; the mean is the score.
    """

    method: Method
    filter: str
    cost: float
    evidence: Tensor = field(repr=False)

    @property
    def score(self) -> float:
        """The mean over the items."""
        return float(self.evidence.mean())


def chosen(scored: Sequence[Scored], most_cost: float | None = None) -> Scored:
    """The cheapest of those that cannot be told from the best: behind it by no more than one standard error.

    Args:
        scored: All that was scored, on the same items.
        most_cost: What the choice may cost.

    Raises:
        ValueError: Nothing is as cheap.
    """
    allowed = [one for one in scored if most_cost is None or one.cost <= most_cost]
    if not allowed:
        raise ValueError(f"most_cost={most_cost}: the cheapest method costs {min(one.cost for one in scored):.2f}.")
    best = max(allowed, key=lambda one: one.score)

    def behind(one: Scored) -> bool:
        lost = best.evidence - one.evidence
        return bool(lost.mean() <= lost.std() / len(lost) ** 0.5)

    return min((one for one in allowed if behind(one)), key=lambda one: (one.cost, -one.score))
