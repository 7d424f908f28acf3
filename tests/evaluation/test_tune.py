"""The search: its candidates, its filters, what chooses and what reports, and what it leaves behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

import st_reba
from st_reba import Method
from st_reba.encode import copied_positions
from st_reba.evaluation import readouts, search, tune
from st_reba.evaluation.readouts import of_base, opened, read, vectors
from st_reba.evaluation.search import DIRECTIONS, Scored, Search, chosen, filtered, fitted_filter, papers_of, passes_of
from st_reba.evaluation.tasks import Task, read_task
from st_reba.evaluation.tune import auto
from st_reba.evaluation.views import evidence, views_of

WHO = ["a man", "the old woman", "my neighbour", "a black cat", "the teacher"]
WHAT = ["plays the guitar", "reads a long letter", "is buying bread", "walks home late", "sings"]
WHERE = ["in the street", "near the river", "on a Sunday morning", "behind the school", "without a word"]
TEXTS = [f"{who} {what} {where}" for who in WHO for what in WHAT for where in WHERE]
QUIET: dict[str, Any] = {"say": lambda line: None}


@pytest.fixture(scope="module")
def small(base: Callable[..., str]) -> str:
    return base("deep")


@pytest.fixture(scope="module")
def found(small: str, tmp_path_factory: pytest.TempPathFactory) -> tune.TuneReport:
    return tune.tune(small, TEXTS, tmp_path_factory.mktemp("tuned") / "out", **QUIET)


# Candidates.


@pytest.mark.parametrize("number", range(15))
def test_a_readout_is_what_its_method_gives(small: str, number: int) -> None:
    base = opened(small)
    each = passes_of(6, "LATIN", labelled=True)[number]
    readouts = each.readouts(6)
    assert len(readouts) == len(set(readouts)) == (6 - (each.first or 0)) * len(each.poolings) + each.outputs
    some = [readout for readout in readouts if readout.layer in (3, 6)]
    for readout, pooled in read(of_base(base, each.method), some, TEXTS[:6]).items():
        method = each.of(readout, 6)
        expected = of_base(base, method).encode(TEXTS[:6])
        units = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
        np.testing.assert_allclose(units, expected, atol=2e-6, err_msg=str(method))


def test_of_a_deep_base_not_all_layers_are_read() -> None:
    layers = [readout.layer for readout in passes_of(40, "LATIN")[3].readouts(40)]
    assert layers == list(range(40, 20, -3))


def test_passes_differ_and_hold_the_papers_methods() -> None:
    passes = passes_of(30, "LATIN", labelled=True)
    assert len({each.method for each in passes}) == len(passes)
    assert passes[:4] == passes_of(30, "LATIN", small=True)
    third = next(each.method for each in passes if (each.method.k, each.method.name) == (20, "classical"))
    papers = papers_of(30, "LATIN", {third: 0.5})
    # NoSink's k is the one that scores higher.
    assert papers["NoSink, MASK0-BIDIR"].k == 20
    groups = readouts.shared([*papers.values(), *(each.method for each in passes)], 30)
    assert len(groups) == len(passes)


def test_the_prompt_is_in_the_language_of_the_texts() -> None:
    assert "一个词" in passes_of(6, "CJK")[0].method.layout
    assert passes_of(6, "CYRILLIC")[0].method.template is None
    assert [papers_of(6, script, {})["PromptEOL"].template for script in ("CJK", "LATIN")] == ["prompteol-zh", None]


def _vectors(count: int, width: int) -> Tensor:
    made = torch.randn(count, width, generator=torch.manual_seed(0)) * torch.linspace(3, 0.3, width) + 2
    return torch.nn.functional.normalize(made, dim=1)


def test_the_filter_is_that_of_the_recipe() -> None:
    sample, others = _vectors(500, 24), _vectors(530, 24)[500:]
    expected = st_reba.Filter.fit(sample.numpy(), "abtt", r=DIRECTIONS).apply(others.numpy())
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(filtered(others, sample), expected, atol=2e-4)
    assert filtered(sample).mean(dim=0).abs().max() < 0.05


# What is chosen.


def _scored(score: float, cost: float) -> Scored:
    return Scored(Method("echo", repeats=round(cost * 10)), False, cost, torch.full((100,), score))


def test_the_best_of_what_may_be_spent() -> None:
    scored = [_scored(0.5, 1.0), _scored(0.6, 2.0), _scored(0.6, 2.5)]
    assert chosen(scored) is scored[1]
    assert chosen(scored, 1.5) is scored[0]


def test_views_judge_with_a_filter_and_labels_both(small: str) -> None:
    base, views = opened(small), views_of(TEXTS)
    pairs = Task("t", "STS", tuple(TEXTS[:20]), tuple((n, 19 - n, float(n % 3)) for n in range(10)))
    assert Search(base, views, TEXTS).filters == [True]
    assert Search(base, views, TEXTS[:15]).filters == [False]
    assert Search(base, pairs, TEXTS).filters == [False, True]
    found = Search(base, views, TEXTS).scored(passes_of(6, "LATIN")[3])
    assert sorted(one.method.layer or 6 for one in found) == [4, 5, 6]
    for one in found:
        units = torch.from_numpy(vectors(base, [one.method], views.texts)[one.method])
        expected = st_reba.Filter.fit(units.numpy(), "abtt", r=DIRECTIONS).apply(units.numpy())
        after = torch.nn.functional.normalize(torch.from_numpy(expected).float(), dim=1)
        assert one.score == pytest.approx(float(evidence(views, after).mean()), abs=2e-3)
        built: Any = of_base(base, one.method)[0]
        cost = sum(copied_positions(built, views.texts, {})) * built.depth
        assert one.cost == pytest.approx(cost / sum(copied_positions(base[0], views.texts, {})) / 6)


def test_what_does_not_fit_is_read_by_another_pass(small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    base, views, each = opened(small), views_of(TEXTS[:40]), passes_of(6, "LATIN")[0]
    whole = Search(base, views, TEXTS).scored(each)
    monkeypatch.setattr(search, "_MOST_BYTES", 5 * 4 * 32 * len(views.texts))
    parts = Search(base, views, TEXTS).scored(each)
    scores = [{str(one): one.score for one in found} for found in (parts, whole)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-4)


# The whole.


def test_what_is_left_behind(small: str, found: tune.TuneReport) -> None:
    folder = Path(found.folder)
    assert (folder / "report.md").read_text(encoding="utf-8") == f"{found}\n"
    assert json.loads((folder / "report.json").read_text(encoding="utf-8"))["counts"] == [83, 42]
    assert 0 < found.passes < found.seconds
    # The recipe, the saved model and the report speak of the same vectors.
    method = found.method
    expected = vectors(opened(small), [method], TEXTS[:9])[method]
    model = st_reba.load(str(folder / "model"))
    for each in (model, st_reba.build(folder / "recipe.yaml")):
        np.testing.assert_allclose(each.encode(TEXTS[:9]), expected, atol=2e-5)
    # A model that reads layer k has k layers.
    assert model[0].depth == (method.layer or 6)
    assert found.rows[0].method == method and found.rows[0].name == "chosen"
    whole = next(row for row in found.rows if row.name == "classical, mean")
    assert whole.cost == pytest.approx(1)
    assert (found.rows[0].megabytes < whole.megabytes) == (model[0].depth < 6)
    assert [row.name for row in found.rows[1:]] == list(papers_of(6, "LATIN", {}))


def test_a_report_scores_what_it_reports(small: str, found: tune.TuneReport) -> None:
    texts = sorted(tune.draw_texts(TEXTS, 1000, 0))
    Random(0).shuffle(texts)
    second = views_of(texts[round(2 / 3 * len(texts)) :])
    for row in (found.rows[0], found.rows[2]):
        units = torch.from_numpy(vectors(opened(small), [row.method], second.texts)[row.method])
        assert row.score == pytest.approx(float(evidence(second, units).mean()), abs=1e-3)


def test_what_reports_neither_chooses_nor_fits(small: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: dict[str, set[str]] = {"choose": set(), "fit": set(), "report": set()}

    class Seen(Search):
        def __init__(self, base: Any, items: Any, texts: Any, *rest: Any) -> None:
            seen["choose"] |= set(items.texts)
            seen["fit"] |= set(texts) | set(views_of(texts).texts)
            super().__init__(base, items, texts, *rest)

    def reported(base: Any, methods: Any, items: Any) -> tuple[tune.TuneRow, ...]:
        seen["report"] |= set(items.texts)
        return ()

    monkeypatch.setattr(tune, "Search", Seen)
    monkeypatch.setattr(tune, "reported", reported)
    monkeypatch.setattr(tune, "passes_of", lambda *rest, **options: passes_of(6, "LATIN")[1:2])
    different = [f"{n} one{n} two{n} three{n} four{n}" for n in range(60)]
    tune.tune(small, different, tmp_path / "out", **QUIET)
    assert all(seen.values())
    assert not seen["report"] & (seen["choose"] | seen["fit"])


def test_finished_passes_are_found_and_half_written_ones_run_again(
    small: str, found: tune.TuneReport, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ran: list[str] = []

    def counting(model: Any, *rest: Any, **options: Any) -> Any:
        ran.append(str(model[0].recipe))
        return read(model, *rest, **options)

    monkeypatch.setattr(search, "read", counting)
    passes = Path(found.folder) / "passes"
    files = sorted(passes.iterdir())
    assert len(files) == 7
    files[0].rename(files[0].with_suffix(".part"))
    again = tune.tune(small, TEXTS, found.folder, **QUIET)
    assert len(ran) == 1
    assert again.method == found.method
    assert [row.score for row in again.rows] == [row.score for row in found.rows]
    assert len(list(passes.glob("*.pt"))) == 7
    # Other texts, another filter or another number type are other passes.
    mine = Search(opened(small), views_of(TEXTS), TEXTS)
    others = [
        Search(opened(small), views_of(TEXTS[1:]), TEXTS),
        Search(opened(small), views_of(TEXTS), TEXTS[:15]),
        Search(opened(small, dtype="bfloat16"), views_of(TEXTS), TEXTS),
    ]
    first, second = passes_of(6, "LATIN")[:2]
    keys = [mine._key(first), mine._key(second), *(each._key(first) for each in others)]
    assert len(set(keys)) == len(keys)


def test_labels_choose(small: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tune, "passes_of", lambda *rest, **options: passes_of(6, "LATIN")[:2])
    monkeypatch.setattr(tune, "reported", lambda base, methods, items: ())
    classes = pd.DataFrame({"text": TEXTS[:50], "label": [text[:5] for text in TEXTS[:50]]})
    report = tune.tune(small, TEXTS, tmp_path / "out", labels=classes, **QUIET)
    assert (report.kind, sum(report.counts)) == ("Classification", 50)
    pairs = [(first, second, float(first[:4] == second[:4])) for first, second in zip(TEXTS, TEXTS[3:], strict=False)]
    table = pd.DataFrame(pairs, columns=["text1", "text2", "score"])
    assert tune.tune(small, None, tmp_path / "pairs", labels=table, **QUIET).kind == "STS"


def test_labels_are_divided_by_items_over_their_own_texts() -> None:
    rows = [(f"q{n}", f"d{n} {m}", m % 2) for n in range(30) for m in range(3)]
    task = read_task(pd.DataFrame(rows, columns=["query", "document", "relevance"]))
    first, second = (tune._part(task, items) for items in tune._divided(task.items, 0))
    assert (len(first.items), len(second.items)) == (20, 10)
    assert not {*first.texts} & {*second.texts} and len(first.texts) == 20 * 4
    assert [len(tune._notes(first, ["cat"] * n + ["猫"])) for n in (19, 18)] == [1, 2]
    for query, documents, grades in second.items:
        number = second.texts[query].removeprefix("q")
        assert [second.texts[each] for each in documents] == [f"d{number} {m}" for m in range(3)]
        assert grades == (0.0, 1.0, 0.0)


def test_auto_gives_the_model(small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "passes_of", lambda *rest, **options: passes_of(6, "LATIN")[:2])
    model = st_reba.build(small, "auto", texts=TEXTS[:60], prompts={"query": "q: "})
    again = auto(small, TEXTS[:60])
    np.testing.assert_array_equal(model.encode(TEXTS[:4]), again.encode(TEXTS[:4]))
    assert model.prompts["query"] == "q: "


def test_a_filter_of_few_texts_is_fitted_on_their_views_too(small: str) -> None:
    model = st_reba.build(small, "classical", pooling="mean")
    assert fitted_filter(model, TEXTS[:60]).mean.shape == (32,)


@pytest.mark.parametrize(
    "call",
    [
        lambda: tune.tune("mini", TEXTS, labels=views_of(TEXTS)),
        lambda: tune.tune("mini"),
        lambda: auto("mini", TEXTS[:20]),
        lambda: st_reba.build("mini", "auto", texts=TEXTS, quantization="int3"),
        lambda: chosen([_scored(0.5, 1.0)], most_cost=0.5),
    ],
)
def test_refusals(call: Callable[[], object]) -> None:
    with pytest.raises(ValueError):
        call()
