"""Rows of A^new where a layer looks both ways, or where the columns before an anchor count too."""

from __future__ import annotations

import torch
from torch import Tensor

from .blocks import ScoreTerms, attend
from .capture import BackwardAttention
from .extensions import extensions


def attend_both_ways(
    backward: BackwardAttention, query: Tensor, key: Tensor, value: Tensor, terms: ScoreTerms
) -> Tensor:
    """Attention of one layer, [B, T, H, D'], whose sums of rows and columns raise the maxima.

    Few heads run at a time, as both are taken within one head; heads of one group share a key.
    """
    batch, heads, length, _ = query.shape
    size = heads // key.shape[1]
    most = max(1, (1 << 22) // (batch * length * length))
    step = min(most, heads) if size == 1 else max(n for n in range(1, size + 1) if size % n == 0 and n <= most)
    outputs = []
    for head in range(0, heads, step):
        some, group = slice(head, head + step), slice(head // size, -(-(head + step) // size))
        own = {name: getattr(terms, name) for name in ("mask", "bias")}
        own = {name: each if each is None or each.shape[1] == 1 else each[:, some] for name, each in own.items()}
        mine = terms._replace(**own, sinks=None if terms.sinks is None else terms.sinks[some])
        precision = torch.promote_types(query.dtype, torch.float32)
        whole = torch.zeros(batch, len(query[0, some]), length, length, dtype=precision, device=query.device)

        def keep(block: Tensor, texts: slice, start: int, whole: Tensor = whole) -> None:
            whole[texts, :, start : start + block.shape[2], : block.shape[3]] = block

        outputs.append(attend(query[:, some], key[:, group], value[:, group], mine, keep))
        backward.add(sums(backward, whole))
    return torch.cat(outputs, dim=2)


def sums(backward: BackwardAttention, probabilities: Tensor) -> Tensor:
    """A[i, t] + A[t, i], but A[i, i] at t = i, the maximum over heads of [B, H, T, T]; 0 before i unless ``both``."""
    index = backward.anchors[:, None, :, None].expand(-1, probabilities.shape[1], -1, probabilities.shape[3])
    own, anchors = probabilities.gather(2, index), backward.anchors[:, :, None]
    position = torch.arange(probabilities.shape[3], device=anchors.device)
    largest = torch.where((position == anchors)[:, None], own, own + probabilities.mT.gather(2, index)).amax(dim=1)
    return largest if backward.both else largest.masked_fill(position < anchors, 0.0)


extensions.attend_both_ways = attend_both_ways
