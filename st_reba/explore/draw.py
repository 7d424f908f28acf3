"""Numbers as HTML: tables that are heat maps, tokens with their weights, lists of results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from jinja2 import Environment
from numpy.typing import NDArray

from ..words import words_of
from .compute import Inside, ScoredText

Numbers = NDArray[np.floating[Any]]
Words = Mapping[str, str]
# A text in pieces, each with whether it is a word of the query.
MarkedText = list[tuple[str, bool]]

LANGUAGES = {"en": "English", "zh": "中文"}
_FOLDER = Path(__file__).parent
_WORDS_YAML = (_FOLDER / "words.yaml").read_text(encoding="utf-8")
# All texts of the page, by language.
WORDS: dict[str, dict[str, str]] = yaml.safe_load(_WORDS_YAML)
_ANSWERS_HTML = (_FOLDER / "answers.html").read_text(encoding="utf-8")
# Its macros, which return HTML.
_ANSWERS: Any = Environment(autoescape=True).from_string(_ANSWERS_HTML).module
# The lower end of the scale of attention.
MIN_ATTENTION = 1e-3


@dataclass(frozen=True)
class HeatMap:
    """A table, each of whose cells is as dark as its share of the scale.

    Args:
        values: [rows, columns] the numbers.
        shares: [rows, columns] from 0 to 1.
        row_names, column_names: What the page shows beside and above them.
        shows_numbers: Show the numbers in the cells; otherwise they appear at the pointer.
        chosen_rows: Rows that are highlighted.
    """

    values: Numbers
    shares: Numbers
    row_names: Sequence[str]
    column_names: Sequence[str]
    shows_numbers: bool = False
    chosen_rows: Sequence[int] = ()


def draw_problem(title: str, message: str) -> str:
    """A message in place of an answer."""
    return str(_ANSWERS.problem(title, message))


def draw_comparison(tables: Mapping[str, Numbers], texts: Sequence[str], words: Words) -> str:
    """Similarity tables of several models side by side, on one scale."""
    is_pair = ~np.eye(len(texts), dtype=bool)
    pair_cosines = np.stack(list(tables.values()))[:, is_pair]
    lowest = float(pair_cosines.min(initial=1.0))
    scale_width = max(1.0 - lowest, 1e-6)
    column_names: list[str] = []
    row_names: list[str] = []
    for number, text in enumerate(texts, 1):
        column_names.append(str(number))
        row_names.append(f"{number} {text}")
    heat_maps: dict[str, HeatMap] = {}
    for model_name, table in tables.items():
        shares = ((table - lowest) / scale_width).clip(0.0, 1.0)
        heat_maps[model_name] = HeatMap(table, shares, row_names, column_names, shows_numbers=True)
    return str(_ANSWERS.comparison(heat_maps, lowest, words))


def draw_inside(
    inside: Inside,
    weights: Numbers,
    chosen_tokens: Sequence[int],
    layer_index: int,
    words: Words,
) -> str:
    """A text's copies and weights, its A^new, one layer's attention, and the sink."""
    tokens = inside.maps.tokens
    layer_matrix = inside.maps.layers[layer_index].matrix
    shares = weights / (weights.max() or 1.0)
    weighted_tokens = list(zip(inside.copies, tokens, weights, shares, strict=True))
    copies: list[tuple[int, list[tuple[str, float, float]]]] = []
    for copy_number, copy_tokens in groupby(weighted_tokens, itemgetter(0)):
        copies.append((copy_number, [token[1:] for token in copy_tokens]))
    first_copy = [token for copy_number, token, *_ in weighted_tokens if copy_number == 1]
    backward_shares = logarithmic_shares(inside.rows)
    layer_shares = logarithmic_shares(layer_matrix)
    answer = _ANSWERS.inside(
        copies=copies,
        backward_map=HeatMap(
            inside.rows,
            backward_shares,
            first_copy,
            tokens,
            chosen_rows=chosen_tokens,
        ),
        layer_map=HeatMap(layer_matrix, layer_shares, tokens, tokens),
        sinks=inside.sinks,
        layer_index=layer_index,
        first_token=tokens[0],
        words=words,
    )
    return str(answer)


def draw_results(results: Mapping[str, Sequence[ScoredText]], query: str, heading: str) -> str:
    """Results of several methods side by side; words of the query are marked."""
    marked_results: dict[str, list[tuple[float, MarkedText]]] = {}
    for model_name, hits in results.items():
        marked_hits = marked_results.setdefault(model_name, [])
        for score, text in hits:
            marked_hits.append((score, split_at_words(query, text)))
    return str(_ANSWERS.results(marked_results, heading))


def split_at_words(query: str, text: str) -> MarkedText:
    """Cut a text at the words of a query.

    Example:
        >>> split_at_words("a cat", "The Cat sleeps")
        [('The ', False), ('Cat', True), (' sleeps', False)]
    """
    query_words: set[str] = set()
    for _, (start, end) in words_of(query):
        query_words.add(query[start:end].casefold())
    segments: MarkedText = []
    position = 0
    for _, (start, end) in words_of(text):
        if text[start:end].casefold() in query_words:
            segments.append((text[position:start], False))
            segments.append((text[start:end], True))
            position = end
    return [*segments, (text[position:], False)]


def logarithmic_shares(values: Numbers) -> Numbers:
    """1 where attention is 1, 0 where it is ``MIN_ATTENTION`` or less."""
    logarithms = np.log10(values.clip(min=MIN_ATTENTION))
    shares: Numbers = 1.0 - logarithms / math.log10(MIN_ATTENTION)
    return shares.clip(0.0, 1.0)
