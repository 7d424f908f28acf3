"""The demo: the sentences it ships, what it promises, and what it leaves behind."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from st_reba import cli, demo
from st_reba.index import Index

K = 4
FEW = demo.sentences()[::27]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo") / "kept"


@pytest.fixture(scope="module")
def told() -> list[str]:
    return []


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve sentences instead of all, where it does not matter which."""
    monkeypatch.setattr(demo, "sentences", lambda: FEW)


@pytest.fixture(scope="module")
def report(kept: Path, told: list[str]) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "sentences", lambda: FEW)
        return demo.run(kept, k=K, say=told.append)


def test_sentences() -> None:
    sentences = demo.sentences()
    assert len(sentences) == len({each.text for each in sentences}) == len({each.id for each in sentences}) == 320
    assert Counter(each.metadata["lang"] for each in sentences) == {"zh": 160, "en": 160}
    assert set(Counter((each.metadata["lang"], each.metadata["topic"]) for each in sentences).values()) == {10}


@pytest.mark.slow
def test_report(tmp_path: Path) -> None:
    report = demo.run(tmp_path / "all", k=K, say=lambda line: None)
    assert report["model"] == "mini" and report["documents"] == 320
    assert 0 <= report["round_trip"] <= 1e-6
    texts = {each.id: each.text for each in demo.sentences()}
    assert list(report["results"]) == list(report["comparison"]) == list(demo.QUERIES)
    for query in demo.QUERIES:
        results = report["results"][query]
        assert [result["rank"] for result in results] == list(range(1, K + 1))
        scores = [result["score"] for result in results]
        assert scores == sorted(scores, reverse=True) and -1 <= scores[-1] <= scores[0] <= 1.0001
        assert all(texts[result["id"]] == result["text"] for result in results)
        best = report["comparison"][query]
        assert set(best) == {"classical", "echo", "reba"}
        assert all(each["text"] in texts.values() and each["score"] <= 1.0001 for each in best.values())
        # Search and comparison use the same ReBA model.
        assert best["reba"]["text"] == results[0]["text"]
        assert best["reba"]["score"] == pytest.approx(scores[0], abs=1e-4)
    assert json.loads(json.dumps(report)) == report


def test_what_is_told(report: dict[str, Any], told: list[str]) -> None:
    text = "\n".join(told)
    assert [line for line in told if line[:1].isdigit()] == sorted(line for line in told if line[:1].isdigit())
    for query, results in report["results"].items():
        assert query in text and all(result["text"] in text for result in results)
    assert all(method in text for method in ("classical", "echo", "reba"))


def test_kept_model_and_index_reopen(report: dict[str, Any], kept: Path) -> None:
    assert sorted(path.name for path in kept.iterdir()) == ["index", "model"]
    model = SentenceTransformer(str(kept / "model"), device="cpu")
    with Index.open(kept / "index", model) as index:
        assert len(index) == 12
        assert Path(index.find_model()).samefile(kept / "model")
        for query, results in report["results"].items():
            found = index.search(query, K)
            assert [result.id for result in found] == [result["id"] for result in results]
            assert np.allclose([result.score for result in found], [result["score"] for result in results], atol=1e-4)


def test_folder_that_is_taken(report: dict[str, Any], kept: Path, tmp_path: Path) -> None:
    before = sorted(kept.rglob("*"))
    with pytest.raises(FileExistsError, match="not empty"):
        demo.run(kept, say=lambda line: None)
    assert sorted(kept.rglob("*")) == before


def test_file_instead_of_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("mine")
    assert cli.main(["demo", "--keep", str(tmp_path / "file")]) == 2
    err = capsys.readouterr().err
    assert "--keep" in err and "file" in err and "Errno" not in err
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.usefixtures("few")
def test_command_with_json(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", "--json", "--query", "a cat", "--query", "银行", "--top", "2"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert report["documents"] == 12 and report["round_trip"] <= 1e-6
    assert list(report["results"]) == ["a cat", "银行"]
    assert [len(results) for results in report["results"].values()] == [2, 2]


@pytest.mark.usefixtures("few")
def test_command(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["demo", "--keep", str(tmp_path / "new" / "folder"), "--query", "a cat", "--top", "1"]) == 0
    out, err = capfd.readouterr()
    assert out.startswith("1. ") and "a cat" in out and "Traceback" not in err
    assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == ["index", "model"]
    assert cli.main(["demo", "--keep", str(tmp_path / "new" / "folder")]) == 2
    assert "not empty" in capfd.readouterr().err
