"""One forward pass over texts, and every reading of it: all layers and poolings at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers.util import batch_to_device
from torch import Tensor

from ...batches import copied_positions, token_batches
from ...modules.capture import Capture
from ...modules.decoder import DecoderTransformer
from ...modules.layer_list import cut_short
from ...modules.pooling import column
from ...modules.reading import Reading, ReadingPass
from ...modules.repeat import RepeatTransformer
from ...modules.stages import LayerCall, Pass, Place
from .costs import laid_out
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
        >>> same = st_reba.build("mini", "echo:pooling=mean+read:layers=3").encode(["你好", "Hello"])
        >>> bool(np.abs(encoded.vectors[read] - same).max() < 1e-6)
        True
    """
    # All layers count: a reading cuts the pass short, not the plan.
    depth = transformer.depth
    running = laid_out(transformer, arm.layout, [arm.plan(depth)])
    running.zeros = True
    lengths = copied_positions(running, texts)
    width = int(getattr(running.config.get_text_config(), "hidden_size", 1))
    budget = max(1, min(_BATCH_TOKENS, _MOST_NUMBERS // (width * (depth + 1) * 2)))
    found: dict[Read, list[tuple[list[int], NDArray[np.float32]]]] = defaultdict(list)
    device = running.model.device
    running.eval()
    with torch.inference_mode():
        for batch in token_batches(lengths, budget):
            given = batch_to_device(running.preprocess([texts[index] for index in batch]), device)
            for read, vectors in _pooled(running, given, reads).items():
                found[read].append((batch, vectors))
    return Encoded({read: _in_order(parts, len(texts)) for read, parts in found.items()}, sum(lengths))


class _EveryLayer(ReadingPass):
    """Reads layers before and behind the final norm, and the weights of backward attention as they are after each.

    Args:
        decoder: The decoder.
        reading: What is read.
        summed: [B, T] bool, the positions that weights are summed over; None: no backward attention.
    """

    def __init__(self, decoder: DecoderTransformer, reading: Reading, summed: Tensor | None) -> None:
        super().__init__(decoder, reading)
        # The last layer alone needs no hooks to be read, but here to be counted.
        cut_short(decoder.backbone.layers())
        self.summed = summed
        self.before: dict[int, Tensor] = {}
        self.behind: dict[int, Tensor] = {}
        # By the number of layers that ran: weights [B, 2, T] of mean and of last.
        self.weights: dict[int, Tensor] = {}

    def after_layer(self, run: Pass, call: LayerCall) -> Tensor:
        if call.index == 0 and 0 in self.reading.layers:
            self.before[0] = call.entered
        if call.index + 1 in self.reading.layers:
            self.before[call.index + 1] = call.hidden
        if self.summed is not None:
            matrix = run.observer.so_far() * self.summed[:, None]
            count = column([count for _, count, _ in run.places], matrix.device)
            last = matrix.gather(1, (count - 1)[:, :, None].expand(-1, 1, matrix.shape[2]))[:, 0]
            self.weights[call.index + 1] = torch.stack([matrix.sum(dim=1) / count, last], dim=1)
        return super().after_layer(run, call)

    def finish(self, run: Pass, hidden: Tensor) -> Tensor:
        """A sum of all that is read: it tells whether all is finite."""
        if self.reading.final_norm:
            self.behind = self.states(run, hidden)
        return reduce(torch.add, (self.behind or self.before).values())


def _pooled(
    transformer: RepeatTransformer, features: dict[str, Any], reads: Sequence[Read]
) -> dict[Read, NDArray[np.float32]]:
    """Every reading's vectors of one batch."""
    real, copy_ids = features["attention_mask"].bool(), features["copy_ids"]
    captured = any(read.pooled.startswith("reba") for read in reads)
    # Both norms come from one pass: what is read behind the norm is there before it.
    wanted = reading_of(reads, transformer.depth, final_norm=any(read.final_norm for read in reads))
    reading = _EveryLayer(transformer, wanted, copy_ids > 0 if captured else None)
    output = transformer(features, watch=[*([Capture("copy")] if captured else []), reading])
    plain = _plain_weights(copy_ids, real, transformer.repeats, features["places"])
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
            states = self.reading.behind if read.final_norm else self.reading.before
            hidden = states[layer].float().masked_fill(~self.real[:, :, None], 0.0)
            if unit:
                hidden = torch.nn.functional.normalize(hidden, dim=-1)
            self._made[name] = torch.bmm(weights, hidden)
        return self._made[name]


def _plain_weights(copy_ids: Tensor, real: Tensor, copies: int, places: Sequence[Place]) -> Tensor:
    """Weights [B, 3, T] of mean and last over the last copy's content, and of the very last position."""
    inside = copy_ids == copies
    position = torch.arange(real.shape[1], device=real.device)
    last = (position * inside).amax(dim=1, keepdim=True)
    end = column([length - 1 for _, _, length in places], real.device)
    mean = inside.float() / inside.sum(dim=1, keepdim=True)
    return torch.stack([mean, (position == last).float(), (position == end).float()], dim=1)


def _in_order(parts: list[tuple[list[int], NDArray[np.float32]]], count: int) -> NDArray[np.float32]:
    vectors = np.full((count, parts[0][1].shape[1]), np.nan, np.float32)
    for batch, some in parts:
        vectors[batch] = some
    return vectors
