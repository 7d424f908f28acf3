"""What the tests of the index share: models, texts, and corpora of vectors that no model made."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

from st_reba.corpus.folder import Corpus, ShardDocuments
from st_reba.corpus.store import DocumentStore
from st_reba.files import StoredFile
from st_reba.fingerprint import ModelFingerprint

MINI = Path(__file__).resolve().parents[2] / "st_reba" / "mini"
TEXTS = [
    "A cat sleeps on the warm roof.",
    "The ship left the harbour at dawn.",
    "今天天气很好，我们去公园散步。",
    "银行昨天提高了存款利率。",
    "Bread needs flour, water, salt and time.",
    "猫在屋顶上睡觉。",
    "The bank raised its interest rates.",
    "A list of the kings of France, with dates.",
    "火车晚点了两个小时。",
    "He sold the house and moved to the coast.",
]


def make_model(dtype: str = "float32", pooling: Any = "mean", **kwargs: Any) -> SentenceTransformer:
    transformer = Transformer(str(MINI), model_kwargs={"dtype": dtype})
    return SentenceTransformer(modules=[transformer, Pooling(192, pooling)], device="cpu", **kwargs)


def mark(dim: int, name: str = "made up") -> ModelFingerprint:
    """The fingerprint of a model that there is not."""
    probe = np.random.default_rng(len(name)).standard_normal((2, dim)).astype(np.float32)
    return ModelFingerprint(name, None, "00" * 32, dim, tuple(map(tuple, probe.tolist())))


def clustered(count: int, dim: int, seed: int = 0, centres: int = 20) -> NDArray[np.float32]:
    """Vectors of different lengths around some centres, as texts of some topics have them."""
    rng = np.random.default_rng(seed)
    middle = rng.standard_normal((centres, dim))
    vectors = middle[rng.integers(centres, size=count)] + 0.6 * rng.standard_normal((count, dim))
    return (vectors * rng.uniform(0.2, 5, (count, 1))).astype(np.float32)


def make_corpus(
    path: Path,
    vectors: NDArray[Any],
    *,
    metric: str = "cosine",
    shards: int = 3,
    unusable: Sequence[int] = (),
    ids: Sequence[str] | None = None,
    model: ModelFingerprint | None = None,
) -> Path:
    """A complete corpus of given vectors, in shards of different sizes; the text of row n is "text n"."""
    corpus = Corpus(path)
    corpus.path.joinpath("shards").mkdir(parents=True)
    identity = model or mark(vectors.shape[1])
    corpus.write_header({"status": "complete", "model": identity.to_json(), "model_source": None, "metric": metric})
    bounds = (np.linspace(0, 1, shards + 1) ** 1.5 * len(vectors)).astype(int).tolist()
    for number, (start, stop) in enumerate(zip(bounds[:-1], bounds[1:], strict=True)):
        names = [str(row) if ids is None else ids[row] for row in range(start, stop)]
        with DocumentStore.create(corpus.documents_path(number)) as store:
            store.add_records((name, f"text {name}", "{}") for name in names)
        digest = hashlib.sha256(repr(names).encode()).hexdigest()
        file = StoredFile.of(corpus.documents_path(number), path)
        corpus.write_documents(number, ShardDocuments(start, stop, len(names), 0, digest, file))
        left_out = {row - start: "the model's vector is zero" for row in unusable if start <= row < stop}
        part = vectors[start:stop].copy()
        part[list(left_out)] = np.nan
        corpus.write_vectors(number, part, None, {}, left_out)
    totals = {"shards": shards, "documents": len(vectors), "rejected": 0, "records": len(vectors), "first_record": 0}
    corpus.write_gathered(totals)
    return path
