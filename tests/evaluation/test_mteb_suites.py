"""The papers' sets of tasks and instructions: every name is one of mteb's, and files of one's own are read strictly."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mteb_tasks import make_task

from st_reba.evaluation.benchmark import Prompts, read_prompts, read_tasks, suites
from st_reba.evaluation.benchmark.metrics import REBA, paper_metric, read_scores
from st_reba.evaluation.benchmark.suites import fingerprint, parts


@pytest.mark.parametrize("name", list(suites()))
def test_suites_are_known_to_mteb(name: str) -> None:
    suite = suites()[name]
    assert len(set(suite.names)) == len(suite.names)
    assert set(suite.splits) | set(suite.subsets) <= set(suite.names)
    kinds = {task: kind for kind, tasks in suite.tasks.items() for task in tasks}
    for chosen in read_tasks(name.lower()):
        assert chosen.task.metadata.type == kinds.pop(chosen.name)
        assert chosen.prompts == suite.prompts
        assert len(chosen.task.hf_subsets) == 1
    assert not kinds


@pytest.mark.parametrize(("name", "theirs"), [("C-MTEB", "MTEB(cmn, v1)"), ("MTEB-56", "MTEB(eng, v1)")])
def test_suites_of_mteb_are_its_own(name: str, theirs: str) -> None:
    import mteb

    def told(tasks: Any) -> dict[str, Any]:
        return {task.metadata.name: (set(task.eval_splits), set(task.hf_subsets)) for task in tasks}

    assert told(chosen.task for chosen in read_tasks(name)) == told(mteb.get_benchmark(theirs).tasks)
    assert [chosen.name for chosen in read_tasks(theirs)] == [
        task.metadata.name for task in mteb.get_benchmark(theirs).tasks
    ]


def test_english_suites_agree_on_splits() -> None:
    whole = {chosen.name: fingerprint(chosen.task) for chosen in read_tasks("MTEB-56")}
    for name in ("MTEB-15", "MTEB-MINI"):
        assert all(fingerprint(chosen.task) == whole[chosen.name] for chosen in read_tasks(name))


@pytest.mark.parametrize("name", ["nosink", "echo"])
def test_prompts_name_tasks_of_mteb(name: str) -> None:
    prompts = read_prompts(name)
    names = {part.metadata.name for chosen in read_tasks("MTEB-56") for part in parts(chosen.task)}
    assert set(prompts.tasks) <= names
    assert "{instruction}" in prompts.query and "{" not in prompts.written("Do it.")
    if name == "echo":
        assert set(prompts.tasks) == names
        assert prompts.instruction("SummEval") == "Given a news summary, retrieve other semantically similar summaries"
    else:
        assert set(suites()["MTEB-15"].names) <= set(prompts.tasks)
        assert prompts.written(prompts.instruction("ArguAna") or "") == (
            "Instruct: Given a claim, find documents that refute the claim.\nQuery: "
        )
        assert prompts.instruction("ArguAna", "document") is None


def test_prompts_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("STSB: 相似吗？\nArguAna: {query: Ask., document: Answer.}\n", encoding="utf-8")
    prompts = read_prompts(str(path))
    assert prompts.name.startswith("mine-") and prompts.written("a{b}") == "a{b}"
    assert prompts.instruction("STSB") == "相似吗？" and prompts.instruction("ArguAna", "document") == "Answer."
    assert prompts.of(["BQ"]) == {} and set(prompts.of(["BQ", "STSB"])["tasks"]) == {"STSB"}
    path.write_text("STSB: another\n", encoding="utf-8")
    assert read_prompts(str(path)).name != prompts.name
    for text, message in (
        ("", "holds no tasks"),
        ("- a\n", "holds no tasks"),
        ("STSB: 5\n", "must be a text"),
        ("STSB: {question: a}\n", "must be a text"),
        ("STSB: ''\n", "must be a text"),
        ("tasks: {STSB: a}\nform: b\n", "'form' is not known"),
        ("tasks: {STSB: a}\nquery: b\n", "with {instruction} in it"),
        ("STSB: [\n", "not a YAML file"),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=message.replace("{", r"\{")):
            read_prompts(str(path))
    with pytest.raises(FileNotFoundError, match="neither one of"):
        read_prompts("nosnik")
    assert read_prompts("none") == Prompts()


def test_tasks_that_are_refused() -> None:
    for words, message in (
        (["STSBB"], "like it are.*'STSB'"),
        ([], "name one at least"),
        ([5], "neither a name nor"),
        (["CIFAR10"], "not of text alone"),
        ([make_task("STS"), make_task("STS", seed=1)], "stands twice"),
        (["STS17", "MTEB-MINI"], "'STS17' stands twice"),
    ):
        with pytest.raises(ValueError, match=message):
            read_tasks(words)
    unnamed = make_task("STS")
    unnamed.metadata = unnamed.metadata.model_copy(update={"dataset": {"path": "own", "revision": "NA"}})
    with pytest.raises(ValueError, match="revision='NA'"):
        read_tasks([unnamed])
    assert [chosen.name for chosen in read_tasks(["STSB", "STSB", make_task("STS")])] == ["STSB", "own-STS"]


def test_a_fingerprint_holds_what_decides_scores() -> None:
    plain = fingerprint(make_task("Classification"))
    assert fingerprint(make_task("Classification")) == plain
    for other in (
        make_task("Classification", seed=1),
        make_task("Classification", "other"),
        make_task("Classification", n_experiments=3),
        make_task("Classification").filter_eval_splits(["train"]),
    ):
        assert fingerprint(other) != plain


def test_scores_are_averaged_as_mteb_averages() -> None:
    from mteb.results import TaskResult

    task = make_task("STS")
    task._eval_splits, task.hf_subsets = ["a", "b"], ["x", "y"]
    row = {"cosine_spearman": 0.5, "other": 1, "text": "no", "languages": ["eng-Latn"], "mteb_version": "2"}
    rows = {
        "a": [
            {**row, "hf_subset": "x", "main_score": 0.5},
            {**row, "hf_subset": "y", "main_score": 0.2, "cosine_spearman": 0.2},
        ],
        "b": [{**row, "hf_subset": "x", "main_score": 0.9, "cosine_spearman": 0.9, "other": float("nan")}],
    }
    found = TaskResult(dataset_revision="1", task_name="own", mteb_version="2.26", scores=rows, evaluation_time=1.0)
    scores = read_scores(task, found)
    assert scores == {"cosine_spearman": pytest.approx(found.get_score())}
    # What mteb kept for other splits or subsets does not count.
    task._eval_splits, task.hf_subsets = ["a"], ["y"]
    assert read_scores(task, found) == {"cosine_spearman": 0.2, "other": 1}
    rows["a"][1]["cosine_spearman"] = float("nan")
    with pytest.raises(ValueError, match="no finite number"):
        read_scores(task, SimpleNamespace(scores=rows))


def test_whose_metric_is_the_papers() -> None:
    for kind, metric in REBA.items():
        task = make_task(kind)
        wanted = None if metric == task.metadata.main_score else metric
        assert paper_metric(task, {metric: 0.5}) == wanted
        assert paper_metric(task, {}) is None
    names = {chosen.name: chosen.task for chosen in read_tasks(["C-MTEB", "MTEB-15"])}
    everything = dict.fromkeys(REBA.values(), 0.5)
    assert paper_metric(names["STSB"], everything) == "cosine_pearson"
    assert paper_metric(names["Ocnli"], everything) == "cosine_accuracy"
    assert paper_metric(names["T2Retrieval"], everything) == "recall_at_1000"
    assert paper_metric(names["STSBenchmark"], everything) is None
