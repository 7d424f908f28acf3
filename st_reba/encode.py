"""Encoding by token budget: batches of bounded size and padding."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from .processor import bfloat16_hint

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from .modules.layout import RowLayout

logger = logging.getLogger(__name__)
Task = Literal["query", "document"]

# Where encode_query and encode_document look for their prompt.
PROMPT_NAMES = {"query": ("query",), "document": ("document", "passage", "corpus")}
# Positions a forward pass: on a CPU more make nothing faster, only the activations larger (docs/results/speed.md).
DEFAULT_BATCH_TOKENS = 4096
# Share of a batch that may be padding, and positions of it that may be in any case: a further pass costs more.
MAX_PADDING, FREE_PADDING = 0.05, 64


def encode_texts(
    model: SentenceTransformer,
    texts: Sequence[str],
    *,
    task: Task | None = None,
    batch_tokens: int | None = None,
    progress: Callable[[int], object] | None = None,
    on_truncated: Callable[[list[int]], object] | None = None,
    **options: Any,
) -> NDArray[np.float32]:
    """Encode texts, those of similar length together.

    Args:
        model: Any SentenceTransformer.
        texts: Texts, as a list, an array, a pandas Series (in its order, whatever its index) or any iterable.
        task: ``"query"`` or ``"document"``: encode_query or encode_document; None: encode.
        batch_tokens: Positions a forward pass: of all copies, templates, special tokens, and padding, which is at most
            5 % of them or 64; None: 4,096. A prefix that all rows share is computed once, and counts a quarter.
        progress: Called with the number of texts that have just been encoded.
        on_truncated: Called at the end with the indices of the texts that are longer than the model reads, if there
            are any; None: a warning tells how many they are.
        **options: Passed on to the model's method, as ``prompt``.

    Returns:
        [texts, d] float32, in the order of the texts.

    Raises:
        ValueError: An option is not known, or does not go with such batches.

    Example:
        >>> import st_reba
        >>> encode_texts(st_reba.build("mini"), ["你好", "", "Hello"], batch_tokens=512).shape
        (3, 192)
    """
    texts = _list_of_texts(texts)
    if task not in (None, "query", "document"):
        raise ValueError(f"task={task!r} is not known: choose 'query' or 'document', or None.")
    if refused := {"output_value", "precision", "pool"} & options.keys():
        raise ValueError(f"{min(refused)}= does not go with batches of so many positions. Call model.encode.")
    if not texts:
        return np.zeros((0, options.get("truncate_dim") or model.get_embedding_dimension() or 0), dtype=np.float32)
    lengths = measure_lengths(model, texts, task=task, is_batched=True, **options)
    batches = token_batches(lengths.positions, batch_tokens)
    bfloat16_hint.give(model, sum(lengths.positions))
    method: Any = {"query": model.encode_query, "document": model.encode_document}.get(task or "", model.encode)
    rows: list[NDArray[np.float32]] = []
    for batch in batches:
        given = {"batch_size": len(batch), "show_progress_bar": False, **options, "convert_to_tensor": True}
        with naming_pipeline(model):
            vectors = method([texts[index] for index in batch], **given)
        rows.append(vectors.float().cpu().numpy())
        if progress is not None:
            progress(len(batch))
    if lengths.truncated:
        if on_truncated is None:
            logger.warning("%s", describe_truncation(len(lengths.truncated), len(texts)))
        else:
            on_truncated(lengths.truncated)
    return in_order(rows, batches)


@contextmanager
def naming_pipeline(model: SentenceTransformer) -> Iterator[None]:
    """Inside the ``with`` block, modules that do not go together are named: others' check little before they run."""
    try:
        yield
    except (AttributeError, IndexError, KeyError) as error:
        raise ValueError(describe_pipeline_fault(model, error)) from error


def describe_pipeline_fault(model: SentenceTransformer, error: Exception) -> str:
    """Which modules fail at a text, and how."""
    modules = ", ".join(type(module).__name__ for module in model.children())
    problem = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return f"A pipeline of {modules} does not encode a text ({problem})."


def _list_of_texts(texts: Iterable[str]) -> list[str]:
    """The texts by position: to index a pandas Series would take its labels."""
    kind = type(texts).__name__
    if isinstance(texts, str):
        raise ValueError(f"texts={texts!r:.80} is one text. Give a list.")
    if isinstance(texts, (Mapping, set, frozenset)):
        raise TypeError(f"texts is a {kind}, whose values have no order. Give a list.")
    if hasattr(texts, "columns") or hasattr(texts, "column_names"):  # to iterate over it may give their names
        raise TypeError(f"texts is a {kind}, a table. Give one of its columns.")
    if not isinstance(texts, Iterable) or getattr(texts, "ndim", 1) != 1:
        raise TypeError(f"texts is a {kind}. Give a list of texts.")
    return list(python_values(texts))


def python_values(values: Iterable[Any]) -> Iterator[Any]:
    """What an iterable holds; Arrow's own scalars become values of Python.

    Example:
        >>> import pyarrow
        >>> list(python_values(pyarrow.array(["Cats sleep.", None])))
        ['Cats sleep.', None]
    """
    return (value.as_py() if hasattr(value, "as_py") else value for value in values)


@dataclass
class TextLengths:
    """Positions that each text takes in a forward pass, and the indices of those that are longer than a model reads."""

    positions: list[int]
    truncated: list[int] = field(default_factory=list)


def describe_truncation(truncated: int, total: int) -> str:
    """How many texts are longer than the model reads, with a remedy.

    Example:
        >>> describe_truncation(1, 30)
        '1 of 30 texts is longer than the model reads: its end is in no vector; cut long texts into passages'
    """
    if truncated == 1:
        subject = f"1 of {total:,} texts is longer than the model reads: its end is"
    else:
        subject = f"{truncated:,} of {total:,} texts are longer than the model reads: their ends are"
    return f"{subject} in no vector; cut long texts into passages"


@contextmanager
def unreported_cuts(model: SentenceTransformer) -> Iterator[None]:
    """Within the ``with`` block, the model does not tell of a text that it cuts: the texts are not the user's."""
    transformer: Any = model[0]
    was_reported = getattr(transformer, "has_reported_cut", False)
    transformer.has_reported_cut = True
    try:
        yield
    finally:
        transformer.has_reported_cut = was_reported


def positions(
    model: SentenceTransformer,
    texts: Sequence[str],
    task: Task | None = None,
    *,
    is_batched: bool = False,
    **options: Any,
) -> list[int]:
    """Positions of each text's rows, without padding; arguments as for `encode_texts`.

    With ``is_batched`` those that it counts for in a batch of bounded memory, whose rows may share a prefix.
    For a model without a tokenizer of transformers: the number of each text's characters.
    """
    return measure_lengths(model, texts, task, is_batched=is_batched, **options).positions


def measure_lengths(
    model: SentenceTransformer,
    texts: Sequence[str],
    task: Task | None = None,
    *,
    is_batched: bool = False,
    **options: Any,
) -> TextLengths:
    """Tokenize texts once, for the positions that they take and for which of them are too long; else as `positions`.

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini", "echo", max_seq_length=32)
        >>> measure_lengths(model, ["short", "long " * 40]).truncated
        [1]
    """
    prompt, name = options.get("prompt"), options.get("prompt_name")
    if prompt is None:
        prompt = saved_prompt(model, task) if name is None else model.prompts.get(name)
    # Other options do not concern the input's layout, or are refused by the model's method.
    fields = {key: options[key] for key in {*model.get_model_kwargs(), "processing_kwargs"} & set(options)}
    layout = {name: each for name, each in {"prompt": prompt, "task": task, **fields}.items() if each is not None}
    if hasattr(model[0], "budget"):
        return _batch_lengths(model[0], texts, layout, whole=not is_batched)
    from transformers import PreTrainedTokenizerBase

    tokenizer = getattr(model, "tokenizer", None)
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        return TextLengths([len(text) for text in texts])
    prompted = [(prompt or "") + text for text in texts]
    counts = [len(ids) for ids in tokenizer(prompted, truncation=False, verbose=False)["input_ids"]] if texts else []
    return _cut_lengths(counts, model.max_seq_length or tokenizer.model_max_length)


def saved_prompt(model: SentenceTransformer, task: Task | None = None) -> str | None:
    """The prompt that a model puts in front of a task's texts; None: it has none."""
    names = (*PROMPT_NAMES.get(task or "", ()), model.default_prompt_name)
    return next((model.prompts[name] for name in names if name in model.prompts), None)


def in_order(rows: Sequence[NDArray[np.float32]], batches: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    """Vectors of batches, [texts, d], in the order of the texts, whose indices ``batches`` holds."""
    return np.concatenate(rows)[np.argsort([index for batch in batches for index in batch])]


def token_batches(lengths: Sequence[int], budget: int | None = None) -> list[list[int]]:
    """Group texts of similar length into batches of bounded size and padding, the longest first.

    Args:
        lengths: Positions of each text.
        budget: Positions a batch, padding included; None: 4,096. A text that is longer makes a batch of its own.

    Returns:
        Indices into ``lengths``, each once, a list a batch.

    Example:
        >>> token_batches([5, 300, 6, 410, 90], budget=1000)
        [[3], [1], [4], [2, 0]]
    """
    budget = DEFAULT_BATCH_TOKENS if budget is None else budget
    if type(budget) is not int or budget < 1:
        raise ValueError(f"batch_tokens={budget!r} must be a whole number from 1 on.")
    batches: list[list[int]] = []
    longest = real = 0
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        length = max(1, lengths[index])  # a text without a position would fill no budget
        padded = longest * (len(batches[-1]) + 1) if batches else budget + 1
        if padded <= budget and padded - real - length <= max(FREE_PADDING, MAX_PADDING * padded):
            batches[-1].append(index)
            real += length
        else:
            batches.append([index])
            longest = real = length
    return batches


def computed_positions(transformer: Any, texts: Sequence[str], layout: Mapping[str, Any]) -> list[int]:
    """Positions that a RepeatTransformer computes for each text: what work, cost and progress count.

    Where rows share what they begin with, a prefix counts nothing, as a batch computes it once for all texts, and a
    text that several questions follow counts once. Padding is not counted, nor that rows run whole in batches of which
    so little is shared that a stage of its own would cost more (``STAGE_COST``).

    Args:
        transformer: The module.
        texts: The texts.
        layout: As its ``preprocess`` takes it.
    """
    frames = transformer.row_layouts(**layout)
    count = shared_positions(frames) if transformer.can_share() else whole_positions(frames)
    return _lengths_of_texts(transformer, texts, layout, count).positions


def batch_positions(
    transformer: Any, texts: Sequence[str], layout: Mapping[str, Any], *, whole: bool = False
) -> list[int]:
    """Positions that each text counts for in a batch of bounded memory; ``whole``: rows share nothing.

    Arguments are those of `computed_positions`. Where rows share a prefix, they hold its states without computing them.
    """
    return _batch_lengths(transformer, texts, layout, whole=whole).positions


def _batch_lengths(
    transformer: Any, texts: Sequence[str], layout: Mapping[str, Any], *, whole: bool = False
) -> TextLengths:
    frames = transformer.row_layouts(**layout)
    if whole or not transformer.can_share():
        count = whole_positions(frames)
    else:
        count = shared_positions(frames) + held_positions(frames)
    return _lengths_of_texts(transformer, texts, layout, count)


@dataclass(frozen=True)
class PositionCount:
    """Positions of a text of n tokens: ``fixed + per_token * n``."""

    fixed: int
    per_token: int

    def __add__(self, other: PositionCount) -> PositionCount:
        return PositionCount(self.fixed + other.fixed, self.per_token + other.per_token)


def whole_positions(frames: Sequence[RowLayout]) -> PositionCount:
    """Positions of a text's rows, which are padded to the longest."""
    overhead = max(frame.overhead for frame in frames)
    return PositionCount(len(frames) * overhead, len(frames) * frames[0].copies)


def shared_positions(frames: Sequence[RowLayout]) -> PositionCount:
    """Positions that are computed for a text: what stands behind the prefixes, and content once behind each.

    Example:
        >>> from st_reba.modules.layout import RowLayout
        >>> questions = [RowLayout(((1, 2), None, (3,))), RowLayout(((1, 2), None, (4, 5)))]
        >>> shared_positions(questions), whole_positions(questions)
        (PositionCount(fixed=3, per_token=1), PositionCount(fixed=8, per_token=2))
    """
    behind_prefix = sum(frame.overhead - len(prefix_of(frame)) for frame in frames)
    later_copies = sum(frame.copies - 1 for frame in frames)
    return PositionCount(behind_prefix, later_copies + len(_rows_by_beginning(frames)))


def held_positions(frames: Sequence[RowLayout]) -> PositionCount:
    """Positions whose memory a text takes without computing them: a quarter of a prefix, and texts that are kept."""
    prefixes = sum(len(prefix_of(frame)) for frame in frames)
    kept_texts = [prefix for (prefix, _), row_count in _rows_by_beginning(frames).items() if row_count > 1]
    kept_prefixes = sum(len(prefix) for prefix in kept_texts)
    return PositionCount(prefixes // 4 + kept_prefixes, len(kept_texts))


def prefix_of(frame: RowLayout) -> tuple[int, ...]:
    """Token ids before the first copy."""
    first_copy = frame.segments.index(None)
    return tuple(token for part in frame.segments[:first_copy] for token in part or ())


def _rows_by_beginning(frames: Sequence[RowLayout]) -> Counter[tuple[tuple[int, ...], bool]]:
    """How many rows of a text have each prefix and each order of its words."""
    return Counter((prefix_of(frame), frame.is_reversed) for frame in frames)


def _lengths_of_texts(
    transformer: Any, texts: Sequence[str], layout: Mapping[str, Any], count: PositionCount
) -> TextLengths:
    token_counts: list[int] = []
    for start in range(0, len(texts), 64):  # not all tokens are held at once
        token_ids = transformer.content(texts[start : start + 64])["input_ids"]
        token_counts += [len(ids) or 1 for ids in token_ids]
    lengths = _cut_lengths(token_counts, transformer.budget(**layout))
    lengths.positions = [count.fixed + count.per_token * length for length in lengths.positions]
    return lengths


def _cut_lengths(counts: Sequence[int], limit: float | None) -> TextLengths:
    """Lengths of texts of which a model reads so many tokens; None: all."""
    if limit is None:
        return TextLengths(list(counts))
    truncated = [index for index, count in enumerate(counts) if count > limit]
    return TextLengths([int(min(count, limit)) for count in counts], truncated)
