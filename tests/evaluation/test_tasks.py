"""Tasks: kinds by columns, the field's files, draws, and what is refused."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from st_reba.evaluation import Task, read_task
from st_reba.evaluation.task_source import subsample
from st_reba.evaluation.tasks import warn_of_dropped

WORDS = [f"word {number}" for number in range(12)]
PAIRS = pd.DataFrame({"sentence1": WORDS, "sentence2": WORDS[::-1], "score": range(12)})


def frame(**columns: object) -> pd.DataFrame:
    return pd.DataFrame(columns)


@pytest.mark.parametrize(
    ("table", "kind", "found", "item"),
    [
        (PAIRS, None, "STS", (0, 1, 0.0)),
        (frame(text1=WORDS, text2=WORDS[::-1], label=["0", "2"] * 6), "sts", "STS", (0, 1, 0.0)),
        (frame(text=WORDS, label=list("ab") * 6), None, "Classification", (0, "a")),
        (frame(text=WORDS, label=list("ab") * 6), "clustering", "Clustering", (0, "a")),
        (frame(anchor=WORDS, positive=WORDS[::-1], negative=["z"] * 12), None, "Triples", (0, 1, 2)),
    ],
)
def test_columns_tell_the_kind(table: pd.DataFrame, kind: str | None, found: str, item: object) -> None:
    task = read_task(table, kind)
    assert (task.kind, task.queries, task.items[0]) == (found, 0, item)


def test_files_without_a_header_are_read_unquoted(tmp_path: Path) -> None:
    quoted = "\"It's huge"
    rows = [(f"{n}.5", f"{quoted} {n}", f"other {n}") for n in range(10)]
    files = {
        "semeval.tsv": "\n".join("\t".join(row) for row in rows),
        "stsb.csv": "\n".join("\t".join(["g", "f", "y", "1", *row, *(["more"] * (row is rows[3]))]) for row in rows),
        "zh.txt": "\n".join("||".join(["id", row[1], row[2], row[0]]) for row in rows),
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text + "\n", encoding="utf-8-sig")
        task = read_task(tmp_path / name)
        assert (task.kind, task.texts[:2], task.items[9]) == ("STS", (f"{quoted} 0", "other 0"), (18, 19, 9.5))
        (tmp_path / name).write_text(f"{text}\n1\t2", encoding="utf-8")
        with pytest.raises(ValueError, match="line 11"):
            read_task(tmp_path / name)
    (tmp_path / "named.tsv").write_text("score\ttext1\ttext2\n" + files["semeval.tsv"], encoding="utf-8")
    assert read_task(tmp_path / "named.tsv").items == task.items


def test_labels_columns_and_train() -> None:
    table = frame(a=WORDS * 2, b=WORDS[::-1] * 2, gold=["entailment", "neutral", "contradiction"] * 8)
    columns = {"text1": "a", "text2": "b", "label": "gold"}
    task = read_task(table, columns=columns, labels={"entailment": 1, "contradiction": 0})
    assert (len(task.items), task.dropped, task.items[1][2]) == (16, {"its label": 8}, 0)
    told = read_task(frame(text1=WORDS, text2=WORDS[::-1], label=["0", 0.0, "FALSE", "1", "1.0", True] * 2))
    assert (told.kind, [value for *_, value in told.items]) == ("PairClassification", [0, 0, 0, 1, 1, 1] * 2)
    known = frame(text=["word 0", "new"] * 6, label=list("ab") * 6)
    task = read_task(frame(text=WORDS, label=list("ab") * 6), train=known)
    assert (task.train[:2], len(task.texts)) == (((0, "a"), (12, "b")), 13)


def test_rankings() -> None:
    rows = [(f"q{n}", f"d{n} {m}", m % 2) for n in range(12) for m in range(3)]
    table = pd.DataFrame([*rows, ("q0", "d0 1", 3), ("alone", "x", -1)], columns=["query", "title", "label"])
    task = read_task(table)
    assert (task.kind, task.queries, len(task.items)) == ("Reranking", 12, 12)
    assert task.items[0] == (0, (12, 13, 14), (0.0, 3.0, 0.0))
    assert task.dropped == {"queries without both relevant and irrelevant documents": 1}
    assert "x" not in task.texts and "x" in read_task(table, "Retrieval").texts
    assert read_task(table, "Retrieval").queries == 12
    some = read_task(table, limit=10)
    assert some == read_task(table, limit=10, seed=0) != read_task(table, limit=10, seed=1) and some.queries == 10


def test_beir_folder(tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    corpus = frame(_id=range(12), title=["", "T"] * 6, text=WORDS)
    corpus.to_json(tmp_path / "corpus.jsonl", orient="records", lines=True)
    queries = frame(_id=[f"q{n}" for n in range(12)], text=[f"query {n}" for n in range(12)])
    queries.to_json(tmp_path / "queries.jsonl", orient="records", lines=True)
    for split, grade in (("dev", 1), ("test", 2)):
        judged = frame(query=queries["_id"][:11], document=range(11), score=grade)
        judged.to_csv(tmp_path / "qrels" / f"{split}.tsv", sep="\t", index=False)
    task = read_task(tmp_path)
    with pytest.raises(ValueError, match="kind"):
        read_task(tmp_path, "STS")
    assert (task.kind, task.queries, len(task.texts), task.dropped) == (
        "Retrieval",
        11,
        23,
        {"queries without a judgement": 1},
    )
    assert task.items[1] == (1, (12,), (2.0,)) and task.texts[11:13] == ("word 0", "T word 1")
    (tmp_path / "qrels").rename(tmp_path / "judgements")
    with pytest.raises(ValueError, match="there is no qrels"):
        read_task(tmp_path)


BEIR_FILES = {
    "corpus.jsonl": '{"_id": "d1", "title": "", "text": "Ships sail."}\n{"_id": "d2", "text": "Trains stop."}\n',
    "queries.jsonl": '{"_id": "q1", "text": "ships"}\n{"_id": "q2", "text": "trains"}\n',
    "qrels/test.tsv": "query-id\tcorpus-id\tscore\nq1\td1\t1\nq2\td2\t1\n",
}


def beir_folder(folder: Path, **files: str | bytes) -> Path:
    """A folder of two documents and two queries; ``files`` (with ``__`` for a slash, ``_`` for a dot) replace its."""
    (folder / "qrels").mkdir()
    contents = {**BEIR_FILES, **{name.replace("__", "/").replace("_", "."): text for name, text in files.items()}}
    for name, content in contents.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


@pytest.mark.parametrize(
    ("files", "dropped"),
    [
        ({"qrels__test_tsv": BEIR_FILES["qrels/test.tsv"] + "q1\td999\t1\n"},
         {"judgements of documents that the corpus lacks": 1}),
        ({"qrels__test_tsv": BEIR_FILES["qrels/test.tsv"] + "q9\td1\t1\nq8\td1\t1\n"},
         {"judgements of queries that are missing": 2}),
        ({"queries_jsonl": BEIR_FILES["queries.jsonl"] + '{"_id": "q3", "text": "planes"}\n'},
         {"queries without a judgement": 1}),
        ({"corpus_jsonl": '{"_id": "d1", "text": "Old."}\n' + BEIR_FILES["corpus.jsonl"]},
         {"rows of corpus.jsonl whose _id comes again": 1}),
        ({"qrels__test_tsv": "q1\td1\t1.0\nq2\td2\t1.0\n"}, {}),
        ({"qrels__test_tsv": "q1 0 d1 1\r\nq2 0 d2 1\r\n"}, {}),
        ({"qrels__test_tsv": "corpus-id\tquery-id\tscore\nd1\tq1\t1\nd2\tq2\t1\n"}, {}),
        ({"qrels__test_tsv_gz": gzip.compress(BEIR_FILES["qrels/test.tsv"].encode()), "qrels__test_tsv": b""}, {}),
    ],
    ids=["lost document", "lost query", "unjudged query", "id twice", "no header", "TREC", "named columns", "gz"],
)  # fmt: skip
def test_published_beir_folders_are_read(
    files: Any, dropped: dict[str, int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = beir_folder(tmp_path, **files)
    if "qrels__test_tsv_gz" in files:
        (folder / "qrels/test.tsv").unlink()
    task = read_task(folder, name="beir")
    assert task.texts == ("ships", "trains", "Ships sail.", "Trains stop.")
    assert (task.items, task.dropped) == (((0, (2,), (1.0,)), (1, (3,), (1.0,))), dropped)
    warn_of_dropped(task)
    assert all(f"{count} dropped ({reason})" in caplog.text for reason, count in dropped.items())
    assert bool(caplog.text) == bool(dropped)


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"qrels__test_tsv": "q1\td1\t1\nq2\td2\n"}, "line 2: 3 columns"),
        ({"qrels__test_tsv": "q1\td1\t1\nq2\td2\tnan"}, "line 2: the grade 'nan'"),
        ({"corpus_jsonl": '{"id": "d1", "text": "a"}'}, "no row has '_id', but id, text"),
        ({"corpus_jsonl": '{"_id": "d1", "text": "a"}\n{"text": "b"}'}, "row 2: the _id is missing"),
        ({"corpus_jsonl": '{"_id": "d1", "text": "a"}'}, "a ranking of one document"),
        ({"qrels__test_tsv": b"\xff\t1\t1"}, "UTF-8"),
    ],
)  # fmt: skip
def test_a_beir_folder_that_cannot_be_read_says_why(files: Any, told: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=told):
        read_task(beir_folder(tmp_path, **files))


def test_conll(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("-DOCSTART- -X- O O\n\nU.N. NNP B-ORG 0\nofficial NN O O more\n\n" * 10)
    task = read_task(tmp_path / "a.txt", "NER", train=tmp_path / "a.txt", limit=10)
    assert task.items[0] == (0, ("U.N.", "official"), ("B-ORG", "O"))
    assert (task.texts, len(task.train)) == (("U.N. official",), 10)
    with pytest.raises(ValueError):
        read_task(tmp_path / "a.txt", "NER")
    (tmp_path / "b.txt").write_text("U.N. B-ORG\nofficial O\n\n" * 10, encoding="utf-8")
    assert read_task(tmp_path / "b.txt", "NER", train=tmp_path / "a.txt", limit=10).items == task.items
    (tmp_path / "b.txt").write_text("a b\nc d\n", encoding="utf-8")
    with pytest.raises(ValueError, match="no column"):
        read_task(tmp_path / "b.txt", "NER", train=tmp_path / "a.txt")


def test_a_draw_keeps_the_order_and_depends_on_the_seed() -> None:
    first = subsample(range(100), 10, 0)
    assert first == sorted(first) == subsample(range(100), 10, 0) != subsample(range(100), 10, 1)
    assert subsample(range(3), None, 0) == subsample(range(3), 5, 0) == [0, 1, 2]


@pytest.mark.parametrize(
    ("table", "options", "told"),
    [
        (PAIRS, {"kind": "Pairs"}, "'Pairs'"), (PAIRS, {"columns": {"text1": "nowhere"}}, "'nowhere'"),
        (PAIRS, {"columns": {"text3": "sentence1"}}, "'text3'"), (PAIRS, {"kind": "Classification"}, "text, label"),
        (PAIRS, {"train": PAIRS}, "train="), (PAIRS, {"kind": "WordSense", "labels": {}}, "labels="),
        (frame(query=WORDS, document=WORDS, relevance=[0, 1] * 6), {"train": PAIRS}, "train="),
        (PAIRS[:9], {}, "10 are needed"), (PAIRS.assign(score=1), {}, "1.0"),
        (PAIRS.assign(score=float("inf")), {}, "row 1, column 'score': inf"),
        (PAIRS.assign(score=1e31), {}, "row 1, column 'score': 1e.31 is too large"),
        (PAIRS.assign(sentence1=" "), {}, "row 1, column 'sentence1': ' '"),
        (PAIRS.assign(score=float("nan")), {}, "row 1, column 'score': .* missing"),
        (frame(text=WORDS, label=["a", "b", " "] * 4), {}, "row 3, column 'label': .* missing"),
        (frame(text=WORDS, label=list("aabbccddeeff")), {}, "no label has 5 texts"),
        (frame(text=["same"] * 12, label=list("ab") * 6), {}, "1 different texts are too few for 5 folds"),
        (PAIRS[:0], {}, "there are no rows"),
        (frame(text1=WORDS, text2=WORDS, label=["yes", "no"] * 6), {}, "'yes'"),
        (frame(text1=WORDS, text2=WORDS, label=["0", "True"] * 6), {"kind": "STS"}, "row 2, .*: 'True'"),
        (frame(text=WORDS, label=list("ab") * 6), {"train": frame(text=WORDS, label=["a"] * 12)}, "'b'"),
    ],
)  # fmt: skip
def test_refused(table: Any, options: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        read_task(table, **options)


def test_a_task_stays_as_it_is_and_says_what_it_holds() -> None:
    task = read_task(PAIRS, name="mine")
    assert read_task(task) is task and str(task) == "mine: STS, 12 items"
    dropped = Task("t", "WordSense", (), ((), ()), dropped={"no word": 2})
    assert str(dropped) == "t: WordSense, 2 items, 2 dropped (no word)"


@pytest.mark.parametrize("name", ["", " ", "missing.csv", "folder", "pipe.csv", "pipe.conll"])
@pytest.mark.parametrize("as_train", [False, True])
def test_what_is_no_table_is_refused_before_it_is_opened(name: str, as_train: bool, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe.csv")
    os.mkfifo(tmp_path / "pipe.conll")
    path = str(tmp_path / name) if name.strip() else name
    classes = frame(text=WORDS, label=list("ab") * 6)
    with pytest.raises((ValueError, FileNotFoundError), match="empty|no such file|folder|pipe"):
        read_task(classes if as_train else path, **({"train": path} if as_train else {}))


def test_a_conll_file_of_another_encoding_is_named(tmp_path: Path) -> None:
    (tmp_path / "latin.conll").write_bytes("ä B-ORG\n".encode("latin-1"))
    with pytest.raises(ValueError, match="latin.conll: not UTF-8"):
        read_task(tmp_path / "latin.conll", train=tmp_path / "latin.conll")
    (tmp_path / "a.conll").write_text("a B-ORG\n", encoding="utf-8")
    with pytest.raises(ValueError, match="kind="):
        read_task(tmp_path / "a.conll", "STS")
