"""Answers of the three tabs: from what was entered to HTML."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from . import compute, draw

logger = logging.getLogger(__name__)


class Answers:
    """What the page answers, in the words of a language."""

    def __init__(self, models: Mapping[str, Any], index: Any, words: Mapping[str, str]) -> None:
        self.models, self.index, self.words = models, index, words
        # Kept, so that a slider does not run a model again; all layers' attention is large.
        self._similar = lru_cache(64)(lambda name, texts: compute.similarities(models[name], texts))
        self._inside = lru_cache(4)(lambda name, text, repeats: compute.look(models[name], text, repeats))
        self._ranked = lru_cache(64)(lambda name, query, texts: compute.ranked(models[name], query, texts))

    def compare(self, names: Sequence[str], text: str) -> str:
        texts = tuple(compute.lines_of(text, least=2, most=compute.MAX_SENTENCES))
        return draw.comparison({name: self._similar(name, texts) for name in _some(names)}, texts, self.words)

    def look(self, name: str, text: str, repeats: float, weighting: compute.Weighting, word: str, layer: float) -> str:
        (text,) = compute.lines_of(text, least=1, most=1)
        inside = self._inside(name, text, int(repeats))
        rows = {"mean": [], "last": [len(inside.rows) - 1]}
        chosen = rows[weighting] if weighting in rows else compute.tokens_of(self.models[name], text, word)
        shown = min(int(layer), len(inside.maps.layers) - 1)
        return draw.inside_text(inside, inside.weights(weighting, chosen), chosen, shown, self.words)

    def search(self, names: Sequence[str], where: str, mode: str, query: str, text: str) -> str:
        (query,) = compute.lines_of(query, least=1, most=1)
        about, found = self.words["found"], {}
        if where == "index":
            # An index without words is still searched by vectors.
            wanted_mode = None if mode == "hybrid" else mode
            results = self.index.search(query, k=compute.MAX_FOUND, mode=wanted_mode)
            hits = [(result.score, result.passage or result.text) for result in results]
            found[self.words["index_column"]] = hits[: compute.MAX_RESULTS]
            texts = [text for _, text in hits]
            about += " " + self.words["index_about"].format(most=compute.MAX_FOUND, read=compute.MAX_READ)
        else:
            texts = compute.lines_of(text, least=1, most=compute.MAX_DOCUMENTS)
        if texts:
            found |= {name: self._ranked(name, query, tuple(texts)) for name in _some(names)}
        return draw.results(found, query, about)

    def or_problem(self, run: Callable[..., str]) -> Callable[..., str]:
        """The same function, but an error takes the answer's place."""

        def answered(*values: Any) -> str:
            try:
                return run(*values)
            except compute.Refused as refused:
                return draw.problem(self.words["problem"], self.words[refused.key].format(**refused.values))
            except Exception as error:
                logger.exception("The page could not answer.")
                return draw.problem(self.words["problem"], f"{type(error).__name__}: {error}")

        return answered


def _some(names: Sequence[str]) -> Sequence[str]:
    if not names:
        raise compute.Refused("no_model")
    return names
