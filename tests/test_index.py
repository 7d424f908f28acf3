"""The index: reading documents, building, opening and searching, and refusing what does not fit."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

import st_reba.index.index as index_module
from st_reba.index import Document, Index, SearchResult, read_documents
from st_reba.index.fingerprint import ModelFingerprint, check, fingerprint
from st_reba.index.manifest import Manifest
from st_reba.index.store import DocumentStore

MINI = Path(__file__).resolve().parents[1] / "st_reba" / "mini"
FILES = ["documents.sqlite", "manifest.json", "vectors.faiss"]
TEXTS = [
    "A cat sleeps on the warm roof.",
    "The ship left the harbour at dawn.",
    "今天天气很好，我们去公园散步。",
    "银行昨天提高了存款利率。",
    "Bread needs flour, water, salt and time.",
    "猫在屋顶上睡觉。",
    "The bank raised its interest rates.",
    "A list of the kings of France, with dates.",
    "火车晚点了两个小时。",
    "He sold the house and moved to the coast.",
]
QUERIES = ["猫", "interest rates of the bank", "sailing"]


def make_model(dtype: str = "float32", pooling: Any = "mean", **kwargs: Any) -> SentenceTransformer:
    transformer = Transformer(str(MINI), model_kwargs={"dtype": dtype})
    return SentenceTransformer(modules=[transformer, Pooling(192, pooling)], device="cpu", **kwargs)


@pytest.fixture(scope="module")
def model() -> SentenceTransformer:
    return make_model()


@pytest.fixture(scope="module")
def built(model: SentenceTransformer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("index") / "ten"
    documents = [Document(text, id=f"d{row}", metadata={"row": row, "名": "值"}) for row, text in enumerate(TEXTS)]
    Index.build(model, documents, path, chunk_size=4, batch_size=3).close()
    return path


@pytest.fixture
def copy(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "copy"))


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def cosines(model: SentenceTransformer, queries: list[str], texts: list[str]) -> Any:
    a = model.encode_query(queries, show_progress_bar=False).astype(np.float64)
    b = model.encode_document(texts, show_progress_bar=False).astype(np.float64)
    a, b = a / np.linalg.norm(a, axis=1)[:, None], b / np.linalg.norm(b, axis=1)[:, None]
    return a @ b.T


# Building and searching


def test_search_is_brute_force(model: SentenceTransformer, built: Path) -> None:
    expected = cosines(model, QUERIES, TEXTS)
    with Index.open(built, model) as index:
        found = index.search(QUERIES, k=4)
        for row, results in enumerate(found):
            order = np.argsort(-expected[row], kind="stable")[:4]
            assert [result.metadata["row"] for result in results] == order.tolist()
            assert [result.score for result in results] == pytest.approx(expected[row][order].tolist(), abs=1e-5)
            assert [result.rank for result in results] == [1, 2, 3, 4]
            assert [result.text for result in results] == [TEXTS[n] for n in order]
            assert [result.id for result in results] == [f"d{n}" for n in order]
        assert results[0].metadata["名"] == "值"
        one = index.search(QUERIES[1], k=4)
        assert isinstance(one[0], SearchResult)
        assert [result.id for result in one] == [result.id for result in found[1]]
        assert index.search([], k=3) == [] == index.search((), k=1)
        assert len(index.search("all", k=99)) == len(index) == len(TEXTS)


def test_ready_vectors(model: SentenceTransformer, built: Path) -> None:
    index = Index.open(built)
    vectors = model.encode_query(QUERIES, show_progress_bar=False)
    expected = index.search(QUERIES, k=3, model=model)
    for ready in (vectors, vectors.astype(np.float64) * 1e-30, np.asfortranarray(vectors * 7)):
        found: Any = index.search(ready, k=3)
        assert [[r.id for r in row] for row in found] == [[r.id for r in row] for row in expected]
        assert found[0][0].score == pytest.approx(expected[0][0].score, abs=1e-5)
    first: Any = index.search(vectors[0], k=3)
    assert [r.id for r in first] == [r.id for r in expected[0]]
    assert index.search(vectors[:0]) == []


def test_build_returns_a_ready_index(model: SentenceTransformer, tmp_path: Path) -> None:
    path = tmp_path / "new" / "generated #1?%20 中"
    index = Index.build(model, (text for text in TEXTS), path, chunk_size=3, show_progress_bar=True)
    assert index.path == path and sorted(os.listdir(path)) == FILES and os.listdir(path.parent) == [path.name]
    found = index.search(TEXTS[6], k=1)[0]
    assert found == SearchResult(1, found.score, "6", TEXTS[6], {}) and found.score == pytest.approx(1, abs=1e-5)
    assert repr(index) == f"Index({str(path)!r}, 10 documents, dim 192, cosine, built with 'mini')"
    again = Index.open(path)
    assert again.manifest == index.manifest
    assert (again.manifest.metric, again.manifest.dim, again.manifest.count) == ("cosine", 192, 10)
    assert str(MINI.parent) not in (path / "manifest.json").read_text(encoding="utf-8")


def test_dot(tmp_path: Path) -> None:
    model = make_model(similarity_fn_name="dot")
    index = Index.build(model, TEXTS, tmp_path / "dot")
    query = model.encode_query(QUERIES[0], show_progress_bar=False)
    expected = model.encode_document(TEXTS, show_progress_bar=False).astype(np.float64) @ query.astype(np.float64)
    found = index.search(QUERIES[0], k=10)
    assert [int(result.id) for result in found] == np.argsort(-expected).tolist()
    assert [result.score for result in found] == pytest.approx(np.sort(expected)[::-1].tolist(), rel=1e-4)
    zero: Any = index.search(np.zeros(192), k=10)
    assert [result.id for result in zero] == [str(row) for row in range(10)]


def test_ties_are_in_the_order_of_rows(model: SentenceTransformer, tmp_path: Path) -> None:
    index = Index.build(model, ["other", *["same"] * 20, "another"], tmp_path / "ties", batch_size=1)
    for k in (1, 2, 5, 19):
        assert [result.id for result in index.search("same", k=k)] == [str(row) for row in range(1, k + 1)]


def test_ids(model: SentenceTransformer, tmp_path: Path) -> None:
    index = Index.build(model, TEXTS[:2], tmp_path / "ids", ids=["a", "b"])
    assert {result.id for result in index.search("x")} == {"a", "b"}
    # A missing id is the row number, which another document may have taken.
    with pytest.raises(ValueError, match="'1' is used twice, at rows 0 and 1"):
        Index.build(model, [Document("one", id="1"), "two"], tmp_path / "twice")
    with pytest.raises(ValueError, match="rows 1 and 9"):
        Index.build(model, TEXTS, tmp_path / "twice", ids=list("0123456781"), chunk_size=2)
    for ids in (["a"], ["a", "b", "c"]):
        with pytest.raises(ValueError, match="2 texts, but"):
            Index.build(model, TEXTS[:2], tmp_path / "twice", ids=ids)
    for ids, message in ((["a"], "more texts than the 1 ids"), (["a", "b", "c"], "more ids than the 2 texts")):
        with pytest.raises(ValueError, match=message):
            Index.build(model, iter(TEXTS[:2]), tmp_path / "twice", ids=iter(ids))
    with pytest.raises(ValueError, match="row 0 has the id 'x'"):
        Index.build(model, [Document("one", id="x")], tmp_path / "twice", ids=["a"])
    assert os.listdir(tmp_path) == ["ids"]


def test_lone_surrogates(model: SentenceTransformer, tmp_path: Path) -> None:
    document = Document("a\ud800b\x00c 😀", id="\udfff", metadata={"k": "\ud800"})
    index = Index.build(model, [document], tmp_path / "odd")
    found = index.search("q\udc00")[0]
    assert (found.id, found.text, found.metadata) == ("\ufffd", "a\ufffdb\x00c 😀", {"k": "\ufffd"})


def test_threads(model: SentenceTransformer, built: Path) -> None:
    index = Index.open(built)
    vectors = model.encode_query(QUERIES, show_progress_bar=False)
    expected = [index.search(vector, k=5) for vector in vectors]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda turn: index.search(vectors[turn % 3], k=5), range(300)))
    assert all(result == expected[turn % 3] for turn, result in enumerate(found))


# What build refuses, and what it leaves behind


def test_existing_path(model: SentenceTransformer, copy: Path, tmp_path: Path) -> None:
    with pytest.raises(FileExistsError, match="copy.*overwrite=True"):
        Index.build(model, TEXTS, copy)
    with Index.open(copy, model) as old:
        Index.build(model, ["new"], copy, overwrite=True)
        assert old.search(TEXTS[3], k=1)[0].text == TEXTS[3]
    assert [result.text for result in Index.open(copy, model).search("new")] == ["new"]
    (copy / "mine.txt").touch()
    for other, message in ((copy, "not an index"), (write(tmp_path / "file", "x"), "a file is there")):
        with pytest.raises(FileExistsError, match=message):
            Index.build(model, TEXTS, other, overwrite=True)
    (tmp_path / "empty").mkdir()
    assert len(Index.build(model, TEXTS, tmp_path / "empty")) == 10
    assert sorted(os.listdir(tmp_path)) == ["copy", "empty", "file"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_interrupted_build(model: SentenceTransformer, copy: Path, error: type[BaseException]) -> None:
    def texts() -> Iterator[str]:
        yield from TEXTS
        raise error("stop")

    before = {name: (copy / name).read_bytes() for name in FILES}
    for path, overwrite in ((copy, True), (copy.with_name("fresh"), False)):
        with pytest.raises(error):
            Index.build(model, texts(), path, overwrite=overwrite, chunk_size=2)
    assert os.listdir(copy.parent) == ["copy"]
    assert {name: (copy / name).read_bytes() for name in FILES} == before


def test_failed_rename_keeps_the_old_index(
    model: SentenceTransformer, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.replace

    def fail(source: Any, target: Any) -> None:
        if str(source).endswith(".building"):
            raise OSError("disk gone")
        real(source, target)

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk gone"):
        Index.build(model, ["new"], copy, overwrite=True)
    assert os.listdir(copy.parent) == ["copy"]
    assert len(Index.open(copy)) == 10


def test_batches(model: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Built by token budget, unless a number of texts is given; the vectors are the same."""
    texts = [f"{'A cat sleeps. ' * (number * 7 % 11)}Number {number}." for number in range(40)]
    wanted = cosines(model, texts, texts)
    real = model.encode_document
    batches: list[tuple[int, int]] = []

    def encode(batch: list[str], **options: Any) -> Any:
        mask = model.preprocess(batch)["attention_mask"]
        if "batch_size" in options:  # not the fingerprint's probes
            batches.append((options["batch_size"], mask.numel()))
            assert options["batch_size"] == 16 or mask.sum() >= 0.95 * mask.numel()
        return real(batch, **options)

    monkeypatch.setattr(model, "encode_document", encode)
    largest = {}
    for number, options in enumerate([{}, {"batch_tokens": 200}, {"batch_size": 16}]):
        batches.clear()
        with Index.build(model, texts, tmp_path / str(number), chunk_size=30, **options) as index:
            found = index.search(texts, len(texts))
        for row, results in zip(wanted, found, strict=True):
            scores = {int(result.id): result.score for result in results}
            np.testing.assert_allclose([scores[column] for column in range(len(texts))], row, atol=1e-5)
        largest[number] = max(positions for rows, positions in batches if rows > 1)
        assert len(batches) == 2 if number == 2 else len(batches) > 4
    assert largest[1] <= 200 < largest[0]
    assert {rows for rows, _ in batches} == {16}


@pytest.mark.parametrize(
    ("texts", "kwargs", "error", "message"),
    [
        ([], {}, ValueError, "no documents"),
        ("one text", {}, TypeError, "one str"),
        (["a", 3], {}, TypeError, "row 1 is a int"),
        ([Document("a", id=5)], {}, TypeError, "id at row 0"),  # type: ignore[arg-type]
        ([Document("a", metadata={"x": object()})], {}, ValueError, "row 0: the metadata"),
        (["a"], {"ids": "a"}, TypeError, "one string"),
        (["a"], {"batch_size": 0}, ValueError, "batch_size=0"),
        (["a"], {"batch_tokens": 0}, ValueError, "batch_tokens=0"),
        (["a"], {"batch_size": 3, "batch_tokens": 100}, ValueError, "batch_size=3 and batch_tokens=100 exclude"),
        (["a"], {"chunk_size": 0}, ValueError, "chunk_size is 0"),
    ],
)
def test_bad_input(
    model: SentenceTransformer, tmp_path: Path, texts: Any, kwargs: Any, error: Any, message: str
) -> None:
    with pytest.raises(error, match=message):
        Index.build(model, texts, tmp_path / "bad", **kwargs)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("value", "message"), [(np.nan, "NaN or infinite"), (np.inf, "infinite"), (0.0, "a zero vector")]
)
def test_bad_vectors(
    model: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float, message: str
) -> None:
    real = model.encode_document

    def encode(texts: list[str], **kwargs: Any) -> Any:
        vectors = real(texts, **kwargs)
        vectors[[text == TEXTS[7] for text in texts]] = value
        return vectors

    monkeypatch.setattr(model, "encode_document", encode)
    with pytest.raises(ValueError, match=f"{message}.*row 7, id 'seven', text 'A list of the kings"):
        Index.build(model, [*TEXTS[:7], Document(TEXTS[7], id="seven")], tmp_path / "bad", chunk_size=5)
    monkeypatch.setattr(model, "encode_document", lambda texts, **kwargs: real(texts, **kwargs) * value)
    with pytest.raises(ValueError, match="for ordinary text"):
        Index.build(model, TEXTS, tmp_path / "bad")
    assert os.listdir(tmp_path) == []


def test_other_similarity(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'euclidean'.*'cosine' or 'dot'"):
        Index.build(make_model(similarity_fn_name="euclidean"), TEXTS, tmp_path / "bad")


# What search refuses


def test_bad_queries(model: SentenceTransformer, built: Path) -> None:
    index = Index.open(built)
    with pytest.raises(ValueError, match="Index.open\\(path, model\\)"):
        index.search("text")
    with pytest.raises(ValueError, match="k is 0"):
        index.search(np.ones(192), k=0)
    for shape in ((191,), (2, 193), (1, 1, 192), ()):
        with pytest.raises(ValueError, match="shape"):
            index.search(np.ones(shape))
    with pytest.raises(ValueError, match="int64"):
        index.search(np.ones(192, dtype=np.int64))
    for value, what in ((np.nan, "NaN"), (np.inf, "infinite"), (1e300, "infinite"), (0, "zero")):
        vectors = np.ones((3, 192))
        vectors[1] = value
        with pytest.raises(ValueError, match=f"query 1 .*{what}"):
            index.search(vectors)
    wrong: Any
    for wrong in (3, [1.0, 2.0], ["a", None], b"bytes", torch.ones(192)):
        with pytest.raises(TypeError, match="give a text"):
            index.search(wrong, model=model)


def test_other_models_are_refused(model: SentenceTransformer, built: Path) -> None:
    perturbed = make_model()
    with torch.no_grad():
        torch.manual_seed(0)
        for weight in perturbed.parameters():
            weight.add_(torch.randn_like(weight) * 0.05)
    refused = [
        (make_model(pooling="lasttoken"), "configuration"),
        (make_model(pooling=("mean", "max")), "dimension: 192 in the index, 384"),
        (make_model(truncate_dim=64), "dimension: 192 in the index, 64"),
        (make_model(similarity_fn_name="dot"), "configuration"),
        (make_model(prompts={"document": "A text about something else entirely: "}), "document prompt"),
        (perturbed, "weights.*cosine of only"),
    ]
    for other, message in refused:
        with pytest.raises(ValueError, match=f"built with mini .* with mini: .*{message}.*build the index again"):
            Index.open(built, other)
        with pytest.raises(ValueError, match=message):
            Index.open(built, model).search("text", model=other)


@pytest.mark.parametrize("pooling", ["mean", "lasttoken"])
def test_same_model_in_another_dtype_or_prompt_is_accepted(pooling: str, tmp_path: Path) -> None:
    Index.build(make_model(pooling=pooling), TEXTS, tmp_path / "index")
    half = make_model("bfloat16", pooling, prompts={"query": "Find: "})
    assert Index.open(tmp_path / "index", half).search(TEXTS[0], k=10)[0].rank == 1


def test_saved_model_is_accepted(model: SentenceTransformer, built: Path, tmp_path: Path) -> None:
    model.save_pretrained(str(tmp_path / "moved"), create_model_card=False)
    loaded = SentenceTransformer(str(tmp_path / "moved"), device="cpu")
    assert Index.open(built, loaded).search(TEXTS[5], k=1)[0].id == "d5"


def test_model_is_checked_once(model: SentenceTransformer, built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []

    def counted(stored: ModelFingerprint, model: SentenceTransformer) -> None:
        calls.append(model)
        check(stored, model)

    monkeypatch.setattr(index_module, "check", counted)
    index = Index.open(built, model)
    for _ in range(3):
        index.search("text")
        index.search("text", model=model)
    assert len(calls) == 1


def test_revision(model: SentenceTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = replace(fingerprint(model), revision="aaa")
    check(stored, model)
    monkeypatch.setattr(cast(Any, model[0]).auto_model.config, "_commit_hash", "bbb", raising=False)
    with pytest.raises(ValueError, match="revision: aaa in the index, bbb now.*revision='aaa'"):
        check(stored, model)


# Damaged folders


def test_missing_files(copy: Path) -> None:
    for name in FILES:
        shutil.move(copy / name, copy / "away")
        with pytest.raises(FileNotFoundError, match=name):
            Index.open(copy)
        shutil.move(copy / "away", copy / name)
    with pytest.raises(FileNotFoundError, match="not an index"):
        Index.open(copy / "nowhere")


@pytest.mark.parametrize("name", FILES)
def test_garbage_files(copy: Path, name: str) -> None:
    content = (copy / name).read_bytes()
    for bad in (b"", b"garbage" * 1000, content[: len(content) // 2], os.urandom(len(content)), b"[]"):
        write(copy / name, bad)
        with pytest.raises(ValueError, match=name):
            Index.open(copy).search(np.ones(192), k=10)


def test_files_that_do_not_fit(model: SentenceTransformer, copy: Path, tmp_path: Path) -> None:
    Index.build(model, TEXTS[:9], tmp_path / "nine")
    for name in FILES[::2]:
        shutil.move(copy / name, copy / "away")
        shutil.copy(tmp_path / "nine" / name, copy / name)
        with pytest.raises(ValueError, match=f"{name}.* 9.*expects 10"):
            Index.open(copy)
        shutil.move(copy / "away", copy / name)
    with sqlite3.connect(copy / FILES[0]) as connection:
        connection.execute("UPDATE documents SET row = 77 WHERE row = 4")
    with pytest.raises(ValueError, match="last row is 77"):
        Index.open(copy)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("format_version", 2, "install a later st_reba"),
        ("format_version", "1", "expected int, found str"),
        ("count", True, "expected int, found bool"),
        ("count", 0, "positive"),
        ("dim", 191, "model.dimension is 192"),
        ("metric", "euclidean", "cosine, dot"),
        ("factory", "HNSW32", "Flat"),
        ("created", None, "expected str"),
        ("model", [], "expected dict"),
        ("model.config_hash", 3, "expected a string"),
        ("model.dimension", 0, "positive"),
        ("model.probe", ["!", "?"], "base64"),
        ("model.name", 3, "string or null"),
    ],
)
def test_bad_manifest(copy: Path, key: str, value: Any, message: str) -> None:
    path = copy / "manifest.json"
    for wrong in ({}, {"new": value}):
        content = json.loads(path.read_text(encoding="utf-8"))
        inner = content["model"] if key.startswith("model.") else content
        inner.pop(key.removeprefix("model."))
        inner.update({key.removeprefix("model."): item for item in wrong.values()})
        bad = write(copy / "bad.json", json.dumps(content))
        with pytest.raises(ValueError, match=f"bad.json: {key}.*{message if wrong else 'missing'}"):
            Manifest.read(bad)


def test_manifest_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = ModelFingerprint("名", None, "00", 2, ((1.0, 0.5), (0.25, -1.0)))
    Manifest.new(mark, "dot", 3).write(tmp_path / "m.json")
    assert Manifest.read(tmp_path / "m.json").model == mark
    before = (tmp_path / "m.json").read_bytes()
    monkeypatch.setattr(os, "fsync", lambda descriptor: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        Manifest.new(mark, "dot", 4).write(tmp_path / "m.json")
    assert os.listdir(tmp_path) == ["m.json"] and (tmp_path / "m.json").read_bytes() == before


# The store


def test_store(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    with DocumentStore.create(path) as store:
        assert store.add_many(Document(f"t{row}") for row in range(1200)) == len(store) == 1200
        with pytest.raises(ValueError, match="'b' is used twice, at rows 1200 and 1201"):
            store.add_many([Document("x", id="b"), Document("y", id="b")])
        assert len(store) == 1200
    with pytest.raises(FileExistsError):
        DocumentStore.create(path)
    with DocumentStore.open(path) as store:
        rows = [*range(1199, -1, -1), 5, 5]
        assert [document.text for document in store.get(rows)] == [f"t{row}" for row in rows]
        assert store.get([]) == []
        with pytest.raises(IndexError, match="no row 1200; rows go from 0 to 1199"):
            store.get([0, 1200])


# Reading files


def test_read_txt(tmp_path: Path) -> None:
    path = write(tmp_path / "a.TXT", b"\xef\xbb\xbf" + "一\r\n\n  \ntwo\u2028lines \nlast".encode())
    assert list(read_documents(path)) == [Document("一"), Document("two\u2028lines "), Document("last")]
    chinese = write(tmp_path / "b.txt", "中文".encode("gb18030"))
    assert list(read_documents(chinese, encoding="gb18030")) == [Document("中文")]


def test_read_jsonl(tmp_path: Path) -> None:
    lines = '{"text": "a", "id": 7, "x": [1]}\n\n"bare"\n{"id": null, "text": "\\ud800"}\n{"text": "b", "id": "q"}'
    assert list(read_documents(write(tmp_path / "a.jsonl", lines))) == [
        Document("a", "7", {"x": [1]}),
        Document("bare"),
        Document("\ud800"),
        Document("b", "q"),
    ]
    other = read_documents(tmp_path / "a.jsonl", text_column="id", id_column="text")
    with pytest.raises(ValueError, match="line 1: 'id' is a JSON number, not a string"):
        next(other)


@pytest.mark.parametrize(("suffix", "mark"), [("csv", ","), ("tsv", "\t")])
def test_read_csv(tmp_path: Path, suffix: str, mark: str) -> None:
    long = "长" * 200_000
    content = f'id|text|lang\r\n1|"a, ""b""\r\nc"|en\r\n\r\n|{long}|zh\r\n'.replace("|", mark)
    path = write(tmp_path / f"a.{suffix}", b"\xef\xbb\xbf" + content.encode())
    documents = list(read_documents(path))
    assert documents == [Document('a, "b"\r\nc', "1", {"lang": "en"}), Document(long, None, {"lang": "zh"})]
    assert next(read_documents(path, text_column="lang", id_column="text")).id == 'a, "b"\r\nc'


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"ok\nbad \xff\n", "line 2: not UTF-8 .byte 0xff.*gb18030"),
        ("a.jsonl", b'"ok"\n\n"\xc3"\n', "line 3: not UTF-8"),
        ("a.csv", b"text\nok\n\xe4\xb8\n", "line 3: not UTF-8"),
        ("a.jsonl", '"ok"\n{"text": \n', "line 2: not JSON .*one JSON object"),
        ("a.jsonl", "[" * 100_000, "line 1: not JSON"),
        ("a.jsonl", "[1]", "line 1: a JSON array"),
        ("a.jsonl", "null", "line 1: a JSON null"),
        ("a.jsonl", '{"body": "x", "id": 1}', "line 1: no key 'text'; there: 'body', 'id'; .*text_column"),
        ("a.jsonl", '{"text": null}', "line 1: 'text' is a JSON null"),
        ("a.jsonl", '{"text": "x", "id": true}', "line 1: 'id' is a JSON boolean"),
        ("a.csv", "body,id\nx,1\n", "line 1: no column 'text'; there: 'body', 'id'"),
        ("a.csv", "", "line 1: the file is empty"),
        ("a.csv", "text,text\n", "line 1: the header names 'text' twice"),
        ("a.csv", "text,id\na,1\nb,2,3\n", "line 3: 3 fields, but the header has 2"),
        ("a.tsv", "text\tid\nb\n", "line 2: 1 fields"),
        ("a.tsv", 'text\tid\n"Yes" he said\t1\n', "line 2: .*in quotes"),
        ("a.csv", 'text\nok\n"never closed\nmore\n', "line 3: .*in quotes"),
    ],
)
def test_unreadable_lines(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    with pytest.raises(ValueError, match=f"{name}, {message}"):
        list(read_documents(write(tmp_path / name, content)))


def test_unreadable_paths(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'.json' is not supported; use one of .txt, .jsonl, .csv, .tsv"):
        read_documents(tmp_path / "a.json")
    with pytest.raises(ValueError, match='"-" .* is not supported'):
        read_documents("-")
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_documents(tmp_path / "a.txt")
    path = write(tmp_path / "a.jsonl", '{"text": "x"}\n')
    with pytest.raises(ValueError, match="unknown encoding 'utf-88'"):
        read_documents(path, encoding="utf-88")
    with pytest.raises(ValueError, match="no key 'key'; .*id_column"):
        next(read_documents(path, id_column="key"))
    utf16 = write(tmp_path / "b.txt", "one\ntwo\n".encode("utf-16") + b"\x00\xd8")
    with pytest.raises(ValueError, match="not utf-16"):
        list(read_documents(utf16, encoding="utf-16"))


def test_reading_streams(tmp_path: Path) -> None:
    documents = read_documents(write(tmp_path / "a.txt", b"line\n" * 100_000 + b"\xff"))
    assert next(documents).text == "line"
    with pytest.raises(ValueError, match="line 100001: not UTF-8"):
        list(documents)


def test_other_length_is_refused(tmp_path: Path) -> None:
    """A model that cuts its texts elsewhere gives other vectors, though not of short texts."""
    import st_reba

    Index.build(st_reba.build("mini", pooling="mean"), TEXTS, tmp_path / "long").close()
    with pytest.raises(ValueError, match="configuration"):
        Index.open(tmp_path / "long", st_reba.build("mini", pooling="mean", max_seq_length=128))
