"""NoSink's rule for k and k0."""

from __future__ import annotations

from typing import Any

import pytest

from st_reba.evaluation import nosink
from st_reba.evaluation.nosink import choose_k
from st_reba.evaluation.readouts import load_base
from st_reba.evaluation.results import Comparison, Result
from st_reba.evaluation.toy import toy_tasks
from st_reba.methods import Method

# Scores by setting, k and k0: INPLACE-BIDIR is best at 4 (and 5), MASK0-BIDIR at 3.
SCORES = {
    ("inplace-bidir", 4, None): 5, ("inplace-bidir", 5, None): 5, ("mask0-bidir", 3, None): 4,
    ("mask0&bidir", 4, 1): 6,
}  # fmt: skip


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Method]:
    calls: list[Method] = []

    def compare(model: Any, task: Any, methods: Any, **options: Any) -> Comparison:
        calls.extend(methods)
        scores = [float(SCORES.get((each.setting, each.k, each.k0), 0)) for each in methods]
        found = [Result("", "", "", str(each), "m", score) for each, score in zip(methods, scores, strict=True)]
        return Comparison("", found, [])

    monkeypatch.setattr(nosink, "compare", compare)
    return calls


def test_the_rule(ran: list[Method]) -> None:
    best, table = choose_k("mini", toy_tasks(["S3"], ["en"])[0], pooling="last", m=2)
    assert str(best) == "nosink:pooling=last,setting=mask0&bidir,k=4,k0=1,m=2"
    assert [(each.setting, each.k, each.k0) for each in ran] == [
        ("baseline", None, None),
        *((setting, k, None) for setting in ("inplace-bidir", "mask0-bidir") for k in range(1, 7)),
        *(("mask0&bidir", 4, k0) for k0 in (1, 3)),
    ]
    assert {each.m for each in ran if each.setting == "mask0-bidir"} == {2}
    assert table["k"].tolist()[:2] == [0, 1]
    assert table.loc[table["score"].idxmax()].to_dict() == {"setting": "mask0&bidir", "k": 4, "k0": 1, "score": 6}


def test_without_a_better_k_no_k0_fits(ran: list[Method], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCORES, ("baseline", None, None), 9)
    best, table = choose_k(load_base("mini"), toy_tasks(["S3"], ["en"])[0])
    assert best.setting == "baseline"
    assert "mask0&bidir" not in set(table["setting"])
    assert {each.m for each in ran} == {1}
