"""Vectors of the words of sentences, as a tagger reads them: all of a sentence from one run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import batch_to_device

from ..batches import copied_positions, sized_batches
from ..modules.chunked import ChunkedReBAPooling
from ..modules.pooling import ReBAPooling

Subtoken = Literal["first", "last"]


def word_vectors(
    model: SentenceTransformer,
    sentences: Sequence[Sequence[str]],
    *,
    separator: str = " ",
    subtoken: Subtoken = "first",
    batch_size: int | None = None,
    batch_tokens: int | None = None,
    prompt: str | None = None,
    progress: Callable[..., object] | None = None,
) -> NDArray[np.float32]:
    """Vectors of the words of sentences, each distinct sentence run once.

    A word's vector is that of one of its tokens: the last hidden state (Echo: in the last copy), or in a ReBA pipeline
    the backward-attention vector e_i, whatever the pipeline's sentence pooling. They are not scaled.

    Args:
        model: A model from :func:`st_reba.build`.
        sentences: The words of each.
        separator: What stands between two words of a sentence: ``""`` where words are Chinese characters.
        subtoken: Which token stands for a word of several: the first, as is usual for tagging, or the last, which
            in an unconverted decoder is the only one that has seen the whole word.
        batch_size: Sentences a forward pass. Excludes ``batch_tokens``.
        batch_tokens: Positions a forward pass.
        prompt: As for ``encode``; None: the model's default prompt, if it has one.
        progress: Called with the sentences that have just been run, and their positions.

    Returns:
        [number of words, d] float32, sentence after sentence. NaN for all words of a sentence that is longer than the
        model takes.

    Raises:
        ValueError: The pipeline is not one of this package's, or a word has no token.

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
    texts = [separator.join(words) for words in places]
    content, budget = transformer.content(texts, offsets=True), transformer.budget(prompt)
    tokens = [
        _word_tokens(words, offsets, separator, subtoken)
        for words, offsets in zip(places, content["offset_mapping"], strict=True)
    ]
    lengths = copied_positions(transformer, texts, prompt=prompt)
    read = [place for place, ids in enumerate(content["input_ids"]) if budget is None or len(ids) <= budget]
    ends = np.cumsum([0, *map(len, places)])
    # One array from the start: hidden states of a large model are too many to be held twice.
    found = np.full((int(ends[-1]), transformer.get_embedding_dimension()), np.nan, np.float32)
    read_vectors = _reader(model)
    model.eval()
    for batch in sized_batches([lengths[place] for place in read], batch_size, batch_tokens):
        chosen = [read[each] for each in batch]
        features = transformer.preprocess([texts[place] for place in chosen], prompt=prompt)
        with torch.inference_mode():
            vectors = read_vectors(batch_to_device(features, model.device))
        for row, place in enumerate(chosen):
            found[ends[place] : ends[place + 1]] = vectors[row][tokens[place]].float().cpu().numpy()
        if progress is not None:
            progress(len(chosen), sum(lengths[place] for place in chosen))
    if len(places) == len(sentences):
        return found
    rows = [row for words in sentences for row in range(ends[places[tuple(words)]], ends[places[tuple(words)] + 1])]
    return np.asarray(found[rows])


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
