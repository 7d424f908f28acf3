"""Vectors of words and spans inside their texts."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import batch_to_device
from torch import Tensor
from tqdm.auto import tqdm

from .batches import check_sizes, copied_positions, sized_batches
from .encode import saved_prompt
from .layers import InnerStates, Layers, layer_numbers
from .modules.chunked import ChunkedReBAPooling
from .modules.pooling import ReBAPooling
from .modules.repeat import RepeatTransformer
from .modules.stages import Bound
from .splitting import words_of as words_of

# A text and a word in it: its characters from start to end (not included), or the word itself.
Item = tuple[str, tuple[int, int] | str]
_Placed = tuple[str, tuple[int, int]]

# Texts that are tokenized together only to find their words.
_LOOKED_AT_TOGETHER = 64


def encode_words(
    model: SentenceTransformer,
    items: Sequence[Item],
    *,
    normalize: bool = False,
    batch_size: int | None = None,
    batch_tokens: int | None = None,
    prompt: str | None = None,
    task: str | None = None,
    show_progress_bar: bool = False,
    **fields: str,
) -> NDArray[np.float32]:
    """Embed words where they stand; a text runs once for all of its words.

    ReBA: the mean of the word's e_i (in the published variant the sum of their rows, over all columns, divided to
    1). Echo and classical: the mean of the hidden states at the word's tokens in the last copy.

    Args:
        model: A model from :func:`st_reba.build`, or one loaded.
        items: (text, word) each: a word that stands in its text once; or (text, (start, end)), in characters, end
            excluded. :func:`words_of` finds all words of a text.
        normalize: ReBA divides each sum of weights to 1. (Vectors are not scaled to length 1.)
        batch_size: Texts a forward pass. Excludes ``batch_tokens``.
        batch_tokens: Positions a forward pass, as for :func:`st_reba.encode.encode_stream`.
        prompt: As for ``encode``; None: the model's default prompt, if it has one.
        task: As for ``encode``: which of a model's two templates.
        show_progress_bar: Show one.
        **fields: Values of the template's fields, as for ``encode``.

    Returns:
        [number of items, d] float32.

    Raises:
        ValueError: An item whose word is not in its text, or there twice; whose span is empty, out of the text, on no
            token, or past the cut. Or the model makes several sequences of a text.

    Source:
        ReBA, section 3.3 (word embedding); Echo-k: position pos(k, i).

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini")
        >>> st_reba.encode_words(model, [("他在银行取钱", "银行"), ("他在银行取钱", (2, 4))]).shape
        (2, 192)
    """
    with tqdm(total=len(items), desc="Words", unit=" words", disable=not show_progress_bar) as bar:
        options: dict[str, Any] = {"batch_size": batch_size, "batch_tokens": batch_tokens, "normalize": normalize}
        options |= {"prompt": prompt, "task": task, "progress": lambda words, _: bar.update(words), **fields}
        vectors: NDArray[np.float32] = encode_word_layers(model, items, "last", **options)[0]
    return vectors


def encode_word_layers(
    model: SentenceTransformer,
    items: Sequence[Item],
    layers: Layers = "all",
    *,
    normalize: bool = False,
    batch_size: int | None = None,
    batch_tokens: int | None = None,
    prompt: str | None = None,
    task: str | None = None,
    progress: Callable[[int, int], object] | None = None,
    **fields: str,
) -> NDArray[np.float32]:
    """Embed words where they stand, by the hidden states of several layers, each batch run once for all of them.

    Each layer's vector is what :func:`encode_words` computes, with that layer's hidden states in place of the last
    ones. ReBA's weights are the same for all: maxima over all layers. What is not named here is as there.

    Args:
        layers: Numbers of layers: 0: the embeddings that enter the first layer; l: what layer l puts out; L, or
            ``"last"``: the last hidden states, which alone have passed the final norm. Negative ones count from the
            end: −1 is L. ``"all"``: 0 to L. Each is held until a batch is done.
        progress: Called with the number of words that have just been embedded, and of their texts' positions.

    Returns:
        [layers, items, d] float32.

    Raises:
        ValueError: As :func:`encode_words`; or there is no such layer, or this model's cannot be looked at.

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini", repeats=3)
        >>> encode_word_layers(model, [("他在银行取钱", "银行")], [0, 3, -1]).shape
        (3, 1, 192)
    """
    transformer = _repeating(model)
    numbers = layer_numbers(layers, transformer.depth)
    check_sizes(batch_size, batch_tokens)
    pooling = next((module for module in model if isinstance(module, ReBAPooling)), None)
    inner = None if numbers == [transformer.depth] else InnerStates(transformer, numbers)
    if inner is not None and isinstance(pooling, ChunkedReBAPooling):
        raise ValueError(
            f"layers={numbers}: chunk={pooling.chunk} runs each piece of a text by itself. Use layers='last', or build "
            "without chunk."
        )
    watch: list[Bound] = [] if inner is None else [inner]
    if pooling is not None and not isinstance(pooling, ChunkedReBAPooling):
        # A word needs the rows of all tokens; pieces run by themselves.
        watch.append(pooling.token_capture)
    prompt = saved_prompt(model) if prompt is None else prompt
    laid_out: dict[str, Any] = {"prompt": prompt, "task": task, **fields}
    budget = transformer.budget(**laid_out)
    placed = [_placed(index, item) for index, item in enumerate(items)]
    # A text runs once for all of its words.
    words: dict[str, list[int]] = {}
    for index, (text, _) in enumerate(placed):
        words.setdefault(text, []).append(index)
    texts = list(words)
    lengths = copied_positions(transformer, texts, **laid_out)
    vectors = np.zeros((len(numbers), len(items), transformer.get_embedding_dimension()), dtype=np.float32)
    model.eval()
    for batch in sized_batches(lengths, batch_size, batch_tokens):
        numbers_of = [words[texts[place]] for place in batch]
        chosen = {index: placed[index] for mine in numbers_of for index in mine}
        spans = dict(zip(chosen, token_spans(transformer, chosen, budget), strict=True))
        features = transformer.preprocess([texts[place] for place in batch], **laid_out)
        with torch.inference_mode():
            output = transformer(batch_to_device(features, model.device), watch=watch)
            for layer, each in enumerate([output] if inner is None else inner.outputs(output)):
                for turn, marked in _turns(numbers_of, spans):
                    if pooling is None:
                        embedded = _hidden_means(each, marked, transformer.repeats)
                    else:
                        embedded = pooling.span_embeddings(each, marked, normalize=normalize)
                    vectors[layer, list(turn.values())] = embedded[list(turn)].float().cpu().numpy()
        if progress is not None:
            progress(len(chosen), sum(lengths[place] for place in batch))
    return vectors


def unseen_words(
    model: SentenceTransformer,
    items: Sequence[Item],
    *,
    prompt: str | None = None,
    task: str | None = None,
    **fields: str,
) -> dict[int, Literal["on no token", "past the cut"]]:
    """The items that :func:`encode_words` would refuse, found without running the model; arguments as there.

    Returns:
        By an item's place: its word falls on no token, or lies wholly or in part past the cut.

    Raises:
        ValueError: An item is none.

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini", max_seq_length=7)
        >>> unseen_words(model, [("他在银行取钱", "他"), ("他在银行取钱", (5, 6))])
        {1: 'past the cut'}
    """
    transformer = _repeating(model)
    budget = transformer.budget(saved_prompt(model) if prompt is None else prompt, task, **fields)
    found: dict[int, Literal["on no token", "past the cut"]] = {}
    for start in range(0, len(items), _LOOKED_AT_TOGETHER):
        piece = [_placed(start + place, item) for place, item in enumerate(items[start : start + _LOOKED_AT_TOGETHER])]
        for index, (tokens, kept, _) in enumerate(_located(transformer, piece, budget), start):
            if not tokens:
                found[index] = "on no token"
            elif tokens[-1] >= kept:
                found[index] = "past the cut"
    return found


def _repeating(model: SentenceTransformer) -> RepeatTransformer:
    transformer = model[0]
    if not isinstance(transformer, RepeatTransformer):
        raise ValueError(
            f"encode_words needs a pipeline that starts with RepeatTransformer, not {type(transformer).__name__}: "
            "build it with st_reba.build, a sentence-transformers base with pooling=…."
        )
    transformer.check_single()
    return transformer


def _placed(index: int, item: Any) -> _Placed:
    """An item's text and its word's characters."""
    try:
        text, word = item
        start, end = (0, 0) if isinstance(word, str) else map(operator.index, word)
    except (TypeError, ValueError):
        text = None
    if not isinstance(text, str):
        raise ValueError(f"Item {index} is {item!r:.80}: give (text, word) or (text, (start, end)), in characters.")
    if isinstance(word, str):
        start = text.find(word)
        if not word or start < 0:
            raise ValueError(f"Item {index}: the word {word!r:.60} does not stand in its text {text!r:.60}.")
        if (again := text.find(word, start + 1)) >= 0:
            places = f"at {start} and again at {again}. Say which is meant, as ({start}, {start + len(word)})"
            raise ValueError(f"Item {index}: the word {word!r:.60} stands in its text {text!r:.60} {places}.")
        end = start + len(word)
    if not 0 <= start < end <= len(text):
        outside = f"is empty or outside its text of {len(text)} characters, {text!r:.60}"
        raise ValueError(f"Item {index}: the span ({start}, {end}) {outside}.")
    return text, (start, end)


def _located(
    transformer: RepeatTransformer, items: Sequence[_Placed], budget: int | None
) -> Iterator[tuple[list[int], int, int]]:
    """The content tokens that share a character with each item's word; how many fit a copy, and how many there are."""
    texts = list(dict.fromkeys(text for text, _ in items))
    content = transformer.content(texts, offsets=True)
    found = dict(zip(texts, zip(content["input_ids"], content["offset_mapping"], strict=True), strict=True))
    for text, (start, end) in items:
        ids, offsets = found[text]
        tokens = [token for token, (a, b) in enumerate(offsets) if a < end and b > start and b > a]
        yield tokens, len(ids) if budget is None else min(len(ids), budget), len(ids)


def token_spans(transformer: RepeatTransformer, items: dict[int, _Placed], budget: int | None) -> Tensor:
    """Which content tokens belong to each item's word: [B, n] bool."""
    located = list(_located(transformer, list(items.values()), budget))
    spans = torch.zeros(len(items), max([1, *(kept for _, kept, _ in located)]), dtype=torch.bool)
    for row, (index, (tokens, kept, count)) in enumerate(zip(items, located, strict=True)):
        text, (start, end) = items[index]
        word = f"Item {index}: the word {text[start:end]!r} at ({start}, {end})"
        if not tokens:
            raise ValueError(f"{word} falls on no token of the text {text!r:.60}.")
        if tokens[-1] >= kept:
            raise ValueError(
                f"{word} lies past the cut: it is at token {tokens[-1] + 1}, and {kept} of the text's {count} tokens "
                "fit a copy. Shorten the text, or raise model.max_seq_length."
            )
        spans[row, tokens] = True
    return spans


def _turns(words: Sequence[Sequence[int]], spans: dict[int, Tensor]) -> Iterator[tuple[dict[int, int], Tensor]]:
    """A word of each text at a time, by its row; and its tokens, [B, n], none where a text has no further word."""
    none = torch.zeros_like(next(iter(spans.values())))
    for number in range(max(map(len, words))):
        turn = {row: mine[number] for row, mine in enumerate(words) if number < len(mine)}
        yield turn, torch.stack([spans[turn[row]] if row in turn else none for row in range(len(words))])


def _hidden_means(features: dict[str, Any], spans: Tensor, copies: int) -> Tensor:
    """Mean hidden state at the word's tokens in the last copy, [B, d]."""
    hidden: Tensor = features["token_embeddings"]
    first = (features["copy_ids"] == copies).int().argmax(dim=1, keepdim=True)
    spans = spans.to(hidden.device)
    positions = (first + torch.arange(spans.shape[1], device=hidden.device)).clamp(max=hidden.shape[1] - 1)
    picked = torch.take_along_dim(hidden, positions[:, :, None], dim=1)
    total = (picked.to(torch.promote_types(hidden.dtype, torch.float32)) * spans[:, :, None]).sum(dim=1)
    return total / spans.sum(dim=1, keepdim=True)
