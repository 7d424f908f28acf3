"""The search of ``tune``: what may be chosen at what cost, how it is guarded, and how steady the choice is."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from ..files import whole_file
from ..modules.options import option
from .halving import Compose, Halving, Wanted, best_of
from .heldout import Found, Row
from .ledger import Result
from .passes import Costs
from .statistics import Evidence
from .trials import PAPERS, Arm, Filter, Read, Trial

# What a method may cost, as a multiple of one pass of the text through the unconverted base.
BUDGETS: Mapping[str, float] = {"speed": 0.5, "balanced": 1.0, "quality": float("inf")}
PLAIN = "plain"
# Resamples of the texts that tell how steady the choice is.
RESAMPLES = 500
ITEMS = "items"


@dataclass(frozen=True)
class Tune(Compose):
    """What ``tune`` takes, beside where it reads and writes."""

    name: ClassVar[str] = "tune"

    budget: Literal["speed", "balanced", "quality"] = option("balanced", "what the chosen method may cost")

    @property
    def limit(self) -> float:
        """What the chosen method may cost."""
        return BUDGETS[self.budget]


class Tuned(Halving):
    """Halving that chooses a method for each budget, and is never below the plain last-layer mean on the signal."""

    def found(self) -> Found:
        found, name = super().found(), self.options.budget
        best, notes = for_budgets(found.results, self.costs, name)
        papers = {each: found.chosen[each] for each in PAPERS if each in found.chosen}
        others = [each for each in best if each not in (PLAIN, name)]
        recipes = {name: "recipe.yaml", **{each: f"recipe-{each}.yaml" for each in others}}
        notes += self.steadiness(found.results, best[name][0])
        return replace(found, chosen={**papers, **best}, against=name, recipes=recipes, notes=tuple(notes))

    def keep(self, arm: Arm, rung: int, evidence: Mapping[tuple[Read, Filter], Evidence]) -> None:
        first = next(iter(evidence.values()), None)
        if rung + 1 < len(self.sizes) or first is None or first.shape[1] > 1:
            # Of a mean alone it is known what each item adds to it.
            return
        folder = self.ledger.folder / ITEMS
        folder.mkdir(exist_ok=True)
        methods = [str(Trial(arm, *each)) for each in evidence]
        with whole_file(folder / f"{_digest(arm)}.npz") as stream:
            values = np.stack([each[:, 0] for each in evidence.values()]).astype(np.float32)
            np.savez(stream, methods=np.asarray(methods), values=values)

    def steadiness(self, results: Sequence[Result], chosen: Trial) -> list[str]:
        """How often what was chosen wins again where other texts are drawn from those that chose, in words."""
        last = [each for each in results if each.rung == len(self.sizes) - 1 and each.scored]
        files = [self.ledger.folder / ITEMS / f"{_digest(each.arm)}.npz" for each in last]
        if not all(file.is_file() for file in files):
            return []
        rows: dict[Trial, Any] = {}
        for result, file in zip(last, files, strict=True):
            with np.load(file) as stored:
                values = dict(zip(stored["methods"].tolist(), stored["values"], strict=True))
            for each in result.scored:
                trial = Trial(result.arm, each.read, each.filter)
                if self.costs.of(trial.own) <= max(self.options.limit, self.costs.of(chosen)):
                    rows[trial.own] = values[str(trial)]
        wins = winners(rows, self.seed)
        share = {
            "recipe": wins[chosen],
            "input, layers and pooling": sum(
                n for each, n in wins.items() if (each.arm, each.read) == (chosen.arm, chosen.read)
            ),
            "filter": sum(n for each, n in wins.items() if each.filter == chosen.filter),
        }
        told = ", ".join(f"the same {name} in {number / RESAMPLES:.0%}" for name, number in share.items())
        return [
            f"Steadiness: of {RESAMPLES} resamples of the {self.sizes[-1]} choosing items, {told}; {len(wins)} of "
            f"{len(rows)} methods win at least once."
        ]


def for_budgets(
    results: Sequence[Result], costs: Costs, budget: str
) -> tuple[dict[str, tuple[Trial, float]], list[str]]:
    """The plain last-layer mean, and the best method of each budget, by the last rung; what is chosen is the last.

    Args:
        results: Of all arms.
        costs: Of methods.
        budget: Whose method is chosen. It is never below the plain one, whatever that costs; another budget's is left
            out where it is the same.

    Returns:
        Methods and scores by name, and what the report has to say.

    Raises:
        ValueError: The plain method could not be scored.
    """
    plain = Trial(Arm(), Read(costs.depth, costs.depth, True, "mean"))
    wanted: dict[str, Wanted] = {PLAIN: lambda trial: trial == plain}
    for name, limit in BUDGETS.items():
        wanted[name] = lambda trial, limit=limit: costs.of(trial) <= limit  # type: ignore[misc]
    best, notes = best_of(results, costs, wanted), list[str]()
    if PLAIN not in best:
        failed = next((each.error for each in results if each.arm == Arm() and each.error), "it is not finite")
        raise ValueError(f"the last layer's mean cannot be scored: {failed}")
    least = best[PLAIN][1]
    if budget not in best or best[budget][1] < least:
        last = max(each.rung for each in results)
        trials = [each for result in results if result.rung == last for each in result.trials()]
        good = [each for each in trials if each[1] >= least]
        best[budget] = min(good, key=lambda each: (costs.of(each[0]), -each[1]))
        notes.append(
            f"No method of budget {budget} is as good as the last layer's mean: the cheapest that is was taken."
        )
    chosen = best.pop(budget)
    for name in BUDGETS:
        if name in best and best[name][0] == chosen[0]:
            del best[name]
            notes.append(f"Budget {name}: the same method.")
    return {**best, budget: chosen}, notes


def winners(rows: Mapping[Trial, Any], seed: int = 0) -> Counter[Trial]:
    """How often each method has the highest mean, on items drawn again and again.

    Args:
        rows: What each method says about each item, [items].
        seed: Of the draws.
    """
    trials, values = list(rows), np.stack(list(rows.values())).astype(np.float64)
    generator = np.random.default_rng(seed)
    count = values.shape[1]
    drawn = generator.multinomial(count, np.full(count, 1 / count), RESAMPLES)
    return Counter(trials[place] for place in (values @ drawn.T).argmax(axis=0))


def settled(found: Found, rows: Sequence[Row]) -> Found:
    """What was found; or the plain last-layer mean, where what was chosen is below it on held-out items."""
    name = found.against
    scores = {row.name: row.heldout for row in rows}
    if scores[name] >= scores[PLAIN]:
        return found
    note = f"On held-out items {name} is below the last layer's mean: so that is the recipe."
    others = {each: file for each, file in found.recipes.items() if each != name}
    return replace(found, recipes={PLAIN: "recipe.yaml", **others}, notes=(note, *found.notes))


def _digest(arm: Arm) -> str:
    return hashlib.sha256(json.dumps(arm.to_json(), sort_keys=True).encode()).hexdigest()[:16]
