"""What a layer can see: a registry of kinds, and the masks of a pass.

Every kind follows from the layer's own mask, which transformers built and which holds its window or chunk, by mirroring
or by hiding. A new kind is one more entry of :data:`KINDS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .options import unknown

if TYPE_CHECKING:
    from torch import Tensor

    from .stages import Pass

# query, key, value, causal → [B, T, H, D]: attention without a mask.
Attention = Callable[["Tensor", "Tensor", "Tensor", bool], "Tensor"]
# attention, query, key, value, m, causal → [B, T, H, D]: a kind's attention, made of such.
Fast = Callable[[Attention, "Tensor", "Tensor", "Tensor", int, bool], "Tensor"]
# A layer's own mask [B or 1, 1, T, T] (row = query, column = key); the positions 0 .. T - 1; that of each text's last
# token [B or 1, 1, 1, 1]; the number of sink tokens m → what is visible.
Rule = Callable[["Tensor", "Tensor", "Tensor", int], "Tensor"]


@dataclass(frozen=True)
class Kind:
    """A kind of layer.

    Args:
        about: What token i sees, in words; ``{m}`` is the number of sink tokens.
        rule: What is visible, all of it boolean.
        fast: The same attention without a mask, used where nothing is padded and the layer has no window; None: the
            mask is always used, which is right and slower.
        looks_ahead: Whether a token may see a later one; ReBA's maxima would be wrong where this is False and one does.
        hides_sink: Whether ``m`` matters.
    """

    about: str
    rule: Rule
    fast: Fast | None = None
    looks_ahead: bool = True
    hides_sink: bool = False

    def sees(self, own: Tensor, real: Tensor | None = None, m: int = 0) -> Tensor:
        """What a layer of this kind sees.

        Args:
            own: [B or 1, 1, T, T] bool, what it sees by itself: row = query, column = key.
            real: [B, T] bool, False at padding, which follows every text; None: there is none.
            m: Sink tokens that nosink kinds hide.

        Returns:
            [B or 1, 1, T, T] bool. A padding position sees itself, as a row without any key has no softmax.

        Source:
            NoSink, appendix D; KV-Embedding (rerouted).

        Example:
            >>> import torch
            >>> own = torch.ones(1, 1, 3, 3, dtype=torch.bool).tril()
            >>> KINDS["nosink-bidirectional"].sees(own, m=1)[0, 0].int().tolist()
            [[1, 1, 1], [0, 1, 1], [0, 1, 1]]
        """
        import torch  # here, so that the kinds' names can be read without it

        place = torch.arange(own.shape[-1], device=own.device)
        last = place[-1:] if real is None else real.sum(dim=1) - 1
        seen = self.rule(own, place, last[:, None, None, None], m)
        return seen if real is None else seen & real[:, None, None, :] | (place[:, None] == place)


def _in_two(attention: Attention, query: Tensor, key: Tensor, value: Tensor, m: int, causal: bool) -> Tensor:
    """The first m rows see what the kind without nosink shows them; the others never meet the first m keys."""
    import torch

    sinks = min(m, query.shape[2])
    shown = slice(0, sinks) if causal else slice(None)
    parts = []
    if sinks:
        parts.append(attention(query[:, :, :sinks], key[:, :, shown], value[:, :, shown], causal))
    if sinks < query.shape[2]:
        parts.append(attention(query[:, :, sinks:], key[:, :, sinks:], value[:, :, sinks:], causal))
    return torch.cat(parts, dim=1)


def _sink(place: Tensor, m: int) -> Tensor:
    """Where the key is one of the first m tokens and the query is not."""
    return (place < m) & (place[:, None] >= m)


KINDS: dict[str, Kind] = {
    "forward": Kind(
        "the tokens up to i, as in the base.",
        lambda own, place, last, m: own,
        lambda attention, query, key, value, m, causal: attention(query, key, value, causal),
        looks_ahead=False,
    ),
    "backward": Kind(
        "the tokens from i on.",
        lambda own, place, last, m: own.mT,
        # The causal triangle of the reversed sequence.
        lambda attention, *given: attention(*(each.flip(2) for each in given[:3]), given[-1]).flip(1),
    ),
    "bidirectional": Kind(
        "all tokens.",
        lambda own, place, last, m: own | own.mT,
        lambda attention, query, key, value, m, causal: attention(query, key, value, False),
    ),
    "nosink-forward": Kind(
        "the tokens up to i, but not the first {m} (the sink), which later tokens do not see.",
        lambda own, place, last, m: own & ~_sink(place, m),
        _in_two,
        looks_ahead=False,
        hides_sink=True,
    ),
    "nosink-bidirectional": Kind(
        "all tokens, but not the first {m} (the sink), which later tokens do not see.",
        lambda own, place, last, m: (own | own.mT) & ~_sink(place, m),
        lambda attention, query, key, value, m, causal: _in_two(attention, query, key, value, m, False),
        hides_sink=True,
    ),
    "rerouted": Kind(
        "the tokens up to i and, past any window, the very last one (end token included).",
        # No kernel shows a later column to earlier rows by itself.
        lambda own, place, last, m: own | (place == last),
    ),
}


_BIASED = (
    "The backbone adds position biases to its mask, so hidden and visible keys cannot be told apart, and it cannot be "
    "converted. Drop the plan."
)
_INDEXED = "A layer of the backbone chooses its keys by an indexer, so that it cannot be converted. Drop the plan."


def kind_of(name: str) -> Kind:
    """A kind by its name; an unknown one is an error, never another kind."""
    if name not in KINDS:
        raise ValueError(unknown("layers: the kind", name, list(KINDS), name))
    return KINDS[name]


class PassMasks:
    """What the layers of one forward pass see, ``m`` sink tokens being hidden; each mask is made once a kind."""

    kind = staticmethod(kind_of)

    def __init__(self, run: Pass, m: int) -> None:
        self.m = m
        self._run = run
        # Each own mask is kept beside what was made of it, so that its identity stays its own.
        self._made: dict[tuple[object, ...], tuple[Tensor | None, Tensor]] = {}

    def mask(self, kind: str, own: Tensor | None, *, causal: bool, dense: bool = False) -> Tensor | None:
        """The mask of a layer.

        Args:
            kind: What the layer sees.
            own: The layer's own mask, [B or 1, 1, T, T], boolean (True: visible) or additive; None: all of ``causal``.
            causal: Whether the layer itself is causal.
            dense: Whether a mask is wanted where the kind's fast way could do without.

        Returns:
            [B or 1, 1, T, T], boolean, or the own one as it is; None: there is neither padding nor a window. What is
            doubtful of the own mask is left with the pass.

        Raises:
            ValueError: An unknown kind, or the own mask is of another shape.
        """
        from .scores import identity

        if kind == "forward":
            return own
        rule = kind_of(kind)
        if own is None and not self._run.padded and rule.fast is not None and not dense:
            return None
        key = (kind, causal, None if own is None else identity(own))
        if key not in self._made:
            real = self._run.real if own is None else self._run.real.to(own.device)
            seen = rule.sees(self._visible(own, real, causal), real if self._run.padded else None, self.m)
            self._made[key] = (own, seen)
        return self._made[key][1]

    def _visible(self, own: Tensor | None, real: Tensor, causal: bool) -> Tensor:
        """The own mask as booleans [B or 1, 1, T, T]."""
        import torch

        length = real.shape[1]
        if own is None:
            seen = torch.ones(1, 1, length, length, dtype=torch.bool, device=real.device)
            return seen.tril() if causal else seen
        if own.shape[-2:] != (length, length):
            raise ValueError(
                f"A layer's mask is of shape {tuple(own.shape)} for {length} tokens, so it cannot be converted: pass "
                "use_cache=False, and merge adapters with a learned prefix first."
            )
        seen = own if own.dtype == torch.bool else own > torch.finfo(own.dtype).min / 2
        if own is not seen:
            self._run.doubts.append(((own.masked_fill(~seen, 0) == 0).all(), _BIASED))
        self._run.doubts.append(((seen.diagonal(dim1=-2, dim2=-1) | ~real[:, None]).all(), _INDEXED))
        return seen
