"""Sections of docs/how-to/tools.md, run by a reader: ``python tools.py JOB``, in a process of its own.

Each function here takes the names that a section's blocks define, and tells what the tool makes of the texts:

    found   the ten texts nearest to each question
    shown   what the block itself found for the first question
    is      rows of texts, how the model encodes them ("plain", "query", "document", or a prompt), and the tool's
            vectors; the first row has all texts, the second all questions
    is_not  the same of vectors that differ
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

Told = dict[str, Any]
LINES = "two\nlines\n\nof text"


def faiss(names: dict[str, Any], texts: list[str], questions: list[str]) -> Told:
    model, index = names["model"], names["index"]
    queries = model.encode_query(questions)
    return {
        "found": [[texts[row] for row in found] for found in index.search(queries, 10)[1]],
        "shown": [texts[row] for row in names["rows"][0]],
        "is": [
            [texts, "document", index.reconstruct_n(0, index.ntotal)],
            [questions, "query", queries],
            [texts, "plain", model.encode(texts)],
        ],
    }


def langchain(names: dict[str, Any], texts: list[str], questions: list[str]) -> Told:
    embeddings, store = names["embeddings"], names["store"]
    unnamed = embeddings.model_copy(update={"encode_kwargs": {}, "query_encode_kwargs": {}})
    half = embeddings.model_copy(update={"query_encode_kwargs": {}})
    lines = embeddings.embed_documents([LINES])
    return {
        "found": [[each.page_content for each in store.similarity_search(one, k=10)] for one in questions],
        "shown": [each.page_content for each in names["found"]],
        "is": [
            [texts, "document", store.index.reconstruct_n(0, store.index.ntotal)],
            [questions, "query", [embeddings.embed_query(one) for one in questions]],
            [texts, "document", embeddings.embed_documents(texts)],
            [texts[:2], "plain", unnamed.embed_documents(texts[:2])],
            [questions[:1], "plain", [unnamed.embed_query(questions[0])]],
            [questions[:1], "document", [half.embed_query(questions[0])]],
            [[LINES.replace("\n", " ")], "document", lines],
        ],
        "is_not": [[[LINES], "document", lines]],
    }


def llama_index(names: dict[str, Any], texts: list[str], questions: list[str]) -> Told:
    embed, index = names["embed_model"], names["index"]
    retriever = index.as_retriever(similarity_top_k=10)
    nodes = index.docstore.docs
    stored = {nodes[key].text: vector for key, vector in index.vector_store.data.embedding_dict.items()}
    node = next(iter(nodes.values())).model_copy(update={"metadata": {"title": "T"}, "embedding": None})
    titled = type(index)([node], embed_model=embed).vector_store.data.embedding_dict
    without = type(embed)(model_name="my_model", trust_remote_code=embed._model.trust_remote_code)
    assert {without._model.prompts[each] for each in ("query", "text")} == {""}
    assert embed.max_length == embed._model.max_seq_length
    both = [without.get_text_embedding(texts[0]), without.get_query_embedding(questions[0])]
    return {
        "found": [[hit.text for hit in retriever.retrieve(one)] for one in questions],
        "shown": [hit.text for hit in names["found"]],
        # The instructions are given in the call, so that they hold for the model without prompts too.
        "is": [
            [texts, "Document: ", [stored[text] for text in texts]],
            [questions, "Query: ", [embed.get_query_embedding(one) for one in questions]],
            [texts, "Document: ", embed.get_text_embedding_batch(texts)],
            [[texts[0], questions[0]], "plain", both],
            [[f"title: T\n\n{node.text}"], "Document: ", list(titled.values())],
        ],
    }


def haystack(names: dict[str, Any], texts: list[str], questions: list[str]) -> Told:
    queries, retriever = names["queries"], names["retriever"]
    vectors = [queries.run(text)["embedding"] for text in questions]
    stored = {each.content: each.embedding for each in names["store"].filter_documents()}
    others = [type(queries).from_dict(queries.to_dict()), type(queries)(**names["load"])]
    again, unnamed, prefixed = (
        [each.run(questions[0])["embedding"]] for each in (*others, type(queries)(**names["load"], prefix="Query: "))
    )
    backend = queries.embedding_backend
    assert others[1].embedding_backend is backend
    # The next folder of the same name would not be read.
    import_module(type(backend).__module__)._SentenceTransformersEmbeddingBackendFactory._instances.clear()
    return {
        "found": [[hit.content for hit in retriever.run(each, top_k=10)["documents"]] for each in vectors],
        "shown": [hit.content for hit in names["found"]],
        "is": [
            [texts, "document", [stored[text] for text in texts]],
            [questions, "query", vectors],
            [questions[:1], "query", again],
            [questions[:1], "plain", unnamed],
            [[f"Query: {questions[0]}"], "plain", prefixed],
        ],
        "is_not": [[questions[:1], "Query: ", prefixed]],
    }


def txtai(names: dict[str, Any], texts: list[str], questions: list[str]) -> Told:
    embeddings = names["embeddings"]
    return {
        "found": [[texts[row] for row, _ in embeddings.search(each, 10)] for each in questions],
        "shown": [texts[row] for row, _ in names["found"]],
        "is": [
            [texts, "document", embeddings.batchtransform(texts, "data")],
            [questions, "query", embeddings.batchtransform(questions, "query")],
            [texts[:2], "query", embeddings.batchtransform(texts[:2])],
        ],
    }


def chroma(names: dict[str, Any], texts: list[str], questions: list[str]) -> Told:
    from chromadb.utils.embedding_functions import SentenceTransformerEmbeddingFunction

    client, embedder = names["client"], names["Embedder"]("my_model")
    stored = names["collection"].get(include=["embeddings", "documents"])
    by_text = dict(zip(stored["documents"], stored["embeddings"], strict=True))
    again = client.get_collection("texts", embedding_function=embedder)
    # It keeps the first model of a name that it has seen, whatever else is asked of it.
    SentenceTransformerEmbeddingFunction.models.clear()
    trust = {"trust_remote_code": names["model"].trust_remote_code}
    own = SentenceTransformerEmbeddingFunction("my_model", **trust)
    kept = SentenceTransformerEmbeddingFunction("my_model", **trust, truncate_dim=8)
    told = {
        "found": again.query(query_texts=questions, n_results=10)["documents"],
        "shown": names["found"]["documents"][0],
        "is": [
            [texts, "document", [by_text[text] for text in texts]],
            [questions, "query", embedder.embed_query(questions)],
            [texts[:2], "plain", own(texts[:2])],
            [texts[:2], "plain", kept(texts[:2])],
        ],
    }
    # Clients in memory share one database a process.
    client.delete_collection("texts")
    return told


def mteb(names: dict[str, Any], texts: list[str], questions: list[str]) -> Told:
    import mteb
    from mteb.models import SentenceTransformerEncoderWrapper

    scores = {each.task_name: each.get_score() for each in names["result"].task_results}
    wrapped = SentenceTransformerEncoderWrapper(names["model"])
    names["model"].model_card_data.model_name = "organization/name"
    named = SentenceTransformerEncoderWrapper(names["model"])
    assert [each.mteb_model_meta.name for each in (wrapped, named)] == ["no_model_name/available", "organization/name"]
    tried = [type(each).__name__ for each in mteb.mock_run(wrapped).task_results.values()]
    assert "TaskError" not in tried and tried.count("TaskResult") >= 20
    return scores


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
