"""Sections of docs/how-to/tools.md, run by a reader: ``python tools.py JOB``, in a process of its own.

Each function here takes the names that a section's blocks define, and tells what the tool makes of the texts:

    found   the ten texts nearest to each question
    shown   what the block itself found for the first question
    is      rows of texts, how the model encodes them ("plain", "query", "document", or a prompt), and the tool's
            vectors; the first row has all texts, the second all questions
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

Told = dict[str, Any]


def faiss(names: dict[str, Any], texts: list[str], questions: list[str]) -> Told:
    index, queries = names["index"], names["model"].encode_query(questions)
    return {
        "found": [[texts[row] for row in found] for found in index.search(queries, 10)[1]],
        "shown": [texts[row] for row in names["rows"][0]],
        "is": [[texts, "document", index.reconstruct_n(0, index.ntotal)], [questions, "query", queries]],
    }


def langchain(names: dict[str, Any], texts: list[str], questions: list[str]) -> Told:
    embeddings, store = names["embeddings"], names["store"]
    return {
        "found": [[each.page_content for each in store.similarity_search(one, k=10)] for one in questions],
        "shown": [each.page_content for each in names["found"]],
        "is": [
            [texts, "document", store.index.reconstruct_n(0, store.index.ntotal)],
            [questions, "query", [embeddings.embed_query(one) for one in questions]],
            # It takes line breaks out.
            [["two lines  of text"], "document", embeddings.embed_documents(["two\nlines\n\nof text"])],
        ],
    }


def llama_index(names: dict[str, Any], texts: list[str], questions: list[str]) -> Told:
    embed, index = names["embed_model"], names["index"]
    retriever = index.as_retriever(similarity_top_k=10)
    nodes = index.docstore.docs
    stored = {nodes[key].text: vector for key, vector in index.vector_store.data.embedding_dict.items()}
    assert embed.max_length == embed._model.max_seq_length
    return {
        "found": [[hit.text for hit in retriever.retrieve(one)] for one in questions],
        "shown": [hit.text for hit in names["found"]],
        # The instructions are given in the call, so that they hold for a model without prompts too.
        "is": [
            [texts, "Document: ", [stored[text] for text in texts]],
            [questions, "Query: ", [embed.get_query_embedding(one) for one in questions]],
        ],
    }


def haystack(names: dict[str, Any], texts: list[str], questions: list[str]) -> Told:
    queries, retriever = names["queries"], names["retriever"]
    vectors = [queries.run(text)["embedding"] for text in questions]
    stored = {each.content: each.embedding for each in names["store"].filter_documents()}
    # The next folder of the same name would not be read.
    backend = import_module(type(queries.embedding_backend).__module__)
    backend._SentenceTransformersEmbeddingBackendFactory._instances.clear()
    return {
        "found": [[hit.content for hit in retriever.run(each, top_k=10)["documents"]] for each in vectors],
        "shown": [hit.content for hit in names["found"]],
        "is": [[texts, "document", [stored[text] for text in texts]], [questions, "query", vectors]],
    }


def txtai(names: dict[str, Any], texts: list[str], questions: list[str]) -> Told:
    embeddings = names["embeddings"]
    return {
        "found": [[texts[row] for row, _ in embeddings.search(each, 10)] for each in questions],
        "shown": [texts[row] for row, _ in names["found"]],
        "is": [
            [texts, "document", embeddings.batchtransform(texts, "data")],
            [questions, "query", embeddings.batchtransform(questions, "query")],
        ],
    }


def chroma(names: dict[str, Any], texts: list[str], questions: list[str]) -> Told:
    client, embedder = names["client"], names["Embedder"]("my_model")
    stored = names["collection"].get(include=["embeddings", "documents"])
    by_text = dict(zip(stored["documents"], stored["embeddings"], strict=True))
    again = client.get_collection("texts", embedding_function=embedder)
    told = {
        "found": again.query(query_texts=questions, n_results=10)["documents"],
        "shown": names["found"]["documents"][0],
        "is": [
            [texts, "document", [by_text[text] for text in texts]],
            [questions, "query", embedder.embed_query(questions)],
        ],
    }
    # Clients in memory share one database a process.
    client.delete_collection("texts")
    return told


def mteb(names: dict[str, Any], texts: list[str], questions: list[str]) -> Told:
    return {each.task_name: each.get_score() for each in names["result"].task_results}


SECTIONS: dict[str, Callable[[dict[str, Any], list[str], list[str]], Told]] = {
    "sentence-transformers and FAISS": faiss,
    "LangChain": langchain,
    "LlamaIndex": llama_index,
    "Haystack": haystack,
    "txtai": txtai,
    "Chroma": chroma,
    "mteb": mteb,
}


def read(job: dict[str, Any]) -> dict[str, Told]:
    """Run a section's blocks in each model's folder."""
    if job["plugin"]:
        import_module("st_reba")
    else:
        # As if it were not installed.
        sys.modules["st_reba"] = None  # type: ignore[assignment]
    told = {}
    for name, place in job["places"].items():
        os.chdir(place)
        names: dict[str, Any] = {"__name__": "__main__", **job["given"]}
        for block in job["blocks"]:
            exec(compile(block, f"tools.md: {job['section']}", "exec"), names)
        told[name] = SECTIONS[job["section"]](names, job["given"]["texts"], job["given"]["questions"])
    assert_carried(not job["plugin"])
    return told


if __name__ == "__main__":
    from given import answering, assert_carried

    answering(read)
