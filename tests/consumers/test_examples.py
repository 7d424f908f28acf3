"""The scripts of examples/, each in a fresh process without network, against searches made here."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from given import ROOT, SENTENCES, script
from sentence_transformers import SentenceTransformer

import st_reba
from st_reba.index import Index

TEXTS = ["海边的灯塔每天晚上都亮着。", "A lighthouse shines all night.", "土豆要去皮再切。", "Peel the potatoes first."]
QUERY = "Which light is on at night?"
OWN = ("--model", "model", "--texts", "texts.txt")


@pytest.fixture(scope="module")
def model() -> SentenceTransformer:
    """Its prompt is such that a query without it, or with the other, finds another text first."""
    prompts = {"query": "Peel the potatoes: ", "document": "Document: "}
    return st_reba.build("mini", "echo", prompts=prompts, device="cpu")


@pytest.fixture(scope="module")
def place(model: SentenceTransformer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with texts of one's own, and a saved model with prompts."""
    place = tmp_path_factory.mktemp("place")
    (place / "texts.txt").write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    model.save_pretrained(str(place / "model"))
    return place


def ranked(place: Path, name: str, *arguments: str) -> dict[str, list[str]]:
    """For each line of a script's output that is no result, the results under it, without their numbers."""
    found: dict[str, list[str]] = {}
    title = ""
    for line in script(ROOT / "examples" / name, *arguments, folder=place).splitlines():
        if match := re.match(r"\s+\d+\. (.*)", line):
            found[title].append(match[1])
        else:
            found[title := line.strip()] = []
    return found


def test_faiss_by_hand(place: Path, model: SentenceTransformer) -> None:
    """The scores are those of exact search and of an index folder."""
    found = ranked(place, "faiss_by_hand.py")
    assert [results[0].partition("  ")[2] for results in found.values()] == [
        "猫在窗台上睡着了。",
        "Shares fell sharply and investors are worried.",
    ]
    found = ranked(place, "faiss_by_hand.py", *OWN, "-k", "9", QUERY)
    shown = {text: float(score) for score, text in (line.split("  ") for line in found[QUERY])}
    scores = model.encode_document(TEXTS) @ model.encode_query(QUERY)
    assert list(shown) == [TEXTS[row] for row in np.argsort(-scores)]
    np.testing.assert_allclose([shown[text] for text in TEXTS], scores, atol=1.5e-6, rtol=0)
    with Index.build(model, TEXTS, place / "index", show_progress_bar=False) as index:
        results = {result.text: result.score for result in index.search(QUERY, 9)}
    assert list(results) == list(shown)
    np.testing.assert_allclose(list(results.values()), list(shown.values()), atol=1.5e-6, rtol=0)


def test_langchain_retriever(place: Path, model: SentenceTransformer) -> None:
    found = ranked(place, "langchain_retriever.py")
    assert [results[0] for results in found.values()] == [
        "猫在窗台上睡着了。",
        "Shares fell sharply and investors are worried.",
    ]
    found = ranked(place, "langchain_retriever.py", *OWN, "--store", "store", "-k", "4", QUERY)
    documents = model.encode_document(TEXTS)
    scores = documents @ model.encode_query(QUERY)
    assert np.argmax(scores) != np.argmax(documents @ model.encode_document(QUERY))
    assert found == {QUERY: [TEXTS[row] for row in np.argsort(-scores)]}


def test_hybrid_bm25(place: Path) -> None:
    """The fused ranking is the sum of reciprocal ranks of the two that are shown."""
    documents = [json.loads(line) for line in SENTENCES.read_text(encoding="utf-8").splitlines()]
    texts = {document["id"]: document["text"] for document in documents}
    model = st_reba.build("mini", "reba", pooling="mean", device="cpu")
    vectors = model.encode_document(list(texts.values()))
    for query, best in (
        ("包子铺门口为什么排队", "zh-0001"),
        ("Should I chill an onion before chopping it?", "en-0096"),
    ):
        found = ranked(place, "hybrid_bm25.py", "-k", "1000", "--depth", "40", query)
        lists = {name: [line.split("  ") for line in lines] for name, lines in found.items() if lines}
        assert all(texts[identity] == text for lines in lists.values() for identity, text in lines)
        words, meaning, fused = ([identity for identity, _ in lists[name]] for name in ("BM25", "vectors", "fused"))
        assert words[0] == fused[0] == best and len(words) <= 40
        assert meaning == [list(texts)[row] for row in np.argsort(-(vectors @ model.encode_query(query)))[:40]]
        sums = {
            identity: sum(1 / (61 + ranking.index(identity)) for ranking in (words, meaning) if identity in ranking)
            for identity in {*words, *meaning}
        }
        assert fused == sorted(sums, key=lambda identity: (-sums[identity], identity))
        # Only what shares a word with the query, or a character of Chinese, is found by words.
        shared = set(re.findall(r"[a-z]+|[一-鿿]", query.lower()))
        assert all(shared & set(re.findall(r"[a-z]+|[一-鿿]", texts[identity].lower())) for identity in words)
