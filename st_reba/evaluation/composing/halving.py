"""Successive halving: many arms on few items, ever fewer arms on ever more, within a budget of forward tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from ...modules.repeat import RepeatTransformer
from ..reading import shuffled
from .costs import Costs
from .parts import Part
from .passes import encode_arm
from .results import Result, Results
from .scoring import score_reads
from .space import Space
from .trial import NO_FILTER, PAPERS, Arm, Read, Trial

# Of the arms of one rung a third goes on, on three times the items.
RATE = 3
MOST_RUNGS = 3
# Items below which a rung would choose by chance.
FEWEST = 100
# Readings of an arm that are tried behind every filter, from the first rung to the last.
LOOKED_AT = (6, 8, 12)
# Digits of a score that are kept: what is chosen must not depend on whether a run was stopped.
_DIGITS = 6
# Arms that every rung keeps, whatever the budget: the best of each single paper, of the fast, and of all.
_LEAST = len(PAPERS) + 2


def rung_sizes(items: int) -> list[int]:
    """Items of each rung: all at last, a third of that before, as long as enough are left to choose by.

    Example:
        >>> rung_sizes(1458), rung_sizes(400), rung_sizes(90)
        ([162, 486, 1458], [133, 400], [90])
    """
    sizes = [items]
    while len(sizes) < MOST_RUNGS and sizes[0] // RATE >= FEWEST:
        sizes.insert(0, sizes[0] // RATE)
    return sizes


def papers_of(arm: Arm, space: Space, depth: int) -> set[str]:
    """Single papers' methods that an arm is the input of."""
    whole = [Read(depth, depth, True, pooled) for pooled in space.pooled]
    reads = set(space.reads(arm, depth))
    return {Trial(arm, read).paper(depth) for read in whole if read in reads} - {"composed"}


def of_paper(paper: str, depth: int) -> Callable[[Trial], bool]:
    """Whether a trial is by itself that paper's method."""
    return lambda trial: trial.paper(depth) == paper


class Halving:
    """Runs arms through the rungs.

    Args:
        results: Where results are kept; those that are there are not made again.
        transformer: Whose backbone runs; called when there is something to run.
        part: The items that choose.
        space: What is read and filtered.
        costs: Of the arms, on all texts of the part.
        speed: The share of the base's work that a fast method may take.
        seed: Of the items' order, and of the draw of arms.
        show_progress_bar: Show one a rung; None: on a terminal.
        say: Gets a line a rung.
    """

    def __init__(
        self,
        results: Results,
        transformer: Callable[[], RepeatTransformer],
        part: Part,
        space: Space,
        costs: Costs,
        *,
        speed: float,
        seed: int,
        show_progress_bar: bool | None,
        say: Callable[[str], object],
    ) -> None:
        self.part, self.space, self.costs, self.seed = part, space, costs, seed
        self._results, self._transformer, self._speed, self._say = results, transformer, speed, say
        self._disable = None if show_progress_bar is None else not show_progress_bar
        self.depth = costs.depth
        order = shuffled(range(len(part)), seed, "items")
        self.sizes = rung_sizes(len(part))
        # The items of a rung, those of the rung before among them.
        self.parts: list[Part] = [part.of_items(np.sort(np.asarray(order[:size], np.intp))) for size in self.sizes]

    def always(self, arms: Sequence[Arm]) -> list[Arm]:
        """The arms that a budget does not leave out: those of single papers' methods, or else the first."""
        return [arm for arm in arms if papers_of(arm, self.space, self.depth)] or list(arms[:1])

    def rate(self, arms: Sequence[Arm]) -> float:
        """Positions a second of the arms that always run, on the first rung.

        Args:
            arms: All arms.

        Raises:
            ValueError: None of them could be run.
        """
        found = [each for each in self._rung(self.always(arms), 0, "Papers") if each.scored]
        if not found:
            raise ValueError("no arm of a single paper's method could be run, so there is no measure for minutes.")
        # A clock may stand still over a tiny model.
        return sum(each.tokens for each in found) / max(1e-3, sum(each.seconds for each in found))

    def drawn(self, arms: Sequence[Arm], tokens: float) -> list[Arm]:
        """As many arms as a budget allows on the first rung, drawn by the seed, in their order.

        Args:
            arms: All of them.
            tokens: Positions that the whole search may run.
        """
        chosen = set(self.always(arms))
        left = self._allowed(0, tokens, arms) - sum(self._cost(arm, 0) for arm in chosen)
        others = [arm for arm in arms if arm not in chosen]
        for index in shuffled(range(len(others)), self.seed, "arms"):
            left -= self._cost(others[index], 0)
            if left < 0:
                break
            chosen.add(others[index])
        return [arm for arm in arms if arm in chosen]

    def run(self, arms: Sequence[Arm], tokens: float | None = None) -> list[Result]:
        """All results, those of the last rung at the end.

        Args:
            arms: The arms of the first rung.
            tokens: Positions that may run in all. Arms of single papers' methods run on the first rung, and the best
                of each paper, of the fast and of all on every further one, also where that takes more.

        Raises:
            ValueError: No arm could be scored.
        """
        made: list[Result] = []
        left = list(arms)
        for rung, size in enumerate(self.sizes):
            found = self._rung(left, rung, f"Rung {rung + 1} of {len(self.sizes)}")
            if not any(result.scored for result in found):
                raise ValueError(f"no arm could be scored: {found[0].error}")
            made += found
            best = max(score for result in found for _, score in result.trials())
            self._say(f"Rung {rung + 1} of {len(self.sizes)}: {len(left)} arms on {size} items, best {best:.4f}")
            if rung + 1 < len(self.sizes):
                if tokens is not None:
                    tokens -= sum(self._cost(arm, rung) for arm in left)
                left = self.kept(found, -(-len(left) // RATE), rung + 1, tokens)
        return made

    def kept(
        self, results: Sequence[Result], count: int, rung: int | None = None, tokens: float | None = None
    ) -> list[Arm]:
        """The arms that go on: the best, the best of the fast, and the best of each single paper.

        Args:
            results: A rung's.
            count: How many, about: half of them for the best of all, a quarter for the fast.
            rung: That they go on to.
            tokens: Positions that this rung and those after it may run; None: any number.

        Returns:
            The arms, those first that no budget leaves out.
        """
        every = self._order(results, lambda trial: True)
        fast = self._order(results, lambda trial: self.costs.of(trial) <= self._speed)
        papers = [self._order(results, of_paper(paper, self.depth)) for paper in PAPERS]
        always = dict.fromkeys(arm for order in (every, fast, *papers) for arm in order[:1])
        kept = {**always, **dict.fromkeys([*every[: -(-count // 2)], *fast[: -(-count // 4)]])}
        for order in papers:
            kept.update(dict.fromkeys(order[: -(-count // (4 * len(PAPERS)))]))
        for arm in every:
            if len(kept) >= count:
                break
            kept[arm] = None
        if tokens is None or rung is None:
            return list(kept)
        left = self._allowed(rung, tokens, list(kept)) - sum(self._cost(arm, rung) for arm in always)
        affordable = dict(always)
        for arm in kept:
            if arm not in always:
                left -= self._cost(arm, rung)
                if left < 0:
                    break
                affordable[arm] = None
        return list(affordable)

    def _allowed(self, rung: int, tokens: float, arms: Sequence[Arm]) -> float:
        """What a rung may run: its share of what is left, but for what the rungs after it need at the least."""
        dearest = max(arms, key=self.costs.tokens)
        later = range(rung + 1, len(self.sizes))
        return min(
            tokens / (len(later) + 1), tokens - sum(min(_LEAST, len(arms)) * self._cost(dearest, n) for n in later)
        )

    def _cost(self, arm: Arm, rung: int) -> int:
        return self.costs.total(arm, self.parts[rung].texts)

    def _rung(self, arms: Sequence[Arm], rung: int, title: str) -> list[Result]:
        found = []
        for arm in tqdm(arms, desc=title, unit="arm", disable=self._disable):
            result = self._results.trials.get((arm, rung))
            if result is None:
                result = self._made(arm, rung)
                self._results.add(result)
            found.append(result)
        return found

    def _made(self, arm: Arm, rung: int) -> Result:
        start = time.perf_counter()
        part, looked_at = self.parts[rung], LOOKED_AT[rung - len(self.sizes)]
        reads = self.space.reads(arm, self.depth)
        about: dict[str, Any] = {"arm": arm, "rung": rung, "items": len(part), "layers": max(r.runs for r in reads)}
        try:
            encoded = encode_arm(self._transformer(), arm, reads, part.texts)
        except ValueError as failure:
            # Some backbones cannot run some plans; the others are not to wait for a person.
            return Result(**about, tokens=0, seconds=0.0, scored=(), error=str(failure))
        scored = score_reads(part, encoded.vectors, self.space.filters, looked_at=looked_at)
        rounded = tuple(replace(each, score=round(each.score, _DIGITS)) for each in scored)
        error = None if scored else "no reading gave vectors that are finite"
        seconds = round(time.perf_counter() - start, 3)
        return Result(**about, tokens=encoded.tokens, seconds=seconds, scored=rounded, error=error)

    def _order(self, results: Sequence[Result], wanted: Callable[[Trial], bool]) -> list[Arm]:
        """Arms by the best of their trials that are wanted and that no other arm has; of equals the earlier first."""
        there = {result.arm for result in results}
        best = {
            result.arm: max(
                (
                    score
                    for trial, score in result.trials()
                    if (trial.arm == result.arm or trial.arm not in there) and wanted(trial)
                ),
                default=None,
            )
            for result in results
        }
        scored = {arm: score for arm, score in best.items() if score is not None}
        return sorted(scored, key=lambda arm: -scored[arm])


def best_of(results: Sequence[Result], wanted: Callable[[Trial], bool], costs: Costs) -> tuple[Trial, float] | None:
    """The best trial of a rung; among equals the cheaper, then the one without a filter, then the earlier."""
    trials = [each for result in results for each in result.trials() if wanted(each[0])]
    if not trials:
        return None
    return min(trials, key=lambda each: (-each[1], costs.of(each[0]), each[0].filter != NO_FILTER))
