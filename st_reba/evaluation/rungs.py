"""Arms run on ever more of the validation items: what every search shares."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from sentence_transformers import SentenceTransformer
from tqdm.auto import tqdm

from ..modules.plan import Stack
from .crossfit import FOLDS, Fold, Scored, folds_of
from .heldout import Found, Parts
from .items import Items
from .ledger import Ledger, Result
from .passes import Costs, costs_of
from .reading import shuffled
from .trials import Arm

Say = Callable[[str], object]
# Of the arms of one rung a third goes on, on three times the items.
RATE = 3
MOST_RUNGS = 3
# Items below which a rung would choose by chance.
FEWEST = 100
# Digits of a score that are kept: what is chosen must not depend on whether a run was stopped.
_DIGITS = 6


class Search(ABC):
    """Runs arms and keeps what they score. A preset says which, and what is chosen.

    Args:
        ledger: Where results are kept; those that are there are not made again.
        model: The unconverted model.
        parts: The items, of which the held-out ones are not looked at.
        options: The preset's own.
        seed: Of the items' order, and of the draw of arms.
        disable: Show no bars; None: on a terminal.
        say: Gets a line a step.
    """

    # Whether filters are fitted, on other items than those that are scored.
    fits: ClassVar[bool]

    def __init__(
        self,
        ledger: Ledger,
        model: SentenceTransformer,
        parts: Parts,
        options: Any,
        *,
        seed: int = 0,
        disable: bool | None = None,
        say: Say = print,
    ) -> None:
        self.ledger, self.model, self.options, self.say = ledger, model, options, say
        transformer: Any = model[0]
        self.transformer: Any = transformer
        self.depth: int = transformer.depth
        self.seed, self._disable = seed, disable
        count, choosing = len(parts.validation), parts.choosing
        order = shuffled(range(count), seed, "items")
        self.sizes = rung_sizes(count)
        # The items of a rung, those of the rung before among them, and behind them what is kept apart to learn from.
        learnt = range(count, len(choosing))
        self.items: list[Items] = [choosing.subset([*sorted(order[:size]), *learnt]) for size in self.sizes]
        # Where nothing is learnt or fitted there is nothing to keep apart.
        alone = not self.fits and (bool(learnt) or not choosing.learns)
        self.folds: list[list[Fold]] = [
            folds_of(items, size, 1 if alone else FOLDS) for items, size in zip(self.items, self.sizes, strict=True)
        ]
        self.costs: Costs = costs_of(transformer, [], choosing.texts)

    @abstractmethod
    def found(self) -> Found:
        """Search.

        Raises:
            ValueError: Nothing could be scored.
        """

    @abstractmethod
    def scored(self, arm: Arm, rung: int) -> tuple[int, list[Scored]]:
        """The positions that ran of an arm on a rung's items, and what was read of them."""

    def rung(self, arms: Sequence[Arm], rung: int, title: str) -> list[Result]:
        """The results of arms on a rung's items."""
        there = self.ledger.results
        missing = [arm for arm in arms if (arm, rung) not in there]
        alike = {self._layers(arm): result for (arm, on), result in there.items() if on == rung}
        for arm in tqdm(missing, desc=title, unit="arm", disable=self._disable if missing else True):
            layers = self._layers(arm)
            # As MASK0-LAST with k = k0, which is MASK0-BIDIR.
            same = None if layers is None else alike.get(layers)
            result = self._made(arm, rung) if same is None else replace(same, arm=arm, tokens=0, seconds=0.0)
            alike[layers] = result
            self.ledger.add(result)
            if result.error is not None:
                self.say(f"{arm}: failed, {result.error}")
        return [there[arm, rung] for arm in arms]

    def cost(self, arm: Arm, rung: int) -> int:
        """Positions of an arm on a rung."""
        return self.costs.total(arm, self.items[rung].texts)

    def _layers(self, arm: Arm) -> Stack | None:
        """The layers that one of NoSink's settings runs."""
        return None if arm.nosink is None else arm.nosink.plan.resolve(self.depth)

    def _made(self, arm: Arm, rung: int) -> Result:
        start = time.perf_counter()
        tokens, scored, error = 0, list[Scored](), None
        try:
            tokens, scored = self.scored(arm, rung)
        except ValueError as failure:
            # Some backbones cannot run some plans; the others are not to wait for a person.
            error = str(failure)
        if not scored and error is None:
            error = "no reading gave vectors that are finite"
        rounded = tuple(replace(each, score=round(each.score, _DIGITS)) for each in scored)
        return Result(arm, rung, self.sizes[rung], tokens, round(time.perf_counter() - start, 3), rounded, error)


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


def about(seconds: float) -> str:
    """A length of time in words.

    Example:
        >>> about(20), about(700)
        ('less than a minute', 'about 12 minutes')
    """
    return "less than a minute" if seconds < 60 else f"about {-(-seconds // 60):.0f} minutes"
