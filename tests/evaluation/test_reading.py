"""Items of labelled files: layouts without columns, what counts, what is refused and how, and draws."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from labelled import BARE, DATA, GRADES, MARKED, PAIRS, ROWS, SENTENCE, TEXTS, Write, literal, needs_data, table, values

from st_reba.evaluation.data import make_task, read_task
from st_reba.evaluation.items import Tags
from st_reba.evaluation.reading import drawn, shuffled
from st_reba.evaluation.words import Questions


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
    with pytest.raises(ValueError, match=literal(message)):
        read_task(path, kind)


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
