"""sentence-transformers and FAISS, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sentence_transformers import SentenceTransformer

SECTION = "sentence-transformers and FAISS"


def told(names: dict[str, Any]) -> dict[str, Any]:
    model, index = names["model"], names["index"]
    _, rows = index.search(model.encode_query(names["questions"]), 10)
    return {
        "documents": model.encode_document(names["texts"]).tolist(),
        "queries": model.encode_query(names["questions"]).tolist(),
        "plain": model.encode(names["texts"]).tolist(),
        "stored": index.reconstruct_n(0, index.ntotal).tolist(),
        "found": [[names["texts"][row] for row in found] for found in rows],
        "shown": [names["texts"][row] for row in names["rows"][0]],
    }


def test_vectors_and_ranking(
    told: dict[str, Any],
    models: dict[str, SentenceTransformer],
    given: dict[str, Any],
    close: Callable[..., None],
    nearest: Callable[..., list[list[str]]],
) -> None:
    for name, model in models.items():
        found, texts = told[name], given["texts"]
        documents, queries = model.encode_document(texts), model.encode_query(given["questions"])
        close(found["documents"], documents)
        close(found["stored"], documents)
        close(found["queries"], queries)
        close(found["plain"], model.encode(texts))
        assert found["found"] == nearest(queries, documents)
        assert found["shown"] == found["found"][0][:3]
    # The prompts are not idle, or what is tested of them means nothing.
    assert abs(models["echo"].encode(texts) - models["echo"].encode_document(texts)).max() > 1e-3
