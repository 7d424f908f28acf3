"""Compare, curve and evaluate on real models."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sentence_transformers import SentenceTransformer

import st_reba
from st_reba.evaluation import Task, encoding, read_task, readouts
from st_reba.evaluation.figures import draw_curve, draw_results
from st_reba.evaluation.instructions import Instructions
from st_reba.evaluation.results import Comparison, Result, markdown
from st_reba.evaluation.run import compare, curve, evaluate
from st_reba.evaluation.statistics import Difference
from st_reba.evaluation.toy import toy_tasks
from st_reba.methods import Method

PLAIN = "classical:pooling=mean"
WORDS = ["cat", "tiger", "lion", "dog", "wolf", "fox", "rain", "snow", "hail", "storm", "fog", "sun"]
PAIRS = pd.DataFrame({"text1": WORDS, "text2": [f"the {word}" for word in WORDS[::-1]], "score": range(12)})
RANKING = pd.DataFrame([(f"q {w}", f"d {v}", int(w == v)) for w in WORDS for v in WORDS[:3] + [w]])
RANKING.columns = ["query", "document", "relevance"]
PROMPTS = {"tasks": {"*": "Find: "}, "query": "{instruction}", "document": "{instruction}"}
WRONG = ({"one": "Find", "other": ""}, {**PROMPTS, "document": "Find"})
TAGGED = ((0, ("New", "York"), ("B-LOC", "I-LOC")), (1, ("he", "is"), ("O", "O")))


@pytest.fixture(scope="module")
def small(base: Callable[..., str]) -> str:
    return base("deep")


@pytest.fixture(scope="module")
def opened(small: str) -> SentenceTransformer:
    return readouts.load_base(small)


@pytest.mark.parametrize(
    "task",
    [
        read_task(PAIRS, name="pairs"),
        read_task(RANKING, "Retrieval", name="ranking"),
        toy_tasks(["S3"], ["en"], "early", limit=12)[0],
        Task("ner", "NER", ("New York", "he is"), TAGGED[:1] * 10, TAGGED[1:]),
    ],
    ids=lambda task: task.name,
)
def test_compare_scores_what_evaluate_scores(small: str, opened: SentenceTransformer, task: Task) -> None:
    others = {"pairs": "reba:pooling=mean", "ranking": "nosink:setting=inter-bidir,k=2"}
    methods = [PLAIN, others.get(task.name, "prompteol")]
    found = compare(opened, task, methods, prompts=PROMPTS)
    assert [each.method for each in found.results] == methods
    for method, result in zip(methods, found.results, strict=True):
        (alone,) = evaluate(st_reba.build(small, method), task, prompts=PROMPTS)
        assert alone.scores == pytest.approx(result.scores, abs=1e-3)
        assert alone.interval == pytest.approx(result.interval, abs=1e-3)
        assert (alone.method, alone.items, alone.prompts, result.prompts) == (method, result.items, "own", "own")


@pytest.mark.bars
def test_methods_with_the_same_input_run_once(opened: SentenceTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: Any = []
    bars: Any = []
    read, bar_of = readouts.run_pass, encoding.progress_bar
    monkeypatch.setattr(readouts, "run_pass", lambda *args, **options: passes.append(args) or read(*args, **options))
    monkeypatch.setattr(encoding, "progress_bar", lambda *given: bars.append(bar_of(*given)) or bars[-1])
    methods = ["classical", PLAIN, "echo", "echo:pooling=mean", "reba", "reba:layer=3"]
    compare(opened, PAIRS, methods, draws=0, show_progress_bar=True)
    assert len(passes) == 2
    # The time that is left is right: the bar counts what its total does.
    assert [each.n for each in bars] == [each.total for each in bars] and bars[0].total > 0


def test_templates_of_queries_and_documents(small: str, opened: SentenceTransformer) -> None:
    method = Method("echo", pooling="mean", template="echo-instruct")
    task = read_task(RANKING, "Retrieval")
    # One of the two methods has a field for the instruction, the other takes it as text.
    told = Instructions("own", {task.name: "Find"}, query="Instruct: {instruction}\n")
    vectors = encoding.shared_vectors(opened, task, [Method.parse(PLAIN), method], told, 4096, False)
    query, document = task.texts[0], task.texts[task.queries]
    for each, prompt in ((method, "Find"), (Method.parse(PLAIN), "Instruct: Find\n")):
        model = st_reba.build(small, each)
        assert np.abs(vectors[each][0] - model.encode_query(query, prompt=prompt)).max() < 1e-5
        assert np.abs(vectors[each][task.queries] - model.encode_document(document)).max() < 1e-5


@pytest.mark.filterwarnings("error:Glyph")
def test_each_result_is_a_line_and_the_figure_is_drawn(small: str, opened: SentenceTransformer, tmp_path: Path) -> None:
    out = tmp_path / "results.jsonl"
    found = compare(opened, PAIRS, [PLAIN, "echo"], out=out, figure=tmp_path / "c.png", name="$_$ 名")
    tasks = [read_task(PAIRS, name=name) for name in "bc"]
    alone = evaluate(st_reba.build(small, "reba"), tasks, out=out, figure=tmp_path / "e.svg")
    text = out.read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    assert [(each["task"], each["method"]) for each in lines[1:]] == [("$_$ 名", "echo"), ("b", "reba"), ("c", "reba")]
    assert "名" in text and all(each["seconds"] < time.perf_counter() for each in lines)
    assert Result(**{**lines[0], "interval": tuple(lines[0]["interval"])}) == found.results[0]
    figure = draw_results([*found.results, *alone])
    bars, *others = figure.axes
    assert (bars.get_title(), bars.get_xlabel(), len(others)) == ("$_$ 名", "cosine_spearman", 2)
    assert [each.get_text() for each in bars.get_yticklabels()] == ["echo", PLAIN] and len(bars.lines) == 2
    assert figure.get_size_inches().tolist() == pytest.approx([11.6, 1.64])
    assert (tmp_path / "c.png").read_bytes()[:4] == b"\x89PNG"
    assert "</svg>" in (tmp_path / "e.svg").read_text()


def test_the_table_counts_significant_differences() -> None:
    results = [Result("t", "STS", f"model {n}", n, "ndcg", int(n) / 8, (0.1, int(n)), seconds=2) for n in "123"]
    apart = [Difference("1", "2", -1, -2, 0), Difference("1", "3", -1, -2, -0.1), Difference("3", "2", 0.5, 0.1, 1)]
    found = Comparison("t: STS, 9 items", results, apart)
    rows = {"ndcg": [0.125, 0.25, 0.375], "low": [0.1] * 3, "high": [1, 2, 3], "better": [0, 0, 2], "worse": [1, 1, 0]}
    assert found.table().to_dict("list") == rows and [*found.table().index] == ["1", "2", "3"]
    assert str(found).startswith("model 1, t: STS, 9 items, 2.0 seconds\n\n|  | ndcg |")
    assert Comparison("t", [replace(results[0], interval=None)], ()).table()["low"].isna().all()


def test_metrics_and_dropped_rows(opened: SentenceTransformer) -> None:
    labels = {str(number): number for number in range(10)}
    found = compare(opened, PAIRS, [PLAIN], metric="paper", labels=labels)
    (result,) = found.results
    assert (found.task, result.model) == ("table: STS, 10 items, 2 dropped (its label)", encoding.name_of(opened))
    assert (result.metric, result.score) == ("cosine_pearson", result.scores["cosine_pearson"])
    (result,) = compare(opened, PAIRS, [PLAIN], draws=0).results
    assert (result.metric, result.interval) == ("cosine_spearman", None)
    assert result.score != compare(opened, PAIRS, [PLAIN], draws=0, prompts=PROMPTS).results[0].score


def test_curves(opened: SentenceTransformer, tmp_path: Path) -> None:
    frame = curve(opened, PAIRS, [PLAIN, "echo:pooling=mean"], "layer", [2, 4], figure=tmp_path / "f.png")
    (found,) = compare(opened, PAIRS, [f"{PLAIN},layer=4"]).results
    assert frame.loc[PLAIN, "4"] == pytest.approx(found.score)
    (lines,) = draw_curve(frame, "layer", "score").axes
    assert (frame.shape, len(lines.lines)) == ((2, 2), 2)
    assert (tmp_path / "f.png").stat().st_size > 0
    frame = curve(opened, PAIRS, [PLAIN, "echo:pooling=mean"], "repeats", [2, 3])
    assert frame.isna().all(axis=1).tolist() == [True, False]
    frame = curve(opened, PAIRS, [PLAIN, "prompteol"], "max_seq_length", [4, 40])
    assert frame.isna().to_numpy().tolist() == [[False, False], [True, False]]
    for option in ("repeats", "depth"):
        with pytest.raises(ValueError, match=option):
            curve(opened, PAIRS, [PLAIN], option, [2])


def test_tasks_by_their_names(small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    PAIRS.to_csv(tmp_path / "p=q.csv", index=False)
    model = st_reba.build(small, "reba")
    model.save(str(tmp_path / "model"))
    names = ["toy:S1,en", f"STS={tmp_path / 'p=q.csv'}", "p=q.csv", PAIRS]
    found = evaluate(tmp_path / "model", names, limit=11)
    assert [(each.task, each.items) for each in found] == [("S1 en", 11), ("p=q", 11), ("p=q", 11), ("table", 11)]
    assert {each.method for each in found} == {"reba"}


@pytest.mark.parametrize("options", [{"methods": []}, {"metric": "accuracy"}, *({"prompts": each} for each in WRONG)])
def test_refused(opened: SentenceTransformer, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        compare(opened, PAIRS, **{"methods": [PLAIN], **options})


def test_what_cannot_be_written_is_told_before_the_work(opened: SentenceTransformer, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere" / "f.png"
    for call in (
        lambda: compare(None, PAIRS, [PLAIN], out=nowhere),
        lambda: curve(opened, PAIRS[:3], [PLAIN], "layer", [2], figure=nowhere),
        lambda: evaluate(opened, PAIRS[:3], figure=nowhere),
    ):
        with pytest.raises(FileNotFoundError):
            call()
    with pytest.raises(ValueError, match="what"):
        evaluate(opened, PAIRS[:3], figure=tmp_path / "f.what")


@pytest.mark.parametrize("name", ["", " ", "folder", "pipe.png", "x" * 300 + ".png"])
@pytest.mark.parametrize("option", ["out", "figure"])
def test_what_is_no_file_to_write_is_refused_before_the_work(option: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe.png")
    path = tmp_path / name if name.strip() else name
    with pytest.raises(ValueError, match=f"--{option}"):
        compare(None, PAIRS, [PLAIN], **{option: path})


@pytest.mark.parametrize("name", ["f", "f.what", "f.txt", "f.pgf", ".png"])
def test_a_figure_needs_a_format_that_can_be_drawn(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"End it in \.png or \.svg"):
        compare(None, PAIRS, [PLAIN], figure=tmp_path / name)


def test_a_full_disk_is_named(opened: SentenceTransformer) -> None:
    with pytest.raises(OSError, match=r"--out.*'/dev/full' cannot be written"):
        evaluate(opened, PAIRS, out="/dev/full")


def test_a_value_that_no_method_takes_is_refused(opened: SentenceTransformer) -> None:
    for option, values in (("repeats", [2, "x"]), ("layer", [2, 99]), ("repeats", []), ("repeats", [2, ""])):
        with pytest.raises(ValueError, match=f"{option}.*--vary"):
            curve(opened, PAIRS, ["echo"], option, values)
    assert list(curve(opened, PAIRS, ["echo"], "repeats", [2, 2]).columns) == ["2"]


def test_every_task_is_read_before_the_first_is_scored(
    opened: SentenceTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "encode_texts", lambda *args, **kwargs: pytest.fail("encoded"))
    with pytest.raises(ValueError, match="10 are needed"):
        evaluate(opened, [PAIRS, PAIRS[:3]])


@pytest.mark.parametrize("seed", [-1, 1.5])
def test_a_seed_that_no_generator_takes_is_refused(seed: Any, opened: SentenceTransformer) -> None:
    for call in (lambda: compare(None, PAIRS, [PLAIN], seed=seed), lambda: evaluate(opened, PAIRS, seed=seed)):
        with pytest.raises(ValueError, match="seed"):
            call()


@pytest.mark.filterwarnings("error")
def test_the_smallest_scores_are_compared_without_a_warning(opened: SentenceTransformer) -> None:
    tiny = PAIRS.assign(score=PAIRS["score"] * 5e-324)
    (result,), (usual,) = (compare(opened, table, [PLAIN]).results for table in (tiny, PAIRS))
    assert result.scores == pytest.approx(usual.scores)


def test_a_draw_without_a_seed_is_that_of_0() -> None:
    assert signature(compare).parameters["seed"].default == signature(evaluate).parameters["seed"].default == 0


def test_unusable_vectors_are_named(opened: SentenceTransformer) -> None:
    task = read_task(PAIRS)
    vectors = np.eye(len(task.texts), dtype=np.float32)
    encoding.compute_evidence(task, vectors, "m")
    for value in (0, np.nan):
        bad = vectors.copy()
        bad[3] = value
        with pytest.raises(ValueError, match=task.texts[3]):
            encoding.compute_evidence(task, bad, "m")


def test_markdown() -> None:
    frame = pd.DataFrame({"a|b": [0.12345, float("nan")], "c": [3, None]}, index=["x\ny", "z"])
    assert markdown(frame).splitlines() == [
        "|  | a\\|b | c |", "| --- | --- | --- |", "| x y | 0.123 | 3.000 |", "| z |  |  |"
    ]  # fmt: skip
