"""Rungs: how many items each has, and that an arm that cannot run ends alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from scripted import ARMS, PAIRS, drawn_scores

from st_reba.evaluation.halving import Halving
from st_reba.evaluation.rungs import rung_sizes
from st_reba.evaluation.trials import Arm


def test_the_items_of_a_rung_are_among_those_of_the_next(scripted: Callable[..., Any]) -> None:
    halving = scripted(drawn_scores(0))
    made = halving.rungs(ARMS)
    assert [result.items for result in made if result.arm == made[-1].arm] == [100, 300, 900] == rung_sizes(900)
    assert rung_sizes(90_000) == [10_000, 30_000, 90_000]
    texts = [set(items.texts) for items in halving.items]
    assert texts[0] < texts[1] < texts[2] == set(PAIRS.items.texts)


def test_a_bar_only_where_something_runs(scripted: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    halving = scripted(drawn_scores(0))
    halving._disable = False
    halving.rung(ARMS[:2], 0, "Papers")
    assert "Papers: 100%" in capsys.readouterr().err
    halving.rung(ARMS[:2], 0, "Papers")
    assert capsys.readouterr().err == ""


def test_an_arm_that_cannot_run_ends_alone(scripted: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    halving = scripted(drawn_scores(0))
    score = Halving.scored

    def failing(self: Halving, arm: Arm, rung: int) -> Any:
        if arm.kind == "bidirectional" or broken:
            raise ValueError("cannot look ahead")
        return score(self, arm, rung)

    broken = False
    monkeypatch.setattr(Halving, "scored", failing)
    made = halving.rungs(ARMS)
    failed = [result for result in made if result.error]
    assert failed and all(result.arm.kind == "bidirectional" and result.tokens == 0 for result in failed)
    assert {result.error for result in failed} == {"cannot look ahead"} and {result.rung for result in failed} == {0}
    broken = True
    halving.ledger.results.clear()
    with pytest.raises(ValueError, match="no arm could be scored: cannot look ahead"):
        halving.rungs(ARMS)
