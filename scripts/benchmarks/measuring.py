"""The measuring frame: variants run by turns, a ratio is taken between neighbours.

So a machine that is busy with other things slows both sides of a ratio.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .aims import Aim, Verdict, judge
from .memory import peak, settle

# Where a clock says how long the process itself computed, threads included, waiting for a core does not count.
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}

# Ends the name of the baseline where it is measured once more, for the noise.
AGAIN = " again"

Run = Callable[[], object]
Check = Callable[[Mapping[str, object]], object]


@dataclass(frozen=True)
class Spread:
    """What several rounds gave."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarize at least one value."""
        return cls(statistics.median(values), min(values), max(values))

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.min:.3f}–{self.max:.3f})"


@dataclass(frozen=True)
class Variant:
    """Something to measure: `prepare` makes ready what is not to be timed, and returns what is."""

    name: str
    prepare: Callable[[], Run]
    aims: Sequence[Aim] = ()
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Record:
    """One variant on one batch, in a form fit for JSON."""

    part: str
    case: Mapping[str, Any]
    variant: str
    detail: Mapping[str, Any]
    rounds: int
    seconds: Spread
    ratio: Spread
    tokens_per_second: float
    peak_bytes: int | None
    memory_ratio: float | None
    aims: Sequence[Verdict]

    def as_json(self) -> dict[str, Any]:
        """All of it as plain values."""
        aims = [{**asdict(each), "met": each.met, "text": str(each.aim)} for each in self.aims]
        return {**asdict(self), "aims": aims}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Record:
        """What :meth:`as_json` gave."""
        aims = [Verdict(Aim(**each["aim"]), each["value"]) for each in values["aims"]]
        spreads = {name: Spread(**values[name]) for name in ("seconds", "ratio")}
        return cls(**{**values, **spreads, "aims": aims})


@dataclass(frozen=True)
class Meter:
    """How to measure.

    Args:
        device: Where the variants run.
        clock: A key of ``CLOCKS``.
        rounds: How often each variant runs, at most.
        warm_up: Runs before, whose time is not kept; the last one's memory is.
        limit: Seconds after which no further round of a case begins; None: all rounds.
    """

    device: str
    clock: str
    rounds: int
    warm_up: int = 1
    limit: float | None = None

    def seconds(self, run: Run) -> float:
        """Time one run."""
        now = CLOCKS[self.clock]
        self._wait()
        start = now()
        run()
        self._wait()
        return now() - start

    def warm(self, variants: Sequence[Variant], check: Check | None = None) -> dict[str, int]:
        """Run every variant once or more; return the bytes that each takes, by name.

        What the last runs gave goes to ``check``, by name.
        """
        peaks: dict[str, int] = {}
        # On a GPU the very first run also makes what the libraries then keep for themselves.
        for _ in range(self.warm_up + (self.device != "cpu")):
            outputs: dict[str, object] = {}
            for each in variants:
                peaks[each.name], output = peak(each.prepare(), self.device)
                if check is not None:
                    outputs[each.name] = output
            if check is not None:
                check(outputs)
        return peaks

    def by_turns(
        self, baseline: Variant, variants: Sequence[Variant], tick: Callable[[], object]
    ) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
        """Seconds and ratios of every variant, round by round.

        Every variant runs between two runs of the baseline, and its ratio is to their mean. Odd rounds go backwards, so
        that none always follows the same one.
        """
        seconds: dict[str, list[float]] = {each.name: [] for each in (baseline, *variants)}
        ratios: dict[str, list[float]] = {each.name: [] for each in variants}
        started = time.perf_counter()
        for number in range(self.rounds):
            if number and self.limit is not None and time.perf_counter() - started > self.limit:
                break
            before = self.seconds(baseline.prepare())
            seconds[baseline.name].append(before)
            for each in variants if number % 2 == 0 else reversed(variants):
                took = self.seconds(each.prepare())
                after = self.seconds(baseline.prepare())
                seconds[baseline.name].append(after)
                seconds[each.name].append(took)
                ratios[each.name].append(2 * took / (before + after))
                before = after
                tick()
        return seconds, ratios

    def _wait(self) -> None:
        if self.device != "cpu":
            import torch

            torch.cuda.synchronize()


def measure(
    part: str,
    case: Mapping[str, Any],
    tokens: int,
    baseline: Variant,
    variants: Sequence[Variant],
    meter: Meter,
    tick: Callable[[], object] = lambda: None,
    check: Check | None = None,
) -> list[Record]:
    """Time variants against a baseline, then their memory; the baseline's own record comes first."""
    settle()
    everything = (baseline, *variants)
    peaks = meter.warm(everything, check)
    seconds, ratios = meter.by_turns(baseline, variants, tick)
    ratios[baseline.name] = [1.0] * min(len(values) for values in seconds.values())
    records = []
    for each in everything:
        spread = Spread.of(seconds[each.name])
        own, base = peaks[each.name], peaks[baseline.name]
        records.append(
            Record(
                part=part,
                case=case,
                variant=each.name,
                detail=each.detail,
                rounds=len(ratios[each.name]),
                seconds=spread,
                ratio=Spread.of(ratios[each.name]),
                tokens_per_second=tokens / spread.median,
                peak_bytes=own,
                memory_ratio=own / base if own is not None and base else None,
                aims=[judge(aim, each.name, baseline.name, ratios, peaks) for aim in each.aims],
            )
        )
    return records


def fitting_rows(run: Callable[[int], Run], seconds: float, most: int = 256) -> int:
    """Rows of a batch, an even number, that one run takes about so long for; `run` makes a run of some rows."""
    rows = 2
    while True:
        once = run(rows)
        once()
        start = time.perf_counter()
        once()
        took = time.perf_counter() - start
        if took > seconds / 4 or rows >= most:
            return min(most, max(2, 2 * round(rows * seconds / took / 2)))
        rows *= 2
