"""Vectors of words and spans inside their texts."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from tqdm.auto import tqdm

from .batches import check_sizes, copied_positions, sized_batches
from .modules import ChunkedReBAPooling, ReBAPooling, RepeatTransformer

Item = tuple[str, tuple[int, int]]


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
        items: (text, (start, end)) each, in characters, end excluded.
        normalize: ReBA divides each sum of weights to 1. (Vectors are not scaled to length 1.)
        batch_size: Texts a forward pass. Excludes ``batch_tokens``.
        batch_tokens: Positions a forward pass, padding included, which is at most 5 % of them; a text counts with all
            its copies, the template and special tokens. None: ``st_reba.batches.DEFAULT_BATCH_TOKENS``, unless
            ``batch_size`` is given.
        prompt: As for ``encode``; None: the model's default prompt, if it has one.
        task: As for ``encode``: which of a model's two templates.
        show_progress_bar: Show one.
        **fields: Values of the template's fields, as for ``encode``.

    Returns:
        [number of items, d] float32.

    Raises:
        ValueError: An item whose span is empty, out of the text, on no token, or past the cut; the item is named.
            Or both ``batch_size`` and ``batch_tokens``.

    Source:
        ReBA, section 3.3 (word embedding); Echo-k: position pos(k, i).

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini")
        >>> text = "他在银行取钱"
        >>> st_reba.encode_words(model, [(text, (2, 4))]).shape
        (1, 192)
    """
    transformer = model[0]
    if not isinstance(transformer, RepeatTransformer):
        raise ValueError(
            f"encode_words needs a pipeline that starts with RepeatTransformer, not {type(transformer).__name__}. "
            "Build the model with st_reba.build, a sentence-transformers base with pooling=…."
        )
    pooling = next((module for module in model if isinstance(module, (ReBAPooling, ChunkedReBAPooling))), None)
    check_sizes(batch_size, batch_tokens)
    if prompt is None and model.default_prompt_name is not None:
        prompt = model.prompts.get(model.default_prompt_name)
    budget = transformer.budget(prompt, task, **fields)
    items = [_checked(index, item) for index, item in enumerate(items)]
    vectors: list[NDArray[np.float32]] = [np.empty(0, dtype=np.float32)] * len(items)
    lengths = copied_positions(transformer, [text for text, _ in items], prompt=prompt, task=task, **fields)
    batches = sized_batches(lengths, batch_size, batch_tokens)
    model.eval()
    with tqdm(total=len(items), desc="Words", unit=" texts", disable=not show_progress_bar) as bar:
        for batch in batches:
            spans = _token_spans(transformer, [(index, items[index]) for index in batch], budget).to(model.device)
            features = transformer.preprocess([items[index][0] for index in batch], prompt=prompt, task=task, **fields)
            features = {name: value.to(model.device) for name, value in features.items()}
            with torch.inference_mode():
                if pooling is not None:
                    captured = transformer(features, capture=pooling.token_capture)
                    embedded = pooling.span_embeddings(captured, spans, normalize=normalize)
                else:
                    embedded = _hidden_means(transformer(features), spans, transformer.repeats)
            for index, vector in zip(batch, embedded.float().cpu().numpy(), strict=True):
                vectors[index] = vector
            bar.update(len(batch))
    return np.stack(vectors) if vectors else np.zeros((0, transformer.get_embedding_dimension()), dtype=np.float32)


def _checked(index: int, item: Any) -> Item:
    try:
        text, (first, last) = item
        start, end = operator.index(first), operator.index(last)
    except (TypeError, ValueError):
        text = None
    if not isinstance(text, str):
        raise ValueError(f"Item {index} is {item!r:.80}: it must be (text, (start, end)), in characters.")
    if not 0 <= start < end <= len(text):
        raise ValueError(
            f"Item {index}: the span ({start}, {end}) is empty or outside its text of {len(text)} characters, "
            f"{text!r:.60}."
        )
    return text, (start, end)


def _token_spans(transformer: RepeatTransformer, items: list[tuple[int, Item]], budget: int | None) -> torch.Tensor:
    """Which content tokens belong to each item's word: [B, n] bool."""
    content = transformer.content([text for _, (text, _) in items], offsets=True)
    kept = [len(ids) if budget is None else min(len(ids), budget) for ids in content["input_ids"]]
    spans = torch.zeros(len(items), max(kept + [1]), dtype=torch.bool)
    for row, (index, (text, (start, end))) in enumerate(items):
        tokens = [
            token
            for token, (first, last) in enumerate(content["offset_mapping"][row])
            if first < end and last > start and last > first
        ]
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


def _hidden_means(features: dict[str, Any], spans: torch.Tensor, copies: int) -> torch.Tensor:
    """Mean hidden state at the word's tokens in the last copy."""
    last_copy = features["copy_ids"] == copies
    first = last_copy.int().argmax(dim=1, keepdim=True)
    length = last_copy.shape[1]
    positions = (first + torch.arange(spans.shape[1], device=first.device)).clamp(max=length - 1)
    weights = torch.zeros(spans.shape[0], length, device=first.device)
    weights.scatter_add_(1, positions, spans.float())
    hidden: torch.Tensor = features["token_embeddings"]
    total = torch.bmm(weights[:, None], hidden.to(torch.promote_types(hidden.dtype, torch.float32))).squeeze(1)
    return total / spans.sum(dim=1, keepdim=True)
