"""NoSink's own choice of k and k0: the preset ``nosink``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ..modules import NoSink
from ..modules.options import MOST_LAYERS, Options, option
from ..modules.plan import SETTINGS
from ..selfcheck import check_plan
from .crossfit import Scored
from .heldout import Found
from .ledger import Result
from .rungs import Search, about
from .trials import NO_FILTER, Arm, Read, setting

# What figures 2 and 4 of NoSink vary over k, and what figure 6 adds with a k0; EXTEND only falls, and ends there.
_ARCHITECTURES = tuple(
    f"{name}-{kind}" for name in ("inplace", "inter", "extra", "extend") for kind in ("bidir", "back")
)
_MASKS = ("mask0-bidir", "mask0-for", "mask0-all")
_COMBINED = ("mask0-mid", "mask0-last", "mask0-1", "mask0-2", "mask0-3")
_MOST_EXTENDED = 5


@dataclass(frozen=True)
class Choice(Options):
    """What the preset ``nosink`` takes."""

    name: ClassVar[str] = "nosink"

    everything: bool = option(False, "run the grids of the paper's figures 2, 4 and 6 too, and choose among all")
    pooling: Literal["mean", "last"] = option("mean", "sentence vector: the mean, or the last token's")
    m: int = option(1, "sink tokens that are hidden", least=1, most=MOST_LAYERS)

    def record(self) -> dict[str, Any]:
        """What a run depends on: ``everything`` only adds to it."""
        return {"pooling": self.pooling, "m": self.m}


class Chosen(Search):
    """The paper's own choice, every setting on all validation items.

    In turn INPLACE-BIDIR for k = 0 … L, whose best k is k_b; MASK0-BIDIR for k = 1 … L, whose best k is k_m;
    MASK0&BIDIR with k = k_b and k0 = k_m (LAST) or half of k_m (MID).

    Source:
        NoSink, section 3.6 and finding 5; with ``everything`` sections 3.3, 3.5 and 3.6.
    """

    fits: ClassVar[bool] = False

    def found(self) -> Found:
        depth, say = self.depth, self.say
        made: list[Result] = []
        numbers = range(1, depth + 1)

        def phase(title: str, name: str, numbers: Sequence[int], k0: int | None = None) -> list[Result]:
            found = self.rung([self._arm(name, k, k0) for k in numbers], len(self.sizes) - 1, title)
            made.extend(found)
            return found

        def combined(name: str, every: Sequence[int], masked: int) -> None:
            """MASK0&BIDIR with every k that has room for its k0."""
            k0 = {"mask0-last": masked, "mask0-mid": max(1, masked // 2)}.get(name) or int(name.removeprefix("mask0-"))
            fitting = [k for k in every if k >= k0]
            if not fitting:
                say(f"{name.upper()} k={max(every)} k0={k0}: not tried, as k0 is more than k")
            phase(f"{name.upper()} k0={k0}", name, fitting, masked)

        (baseline,) = phase("BASELINE", "baseline", [0])
        if not baseline.scored:
            raise ValueError(f"the unconverted model cannot be scored: {baseline.error}")
        settings = len(_ARCHITECTURES + _MASKS + _COMBINED) if self.options.everything else 2
        say(f"{depth * settings} arms or fewer; {about(baseline.seconds * depth * settings)}, held-out scores on top")
        bidirectional = phase("INPLACE-BIDIR", "inplace-bidir", numbers)
        if _best(bidirectional) is None:
            raise ValueError(f"no converted model can be scored: {bidirectional[0].error}")
        k = _k(_best([baseline, *bidirectional]))
        say(f"INPLACE-BIDIR: best k = {k} of 0 to {depth}")
        masked = _best(phase("MASK0-BIDIR", "mask0-bidir", numbers))
        if masked is None:
            say("MASK0&BIDIR: not tried, as no model of MASK0-BIDIR can be scored")
        else:
            say(f"MASK0-BIDIR: best k = {_k(masked)} of 1 to {depth}")
            for name in _COMBINED[:2]:
                combined(name, [k], _k(masked))
        if self.options.everything:
            for name in _ARCHITECTURES + _MASKS:
                phase(name.upper(), name, range(1, (_MOST_EXTENDED if name.startswith("extend") else depth) + 1))
            for name in _COMBINED if masked is not None else _COMBINED[2:]:
                combined(name, numbers, _k(masked))
        return self._found(list({result.arm: result for result in made}.values()), baseline)

    def scored(self, arm: Arm, rung: int) -> tuple[int, list[Scored]]:
        # The model itself, as some of these plans run layers twice, and words have vectors of their own.
        decoder, items, folds = self.transformer, self.items[rung], self.folds[rung]
        decoder.rebind([_nosink(arm), *(stage for stage in decoder.stages if stage.order != NoSink.order)])
        check_plan(decoder)
        vectors = items.vectors(self.model)
        score = sum(fold.score(vectors[fold.places]) for fold in folds) / len(folds)
        return self.cost(arm, rung), [
            Scored(Read(self.depth, self.depth, True, self.options.pooling), NO_FILTER, score)
        ]

    def _arm(self, name: str, k: int, k0: int | None) -> Arm:
        """A setting with k converted layers, and with a k0 where it takes one."""
        if name == "baseline":
            return Arm(nosink=NoSink())
        m = self.options.m if name.startswith("mask0") else 1
        return Arm(nosink=NoSink(name, k, k0 if SETTINGS[name].get("k0", 0) is None else None, m))

    def _found(self, made: list[Result], baseline: Result) -> Found:
        """The best of each setting, and a recipe for the best of all."""
        by_setting: dict[str, list[Result]] = {}
        for result in made:
            by_setting.setdefault(_nosink(result.arm).setting, []).append(result)
        tops = [top for results in by_setting.values() if (top := _best(results)) is not None]
        chosen = {setting(_nosink(top.arm)): top.trials()[0] for top in tops}
        winner = setting(_nosink((_best(made) or baseline).arm))
        return Found(made, chosen, "BASELINE", {winner: "recipe.yaml"}, self.depth, self.costs)


def _nosink(arm: Arm) -> NoSink:
    assert arm.nosink is not None
    return arm.nosink


def _k(result: Result | None) -> int:
    return 0 if result is None else int(_nosink(result.arm).k or 0)


def _best(results: Sequence[Result]) -> Result | None:
    """The highest score; among equals the smaller k, then the smaller k0, then the earlier (NoSink, section 4.1)."""
    scored = [result for result in results if result.scored]
    return min(scored, key=lambda each: (-each.scored[0].score, _k(each), _nosink(each.arm).plan.k0), default=None)
