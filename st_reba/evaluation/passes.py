"""One forward pass over texts gives every layer and pooling; its vectors wait on disk, and are read one by one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers.util import batch_to_device
from torch import Tensor

from ..batches import DEFAULT_BATCH_TOKENS, copied_positions, token_batches
from ..modules import Stage
from ..modules.capture import Capture
from ..modules.decoder import DecoderTransformer
from ..modules.layer_list import cut_short, layers_of
from ..modules.layout import Layout
from ..modules.pooling import column
from ..modules.reading import Reading, ReadingPass
from ..modules.repeat import RepeatTransformer
from ..modules.stages import LayerCall, Pass, Place
from ..pipelines import copied
from .trials import Arm, Read, Trial

# Numbers of hidden states, of all layers, that a pass may hold; a longer text runs alone.
_MOST_NUMBERS = 1 << 28
# Bytes of vectors that are written together.
_WAITING = 1 << 28


@dataclass(frozen=True)
class Costs:
    """What arms and methods cost, counted without running any.

    Args:
        positions: By input, then by text: copies as cut to the model's length, template and special tokens.
        depth: The base's number of layers L.
    """

    positions: Mapping[Layout, Mapping[str, int]]
    depth: int

    def tokens(self, arm: Arm) -> float:
        """Positions a text, on average."""
        return self._means[arm.layout]

    @cached_property
    def _means(self) -> dict[Layout, float]:
        return {layout: sum(counts.values()) / len(counts) for layout, counts in self.positions.items()}

    def total(self, arm: Arm, texts: Iterable[str]) -> int:
        """Positions of some of the texts together."""
        counts = self.positions[arm.layout]
        return sum(counts[text] for text in texts)

    def of(self, trial: Trial) -> float:
        """Work of a method as a share of the unconverted base's over the text once: positions times layers.

        A position's attention over the others is left out: it costs little in texts of some hundred tokens.
        """
        return self.tokens(trial.arm) / self.tokens(Arm()) * trial.layers(self.depth) / self.depth


def costs_of(transformer: RepeatTransformer, arms: Sequence[Arm], texts: Sequence[str]) -> Costs:
    """Count what arms cost on texts, by a module's tokenizer.

    Raises:
        ValueError: An input does not fit into the model's length.

    Example:
        >>> import st_reba
        >>> transformer = st_reba.build("mini", "classical")[0]
        >>> costs_of(transformer, [Arm(repeats=2)], ["Hello", "你好"]).tokens(Arm(repeats=2))
        6.0
    """
    positions: dict[Layout, Mapping[str, int]] = {}
    for layout in dict.fromkeys(arm.layout for arm in (Arm(), *arms)):
        try:
            counts = copied_positions(laid_out(transformer, layout), texts)
        except ValueError as error:
            name = f"template {layout.template!r}" if layout.template is not None else f"repeats={layout.repeats}"
            raise ValueError(f"{name}: {error}") from None
        positions[layout] = dict(zip(texts, counts, strict=True))
    return Costs(positions, transformer.depth)


def laid_out(transformer: RepeatTransformer, layout: Layout, stages: Sequence[Stage] = ()) -> RepeatTransformer:
    """Another module around a module's backbone and tokenizer."""
    other = copied(transformer)
    other.__dict__["layout"] = layout
    other.rebind(stages)
    return other


class Encoded:
    """Vectors of texts by reading, in files of a folder; and the positions that ran, padding excluded (``tokens``)."""

    def __init__(self, folder: Path, reads: Sequence[Read], texts: int, tokens: int) -> None:
        self.reads, self.tokens = list(reads), tokens
        self._folder, self._texts = folder, texts
        self._places = {read: place for place, read in enumerate(self.reads)}
        # By reading, what is not in its file yet: places of texts and their vectors.
        self._waiting: dict[Read, list[tuple[Sequence[int], NDArray[np.float32]]]] = {}
        self._bytes = 0

    def write(self, read: Read, rows: Sequence[int], vectors: NDArray[np.float32]) -> None:
        """Keep the vectors of some texts."""
        self._waiting.setdefault(read, []).append((rows, vectors))
        self._bytes += vectors.nbytes
        if self._bytes > _WAITING:
            self.flush()

    def flush(self) -> None:
        """Write what waits into the files."""
        for read, parts in self._waiting.items():
            file = self._opened(read, parts[0][1].shape[1])
            for rows, vectors in parts:
                file[rows] = vectors
        self._waiting, self._bytes = {}, 0

    def __getitem__(self, read: Read) -> NDArray[np.float64]:
        """A reading's vectors [texts, d] of length 1; a text whose hidden states are not finite has NaN."""
        return np.array(self._opened(read), dtype=np.float64)

    def _opened(self, read: Read, width: int | None = None) -> Any:
        path = self._folder / f"{self._places[read]}.f32"
        if width is None:
            width = path.stat().st_size // (4 * self._texts)
        # Opened each time: hundreds of files at once are more than some systems allow, and pages stay no longer.
        return np.memmap(path, np.float32, "r+" if path.exists() else "w+", shape=(self._texts, width))


def encode_arm(
    transformer: RepeatTransformer,
    arm: Arm,
    reads: Sequence[Read],
    texts: Sequence[str],
    folder: str | os.PathLike[str],
) -> Encoded:
    """Run texts through an arm once, and pool every reading.

    Args:
        transformer: Whose backbone runs.
        arm: Input and plan, which holds no NoSink setting.
        reads: What to read.
        texts: The texts.
        folder: An empty folder for the vectors.

    Raises:
        ValueError: The backbone cannot run the plan, or not be read between its layers.

    Example:
        >>> import tempfile
        >>> import st_reba
        >>> transformer = st_reba.build("mini", "classical")[0]
        >>> read = Read(3, 3, True, "mean")
        >>> same = st_reba.build("mini", "echo:pooling=mean+read:layers=3").encode(["你好", "Hello"])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     encoded = encode_arm(transformer, Arm(repeats=2), [read], ["你好", "Hello"], folder)
        ...     bool(np.abs(encoded[read] - same).max() < 1e-6)
        True
    """
    # All layers count: a reading cuts the pass short, not the plan.
    depth = transformer.depth
    running = laid_out(transformer, arm.layout, [arm.plan(depth)])
    running.zeros = True
    lengths = copied_positions(running, texts)
    width = int(getattr(running.config.get_text_config(), "hidden_size", 1))
    budget = max(1, min(DEFAULT_BATCH_TOKENS, _MOST_NUMBERS // (width * (depth + 1) * 2)))
    found = Encoded(Path(folder), reads, len(texts), sum(lengths))
    device = running.model.device
    running.eval()
    with torch.inference_mode():
        for batch in token_batches(lengths, budget):
            given = batch_to_device(running.preprocess([texts[index] for index in batch]), device)
            for read, vectors in _pooled(running, given, reads):
                found.write(read, batch, vectors)
    found.flush()
    return found


class _EveryLayer(ReadingPass):
    """Reads layers before and behind the final norm, and the weights of backward attention as they are after each.

    ``summed`` [B, T] bool are the positions that weights are summed over; None: no backward attention.
    """

    def __init__(self, decoder: DecoderTransformer, reading: Reading, summed: Tensor | None) -> None:
        super().__init__(decoder, reading)
        # The last layer alone needs no hooks to be read, but here to be counted.
        cut_short(layers_of(decoder.backbone))
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


# Rows of the weights that go together.
_PLACES = {"mean": 0, "last": 1, "end": 2, "reba mean": 0, "reba last": 1}


def _pooled(
    transformer: RepeatTransformer, features: dict[str, Any], reads: Sequence[Read]
) -> Iterator[tuple[Read, NDArray[np.float32]]]:
    """Every reading's vectors of one batch."""
    real, copy_ids = features["attention_mask"].bool(), features["copy_ids"]
    captured = any(read.pooled.startswith("reba") for read in reads)
    lowest, highest = min(read.first for read in reads), max(read.last for read in reads)
    # Both norms come from one pass: what is read behind the norm is there before it.
    norm = any(read.final_norm for read in reads)
    wanted = Reading(tuple(range(lowest, highest + 1)), norm, transformer.depth)
    reading = _EveryLayer(transformer, wanted, copy_ids > 0 if captured else None)
    output = transformer(features, watch=[*([Capture("copy")] if captured else []), reading])
    broken = ~output["token_embeddings"].flatten(1).any(dim=1)
    plain = _plain_weights(copy_ids, real, transformer.repeats, features["places"])
    made: dict[tuple[Any, ...], Tensor] = {}

    def sums(layer: int, read: Read) -> Tensor:
        """Sums [B, W, d] of a layer's states by the weights of a reading; of several layers of unit vectors."""
        reba, unit = read.pooled.startswith("reba"), read.first != read.last
        name = (layer, read.final_norm, unit, reba and read.runs)
        if name in made:
            return made[name]
        hidden = (reading.behind if read.final_norm else reading.before)[layer]
        hidden = hidden.float().masked_fill(~real[:, :, None], 0.0)
        if unit:
            hidden = torch.nn.functional.normalize(hidden, dim=-1)
        found = torch.bmm(reading.weights[read.runs] if reba else plain, hidden)
        if not (reba and unit):
            # Weights of backward attention are each number of layers' own: hardly any such sum is asked for twice.
            made[name] = found
        return found

    for read in reads:
        parts = [sums(layer, read)[:, _PLACES[read.pooled]] for layer in read.layers]
        vectors = torch.stack(parts).mean(dim=0) if read.join == "mean" else torch.cat(parts, dim=-1)
        vectors = torch.nn.functional.normalize(vectors, dim=-1).masked_fill(broken[:, None], torch.nan)
        yield read, vectors.cpu().numpy()


def _plain_weights(copy_ids: Tensor, real: Tensor, copies: int, places: Sequence[Place]) -> Tensor:
    """Weights [B, 3, T] of mean and last over the last copy's content, and of the very last position."""
    inside = copy_ids == copies
    position = torch.arange(real.shape[1], device=real.device)
    last = (position * inside).amax(dim=1, keepdim=True)
    end = column([length - 1 for _, _, length in places], real.device)
    mean = inside.float() / inside.sum(dim=1, keepdim=True)
    return torch.stack([mean, (position == last).float(), (position == end).float()], dim=1)
