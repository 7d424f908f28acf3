"""Scores against plain loops and other libraries, files and their parts, and what a space may hold."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from composing_data import rows_of, write_rows

from st_reba.evaluation import Filter, Space, read_parts, read_space, read_task
from st_reba.evaluation.composing.parts import Vectors
from st_reba.evaluation.composing.reading import Parted, part_of
from st_reba.evaluation.composing.scoring import score, units
from st_reba.evaluation.composing.spacefile import write_space
from st_reba.evaluation.composing.trial import Arm, Read, Trial


def drawn(count: int, width: int = 6) -> Vectors:
    return units(np.random.default_rng(count).normal(size=(count, width)) + 0.5)


# --- scores


def test_pairs_score_by_ranks() -> None:
    stats = pytest.importorskip("scipy.stats")
    items = [(f"t{n}", f"t{(3 * n + 1) % 50}", float(n * n % 6)) for n in range(50)]
    part, vectors = part_of("pairs", items), drawn(50)
    rows = {text: vectors[place] for place, text in enumerate(part.texts)}
    cosines = [math.fsum(a * b for a, b in zip(rows[one], rows[two], strict=True)) for one, two, _ in items]
    assert score(part, vectors) == pytest.approx(stats.spearmanr(cosines, [item[2] for item in items]).statistic)
    # Nothing to rank, on either side.
    assert score(part, np.ones((50, 6)) / 6**0.5) == 0
    assert score(part_of("pairs", [(a, b, 1.0) for a, b, _ in items]), vectors) == 0


def test_triples_score_by_the_nearer() -> None:
    items = [(f"t{n}", f"t{(n + 1) % 40}", f"t{(n + 9) % 40}") for n in range(40)] + [("t1", "t5", "t5")]
    part, vectors = part_of("triples", items), drawn(40)
    rows = {text: vectors[place] for place, text in enumerate(part.texts)}
    right = 0.0
    for anchor, near, far in items:
        one, other = float(rows[anchor] @ rows[near]), float(rows[anchor] @ rows[far])
        right += 0.5 if one == other else float(one > other)
    assert right % 1 == 0.5 and score(part, vectors) == pytest.approx(right / 41)


def test_a_ranking_scores_by_discounted_gains() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    generator = np.random.default_rng(1)
    items = [(f"q{q}", f"d{(5 * q + n) % 31}", float(generator.integers(4))) for q in range(12) for n in range(14)]
    part = part_of("ranking", items)
    vectors = drawn(len(part.texts))
    rows = {text: vectors[place] for place, text in enumerate(part.texts)}
    values = []
    for query in dict.fromkeys(item[0] for item in items):
        graded = {document: grade for name, document, grade in items if name == query}
        gains = [[2**grade - 1 for grade in graded.values()]]
        cosines = [[float(rows[query] @ rows[document]) for document in graded]]
        values.append(metrics.ndcg_score(gains, cosines, k=10))
    assert len(part) == 12 and score(part, vectors) == pytest.approx(np.mean(values))
    # Where all cosines are alike, an order that the file has by itself earns nothing.
    alike = part_of("ranking", [("q", "a", 2.0), ("q", "b", 1.0), ("q", "c", 0.0)])
    worst = (1 / math.log2(3) + 3 / math.log2(4)) / (3 + 1 / math.log2(3))
    assert score(alike, np.ones((4, 2)) / 2**0.5) == pytest.approx(worst)


def test_classes_are_learnt_from_one_half_and_scored_on_the_other() -> None:
    linear = pytest.importorskip("sklearn.linear_model")
    # Class by class in turn, and sorted: either way both halves hold both.
    for labels in (["x", "y"] * 30, ["x"] * 30 + ["y"] * 30, ["x", "y", "y"] * 20):
        part = part_of("classes", [(f"t{n}", label) for n, label in enumerate(labels)])
        vectors = drawn(60) + 0.4 * np.asarray([label == "x" for label in labels])[:, None]
        halves: list[list[int]] = [[], []]
        place = 0
        for label in ("x", "y"):
            for n in (n for n, other in enumerate(labels) if other == label):
                halves[place % 2].append(n)
                place += 1
        found = []
        for one, other in (halves, halves[::-1]):
            fitted = linear.LogisticRegression(max_iter=100).fit(vectors[sorted(one)], [labels[n] for n in sorted(one)])
            found.append(np.mean([fitted.predict(vectors[[n]])[0] == labels[n] for n in other]))
        assert 0.5 < score(part, vectors) == pytest.approx(np.mean(found))
    one = part_of("classes", [(f"t{n}", "x") for n in range(20)])
    assert score(one, drawn(20)) == 1


@pytest.mark.parametrize("kind", ["pairs", "triples", "classes", "ranking"])
def test_some_items_are_scored_as_if_there_were_no_others(kind: Any) -> None:
    rows = [tuple(row.values()) for row in rows_of(kind, 40)]
    part = part_of(kind, rows)
    vectors, every = drawn(len(part.texts)), np.arange(len(part))
    chosen = np.asarray([3, 4, 11, 20, 39])
    some = part.of_items(chosen)
    places = [part.texts.index(text) for text in some.texts]
    assert len(some) == 5 and len(some.texts) < len(part.texts)
    learn = np.arange(5)
    assert np.array_equal(
        some.evidence(vectors[places], learn, learn), part.evidence(vectors, chosen, chosen if part.learns else every)
    )
    both = some.joined(part.of_items(np.asarray([0, 3])))
    assert len(both) == 7 and len(set(both.texts)) == len(both.texts)
    assert [both.texts[n] for n in _texts(kind, both.items[5])] == [part.texts[n] for n in _texts(kind, part.items[0])]
    assert _texts(kind, both.items[6]) == _texts(kind, both.items[0])


def _texts(kind: str, item: Any) -> list[int]:
    return {"pairs": list(item[:2]), "triples": list(item), "classes": [item[0]]}.get(kind) or [item[0], *item[1]]


# --- files


@pytest.mark.parametrize("kind", ["pairs", "triples", "classes", "ranking"])
def test_files_are_parted(kind: Any, tmp_path: Path) -> None:
    rows = rows_of(kind, 100)
    path = write_rows(tmp_path / "a b.jsonl", rows)
    parted = read_parts(path, kind)
    assert parted.validation.kind == parted.heldout.kind == kind
    assert abs(len(parted.validation) - 50) <= 4 and len(parted.validation) + len(parted.heldout) <= 100
    assert parted.arguments == (str(path), "--kind", kind) and parted.seed == 0
    assert parted.fingerprint == read_parts(path, kind).fingerprint != read_parts(path, kind, seed=1).fingerprint
    words = parted.describe()
    assert f"{len(parted.validation)} validation, {len(parted.heldout)} held-out" in words and kind in words
    shared = set(parted.validation.texts) & set(parted.heldout.texts)
    assert parted.shared == len(shared) and (f"({len(shared)} of its" in words) is bool(shared)
    smaller = read_parts(path, kind, limit=96, validation=0.55, seed=4)
    assert len(smaller.validation) + len(smaller.heldout) <= 96 and smaller.seed == 4
    assert smaller.arguments[1:] == ("--kind", kind, "--validation", "0.55", "--limit", "96", "--seed", "4")
    if kind == "ranking":
        # A query's lines stay together, and its texts are numbered where they are asked for.
        queries = [{part.texts[item[0]] for item in part.items} for part in (parted.validation, parted.heldout)]
        assert not queries[0] & queries[1] and all(len(item[1]) == 6 for item in parted.validation.items)
        graded = {(row["query"], row["document"]): row["relevance"] for row in rows}
        for item in parted.heldout.items:
            for document, grade in zip(item[1], item[2], strict=True):
                assert graded[parted.heldout.texts[item[0]], parted.heldout.texts[document]] == grade
    if kind != "ranking":
        assert read_parts(path).fingerprint == parted.fingerprint


def test_what_chooses_does_not_report(tmp_path: Path) -> None:
    rows = rows_of("pairs", 100)
    turned = [{"text1": row["text2"], "text2": row["text1"], "score": row["score"]} for row in rows[:20]]
    parted = read_parts(write_rows(tmp_path / "a.jsonl", rows + turned))
    asked = [
        {frozenset(part.texts[n] for n in item[:2]) for item in part.items}
        for part in (parted.validation, parted.heldout)
    ]
    assert not asked[0] & asked[1]
    left_out = 120 - len(parted.validation) - len(parted.heldout)
    assert left_out > 3 and f"{left_out} left out of held-out, as they are in the validation part" in parted.describe()
    # Of a further file too; of classes by the text alone, whatever it is called.
    classes = rows_of("classes", 120)
    one = write_rows(tmp_path / "one.jsonl", classes[:60])
    two = write_rows(tmp_path / "two.jsonl", [{**row, "label": "other"} for row in classes[50:]])
    parted = read_parts(one, test=two)
    assert (len(parted.validation), len(parted.heldout), parted.shared) == (60, 60, 0)
    assert "held-out from two.jsonl; 10 left out" in parted.describe()
    with pytest.raises(ValueError, match=r"60 left out of held-out.*0 items for held-out, but .* 40 at the least"):
        read_parts(one, test=one)
    ranking = rows_of("ranking", 100)
    one = write_rows(tmp_path / "r1.jsonl", ranking[:360])
    two = write_rows(tmp_path / "r2.jsonl", ranking[300:])
    parted = read_parts(one, "ranking", test=two)
    assert (len(parted.validation), len(parted.heldout)) == (60, 40)


def test_a_limit_counts_queries_that_can_be_scored(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = rows_of("ranking", 100)
    # One document alone, several that are all alike, one and the same with two relevances: nothing to order.
    mute = [{"query": f"q{n}", "document": "d", "relevance": 1} for n in range(300)]
    mute += [{"query": "alike", "document": document, "relevance": 2} for document in "ab"]
    mute += [{"query": "twice", "document": "a", "relevance": relevance} for relevance in (0, 1)]
    path = write_rows(tmp_path / "clicks.jsonl", mute + rows)
    parted = read_parts(path, "ranking", limit=90)
    assert len(parted.validation) + len(parted.heldout) == 90
    assert "; 302 queries left out, whose documents are all alike to them" in parted.describe()
    assert "left out" not in read_parts(write_rows(tmp_path / "all.jsonl", rows), "ranking").describe()


def test_rankings_are_put_together_by_their_queries() -> None:
    rows = [("q", "a", 1.0), ("p", "b", 0.0), ("q", "b", 0.0), ("q", "a", 0.0), ("p", "c", 0.0), ("r", "a", 2.0)]
    part = part_of("ranking", rows)
    # Of a document that stands twice the first; no query whose documents are all alike, nor its texts.
    assert part.texts == ("q", "a", "b") and part.items == ((0, (1, 2), (1.0, 0.0)),)


def test_columns_and_bad_lines(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = rows_of("ranking", 100)
    for row in rows:
        row["title"] = row.pop("document")
        row["label"] = str(row.pop("relevance"))
    bad = [
        {**rows[0], "label": "-1"},
        {**rows[0], "label": "good"},
        {**rows[0], "title": " "},
        {**rows[0], "label": 31},
    ]
    path = write_rows(tmp_path / "a.jsonl", [*rows[:5], *bad, *rows[5:]])
    parted = read_parts(path, "ranking", columns={"document": "title"}, bad_lines="skip")
    assert len(parted.validation) == 50 and "4 bad lines skipped: 6, 7, 8, 9" in parted.describe()
    assert parted.arguments[1:] == ("--column", "document=title", "--kind", "ranking", "--skip-bad-lines")
    for number, message in enumerate(("'-1', not a grade from 0 to 30", "'good', not a grade", "title is empty", "31")):
        line = write_rows(tmp_path / "b.jsonl", [*rows, bad[number]])
        with pytest.raises(ValueError, match=message):
            read_parts(line, "ranking")
    triples = tmp_path / "t.csv"
    triples.write_text("text,positive,negative\n" + "".join(f"a{n},b{n},c{n}\n" for n in range(90)) + "a,b\n")
    with pytest.raises(ValueError, match=r"t.csv, line 92: 2 fields, but the header has 3 columns"):
        read_parts(triples)
    assert read_parts(triples, bad_lines="skip").validation.kind == "triples"
    with pytest.raises(ValueError, match="holds triples, which only the composed search takes: st-reba tune --compose"):
        read_task(triples, bad_lines="skip")
    with pytest.raises(ValueError, match=r"no columns for anchor, positive, negative \(for triples\)"):
        read_parts(path, "triples", bad_lines="skip")


def test_files_that_cannot_be_searched_with(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", rows_of("pairs", 100))
    tags = tmp_path / "tags.txt"
    tags.write_text("Ann B-PER\nsleeps O\n\n" * 100)
    cases: list[tuple[Path, dict[str, Any], str]] = [
        (tags, {}, "holds tags, whose words have vectors of their own"),
        (path, {"limit": 79}, r"a.jsonl \(text1 from.*: \d\d items for .*, but a choice among many methods needs 40"),
        (path, {"limit": 0}, "limit=0 must be a whole number"),
        (path, {"seed": 1.5}, r"seed=1.5 must be a whole number"),
        (path, {"validation": 1}, "validation=1 must be a fraction between 0 and 1"),
        (path, {"kind": "triplets"}, "kind='triplets' is not known"),
        (path, {"test": tags}, "kind='pairs' is read from"),
        (path, {"test": path, "validation": 0.5}, "all of the file is for validation"),
    ]
    for file, options, message in cases:
        with pytest.raises(ValueError, match=message):
            read_parts(file, **options)
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_parts(tmp_path / "gone.jsonl")
    part = part_of("pairs", [("a", "b", 1.0)] * 50)
    with pytest.raises(ValueError, match="x: 0 items for held-out"):
        Parted("x", part, part.of_items(np.arange(0)))


# --- spaces


@pytest.mark.parametrize(
    "space",
    [
        Space(),
        Space(layers=((3, 3, "mean"), (0, 2, "concat")), filters=(Filter("abtt", 2), Filter("whiten", 1, 0.5, 0.9))),
        Space(
            templates=(None, "总结：{text}", "echo"), separators=("", "\n"), kinds=(), norms=(False, True), sinks=False
        ),
    ],
)
def test_a_space_is_read_as_it_was_written(space: Space, tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(write_space(space), encoding="utf-8")
    assert read_space(path) == space
    assert Filter() in space.filters


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "is no mapping of"),
        ("repeat: [1]", "'repeat' is not known; a space has .*'repeats'"),
        ("repeats: 2", "repeats=2 must be a list"),
        ("repeats: [0]", "repeats: 0 must be a whole number from 1 on"),
        ("repeats: [true]", "repeats: True must be a whole number"),
        ("repeats: []", "repeats is empty"),
        ("templates: [{query: a, document: b}]", "templates: .* must be one template's name"),
        ("templates: [metaeol]", "ensembles and mappings are not searched"),
        ("templates: [ecko]", "templates: .*ecko"),
        ("templates: [echo-instruct]", "treats queries apart, or needs a field"),
        ("separators: [1]", "separators: 1 must be a text"),
        ("kinds: [forward]", "kinds: 'forward' is not known"),
        ("sinks: 1", "sinks=1 must be true or false"),
        ("pooled: [max]", "pooled: 'max' is not known: choose of .*'reba mean'"),
        ("norms: [1]", "norms: 1 is not known"),
        ("layers: []", "layers is empty"),
        ("layers: [-1]", r"layers: \(-1, -1, 'mean'\) must be a layer from 0"),
        ("layers: [[3, 1]]", r"layers: \(3, 1, 'mean'\) must be"),
        ("layers: [[1, 2, sum]]", "one of \\['mean', 'concat'\\]"),
        ("layers: [a]", "layers: .* must be a layer"),
        ("filters: [centre]", "filters: kind='centre' is not known"),
        ("filters: [{r: 1}]", "is no filter; write a name"),
        ("filters: [{kind: abtt}]", "filters: r=0 of abtt must be a whole number from 1 on"),
        ("filters: [{kind: abtt, d: 1}]", "filters: 'd' is not known; a filter has"),
        ("filters: [{kind: center, r: 1}]", "filters: r=1 does not belong to kind='center'"),
        ("filters: [{kind: whiten, share: 0}]", "filters: share=0 must be a number above 0, and at most 1"),
        ("filters: [{kind: whiten, power: 1.5}]", "filters: power=1.5 must be"),
        ("layers: [1]\nlayers: [2]", "layers"),
    ],
)
def test_a_wrong_space_is_named(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message) as caught:
        read_space(path)
    assert "space.yaml" in str(caught.value)


def test_a_space_that_does_not_fit_the_base(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_space(tmp_path / "gone.yaml")
    with pytest.raises(ValueError, match="there is no layer 7: the base has 0"):
        Space(layers=((7, 7, "mean"),)).arms(6)
    with pytest.raises(ValueError, match="the space has nothing to read: pooled=.*'end'"):
        Space(templates=(None,), pooled=("end",)).arms(6)
    only = Space(templates=(None, "prompteol"), pooled=("reba mean",), kinds=()).arms(6)
    assert only == [Arm(repeats=2)]


def test_arms_are_different_passes() -> None:
    arms = Space().arms(6)
    plans = {(arm.template, arm.repeats, json.dumps(arm.plan(6).to_dict(), sort_keys=True)) for arm in arms}
    assert len(plans) == len(arms) and arms[0].kind == "forward"
    # One input: unconverted, 6 + 6 conversions, and 15 that hide the sink above another layer.
    assert len(arms) == 4 * (1 + 12 + 15)


def test_a_plan_counts_from_the_top_of_the_layers_that_run() -> None:
    for arm in Space().arms(6):
        for runs in range(1, 7):
            wanted = ["forward"] * min(arm.first if arm.kind != "forward" else runs, runs)
            wanted += [arm.kind] * (runs - len(wanted))
            if arm.sink is not None:
                wanted[arm.sink :] = ["nosink-bidirectional"] * len(wanted[arm.sink :])
            assert list(arm.plan(runs).resolve(runs).kinds) == wanted, f"{arm}, {runs}"


def test_a_method_is_told_by_what_runs() -> None:
    for arm in Space().arms(6):
        for last in range(7):
            trial = Trial(arm, Read(last, last, True, "mean"))
            runs = max(1, last)
            assert trial.own.arm.plan(runs).resolve(runs) == arm.plan(runs).resolve(runs)
            # Two that are told alike run alike, and nothing is told that does not run.
            assert trial.own.own == trial.own and trial.own.arguments(6) == trial.arguments(6)
            assert trial.own.arm.kind == "forward" or trial.own.arm.first < runs
            assert trial.own.arm.sink is None or trial.own.arm.sink < runs


@pytest.mark.parametrize(
    ("arm", "read", "paper"),
    [
        (Arm(), Read(6, 6, True, "last"), "classical"),
        (Arm("prompteol"), Read(6, 6, True, "mean"), "classical"),
        (Arm("prompteol"), Read(6, 6, True, "end"), "prompteol"),
        (Arm("echo"), Read(6, 6, True, "mean"), "echo"),
        (Arm(repeats=3), Read(6, 6, True, "last"), "echo"),
        (Arm(repeats=2), Read(6, 6, True, "reba last"), "reba"),
        (Arm("echo"), Read(6, 6, True, "reba last"), "composed"),
        (Arm(kind="nosink-bidirectional", first=4), Read(6, 6, True, "mean"), "nosink"),
        (Arm(kind="bidirectional", first=0, sink=4), Read(6, 6, True, "mean"), "nosink"),
        (Arm(kind="bidirectional", first=0), Read(6, 6, True, "last"), "composed"),
        (Arm(repeats=2, kind="bidirectional", first=0), Read(6, 6, True, "mean"), "composed"),
        (Arm(repeats=2), Read(5, 5, True, "mean"), "composed"),
        (Arm(), Read(0, 6, True, "mean"), "composed"),
        (Arm(), Read(6, 6, False, "mean"), "composed"),
    ],
)
def test_whose_method_it_is(arm: Arm, read: Read, paper: str) -> None:
    assert Trial(arm, read).paper(6) == paper
    assert Trial(arm, read, Filter("center")).paper(6) == "composed"


def test_the_space_in_the_documentation(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "COMPOSING.md").read_text(encoding="utf-8")
    path = tmp_path / "space.yaml"
    path.write_text(text.partition("```yaml\n")[2].partition("```")[0], encoding="utf-8")
    assert len(read_space(path).arms(6)) == 35 and len(Space().arms(6)) == 112
    assert "there are 112 arms" in text
