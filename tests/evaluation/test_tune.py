"""The search: its candidates, its filters, what chooses and what reports, and what it leaves behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

import st_reba
from st_reba import Method
from st_reba.encode import computed_positions
from st_reba.evaluation import readouts, search, tune
from st_reba.evaluation.readouts import Readout, of_base, opened, read, vectors
from st_reba.evaluation.search import Scored, Search, chosen, filtered, fitted_filter, papers_of, passes_of
from st_reba.evaluation.tasks import Task, read_task
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


def test_passes_differ_and_hold_the_papers_methods() -> None:
    passes = passes_of(30, "LATIN", labelled=True)
    assert len({each.method for each in passes}) == len(passes)
    assert [n for n, each in enumerate(passes) if each.outputs] == [0, 1, 11, 12, 13, 14, 15, 16]
    assert passes[0].readouts(30)[-1] == Readout(30, "end", 11)
    # Of a deep base not all layers are read.
    assert [each.layer for each in passes_of(34, "LATIN")[3].readouts(34)] == list(range(34, 17, -3))
    assert passes[:4] == passes_of(30, "LATIN", small=True)
    third = next(each.method for each in passes if (each.method.k, each.method.name) == (20, "classical"))
    papers = papers_of(30, "LATIN", {third: 0.5})
    # NoSink's k is the one that scores higher.
    assert [found["NoSink, MASK0-BIDIR"].k for found in (papers, papers_of(30, "LATIN", {}))] == [20, 15]
    groups = readouts.shared([*papers.values(), *(each.method for each in passes)], 30)
    assert len(groups) == len(passes)


def test_the_prompt_is_in_the_language_of_the_texts() -> None:
    assert "一个词" in passes_of(6, "CJK")[0].method.full_template
    assert passes_of(6, "CYRILLIC")[0].method.template is None
    assert [papers_of(6, script, {})["PromptEOL"].template for script in ("CJK", "LATIN")] == ["prompteol-zh", None]


def _vectors(count: int, width: int) -> Tensor:
    made = torch.randn(count, width, generator=torch.manual_seed(0)) * torch.linspace(3, 0.3, width) + 2
    return torch.nn.functional.normalize(made, dim=1)


def test_the_filter_is_that_of_the_recipe() -> None:
    sample, others = _vectors(500, 24), _vectors(530, 24)[500:]
    expected = st_reba.Filter.fit(sample.numpy(), "abtt", r=2).apply(others.numpy())
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(filtered(others, sample), expected, atol=2e-4)
    assert filtered(sample).mean(dim=0).abs().max() < 0.05


def _scored(score: float, cost: float) -> Scored:
    return Scored(Method("echo", repeats=round(cost * 10)), None, cost, torch.full((100,), score))


def test_the_best_of_what_may_be_spent() -> None:
    scored = [_scored(0.5, 1.0), _scored(0.6, 2.0), _scored(0.6, 2.5)]
    assert chosen(scored) is scored[1]
    assert chosen(scored, 1.0) is scored[0]


def test_views_judge_with_a_filter_and_labels_both(small: str) -> None:
    base, views = opened(small), views_of(TEXTS)
    pairs = Task("t", "STS", tuple(TEXTS[:20]), tuple((n, 19 - n, float(n % 3)) for n in range(10)))
    assert Search(base, views, TEXTS).filters == ["abtt"]
    assert Search(base, views, TEXTS[:15]).filters == Search(opened("mini"), views, TEXTS[:25]).filters == [None]
    assert Search(base, pairs, TEXTS).filters == [None, "abtt"]
    found = Search(base, views, TEXTS).scored(passes_of(6, "LATIN")[3])
    assert sorted(one.method.layer or 6 for one in found) == [4, 5, 6]
    for one in found:
        units = torch.from_numpy(vectors(base, [one.method], views.texts)[one.method])
        assert one.score == pytest.approx(float(evidence(views, filtered(units)).mean()), abs=2e-3)
        computed = sum(computed_positions(of_base(base, replace(one.method, filter=None))[0], views.texts, {}))
        plain = sum(computed_positions(base[0], views.texts, {}))
        assert one.cost == pytest.approx(computed / plain * (one.method.layer or 6) / 6)


def test_what_does_not_fit_is_read_by_another_pass(small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    base, views, each = opened(small), views_of(TEXTS[:40]), passes_of(6, "LATIN")[0]
    whole = Search(base, views, TEXTS).scored(each)
    monkeypatch.setattr(search, "_MOST_BYTES", 5 * 4 * 32 * len(views.texts))
    ran: list[Any] = []
    monkeypatch.setattr(search, "read", lambda *given: ran.append(given) or read(*given))
    parts = Search(base, views, TEXTS).scored(each)
    assert [len(readouts) for _, readouts, _ in ran] == [5, 5, 3]
    scores = [{str(one): one.score for one in found} for found in (parts, whole)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-4)


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
    assert [row.name for row in found.rows[1:]] == list(papers_of(6, "LATIN", {}))


def test_a_report_scores_what_it_reports(small: str, found: tune.TuneReport) -> None:
    texts = sorted(tune.draw_texts(TEXTS, 1000, 0))
    Random(0).shuffle(texts)
    second = views_of(texts[round(2 / 3 * len(texts)) :])
    for row in (found.rows[0], found.rows[2]):
        units = torch.from_numpy(vectors(opened(small), [row.method], second.texts)[row.method])
        assert row.score == pytest.approx(float(evidence(second, units).mean()), abs=1e-3)


def test_a_report_says_what_methods_cost(small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    base, views = opened(small), views_of(TEXTS[:20])
    whole = Method("classical", pooling="mean")
    methods = {"half": replace(whole, layer=3), "whole": whole, "twice": Method("echo", pooling="mean")}
    # Two seconds for the methods that share a pass, and one.
    monkeypatch.setattr(tune, "time", SimpleNamespace(perf_counter=iter([1.0, 3.0, 7.0, 8.0]).__next__))
    rows = tune.reported(base, methods, views)
    assert [row.seconds for row in rows] == pytest.approx([1000 * n / len(views.texts) for n in (1, 2, 1)])
    costs = [sum(computed_positions(of_base(base, each)[0], views.texts, {})) for each in methods.values()]
    assert [row.cost for row in rows] == pytest.approx([0.5, 1, costs[2] / costs[1]])
    values = evidence(views, torch.from_numpy(vectors(base, [whole], views.texts)[whole]))
    assert (rows[1].score, rows[1].error) == pytest.approx((float(values.mean()), float(values.std()) / 20**0.5))
    assert rows[1].megabytes == pytest.approx(sum(each.numel() for each in base.parameters()) * 4 / 1e6)
    report = str(tune.TuneReport(whole, rows[:2], "STS", (40, 20), 9, 5.0, 4.0, "out", ("A note.",)))
    assert [line[:7] for line in report.splitlines()[-5:]] == ["| half ", "| whole", "", "Work: p", "A note."]


def test_what_reports_neither_chooses_nor_fits() -> None:
    texts = [f"{n} one{n} two{n} three{n}" for n in range(1000)]
    choosing, reporting, fit = tune._view_parts(texts, 0)
    assert (len(choosing.items), len(reporting.items), len(fit)) == (400, 300, 667)
    assert not {*reporting.texts} & {*choosing.texts, *fit, *views_of(fit).texts}


def test_finished_passes_are_found(small: str, found: tune.TuneReport, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Any] = []
    monkeypatch.setattr(search, "read", lambda *given: ran.append(given) or read(*given))
    passes = Path(found.folder) / "passes"
    files = sorted(passes.iterdir())
    assert len(files) == 7
    # Half written, it runs again.
    files[0].rename(files[0].with_suffix(".part"))
    again = tune.tune(small, TEXTS, found.folder, **QUIET)
    assert len(ran) == 1
    assert again.method == found.method
    assert [row.score for row in again.rows] == [row.score for row in found.rows]
    assert len(list(passes.glob("*.pt"))) == 7
    # Other texts, another filter or another number type are other passes.
    given = [(TEXTS, TEXTS, {}), (TEXTS[1:], TEXTS, {}), (TEXTS, TEXTS[:15], {}), (TEXTS, TEXTS, {"dtype": "bfloat16"})]
    searches = [Search(opened(small, **loading), views_of(texts), fits) for texts, fits, loading in given]
    assert len({one._key(each) for one in searches for each in passes_of(6, "LATIN")[:2]}) == 8


def test_labels_choose(small: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    passes, said, model = passes_of(6, "LATIN")[:2], list[str](), opened(small)
    monkeypatch.setattr(tune, "passes_of", lambda *rest, **options: passes)
    monkeypatch.setattr(tune, "reported", lambda base, methods, items: ())
    monkeypatch.setattr(tune, "time", SimpleNamespace(perf_counter=count().__next__))
    classes = pd.DataFrame({"text": TEXTS[:50], "label": [text[:5] for text in TEXTS[:50]]})
    report = tune.tune(small, TEXTS, tmp_path / "out", labels=classes, **QUIET)
    assert (report.kind, sum(report.counts)) == ("Classification", 50)
    pairs = [(first, second, float(first[:4] == second[:4])) for first, second in zip(TEXTS, TEXTS[3:], strict=False)]
    table = pd.DataFrame(pairs, columns=["text1", "text2", "score"])
    options: dict[str, Any] = {"labels": table, "tokenizer": model.tokenizer, "say": said.append}
    report = tune.tune(model[0].model, None, tmp_path / "pairs", **options)
    assert (report.kind, report.seconds) == ("STS", 5)
    assert [line.partition(";")[0] for line in said] == [f"{n}/2 {passes[n - 1].method}: 1 s" for n in (1, 2)]
    assert said[1].endswith(f": {replace(report.method, filter=None)}")
    assert f"base: {Path(small).name}, method: " in (tmp_path / "pairs" / "recipe.yaml").read_text()


def test_labels_are_divided_by_items_over_their_own_texts() -> None:
    rows = [(f"q{n}", f"d{n} {m}", m % 2) for n in range(30) for m in range(3)]
    task = read_task(pd.DataFrame(rows, columns=["query", "document", "relevance"]))
    first, second, fit = tune._labelled_parts(task, task.texts, 0)
    assert (len(first.items), len(second.items)) == (20, 10)
    assert not {*first.texts} & {*second.texts} and {*first.texts} == {*fit} and len(fit) == 20 * 4
    assert [len(tune._notes(first, ["cat"] * n + ["猫"])) for n in (19, 18)] == [1, 2]
    notes = [tune._notes(Task("t", "Views", (), ((0, 0, 0, 0),) * n), ["cat"]) for n in (199, 200)]
    assert [[note[:7] for note in each] for each in notes] == [["A score", "Only 19"], ["A score"]]
    for query, documents, grades in second.items:
        number = second.texts[query].removeprefix("q")
        assert [second.texts[each] for each in documents] == [f"d{number} {m}" for m in range(3)]
        assert grades == (0.0, 1.0, 0.0)


def test_auto_gives_the_model(small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, chose, expected = list[Any](), list[Any](), tune.draw_texts(TEXTS[:60], 60, 0)
    monkeypatch.setattr(tune, "passes_of", lambda *_, **given: asked.append(given) or passes_of(6, "LATIN")[:2])
    monkeypatch.setattr(tune, "views_of", lambda texts: chose.append(texts) or views_of(texts))
    model = st_reba.build(small, "auto", texts=TEXTS[:60], prompts={"query": "q: "}, max_seq_length=64)
    again = st_reba.build(small, "auto", texts=TEXTS[:60])
    np.testing.assert_array_equal(model.encode(TEXTS[:4]), again.encode(TEXTS[:4]))
    assert (model.prompts["query"], model.max_seq_length, asked) == (
        "q: ",
        64,
        [{"small": True, "labelled": False}] * 2,
    )
    Random(0).shuffle(expected)
    assert chose == [expected] * 2
    assert "Dense" in [type(each).__name__ for each in model]


def test_a_filter_of_few_texts_is_fitted_on_their_views_too() -> None:
    texts = [f"{n} one{n} two{n} three{n} four{n}" for n in range(60)]
    model = st_reba.build("mini", "classical", pooling="mean")
    assert fitted_filter(model, texts[:40]).mean.shape == (192,)
    # Each has four views.
    assert [len(search.sample_of(texts[:n], 32)) for n in (19, 20, 60)] == [0, 100, 100]
    assert [len(search.sample_of(TEXTS, width)) for width in (125, 1000)] == [125, 0]


@pytest.mark.parametrize(
    "call",
    [
        lambda: tune._labelled_parts(views_of(TEXTS), TEXTS, 0),
        lambda: tune.tune("mini"),
        lambda: st_reba.build("mini", "auto", texts=TEXTS[:20]),
        lambda: st_reba.build("mini", "auto", texts=TEXTS, quantization="int3"),
        lambda: chosen([_scored(0.5, 1.0)], most_cost=0.5),
        lambda: tune.tune("mini", TEXTS, most_cost=float("nan")),
        lambda: tune.tune("mini", TEXTS, most_cost=-1.0),
        lambda: tune.tune("mini", TEXTS, __file__),
        lambda: tune.tune("mini", TEXTS, seed=-1),
    ],
)
def test_refusals(call: Callable[[], object]) -> None:
    with pytest.raises(ValueError):
        call()
