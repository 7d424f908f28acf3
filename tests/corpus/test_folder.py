"""The folder: vectors that cannot be used are told, and damaged files are found and made again."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contents import LONG, MIXED, TEXTS, broken, files_of, run, times_of, vectors_of
from sentence_transformers import SentenceTransformer
from tiny import tiny_model

from st_reba.corpus import Corpus, encode_corpus, part


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_unusable_vectors_are_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: Any) -> None:
    """The vectors stay in their places; their documents are told."""
    model = tiny_model()
    wanted = model.encode_document(TEXTS)
    real = model.encode_document
    broken = {"number 3,": np.nan, "number 12,": 0, "number 13,": -np.inf, "number 25,": 1e5}

    def encode_document(texts: list[str], **options: Any) -> Any:
        vectors = np.array(real(texts, **options))
        for row, text in enumerate(texts):
            for name, value in broken.items():
                if name in text:
                    vectors[row, 0 if value else slice(None)] = value
        return vectors

    monkeypatch.setattr(model, "encode_document", encode_document)
    corpus = encode_corpus(model, ["", *TEXTS], tmp_path / "c", dtype=dtype, part_size=8)
    reasons = {3: "NaN or infinite", 12: "it is zero", 13: "NaN or infinite"}
    reasons |= {13: "float16 cannot hold", 25: "float16 cannot hold"} if dtype == "float16" else {}
    good = [number for number in range(26) if number not in {*reasons, 25}]
    np.testing.assert_allclose(vectors_of(corpus)[good], wanted[good], atol=1e-6 if dtype == "float32" else 2e-3)
    lines = [json.loads(line) for line in (corpus.path / "rejects.jsonl").read_text().splitlines()]
    assert (lines[0]["place"], lines[0]["id"]) == ("record 0", None)
    assert [(line["place"], line["id"], line["text"]) for line in lines[1:]] == [
        (f"record {number + 1}", str(number + 1), TEXTS[number][:80]) for number in reasons
    ]
    assert all(reason in line["reason"] for line, reason in zip(lines[1:], reasons.values(), strict=True))
    totals = corpus.header()["totals"]
    assert (totals["rejected"], totals["unusable"], totals["documents"]) == (1, len(reasons), 26)
    assert {reject.kind for reject in corpus.rejects()} == {"no text", "no vector"}


def test_a_document_with_an_unusable_passage_is_set_aside_once(
    model: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Any = part.encode_batch
    monkeypatch.setattr(
        part,
        "encode_batch",
        lambda model, texts, **options: real(model, texts, **options) * [["春" not in text] for text in texts],
    )
    corpus = encode_corpus(model, ["a cat", LONG * 3, "b cat"], tmp_path / "c", passages="8:2", show_progress_bar=False)
    assert [(one.place, one.kind) for one in corpus.rejects()] == [("record 1", "no vector")]


@pytest.mark.parametrize("name", ["documents/00001.parquet", "vectors/00001.npy", "rejects.jsonl"])
@pytest.mark.parametrize("harm", ["truncated", "altered", "missing", "more"])
def test_verify_finds_a_damaged_file_and_it_is_made_again(whole: Corpus, name: str, harm: str) -> None:
    whole.verify()
    before, times = files_of(whole.path), times_of(whole.path)
    path = whole.path / name
    content = path.read_bytes()
    if harm == "missing":
        path.unlink()
        assert whole.is_complete() == (name == "rejects.jsonl")
    elif harm == "more":
        name = name.replace("00001", "00009")
        (whole.path / name).write_bytes(content + b"!" * (name == "rejects.jsonl"))
    else:
        middle = bytes([content[60] ^ 1])
        path.write_bytes(content[:-1] if harm == "truncated" else content[:60] + middle + content[61:])
    with pytest.raises(ValueError, match=f"{whole.path}/{name}: missing, or not what was written"):
        whole.verify()
    run(whole.path, MIXED)
    assert files_of(whole.path) == before
    changed = {file for file, time in times_of(whole.path).items() if times.get(file) != time}
    assert {file[:5] for file in changed} <= {"00001"}


def test_a_part_that_is_damaged_before_the_end_is_made_again(tmp_path: Path, whole: Corpus) -> None:
    """There is no digest to compare with yet."""
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "c", broken(25))
    path = Corpus(tmp_path / "c").documents_path(0)
    os.truncate(path, path.stat().st_size - 1)
    assert files_of(run(tmp_path / "c", MIXED).path) == files_of(whole.path)


def test_files_of_another_kind_are_told(whole: Corpus) -> None:
    for content, message in (("{", "not JSON"), ("[" * 100_000, "not JSON"), ('{"model": 1}', "no header of a corpus")):
        (whole.path / "corpus.json").write_text(content)
        with pytest.raises(ValueError, match=f"corpus.json: {message}.*encode the corpus again"):
            whole.header()
    for vectors, message in ((np.zeros(3, np.float32), "not vectors"), (np.zeros((9, 16)), r"float64 \(9, 16\), not")):
        np.save(whole.vectors_path(0), vectors)
        with pytest.raises(ValueError, match=f"00000.npy: .*{message}.*remove it and encode again"):
            whole.vectors(0)
        assert not whole.is_encoded(0) and whole.pending() == [0]
    whole.documents_path(1).write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=r"00001.parquet: not the documents of a part, or damaged"):
        whole.part(1)
    assert whole.digest(1) is None and whole.digest(99) is None
