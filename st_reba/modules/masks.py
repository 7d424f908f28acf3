"""Layer kinds → boolean masks.

A layer's own mask, which transformers built, says what it sees as a forward layer: its window or chunk and the padding
are in it. Every other kind follows from it, by mirroring or by one more column, so that no window has to be known here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .plan import LayerKind


class LayerMasks:
    """What the layers of one forward pass see; every mask is made once a kind, not once a layer.

    Args:
        real: [B, T] bool, False at padding.
        m: Number of sink tokens that nosink kinds hide: the first m real ones of each row.

    Source:
        NoSink, appendix D; KV-Embedding (rerouted).

    Example:
        >>> masks = LayerMasks(torch.ones(1, 3, dtype=torch.bool), m=1)
        >>> masks.dense("nosink-bidirectional", None, causal=True)[0, 0].int().tolist()
        [[1, 1, 1], [0, 1, 1], [0, 1, 1]]
    """

    def __init__(self, real: Tensor, m: int) -> None:
        self.m = m
        self._real = real
        self._padded = not bool(real.all())
        self._made: dict[Any, tuple[Tensor | None, Tensor]] = {}

    def mask(self, kind: LayerKind, own: Tensor | None, *, causal: bool) -> Tensor | None:
        """The mask of a layer, or None where neither padding nor a window is in the way.

        Args:
            kind: What the layer sees.
            own: The layer's own mask, [B or 1, 1, T, T], boolean (True: visible) or additive; None: all of ``causal``.
            causal: Whether the layer itself is causal.

        Returns:
            [B or 1, 1, T, T] bool or None: then the kind alone says what is visible (never so of "rerouted").
        """
        if kind == "forward":
            return own
        # No kernel shows a later column to earlier rows by itself.
        bare = own is None and not self._padded and kind != "rerouted"
        return None if bare else self.dense(kind, own, causal=causal)

    def dense(self, kind: LayerKind, own: Tensor | None, *, causal: bool) -> Tensor:
        """The mask as :meth:`mask` gives it, written out where it is None there too.

        Raises:
            ValueError: The own mask is not one of visible and hidden keys.
        """
        # The same tensor serves many layers, some of which slice it anew.
        key = (kind, causal, None if own is None else (own.data_ptr(), own.shape, own.stride()))
        if key not in self._made:
            self._made[key] = (own, self._make(kind, own, causal))  # own is kept, so that its address stays its own
        return self._made[key][1]

    def _make(self, kind: LayerKind, own: Tensor | None, causal: bool) -> Tensor:
        length = self._real.shape[1]
        real = self._real if own is None else self._real.to(own.device)
        if own is None:
            seen = torch.ones(1, 1, length, length, dtype=torch.bool, device=self._real.device)
            seen = seen.tril() if causal else seen
        else:
            seen = _boolean(own, length)
            if not bool((seen.diagonal(dim1=-2, dim2=-1) | ~real[:, None]).all()):
                raise ValueError(
                    "A layer of the backbone does not let every token see itself: it chooses its keys by an indexer, "
                    "so that it cannot be converted. Use layers=None."
                )
        if kind == "backward":
            seen = seen.mT
        elif kind in ("bidirectional", "nosink-bidirectional"):
            seen = seen | seen.mT
        elif kind == "rerouted":
            seen = seen | _last(real)[:, None, None, :]
        if self._padded:
            seen = seen & real[:, None, None, :]
        if kind.startswith("nosink") and self.m:
            place = real.long().cumsum(dim=1)  # 1 at the first real token
            sink = (place <= self.m) & real
            seen = seen & ~(sink[:, None, None, :] & (place > self.m)[:, None, :, None])
        # A padding position sees itself: a row without any key has no softmax.
        return seen | torch.eye(length, dtype=torch.bool, device=seen.device) if self._padded else seen


def _last(real: Tensor) -> Tensor:
    """[B, T] bool, True at each row's last real position."""
    place = real.long().cumsum(dim=1)
    return real & (place == place[:, -1:])


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A boolean or additive mask as numbers of some type to add to scores."""
    if mask.dtype != torch.bool:
        return mask.to(dtype).clamp(min=torch.finfo(dtype).min)
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, torch.finfo(dtype).min)


def _boolean(own: Tensor, length: int) -> Tensor:
    if own.shape[-2:] != (length, length):
        raise ValueError(
            f"A layer's mask is of shape {tuple(own.shape)} for {length} tokens, so its layers cannot be converted: "
            "pass use_cache=False, and merge adapters with a learned prefix first."
        )
    if own.dtype == torch.bool:
        return own
    hidden = own <= torch.finfo(own.dtype).min / 2
    if bool((own.masked_fill(hidden, 0) != 0).any()):
        raise ValueError(
            "The backbone adds position biases to its mask, so that hidden and visible keys cannot be told apart, and "
            "its layers cannot be converted. Use layers=None."
        )
    return ~hidden


def selected(mask: Tensor | None, indices: Tensor, keys: int) -> Tensor:
    """What is visible of the keys that an indexer chose.

    Args:
        mask: [B or 1, 1, T, S], boolean (True: visible) or additive; None: no key later than the query.
        indices: [B, T, n] int, the chosen keys of every query.
        keys: Number of keys S.

    Returns:
        [B, 1, T, S] bool.
    """
    batch, queries, _ = indices.shape
    chosen = torch.zeros(batch, 1, queries, keys, dtype=torch.bool, device=indices.device)
    chosen.scatter_(3, indices.long()[:, None], True)
    if mask is None:
        return chosen.tril(keys - queries)
    return chosen & (mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2)
