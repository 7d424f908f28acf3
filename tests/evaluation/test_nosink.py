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

# By setting, k and k0: INPLACE-BIDIR is best at 4 (and 5), MASK0-BIDIR at 3.
SCORES = {
    ("inplace-bidir", 4, None): 5.0,
    ("inplace-bidir", 5, None): 5.0,
    ("mask0-bidir", 3, None): 4.0,
    ("mask0&bidir", 4, 1): 6.0,
}


@pytest.fixture
def tried_methods(monkeypatch: pytest.MonkeyPatch) -> list[Method]:
    """The methods that are compared, which get the scores of the table."""
    methods_so_far: list[Method] = []

    def compare_by_table(
        model: Any, task: Any, methods: list[Method], **options: Any
    ) -> Comparison:
        methods_so_far.extend(methods)
        results = []
        for method in methods:
            score = SCORES.get((method.setting, method.k, method.k0), 0.0)
            results.append(Result("", "", "", str(method), "m", score))
        return Comparison("", results, [])

    monkeypatch.setattr(nosink, "compare", compare_by_table)
    return methods_so_far


def test_k0_is_chosen_for_the_best_k_of_both_settings(tried_methods: list[Method]) -> None:
    best_method, table = choose_k(
        "mini",
        toy_tasks(["S3"], ["en"])[0],
        pooling="last",
        m=2,
    )
    assert str(best_method) == "nosink:pooling=last,setting=mask0&bidir,k=4,k0=1,m=2"
    assert [(method.setting, method.k, method.k0) for method in tried_methods] == [
        ("baseline", None, None),
        *(("inplace-bidir", k, None) for k in range(1, 7)),
        *(("mask0-bidir", k, None) for k in range(1, 7)),
        ("mask0&bidir", 4, 1),
        ("mask0&bidir", 4, 3),
    ]
    best_row = table.loc[table["score"].idxmax()].to_dict()
    assert best_row == {"setting": "mask0&bidir", "k": 4, "k0": 1, "score": 6}
    assert table["k"].tolist()[:2] == [0, 1]


def test_settings_that_hide_the_sink_hide_m_tokens(tried_methods: list[Method]) -> None:
    choose_k("mini", toy_tasks(["S3"], ["en"])[0], m=2)
    hidden_tokens = {method.setting: method.m for method in tried_methods}
    assert hidden_tokens["mask0-bidir"] == 2
    assert hidden_tokens["inplace-bidir"] == 1


def test_a_tie_goes_to_the_smaller_k(
    tried_methods: list[Method], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SCORES, ("inplace-bidir", 5, None), 6.0)
    monkeypatch.setitem(SCORES, ("mask0-bidir", 3, None), 6.0)
    best_method, _ = choose_k("mini", toy_tasks(["S3"], ["en"])[0])
    assert str(best_method) == "nosink:pooling=mean,setting=mask0-bidir,k=3"


def test_a_baseline_that_is_best_leaves_no_k0_to_try(
    tried_methods: list[Method], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SCORES, ("baseline", None, None), 9)
    best_method, table = choose_k(load_base("mini"), toy_tasks(["S3"], ["en"])[0])
    assert best_method.setting == "baseline"
    assert "mask0&bidir" not in set(table["setting"])
