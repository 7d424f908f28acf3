"""Batches by token budget: how many positions each text takes, and which texts run together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from .modules.repeat import RepeatTransformer

# Positions a forward pass where the caller does not say: on two CPU cores, more make nothing faster, only the
# activations larger (docs/results/speed.md).
DEFAULT_BATCH_TOKENS = 4096
# The share of a batch that may be padding.
MAX_PADDING = 0.05
# Positions of padding that a batch may have in any case: a further pass costs more (docs/results/speed.md).
FREE_PADDING = 64
# Texts that are tokenized together only to count their positions: no more token ids than theirs exist at a time.
_COUNTED_TOGETHER = 64


def token_batches(lengths: Sequence[int], budget: int, *, max_padding: float = MAX_PADDING) -> list[list[int]]:
    """Group texts of like length into batches of bounded size and padding, the longest first.

    A budget alone would put the longest and the shortest of a few hundred short texts together, at 15 to 25 % of
    padding.

    Args:
        lengths: Positions of each text.
        budget: Positions a batch, padding included. A text that is longer makes a batch of its own.
        max_padding: The share of a batch's positions that may be padding, where that is more than ``FREE_PADDING``;
            1: the budget alone decides.

    Returns:
        Indices into ``lengths``, each once, a list a batch.

    Raises:
        ValueError: The budget is no whole number from 1 on.

    Example:
        >>> token_batches([5, 300, 6, 410, 90], budget=1000)
        [[3], [1], [4], [2, 0]]
        >>> token_batches([5, 300, 6, 410, 90], budget=1000, max_padding=1)
        [[3, 1], [4, 2, 0]]
    """
    check_sizes(None, budget)
    batches: list[list[int]] = []
    longest = real = 0
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        # A text without a position would fill no budget.
        length = max(1, lengths[index])
        padded = longest * (len(batches[-1]) + 1) if batches else budget + 1
        if padded <= budget and padded - real - length <= max(FREE_PADDING, max_padding * padded):
            batches[-1].append(index)
            real += length
        else:
            batches.append([index])
            longest = real = length
    return batches


def sized_batches(lengths: Sequence[int], batch_size: int | None, batch_tokens: int | None) -> list[list[int]]:
    """Group texts by texts a batch, or else by positions (None: ``DEFAULT_BATCH_TOKENS``), the longest first.

    Example:
        >>> sized_batches([5, 40, 6], batch_size=2, batch_tokens=None)
        [[1, 2], [0]]
    """
    check_sizes(batch_size, batch_tokens)
    if batch_size is None:
        return token_batches(lengths, DEFAULT_BATCH_TOKENS if batch_tokens is None else batch_tokens)
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def check_sizes(batch_size: int | None, batch_tokens: int | None) -> None:
    """Raise a ValueError for a size that is no whole number from 1 on, and for two at once."""
    for name, number in (("batch_size", batch_size), ("batch_tokens", batch_tokens)):
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
            raise ValueError(f"{name}={number!r} must be a whole number from 1 on.")
    if batch_size is not None and batch_tokens is not None:
        raise ValueError(
            f"batch_size={batch_size} and batch_tokens={batch_tokens} exclude each other: give batch_size for a fixed "
            "number of texts a forward pass, or batch_tokens for a bound on its positions."
        )


def copied_positions(
    transformer: RepeatTransformer,
    texts: Sequence[str],
    *,
    prompt: str | None = None,
    task: str | None = None,
    **fields: str,
) -> list[int]:
    """How many positions each text takes: all its copies as cut to the budget, the template and special tokens.

    In an ensemble of templates, whose rows are padded to one length, it is the longest row's positions times the rows.
    The arguments are those of the module's ``preprocess``.

    Example:
        >>> import st_reba
        >>> copied_positions(st_reba.build("mini", repeats=3)[0], ["你好", "", "Hello"])
        [7, 4, 10]
    """
    frames = transformer.frames(prompt, task, **fields)
    # All of an ensemble hold as many copies.
    rows, overhead, copies = len(frames), max(each.overhead for each in frames), frames[0].copies
    budget = transformer.budget(prompt, task, **fields)
    pieces = (texts[start : start + _COUNTED_TOGETHER] for start in range(0, len(texts), _COUNTED_TOGETHER))
    # A text without a token is represented by one, and a long one is cut.
    found = (max(1, len(ids)) for piece in pieces for ids in transformer.content(piece)["input_ids"])
    kept = (count if budget is None else min(count, budget) for count in found)
    return [rows * (overhead + copies * count) for count in kept]


def position_counts(
    model: SentenceTransformer,
    texts: Sequence[str],
    *,
    prompt: str | None = None,
    task: str | None = None,
    processing_kwargs: Any = None,
    **fields: Any,
) -> list[int] | None:
    """How many positions each text takes in a model: copies, template, prompt and special tokens included.

    Characters would not do: a Chinese character is about a token and an English word too. Each text is tokenized here
    and again when it is encoded, which is a hundredth of the time that even the smallest model takes to encode it.

    Args:
        model: Any SentenceTransformer.
        texts: The texts.
        prompt: The prompt itself, not its name.
        task, processing_kwargs, **fields: As the model's ``preprocess`` takes them.

    Returns:
        One number a text; None of a model that pads nothing: whose input has no ``attention_mask`` with a row for each
        text (bags of words, sequences laid end to end).

    Example:
        >>> import st_reba
        >>> position_counts(st_reba.build("mini", repeats=3), ["你好", "", "Hello"])
        [7, 4, 10]
    """
    from torch import Tensor  # here, as sizes are checked before anything is loaded

    from .modules.repeat import RepeatTransformer

    transformer = model[0]
    if isinstance(transformer, RepeatTransformer):
        return copied_positions(transformer, texts, prompt=prompt, task=task, **fields)
    given = {"task": task, "processing_kwargs": processing_kwargs}
    fields |= {name: value for name, value in given.items() if value is not None}
    counts = [0] * len(texts)
    # By characters, so that one long text does not pad many short ones.
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
    for start in range(0, len(order), _COUNTED_TOGETHER):
        piece = order[start : start + _COUNTED_TOGETHER]
        mask = model.preprocess([texts[index] for index in piece], prompt=prompt, **fields).get("attention_mask")
        if not isinstance(mask, Tensor) or mask.ndim != 2 or len(mask) != len(piece):
            return None
        for index, count in zip(piece, mask.sum(dim=1).tolist(), strict=True):
            counts[index] = int(count)
    return counts
