"""Compare, curve and evaluate on real models."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sentence_transformers import SentenceTransformer

import st_reba
from st_reba.evaluation import encoding, readouts
from st_reba.evaluation.figures import draw_results
from st_reba.evaluation.instructions import Instructions
from st_reba.evaluation.run import Result, compare, curve, evaluate, markdown
from st_reba.evaluation.tasks import Task, read_task
from st_reba.evaluation.toy import toy_tasks
from st_reba.methods import Method

PLAIN = "classical:pooling=mean"
WORDS = ["cat", "tiger", "lion", "dog", "wolf", "fox", "rain", "snow", "hail", "storm", "fog", "sun"]
PAIRS = pd.DataFrame({"text1": WORDS, "text2": [f"the {word}" for word in WORDS[::-1]], "score": range(12)})
RANKING = pd.DataFrame([(f"q {w}", f"d {v}", int(w == v)) for w in WORDS for v in WORDS[:3] + [w]])
RANKING.columns = ["query", "document", "relevance"]


@pytest.fixture(scope="module")
def small(base: Callable[..., str]) -> str:
    return base("deep")


@pytest.fixture(scope="module")
def opened(small: str) -> SentenceTransformer:
    return readouts.opened(small)


@pytest.mark.parametrize(
    "task",
    [
        read_task(PAIRS, name="pairs"),
        read_task(RANKING, "Retrieval", name="ranking"),
        toy_tasks(["S3"], ["en"], "early", limit=12)[0],
        Task(
            "ner",
            "NER",
            ("New York", "he is"),
            ((0, ("New", "York"), ("B-LOC", "I-LOC")),) * 10,
            ((1, ("he", "is"), ("O", "O")),),
        ),
    ],
    ids=lambda task: task.name,
)
def test_compare_scores_what_evaluate_scores(small: str, opened: SentenceTransformer, task: Task) -> None:
    others = {"pairs": "reba:pooling=mean", "ranking": "nosink:setting=inter-bidir,k=2"}
    methods = [PLAIN, others.get(task.name, "prompteol")]
    found = compare(opened, task, methods)
    assert [each.method for each in found.results] == methods
    for method, result in zip(methods, found.results, strict=True):
        (alone,) = evaluate(st_reba.build(small, method), task)
        assert alone.scores == pytest.approx(result.scores, abs=1e-3)
        assert alone.interval == pytest.approx(result.interval, abs=1e-3)
        assert (alone.method, alone.items) == (method, result.items)


def test_methods_with_the_same_input_run_once(opened: SentenceTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = []
    read = readouts.read
    monkeypatch.setattr(readouts, "read", lambda *args, **options: passes.append(args) or read(*args, **options))
    compare(opened, PAIRS, ["classical", PLAIN, "echo", "echo:pooling=mean", "reba", "reba:layer=3"], draws=0)
    assert len(passes) == 2


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


def test_instructions_stand_before_queries(small: str, opened: SentenceTransformer) -> None:
    task = read_task(RANKING, "Retrieval", name="mine")
    prompts = {"mine": "Find: "}
    (told,) = compare(opened, task, [PLAIN], prompts=prompts).results
    (alone,) = evaluate(st_reba.build(small, PLAIN), task, prompts=prompts)
    (without,) = compare(opened, task, [PLAIN]).results
    assert told.prompts == "own"
    assert told.scores == pytest.approx(alone.scores, abs=1e-3)
    assert told.scores != without.scores


def test_each_result_is_a_line_and_the_figure_is_drawn(small: str, opened: SentenceTransformer, tmp_path: Path) -> None:
    out = tmp_path / "results.jsonl"
    found = compare(opened, PAIRS, [PLAIN, "echo"], out=out, figure=tmp_path / "c.png", name="a $ name_")
    tasks = [read_task(PAIRS, name=name) for name in "bc"]
    evaluate(st_reba.build(small, "reba"), tasks, out=out, figure=tmp_path / "e.svg")
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    named = [(each["task"], each["method"]) for each in lines[1:]]
    assert named == [("a $ name_", "echo"), ("b", "reba"), ("c", "reba")]
    first = Result(**{**lines[0], "interval": tuple(lines[0]["interval"])})
    assert first == found.results[0]
    bars = draw_results(found.results).axes[0]
    assert [each.get_text() for each in bars.get_yticklabels()] == ["echo", PLAIN] and len(bars.lines) == 2
    assert bars.figure.get_size_inches().tolist() == pytest.approx([6.0, 1.64])
    assert (tmp_path / "c.png").read_bytes()[:4] == b"\x89PNG"
    assert "</svg>" in (tmp_path / "e.svg").read_text()


def test_the_table_counts_significant_differences(opened: SentenceTransformer) -> None:
    table = pd.DataFrame({"text1": WORDS * 10, "text2": (WORDS[::-1] + WORDS) * 5, "score": ([0] * 12 + [1] * 12) * 5})
    table["text1"] = [f"{word} {n}" for n, word in enumerate(table["text1"])]
    found = compare(opened, table, [PLAIN, "prompteol", "classical"])
    rows = found.table()
    certain = [each for each in found.differences if each.significant]
    assert rows["better"].sum() == rows["worse"].sum() == len(certain) > 0
    best = max(found.results, key=lambda each: each.score).method
    assert rows.loc[best, "better"] == sum(best in (each.first, each.second) for each in certain)
    assert rows.loc[best, "worse"] == 0


def test_dropped_rows_are_told(opened: SentenceTransformer) -> None:
    labels = {str(number): number for number in range(10)}
    assert "table: STS, 10 items, 2 dropped (its label)" in str(compare(opened, PAIRS, [PLAIN], labels=labels))


def test_metrics(opened: SentenceTransformer) -> None:
    (found,) = compare(opened, PAIRS, [PLAIN], metric="paper").results
    assert (found.metric, found.score) == ("cosine_pearson", found.scores["cosine_pearson"])
    (found,) = compare(opened, PAIRS, [PLAIN], draws=0).results
    assert (found.metric, found.interval) == ("cosine_spearman", None)


def test_curves(opened: SentenceTransformer, tmp_path: Path) -> None:
    frame = curve(opened, PAIRS, [PLAIN, "echo:pooling=mean"], "layer", [2, 4], figure=tmp_path / "f.png")
    (found,) = compare(opened, PAIRS, [f"{PLAIN},layer=4"]).results
    assert frame.loc[PLAIN, "4"] == pytest.approx(found.score)
    assert frame.shape == (2, 2)
    assert (tmp_path / "f.png").stat().st_size > 0
    frame = curve(opened, PAIRS, [PLAIN, "echo:pooling=mean"], "repeats", [2, 3])
    assert frame.isna().all(axis=1).tolist() == [True, False]
    frame = curve(opened, PAIRS, [PLAIN, "prompteol"], "max_seq_length", [4, 40])
    assert frame.isna().to_numpy().tolist() == [[False, False], [True, False]]


def test_tasks_by_their_names(small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    PAIRS.to_csv(tmp_path / "p.csv", index=False)
    model = st_reba.build(small, "reba")
    model.save(str(tmp_path / "model"))
    names = ["toy:S1,en", f"STS={tmp_path / 'p.csv'}", "p.csv", PAIRS]
    found = evaluate(tmp_path / "model", names, limit=11)
    assert [(each.task, each.items) for each in found] == [("S1 en", 11), ("p", 11), ("p", 11), ("table", 11)]
    assert {each.method for each in found} == {"reba"}


@pytest.mark.slow
def test_the_estimate_of_a_slow_model_holds(opened: SentenceTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a third of the work on, the time that is left is within a factor of 1.5."""
    texts = [" ".join(WORDS[: 1 + n % 12]) + f" {n}" for n in range(240)]
    task = read_task(pd.DataFrame({"text1": texts, "text2": texts[::-1], "score": range(240)}))
    seen: list[tuple[float, float]] = []
    bar_of = encoding.progress_bar

    def slow(total: int, show: bool | None) -> Any:
        bar = bar_of(total, True)

        def update(positions: int, own: Any = bar.update) -> None:
            time.sleep(positions / 4000)
            own(positions)
            about = bar.format_dict
            seen.append((time.perf_counter(), (about["total"] - about["n"]) * about["elapsed"] / about["n"]))

        bar.update = update
        return bar

    monkeypatch.setattr(encoding, "progress_bar", slow)
    compare(opened, task, [PLAIN, "echo", "prompteol"], draws=0, batch_tokens=512)
    end = seen[-1][0]
    checked = [(at, left) for at, left in seen if (at - seen[0][0]) > (end - seen[0][0]) / 3 and end - at > 0.2]
    assert len(checked) > 5
    assert all((end - at) / 1.5 < left < (end - at) * 1.5 for at, left in checked)


@pytest.mark.parametrize(
    ("methods", "options"), [([], {}), (["eco"], {}), ([PLAIN], {"metric": "accuracy"}), ([PLAIN], {"kinds": "STS"})]
)
def test_refused(opened: SentenceTransformer, methods: list[str], options: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        compare(opened, PAIRS, methods, **options)


def test_unusable_vectors_are_named(opened: SentenceTransformer) -> None:
    task = read_task(PAIRS)
    vectors = np.ones((len(task.texts), 2), np.float32)
    assert encoding.usable(vectors, task, "m") is vectors
    for value in (0, np.nan):
        bad = vectors.copy()
        bad[3] = value
        with pytest.raises(ValueError, match=task.texts[3]):
            encoding.usable(bad, task, "m")
    with pytest.raises(ValueError):
        curve(opened, PAIRS, [PLAIN], "repeats", [2])


def test_markdown() -> None:
    frame = pd.DataFrame({"a|b": [0.12345, float("nan")], "c": [3, None]}, index=["x\ny", "z"])
    assert markdown(frame).splitlines() == [
        "|  | a\\|b | c |", "| --- | --- | --- |", "| x y | 0.123 | 3.000 |", "| z |  |  |"
    ]  # fmt: skip
