"""One forward pass over texts, and every reading of it: all layers and poolings at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...batches import copied_positions, token_batches
from ...modules import RepeatTransformer
from ...modules.alignment import moved, padding_in_front
from ...modules.capture import BackwardAttention, CaptureSpec
from ...modules.depth import Reading, TopReading
from .space import reading_of
from .trial import Arm, Read

# Numbers of hidden states, of all layers, that a pass may hold.
_MOST_NUMBERS = 1 << 28
_BATCH_TOKENS = 4096


@dataclass(frozen=True)
class Encoded:
    """Vectors of texts, one array a reading, and what they cost.

    Args:
        vectors: [texts, d] float32 of length 1, by reading.
        tokens: Positions that ran, padding excluded.
    """

    vectors: dict[Read, NDArray[np.float32]]
    tokens: int


def encode_arm(
    transformer: RepeatTransformer,
    arm: Arm,
    reads: Sequence[Read],
    texts: Sequence[str],
) -> Encoded:
    """Run texts through an arm once, and pool every reading.

    Args:
        transformer: Whose backbone runs.
        arm: Input and plan.
        reads: What to read.
        texts: The texts.

    Returns:
        The vectors in the texts' order. A text whose hidden states are not finite has NaN.

    Raises:
        ValueError: The backbone cannot run the plan, or not be read between its layers.

    Example:
        >>> import st_reba
        >>> transformer = st_reba.build("mini", "classical")[0]
        >>> read = Read(3, 3, True, "mean")
        >>> encoded = encode_arm(transformer, Arm(repeats=2), [read], ["你好", "Hello"])
        >>> same = st_reba.build("mini", "echo", pooling="mean", layer=3).encode(["你好", "Hello"])
        >>> bool(np.abs(encoded.vectors[read] - same).max() < 1e-6)
        True
    """
    running = transformer.laid_out(arm.template, None if arm.template is not None else arm.repeats, arm.separator)
    depth, runs = running.depth, max(read.runs for read in reads)
    running.layers = None
    # A backbone that cannot be read between its layers says so here, also where only the last one is asked for.
    running.layer = 0
    running.layer = runs if runs < depth else None
    running.layers = arm.plan(runs)
    running.non_finite = "zeros"
    lengths = copied_positions(running, texts)
    width = int(getattr(running.config.get_text_config(), "hidden_size", 1))
    budget = max(1, min(_BATCH_TOKENS, _MOST_NUMBERS // (width * (depth + 1) * 2)))
    found: dict[Read, list[tuple[list[int], NDArray[np.float32]]]] = defaultdict(list)
    device = running.model.device
    running.eval()
    with torch.inference_mode():
        for batch in token_batches(lengths, budget):
            features = running.preprocess([texts[index] for index in batch])
            given = {name: value.to(device) for name, value in features.items()}
            for read, vectors in _pooled(running, given, reads).items():
                found[read].append((batch, vectors))
    return Encoded({read: _in_order(parts, len(texts)) for read, parts in found.items()}, sum(lengths))


class _EveryLayer(TopReading):
    """Reads layers, and keeps the weights of backward attention as they are after each.

    Args:
        reading: What is read.
        capture: Observes the pass; None: no backward attention.
        summed: [B, T] bool, the positions that are summed over.
    """

    def __init__(self, reading: Reading, capture: BackwardAttention | None, summed: Tensor) -> None:
        super().__init__(reading)
        self.capture, self.summed = capture, summed
        # By the number of layers that ran: weights [B, 2, T] of mean and of last.
        self.weights: dict[int, Tensor] = {}

    def after_layer(self, module: torch.nn.Module, index: int, entered: Tensor, hidden: Tensor) -> Tensor:
        result = super().after_layer(module, index, entered, hidden)
        if self.capture is not None:
            matrix = self.capture.so_far() * self.summed[:, None]
            count = self.capture.count
            last = matrix.gather(1, (count - 1)[:, None, None].expand(-1, 1, matrix.shape[2]))[:, 0]
            self.weights[index + 1] = torch.stack([matrix.sum(dim=1) / count[:, None], last], dim=1)
        return result


def _pooled(
    transformer: RepeatTransformer, features: dict[str, Any], reads: Sequence[Read]
) -> dict[Read, NDArray[np.float32]]:
    """Every reading's vectors of one batch."""
    start = padding_in_front(features["attention_mask"])
    if start is not None:
        features = moved(features, start)
    real, copy_ids = features["attention_mask"].bool(), features["copy_ids"]
    capture = None
    if any(read.pooled.startswith("reba") for read in reads):
        first, count = CaptureSpec("copy").anchors(copy_ids, features["attention_mask"])
        capture = BackwardAttention(first, count, real.shape[1])
        transformer.show_attention()
    # Both norms come from one pass: what is read behind the norm is there before it.
    norm = any(read.final_norm for read in reads)
    reading = _EveryLayer(reading_of(reads, transformer.depth, final_norm=norm), capture, copy_ids > 0)
    output = transformer(features, capture=capture, reading=reading)
    plain = _plain_weights(copy_ids, real, transformer.repeats)
    sums = _Sums(reading, real)
    pooled: dict[Read, Tensor] = {}
    for read in reads:
        reba = read.pooled.startswith("reba")
        weights = reading.weights[read.runs] if reba else plain
        each = [sums.of(layer, read, read.runs if reba else None, weights) for layer in read.layers]
        place = _PLACES[read.pooled]
        parts = [one[:, place] for one in each]
        vectors = torch.stack(parts).mean(dim=0) if read.join == "mean" else torch.cat(parts, dim=-1)
        pooled[read] = torch.nn.functional.normalize(vectors, dim=-1)
    finite = output["token_embeddings"].flatten(1).any(dim=1)
    return {read: vectors.masked_fill(~finite[:, None], torch.nan).cpu().numpy() for read, vectors in pooled.items()}


# Rows of the weights that go together.
_PLACES = {"mean": 0, "last": 1, "end": 2, "reba mean": 0, "reba last": 1}


class _Sums:
    """Weighted sums of layers' hidden states, each made once.

    Args:
        reading: What a pass read.
        real: [B, T] bool.
    """

    def __init__(self, reading: _EveryLayer, real: Tensor) -> None:
        self.reading, self.real = reading, real
        self._made: dict[tuple[int, bool, bool, int | None], Tensor] = {}

    def of(self, layer: int, read: Read, key: int | None, weights: Tensor) -> Tensor:
        """Sums [B, W, d] by the weights [B, W, T], which ``key`` tells apart; of several layers of unit vectors."""
        unit = read.first != read.last
        name = (layer, read.final_norm, unit, key)
        if name not in self._made:
            states = self.reading.normed if read.final_norm else self.reading.states
            hidden = states[layer].float().masked_fill(~self.real[:, :, None], 0.0)
            if unit:
                hidden = torch.nn.functional.normalize(hidden, dim=-1)
            self._made[name] = torch.bmm(weights, hidden)
        return self._made[name]


def _plain_weights(copy_ids: Tensor, real: Tensor, copies: int) -> Tensor:
    """Weights [B, 3, T] of mean and last over the last copy's content, and of the very last position."""
    inside = copy_ids == copies
    position = torch.arange(real.shape[1], device=real.device)
    last = (position * inside).amax(dim=1, keepdim=True)
    end = (position * real).amax(dim=1, keepdim=True)
    mean = inside.float() / inside.sum(dim=1, keepdim=True)
    return torch.stack([mean, (position == last).float(), (position == end).float()], dim=1)


def _in_order(parts: list[tuple[list[int], NDArray[np.float32]]], count: int) -> NDArray[np.float32]:
    vectors = np.full((count, parts[0][1].shape[1]), np.nan, np.float32)
    for batch, some in parts:
        vectors[batch] = some
    return vectors
