"""Plain files as tasks of mteb: what is refused, and that the message says where it stands and what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mteb")

from st_reba.evaluation.benchmark.files import read_items
from st_reba.evaluation.benchmark.local import read_local

Write = Callable[[str, Any], Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    monkeypatch.chdir(tmp_path)

    def write(name: str, content: Any) -> Path:
        if isinstance(content, list):
            content = "".join(json.dumps(row) + "\n" for row in content)
        Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return Path(name)

    return write


def pairs(count: int = 12, **changed: Any) -> list[dict[str, Any]]:
    return [{"text1": f"a {n}", "text2": f"b {n}", "score": n % 3, **changed} for n in range(count)]


def texts(count: int = 40, **changed: Any) -> list[dict[str, Any]]:
    return [{"text": f"t {n}", "label": f"l{n % 2}", **changed} for n in range(count)]


def bars(last: str) -> str:
    return "".join(f"{n}||a||b||{n}\n" for n in range(12)) + last


RANKED = [{"query": "q", "document": "d", "relevance": 1}, {"query": "q", "document": "e", "relevance": 0}]
# Of each: the kind, the file, what it holds, and the message.
FILES: dict[str, tuple[str, str, Any, str]] = {
    "columns": (
        "STS",
        "a.csv",
        "one,two,score\nx,y,1\n",
        "a.csv: no column for text1 was found, as .*; there are ['one', 'two', 'score']. Name it in a tasks file, as "
        "columns: {text1: …}",
    ),
    "one column for two": ("rerank", "a.jsonl", [{"query": "q", "label": 1}], "no column for document"),
    "the same column": ("rerank", "a.csv", "query,score,document,relevance\n", "no rows below the header"),
    "empty": ("STS", "a.csv", "", "a.csv: the file is empty"),
    "blank": ("STS", "a.csv", "\n \n", "a.csv: the file is empty"),
    "header": ("class", "a.csv", "text,label\n", "a.csv: there are no rows below the header"),
    "empty array": ("class", "a.json", "[]", "a.json: there are no rows"),
    "not UTF-8": ("class", "a.csv", "text,label\nx,1\n中,2\n".encode("gb18030"), "a.csv, line 3: not UTF-8 .*iconv"),
    "not JSON": ("class", "a.jsonl", '{"text": "x", "label": 1}\n{"text"\n', "a.jsonl, line 2: not JSON"),
    "no array": (
        "class",
        "a.json",
        '[{"text": "x",\n"label": 1}\n{"text": 2}]',
        "a.json, line 3: ',' or ']' is missing",
    ),
    "cut array": ("class", "a.json", '[{"text": "x", "label": 1},\n', "a.json, line 2: not JSON"),
    "after the array": ("class", "a.json", '[{"text": "x", "label": 1}]\n3', "a.json: after the array stands '3'"),
    "item of an array": (
        "class",
        "a.json",
        '[{"text": "x", "label": 1},\n\n7]',
        "a.json, line 3: 7 is not one JSON obj",
    ),
    "fields": ("class", "a.csv", "text,label\nx,1\ny\n", "a.csv, line 3: 1 fields, but the header has 2"),
    "quote": ("class", "a.csv", 'text,label\n"x"y,1\n', "a.csv, line 2: .*doubled"),
    "score": (
        "STS",
        "a.jsonl",
        [*pairs(), pairs(1, score="high")[0]],
        "a.jsonl, line 13: the score is 'high', not a n",
    ),
    "infinite": ("STS", "a.jsonl", [*pairs(), pairs(1, score="inf")[0]], "line 13: the score is 'inf', not a number"),
    "score of bars": ("STS", "a.txt", bars("12||a||b||x\n"), "a.txt, line 13: the score is 'x', not a number"),
    "bars": ("STS", "a.txt", bars("12||a||b\n"), "a.txt, line 13: 3 fields between"),
    "bars of another kind": (
        "class",
        "a.txt",
        bars(""),
        "a.txt: the file looks like id.*score, which holds pairs, not Cl",
    ),
    "text": ("STS", "a.jsonl", [*pairs(), pairs(1, text2=" ")[0]], "a.jsonl, line 13: text2 is empty"),
    "key": ("STS", "a.jsonl", [*pairs(), {"text1": "a"}], "a.jsonl, line 13: no 'text2'"),
    "one score": (
        "STS",
        "a.jsonl",
        pairs(score=2),
        "a.jsonl: all pairs have the score 2.0; two different ones are needed",
    ),
    "few pairs": ("STS", "a.jsonl", pairs(9), "a.jsonl: 9 pairs, but 10 are needed at the least"),
    "label of a pair": ("pair", "a.jsonl", pairs(), "a.jsonl, line 3: the label is 2, not 0 or 1; .*labels: {2: 1}"),
    "one label": ("pair", "a.jsonl", pairs(score=1), "a.jsonl: all pairs have the label 1"),
    "one class": ("class", "a.jsonl", texts(label="x"), "a.jsonl: all texts have the label 'x'"),
    "one cluster": ("cluster", "a.jsonl", texts(label=7), "a.jsonl: all texts have the label '7'"),
    "few texts": ("class", "a.jsonl", texts(20), "a.jsonl: 4 texts for test, but 10 are needed at the least"),
    "no label": ("class", "a.jsonl", texts(label=None), "a.jsonl, line 1: the label is None, not a name or a number"),
    "nothing embedded": (
        "cluster",
        "a.jsonl",
        texts(),
        "a.jsonl: mteb embeds 1 of 40 texts, fewer than their 2 labels",
    ),
    "relevance": (
        "rerank",
        "a.jsonl",
        [{**RANKED[0], "relevance": 0.5}],
        "line 1: the relevance is 0.5, not a whole nu",
    ),
    "negative": (
        "rerank",
        "a.jsonl",
        [{**RANKED[0], "relevance": -1}],
        "line 1: the relevance is -1, not a whole number",
    ),
    "no irrelevant": (
        "rerank",
        "a.jsonl",
        RANKED[:1],
        "none of 1 queries has a document of relevance 1 or more and one",
    ),
    "no relevant": (
        "Retrieval",
        "a.jsonl",
        RANKED[1:],
        "none of 1 queries has a document of relevance 1 or more, which",
    ),
    "ids": (
        "rerank",
        "a.jsonl",
        [{**RANKED[0], "query_id": 1}, {**RANKED[1], "query_id": 1, "query": "r"}],
        "a.jsonl, line 2: the query_id '1' stands for 'r', and before that for 'q'. Give each text its own",
    ),
    "kind of file": (
        "class",
        "a.parquet",
        "x",
        "a.parquet: Classification is read from .jsonl, .*files: {text: text.txt",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_files_that_do_not_fit(write: Write, name: str) -> None:
    kind, file, content, message = FILES[name]
    write(file, content)
    with pytest.raises(ValueError, match=_literal(message)):
        read_local(f"{kind}={file}")


# Of each: the entry's values, and the message.
ENTRIES: dict[str, tuple[dict[str, Any], str]] = {
    "no kind": ({"file": "p.jsonl"}, "tasks.yaml, task 1 has no kind; give one of STS, PairClassification (pair)"),
    "kind": ({"kind": "sort", "file": "p.jsonl"}, "kind='sort' must be one of STS"),
    "key": ({"kind": "STS", "file": "p.jsonl", "colums": {}}, "'colums'; it may have ['name', 'kind', 'file'"),
    "no file": ({"kind": "STS"}, "task 1 has no file; give file: PATH"),
    "two files": ({"kind": "STS", "file": "p.jsonl", "files": {"text1": "p"}}, "task 1 has ['file', 'files']; give"),
    "test alone": ({"kind": "class", "test": "t.jsonl"}, "task 1 has ['test']; give .* or train: and test: both"),
    "train of pairs": (
        {"kind": "STS", "train": "p.jsonl", "test": "p.jsonl"},
        "train belongs to Classification, not to S",
    ),
    "setting": ({"kind": "STS", "file": "p.jsonl", "n_clusters": 3}, "n_clusters belongs to Clustering, not to STS"),
    "value": (
        {"kind": "class", "file": "t.jsonl", "n_experiments": 0},
        "n_experiments=0 must be a whole number from 1",
    ),
    "fraction": (
        {"kind": "class", "file": "t.jsonl", "test_fraction": 1},
        "test_fraction=1 must be a fraction between",
    ),
    "fraction of two": (
        {"kind": "class", "train": "t.jsonl", "test": "t.jsonl", "test_fraction": 0.5},
        "test_fraction=0.5 is for one file",
    ),
    "both sizes": (
        {"kind": "cluster", "file": "t.jsonl", "max_document_to_embed": 9, "max_fraction_of_documents_to_embed": 1},
        "exclude each other",
    ),
    "no name": (
        {"kind": "cluster", "files": {"text": "a.txt", "label": "b.txt"}},
        "a task of several files needs a name",
    ),
    "roles": ({"kind": "cluster", "name": "x", "files": {"text": "a.txt"}}, "files has ['text'], but Clustering needs"),
    "lengths": (
        {"kind": "cluster", "name": "x", "files": {"text": "a.txt", "label": "b.txt"}},
        "a.txt has 3 lines, b.txt has 2 lines: line n of each belongs to line n",
    ),
    "empty of two": (
        {"kind": "cluster", "name": "x", "files": {"text": "a.txt", "label": "empty.txt"}},
        "empty.txt: the file is empty",
    ),
    "role": (
        {"kind": "STS", "file": "p.jsonl", "columns": {"label": "score"}},
        "'label' is none of the roles ['text1'",
    ),
    "column": (
        {"kind": "STS", "file": "p.jsonl", "columns": {"score": "x"}},
        "no column 'x' for score; there are ['text1'",
    ),
    "one column twice": (
        {"kind": "STS", "file": "p.jsonl", "columns": {"text2": "text1"}},
        "'text1' stands for ['text1', 'text2'] alike",
    ),
    "columns of none": ({"kind": "STS", "file": "bars.txt", "columns": {"score": "x"}}, "the file has no header"),
    "label": (
        {"kind": "pair", "file": "p.jsonl", "labels": {0: 0, 1: 1}},
        "p.jsonl, line 3: the label '2' is not among labels, which has ['0', '1']; add it .*(tasks.yaml, task 1)",
    ),
    "labels to what": ({"kind": "pair", "file": "p.jsonl", "labels": {0: 0, 1: 1, 2: 3}}, "the label is 3, not 0 or 1"),
    "nothing left": (
        {"kind": "pair", "file": "p.jsonl", "labels": {0: None, 1: None, 2: None}},
        "no line is left to use",
    ),
    "strange class": (
        {"kind": "class", "train": "t.jsonl", "test": "other.jsonl"},
        "other.jsonl: test has the label 'l9', which train has no text of; train's are ['l0', 'l1']",
    ),
    "mteb's name": (
        {"kind": "STS", "file": "p.jsonl", "name": "stsbenchmark"},
        "'STSBenchmark' is a task of mteb's own, .*name: stsbenchmark-local",
    ),
    "name": ({"kind": "STS", "file": "p.jsonl", "name": "a/b"}, "name='a/b' must be of 1 to 80 characters"),
    "language": ({"kind": "STS", "file": "p.jsonl", "language": "xx"}, "language='xx' must be zh, en, or a language"),
    "no language": (
        {"kind": "STS", "file": "p.jsonl", "language": "qqq-Latn"},
        "language='qqq-Latn' is not known to m",
    ),
    "score": (
        {"kind": "STS", "file": "p.jsonl", "main_score": "ndcg_at_10"},
        "main_score='ndcg_at_10' is none that mteb c",
    ),
    "score at": ({"kind": "Retrieval", "file": "r.jsonl", "main_score": "recall_at_7"}, "needs k_values: [7]"),
    "bad lines": ({"kind": "STS", "file": "p.jsonl", "bad_lines": "drop"}, "bad_lines='drop' must be one of ['error'"),
}


@pytest.mark.parametrize("name", ENTRIES)
def test_entries_that_do_not_fit(write: Write, name: str) -> None:
    write("p.jsonl", pairs())
    write("t.jsonl", texts())
    write("other.jsonl", [*texts(20), {"text": "x", "label": "l9"}])
    write("r.jsonl", RANKED)
    write("a.txt", "x\ny\nz\n")
    write("b.txt", "1\n2\n")
    write("empty.txt", "")
    write("bars.txt", bars(""))
    values, message = ENTRIES[name]
    write("tasks.yaml", _yaml(values))
    with pytest.raises(ValueError, match=_literal(message)):
        read_local("tasks.yaml")


def test_specifications(write: Write) -> None:
    write("p.jsonl", pairs())
    for spec, message in {
        "sorting=p.jsonl": "'sorting=p.jsonl': write KIND=PATH, with one of STS, .*Retrieval",
        "p.jsonl": "write KIND=PATH",
        "STS=": "name a file after the =",
    }.items():
        with pytest.raises(ValueError, match=_literal(message)):
            read_local(spec)
    for spec in ("STS=none.csv", "none.yaml"):
        with pytest.raises(FileNotFoundError, match="none"):
            read_local(spec)
    with pytest.raises(FileNotFoundError, match="no queries.jsonl; a folder has queries.jsonl, corpus.jsonl and"):
        read_local("Retrieval=.")
    for kind in ("sts", "STS", "pair", "Pair-Classification", "PAIRCLASSIFICATION"):
        with pytest.raises(ValueError, match="^p.jsonl: |^p.jsonl, line"):
            read_local(f"{kind}={write('p.jsonl', pairs(3))}")
    for number in (0, True, 1.5):
        with pytest.raises(ValueError, match=f"limit={number!r} must be"):
            read_local("STS=p.jsonl", limit=number)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="seed=-1 must be"):
        read_local("STS=p.jsonl", seed=-1)
    write("p.jsonl", pairs(40))
    with pytest.raises(ValueError, match="5 pairs, but 10 are needed at the least. Raise the limit"):
        read_local("STS=p.jsonl", limit=5)
    for content, message in {
        "": "a tasks file is a list",
        "kind: STS": "a tasks file is a list",
        "- {kind: STS, kind: pair}": "the key 'kind' stands twice",
        "- [": "is not YAML",
        "- {kind: STS, file: p.jsonl}\n- {kind: pair, file: p.jsonl, name: P}": "the name 'p' stands twice",
    }.items():
        with pytest.raises(ValueError, match=_literal(message)):
            read_local(str(write("tasks.yaml", content)))


def test_paths_are_relative_to_the_tasks_file(write: Write) -> None:
    Path("folder").mkdir()
    write("folder/p.jsonl", pairs())
    write("folder/tasks.yaml", _yaml({"kind": "STS", "file": "p.jsonl"}))
    (task,) = read_local("folder/tasks.yaml")
    assert task.metadata.dataset["path"] == task.metadata.name == "p"
    assert str(Path.cwd()) not in task.metadata.model_dump_json()


def test_arrays_and_lines_are_read_alike(write: Write) -> None:
    rows = [{"text": f"t\n{n}", "label": n} for n in range(5)]
    lines = read_items(write("a.jsonl", rows), "Clustering")
    assert lines.items == [(f"t\n{n}", str(n)) for n in range(5)] and lines.lines == [1, 2, 3, 4, 5]
    array = read_items(write("a.json", "\ufeff\n" + json.dumps(rows, indent=1)), "Clustering")
    # Each begins on a line of its own: bracket, then four lines an object.
    assert array.items == lines.items and array.lines == [3, 7, 11, 15, 19]
    assert read_items(write("b.json", json.dumps(rows[:1])), "Clustering").items == lines.items[:1]


def _yaml(values: dict[str, Any]) -> str:
    import yaml

    return str(yaml.safe_dump([values], sort_keys=False))


def _literal(message: str) -> str:
    """A message as a pattern in which only ``.*`` is special."""
    return ".*".join(map(re.escape, message.split(".*")))
