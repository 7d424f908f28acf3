"""ReBA's maxima of attention with a gradient: the twin of :class:`BackwardAttention` for training.

It needs whole probabilities, since each row's sum has a gradient too, and one layer's are held for every layer that is
not checkpointed; so it runs only where something is to be learned. A maximum's subgradient goes to the layer and head
that gave it, and is shared where several did.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from .capture import AnchorObserver
from .scores import pick


class DifferentiableAttention(AnchorObserver):
    """Collects the anchors' rows of every layer's symmetrized attention, and takes their maximum at the end.

    A layer's rows depend on nothing but that layer, so that gradient checkpointing may run it once more.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._blocks: list[Tensor] = []
        self._rows: list[Tensor] = []
        self._matrix: Tensor | None = None

    def begin_layer(self) -> None:
        super().begin_layer()
        self._blocks = []

    def update(self, probabilities: Tensor, first_query: int) -> None:
        """Keep a block until its layer ends; see :meth:`Observer.update`."""
        self._blocks.append(nn.functional.pad(probabilities, (0, self.length - probabilities.shape[3])))

    def end_layer(self) -> None:
        """(A[r, t] + A[t, r]) / 2 of the layer's heads, their maximum: [B, R, T]."""
        layer, self._blocks = torch.cat(self._blocks, dim=2), []
        rows = pick(layer, self._anchors, 2)
        columns = pick(layer, self._anchors, 3).transpose(2, 3)
        largest = ((rows + columns) / 2).amax(dim=1)
        # A layer that runs once more for its gradient has been counted.
        if self._matrix is None:
            self._rows.append(largest)

    def matrix(self) -> Tensor:
        if self._matrix is None:
            matrix = reduce(torch.maximum, self._rows)
            positions = torch.arange(self.length, device=matrix.device)
            kept = self._valid[:, :, None] & (self.both | (positions >= self._anchors[:, :, None]))
            kept = kept & (positions < self._ends)
            self._matrix, self._rows = matrix.masked_fill(~kept, 0.0), []
        return self._matrix
