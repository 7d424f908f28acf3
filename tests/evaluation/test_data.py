"""Tasks: lists of them, options that do not fit, limits, and items in parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from labelled import BARE, DATA, PAIRS, ROWS, SENTENCE, TEXTS, Write, literal, needs_data, table, values

from st_reba.evaluation.data import Task, in_parts, make_task, read_task, read_tasks
from st_reba.evaluation.items import Items


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
    with pytest.raises((ValueError, FileNotFoundError), match=literal(message)):
        read_tasks(words)


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
        with pytest.raises(ValueError, match=literal(message)):
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
