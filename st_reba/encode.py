"""Encoding by token budget: batches of bounded size and padding, as arrays and into a NumPy file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from .files import whole_file

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

Task = Literal["query", "document"]

# Where encode_query and encode_document look for their prompt.
PROMPT_NAMES = {"query": ("query",), "document": ("document", "passage", "corpus")}
# Positions a forward pass: on a CPU more make nothing faster, only the activations larger (docs/results/speed.md).
DEFAULT_BATCH_TOKENS = 4096
# Share of a batch that may be padding, and positions of it that may be in any case: a further pass costs more.
MAX_PADDING, FREE_PADDING = 0.05, 64
# Texts that are tokenized together only to count their positions.
_COUNTED_TOGETHER = 64


def encode_stream(
    model: SentenceTransformer,
    texts: Iterable[str],
    *,
    chunk_size: int = 1024,
    show_progress_bar: bool | None = None,
    **options: Any,
) -> Iterator[tuple[list[str], NDArray[np.float32]]]:
    """Encode texts a chunk at a time, in order.

    Args:
        model: Any SentenceTransformer.
        texts: The texts; a generator is read once.
        chunk_size: Texts that are sorted by length and encoded together.
        show_progress_bar: Show one; None: on a terminal.
        **options: As for :func:`encode_texts`.

    Yields:
        The texts of a chunk and their vectors, [texts, d] float32.

    Example:
        >>> import st_reba
        >>> for texts, vectors in encode_stream(st_reba.build("mini"), ["你好", "Hello", "再见"], chunk_size=2):
        ...     print(texts, vectors.shape)
        ['你好', 'Hello'] (2, 192)
        ['再见'] (1, 192)
    """
    from tqdm.auto import tqdm

    if isinstance(texts, str):
        raise TypeError("texts is one str; give a list or another iterable of them")
    if chunk_size < 1:
        raise ValueError(f"chunk_size={chunk_size!r} must be a whole number from 1 on.")
    stream, total = iter(texts), len(texts) if isinstance(texts, list) else None
    disable = None if show_progress_bar is None else not show_progress_bar
    with tqdm(total=total, desc="Texts", unit=" texts", disable=disable) as bar:
        while chunk := list(islice(stream, chunk_size)):
            yield chunk, encode_texts(model, chunk, progress=bar.update, **options)


def encode_texts(
    model: SentenceTransformer,
    texts: Sequence[str],
    *,
    task: Task | None = None,
    batch_size: int | None = None,
    batch_tokens: int | None = None,
    progress: Callable[[int], object] | None = None,
    **options: Any,
) -> NDArray[np.float32]:
    """Encode texts, those of similar length together.

    Args:
        model: Any SentenceTransformer.
        texts: One text or more.
        task: ``"query"`` or ``"document"``: encode_query or encode_document; None: encode.
        batch_size: Texts a forward pass. Excludes ``batch_tokens``.
        batch_tokens: Positions a forward pass: of all copies, templates, special tokens, and padding, which is at most
            5 % of them or 64. None: 4,096, unless ``batch_size`` is given.
        progress: Called with the number of texts that have just been encoded.
        **options: Passed on to the model's method, as ``prompt``.

    Returns:
        [texts, d] float32, in the order of the texts.

    Raises:
        ValueError: Both sizes are given, or an option that gives no array of floats a text.

    Example:
        >>> import st_reba
        >>> encode_texts(st_reba.build("mini"), ["你好", "", "Hello"], batch_tokens=512).shape
        (3, 192)
    """
    if task not in (None, "query", "document"):
        raise ValueError(f"task={task!r} is not known: choose 'query' or 'document', or None.")
    for name, allowed in (("output_value", "sentence_embedding"), ("precision", "float32")):
        if options.get(name, allowed) != allowed:
            raise ValueError(f"{name}={options[name]!r}: vectors of float32 are given here. Call model.encode.")
    if options.get("pool") is not None or isinstance(options.get("device"), list):
        # One call a batch would give the processes nothing to share.
        raise ValueError("Several processes share out batches of a fixed number of texts. Call model.encode.")
    sizes = {"batch_size": batch_size, "batch_tokens": batch_tokens}
    batches, _ = planned_batches(model, texts, task=task, **sizes, **options)
    rows: list[NDArray[np.float32]] = []
    for batch in batches:
        rows.append(encode_batch(model, [texts[index] for index in batch], task=task, **options))
        if progress is not None:
            progress(len(batch))
    return in_order(rows, batches)


def planned_batches(
    model: SentenceTransformer,
    texts: Sequence[str],
    *,
    task: Task | None = None,
    batch_size: int | None = None,
    batch_tokens: int | None = None,
    **options: Any,
) -> tuple[list[list[int]], list[int] | None]:
    """Plan batches of similar length, the longest first; arguments as for `encode_texts`.

    Returns:
        Indices into the texts, a list a batch; and the positions of each text, or None of a model that pads nothing
        (bags of words, sequences laid end to end).

    Example:
        >>> import st_reba
        >>> planned_batches(st_reba.build("mini", "reba", repeats=3), ["你好", "", "Hello"], batch_size=2)
        ([[2, 0], [1]], [7, 4, 10])
    """
    prompt, name = options.get("prompt"), options.get("prompt_name")
    if prompt is None:
        if name is not None and name not in model.prompts:
            raise ValueError(f"prompt_name={name!r} is not one of the model's prompts: {sorted(model.prompts)}.")
        prompt = saved_prompt(model, task) if name is None else model.prompts[name]
    # Other options do not concern the input's layout, or are refused by the model's method.
    fields = {key: options[key] for key in {*model.get_model_kwargs(), "processing_kwargs"} & set(options)}
    layout = {name: each for name, each in {"prompt": prompt, "task": task, **fields}.items() if each is not None}
    first: Any = model[0]
    ours = hasattr(first, "budget")
    counts = copied_positions(first, texts, layout) if ours else _padded_positions(model, texts, layout)
    return sized_batches(counts or [len(text) for text in texts], batch_size, batch_tokens), counts


def saved_prompt(model: SentenceTransformer, task: Task | None = None) -> str | None:
    """The prompt that a model puts in front of a task's texts; None: it has none."""
    names = (*PROMPT_NAMES.get(task or "", ()), model.default_prompt_name)
    return next((model.prompts[name] for name in names if name in model.prompts), None)


def encode_batch(
    model: SentenceTransformer, texts: list[str], *, task: Task | None = None, **options: Any
) -> NDArray[np.float32]:
    """Encode texts in one forward pass, [texts, d] float32; arguments as for :func:`encode_texts`."""
    method: Any = {"query": model.encode_query, "document": model.encode_document}.get(task or "", model.encode)
    given = {"batch_size": len(texts), "show_progress_bar": False, **options, "convert_to_tensor": True}
    vectors: NDArray[np.float32] = method(texts, **given).float().cpu().numpy()
    return vectors


def in_order(rows: Sequence[NDArray[np.float32]], batches: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    """Vectors of batches, [texts, d], in the order of the texts, whose indices ``batches`` holds."""
    places = np.argsort([index for batch in batches for index in batch])
    vectors: NDArray[np.float32] = np.concatenate(rows)[places]
    return vectors


def encode_file(
    model: SentenceTransformer, texts: Iterable[str], out: str | os.PathLike[str], **options: Any
) -> tuple[int, int]:
    """Encode texts and write their vectors as ``.npy``, whole or not at all; arguments as for :func:`encode_stream`.

    Returns:
        Number of texts and dimension.

    Raises:
        ValueError: There is no text, or nowhere to write.
    """
    target = Path(out)
    if target.is_dir() or not target.parent.is_dir():
        raise ValueError(f"out={str(out)!r} must be a file, in a folder that exists.")
    chunks = [vectors for _, vectors in encode_stream(model, texts, **options)]
    if not chunks:
        raise ValueError("There are no texts to encode.")
    vectors = np.concatenate(chunks)
    with whole_file(target) as stream:
        # Not np.save, which does not notice a full disk.
        described = {"descr": "<f4", "fortran_order": False, "shape": vectors.shape}
        np.lib.format.write_array_header_1_0(stream, described)
        stream.write(np.ascontiguousarray(vectors, "<f4").data)
    return vectors.shape[0], vectors.shape[1]


# Batches.


def token_batches(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Group texts of similar length into batches of bounded size and padding, the longest first.

    A budget alone would put the longest and the shortest of a few hundred texts together, at 15 to 25 % of padding.

    Args:
        lengths: Positions of each text.
        budget: Positions a batch, padding included. A text that is longer makes a batch of its own.

    Returns:
        Indices into ``lengths``, each once, a list a batch.

    Example:
        >>> token_batches([5, 300, 6, 410, 90], budget=1000)
        [[3], [1], [4], [2, 0]]
    """
    batches: list[list[int]] = []
    longest = real = 0
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        # A text without a position would fill no budget.
        length = max(1, lengths[index])
        padded = longest * (len(batches[-1]) + 1) if batches else budget + 1
        if padded <= budget and padded - real - length <= max(FREE_PADDING, MAX_PADDING * padded):
            batches[-1].append(index)
            real += length
        else:
            batches.append([index])
            longest = real = length
    return batches


def sized_batches(lengths: Sequence[int], batch_size: int | None, batch_tokens: int | None) -> list[list[int]]:
    """Group texts by texts a batch, or else by positions, the longest first; a ValueError for a wrong size, or two."""
    for name, number in (("batch_size", batch_size), ("batch_tokens", batch_tokens)):
        if number is not None and (type(number) is not int or number < 1):
            raise ValueError(f"{name}={number!r} must be a whole number from 1 on.")
    if batch_size is not None and batch_tokens is not None:
        raise ValueError(f"batch_size={batch_size} and batch_tokens={batch_tokens} exclude each other. Give one.")
    if batch_size is None:
        return token_batches(lengths, batch_tokens or DEFAULT_BATCH_TOKENS)
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def copied_positions(transformer: Any, texts: Sequence[str], layout: Mapping[str, Any]) -> list[int]:
    """Positions that each text takes: all copies as cut to the budget, template, prompt and special tokens.

    The rows of an ensemble of templates are padded to one length: the longest row's positions times the rows.

    Args:
        transformer: A RepeatTransformer.
        texts: The texts.
        layout: ``prompt``, ``task`` and the template's fields, as its ``preprocess`` takes them.
    """
    frames, budget = transformer.frames(**layout), transformer.budget(**layout)
    overhead, copies = max(each.overhead for each in frames), frames[0].copies
    pieces = (texts[start : start + _COUNTED_TOGETHER] for start in range(0, len(texts), _COUNTED_TOGETHER))
    # A text without a token is represented by one.
    counts = (max(1, len(ids)) for piece in pieces for ids in transformer.content(piece)["input_ids"])
    return [len(frames) * (overhead + copies * min(count, budget or count)) for count in counts]


def _padded_positions(model: SentenceTransformer, texts: Sequence[str], layout: Mapping[str, Any]) -> list[int] | None:
    counts = [0] * len(texts)
    # By characters, so that one long text does not pad many short ones.
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
    for start in range(0, len(order), _COUNTED_TOGETHER):
        piece = order[start : start + _COUNTED_TOGETHER]
        mask: Any = model.preprocess([texts[index] for index in piece], **layout).get("attention_mask")
        if getattr(mask, "ndim", None) != 2 or len(mask) != len(piece):
            return None
        for index, count in zip(piece, mask.sum(dim=1).tolist(), strict=True):
            counts[index] = int(count)
    return counts
