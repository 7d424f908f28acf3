"""Runs through mteb: metrics by their definitions, results that are found again, and failures that lose nothing."""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from marks import slow_but
from mteb_tasks import CLASSES, make_data, make_task, texts
from scipy.stats import pearsonr, spearmanr
from sklearn.cluster import MiniBatchKMeans
from sklearn.linear_model import LogisticRegression

import st_reba
from st_reba.cli.evaluate.mteb import add_mteb
from st_reba.evaluation.benchmark import TasksFailed, evaluate_mteb
from st_reba.evaluation.benchmark.data import one_line
from st_reba.evaluation.benchmark.encoder import Encoder
from st_reba.evaluation.methods import Base, Limit, Method, read_methods
from st_reba.evaluation.results import Results

MINI = Base("mini")
SEED = 42


def run(out: Path, tasks: Any, methods: str = "classical", **options: Any) -> Any:
    return evaluate_mteb(MINI, read_methods(methods), tasks, Results(out), **{"show_progress_bar": False, **options})


@pytest.fixture(scope="module")
def model() -> Any:
    return st_reba.build("mini", "classical")


def cosines(model: Any, rows: Any) -> Any:
    first, second = (model.encode(list(rows[name])) for name in ("sentence1", "sentence2"))
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return (first * second).sum(axis=1) / norms


def v_measure(labels: list[int], clusters: list[int]) -> float:
    def entropy(values: Any) -> float:
        counts = Counter(values)
        return -sum(count / len(labels) * math.log(count / len(labels)) for count in counts.values())

    both = entropy(list(zip(labels, clusters, strict=True)))
    homogeneity = 1 - (both - entropy(clusters)) / entropy(labels)
    completeness = 1 - (both - entropy(labels)) / entropy(clusters)
    return 2 * homogeneity * completeness / (homogeneity + completeness)


def wanted(kind: str, model: Any, data: Any) -> dict[str, float]:
    """The metrics of a kind by their definitions."""
    if kind == "STS":
        rows = data["test"]
        found, scores = cosines(model, rows), list(rows["score"])
        return {"cosine_pearson": pearsonr(scores, found)[0], "cosine_spearman": spearmanr(scores, found)[0]}
    if kind == "PairClassification":
        rows = data["test"]
        found, labels = cosines(model, rows), np.array(rows["labels"])
        thresholds = [*found, 2.0]
        return {"cosine_accuracy": max(((found >= bound) == labels).mean() for bound in thresholds)}
    if kind == "Classification":
        train, test = data["train"], data["test"]
        labels, order, scores = list(train["label"]), list(range(len(train))), []
        vectors = model.encode(list(train["text"]))
        for _ in range(10):
            np.random.RandomState(SEED).shuffle(order)
            drawn = [index for label in (0, 1) for index in [i for i in order if labels[i] == label][:8]]
            drawn.sort(key=order.index)
            classifier = LogisticRegression(max_iter=100, random_state=SEED)
            classifier.fit(vectors[drawn], [labels[index] for index in drawn])
            scores.append((classifier.predict(model.encode(list(test["text"]))) == np.array(test["label"])).mean())
        return {"accuracy": float(np.mean(scores))}
    if kind == "Clustering":
        found = []
        for rows in data["test"]:
            means = MiniBatchKMeans(n_clusters=3, batch_size=500, n_init="auto", random_state=SEED)
            means.fit(model.encode(rows["sentences"]))
            found.append(v_measure(rows["labels"], means.labels_.tolist()))
        return {"v_measure": float(np.mean(found))}
    split = data["default"]["test"]
    names = list(split["corpus"]["id"])
    scores = model.encode(list(split["queries"]["text"])) @ model.encode(list(split["corpus"]["text"])).T
    precisions, recalls = [], []
    for query, row in zip(split["queries"]["id"], scores, strict=True):
        kept = (split["top_ranked"] or {}).get(query, names)
        ranking = sorted(kept, key=lambda name: (row[names.index(name)], name), reverse=True)[:1000]
        relevant = set(split["relevant_docs"][query])
        hits = [rank for rank, name in enumerate(ranking, 1) if name in relevant]
        precisions.append(sum(count / rank for count, rank in enumerate(hits, 1)) / len(relevant))
        recalls.append(len(hits) / len(relevant))
    return {"map_at_1000": float(np.mean(precisions)), "recall_at_1000": float(np.mean(recalls))}


@pytest.mark.parametrize("kind", slow_but(list(CLASSES), "STS", "Clustering", "Reranking"))
def test_metrics_by_their_definitions(kind: str, model: Any, tmp_path: Path) -> None:
    documents = 1100 if kind == "Retrieval" else 40
    (result,) = run(tmp_path / "out", [make_task(kind, documents=documents)])
    oracle = wanted(kind, model, make_data(kind, documents=documents))
    for name, value in oracle.items():
        assert result.scores[name] == pytest.approx(value, abs=2e-5), name
    if kind == "Retrieval":
        assert oracle["recall_at_1000"] < 1
    assert result.paper in (*oracle, None) and (result.paper or result.main) in oracle
    assert (result.kind, result.task, result.base, result.method) == (kind, f"own-{kind}", "mini", "classical last")
    items = {"STS": 24, "PairClassification": 24, "Classification": 30, "Clustering": 40}.get(kind, 8)
    assert result.items == items and result.texts > 0 and (result.tokens or 0) > result.texts and result.seconds > 0
    assert result.settings == {} and result.arguments == {"method": "classical"}
    assert all(math.isfinite(value) for value in result.scores.values())


@pytest.mark.slow
def test_runs_are_alike_and_methods_draw_alike(tmp_path: Path) -> None:
    def tasks() -> list[Any]:
        return [make_task("Clustering"), make_task("Classification")]

    first = run(tmp_path / "a", tasks(), "classical,echo")
    again = run(tmp_path / "b", tasks(), "classical,echo")
    alone = run(tmp_path / "c", tasks(), "echo")
    assert [result.scores for result in first] == [result.scores for result in again]
    assert [result.scores for result in first[2:]] == [result.scores for result in alone]
    other = run(tmp_path / "c", tasks(), "echo", seed=7)
    assert other[1].scores != alone[1].scores and other[1].settings == {"seed": 7}


def test_a_task_whose_data_are_there_draws_alike(tmp_path: Path) -> None:
    from datasets import Dataset, DatasetDict
    from mteb.abstasks.clustering import AbsTaskClustering

    def task() -> Any:
        # This kind draws its samples from a generator that would go on from method to method.
        shape = {"max_fraction_of_documents_to_embed": None, "max_documents_per_cluster": 12, "n_clusters": 2}
        made = make_task("Clustering", kind_of=AbsTaskClustering, **shape)
        rows = {"sentences": texts(40, words=6), "labels": [n % 3 for n in range(40)]}
        made.dataset, made.data_loaded = DatasetDict(test=Dataset.from_dict(rows)), True
        return made

    shared = task()
    both = run(tmp_path / "both", [shared], "classical,echo")
    assert shared.data_loaded and type(shared.dataset["test"]) is Dataset
    assert both[1].scores == run(tmp_path / "alone", [task()], "echo")[0].scores


def test_what_is_there_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [make_task("STS"), make_task("PairClassification")]
    first = run(tmp_path / "out", tasks, "classical,echo")
    assert [task.loads for task in tasks] == [2, 2] and not any(task.data_loaded for task in tasks)
    assert Results(tmp_path / "out").all() != [] and (tmp_path / "out" / "mteb" / "results").is_dir()
    monkeypatch.setattr(Method, "build", lambda *arguments, **options: pytest.fail("built again"))
    assert run(tmp_path / "out", tasks, "classical,echo") == first
    assert [task.loads for task in tasks] == [2, 2]


def test_a_run_goes_on_after_the_last_finished_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [make_task("STS"), make_task("PairClassification"), make_task("Clustering")]
    plain = Encoder.encode
    encoded: list[str] = []

    def killed(self: Any, *arguments: Any, **options: Any) -> Any:
        encoded.append(options["task_metadata"].name)
        if options["task_metadata"].name == "own-PairClassification":
            raise KeyboardInterrupt
        return plain(self, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Encoder, "encode", killed)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "out", tasks)
    assert [result.task for result in Results(tmp_path / "out").all()] == ["own-STS"]
    assert not any(task.data_loaded for task in tasks)
    # mteb's own file of the first task stands in where ours is lost.
    whole = run(tmp_path / "whole", tasks)
    for path in (tmp_path / "out").glob("STS/*/*.json"):
        path.unlink()
    encoded.clear()
    monkeypatch.setattr(
        Encoder, "encode", lambda self, *a, **k: (encoded.append(k["task_metadata"].name), plain(self, *a, **k))[1]
    )
    found = run(tmp_path / "out", tasks)
    assert [result.scores for result in found] == [result.scores for result in whole]
    assert set(encoded) == {"own-PairClassification", "own-Clustering"}


def test_what_mteb_kept_of_other_data_is_not_taken(tmp_path: Path) -> None:
    first = run(tmp_path / "out", [make_task("STS")])
    other = run(tmp_path / "out", [make_task("STS", seed=1)])
    assert other == run(tmp_path / "out", [make_task("STS", seed=1)])
    assert other[0].scores == run(tmp_path / "fresh", [make_task("STS", seed=1)])[0].scores != first[0].scores
    # A file that was cut off in the middle is made again.
    (path,) = (tmp_path / "fresh" / "mteb").rglob("own-STS.json")
    path.write_text(path.read_text(encoding="utf-8")[:100], encoding="utf-8")
    for kept in (tmp_path / "fresh").glob("STS/*/*.json"):
        kept.unlink()
    assert run(tmp_path / "fresh", [make_task("STS", seed=1)])[0].scores == other[0].scores


def test_a_failing_task_loses_no_other(tmp_path: Path) -> None:
    tasks = [
        make_task("STS"),
        make_task("Clustering", error=OSError("no such\nserver")),
        make_task("PairClassification"),
    ]
    with pytest.raises(TasksFailed, match="own-Clustering: its data .* no such server") as caught:
        run(tmp_path / "out", tasks, "classical,echo")
    assert [(result.task, result.method) for result in caught.value.results] == [
        (task, method) for method in ("classical last", "echo-2 last") for task in ("own-STS", "own-PairClassification")
    ]
    # Data that are not there are asked for once, not for every method.
    assert len(caught.value.failures) == 1 and tasks[1].loads == 1
    with pytest.raises(TasksFailed) as stopped:
        run(tmp_path / "stopped", tasks, stop=True)
    assert [result.task for result in stopped.value.results] == ["own-STS"]


def test_a_method_that_cannot_be_built_loses_no_other(tmp_path: Path) -> None:
    with pytest.raises(TasksFailed, match="echo-2 last.*no room") as caught:
        run(tmp_path / "out", [make_task("STS")], "echo,classical", limit=Limit(1))
    assert len(caught.value.failures) >= 1
    with pytest.raises(TasksFailed, match="read: layers=9") as caught:
        run(tmp_path / "out", [make_task("STS"), make_task("Clustering")], "echo+read:layers=9,classical")
    assert [result.method for result in caught.value.results] == ["classical last"] * 2
    assert len(caught.value.failures) == 1


@pytest.mark.slow
def test_names_differ_where_settings_do(tmp_path: Path) -> None:
    out = tmp_path / "out"
    prompts = tmp_path / "mine.yaml"
    prompts.write_text("own-STS: Say it.\n", encoding="utf-8")
    task = [make_task("STS")]
    found = [
        *run(out, task, "classical,classical:pooling=mean,echo,echo:compute_matched=true"),
        *run(out, task, limit=Limit(12)),
        *run(out, task, limit=Limit(4, "content")),
        *run(out, task, prompts=str(prompts)),
        *run(out, task, seed=1),
        *run(out, task, settings={"prompt_number": 3}),
    ]
    assert len({result.identity for result in found}) == len(found)
    metas = [json.loads(path.read_text(encoding="utf-8")) for path in (out / "mteb").rglob("model_meta.json")]
    assert len({meta["name"] for meta in metas}) == len({meta["revision"] for meta in metas}) == len(found)
    plain, prompted = found[0], found[6]
    assert prompted.scores != plain.scores and prompted.settings["prompts"].startswith("mine-")
    assert found[4].settings == {"max_tokens": 12, "budget": "total"} and found[-1].settings == {"prompt_number": 3}
    assert run(out, task, prompts="none")[0] == plain
    with pytest.raises(ValueError, match="'nosink' has none of the tasks"):
        run(out, task, prompts="nosink")


def test_nothing_of_mtebs_is_read_as_a_result(tmp_path: Path) -> None:
    found = run(tmp_path / "out", [make_task("STS")])
    assert Results(tmp_path / "out").all() == found


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*arguments: Any, **options: Any) -> Any:
        raise ConnectionError("the Hub cannot be reached")

    monkeypatch.setattr("mteb.abstasks.abstask.load_dataset", unreachable)
    top = argparse.ArgumentParser()
    add_mteb(top.add_subparsers())
    with pytest.raises(SystemExit) as end:
        top.parse_args(["mteb", "--list"])
    listed = capsys.readouterr().out
    assert end.value.code == 0 and "C-MTEB: 31 tasks" in listed and "CMedQAv1-reranking" in listed
    pairs = tmp_path / "pairs.tsv"
    rows = [
        f"{first}\t{second}\t{n % 5}\n"
        for n, (first, second) in enumerate(zip("今天天气很好" * 5, "银行下雨公园" * 5, strict=True))
    ]
    pairs.write_text("text1\ttext2\tscore\n" + "".join(rows), encoding="utf-8")
    given = [
        "mteb",
        "--tasks",
        f"STS={pairs}",
        "--model",
        "mini",
        "--methods",
        "classical",
        "--out",
        str(tmp_path / "out"),
    ]
    options = top.parse_args([*given, "--json", "--limit", "20"])
    assert options.command(options) == 0
    (printed,) = json.loads(capsys.readouterr().out)
    assert (printed["task"], printed["items"], printed["main"]) == ("pairs", 20, "cosine_spearman")
    # Without a network a task of mteb cannot be had; the file is scored all the same.
    options = top.parse_args([*given[:2], "STSB", *given[2:]])
    assert options.command(options) == 1
    out, err = capsys.readouterr()
    assert "pairs" in out and "STSB: its data" in err and "cannot be reached" in err and "1 failed" in err
    options = top.parse_args(["mteb", "--tasks", "STSB", *given[3:], "--limit", "5"])
    with pytest.raises(ValueError, match="--limit 5"):
        options.command(options)


def test_one_line() -> None:
    assert one_line(ValueError("a\n  b")) == "a b" and one_line(KeyError()) == "KeyError"
