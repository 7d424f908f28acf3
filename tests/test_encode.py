"""Encoding files: order, equality with model.encode, and files that are written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

import st_reba
from st_reba.encode import encode_file, encode_stream

TEXTS = [f"Text {'very ' * (number * 7 % 5)}number {number}, 第{number}句。" for number in range(11)]


@pytest.fixture(scope="module")
def model() -> SentenceTransformer:
    return st_reba.build("mini", prompts={"query": "Query: ", "document": "Text: "})


@pytest.fixture(scope="module")
def wanted(model: SentenceTransformer) -> Any:
    return model.encode(TEXTS)


def close(one: Any, other: Any) -> bool:
    return bool(np.allclose(one, other, atol=1e-5))


@pytest.mark.parametrize("chunk_size", [1, 4, 11, 1000])
def test_order(model: SentenceTransformer, wanted: Any, chunk_size: int) -> None:
    chunks = list(encode_stream(model, iter(TEXTS), chunk_size=chunk_size, batch_size=3))
    assert [text for texts, _ in chunks for text in texts] == TEXTS
    assert [len(texts) for texts, _ in chunks] == [vectors.shape[0] for _, vectors in chunks]
    assert max(len(texts) for texts, _ in chunks) <= chunk_size
    vectors = np.concatenate([vectors for _, vectors in chunks])
    assert vectors.dtype == np.float32 and close(vectors, wanted)


def test_stream_reads_no_further_than_it_must(model: SentenceTransformer) -> None:
    read = []

    def texts() -> Iterator[str]:
        for text in TEXTS:
            read.append(text)
            yield text

    stream = encode_stream(model, texts(), chunk_size=3)
    assert read == []
    next(stream)
    assert read == TEXTS[:3]


def test_tasks_and_prompts(model: SentenceTransformer) -> None:
    def encode(**kwargs: Any) -> Any:
        return np.concatenate([vectors for _, vectors in encode_stream(model, TEXTS, **kwargs)])

    assert close(encode(task="query"), model.encode_query(TEXTS))
    assert close(encode(task="document"), model.encode_document(TEXTS))
    assert close(encode(prompt="Query: "), model.encode_query(TEXTS))
    assert not close(encode(task="query"), encode())


def test_file(model: SentenceTransformer, wanted: Any, tmp_path: Path) -> None:
    out = tmp_path / "vectors.npy"
    out.write_text("old")
    assert encode_file(model, iter(TEXTS), out, chunk_size=4) == (11, 192)
    vectors = np.load(out)
    assert vectors.dtype == np.float32 and close(vectors, wanted)
    assert encode_file(model, TEXTS[:1], str(out), task="query") == (1, 192)
    assert close(np.load(out), model.encode_query(TEXTS[:1]))
    assert os.listdir(tmp_path) == ["vectors.npy"]


def test_bfloat16_becomes_float32(tmp_path: Path) -> None:
    half = st_reba.build("mini", dtype="bfloat16")
    encode_file(half, TEXTS, tmp_path / "v.npy")
    assert np.load(tmp_path / "v.npy").dtype == np.float32


def test_empty_input(model: SentenceTransformer, tmp_path: Path) -> None:
    assert list(encode_stream(model, [])) == []
    out = tmp_path / "vectors.npy"
    with pytest.raises(ValueError, match="no texts.*empty"):
        encode_file(model, [], out)
    assert os.listdir(tmp_path) == []


def test_missing_folder(model: SentenceTransformer, tmp_path: Path) -> None:
    with pytest.raises((ValueError, OSError), match="nowhere.*does not exist"):
        encode_file(model, _unread(), tmp_path / "nowhere" / "vectors.npy")
    assert os.listdir(tmp_path) == []


def test_folder_instead_of_a_file(model: SentenceTransformer, tmp_path: Path) -> None:
    """Told before any text is encoded, with the name that was given."""
    (tmp_path / "folder").mkdir()
    with pytest.raises((ValueError, OSError), match="folder' is a folder"):
        encode_file(model, _unread(), tmp_path / "folder")
    assert os.listdir(tmp_path) == ["folder"]


def _unread() -> Iterator[str]:
    raise AssertionError("the texts were read although there is nowhere to write to")
    yield ""


@pytest.mark.parametrize("there", [True, False])
def test_failure_leaves_the_folder_as_it_was(
    model: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    out = tmp_path / "vectors.npy"
    if there:
        out.write_text("old")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def check() -> None:
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before

    with pytest.raises(ValueError, match="NoneType"):
        encode_file(model, cast(Any, [*TEXTS, TEXTS[0], None]), out, chunk_size=6)
    check()

    def fail(stream: Any, vectors: Any) -> None:
        stream.write(b"half")
        raise OSError("disk full")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="disk full"):
        patch.setattr(np, "save", fail)
        encode_file(model, TEXTS, out)
    check()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "replace", _interrupt)
        encode_file(model, TEXTS, out)
    check()


def _interrupt(*arguments: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        ("one text", {}, "one str"),
        (TEXTS, {"task": "querry"}, "task='querry'.*query.*document"),
        (TEXTS, {"chunk_size": 0}, "chunk_size=0"),
        (TEXTS, {"batch_size": 0}, "batch_size"),
    ],
    ids=["str", "task", "chunk_size", "batch_size"],
)
def test_bad_arguments(model: SentenceTransformer, texts: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        list(encode_stream(model, texts, **options))
