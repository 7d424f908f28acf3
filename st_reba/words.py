"""Vectors of words, spans and tokens inside their texts."""

from __future__ import annotations

import logging
import operator
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import regex  # type: ignore[import-untyped, unused-ignore]
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import batch_to_device
from torch import Tensor

from .encode import (
    describe_truncation,
    input_lengths,
    list_of_texts,
    saved_prompt,
    token_batches,
    transformer_of,
)
from .methods import Options
from .modules.layout import Features, copy_starts, reverses_text
from .modules.pooling import ReBAPooling
from .modules.transformer import RepeatTransformer
from .progress import progress_bar

logger = logging.getLogger(__name__)
# Han and kana, which are written without spaces; other letters and digits; each with its
# combining marks.
_CHARACTER = r"(?=[\p{L}\p{N}])[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
_LETTER = rf"(?!{_CHARACTER})[\p{{L}}\p{{N}}]"
_WORD = regex.compile(
    rf"{_CHARACTER}\p{{M}}*|(?:{_LETTER}\p{{M}}*)+(?:['’-](?:{_LETTER}\p{{M}}*)+)*"
)
# A place where no word of letters continues.
_EDGE = rf"(?:(?<!{_LETTER}|\p{{M}})|(?!{_LETTER}|\p{{M}}))"
# Characters of a text, end excluded.
CharacterSpan = tuple[int, int]


class TokenVectors(NamedTuple):
    """A text's content tokens, as cut to the budget.

    Args:
        text: The text.
        vectors: [n, d].
        weights: How much each token counts in a word, [n].
    """

    text: str
    vectors: NDArray[np.float32]
    weights: NDArray[np.float32]


def encode_words(
    model: SentenceTransformer,
    items: Sequence[tuple[str, CharacterSpan | str]],
    *,
    normalize: bool = False,
    batch_tokens: int | None = None,
    prompt: str | None = None,
    task: str | None = None,
    show_progress_bar: bool = False,
    **fields: str,
) -> NDArray[np.float32]:
    """Embed words in context; each text runs once for all of its words.

    ReBA: the mean of the word's e_i (by the authors' code: the sum of their rows over all columns,
    divided by its total). Other methods: the mean of the hidden states at the word's tokens in the
    last copy. A filter is not applied.

    Args:
        model: A model from :func:`st_reba.build`, or one loaded.
        items: (text, word) each: a word that stands in its text once; or (text, (start, end)), in
            characters, end excluded. :func:`words_of` finds all words of a text.
        normalize: ReBA divides the weights of each e_i by their sum. (Vectors are not scaled to
            length 1.)
        batch_tokens: Positions per forward pass, as for :func:`st_reba.encode.encode_texts`.
        prompt, task, fields: As for ``encode``; None: the default prompt. Each task has a template
            of its own, if there are two.
        show_progress_bar: Show a progress bar.

    Returns:
        [items, d] float32.

    Raises:
        ValueError: A word is not in its text, or there twice; its span is empty, out of the text,
            on no token, or past the cut; or the model makes several rows of a text, or has a
            tokenizer that is not fast, which does not say where tokens stand.

    Source:
        ReBA, section 3.3 (word embedding); Echo, section 3.

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini", "reba")
        >>> st_reba.encode_words(model, [("他在银行取钱", "银行"), ("他在银行取钱", (2, 4))]).shape
        (2, 192)
    """
    transformer = _transformer_for_words(model)
    if not transformer.text_tokenizer.is_fast:
        kind = type(transformer.text_tokenizer).__name__
        raise ValueError(f"Vectors of words need a fast tokenizer; this model's is a {kind}.")
    located_words = [_locate_word(item_index, item) for item_index, item in enumerate(items)]
    items_of_text: dict[str, list[int]] = {}
    for item_index, (text, _) in enumerate(located_words):
        items_of_text.setdefault(text, []).append(item_index)
    encoded_texts = _encode_tokens(
        model,
        list(items_of_text),
        {"prompt": prompt, "task": task, **fields},
        normalize=normalize,
        batch_tokens=batch_tokens,
        show_progress_bar=show_progress_bar,
    )
    if not items:
        return np.zeros((0, transformer.get_embedding_dimension()), np.float32)
    vector_of_item: dict[int, NDArray[np.float32]] = {}
    truncated_count = 0
    for text, token_vectors, token_weights in encoded_texts:
        offsets = transformer.tokenize_content([text], offsets=True)["offset_mapping"][0]
        truncated_count += len(token_vectors) < len(offsets)
        for item_index in items_of_text[text]:
            word_tokens = tokens_of_span(
                item_index, text, located_words[item_index][1], offsets, len(token_vectors)
            )
            total_weight = max(token_weights[word_tokens].sum(), np.finfo(np.float32).tiny)
            vector_of_item[item_index] = (
                token_weights[word_tokens] @ token_vectors[word_tokens] / total_weight
            )
    if truncated_count:
        logger.warning("%s", describe_truncation(truncated_count, len(items_of_text)))
    return np.stack([vector_of_item[item_index] for item_index in range(len(items))])


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
        [n, d] float32 for each text, n being its tokens as cut to the budget; a text without a
        token has one vector, of the special token that stands for it.

    Raises:
        ValueError: ``texts`` is one text, or the model makes several rows of a text.

    Source:
        ReBA, section 3.3.

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini", "reba")
        >>> [vectors.shape for vectors in st_reba.encode_tokens(model, ["你好", "Hello, world"])]
        [(2, 192), (5, 192)]
    """
    texts = list_of_texts(texts)
    encoded_texts = _encode_tokens(
        model,
        list(dict.fromkeys(texts)),
        {"prompt": prompt, "task": task, **fields},
        normalize=normalize,
        batch_tokens=batch_tokens,
        show_progress_bar=show_progress_bar,
    )
    vectors_of_text = {text: token_vectors for text, token_vectors, _ in encoded_texts}
    return [vectors_of_text[text] for text in texts]


def _transformer_for_words(model: SentenceTransformer) -> RepeatTransformer:
    """The model's first module; a ValueError unless each text is one row with its words."""
    transformer = transformer_of(model)
    if transformer.own_input:
        raise ValueError(
            "The model keeps its base's own input. Build it with st_reba.build(…, pooling=…)."
        )
    if transformer.template_count > 1:
        raise ValueError(
            f"The model makes {transformer.template_count} rows of a text. Use one template."
        )
    if any(map(reverses_text, transformer.templates[0].values())):
        raise ValueError(
            "The model reads a text with its words reversed. Use a template with {text}."
        )
    return transformer


def _encode_tokens(
    model: SentenceTransformer,
    texts: Sequence[str],
    input_options: Options,
    *,
    normalize: bool,
    batch_tokens: int | None,
    show_progress_bar: bool,
) -> Iterator[TokenVectors]:
    """Encode the tokens of texts, those of similar length together; options are those of `encode_words`."""
    transformer = _transformer_for_words(model)
    if input_options["prompt"] is None:
        input_options = {**input_options, "prompt": saved_prompt(model)}
    lengths = input_lengths(transformer, texts, input_options, is_batched=True)
    model.eval()
    with progress_bar("Texts", "texts", len(texts), is_shown=show_progress_bar) as bar:
        for batch in token_batches(lengths.positions, batch_tokens):
            batch_texts = [texts[index] for index in batch]
            features = transformer.preprocess(batch_texts, **input_options)
            features = batch_to_device(features, model.device)
            with torch.inference_mode():
                vectors, weights = _run_tokens(model, features, normalize)
            vectors, weights = vectors.float().cpu(), weights.float().cpu()
            for row, (text, span) in enumerate(zip(batch_texts, features["spans"], strict=True)):
                text_vectors = vectors[row, : span.text_length].numpy()
                yield TokenVectors(text, text_vectors, weights[row, : span.text_length].numpy())
            bar.update(len(batch))


def _run_tokens(
    model: SentenceTransformer, features: Features, normalize: bool
) -> tuple[Tensor, Tensor]:
    """Vectors [B, n, d] and weights [B, n] of tokens; arbitrary after a text's own tokens."""
    transformer = transformer_of(model)
    pooling = next((module for module in model if isinstance(module, ReBAPooling)), None)
    if pooling is None:
        output = transformer(features)
        copy_start = copy_starts(output["copy_ids"], transformer.copies)
        longest_span = max(span.text_length for span in output["spans"])
        token_positions = copy_start + torch.arange(longest_span, device=copy_start.device)
        token_vectors = torch.take_along_dim(
            output["token_embeddings"], token_positions[:, :, None], dim=1
        )
        return token_vectors, torch.ones(token_vectors.shape[:2])
    output = transformer(features, capture=pooling.token_capture)
    token_vectors = pooling.token_vectors(output, normalize)
    if pooling.has_row_sums:
        return token_vectors, pooling.row_sums(output)
    return token_vectors, torch.ones(token_vectors.shape[:2])


def _locate_word(
    item_index: int, item: tuple[str, CharacterSpan | str]
) -> tuple[str, CharacterSpan]:
    """The text of an item, and its word's span."""
    try:
        text, word = item
        if not isinstance(text, str):
            raise TypeError(f"the text is a {type(text).__name__}")
        if isinstance(word, str):
            if not word:
                raise ValueError("the word is empty")
            word_start = text.index(word)
            if word_start != text.rindex(word):
                raise ValueError("the word is in its text twice")
            word = (word_start, word_start + len(word))
        word_start, word_end = map(operator.index, word)
        if not 0 <= word_start < word_end <= len(text):
            raise ValueError(f"the span ({word_start}, {word_end}) is empty or outside the text")
    except (TypeError, ValueError) as error:
        problem = f"Item {item_index} is {item!r:.80}: {error}"
        raise ValueError(
            f"{problem}. Give (text, word), or (text, (start, end)) in characters."
        ) from None
    return text, (word_start, word_end)


def tokens_of_span(
    item_index: int,
    text: str,
    span: CharacterSpan,
    offsets: Sequence[CharacterSpan],
    max_tokens: int,
) -> list[int]:
    """The content tokens that share a character with a word.

    Args:
        item_index: Number of the item, for messages.
        text: The text.
        span: Characters of the word.
        offsets: Characters of each of the text's tokens.
        max_tokens: How many of them a copy holds.

    Raises:
        ValueError: The word is on no token, or past the cut.
    """
    span_tokens: list[int] = []
    for token, (token_start, token_end) in enumerate(offsets):
        is_empty = token_start == token_end
        if token_start < span[1] and token_end > span[0] and not is_empty:
            span_tokens.append(token)
    if span_tokens and span_tokens[-1] < max_tokens:
        return span_tokens
    problem = "falls on no token of"
    if span_tokens:
        fitting_tokens = f"{max_tokens} of {len(offsets)} tokens fit a copy"
        problem = f"lies past the cut: {fitting_tokens}; raise model.max_seq_length, or shorten"
    word = text[slice(*span)]
    raise ValueError(
        f"Item {item_index}: the word {word!r:.60} at {span} {problem} the text {text!r:.60}."
    )


def words_of(text: str, word: str | None = None) -> list[tuple[str, CharacterSpan]]:
    """The words of a text, for :func:`encode_words`: letters, marks and digits between white space and punctuation.

    A Chinese character or a Japanese kana is a word by itself; an apostrophe or a hyphen inside a
    word belongs to it.

    Args:
        text: The text.
        word: Only this word, which may be a phrase, wherever it stands; never in a longer word of
            letters.

    Returns:
        (text, (start, end)) each, in characters, end excluded, in the order of the text.

    Example:
        >>> [text[start:end] for text, (start, end) in words_of("It's 在银行.")]
        ["It's", '在', '银', '行']
        >>> words_of("他的银行在河岸，银行很大", "银行"), words_of("a party of art", "art")[0][1]
        ([('他的银行在河岸，银行很大', (2, 4)), ('他的银行在河岸，银行很大', (8, 10))], (11, 14))
    """
    if word is None:
        matches = _WORD.finditer(text)
    elif word:
        matches = regex.finditer(_EDGE + regex.escape(word) + _EDGE, text)
    else:
        raise ValueError("word='' is not a word. Give one, or leave it out for all words.")
    return [(text, match.span()) for match in matches]
