"""Frozen vectors to score: of sentences, and of the words in a sentence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import batch_to_device

from ..batches import copied_positions, sized_batches
from ..encode import encode_texts
from ..modules.chunked import ChunkedReBAPooling
from ..modules.pooling import ReBAPooling

Subtoken = Literal["first", "last"]


class UnusableVectors(ValueError):
    """A model gave NaN, infinity or a zero vector, so that there is nothing to score."""


def sentence_vectors(
    model: SentenceTransformer,
    texts: Sequence[str],
    *,
    batch_size: int | None = 64,
    batch_tokens: int | None = None,
    prompt: str | None = None,
    progress: Callable[[int], object] | None = None,
) -> NDArray[np.float32]:
    """Encode texts, each distinct one once.

    Args:
        model: Any SentenceTransformer.
        texts: The texts; one may stand in many places.
        batch_size: Texts a forward pass; None: as many as ``batch_tokens`` allows.
        batch_tokens: Positions a forward pass, as for :func:`st_reba.encode.encode_stream`, with ``batch_size=None``.
        prompt: As for ``encode``.
        progress: Called with the number of distinct texts that have just been encoded.

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
    if batch_size is None:
        vectors = encode_texts(model, list(places), batch_tokens=batch_tokens, prompt=prompt, progress=progress)
    else:
        encoded = model.encode(list(places), batch_size=batch_size, prompt=prompt, show_progress_bar=False)
        vectors = np.asarray(encoded, dtype=np.float32)
        if progress is not None:
            progress(len(places))
    _check_usable(vectors, list(places))
    repeated: NDArray[np.float32] = vectors[[places[text] for text in texts]]
    return repeated


def word_vectors(
    model: SentenceTransformer,
    sentences: Sequence[Sequence[str]],
    *,
    separator: str = " ",
    subtoken: Subtoken = "first",
    batch_size: int | None = 64,
    batch_tokens: int | None = None,
    prompt: str | None = None,
    progress: Callable[[int], object] | None = None,
) -> NDArray[np.float32]:
    """Vectors of the words of sentences: all of a sentence from one run, each distinct sentence run once.

    A word's vector is that of one of its tokens: the last hidden state (Echo: in the last copy), or in a ReBA pipeline
    the backward-attention vector e_i, whatever the pipeline's sentence pooling. They are not scaled.

    Args:
        model: A model from :func:`st_reba.build`.
        sentences: The words of each.
        separator: What stands between two words of a sentence: ``""`` where words are Chinese characters.
        subtoken: Which token stands for a word of several: the first, as is usual for tagging, or the last, which
            in an unconverted decoder is the only one that has seen the whole word.
        batch_size: Sentences a forward pass; None: as many as ``batch_tokens`` allows.
        batch_tokens: Positions a forward pass, as for :func:`st_reba.encode_words`, with ``batch_size=None``.
        prompt: As for ``encode``; None: the model's default prompt, if it has one.
        progress: Called with the number of distinct sentences that have just been run.

    Returns:
        [number of words, d] float32, sentence after sentence.

    Raises:
        ValueError: The pipeline is not one of this package's, a sentence is longer than the model takes, or a word
            has no token.
        UnusableVectors: A vector is zero or not finite; its sentence is named.

    Source:
        NoSink, section 3.2 (token-level task); ReBA, section 3.3 (e_i). The papers do not say which token stands for a
        word.

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
    if prompt is None and model.default_prompt_name is not None:
        prompt = model.prompts.get(model.default_prompt_name)
    places = {words: place for place, words in enumerate(dict.fromkeys(map(tuple, sentences)))}
    distinct = list(places)
    texts = [separator.join(words) for words in distinct]
    content = transformer.content(texts, offsets=True)
    tokens = [
        _word_tokens(words, offsets, separator, subtoken)
        for words, offsets in zip(distinct, content["offset_mapping"], strict=True)
    ]
    read = _reader(model)
    # One array from the start: hidden states of a large model are too many to be held twice.
    ends = np.cumsum([len(words) for words in distinct])
    found = np.empty((int(ends[-1]) if len(ends) else 0, transformer.get_embedding_dimension()), dtype=np.float32)
    model.eval()
    for batch in sized_batches(copied_positions(transformer, texts, prompt=prompt), batch_size, batch_tokens):
        features = batch_to_device(
            transformer.preprocess([texts[place] for place in batch], prompt=prompt), model.device
        )
        for place, (_, count, _) in zip(batch, features["places"], strict=True):
            if count < len(content["input_ids"][place]):
                raise ValueError(
                    f"the sentence {texts[place]!r:.80} has {len(content['input_ids'][place])} tokens, but "
                    f"max_seq_length={model.max_seq_length} leaves {count}, so some words would have no "
                    "vector. Raise max_seq_length, or shorten the sentence in the file."
                )
        with torch.inference_mode():
            vectors = read(features)
        for row, place in enumerate(batch):
            chosen = vectors[row][tokens[place]].float().cpu().numpy()
            _check_usable(chosen, [texts[place]] * len(chosen))
            found[ends[place] - len(chosen) : ends[place]] = chosen
        if progress is not None:
            progress(len(batch))
    if len(distinct) == len(sentences):
        return found
    wanted = [range(ends[place] - len(words), ends[place]) for words in sentences for place in [places[tuple(words)]]]
    repeated: NDArray[np.float32] = found[[row for rows in wanted for row in rows]]
    return repeated


def unread_sentences(
    model: SentenceTransformer, sentences: Sequence[Sequence[str]], *, separator: str = " ", prompt: str | None = None
) -> set[int]:
    """Which sentences :func:`word_vectors` would refuse as longer than the model takes.

    Args:
        model: As for :func:`word_vectors`.
        sentences: As there.
        separator: As there.
        prompt: As there.

    Returns:
        Their places.

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini", "echo", max_seq_length=15)
        >>> unread_sentences(model, [["He", "sleeps"], ["He"] * 9])
        {1}
    """
    transformer: Any = model[0]
    if prompt is None and model.default_prompt_name is not None:
        prompt = model.prompts.get(model.default_prompt_name)
    budget = transformer.budget(prompt)
    if budget is None:
        return set()
    lengths = map(len, transformer.content([separator.join(words) for words in sentences])["input_ids"])
    return {place for place, length in enumerate(lengths) if length > budget}


def _reader(model: SentenceTransformer) -> Callable[[dict[str, Any]], Any]:
    """What turns features into the vectors of each text's content tokens, a tensor [n or more, d] a text."""
    transformer: Any = model[0]
    pooling: Any = next((each for each in model if isinstance(each, ReBAPooling)), None)
    if pooling is None:

        def last_copy(features: dict[str, Any]) -> Any:
            hidden = transformer(features)["token_embeddings"]
            last = features["copy_ids"] == transformer.repeats
            return [states[mask] for states, mask in zip(hidden, last, strict=True)]

        return last_copy
    if not isinstance(pooling, ChunkedReBAPooling) and pooling.variant == "paper":
        # The mean over the sentence is captured as its tokens are, so that one run serves.
        config = {name: getattr(pooling, name) for name in pooling.config_keys}
        twin = ReBAPooling(**{**config, "pooling": "mean"})
        watch = [twin.token_capture]
        return lambda features: twin(transformer(features, watch=watch))["token_embeddings"]
    return lambda features: pooling(transformer(features))["token_embeddings"]


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
