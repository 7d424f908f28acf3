"""Labelled files: what is read from every layout, what is refused and how, and how items are drawn and parted."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from st_reba.evaluation.data import Task, in_parts, make_task, read_task, read_tasks
from st_reba.evaluation.items import Items, Ranking, Tags
from st_reba.evaluation.reading import drawn, shuffled
from st_reba.evaluation.words import Questions

DATA = Path(__file__).parents[3] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the real data sets are not on this machine")

PAIRS = [(f"第{n}句", f'sentence, "{n % 7}"', float(n % 6)) for n in range(20)]
MARKED = [(f"a {n}", f"b {n % 5}", n % 3 % 2) for n in range(30)]
TEXTS = [(f"text {n}", "odd" if n % 2 else "even") for n in range(60)]
TRIPLES = [(f"a {n}", f"b {n}", f"c {n % 4}") for n in range(12)]
GRADES = [(f"q {n // 4}", f"d {n % 9}", float(n % 4 % 3)) for n in range(48)]
SENTENCE = "EU NNP B-NP B-ORG\nrejects VBZ B-VP O\nGerman JJ B-NP B-MISC\n"
ROWS: dict[str, tuple[tuple[str, ...], list[Any]]] = {
    "STS": (("text1", "text2", "score"), PAIRS),
    "PairClassification": (("text1", "text2", "label"), MARKED),
    "Triples": (("anchor", "positive", "negative"), TRIPLES),
    "Classification": (("text", "label"), TEXTS),
    "Clustering": (("text", "label"), TEXTS),
    "Reranking": (("query", "document", "relevance"), GRADES),
    "Retrieval": (("query", "document", "relevance"), GRADES),
}
Write = Callable[[str, Any], Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    monkeypatch.chdir(tmp_path)

    def write(name: str, content: Any) -> Path:
        if isinstance(content, list):
            content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in content)
        content = content if isinstance(content, bytes) else content.encode()
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return path

    return write


def values(items: Items) -> list[tuple[Any, ...]]:
    """Items as the rows that they were made of."""
    if isinstance(items, Ranking):
        return [
            (items.texts[query], items.texts[place], grade)
            for query, documents, grades in items.items
            for place, grade in zip(documents, grades, strict=True)
        ]
    if isinstance(items, Tags):
        return [(words, tags) for _, words, tags in items.items]
    known = 0 if items.kind == "Triples" else 1
    return [
        (*(items.texts[place] for place in items.texts_of(item)), *item[len(item) - known :]) for item in items.items
    ]


def table(names: Sequence[str], rows: Sequence[Sequence[Any]], delimiter: str) -> str:
    out = io.StringIO()
    csv.writer(out, delimiter=delimiter).writerows([names, *rows])
    return out.getvalue()


def layouts(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """A file of every layout that has named columns, with one more of no meaning."""
    names, rows = ("extra", *names), [("x", *row) for row in rows]
    objects = [dict(zip(names, row, strict=True)) for row in rows]
    found: dict[str, Any] = {
        "a.csv": table(names, rows, ","),
        "b.tsv": "\ufeff" + table(names, rows, "\t").replace("\r\n", "\n\n"),
        "c.jsonl": objects,
        "d.json": objects,
        "e.json": "\ufeff\n" + json.dumps(objects, indent=1),
        "f.ndjson": objects,
    }
    found |= {f"{name}.gz": found[name] for name in ("a.csv", "b.tsv", "c.jsonl", "e.json")}
    return found


@pytest.mark.parametrize("kind", ROWS)
def test_every_layout_with_columns(write: Write, kind: str) -> None:
    import pyarrow
    import pyarrow.parquet

    names, rows = ROWS[kind]
    wanted = make_task(kind, rows).items
    assert values(wanted) == rows
    for name, content in layouts(names, rows).items():
        task = read_task(write(name, content), kind)
        assert values(task.items) == values(wanted), name
        assert (task.kind, task.name, task.fingerprint) == (kind, name[0], wanted.fingerprint)
        if kind in ("STS", "Triples", "Classification"):
            assert read_task(name).fingerprint == wanted.fingerprint
    pyarrow.parquet.write_table(pyarrow.table(dict(zip(names, zip(*rows, strict=True), strict=True))), "g.parquet")
    assert read_task("g.parquet", kind).fingerprint == wanted.fingerprint


BARE = {
    "e.txt": "".join(f"2012test-0000||{a}||{b}||{s}\n" for a, b, s in PAIRS),
    "e.txt.gz": "".join(f"2012test-0000||{a}||{b}||{s}\n" for a, b, s in PAIRS),
    "f.csv": "".join(f"main\tMSRvid\t2012\t1\t{s}\t{a}\t{b}\n" for a, b, s in PAIRS),
    "g.csv": "\ufeff" + "".join(f"main\tMSRvid\t2012\t1\t{s}\t{a}\t{b}\tsource\tsource\n" for a, b, s in PAIRS),
}


@pytest.mark.parametrize("name", BARE)
def test_pairs_without_a_header(write: Write, name: str) -> None:
    task = read_task(write(name, BARE[name]))
    assert values(task.items) == PAIRS and task.kind == "STS"
    assert task.how in ("id||text1||text2||score", "STSBenchmark, score in column 5")
    labels = {f"{grade:.1f}": int(grade > 2) for grade in range(6)}
    marked = read_task(name, "PairClassification", labels=labels)
    assert values(marked.items) == [(a, b, int(s > 2)) for a, b, s in PAIRS]


def test_a_file_a_role(write: Write) -> None:
    texts, labels = ("".join(f"{row[place]}\r\n" for row in TEXTS) for place in (0, 1))
    files = {"label": write("labels.txt", labels), "text": write("titles.txt", texts)}
    assert values(read_task(files, "Clustering").items) == TEXTS
    assert read_task(files, "clustering", name="own").name == "own"
    write("labels.txt", "x\n" * 59)
    with pytest.raises(ValueError, match=r"titles.txt has 60 lines, labels.txt has 59 lines: line n of each"):
        read_task(files, "Clustering")
    with pytest.raises(ValueError, match=r"files has \['label', 'text'\], but STS needs one each of \['text1'"):
        read_task(files, "STS")
    with pytest.raises(ValueError, match="kind=None: of several files it must be one of"):
        read_task(files)


def test_tags(write: Write) -> None:
    """Chunks look like entities, but stand before them; the marker between documents is no sentence."""
    words = ("EU", "rejects", "German")
    content = f"-DOCSTART- -X- -X- O\n\n{SENTENCE}\n\n\n" + f"{SENTENCE}\n" * 9
    task = read_task(write("a.txt", content))
    assert (task.kind, task.how) == ("NER", "tags in column 4")
    assert values(task.items) == [(words, ("B-ORG", "O", "B-MISC"))] * 10
    assert len(task.items.texts) == 1
    chunks = read_task("a.txt", columns={"label": "3"})
    assert values(chunks.items)[0][1] == ("B-NP", "B-VP", "B-NP")
    # A column of zeros behind; tabs; Windows; no blank line at the end; a suffix of a table.
    zeros = "\r\n\r\n".join(["EU\tB-ORG\t0\r\nis\tO\t0"] * 10)
    for name in ("b.conll", "b.bio", "b.txt.gz"):
        assert values(read_task(write(name, zeros)).items) == [(("EU", "is"), ("B-ORG", "O"))] * 10
    assert values(read_task(write("b.tsv", zeros), "ner").items) == [(("EU", "is"), ("B-ORG", "O"))] * 10
    joined = read_task("b.conll", separator="", subtoken="last").items
    assert isinstance(joined, Tags) and joined.texts == ("EUis",) and joined.subtoken == "last"
    every = ["B-A", "I-A", "E-A", "S-A", "O", "B-B"]
    kept = make_task("NER", [("abcdef", every)] * 10)
    assert kept.items.types == ["A", "B"]  # type: ignore[attr-defined]


def test_questions(write: Write) -> None:
    rows = ["bank,The bank pays.,A bank lends.,The bank is steep.,My bank shut.,C"] * 3
    table = "\n".join(["word,sentence1,sentence2,sentence3,sentence4,answer", *rows])
    chinese = "问题,选项1,选项2,选项3,选项4,答案\n“意”,意1,意2,意3,意4,B\n"
    senses = {"好": {"a": ["好1", "好2", "好3"], "b": ["好4"]}}
    files = {"a.csv": table, "b.tsv": table.replace(",", "\t"), "c.csv.gz": table, "d.csv": chinese}
    files |= {"e.json": json.dumps(senses), "f.json": json.dumps(senses, indent=1), "g.json.gz": json.dumps(senses)}
    for name, content in files.items():
        task = read_task(write(name, content))
        assert isinstance(task.items, Questions) and len(task.items) == (
            3 if name in ("a.csv", "b.tsv", "c.csv.gz") else 1
        )
        assert read_task(name, "wordsense").fingerprint == task.fingerprint
    answers = [read_task("e.json", seed=seed).items.items[0][2] for seed in range(12)]
    assert len(set(answers)) == 4
    assert len(read_task("a.csv", limit=2).items) == 2


def three(write: Write, folder: str = "beir", titled: bool = True, qrels: str = "qrels/test.tsv") -> Path:
    queries = list(dict.fromkeys(query for query, _, _ in GRADES))
    documents = [*dict.fromkeys(document for _, document, _ in GRADES), "d never"]
    write(f"{folder}/queries.jsonl", [{"_id": f"q{n}", "text": text} for n, text in enumerate(queries)])
    cut = [text.split() for text in documents]
    corpus = [{"_id": n, "title": a, "text": b} for n, (a, b) in enumerate(cut)]
    if not titled:
        corpus = [{"_id": n, "text": text} for n, text in enumerate(documents)]
    write(f"{folder}/corpus.jsonl", corpus)
    lines = [(f"q{queries.index(query)}", documents.index(text), int(grade)) for query, text, grade in GRADES]
    write(f"{folder}/{qrels}", table(("query-id", "corpus-id", "score"), lines, "\t"))
    return Path(folder)


def test_three_tables(write: Write) -> None:
    """Titles stand before texts; a document that nobody judges is searched too."""
    one = make_task("Retrieval", GRADES).items
    folder = three(write)
    task = read_task(folder)
    assert (task.kind, task.name) == ("Retrieval", "beir")
    assert values(task.items) == values(one) and task.items.texts == (*one.texts, "d never")
    files = {
        part: folder / name
        for part, name in (("queries", "queries.jsonl"), ("documents", "corpus.jsonl"), ("relevance", "qrels/test.tsv"))
    }
    assert read_task(files).fingerprint == task.fingerprint
    assert read_task(three(write, "plain", titled=False, qrels="qrels.tsv")).fingerprint == task.fingerprint
    ranked = read_task(folder, "Reranking")
    assert ranked.fingerprint == make_task("Reranking", GRADES).fingerprint
    binary = read_task(folder, labels={"0": 0, "1": 0, "2": 1})
    assert {grade for *_, grade in values(binary.items)} == {0.0, 1.0}
    with pytest.raises(ValueError, match="queries, documents and relevance make Reranking or Retrieval, not STS"):
        read_task(files, "STS")
    write("beir/qrels/test.tsv", "query-id\tcorpus-id\tgain\nq0\t0\t1\nq0\t1\t0\n")
    with pytest.raises(ValueError, match=r"no columns for .*relevance \(relevance\) were found; there are .*'gain'"):
        read_task(folder)
    with pytest.raises(ValueError, match="1 items, but 10 are needed"):
        read_task(folder, columns={"relevance": "gain"})
    (folder / "queries.jsonl").unlink()
    with pytest.raises(FileNotFoundError, match="beir: no queries.jsonl there, as a folder of a ranking has"):
        read_task(folder)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("q0\tnone\t1", "test.tsv, line 50: the id 'none' is not in corpus.jsonl"),
        ("qx\t1\t1", "test.tsv, line 50: the id 'qx' is not in queries.jsonl"),
        ("q0\t1\thigh", "test.tsv, line 50: the relevance is 'high', not a number from 0 on"),
        ("q0\t1\t-1", "test.tsv, line 50: the relevance is '-1', not a number from 0 on"),
    ],
)
def test_bad_judgements(write: Write, line: str, message: str) -> None:
    folder = three(write)
    good = read_task(folder)
    with (folder / "qrels" / "test.tsv").open("a") as file:
        file.write(line + "\r\n")
    with pytest.raises(ValueError, match=message):
        read_task(folder)
    skipped = read_task(folder, bad_lines="skip")
    assert skipped.fingerprint == good.fingerprint
    assert skipped.left_out == {**good.left_out, "cannot be read": ["test.tsv, line 50"]}


def test_ids_stand_once(write: Write) -> None:
    folder = three(write)
    good = read_task(folder)
    with (folder / "corpus.jsonl").open("a") as file:
        file.write('{"_id": 1, "text": "again"}\n{"_id": 99, "text": ""}\n')
    with pytest.raises(ValueError, match="corpus.jsonl, line 11: the id 1 stands twice"):
        read_task(folder)
    assert read_task(folder, bad_lines="skip").fingerprint == good.fingerprint


def test_titles_that_not_every_document_has(write: Write) -> None:
    folder = three(write)
    lines = [json.loads(line) for line in (folder / "corpus.jsonl").read_text(encoding="utf-8").splitlines()]
    whole = read_task(folder)
    lines[0]["text"] = f"{lines[0].pop('title')} {lines[0]['text']}"
    write("beir/corpus.jsonl", lines)
    assert read_task(folder).fingerprint == whole.fingerprint
    # A title that is asked for as the document stands there once.
    titles = [{"_id": line["_id"], "title": f"title {line['_id']}", "text": "x"} for line in lines]
    write("beir/corpus.jsonl", titles)
    assert set(read_task(folder, columns={"document": "title"}).items.texts) >= {"title 0", "title 1"}


def test_a_list_of_tasks(write: Write) -> None:
    write("folder/p.jsonl", [dict(zip(ROWS["STS"][0], row, strict=True)) for row in PAIRS])
    write("folder/t.csv", table(("body", "label"), TEXTS, ","))
    write("folder/u.csv", table(("body", "label"), TEXTS[:40], ","))
    for role, place in (("text", 0), ("label", 1)):
        write(f"folder/{role}.txt", "".join(f"{row[place]}\n" for row in TEXTS))
    entries: list[dict[str, Any]] = [
        {"kind": "STS", "file": "p.jsonl", "limit": 15},
        {"name": "named", "file": "t.csv", "train": "u.csv", "columns": {"text": "body"}},
        {"name": "topics", "kind": "Clustering", "files": {"text": "text.txt", "label": "label.txt"}},
        {"kind": "pairclassification", "name": "m", "file": "p.jsonl", "labels": {0: 0, 1: 1, 2: 1, 3: None}},
    ]
    spec = str(write("folder/tasks.yaml", yaml.safe_dump(entries)))
    tasks = read_tasks([spec])
    assert [(task.name, task.kind, len(task.items)) for task in tasks] == [
        ("p", "STS", 15),
        ("named", "Classification", 60),
        ("topics", "Clustering", 60),
        ("m", "PairClassification", 11),
    ]
    assert tasks[1].train is not None and len(tasks[1].train) == 40
    assert tasks[3].left_out.keys() == {"label '3'", "label '4'", "label '5'"}
    # Of two limits the smaller counts.
    assert [len(task.items) for task in read_tasks([spec], limit=30)] == [15, 30, 30, 11]
    assert [len(task.items) for task in read_tasks([spec], limit=11)] == [11] * 4
    assert len(read_tasks(["sTs=folder/p.jsonl"], limit=12)[0].items) == 12


# Of each: the tasks' words, and the message.
WORDS: dict[str, tuple[list[str], str]] = {
    "kind": (["sorting=p.jsonl"], "kind='sorting' is not known: choose from ['STS', "),
    "near": (["clasification=t.csv"], "kind='clasification' is not known.*Did you mean 'Classification'?"),
    "gone": (["STS=gone.csv"], "gone.csv: no such file"),
    "gone alone": (["gone.csv"], "gone.csv: no such file"),
    "gone list": (["gone.yaml"], "gone.yaml: no such file"),
    "no list": (["a.yaml"], "a.yaml: write a list of tasks, each with kind and file"),
    "no YAML": (["b.yaml"], "b.yaml: not YAML"),
    "key": (["c.yaml"], "c.yaml, task 1: 'colums' is not known.*Did you mean 'columns'?"),
    "no file": (["d.yaml"], "d.yaml, task 2: give either file or files"),
}


@pytest.mark.parametrize("name", WORDS)
def test_words_that_name_no_task(write: Write, name: str) -> None:
    for path in ("p.jsonl", "folder/p.jsonl"):
        write(path, [dict(zip(ROWS["STS"][0], row, strict=True)) for row in PAIRS])
    write("a.yaml", "kind: STS")
    write("b.yaml", "- [")
    write("c.yaml", "- {kind: STS, file: p.jsonl, colums: {}}")
    write("d.yaml", "- {kind: STS, file: p.jsonl}\n- {kind: STS}")
    words, message = WORDS[name]
    with pytest.raises((ValueError, FileNotFoundError), match=_literal(message)):
        read_tasks(words)


# --- columns and labels


def test_columns_by_name(write: Write) -> None:
    write("x.csv", table(("premise", "hypothesis", "degree", "text"), [(*row, "z") for row in PAIRS], ","))
    names = {"text1": "premise", "text2": "hypothesis", "score": "degree"}
    for kind in (None, "STS"):
        task = read_task("x.csv", kind, columns=names)
        assert values(task.items) == PAIRS
        assert task.how == "text1 from 'premise', text2 from 'hypothesis', score from 'degree'"
    # One role is enough where the others are guessed; a name goes before a guess.
    write("y.csv", table(("text", "title", "degree"), [(a, b, s) for a, b, s in TRIPLES], ","))
    assert values(read_task("y.csv", "Classification", columns={"text": "title", "label": "degree"}).items)[0] == (
        "b 0",
        "c 0",
    )
    assert read_task("y.csv", columns={"label": "degree"}).how == "text from 'text', label from 'degree'"


COLUMNS: dict[str, tuple[str | None, dict[str, str], str]] = {
    "unknown layout": (
        None,
        {},
        "no columns for anchor, positive, negative (Triples) or text1, text2, score (STS) or text, label "
        "(Classification) were found; there are ['one', 'two', 'degree']. Name them, as --columns anchor=one",
    ),
    "of a kind": (
        "Reranking",
        {},
        "no columns for query, document, relevance (Reranking) were found; there are ['one', 'two', 'degree']",
    ),
    "some": ("STS", {"text1": "one"}, "no columns for text1, text2, score (STS) were found; there are ['one', 'two'"),
    "gone": ("STS", {"text1": "first"}, "there is no column 'first'; there are ['one', 'two', 'degree']"),
    "role": ("STS", {"texts": "one"}, "'texts' is not known: choose from ['text1', 'text2', 'score']. Did you mean"),
    "role of none": (None, {"words": "one"}, "'words' is not known: choose from ['anchor', 'positive', "),
    "twice": ("STS", {"text1": "one", "text2": "one", "score": "degree"}, "no columns for text1, text2, score (STS)"),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_that_are_not_there(write: Write, name: str) -> None:
    kind, columns, message = COLUMNS[name]
    write("x.csv", table(("one", "two", "degree"), PAIRS, ","))
    with pytest.raises(ValueError, match=_literal(message)) as error:
        read_task("x.csv", kind, columns=columns)
    # A table may have no header at all.
    assert ("give the file a first line that names its columns" in str(error.value)) == ("no columns" in message)
    objects = [dict(zip(("one", "two", "degree"), row, strict=True)) for row in PAIRS]
    for path in ("x.jsonl", "x.json"):
        write(path, objects if path == "x.jsonl" else json.dumps(objects))
        with pytest.raises(ValueError, match=_literal(message)):
            read_task(path, kind, columns=columns)


def test_labels_are_names_whatever_json_holds(write: Write) -> None:
    write("x.jsonl", [{"text": f"t{n}", "label": [7, "7", 1.5, True, " 7 "][n % 5]} for n in range(20)])
    assert Counter(label for _, label in values(read_task("x.jsonl").items)) == {"7": 12, "1.5": 4, "True": 4}
    for true, false in ((True, False), ("TRUE", "false"), (1.0, 0), ("1", "0.0")):
        rows = [{"text1": "a", "text2": f"{n}", "label": true if n % 3 else false} for n in range(12)]
        marked = read_task(write("y.jsonl", rows), "PairClassification")
        assert [label for *_, label in values(marked.items)] == [int(n % 3 > 0) for n in range(12)]


def test_labels_say_what_counts(write: Write) -> None:
    """Others are left out, and counted by their label."""
    names = {0: "contradiction", 1: "entailment"}
    rows = [(a, b, names[label]) for a, b, label in MARKED] + [("x", "y", "neutral")] * 3 + [("x", "z", "-")]
    write("nli.jsonl", [dict(zip(("sentence1", "sentence2", "label"), row, strict=True)) for row in rows])
    labels = {"entailment": 1, "contradiction": 0, "neutral": None}
    task = read_task("nli.jsonl", "PairClassification", labels=labels)
    assert task.fingerprint == make_task("PairClassification", MARKED).fingerprint
    assert {reason: len(found) for reason, found in task.left_out.items()} == {"label 'neutral'": 3, "label '-'": 1}
    assert "30 items, 4 left out" in str(task)
    # The first mistake that people make with such a file.
    with pytest.raises(ValueError, match="line 1: the score is 'contradiction', not a number; .* PairClassification"):
        read_task("nli.jsonl")
    with pytest.raises(
        ValueError, match="line 1: the label is 'contradiction', not 0 or 1; .*--labels contradiction=1"
    ):
        read_task("nli.jsonl", "PairClassification")
    with pytest.raises(ValueError, match=r"no line is left to use \(20: label 'contradiction'; 10: "):
        read_task("nli.jsonl", "PairClassification", labels={"Entailment": 1})
    # Numbers in Python, texts in a table.
    write("g.csv", table(ROWS["Reranking"][0], [(q, d, f"{s:.0f}") for q, d, s in GRADES], ","))
    graded = read_task("g.csv", "Reranking", labels={0: 0, 1: 0, 2: 1}).items
    assert {grade for *_, grade in values(graded)} == {0.0, 1.0}


# --- what is refused


# Of each: the kind, the file, what it holds, and the message.
REFUSED: dict[str, tuple[str | None, str, Any, str]] = {
    "score of bars": (None, "a.txt", "i||a||b||1\n\ni||a||b||high\n", "a.txt, line 3: the score is 'high', not a num"),
    "bars": (
        None,
        "a.txt",
        "i||a||b||1||2\n",
        "a.txt, line 1: 5 fields between '||', but id||text1||text2||score has",
    ),
    "text": (None, "a.txt", "i||a||b||1\ni||a|| ||1\n", "a.txt, line 2: text2 is empty"),
    "tabs": (
        None,
        "a.csv",
        "a\tb\tc\td\t1\tx\ty\na\tb\tc\td\t1\tx\n",
        "a.csv, line 2: 6 fields .* has 7 or more",
    ),
    "infinite": ("STS", "a.csv", "text1,text2,score\na,b,inf\n", "a.csv, line 2: the score is 'inf', not a number"),
    "true": ("STS", "a.json", '[{"text1":"a","text2":"b","score":true}]', "a.json, object 1: the score is True, not"),
    "huge": (
        "STS",
        "a.json",
        '[{"text1":"a","text2":"b","score":1' + "0" * 400 + "}]",
        "a.json, object 1: the score is 1000",
    ),
    "NaN": (None, "a.json", '[{"text":"a","label":NaN}]', "a.json, object 1: the label is nan, not a name or a number"),
    "cut JSON": (None, "a.jsonl", '{"text":"a","label":1}\n{"text":"a",', "a.jsonl, line 2: .*not JSON"),
    "cut array": (None, "a.json", '[{"text": "x", "label": 1},\n', "a.json: not JSON"),
    "in an array": (
        "Clustering",
        "a.json",
        '[{"text": "x", "label": 1}, 7]',
        "a.json, object 2: 7 is not one JSON obj",
    ),
    "texts in JSON lines": (None, "a.jsonl", '"some text"\n', "a.jsonl, record 1: it is not one JSON object"),
    "key": (None, "a.jsonl", '{"text":"a","label":1}\n{"text":"a"}', "a.jsonl, line 2: no 'label'"),
    "null": (
        None,
        "a.jsonl",
        '{"text":"a","label":null}',
        "a.jsonl, line 1: the label is None, not a name or a number",
    ),
    "number": (None, "a.jsonl", '{"text":5,"label":1}', "a.jsonl, line 1: text is 5, not a text"),
    "fields": (None, "a.csv", "text,label\na,1\na,b,1\n", "a.csv, line 3: .*3 fields, but the header has 2"),
    "quote": (None, "a.csv", 'text,label\na,"b"c"\n', "a.csv, line 2: .*doubled"),
    "header": (None, "a.csv", "a,a\n1,2\n", "a.csv, line 1: the header names 'a' twice"),
    "no rows": (
        "Classification",
        "a.csv",
        "text,label\n",
        "a.csv: no line is left to use (there is none below the hea",
    ),
    "empty": ("STS", "a.csv", "\n \n", "a.csv: the file is empty"),
    "empty array": ("STS", "a.json", "[]", "a.json: no line is left to use"),
    "not UTF-8": (None, "a.csv", "text,label\n中,1".encode("gb18030"), "a.csv, line 2: not UTF-8 (byte 0xd6); .*iconv"),
    "damaged": (None, "a.csv.gz", None, "a.csv.gz: damaged or truncated gzip data"),
    "tag": (
        None,
        "a.txt",
        "a O\n\nb B-X\nc NNP\nd O\n",
        "a.txt, line 3: the sentence's line 'c NNP' has no tag O, B-…",
    ),
    "no tag": ("NER", "a.txt", "a\nb O\nc O\n", "a.txt, line 1: the sentence's line 'a' has no tag"),
    "only O": ("NER", "a.txt", "a O\n\n" * 60, "a.txt: no entity is tagged, only O"),
    "column of tags": ("NER", "a.txt", "a\nb\n", "a.txt: the layout is not known; the first line is 'a'"),
    "prose": (None, "a.txt", "just some text\n", "a.txt: the layout is not known; the first line is 'just some text'"),
    "prose as a kind": (
        "Clustering",
        "a.txt",
        "just some text\n",
        "Clustering is read from .csv, .tsv, .jsonl, .json or",
    ),
    "bars as a kind": ("Clustering", "a.txt", "1||a||b||2\n", "Clustering is read from .*, not from '1||a||b||2'"),
    "one label": (
        "Clustering",
        "a.csv",
        "text,label\n" + "a,7\n" * 12,
        "a.csv: all 12 items have the label '7'; two are",
    ),
    "one score": ("STS", "a.csv", "text1,text2,score\n" + "a,b,2\n" * 12, "all 12 items have the score 2.0; two are"),
    "few": (
        "STS",
        "a.csv",
        "text1,text2,score\na,b,1\na,c,2\n",
        "a: 2 items, but 10 are needed at the least. Use a la",
    ),
    "no irrelevant": (
        "Reranking",
        "a.csv",
        "query,document,relevance\nq,d,1\n",
        "all 1 are queries without both a rel",
    ),
    "no relevant": (
        "Retrieval",
        "a.csv",
        "query,document,relevance\nq,d,0\n",
        "all 1 are queries without a relevant doc",
    ),
    "grade": (
        "Retrieval",
        "a.csv",
        "query,document,relevance\nq,d,-1\n",
        "line 2: the relevance is '-1', not a number fr",
    ),
    "questions": ("WordSense", "a.txt", "some text\n", "a.txt: word senses are read from .csv, .tsv"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_files_that_do_not_fit(write: Write, name: str) -> None:
    kind, file, content, message = REFUSED[name]
    path = write(file, content or "") if content is not None else Path(file)
    if content is None:
        path.write_bytes(gzip.compress(b"text,label\na,b\n" * 99)[:-20])
    with pytest.raises(ValueError, match=_literal(message)):
        read_task(path, kind)


def test_options_that_do_not_fit(write: Write) -> None:
    write("a.csv", table(ROWS["STS"][0], PAIRS, ","))
    write("e.txt", BARE["e.txt"])
    write("t.txt", f"{SENTENCE}\n" * 20)
    write("c.csv", table(ROWS["Classification"][0], TEXTS, ","))
    write("strange.csv", table(ROWS["Classification"][0], [*TEXTS, ("a", "other")], ","))
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("a.csv", {"kind": "triplets"}, "kind='triplets' is not known: choose from .*Did you mean 'Triples'?"),
        ("a.csv", {"bad_lines": "ignore"}, "bad_lines='ignore' is not known: choose from ['error', 'skip']"),
        ("a.csv", {"limit": 0}, "limit=0 must be a whole number from 1 on (--limit)"),
        ("a.csv", {"limit": True}, "limit=True must be a whole number"),
        ("a.csv", {"limit": 5}, "a: 5 items, but 10 are needed at the least. Use a larger file, or raise --limit"),
        ("t.txt", {"subtoken": "middle"}, "subtoken='middle' is not known: choose from ['first', 'last']"),
        ("t.txt", {"columns": {"label": "x"}}, "t.txt: the column of tags, label='x', must be a number from 2 on"),
        ("t.txt", {"columns": {"text": "x"}}, "'text' is not 'label', the one role of tags"),
        ("e.txt", {"columns": {"text1": "x"}}, "the file has no header (id||text1||text2||score). Drop --columns"),
        ("a.csv", {"train": "a.csv"}, "a: nothing is trained on STS. Drop train=…"),
        ("strange.csv", {"train": "c.csv"}, "strange: it has the label 'other', .*['even', 'odd']"),
    ]
    for path, options, message in cases:
        with pytest.raises(ValueError, match=_literal(message)):
            read_task(path, **options)
    with pytest.raises(FileNotFoundError, match="gone.csv: no such file"):
        read_task("gone.csv")
    for rows, message in (
        ([("a", "b")] * 12, "row 0: 2 values, but STS has 3: text1, text2, score"),
        ([("a", "b", "high")] * 12, "row 0: the score is 'high', not a number"),
        ([("a", "b", 1)] * 12, "items: all 12 items have the score 1.0; two are needed"),
    ):
        with pytest.raises(ValueError, match=message):
            make_task("STS", rows)
    with pytest.raises(ValueError, match="no entity is tagged, only O"):
        make_task("NER", [(["a"], ["O"])] * 12)


def test_bad_lines_are_left_out_when_asked_and_named(write: Write) -> None:
    write("p.txt", BARE["e.txt"] + "oops\nx||a||b||?\n")
    with pytest.raises(
        ValueError, match=r"p.txt, line 21: .*Correct the line, or .*bad_lines='skip' \(--skip-bad-lines\)"
    ):
        read_task("p.txt")
    task = read_task("p.txt", bad_lines="skip")
    assert values(task.items) == PAIRS
    assert task.left_out == {"cannot be read": ["p.txt, line 21", "p.txt, line 22"]} and "2 left out" in str(task)
    rows = [dict(zip(ROWS["STS"][0], row, strict=True)) for row in PAIRS]
    bad: list[Any] = [{"text1": "a", "text2": "", "score": 1}, "a text", {"x": 1}, {**rows[0], "score": "high"}]
    write("p.jsonl", [*rows[:3], *bad, *rows[3:]])
    task = read_task("p.jsonl", bad_lines="skip")
    assert values(task.items) == PAIRS and sum(map(len, task.left_out.values())) == 4
    write("p.csv", table(ROWS["STS"][0], PAIRS, ",") + 'a,b\n"a"b,c,1\n')
    task = read_task("p.csv", bad_lines="skip")
    assert values(task.items) == PAIRS and task.left_out == {"cannot be read": ["p.csv, line 22", "p.csv, line 23"]}
    write("t.txt", "a O\nb X\n\n" + "c B-X\nd O\n\n" * 10)
    tags = read_task("t.txt", bad_lines="skip")
    assert len(tags.items) == 10 and tags.left_out == {"cannot be read": ["t.txt, line 1"]}


def test_rankings_are_put_together_by_their_queries(write: Write) -> None:
    """Equal texts are one; of contrary judgements the highest counts; a query that cannot be scored is named."""
    rows = [("q", "same", 0), ("p", "b", 1), ("q", "same", 1), ("q", "same", 0), ("q", "other", 0), ("r", "c", 0)]
    rows += [(f"q{n}", document, grade) for n in range(10) for document, grade in (("b", 2), ("same", 0))]
    write("r.tsv", table(("query", "passage", "label"), rows, "\t"))
    ranked = read_task("r.tsv", "Reranking")
    assert values(ranked.items)[:4] == [("q", "same", 1.0), ("q", "other", 0.0), ("q0", "b", 2.0), ("q0", "same", 0.0)]
    assert ranked.left_out == {"queries without both a relevant and an irrelevant document": ["p", "r"]}
    assert "c" not in ranked.items.texts
    retrieved = read_task("r.tsv", "Retrieval")
    assert retrieved.left_out == {"queries without a relevant document": ["r"]}
    # The document of the query that is left out is searched all the same.
    assert retrieved.items.texts == ("q", "p", *(f"q{n}" for n in range(10)), "same", "other", "b", "c")


# --- draws and parts


def order(count: int, seed: int, purpose: str) -> list[int]:
    return sorted(range(count), key=lambda n: hashlib.sha256(f"{seed}:{purpose}:{n}".encode()).hexdigest())


def test_a_draw_of_today_is_one_of_tomorrow() -> None:
    """By hashes: no version of a library moves a published figure."""
    for seed in (0, 1):
        assert shuffled(range(30), seed, "limit") == order(30, seed, "limit")
        assert drawn([""] * 30, 12, seed) == sorted(order(30, seed, "limit")[:12])
    assert drawn([""] * 5, None, 0) == drawn([""] * 5, 9, 3) == list(range(5))


@given(st.lists(st.sampled_from("aaaaabbc"), min_size=1, max_size=80), st.integers(1, 80), st.integers(0, 9))
def test_a_limit_keeps_every_label_and_its_share(labels: list[str], limit: int, seed: int) -> None:
    rows = drawn(labels, limit, seed)
    assert len(rows) == len(set(rows)) == min(limit, len(labels)) and rows == sorted(rows)
    counts, every = Counter(labels[row] for row in rows), Counter(labels)
    if limit >= len(every):
        assert set(counts) == set(every)
        assert all(
            abs(counts[label] - limit * every[label] / len(labels)) <= len(every)
            for label in every
            if limit < len(labels)
        )
    # A smaller draw is part of a larger one.
    if limit < len(labels):
        assert set(rows) <= set(drawn(labels, limit + 1, seed))


@pytest.mark.parametrize(
    "kind", ["STS", "PairClassification", "Clustering", "Reranking", "Retrieval", "NER", "WordSense"]
)
def test_a_limit_draws_by_the_seed(kind: str) -> None:
    rows: dict[str, list[Any]] = {name: each for name, (_, each) in ROWS.items()}
    rows["NER"] = [([f"w{n}", "x"], ["B-A", "O"]) for n in range(40)]
    rows["WordSense"] = [("it", *(f"it {n} {m}" for m in range(4)), n % 4) for n in range(40)]
    rows["STS"] = PAIRS * 2
    rows["Reranking"] = rows["Retrieval"] = [(f"q {n // 4}", f"d {n}", n % 4 % 3) for n in range(80)]
    whole = make_task(kind, rows[kind])
    few, again, other = (make_task(kind, rows[kind], limit=12, seed=seed) for seed in (0, 0, 1))
    assert len(few.items) == 12 and few.fingerprint == again.fingerprint
    assert len({whole.fingerprint, few.fingerprint, other.fingerprint}) == 3
    known = set(map(str, values(whole.items)))
    assert set(map(str, values(few.items))) <= known
    assert make_task(kind, rows[kind], limit=len(whole.items)).fingerprint == whole.fingerprint
    if kind == "Retrieval":
        # Only what these queries judge: whoever draws a sample is told that it is easier.
        assert len(few.items.texts) == 12 + 48 < len(whole.items.texts)


def parted(kind: str, rows: Sequence[Any], shares: dict[str, float], seed: int = 0) -> tuple[Task, dict[str, Items]]:
    task = make_task(kind, rows)
    return task, in_parts(task, shares, seed)


@pytest.mark.parametrize("kind", [*ROWS, "NER"])
def test_parts_hold_all_items_and_share_none(kind: str) -> None:
    rows: list[Any] = [([f"w{n % 30}", "x"], ["B-A", "O"]) for n in range(40)] if kind == "NER" else [*ROWS[kind][1]]
    if kind in ("STS", "PairClassification"):
        rows += [(second, first, mark) for first, second, mark in rows[:8]]
    elif "Re" not in kind:
        rows += rows[:8]
    task, parts = parted(kind, rows, {"one": 0.5, "two": 0.3, "three": 0.2})
    items = task.items
    together = sorted(str(row) for part in parts.values() for row in values(part))
    assert together == sorted(str(row) for row in values(items))
    asked = [{part.asked(item) for item in part.items} for part in parts.values()]
    assert not (asked[0] & asked[1] or asked[0] & asked[2] or asked[1] & asked[2])
    for part, share in zip(parts.values(), (0.5, 0.3, 0.2), strict=True):
        assert abs(len(part) - share * len(items)) <= 3
    again, other = (in_parts(task, {"one": 0.5, "two": 0.3, "three": 0.2}, seed) for seed in (0, 1))
    assert [each.fingerprint for each in again.values()] == [each.fingerprint for each in parts.values()]
    assert other["one"].fingerprint != parts["one"].fingerprint


@pytest.mark.parametrize("each", [1, 3, 5, 7])
def test_labels_have_their_shares_in_parts(each: int) -> None:
    """Also where each label is rare: rounding them one by one would give one part two thirds."""
    labels = [f"label {n // each}" for n in range(60 * each)]
    task, parts = parted("Classification", [(f"t{n}", label) for n, label in enumerate(labels)], {"a": 0.5, "b": 0.5})
    assert len(parts["a"]) == len(parts["b"]) == 30 * each
    counts = [Counter(label for _, label in part.items) for part in parts.values()]
    assert all(abs(counts[0][label] - counts[1][label]) <= 1 for label in set(labels))


def test_what_is_trained_on_is_read_alike(write: Write) -> None:
    write("a.csv", table(("body", "label"), TEXTS[:20], ","))
    write("b.jsonl", [{"body": text, "label": label} for text, label in TEXTS] + [{"body": "x"}])
    options: dict[str, Any] = {"train": "b.jsonl", "columns": {"text": "body"}, "bad_lines": "skip"}
    task = read_task("a.csv", **options)
    assert values(task.items) == TEXTS[:20] and task.train is not None and values(task.train) == TEXTS
    assert task.left_out == {"cannot be read": ["b.jsonl, line 61"]}
    assert str(task).startswith("a: Classification, 20 items, 60 more to learn from, 1 left out (text from 'body'")
    assert task.fingerprint == f"{task.items.fingerprint}+{task.train.fingerprint}"
    small = read_task("a.csv", limit=16, **options)
    assert small.train is not None and len(small.items) == len(small.train) == 16


# --- real data


@pytest.mark.slow
@needs_data
@pytest.mark.parametrize(
    ("name", "options", "kind", "count", "left"),
    [
        ("sts/cnsd-sts-dev.txt", {}, "STS", 1458, 0),
        ("sts/cnsd-sts-test.txt", {}, "STS", 1361, 0),
        ("sts/sts-dev.csv", {}, "STS", 1500, 0),
        ("sts/sts-test.csv", {}, "STS", 1379, 0),
        ("sts/afqmc-dev.jsonl", {}, "STS", 4316, 0),
        ("sts/afqmc-dev.jsonl", {"kind": "PairClassification"}, "PairClassification", 4316, 0),
        (
            "pairs/ocnli-dev.jsonl",
            {"kind": "PairClassification", "labels": {"entailment": 1, "contradiction": 0}},
            "PairClassification",
            1847,
            1153,
        ),
        ("classification/tnews/test_public.json", {}, "Classification", 2010, 0),
        ("classification/eprstmt/test_public.json", {}, "Classification", 610, 0),
        ("classification/waimai_10k.csv", {}, "Classification", 11987, 0),
        ("ranking/qbqtc-dev.json", {"kind": "Reranking"}, "Reranking", 218, 18584),
        ("ranking/qbqtc-dev.json", {"kind": "Retrieval"}, "Retrieval", 14414, 4388),
        ("ner/test.txt", {}, "NER", 3453, 0),
        ("ner/valid.txt", {}, "NER", 3250, 0),
        ("words/SLPWC_v1.csv", {}, "WordSense", 300, 0),
        ("words/WSD_v1.csv", {}, "WordSense", 858, 4),
        ("words/wsd_senses.json", {"seed": 4}, "WordSense", 862, 168),
    ],
)
def test_real_files(name: str, options: dict[str, Any], kind: str, count: int, left: int) -> None:
    task = read_task(DATA / name, **options)
    assert (task.kind, len(task.items), sum(map(len, task.left_out.values()))) == (kind, count, left)
    if kind == "NER":
        assert task.items.types == ["LOC", "MISC", "ORG", "PER"]  # type: ignore[attr-defined]


@pytest.mark.slow
@needs_data
def test_real_tasks(write: Write) -> None:
    """The tasks of docs/results/mini.md, as its examples list them."""
    Path("data").symlink_to(DATA)
    examples = Path(__file__).parents[2] / "docs" / "examples"
    counts = {}
    for language in ("zh", "en"):
        spec = write(f"tasks-{language}.yaml", (examples / f"tasks-{language}.yaml").read_bytes())
        counts |= {task.name: len(task.items) for task in read_tasks([str(spec)])}
    assert counts["StackOverflow"] == counts["reviews"] == 4000
    assert (counts["TNEWS"], counts["EPRSTMT"], counts["QBQTC-reranking"]) == (2010, 610, 218)


def _literal(message: str) -> str:
    """A message as a pattern in which only ``.*`` is special."""
    return ".*".join(map(re.escape, message.split(".*")))
