"""Frozen vectors to score: of sentences, and of the words in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

Subtoken = Literal["first", "last"]


class UnusableVectors(ValueError):
    """A model gave NaN, infinity or a zero vector, so that there is nothing to score."""


def sentence_vectors(
    model: SentenceTransformer, texts: Sequence[str], *, batch_size: int = 64, prompt: str | None = None
) -> NDArray[np.float32]:
    """Encode texts, each distinct one once.

    Args:
        model: Any SentenceTransformer.
        texts: The texts; one may stand in many places.
        batch_size: Texts a forward pass.
        prompt: As for ``encode``.

    Returns:
        [number of texts, d] float32, in the order of the texts.

    Raises:
        UnusableVectors: A vector is zero or not finite; its text is named.

    Example:
        >>> import st_reba
        >>> sentence_vectors(st_reba.build("mini", "classical", pooling="mean"), ["雨", "rain", "雨"]).shape
        (3, 192)
    """
    places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    encoded = model.encode(list(places), batch_size=batch_size, prompt=prompt, show_progress_bar=False)
    vectors = np.asarray(encoded, dtype=np.float32)
    _check_usable(vectors, list(places))
    repeated: NDArray[np.float32] = vectors[[places[text] for text in texts]]
    return repeated


def word_vectors(
    model: SentenceTransformer,
    sentences: Sequence[Sequence[str]],
    *,
    separator: str = " ",
    subtoken: Subtoken = "first",
    batch_size: int = 64,
    prompt: str | None = None,
) -> NDArray[np.float32]:
    """Last hidden states of the words of sentences, each distinct sentence run once.

    Args:
        model: A model from :func:`st_reba.build`.
        sentences: The words of each.
        separator: What stands between two words of a sentence: ``""`` where words are Chinese characters.
        subtoken: Which token stands for a word of several: the first, as is usual for tagging, or the last, which
            in an unconverted decoder is the only one that has seen the whole word.
        batch_size: Sentences a forward pass.
        prompt: As for ``encode``.

    Returns:
        [number of words, d] float32, sentence after sentence.

    Raises:
        ValueError: The pipeline is not one of this package's, a sentence is longer than the model takes, or a word
            has no token.
        UnusableVectors: A vector is zero or not finite; its sentence is named.

    Source:
        NoSink, section 3.2 (token-level task). The paper does not say which token stands for a word.

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini", "classical", pooling="mean")
        >>> word_vectors(model, [["He", "sleeps"], ["Rain"]]).shape
        (3, 192)
    """
    transformer: Any = model[0]
    if not hasattr(transformer, "content"):
        raise ValueError(
            f"word vectors need a pipeline that starts with RepeatTransformer, not {type(transformer).__name__}. "
            "Build the model with st_reba.build."
        )
    places = {words: place for place, words in enumerate(dict.fromkeys(map(tuple, sentences)))}
    distinct = list(places)
    texts = [separator.join(words) for words in distinct]
    content = transformer.content(texts, offsets=True)
    tokens = [
        _word_tokens(words, offsets, separator, subtoken)
        for words, offsets in zip(distinct, content["offset_mapping"], strict=True)
    ]
    # Long sentences together: the less padding, and the largest batch first.
    order = sorted(range(len(texts)), key=lambda place: -len(content["input_ids"][place]))
    found: list[NDArray[np.float32]] = [np.empty(0, dtype=np.float32)] * len(texts)
    model.eval()
    for start in range(0, len(order), batch_size):
        batch = order[start : start + batch_size]
        features = transformer.preprocess([texts[place] for place in batch], prompt=prompt)
        features = {name: value.to(model.device) for name, value in features.items()}
        with torch.inference_mode():
            hidden = transformer(features)["token_embeddings"]
        for row, place in enumerate(batch):
            # The last copy, where the text stands more than once.
            positions = (features["copy_ids"][row] == transformer.repeats).nonzero()[:, 0]
            if len(positions) < len(content["input_ids"][place]):
                raise ValueError(
                    f"the sentence {texts[place]!r:.80} has {len(content['input_ids'][place])} tokens, but "
                    f"max_seq_length={model.max_seq_length} leaves {len(positions)}, so some words would have no "
                    "vector. Raise max_seq_length, or shorten the sentence in the file."
                )
            found[place] = hidden[row, positions[tokens[place]]].float().cpu().numpy()
    for text, vectors in zip(texts, found, strict=True):
        _check_usable(vectors, [text] * len(vectors))
    return np.concatenate([found[places[tuple(words)]] for words in sentences])


def _word_tokens(
    words: Sequence[str], offsets: Sequence[tuple[int, int]], separator: str, subtoken: Subtoken
) -> list[int]:
    """The index of each word's token among its sentence's."""
    chosen = []
    start = 0
    for word in words:
        end = start + len(word)
        tokens = [token for token, (first, last) in enumerate(offsets) if first < end and last > start and last > first]
        if not tokens:
            raise ValueError(
                f"the word {word!r} falls on no token in the sentence {separator.join(words)!r:.80}: this tokenizer "
                "drops it. Take it out of the file."
            )
        chosen.append(tokens[0] if subtoken == "first" else tokens[-1])
        start = end + len(separator)
    return chosen


def _check_usable(vectors: NDArray[np.float32], texts: Sequence[str]) -> None:
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1) | ~vectors.any(axis=1))
    if len(bad):
        raise UnusableVectors(
            f"{len(bad)} of {len(vectors)} vectors are zero or not finite; the first is that of {texts[bad[0]]!r:.80}"
        )
