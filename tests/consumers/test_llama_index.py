"""LlamaIndex's HuggingFaceEmbedding, and its index in memory, without a language model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sentence_transformers import SentenceTransformer

SECTION = "LlamaIndex"


def told(names: dict[str, Any]) -> dict[str, Any]:
    embed, index = names["embed_model"], names["index"]
    retriever = index.as_retriever(similarity_top_k=10)
    stored = index.vector_store.data.embedding_dict
    texts = {key: node.get_content() for key, node in index.docstore.docs.items()}
    node = next(iter(index.docstore.docs.values())).model_copy(update={"metadata": {"title": "T"}, "embedding": None})
    titled = type(index)([node], embed_model=embed).vector_store.data.embedding_dict
    without = type(embed)(model_name="my_model", trust_remote_code=names["embed_model"]._model.trust_remote_code)
    return {
        "documents": embed.get_text_embedding_batch(names["texts"]),
        "one": [embed.get_text_embedding(text) for text in names["texts"][:2]],
        "queries": [embed.get_query_embedding(question) for question in names["questions"]],
        "stored": {texts[key]: vector for key, vector in stored.items()},
        "found": [[hit.text for hit in retriever.retrieve(question)] for question in names["questions"]],
        "shown": [hit.text for hit in names["found"]],
        "prompts": without._model.prompts,
        "without": [without.get_text_embedding(names["texts"][0]), without.get_query_embedding(names["questions"][0])],
        "titled": [node.text, *titled.values()],
        "max_length": [embed.max_length, embed._model.max_seq_length],
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
        # The instructions are given in the call, so that they hold for the model without prompts too.
        documents = model.encode(given["texts"], prompt="Document: ")
        queries = model.encode(given["questions"], prompt="Query: ")
        close(found["documents"], documents)
        close(found["one"], documents[:2])
        close([found["stored"][text] for text in given["texts"]], documents)
        close(found["queries"], queries)
        assert found["found"] == nearest(queries, documents)
        assert found["shown"] == found["found"][0][:3]
        assert found["max_length"] == [model.max_seq_length] * 2


def test_what_the_page_says(
    told: dict[str, Any], models: dict[str, SentenceTransformer], given: dict[str, Any], close: Callable[..., None]
) -> None:
    for name, model in models.items():
        assert {told[name]["prompts"][key] for key in ("query", "text")} == {""}
        close(told[name]["without"], model.encode([given["texts"][0], given["questions"][0]]))
        text, vector = told[name]["titled"]
        close([vector], model.encode([f"title: T\n\n{text}"], prompt="Document: "))
