"""Vectors of words, spans and tokens inside their texts."""

from __future__ import annotations

import logging
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import regex  # type: ignore[import-untyped, unused-ignore]
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import batch_to_device
from tqdm.auto import tqdm

from .encode import batch_positions, describe_truncation, saved_prompt, token_batches
from .modules.layout import copy_starts, reverses_text
from .modules.pooling import ReBAPooling
from .modules.transformer import RepeatTransformer

logger = logging.getLogger(__name__)
# Han and kana, which are written without spaces; other letters and digits; either with the marks on it.
_ALONE = r"(?=[\p{L}\p{N}])[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
_LETTER = rf"(?!{_ALONE})[\p{{L}}\p{{N}}]"
_WORD = regex.compile(rf"{_ALONE}\p{{M}}*|(?:{_LETTER}\p{{M}}*)+(?:['’-](?:{_LETTER}\p{{M}}*)+)*")
# Where a word of letters does not go on.
_EDGE = rf"(?:(?<!{_LETTER}|\p{{M}})|(?!{_LETTER}|\p{{M}}))"


def encode_words(
    model: SentenceTransformer,
    items: Sequence[tuple[str, tuple[int, int] | str]],
    *,
    normalize: bool = False,
    batch_tokens: int | None = None,
    prompt: str | None = None,
    task: str | None = None,
    show_progress_bar: bool = False,
    **fields: str,
) -> NDArray[np.float32]:
    """Embed words where they stand; a text runs once for all of its words.

    ReBA: the mean of the word's e_i (by the authors' code: the sum of their rows over all columns, divided by its
    total). Other methods: the mean of the hidden states at the word's tokens in the last copy. A filter is not applied.

    Args:
        model: A model from :func:`st_reba.build`, or one loaded.
        items: (text, word) each: a word that stands in its text once; or (text, (start, end)), in characters, end
            excluded. :func:`words_of` finds all words of a text.
        normalize: ReBA divides the weights of each e_i by their sum. (Vectors are not scaled to length 1.)
        batch_tokens: Positions a forward pass, as for :func:`st_reba.encode.encode_texts`.
        prompt, task, fields: As for ``encode``; None: the default prompt. A task has its template, if there are two.
        show_progress_bar: Show one.

    Returns:
        [items, d] float32.

    Raises:
        ValueError: A word is not in its text, or there twice; its span is empty, out of the text, on no token, or past
            the cut; or the model makes several rows of a text.

    Source:
        ReBA, section 3.3 (word embedding); Echo, section 3.

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini", "reba")
        >>> st_reba.encode_words(model, [("他在银行取钱", "银行"), ("他在银行取钱", (2, 4))]).shape
        (2, 192)
    """
    first = _first(model)
    placed = [_placed(index, item) for index, item in enumerate(items)]
    places: dict[str, list[int]] = {}
    for index, (text, _) in enumerate(placed):
        places.setdefault(text, []).append(index)
    vectors = np.zeros((len(items), first.get_embedding_dimension()), np.float32)
    layout = {"prompt": prompt, "task": task, **fields}
    truncated_count = 0
    for text, tokens, counted in _token_vectors(model, [*places], layout, normalize, batch_tokens, show_progress_bar):
        offsets = first.content([text], offsets=True)["offset_mapping"][0]
        truncated_count += len(tokens) < len(offsets)
        for index in places[text]:
            own = _tokens(index, *placed[index], offsets, len(tokens))
            vectors[index] = counted[own] @ tokens[own] / max(counted[own].sum(), np.finfo(np.float32).tiny)
    if truncated_count:
        logger.warning("%s", describe_truncation(truncated_count, len(places)))
    return vectors


def encode_tokens(
    model: SentenceTransformer,
    texts: Sequence[str],
    *,
    normalize: bool = False,
    batch_tokens: int | None = None,
    prompt: str | None = None,
    task: str | None = None,
    show_progress_bar: bool = False,
    **fields: str,
) -> list[NDArray[np.float32]]:
    """Embed every content token of texts: ReBA's e_i, or the hidden states of the last copy.

    Args:
        texts: The texts; all else as for :func:`encode_words`.

    Returns:
        [n, d] float32 for each text, n being its tokens as cut to the budget; a text without a token has one vector, of
        the special token that stands for it.

    Raises:
        ValueError: ``texts`` is one text, or the model makes several rows of a text.

    Source:
        ReBA, section 3.3.

    Example:
        >>> import st_reba
        >>> [each.shape for each in st_reba.encode_tokens(st_reba.build("mini", "reba"), ["你好", "Hello, world"])]
        [(2, 192), (5, 192)]
    """
    if isinstance(texts, str):
        raise ValueError(f"texts={texts!r:.80} is one text. Give a list.")
    layout, once = {"prompt": prompt, "task": task, **fields}, [*dict.fromkeys(texts)]
    rows = _token_vectors(model, once, layout, normalize, batch_tokens, show_progress_bar)
    found = {text: each for text, each, _ in rows}
    return [found[text] for text in texts]


def _first(model: SentenceTransformer) -> RepeatTransformer:
    first = model[0]
    if not isinstance(first, RepeatTransformer) or getattr(first, "own_input", False):
        what = f"starts with {type(first).__name__} and its base's own input"
        raise ValueError(f"The model {what}. Build it with st_reba.build(…, pooling=…).")
    if first.rows > 1:
        raise ValueError(f"The model makes {first.rows} rows of a text. Use one template.")
    if any(map(reverses_text, first.templates[0].values())):
        raise ValueError("The model reads a text with its words reversed. Use a template with {text}.")
    return first


def _token_vectors(
    model: SentenceTransformer, texts: list[str], layout: Any, normalize: bool, budget: int | None, show: bool
) -> Iterator[tuple[str, NDArray[np.float32], NDArray[np.float32]]]:
    """Each text, the vectors of its content tokens, [n, d], and what each of them counts in a word, [n]."""
    first = _first(model)
    pooling: Any = next((module for module in model if isinstance(module, ReBAPooling)), None)
    if layout["prompt"] is None:
        layout["prompt"] = saved_prompt(model)
    model.eval()
    with tqdm(total=len(texts), desc="Texts", unit=" texts", disable=not show) as bar:
        for places in token_batches(batch_positions(first, texts, layout), budget):
            batch = [texts[place] for place in places]
            features = batch_to_device(first.preprocess(batch, **layout), model.device)
            with torch.inference_mode():
                output = first(features, capture=None if pooling is None else pooling.token_capture)
                if pooling is None:  # hidden states of the last copy, [B, n, d]; behind a text's own tokens anything
                    start = copy_starts(output["copy_ids"], first.copies)
                    steps = torch.arange(max(span.length for span in output["spans"]), device=start.device)
                    vectors = torch.take_along_dim(output["token_embeddings"], (start + steps)[:, :, None], dim=1)
                else:
                    vectors = pooling.token_vectors(output, normalize)
                counted = pooling.row_sums(output) if pooling and pooling.authors else torch.ones(vectors.shape[:2])
            arrays = (each.float().cpu().numpy() for each in (vectors, counted))
            for text, span, *both in zip(batch, output["spans"], *arrays, strict=True):
                yield text, *(each[: span.length] for each in both)
            bar.update(len(batch))


def _placed(index: int, item: Any) -> tuple[str, tuple[int, int]]:
    try:
        text, word = item
        if not isinstance(text, str):
            raise TypeError(f"the text is a {type(text).__name__}")
        if isinstance(word, str):
            if text.index(word) != text.rindex(word):
                raise ValueError("the word is in its text twice")
            word = text.index(word), text.index(word) + len(word)
        start, end = map(operator.index, word)
        if not 0 <= start < end <= len(text):
            raise ValueError(f"the span ({start}, {end}) is empty or outside the text")
    except (TypeError, ValueError) as error:
        said = f"Item {index} is {item!r:.80}: {error}"
        raise ValueError(f"{said}. Give (text, word), or (text, (start, end)) in characters.") from None
    return text, (start, end)


def _tokens(index: int, text: str, span: tuple[int, int], offsets: Sequence[tuple[int, int]], kept: int) -> list[int]:
    """The content tokens that share a character with a word; ``kept``: how many of the text's tokens a copy holds."""
    tokens = [token for token, (start, end) in enumerate(offsets) if start < span[1] and end > span[0] and end > start]
    if not tokens or tokens[-1] >= kept:
        cut = f"lies past the cut: {kept} of {len(offsets)} tokens fit a copy; raise model.max_seq_length, or shorten"
        where = cut if tokens else "falls on no token of"
        raise ValueError(f"Item {index}: the word {text[slice(*span)]!r:.60} at {span} {where} the text {text!r:.60}.")
    return tokens


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
    if word is None:
        return [(text, match.span()) for match in _WORD.finditer(text)]
    if not word:
        raise ValueError("word='' is no word. Give one, or leave it out for all words.")
    return [(text, match.span()) for match in regex.finditer(_EDGE + regex.escape(word) + _EDGE, text)]
