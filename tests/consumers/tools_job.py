"""Sections of docs/how-to/tools.md, run by a reader: ``python tools_job.py JOB``, in a process of its own.

Each function here takes the names that a section's blocks define, and tells what the tool makes of
the texts:

    nearest          the ten texts nearest to each question
    nearest_on_page  what the block itself found for the first question
    encoded          rows of texts, how the model encodes them ("plain", "query", "document", or
                     a prompt), and the tool's vectors; the first row has all texts, the second
                     all questions
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from isolated import Job, answer_job, assert_published_code_ran

Names = dict[str, Any]
Result = dict[str, Any]


def faiss(page_names: Names, texts: list[str], query_texts: list[str]) -> Result:
    index = page_names["index"]
    query_vectors = page_names["model"].encode_query(query_texts)
    _, nearest_rows = index.search(query_vectors, 10)
    nearest: list[list[str]] = []
    for rows in nearest_rows:
        nearest.append([texts[row] for row in rows])
    document_vectors = index.reconstruct_n(0, index.ntotal)
    return {
        "nearest": nearest,
        "nearest_on_page": [texts[row] for row in page_names["rows"][0]],
        "encoded": [
            [texts, "document", document_vectors],
            [query_texts, "query", query_vectors],
        ],
    }


def langchain(page_names: Names, texts: list[str], query_texts: list[str]) -> Result:
    embeddings = page_names["embeddings"]
    store = page_names["store"]
    nearest: list[list[str]] = []
    for query_text in query_texts:
        documents = store.similarity_search(query_text, k=10)
        nearest.append([document.page_content for document in documents])
    document_vectors = store.index.reconstruct_n(0, store.index.ntotal)
    query_vectors = [embeddings.embed_query(query_text) for query_text in query_texts]
    # It takes line breaks out.
    vectors_of_lines = embeddings.embed_documents(["two\nlines\n\nof text"])
    return {
        "nearest": nearest,
        "nearest_on_page": [document.page_content for document in page_names["found"]],
        "encoded": [
            [texts, "document", document_vectors],
            [query_texts, "query", query_vectors],
            [["two lines  of text"], "document", vectors_of_lines],
        ],
    }


def llama_index(page_names: Names, texts: list[str], query_texts: list[str]) -> Result:
    embed_model = page_names["embed_model"]
    index = page_names["index"]
    assert embed_model.max_length == embed_model._model.max_seq_length
    retriever = index.as_retriever(similarity_top_k=10)
    nearest: list[list[str]] = []
    for query_text in query_texts:
        nearest.append([node.text for node in retriever.retrieve(query_text)])
    vector_by_text: dict[str, Any] = {}
    for key, vector in index.vector_store.data.embedding_dict.items():
        vector_by_text[index.docstore.docs[key].text] = vector
    document_vectors = [vector_by_text[text] for text in texts]
    query_vectors = [embed_model.get_query_embedding(query_text) for query_text in query_texts]
    return {
        "nearest": nearest,
        "nearest_on_page": [node.text for node in page_names["found"]],
        # The instructions are given in the call, so that they hold for a model without prompts too.
        "encoded": [
            [texts, "Document: ", document_vectors],
            [query_texts, "Query: ", query_vectors],
        ],
    }


def haystack(page_names: Names, texts: list[str], query_texts: list[str]) -> Result:
    query_embedder = page_names["queries"]
    retriever = page_names["retriever"]
    query_vectors = [query_embedder.run(query_text)["embedding"] for query_text in query_texts]
    nearest: list[list[str]] = []
    for query_vector in query_vectors:
        documents = retriever.run(query_vector, top_k=10)["documents"]
        nearest.append([document.content for document in documents])
    vector_by_text: dict[str, Any] = {}
    for document in page_names["store"].filter_documents():
        vector_by_text[document.content] = document.embedding
    # The next folder of the same name would not be read.
    backend = import_module(type(query_embedder.embedding_backend).__module__)
    backend._SentenceTransformersEmbeddingBackendFactory._instances.clear()
    return {
        "nearest": nearest,
        "nearest_on_page": [document.content for document in page_names["found"]],
        "encoded": [
            [texts, "document", [vector_by_text[text] for text in texts]],
            [query_texts, "query", query_vectors],
        ],
    }


def txtai(page_names: Names, texts: list[str], query_texts: list[str]) -> Result:
    embeddings = page_names["embeddings"]
    nearest: list[list[str]] = []
    for query_text in query_texts:
        nearest.append([texts[row] for row, _ in embeddings.search(query_text, 10)])
    return {
        "nearest": nearest,
        "nearest_on_page": [texts[row] for row, _ in page_names["found"]],
        "encoded": [
            [texts, "document", embeddings.batchtransform(texts, "data")],
            [
                query_texts,
                "query",
                embeddings.batchtransform(query_texts, "query"),
            ],
        ],
    }


def chroma(page_names: Names, texts: list[str], query_texts: list[str]) -> Result:
    client = page_names["client"]
    embedder = page_names["Embedder"]("my_model")
    stored = page_names["collection"].get(include=["embeddings", "documents"])
    vector_by_text = dict(zip(stored["documents"], stored["embeddings"], strict=True))
    collection = client.get_collection("texts", embedding_function=embedder)
    answer = collection.query(query_texts=query_texts, n_results=10)
    # Clients in memory share one database a process.
    client.delete_collection("texts")
    return {
        "nearest": answer["documents"],
        "nearest_on_page": page_names["found"]["documents"][0],
        "encoded": [
            [texts, "document", [vector_by_text[text] for text in texts]],
            [query_texts, "query", embedder.embed_query(query_texts)],
        ],
    }


def mteb(page_names: Names, texts: list[str], query_texts: list[str]) -> Result:
    """Each task's score."""
    scores: Result = {}
    for task_result in page_names["result"].task_results:
        scores[task_result.task_name] = task_result.get_score()
    return scores


SECTIONS: dict[str, Callable[[Names, list[str], list[str]], Result]] = {
    "sentence-transformers and FAISS": faiss,
    "LangChain": langchain,
    "LlamaIndex": llama_index,
    "Haystack": haystack,
    "txtai": txtai,
    "Chroma": chroma,
    "mteb": mteb,
}


def run_section(job: Job) -> dict[str, Result]:
    """Run a section's blocks in each model's folder."""
    if job["plugin"]:
        import_module("st_reba")
    else:
        # As if it were not installed.
        sys.modules["st_reba"] = None  # type: ignore[assignment]
    results: dict[str, Result] = {}
    for model_name, parent in job["model_parents"].items():
        os.chdir(parent)
        page_names: Names = {"__name__": "__main__", **job["names"]}
        for code_block in job["blocks"]:
            exec(
                compile(code_block, f"tools.md: {job['section']}", "exec"),
                page_names,
            )
        describe = SECTIONS[job["section"]]
        results[model_name] = describe(page_names, job["names"]["texts"], job["names"]["questions"])
    assert_published_code_ran(not job["plugin"])
    return results


if __name__ == "__main__":
    answer_job(run_section)
