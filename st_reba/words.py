"""Vectors of words, spans and tokens inside their texts."""

from __future__ import annotations

import operator
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import batch_to_device
from torch import Tensor
from tqdm.auto import tqdm

from .encode import copied_positions, saved_prompt, sized_batches
from .modules.pooling import ReBAPooling
from .modules.transformer import RepeatTransformer

# A text and a word in it: its characters from start to end (not included), or the word itself.
Item = tuple[str, tuple[int, int] | str]
# Han and kana, which are written without spaces.
_ALONE = re.compile("[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")


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

    ReBA: the mean of the word's e_i (by the authors' code the sum of their rows, over all columns, divided to 1). Other
    methods: the mean of the hidden states at the word's tokens in the last copy. A filter is not applied.

    Args:
        model: A model from :func:`st_reba.build`, or one loaded.
        items: (text, word) each: a word that stands in its text once; or (text, (start, end)), in characters, end
            excluded. :func:`words_of` finds all words of a text.
        normalize: ReBA divides the weights of each e_i by their sum. (Vectors are not scaled to length 1.)
        batch_size: Texts a forward pass. Excludes ``batch_tokens``.
        batch_tokens: Positions a forward pass, as for :func:`st_reba.encode.encode_texts`.
        prompt: As for ``encode``; None: the model's default prompt, if it has one.
        task: As for ``encode``: which of a model's two templates.
        show_progress_bar: Show one.
        **fields: Values of the template's fields, as for ``encode``.

    Returns:
        [items, d] float32.

    Raises:
        ValueError: An item whose word is not in its text, or there twice; whose span is empty, out of the text, on no
            token, or past the cut. Or the model makes several rows of a text.

    Source:
        ReBA, section 3.3 (word embedding); Echo, section 3.

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini", "reba")
        >>> st_reba.encode_words(model, [("他在银行取钱", "银行"), ("他在银行取钱", (2, 4))]).shape
        (2, 192)
    """
    first, pooling = _parts(model)
    placed = [_placed(index, item) for index, item in enumerate(items)]
    places: dict[str, list[int]] = {}
    for index, (text, _) in enumerate(placed):
        places.setdefault(text, []).append(index)
    texts = list(places)
    layout = {"prompt": saved_prompt(model) if prompt is None else prompt, "task": task, **fields}
    vectors = np.zeros((len(items), first.get_embedding_dimension()), np.float32)
    with tqdm(total=len(items), desc="Words", unit=" words", disable=not show_progress_bar) as bar:
        for batch, output in _outputs(model, texts, layout, batch_size, batch_tokens):
            counts = [span.length for span in output["spans"]]
            mine = [places[texts[row]] for row in batch]
            tokens = _tokens(first, {index: placed[index] for each in mine for index in each}, batch, texts, counts)
            # One word of each text at a time.
            for turn in zip_longest(*mine):
                spans = torch.zeros(len(batch), max(counts), dtype=torch.bool)
                for row, index in enumerate(turn):
                    spans[row, tokens.get(index, ())] = True
                if pooling is None:
                    found = _means(output, spans, first.copies)
                else:
                    found = pooling.span_embeddings(output, spans, normalize=normalize)
                rows = [row for row, index in enumerate(turn) if index is not None]
                vectors[[turn[row] for row in rows]] = found[rows].float().cpu().numpy()
            bar.update(len(tokens))
    return vectors


def encode_tokens(
    model: SentenceTransformer,
    texts: Sequence[str],
    *,
    normalize: bool = False,
    batch_size: int | None = None,
    batch_tokens: int | None = None,
    prompt: str | None = None,
    task: str | None = None,
    show_progress_bar: bool = False,
    **fields: str,
) -> list[NDArray[np.float32]]:
    """Embed every content token of texts: ReBA's e_i, or the hidden states of the last copy.

    Args:
        model: A model from :func:`st_reba.build`, or one loaded.
        texts: The texts.
        normalize, batch_size, batch_tokens, prompt, task, show_progress_bar, fields: As for :func:`encode_words`.

    Returns:
        [n, d] float32 for each text, n being its tokens as cut to the budget; a text without a token has one vector, of
        the special token that stands for it.

    Source:
        ReBA, section 3.3.

    Example:
        >>> import st_reba
        >>> [each.shape for each in st_reba.encode_tokens(st_reba.build("mini", "reba"), ["你好", "Hello, world"])]
        [(2, 192), (5, 192)]
    """
    first, pooling = _parts(model)
    layout = {"prompt": saved_prompt(model) if prompt is None else prompt, "task": task, **fields}
    found: dict[int, NDArray[np.float32]] = {}
    with tqdm(total=len(texts), desc="Texts", unit=" texts", disable=not show_progress_bar) as bar:
        for batch, output in _outputs(model, texts, layout, batch_size, batch_tokens):
            vectors = _last_copy(output, first.copies)
            if pooling is not None:
                vectors = pooling.token_vectors(output, normalize)
            for place, span, each in zip(batch, output["spans"], vectors.float().cpu().numpy(), strict=True):
                found[place] = each[: span.length]
            bar.update(len(batch))
    return [found[place] for place in range(len(texts))]


def _parts(model: SentenceTransformer) -> tuple[RepeatTransformer, ReBAPooling | None]:
    first = model[0]
    if not isinstance(first, RepeatTransformer):
        raise ValueError(f"The model starts with {type(first).__name__}. Build it with st_reba.build(…, pooling=…).")
    if first.rows > 1:
        raise ValueError(f"The model makes {first.rows} rows of a text. Use one template.")
    if any(name == "reversed" for each in first.templates[0].values() for _, name in each):
        raise ValueError("The model reads a text with its words reversed. Use a template with {text}.")
    return first, next((module for module in model if isinstance(module, ReBAPooling)), None)


def _outputs(
    model: SentenceTransformer,
    texts: Sequence[str],
    layout: Mapping[str, Any],
    batch_size: int | None,
    batch_tokens: int | None,
) -> Iterator[tuple[list[int], dict[str, Any]]]:
    """Run the texts by batches of similar length; the places of each batch, and what the input module gives."""
    first, pooling = _parts(model)
    capture = None if pooling is None else pooling.token_capture
    model.eval()
    for batch in sized_batches(copied_positions(first, texts, layout), batch_size, batch_tokens):
        features = batch_to_device(first.preprocess([texts[place] for place in batch], **layout), model.device)
        with torch.inference_mode():
            yield batch, first(features, capture=capture)


def _placed(index: int, item: Any) -> tuple[str, tuple[int, int]]:
    """An item's text and its word's characters."""
    try:
        text, word = item
        start, end = (0, 0) if isinstance(word, str) else map(operator.index, word)
    except (TypeError, ValueError):
        text = None
    if not isinstance(text, str):
        raise ValueError(f"Item {index} is {item!r:.80}: give (text, word) or (text, (start, end)), in characters.")
    if isinstance(word, str):
        start, end = text.find(word), text.find(word) + len(word)
        if not word or start < 0:
            raise ValueError(f"Item {index}: the word {word!r:.60} is not in its text {text!r:.60}.")
        if text.find(word, start + 1) >= 0:
            raise ValueError(f"Item {index}: the word {word!r:.60} is in its text twice. Give ({start}, {end}).")
    if not 0 <= start < end <= len(text):
        raise ValueError(f"Item {index}: the span ({start}, {end}) is empty or outside its text {text!r:.60}.")
    return text, (start, end)


def _tokens(
    transformer: RepeatTransformer,
    words: Mapping[int, tuple[str, tuple[int, int]]],
    batch: Sequence[int],
    texts: Sequence[str],
    counts: Sequence[int],
) -> dict[int | None, list[int]]:
    """The content tokens that share a character with each word."""
    mine = [texts[row] for row in batch]
    offsets = dict(zip(mine, transformer.content(mine, offsets=True)["offset_mapping"], strict=True))
    kept = dict(zip(mine, counts, strict=True))
    found: dict[int | None, list[int]] = {}
    for index, (text, (start, end)) in words.items():
        tokens = [token for token, (a, b) in enumerate(offsets[text]) if a < end and b > start and b > a]
        word = f"Item {index}: the word {text[start:end]!r:.60} at ({start}, {end})"
        if not tokens:
            raise ValueError(f"{word} falls on no token of the text {text!r:.60}.")
        if tokens[-1] >= kept[text]:
            raise ValueError(
                f"{word} lies past the cut: {kept[text]} of the text's {len(offsets[text])} tokens fit a copy. Shorten "
                "the text, or raise model.max_seq_length."
            )
        found[index] = tokens
    return found


def _last_copy(features: dict[str, Any], copies: int) -> Tensor:
    """Hidden states of the last copy, [B, n, d]; behind a text's own tokens anything."""
    hidden: Tensor = features["token_embeddings"]
    first = (features["copy_ids"] == copies).int().argmax(dim=1, keepdim=True)
    positions = first + torch.arange(max(span.length for span in features["spans"]), device=hidden.device)
    return torch.take_along_dim(hidden, positions.clamp(max=hidden.shape[1] - 1)[:, :, None], dim=1)


def _means(features: dict[str, Any], spans: Tensor, copies: int) -> Tensor:
    hidden, spans = _last_copy(features, copies), spans.to(features["token_embeddings"].device)
    total = (hidden.to(torch.promote_types(hidden.dtype, torch.float32)) * spans[:, :, None]).sum(dim=1)
    return total / spans.sum(dim=1, keepdim=True)


def words_of(text: str, word: str | None = None) -> list[tuple[str, tuple[int, int]]]:
    """The words of a text, for :func:`encode_words`: letters, marks and digits between white space and punctuation.

    A Chinese character or a Japanese kana is a word by itself; an apostrophe or a hyphen inside a word belongs to it.

    Args:
        text: The text.
        word: Only the places of this word, which may be a phrase; never as a part of a longer word of letters.

    Returns:
        (text, (start, end)) each, in characters, end excluded, in the order of the text.

    Example:
        >>> [text[start:end] for text, (start, end) in words_of("It's 在银行.")]
        ["It's", '在', '银', '行']
        >>> words_of("他的银行在河岸，银行很大", "银行"), words_of("a party of art", "art")[0][1]
        ([('他的银行在河岸，银行很大', (2, 4)), ('他的银行在河岸，银行很大', (8, 10))], (11, 14))
    """
    shape = "".join(map(_shape, text))
    if word is None:
        return [(text, match.span()) for match in re.finditer("HM*|L[LM]*(?:-L[LM]*)*", shape)]
    if not word:
        raise ValueError("word='': give a word, or None for all words.")
    cuts = {match.start() + 1 for match in re.finditer("[LM](?=[LM])", shape)}
    spans = [match.span() for match in re.finditer(re.escape(word), text)]
    return [(text, span) for span in spans if not cuts & {*span}]


def _shape(letter: str) -> str:
    """H: a word by itself; L: a letter or digit; M: a mark on what is before it; -: joins two letters."""
    kind = unicodedata.category(letter)[0]
    if kind in "LN":
        return "H" if _ALONE.match(letter) else "L"
    return "M" if kind == "M" else "-" if letter in "'’-" else " "
