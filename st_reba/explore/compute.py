"""What the page shows, as numbers: similarity tables, the weights of a text's tokens, results of a search."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import batch_to_device

from ..batches import copied_positions
from ..building import build
from ..evaluation.attention import Maps, SinkShare, attention_maps, sink_table
from ..evaluation.methods import Base, methods_for
from ..evaluation.passes import laid_out
from ..index import Index
from ..modules.capture import Capture
from ..modules.repeat import RepeatTransformer
from ..pipelines import rebuilt
from ..recipe import is_recipe
from ..words import token_spans, words_of
from .names import base_and_method, checked

Weighting = Literal["last", "mean", "word"]

# What the page takes at most: each is a table that has to be read, or work that others wait for.
MOST_SENTENCES = 12
MOST_DOCUMENTS = 100
MOST_CHARACTERS = 300
MOST_COPIES = 4
MOST_POSITIONS = 192
MOST_RESULTS = 5
# An index finds so many, which each method orders anew by so many of their characters.
MOST_FOUND = 30
MOST_READ = 1000


class Refused(ValueError):
    """An input that the page does not take.

    Args:
        key: The sentence in words.yaml that says so.
        **values: What stands in it.
    """

    def __init__(self, key: str, **values: Any) -> None:
        super().__init__(f"{key}: {values}")
        self.key, self.values = key, values


def open_models(names: Sequence[str], **running: Any) -> dict[str, SentenceTransformer]:
    """Build or load what a user names.

    Args:
        names: Each a saved model's folder or Hub id; a base, alone for ReBA or with a method behind a space,
            as ``"mini echo:pooling=mean"``; ``"zoo:NAME"``; or a recipe's file.
        **running: ``device``, ``dtype`` and ``trust_remote_code``, as ``build`` takes them.

    Returns:
        The models by what was given.

    Raises:
        ValueError: There is none or too many, one stands twice, or it is not known: the message has the nearest name.
        OSError: A base was not found.

    Example:
        >>> list(open_models(["mini", "mini echo:pooling=mean"]))
        ['mini', 'mini echo:pooling=mean']
    """
    return {name: _open(name, running) for name in checked(names)}


def _open(name: str, running: Mapping[str, Any]) -> SentenceTransformer:
    base, method = base_and_method(name)
    if base.startswith("zoo:") or is_recipe(base):
        return build(base, method or None, **running)
    home = Base(base, **running)
    return methods_for(home, [method] if method else None, default="reba")[0].build(home)


def open_index(path: str | os.PathLike[str], models: Mapping[str, SentenceTransformer], **running: Any) -> Index:
    """Open an index with the model on the page that built it, else with the one that it remembers.

    Raises:
        FileNotFoundError: There is no index.
        ValueError: It is damaged, or its model is gone.
    """
    for model in models.values():
        try:
            return Index.open(path, model)
        except ValueError:
            continue  # Another model's vectors: the next may be the one.
    index = Index.open(path, **running)
    # Loads the model now, and not when somebody searches.
    index.search("?", k=1)
    return index


def lines_of(text: str, *, least: int, most: int) -> list[str]:
    """Texts, one a line, as many and as long as the page takes; else :class:`Refused`."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) < least:
        raise Refused("too_few", count=len(lines), least=least)
    if len(lines) > most:
        raise Refused("too_many", count=len(lines), most=most)
    for number, line in enumerate(lines, 1):
        if len(line) > MOST_CHARACTERS:
            raise Refused("too_long", number=number, count=len(line), most=MOST_CHARACTERS)
    return lines


def similarities(model: SentenceTransformer, texts: Sequence[str]) -> NDArray[np.float64]:
    """Cosines between all texts, [N, N].

    Example:
        >>> import st_reba
        >>> similarities(st_reba.build("mini"), ["a cat", "a cat"]).round(3).tolist()
        [[1.0, 1.0], [1.0, 1.0]]
    """
    vectors = _unit(model.encode(list(texts), show_progress_bar=False))
    cosines: NDArray[np.float64] = vectors @ vectors.T
    return cosines


@dataclass(frozen=True)
class Inside:
    """One text in a model.

    Args:
        tokens: The T tokens, as readers know them.
        copies: [T] 0 at special and template tokens, c in copy c.
        rows: [n, T] the rows of A^new of copy 1's tokens, at content positions from the token itself on; else 0.
        maps: The attention of every layer.
        sinks: How much of it falls on the first token.
    """

    tokens: tuple[str, ...]
    copies: tuple[int, ...]
    rows: NDArray[np.float64]
    maps: Maps
    sinks: tuple[SinkShare, ...]

    def weights(self, weighting: Weighting, chosen: Sequence[int] = ()) -> NDArray[np.float64]:
        """The weight of each position, [T]: e_n's; alpha_t, of which the mean divides by n; or a word's, the mean of
        its tokens' rows (``chosen``, from 0)."""
        rows = self.rows
        if weighting == "mean":
            return np.asarray(rows.sum(axis=0))
        return np.asarray(rows[-1] if weighting == "last" else rows[list(chosen)].mean(axis=0))


def can_look(model: SentenceTransformer) -> bool:
    """Whether :func:`look` can show a model: it begins with RepeatTransformer, with one template."""
    return isinstance(model[0], RepeatTransformer) and model[0].rows == 1


def copies_of(model: SentenceTransformer) -> tuple[int, bool]:
    """How often a model repeats a text, and whether that can be changed: a template says it by itself."""
    first: Any = model[0]
    return first.repeats, first.layout.template is None


def passes_of(model: SentenceTransformer) -> int:
    """How many passes through a layer a text takes: a layer that runs twice counts twice."""
    first: Any = model[0]
    return int(first.runs + (0 if first.stack is None else len(first.stack.second)))


def look(model: SentenceTransformer, text: str, repeats: int) -> Inside:
    """Run a text and keep its backward attention and its attention.

    Args:
        model: A model that :func:`can_look` allows.
        text: The text.
        repeats: Copies; another number than the model's own leaves the model as it is.

    Raises:
        Refused: The text takes too many positions, or is cut.
        ValueError: The backbone looks both ways.

    Source:
        ReBA, section 3.3; NoSink, section 3.4.

    Example:
        >>> import st_reba
        >>> inside = look(st_reba.build("mini"), "天气很好", repeats=2)
        >>> inside.copies, inside.rows.shape, len(inside.maps.layers)
        ((0, 1, 1, 1, 1, 2, 2, 2, 2), (4, 9), 6)
    """
    transformer: Any = model[0]
    if transformer.repeats != repeats:
        transformer = laid_out(transformer, replace(transformer.layout, repeats=repeats), transformer.stages)
        model = rebuilt(model, [transformer, *list(model)[1:]])
    prompt = model.prompts.get(model.default_prompt_name or "")
    positions = copied_positions(transformer, [text], prompt=prompt)[0]
    if positions > MOST_POSITIONS:
        raise Refused("too_many_positions", count=positions, most=MOST_POSITIONS)
    features = batch_to_device(transformer.preprocess([text], prompt=prompt), model.device)
    _, kept, length = features["places"][0]
    if kept < (count := len(transformer.content([text])["input_ids"][0])):
        raise Refused("cut", count=count, kept=kept)
    model.eval()
    with torch.inference_mode():
        captured = transformer(features, watch=[Capture("copy")])
    copies = features["copy_ids"][0, :length].cpu()
    rows = (captured["backward_attention"][0, :, :length].double().cpu() * (copies > 0)).numpy()
    maps = attention_maps(model, text, prompt=prompt)
    return Inside(maps.tokens, tuple(copies.tolist()), rows, maps, tuple(sink_table([maps])))


def tokens_of(model: SentenceTransformer, text: str, word: str) -> list[int]:
    """The content tokens, from 0, on which a word falls where it stands first in the text; else :class:`Refused`."""
    start = text.find(word.strip()) if word.strip() else -1
    if start < 0:
        raise Refused("no_word", word=word.strip())
    transformer: Any = model[0]
    spans = token_spans(transformer, {0: (text, (start, start + len(word.strip())))}, None)
    return [int(place) for place in spans[0].nonzero()]


@dataclass(frozen=True)
class Hit:
    """A text that was found, with its cosine (of an index: its score)."""

    score: float
    text: str


def ranked(model: SentenceTransformer, query: str, texts: Sequence[str], k: int = MOST_RESULTS) -> list[Hit]:
    """The k texts that are nearest to a query by the cosine, the best first.

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini", "echo", pooling="mean")
        >>> ranked(model, "a cat", ["the moon", "a cat"], k=1)[0].text
        'a cat'
    """
    read = [text[:MOST_READ] for text in texts]
    found = _unit(model.encode_document(read, show_progress_bar=False))
    scores = found @ _unit(model.encode_query([query], show_progress_bar=False))[0]
    best = np.argsort(-scores, kind="stable")[:k]
    return [Hit(float(scores[place]), texts[place]) for place in best]


def found_in(index: Index, query: str) -> list[Hit]:
    """What an index finds, the best first."""
    return [Hit(each.score, each.passage or each.text) for each in index.search(query, k=MOST_FOUND)]


def shared_words(query: str, text: str) -> list[tuple[str, bool]]:
    """A text in pieces, each with whether its words stand in the query too, upper and lower case alike.

    Example:
        >>> shared_words("a big Cat", "The cat is big.")
        [('The ', False), ('cat', True), (' is ', False), ('big', True), ('.', False)]
    """
    known = {query[start:end].casefold() for _, (start, end) in words_of(query)}
    pieces: list[tuple[str, bool]] = []
    place = 0
    for _, (start, end) in words_of(text):
        if text[start:end].casefold() in known:
            pieces += [(text[place:start], False), (text[start:end], True)]
            place = end
    return [piece for piece in [*pieces, (text[place:], False)] if piece[0]]


def _unit(vectors: Any) -> NDArray[np.float64]:
    wide = np.asarray(vectors, dtype=np.float64)
    unit: NDArray[np.float64] = wide / np.linalg.norm(wide, axis=1, keepdims=True).clip(min=1e-12)
    return unit
