"""Labelled files: which kind is seen in them, what is read, what is refused, and how items are parted."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from st_reba.evaluation import ClassTask, PairTask, TagTask, read_task
from st_reba.evaluation.labelled import read_labelled

DATA = Path(__file__).parents[3] / "shared" / "data"

PAIRS = [(f"第{n}句", f"sentence {n}", float(n % 6)) for n in range(20)]
CLASSES = [(f"text {n}", "odd" if n % 2 else "even") for n in range(60)]
SENTENCE = "EU NNP B-NP B-ORG\nrejects VBZ B-VP O\nGerman JJ B-NP B-MISC\n"


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str | bytes], Path]:
    def write(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


Write = Callable[[str, "str | bytes"], Path]

PAIR_FILES = {
    "a.csv": "text1,text2,score\n" + "".join(f'"{a}","{b}",{s}\n' for a, b, s in PAIRS),
    "b.tsv": "id\tsentence1\tsentence2\tlabel\n" + "".join(f"x\t{a}\t{b}\t{s}\n" for a, b, s in PAIRS),
    "c.jsonl": "".join(json.dumps({"sentence1": a, "sentence2": b, "score": s}) + "\n" for a, b, s in PAIRS),
    "d.json": "".join(json.dumps({"label": str(s), "text1": a, "text2": b}) + "\r\n" for a, b, s in PAIRS),
    "e.txt": "".join(f"2012test-0000||{a}||{b}||{s}\n" for a, b, s in PAIRS),
    "f.csv": "".join(f"main\tMSRvid\t2012\t1\t{s}\t{a}\t{b}\n" for a, b, s in PAIRS),
    "g.csv": "\ufeff" + "".join(f"main\tMSRvid\t2012\t1\t{s}\t{a}\t{b}\tsource\tsource\n" for a, b, s in PAIRS),
}


@pytest.mark.parametrize("name", PAIR_FILES)
def test_pairs_in_every_layout(write: Write, name: str) -> None:
    task = read_task(write(name, PAIR_FILES[name]))
    assert isinstance(task, PairTask) and task.name == name
    assert sorted(task.validation + task.heldout) == sorted(PAIRS)
    assert read_labelled(write(name, PAIR_FILES[name]), "pairs").items == PAIRS


CLASS_FILES = {
    "a.csv": "label,review\n" + "".join(f"{label},{text}\n" for text, label in CLASSES),
    "b.tsv": "text\tlabel\n\n" + "".join(f"{text}\t{label}\n" for text, label in CLASSES),
    "c.json": "".join(json.dumps({"label": b, "label_desc": "x", "sentence": a}) + "\n" for a, b in CLASSES),
}


@pytest.mark.parametrize("name", CLASS_FILES)
def test_classes_in_every_layout(write: Write, name: str) -> None:
    task = read_task(write(name, CLASS_FILES[name]))
    assert isinstance(task, ClassTask)
    assert sorted(task.train + task.validation + task.heldout) == sorted(CLASSES)
    sizes = [Counter(label for _, label in part) for part in (task.train, task.validation, task.heldout)]
    assert sizes == [{"odd": 18, "even": 18}, {"odd": 6, "even": 6}, {"odd": 6, "even": 6}]


def test_labels_are_names_whatever_json_holds(write: Write) -> None:
    rows = "".join(json.dumps({"text": f"t{n}", "label": label}) + "\n" for n, label in enumerate([7, "7", 1.5, True]))
    assert [label for _, label in read_labelled(write("x.jsonl", rows)).items] == ["7", "7", "1.5", "True"]


def test_tags(write: Write) -> None:
    # Chunks look like entities, but stand before them; the marker between documents is no sentence.
    found = read_labelled(write("a.txt", f"-DOCSTART- -X- -X- O\n\n{SENTENCE}\n\n{SENTENCE}"))
    assert found.kind == "tags" and found.layout == "tags in column 4"
    assert found.items == [(("EU", "rejects", "German"), ("B-ORG", "O", "B-MISC"))] * 2
    chunks = read_labelled(write("a.txt", SENTENCE), columns={"label": "3"})
    assert chunks.items[0][1] == ("B-NP", "B-VP", "B-NP")
    # As the file in the shared data: a column of zeros behind.
    zeros = read_labelled(write("b.conll", "EU\tB-ORG\t0\nis\tO\t0\n"))
    assert zeros.items == [(("EU", "is"), ("B-ORG", "O"))]
    task = read_task(write("c.bio", (SENTENCE + "\n") * 60))
    assert isinstance(task, TagTask)
    assert [len(part) for part in task.parts.values()] == [36, 12, 12]


def test_columns_by_name(write: Write) -> None:
    path = write("x.csv", "premise,hypothesis,degree\n" + "".join(f"{a},{b},{s}\n" for a, b, s in PAIRS))
    task = read_task(path, columns={"text1": "premise", "text2": "hypothesis", "score": "degree"})
    assert isinstance(task, PairTask) and sorted(task.validation + task.heldout) == sorted(PAIRS)
    with pytest.raises(
        ValueError, match=r"no columns for text1, text2, score \(for pairs\) or text, label .*'premise'"
    ):
        read_task(path)
    with pytest.raises(ValueError, match="'texts' is none of the roles"):
        read_task(path, columns={"texts": "premise"})
    with pytest.raises(ValueError, match="no columns for text, label"):
        read_task(path, "classes", columns={"text": "gone"})


REFUSED = {
    "line 3: the score is 'high', not a number": ("a.txt", "i||a||b||1\n\ni||a||b||high\n"),
    "line 1: 5 fields between |": ("a.txt", "i||a||b||1||2\n"),
    "line 2: text2 is empty": ("a.txt", "i||a||b||1\ni||a|| ||1\n"),
    "line 2: 6 fields between tabs": ("a.csv", "a\tb\tc\td\t1\tx\ty\na\tb\tc\td\t1\tx\n"),
    "line 2: the score is nan": (
        "a.jsonl",
        '{"text1":"a","text2":"b","score":1}\n{"text1":"a","text2":"b","score":NaN}',
    ),
    "line 1: the score is True": ("a.jsonl", '{"text1":"a","text2":"b","score":true}'),
    "line 2: not JSON": ("a.jsonl", '{"text":"a","label":1}\n{"text":"a",'),
    "line 1: not JSON": ("a.json", "[\n"),
    "line 1: '\\[.*\\]' is not one JSON object": ("a.json", '[{"text":"a","label":1}]'),
    "line 2: no 'label'": ("a.jsonl", '{"text":"a","label":1}\n{"text":"a"}'),
    "line 1: the label is None": ("a.jsonl", '{"text":"a","label":null}'),
    "line 1: text is 5, not a text": ("a.jsonl", '{"text":5,"label":1}'),
    "line 3: 3 fields, but the header has 2": ("a.csv", "text,label\na,1\na,b,1\n"),
    "line 2: .*a field that holds a quote": ("a.csv", 'text,label\na,"b"c"\n'),
    "line 1: the header names 'a' twice": ("a.csv", "a,a\n1,2\n"),
    "no rows below": ("a.csv", "text,label\n"),
    "the file is empty": ("a.csv", "\n \n"),
    "line 2: not UTF-8 \\(byte 0xd6\\).*iconv": ("a.csv", "text,label\n中".encode("gb18030")),
    "line 3: the sentence's tag 'NNP' is not": ("a.txt", "a O\n\nb B-X\nc NNP\nd O\n"),
    "line 1: the sentence's line 'a' has no column 2": ("a.txt", "a\nb O\nc O\n"),
    "the kind of file is not recognized": ("a.txt", "just some text\n"),
}


@pytest.mark.parametrize("message", REFUSED)
def test_refused_with_file_line_and_remedy(write: Write, message: str) -> None:
    path = write(*REFUSED[message])
    with pytest.raises(ValueError, match=message) as error:
        read_labelled(path)
    assert str(error.value).startswith(str(path))


def test_bad_lines_are_left_out_when_asked_and_counted(write: Write) -> None:
    lines = PAIR_FILES["e.txt"] + "oops\nx||a||b||?\n"
    path = write("p.txt", lines)
    with pytest.raises(ValueError, match=r"line 21: .*bad_lines='skip' \(--skip-bad-lines\)"):
        read_task(path)
    task = read_task(path, bad_lines="skip")
    assert isinstance(task, PairTask) and sorted(task.validation + task.heldout) == sorted(PAIRS)
    assert "2 bad lines skipped: 21, 22" in task.describe()
    tags = read_labelled(write("t.txt", "a O\nb X\n\nc B-X\nd O\n"), bad_lines="skip")
    assert tags.items == [(("c", "d"), ("B-X", "O"))] and tags.bad == [1]


def order(count: int, seed: int, purpose: str) -> list[int]:
    return sorted(range(count), key=lambda n: hashlib.sha256(f"{seed}:{purpose}:{n}".encode()).hexdigest())


def test_parts_depend_on_the_seed_and_nothing_else(write: Write) -> None:
    path = write("a.csv", PAIR_FILES["a.csv"])
    for seed in (0, 1):
        task = read_task(path, seed=seed)
        assert isinstance(task, PairTask)
        chosen = sorted(order(20, seed, "")[:10])
        assert task.validation == tuple(PAIRS[n] for n in chosen)
        assert task.heldout == tuple(PAIRS[n] for n in range(20) if n not in chosen)
    assert read_task(path).fingerprint == read_task(path).fingerprint != read_task(path, seed=1).fingerprint
    larger = read_task(write("b.csv", PAIR_FILES["a.csv"] + PAIR_FILES["a.csv"].partition("\n")[2]), validation=0.25)
    assert [len(part) for part in larger.parts.values()] == [10, 30]
    limited = read_task(path, limit=20)
    assert limited.fingerprint == read_task(path).fingerprint
    sample = read_task(write("c.csv", CLASS_FILES["a.csv"]), limit=50)
    assert isinstance(sample, ClassTask)
    kept = [CLASSES[n] for n in sorted(order(60, 0, "limit")[:50])]
    assert sorted(sample.train + sample.validation + sample.heldout) == sorted(kept)


def test_further_files(write: Write) -> None:
    path, train = write("a.csv", CLASS_FILES["a.csv"]), write("b.tsv", CLASS_FILES["b.tsv"])
    task = read_task(path, train=train)
    assert isinstance(task, ClassTask) and task.train == tuple(CLASSES)
    assert [len(part) for part in task.parts.values()] == [60, 30, 30]
    assert sorted(task.validation + task.heldout) == sorted(CLASSES)
    task = read_task(path, test=train)
    assert isinstance(task, ClassTask) and task.heldout == tuple(CLASSES)
    assert [len(part) for part in task.parts.values()] == [48, 12, 60]
    task = read_task(path, train=train, test=train, limit=40)
    assert [len(part) for part in task.parts.values()] == [40, 40, 40]
    assert "train from b.tsv; heldout from b.tsv" in task.describe()
    pairs = read_task(write("c.csv", PAIR_FILES["a.csv"]), test=write("d.txt", PAIR_FILES["e.txt"]))
    assert isinstance(pairs, PairTask) and pairs.validation == pairs.heldout == tuple(PAIRS)
    with pytest.raises(ValueError, match="validation=0.3: all of the file is for validation"):
        read_task(path, train=train, test=train, validation=0.3)
    with pytest.raises(ValueError, match="nothing is trained on pairs"):
        read_task(write("c.csv", PAIR_FILES["a.csv"]), train=train)
    strange = write("e.csv", "text,label\n" + "a,odd\nb,other\n" * 10)
    with pytest.raises(ValueError, match=r"validation has the class 'other', which train has no text of"):
        read_task(strange, train=train)


def test_a_rare_class_is_trained_on_first(write: Write) -> None:
    rare = [("one", "once"), ("two", "twice"), ("three", "twice")]
    task = read_task(write("a.csv", CLASS_FILES["a.csv"] + "once,one\ntwice,two\ntwice,three\n"))
    assert isinstance(task, ClassTask)
    assert set(rare) <= set(task.train)


def test_options_are_checked(write: Write) -> None:
    pairs, tags = write("a.csv", PAIR_FILES["a.csv"]), write("t.txt", (SENTENCE + "\n") * 50)
    cases: list[tuple[Path, dict[str, Any], str]] = [
        (pairs, {"kind": "triplets"}, "kind='triplets' is not known"),
        (pairs, {"bad_lines": "ignore"}, "bad_lines='ignore' is not known"),
        (pairs, {"validation": 1.0}, "validation=1.0 must be a fraction between 0 and 1"),
        (tags, {"validation": 0.5}, "validation=0.5 must be a fraction between 0 and 0.5"),
        (pairs, {"limit": 0}, "limit=0"),
        (pairs, {"limit": 12}, "6 pairs for validation, but 10 are needed"),
        (pairs, {"seed": "x"}, "seed='x'"),
        (pairs, {"kind": "tags"}, "tags are read from lines"),
        (pairs, {"kind": "classes"}, "no columns for text, label"),
        (pairs, {"separator": ""}, "separator='' belongs to tags"),
        (tags, {"kind": "pairs"}, "kind='pairs' is read from .jsonl"),
        (tags, {"columns": {"label": "x"}}, "must be a number from 2 on"),
        (tags, {"columns": {"text": "x"}}, "'text' is not 'label'"),
        (tags, {"subtoken": "middle"}, "subtoken='middle'"),
        (write("e.txt", PAIR_FILES["e.txt"]), {"columns": {"text1": "x"}}, "has no header"),
        (write("e.txt", PAIR_FILES["e.txt"]), {"kind": "tags"}, "holds pairs, not kind='tags'"),
    ]
    for path, options, message in cases:
        with pytest.raises(ValueError, match=message):
            read_task(path, **options)
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_task(pairs.with_name("gone.csv"))


def test_arguments_read_the_task_again(write: Write) -> None:
    path = write("a b.csv", PAIR_FILES["a.csv"])
    assert read_task(path).arguments == (str(path),)
    task = read_task(path, "pairs", columns={"score": "score"}, validation=0.5, limit=20, seed=3, bad_lines="skip")
    assert task.arguments == (
        *(str(path), "--column", "score=score", "--kind", "pairs", "--validation", "0.5"),
        *("--limit", "20", "--seed", "3", "--skip-bad-lines"),
    )
    tags = read_task(
        write("t.txt", (SENTENCE + "\n") * 50), separator="", subtoken="last", test=path.with_name("t.txt")
    )
    assert tags.arguments[1:] == ("--test", tags.arguments[0], "--word-separator", "", "--subtoken", "last")


@pytest.mark.parametrize(
    ("name", "kind", "count"),
    [
        ("sts/cnsd-sts-dev.txt", "pairs", 1458),
        ("sts/sts-dev.csv", "pairs", 1500),
        ("sts/sts-test.csv", "pairs", 1379),
        ("sts/afqmc-dev.jsonl", "pairs", 4316),
        ("classification/tnews/test_public.json", "classes", 2010),
        ("classification/waimai_10k.csv", "classes", 11987),
        ("ner/valid.txt", "tags", 3250),
    ],
)
def test_real_files(name: str, kind: str, count: int) -> None:
    if not (DATA / name).is_file():
        pytest.skip(f"{name} is not on this machine: it is not read here")
    found = read_labelled(DATA / name)
    assert (found.kind, len(found.items), found.bad) == (kind, count, [])
