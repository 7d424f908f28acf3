"""Plain files as tasks of mteb: its scores against plain computations of the same, on vectors that are made up."""

from __future__ import annotations

import hashlib
import json
import random
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("mteb")

import mteb
from mteb.models.model_meta import ModelMeta
from scipy.stats import pearsonr, spearmanr
from sklearn.cluster import MiniBatchKMeans
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import (
    average_precision_score,
    f1_score,
    ndcg_score,
    v_measure_score,
)

from st_reba.evaluation.benchmark.local import read_local

DATA = Path(__file__).parents[3] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the real data sets are not on this machine")


class Encoder:
    """Random vectors, a text's always the same; given ones where there are some."""

    def __init__(self, model_name: str = "", revision: str | None = None, *, device: str | None = None, **kw: Any):
        self.known: dict[str, Any] = {}
        self.seen: list[str] = []
        self.mteb_model_meta = ModelMeta.create_empty()

    def vector(self, text: str) -> Any:
        if text in self.known:
            return self.known[text]
        seed = int(hashlib.sha256(text.encode()).hexdigest()[:8], 16)
        return np.random.default_rng(seed).normal(size=8)

    def encode(self, inputs: Any, **options: Any) -> Any:
        texts = [text for batch in inputs for text in batch["text"]]
        self.seen += texts
        return np.stack([self.vector(text) for text in texts]).astype(np.float32)

    def similarity(self, first: Any, second: Any) -> Any:
        first, second = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
        return (first / np.linalg.norm(first, axis=1)[:, None]) @ (second / np.linalg.norm(second, axis=1)[:, None]).T

    def similarity_pairwise(self, first: Any, second: Any) -> Any:
        return np.diag(self.similarity(first, second))


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError(f"the network was asked for: {arguments}")

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    yield


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, Any], Path]:
    def write(name: str, content: Any) -> Path:
        path = tmp_path / name
        if isinstance(content, list):
            content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in content)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


Write = Callable[[str, Any], Path]


def scores(task: Any, encoder: Any = None) -> dict[str, Any]:
    found = mteb.evaluate(
        encoder or Encoder(),
        task,
        cache=None,
        show_progress_bar=False,
        encode_kwargs={"batch_size": 16, "show_progress_bar": False},
    )
    ((result,),) = [each.scores["test"] for each in found.task_results]
    assert result["main_score"] == result[task.metadata.main_score]
    return dict(result)


def cosine(first: str, second: str) -> float:
    a, b = (np.asarray(Encoder().vector(text), dtype=np.float32).astype(np.float64) for text in (first, second))
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def entry(write: Write, **values: Any) -> str:
    """A tasks file of one task; JSON is YAML."""
    return str(write("tasks.yaml", json.dumps([values])))


CHANCE = random.Random(5)
PAIRS = [
    {"text1": f"句子 {n}", "text2": f"sentence {CHANCE.randrange(40)}", "score": CHANCE.random() * 5} for n in range(60)
]
MARKED = [{"text1": f"a {n}", "text2": f"b {n % 17}", "label": CHANCE.choice([0, 0, 1])} for n in range(70)]
TEXTS = [{"text": f"text {n}", "label": CHANCE.choice(["x", "y", "z"])} for n in range(90)]
RANKED = [
    {"query": f"q {q}", "title": f"title {CHANCE.randrange(200)}", "label": str(CHANCE.choice([0, 0, 1, 2]))}
    for q in range(25)
    for _ in range(CHANCE.randrange(1, 9))
]


def judgements(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Relevance by query and document, the highest where there are several."""
    judged: dict[str, dict[str, int]] = {}
    for row in rows:
        known = judged.setdefault(row["query"], {})
        known[row["title"]] = max(int(row["label"]), known.get(row["title"], 0))
    return judged


# --- scores


def test_sts(write: Write) -> None:
    (task,) = read_local(f"STS={write('pairs.jsonl', PAIRS)}")
    assert isinstance(task, mteb.AbsTask) and task.metadata.type == "STS" and task.size == 60
    found = scores(task)
    cosines = [cosine(row["text1"], row["text2"]) for row in PAIRS]
    gold = [row["score"] for row in PAIRS]
    assert found["cosine_pearson"] == pytest.approx(pearsonr(cosines, gold)[0], abs=1e-6)
    assert found["main_score"] == found["cosine_spearman"] == pytest.approx(spearmanr(cosines, gold)[0], abs=1e-6)
    assert found["pearson"] == pytest.approx(found["cosine_pearson"], abs=1e-6)
    assert scores(task) == found


def test_pair_classification(write: Write) -> None:
    (task,) = read_local(f"pair={write('pairs.jsonl', MARKED)}")
    assert task.metadata.type == "PairClassification" and task.metadata.main_score == "max_ap"
    found = scores(task)
    cosines = np.asarray([cosine(row["text1"], row["text2"]) for row in MARKED])
    gold = np.asarray([row["label"] for row in MARKED])
    # The best threshold between two cosines, tried one by one.
    cuts = np.sort(cosines)[1:] - np.diff(np.sort(cosines)) / 2
    best = max(float(np.mean((cosines > cut) == gold)) for cut in cuts)
    best_f1 = max(f1_score(gold, cosines > cut) for cut in cuts)
    assert found["cosine_accuracy"] == pytest.approx(best) and found["max_accuracy"] >= best
    assert found["cosine_f1"] == pytest.approx(best_f1)
    assert found["cosine_ap"] == pytest.approx(average_precision_score(gold, cosines))
    aps = [found[f"{name}_ap"] for name in ("similarity", "cosine", "manhattan", "euclidean", "dot")]
    assert found["main_score"] == max(aps) > found["cosine_ap"] - 1e-9
    assert scores(task) == found


def test_classification(write: Write) -> None:
    train, test = write("train.jsonl", TEXTS[:60]), write("test.jsonl", TEXTS[60:])
    spec = entry(write, name="letters", kind="class", train=train.name, test=test.name, n_experiments=4)
    (task,) = read_local(spec, seed=3)
    assert task.samples_per_label == 8 and task.n_experiments == 4 and task.seed == 3 and task.size == 30
    found = scores(task)
    vectors = np.stack([Encoder().vector(row["text"]) for row in TEXTS]).astype(np.float32)
    labels = np.asarray([row["label"] for row in TEXTS])
    accuracies, order = [], list(range(60))
    for _ in range(4):
        # mteb shuffles the last order anew by the same seed, and takes each label's first eight.
        np.random.RandomState(3).shuffle(order)
        chosen = [i for label in "xyz" for i in [i for i in order if labels[i] == label][:8]]
        classifier = LogisticRegression(max_iter=100).fit(vectors[chosen], labels[chosen])
        accuracies.append(float(np.mean(classifier.predict(vectors[60:]) == labels[60:])))
    assert [each["accuracy"] for each in found["scores_per_experiment"]] == pytest.approx(accuracies)
    assert found["main_score"] == found["accuracy"] == pytest.approx(np.mean(accuracies))
    assert len(set(accuracies)) > 1 and scores(task)["accuracy"] == found["accuracy"]


def test_classification_of_one_file(write: Write) -> None:
    rows = [{"text": f"text {n}", "label": "yes" if n % 3 else "no"} for n in range(90)]
    path = write("all.json", json.dumps(rows))
    (task,) = read_local(f"Classification={path}")
    task.load_data()
    parts = task.dataset
    texts = {part: list(parts[part]["text"]) for part in parts}
    assert len(texts["train"]) == 72 and len(texts["test"]) == 18 == task.size
    assert sorted(texts["train"] + texts["test"]) == sorted(row["text"] for row in rows)
    # Labels become numbers, and stay with their texts; a fifth of each is tested.
    number = {"no": 0, "yes": 1}
    given = {row["text"]: number[row["label"]] for row in rows}
    assert all(
        given[text] == label for part in parts for text, label in zip(texts[part], parts[part]["label"], strict=True)
    )
    assert sum(parts["test"]["label"]) == 12
    encoder = Encoder()
    for text, label in given.items():
        encoder.known[text] = encoder.vector(text) + 40 * (label - 0.5)
    found = scores(task, encoder)
    assert found["accuracy"] == found["f1"] == found["ap"] == 1.0
    (other,) = read_local(f"Classification={path}", seed=1)
    other.load_data()
    assert set(other.dataset["test"]["text"]) != set(texts["test"])
    assert other.metadata.revision != task.metadata.revision


def test_a_test_of_two_labels_of_three(write: Write) -> None:
    # mteb then computes a score that takes the labels for 0 and 1.
    test = [row for row in TEXTS if row["label"] != "x"][:20]
    write("train.jsonl", TEXTS)
    write("test.jsonl", test)
    (task,) = read_local(
        entry(write, name="two", kind="class", train="train.jsonl", test="test.jsonl", n_experiments=1)
    )
    encoder = Encoder()
    for row in TEXTS:
        encoder.known[row["text"]] = encoder.vector(row["text"]) * 0.01 + np.eye(8)["xyz".index(row["label"])] * 9
    found = scores(task, encoder)
    assert found["accuracy"] == found["ap"] == 1.0


def test_clustering(write: Write) -> None:
    write("titles.txt", "".join(f"{row['text']}\n" for row in TEXTS))
    write("labels.txt", "".join(f"{row['label']}\n" for row in TEXTS))
    files = {"text": "titles.txt", "label": "labels.txt"}
    spec = entry(
        write,
        name="letters",
        kind="Clustering",
        files=files,
        max_document_to_embed=50,
        n_clusters=3,
        max_documents_per_cluster=200,
    )
    (task,) = read_local(spec, seed=2)
    encoder = Encoder()
    found = scores(task, encoder)
    # The same draws, by hand.
    chance = random.Random(2)
    chosen = chance.sample(range(90), k=50)
    assert encoder.seen == [TEXTS[index]["text"] for index in chosen]
    vectors = np.stack([Encoder().vector(TEXTS[index]["text"]) for index in chosen]).astype(np.float32)
    labels = np.asarray([TEXTS[index]["label"] for index in chosen])
    wanted = []
    for _ in range(3):
        drawn = chance.choices(range(50), k=200)
        model = MiniBatchKMeans(n_clusters=3, batch_size=512, init="k-means++", n_init=1, random_state=2)
        wanted.append(v_measure_score(labels[drawn], model.fit_predict(vectors[drawn])))
    assert found["v_measures"]["Level 0"] == pytest.approx(wanted)
    assert found["main_score"] == found["v_measure"] == pytest.approx(np.mean(wanted))
    # A task meets every model with the same draws, though mteb's own generator goes on.
    assert scores(task)["v_measures"] == found["v_measures"]
    for row in TEXTS:
        encoder.known[row["text"]] = encoder.vector(row["text"]) * 0.01 + np.eye(8)["xyz".index(row["label"])] * 9
    assert scores(task, encoder)["v_measure"] == pytest.approx(1.0)


def test_reranking(write: Write) -> None:
    (task,) = read_local(f"rerank={write('ranked.json', RANKED)}")
    assert task.metadata.type == "Reranking" and task.metadata.main_score == "map_at_1000"
    encoder = Encoder()
    found = scores(task, encoder)
    judged = judgements(RANKED)
    usable = {query: grades for query, grades in judged.items() if any(grades.values()) and not all(grades.values())}
    assert 10 < len(usable) < len(judged) and task.size == len(usable)
    (reason,) = [reason for reason in task.left_out if "without both" in reason]
    assert task.left_out[reason] == [query for query in judged if query not in usable]
    precisions, gains = [], []
    for query, grades in usable.items():
        near = [cosine(query, title) for title in grades]
        precisions.append(average_precision_score([grade > 0 for grade in grades.values()], near))
        gains.append(ndcg_score([list(grades.values())], [near], k=10))
    assert found["map_at_1000"] == pytest.approx(np.mean(precisions), abs=1e-5)
    # Graded: with relevance of 0 and 1 alone it would be another figure.
    assert found["ndcg_at_10"] == pytest.approx(np.mean(gains), abs=1e-5)
    # Nothing is encoded twice, and nothing that no query needs.
    titles = {title for grades in usable.values() for title in grades}
    assert sorted(encoder.seen) == sorted([*usable, *titles])
    assert scores(task)["map_at_1000"] == found["map_at_1000"]


def test_retrieval(write: Write) -> None:
    path = write("ranked.json", RANKED)
    (task,) = read_local(entry(write, kind="Retrieval", file=path.name, k_values=[7], main_score="recall_at_7"))
    assert task.metadata.name == "ranked"
    encoder = Encoder()
    found = scores(task, encoder)
    judged = judgements(RANKED)
    titles = list(dict.fromkeys(row["title"] for row in RANKED))
    relevant = {query: {title for title, grade in grades.items() if grade} for query, grades in judged.items()}
    usable = {query: wanted for query, wanted in relevant.items() if wanted}
    assert len(usable) < len(judged) and task.size == len(usable)
    assert sorted(encoder.seen) == sorted([*usable, *titles])
    ranks = {query: sorted(titles, key=lambda title, q=query: -cosine(q, title)) for query in usable}  # type: ignore[misc]

    def recall(k: int) -> float:
        return float(np.mean([len(wanted & set(ranks[query][:k])) / len(wanted) for query, wanted in usable.items()]))

    for k in (1, 5, 7, 20, 1000):
        assert found[f"recall_at_{k}"] == pytest.approx(recall(k), abs=1e-5)
    assert found["main_score"] == found["recall_at_7"] > found["recall_at_1"] and found["recall_at_1000"] == 1
    first = [1 / (1 + min(ranks[query].index(title) for title in wanted)) for query, wanted in usable.items()]
    assert found["mrr_at_1000"] == pytest.approx(np.mean(first), abs=1e-5)
    gains = [
        ndcg_score([[judged[query].get(title, 0) for title in titles]], [[cosine(query, t) for t in titles]], k=10)
        for query in usable
    ]
    assert found["ndcg_at_10"] == pytest.approx(np.mean(gains), abs=1e-5)
    assert scores(task)["ndcg_at_10"] == found["ndcg_at_10"]


def test_retrieval_from_three_files(write: Write) -> None:
    judged = {query: grades for query, grades in judgements(RANKED).items() if any(grades.values())}
    titles = list(dict.fromkeys(row["title"] for row in RANKED))
    write("queries.jsonl", [{"_id": f"q{n}", "text": query} for n, query in enumerate(judged)])
    corpus = [{"_id": str(n), "title": title.split()[0], "text": title.split()[1]} for n, title in enumerate(titles)]
    write("corpus.jsonl", corpus)
    lines = [
        f"q{n}\t{titles.index(title)}\t{grade}\n"
        for n, grades in enumerate(judged.values())
        for title, grade in grades.items()
    ]
    write("qrels.tsv", "query-id\tcorpus-id\tscore\n" + "".join(lines))
    files = {"queries": "queries.jsonl", "documents": "corpus.jsonl", "relevance": "qrels.tsv"}
    spec = entry(write, name="three", kind="Retrieval", files=files)
    (task,) = read_local(spec)
    (one,) = read_local(f"Retrieval={write('ranked.json', RANKED)}")
    shown = ("ndcg_at_10", "map_at_1000", "recall_at_20", "mrr_at_10")
    found, wanted = scores(task), scores(one)
    assert [found[name] for name in shown] == pytest.approx([wanted[name] for name in shown])
    # A folder of these names needs no tasks file.
    (folder,) = read_local(f"Retrieval={Path(spec).parent}")
    assert folder.metadata.revision == task.metadata.revision and folder.metadata.name == Path(spec).parent.name
    write("qrels.tsv", "query-id\tcorpus-id\tscore\nq0\t0\t1\nq0\tnone\t0\n")
    with pytest.raises(ValueError, match="line 3: document_id 'none' is not in corpus.jsonl"):
        read_local(spec)
    write("corpus.jsonl", [*corpus, corpus[1]])
    with pytest.raises(ValueError, match=f"line {len(corpus) + 1}: the document_id '1' stands twice"):
        read_local(spec)


# --- what a task is


def test_a_revision_is_of_the_data_and_the_protocol(write: Write) -> None:
    def revision(seed: int = 0, limit: int | None = None, **values: Any) -> str:
        (task,) = read_local(entry(write, **{"kind": "class", "file": "t.jsonl", **values}), seed=seed, limit=limit)
        assert task.metadata.dataset["path"] == values.get("name", "t")
        return str(task.metadata.revision)

    write("t.jsonl", TEXTS)
    first = revision()
    assert len(first) == 64 and revision(name="other") == first and revision(samples_per_label=8) != first
    others = [revision(seed=1), revision(limit=30), revision(n_experiments=3), revision(main_score="f1")]
    write("t.jsonl", [*TEXTS[:-1], {**TEXTS[-1], "text": "another"}])
    others.append(revision())
    assert len({first, *others}) == 6


def test_a_limit_draws_by_the_seed(write: Write) -> None:
    write("t.jsonl", [{"text": f"t{n}", "label": "rare" if n < 2 else f"often {n % 2}"} for n in range(200)])

    def drawn(kind: str, most: int, seed: int = 0, **values: Any) -> Any:
        (task,) = read_local(entry(write, kind=kind, file="t.jsonl", **values), limit=most, seed=seed)
        task.load_data()
        return task.dataset["test"]

    twenty = drawn("Clustering", 20)
    assert len(twenty) == 20 and sorted(set(twenty["labels"])) == [0, 1, 2]
    assert sorted(twenty["sentences"], key=lambda text: int(text[1:])) == list(twenty["sentences"])
    # A smaller draw is part of a larger one; another seed draws others.
    assert set(twenty["sentences"]) < set(drawn("Clustering", 50)["sentences"])
    assert set(twenty["sentences"]) != set(drawn("Clustering", 20, seed=1)["sentences"])
    # The smaller of both limits counts; each part keeps every label.
    assert len(drawn("Clustering", 50, limit=30)) == len(drawn("Clustering", 30, limit=50)) == 30
    assert len(drawn("Classification", 12)) == 12
    (task,) = read_local(f"Reranking={write('ranked.json', RANKED)}", limit=5)
    assert task.size == 5
    found = scores(task)
    assert 0 < found["map_at_1000"] <= 1


def test_a_limit_caps_what_clustering_embeds(write: Write) -> None:
    path = write("many.jsonl", [{"text": f"t{n}", "label": n % 3} for n in range(1000)])
    for limit, count in ((None, 40), (500, 40), (20, 20)):
        encoder = Encoder()
        scores(read_local(f"Clustering={path}", limit=limit)[0], encoder)
        assert len(encoder.seen) == count
    with pytest.raises(ValueError, match="embeds 3 of 90 texts, fewer than their 4 labels. Set max_fraction_of_doc"):
        read_local(f"Clustering={write('few.jsonl', [*TEXTS[1:], {'text': 'a', 'label': 'w'}])}")


def test_equal_texts_are_one_document(write: Write) -> None:
    rows = [
        ("q", "same", 0),
        ("q", "same", 1),
        ("q", "same", 0),
        ("q", "other", 0),
        ("q", "other", 0),
        ("r", "same", 0),
        ("r", "b", 2),
    ]
    path = write("r.tsv", "query\tpassage\tlabel\n" + "".join(f"{q}\t{d}\t{s}\n" for q, d, s in rows))
    (task,) = read_local(f"Reranking={path}")
    assert {reason: names for reason, names in task.left_out.items()} == {
        "the same query and document again, of another relevance: the highest is kept": [
            "r.tsv, line 3",
            "r.tsv, line 4",
        ],
        "the same query and document again": ["r.tsv, line 6"],
    }
    task.load_data()
    data = task.dataset["default"]["test"]
    assert sorted(data["corpus"]["text"]) == ["b", "other", "same"] and len(set(data["corpus"]["id"])) == 3
    assert sorted(sorted(grades.values()) for grades in data["relevant_docs"].values()) == [[0, 1], [0, 2]]


def test_labels_say_what_counts(write: Write) -> None:
    rows = [{**row, "label": {0: "contradiction", 1: "entailment"}[row["label"]]} for row in MARKED]
    rows += [{**MARKED[0], "label": "neutral"}] * 3 + [{**MARKED[0], "label": "-"}]
    path = write("nli.jsonl", rows)
    labels = {"entailment": 1, "contradiction": 0, "neutral": None, "-": None}
    (task,) = read_local(entry(write, kind="pair", file=path.name, labels=labels))
    assert {reason: len(names) for reason, names in task.left_out.items()} == {
        "label 'neutral'": 3,
        "label '-'": 1,
    }
    assert scores(task)["cosine_ap"] == scores(read_local(f"pair={write('m.jsonl', MARKED)}")[0])["cosine_ap"]
    del labels["neutral"]
    with pytest.raises(ValueError, match=r"nli.jsonl, line 71: the label 'neutral' is not among labels, .*null"):
        read_local(entry(write, kind="pair", file=path.name, labels=labels))
    # Grades of a ranking likewise.
    grades = {"bad": 0, "fine": 1, "best": 2}
    rows = [{**row, "label": ("bad", "fine", "best")[int(row["label"])]} for row in RANKED]
    (named,) = read_local(entry(write, kind="Reranking", file=write("n.jsonl", rows).name, labels=grades))
    (plain,) = read_local(f"Reranking={write('p.jsonl', RANKED)}")
    assert named.metadata.revision == plain.metadata.revision


def test_a_task_is_loaded_again_and_cached_by_mteb(write: Write, tmp_path: Path) -> None:
    (task,) = read_local(f"STS={write('pairs.jsonl', PAIRS)}")
    encoder = Encoder()
    encoder.mteb_model_meta = ModelMeta.create_empty({"name": "made/up", "revision": "1"})
    cache = mteb.ResultCache(tmp_path / "cache")
    options: dict[str, Any] = {"cache": cache, "show_progress_bar": False}

    def main(task: Any) -> float:
        return float(mteb.evaluate(encoder, task, **options).task_results[0].scores["test"][0]["main_score"])

    first = main(task)
    # mteb has unloaded the data, and cached the result.
    assert not task.data_loaded and task.metadata.name == "pairs"
    read = len(encoder.seen)
    assert main(task) == pytest.approx(first, abs=1e-5) and len(encoder.seen) == read
    # mteb's cache goes by the name alone: whoever uses it has to compare the revision.
    (other,) = read_local(f"STS={write('pairs.jsonl', PAIRS[:50])}")
    assert other.metadata.revision != task.metadata.revision
    assert main(other) == pytest.approx(first, abs=1e-5)
    options["overwrite_strategy"] = "always"
    assert main(other) != pytest.approx(first, abs=1e-3) and main(task) == pytest.approx(first)


def test_skipped_lines_are_counted(write: Write) -> None:
    rows = [*PAIRS, {"text1": "a", "text2": "", "score": 1}, {"text1": "a", "text2": "b", "score": "high"}, {"x": 1}]
    path = write("p.jsonl", rows)
    (task,) = read_local(entry(write, kind="STS", file=path.name, bad_lines="skip"))
    assert task.left_out == {"cannot be read": ["p.jsonl, line 61", "p.jsonl, line 62", "p.jsonl, line 63"]}
    assert task.size == 60


# --- real data


@pytest.mark.slow
@needs_data
def test_real_data(write: Write) -> None:
    """Every kind on data as they are distributed, by the embedded model, for a few rows."""
    import st_reba

    def at(path: str) -> str:
        return str(DATA / path)

    stack = {
        role: at(f"clustering/{role_}_StackOverflow.txt") for role, role_ in (("text", "title"), ("label", "label"))
    }
    nli = {"entailment": 1, "contradiction": 0, "neutral": None, "-": None}
    tasks: list[dict[str, Any]] = [
        {"name": "STS-B-zh", "kind": "STS", "file": at("sts/cnsd-sts-test.txt"), "language": "zh"},
        {"name": "STS-B-en", "kind": "STS", "file": at("sts/sts-test.csv"), "language": "en"},
        {"name": "AFQMC pairs", "kind": "pair", "file": at("sts/afqmc-dev.jsonl")},
        {"name": "AFQMC STS", "kind": "STS", "file": at("sts/afqmc-dev.jsonl")},
        {"name": "OCNLI dev", "kind": "pair", "file": at("pairs/ocnli-dev.jsonl"), "labels": nli},
        *(
            {
                "name": f"{name} few",
                "kind": "class",
                "n_experiments": 2,
                "train": at(f"classification/{name}/train_few_all.json"),
                "test": at(f"classification/{name}/test_public.json"),
            }
            for name in ("tnews", "eprstmt")
        ),
        {"kind": "class", "file": at("classification/waimai_10k.csv"), "n_experiments": 2},
        {"name": "StackOverflow", "kind": "Clustering", "files": stack, "language": "en", "n_clusters": 2},
        {"name": "QBQTC reranking", "kind": "rerank", "file": at("ranking/qbqtc-dev.json")},
        {"name": "QBQTC retrieval", "kind": "Retrieval", "file": at("ranking/qbqtc-dev.json")},
    ]
    spec = str(write("tasks.yaml", json.dumps(tasks)))
    whole = {task.metadata.name: task for task in read_local(spec)}
    assert {name: task.size for name, task in whole.items()} == {
        "STS-B-zh": 1361,
        "STS-B-en": 1379,
        "AFQMC pairs": 4316,
        "AFQMC STS": 4316,
        "OCNLI dev": 1847,
        "tnews few": 2010,
        "eprstmt few": 610,
        "waimai_10k": 2397,
        "StackOverflow": 20000,
        "QBQTC reranking": 218,
        "QBQTC retrieval": 14414,
    }
    assert [len(names) for names in whole["OCNLI dev"].left_out.values()] == [1103, 50]
    assert [len(names) for names in whole["QBQTC reranking"].left_out.values()] == [50, 6, 18584]
    model = st_reba.build("mini", "classical", pooling="mean", device="cpu")
    for task in read_local(spec, limit=30):
        found = scores(task, model)
        assert -1 <= found["main_score"] <= 1, task.metadata.name
        assert task.size == 30 and found["main_score"] != 0
