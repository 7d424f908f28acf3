"""LangChain's HuggingFaceEmbeddings, and its FAISS store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sentence_transformers import SentenceTransformer

SECTION = "LangChain"
LINES = "two\nlines\n\nof text"


def told(names: dict[str, Any]) -> dict[str, Any]:
    embeddings, store = names["embeddings"], names["store"]
    unnamed = embeddings.model_copy(update={"encode_kwargs": {}, "query_encode_kwargs": {}})
    half = embeddings.model_copy(update={"query_encode_kwargs": {}})
    return {
        "documents": embeddings.embed_documents(names["texts"]),
        "queries": [embeddings.embed_query(question) for question in names["questions"]],
        "found": [
            [document.page_content for document in store.similarity_search(question, k=10)]
            for question in names["questions"]
        ],
        "stored": store.index.reconstruct_n(0, store.index.ntotal).tolist(),
        "shown": [document.page_content for document in names["found"]],
        "unnamed": [unnamed.embed_documents(names["texts"][:2]), [unnamed.embed_query(names["questions"][0])]],
        "half": [half.embed_query(names["questions"][0])],
        "lines": embeddings.embed_documents([LINES]),
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
        close(found["stored"], documents)
        close(found["queries"], queries)
        assert found["found"] == nearest(queries, documents)
        assert found["shown"] == found["found"][0][:3]


def test_what_the_page_says(
    told: dict[str, Any], models: dict[str, SentenceTransformer], given: dict[str, Any], close: Callable[..., None]
) -> None:
    texts, question = given["texts"][:2], given["questions"][:1]
    for name, model in models.items():
        documents, queries = told[name]["unnamed"]
        close(documents, model.encode(texts))
        close(queries, model.encode(question))
        close(told[name]["half"], model.encode_document(question))
        close(told[name]["lines"], model.encode_document([LINES.replace("\n", " ")]))
        assert abs(model.encode_document([LINES]) - told[name]["lines"]).max() > 1e-3
