"""Running maxima of attention: what ReBA keeps of A^new, never a matrix per layer and head.

ReBA needs A^new, the elementwise maximum over all layers l and heads h of (A^{l,h} + (A^{l,h})ᵀ)/2, only in the
rows of a few *anchor* positions: one row for a sentence's last token, n rows for its words. Attention of a causal
decoder is lower triangular, so row r of A^new is ½ · max A[t, r] right of the diagonal (a column of A), A[r, r] on
it, and ½ · max A[r, t] left of it. A layer that looks ahead fills both halves: there the sum A[r, t] + A[t, r] is taken
within the head, before the maximum. Each layer raises these maxima and is then forgotten.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor

from .attention import show
from .backbone import is_trained
from .scores import Scores, pick, slices
from .stages import Bound, Pass, Place
from .vendoring import extra

AnchorRows = Literal["last", "copy", "end", "half"]


@dataclass(frozen=True)
class Blocks:
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
class CaptureSpec:
    """Which rows of A^new a forward pass keeps.

    Args:
        rows: The anchors. ``"last"``: the last content token of copy 1. ``"copy"``: every content token of copy 1.
            ``"end"``: the very last real position. ``"half"``: the first half of all real positions.
        both: Keep the columns before the anchor too, not only those from the anchor on.
    """

    rows: AnchorRows
    both: bool = False

    def __post_init__(self) -> None:
        if self.rows not in get_args(AnchorRows):
            raise ValueError(f"rows={self.rows!r} is not known: choose one of {list(get_args(AnchorRows))}.")

    def anchors(self, places: Sequence[Place]) -> list[tuple[int, int]]:
        """The anchors of each text, a run of positions: the first and their number."""
        runs: dict[str, Callable[[int, int, int], tuple[int, int]]] = {
            "last": lambda first, count, length: (first + count - 1, 1),
            "copy": lambda first, count, length: (first, count),
            "end": lambda first, count, length: (length - 1, 1),
            "half": lambda first, count, length: (0, max(1, length // 2)),
        }
        return [runs[self.rows](*place) for place in places]


class Observer(ABC):
    """Sees the attention of one forward pass, layer by layer."""

    # Whether what it computes is defined on decoders that look back (or under a plan) only.
    needs_causal: ClassVar[bool] = False

    def __init__(self) -> None:
        self.layers = 0

    def begin_layer(self) -> None:
        """A layer begins."""
        self.layers += 1

    def end_layer(self) -> None:  # noqa: B027 - most observers need to know of no end
        """A layer has shown all of its attention."""

    @abstractmethod
    def update(self, probabilities: Tensor, first_query: int) -> None:
        """See one block of a layer's attention.

        Args:
            probabilities: [B, H, Q, K] for the queries from ``first_query`` on and the keys 0 .. K - 1; keys from K
                on have no weight.
            first_query: Position of the block's first query.
        """


class _Watch(Bound):
    """An observer's part in a pass."""

    def finish(self, run: Pass, hidden: Tensor) -> Tensor:
        """Raise unless every layer was seen: one that was not would change the vectors silently."""
        observer, backbone = run.observer, run.decoder.backbone
        runs = run.decoder.depth if run.runs is None else run.runs
        if types := backbone.layer_types[:runs]:
            runs = sum("attention" in each and "linear" not in each for each in types)
        expected = runs + (0 if run.kinds is None else len(run.kinds.stack.second))
        if observer.layers == 0 or observer.layers < expected:
            raise ValueError(
                f"{backbone.name} handed out the attention of {observer.layers} of its {expected} attention layers, so "
                "backward attention cannot be computed. Use a decoder whose every layer computes softmax attention, "
                "or method='classical' or 'echo', which need none."
            )
        return hidden


class AttentionObserver(Observer, _Watch):
    """Base of what wants to see all attention of one pass itself; give it to a pass as ``watch=[…]``."""

    sees_all = True

    def begin(self, run: Pass) -> None:
        """Observe the pass."""
        observe(run, self)


class Capture(_Watch):
    """Captures rows of A^new in a decoder's passes: ``backward_attention`` [B, R, T], and ``captured``, the spec.

    Args:
        spec: Which rows. R is the largest number of anchors; rows beyond a text's own are zero.
    """

    def __init__(self, spec: CaptureSpec) -> None:
        self.spec = spec

    def begin(self, run: Pass) -> None:
        """Observe the pass; with a gradient where there are weights to learn."""
        kind: type[AnchorObserver] = BackwardAttention
        if torch.is_grad_enabled() and is_trained(run.decoder.model):
            kind = extra("differentiable").DifferentiableAttention
        observe(run, kind(self.spec, run.places, run.length, run.real.device))

    def features(self, run: Pass) -> dict[str, Any]:
        """What was captured."""
        return {"backward_attention": run.observer.matrix(), "captured": self.spec}


def observe(run: Pass, observer: Observer) -> None:
    """Show a pass's attention to an observer, of which it can have one."""
    if run.observer is not None:
        raise ValueError(
            f"{type(run.observer).__name__} and {type(observer).__name__} both want to observe one pass. Run two."
        )
    show(run.decoder.model)
    run.observer = observer


class AnchorObserver(Observer):
    """Keeps the anchors' rows of A^new.

    Args:
        spec: Which rows.
        places: Where each row's content stands.
        length: Sequence length T, padding included.
        device: Where the attention is.
    """

    needs_causal = True

    def __init__(self, spec: CaptureSpec, places: Sequence[Place], length: int, device: torch.device) -> None:
        super().__init__()
        self.length, self.both = length, spec.both
        runs = spec.anchors(places)
        self._firsts, self._counts = [first for first, _ in runs], [count for _, count in runs]
        self.rows = max(self._counts)
        first, count = torch.tensor(runs).to(device, non_blocking=True).unbind(dim=1)
        offsets = torch.arange(self.rows, device=device)
        self._anchors = (first[:, None] + offsets).clamp_(max=length - 1)
        self._valid = offsets < count[:, None]

    @abstractmethod
    def matrix(self) -> Tensor:
        """The anchors' rows of A^new, once all layers ran.

        Returns:
            [B, R, T], R the largest number of anchors; zero beyond a text's own anchors, and left of the anchor unless
            ``both``.
        """


class BackwardAttention(AnchorObserver):
    """Accumulates the anchors' rows of A^new while the layers of one forward pass run.

    The maxima are kept as logarithms: A[t, r] = exp(score(t, r) - total(t)), and where only the largest is wanted, no
    exponential needs to be taken but the last. Arguments as for :class:`AnchorObserver`.
    """

    def __init__(self, spec: CaptureSpec, places: Sequence[Place], length: int, device: torch.device) -> None:
        super().__init__(spec, places, length, device)
        # From an anchor on. Two anchors' own number, A[r, r'], is here as well: only the columns in front of the first
        # anchor are kept by themselves.
        front = max(self._firsts) if self.both else 0
        self._later, self._front = (
            torch.full((len(places), columns, self.rows), -torch.inf, dtype=torch.float32, device=device)
            for columns in (length, front)
        )
        self._blocks = CPU if device.type == "cpu" else GPU
        # One piece of memory for a layer's blocks.
        self._scratch: Tensor | None = None
        # Of what is kept: a probability's logarithm; of a sum of two, log 2.
        self._most = 0.0
        self._finished = False

    def update(self, probabilities: Tensor, first_query: int) -> None:
        """Raise the maxima by a whole layer that only looks back, of which a hook shows every probability at once."""
        maxima = probabilities.detach().amax(dim=1, keepdim=True)
        _raise(self._later, pick(maxima, self._anchors, 3)[:, 0].log())
        rows = pick(maxima[..., : self._front.shape[1]], self._anchors, 2)[:, 0].log()
        _raise(self._front, rows.transpose(1, 2))

    @torch.no_grad()
    def update_layer(self, scores: Scores, totals: Tensor, *, both_ways: bool = False) -> None:
        """Raise the maxima by a whole layer, of which only the anchors' rows and columns are computed.

        Args:
            scores: The layer's scores. What a causal layer hides may show: :meth:`matrix` drops it.
            totals: Logarithms of the rows' sums, [B, H, T].
            both_ways: Whether the layer looks ahead, so that A[r, t] and A[t, r] have to be added within a head.
        """
        if both_ways:
            self._most = math.log(2)
        heads, queries, width = scores.query.shape[1:]
        numbers = heads * queries * max(width, min(self.rows, self._blocks.anchors))
        for texts in slices(0, len(totals), max(1, self._blocks.together // numbers)):
            here, sums = scores.of_texts(texts), totals[texts]
            for some in slices(0, max(self._counts[texts]), self._blocks.anchors):
                if both_ways:
                    self._update_sums(here, sums, texts, some)
                else:
                    self._update_columns(here, sums, texts, some)
                    self._update_front(here, sums, texts, some)
        # The feed-forward part that follows takes the most memory of a layer.
        self._scratch = None

    def _update_columns(self, scores: Scores, totals: Tensor, texts: slice, some: slice) -> None:
        """What some texts' queries give to some of their anchors: A[t, r]."""
        start = min(self._firsts[texts])
        shared = start == max(self._firsts[texts])
        for queries in slices(start, self.length, self._block(some)):
            anchors: slice | Tensor = self._anchors[texts, some]
            columns = some
            if shared:
                # No anchor beyond the last query.
                anchors = slice(start + some.start, min(start + some.stop, queries.stop))
                if anchors.start >= anchors.stop:
                    continue
                columns = slice(some.start, anchors.stop - start)
            self._raise_by(self._later[texts, queries, columns], scores, totals[:, :, queries], queries, anchors)

    def _update_front(self, scores: Scores, totals: Tensor, texts: slice, some: slice) -> None:
        """What some of the texts' anchors give to the keys in front of them: A[r, t]."""
        keys = slice(0, max(self._firsts[texts]) if self.both else 0)
        if keys.stop:
            queries = self._anchors[texts, some]
            own = pick(totals[..., None], queries, 2)[..., 0]
            self._raise_by(self._front[texts, keys, some].transpose(1, 2), scores, own, queries, keys)

    def _update_sums(self, scores: Scores, totals: Tensor, texts: slice, some: slice) -> None:
        """A[t, r] + A[r, t] for all positions t of some texts and some of their anchors."""
        anchors = self._anchors[texts, some]
        own = pick(totals[..., None], anchors, 2)[..., 0]
        for positions in slices(0, self.length, self._block(some)):
            here = torch.arange(positions.start, positions.stop, device=anchors.device)[:, None]
            for heads in scores.head_groups(self._blocks.ahead if len(totals) == 1 else 1):
                columns = scores.log_probabilities(heads, positions, anchors, totals[:, heads, positions])
                rows = scores.log_probabilities(heads, anchors, positions, own[:, heads])
                sums = torch.logaddexp(columns, rows.transpose(2, 3)).amax(dim=1)
                # The diagonal is kept whole, all else twice: matrix() halves it.
                sums = torch.where(here == anchors[:, None], sums - math.log(2), sums)
                _raise(self._later[texts, positions, some], sums)
                front = self._front[texts, positions, some]
                _raise(front, sums[:, : front.shape[1]])

    def _block(self, some: slice) -> int:
        """How many queries are looked at together for some anchors: few anchors need few blocks."""
        number: int = some.stop - some.start
        return max(self._blocks.queries, self._blocks.numbers // (128 * number))

    def _raise_by(
        self, maxima: Tensor, scores: Scores, totals: Tensor, queries: slice | Tensor, keys: slice | Tensor
    ) -> None:
        """Raise maxima [B, Q, K] by the log-probabilities of all heads, for the queries' totals [B, H, Q]."""
        if len(totals) > 1:
            together = scores.of_all_heads(queries, keys).to(scores.precision)
            _raise(maxima, together.sub_(totals[..., None]).amax(dim=1))
            return
        numbers = maxima.shape[1] * maxima.shape[2]
        for some in scores.head_groups(max(1, self._blocks.numbers // numbers)):
            size = (some.stop - some.start) * numbers
            if self._scratch is None or len(self._scratch) < size:
                self._scratch = self._later.new_empty(size, dtype=scores.precision)
            values = scores.log_probabilities(some, queries, keys, totals[:, some], self._scratch[:size])
            _raise(maxima, values.amax(dim=1))

    def matrix(self) -> Tensor:
        """The anchors' rows, float32. They take the place of what was accumulated, which is complete then."""
        if not self._finished:
            self._finish()
            self._finished = True
        return self._later.transpose(1, 2)

    def so_far(self) -> Tensor:
        """As :meth:`matrix`, of the layers that have run by now; more may follow."""
        now = copy.copy(self)
        now._later, now._front = self._later.clone(), self._front.clone()
        return now.matrix()

    def _finish(self) -> None:
        anchors = self._anchors[:, None]
        for some in slices(0, self.length, self._blocks.finished):
            positions = torch.arange(some.start, some.stop, device=anchors.device)[:, None]
            later = self._later[:, some]
            # The kernel's sums and our products are rounded each by itself, in bfloat16 the latter to three digits.
            later.clamp_(max=self._most).exp_()
            # The diagonal keeps its full weight: (A[r, r] + A[r, r]) / 2.
            later.mul_(torch.where(positions == anchors, 1.0, 0.5))
            later.masked_fill_(positions < anchors, 0.0)
            later.masked_fill_(~self._valid[:, None], 0.0)
        if self.both:
            for text, (first, count) in enumerate(zip(self._firsts, self._counts, strict=True)):
                self._fill(self._later[text, first : first + count, :count])
                front = self._front[text, :first, :count].clamp_(max=self._most).exp_().mul_(0.5)
                self._later[text, :first, :count] = front

    def _fill(self, square: Tensor) -> None:
        """Copy what lies under the diagonal above it."""
        for some in slices(0, len(square), self._blocks.finished):
            above = square[some, some.start :]
            above.add_(square[some.start :, some].transpose(0, 1).triu(1))


def _raise(maxima: Tensor, values: Tensor) -> None:
    torch.maximum(maxima, values.to(maxima.dtype), out=maxima)
