"""ChunkedReBAPooling: backward attention within pieces of a text, at a cost that grows with its length alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from .capture import Capture
from .layout import MOST_COPIES, Frame
from .options import Options, option
from .pooling import ReBAPooling, column, token_counts
from .poolings import POOLINGS, Rows
from .repeat import padded
from .stages import Place
from .vendoring import published

# A forward pass over pieces has about this many positions at most, so that memory does not grow with the text.
POSITIONS = 1 << 14
_MOST_TOKENS = 1 << 24


@dataclass(frozen=True)
class _Settings(Options):
    chunk: int = option(512, "content tokens of a piece", least=1, most=_MOST_TOKENS)
    repeats: int = option(2, "copies of a piece", least=1, most=MOST_COPIES)


@published
class ChunkedReBAPooling(ReBAPooling):
    """ReBA for long texts: the text is run once, and only its pieces are repeated.

    v_t are the hidden states of the text's own run. Then each piece of the text runs ``repeats`` times in a row, the
    same special tokens, prompt and template words around it, which gives A^new and the hidden states v'_t:

        e_i = A^new[i, i] · v_i + Σ_t A^new[i, t] · v'_t over the content positions t > pos(1, i) of the piece's run.

    The paper does not say how to cut. Here a text of n tokens makes as few pieces as can be, P = ⌈n / chunk⌉, and
    piece p = 0 … P − 1 begins at token ⌊p·n / P⌋ (counted from 0), so that sizes differ by one at most.

    Args:
        embedding_dimension: Dimension d of the hidden states.
        chunk: Content tokens L0 that a piece holds at most; at most 16,777,216.
        pooling: Sentence vector: ``"last"``: e_n, for which only the last piece runs; ``"mean"``: the mean of
            e_1 .. e_n.
        repeats: Copies k of each piece in its run, at most 64.
        include_special: Sum over template and special positions of the piece's run too, not only over content.
        normalize_weights: Divide the weights of each e_i by their sum.

    Source:
        ReBA, section 5 (proposed there for long texts).

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini", pooling="mean", chunk=8)
        >>> model.encode("你好，世界。" * 100).shape
        (192,)
    """

    config_keys = ["embedding_dimension", "chunk", "pooling", "repeats", "include_special", "normalize_weights"]

    def __init__(
        self,
        embedding_dimension: int,
        chunk: int,
        pooling: str = "last",
        repeats: int = 2,
        include_special: bool = False,
        normalize_weights: bool = False,
    ) -> None:
        super().__init__(embedding_dimension, pooling, "paper", include_special, normalize_weights)
        _Settings(chunk, repeats)
        if pooling not in ("last", "mean"):
            raise ValueError(f"pooling={pooling!r} is not defined on pieces of a text: choose 'last' or 'mean'.")
        self.chunk = chunk
        self.repeats = repeats

    def on_model_ready(self, model: Any) -> None:
        """Find the module in front, which runs the pieces too."""
        super().on_model_ready(model)
        source = self.source
        source.watchers = []
        source.check_single()
        if source.repeats != 1:
            raise ValueError(
                f"chunk={self.chunk}: the text runs once and its pieces are repeated, but RepeatTransformer lays out "
                f"{source.repeats} copies. Give it repeats=1, or a template with one {{text}} slot."
            )
        if any(stage.name == "prepend" for stage in source.stages):
            raise ValueError("prepend: the pieces of a text (chunk) have no placeholder. Drop one of both.")

    def check_room(self, surrounding: int) -> None:
        """Raise unless a full piece's run, with so many tokens around its content, fits the positions of a sequence."""
        limit = self.source.token_layout.limit()
        needed = surrounding + self.repeats * self.chunk
        if limit is not None and needed > limit:
            most = (limit - surrounding) // self.repeats
            raise ValueError(
                f"chunk={self.chunk}: {self.repeats} copies of a piece and the {surrounding} special, template and "
                f"prompt tokens take {needed} positions, more than max_seq_length={limit}. "
                + (f"Build with chunk={most} or less" if most >= 1 else "Shorten the template or the prompt")
                + ", or raise max_seq_length where the base model has more positions."
            )

    def sentence(self, features: dict[str, Any]) -> Tensor:
        """The sentence vectors [B, d]; of ``last`` only the last pieces run."""
        token, count = token_counts(features)
        last = self.pooling == "last"
        share = (token == count - 1).float() if last else (token < count) / count

        def wanted(row: int, start: int, stop: int) -> bool:
            return not last or stop == features["places"][row][1]

        return self._vectors(features, wanted, share, rows=POOLINGS[self.pooling].rows)

    def span_embeddings(self, features: dict[str, Any], spans: Tensor, *, normalize: bool = False) -> Tensor:
        """As :meth:`ReBAPooling.span_embeddings`, of ``spans`` on the CPU; only pieces that hold a part of them run."""
        inside = spans.tolist()
        share = (spans / spans.sum(dim=1, keepdim=True)).to(features["token_embeddings"].device)

        def wanted(row: int, start: int, stop: int) -> bool:
            return any(inside[row][start:stop])

        return self._vectors(features, wanted, share, normalize=normalize)

    def token_vectors(self, features: dict[str, Any]) -> Tensor:
        """The e_i of every token, [B, n, d]."""
        return self._vectors(features, lambda row, start, stop: True, None)

    def _vectors(
        self,
        features: dict[str, Any],
        wanted: Callable[[int, int, int], bool],
        share: Tensor | None,
        *,
        rows: Rows = "copy",
        normalize: bool = False,
    ) -> Tensor:
        """Σ_i share_i · e_i of each text, [B, d], for a share [B, n]; None: every e_i, [B, n, d].

        Only pieces (of a row, from a token to another) that are ``wanted`` run, and keep those ``rows`` of A^new.
        """
        hidden: Tensor = features["token_embeddings"]
        places: list[Place] = features["places"]
        longest = max(count for _, count, _ in places)
        surrounding = max(length - count for _, count, length in places)
        self.check_room(surrounding)
        pieces = [
            (row, start, stop - start)
            for row, (_, count, _) in enumerate(places)
            for start, stop in pairwise(cuts(count, self.chunk))
            if wanted(row, start, stop)
        ]
        pieces.sort(key=lambda piece: -piece[2])
        precision = torch.promote_types(hidden.dtype, torch.float32)
        if share is None:
            result = hidden.new_zeros(len(hidden) * longest, hidden.shape[-1])
        else:
            result = hidden.new_zeros(len(hidden), hidden.shape[-1], dtype=precision)
        while pieces:
            # A batch at a time, the longest first.
            number = max(1, POSITIONS // (surrounding + self.repeats * pieces[0][2]))
            batch, pieces = pieces[:number], pieces[number:]
            row, token, vectors = self._batch(features, batch, share, rows, normalize)
            index = row if share is not None else row * longest + token
            # Autocast multiplies in a narrower type.
            result = result.index_add(0, index.flatten(), vectors.to(result.dtype).flatten(0, 1))
        return result.view(len(hidden), longest, -1) if share is None else result.to(hidden.dtype)

    def _batch(
        self,
        features: dict[str, Any],
        batch: list[tuple[int, int, int]],
        share: Tensor | None,
        rows: Rows,
        normalize: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The rows [P, 1] and tokens [P, R] of a batch of pieces, and their e_i [P, R, d] or sums [P, 1, d].

        A function of its own, so that nothing of one batch is in memory while the next one runs.
        """
        hidden: Tensor = features["token_embeddings"]
        output = self.source(self._repeated(features, batch), watch=[Capture(rows)])
        weights = self._rows(output, normalize or self.normalize_weights)
        row, start, size = torch.tensor(batch).to(hidden.device, non_blocking=True)[..., None].unbind(dim=1)
        first = column([features["places"][row][0] for row, _, _ in batch], hidden.device)
        # The rows of A^new are those of the piece's tokens in copy 1, or that of the last one alone.
        offset = size - 1 if rows == "last" else torch.arange(weights.shape[1], device=hidden.device)
        # What is beyond a piece's own has no weight.
        offset = torch.minimum(offset, size - 1)
        token, here = start + offset, (first + offset)[..., None]
        # The weight of the text's own v_i, and those of the v'_t behind it.
        own, later = weights.gather(2, here), weights.scatter(2, here, 0.0)
        precision = torch.promote_types(hidden.dtype, torch.float32)
        hidden_i, hidden_t = hidden[row, first + token].to(precision), output["token_embeddings"].to(precision)
        if share is None:
            vectors = torch.bmm(later.to(precision), hidden_t) + own * hidden_i
            return row, token, vectors
        part = share[row, token].to(weights.dtype)[:, None]
        vectors = torch.bmm(torch.bmm(part, later).to(precision), hidden_t)
        return row, token, vectors + torch.bmm((part * own.mT).to(precision), hidden_i)

    def _repeated(self, features: dict[str, Any], pieces: list[tuple[int, int, int]]) -> dict[str, Any]:
        """Pieces (a row, the first token, their number) laid out as RepeatTransformer lays a text out."""
        ids: Tensor = features["input_ids"]
        placed = []
        for row, start, size in pieces:
            first, count, length = features["places"][row]
            around = tuple(range(first)), tuple(range(first + count, length))
            frame = Frame((around[0], *[None] * self.repeats, around[1]))
            placed.append(frame.place(range(first + start, first + start + size)))
        laid_out = padded(placed)
        for name in ("input_ids", "attention_mask", "copy_ids"):
            laid_out[name] = laid_out[name].to(ids.device, non_blocking=True)
        # Until here, positions in the text's own row stand in place of ids.
        laid_out["input_ids"] = ids[column([row for row, _, _ in pieces], ids.device), laid_out["input_ids"]]
        return laid_out


def cuts(count: int, chunk: int) -> list[int]:
    """Where a text of so many tokens is cut: the first token of every piece (from 0), and the number at the end.

    Example:
        >>> cuts(10, 4)
        [0, 3, 6, 10]
    """
    pieces = -(-count // chunk)
    return [piece * count // pieces for piece in range(pieces + 1)]
