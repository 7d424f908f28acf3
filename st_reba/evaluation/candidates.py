"""What a search tries: inputs and masks (passes), layers and poolings of each, and filters after them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse.linalg import eigsh
from torch import Tensor

from ..filters import MOST_GAIN
from ..methods import Method
from .readouts import Readout

FILTERS: dict[str, dict[str, Any]] = {
    "none": {},
    "abtt-2": {"kind": "abtt", "r": 2},
    "whiten-half": {"kind": "whiten", "power": 0.5},
}
# Wordings of PromptEOL, and of ReverseEOL, in the language of a script.
_PROMPTEOL, _REVERSEOL = {"CJK": "prompteol-zh"}, {"CJK": "reverseol-zh"}


class Use(NamedTuple):
    """How views choose for what the vectors are for; docs/how-to/tune.md says by which evidence.

    Args:
        filters: Tried on every readout; ``whiten-half`` is tried on the best.
        halves: Weight of disjoint halves, beside 1 for overlapping crops.
        margin: The end of a prompt is chosen where it is behind by no more. A mean holds the words that views share, an
            end does not: it knows better which texts mean the same than views show.
    """

    filters: tuple[str, ...] = ("abtt-2",)
    halves: float = 0.5
    margin: float = 0.0


USES = {"pairs": Use(margin=0.1), "topics": Use(), "search": Use(halves=0.0)}
# Labels need no such care.
LABELLED = Use(("none", "abtt-2"))


@dataclass(frozen=True)
class Pass:
    """One input with one set of masks, which all readouts of it share.

    Args:
        method: The pass at full depth.
        poolings: Of the states that are read.
        first: The lowest layer whose mask is changed, from 0; None: none is.
        outputs: Read the attention outputs at the end too.
    """

    method: Method
    poolings: tuple[str, ...]
    first: int | None = None
    outputs: bool = False

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
        if readout.first is not None:
            values |= {"read": "attention", "layer": (readout.first, readout.layer)}
        if method.name == "prompteol" != name:
            values["template"] = method.template or "prompteol"
        if self.first is not None:
            values["k"] = readout.layer - self.first
        return replace(method, **values)

    def readouts(self, layers: Sequence[int]) -> list[Readout]:
        """All readouts of some layers, the last of which is L."""
        found = [Readout(layer, pooling) for pooling in self.poolings for layer in layers]
        first = layers[-1] // 3 + 1
        return found + [Readout(layer, "end", first) for layer in layers if self.outputs and layer > first]


def passes_of(depth: int, script: str, small: bool = False) -> list[Pass]:
    """The inputs and masks that are tried.

    Args:
        depth: The base's number of layers L.
        script: Of the texts, for the wording of PromptEOL; see :func:`~st_reba.evaluation.views.script_of`.
        small: The few that cover most, for ``build(base, "auto")``.

    Example:
        >>> [len(passes_of(30, "LATIN", small)) for small in (False, True)]
        [11, 5]
    """
    once, twice = Method("classical", pooling="mean"), Method("echo", pooling="mean")
    word = Method("prompteol", template=_PROMPTEOL.get(script))
    both = replace(word, template=_REVERSEOL.get(script, "reverseol"))
    third, half = depth // 3, depth // 2

    def masked(method: Method, first: int) -> Pass:
        return Pass(replace(method, setting="mask0-bidir", k=depth - first), ("mean",), first)

    found = [
        Pass(word, ("end", "mean"), outputs=True),
        Pass(once, ("mean", "last")),
        masked(once, half),
        masked(word, half),
        Pass(replace(twice, name="reba"), ("mean", "last", "reba-mean", "reba-last")),
    ]
    more = [
        Pass(both, ("end",), outputs=True),
        Pass(replace(twice, template="echo"), ("mean",)),
        masked(once, third),
        masked(word, third),
        masked(twice, half),
        masked(twice, third),
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


def filtered(name: str, units: Tensor, sample: Tensor | None = None) -> Tensor:
    """Vectors of length 1 after a filter, scaled to length 1; whiten's but for a rotation.

    Args:
        name: One of ``FILTERS``.
        units: [M, d].
        sample: What it is fitted on, [N, d]; None: on themselves.
    """
    kind = FILTERS[name].get("kind")
    if kind is None:
        return units
    mean = (sample := units if sample is None else sample).mean(dim=0)
    vectors, covariance = units - mean, torch.cov(sample.T, correction=0)
    if kind == "abtt":
        # A few directions take d² work, a whole decomposition d³.
        start = np.ones(len(mean), np.float32)
        found = eigsh(covariance.cpu().numpy(), k=FILTERS[name]["r"], v0=start, tol=1e-5)[1]
        top = torch.from_numpy(np.ascontiguousarray(found)).to(vectors)
        vectors = vectors - (vectors @ top) @ top.T
    else:
        variances, directions = torch.linalg.eigh(covariance)
        vectors = vectors @ directions / variances.clamp_min(MOST_GAIN**-2) ** (FILTERS[name]["power"] / 2)
    return torch.nn.functional.normalize(vectors, dim=1)


@dataclass(frozen=True, eq=False)
class Scored:
    """A method with a filter, and what its vectors say of each item that chooses.

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


def chosen(scored: Sequence[Scored], most_cost: float | None = None, margin: float = 0.0) -> Scored:
    """The cheapest of those that cannot be told from the best: behind it by no more than one standard error.

    Args:
        scored: All that was scored, on the same items.
        most_cost: What the choice may cost.
        margin: As for :class:`Use`.

    Raises:
        ValueError: Nothing is as cheap.
    """
    allowed = [one for one in scored if most_cost is None or one.cost <= most_cost]
    if not allowed:
        raise ValueError(f"most_cost={most_cost}: the cheapest method costs {min(one.cost for one in scored):.2f}.")
    best = max(allowed, key=lambda one: one.score)
    ends = [one for one in allowed if one.method.name == "prompteol" and one.score >= best.score - margin]
    if margin and ends:
        allowed, best = ends, max(ends, key=lambda one: one.score)

    def behind(one: Scored) -> bool:
        lost = best.evidence - one.evidence
        return bool(lost.mean() <= lost.std() / len(lost) ** 0.5)

    return min((one for one in allowed if behind(one)), key=lambda one: (one.cost, -one.score))
