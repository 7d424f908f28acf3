"""Compare, curve and evaluate on real models."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from inspect import signature
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sentence_transformers import SentenceTransformer
from tiny import TASK_WORDS

import st_reba
from st_reba.evaluation import Task, encoding, read_task, readouts
from st_reba.evaluation.figures import draw_curve, draw_results
from st_reba.evaluation.instructions import Instructions
from st_reba.evaluation.readouts import load_base
from st_reba.evaluation.results import Comparison, Result, markdown
from st_reba.evaluation.run import compare, curve, evaluate
from st_reba.evaluation.shared_pass import run_pass
from st_reba.evaluation.statistics import Difference
from st_reba.evaluation.toy import toy_tasks
from st_reba.methods import Method

PLAIN = "classical:pooling=mean"
ECHO = "echo:pooling=mean"
PAIRS = pd.DataFrame(
    {
        "text1": TASK_WORDS,
        "text2": list(map("the {}".format, TASK_WORDS[::-1])),
        "score": range(12),
    }
)
RANKING_ROWS = [
    (f"q {word}", f"d {other}", int(word == other))
    for word in TASK_WORDS
    for other in [*TASK_WORDS[:3], word]
]
RANKING = pd.DataFrame(RANKING_ROWS, columns=["query", "document", "relevance"])
PROMPTS = {"tasks": {"*": "Find: "}, "query": "{instruction}", "document": "{instruction}"}
TAGGED = ((0, ("New", "York"), ("B-LOC", "I-LOC")), (1, ("he", "is"), ("O", "O")))


@pytest.fixture(scope="module")
def base_folder(base: Callable[..., str]) -> str:
    return base("deep")


@pytest.fixture(scope="module")
def base_model(base_folder: str) -> SentenceTransformer:
    return load_base(base_folder)


@pytest.mark.parametrize(
    ("task", "method"),
    [
        (read_task(PAIRS, name="pairs"), "reba:pooling=mean"),
        (read_task(RANKING, "Retrieval", name="ranking"), "nosink:setting=inter-bidir,k=2"),
        (
            toy_tasks(
                ["S3"],
                ["en"],
                "early",
                limit=12,
            )[0],
            "prompteol",
        ),
        (
            Task(
                "ner",
                "NER",
                ("New York", "he is"),
                TAGGED[:1] * 10,
                TAGGED[1:],
            ),
            "prompteol",
        ),
    ],
    ids=["pairs", "ranking", "words", "entities"],
)
def test_compare_gives_the_scores_of_evaluate(
    base_folder: str, base_model: SentenceTransformer, task: Task, method: str
) -> None:
    comparison = compare(base_model, task, [PLAIN, method], prompts=PROMPTS)
    assert list(map(attrgetter("method"), comparison.results)) == [
        PLAIN,
        method,
    ]
    for compared in comparison.results:
        (evaluated,) = evaluate(
            st_reba.build(base_folder, compared.method),
            task,
            prompts=PROMPTS,
        )
        assert evaluated.scores == pytest.approx(compared.scores, abs=1e-3)
        assert evaluated.interval == pytest.approx(compared.interval, abs=1e-3)
        assert (evaluated.method, evaluated.items) == (compared.method, compared.items)
        assert evaluated.prompts == compared.prompts == "own"


@pytest.mark.bars
def test_methods_with_the_same_input_run_once(
    base_model: SentenceTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pass_models: list[SentenceTransformer] = []
    bars: list[Any] = []
    make_bar = encoding.averaging_bar

    def counted_pass(model: SentenceTransformer, *arguments: Any, **options: Any) -> Any:
        pass_models.append(model)
        return run_pass(model, *arguments, **options)

    def kept_bar(*arguments: Any) -> Any:
        bars.append(make_bar(*arguments))
        return bars[-1]

    monkeypatch.setattr(readouts, "run_pass", counted_pass)
    monkeypatch.setattr(encoding, "averaging_bar", kept_bar)
    methods = ["classical", PLAIN, "echo", ECHO, "reba", "reba:layer=3"]
    compare(base_model, PAIRS, methods, draws=0, show_progress_bar=True)
    assert len(pass_models) == 2
    # The time that is left is right: the bar counts up to its total.
    assert bars[0].total > 0
    assert list(map(attrgetter("n"), bars)) == list(map(attrgetter("total"), bars))


@pytest.mark.parametrize(
    ("method", "prompt"),
    [
        (Method("echo", pooling="mean", template="echo-instruct"), "Find"),
        (Method.parse(PLAIN), "Instruct: Find\n"),
    ],
    ids=["template with a field", "instruction as text"],
)
def test_instructions_are_filled_in_or_put_before(
    base_folder: str, base_model: SentenceTransformer, method: Method, prompt: str
) -> None:
    task = read_task(RANKING, "Retrieval")
    instructions = Instructions("own", {task.name: "Find"}, query="Instruct: {instruction}\n")
    vectors = encoding.shared_vectors(
        base_model,
        task,
        [method],
        instructions,
        4096,
        False,
    )[method]
    model = st_reba.build(base_folder, method)
    expected_query = model.encode_query(task.texts[0], prompt=prompt)
    expected_document = model.encode_document(task.texts[task.query_count])
    np.testing.assert_allclose(vectors[0], expected_query, atol=1e-5)
    np.testing.assert_allclose(vectors[task.query_count], expected_document, atol=1e-5)


def test_documents_are_instructed_by_their_own_template(
    base_folder: str, base_model: SentenceTransformer
) -> None:
    """Where a query's template has a field for it, and a document's has none."""
    template = {"query": "{instruction} Q: {text} is", "document": "D: {text} is"}
    method = Method("prompteol", template=template)
    instructions = Instructions(
        "own", {"*": {"query": "Find", "document": "tales"}}, document="Of {instruction}: "
    )
    task = read_task(RANKING, "Retrieval")
    vectors = encoding.shared_vectors(base_model, task, [method], instructions, 4096, False)[method]
    model = st_reba.build(base_folder, method)
    expected_query = model.encode_query(task.texts[0], prompt="Find")
    expected_document = model.encode_document(task.texts[task.query_count], prompt="Of tales: ")
    np.testing.assert_allclose(vectors[0], expected_query, atol=1e-5)
    np.testing.assert_allclose(vectors[task.query_count], expected_document, atol=1e-5)


def test_each_result_is_appended_as_a_line(
    base_folder: str, base_model: SentenceTransformer, tmp_path: Path
) -> None:
    out = tmp_path / "results.jsonl"
    start_time = time.perf_counter()
    comparison = compare(base_model, PAIRS, [PLAIN, "echo"], out=out, name="名")
    evaluate(
        st_reba.build(base_folder, "reba"),
        [read_task(PAIRS, name=name) for name in "bc"],
        out=out,
    )
    longest = time.perf_counter() - start_time
    text = out.read_text(encoding="utf-8")
    assert "名" in text
    lines = [json.loads(line) for line in text.splitlines()]
    assert [(line["task"], line["method"]) for line in lines[1:]] == [
        ("名", "echo"),
        ("b", "reba"),
        ("c", "reba"),
    ]
    assert all(0 <= line["seconds"] <= longest for line in lines)
    first_result = Result(**{**lines[0], "interval": tuple(lines[0]["interval"])})
    assert first_result == comparison.results[0]


@pytest.mark.filterwarnings("error:Glyph")
def test_figures_are_written(
    base_folder: str, base_model: SentenceTransformer, tmp_path: Path
) -> None:
    compare(
        base_model,
        PAIRS,
        [PLAIN, "echo"],
        figure=tmp_path / "c.png",
        name="$_$ 名",
    )
    assert (tmp_path / "c.png").read_bytes()[:4] == b"\x89PNG"
    evaluate(st_reba.build(base_folder, "reba"), PAIRS, figure=tmp_path / "e.svg")
    assert "</svg>" in (tmp_path / "e.svg").read_text(encoding="utf-8")


def make_result(task: str, method: str, score: float = 0.5) -> Result:
    return Result(
        task,
        "STS",
        "model",
        method,
        "cosine_spearman",
        score,
        (0.1, 0.9),
        seconds=2,
    )


def test_a_figure_has_a_panel_a_task_and_a_bar_a_method() -> None:
    results = [
        make_result("$_$ 名", PLAIN),
        make_result("$_$ 名", "echo"),
        make_result("b", "reba"),
        make_result("c", ""),
    ]
    figure = draw_results(results)
    first_panel, *other_panels = figure.axes
    assert len(other_panels) == 2
    assert (first_panel.get_title(), first_panel.get_xlabel()) == ("$_$ 名", "cosine_spearman")
    # The first is at the top.
    assert [label.get_text() for label in first_panel.get_yticklabels()] == [
        "echo",
        PLAIN,
    ]
    assert len(first_panel.lines) == 2
    assert [label.get_text() for label in other_panels[1].get_yticklabels()] == ["model"]
    assert figure.get_size_inches().tolist() == pytest.approx(
        [
            11.6,
            1.64,
        ]
    )


COMPARISON = Comparison(
    "t: STS, 9 items",
    [make_result("t", name, int(name) / 8) for name in "123"],
    [
        Difference("1", "2", -1, -2, 0),
        Difference("1", "3", -1, -2, -0.1),
        Difference("3", "2", 0.5, 0.1, 1),
    ],
)


def test_the_table_counts_significant_differences() -> None:
    table = COMPARISON.table()
    assert table.index.tolist() == ["1", "2", "3"]
    assert table.to_dict("list") == {
        "cosine_spearman": [0.125, 0.25, 0.375],
        "low": [0.1] * 3,
        "high": [0.9] * 3,
        "better": [0, 0, 2],
        "worse": [1, 1, 0],
    }


def test_a_comparison_is_printed_with_its_task() -> None:
    assert str(COMPARISON).startswith(
        "model, t: STS, 9 items, 2.0 seconds\n\n|  | cosine_spearman |"
    )


def test_intervals_may_be_unknown() -> None:
    result = replace(make_result("t", "1"), interval=None)
    assert Comparison("t", [result], ()).table()["low"].isna().all()


def test_the_papers_metric_can_be_compared(base_model: SentenceTransformer) -> None:
    (result,) = compare(
        base_model,
        PAIRS,
        [PLAIN],
        metric="paper",
    ).results
    assert (result.metric, result.score) == ("cosine_pearson", result.scores["cosine_pearson"])


def test_dropped_rows_are_named(base_model: SentenceTransformer) -> None:
    labels = dict(zip(map(str, range(10)), range(10), strict=True))
    comparison = compare(base_model, PAIRS, [PLAIN], labels=labels)
    assert comparison.task == "table: STS, 10 items, 2 dropped (its label)"
    assert comparison.results[0].model == encoding.name_of(base_model)


def test_without_draws_there_is_no_interval(base_model: SentenceTransformer) -> None:
    (result,) = compare(
        base_model,
        PAIRS,
        [PLAIN],
        draws=0,
    ).results
    assert (result.metric, result.interval) == ("cosine_spearman", None)


def test_prompts_change_scores(base_model: SentenceTransformer) -> None:
    (plain,) = compare(
        base_model,
        PAIRS,
        [PLAIN],
        draws=0,
    ).results
    (prompted,) = compare(
        base_model,
        PAIRS,
        [PLAIN],
        draws=0,
        prompts=PROMPTS,
    ).results
    assert plain.score != prompted.score


def test_prompts_for_other_tasks_are_told_and_not_recorded(
    base_model: SentenceTransformer, caplog: pytest.LogCaptureFixture
) -> None:
    (plain,) = compare(base_model, PAIRS, [PLAIN], draws=0).results
    (result,) = compare(base_model, PAIRS, [PLAIN], draws=0, prompts={"STSB": "Find: "}).results
    assert (result.score, result.prompts) == (plain.score, "none")
    assert "no instruction for 'table', but for STSB" in caplog.text
    (result,) = evaluate(base_model, read_task(PAIRS), prompts={"STSB": "Find: "})
    assert result.prompts == "none"


def test_a_curve_has_the_scores_of_compare(base_model: SentenceTransformer, tmp_path: Path) -> None:
    frame = curve(
        base_model,
        PAIRS,
        [PLAIN, ECHO],
        "layer",
        [2, 4],
        figure=tmp_path / "f.png",
    )
    (result,) = compare(base_model, PAIRS, [f"{PLAIN},layer=4"]).results
    assert frame.shape == (2, 2)
    assert frame.loc[PLAIN, "4"] == pytest.approx(result.score)
    assert (tmp_path / "f.png").stat().st_size > 0


def test_a_curve_is_drawn_as_a_line_a_method() -> None:
    frame = pd.DataFrame({"2": [0.1, 0.2], "4": [0.3, 0.4]}, index=[PLAIN, ECHO])
    (panel,) = draw_curve(frame, "layer", "score").axes
    assert len(panel.lines) == 2


@pytest.mark.parametrize(
    ("methods", "option", "values", "is_missing"),
    [
        (
            [
                PLAIN,
                ECHO,
            ],
            "repeats",
            [2, 3],
            [[True, True], [False, False]],
        ),
        (
            [
                PLAIN,
                "prompteol",
            ],
            "max_seq_length",
            [4, 40],
            [[False, False], [True, False]],
        ),
    ],
    ids=["repeats", "budgets"],
)
def test_values_that_a_method_cannot_have_are_missing(
    base_model: SentenceTransformer,
    methods: list[str],
    option: str,
    values: list[int],
    is_missing: list[list[bool]],
) -> None:
    frame = curve(base_model, PAIRS, methods, option, values)
    assert frame.isna().to_numpy().tolist() == is_missing


@pytest.mark.parametrize("option", ["repeats", "depth"])
def test_options_that_no_method_takes_are_refused(
    base_model: SentenceTransformer, option: str
) -> None:
    with pytest.raises(ValueError, match=option):
        curve(base_model, PAIRS, [PLAIN], option, [2])


def test_every_method_says_why_it_takes_no_value(base_model: SentenceTransformer) -> None:
    masked = "nosink:setting=mask0-bidir,k=1"
    with pytest.raises(ValueError, match=f"{PLAIN}: .* need setting.* {masked}: k=99"):
        curve(base_model, PAIRS, [PLAIN, masked], "k", [99])


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("repeats", [2, "x"]),
        ("layer", [2, 99]),
        ("repeats", []),
        ("repeats", [2, ""]),
    ],
    ids=["word", "too deep", "none", "empty"],
)
def test_values_that_no_method_takes_are_refused(
    base_model: SentenceTransformer, option: str, values: list[Any]
) -> None:
    with pytest.raises(ValueError, match=f"{option}.*--vary"):
        curve(base_model, PAIRS, ["echo"], option, values)


def test_repeated_values_are_a_column(base_model: SentenceTransformer) -> None:
    assert curve(
        base_model,
        PAIRS,
        ["echo"],
        "repeats",
        [2, 2],
    ).columns.tolist() == ["2"]


def test_tasks_are_found_by_their_names(
    base_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    PAIRS.to_csv(tmp_path / "p=q.csv", index=False)
    st_reba.build(base_folder, "reba").save(str(tmp_path / "model"))
    names = ["toy:S1,en", f"STS={tmp_path / 'p=q.csv'}", "p=q.csv", PAIRS]
    results = evaluate(tmp_path / "model", names, limit=11)
    assert [(result.task, result.items) for result in results] == [
        ("S1 en", 11),
        ("p=q", 11),
        ("p=q", 11),
        ("table", 11),
    ]
    assert set(map(attrgetter("method"), results)) == {"reba"}


@pytest.mark.parametrize(
    ("options", "part_of_message"),
    [
        ({"methods": []}, "methods: name one"),
        ({"metric": "accuracy"}, "metric='accuracy'"),
        ({"prompts": {"one": "Find", "other": ""}}, "prompts=.* must hold tasks and texts"),
        ({"prompts": {**PROMPTS, "document": "Find"}}, "prompts=.* document are texts with"),
    ],
    ids=["no methods", "metric", "empty prompt", "prompt without a field"],
)
def test_arguments_that_cannot_be_used_are_refused(
    base_model: SentenceTransformer, options: dict[str, Any], part_of_message: str
) -> None:
    with pytest.raises(ValueError, match=part_of_message):
        compare(base_model, PAIRS, **{"methods": [PLAIN], **options})


@pytest.mark.parametrize("option", ["out", "figure"])
def test_a_missing_folder_is_named_before_the_work(
    base_model: SentenceTransformer, option: str, tmp_path: Path
) -> None:
    path = tmp_path / "nowhere" / "f.png"
    with pytest.raises(FileNotFoundError, match=f"--{option}"):
        compare(None, PAIRS, [PLAIN], **{option: path})
    with pytest.raises(FileNotFoundError, match=f"--{option}"):
        evaluate(base_model, PAIRS[:3], **{option: path})


def test_curve_checks_its_figure_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="--figure"):
        curve(
            None,
            PAIRS,
            [PLAIN],
            "layer",
            [2],
            figure=tmp_path / "nowhere" / "f.png",
        )


@pytest.mark.parametrize("name", ["", " ", "folder", "pipe.png", "x" * 300 + ".png"])
@pytest.mark.parametrize("option", ["out", "figure"])
def test_paths_that_are_no_file_are_refused_before_the_work(
    option: str, name: str, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe.png")
    path = tmp_path / name if name.strip() else name
    with pytest.raises(ValueError, match=f"--{option}"):
        compare(None, PAIRS, [PLAIN], **{option: path})


@pytest.mark.parametrize("name", ["f", "f.what", "f.txt", "f.pgf", ".png"])
def test_a_figure_needs_a_format_that_can_be_drawn(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"End it in \.png or \.svg"):
        compare(None, PAIRS, [PLAIN], figure=tmp_path / name)


def test_a_full_disk_is_named(base_model: SentenceTransformer) -> None:
    with pytest.raises(OSError, match=r"--out.*'/dev/full' cannot be written"):
        evaluate(base_model, PAIRS, out="/dev/full")


def test_every_task_is_read_before_the_first_is_scored(
    base_model: SentenceTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        encoding,
        "encode_texts",
        lambda *arguments, **options: pytest.fail("encoded"),
    )
    with pytest.raises(ValueError, match="10 are needed"):
        evaluate(base_model, [PAIRS, PAIRS[:3]])


@pytest.mark.parametrize("seed", [-1, 1.5])
def test_a_seed_that_no_generator_takes_is_refused(
    seed: Any, base_model: SentenceTransformer
) -> None:
    with pytest.raises(ValueError, match="seed"):
        compare(None, PAIRS, [PLAIN], seed=seed)
    with pytest.raises(ValueError, match="seed"):
        evaluate(base_model, PAIRS, seed=seed)


@pytest.mark.filterwarnings("error")
def test_the_smallest_scores_are_compared_without_a_warning(
    base_model: SentenceTransformer,
) -> None:
    smallest_scores = PAIRS.assign(score=PAIRS["score"] * 5e-324)
    (smallest,) = compare(base_model, smallest_scores, [PLAIN]).results
    (usual,) = compare(base_model, PAIRS, [PLAIN]).results
    assert smallest.scores == pytest.approx(usual.scores)


@pytest.mark.parametrize("function", [compare, evaluate])
def test_a_draw_without_a_seed_is_that_of_0(function: Callable[..., Any]) -> None:
    assert signature(function).parameters["seed"].default == 0


@pytest.mark.parametrize(
    ("numbers", "value"), [(slice(None), 0), (slice(None), np.nan), (5, np.nan)]
)
def test_unusable_vectors_are_named(numbers: slice | int, value: float) -> None:
    task = read_task(PAIRS)
    vectors = np.eye(len(task.texts), dtype=np.float32)
    assert encoding.compute_evidence(task, vectors, "m").shape == (12, 2)
    vectors[3, numbers] = value
    with pytest.raises(ValueError, match=task.texts[3]):
        encoding.compute_evidence(task, vectors, "m")


def test_markdown_escapes_bars_and_line_breaks() -> None:
    frame = pd.DataFrame(
        {
            "a|b": [0.12345, float("nan")],
            "c": [3, None],
        },
        index=["x\ny", "z"],
    )
    lines = markdown(frame).splitlines()
    assert lines == [
        "|  | a\\|b | c |",
        "| --- | --- | --- |",
        "| x y | 0.123 | 3.000 |",
        "| z |  |  |",
    ]
