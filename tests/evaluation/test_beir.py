"""Folders in BEIR's layout."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from st_reba.evaluation import read_task

CORPUS = (
    '{"_id": "d1", "title": "", "text": "Ships sail."}\n{"_id": "d2", "text": "Trains stop."}\n'
)
QUERIES = '{"_id": "q1", "text": "ships"}\n{"_id": "q2", "text": "trains"}\n'
JUDGEMENTS = "query-id\tcorpus-id\tscore\nq1\td1\t1\nq2\td2\t1\n"
Files = dict[str, str | bytes]


def write_folder(folder: Path, replaced_files: Files) -> Path:
    """A folder of two documents and two queries, with some files replaced."""
    (folder / "qrels").mkdir()
    files: Files = {"corpus.jsonl": CORPUS, "queries.jsonl": QUERIES, "qrels/test.tsv": JUDGEMENTS}
    for name, content in (files | replaced_files).items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def test_judgements_of_test_are_read(tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    corpus = pd.DataFrame(
        {
            "_id": range(12),
            "title": ["", "T"] * 6,
            "text": list(map("word {}".format, range(12))),
        }
    )
    corpus.to_json(tmp_path / "corpus.jsonl", orient="records", lines=True)
    query_ids = list(map("q{}".format, range(12)))
    queries = pd.DataFrame(
        {
            "_id": query_ids,
            "text": list(map("query {}".format, range(12))),
        }
    )
    queries.to_json(tmp_path / "queries.jsonl", orient="records", lines=True)
    for split, grade in (("dev", 1), ("test", 2)):
        judgements = pd.DataFrame(
            {
                "query": query_ids[:11],
                "document": range(11),
                "score": grade,
            }
        )
        judgements.to_csv(tmp_path / "qrels" / f"{split}.tsv", sep="\t", index=False)
    task = read_task(tmp_path)
    assert (task.kind, task.query_count, len(task.texts)) == ("Retrieval", 11, 23)
    assert task.dropped == {"queries without a judgement": 1}
    assert task.items[1] == (1, (12,), (2.0,))
    assert task.texts[11:13] == ("word 0", "T word 1")


def test_a_folder_is_a_ranking_alone(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, {})
    assert read_task(folder, "Retrieval").kind == "Retrieval"
    with pytest.raises(ValueError, match="kind='STS'"):
        read_task(folder, "STS")
    with pytest.raises(ValueError, match="columns="):
        read_task(folder, columns={"query": "text"})


def test_a_ranking_has_a_query(tmp_path: Path) -> None:
    task = read_task(write_folder(tmp_path, {}))
    with pytest.raises(ValueError, match="1 are needed"):
        replace(task, items=())


def test_a_folder_without_judgements_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, {})
    (folder / "qrels").rename(folder / "judgements")
    with pytest.raises(ValueError, match="there is no qrels"):
        read_task(folder)


PUBLISHED_FOLDERS: dict[str, tuple[Files, dict[str, int]]] = {
    "missing document": (
        {"qrels/test.tsv": JUDGEMENTS + "q1\td999\t1\n"},
        {"judgements of documents that the corpus lacks": 1},
    ),
    "missing query": (
        {"qrels/test.tsv": JUDGEMENTS + "q9\td1\t1\nq8\td1\t1\n"},
        {"judgements of queries that are missing": 2},
    ),
    "query without a judgement": (
        {"queries.jsonl": QUERIES + '{"_id": "q3", "text": "planes"}\n'},
        {"queries without a judgement": 1},
    ),
    "id twice": (
        {"corpus.jsonl": '{"_id": "d1", "text": "Old."}\n' + CORPUS},
        {"rows of corpus.jsonl whose _id comes again": 1},
    ),
    "text twice": (
        {
            "corpus.jsonl": CORPUS + '{"_id": "d3", "text": "Ships sail."}\n',
            "queries.jsonl": QUERIES + '{"_id": "q3", "text": "ships"}\n',
            "qrels/test.tsv": JUDGEMENTS + "q3\td3\t1\n",
        },
        {
            "queries with the text of another, joined with it": 1,
            "documents with the text of another, joined with it": 1,
        },
    ),
    "no header": ({"qrels/test.tsv": "q1\td1\t1.0\nq2\td2\t1.0\n"}, {}),
    "TREC": ({"qrels/test.tsv": "q1 0 d1 1\r\nq2 0 d2 1\r\n"}, {}),
    "two grades": (
        {"qrels/test.tsv": "query-id\tcorpus-id\tscore\trel\nq1\td1\t1\t0\nq2\td2\t1\t0\n"},
        {},
    ),
    "named columns": ({"qrels/test.tsv": "corpus-id\tquery-id\tscore\nd1\tq1\t1\nd2\tq2\t1\n"}, {}),
}


@pytest.mark.parametrize("case", PUBLISHED_FOLDERS)
def test_published_folders_are_read_and_losses_counted(case: str, tmp_path: Path) -> None:
    files, dropped = PUBLISHED_FOLDERS[case]
    task = read_task(write_folder(tmp_path, files), name="beir")
    assert task.texts == ("ships", "trains", "Ships sail.", "Trains stop.")
    assert task.items == ((0, (2,), (1.0,)), (1, (3,), (1.0,)))
    assert task.dropped == dropped


def test_without_judgements_of_test_the_first_by_name_are_read(tmp_path: Path) -> None:
    train_judgements = JUDGEMENTS.replace("\t1\n", "\t2\n")
    folder = write_folder(tmp_path, {"qrels/train.tsv": train_judgements})
    (folder / "qrels/test.tsv").rename(folder / "qrels/dev.tsv")
    assert read_task(folder).items == ((0, (2,), (1.0,)), (1, (3,), (1.0,)))


def test_a_folder_without_queries_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, {})
    (folder / "queries.jsonl").unlink()
    with pytest.raises(ValueError, match=r"there is no queries\.jsonl"):
        read_task(folder)


def test_packed_judgements_are_read(tmp_path: Path) -> None:
    packed_judgements = gzip.compress(JUDGEMENTS.encode())
    folder = write_folder(tmp_path, {"qrels/test.tsv.gz": packed_judgements})
    (folder / "qrels/test.tsv").unlink()
    assert read_task(folder).items == ((0, (2,), (1.0,)), (1, (3,), (1.0,)))


BROKEN_FOLDERS: dict[str, tuple[Files, str]] = {
    "short line": ({"qrels/test.tsv": "q1\td1\t1\nq2\td2\n"}, "line 2: 3 columns"),
    "no grade": ({"qrels/test.tsv": "q1\td1\t1\nq2\td2\tnan"}, "line 2: the grade 'nan'"),
    "no id column": (
        {"corpus.jsonl": '{"id": "d1", "text": "a"}'},
        "no row has '_id', but id, text",
    ),
    "no id": (
        {"corpus.jsonl": '{"_id": "d1", "text": "a"}\n{"text": "b"}'},
        "row 2: the _id is missing",
    ),
    "one document": ({"corpus.jsonl": '{"_id": "d1", "text": "a"}'}, "a ranking of one document"),
    "encoding": ({"qrels/test.tsv": b"\xff\t1\t1"}, "UTF-8"),
}


@pytest.mark.parametrize("case", BROKEN_FOLDERS)
def test_folders_that_cannot_be_read_say_why(case: str, tmp_path: Path) -> None:
    files, message = BROKEN_FOLDERS[case]
    with pytest.raises(ValueError, match=message):
        read_task(write_folder(tmp_path, files))
