"""The index: building, opening and searching, and refusing models that do not fit."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from indexes import MINI, TEXTS, make_model
from sentence_transformers import SentenceTransformer

import st_reba.index.reader as reader_module
from st_reba.corpus.store import DocumentStore
from st_reba.fingerprint import ModelFingerprint, check, fingerprint
from st_reba.index import Document, Index, SearchResult

FILES = [".lock", "documents-1.sqlite", "manifest.json", "vectors-1.faiss"]
QUERIES = ["猫", "interest rates of the bank", "sailing"]


@pytest.fixture(scope="module")
def model() -> SentenceTransformer:
    return make_model()


@pytest.fixture(scope="module")
def built(model: SentenceTransformer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("index") / "ten"
    documents = [Document(text, id=f"d{row}", metadata={"row": row, "名": "值"}) for row, text in enumerate(TEXTS)]
    Index.build(model, documents, path, shard_size=4, batch_size=3).close()
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
    index = Index.build(model, (text for text in TEXTS), path, shard_size=3, show_progress_bar=True)
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
    with pytest.raises(ValueError, match="record 1: it has no id, and its number, 1, is the id of record 0"):
        Index.build(model, [Document("one", id="1"), "two"], tmp_path / "twice")
    with pytest.raises(ValueError, match="records 1 and 9"):
        Index.build(model, TEXTS, tmp_path / "twice", ids=list("0123456781"), shard_size=2)
    for ids in (["a"], ["a", "b", "c"]):
        with pytest.raises(ValueError, match="2 texts, but"):
            Index.build(model, TEXTS[:2], tmp_path / "twice", ids=ids)
    for ids, message in ((["a"], "more texts than the 1 ids"), (["a", "b", "c"], "more ids than the 2 texts")):
        with pytest.raises(ValueError, match=message):
            Index.build(model, iter(TEXTS[:2]), tmp_path / "twice", ids=iter(ids))
    with pytest.raises(ValueError, match="record 0 has the id 'x'"):
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
    Index.build(model, ["newer"], copy, overwrite=True)
    assert (copy / "mine.txt").exists()
    (tmp_path / "other").mkdir()
    write(tmp_path / "other" / "mine.txt", "x")
    for other, message in ((tmp_path / "other", "not an index"), (write(tmp_path / "file", "x"), "a file is there")):
        with pytest.raises(FileExistsError, match=message):
            Index.build(model, TEXTS, other, overwrite=True)
    (tmp_path / "empty").mkdir()
    assert len(Index.build(model, TEXTS, tmp_path / "empty")) == 10
    assert sorted(os.listdir(tmp_path)) == ["copy", "empty", "file", "other"]
    assert os.listdir(tmp_path / "other") == ["mine.txt"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_interrupted_build(model: SentenceTransformer, copy: Path, error: type[BaseException]) -> None:
    def texts() -> Iterator[str]:
        yield from TEXTS
        raise error("stop")

    before = {name: (copy / name).read_bytes() for name in FILES}
    for path, overwrite in ((copy, True), (copy.with_name("fresh"), False)):
        with pytest.raises(error):
            Index.build(model, texts(), path, overwrite=overwrite, shard_size=2)
    assert os.listdir(copy.parent) == ["copy"]
    assert {name: (copy / name).read_bytes() for name in FILES} == before


def test_failed_commit_keeps_the_old_index(
    model: SentenceTransformer, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.replace

    def fail(source: Any, target: Any) -> None:
        if Path(target) == copy / "manifest.json":
            raise OSError("disk gone")
        real(source, target)

    before = {name: (copy / name).read_bytes() for name in FILES}
    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk gone"):
        Index.build(model, ["new"], copy, overwrite=True)
    # What was encoded is kept for another try.
    assert sorted(os.listdir(copy)) == sorted([*FILES, ".addition.json", ".building"])
    assert {name: (copy / name).read_bytes() for name in FILES} == before
    monkeypatch.undo()
    monkeypatch.setattr(model, "encode_document", counting(model.encode_document, calls := []))
    assert [found.text for found in Index.build(model, ["new"], copy, overwrite=True).search("x")] == ["new"]
    assert calls == [2, 2]  # the fingerprints of the index and of the corpus; no text is encoded again
    assert sorted(os.listdir(copy)) == [".lock", "documents-2.sqlite", "manifest.json", "vectors-2.faiss"]


def counting(real: Any, calls: list[int]) -> Any:
    def encode(texts: list[str], **options: Any) -> Any:
        calls.append(len(texts))
        return real(texts, **options)

    return encode


@pytest.mark.slow
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
            assert options["batch_size"] in (16, 8) or mask.sum() >= 0.95 * mask.numel()
        return real(batch, **options)

    monkeypatch.setattr(model, "encode_document", encode)
    largest = {}
    for number, options in enumerate([{}, {"batch_tokens": 200}, {"batch_size": 16}]):
        batches.clear()
        with Index.build(model, texts, tmp_path / str(number), **options) as index:
            found = index.search(texts, len(texts))
        for row, results in zip(wanted, found, strict=True):
            scores = {int(result.id): result.score for result in results}
            np.testing.assert_allclose([scores[column] for column in range(len(texts))], row, atol=1e-5)
        largest[number] = max(positions for rows, positions in batches if rows > 1)
        assert len(batches) == 3 if number == 2 else len(batches) > 4
    assert largest[1] <= 200 < largest[0]
    assert [rows for rows, _ in batches] == [16, 16, 8]


@pytest.mark.parametrize(
    ("texts", "kwargs", "error", "message"),
    [
        ([], {}, ValueError, "no documents"),
        ("one text", {}, ValueError, "one text: the suffix '' is not supported"),
        (["a", 3], {}, ValueError, "record 1: a int"),
        ([Document("a", id=5)], {}, ValueError, "record 0: the id is a int"),  # type: ignore[arg-type]
        ([Document("a", metadata={"x": object()})], {}, ValueError, "record 0: the metadata"),
        (["a"], {"ids": "a"}, TypeError, "one string"),
        (["a"], {"batch_size": 0}, ValueError, "batch_size=0"),
        (["a"], {"batch_tokens": 0}, ValueError, "batch_tokens=0"),
        (["a"], {"batch_size": 3, "batch_tokens": 100}, ValueError, "batch_size=3 and batch_tokens=100 exclude"),
        (["a"], {"shard_size": 0}, ValueError, "shard_size=0"),
    ],
)
def test_bad_input(
    model: SentenceTransformer, tmp_path: Path, texts: Any, kwargs: Any, error: Any, message: str
) -> None:
    with pytest.raises(error, match=message):
        Index.build(model, texts, tmp_path / "bad", **kwargs)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("value", "message"), [(np.nan, "NaN or infinite"), (np.inf, "infinite"), (0.0, "is zero")])
def test_bad_vectors(
    model: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float, message: str
) -> None:
    real = model.encode_document

    def encode(texts: list[str], **kwargs: Any) -> Any:
        vectors = real(texts, **kwargs)
        vectors[[text == TEXTS[7] for text in texts]] = value
        return vectors

    monkeypatch.setattr(model, "encode_document", encode)
    texts = [*TEXTS[:7], Document(TEXTS[7], id="seven"), "", TEXTS[8]]
    for given, told in ((texts[:8], f"'seven' .shard 1, row 2.: the model's vector .*{message}"), (texts, "no text")):
        with pytest.raises(ValueError, match=told):
            Index.build(model, given, tmp_path / "strict", shard_size=5)
    index = Index.build(model, texts, tmp_path / "index", shard_size=5, strict=False)
    assert sorted(found.text for found in index.search("x", 99)) == sorted([*TEXTS[:7], TEXTS[8]])
    assert index.search(TEXTS[8], 1)[0].id == "9" and index.manifest.next_record == 10
    rejects = [json.loads(line) for line in (tmp_path / "index" / "rejects.jsonl").read_text().splitlines()]
    assert [(reject["place"], reject["id"]) for reject in rejects] == [("record 8", None), ("shard 1, row 2", "seven")]
    assert index.manifest.rejected == 2 and index.report is not None and index.report.rejected == 2
    monkeypatch.setattr(model, "encode_document", lambda texts, **kwargs: real(texts, **kwargs) * value)
    with pytest.raises(ValueError, match="for ordinary text"):
        Index.build(model, TEXTS, tmp_path / "bad")
    assert sorted(os.listdir(tmp_path)) == ["index", "strict"] and ".building" in os.listdir(tmp_path / "strict")


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
        (make_model(pooling=("mean", "max")), "dimension: 192 there, 384 here"),
        (make_model(truncate_dim=64), "dimension: 192 there, 64 here"),
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

    monkeypatch.setattr(reader_module, "check", counted)
    index = Index.open(built, model)
    for _ in range(3):
        index.search("text")
        index.search("text", model=model)
    assert len(calls) == 1


def test_revision(model: SentenceTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = replace(fingerprint(model), revision="aaa")
    check(stored, model)
    monkeypatch.setattr(cast(Any, model[0]).auto_model.config, "_commit_hash", "bbb", raising=False)
    with pytest.raises(ValueError, match="revision: aaa there, bbb here.*revision='aaa'"):
        check(stored, model)


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


def test_other_length_is_refused(tmp_path: Path) -> None:
    """A model that cuts its texts elsewhere gives other vectors, though not of short texts."""
    import st_reba

    Index.build(st_reba.build("mini", pooling="mean"), TEXTS, tmp_path / "long").close()
    with pytest.raises(ValueError, match="configuration"):
        Index.open(tmp_path / "long", st_reba.build("mini", pooling="mean", max_seq_length=128))
