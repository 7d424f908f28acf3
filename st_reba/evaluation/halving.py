"""Successive halving of a space's arms: the preset ``compose``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from ..modules.layout import Layout
from ..modules.options import Options, option
from .crossfit import Scored, score_reads
from .heldout import Found
from .ledger import Result
from .passes import Costs, costs_of, encode_arm
from .reading import shuffled
from .rungs import RATE, Search, about
from .space import Space
from .statistics import Evidence
from .trials import NO_FILTER, PAPERS, Arm, Filter, Read, Trial

# Readings of an arm that are tried behind every filter, from the first rung to the last.
LOOKED_AT = (6, 8, 12)
# Arms that every rung keeps, whatever the budget: the best of each single paper, of the fast, and of all.
_LEAST = len(PAPERS) + 2
Wanted = Callable[[Trial], bool]


@dataclass(frozen=True)
class Compose(Options):
    """What the preset ``compose`` takes."""

    name: ClassVar[str] = "compose"

    space: Mapping[str, Any] | None = option(None, "what is searched: a Space, or a mapping of its fields")
    minutes: float | None = option(
        None,
        "draw as many arms as fit into so many minutes of search, by the time that the single papers' methods take on "
        "the first items",
        least=0.01,
    )
    tokens: int | None = option(
        None,
        "draw as many arms as fit into so many positions run, padding excluded; with minutes: what is less",
        least=1,
    )
    speed: float = option(
        0.5,
        "the share of the unconverted base's work (positions times layers, the text once) that a method may take to "
        "count as fast",
        least=0.01,
    )

    def __post_init__(self) -> None:
        if isinstance(self.space, Space):
            object.__setattr__(self, "space", self.space.to_dict())
        super().__post_init__()
        # Refuses a space that is none.
        self.searched  # noqa: B018

    @cached_property
    def searched(self) -> Space:
        """The space."""
        return Space.of(self.space or {})

    def record(self) -> dict[str, Any]:
        """What a run depends on, the defaults written out."""
        space = {name: getattr(self.searched, name) for name in Space.names()}
        return {"minutes": self.minutes, "tokens": self.tokens, "speed": self.speed, "space": space}


class Halving(Search):
    """All arms run on some of the items, the best third on three times as many, and the last on all.

    An arm is an input and a plan; one forward pass of it gives every layer and pooling. What is chosen: the best of
    all, the best of the fast, and the best of each single paper's method, whose arms run in any case.

    Source:
        Successive halving: Jamieson and Talwalkar (2016).
    """

    fits: ClassVar[bool] = True

    @property
    def space(self) -> Space:
        space: Space = self.options.searched
        return space

    def found(self) -> Found:
        arms = self._fitting(self.space.arms(self.depth))
        self.costs = costs_of(self.transformer, arms, self.items[-1].texts)
        # Their time says what the others will take.
        papers = [each for each in self.rung(self.always(arms), 0, "Papers") if each.scored]
        if not papers:
            raise ValueError("no arm of a single paper's method could be run.")
        # A clock may stand still over a tiny model.
        pace = sum(each.tokens for each in papers) / max(1e-3, sum(each.seconds for each in papers))
        tokens = self.options.tokens
        if self.options.minutes is not None:
            tokens = min(60 * self.options.minutes * pace, float("inf") if tokens is None else tokens)
        drawn = arms if tokens is None else self.drawn(arms, tokens)
        whole = sum(self.cost(arm, rung) * RATE**-rung for rung in range(len(self.sizes)) for arm in drawn)
        left = min(whole, tokens or whole) - sum(each.tokens for each in self.ledger.results.values())
        self.say(f"{len(drawn)} of {len(arms)} arms; {about(left / pace)}, held-out scores on top")
        made = self.rungs(drawn, tokens)
        chosen = reported(made, self.costs, self.options.speed)
        single = max((name for name in chosen if name in PAPERS), key=lambda name: chosen[name][1])
        recipes = {"composed": "recipe.yaml", "fast": "recipe-fast.yaml"}
        recipes = {name: file for name, file in recipes.items() if name in chosen}
        return Found(made, chosen, single, recipes, self.depth, self.costs)

    def scored(self, arm: Arm, rung: int) -> tuple[int, list[Scored]]:
        reads = self.space.reads(arm, self.depth)
        with TemporaryDirectory(prefix=".vectors-", dir=self.ledger.folder, ignore_cleanup_errors=True) as folder:
            encoded = encode_arm(self.transformer, arm, reads, self.items[rung].texts, folder)
            looked_at, kept = LOOKED_AT[rung - len(self.sizes)], dict[tuple[Read, Filter], Evidence]()
            scored = score_reads(self.folds[rung], encoded, self.space.postfilters, looked_at=looked_at, kept=kept)
            self.keep(arm, rung, kept)
            return encoded.tokens, scored

    def keep(self, arm: Arm, rung: int, evidence: Mapping[tuple[Read, Filter], Evidence]) -> None:
        """What readings say about each item, for those who need more than a score: nobody."""

    def always(self, arms: Sequence[Arm]) -> list[Arm]:
        """The arms that a budget does not leave out: those of single papers' methods."""

        def papers(arm: Arm) -> bool:
            return any(Trial(arm, read).paper(self.depth) != "composed" for read in self.space.reads(arm, self.depth))

        return list(filter(papers, arms))

    def drawn(self, arms: Sequence[Arm], tokens: float) -> list[Arm]:
        """As many arms as a budget of positions for the whole search allows on the first rung, drawn by the seed."""
        always = self.always(arms)
        others = [arm for arm in arms if arm not in always]
        order = [others[index] for index in shuffled(range(len(others)), self.seed, "arms")]
        chosen = set(self._affordable(always, order, 0, self._allowed(0, tokens, arms)))
        return [arm for arm in arms if arm in chosen]

    def rungs(self, arms: Sequence[Arm], tokens: float | None = None) -> list[Result]:
        """All results, those of the last rung at the end.

        Args:
            arms: The arms of the first rung.
            tokens: Positions that may run in all; None: any number. Arms of single papers' methods run on the first
                rung, and the best of each paper, of the fast and of all on every further one, also where that takes
                more.

        Raises:
            ValueError: No arm could be scored.
        """
        made: list[Result] = []
        left = list(arms)
        for rung, size in enumerate(self.sizes):
            title = f"Rung {rung + 1} of {len(self.sizes)}"
            found = self.rung(left, rung, title)
            if not any(result.scored for result in found):
                raise ValueError(f"no arm could be scored: {found[0].error}")
            made += found
            best = max(score for result in found for _, score in result.trials())
            self.say(f"{title}: {len(left)} arms on {size} items, best {best:.4f}")
            if rung + 1 < len(self.sizes):
                if tokens is not None:
                    tokens -= sum(self.cost(arm, rung) for arm in left)
                left = self._kept(found, -(-len(left) // RATE), rung + 1, tokens)
        return made

    def _kept(self, results: Sequence[Result], count: int, rung: int, tokens: float | None) -> list[Arm]:
        """About so many arms for the next rung, those first that no budget leaves out.

        Half of them are the best of all, a quarter the best of the fast, and a quarter the best of the single papers.
        """
        every = _order(results, lambda trial: True)
        fast = _order(results, lambda trial: self.costs.of(trial) <= self.options.speed)
        papers = [_order(results, of_paper(paper, self.depth)) for paper in PAPERS]
        always = list(dict.fromkeys(arm for order in (every, fast, *papers) for arm in order[:1]))
        shares = [*every[: -(-count // 2)], *fast[: -(-count // 4)]]
        shares += [arm for order in papers for arm in order[: -(-count // (4 * len(PAPERS)))]]
        kept = list(dict.fromkeys([*always, *shares]))
        kept += [arm for arm in every if arm not in kept][: max(0, count - len(kept))]
        if tokens is None:
            return kept
        return self._affordable(always, kept[len(always) :], rung, self._allowed(rung, tokens, kept))

    def _affordable(self, always: Sequence[Arm], others: Sequence[Arm], rung: int, allowed: float) -> list[Arm]:
        """Arms that run in any case, and of the others as many, from the first on, as are allowed beside them."""
        found = list(always)
        allowed -= sum(self.cost(arm, rung) for arm in always)
        for arm in others:
            allowed -= self.cost(arm, rung)
            if allowed < 0:
                break
            found.append(arm)
        return found

    def _allowed(self, rung: int, tokens: float, arms: Sequence[Arm]) -> float:
        """What a rung may run: its share of what is left, but for what the rungs after it need at the least."""
        dearest = max(arms, key=self.costs.tokens)
        later = range(rung + 1, len(self.sizes))
        least = sum(min(_LEAST, len(arms)) * self.cost(dearest, number) for number in later)
        return min(tokens / (len(later) + 1), tokens - least)

    def _fitting(self, arms: Sequence[Arm]) -> list[Arm]:
        """The arms whose input leaves room for a text; what is left out is told."""
        fits: dict[Layout, bool] = {}
        for arm in arms:
            if arm.layout not in fits:
                try:
                    fits[arm.layout] = bool(costs_of(self.transformer, [arm], []))
                except ValueError as error:
                    fits[arm.layout] = False
                    self.say(f"Left out: {error}")
        return [arm for arm in arms if fits[arm.layout]]


def of_paper(paper: str, depth: int) -> Wanted:
    """Whether a trial is by itself that paper's method."""
    return lambda trial: trial.paper(depth) == paper


def reported(results: Sequence[Result], costs: Costs, speed: float) -> dict[str, tuple[Trial, float]]:
    """The best single papers' methods, the best fast method and the best of all, by the last rung.

    Among equals the cheaper is best, then the one without a filter, then the earlier.
    """
    wanted: dict[str, Wanted] = {paper: of_paper(paper, costs.depth) for paper in PAPERS}
    wanted |= {"fast": lambda trial: costs.of(trial) <= speed, "composed": lambda trial: True}
    return best_of(results, costs, wanted)


def best_of(results: Sequence[Result], costs: Costs, wanted: Mapping[str, Wanted]) -> dict[str, tuple[Trial, float]]:
    """The best method of the last rung that each name stands for, where there is one, and its score."""
    last = max(each.rung for each in results)
    trials = [each for result in results if result.rung == last for each in result.trials()]
    found = {}
    for name, fits in wanted.items():
        if some := [each for each in trials if fits(each[0])]:
            found[name] = min(some, key=lambda each: (-each[1], costs.of(each[0]), each[0].filter != NO_FILTER))
    return found


def _order(results: Sequence[Result], wanted: Wanted) -> list[Arm]:
    """Arms by the best of their trials that are wanted and that no other arm has; of equals the earlier first."""
    there = {result.arm for result in results}
    scored: dict[Arm, float] = {}
    for result in results:
        for trial, score in result.trials():
            if (trial.arm == result.arm or trial.arm not in there) and wanted(trial):
                scored[result.arm] = max(score, scored.get(result.arm, score))
    return sorted(scored, key=lambda arm: -scored[arm])
