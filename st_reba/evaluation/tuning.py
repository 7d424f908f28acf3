"""The search of ``tune``: what may be chosen at what cost, how it is guarded, and how steady the choice is."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from ..files import whole_file
from ..modules.options import option
from .halving import Compose, Halving, Wanted, best_of
from .heldout import Found, Row
from .ledger import Result
from .passes import Costs
from .statistics import Evidence
from .trials import NO_FILTER, PAPERS, Arm, Filter, Read, Trial

# What a method may cost, as a multiple of one pass of the text through the unconverted base.
BUDGETS: Mapping[str, float] = {"speed": 0.5, "balanced": 1.0, "quality": float("inf")}
PLAIN = "plain"
# Resamples of the texts that tell how steady the choice is.
RESAMPLES = 200
Values = NDArray[np.float64]
# Which rule chose, for the report.
CHEAPEST = (
    "Within a budget the cheapest method is taken that is behind the highest score by no more than one standard error "
    "of their difference, paired over the choosing items."
)
HIGHEST = "Within a budget the highest score is taken."
ITEMS = "items"
_ROUNDING = 1e-12


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
        rows = self.rows(found.results)
        best, notes = for_budgets(found.results, self.costs, name, rows)
        papers = {each: found.chosen[each] for each in PAPERS if each in found.chosen}
        others = [each for each in best if each not in (PLAIN, name)]
        recipes = {name: "recipe.yaml", **{each: f"recipe-{each}.yaml" for each in others}}
        notes += self.steadiness(rows, best[name][0])
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

    def rows(self, results: Sequence[Result]) -> dict[Trial, Values]:
        """What each method of the last rung says about each item; nothing where its score is no mean over items."""
        last = [each for each in results if each.rung == len(self.sizes) - 1 and each.scored]
        files = [self.ledger.folder / ITEMS / f"{_digest(each.arm)}.npz" for each in last]
        if not all(file.is_file() for file in files):
            return {}
        found: dict[Trial, Values] = {}
        for result, file in zip(last, files, strict=True):
            with np.load(file) as stored:
                values = dict(zip(stored["methods"].tolist(), stored["values"].astype(np.float64), strict=True))
            for each in result.scored:
                trial = Trial(result.arm, each.read, each.filter)
                found[trial.own] = values[str(trial)]
        return found

    def steadiness(self, rows: Mapping[Trial, Values], chosen: Trial) -> list[str]:
        """How often what was chosen is chosen again where other texts are drawn from those that chose, in words."""
        most = max(self.options.limit, self.costs.of(chosen))
        within = {trial: values for trial, values in rows.items() if self.costs.of(trial) <= most}
        if not within:
            return []
        again = chosen_again(within, self.costs, self.seed)
        share = {
            "recipe": again[chosen],
            "input, layers and pooling": sum(
                n for each, n in again.items() if (each.arm, each.read) == (chosen.arm, chosen.read)
            ),
            "filter": sum(n for each, n in again.items() if each.filter == chosen.filter),
        }
        told = ", ".join(f"the same {name} in {number / RESAMPLES:.0%}" for name, number in share.items())
        return [
            f"Steadiness: of {RESAMPLES} resamples of the {self.sizes[-1]} choosing items, {told}; {len(again)} of "
            f"{len(within)} methods are chosen at least once."
        ]


def for_budgets(
    results: Sequence[Result], costs: Costs, budget: str, rows: Mapping[Trial, Values]
) -> tuple[dict[str, tuple[Trial, float]], list[str]]:
    """The plain last-layer mean, and a method for each budget, by the last rung; what is chosen is the last.

    Args:
        results: Of all arms.
        costs: Of methods.
        budget: Whose method is chosen. It is never below the plain one, whatever that costs; another budget's is left
            out where it is the same.
        rows: What each method of the last rung says about each item, [items]: then the :func:`cheapest` is taken of
            those that cannot be told from the best. Empty: the best.

    Returns:
        Methods and scores by name, and what the report has to say.

    Raises:
        ValueError: The plain method could not be scored.
    """
    plain = Trial(Arm(), Read(costs.depth, costs.depth, True, "mean"))
    wanted: dict[str, Wanted] = {PLAIN: lambda trial: trial == plain}
    for name, limit in BUDGETS.items():
        wanted[name] = lambda trial, limit=limit: costs.of(trial) <= limit  # type: ignore[misc]
    best, notes, told = best_of(results, costs, wanted), [CHEAPEST if rows else HIGHEST], dict[str, str]()
    if PLAIN not in best:
        failed = next((each.error for each in results if each.arm == Arm() and each.error), "it is not finite")
        raise ValueError(f"the last layer's mean cannot be scored: {failed}")
    least = best[PLAIN][1]
    last = max(each.rung for each in results)
    good = [each for result in results if result.rung == last for each in result.trials() if each[1] >= least]
    scores = dict(good)
    for name in [each for each in BUDGETS if rows and each in best and best[each][1] >= least]:
        within = {trial: rows[trial] for trial in scores if costs.of(trial) <= BUDGETS[name]}
        (trial, score), taken = best[name], cheapest(within, costs)
        if costs.of(taken) < costs.of(trial):
            best[name] = (taken, scores[taken])
            told[name] = (
                f"Budget {name}: the highest is {score:.4f} at cost {costs.of(trial):.2f}, {trial}; taken was "
                f"{scores[taken]:.4f} at {costs.of(taken):.2f}."
            )
    if budget not in best or best[budget][1] < least:
        best[budget] = min(good, key=lambda each: (costs.of(each[0]), -each[1]))
        notes.append(
            f"No method of budget {budget} is as good as the last layer's mean: the cheapest that is was taken."
        )
    chosen = best.pop(budget)
    for name in BUDGETS:
        if name in best and best[name][0] == chosen[0]:
            del best[name]
            told[name] = f"Budget {name}: the same method."
    return {**best, budget: chosen}, [*notes, *told.values()]


def cheapest(rows: Mapping[Trial, Values], costs: Costs, counts: Values | None = None) -> Trial:
    """The cheapest of the methods that cannot be told from the best; of equal cost the best.

    They are those whose mean is behind the highest by no more than one standard error of the difference, paired over
    items.

    Args:
        rows: What each method says about each item, [items].
        costs: Of methods.
        counts: How often each item counts; None: once.

    Source:
        The one-standard-error rule: Breiman et al. (1984), Classification and Regression Trees, section 3.4.3. Here the
        error is that of the difference, which is smaller than that of the best.
    """
    trials, values = list(rows), np.stack(list(rows.values()))
    number = values.shape[1]
    weights = np.full(number, 1 / number) if counts is None else counts / number
    means = values @ weights
    behind = means.max() - means
    squares = (values[means.argmax()] - values) ** 2 @ weights
    errors = np.sqrt(np.maximum(squares - behind**2, 0) / (number - 1))
    near = np.flatnonzero(behind <= errors + _ROUNDING)
    place = min(near, key=lambda n: (costs.of(trials[n]), -means[n], trials[n].filter != NO_FILTER))
    return trials[place]


def chosen_again(rows: Mapping[Trial, Values], costs: Costs, seed: int = 0) -> Counter[Trial]:
    """How often each method is the :func:`cheapest` as good as the best, on items drawn again and again.

    Args:
        rows: What each method says about each item, [items].
        costs: Of methods.
        seed: Of the draws.
    """
    count = len(next(iter(rows.values())))
    drawn = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), RESAMPLES)
    return Counter(cheapest(rows, costs, counts) for counts in drawn)


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
