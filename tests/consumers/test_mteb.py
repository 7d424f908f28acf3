"""mteb on two tasks of one's own, against the metrics by their definitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

SECTION = "mteb"


def told(names: dict[str, Any]) -> dict[str, Any]:
    import mteb
    from mteb.models import SentenceTransformerEncoderWrapper

    scores = {each.task_name: each.scores["test"][0] for each in names["result"].task_results}
    wrapped = SentenceTransformerEncoderWrapper(names["model"])
    names["model"].model_card_data.model_name = "organization/name"
    named = SentenceTransformerEncoderWrapper(names["model"])
    mock = mteb.mock_run(wrapped).task_results
    kinds = {name: "skipped" if each is None else type(each).__name__ for name, each in mock.items()}
    return {
        "scores": {
            task: {key: value for key, value in each.items() if isinstance(value, float)}
            for task, each in scores.items()
        },
        "mock": kinds,
        "errors": {name: str(each) for name, each in mock.items() if kinds[name] == "TaskError"},
        "names": [wrapped.mteb_model_meta.name, named.mteb_model_meta.name],
    }


def test_sts(told: dict[str, Any], models: dict[str, SentenceTransformer], given: dict[str, Any]) -> None:
    from scipy.stats import pearsonr, spearmanr

    first, second, scores = zip(*given["pairs"], strict=True)
    for name, model in models.items():
        # Neither a query nor a document: no prompt.
        cosines = (model.encode(list(first)) * model.encode(list(second))).sum(axis=1)
        found = told[name]["scores"]["OwnPairs"]
        assert found["cosine_spearman"] == pytest.approx(spearmanr(scores, cosines).statistic, abs=1e-6)
        assert found["cosine_pearson"] == pytest.approx(pearsonr(scores, cosines).statistic, abs=1e-6)
        assert found["main_score"] == found["cosine_spearman"]


def test_retrieval(
    told: dict[str, Any],
    models: dict[str, SentenceTransformer],
    given: dict[str, Any],
    nearest: Callable[..., list[list[str]]],
) -> None:
    wanted = {}
    for name, model in models.items():
        ranking = nearest(model.encode_query(given["questions"]), model.encode_document(given["texts"]))
        rows = [[given["texts"].index(text) for text in found] for found in ranking]
        hits = [np.isin(row, relevant) for row, relevant in zip(rows, given["relevant"], strict=True)]
        discounts = 1 / np.log2(np.arange(10) + 2)
        counts = [len(relevant) for relevant in given["relevant"]]
        wanted[name] = {
            "ndcg_at_10": [(hit * discounts).sum() / discounts[:n].sum() for hit, n in zip(hits, counts, strict=True)],
            "recall_at_10": [hit.sum() / n for hit, n in zip(hits, counts, strict=True)],
            "precision_at_5": [hit[:5].mean() for hit in hits],
            "mrr_at_10": [1 / (hit.argmax() + 1) if hit.any() else 0.0 for hit in hits],
        }
        for key, values in wanted[name].items():
            assert told[name]["scores"]["OwnSearch"][key] == pytest.approx(np.mean(values), abs=1e-5), key
    assert np.mean(wanted["echo"]["ndcg_at_10"]) != pytest.approx(np.mean(wanted["reba"]["ndcg_at_10"]), abs=1e-4)


def test_mock_run(told: dict[str, Any]) -> None:
    for each in told.values():
        assert not each["errors"], each["errors"]
        assert sum(kind == "TaskResult" for kind in each["mock"].values()) >= 20


def test_what_the_page_says(told: dict[str, Any]) -> None:
    for each in told.values():
        assert each["names"] == ["no_model_name/available", "organization/name"]
