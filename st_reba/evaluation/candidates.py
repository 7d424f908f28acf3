"""What a search tries: inputs and masks (passes), and layers and poolings of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from scipy.sparse.linalg import eigsh
from torch import Tensor

from ..methods import Method
from .readouts import Readout

# Wordings of PromptEOL, and of ReverseEOL, in the language of a script.
_PROMPTEOL, _REVERSEOL = {"CJK": "prompteol-zh"}, {"CJK": "reverseol-zh"}
# Layers that are read of a pass at most; principal directions that the filter takes away.
_MOST_LAYERS, DIRECTIONS = 16, 2


@dataclass(frozen=True)
class Pass:
    """One input with one set of masks, which all readouts of it share.

    Args:
        method: The pass at full depth.
        poolings: Of the states that are read.
        first: The lowest layer whose mask is changed, from 0; None: none is.
        outputs: Read the attention outputs at the end too, from a third of the depth on.
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

    def readouts(self, depth: int) -> list[Readout]:
        """What is read, of all layers or of every so many: layers that are below a changed mask are another pass's."""
        layers = range(depth, self.first or 0, -max(1, -(-depth // _MOST_LAYERS)))
        found = [Readout(layer, pooling) for pooling in self.poolings for layer in layers]
        return [*found, Readout(depth, "end", depth // 3 + 1)] if self.outputs else found


def passes_of(depth: int, script: str, *, small: bool = False, labelled: bool = False) -> list[Pass]:
    """The inputs and masks that are tried.

    Args:
        depth: The base's number of layers L.
        script: Of the texts, for the wording of PromptEOL; see :func:`~st_reba.evaluation.views.script_of`.
        small: The few that cover most, for ``build(base, "auto")``.
        labelled: Try repeated texts too. Parts of texts cannot judge them: on SmolLM2-135M they chose ReBA at a low
            layer, which is far below the others by labels.

    Example:
        >>> len(passes_of(30, "LATIN")), len(passes_of(30, "LATIN", labelled=True))
        (7, 11)
    """
    once, twice = Method("classical", pooling="mean"), Method("echo", pooling="mean")
    word = Method("prompteol", template=_PROMPTEOL.get(script))
    both = replace(word, template=_REVERSEOL.get(script, "reverseol"))
    third, half = depth // 3, depth // 2

    def masked(method: Method, first: int) -> Pass:
        return Pass(replace(method, setting="mask0-bidir", k=depth - first), ("mean",), first)

    found = [
        Pass(word, ("end", "mean"), outputs=True),
        Pass(both, ("end",), outputs=True),
        Pass(once, ("mean", "last")),
        masked(once, half),
    ]
    more = [masked(word, half), masked(word, third), masked(once, third)]
    repeated = [
        Pass(replace(twice, name="reba"), ("mean", "last", "reba-mean", "reba-last")),
        Pass(replace(twice, template="echo"), ("mean",)),
        masked(twice, half),
        masked(twice, third),
    ]
    return [*found, *([] if small else more), *(repeated if labelled else [])]


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
        "PromptEOL": Method("prompteol", template=_PROMPTEOL.get(script)),
        "NoSink, MASK0-BIDIR": replace(masked, name="nosink"),
    }


def filtered(units: Tensor, sample: Tensor | None = None) -> Tensor:
    """Vectors without their mean and two principal directions (All-but-the-Top), scaled to length 1.

    Args:
        units: [M, d] of length 1.
        sample: What the filter is fitted on, [N, d]; None: on themselves.
    """
    mean = (sample := units if sample is None else sample).mean(dim=0)
    covariance = torch.cov(sample.T, correction=0).cpu().numpy()
    # A few directions take d² work, a whole decomposition d³.
    found = eigsh(covariance, k=DIRECTIONS, v0=np.ones(len(covariance), covariance.dtype), tol=1e-5)[1]
    top = torch.from_numpy(np.ascontiguousarray(found)).to(units)
    vectors = units - mean
    return torch.nn.functional.normalize(vectors - (vectors @ top) @ top.T, dim=1)


@dataclass(frozen=True, eq=False)
class Scored:
    """A method, and what its vectors say of each item that chooses.

    Args:
        method: The method.
        filtered: Whether a filter follows.
        cost: Positions times layers, as a multiple of one pass of the text through the base.
        evidence: [number of items] float32; the mean is the score.
    """

    method: Method
    filtered: bool
    cost: float
    evidence: Tensor = field(repr=False)

    @property
    def score(self) -> float:
        """The mean over the items."""
        return float(self.evidence.mean())

    def __str__(self) -> str:
        return f"{self.method}{', with a filter' if self.filtered else ''}"


def chosen(scored: Sequence[Scored], most_cost: float | None = None) -> Scored:
    """The best by score, of several the cheapest.

    Args:
        scored: All that was scored, on the same items.
        most_cost: What the choice may cost.

    Raises:
        ValueError: Nothing is as cheap.
    """
    allowed = [one for one in scored if most_cost is None or one.cost <= most_cost]
    if not allowed:
        raise ValueError(f"most_cost={most_cost}: the cheapest method costs {min(one.cost for one in scored):.2f}.")
    return max(allowed, key=lambda one: (one.score, -one.cost))
