"""A search on scripted scores, in which no model runs."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from st_reba.evaluation import halving, make_task, rungs
from st_reba.evaluation.choice import Choice, Chosen
from st_reba.evaluation.crossfit import Scored
from st_reba.evaluation.halving import Compose, Halving
from st_reba.evaluation.heldout import Parts
from st_reba.evaluation.ledger import Ledger
from st_reba.evaluation.passes import Costs
from st_reba.evaluation.rungs import Search
from st_reba.evaluation.space import Space
from st_reba.evaluation.trials import NO_FILTER, Arm, Read, Trial

LAST = Read(6, 6, True, "mean")
HALVED = Space(
    layers=((6, 6, "mean"), (2, 2, "mean"), (1, 5, "mean")), pooled=("mean", "end", "reba mean"), filters=("none",)
)
ARMS = HALVED.arms(6)
PAIRS = make_task("STS", [(f"a{n}", f"b{n}", float(n % 6)) for n in range(900)])
COSTS = Costs({arm.layout: dict.fromkeys(PAIRS.items.texts, 3 + 10 * arm.copies) for arm in ARMS}, 6)
Value = Callable[[Trial], float]


@cache
def _drawn(seed: int, trial: Trial) -> float:
    return random.Random(f"{seed} {trial}").random()


def drawn_scores(seed: int) -> Value:
    return partial(_drawn, seed)


def scripted_search(
    patch: pytest.MonkeyPatch,
    folder: Path,
    value: Value,
    kind: type[Search] = Halving,
    *,
    seed: int = 0,
    **options: Any,
) -> Any:
    """A search whose arms cost what they cost, and score what a function of the whole method says."""

    def halved(self: Halving, arm: Arm, rung: int) -> tuple[int, list[Scored]]:
        reads = self.space.reads(arm, 6)
        made = [Scored(read, each, value(Trial(arm, read, each))) for read in reads for each in self.space.postfilters]
        return COSTS.total(arm, self.items[rung].texts), made

    def chosen(self: Chosen, arm: Arm, rung: int) -> tuple[int, list[Scored]]:
        return self.cost(arm, rung), [Scored(LAST, NO_FILTER, value(Trial(arm, LAST)))]

    patch.setattr(Halving, "scored", halved)
    patch.setattr(Chosen, "scored", chosen)
    for place in (rungs, halving):
        patch.setattr(place, "costs_of", lambda *given: COSTS)
    patch.setattr(Ledger, "add", lambda self, result: self.results.update({(result.arm, result.rung): result}))
    said: list[str] = []
    model: Any = [SimpleNamespace(depth=6)]
    parts = Parts(PAIRS, PAIRS.items, PAIRS.items)
    settings = Compose(HALVED.to_dict(), **options) if kind is Halving else Choice(**options)
    made: Any = kind(Ledger(folder), model, parts, settings, seed=seed, disable=True, say=said.append)
    made.said = said
    return made
