"""Tasks: the kind of a source, the field's files, draws, and errors."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import product
from operator import attrgetter
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
import torch

from st_reba.evaluation import Task, read_task
from st_reba.evaluation.tables import read_score
from st_reba.evaluation.task import KINDS, find_kind
from st_reba.evaluation.task_source import TaskSource, subsample
from st_reba.evaluation.tasks import kind_of_source

WORDS = list(map("word {}".format, range(12)))
REVERSED_WORDS = WORDS[::-1]
CLASSES = list("ab") * 6
BITS = [0, 1] * 6


def table(**columns: object) -> pd.DataFrame:
    return pd.DataFrame(columns)


PAIRS = table(sentence1=WORDS, sentence2=REVERSED_WORDS, score=range(12))
LABELLED_TEXTS = table(text=WORDS, label=CLASSES)
QUESTION = table(
    word=WORDS,
    answer="A",
    **{f"sentence{row_number}": WORDS for row_number in (1, 2, 3, 4)},
)


def test_no_kind_of_tables_takes_a_file_of_words_or_a_folder(tmp_path: Path) -> None:
    """Also one that is asked before those that do."""
    (tmp_path / "corpus.jsonl").touch()
    for source in (tmp_path / "words.conll", tmp_path):
        assert not find_kind("STS").matches(TaskSource(source))


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        (QUESTION, "WordSense"),
        (QUESTION.assign(score=1), "WordSense"),
        (table(anchor=WORDS, positive=WORDS, negative=WORDS), "Triples"),
        (
            table(
                anchor=WORDS,
                pos=WORDS,
                neg=WORDS,
                query=WORDS,
                document=WORDS,
                label=BITS,
            ),
            "Triples",
        ),
        (table(query=WORDS, document=WORDS, relevance=BITS), "Reranking"),
        (table(question=WORDS, title=WORDS, label=BITS), "Reranking"),
        (
            table(
                query=WORDS,
                document=WORDS,
                score=BITS,
                text1=WORDS,
                text2=WORDS,
            ),
            "Reranking",
        ),
        (PAIRS, "STS"),
        (PAIRS.assign(label=BITS, text=WORDS), "STS"),
        (table(premise=WORDS, hypothesis=WORDS, label=BITS), "PairClassification"),
        (
            table(
                text1=WORDS,
                text2=WORDS,
                label=BITS,
                text=WORDS,
            ),
            "PairClassification",
        ),
        (LABELLED_TEXTS, "Classification"),
        (table(text=WORDS, score=BITS), "STS"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_columns_tell_the_kind_in_a_fixed_order(source: pd.DataFrame, kind: str) -> None:
    assert kind_of_source(TaskSource(source)).name == kind


def test_a_kind_before_a_path_is_read(tmp_path: Path) -> None:
    table(text1=WORDS, text2=WORDS, label=BITS, score=BITS).to_csv(tmp_path / "a.csv")
    assert read_task(tmp_path / "a.csv").kind == "STS"
    assert read_task(f"pairclassification={tmp_path / 'a.csv'}", "STS").kind == "PairClassification"


def test_files_and_folders_tell_the_kind(tmp_path: Path) -> None:
    (tmp_path / "words.conll").write_text("a O\n", encoding="utf-8")
    assert kind_of_source(TaskSource(tmp_path / "words.conll")).name == "NER"
    (tmp_path / "corpus.jsonl").write_text("{}", encoding="utf-8")
    assert kind_of_source(TaskSource(tmp_path)).name == "Retrieval"


def test_every_kind_of_the_package_has_its_place_in_the_order() -> None:
    readable_kinds = [kind for kind in KINDS.values() if kind.name != "Views"]
    ordered_names = [
        kind.name
        for kind in sorted(
            readable_kinds,
            key=lambda kind: kind.detection_order,
        )
    ]
    first_names = ["NER", "Retrieval", "WordSense", "Triples", "Reranking"]
    assert ordered_names == [
        *first_names,
        "STS",
        "PairClassification",
        "Classification",
        "Clustering",
    ]
    assert len(set(map(attrgetter("detection_order"), KINDS.values()))) == len(KINDS)


@pytest.mark.parametrize(
    ("source", "kind", "read_kind", "first_item"),
    [
        (PAIRS, None, "STS", (0, 1, 0.0)),
        (
            table(text1=WORDS, text2=REVERSED_WORDS, label=["0", "2"] * 6),
            "sts",
            "STS",
            (0, 1, 0.0),
        ),
        (LABELLED_TEXTS, None, "Classification", (0, "a")),
        (LABELLED_TEXTS, "clustering", "Clustering", (0, "a")),
        (
            table(anchor=WORDS, positive=REVERSED_WORDS, negative="z"),
            None,
            "Triples",
            (0, 1, 2),
        ),
    ],
    ids=["pairs", "labels as scores", "classes", "clusters", "triples"],
)
def test_items_are_indices_of_texts_and_a_label(
    source: pd.DataFrame, kind: str | None, read_kind: str, first_item: object
) -> None:
    task = read_task(source, kind)
    assert (task.kind, task.query_count, task.items[0]) == (read_kind, 0, first_item)


SCORED_ROWS = [
    (f"{row_number}.5", f"\"It's huge {row_number}", f"other {row_number}")
    for row_number in range(10)
]
STSB_LINES = [
    "\t".join(
        [
            "g",
            "f",
            "y",
            "1",
            *row,
        ]
    )
    for row in SCORED_ROWS
]
STSB_LINES[3] += "\tmore"
HEADERLESS_FILES = {
    "semeval.tsv": ["\t".join(row) for row in SCORED_ROWS],
    "stsb.csv": STSB_LINES,
    "zh.txt": [f"id||{text1}||{text2}||{score}" for score, text1, text2 in SCORED_ROWS],
}


@pytest.mark.parametrize("name", HEADERLESS_FILES)
def test_files_without_a_header_are_read_unquoted(tmp_path: Path, name: str) -> None:
    text = "\n".join(HEADERLESS_FILES[name])
    (tmp_path / name).write_text(f"{text}\n", encoding="utf-8-sig")
    task = read_task(tmp_path / name)
    assert task.kind == "STS"
    assert task.texts[:2] == ("\"It's huge 0", "other 0")
    assert task.items[9] == (18, 19, 9.5)


@pytest.mark.parametrize("name", HEADERLESS_FILES)
def test_short_lines_of_files_without_a_header_are_named(tmp_path: Path, name: str) -> None:
    text = "\n".join([*HEADERLESS_FILES[name], "", "1\t2"])
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="line 12"):
        read_task(tmp_path / name)


@pytest.mark.parametrize("header", ["text1\ttext2\tscore\n", ""])
def test_a_table_in_another_encoding_is_read_by_its_name(header: str, tmp_path: Path) -> None:
    rows = [f"猫{number}\t狗\t{number}" for number in range(12)]
    if not header:  # SemEval's own order
        rows = [f"{number}\t猫{number}\t狗" for number in range(12)]
    table_file = tmp_path / "pairs.tsv"
    table_file.write_text(header + "\n".join(rows) + "\n", encoding="gb18030")
    with pytest.raises(ValueError, match="name its encoding, as encoding='gb18030'"):
        read_task(table_file, "STS")
    task = read_task(table_file, "STS", encoding="gb18030")
    assert task.texts[:2] == ("猫0", "狗")
    assert len(task.items) == 12
    with pytest.raises(ValueError, match="encoding='gb' is not known"):
        read_task(table_file, "STS", encoding="gb")


def test_files_with_a_header_may_be_unquoted(tmp_path: Path) -> None:
    lines = HEADERLESS_FILES["semeval.tsv"]
    (tmp_path / "plain.tsv").write_text("\n".join(lines), encoding="utf-8")
    (tmp_path / "named.tsv").write_text(
        "\n".join(["score\ttext1\ttext2", *lines]),
        encoding="utf-8",
    )
    assert read_task(tmp_path / "named.tsv").items == read_task(tmp_path / "plain.tsv").items


def test_a_number_may_name_the_first_of_four_columns(tmp_path: Path) -> None:
    named = table(**{"2020": [0] * 12}, text1=WORDS, text2=REVERSED_WORDS, score=range(12))
    named.to_csv(tmp_path / "named.tsv", sep="\t", index=False)
    assert read_task(tmp_path / "named.tsv").items == read_task(PAIRS).items


def test_labels_get_values_and_other_rows_are_dropped() -> None:
    labels = ["entailment", "neutral", "contradiction"] * 8
    source = table(a=WORDS * 2, b=REVERSED_WORDS * 2, gold=labels)
    columns = {"text1": "a", "text2": "b", "label": "gold"}
    task = read_task(
        source,
        columns=columns,
        labels={"entailment": 1, "contradiction": 0},
    )
    assert (len(task.items), task.dropped) == (16, {"its label": 8})
    assert task.items[1][2] == 0


def test_five_texts_are_enough_for_folds() -> None:
    task = read_task(table(text=WORDS[:5] * 2, label=CLASSES[:10]))
    assert (task.kind, len(task.texts)) == ("Classification", 5)


def test_truth_values_are_read_in_every_form() -> None:
    task = read_task(
        table(
            text1=WORDS,
            text2=REVERSED_WORDS,
            label=["0", 0.0, "FALSE", "1", "1.0", True] * 2,
        )
    )
    assert task.kind == "PairClassification"
    assert [label for *_, label in task.items] == [
        0,
        0,
        0,
        1,
        1,
        1,
    ] * 2


def test_texts_to_learn_from_are_numbered_with_the_others() -> None:
    train = table(text=["word 0", "new"] * 6, label=CLASSES)
    task = read_task(LABELLED_TEXTS, train=train)
    assert task.train[:2] == ((0, "a"), (12, "b"))
    assert len(task.texts) == 13


RANKING_ROWS = [
    (f"q{query}", f"d{query} {grade}", grade % 2) for query, grade in product(range(12), range(3))
]
RANKING = pd.DataFrame(
    [
        *RANKING_ROWS,
        ("q0", "d0 1", 3),
        ("alone", "x", -1),
    ],
    columns=["query", "title", "label"],
)


def test_the_highest_grade_of_a_document_counts() -> None:
    task = read_task(RANKING)
    assert (task.kind, task.query_count, len(task.items)) == ("Reranking", 12, 12)
    assert task.items[0] == (0, (12, 13, 14), (0.0, 3.0, 0.0))


def test_reranking_drops_queries_without_irrelevant_documents() -> None:
    task = read_task(RANKING)
    assert task.dropped == {"queries without both relevant and irrelevant documents": 1}
    assert "x" not in task.texts


def test_retrieval_keeps_all_documents() -> None:
    task = read_task(RANKING, "Retrieval")
    assert task.query_count == 12
    assert "x" in task.texts


def test_retrieval_without_relevance_takes_all_pairs_as_relevant() -> None:
    task = read_task(table(query=WORDS, document=REVERSED_WORDS), "Retrieval")
    assert task.items[0] == (0, (12,), (1.0,))


def test_a_limit_draws_queries_of_a_ranking() -> None:
    task = read_task(RANKING, limit=10)
    assert task.query_count == 10
    assert task == read_task(RANKING, limit=10, seed=0)
    assert task != read_task(RANKING, limit=10, seed=1)


def test_a_draw_keeps_the_order_and_depends_on_the_seed() -> None:
    drawn_numbers = subsample(range(100), 10, 0)
    assert drawn_numbers == sorted(drawn_numbers)
    assert drawn_numbers == subsample(range(100), 10, 0)
    assert drawn_numbers != subsample(range(100), 10, 1)


@pytest.mark.parametrize("limit", [None, 3, 5])
def test_a_limit_beyond_the_rows_draws_all(limit: int | None) -> None:
    assert subsample(range(3), limit, 0) == [0, 1, 2]


def test_conll_lines_are_tagged_words(tmp_path: Path) -> None:
    lines = "-DOCSTART- -X- O O\n\nU.N. NNP B-ORG 0\nofficial NN O O more\n\n" * 10
    (tmp_path / "a.txt").write_text(lines, encoding="utf-8")
    task = read_task(tmp_path / "a.txt", "NER", train=tmp_path / "a.txt", limit=10)
    assert task.items[0] == (0, ("U.N.", "official"), ("B-ORG", "O"))
    assert (task.texts, len(task.train)) == (("U.N. official",), 10)
    (tmp_path / "b.txt").write_text("U.N. B-ORG\nofficial O\n\n" * 10, encoding="utf-8")
    assert (
        read_task(
            tmp_path / "b.txt",
            "NER",
            train=tmp_path / "a.txt",
            limit=10,
        ).items
        == task.items
    )


@pytest.mark.parametrize("blank_line", ["", " ", "\t\t", "-DOCSTART- O\n", "-DOCSTART- O"])
def test_conll_sentences_end_at_blank_lines_and_documents(blank_line: str, tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_text(f"U.N. B-ORG\n{blank_line}\nhe O\n" * 10, encoding="utf-8")
    task = read_task(tmp_path / "a.conll", train=tmp_path / "a.conll")
    assert [words for _, words, _ in task.items[:2]] == [("U.N.",), ("he", "U.N.")]
    assert len(task.items) == 11


def test_whole_numbers_are_one_label_in_every_type() -> None:
    labels = [1.0, 0.0] * 6
    task = read_task(table(text=WORDS, label=labels), train=table(text=WORDS, label=["1", "0"] * 6))
    assert {label for _, label in task.items} == {"1", "0"}
    pairs = table(text1=WORDS, text2=REVERSED_WORDS, label=labels)
    task = read_task(pairs, "PairClassification", labels={"1": 1, 0: 0})
    assert (len(task.items), task.dropped) == (12, {})


def test_labels_that_no_row_has_are_told() -> None:
    pairs = table(text1=WORDS, text2=REVERSED_WORDS, label=["yes", "no"] * 6)
    with pytest.raises(ValueError, match="names 1, but the labels are yes, no"):
        read_task(pairs, "PairClassification", labels={1: 1})


@pytest.mark.parametrize(
    ("content", "train", "message"),
    [
        ("a B-ORG\n\n" * 10, False, "needs train="),
        ("a b\nc d\n", True, "no column"),
        ("ä B-ORG\n", True, "not UTF-8"),
    ],
    ids=["nothing to learn from", "no tags", "another encoding"],
)
def test_conll_files_that_cannot_be_used_say_why(
    tmp_path: Path, content: str, train: bool, message: str
) -> None:
    path = tmp_path / "words.conll"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError, match=message):
        read_task(path, train=path if train else None)


def test_a_table_is_no_conll_file() -> None:
    with pytest.raises(ValueError, match="CoNLL"):
        read_task(PAIRS, "NER")


def test_a_conll_file_is_of_no_other_kind(tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_text("a B-ORG\n", encoding="utf-8")
    with pytest.raises(ValueError, match="kind='STS'"):
        read_task(tmp_path / "a.conll", "STS")


RANKED_WORDS = table(query=WORDS, document=WORDS, relevance=BITS)
REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "unknown kind": (PAIRS, {"kind": "Pairs"}, "'Pairs'"),
    "views": (PAIRS, {"kind": "Views"}, "'Views'"),
    "missing column": (PAIRS, {"columns": {"text1": "nowhere"}}, "'nowhere'"),
    "unknown role": (PAIRS, {"columns": {"text3": "sentence1"}}, "'text3'"),
    "columns of another kind": (PAIRS, {"kind": "Classification"}, "text, label"),
    "train of pairs": (PAIRS, {"train": PAIRS}, "train="),
    "train of a ranking": (RANKED_WORDS, {"train": PAIRS}, "train="),
    "labels of questions": (PAIRS, {"kind": "WordSense", "labels": {}}, "labels="),
    "labels without a label": (
        table(anchor=WORDS, positive=WORDS, negative=WORDS), {"labels": {"x": 1}}, "belongs to kinds with a label",
    ),
    "few rows": (PAIRS[:9], {}, "10 are needed"),
    "no rows": (PAIRS[:0], {}, "there are no rows"),
    "equal scores": (PAIRS.assign(score=1), {}, "1.0"),
    "infinite score": (PAIRS.assign(score=float("inf")), {}, "row 1, column 'score': inf"),
    "large score": (PAIRS.assign(score=1e31), {}, "row 1, column 'score': 1e.31 is not a number up to 1e.30"),
    "missing score": (PAIRS.assign(score=float("nan")), {}, "row 1, column 'score': .* missing"),
    "no number": (
        table(text1=WORDS, text2=WORDS, label=["0", "True"] * 6,), {"kind": "STS"}, "row 2, .*: 'True'",
    ),
    "empty text": (PAIRS.assign(sentence1=" "), {}, "row 1, column 'sentence1': ' '"),
    "missing label": (table(text=WORDS, label=["a", "b", " "] * 4,), {}, "row 3, column 'label': .* missing"),
    "no truth value": (table(text1=WORDS, text2=WORDS, label=["yes", "no"] * 6,), {}, "'yes'"),
    "small classes": (table(text=WORDS, label=list("aabbccddeeff"),), {}, "no label has 5 texts"),
    "four texts": (
        table(text=WORDS[:4] * 3, label=CLASSES), {}, "4 different texts are too few for 5 folds",
    ),
    "a name that occurs twice": (
        pd.concat([PAIRS, PAIRS[["score"]]], axis=1), {}, "two columns have one name; there: .*'score', 'score'.",
    ),
    "a name and its number": (PAIRS.assign(**{"1": 0}).rename(columns={"score": 1}), {}, "two columns have one name"),
    "negative limit": (PAIRS, {"limit": -1}, "^limit=-1 must be a whole number of at least 1"),
    "limit in words": (PAIRS, {"limit": "5"}, "^limit='5' must be"),
    "kind in numbers": (PAIRS, {"kind": 3}, "^kind=3 must be a name, such as 'STS'"),
    "list of columns": (PAIRS, {"columns": ["a"]}, r"^columns=\['a'\] must be a dict, such as {'text1': "),
    "list of labels": (PAIRS, {"labels": ["a"]}, r"^labels=\['a'\] must be a dict"),
    "dict of columns": (dict(PAIRS), {}, r"^the table: {.* \(dict\) is no table\. Give a file, a DataFrame"),
    "list of lists": (PAIRS.to_numpy().tolist(), {}, r"^the table: \[\[.* \(list\) is no table"),
    "number to learn from": (LABELLED_TEXTS, {"train": 3}, r"^train: 3 \(int\) is no table"),
    "one topic": (table(text=WORDS, label="z"), {"kind": "Clustering"}, "all 12 items have the value 'z'"),
    "unknown class": (LABELLED_TEXTS, {"train": table(text=WORDS, label="z",)}, "train has the label 'a'"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_sources_that_cannot_be_used_say_why(case: str) -> None:
    source, options, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        read_task(source, **options)


@pytest.mark.parametrize(
    "names", [{"text1": "0", "text2": "1", "score": "2"}, {"text1": 0, "text2": 1, "score": 2}]
)
def test_names_of_columns_that_are_numbers_count_as_strings(names: dict[str, Any]) -> None:
    numbered = pd.DataFrame(PAIRS.to_numpy().tolist())
    assert list(numbered.columns) == [0, 1, 2]
    assert read_task(numbered, columns=names).items == read_task(PAIRS).items
    assert list(numbered.columns) == [0, 1, 2]


@pytest.mark.parametrize(
    "make",
    [
        lambda: PAIRS.to_dict("records"),
        lambda: pa.Table.from_pandas(PAIRS),
    ],
    ids=["list of dicts", "Arrow"],
)
def test_other_tables_in_memory_are_read_as_frames_are(make: Callable[[], object]) -> None:
    assert read_task(make()) == read_task(PAIRS)


def test_words_in_place_of_scores_name_options_that_read_them() -> None:
    """The remedy of the message, followed to the letter."""
    worded = PAIRS.assign(score=["yes", "no"] * 6)
    options = r"kind='PairClassification' .* labels=… .* columns={'label': 'score'} \(--column label=score\)"
    with pytest.raises(ValueError, match=rf"row 1, column 'score': 'yes' .* {options}"):
        read_task(worded)
    task = read_task(
        worded, "PairClassification", labels={"yes": 1, "no": 0}, columns={"label": "score"}
    )
    assert [truth for _, _, truth in task.items] == [1, 0] * 6
    with pytest.raises(ValueError, match=r"labels=… \(--label\)\.$"):
        read_task(worded.rename(columns={"score": "label"}), "STS")


def test_words_in_place_of_grades_name_an_option_that_reads_them() -> None:
    worded = table(query=["a", "a", "b", "b"], document=list("cdcd"), relevance=["yes", "no"] * 2)
    with pytest.raises(ValueError, match=r"'yes' .* what each word stands for: labels=…"):
        read_task(worded, "Reranking")
    assert len(read_task(worded, "Reranking", labels={"yes": 1, "no": 0}).items) == 2


@pytest.mark.parametrize("cell", [1e30, "-1e30"])
def test_a_score_may_be_as_large_as_the_message_says(cell: object) -> None:
    assert abs(read_score(cell)) == 1e30


def test_a_task_is_not_read_again() -> None:
    task = read_task(PAIRS, name="mine")
    assert read_task(task) is task


def test_a_task_describes_itself() -> None:
    assert str(read_task(PAIRS, name="mine")) == "mine: STS, 12 items"
    dropped = Task(
        "t",
        "WordSense",
        (),
        ((), ()),
        dropped={"no word": 2},
    )
    assert str(dropped) == "t: WordSense, 2 items, 2 dropped (no word)"


def test_a_warning_counts_the_rows_that_were_dropped(caplog: pytest.LogCaptureFixture) -> None:
    read_task(PAIRS, name="mine")
    assert caplog.text == ""
    questions = pd.concat([QUESTION, QUESTION[:2].assign(word="missing")])
    read_task(questions, name="questions")
    assert (
        "questions: WordSense, 12 items, 2 dropped (the word is not in a sentence)" in caplog.text
    )


def test_kinds_are_found_in_any_case() -> None:
    assert find_kind("ner") is find_kind("NER")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "folder, but not saved by"),
        (" ", "no such file"),
        ("missing.csv", "no such file"),
        ("folder", "folder, but not saved by"),
        ("pipe.csv", "no regular file"),
        ("pipe.conll", "is not a file: entities|suffix '.conll'"),
    ],
)
@pytest.mark.parametrize("as_train", [False, True], ids=["source", "train"])
def test_paths_without_a_table_are_refused_before_they_are_opened(
    name: str, message: str, as_train: bool, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe.csv")
    os.mkfifo(tmp_path / "pipe.conll")
    path = str(tmp_path / name) if name.strip() else name
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        if as_train:
            read_task(LABELLED_TEXTS, train=path)
        else:
            read_task(path)


def test_items_without_scores_of_their_own_choose_no_method() -> None:
    task = read_task(table(anchor=WORDS, positive=WORDS, negative=WORDS))
    unit_vectors = torch.eye(len(task.texts))
    with pytest.raises(ValueError, match="no scores of their own"):
        task.task_kind.score_items(task, unit_vectors)
