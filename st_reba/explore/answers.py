"""Answers of the three tabs: from what was entered to HTML."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from sentence_transformers import SentenceTransformer

from . import compute, draw

if TYPE_CHECKING:
    from ..index import Index

logger = logging.getLogger(__name__)


class Answers:
    """What the page answers, in the words of a language."""

    def __init__(
        self,
        models: Mapping[str, SentenceTransformer],
        index: Index | None,
        words: Mapping[str, str],
    ) -> None:
        self.models = models
        self.index = index
        self.words = words
        # Cached, so that a slider does not run a model again; the attention of all layers is large.
        self._similarities = lru_cache(64)(compute.similarities)
        self._look = lru_cache(4)(compute.look)
        self._rank = lru_cache(64)(compute.ranked)

    def compare(self, model_names: Sequence[str], entered_text: str) -> str:
        texts = tuple(compute.lines_of(entered_text, least=2, most=compute.MAX_SENTENCES))
        _check_names(model_names)
        tables = {
            model_name: self._similarities(self.models[model_name], texts)
            for model_name in model_names
        }
        return draw.draw_comparison(tables, texts, self.words)

    def look(
        self,
        model_name: str,
        entered_text: str,
        repeats: float,
        weighting: Literal["last", "mean", "word"],
        word: str,
        layer: float,
    ) -> str:
        (text,) = compute.lines_of(entered_text, least=1, most=1)
        inside = self._look(self.models[model_name], text, int(repeats))
        chosen_tokens: list[int] = []
        if weighting == "last":
            chosen_tokens.append(len(inside.rows) - 1)
        elif weighting == "word":
            chosen_tokens = compute.tokens_of(self.models[model_name], text, word)
        weights = inside.weights(chosen_tokens)
        # The slider may still have a layer of another model.
        layer_index = min(int(layer), len(inside.maps.layers) - 1)
        return draw.draw_inside(inside, weights, chosen_tokens, layer_index, self.words)

    def search(
        self,
        model_names: Sequence[str],
        corpus: Literal["index", "pasted"],
        mode: Literal["hybrid", "vectors", "words"],
        entered_query: str,
        entered_text: str,
    ) -> str:
        query = compute.query_of(entered_query)
        heading = self.words["found"]
        results: dict[str, Sequence[compute.ScoredText]] = {}
        if corpus == "index" and self.index is not None:
            index_results = self.index.search(query, k=compute.MAX_HITS, mode=mode)
            hits = [(result.score, result.passage or result.text) for result in index_results]
            results[self.words["index_column"]] = hits[: compute.MAX_RESULTS]
            texts = [text for _, text in hits]
            index_heading = self.words["index_about"]
            heading += " " + index_heading.format(most=compute.MAX_HITS, read=compute.MAX_READ)
        else:
            texts = compute.lines_of(entered_text, least=1, most=compute.MAX_DOCUMENTS)
        if texts:
            _check_names(model_names)
            for model_name in model_names:
                results[model_name] = self._rank(self.models[model_name], query, tuple(texts))
        return draw.draw_results(results, query, heading)

    def or_problem(self, run: Callable[..., str]) -> Callable[..., str]:
        """Wrap a function so that, if it fails, the answer describes the problem."""

        def answer(*values: object) -> str:
            try:
                return run(*values)
            except compute.Refused as refused:
                message = self.words[refused.key].format(**refused.values)
            except Exception as error:
                logger.exception("The page could not answer.")
                message = f"{type(error).__name__}: {error}"
            return draw.draw_problem(self.words["problem"], message)

        return answer


def _check_names(model_names: Sequence[str]) -> None:
    if not model_names:
        raise compute.Refused("no_model")
