"""Small tasks of mteb, of each kind that the papers score, whose data are made here."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import numpy as np
import pytest

pytest.importorskip("mteb")

from datasets import Dataset, DatasetDict
from mteb.abstasks.classification import AbsTaskClassification
from mteb.abstasks.clustering_legacy import AbsTaskClusteringLegacy
from mteb.abstasks.pair_classification import AbsTaskPairClassification
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.sts import AbsTaskSTS
from mteb.abstasks.task_metadata import TaskMetadata

WORDS = ["the", "cat", "dog", "rain", "bank", "river", "runs", "home", "今天", "天气", "很好", "银行", "公园", "下雨"]
MAIN = {
    "STS": "cosine_spearman",
    "PairClassification": "max_ap",
    "Classification": "accuracy",
    "Clustering": "v_measure",
    "Reranking": "map_at_1000",
    "Retrieval": "ndcg_at_10",
}
CLASSES: dict[str, Any] = {
    "STS": AbsTaskSTS,
    "PairClassification": AbsTaskPairClassification,
    "Classification": AbsTaskClassification,
    "Clustering": AbsTaskClusteringLegacy,
    "Reranking": AbsTaskRetrieval,
    "Retrieval": AbsTaskRetrieval,
}


def unseeded(patch: pytest.MonkeyPatch) -> None:
    """mteb seeds every library's generators for each of its 2,000 tasks, which takes seconds: it does so no more."""

    def alone(seed: int) -> tuple[random.Random, np.random.Generator]:
        return random.Random(seed), np.random.default_rng(seed)

    patch.setattr("mteb.abstasks.abstask._set_seed", alone, raising=False)


def texts(count: int, seed: int = 0, words: int = 4) -> list[str]:
    """Random texts; some stand twice."""
    chance = random.Random(seed)
    return [" ".join(chance.choices(WORDS, k=chance.randrange(1, words + 1))) for _ in range(count)]


def make_data(kind: str, seed: int = 0, documents: int = 40) -> Any:
    """Random data, in the form that mteb has for a kind."""
    chance = random.Random(seed + 1)
    if kind in ("STS", "PairClassification"):
        values = [chance.random() * 5 if kind == "STS" else chance.randrange(2) for _ in range(24)]
        column = "score" if kind == "STS" else "labels"
        rows = {"sentence1": texts(24, seed), "sentence2": texts(24, seed + 9), column: values}
        return DatasetDict(test=Dataset.from_dict(rows))
    if kind == "Classification":

        def part(count: int, offset: int) -> Any:
            return Dataset.from_dict({"text": texts(count, seed + offset), "label": [n % 2 for n in range(count)]})

        return DatasetDict(train=part(40, 0), test=part(30, 5))
    if kind == "Clustering":
        sets = [texts(20, seed + n, 6) for n in range(2)]
        return DatasetDict(test=Dataset.from_dict({"sentences": sets, "labels": [[n % 3 for n in range(20)]] * 2}))
    corpus = list(dict.fromkeys(texts(2 * documents, seed + 3, 6)))[:documents]
    queries = list(dict.fromkeys(texts(30, seed + 4)))[:12]
    names = [f"d{n:04}" for n in range(len(corpus))]
    relevant = {f"q{n}": {name: 1 for name in chance.sample(names, 3)} for n in range(len(queries))}
    ranked = {query: sorted({*found, *chance.sample(names, 8)}) for query, found in relevant.items()}
    split = {
        "corpus": Dataset.from_dict({"id": names, "text": corpus, "title": [""] * len(corpus)}),
        "queries": Dataset.from_dict({"id": list(relevant), "text": queries}),
        "relevant_docs": relevant,
        "top_ranked": ranked if kind == "Reranking" else None,
    }
    return {"default": {"test": split}}


def make_task(
    kind: str, name: str | None = None, seed: int = 0, documents: int = 40, kind_of: Any = None, **attributes: Any
) -> Any:
    """A task of a kind; ``loads`` counts how often its data were loaded, and ``error`` is raised in their place."""

    def load_data(self: Any, *arguments: Any, **options: Any) -> None:
        if self.data_loaded:
            return
        self.loads += 1
        if self.error is not None:
            raise self.error
        self.dataset, self.data_loaded = make_data(kind, seed, documents), True

    metadata = TaskMetadata(
        name=name or f"own-{kind}",
        description="made of random words",
        type=kind,
        category="t2t",
        main_score=MAIN[kind],
        eval_langs=["eng-Latn"],
        eval_splits=["test"],
        dataset={"path": "own", "revision": hashlib.sha256(f"{kind} {seed}".encode()).hexdigest()},
    )
    body = {"metadata": metadata, "load_data": load_data, "loads": 0, "error": None, **attributes}
    return type(f"Own{kind}", (kind_of or CLASSES[kind],), body)()
