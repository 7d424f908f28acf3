"""The papers' sets of tasks and instructions, and mteb's own runs: slow, as importing mteb takes seconds."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import st_reba
from st_reba.evaluation import Task
from st_reba.evaluation.instructions import read_instructions
from st_reba.evaluation.mteb_tasks import find_tasks, scores_of, suites
from st_reba.evaluation.run import evaluate


@pytest.mark.slow
def test_sets_name_tasks_of_mteb() -> None:
    mteb = pytest.importorskip("mteb")
    for suite in suites().values():
        for kind, names in suite["tasks"].items():
            assert {mteb.get_task(name).metadata.type for name in names} <= {kind, "Summarization"}, names
    found = find_tasks("c-mteb")
    assert len(found) == 31
    assert {named for _, named in found} == {None}
    assert {named for _, named in find_tasks("MTEB-15")} == {"nosink"}
    (sts17,) = (task for task, _ in find_tasks("MTEB-15") if task.metadata.name == "STS17")
    assert sts17.hf_subsets == ["en-en"]
    assert [task.metadata.name for task, _ in find_tasks("STSB")] == ["STSB"]
    with pytest.raises(ValueError):
        find_tasks("STSBx")


def test_instructions(tmp_path: Path) -> None:
    nosink = read_instructions("nosink")
    assert {name for names in suites()["MTEB-15"]["tasks"].values() for name in names} <= set(nosink.tasks)
    assert nosink.before("SciFact", "query", False) == f"Instruct: {nosink.tasks['SciFact']}\nQuery: "
    assert nosink.before("SciFact", "query", True) == nosink.tasks["SciFact"]
    assert nosink.before("SciFact", "document", False) is None
    assert read_instructions(nosink) is nosink
    assert read_instructions("none").tasks == read_instructions(None).tasks == {}
    own = {"tasks": {"*": {"document": "D"}}, "document": "{instruction}: "}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(own))
    found = read_instructions(tmp_path / "own.yaml")
    assert found.name == "own"
    assert [found.before("any", role, False) for role in ("document", None)] == ["D: ", None]


def test_what_is_none_of_instructions_is_refused() -> None:
    tasks = {"STS": "x"}
    for wrong in ({"tasks": tasks, "query": "no field"}, {"tasks": tasks, "passage": "{instruction}"}, {"STS": {}}):
        with pytest.raises(ValueError):
            read_instructions(wrong)
    with pytest.raises(FileNotFoundError):
        read_instructions("nowhere.yaml")


def test_instructions_are_the_prompts_while_mteb_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = st_reba.build("mini", "classical", prompts={"query": "q"})
    before, seen, model[0].model.config._name_or_path = dict(model.prompts), list[Any](), "me/it"
    task: Any = SimpleNamespace(metadata=SimpleNamespace(name="SciFact", type="Retrieval", main_score="ndcg"))
    scores = {"test": [{"ndcg": 0.25, "map": 0.5}], "dev": [{"ndcg": 0.75, "map": float("nan"), "subset": "en"}]}
    answer: Any = SimpleNamespace(task_results=[SimpleNamespace(scores=scores)], exceptions=None)
    mteb: Any = SimpleNamespace(get_task={}.pop, get_benchmark={"Mine": SimpleNamespace(tasks=[task])}.pop)
    mteb.evaluate = lambda model, *given, **options: seen.append(model.prompts) or answer
    monkeypatch.setitem(sys.modules, "mteb", mteb)
    (result,) = evaluate(model, "Mine", prompts={"SciFact": "Find."})
    wanted = ("me/it", "SciFact", "Retrieval", "ndcg", 0.5)
    assert (result.model, result.task, result.kind, result.metric, result.score) == wanted
    evaluate(model, task, prompts={"STSB": "Find."})
    told = {"SciFact": "Find.", "SciFact-query": "Find.", "SciFact-document": ""}
    assert result.scores == {"ndcg": 0.5} and seen == [{**before, **told}, before] and model.prompts == before
    task.metadata.main_score = "map"
    for wrong in (task, "STSBx", task):
        with pytest.raises(ValueError):
            evaluate(model, wrong)
        answer.task_results.clear()


WORDS = ["cat", "tiger", "lion", "dog", "wolf", "fox", "rain", "snow", "hail", "storm", "fog", "sun"]
OTHER = [f"the {word}" for word in WORDS[3:] + WORDS[:3]]
PLACES = [(n, 12 + n) for n in range(12)]


def _mteb_task(like: str, data: Any) -> Any:
    """A task of mteb's, of the type of another, with data of its own."""
    import mteb

    base = type(mteb.get_task(like))
    dataset = {**mteb.get_task("STSBenchmark").metadata.dataset, "revision": "1"}
    metadata = base.metadata.model_copy(update={"name": f"Own{like}", "dataset": dataset, "eval_splits": ["test"]})
    changes = {"samples_per_label": 99, "n_experiments": 1, "load_data": lambda self, *a, **k: None}
    task = type(f"Own{like}", (base,), {"metadata": metadata, **changes})()
    task.dataset, task.data_loaded = data, True
    return task


@pytest.fixture(scope="module")
def of_mteb() -> tuple[Any, Any]:
    pytest.importorskip("mteb")
    return st_reba.build("mini", "echo", pooling="mean"), pytest.importorskip("datasets").Dataset.from_dict


@pytest.mark.slow
def test_mteb_scores_pairs_as_we_do(of_mteb: tuple[Any, Any]) -> None:
    model, rows = of_mteb
    scores, labels = [float(n) for n in range(12)], [n % 2 for n in range(12)]
    data = rows({"sentence1": WORDS, "sentence2": OTHER, "score": scores})
    theirs = scores_of(model, _mteb_task("STSBenchmark", {"test": data}))
    items = tuple((*places, score) for places, score in zip(PLACES, scores, strict=True))
    (ours,) = evaluate(model, Task("t", "STS", (*WORDS, *OTHER), items))
    for name in ("cosine_spearman", "cosine_pearson"):
        assert theirs[name] == pytest.approx(ours.scores[name], abs=1e-4)
    data = rows({"sentence1": WORDS, "sentence2": OTHER, "labels": labels})
    theirs = scores_of(model, _mteb_task("TwitterSemEval2015", {"test": data}))
    items = tuple((*places, label) for places, label in zip(PLACES, labels, strict=True))
    (ours,) = evaluate(model, Task("t", "PairClassification", (*WORDS, *OTHER), items))
    # mteb's best accuracy leaves out the threshold above all cosines, so that it may be lower.
    assert theirs["cosine_ap"] == pytest.approx(ours.scores["cosine_ap"], abs=1e-4)


@pytest.mark.slow
def test_mteb_scores_classes_and_clusters_as_we_do(of_mteb: tuple[Any, Any]) -> None:
    model, rows = of_mteb
    labels = [int(n > 5) for n in range(12)]
    data = {"train": rows({"text": WORDS, "label": labels}), "test": rows({"text": OTHER, "label": labels[::-1]})}
    theirs = scores_of(model, _mteb_task("Banking77Classification", data))
    asked, known = (
        tuple((place[side], label) for place, label in zip(PLACES, each, strict=True))
        for side, each in ((1, labels[::-1]), (0, labels))
    )
    (ours,) = evaluate(model, Task("t", "Classification", (*WORDS, *OTHER), asked, known))
    assert theirs["accuracy"] == pytest.approx(ours.scores["accuracy"], abs=1e-4)
    assert theirs["f1"] == pytest.approx(ours.scores["f1"], abs=1e-4)
    texts, names = [*WORDS, *OTHER], [str(n // 6 % 2) for n in range(24)]
    theirs = scores_of(
        model, _mteb_task("TwentyNewsgroupsClustering", {"test": rows({"sentences": [texts], "labels": [names]})})
    )
    task = Task("t", "Clustering", tuple(texts), tuple(enumerate(names)))
    (ours,) = evaluate(model, task)
    assert theirs["v_measure"] == pytest.approx(ours.scores["v_measure, one start"], abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Retrieval", "Reranking"])
def test_mteb_scores_rankings_as_we_do(of_mteb: tuple[Any, Any], kind: str) -> None:
    model, rows = of_mteb
    grades = {n: {12 + (n * 5) % 12: 2, 12 + (n * 7 + 1) % 12: 1, 12 + (n + 3) % 12: 0} for n in range(12)}
    split = {
        "queries": rows({"id": [f"q{n}" for n in range(12)], "text": WORDS}),
        "corpus": rows({"id": [f"d{12 + n}" for n in range(12)], "title": [""] * 12, "text": OTHER}),
        "relevant_docs": {f"q{n}": {f"d{d}": grade for d, grade in each.items()} for n, each in grades.items()},
        "top_ranked": {f"q{n}": [f"d{d}" for d in each] for n, each in grades.items()} if kind == "Reranking" else None,
    }
    like = {"Retrieval": "SciFact", "Reranking": "AskUbuntuDupQuestions"}[kind]
    theirs = scores_of(model, _mteb_task(like, {"default": {"test": split}}))
    items = tuple((n, tuple(each), tuple(map(float, each.values()))) for n, each in grades.items())
    (ours,) = evaluate(model, Task("t", kind, (*WORDS, *OTHER), items, queries=12))
    for name in ("ndcg_at_10", "map_at_1000", "recall_at_10"):
        assert theirs[name] == pytest.approx(ours.scores[name], abs=2e-4), name
