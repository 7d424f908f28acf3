"""ChunkedReBAPooling: backward attention within pieces of a text, at a cost that grows with its length alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, get_args

import torch
from sentence_transformers.base.modules import Module
from torch import Tensor

from .capture import CaptureSpec
from .limits import MOST_COPIES, MOST_DIMENSIONS, MOST_TOKENS, check_whole, shown
from .pooling import LazyFeatures, PoolingMode, normalized
from .repeat import RepeatTransformer
from .tokens import position_limit

# A forward pass over pieces has about this many positions at most, so that memory does not grow with the text.
POSITIONS = 1 << 14


class ChunkedReBAPooling(Module):
    """ReBA for long texts: the text is run once, and only its pieces are repeated.

    v_t are the hidden states of the text, which the module in front runs once. The text is cut into pieces, each
    piece runs ``repeats`` times in a row with the same special tokens, prompt and template words around it, and from
    that run come A^new and the hidden states v'_t:

        e_i = A^new[i, i] · v_i + Σ_t A^new[i, t] · v'_t over the content positions t > pos(1, i) of the piece's run.

    The paper does not say how to cut. Here a text of n tokens makes as few pieces as can be, P = ⌈n / chunk⌉, and
    piece p = 0 … P − 1 begins at token ⌊p·n / P⌋ (counted from 0): sizes differ by one at most, so that no
    piece is a stub.

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
        pooling: PoolingMode = "last",
        repeats: int = 2,
        include_special: bool = False,
        normalize_weights: bool = False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        check_whole("embedding_dimension", embedding_dimension, MOST_DIMENSIONS)
        check_whole("chunk", chunk, MOST_TOKENS)
        check_whole("repeats", repeats, MOST_COPIES)
        if pooling not in get_args(PoolingMode):
            raise ValueError(f"pooling={shown(pooling)} is not known: choose one of {list(get_args(PoolingMode))}.")
        for name, value in (("include_special", include_special), ("normalize_weights", normalize_weights)):
            if not isinstance(value, bool):
                raise ValueError(f"{name}={shown(value)} is not known: choose one of [True, False].")
        self.embedding_dimension = embedding_dimension
        self.chunk = chunk
        self.pooling: PoolingMode = pooling
        self.repeats = repeats
        self.include_special = include_special
        self.normalize_weights = normalize_weights
        # In a tuple, so that torch does not take the neighbour for a submodule.
        self._source: tuple[RepeatTransformer, ...] = ()

    @property
    def token_capture(self) -> None:
        """What the first pass is to capture for words: nothing, as pieces capture for themselves."""
        return None

    def on_model_ready(self, model: Any) -> None:
        """Find the module in front, which runs the pieces too."""
        source = model[0]
        if not isinstance(source, RepeatTransformer):
            raise ValueError(
                f"ChunkedReBAPooling repeats the pieces of a text, but the pipeline starts with "
                f"{type(source).__name__}. Put st_reba.RepeatTransformer with repeats=1 in front."
            )
        if source.repeats != 1:
            layout = f"repeats={source.repeats}" if source.template is None else f"template={source.template!r}"
            raise ValueError(
                f"chunk={self.chunk}: the text runs once and its pieces are repeated, but RepeatTransformer has "
                f"{layout}: {source.repeats} copies. Give it repeats=1, or a template with one {{text}} slot."
            )
        source.capture = None
        source.show_attention()
        self._source = (source,)

    def check_room(self, surrounding: int) -> None:
        """Whether the run of a full piece fits the positions that a sequence may have.

        Args:
            surrounding: Special, template and prompt tokens around the content.

        Raises:
            ValueError: It does not.
        """
        limit = position_limit(self._transformer.text_tokenizer)
        needed = surrounding + self.repeats * self.chunk
        if limit is not None and needed > limit:
            most = (limit - surrounding) // self.repeats
            raise ValueError(
                f"chunk={self.chunk}: {self.repeats} copies of a piece and the {surrounding} special, template and "
                f"prompt tokens take {needed} positions, more than max_seq_length={limit}. "
                + (f"Build with chunk={most} or less" if most >= 1 else "Shorten the template or the prompt")
                + ", or raise max_seq_length where the base model has more positions."
            )

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Pool.

        Args:
            features: ``input_ids``, ``copy_ids`` and ``real_mask`` [B, T] and ``token_embeddings`` [B, T, d], from
                RepeatTransformer; not changed.
            **kwargs: Ignored.

        Returns:
            ``features`` with ``sentence_embedding`` [B, d]; ``token_embeddings`` is then [B, n, d], the e_i
            (computed on demand), and ``attention_mask`` [B, n] says which are real.

        Raises:
            ValueError: A piece does not fit the positions, or the pipeline was not built as one.
        """
        hidden = features["token_embeddings"]
        if hidden.shape[-1] != self.embedding_dimension:
            raise ValueError(
                f"embedding_dimension={self.embedding_dimension}, but the hidden states have {hidden.shape[-1]} "
                "dimensions. Give ChunkedReBAPooling the latter."
            )
        text = _Text.of(features)
        token = torch.arange(int(text.count.max()), device=hidden.device)
        real = token < text.count[:, None]
        if self.pooling == "last":
            share = (token == text.count[:, None] - 1).float()
            sentence = self._combined(features, share, CaptureSpec("last"))
        else:
            share = real / text.count[:, None]
            sentence = self._combined(features, share, CaptureSpec("copy"))
        pooled = LazyFeatures(
            {name: value for name, value in features.items() if name != "token_embeddings"},
            lambda: self._token_embeddings(features),
        )
        pooled["sentence_embedding"] = sentence
        pooled["attention_mask"] = real.long()
        return pooled

    def span_embeddings(self, features: dict[str, Any], spans: Tensor, *, normalize: bool = False) -> Tensor:
        """Vectors of words or spans; only the pieces that hold a part of them run.

        Args:
            features: What RepeatTransformer gave.
            spans: [B, n] bool: the content tokens of each row's span.
            normalize: Divide the weights of each e_i by their sum.

        Returns:
            [B, d]: the mean of the span's e_i.

        Source:
            ReBA, section 3.3 (word embedding).
        """
        share = spans / spans.sum(dim=1, keepdim=True)
        return self._combined(features, share, CaptureSpec("copy"), normalize=normalize)

    def get_embedding_dimension(self) -> int:
        """Dimension of the vectors."""
        return self.embedding_dimension

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:
        """Save the configuration; there are no weights."""
        self.save_config(output_path)

    @property
    def _transformer(self) -> RepeatTransformer:
        if not self._source:
            raise ValueError(
                "ChunkedReBAPooling found nothing to run its pieces with: put st_reba.RepeatTransformer in front and "
                "hand both to SentenceTransformer(modules=[…]) together (a module appended to a ready model asks for "
                "nothing)."
            )
        return self._source[0]

    def _combined(
        self, features: dict[str, Any], share: Tensor, capture: CaptureSpec, *, normalize: bool = False
    ) -> Tensor:
        """Σ_i share_i · e_i of each text, [B, d], for a share [B, n]; pieces without a share do not run."""
        hidden: Tensor = features["token_embeddings"]
        result = hidden.new_zeros(
            hidden.shape[0], hidden.shape[-1], dtype=torch.promote_types(hidden.dtype, share.dtype)
        )
        finite = _finite(hidden)
        for run in self._runs(features, share != 0, capture, normalize=normalize):
            part = (share[run.row[:, None], run.token] * run.valid).to(run.later.dtype)
            # Autocast multiplies in a narrower type.
            result = result.index_add(0, run.row, run.combined(part, hidden).to(result.dtype))
            finite = finite.index_fill(0, run.row[~_finite(run.hidden)], False)
        return result.masked_fill(~finite[:, None], 0.0).to(hidden.dtype)

    def _token_embeddings(self, features: dict[str, Any]) -> Tensor:
        """The e_i of every token, [B, n, d]."""
        hidden: Tensor = features["token_embeddings"]
        count = _Text.of(features).count
        wanted = torch.arange(int(count.max()), device=count.device) < count[:, None]
        result = hidden.new_zeros(*wanted.shape, hidden.shape[-1])
        finite = _finite(hidden)
        for run in self._runs(features, wanted, CaptureSpec("copy")):
            row = run.row[:, None].expand_as(run.token)
            result[row[run.valid], run.token[run.valid]] = run.tokens(hidden)[run.valid].to(hidden.dtype)
            finite = finite.index_fill(0, run.row[~_finite(run.hidden)], False)
        return result.masked_fill(~finite[:, None, None], 0.0)

    def _runs(
        self, features: dict[str, Any], wanted: Tensor, capture: CaptureSpec, *, normalize: bool = False
    ) -> Iterator[_Run]:
        """Run the pieces that hold wanted tokens [B, n], a batch of pieces at a time, the longest first."""
        text = _Text.of(features)
        surrounding = int((text.before + text.after).max())
        self.check_room(surrounding)
        pieces = [
            (row, start, stop - start)
            for row, (count, chosen) in enumerate(zip(text.count.tolist(), wanted.tolist(), strict=True))
            for start, stop in pairwise(cuts(count, self.chunk))
            if any(chosen[start:stop])
        ]
        pieces.sort(key=lambda piece: -piece[2])
        while pieces:
            rows = max(1, POSITIONS // (surrounding + self.repeats * pieces[0][2]))
            batch, pieces = pieces[:rows], pieces[rows:]
            row, start, size = torch.tensor(batch, device=wanted.device).unbind(dim=1)
            yield self._run(text, row, start, size, features["input_ids"], capture, normalize or self.normalize_weights)

    def _run(
        self, text: _Text, row: Tensor, start: Tensor, size: Tensor, ids: Tensor, capture: CaptureSpec, normalize: bool
    ) -> _Run:
        output = self._transformer(text.repeated(ids, row, start, size, self.repeats), capture=capture)
        summed = output["real_mask"].bool() if self.include_special else output["copy_ids"] > 0
        weights: Tensor = output["backward_attention"] * summed[:, None]
        if normalize:
            weights = normalized(weights)
        # The rows of A^new are those of the piece's tokens in copy 1, or that of the last one alone.
        offset = torch.arange(weights.shape[1], device=row.device).expand(len(row), -1)
        if capture.rows == "last":
            offset = size[:, None] - 1
        valid = offset < size[:, None]
        offset = torch.minimum(offset, size[:, None] - 1)
        here = (text.before[row, None] + offset)[..., None]
        token = start[:, None] + offset
        return _Run(
            row=row,
            token=token,
            valid=valid,
            place=text.first[row, None] + token,
            own=weights.gather(2, here).squeeze(2),
            later=weights.scatter(2, here, 0.0),
            hidden=output["token_embeddings"],
        )


@dataclass(frozen=True)
class _Run:
    """One forward pass over P pieces, R tokens of each.

    Args:
        row: Each piece's text, [P].
        token: The tokens' numbers in that text, [P, R].
        valid: Which of them are tokens of the piece, [P, R] bool.
        place: Their positions in the text's own run, [P, R].
        own: A^new[i, i], the weight of the text's own v_i, [P, R].
        later: A^new[i, t] for t > i, [P, R, T].
        hidden: v'_t, [P, T, d].
    """

    row: Tensor
    token: Tensor
    valid: Tensor
    place: Tensor
    own: Tensor
    later: Tensor
    hidden: Tensor

    def tokens(self, hidden: Tensor) -> Tensor:
        """The e_i, [P, R, d], from the text's own hidden states [B, T, d], in float32 at least."""
        precision = torch.promote_types(hidden.dtype, self.later.dtype)
        later = torch.bmm(self.later.to(precision), self.hidden.to(precision))
        return later + self.own[..., None] * self._first(hidden, precision)

    def combined(self, part: Tensor, hidden: Tensor) -> Tensor:
        """Σ_i part_i · e_i of each piece, [P, d], for a part [P, R]: one weight a position, no e_i."""
        precision = torch.promote_types(hidden.dtype, self.later.dtype)
        later = torch.bmm(torch.bmm(part[:, None], self.later).to(precision), self.hidden.to(precision))
        own = torch.bmm((part * self.own)[:, None].to(precision), self._first(hidden, precision))
        return (later + own).squeeze(1)

    def _first(self, hidden: Tensor, precision: torch.dtype) -> Tensor:
        return hidden[self.row[:, None], self.place].to(precision)


@dataclass(frozen=True)
class _Text:
    """Where the content of each text stands in the run that holds it once; each [B].

    Args:
        opening: The first real position.
        before: Number of special, template and prompt tokens in front of the content.
        count: Number of content tokens n.
        after: Number of special and template tokens behind it.
    """

    opening: Tensor
    before: Tensor
    count: Tensor
    after: Tensor

    @classmethod
    def of(cls, features: dict[str, Any]) -> _Text:
        """Find it in what RepeatTransformer gave."""
        content, real = features["copy_ids"] == 1, features["real_mask"].bool()
        opening = real.int().argmax(dim=1)
        before = content.int().argmax(dim=1) - opening
        count = content.sum(dim=1)
        return cls(opening, before, count, real.sum(dim=1) - before - count)

    @property
    def first(self) -> Tensor:
        """The position of the first content token, [B]."""
        return self.opening + self.before

    def repeated(self, ids: Tensor, row: Tensor, start: Tensor, size: Tensor, repeats: int) -> dict[str, Tensor]:
        """Lay pieces out as RepeatTransformer lays a text out, padded on the right.

        Args:
            ids: The texts' own token ids, [B, T].
            row: Each piece's text, [P].
            start: Its first token's number in that text, [P].
            size: Its number of tokens, [P].
            repeats: Number of copies.

        Returns:
            ``input_ids``, ``attention_mask`` and ``copy_ids`` of the pieces.
        """
        before, after, first = self.before[row, None], self.after[row, None], self.first[row, None]
        content, size = repeats * size[:, None], size[:, None]
        length = before + content + after
        inside = torch.arange(int(length.max()), device=ids.device) - before
        is_content = (inside >= 0) & (inside < content)
        behind = first + self.count[row, None] + inside - content
        place = torch.where(inside < 0, first + inside, behind)
        place = torch.where(is_content, first + start[:, None] + inside % size, place)
        real = inside + before < length
        # Padding is masked, so any of the text's own ids will do.
        place = torch.where(real, place, first)
        return {
            "input_ids": ids[row[:, None], place],
            "attention_mask": real.long(),
            "copy_ids": torch.where(is_content, inside.div(size, rounding_mode="floor") + 1, 0),
        }


def cuts(count: int, chunk: int) -> list[int]:
    """Where a text is cut: the first token of every piece (counted from 0), and the number of tokens at the end.

    Args:
        count: Number of tokens.
        chunk: Tokens that a piece holds at most.

    Example:
        >>> cuts(10, 4)
        [0, 3, 6, 10]
    """
    pieces = -(-count // chunk)
    return [piece * count // pieces for piece in range(pieces + 1)]


def _finite(hidden: Tensor) -> Tensor:
    """Which texts have hidden states; those that were not finite have been set to zero."""
    return hidden.flatten(1).any(dim=1)
