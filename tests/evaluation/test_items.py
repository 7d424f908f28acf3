"""Scores of every kind against scipy, scikit-learn, seqeval, mteb and plain loops, on the same vectors."""

from __future__ import annotations

import json
import math
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from mteb._evaluators.retrieval_metrics import calculate_retrieval_scores
from mteb.abstasks.pair_classification import AbsTaskPairClassification
from scipy.stats import pearsonr, spearmanr
from seqeval.metrics import classification_report, f1_score, precision_score, recall_score
from sklearn.cluster import MiniBatchKMeans
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, average_precision_score, v_measure_score
from sklearn.metrics import f1_score as sklearn_f1

from st_reba.evaluation.data import make_task
from st_reba.evaluation.items import Classes, Items, Ranking, Retrieval, Tags, scored
from st_reba.evaluation.statistics import interval

EXACT = 1e-9
KINDS = (
    *("STS", "PairClassification", "Triples", "Classification", "Clustering"),
    *("Reranking", "Retrieval", "NER", "WordSense"),
)


def rows_of(kind: str, count: int = 60, seed: int = 0) -> list[tuple[Any, ...]]:
    """Rows as people have them; texts stand in several of them."""
    chance = np.random.default_rng([seed, count])

    def text(name: str, most: int) -> str:
        return f"{name} {chance.integers(most)}"

    if kind in ("Classification", "Clustering"):
        return [(f"text {n}", "xyz"[chance.integers(3)]) for n in range(count)]
    if kind in ("Reranking", "Retrieval"):
        several = [(f"q{n}", text("d", 40), int(chance.integers(4))) for n in range(count) for _ in range(6)]
        return several + [(f"q{n}", grade, len(grade) % 2) for n in range(count) for grade in ("good", "bad!")]
    if kind == "NER":
        sentences = []
        for _ in range(count):
            tags = chance.choice(
                ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-ORG"], size=chance.integers(1, 9)
            ).tolist()
            sentences.append(([text("w", 30).replace(" ", "") for _ in tags], tags))
        return sentences
    if kind == "WordSense":
        return [("it", *(f"{text('s', 90)}: it {n}" for _ in range(4)), int(chance.integers(4))) for n in range(count)]
    last: dict[str, Callable[[], Any]] = {
        "STS": lambda: float(chance.integers(6)),
        "PairClassification": lambda: int(chance.random() < 0.4),
        "Triples": lambda: text("c", 30),
    }
    return [(f"a {n}", text("b", 30), last[kind]()) for n in range(count)]


def items_of(kind: str, count: int = 60, seed: int = 0) -> Any:
    return make_task(kind, rows_of(kind, count, seed)).items


def vectors_for(items: Items, width: int = 6) -> Any:
    """Vectors that only the text or the word decides, float32 as a model's."""
    texts: list[Any] = list(items.texts)
    if items.kind == "NER":
        texts = [word for item in items.items for word in item[1]]
    if items.kind == "WordSense":
        texts = [json.dumps(word) for word in items.words]  # type: ignore[attr-defined]
    generators = (np.random.default_rng(list(text.encode())) for text in texts)
    return np.stack([generator.normal(size=width) + 0.3 for generator in generators]).astype(np.float32)


def value(items: Items, vectors: Any, name: str | None = None) -> float:
    return items.metrics[name or items.main](items.evidence(vectors))


def cosine(one: Any, other: Any) -> float:
    """By loops, rounded as all cosines are."""
    one, other = one.astype(float).tolist(), other.astype(float).tolist()
    dot = math.fsum(a * b for a, b in zip(one, other, strict=True))
    return round(dot / math.sqrt(math.fsum(a * a for a in one)) / math.sqrt(math.fsum(b * b for b in other)), 6)


# --- scores


def test_scored_pairs() -> None:
    items = items_of("STS")
    vectors = vectors_for(items)
    cosines = [cosine(vectors[one], vectors[two]) for one, two, _ in items.items]
    gold = [score for *_, score in items.items]
    assert len(set(gold)) == 6  # the premise: ties, which share the mean of their ranks
    assert value(items, vectors) == pytest.approx(spearmanr(cosines, gold).statistic, abs=EXACT)
    assert value(items, vectors, "cosine_pearson") == pytest.approx(pearsonr(cosines, gold).statistic, abs=EXACT)


def test_pairs_without_an_order_score_nothing() -> None:
    """Equal texts have equal cosines, whatever rounding makes of them."""
    texts = [f"text {n}" for n in range(500)]
    items = make_task("STS", [(text, text, n) for n, text in enumerate(texts)]).items
    vectors = vectors_for(items, 192)
    assert (value(items, vectors), value(items, vectors, "cosine_pearson")) == (0.0, 0.0)


def test_labelled_pairs() -> None:
    items = items_of("PairClassification", 200)
    vectors = vectors_for(items)
    cosines = np.array([cosine(vectors[one], vectors[two]) for one, two, _ in items.items])
    labels = np.array([label for *_, label in items.items])
    assert value(items, vectors) == pytest.approx(average_precision_score(labels, cosines), abs=EXACT)
    by_mteb, _ = AbsTaskPairClassification._find_best_acc_and_threshold(None, cosines.tolist(), labels, True)  # type: ignore[arg-type]
    assert value(items, vectors, "cosine_accuracy") == pytest.approx(by_mteb, abs=EXACT)
    assert by_mteb > max(labels.mean(), 1 - labels.mean())


def test_triples() -> None:
    rows = [*rows_of("Triples", 40), ("a 1", "b 5", "b 5"), ("a 2", "b 6", "b 6"), ("a 3", "b 7", "b 7")]
    items = make_task("Triples", rows).items
    vectors = vectors_for(items)
    right = ties = 0.0
    for anchor, near, far in items.items:
        one, other = cosine(vectors[anchor], vectors[near]), cosine(vectors[anchor], vectors[far])
        right += 0.5 if one == other else float(one > other)
        ties += one == other
    assert ties >= 3 and right % 1 == 0.5
    assert value(items, vectors) == pytest.approx(right / 43, abs=EXACT)
    assert value(items, vectors, "ties") == pytest.approx(ties / 43, abs=EXACT)


@pytest.mark.parametrize(("apart", "right"), [(4e-7, 0.5), (4e-6, 1.0)])
def test_what_float32_cannot_tell_apart_ties(apart: float, right: float) -> None:
    items = make_task("Triples", [("a", "b", "c")] * 10).items
    vectors = np.array([[1.0, 0.0], [0.6, 0.8], [0.6 - apart, math.sqrt(1 - (0.6 - apart) ** 2)]])
    assert value(items, vectors) == right


@pytest.mark.parametrize("order", ["mixed", "sorted"])
def test_classes(order: str) -> None:
    """Five folds, each label in each: as scikit-learn's own, fold by fold."""
    rows = rows_of("Classification", 90)
    rows = sorted(rows, key=lambda row: row[1]) if order == "sorted" else rows
    items = make_task("Classification", rows).items
    labels = np.array([label for _, label in items.items])
    vectors = vectors_for(items) + 0.8 * np.eye(6, dtype=np.float32)[["xyz".index(label) for label in labels]]
    predicted = np.empty(90, labels.dtype)
    folds = items.folds(5)
    assert sorted(np.concatenate(folds)) == list(range(90))
    assert all(set(labels[fold]) == {"x", "y", "z"} for fold in folds)
    for fold in folds:
        rest = np.setdiff1d(np.arange(90), fold)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            predicted[fold] = LogisticRegression(max_iter=100).fit(vectors[rest], labels[rest]).predict(vectors[fold])
    evidence = scored(items, vectors)
    assert items.metrics["accuracy"](evidence) == pytest.approx(accuracy_score(labels, predicted), abs=EXACT)
    for name, average in (("f1", "macro"), ("weighted_f1", "weighted")):
        wanted = sklearn_f1(labels, predicted, average=average)
        assert items.metrics[name](evidence) == pytest.approx(wanted, abs=EXACT)
    assert 0.5 < items.metrics["accuracy"](evidence) < 1


def test_clusters() -> None:
    items = items_of("Clustering", 90)
    labels = [label for _, label in items.items]
    vectors = vectors_for(items) + np.eye(6, dtype=np.float32)[["xyz".index(label) for label in labels]]
    wanted = [
        v_measure_score(
            labels, MiniBatchKMeans(3, batch_size=512, n_init="auto", random_state=start).fit_predict(vectors)
        )
        for start in range(5)
    ]
    assert value(items, vectors) == pytest.approx(np.mean(wanted), abs=EXACT) and 0.05 < np.mean(wanted) < 1
    # In draws that hold items twice it would be larger.
    draws = items.draws(items.evidence(vectors), "v_measure")
    assert draws.mean() == pytest.approx(np.mean(wanted)) and interval(draws)[0] < np.mean(wanted) < interval(draws)[1]


MTEB_NAMES = {
    "map_at_1000": ("map", "MAP@1000"),
    "ndcg_at_10": ("ndcg", "NDCG@10"),
    "mrr_at_10": ("mrr", "MRR@10"),
    "recall_at_10": ("recall", "Recall@10"),
    "recall_at_1000": ("recall", "Recall@1000"),
}


@pytest.mark.parametrize("kind", ["Reranking", "Retrieval"])
def test_rankings_are_mtebs(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Graded, linear gains; more documents than the ranking is cut to."""
    # Several blocks of queries, the last of which is not full.
    monkeypatch.setattr("st_reba.evaluation.items._TOGETHER", 17)
    items = items_of(kind)
    if kind == "Retrieval":
        judged = {
            items.texts[query]: {items.texts[place]: grade for place, grade in zip(documents, grades, strict=True)}
            for query, documents, grades in items.items
        }
        items = Retrieval.of(judged, [f"other {n}" for n in range(1200)])
    vectors = vectors_for(items)
    qrels: dict[str, dict[str, int]] = {}
    results: dict[str, dict[str, float]] = {}
    for query, documents, grades in items.items:
        qrels[str(query)] = {str(place): int(grade) for place, grade in zip(documents, grades, strict=True)}
        searched = range(items.queries, len(items.texts)) if kind == "Retrieval" else documents
        near = {str(place): cosine(vectors[query], vectors[place]) for place in searched}
        assert len(set(near.values())) > len(near) - 5
        # Of a tie, the lower grade stands first.
        rank = sorted(near, key=lambda place: (-near[place], qrels[str(query)].get(place, 0)))[:1000]
        results[str(query)] = {place: float(1000 - number) for number, place in enumerate(rank)}
    wanted: Any = calculate_retrieval_scores(results, qrels, (10, 1000))
    evidence = items.evidence(vectors)
    by_query = [wanted.all_scores[str(query)] for query, *_ in items.items]
    for name, (group, key) in MTEB_NAMES.items():
        # mteb rounds its means to five digits.
        assert items.metrics[name](evidence) == pytest.approx(getattr(wanted, group)[key], abs=6e-6)
    for column, key in enumerate(("map_cut_1000", "ndcg_cut_10", None, "recall_10", "recall_1000")):
        if key is not None:
            assert evidence[:, column] == pytest.approx([each[key] for each in by_query], abs=EXACT)
    first = [next((1 / (n + 1) for n, d in enumerate(list(results[q])[:10]) if qrels[q].get(d, 0)), 0) for q in qrels]
    assert evidence[:, 2] == pytest.approx(first, abs=EXACT)
    assert (kind == "Retrieval") == (evidence[:, 4].min() < 1)


@pytest.mark.parametrize("kind", [Ranking, Retrieval])
def test_documents_that_are_not_told_apart_earn_nothing(kind: type[Ranking]) -> None:
    items = kind.of({"q": {"best": 2, "good": 1, "bad": 0, "worse": 0}})
    evidence = items.evidence(np.ones((5, 3)))
    ideal = 2 + 1 / math.log2(3)
    assert evidence[0, 1] == pytest.approx((1 / math.log2(4) + 2 / math.log2(5)) / ideal, abs=EXACT)
    assert evidence[0, 0] == pytest.approx((1 / 3 + 2 / 4) / 2, abs=EXACT)
    # Also where the ranking is cut among equals.
    many = kind.of({"q": {f"d {n}": int(n % 100 == 0) for n in range(1500)}})
    assert not many.evidence(np.ones((1501, 3))).any()


def test_entities_are_seqevals() -> None:
    items = items_of("NER", 80)
    vectors = vectors_for(items)
    learn, asked = np.arange(0, 50), np.arange(50, 80)
    evidence = items.evidence(vectors, asked, learn)
    tags = [list(tags) for _, _, tags in items.items]
    ends = np.cumsum([0, *map(len, tags)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        classifier = LogisticRegression(max_iter=100).fit(vectors[: ends[50]], np.concatenate(tags[:50]))
        found = [classifier.predict(vectors[ends[row] : ends[row + 1]]).tolist() for row in asked]
        wanted = tags[50:]
        report: Any = classification_report(wanted, found, output_dict=True)
        by_seqeval = {
            "entity_f1": f1_score(wanted, found),
            "precision": precision_score(wanted, found),
            "recall": recall_score(wanted, found),
            **{f"f1 {name}": report[name]["f1-score"] for name in ("LOC", "ORG", "PER")},
        }
    assert {name: metric(evidence) for name, metric in items.metrics.items()} == pytest.approx(by_seqeval, abs=EXACT)
    assert 0 < by_seqeval["entity_f1"] < 1
    # All of them, in folds.
    assert scored(items, vectors).shape == (80, 9)


def test_entities_that_are_not_seen_are_missed() -> None:
    """Nothing is learnt from a sentence that was not seen, none of its entities is found, and it is named."""
    items = items_of("NER", 40)
    vectors = vectors_for(items)
    ends = np.cumsum([0, *(len(words) for _, words, _ in items.items)])
    half = np.arange(20), np.arange(20, 40)
    blind = vectors.copy()
    blind[ends[0] : ends[1]] = blind[ends[30] : ends[31]] = np.nan
    assert items.unseen(blind) == [f"{n + 1}: {items.texts[items.items[n][0]]:.40}" for n in (0, 30)]
    assert items.unseen(vectors) == []
    found = items.evidence(blind, half[1], half[0])
    without = items.evidence(vectors, half[1], half[0][1:])
    assert np.array_equal(found[:10], without[:10]) and np.array_equal(found[11:], without[11:])
    # Nothing is found; what is wanted stays wanted.
    assert not found[10, 0::3].any() and not found[10, 1::3].any()
    assert np.array_equal(found[10, 2::3], without[10, 2::3])
    with pytest.raises(ValueError, match="no word to learn from is seen whole. Raise --max-tokens"):
        items.evidence(np.full_like(vectors, np.nan), *half)


def test_what_is_cut_or_joined_reads_words_alike() -> None:
    items = make_task("NER", rows_of("NER"), separator="", subtoken="last").items
    for each in (items.subset([3, 1]), items.joined(items)):
        assert isinstance(each, Tags) and (each.separator, each.subtoken) == ("", "last")


def test_one_tag_a_word() -> None:
    with pytest.raises(ValueError, match="the sentence 'a b' has 2 words, but 1 tags"):
        Tags.of([(("a", "b"), ("O",))])


# --- items of every kind


def asked_texts(items: Any, item: Any) -> list[str]:
    return [items.texts[place] for place in items.texts_of(item)]


@pytest.mark.parametrize("kind", KINDS)
def test_some_items_are_scored_as_if_there_were_no_others(kind: str) -> None:
    items = items_of(kind)
    vectors, rows = vectors_for(items), np.array([3, 50, 11, 20, 4, 39, 12, 40, 41, 59])
    some = items.subset(rows)
    assert type(some) is type(items) and len(some) == 10
    if kind != "Retrieval":
        assert 0 < len(some.texts) < len(items.texts)
    assert [asked_texts(some, item) for item in some.items] == [asked_texts(items, items.items[row]) for row in rows]
    own = vectors_for(some)
    if not items.learns:
        wanted = items.evidence(vectors, rows)
        assert some.evidence(own) == pytest.approx(wanted) and wanted.shape[0] == 10
    else:
        learn, ask = np.arange(5), np.arange(5, 10)
        found, wanted = some.evidence(own, ask, learn), items.evidence(vectors, rows[5:], rows[:5])
        name = items.main
        assert some.metrics[name](found) == items.metrics[name](wanted)


@pytest.mark.parametrize("kind", ["Classification", "NER"])
def test_items_are_joined(kind: str) -> None:
    """What is learnt from stands before what is scored; each text once."""
    shared = rows_of(kind, 20, seed=1)
    first, second = (make_task(kind, rows).items for rows in (shared, [*rows_of(kind, 25, seed=2), *shared[:5]]))
    both = first.joined(second)
    assert len(both) == 50 and len(set(both.texts)) == len(both.texts) < len(first.texts) + len(second.texts)
    every = [(part, item) for part in (first, second) for item in part.items]
    for item, (part, alone) in zip(both.items, every, strict=True):
        assert asked_texts(both, item) == asked_texts(part, alone) and item[1:] == alone[1:]


@pytest.mark.parametrize("kind", KINDS)
def test_folds_keep_together_what_asks_for_the_same(kind: str) -> None:
    rows = rows_of(kind, 40)
    items = make_task(kind, [*rows, *rows[:9]]).items
    for count in (2, 5):
        folds = items.folds(count)
        assert sorted(np.concatenate(folds)) == list(range(len(items))) and len(folds) == count
        place = {int(row): number for number, fold in enumerate(folds) for row in fold}
        if kind not in ("Reranking", "Retrieval"):  # where they are one item
            assert all(place[row] == place[row + 40] for row in range(9))
        if kind in ("Classification", "Clustering", "PairClassification"):
            shares = [Counter(items.items[row][-1] for row in fold) for fold in folds]
            assert max(max(each.values()) for each in shares) <= len(items) / count
            assert all(len(each) == len(shares[0]) for each in shares)
    assert [len(each) for each in items.subset([0, 1]).folds(5)] == [1, 1]


@pytest.mark.parametrize("labels", ["xy" * 30, "x" * 30 + "y" * 30, "xyxxyyyyxx" * 6])
def test_folds_hold_every_label_in_its_share(labels: str) -> None:
    items = make_task("Classification", [(f"t{n}", label) for n, label in enumerate(labels)]).items
    for count in (2, 5):
        for fold in items.folds(count):
            assert Counter(labels[row] for row in fold) == {"x": 30 / count, "y": 30 / count}


def test_pairs_ask_for_the_same_either_way() -> None:
    for kind in ("STS", "PairClassification"):
        items = make_task(kind, [("a", "b", 1), ("b", "a", 0), *((f"a {n}", "b", n % 2) for n in range(10))]).items
        assert items.same() == [[0, 1], *([n] for n in range(2, 12))]
    items = make_task("Triples", [("a", "b", "c"), ("a", "c", "b"), ("a", "b", "c"), *[("x", "y", "z")] * 9]).items
    assert items.same()[:2] == [[0, 2], [1]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_fingerprint_is_of_the_items(kind: str) -> None:
    rows = rows_of(kind)
    found = make_task(kind, rows, "one").items
    assert make_task(kind, rows, "other").items.fingerprint == found.fingerprint
    assert replace(found, names=("x",) * len(found), groups=("g",) * len(found)).fingerprint == found.fingerprint
    changed: list[Any] = [make_task(kind, rows[:-8]).items, make_task(kind, [rows[1], rows[0], *rows[2:]]).items]
    last = rows[-1]
    if kind == "NER":
        changed += [
            make_task(kind, [*rows[:-1], (last[0], ["B-NEW"] * len(last[1]))]).items,
            make_task(kind, rows, separator="").items,
            make_task(kind, rows, subtoken="last").items,
        ]
    elif kind == "WordSense":
        changed.append(make_task(kind, [*rows[:-1], (*last[:-1], (last[-1] + 1) % 4)]).items)
    else:
        new = {"Triples": "new", "Classification": "y" if last[1] != "y" else "x"}
        new |= {
            "Clustering": new["Classification"],
            "PairClassification": 1 - last[2] if kind.startswith("Pair") else 0,
        }  # type: ignore[dict-item]
        changed.append(make_task(kind, [*rows[:-1], (*last[:-1], new.get(kind, 5))]).items)
    assert len({found.fingerprint, *(each.fingerprint for each in changed)}) == 1 + len(changed)
    assert len(found.fingerprint) == 64


def test_kinds_of_one_content_differ() -> None:
    one, other = (make_task(kind, rows_of("Classification")).items for kind in ("Classification", "Clustering"))
    assert one.items == other.items and one.fingerprint != other.fingerprint


def test_draws_depend_on_the_items() -> None:
    """Two methods meet the same draws; two tasks of one size do not."""
    one, other = items_of("STS", seed=1), items_of("STS", seed=2)
    evidence = one.evidence(vectors_for(one))
    assert np.array_equal(one.draws(evidence, one.main), one.draws(evidence, one.main))
    assert not np.array_equal(one.draws(evidence, one.main), other.draws(evidence, one.main))
    # Groups are drawn together.
    grouped = replace(one, groups=tuple(str(n // 10) for n in range(60)))
    assert not np.array_equal(grouped.draws(evidence, one.main), one.draws(evidence, one.main))


def test_a_label_that_nothing_teaches() -> None:
    items = Classes(("a", "b", "c"), ((0, "x"), (1, "x"), (2, "y")))
    evidence = items.evidence(np.eye(3), np.array([0, 2]), np.array([1]))
    assert items.metrics["accuracy"](evidence) == 0.5
