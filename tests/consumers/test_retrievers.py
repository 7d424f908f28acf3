"""Retrievers of other frameworks over an index: what they give is what the index finds."""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# Haystack would send figures of use.
os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"

import st_reba
from st_reba.corpus import Document
from st_reba.demo import QUERIES, sentences
from st_reba.index import retrievers

WHERE = {"year": {">=": 2003}}
TWICE = "The same words stand in two documents."


@pytest.fixture(scope="module", params=[None, "16:4"], ids=["whole", "passages"])
def index(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[st_reba.Index]:
    model = st_reba.build("mini", "reba", pooling="mean", device="cpu")
    texts = [one.text for one in sentences()[::5]]
    if request.param:
        texts = [" ".join(texts[start : start + 3]) for start in range(0, len(texts), 3)]
    documents = [
        Document(text, f"d{row}", {"lang": "zh" if row % 3 else "en", "year": 2000 + row % 7})
        for row, text in enumerate(texts)
    ] + [Document(TWICE, name, {"year": 2003}) for name in ("first", "second")]
    folder = tmp_path_factory.mktemp("index") / "my_index"
    with st_reba.Index.build(model, documents, folder, passages=request.param) as built:
        yield built


def wanted(index: st_reba.Index, query: str, k: int, where: Any = None) -> list[tuple[Any, ...]]:
    """What must be found: id, content, metadata and score."""
    found = index.search(query, k, where=where)
    assert len(found) == k
    cut = [one.passage for one in found]
    assert (None in cut) == (index.info()["reading"].get("passages") is None)
    return [
        (one.id, one.text if passage is None else passage, one.metadata, one.score)
        for one, passage in zip(found, cut, strict=True)
    ]


def test_passages_are_parts_of_texts(index: st_reba.Index) -> None:
    # Else nothing below would tell them apart.
    if index.info()["reading"].get("passages"):
        assert any(one.passage != one.text for query in QUERIES for one in index.search(query, 5))


@pytest.mark.parametrize("where", [None, WHERE], ids=["all", "where"])
def test_langchain(index: st_reba.Index, where: Any) -> None:
    from langchain_core.retrievers import BaseRetriever

    retriever = retrievers.langchain(index, k=5, where=where)
    assert isinstance(retriever, BaseRetriever)
    for query in [*QUERIES, TWICE]:
        expected = [
            (one, text, {**about, "score": score}) for one, text, about, score in wanted(index, query, 5, where)
        ]
        for found in (retriever.invoke(query), asyncio.run(retriever.ainvoke(query))):
            assert [(one.id, one.page_content, one.metadata) for one in found] == expected
    chain = retriever | (lambda documents: documents[0].id)
    assert chain.invoke(TWICE) == "first"


@pytest.mark.parametrize("where", [None, WHERE], ids=["all", "where"])
def test_llama_index(index: st_reba.Index, where: Any) -> None:
    from llama_index.core.retrievers import BaseRetriever

    retriever = retrievers.llama_index(index, k=5, where=where)
    assert isinstance(retriever, BaseRetriever)
    for query in [*QUERIES, TWICE]:
        for found in (retriever.retrieve(query), asyncio.run(retriever.aretrieve(query))):
            told = [(one.node.node_id, one.text, one.metadata, one.score) for one in found]
            assert told == wanted(index, query, 5, where)
            assert [one.node.ref_doc_id for one in found] == [one.node.node_id for one in found]


@pytest.mark.parametrize("where", [None, WHERE], ids=["all", "where"])
def test_haystack(index: st_reba.Index, where: Any) -> None:
    from haystack import Pipeline
    from haystack.components.joiners import DocumentJoiner

    retriever = retrievers.haystack(index, k=5, where=where)
    pipeline = Pipeline()
    pipeline.add_component("retriever", retriever)
    pipeline.add_component("joiner", DocumentJoiner(sort_by_score=False))
    pipeline.connect("retriever.documents", "joiner.documents")
    for query in [*QUERIES, TWICE]:
        expected = wanted(index, query, 5, where)
        for found in (retriever.run(query), pipeline.run({"retriever": {"query": query}})["joiner"]):
            assert [(one.id, one.content, one.meta, one.score) for one in found["documents"]] == expected
        assert [one.id for one in retriever.run(query, top_k=2)["documents"]] == [one[0] for one in expected[:2]]


def test_haystack_filters(index: st_reba.Index) -> None:
    year = {"field": "meta.year", "operator": "<", "value": 2006}
    lang = {"field": "meta.lang", "operator": "in", "value": ["zh", "fr"]}
    both = {"operator": "AND", "conditions": [year, {"operator": "AND", "conditions": [lang]}]}
    retriever = retrievers.haystack(index, k=5, where=WHERE)
    for filters, where in (
        (year, {"year": {">=": 2003, "<": 2006}}),
        (both, {"year": {">=": 2003, "<": 2006}, "lang": {"in": ["zh", "fr"]}}),
    ):
        found = retriever.run(QUERIES[0], filters=filters)["documents"]
        assert [(one.id, one.content, one.meta, one.score) for one in found] == wanted(index, QUERIES[0], 5, where)


def test_nothing_is_imported_before(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = (
        "import sys, st_reba.index.retrievers\n"
        "assert not {'langchain_core', 'llama_index', 'haystack'} & set(sys.modules), 'imported'"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=120)
    assert importlib.util.find_spec("haystack") is not None
