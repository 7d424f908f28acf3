"""ChunkedReBAPooling: backward attention within pieces of a text, at a cost that grows with its length alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from .attention import show
from .capture import Capture, CaptureSpec
from .layout import MOST_COPIES
from .options import Options, option
from .pooling import ReBAPooling, column, normalized
from .poolings import POOLINGS
from .repeat import RepeatTransformer
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
        source = model[0]
        if not isinstance(source, RepeatTransformer):
            raise ValueError(
                f"ChunkedReBAPooling repeats the pieces of a text, but the pipeline starts with "
                f"{type(source).__name__}. Put st_reba.RepeatTransformer with repeats=1 in front."
            )
        source.check_single()
        if source.repeats != 1:
            raise ValueError(
                f"chunk={self.chunk}: the text runs once and its pieces are repeated, but RepeatTransformer lays out "
                f"{source.repeats} copies. Give it repeats=1, or a template with one {{text}} slot."
            )
        if any(stage.name == "prepend" for stage in source.stages):
            raise ValueError("prepend: the pieces of a text (chunk) have no placeholder. Drop one of both.")
        show(source.model)
        source.watchers = []
        self._source = (source,)

    def check_room(self, surrounding: int) -> None:
        """Whether the run of a full piece fits the positions that a sequence may have.

        Args:
            surrounding: Special, template and prompt tokens around the content.

        Raises:
            ValueError: It does not.
        """
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
        counts = [count for _, count, _ in features["places"]]
        device = features["token_embeddings"].device
        token, number = torch.arange(max(counts), device=device), column(counts, device)
        last = self.pooling == "last"
        share = (token == number - 1).float() if last else (token < number) / number

        def wanted(row: int, start: int, stop: int) -> bool:
            return not last or stop == counts[row]

        capture = CaptureSpec(POOLINGS[self.pooling].rows)
        return self._combined(features, share, self._runs(features, wanted, capture, self.normalize_weights))

    def span_embeddings(self, features: dict[str, Any], spans: Tensor, *, normalize: bool = False) -> Tensor:
        """Vectors of words or spans, [B, d]; only the pieces that hold a part of them run.

        Args:
            features: What RepeatTransformer gave.
            spans: [B, n] bool, on the CPU: the content tokens of each row's span.
            normalize: Divide the weights of each e_i by their sum.
        """
        inside = spans.tolist()
        share = (spans / spans.sum(dim=1, keepdim=True)).to(features["token_embeddings"].device)

        def wanted(row: int, start: int, stop: int) -> bool:
            return any(inside[row][start:stop])

        runs = self._runs(features, wanted, CaptureSpec("copy"), normalize or self.normalize_weights)
        return self._combined(features, share, runs)

    def token_vectors(self, features: dict[str, Any]) -> Tensor:
        """The e_i of every token, [B, n, d]."""
        hidden: Tensor = features["token_embeddings"]
        batch, longest = len(hidden), max(count for _, count, _ in features["places"])
        result = hidden.new_zeros(batch * longest, hidden.shape[-1])
        for run in self._runs(features, lambda row, start, stop: True, CaptureSpec("copy"), self.normalize_weights):
            vectors = run.tokens(hidden) * run.valid[..., None]
            flat = (run.row[:, None] * longest + run.token).flatten()
            result = result.index_add(0, flat, vectors.to(hidden.dtype).flatten(0, 1))
        return result.view(batch, longest, -1)

    def _combined(self, features: dict[str, Any], share: Tensor, runs: Iterator[_Run]) -> Tensor:
        """Σ_i share_i · e_i of each text, [B, d], for a share [B, n] and the pieces that have one."""
        hidden: Tensor = features["token_embeddings"]
        precision = torch.promote_types(hidden.dtype, share.dtype)
        result = hidden.new_zeros(hidden.shape[0], hidden.shape[-1], dtype=precision)
        for run in runs:
            part = (share[run.row[:, None], run.token] * run.valid).to(run.later.dtype)
            # Autocast multiplies in a narrower type.
            result = result.index_add(0, run.row, run.combined(part, hidden).to(precision))
        return result.to(hidden.dtype)

    def _runs(
        self, features: dict[str, Any], wanted: Callable[[int, int, int], bool], capture: CaptureSpec, normalize: bool
    ) -> Iterator[_Run]:
        """Run the pieces (of a row, from a token to another) that are wanted, a batch at a time, the longest first."""
        places: list[Place] = features["places"]
        surrounding = max(length - count for _, count, length in places)
        self.check_room(surrounding)
        pieces = [
            (row, start, stop - start)
            for row, (_, count, _) in enumerate(places)
            for start, stop in pairwise(cuts(count, self.chunk))
            if wanted(row, start, stop)
        ]
        pieces.sort(key=lambda piece: -piece[2])
        while pieces:
            rows = max(1, POSITIONS // (surrounding + self.repeats * pieces[0][2]))
            batch, pieces = pieces[:rows], pieces[rows:]
            yield self._run(features, batch, capture, normalize)

    def _run(
        self, features: dict[str, Any], pieces: list[tuple[int, int, int]], capture: CaptureSpec, normalize: bool
    ) -> _Run:
        device = features["input_ids"].device
        repeated = self._repeated(features, pieces)
        output = self.source(repeated, watch=[Capture(capture)])
        weights: Tensor = output["backward_attention"] * self._summed(output)[:, None]
        if normalize:
            weights = normalized(weights)
        row, start, size = (column.to(device, non_blocking=True) for column in torch.tensor(pieces).unbind(dim=1))
        first = torch.tensor([features["places"][row][0] for row, _, _ in pieces]).to(device, non_blocking=True)
        # The rows of A^new are those of the piece's tokens in copy 1, or that of the last one alone.
        offset = torch.arange(weights.shape[1], device=device).expand(len(pieces), -1)
        if capture.rows == "last":
            offset = size[:, None] - 1
        valid = offset < size[:, None]
        offset = torch.minimum(offset, size[:, None] - 1)
        here = (first[:, None] + offset)[..., None]
        token = start[:, None] + offset
        return _Run(
            row=row,
            token=token,
            valid=valid,
            place=first[:, None] + token,
            own=weights.gather(2, here).squeeze(2),
            later=weights.scatter(2, here, 0.0),
            hidden=output["token_embeddings"],
        )

    def _repeated(self, features: dict[str, Any], pieces: list[tuple[int, int, int]]) -> dict[str, Any]:
        """Pieces laid out as RepeatTransformer lays a text out: where each token stands in the text's own row."""
        sources, copies, places = [], [], []
        for row, start, size in pieces:
            first, count, length = features["places"][row]
            inside = [*range(first + start, first + start + size)]
            after = [*range(first + count, length)]
            sources.append([*range(first), *inside * self.repeats, *after])
            numbered = [copy for copy in range(1, self.repeats + 1) for _ in inside]
            copies.append([0] * first + numbered + [0] * len(after))
            places.append((first, size, len(sources[-1])))
        longest = max(length for _, _, length in places)
        # Padding is masked, so any of the text's own ids will do.
        index = torch.tensor([each + [each[0]] * (longest - len(each)) for each in sources])
        copy_ids = torch.tensor([each + [0] * (longest - len(each)) for each in copies])
        real = torch.arange(longest) < torch.tensor([[length] for _, _, length in places])
        rows = torch.tensor([[row] for row, _, _ in pieces])
        ids: Tensor = features["input_ids"]
        moved = {"index": index, "rows": rows, "copy_ids": copy_ids, "attention_mask": real.long()}
        moved = {name: tensor.to(ids.device, non_blocking=True) for name, tensor in moved.items()}
        repeated: dict[str, Any] = {"input_ids": ids[moved.pop("rows"), moved.pop("index")], **moved}
        return {**repeated, "places": places}


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
