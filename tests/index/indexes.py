"""What the tests of the index share: texts, made-up vectors, corpora of them, and brute force."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tiny import DIM, WORDS, tiny_model

from st_reba.corpus.encode import Settings, finish
from st_reba.corpus.folder import Corpus, Part, Row
from st_reba.fingerprint import ModelFingerprint, fingerprint
from st_reba.index import Index
from st_reba.index.vectors import scaled

MODEL = tiny_model()
MARK = fingerprint(MODEL)
QUIET: dict[str, Any] = {"show_progress_bar": False}


def texts(count: int, seed: int = 0) -> list[str]:
    """Texts of one to six words."""
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(WORDS[:12], size=random.integers(1, 7))) for _ in range(count)]


GIVEN = texts(40)


def clustered(count: int, dim: int = DIM, seed: int = 0, centres: int = 20) -> NDArray[np.float32]:
    """Vectors of different lengths around some centres, as texts of some topics have them."""
    rng = np.random.default_rng(seed)
    middle = rng.standard_normal((centres, dim))
    vectors = middle[rng.integers(centres, size=count)] + 0.6 * rng.standard_normal((count, dim))
    return (vectors * rng.uniform(0.2, 5, (count, 1))).astype(np.float32)


def unit(vectors: NDArray[Any]) -> NDArray[np.float32]:
    """Of length one."""
    return scaled(vectors, "cosine")


def make_corpus(
    path: Path,
    vectors: NDArray[Any],
    *,
    ids: Sequence[str | None] | None = None,
    metadata: Sequence[Mapping[str, Any]] | None = None,
    metric: str = "cosine",
    parts: int = 3,
    mark: ModelFingerprint = MARK,
) -> Path:
    """A complete corpus of given vectors, in parts of different sizes; the text of row n is "text n"."""
    bounds = (np.linspace(0, 1, parts + 1) ** 1.5 * len(vectors)).astype(int).tolist()
    header = {"model": mark.to_json(), "settings": {**asdict(Settings()), "part_size": len(vectors)}}
    header |= {"model_dtype": "float32", "similarity": metric, "model_source": None}
    corpus = Corpus(path)
    for folder in ("documents", "vectors"):
        (path / folder).mkdir(parents=True)
    corpus.write_header(header)
    for number, (start, stop) in enumerate(zip(bounds[:-1], bounds[1:], strict=True)):
        rows = [
            Row(row, ids[row] if ids else None, f"text {row}", json.dumps(metadata[row] if metadata else {}))
            for row in range(start, stop)
        ]
        corpus.write_part(number, Part(start, stop, rows), str(number))
        corpus.write_vectors(number, vectors[start:stop], str(vectors.dtype))
    finish(corpus, header)
    return path


def from_vectors(path: Path, vectors: NDArray[Any], **options: Any) -> Index:
    """An index of given vectors, that can be added to with `MODEL`."""
    names = ("ids", "metadata", "metric", "parts", "mark")
    given = {name: options.pop(name) for name in names if name in options}
    corpus = make_corpus(path.with_name(f"{path.name} corpus"), vectors, **given)
    return Index.from_corpus(corpus, path, None if "mark" in given else MODEL, **QUIET, **options)


def known(index: Index) -> tuple[list[str], NDArray[np.float64], list[dict[str, Any]]]:
    """Ids, vectors as far as the index knows them, and metadata, of all its documents, in the order of keys."""
    with index._store.reading() as tx:
        rows = tx.execute("SELECT key, id, metadata FROM documents ORDER BY key").fetchall()
        snapshot = index._present()
    keys = np.array([key for key, _, _ in rows], np.int64)
    stop = (snapshot.state.file or {"stop": 0})["stop"]
    vectors = [np.zeros((0, snapshot.state.dim), np.float32)]
    if snapshot.searcher is not None:
        vectors.append(snapshot.searcher.vectors(keys[keys < stop]))
    vectors.append(snapshot.pending[np.searchsorted(snapshot.pending_keys, keys[keys >= stop])])
    return [one for _, one, _ in rows], np.concatenate(vectors).astype(np.float64), [json.loads(m) for *_, m in rows]


def brute(vectors: NDArray[Any], query: NDArray[Any], k: int) -> tuple[list[int], NDArray[np.float64]]:
    """The rows of the k best products, equals in their order, and the products, in float64."""
    scores = vectors.astype(np.float64) @ query.astype(np.float64)
    order = np.lexsort((np.arange(len(scores)), -scores.round(7)))[:k]
    return order.tolist(), scores[order]
