"""Haystack's embedders, and its document store in memory."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from sentence_transformers import SentenceTransformer

SECTION = "Haystack"


def told(names: dict[str, Any]) -> dict[str, Any]:
    queries, retriever = names["queries"], names["retriever"]
    vectors = {text: queries.run(text)["embedding"] for text in names["questions"]}
    stored = {each.content: each.embedding for each in names["store"].filter_documents()}
    again = type(queries).from_dict(queries.to_dict())
    prefixed = type(queries)(**names["load"], prefix="Query: ")
    unnamed = type(queries)(**names["load"])
    result = {
        "documents": [stored[text] for text in names["texts"]],
        "queries": list(vectors.values()),
        "found": [[hit.content for hit in retriever.run(v, top_k=10)["documents"]] for v in vectors.values()],
        "shown": [hit.content for hit in names["found"]],
        "again": [again.run(names["questions"][0])["embedding"]],
        "prefixed": [prefixed.run(names["questions"][0])["embedding"]],
        "unnamed": [unnamed.run(names["questions"][0])["embedding"]],
        "kept": unnamed.embedding_backend is queries.embedding_backend,
    }
    # The next folder of the same name would not be read.
    import_module(
        type(queries.embedding_backend).__module__
    )._SentenceTransformersEmbeddingBackendFactory._instances.clear()
    return result


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
        close(found["again"], queries[:1])
        assert found["found"] == nearest(queries, documents)
        assert found["shown"] == found["found"][0][:3]


def test_what_the_page_says(
    told: dict[str, Any], models: dict[str, SentenceTransformer], given: dict[str, Any], close: Callable[..., None]
) -> None:
    question = given["questions"][0]
    for name, model in models.items():
        assert told[name]["kept"]
        close(told[name]["unnamed"], model.encode([question]))
        close(told[name]["prefixed"], model.encode(["Query: " + question]))
        assert abs(model.encode([question], prompt="Query: ") - told[name]["prefixed"]).max() > 1e-3
