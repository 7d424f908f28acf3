"""A corpus is complete or goes on; what is there is never encoded again."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tiny import WORDS, tiny_model

import st_reba
import st_reba.corpus.encode as encoding
import st_reba.corpus.parts as parts
from st_reba.corpus import Corpus, Document, encode_corpus, open_source
from st_reba.corpus.passages import PassageSize
from st_reba.storage.files import sole_writer

MODEL = tiny_model()
MODEL[0].embedding.weight.data[0] = 0  # words that it does not know have no vector
TEXTS = [" ".join(WORDS[n % 12] for n in range(start, start + 1 + start % 5)) for start in range(20)]
QUIET: dict[str, Any] = {"show_progress_bar": False}


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that are encoded."""
    found: list[str] = []
    real = parts.encode_texts

    def encode(model: Any, texts: list[str], **options: Any) -> Any:
        found.extend(texts)
        return real(model, texts, **options)

    monkeypatch.setattr(parts, "encode_texts", encode)
    return found


def encode(path: Path, input: Any = TEXTS, model: Any = MODEL, **options: Any) -> Corpus:
    return encode_corpus(model, input, path, **{**QUIET, "part_size": 6, **options})


def content(corpus: Corpus) -> dict[str, bytes]:
    """Every file by name."""
    files = [path for path in corpus.path.rglob("*") if path.is_file() and path.name != ".lock"]
    return {path.relative_to(corpus.path).as_posix(): path.read_bytes() for path in files}


@pytest.mark.bars
def test_vectors_are_the_models(tmp_path: Path, capsys: Any) -> None:
    corpus = encode(tmp_path / "a")
    rows = [(row, vectors) for part in range(corpus.parts()) for row, vectors in corpus.read(part)]
    assert [(row.text, row.document().id) for row, _ in rows] == [(text, str(n)) for n, text in enumerate(TEXTS)]
    wanted = MODEL.encode_document(TEXTS, show_progress_bar=False)
    assert np.array_equal(np.concatenate([vectors for _, vectors in rows]), wanted)
    assert corpus.header()["totals"] == {"parts": 4, "documents": 20, "vectors": 20, "truncated": 0, "rejected": 0}
    corpus.verify()
    np.save(corpus.vectors_path(0), wanted[0])
    with pytest.raises(ValueError, match="damaged"):
        corpus.vectors(0)
    assert capsys.readouterr().err == ""
    half = encode(tmp_path / "half", dtype="float16", part_size=99, show_progress_bar=True)
    assert "20/20" in capsys.readouterr().err
    assert half.vectors(0).dtype == np.float16 and half.parts() == 1
    assert np.abs(half.vectors(0) - wanted).max() < 1e-2


def test_it_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: list[str]) -> None:
    # As one leaves it that was killed at its beginning.
    (tmp_path / "whole" / "documents").mkdir(parents=True)
    (tmp_path / "whole" / ".corpus.json.1.tmp").touch()
    whole = content(encode(tmp_path / "whole"))
    assert sorted(seen) == sorted(TEXTS)
    real = Corpus.write_vectors

    def write(self: Corpus, number: int, *values: Any) -> None:
        real(self, number, *values)
        if number == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Corpus, "write_vectors", write)
        encode(tmp_path / "corpus")
    with pytest.raises(ValueError, match="not encoded to its end"):
        Corpus(tmp_path / "corpus").verify()
    seen.clear()
    assert content(encode(tmp_path / "corpus")) == whole
    assert sorted(seen) == sorted(TEXTS[12:])
    seen.clear()
    assert content(encode(tmp_path / "corpus")) == whole and seen == []


@pytest.mark.parametrize(
    ("where", "name", "input"),
    [(Corpus, "write_part", TEXTS[::-1]), (Path, "unlink", TEXTS[:12]), (encoding, "_encode_pending", TEXTS)],
)
def test_one_that_changes_is_not_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: Any, name: str, input: list[str]
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    corpus = encode(tmp_path / "corpus")
    corpus.vectors_path(3).unlink()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(where, name, stop)
        encode(corpus.path, input, overwrite=True)
    assert not {"totals", "files"} & corpus.header().keys()


@pytest.mark.parametrize("name", ["documents/00001.parquet", "vectors/00001.npy", "rejects.jsonl"])
def test_what_is_altered_is_made_again(tmp_path: Path, seen: list[str], name: str) -> None:
    corpus = encode(tmp_path / "corpus")
    whole = content(corpus)
    for altered in (whole[name][:-7], whole[name] + b" ", None):
        path = corpus.path / name
        path.unlink() if altered is None else path.write_bytes(altered)
        if whole[name] != altered:
            with pytest.raises(ValueError):
                corpus.verify()
        seen.clear()
        assert content(encode(corpus.path)) == whole
        assert set(seen) <= set(TEXTS[6:12])


def test_another_input_model_or_setting(tmp_path: Path, seen: list[str]) -> None:
    encode(tmp_path / "corpus")
    other = [*TEXTS[:7], "gold", *TEXTS[8:]]
    calls: list[dict[str, Any]] = [
        {"input": other}, {"input": TEXTS[:12]}, {"dtype": "float16"},
        {"part_size": 7}, {"model": tiny_model(1)},
    ]  # fmt: skip
    before = content(Corpus(tmp_path / "corpus"))
    for call in calls:
        with pytest.raises(ValueError, match="overwrite=True|cannot be used"):
            encode(tmp_path / "corpus", **call)
        assert content(Corpus(tmp_path / "corpus")) == before
    seen.clear()
    corpus = encode(tmp_path / "corpus", other, overwrite=True)
    assert sorted(seen) == sorted(other[6:12])
    corpus.vectors_path(2).unlink()
    corpus.documents_path(3).unlink()
    for call in calls[1:]:
        new = encode(tmp_path / "corpus", overwrite=True, **call)
        new.verify()
        assert content(new) == content(encode(tmp_path / f"new {calls.index(call)}", **call))
    # part_size may be left out when it goes on
    assert encode(tmp_path / "corpus", model=tiny_model(1), part_size=None).parts() == 4


def test_what_is_set_aside(tmp_path: Path) -> None:
    input = ["cat", "", Document("dog", "1"), Document("ship", "1"), {"text": 7}, "zzzz", Document("gold", "0")]
    corpus = encode(tmp_path / "corpus", input, part_size=99)
    kinds = [(one.place, one.kind, one.id) for one in corpus.rejects()]
    assert kinds == [
        ("record 1", "no text", None), ("record 3", "id used twice", "1"), ("record 4", "wrong type", None),
        ("record 6", "id used twice", "0"), ("record 5", "no vector", "5"),
    ]  # fmt: skip
    lines = (corpus.path / "rejects.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["place"] for line in lines] == [place for place, *_ in kinds]
    assert corpus.header()["totals"]["rejected"] == 5
    assert encode(tmp_path / "none", ["", "cat"], part_size=1).vectors(0).shape == (0, 16)
    with pytest.raises(ValueError, match="record 1"):
        encode(tmp_path / "strict", open_source(input).strict())
    assert not (tmp_path / "strict").exists()


def test_vectors_that_cannot_be_used(tmp_path: Path) -> None:
    """One passage's is enough, and one value of it that is not finite; a single zero is no fault."""
    texts = ["A long text in passages.", "Short.", "Other."]
    corpus = encode_corpus(st_reba.build("mini"), texts, tmp_path / "c", passages="4")
    vectors = np.array(corpus.vectors(0))
    vectors[-1, 0] = 0
    assert len(vectors) > 3 and corpus.unusable(0) == {}
    for spoilt, value, row, reason in ((1, 0, 0, "zero"), ((-2, 0), 1e6, 1, "NaN or infinite in float16")):
        changed = vectors.copy()
        changed[spoilt] = value
        corpus.write_vectors(0, changed, "float16")
        ((place, reject),) = corpus.unusable(0).items()
        assert place == row and reject.id == str(row) and f"it is {reason};" in reject.reason


def test_parts_of_long_texts_are_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "MAX_PART_CHARACTERS", 100)
    corpus = encode(tmp_path / "corpus", [{"text": "cat " * 10, "more": "a" * 40}] * 5, part_size=100)
    assert corpus.parts() == 3


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"input": []}, ValueError), ({"input": "missing.txt"}, FileNotFoundError), ({"workers": 0}, ValueError),
        ({"dtype": "int8"}, ValueError), ({"part_size": 0}, ValueError), ({"batch_tokens": True}, ValueError),
        ({"passages": "8:2"}, ValueError),  # its tokenizer gives no offsets
    ],
)  # fmt: skip
def test_refused(tmp_path: Path, options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        encode(tmp_path / "corpus", **options)
    assert not (tmp_path / "corpus").exists()


def test_other_folders_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("st_reba.storage.files.WRITER_PATIENCE", 0.1)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.txt").write_text("cat", encoding="utf-8")
    (tmp_path / "file").touch()
    for name in ("mine", "file"):
        with pytest.raises(FileExistsError):
            encode(tmp_path / name, overwrite=True)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["a.txt"]
    encode(tmp_path / "corpus")
    with sole_writer(tmp_path / "corpus", "*"), pytest.raises(BlockingIOError):
        encode(tmp_path / "corpus")


def test_passages(tmp_path: Path) -> None:
    model = st_reba.build("mini", "reba", pooling="mean")
    model.tokenizer.model_max_length = 20  # a passage may be longer
    long = "春天来了，河边的柳树发了新芽，孩子们在草地上放风筝。" * 4
    corpus = encode(tmp_path / "corpus", [long, "猫"], model, passages="16:4")
    (first, vectors), (second, other) = corpus.read(0)
    offsets = model.tokenizer(long, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    assert first.spans == PassageSize(16, 4).find_spans(offsets, len(long)) and len(vectors) > 3
    assert second.passages == ["猫"] and len(other) == 1
    wanted = model.encode_document(first.passages, show_progress_bar=False)
    assert np.abs(vectors - wanted).max() < 1e-5
    assert corpus.header()["settings"] == {
        **{"dtype": "float32", "batch_tokens": None, "passages": "16:4", "part_size": 6},
        **{"dtype of the model": "float32", "max_seq_length": model.max_seq_length},
    }


def test_bounds_of_passages() -> None:
    assert [PassageSize.parse(value) for value in ("8", "8:2")] == [PassageSize(8), PassageSize(8, 2)]
    for wrong in ("0", "8:8", "x"):
        with pytest.raises(ValueError):
            PassageSize.parse(wrong)
    places = [(0, 1), (0, 1), (1, 3), (4, 5), (5, 6), (6, 7), (8, 9)]  # the first two are bytes of one letter
    assert PassageSize(3, 1).find_spans(places, 9) == [0, 4, 1, 6, 5, 9]
    assert PassageSize(1).find_spans(places[:3], 3) == [0, 1, 0, 1, 1, 3]


def test_damaged_headers(tmp_path: Path) -> None:
    corpus = encode(tmp_path / "corpus")
    for text in ("", "[]", "{}", '{"model": 1, "settings": 2}'):
        (corpus.path / "corpus.json").write_text(text, encoding="utf-8")
        with pytest.raises(ValueError):
            encode(corpus.path)
    assert encode(corpus.path, overwrite=True).header()["totals"]["documents"] == 20


def test_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def encode_on_ray(model: Any, corpus: Corpus, parts: list[int], progress: Any, workers: int) -> None:
        calls.append((parts, workers))
        for number in parts:
            encoding.encode_part(model, corpus, number, progress)

    ray = SimpleNamespace(encode_on_ray=encode_on_ray)
    monkeypatch.setitem(sys.modules, "st_reba.corpus.ray", ray)
    encode(tmp_path / "corpus", workers=2)
    assert calls == [([0, 1, 2, 3], 2)]


def test_part_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quick model gets more texts in a part than a slow one; the last may be full."""
    assert encode(tmp_path / "full", ["cat", "dog"] * 6).parts() == 2
    for rate, size in ((0.1, 64), (100, 1024), (1e6, 16_384)):
        monkeypatch.setattr(encoding, "encoding_rate", lambda model, rate=rate: rate)
        corpus = encode(tmp_path / str(rate), part_size=None)
        assert corpus.header()["settings"]["part_size"] == size
