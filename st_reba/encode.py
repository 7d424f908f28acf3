"""Encode texts by token budget, as arrays and into a NumPy file on disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from tqdm.auto import tqdm

from .batches import DEFAULT_BATCH_TOKENS, check_sizes, position_counts, sized_batches, token_batches
from .files import whole_file

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

Task = Literal["query", "document"]

# Where encode_query and encode_document look for their prompt.
PROMPT_NAMES = {"query": ("query",), "document": ("document", "passage", "corpus")}
# Texts a forward pass where several processes share them out: sentence-transformers' own default.
_SHARED_BATCH_SIZE = 32


def encode_stream(
    model: SentenceTransformer,
    texts: Iterable[str],
    *,
    task: Task | None = None,
    batch_size: int | None = None,
    batch_tokens: int | None = None,
    chunk_size: int = 1024,
    show_progress_bar: bool | None = None,
    **kwargs: Any,
) -> Iterator[tuple[list[str], NDArray[np.float32]]]:
    """Encode texts a chunk at a time, in order.

    Args:
        model: Any SentenceTransformer.
        texts: The texts; a generator is read once.
        task: ``"query"`` or ``"document"``: encode_query or encode_document; None: encode.
        batch_size: Texts a forward pass. Excludes ``batch_tokens``.
        batch_tokens: Positions a forward pass: of all copies, templates, special tokens, and padding, which is at most
            5 % of them or 64. None: ``DEFAULT_BATCH_TOKENS``, unless ``batch_size`` is given.
        chunk_size: Texts that are sorted by length and encoded together.
        show_progress_bar: Show one; None: on a terminal.
        **kwargs: Passed on to the model's method, as ``prompt``.

    Yields:
        The texts of a chunk and their vectors, [texts, d] float32.

    Raises:
        ValueError: As :func:`encode_texts`, or another option that is not allowed.

    Example:
        >>> import st_reba
        >>> for texts, vectors in encode_stream(st_reba.build("mini"), ["你好", "Hello", "再见"], chunk_size=2):
        ...     print(texts, vectors.shape)
        ['你好', 'Hello'] (2, 192)
        ['再见'] (1, 192)
    """
    if isinstance(texts, str):
        raise TypeError("texts is one str; give a list or another iterable of them")
    if task not in (None, "query", "document"):
        raise ValueError(f"task={task!r} is not known: choose 'query' or 'document', or None.")
    if chunk_size < 1:
        raise ValueError(f"chunk_size={chunk_size!r} must be a whole number from 1 on.")
    options: dict[str, Any] = {**kwargs, "task": task, "batch_size": batch_size, "batch_tokens": batch_tokens}
    stream = iter(texts)
    total = len(texts) if isinstance(texts, list) else None
    disable = None if show_progress_bar is None else not show_progress_bar
    with tqdm(total=total, desc="Encoding", unit=" texts", disable=disable) as bar:
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
    **kwargs: Any,
) -> NDArray[np.float32]:
    """Encode one chunk of texts, those of like length together.

    Args:
        model: Any SentenceTransformer; what is not named here is as for :func:`encode_stream`.
        texts: One text or more.
        progress: Called with the number of texts that have just been encoded.

    Returns:
        [texts, d] float32, in the order of the texts.

    Raises:
        ValueError: Both sizes are given, several processes with ``batch_tokens``, or ``output_value``.

    Example:
        >>> import st_reba
        >>> encode_texts(st_reba.build("mini"), ["你好", "", "Hello"], batch_tokens=512).shape
        (3, 192)
    """
    check_sizes(batch_size, batch_tokens)
    done = progress or (lambda count: None)
    if kwargs.get("output_value", "sentence_embedding") != "sentence_embedding":
        raise ValueError(
            f"output_value={kwargs['output_value']!r}: one vector a text is all that fits an array. Call the model's "
            "encode for others."
        )
    if kwargs.get("pool") is not None or isinstance(kwargs.get("device"), list):
        # One call a batch would give the processes nothing to share.
        if batch_tokens is not None:
            raise ValueError(
                f"batch_tokens={batch_tokens} does not go with several processes (pool=…, or a list as device=…), "
                "which share out batches of a fixed number of texts. Give batch_size."
            )
        batch_size = batch_size or _SHARED_BATCH_SIZE
    if batch_size is not None:
        vectors = _encoded(model, texts, task, batch_size, kwargs)
        done(len(texts))
        return vectors
    # These precisions cut up the range of values that they are shown: batches would each get a scale of their own.
    ranged = kwargs["precision"] if kwargs.get("precision") in ("int8", "uint8") else None
    if ranged is not None:
        kwargs["precision"] = "float32"
    batches, _ = planned_batches(model, texts, task=task, batch_tokens=batch_tokens, **kwargs)
    rows: list[NDArray[np.float32]] = []
    for batch in batches:
        rows.append(encode_batch(model, [texts[index] for index in batch], task=task, **kwargs))
        done(len(batch))
    vectors = in_order(rows, batches)
    if ranged is None:
        return vectors
    from sentence_transformers import quantize_embeddings

    return _float32(quantize_embeddings(vectors, precision=ranged))


def planned_batches(
    model: SentenceTransformer,
    texts: Sequence[str],
    *,
    task: Task | None = None,
    batch_size: int | None = None,
    batch_tokens: int | None = None,
    **kwargs: Any,
) -> tuple[list[list[int]], list[int] | None]:
    """Which texts run together, the longest first, and how many positions each takes; for :func:`encode_texts`.

    Returns:
        Indices into the texts, a list a batch; and the positions, or None of a model that pads nothing.

    Example:
        >>> import st_reba
        >>> planned_batches(st_reba.build("mini", repeats=3), ["你好", "", "Hello"], batch_size=2)
        ([[2, 0], [1]], [7, 4, 10])
    """
    prompt, name = kwargs.get("prompt"), kwargs.get("prompt_name")
    if prompt is None:
        if name is not None and name not in model.prompts:
            raise ValueError(f"prompt_name={name!r} is not one of the model's prompts: {sorted(model.prompts)}.")
        prompt = saved_prompt(model, task) if name is None else model.prompts[name]
    # Anything else does not concern the input's layout, or is refused by the model's method.
    known = {*model.get_model_kwargs(), "processing_kwargs"}
    fields = {key: value for key, value in kwargs.items() if key in known}
    counts = position_counts(model, texts, prompt=prompt, task=task, **fields)
    if counts is None and batch_size is None:
        # Without padding, characters measure the work as well as any, and short texts may run with long ones.
        budget = DEFAULT_BATCH_TOKENS if batch_tokens is None else batch_tokens
        return token_batches([len(text) for text in texts], budget, max_padding=1), None
    return sized_batches(counts or [len(text) for text in texts], batch_size, batch_tokens), counts


def saved_prompt(model: SentenceTransformer, task: Task | None = None) -> str | None:
    """The prompt that a model by itself puts in front of a task's texts; None: it has none."""
    names = (*PROMPT_NAMES.get(task or "", ()), model.default_prompt_name)
    return next((model.prompts[name] for name in names if name in model.prompts), None)


def encode_batch(
    model: SentenceTransformer, texts: list[str], *, task: Task | None = None, **kwargs: Any
) -> NDArray[np.float32]:
    """Encode texts in one forward pass, [texts, d] float32; arguments as for :func:`encode_stream`."""
    # One call a batch costs a millisecond more than one for all, and every option stays the model's own.
    return _encoded(model, texts, task, len(texts), kwargs)


def in_order(rows: Sequence[NDArray[np.float32]], batches: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    """The vectors of batches, [texts, d], in the order of the texts, whose indices ``batches`` holds."""
    places = np.argsort([index for batch in batches for index in batch])
    vectors: NDArray[np.float32] = np.concatenate(rows)[places]
    return vectors


def encode_file(
    model: SentenceTransformer, texts: Iterable[str], out: str | os.PathLike[str], **kwargs: Any
) -> tuple[int, int]:
    """Encode texts and write their vectors as ``.npy``, whole or not at all; arguments as for :func:`encode_stream`.

    Returns:
        Number of texts and dimension.

    Raises:
        ValueError: There is no text, or nowhere to write.
    """
    target = Path(out)
    if not target.parent.is_dir():
        raise ValueError(f"--out {str(out)!r}: the folder {str(target.parent)!r} does not exist. Make it first.")
    if target.is_dir():
        raise ValueError(f"--out {str(out)!r} is a folder: name the file to write.")
    chunks = [vectors for _, vectors in encode_stream(model, texts, **kwargs)]
    if not chunks:
        raise ValueError("There are no texts to encode: the input is empty.")
    vectors = np.concatenate(chunks)
    with whole_file(target) as stream:
        np.save(stream, vectors)
    return vectors.shape[0], vectors.shape[1]


def _encoded(
    model: SentenceTransformer, texts: Sequence[str], task: Task | None, batch_size: int, kwargs: dict[str, Any]
) -> NDArray[np.float32]:
    method: Any = {"query": model.encode_query, "document": model.encode_document}.get(task or "", model.encode)
    return _float32(method(texts, batch_size=batch_size, show_progress_bar=False, **kwargs))


def _float32(vectors: Any) -> NDArray[np.float32]:
    """Vectors in any of the forms that the model's methods return."""
    import torch  # here, as much that needs no model imports this file

    if isinstance(vectors, list):
        vectors = torch.stack(vectors)
    if isinstance(vectors, torch.Tensor):
        vectors = vectors.float().cpu().numpy()
    return np.asarray(vectors, dtype=np.float32)
