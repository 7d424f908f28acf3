"""Runs: mteb's and ours agree, results are found again, what fails loses nothing, and long work says how long."""

from __future__ import annotations

import errno
import json
import logging
import math
import sys
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Dataset, DatasetDict
from marks import slow_but
from mteb_data import CLASSES, make_data, texts
from mteb_data import make_task as mteb_task
from scipy.stats import pearsonr, spearmanr
from sklearn.cluster import MiniBatchKMeans
from sklearn.linear_model import LogisticRegression

import st_reba
from st_reba.evaluation import evaluate, items, make_task, run
from st_reba.evaluation.instructions import Instructions
from st_reba.evaluation.methods import Method
from st_reba.evaluation.mteb_tasks import Encoder, find_tasks
from st_reba.evaluation.results import Results, one_line
from st_reba.evaluation.run import MTEB_SEED, TasksFailed, tasks_of
from st_reba.evaluation.statistics import bootstrap
from st_reba.evaluation.templates import drawn_templates
from st_reba.fingerprint import PROBES


def scored(out: Path, tasks: Any, methods: Any = "classical", **options: Any) -> Any:
    return evaluate("mini", tasks, methods, out, **{"show_progress_bar": False, **options})


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer draws, no measuring of speed, and no search through mteb's many objects after each method."""
    monkeypatch.setattr(items, "bootstrap", partial(bootstrap, draws=50))
    monkeypatch.setattr(run, "encoding_rate", lambda model: math.inf)
    monkeypatch.setattr(run.gc, "collect", lambda: 0)


@pytest.fixture(scope="module")
def model() -> Any:
    return st_reba.build("mini", "classical")


def pairs(count: int = 24, name: str = "pairs", seed: int = 0) -> Any:
    return make_task("STS", zip(texts(count, seed), texts(count, seed + 1), range(count), strict=True), name)


# Scores


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
    """The metrics of a kind of mteb's by their definitions."""
    if kind == "STS":
        rows = data["test"]
        found, scores = cosines(model, rows), list(rows["score"])
        return {"cosine_pearson": pearsonr(scores, found)[0], "cosine_spearman": spearmanr(scores, found)[0]}
    if kind == "PairClassification":
        rows = data["test"]
        found, labels = cosines(model, rows), np.array(rows["labels"])
        return {"cosine_accuracy": max(((found >= bound) == labels).mean() for bound in [*found, 2.0])}
    if kind == "Classification":
        train, test = data["train"], data["test"]
        labels, order, scores = list(train["label"]), list(range(len(train))), []
        vectors = model.encode(list(train["text"]))
        for _ in range(10):
            np.random.RandomState(MTEB_SEED).shuffle(order)
            drawn = [index for label in (0, 1) for index in [i for i in order if labels[i] == label][:8]]
            drawn.sort(key=order.index)
            classifier = LogisticRegression(max_iter=100, random_state=MTEB_SEED)
            classifier.fit(vectors[drawn], [labels[index] for index in drawn])
            scores.append((classifier.predict(model.encode(list(test["text"]))) == np.array(test["label"])).mean())
        return {"accuracy": float(np.mean(scores))}
    if kind == "Clustering":
        measures = []
        for rows in data["test"]:
            means = MiniBatchKMeans(n_clusters=3, batch_size=500, n_init="auto", random_state=MTEB_SEED)
            means.fit(model.encode(rows["sentences"]))
            measures.append(v_measure(rows["labels"], means.labels_.tolist()))
        return {"v_measure": float(np.mean(measures))}
    split = data["default"]["test"]
    names = list(split["corpus"]["id"])
    near = model.encode(list(split["queries"]["text"])) @ model.encode(list(split["corpus"]["text"])).T
    precisions, recalls = [], []
    for query, row in zip(split["queries"]["id"], near, strict=True):
        kept = (split["top_ranked"] or {}).get(query, names)
        ranking = sorted(kept, key=lambda name: (row[names.index(name)], name), reverse=True)[:1000]
        relevant = set(split["relevant_docs"][query])
        hits = [rank for rank, name in enumerate(ranking, 1) if name in relevant]
        precisions.append(sum(count / rank for count, rank in enumerate(hits, 1)) / len(relevant))
        recalls.append(len(hits) / len(relevant))
    return {"map_at_1000": float(np.mean(precisions)), "recall_at_1000": float(np.mean(recalls))}


@pytest.mark.parametrize("kind", slow_but(list(CLASSES), "STS", "Clustering", "Reranking"))
def test_mtebs_metrics_by_their_definitions(kind: str, model: Any, tmp_path: Path) -> None:
    documents = 1100 if kind == "Retrieval" else 40
    (result,) = scored(tmp_path / "out", mteb_task(kind, documents=documents))
    oracle = wanted(kind, model, make_data(kind, documents=documents))
    for name, value in oracle.items():
        assert result.scores[name] == pytest.approx(value, abs=2e-5), name
    if kind == "Retrieval":
        assert oracle["recall_at_1000"] < 1
    assert result.paper in (*oracle, None) and (result.paper or result.main) in oracle
    assert (result.kind, result.task, result.base, result.method) == (kind, f"own-{kind}", "mini", "classical last")
    items = {"STS": 24, "PairClassification": 24, "Classification": 30, "Clustering": 40}.get(kind, 12)
    assert result.items == items and result.texts > 0 and (result.tokens or 0) > result.texts and result.seconds > 0
    assert result.settings == {} and result.arguments == {"method": "classical"} and result.intervals == {}
    assert all(math.isfinite(value) for value in result.scores.values())


def both(kind: str) -> tuple[Any, Any]:
    """The same rows as a task of mteb and as one of our own."""
    if kind in ("STS", "PairClassification"):
        rows = make_data(kind)["test"]
        columns = [list(rows[name]) for name in ("sentence1", "sentence2", "score" if kind == "STS" else "labels")]
        return mteb_task(kind), make_task(kind, zip(*columns, strict=True), "ours")
    data = make_data(kind, documents=60)
    split = data["default"]["test"]
    # Grades above 1, on which linear gains and others differ.
    for grades in split["relevant_docs"].values():
        for place, name in enumerate(grades):
            grades[name] = place % 3 + 1
    (corpus, queries) = (
        dict(zip(split[name]["id"], split[name]["text"], strict=True)) for name in ("corpus", "queries")
    )
    rows = []
    for query, grades in split["relevant_docs"].items():
        judged = split["top_ranked"][query] if kind == "Reranking" else corpus
        rows += [(queries[query], corpus[name], grades.get(name, 0)) for name in judged]

    def load_data(self: Any, *arguments: Any, **options: Any) -> None:
        self.dataset, self.data_loaded = data, True

    # Each query twice would be another task: mteb's texts are distinct here.
    return mteb_task(kind, load_data=load_data), make_task(kind, rows, "ours")


@pytest.mark.parametrize("kind", ["STS", "PairClassification", "Reranking", "Retrieval"])
def test_mtebs_own_run_equals_ours(kind: str, tmp_path: Path) -> None:
    """On the same data: there is one nDCG."""
    theirs, ours = scored(tmp_path / "out", both(kind), "echo:pooling=mean")
    same = set(theirs.scores) & set(ours.scores)
    names = {
        "STS": {"cosine_spearman", "cosine_pearson"},
        "PairClassification": {"cosine_ap", "cosine_accuracy"},
    }.get(kind, {"map_at_1000", "ndcg_at_10", "recall_at_10", "recall_at_1000"})
    assert names <= same
    for name in same:
        assert ours.scores[name] == pytest.approx(theirs.scores[name], abs=5.1e-6), name  # mteb rounds
    assert theirs.items == ours.items
    if kind in ("STS", "PairClassification"):
        # Of a ranking, mteb also hands over documents that no query is scored on.
        assert (theirs.texts, theirs.tokens) == (ours.texts, ours.tokens)


def test_scores_and_evidence_of_own_files(model: Any, tmp_path: Path) -> None:
    task = pairs()
    (result,) = scored(tmp_path / "out", task)
    vectors = model.encode(list(task.items.texts))
    evidence = task.items.evidence(vectors)
    assert result.scores == pytest.approx({name: metric(evidence) for name, metric in task.items.metrics.items()})
    assert (result.main, result.paper, result.items) == ("cosine_spearman", "cosine_pearson", 24)
    kept = Results(tmp_path / "out")
    np.testing.assert_allclose(kept.evidence(result), evidence, atol=2e-6)
    # All methods are scored on the same draws.
    draws = task.items.draws(evidence, "cosine_spearman")
    np.testing.assert_allclose(kept.draws(result)["cosine_spearman"], draws, atol=1e-4)
    assert result.intervals["cosine_spearman"] == pytest.approx(tuple(np.percentile(draws, (2.5, 97.5))), abs=1e-4)
    assert result.data == task.fingerprint and result.texts == len(task.items.texts)


def test_a_classifier_learns_from_train(tmp_path: Path, model: Any) -> None:
    def rows(count: int, seed: int) -> Any:
        return [(text, f"label {n % 2}") for n, text in enumerate(texts(count, seed))]

    for name, part in (("train", rows(40, 0)), ("test", rows(20, 3))):
        lines = "".join(f"{text}\t{label}\n" for text, label in part)
        (tmp_path / f"{name}.tsv").write_text(f"text\tlabel\n{lines}", encoding="utf-8")
    tasks = tasks_of([str(tmp_path / "test.tsv")], train=tmp_path / "train.tsv")
    (result,) = scored(tmp_path / "out", tasks)
    known, asked = (zip(*part, strict=True) for part in (rows(40, 0), rows(20, 3)))
    (learnt, labels), (given, right) = known, asked
    classifier = LogisticRegression(max_iter=100).fit(model.encode(list(learnt)), labels)
    assert result.scores["accuracy"] == (classifier.predict(model.encode(list(given))) == np.array(right)).mean()
    assert result.items == 20


def test_only_scored_sentences_count_as_unseen(tmp_path: Path) -> None:
    def rows(length: int) -> Any:
        return [
            (["Ada", "met", *["Bo"] * (length + n % 2)], ["B-PER", "O", *["B-PER"] * (length + n % 2)])
            for n in range(12)
        ]

    whole, long = make_task("NER", rows(1), "short"), make_task("NER", [*rows(1)[:11], *rows(40)[:1]], "long")
    task = replace(whole, train=long.items)
    (result,) = scored(tmp_path / "one", task, max_tokens=20)
    assert result.left_out == {}
    (result,) = scored(tmp_path / "other", replace(long, train=whole.items), max_tokens=20)
    assert [name.partition(":")[0] for name in result.left_out[run.UNSEEN]] == ["12"]


def test_layers_of_words_come_from_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("bank", "The bank pays.", "A bank lends.", "The bank is steep.", "My bank shut.", 2)] * 10
    task = make_task("WordSense", rows, "banks")
    found = scored(tmp_path / "out", task, "echo", layers=[0, 2, 6])
    assert [each.settings for each in found] == [{"layer": 0}, {"layer": 2}, {}]
    assert found[2].scores == scored(tmp_path / "last", task, "echo")[0].scores
    assert found[0].tokens is not None
    monkeypatch.setattr(Method, "build", lambda *arguments, **options: pytest.fail("built again"))
    assert scored(tmp_path / "out", task, "echo") == found[2:]


# What stands before texts, and how much of them is read


@pytest.mark.parametrize("kind", ["STS", "Retrieval"])
def test_instructions_stand_before_own_texts(kind: str, tmp_path: Path, model: Any) -> None:
    _, task = both(kind)
    given = Instructions("mine", {"ours": {"query": "Find it: ", "document": "Here: "}})
    found = scored(tmp_path / "out", task, prompts=given)
    plain = scored(tmp_path / "out", task)
    assert found[0].settings == {"prompts": "mine"} and plain[0].settings == {}
    split = task.items.queries if kind == "Retrieval" else len(task.items.texts)
    asked, told = task.items.texts[:split], task.items.texts[split:]
    vectors = model.encode(list(asked), prompt="Find it: ")
    if told:
        vectors = np.concatenate([vectors, model.encode(list(told), prompt="Here: ")])
    evidence = task.items.evidence(vectors)
    np.testing.assert_allclose(Results(tmp_path / "out").evidence(found[0]), evidence, atol=2e-6)
    assert found[0].scores != plain[0].scores
    with pytest.raises(ValueError, match="'nosink' has none of the tasks"):
        scored(tmp_path / "out", task, prompts="nosink")


def test_content_budgets_give_each_role_as_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, task = both("Retrieval")
    given = Instructions("mine", {"ours": "A long instruction, of very many tokens, before a query: "})
    room: list[tuple[Any, int]] = []
    plain = run.encoded

    def spy(model: Any, texts: Any, role: Any = None, **options: Any) -> Any:
        room.append((role, model[0].budget(options["prompts"].of(role))))
        return plain(model, texts, role, **options)

    monkeypatch.setattr(run, "encoded", spy)
    (result,) = scored(tmp_path / "out", task, "echo", max_tokens=3, budget="content", prompts=given)
    assert room == [("query", 3), ("document", 3)]
    assert result.settings == {"max_tokens": 3, "budget": "content", "prompts": "mine"}


def test_several_budgets_and_templates(tmp_path: Path) -> None:
    found = scored(tmp_path / "out", pairs(), "echo", max_tokens=[16, 32])
    assert [each.settings for each in found] == [{"max_tokens": tokens, "budget": "total"} for tokens in (16, 32)]
    # Drawn by a seed of their own, in Python as in the shell.
    drawn = scored(tmp_path / "out", pairs(), "echo-3", templates=2, language="zh", seed=7)
    assert [each.arguments["template"] for each in drawn] == drawn_templates("echo", 2, language="zh", repeats=3)
    assert [each.settings for each in drawn] == [{"template": n, "language": "zh"} for n in (1, 2)]
    assert {each.method for each in drawn} == {"echo-3 last"}


# Found again


@pytest.mark.slow
def test_methods_draw_alike(tmp_path: Path) -> None:
    def task() -> Any:
        from mteb.abstasks.clustering import AbsTaskClustering

        # This kind draws its samples from a generator that would go on from method to method.
        shape = {"max_fraction_of_documents_to_embed": None, "max_documents_per_cluster": 12, "n_clusters": 2}
        made = mteb_task("Clustering", kind_of=AbsTaskClustering, **shape)
        rows = {"sentences": texts(40, words=6), "labels": [n % 3 for n in range(40)]}
        made.dataset, made.data_loaded = DatasetDict(test=Dataset.from_dict(rows)), True
        return made

    shared = task()
    found = scored(tmp_path / "both", shared, "classical,echo")
    assert shared.data_loaded and type(shared.dataset["test"]) is Dataset
    assert found[1].scores == scored(tmp_path / "alone", task(), "echo")[0].scores
    other = scored(tmp_path / "alone", task(), "echo", seed=7)
    assert other[0].settings == {"seed": 7} and other[0].scores != found[1].scores


def test_what_is_there_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = [mteb_task("STS"), mteb_task("PairClassification")]
    tasks = [*theirs, pairs()]
    first = scored(tmp_path / "out", tasks, "classical,echo")
    assert [task.loads for task in theirs] == [2, 2] and not any(task.data_loaded for task in theirs)
    assert len(Results(tmp_path / "out").all()) == 6 and (tmp_path / "out" / "mteb" / "results").is_dir()
    monkeypatch.setattr(Method, "build", lambda *arguments, **options: pytest.fail("built again"))
    assert scored(tmp_path / "out", tasks, "classical,echo") == first
    assert [task.loads for task in theirs] == [2, 2]


def test_a_run_goes_on_after_the_last_finished_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [mteb_task("STS"), mteb_task("PairClassification"), mteb_task("Clustering")]
    plain = Encoder.encode
    encoded: list[str] = []

    def killed(self: Any, *arguments: Any, **options: Any) -> Any:
        if options["task_metadata"].name == "own-PairClassification":
            raise KeyboardInterrupt
        return plain(self, *arguments, **options)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Encoder, "encode", killed)
        scored(tmp_path / "out", tasks)
    assert [result.task for result in Results(tmp_path / "out").all()] == ["own-STS"]
    assert not any(task.data_loaded for task in tasks)
    # mteb's own file of the first task stands in where ours is lost.
    whole = scored(tmp_path / "whole", tasks)
    for path in (tmp_path / "out").glob("STS/*/*.json"):
        path.unlink()

    def told(self: Any, *arguments: Any, **options: Any) -> Any:
        encoded.append(options["task_metadata"].name)
        return plain(self, *arguments, **options)

    monkeypatch.setattr(Encoder, "encode", told)
    found = scored(tmp_path / "out", tasks)
    assert [result.scores for result in found] == [result.scores for result in whole]
    assert set(encoded) == {"own-PairClassification", "own-Clustering"}


def test_what_mteb_kept_of_other_data_is_not_taken(tmp_path: Path) -> None:
    first = scored(tmp_path / "out", mteb_task("STS"))
    other = scored(tmp_path / "out", mteb_task("STS", seed=1))
    assert other == scored(tmp_path / "out", mteb_task("STS", seed=1))
    assert other[0].scores == scored(tmp_path / "fresh", mteb_task("STS", seed=1))[0].scores != first[0].scores
    # A file that was cut off in the middle is made again.
    (path,) = (tmp_path / "fresh" / "mteb").rglob("own-STS.json")
    path.write_text(path.read_text(encoding="utf-8")[:100], encoding="utf-8")
    for kept in (tmp_path / "fresh").glob("STS/*/*.json"):
        kept.unlink()
    assert scored(tmp_path / "fresh", mteb_task("STS", seed=1))[0].scores == other[0].scores


@pytest.mark.slow
def test_names_differ_where_settings_do(tmp_path: Path) -> None:
    out, task = tmp_path / "out", mteb_task("STS")
    found = [
        *scored(out, task, "classical,classical:pooling=mean,echo"),
        *scored(out, task, max_tokens=12),
        *scored(out, task, max_tokens=4, budget="content"),
        *scored(out, task, prompts=Instructions("mine", {"own-STS": "Say it."})),
        *scored(out, task, seed=1),
    ]
    assert len({result.identity for result in found}) == len(found)
    metas = [json.loads(path.read_text(encoding="utf-8")) for path in (out / "mteb").rglob("model_meta.json")]
    assert len({meta["name"] for meta in metas}) == len({meta["revision"] for meta in metas}) == len(found)
    assert found[3].settings == {"max_tokens": 12, "budget": "total"} and found[5].settings == {"prompts": "mine"}
    assert found[5].scores != found[0].scores
    assert scored(out, task, prompts="none")[0] == found[0]
    # Nothing of mteb's is read as a result.
    assert {each.identity for each in Results(out).all()} == {each.identity for each in found}


# Failures


def test_a_failing_task_loses_no_other(tmp_path: Path) -> None:
    tasks = [mteb_task("STS"), mteb_task("Clustering", error=OSError("no such\nserver")), pairs()]
    with pytest.raises(TasksFailed, match="own-Clustering: its data .* no such server") as caught:
        scored(tmp_path / "out", tasks, "classical,echo")
    assert [(result.task, result.method) for result in caught.value.results] == [
        (task, method) for method in ("classical last", "echo-2 last") for task in ("own-STS", "pairs")
    ]
    # Data that are not there are asked for once, not for every method.
    assert len(caught.value.failures) == 1 and tasks[1].loads == 1
    with pytest.raises(TasksFailed) as stopped:
        scored(tmp_path / "stopped", tasks, stop=True)
    assert [result.task for result in stopped.value.results] == ["own-STS"]


@pytest.mark.parametrize("error", [ConnectionError("gone"), MemoryError(), RuntimeError("x")])
def test_whatever_fails_loses_no_other(error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Encoder.encode

    def fails(self: Any, *arguments: Any, **options: Any) -> Any:
        if options["task_metadata"].name == "own-Clustering":
            raise error
        return plain(self, *arguments, **options)

    monkeypatch.setattr(Encoder, "encode", fails)
    with pytest.raises(TasksFailed, match=f"own-Clustering, classical last: {one_line(error)}") as caught:
        scored(tmp_path / "out", [mteb_task("Clustering"), pairs()])
    assert [result.task for result in caught.value.results] == ["pairs"]


def test_a_full_disk_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Results, "add", full)
    with pytest.raises(OSError, match="No space left"):
        scored(tmp_path / "out", pairs())


def test_a_failure_is_told_in_full_where_that_is_asked_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for level in (logging.WARNING, logging.DEBUG):
        caplog.clear()
        with caplog.at_level(level, "st_reba.evaluation.run"), pytest.raises(TasksFailed):
            scored(tmp_path / "out", mteb_task("STS", error=OSError("gone")))
        (record,) = [each for each in caplog.records if each.name == "st_reba.evaluation.run"]
        assert ("Traceback" in logging.Formatter().format(record)) == (level == logging.DEBUG)


def test_a_method_that_cannot_be_built_loses_no_other(tmp_path: Path) -> None:
    with pytest.raises(TasksFailed, match="echo-2 last.*no room") as caught:
        scored(tmp_path / "out", [pairs(), mteb_task("STS")], "echo,classical", max_tokens=1)
    with pytest.raises(TasksFailed, match="read: layers=9") as caught:
        scored(tmp_path / "out", [pairs(), mteb_task("STS")], "echo+read:layers=9,classical")
    assert [result.method for result in caught.value.results] == ["classical last"] * 2
    assert len(caught.value.failures) == 1


def test_a_model_that_is_not_there_is_told_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Method, "build", lambda *arguments, **options: pytest.fail("built"))
    with pytest.raises(FileNotFoundError, match="./nope"):
        evaluate(["mini", "./nope"], pairs(), None, tmp_path / "out")


def test_saved_embedders_have_their_own_method(tmp_path: Path) -> None:
    st_reba.build("mini", "echo", pooling="mean").save_pretrained(str(tmp_path / "saved"))
    saved, task = str(tmp_path / "saved"), pairs()
    found = evaluate(["mini", saved], task, "echo:pooling=mean,classical", tmp_path / "out")
    assert [(each.base, each.method) for each in found] == [
        ("mini", "echo-2 mean"),
        ("mini", "classical last"),
        ("saved", "as saved"),
    ]
    assert found[2].scores == pytest.approx(found[0].scores, abs=1e-6)
    for options in ({"methods": "reba"}, {"templates": 2}):
        with pytest.raises(ValueError, match="Drop the option"):
            evaluate(saved, task, out=tmp_path / "out", **options)  # type: ignore[arg-type]
    with pytest.raises(BlockingIOError), Results(tmp_path / "out").writing():
        scored(tmp_path / "out", task)


# How long it will take


@pytest.mark.parametrize(("seconds", "said"), [(25, None), (60, "60 seconds"), (600, "10 minutes")])
def test_long_work_says_how_long(seconds: int, said: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    task = pairs()
    characters = 2 * sum(map(len, task.items.texts))
    short_texts = characters / (sum(map(len, PROBES)) / len(PROBES))
    monkeypatch.setattr(run, "encoding_rate", lambda model: short_texts / seconds)
    scored(tmp_path / "out", task, "classical,echo", say=lines.append)
    wanted = f"{characters:,} characters are to be encoded, copies not counted: about {said}"
    assert lines == ([] if said is None else [wanted])
    if seconds == 60:
        # What is there already takes no time.
        scored(tmp_path / "out", [task, pairs(10, "short")], "classical,echo", say=lines.append)
        assert lines == [wanted]


# Without mteb


def test_own_files_need_no_mteb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "mteb"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mteb", None)
    assert scored(tmp_path / "out", pairs())
    with pytest.raises(ImportError, match="pip install"):
        find_tasks(["STSB"])


def test_parts_of_toy() -> None:
    def names(word: str) -> list[str]:
        return [task.name for task in tasks_of([word])]

    assert names("toy:S3,en,early") == ["S3 en early"]
    assert names("toy:zh") == ["S1 zh", "S2 zh", "S3 zh"]
    assert len(names("toy")) == 6
    with pytest.raises(ValueError, match="middle"):
        tasks_of(["toy:middle"])
    with pytest.raises(ValueError, match="one part"):
        tasks_of(["toy:early,late"])
