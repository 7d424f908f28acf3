"""Whitening of an index: what search needs of vectors, fitted without labels on the documents.

Raw vectors are those of the model. A whitened index holds and compares whitened ones: documents and
queries lose a mean of their own, and directions that all documents share count for less. Its linear
map is kept in ``index.sqlite``, and changes with the vectors that it made, in one transaction.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from sqlite3 import Connection
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from ..encode import encode_texts
from ..filter_options import MIN_FOR_DIRECTIONS, MIN_FOR_MEAN, TOKEN_SHARE
from ..sentences import QUERY_SAMPLE, sample_sentences
from .samples import Sample
from .schema import DamagedError
from .scoring import Matrix, prepare_vectors
from .state import IndexState

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from ..encode import Role
    from ..linear_filter import Filter
    from ..modules import TokenPart

logger = logging.getLogger(__name__)

# Variance below this share of the vectors' mean squared length is mostly rounding.
_MIN_VARIANCE = 1e-6
# Rows whose float64 copies exist at a time.
_ROWS_AT_A_TIME = 4096


class Whitening:
    """Whitens vectors, and recovers raw ones from whitened ones.

    Args:
        linear_filter: The map; its weight is square and can be inverted.
        metric: ``"cosine"``: vectors have length one before and after it; ``"dot"``: any length.
        token_part: Makes the part for tokens, which follows the whitened vectors; None: there is none.

    Example:
        >>> from st_reba import Filter
        >>> raw_vectors = np.random.default_rng(0).normal(2.0, [3.0, 2.0, 1.0], (500, 3))
        >>> whitening = Whitening(Filter.fit_for_search(raw_vectors, raw_vectors), "dot")
        >>> whitened_vectors = whitening.apply(raw_vectors)
        >>> bool(np.abs(whitening.invert(whitened_vectors) - raw_vectors).max() < 1e-5)
        True
    """

    def __init__(
        self, linear_filter: Filter, metric: str, token_part: TokenPart | None = None
    ) -> None:
        self.linear_filter = linear_filter
        self.token_part = token_part
        self._metric = metric

    @classmethod
    def fit(
        cls,
        model: SentenceTransformer,
        sample: Sample,
        metric: str,
        *,
        with_tokens: bool,
    ) -> Self | None:
        """Fit as much as the sample allows; None: it allows nothing.

        Args:
            model: The model of the vectors; it encodes up to 200 sentences of the texts as queries.
            sample: With 100 different texts or more, the whitening is complete; with 20 to 99, only
                the means are removed.
            metric: The metric of the index.
            with_tokens: Let a text's tokens have a part of their own, if vectors are compared by
                cosines and the model is one of ours.
        """
        distinct_sample = sample.without_repetitions()
        text_count = len(distinct_sample.texts)
        if text_count < MIN_FOR_MEAN or not _have_variance(distinct_sample.vectors):
            return None
        query_sentences = sample_sentences(distinct_sample.texts, QUERY_SAMPLE)
        raw_query_vectors = encode_texts(model, query_sentences, task="query")
        query_vectors = prepare_vectors(raw_query_vectors, metric)
        # Imported here, as they import torch, which a search by words does without.
        from ..linear_filter import Filter
        from ..token_means import fit_token_part

        linear_filter = Filter.fit_for_search(distinct_sample.vectors, query_vectors)
        assert linear_filter is not None  # as there are enough texts
        token_part = None
        if with_tokens and metric == "cosine":
            width = distinct_sample.vectors.shape[1]
            token_part = fit_token_part(model, distinct_sample.texts, query_sentences, width)
        return cls(linear_filter, metric, token_part)

    @property
    def description(self) -> str:
        """Its kind and what it was fitted on: ``"whiten:power=0.25,texts=1400,queries=200"``."""
        return self.linear_filter.description

    @property
    def token_dimension(self) -> int:
        """Dimension of the part that a text's tokens have."""
        if self.token_part is None:
            return 0
        return self.token_part.dimensions

    @cached_property
    def _inverse_weight(self) -> NDArray[np.float64]:
        return np.asarray(np.linalg.inv(self.linear_filter.weight), np.float64)

    def convert(
        self,
        raw_vectors: NDArray[np.floating],
        task: Role,
        model: SentenceTransformer | None,
        texts: Sequence[str] | None,
    ) -> Matrix:
        """Vectors [n, d + k] of documents or queries, as they are searched.

        Args:
            raw_vectors: [n, d].
            task: What they are of.
            model: The model of the vectors.
            texts: Their texts; None, for queries: scores come only from the model's part.
        """
        whitened_vectors = self.apply(raw_vectors, task)
        if self.token_part is None:
            return whitened_vectors
        if model is None or texts is None:
            # In documents, the model's part is divided by this; multiplied, it alone makes the score.
            part_length = np.float32(np.sqrt(1 + TOKEN_SHARE))
            no_tokens = np.zeros((len(whitened_vectors), self.token_dimension), np.float32)
            return np.concatenate([whitened_vectors * part_length, no_tokens], axis=1)
        from ..token_means import append_tokens_of

        return append_tokens_of(self.token_part, whitened_vectors, model, texts, task)

    def model_part(self, joined_vectors: Matrix) -> Matrix:
        """The whitened vectors [n, d] alone, without the part for tokens."""
        if self.token_part is None:
            return joined_vectors
        width = len(self.linear_filter.mean)
        return prepare_vectors(joined_vectors[:, :width], self._metric)

    def apply(self, raw_vectors: NDArray[np.floating], task: Role = "document") -> Matrix:
        """Whiten vectors [n, d] of documents, or of queries; for cosines, to length one."""
        whitened_vectors = np.empty(raw_vectors.shape, np.float32)
        for start in range(0, len(raw_vectors), _ROWS_AT_A_TIME):
            rows = slice(start, start + _ROWS_AT_A_TIME)
            unit_vectors = prepare_vectors(raw_vectors[rows], self._metric)
            whitened_vectors[rows] = prepare_vectors(
                self.linear_filter.apply(unit_vectors, task), self._metric
            )
        return whitened_vectors

    def invert(self, whitened_vectors: Matrix) -> Matrix:
        """Recover the raw vectors [n, d] of whitened documents; for cosines, of length one."""
        whitened_vectors = self.model_part(whitened_vectors)
        inverse_weight = self._inverse_weight
        raw_vectors = np.empty_like(whitened_vectors)
        for start in range(0, len(whitened_vectors), _ROWS_AT_A_TIME):
            rows = slice(start, start + _ROWS_AT_A_TIME)
            offsets = whitened_vectors[rows].astype(np.float64) @ inverse_weight.T
            if self._metric == "cosine":
                offsets *= _distances_to_sphere(self.linear_filter.mean, offsets)[:, None]
            raw_vectors[rows] = prepare_vectors(self.linear_filter.mean + offsets, self._metric)
        return raw_vectors


def _have_variance(vectors: Matrix) -> bool:
    total_variance = vectors.var(axis=0, dtype=np.float64).sum()
    squared_length = np.square(vectors, dtype=np.float64).sum(axis=1).mean()
    return bool(total_variance > _MIN_VARIANCE * squared_length)


def _distances_to_sphere(
    mean: NDArray[np.float64],
    directions: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Factors for directions [n, d] so that, added to a mean, they give vectors of length one.

    Cosines have lost the length of the whitened vector; that of the raw one is known.
    """
    squared_lengths = np.einsum("nd,nd->n", directions, directions)
    projections = directions @ mean
    remaining_square = max(0.0, 1 - float(mean @ mean))
    roots = np.sqrt(projections**2 + squared_lengths * remaining_square)
    # The positive solution in two forms without differences of nearly equal numbers.
    distances = np.zeros(len(directions))
    is_outward = projections > 0
    is_inward = ~is_outward & (squared_lengths > 0)
    np.divide(remaining_square, projections + roots, out=distances, where=is_outward)
    np.divide(roots - projections, squared_lengths, out=distances, where=is_inward)
    return distances


def check_whiten(whiten: bool | None, tokens: bool) -> None:
    """Refuse values of the wrong type."""
    if whiten is not None and not isinstance(whiten, bool):
        raise TypeError(f"whiten={whiten!r:.80} must be True, False or None")
    if not isinstance(tokens, bool):
        raise TypeError(f"tokens={tokens!r:.80} must be True or False")


def should_whiten(model: SentenceTransformer, whiten: bool | None) -> bool:
    """The option's value; None: True for a decoder without training and without a filter."""
    if whiten is not None:
        return whiten
    recipe = getattr(model[0], "recipe", None)
    return isinstance(recipe, dict) and "filter" not in recipe


def possible_token_dimension(
    model: SentenceTransformer, metric: str, whiten: bool | None, tokens: bool
) -> int:
    """Dimension of the part for tokens, given enough texts; options as for ``Index.build``."""
    if not tokens or metric != "cosine" or not should_whiten(model, whiten):
        return 0
    from ..token_means import token_dimension_for

    return token_dimension_for(model)


def log_whitening(
    whitening: Whitening | None,
    index_folder: Path,
    *,
    is_asked_for: bool,
) -> None:
    """Log an index's whitening; warn if one was asked for, but there are too few texts for it."""
    if whitening is not None and whitening.linear_filter.kind == "whiten":
        logger.info("%s: vectors are whitened (%s)", index_folder, whitening.description)
        return
    level = logging.WARNING if is_asked_for else logging.INFO
    extent = "vectors are not whitened"
    if whitening is not None:
        extent = f"only the means are removed ({whitening.description})"
    logger.log(
        level,
        "%s: %s: there are too few different texts (means need %d, whitening %d); "
        "when there are more, Index.compact(whiten=True) "
        "(st-reba prune %s --compact --whiten) fits it",
        index_folder,
        extent,
        MIN_FOR_MEAN,
        MIN_FOR_DIRECTIONS,
        index_folder,
    )


def read_whitening(connection: Connection, state: IndexState) -> Whitening | None:
    """The whitening of a state; a DamagedError where it is not what was written."""
    if state.whitening is None:
        return None
    from ..linear_filter import Filter
    from ..token_means import token_part_from_bytes

    filter_content, *token_contents = read_whitening_bytes(connection, state)
    token_part = None
    if token_contents:
        token_part = token_part_from_bytes(token_contents[0], state.dimension)
    return Whitening(Filter.from_bytes(filter_content), state.metric, token_part)


def read_whitening_bytes(connection: Connection, state: IndexState) -> list[bytes]:
    """The rows of a whitening: `Filter.to_bytes`, and the part for tokens if there is one; a digest is compared."""
    rows = connection.execute("SELECT content FROM whitening ORDER BY rowid").fetchall()
    if not rows:
        raise DamagedError("its whitening is missing")
    contents: list[bytes] = [content for (content,) in rows]
    are_bytes = all(type(content) is bytes for content in contents)
    if not are_bytes or _digest_of(contents) != state.whitening_sha256:
        raise DamagedError("its whitening is not what was written")
    return contents


def write_whitening(connection: Connection, state: IndexState, whitening: Whitening | None) -> None:
    """Store a whitening in place of the one before, and name it in the state; None: none."""
    connection.execute("DELETE FROM whitening")
    state.whitening = None
    state.whitening_sha256 = ""
    state.token_dimension = 0
    if whitening is None:
        return
    contents = [whitening.linear_filter.to_bytes()]
    if whitening.token_part is not None:
        from ..token_means import token_part_to_bytes

        contents.append(token_part_to_bytes(whitening.token_part))
    rows = [(content,) for content in contents]
    connection.executemany("INSERT INTO whitening VALUES (?)", rows)
    state.whitening = whitening.description
    state.whitening_sha256 = _digest_of(contents)
    state.token_dimension = whitening.token_dimension


def _digest_of(contents: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for content in contents:
        digest.update(len(content).to_bytes(8, "little"))
        digest.update(content)
    return digest.hexdigest()
