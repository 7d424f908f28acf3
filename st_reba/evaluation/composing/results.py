"""What a search keeps of every arm that it ran."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ..ledger import RunFolder
from .scoring import Scored
from .trial import Arm, Filter, Read, Trial


@dataclass(frozen=True)
class Result:
    """An arm on one rung: every reading of one forward pass over its texts.

    Args:
        arm: The arm.
        rung: Its number, from 0.
        items: Items that were scored.
        tokens: Positions that ran, padding excluded.
        layers: Layers that ran.
        seconds: What it took.
        scored: Readings behind filters; none: it failed.
        error: Why it failed.
    """

    arm: Arm
    rung: int
    items: int
    tokens: int
    layers: int
    seconds: float
    scored: tuple[Scored, ...]
    error: str | None = None

    def trials(self) -> list[tuple[Trial, float]]:
        """Whole methods and their scores; some may be another arm's, too, whose conversions reach as far down."""
        return [(Trial(self.arm, each.read, each.filter).own, each.score) for each in self.scored]


class Results(RunFolder[tuple[Arm, int], Result]):
    """The results of a run; see :class:`RunFolder`."""

    def key(self, trial: Result) -> tuple[Arm, int]:
        return trial.arm, trial.rung

    def to_json(self, trial: Result) -> Any:
        values = {name: value for name, value in vars(trial).items() if name not in ("arm", "scored")}
        # Rows without names, so that thousands of them stay small.
        scored = [[*asdict(s.read).values(), *asdict(s.filter).values(), s.score] for s in trial.scored]
        return {"arm": asdict(trial.arm), **values, "scored": scored}

    def from_json(self, values: Any) -> Result | None:
        try:
            scored = tuple(Scored(Read(*row[:5]), Filter(*row[5:9]), row[9]) for row in values.pop("scored"))
            return Result(arm=Arm(**values.pop("arm")), scored=scored, **values)
        except (AttributeError, KeyError, TypeError, IndexError):
            return None
