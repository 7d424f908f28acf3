"""txtai's Embeddings by way of sentence-transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sentence_transformers import SentenceTransformer

SECTION = "txtai"


def told(names: dict[str, Any]) -> dict[str, Any]:
    embeddings, texts = names["embeddings"], names["texts"]
    return {
        "documents": embeddings.batchtransform(texts, "data").tolist(),
        "queries": embeddings.batchtransform(names["questions"], "query").tolist(),
        "neither": embeddings.batchtransform(texts[:2]).tolist(),
        "found": [[texts[row] for row, _ in embeddings.search(each, 10)] for each in names["questions"]],
        "scores": [[score for _, score in embeddings.search(each, 10)] for each in names["questions"]],
        "shown": [texts[row] for row, _ in names["found"]],
    }


def test_vectors_and_ranking(
    told: dict[str, Any],
    models: dict[str, SentenceTransformer],
    given: dict[str, Any],
    close: Callable[..., None],
    nearest: Callable[..., list[list[str]]],
) -> None:
    for name, model in models.items():
        found = told[name]
        documents, queries = model.encode_document(given["texts"]), model.encode_query(given["questions"])
        close(found["documents"], documents)
        close(found["queries"], queries)
        ranking = nearest(queries, documents)
        assert found["found"] == ranking
        assert found["shown"] == ranking[0][:3]
        by_text = dict(zip(given["texts"], documents, strict=True))
        close(
            found["scores"],
            [[query @ by_text[text] for text in row] for query, row in zip(queries, ranking, strict=True)],
        )


def test_what_the_page_says(
    told: dict[str, Any], models: dict[str, SentenceTransformer], given: dict[str, Any], close: Callable[..., None]
) -> None:
    for name, model in models.items():
        close(told[name]["neither"], model.encode_query(given["texts"][:2]))
