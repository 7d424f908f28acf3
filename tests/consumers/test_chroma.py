"""Chroma with an embedding function of one's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sentence_transformers import SentenceTransformer

SECTION = "Chroma"


def told(names: dict[str, Any]) -> dict[str, Any]:
    from chromadb.utils.embedding_functions import SentenceTransformerEmbeddingFunction

    collection, client = names["collection"], names["client"]
    stored = collection.get(include=["embeddings", "documents"])
    by_text = dict(zip(stored["documents"], stored["embeddings"], strict=True))
    found = collection.query(query_texts=names["questions"], n_results=10)
    again = client.get_collection("texts", embedding_function=names["Embedder"]("my_model"))
    repeated = again.query(query_texts=names["questions"], n_results=10)
    # Its own keeps the first model of a name that it has seen, whatever else is asked of it.
    SentenceTransformerEmbeddingFunction.models.clear()
    trusted = names["model"].trust_remote_code
    own = SentenceTransformerEmbeddingFunction("my_model", trust_remote_code=trusted)
    kept = SentenceTransformerEmbeddingFunction("my_model", trust_remote_code=trusted, truncate_dim=8)
    result = {
        "documents": [by_text[text].tolist() for text in names["texts"]],
        "queries": [vector.tolist() for vector in names["Embedder"]("my_model").embed_query(names["questions"])],
        "found": found["documents"],
        "again": repeated["documents"],
        "shown": names["found"]["documents"][0],
        "own": [vector.tolist() for vector in own(names["texts"][:2])],
        "kept": [vector.tolist() for vector in kept(names["texts"][:2])],
    }
    # Clients in memory share one database a process.
    client.delete_collection("texts")
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
        ranking = nearest(queries, documents)
        assert found["found"] == ranking
        assert found["again"] == ranking
        assert found["shown"] == ranking[0][:3]


def test_what_the_page_says(
    told: dict[str, Any], models: dict[str, SentenceTransformer], given: dict[str, Any], close: Callable[..., None]
) -> None:
    for name, model in models.items():
        close(told[name]["own"], model.encode(given["texts"][:2]))
        close(told[name]["kept"], model.encode(given["texts"][:2]))
