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

from .processor import hint_at_bfloat16

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from .methods import Options
    from .modules.layout import RowLayout
    from .modules.transformer import RepeatTransformer

logger = logging.getLogger(__name__)
# What a text is encoded as; the argument is called task, as it is in sentence-transformers.
Role = Literal["query", "document"]

# Where encode_query and encode_document look for their prompt.
PROMPT_NAMES = {"query": ("query",), "document": ("document", "passage", "corpus")}
# Positions per forward pass: on a CPU, more take memory and save no time (docs/results/speed.md).
DEFAULT_BATCH_TOKENS = 4096
# Padding that a batch may hold: this share of it, or this many positions if that is more.
MAX_PADDING = 0.05
FREE_PADDING = 64
_TEXTS_AT_A_TIME = 64  # tokenized together to be counted


def encode_texts(
    model: SentenceTransformer,
    texts: Sequence[str],
    *,
    task: Role | None = None,
    batch_tokens: int | None = None,
    progress: Callable[[int], object] | None = None,
    on_truncated: Callable[[list[int]], object] | None = None,
    **options: Any,
) -> NDArray[np.float32]:
    """Encode texts, those of similar length together.

    Args:
        model: Any SentenceTransformer.
        texts: Texts, as a list, an array, a pandas Series (in its order, whatever its index) or any
            iterable.
        task: ``"query"`` or ``"document"``: encode_query or encode_document; None: encode.
        batch_tokens: Positions per forward pass, counting all copies, templates, special tokens
            and padding (at most 5 % of them, or 64); None: 4,096. A prefix that all rows share is
            computed once, and counts as a quarter of its length.
        progress: Called with the number of texts that have just been encoded.
        on_truncated: Called at the end with the indices of texts longer than the model reads, if
            there are any; None: a warning says how many.
        **options: Passed on to the model's method, such as ``prompt``.

    Returns:
        [texts, d] float32, in the order of the texts.

    Raises:
        ValueError: An option is not known, or does not go with such batches.

    Example:
        >>> import st_reba
        >>> encode_texts(st_reba.build("mini"), ["你好", "", "Hello"], batch_tokens=512).shape
        (3, 192)
    """
    texts = list_of_texts(texts)
    _check_options(task, options)
    if not texts:
        width = options.get("truncate_dim") or model.get_embedding_dimension() or 0
        return np.zeros((0, width), dtype=np.float32)
    lengths = measure_lengths(model, texts, task=task, is_batched=True, **options)
    batches = token_batches(lengths.positions, batch_tokens)
    hint_at_bfloat16(model, sum(lengths.positions))
    encode_batch: Any = getattr(model, f"encode_{task}") if task else model.encode
    options = {"show_progress_bar": False, **options, "convert_to_tensor": True}
    encoded_batches: list[NDArray[np.float32]] = []
    for batch in batches:
        batch_options = {"batch_size": len(batch), **options}
        with naming_pipeline(model):
            vectors = encode_batch([texts[index] for index in batch], **batch_options)
        encoded_batches.append(vectors.float().cpu().numpy())
        if progress is not None:
            progress(len(batch))
    if lengths.truncated:
        if on_truncated is None:
            logger.warning("%s", describe_truncation(len(lengths.truncated), len(texts)))
        else:
            on_truncated(lengths.truncated)
    order = np.argsort(np.concatenate(batches))
    vectors_in_order: NDArray[np.float32] = np.concatenate(encoded_batches)[order]
    return vectors_in_order


def _check_options(task: Role | None, options: Options) -> None:
    if task not in (None, "query", "document"):
        raise ValueError(f"task={task!r} is not known: choose 'query' or 'document', or None.")
    for name in ("output_value", "pool", "precision"):
        if name in options:
            raise ValueError(
                f"{name}= does not work with batches by number of positions. Call model.encode."
            )


@contextmanager
def naming_pipeline(model: SentenceTransformer) -> Iterator[None]:
    """Inside the ``with`` block, errors of modules that do not fit together name the pipeline."""
    try:
        yield
    except (AttributeError, IndexError, KeyError) as error:
        raise ValueError(describe_pipeline_fault(model, error)) from error


def describe_pipeline_fault(model: SentenceTransformer, error: Exception) -> str:
    """Which modules fail at a text, and how."""
    module_names = ", ".join(type(module).__name__ for module in model.children())
    problem = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return f"A pipeline of {module_names} does not encode a text ({problem})."


def list_of_texts(texts: Iterable[str]) -> list[str]:
    """The texts as a list: a pandas Series would be indexed by its labels."""
    type_name = type(texts).__name__
    if isinstance(texts, str):
        raise ValueError(f"texts={texts!r:.80} is one text. Give a list.")
    if isinstance(texts, (Mapping, set, frozenset)):
        raise TypeError(f"texts is a {type_name}, whose values have no order. Give a list.")
    # Iterating over a table may give the names of its columns.
    if hasattr(texts, "columns") or hasattr(texts, "column_names"):
        raise TypeError(f"texts is a {type_name}, a table. Give one of its columns.")
    if not isinstance(texts, Iterable) or getattr(texts, "ndim", 1) != 1:
        raise TypeError(f"texts is a {type_name}. Give a list of texts.")
    text_list = list(python_values(texts))
    for index, text in enumerate(text_list):
        if not isinstance(text, str):
            type_name = type(text).__name__
            raise TypeError(f"texts[{index}]={text!r:.80} is a {type_name}. Give strings.")
    return text_list


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
    """Positions of each text in a forward pass, and indices of texts longer than a model reads."""

    positions: list[int]
    truncated: list[int] = field(default_factory=list)


def describe_truncation(truncated: int, total: int, unit: str = "texts") -> str:
    """How many texts are longer than the model reads, with a remedy; ``unit`` is what they are called.

    Example:
        >>> describe_truncation(1, 30)
        '1 of 30 texts is longer than the model reads: its end is in no vector; cut long texts into passages'
    """
    is_longer, ends_are = "are longer", "their ends are"
    if truncated == 1:
        is_longer, ends_are = "is longer", "its end is"
    return (
        f"{truncated:,} of {total:,} {unit} {is_longer} than the model reads: {ends_are} in no vector; "
        f"cut long {unit} into passages"
    )


@contextmanager
def unreported_cuts(model: SentenceTransformer) -> Iterator[None]:
    """Inside the ``with`` block, cut texts are not reported, because they are not the user's."""
    transformer: Any = model[0]
    was_reported = getattr(transformer, "has_reported_cut", False)
    transformer.has_reported_cut = True
    try:
        yield
    finally:
        transformer.has_reported_cut = was_reported


def measure_lengths(
    model: SentenceTransformer,
    texts: Sequence[str],
    task: Role | None = None,
    *,
    is_batched: bool = False,
    **options: Any,
) -> TextLengths:
    """Tokenize texts once, to count each one's positions and find those that are too long.

    Args:
        model: Any SentenceTransformer. Without a tokenizer of transformers, characters are counted.
        texts: The texts.
        task: As for `encode_texts`.
        is_batched: Count what a text adds to a batch of bounded memory, whose rows may share a
            prefix; False: count the positions of its rows, without padding.
        **options: As for `encode_texts`.

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini", "echo", max_seq_length=32)
        >>> measure_lengths(model, ["short", "long " * 40]).truncated
        [1]
    """
    prompt = _prompt_of_call(model, task, options)
    transformer: Any = model[0]
    if hasattr(transformer, "budget"):
        input_options = _input_options(model, options) | {"prompt": prompt, "task": task}
        input_options = {name: value for name, value in input_options.items() if value is not None}
        return input_lengths(transformer, texts, input_options, is_batched=is_batched)
    from transformers import PreTrainedTokenizerBase

    tokenizer = getattr(model, "tokenizer", None)
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        return TextLengths(list(map(len, texts)))
    if not texts:
        return TextLengths([])
    prompted_texts = [(prompt or "") + text for text in texts]
    token_ids = tokenizer(prompted_texts, truncation=False, verbose=False)["input_ids"]
    token_counts = list(map(len, token_ids))
    return _cut_lengths(token_counts, model.max_seq_length or tokenizer.model_max_length)


def _prompt_of_call(model: SentenceTransformer, task: Role | None, options: Options) -> str | None:
    """The prompt that a call of ``encode`` puts in front of its texts."""
    prompt: str | None = options.get("prompt")
    if prompt is not None:
        return prompt
    prompt_name = options.get("prompt_name")
    if prompt_name is not None:
        return model.prompts.get(prompt_name)
    return saved_prompt(model, task)


def _input_options(model: SentenceTransformer, options: Options) -> dict[str, Any]:
    """The options that change the input; others do not affect it, or the model refuses them."""
    names = {*model.get_model_kwargs(), "processing_kwargs"}
    return {name: value for name, value in options.items() if name in names}


def transformer_of(model: SentenceTransformer) -> RepeatTransformer:
    """The first module of a model of this package: it makes rows of a text, and runs them.

    Args:
        model: A model from :func:`st_reba.build`, or one loaded.

    Raises:
        ValueError: The model starts with another module.

    Example:
        >>> import st_reba
        >>> transformer_of(st_reba.build("mini", "echo")).copies
        2
    """
    from .modules.transformer import RepeatTransformer  # here: this file is read without torch

    if isinstance(model, str):
        raise TypeError(
            f"model={model!r} is a name. Give a model, from st_reba.build or st_reba.load."
        )
    transformer = model[0]
    if not isinstance(transformer, RepeatTransformer):
        raise ValueError(
            f"The model starts with {type(transformer).__name__}. Build it with st_reba.build(…, pooling=…)."
        )
    return transformer


def saved_prompt(model: SentenceTransformer, task: str | None = None) -> str | None:
    """The prompt that a model puts in front of a task's texts; None: it has none."""
    name = prompt_name_of(model, task)
    return None if name is None else model.prompts[name]


def prompt_name_of(model: SentenceTransformer, task: str | None) -> str | None:
    """The name of the prompt that a model puts in front of a task's texts; None: it has none."""
    for name in (*PROMPT_NAMES.get(task or "", ()), model.default_prompt_name):
        if name in model.prompts:
            return name
    return None


def token_batches(lengths: Sequence[int], budget: int | None) -> list[list[int]]:
    """Group texts of similar length into batches of bounded size and padding, the longest first.

    Args:
        lengths: Positions of each text.
        budget: Positions per batch, padding included; None: 4,096. A text that is longer makes a
            batch of its own.

    Returns:
        Indices into ``lengths``, each once, one list per batch.

    Example:
        >>> token_batches([5, 300, 6, 410, 90], budget=1000)
        [[3], [1], [4], [2, 0]]
    """
    budget = DEFAULT_BATCH_TOKENS if budget is None else budget
    if type(budget) is not int or budget < 1:
        raise ValueError(f"batch_tokens={budget!r} must be a whole number of at least 1.")
    batches: list[list[int]] = []
    batch_length = 0  # of its longest text
    text_positions = 0  # without padding
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        length = max(1, lengths[index])  # texts of length 0 would never fill the budget
        if batches:
            padded_positions = batch_length * (len(batches[-1]) + 1)
            padding = padded_positions - text_positions - length
            allowed_padding = max(FREE_PADDING, MAX_PADDING * padded_positions)
            if padded_positions <= budget and padding <= allowed_padding:
                batches[-1].append(index)
                text_positions += length
                continue
        batches.append([index])
        batch_length = text_positions = length
    return batches


def computed_positions(
    transformer: Any,
    texts: Sequence[str],
    input_options: Options,
) -> list[int]:
    """Positions that a RepeatTransformer computes for each text: a measure of work and progress.

    If rows share a prefix, it is not counted, as a batch computes it once for all texts. A text is
    counted once, however many questions follow it. Padding is not counted, nor is the extra work in
    batches that share too little, whose rows run whole (``STAGE_COST``).

    Args:
        transformer: The module, ``model[0]``.
        texts: The texts.
        input_options: ``prompt``, ``task`` and fields, as its ``preprocess`` takes them.
    """
    layouts = transformer.row_layouts(**input_options)
    count = shared_positions(layouts) if transformer.can_share() else whole_positions(layouts)
    return _lengths_of_texts(transformer, texts, input_options, count).positions


def input_lengths(
    transformer: RepeatTransformer,
    texts: Sequence[str],
    input_options: Options,
    *,
    is_batched: bool,
) -> TextLengths:
    """Positions that each text adds to a batch of bounded memory, or those of its rows.

    The latter, without padding, if ``is_batched`` is False. Rows of a batch that share a prefix
    hold its states without computing them. Other arguments are those of `computed_positions`.
    """
    layouts = transformer.row_layouts(**input_options)
    if is_batched and transformer.can_share():
        count = shared_positions(layouts) + held_positions(layouts)
    else:
        count = whole_positions(layouts)
    return _lengths_of_texts(transformer, texts, input_options, count)


@dataclass(frozen=True)
class PositionCount:
    """Positions of a text of n tokens: ``fixed + per_token * n``."""

    fixed: int
    per_token: int

    def __add__(self, other: PositionCount) -> PositionCount:
        return PositionCount(self.fixed + other.fixed, self.per_token + other.per_token)


def whole_positions(layouts: Sequence[RowLayout]) -> PositionCount:
    """Positions of a text's rows, which are padded to the longest."""
    overhead = max(layout.overhead for layout in layouts)
    row_count = len(layouts)
    return PositionCount(row_count * overhead, row_count * layouts[0].copies)


def shared_positions(layouts: Sequence[RowLayout]) -> PositionCount:
    """Positions computed for a text: what follows the prefixes, with the content once per prefix.

    Example:
        >>> from st_reba.modules.layout import RowLayout
        >>> questions = [RowLayout(((1, 2), None, (3,))), RowLayout(((1, 2), None, (4, 5)))]
        >>> shared_positions(questions), whole_positions(questions)
        (PositionCount(fixed=3, per_token=1), PositionCount(fixed=8, per_token=2))
    """
    fixed_positions = 0
    later_copies = 0
    for layout in layouts:
        fixed_positions += layout.overhead - len(prefix_of(layout))
        later_copies += layout.copies - 1
    return PositionCount(fixed_positions, later_copies + len(_rows_by_beginning(layouts)))


def held_positions(layouts: Sequence[RowLayout]) -> PositionCount:
    """Positions that a text holds in memory without computing them.

    A quarter of each prefix; and, for a text that several rows share, its prefix and content.
    """
    prefix_positions = sum(len(prefix_of(layout)) for layout in layouts)
    fixed_positions = prefix_positions // 4
    held_texts = 0
    for (prefix, _), row_count in _rows_by_beginning(layouts).items():
        if row_count > 1:
            fixed_positions += len(prefix)
            held_texts += 1
    return PositionCount(fixed_positions, held_texts)


def prefix_of(layout: RowLayout) -> tuple[int, ...]:
    """Token ids before the first copy."""
    token_ids: list[int] = []
    for segment in layout.segments:
        if segment is None:
            break
        token_ids += segment
    return tuple(token_ids)


def _rows_by_beginning(layouts: Sequence[RowLayout]) -> Counter[tuple[tuple[int, ...], bool]]:
    """Count a text's rows by prefix, and by whether its words are reversed."""
    return Counter((prefix_of(layout), layout.is_reversed) for layout in layouts)


def _lengths_of_texts(
    transformer: RepeatTransformer,
    texts: Sequence[str],
    input_options: Options,
    count: PositionCount,
) -> TextLengths:
    token_counts: list[int] = []
    for start in range(0, len(texts), _TEXTS_AT_A_TIME):
        content = transformer.tokenize_content(texts[start : start + _TEXTS_AT_A_TIME])
        token_counts += [len(token_ids) or 1 for token_ids in content["input_ids"]]
    lengths = _cut_lengths(token_counts, transformer.budget(**input_options))
    lengths.positions = [count.fixed + count.per_token * length for length in lengths.positions]
    return lengths


def _cut_lengths(token_counts: Sequence[int], limit: float | None) -> TextLengths:
    """Lengths of texts, cut to the ``limit`` tokens that a model reads; None: no limit."""
    lengths = TextLengths([])
    for index, token_count in enumerate(token_counts):
        if limit is not None and token_count > limit:
            lengths.truncated.append(index)
            token_count = int(limit)
        lengths.positions.append(token_count)
    return lengths
