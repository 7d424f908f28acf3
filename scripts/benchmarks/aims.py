"""Aims: what a variant should cost at most, or a rival at least; and whether it does."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Aim:
    """A bound on a variant's time or memory.

    Args:
        limit: The bound: a ratio, or bytes.
        measure: ``"time"`` and ``"memory"`` are ratios, ``"bytes"`` is peak memory itself.
        at_least: The bound is a lower one.
        of: The variant that the ratio is to; None: the baseline.
    """

    limit: float
    measure: Literal["time", "memory", "bytes"] = "time"
    at_least: bool = False
    of: str | None = None

    def __str__(self) -> str:
        sign = "≥" if self.at_least else "≤"
        name = "time" if self.measure == "time" else "memory"
        bound = f"{self.limit / 2**30:g} GiB" if self.measure == "bytes" else f"{self.limit:.2f}"
        return f"{name} {sign} {bound}" + (f" × {self.of}" if self.of else "")

    def met_by(self, value: float) -> bool:
        """Whether a measured value is within the bound."""
        return value >= self.limit if self.at_least else value <= self.limit


@dataclass(frozen=True)
class Verdict:
    """An aim, and what was measured; None where it could not be."""

    aim: Aim
    value: float | None

    @property
    def met(self) -> bool | None:
        """Whether the aim was reached; None: not measured."""
        return None if self.value is None else self.aim.met_by(self.value)

    @property
    def shown(self) -> str:
        """The value in words."""
        if self.value is None:
            return "not measured"
        return f"{self.value / 2**30:.2f} GiB" if self.aim.measure == "bytes" else f"{self.value:.2f}"

    def __str__(self) -> str:
        if self.value is None:
            return f"{self.aim}: {self.shown}"
        # A time's ratio to the baseline stands in a column of its own.
        value = "" if self.aim.measure == "time" and self.aim.of is None else f" ({self.shown})"
        return f"{self.aim}: {'met' if self.met else '**missed**'}{value}"


def judge(
    aim: Aim, name: str, baseline: str, ratios: Mapping[str, Sequence[float]], peaks: Mapping[str, int | None]
) -> Verdict:
    """Compare what was measured with an aim.

    Args:
        aim: The aim.
        name: The variant that has it.
        baseline: The baseline's name.
        ratios: Each variant's time to the baseline's, round by round.
        peaks: Each variant's peak memory.
    """
    if aim.measure == "time":
        own = ratios[name]
        other = ratios.get(aim.of, []) if aim.of else [1.0] * len(own)
        # Within a round first: what slows the machine there slows both.
        both = [mine / theirs for mine, theirs in zip(own, other, strict=False)]
        return Verdict(aim, statistics.median(both) if both else None)
    own_peak = peaks[name]
    if aim.measure == "bytes":
        return Verdict(aim, None if own_peak is None else float(own_peak))
    other_peak = peaks.get(aim.of or baseline)
    return Verdict(aim, own_peak / other_peak if own_peak is not None and other_peak else None)
