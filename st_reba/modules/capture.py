"""Running maxima of attention: what ReBA keeps of A^new, never a matrix per layer and head.

A^new is the elementwise maximum over all layers and heads of (A + Aᵀ)/2, and ReBA needs its rows at a few *anchor*
positions only. Where a layer looks back, row r is ½ · max A[t, r] right of the diagonal, A[r, r] on it, ½ · max A[r, t]
left of it; where it looks ahead, A[r, t] + A[t, r] is taken within the head. Each layer raises these maxima.
"""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .attention import switch_on
from .backbone import is_trained
from .kernels import attention_with_totals
from .poolings import Rows
from .scores import Scores, blocked_attention, pick, slices
from .stages import Bound, Pass, Place
from .vendoring import extra


class Blocks(NamedTuple):
    """How much is looked at together."""

    # Queries: fewer multiply slower, more waste work above the diagonal.
    queries: int
    anchors: int
    # Numbers of all heads that are held at a time.
    numbers: int
    # Numbers below which texts run together: one by one, calls would take longer than the work.
    together: int
    # Heads of a layer that looks both ways, where each takes three times the memory.
    ahead: int = 4
    # Rows of the result that are finished together.
    finished: int = 256


CPU = Blocks(128, 512, 1 << 20, 1 << 17)
GPU = Blocks(1024, 2048, 1 << 25, 1 << 22)


@dataclass(frozen=True)
class Capture(Bound):
    """Captures rows of A^new in a pass: ``backward_attention`` [B, R, T], zero beyond a text's own, and ``captured``.

    Args:
        rows: The anchors. ``"last"``: the last content token of copy 1. ``"copy"``: every content token of copy 1.
            ``"end"``: the very last real position. ``"half"``: the first half of all real positions.
        both: Keep the columns before the anchor too, not only those from the anchor on.
    """

    rows: Rows
    both: bool = False

    def anchors(self, places: Sequence[Place]) -> list[tuple[int, int]]:
        """The anchors of each text, a run of positions: the first and their number."""
        return [
            {
                "last": (first + count - 1, 1),
                "copy": (first, count),
                "end": (length - 1, 1),
                "half": (0, max(1, length // 2)),
            }[self.rows]
            for first, count, length in places
        ]

    def begin(self, run: Pass) -> None:
        """Observe the pass; with a gradient where there are weights to learn."""
        kind: type[AnchorObserver] = BackwardAttention
        if torch.is_grad_enabled() and is_trained(run.decoder.model):
            kind = extra("differentiable").DifferentiableAttention
        kind(self, run.places, run.length, run.real.device).begin(run)

    def finish(self, run: Pass, hidden: Tensor) -> Tensor:
        seen: Tensor = run.observer.finish(run, hidden)
        return seen

    def features(self, run: Pass) -> dict[str, Any]:
        return {"backward_attention": run.observer.matrix(), "captured": self}


class AttentionObserver(Bound):
    """Sees the attention of one pass, layer by layer; give it to a pass as ``watch=[…]``."""

    sees_all = True
    # Whether what it computes is defined on decoders that look back (or under a plan) only.
    needs_causal: ClassVar[bool] = False

    def __init__(self) -> None:
        self.layers = 0

    def begin(self, run: Pass) -> None:
        """Observe the pass, which can have one observer."""
        if run.observer is not None:
            raise ValueError(
                f"{type(run.observer).__name__} and {type(self).__name__} both want to observe one pass. Run two."
            )
        show(run.decoder.model)
        run.observer = self

    def begin_layer(self) -> None:
        """A layer begins."""
        self.layers += 1

    def end_layer(self) -> None:
        """A layer has shown all of its attention."""

    @abstractmethod
    def update(self, probabilities: Tensor, first_query: int) -> None:
        """See probabilities [B, H, Q, K] of a layer's queries from ``first_query`` on; other keys have no weight."""

    def attend(
        self,
        module: nn.Module,
        scores: Scores,
        value: Tensor,
        sinks: Tensor | None,
        dropout: float,
        *,
        defined: bool,
        ahead: bool,
    ) -> Tensor:
        """Attention of one layer, [B, T, H, D'], which is seen; ``defined``: it is causal, or has a plan."""
        if self.needs_causal and not defined:
            raise ValueError(looks_both_ways(module))
        if scores.query.shape[2] != scores.key.shape[2]:
            raise ValueError(
                f"{type(module).__name__} attends to more keys than tokens (a cache or a learned prefix): its "
                "attention cannot be captured. Pass use_cache=False, and merge adapters into the base model first."
            )
        self.begin_layer()
        output = self._attend(scores, value, sinks, dropout, ahead)
        self.end_layer()
        return output

    def _attend(self, scores: Scores, value: Tensor, sinks: Tensor | None, dropout: float, ahead: bool) -> Tensor:
        return blocked_attention(scores, value, sinks=sinks, dropout=dropout, see=self.update)[0]

    def finish(self, run: Pass, hidden: Tensor) -> Tensor:
        """Raise unless every layer was seen: one that was not would change the vectors silently."""
        backbone = run.decoder.backbone
        runs = run.decoder.depth if run.runs is None else run.runs
        if types := backbone.layer_types[:runs]:
            runs = sum("attention" in each and "linear" not in each for each in types)
        expected = runs + (0 if run.kinds is None else len(run.kinds.stack.second))
        if self.layers == 0 or self.layers < expected:
            raise ValueError(
                f"{backbone.name} handed out the attention of {self.layers} of its {expected} attention layers, so "
                "backward attention cannot be computed. Use a decoder whose every layer computes softmax attention, "
                "or method='classical' or 'echo', which need none."
            )
        return hidden


class AnchorObserver(AttentionObserver):
    """Keeps the anchors' rows of A^new of texts at ``places``, padded to ``length``, whose attention is on a device."""

    needs_causal = True

    def __init__(self, capture: Capture, places: Sequence[Place], length: int, device: torch.device) -> None:
        super().__init__()
        self.length, self.both = length, capture.both
        runs = capture.anchors(places)
        self._firsts, self._counts = [first for first, _ in runs], [count for _, count in runs]
        self.rows = max(self._counts)
        first, count = torch.tensor(runs).to(device, non_blocking=True).unbind(dim=1)
        offsets = torch.arange(self.rows, device=device)
        self._anchors = (first[:, None] + offsets).clamp_(max=length - 1)
        self._valid = offsets < count[:, None]
        ends = [end for _, _, end in places]
        self._shortest, self._ends = min(ends), torch.tensor(ends).to(device, non_blocking=True)[:, None, None]

    @abstractmethod
    def matrix(self) -> Tensor:
        """The anchors' rows once all layers ran, [B, R, T], zero at padding, and in front unless ``both``."""


class BackwardAttention(AnchorObserver):
    """Accumulates the anchors' rows of A^new while the layers of one forward pass run.

    The maxima are kept as logarithms: A[t, r] = exp(score(t, r) - total(t)), so that only the largest needs one.
    """

    def __init__(self, capture: Capture, places: Sequence[Place], length: int, device: torch.device) -> None:
        super().__init__(capture, places, length, device)
        self._maxima = torch.full((len(places), length, self.rows), -torch.inf, dtype=torch.float32, device=device)
        self._blocks = CPU if device.type == "cpu" else GPU
        # The logarithm of the largest number there can be: of a probability, or of a sum of two.
        self._most = 0.0
        self._finished = False

    def update(self, probabilities: Tensor, first_query: int) -> None:
        """Raise the maxima by a whole layer that only looks back, of which a hook shows every probability at once."""
        largest = probabilities.detach().amax(dim=1, keepdim=True)
        _raise(self._maxima, pick(largest, self._anchors, 3)[:, 0].log())
        if self.both:
            _raise(self._maxima.transpose(1, 2), pick(largest, self._anchors, 2)[:, 0].log())

    def _attend(self, scores: Scores, value: Tensor, sinks: Tensor | None, dropout: float, ahead: bool) -> Tensor:
        fused = attention_with_totals(scores, value, sinks, dropout)
        output, totals = fused or blocked_attention(scores, value, sinks=sinks, dropout=dropout)
        self.update_layer(scores, totals, both_ways=ahead)
        return output

    @torch.no_grad()
    def update_layer(self, scores: Scores, totals: Tensor, *, both_ways: bool = False) -> None:
        """Raise the maxima by a whole layer, of which only the anchors' rows and columns are computed.

        Args:
            scores: The layer's scores.
            totals: Logarithms of the rows' sums, [B, H, T].
            both_ways: It looks ahead, so that A[r, t] and A[t, r] have to be added within a head.
        """
        if both_ways:
            self._most = math.log(2)
        if not self.both:
            # What a causal layer hides, matrix() drops.
            scores = replace(scores, causal=False)
        heads, queries, width = scores.query.shape[1:]
        numbers = heads * queries * max(width, min(self.rows, self._blocks.anchors))
        for texts in slices(0, len(totals), max(1, self._blocks.together // numbers)):
            layer = _Layer(scores.of_texts(texts), totals[texts])
            for some in slices(0, max(self._counts[texts]), self._blocks.anchors):
                # Few anchors need few blocks.
                size = max(self._blocks.queries, self._blocks.numbers // (128 * (some.stop - some.start)))
                if both_ways:
                    self._raise_by_sums(layer, texts, some, size)
                    continue
                self._raise_by_columns(layer, texts, some, size)
                last = min(self.length, max(self._firsts[texts]) + some.stop)
                for keys in slices(0, last, size) if self.both else ():
                    maxima = self._maxima[texts, keys, some].transpose(1, 2)
                    self._raise_by(maxima, layer, self._anchors[texts, some], keys)

    def _raise_by_columns(self, layer: _Layer, texts: slice, some: slice, size: int) -> None:
        """What some texts' queries give to some of their anchors: A[t, r]."""
        start = min(self._firsts[texts])
        shared = start == max(self._firsts[texts])
        for queries in slices(start, self.length, size):
            anchors: slice | Tensor = self._anchors[texts, some]
            columns = some
            if shared:
                # No anchor beyond the last query.
                anchors = slice(start + some.start, min(start + some.stop, queries.stop))
                if anchors.start >= anchors.stop:
                    continue
                columns = slice(some.start, anchors.stop - start)
            self._raise_by(self._maxima[texts, queries, columns], layer, queries, anchors)

    def _raise_by(self, maxima: Tensor, layer: _Layer, queries: slice | Tensor, keys: slice | Tensor) -> None:
        """Raise maxima [B, Q, K] by all heads' probabilities."""
        for heads in layer.head_groups(max(1, self._blocks.numbers // maxima.numel())):
            _raise(maxima, layer.log_probabilities(queries, keys, heads).amax(dim=1))

    def _raise_by_sums(self, layer: _Layer, texts: slice, some: slice, size: int) -> None:
        """A[t, r] + A[r, t] for all positions t of some texts and some of their anchors."""
        anchors = self._anchors[texts, some]
        for positions in slices(0, self.length, size):
            here = torch.arange(positions.start, positions.stop, device=anchors.device)[:, None]
            for heads in layer.head_groups(self._blocks.ahead):
                columns = layer.log_probabilities(positions, anchors, heads)
                rows = layer.log_probabilities(anchors, positions, heads)
                sums = torch.logaddexp(columns, rows.transpose(2, 3)).amax(dim=1)
                # The diagonal is kept whole, all else twice: matrix() halves it.
                sums = torch.where(here == anchors[:, None], sums - math.log(2), sums)
                _raise(self._maxima[texts, positions, some], sums)

    def matrix(self) -> Tensor:
        """The anchors' rows, float32. They take the place of what was accumulated, which is complete then."""
        anchors = self._anchors[:, None]
        for some in () if self._finished else slices(0, self.length, self._blocks.finished):
            positions = torch.arange(some.start, some.stop, device=anchors.device)[:, None]
            # The kernel's sums and our products are rounded each by itself, in bfloat16 the latter to three digits.
            part = self._maxima[:, some].clamp_(max=self._most).exp_()
            # The diagonal keeps its full weight: (A[r, r] + A[r, r]) / 2.
            part.mul_(torch.where(positions == anchors, 1.0, 0.5)).masked_fill_(~self._valid[:, None], 0.0)
            if not self.both:
                part.masked_fill_(positions < anchors, 0.0)
            if some.stop > self._shortest:
                part.masked_fill_(positions >= self._ends, 0.0)
        self._finished = True
        return self._maxima.transpose(1, 2)

    def so_far(self) -> Tensor:
        """As :meth:`matrix`, of the layers that have run by now; more may follow."""
        now = copy.copy(self)
        now._maxima = self._maxima.clone()
        return now.matrix()


@dataclass(frozen=True)
class _Layer:
    """Scores of some texts, and the logarithms of their rows' sums, [B, H, T]."""

    scores: Scores
    totals: Tensor

    def log_probabilities(self, queries: slice | Tensor, keys: slice | Tensor, heads: slice) -> Tensor:
        """[B, h, Q, K]; arguments as for :meth:`Scores.of`."""
        totals = pick(self.totals[:, heads, :, None], queries, 2)
        return self.scores.of(queries, keys, heads, totals)

    def head_groups(self, most: int) -> Iterator[slice]:
        """Heads that run together: all, where texts do; else at most ``most``, which share a key or have one each."""
        heads = self.totals.shape[1]
        size = heads // self.scores.key.shape[1]
        step = min(most, heads) if size == 1 else max(n for n in range(1, min(most, size) + 1) if size % n == 0)
        return slices(0, heads, step if len(self.totals) == 1 else heads)


def _raise(maxima: Tensor, values: Tensor) -> None:
    torch.maximum(maxima, values.to(maxima.dtype), out=maxima)


def show(model: PreTrainedModel) -> None:
    """Make the attention of a backbone, as loaded, visible to observers, one way or the other."""
    if not switch_on(model):
        extra("eager").hook_in(model)


def looks_both_ways(module: nn.Module) -> str:
    """The error for attention that backward attention is not defined on."""
    return (
        f"{type(module).__name__} looks both ways, but backward attention is defined on a causal decoder. Use a "
        "decoder-only base model, or method='classical'."
    )
