"""Every script of examples/, each in a fresh process without network, against searches made here."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from given import SENTENCES

import st_reba
from st_reba.index import Index

ROOT = Path(st_reba.__file__).parents[1]
EXAMPLES = ROOT / "examples"
QUIET = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": str(ROOT)}
TEXTS = ["海边的灯塔每天晚上都亮着。", "A lighthouse shines all night.", "土豆要去皮再切。", "Peel the potatoes first."]
QUERY = "Which light is on at night?"
# The first is such that a query without it, or with the other, finds another text first.
PROMPTS = {"query": "Peel the potatoes: ", "document": "Document: "}


def run(name: str, folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        env={**os.environ, **QUIET},
        cwd=folder,
        capture_output=True,
        encoding="utf-8",
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return done.stdout


def ranked(output: str) -> dict[str, list[str]]:
    """For each line that is no result, the results under it, without their numbers."""
    found: dict[str, list[str]] = {}
    for line in output.splitlines():
        match = re.match(r"\s+\d+\. (.*)", line)
        if match is None:
            found[name := line.strip()] = []
        else:
            found[name].append(match[1])
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with texts of one's own, and a saved model with prompts."""
    place = tmp_path_factory.mktemp("place")
    (place / "texts.txt").write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    st_reba.build("mini", "echo", prompts=PROMPTS, device="cpu").save_pretrained(str(place / "model"))
    return place


def test_all_are_run() -> None:
    # These have tests of their own, tests/test_train_example.py and test_ray_serve.py; the last needs a chat model.
    others = ("train_echo.py", "ray_serve.py", "rag_one_model.py")
    searching = [path for path in EXAMPLES.glob("*.py") if path.name not in others]
    assert {path.name for path in searching} == set(
        re.findall(r'run\("(\w+\.py)"', Path(__file__).read_text(encoding="utf-8"))
    )
    for path in searching:
        assert len(path.read_text(encoding="utf-8").splitlines()) < 80


def test_faiss_by_hand(place: Path) -> None:
    """The scores are those of exact search and of an index folder, with texts and a model of one's own too."""
    found = ranked(run("faiss_by_hand.py", place))
    assert found["一只正在睡觉的猫"][0].endswith("  猫在窗台上睡着了。")
    assert found["Who lost money?"][0].endswith("  Shares fell sharply and investors are worried.")
    assert {len(results) for results in found.values()} == {3}

    found = ranked(run("faiss_by_hand.py", place, "--model", "model", "--texts", "texts.txt", "-k", "9", QUERY))
    assert list(found) == [QUERY]
    shown = {text: float(score) for score, text in (line.split("  ") for line in found[QUERY])}
    model = st_reba.build("mini", "echo", prompts=PROMPTS, device="cpu")
    query, documents = model.encode_query(QUERY).astype(float), model.encode_document(TEXTS).astype(float)
    cosines = documents @ query / np.linalg.norm(documents, axis=1) / np.linalg.norm(query)
    assert list(shown) == [TEXTS[row] for row in np.argsort(-cosines)]
    np.testing.assert_allclose([shown[text] for text in TEXTS], cosines, atol=1.5e-6, rtol=0)
    with Index.build(model, TEXTS, place / "index", show_progress_bar=False) as index:
        results = index.search(QUERY, 9)
    assert [result.text for result in results] == list(shown)
    np.testing.assert_allclose([result.score for result in results], list(shown.values()), atol=1.5e-6, rtol=0)


def test_faiss_by_hand_needs_no_more_than_it_says() -> None:
    """Nothing of st_reba but its import and the default model."""
    text = (EXAMPLES / "faiss_by_hand.py").read_text(encoding="utf-8")
    assert set(re.findall(r"^(?:import|from) (\w+)", text, re.MULTILINE)) == {
        "argparse",
        "faiss",
        "numpy",
        "sentence_transformers",
        "st_reba",
    }
    assert re.findall(r"st_reba\.\w+", text.partition('"""\n\n')[2]) == ["st_reba.build"]


def test_langchain_retriever(place: Path) -> None:
    pytest.importorskip("langchain_community")
    found = ranked(run("langchain_retriever.py", place))
    assert found["一只正在睡觉的猫"][0] == "猫在窗台上睡着了。"
    assert found["Who lost money?"][0] == "Shares fell sharply and investors are worried."

    given = ("--model", "model", "--texts", "texts.txt", "--store", "store", "-k", "4", QUERY)
    found = ranked(run("langchain_retriever.py", place, *given))
    model = st_reba.build("mini", "echo", prompts=PROMPTS, device="cpu")
    documents = model.encode_document(TEXTS)
    scores = documents @ model.encode_query(QUERY)
    assert np.argmax(scores) != np.argmax(documents @ model.encode_document(QUERY))
    assert found == {QUERY: [TEXTS[row] for row in np.argsort(-scores)]}
    assert (place / "store" / "index.faiss").is_file()


def test_hybrid_bm25(place: Path) -> None:
    """The fused ranking is the sum of reciprocal ranks of the two that are shown."""
    output = run("hybrid_bm25.py", place, "-k", "1000", "--depth", "40")
    first, second = "包子铺门口为什么排队", "Should I chill an onion before chopping it?"
    parts = re.split(f"^({re.escape(first)}|{re.escape(second)})$", output, flags=re.MULTILINE)[1:]
    assert parts[::2] == [first, second]
    documents = [json.loads(line) for line in SENTENCES.read_text(encoding="utf-8").splitlines()]
    texts = {document["id"]: document["text"] for document in documents}
    model = st_reba.build("mini", "reba", pooling="mean", device="cpu")
    vectors = model.encode_document(list(texts.values()))
    for query, part, best in zip(parts[::2], parts[1::2], ("zh-0001", "en-0096"), strict=True):
        lists = {name: [line.split("  ") for line in lines] for name, lines in ranked(part).items() if name}
        assert all(texts[identity] == text for lines in lists.values() for identity, text in lines)
        words, meaning, fused = ([identity for identity, _ in lists[name]] for name in ("BM25", "vectors", "fused"))
        assert words[0] == fused[0] == best
        nearest = np.argsort(-(vectors @ model.encode_query(query)))[:40]
        assert meaning == [list(texts)[row] for row in nearest]
        assert words and len(words) <= 40 and len(set(words)) == len(words)
        sums = {
            identity: sum(1 / (61 + ranking.index(identity)) for ranking in (words, meaning) if identity in ranking)
            for identity in {*words, *meaning}
        }
        assert fused == sorted(sums, key=lambda identity: (-sums[identity], identity))
        # Only what shares a word with the query, or a character of Chinese, is found by words.
        shared = set(re.findall(r"[a-z]+|[一-鿿]", query.lower()))
        assert all(shared & set(re.findall(r"[a-z]+|[一-鿿]", texts[identity].lower())) for identity in words)


def test_hybrid_bm25_on_texts_of_ones_own(place: Path) -> None:
    found = ranked(run("hybrid_bm25.py", place, "--model", "model", "--texts", "texts.txt", "土豆"))
    assert found["BM25"] == [f"2  {TEXTS[2]}"]
    assert len(found["vectors"]) == len(found["fused"]) == 3
