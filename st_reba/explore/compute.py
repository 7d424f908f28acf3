"""Numbers on the page: similarities, weights and attention of a text's tokens, search results."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from sentence_transformers.util import batch_to_device, cos_sim, load_file_path

from ..build import build
from ..encode import saved_prompt, transformer_of
from ..evaluation.attention import Maps, attention_maps, sink_table
from ..methods import Method, method_of
from ..modules.capture import Capture
from ..modules.transformer import RepeatTransformer
from ..safety import load
from ..serve.tasks import describe_unserved_tasks
from ..words import tokens_of_span

# The score of a result (for a model, its cosine with the query), and its text.
ScoredText = tuple[float, str]

# Each sentence, position and result becomes a table that has to be read.
MAX_SENTENCES = 12
MAX_DOCUMENTS = 100
MAX_CHARACTERS = 300
MAX_COPIES = 4
MAX_POSITIONS = 320
MAX_RESULTS = 5
# How many results of an index the methods rerank, and how many characters they read of each.
MAX_HITS = 30
MAX_READ = 1000


class Refused(ValueError):
    """Input that the page refuses; ``key`` names the message in words.yaml, ``values`` its fields."""

    def __init__(self, key: str, **values: object) -> None:
        super().__init__(f"{key}: {values}")
        self.key = key
        self.values = values


def open_model(base: str, method: Method | None, **options: Any) -> SentenceTransformer:
    """Load a saved model; build one where the base is not a saved model, or a method is given."""
    is_name = method is None and ("/" in base or os.path.isdir(base))
    if is_name and load_file_path(base, "modules.json") is not None:
        model = load(base, **options)
    else:
        model = build(base, method, **options)
    reasons = describe_unserved_tasks(model)
    if reasons:
        raise ValueError(f"{base}: {next(iter(reasons.values()))}")
    return model


def lines_of(entered_text: str, *, least: int, most: int) -> list[str]:
    """The lines of the entered text; raises Refused if there are too few, too many or too long."""
    stripped_lines = map(str.strip, entered_text.splitlines())
    lines = list(filter(None, stripped_lines))
    if len(lines) < least:
        raise Refused("too_few", count=len(lines), least=least)
    if len(lines) > most:
        raise Refused("too_many", count=len(lines), most=most)
    for line_number, line in enumerate(lines, 1):
        if len(line) > MAX_CHARACTERS:
            raise Refused(
                "too_long",
                number=line_number,
                count=len(line),
                most=MAX_CHARACTERS,
            )
    return lines


def query_of(entered_query: str) -> str:
    """The query; raises Refused if it is blank or too long."""
    query = " ".join(entered_query.split())
    if not query:
        raise Refused("no_query")
    if len(query) > MAX_CHARACTERS:
        raise Refused("long_query", count=len(query), most=MAX_CHARACTERS)
    return query


def similarities(model: SentenceTransformer, texts: Sequence[str]) -> NDArray[np.float32]:
    """Cosines between all texts, [N, N]."""
    vectors = model.encode(list(texts), show_progress_bar=False)
    return np.asarray(cos_sim(vectors, vectors))


@dataclass(frozen=True)
class Inside:
    """One text in a model.

    Args:
        copies: [T] c in copy c, 0 at special and template tokens.
        rows: [n, T] rows of A^new of the n tokens of copy 1, at content positions from the token
            on; elsewhere 0.
        maps: The T tokens, and the attention of every layer.
        sinks: Rows of :func:`st_reba.evaluation.attention.sink_table`.
    """

    copies: list[int]
    rows: NDArray[np.float64]
    maps: Maps
    sinks: list[Any]

    def weights(self, chosen_tokens: Sequence[int]) -> NDArray[np.float64]:
        """Weight of each position, [T], in the vector of the chosen tokens.

        If none are chosen, n times its weight in the mean, n · alpha_t.
        """
        if not chosen_tokens:
            return np.asarray(self.rows.sum(axis=0))
        return np.asarray(self.rows[list(chosen_tokens)].mean(axis=0))


def can_look(model: SentenceTransformer) -> bool:
    """Whether :func:`look` can show a model: it reads texts by one template of ours."""
    return isinstance(model[0], RepeatTransformer) and model[0].template_count == 1


def copies_of(model: SentenceTransformer) -> tuple[int, bool]:
    """Number of copies, and whether it can be changed: a template fixes it."""
    transformer = transformer_of(model)
    can_change = transformer.template is None and method_of(model) is not None
    return transformer.copies, can_change


def passes_of(model: SentenceTransformer) -> int:
    """Number of passes through layers; a layer that runs twice counts twice."""
    transformer = transformer_of(model)
    return transformer.depth + len(transformer.second)


def look(model: SentenceTransformer, text: str, repeats: int) -> Inside:
    """Keep the backward attention of a text and the attention of every layer (ReBA, 3.3; NoSink, 3.4).

    Args:
        model: A model that :func:`can_look` allows. It stays as it is.
        text: The text.
        repeats: Number of copies, where :func:`copies_of` says that it can be changed.

    Example:
        >>> import st_reba
        >>> inside = look(st_reba.build("mini", "reba"), "天气很好", repeats=2)
        >>> inside.copies, inside.rows.shape, len(inside.maps.layers)
        ([0, 1, 1, 1, 1, 2, 2, 2, 2], (4, 9), 6)
    """
    copy_count, can_change = copies_of(model)
    prompt = saved_prompt(model)
    transformer = transformer_of(model)
    if repeats != copy_count and can_change:
        model = _with_copies(model, repeats)
        transformer = transformer_of(model)
    features = batch_to_device(transformer.preprocess([text], prompt=prompt), model.device)
    span = features["spans"][0]
    if span.row_length > MAX_POSITIONS:
        raise Refused("too_many_positions", count=span.row_length, most=MAX_POSITIONS)
    token_count = len(transformer.tokenize_content([text])["input_ids"][0])
    if span.text_length < token_count:
        raise Refused("cut", count=token_count, kept=span.text_length)
    model.eval()
    with torch.inference_mode():
        output = transformer(features, capture=Capture("copy"))
    copy_ids = features["copy_ids"][0, : span.row_length].tolist()
    attention_rows = output["backward_attention"][0, :, : span.row_length]
    rows = attention_rows.double().cpu().numpy()
    maps = attention_maps(model, text, prompt=prompt)
    sinks = list(sink_table([maps]).itertuples())
    return Inside(copy_ids, rows, maps, sinks)


def _with_copies(model: SentenceTransformer, repeats: int) -> SentenceTransformer:
    """A model of the same base that reads a text ``repeats`` times."""
    transformer = transformer_of(model)
    own_options = set(transformer.config_keys) - set(Transformer.config_keys)
    own_options.discard("own_input")  # of a model that keeps the input of its base
    options = {option_name: getattr(transformer, option_name) for option_name in own_options}
    options["repeats"] = repeats
    changed_transformer = type(transformer)(transformer, **options)
    pooling = Pooling(changed_transformer.get_embedding_dimension())
    return SentenceTransformer(modules=[changed_transformer, pooling], device=str(model.device))


def tokens_of(model: SentenceTransformer, text: str, word: str) -> list[int]:
    """Content tokens, from 0, of the word's first occurrence in the text; else :class:`Refused`."""
    word = word.strip()
    if not word or word not in text:
        raise Refused("no_word", word=word)
    word_start = text.index(word)
    span = (word_start, word_start + len(word))
    offsets = transformer_of(model).tokenize_content([text], offsets=True)["offset_mapping"][0]
    return tokens_of_span(0, text, span, offsets, max_tokens=len(offsets))


def ranked(model: SentenceTransformer, query: str, texts: Sequence[str]) -> list[ScoredText]:
    """The texts nearest to a query by cosine, the best first."""
    read_texts = [text[:MAX_READ] for text in texts]
    document_vectors = model.encode_document(read_texts, show_progress_bar=False)
    query_vectors = model.encode_query([query], show_progress_bar=False)
    scores = cos_sim(query_vectors, document_vectors)[0].tolist()
    hits = list(zip(scores, texts, strict=True))
    hits.sort(key=lambda hit: -hit[0])
    return hits[:MAX_RESULTS]
