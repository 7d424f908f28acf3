"""Encoding files: order, equality with model.encode, and files that are written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from architectures import TOKENIZERS
from marks import slow_but
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding, Transformer

import st_reba
from st_reba.batches import DEFAULT_BATCH_TOKENS
from st_reba.build import EMBEDDED
from st_reba.encode import encode_file, encode_stream, encode_texts

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
        (TEXTS, {"batch_size": 0}, "batch_size=0 must be a whole number"),
        (TEXTS, {"batch_tokens": 0}, "batch_tokens=0 must be a whole number"),
        (TEXTS, {"batch_tokens": 2.5}, "batch_tokens=2.5 must be a whole number"),
        (TEXTS, {"batch_size": 8, "batch_tokens": 512}, "batch_size=8 and batch_tokens=512 exclude each other"),
        (TEXTS, {"prompt_name": "qeury"}, "prompt_name='qeury'.*document.*query"),
        (TEXTS, {"output_value": "token_embeddings"}, "output_value='token_embeddings'.*encode"),
        (TEXTS, {"colour": "red"}, "colour"),
        (TEXTS, {"precision": "int4"}, "int4"),
        (TEXTS, {"processing_kwargs": {"text": {"max_length": 9}}}, "processing_kwargs.*max_seq_length"),
        (TEXTS, {"batch_tokens": 512, "device": ["cpu", "cpu"]}, "batch_tokens=512.*several processes.*batch_size"),
    ],
)
def test_bad_arguments(model: SentenceTransformer, texts: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        list(encode_stream(model, texts, **options))


# Short and long, twice the same, without a token, and one longer than any budget below.
MIXED = [
    *TEXTS,
    "",
    "天",
    "The bank of the river is steep. " * 20,
    TEXTS[3],
    " ",
    "",
    *[f"{'很' * (number * 13 % 60)} number {number}" for number in range(24)],
    *["the same"] * 36,
]


def forward_shapes(model: SentenceTransformer) -> list[tuple[int, int, int]]:
    """Rows, columns and real positions of every forward pass from now on."""
    shapes: list[tuple[int, int, int]] = []

    def note(module: Any, arguments: tuple[dict[str, Any], ...]) -> None:
        mask = arguments[0]["attention_mask"]
        shapes.append((*mask.shape, int(mask.sum())))

    model[0].register_forward_pre_hook(note)
    return shapes


def made(kind: str) -> SentenceTransformer:
    """An st_reba model, a plain one, or one whose input has no padding."""
    if kind == "bag of words":
        return SentenceTransformer(modules=[StaticEmbedding(TOKENIZERS["plain"]().backend_tokenizer, embedding_dim=8)])
    if kind == "plain":
        transformer = Transformer(str(EMBEDDED["mini"]), max_seq_length=256, model_kwargs={"dtype": "float32"})
        return SentenceTransformer(modules=[transformer, Pooling(192, "mean")], device="cpu")
    options: dict[str, Any] = {"reba": {"pooling": "mean"}, "nosink": {"setting": "mask0-bidir", "k": 2}}[kind]
    return st_reba.build("mini", kind, **options)


@pytest.mark.parametrize("kind", slow_but(["reba", "nosink", "plain", "bag of words"], "plain", "bag of words"))
def test_token_batches_give_each_text_its_own_vector(kind: str) -> None:
    """Those of each text alone, in the order of the texts; no batch takes more positions than it may."""
    model = made(kind)
    # Alone and without a token, a plain model has nothing to run on, and a bag of words is zero.
    texts = MIXED if kind in ("reba", "nosink") else [text for text in MIXED if text.strip()]
    wanted = np.stack([model.encode(text) for text in texts])
    shapes = forward_shapes(model) if kind != "bag of words" else []
    for batch_tokens in (1, 100, 1500, None):
        shapes.clear()
        done: list[int] = []
        vectors = encode_texts(model, texts, batch_tokens=batch_tokens, progress=done.append)
        assert vectors.dtype == np.float32 and vectors.shape == wanted.shape
        np.testing.assert_allclose(vectors, wanted, atol=1e-5 * np.abs(wanted).max())
        assert sum(done) == len(texts) and len(done) > 1
        if not shapes:
            continue
        assert [rows for rows, _, _ in shapes] == done
        lengths = [length for _, length, _ in shapes]
        assert lengths == sorted(lengths, reverse=True) and lengths[0] > 150 > 10 > lengths[-1]
        budget = DEFAULT_BATCH_TOKENS if batch_tokens is None else batch_tokens
        assert all(rows == 1 or rows * length <= budget for rows, length, _ in shapes)
        padded = sum(rows * length for rows, length, _ in shapes)
        assert 1 - sum(real for _, _, real in shapes) / padded < 0.05
        assert (max(done) == 1) == (batch_tokens == 1) and (max(done) > 32) == (batch_tokens in (1500, None))


@pytest.mark.slow
def test_stream_in_token_batches(model: SentenceTransformer) -> None:
    wanted = np.stack([model.encode_document(text) for text in MIXED])
    for options in ({}, {"batch_tokens": 300}):
        chunks = list(encode_stream(model, iter(MIXED), task="document", chunk_size=29, **options))
        assert [text for texts, _ in chunks for text in texts] == MIXED
        assert [len(texts) for texts, _ in chunks] == [29, 29, 19]
        np.testing.assert_allclose(np.concatenate([vectors for _, vectors in chunks]), wanted, atol=1e-5)


def test_file_in_token_batches(model: SentenceTransformer, tmp_path: Path) -> None:
    shape = encode_file(model, iter(MIXED), tmp_path / "v.npy", batch_tokens=300, chunk_size=29)
    assert shape == (len(MIXED), 192)
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), model.encode(MIXED, batch_size=1), atol=1e-5)


@pytest.mark.parametrize(
    "options",
    slow_but(
        [
            {},
            {"task": "query"},
            {"task": "document"},
            {"task": "query", "prompt": "Other: "},
            {"prompt": ""},
            {"prompt": "Query: "},
            {"prompt_name": "query"},
            {"task": "document", "prompt_name": "query"},
            {"normalize_embeddings": True},
            {"truncate_dim": 20},
            {"convert_to_tensor": True},
            {"convert_to_numpy": False},
            {"convert_to_numpy": False, "truncate_dim": 20},
            {"device": "cpu"},
            {"precision": "float32"},
            {"precision": "binary"},
            {"precision": "ubinary"},
            {"precision": "int8"},
            {"precision": "uint8"},
        ],
        {},
        {"prompt": "Query: "},
        {"truncate_dim": 20},
        {"precision": "int8"},
    ),
    ids=str,
)
def test_options_in_token_batches(options: dict[str, Any]) -> None:
    """What encode takes, it goes on taking, and the positions counted are those of its input."""
    prompts = {"query": "Tell me, which is it: ", "passage": "This is a passage of some document, as it stands: "}
    # One layer tells as much of options as six.
    model = st_reba.build("mini", layer=1, normalize=False, prompts=prompts)
    model.prompts.pop("document", None)
    model.default_prompt_name = "query"
    given = {name: value for name, value in options.items() if name != "task"}
    encode = {"query": model.encode_query, "document": model.encode_document}.get(options.get("task", ""), model.encode)
    found = encode(MIXED, batch_size=1, **given)
    wanted = np.asarray(torch.stack(found) if isinstance(found, list) else found)
    shapes = forward_shapes(model)
    vectors = encode_texts(model, MIXED, batch_tokens=400, **options)
    assert vectors.dtype == np.float32
    # Rounding to 256 steps may fall to either side.
    tolerance = 1.01 if "int8" in options.get("precision", "") else 1e-5 * np.abs(wanted).max()
    np.testing.assert_allclose(vectors, wanted, rtol=0, atol=tolerance)
    assert all(rows == 1 or rows * length <= 400 for rows, length, _ in shapes) and len(shapes) > 5
    # A prompt that is not counted would leave the batches less than full, or over the budget.
    assert max(rows * length for rows, length, _ in shapes if rows > 1) > 300
    if "binary" in options.get("precision", ""):
        assert vectors.shape[1] == 24


def test_fields_in_token_batches() -> None:
    model = st_reba.build("mini", "echo", template="echo-instruct")
    shapes = forward_shapes(model)
    wanted = model.encode_query(MIXED, instruction="Find it.", batch_size=1)
    shapes.clear()
    vectors = encode_texts(model, MIXED, task="query", instruction="Find it.", batch_tokens=600)
    np.testing.assert_allclose(vectors, wanted, atol=1e-5)
    assert all(rows == 1 or rows * length <= 600 for rows, length, _ in shapes)
    with pytest.raises(ValueError, match="needs a value for {instruction}"):
        encode_texts(model, MIXED, task="query")


def test_half_precision_in_any_form() -> None:
    half = st_reba.build("mini", dtype="bfloat16")
    wanted = half.encode(TEXTS, convert_to_tensor=True).float().numpy()
    for options in ({}, {"convert_to_tensor": True}, {"convert_to_numpy": False}):
        for sizes in ({}, {"batch_size": 4}):
            np.testing.assert_allclose(encode_texts(half, TEXTS, **sizes, **options), wanted, atol=0.02)


def test_batch_size_stays(model: SentenceTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    """One call a chunk, which sentence-transformers divides; so do several processes, whatever is given."""
    calls: list[dict[str, Any]] = []

    def encode(texts: list[str], **options: Any) -> Any:
        calls.append({"texts": len(texts), **options})
        return np.zeros((len(texts), 3))

    monkeypatch.setattr(model, "encode", encode)
    for options in ({"batch_size": 5}, {"device": ["cpu", "cpu"]}, {"pool": {}}, {"pool": {}, "batch_size": 5}):
        calls.clear()
        chunks = list(encode_stream(model, TEXTS, chunk_size=6, **options))
        assert [vectors.shape for _, vectors in chunks] == [(6, 3), (5, 3)]
        assert [call["texts"] for call in calls] == [6, 5]
        assert {call["batch_size"] for call in calls} == {options.get("batch_size", 32)}
