"""Vectors of words and spans inside their texts."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from torch import Tensor
from tqdm.auto import tqdm

from .batches import check_sizes, copied_positions, sized_batches
from .layers import InnerStates, Layers, layer_numbers
from .modules.chunked import ChunkedReBAPooling
from .modules.pooling import ReBAPooling
from .modules.repeat import RepeatTransformer

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
    """Embed words where they stand.

    ReBA: the mean of the word's e_i (in the published variant the sum of their rows, over all columns, divided to
    1). Echo and classical: the mean of the hidden states at the word's tokens in the last copy.

    Args:
        model: A model from :func:`st_reba.build`, or one loaded.
        items: (text, word) each: a word that stands in its text once; or (text, (start, end)), in characters, end
            excluded.
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
            token, or past the cut; the item is named. Or the model makes several sequences of a text.

    Source:
        ReBA, section 3.3 (word embedding); Echo-k: position pos(k, i).

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini")
        >>> st_reba.encode_words(model, [("他在银行取钱", "银行"), ("他在银行取钱", (2, 4))]).shape
        (2, 192)
    """
    with tqdm(total=len(items), desc="Words", unit=" texts", disable=not show_progress_bar) as bar:
        sizes = (batch_size, batch_tokens)
        vectors = _encoded(model, items, None, normalize, sizes, bar.update, prompt=prompt, task=task, **fields)
    last: NDArray[np.float32] = vectors[0]
    return last


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
    progress: Callable[[int], object] | None = None,
    **fields: str,
) -> NDArray[np.float32]:
    """Embed words where they stand, by the hidden states of several layers, each batch run once for all of them.

    Each layer's vector is what :func:`encode_words` computes, with that layer's hidden states in place of the last
    ones. ReBA's weights are the same for all: maxima over all layers.

    Args:
        model: With other layers than the last, no chunked ReBA. What is not named here is as for :func:`encode_words`.
        items: As there.
        layers: Numbers of layers: 0: the embeddings that enter the first layer; l: what layer l puts out; L, or
            ``"last"``: the last hidden states, which alone have passed the final norm. Negative ones count from the
            end: −1 is L. ``"all"``: 0 to L.
        batch_tokens: As there. (Each layer that is asked for is held until a batch is done.)
        progress: Called with the number of words that have just been embedded.

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
    numbers = layer_numbers(layers, _repeating(model).depth)
    sizes = (batch_size, batch_tokens)
    return _encoded(model, items, numbers, normalize, sizes, progress, prompt=prompt, task=task, **fields)


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
    budget = transformer.budget(_prompt(model, prompt), task, **fields)
    found: dict[int, Literal["on no token", "past the cut"]] = {}
    for start in range(0, len(items), _LOOKED_AT_TOGETHER):
        piece = [_placed(start + place, item) for place, item in enumerate(items[start : start + _LOOKED_AT_TOGETHER])]
        content = transformer.content([text for text, _ in piece], offsets=True)
        for index, ((_, span), offsets) in enumerate(zip(piece, content["offset_mapping"], strict=True), start):
            tokens = _tokens_of(offsets, span)
            if not tokens:
                found[index] = "on no token"
            elif budget is not None and tokens[-1] >= budget:
                found[index] = "past the cut"
    return found


def _repeating(model: SentenceTransformer) -> RepeatTransformer:
    transformer = model[0]
    if not isinstance(transformer, RepeatTransformer):
        raise ValueError(
            f"encode_words needs a pipeline that starts with RepeatTransformer, not {type(transformer).__name__}. "
            "Build the model with st_reba.build, a sentence-transformers base with pooling=…."
        )
    transformer.check_single()
    return transformer


def _prompt(model: SentenceTransformer, prompt: str | None) -> str | None:
    if prompt is None and model.default_prompt_name is not None:
        return model.prompts.get(model.default_prompt_name)
    return prompt


def _encoded(
    model: SentenceTransformer,
    items: Sequence[Item],
    layers: list[int] | None,
    normalize: bool,
    sizes: tuple[int | None, int | None],
    progress: Callable[[int], object] | None,
    *,
    prompt: str | None,
    task: str | None,
    **fields: str,
) -> NDArray[np.float32]:
    """[layers, items, d]; None for layers: the last one."""
    transformer = _repeating(model)
    check_sizes(*sizes)
    pooling = next((module for module in model if isinstance(module, ReBAPooling)), None)
    chunked = isinstance(pooling, ChunkedReBAPooling)
    inner = None if layers is None or layers == [transformer.depth] else InnerStates(transformer, layers)
    if inner is not None and isinstance(pooling, ChunkedReBAPooling):
        raise ValueError(
            f"layers={layers}: chunk={pooling.chunk} runs each piece of a text by itself, and sums the last hidden "
            "states of several runs. Use layers='last', or build without chunk."
        )
    # A word needs the rows of all tokens; pieces run by themselves.
    captures = [] if pooling is None or chunked else [pooling.token_capture]
    prompt = _prompt(model, prompt)
    budget = transformer.budget(prompt, task, **fields)
    placed = [_placed(index, item) for index, item in enumerate(items)]
    lengths = copied_positions(transformer, [text for text, _ in placed], prompt=prompt, task=task, **fields)
    width = transformer.get_embedding_dimension()
    vectors = np.zeros((1 if layers is None else len(layers), len(items), width), dtype=np.float32)
    model.eval()
    for batch in sized_batches(lengths, *sizes):
        spans = _token_spans(transformer, [(index, placed[index]) for index in batch], budget)
        features = transformer.preprocess([placed[index][0] for index in batch], prompt=prompt, task=task, **fields)
        features = {name: _moved(value, model.device) for name, value in features.items()}
        with torch.inference_mode():
            output = transformer(features, watch=[*captures, *([] if inner is None else [inner])])
            for place, each in enumerate([output] if inner is None else inner.outputs(output)):
                if pooling is None:
                    embedded = _hidden_means(each, spans, transformer.repeats)
                else:
                    embedded = pooling.span_embeddings(each, spans, normalize=normalize)
                vectors[place, batch] = embedded.float().cpu().numpy()
        if progress is not None:
            progress(len(batch))
    return vectors


def _moved(value: Any, device: torch.device) -> Any:
    return value.to(device) if isinstance(value, Tensor) else value


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
            raise ValueError(
                f"Item {index}: the word {word!r:.60} stands in its text {text!r:.60} at {start} and again at {again}. "
                f"Say which is meant, as ({start}, {start + len(word)})."
            )
        end = start + len(word)
    if not 0 <= start < end <= len(text):
        raise ValueError(
            f"Item {index}: the span ({start}, {end}) is empty or outside its text of {len(text)} characters, "
            f"{text!r:.60}."
        )
    return text, (start, end)


def _tokens_of(offsets: Sequence[tuple[int, int]], span: tuple[int, int]) -> list[int]:
    """The content tokens that share a character with a span."""
    start, end = span
    return [token for token, (first, last) in enumerate(offsets) if first < end and last > start and last > first]


def _token_spans(transformer: RepeatTransformer, items: list[tuple[int, _Placed]], budget: int | None) -> Tensor:
    """Which content tokens belong to each item's word: [B, n] bool."""
    content = transformer.content([text for _, (text, _) in items], offsets=True)
    kept = [len(ids) if budget is None else min(len(ids), budget) for ids in content["input_ids"]]
    spans = torch.zeros(len(items), max(kept + [1]), dtype=torch.bool)
    for row, (index, (text, (start, end))) in enumerate(items):
        tokens = _tokens_of(content["offset_mapping"][row], (start, end))
        word = f"Item {index}: the word {text[start:end]!r} at ({start}, {end})"
        if not tokens:
            raise ValueError(f"{word} falls on no token of the text {text!r:.60}.")
        if tokens[-1] >= kept[row]:
            raise ValueError(
                f"{word} lies past the cut: it is at token {tokens[-1] + 1}, and {kept[row]} of the text's "
                f"{len(content['input_ids'][row])} tokens fit a copy. Shorten the text around the word, or raise "
                "model.max_seq_length."
            )
        spans[row, tokens] = True
    return spans


def _hidden_means(features: dict[str, Any], spans: Tensor, copies: int) -> Tensor:
    """Mean hidden state at the word's tokens in the last copy, [B, d]."""
    hidden: Tensor = features["token_embeddings"]
    last_copy = features["copy_ids"] == copies
    first = last_copy.int().argmax(dim=1, keepdim=True)
    spans = spans.to(hidden.device)
    positions = (first + torch.arange(spans.shape[1], device=hidden.device)).clamp(max=hidden.shape[1] - 1)
    weights = torch.zeros(hidden.shape[:2], device=hidden.device).scatter_add_(1, positions, spans.float())
    total = torch.bmm(weights[:, None], hidden.to(torch.promote_types(hidden.dtype, torch.float32))).squeeze(1)
    return total / spans.sum(dim=1, keepdim=True)
