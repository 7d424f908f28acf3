"""How cost grows with the length of a text: a power law, and a linear beside a quadratic part."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from .measuring import AGAIN, Record

PARTS = ("methods", "long")


@dataclass(frozen=True)
class Growth:
    """What was fitted to one variant's seconds a text, over the length n.

    Args:
        group: The part, and what else was the same at all lengths.
        variant: The variant.
        lengths: The lengths n.
        exponent: p of c · n^p, by least squares on the logarithms.
        linear: a of a · n + b · n², seconds a token, never negative; least squares on relative errors.
        quadratic: b, seconds a squared token.
        worst: Largest relative error of a · n + b · n².
        memory_exponent: As ``exponent``, of peak memory a text; None: not measured.
    """

    group: str
    variant: str
    lengths: Sequence[int]
    exponent: float
    linear: float
    quadratic: float
    worst: float
    memory_exponent: float | None

    @property
    def crossover(self) -> float | None:
        """The n at which both parts cost the same; None: only one of them is there."""
        return self.linear / self.quadratic if self.linear > 0 and self.quadratic > 0 else None

    def as_json(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {**asdict(self), "crossover": self.crossover}


def power_law(lengths: Sequence[float], values: Sequence[float]) -> float:
    """The exponent p of c · n^p that fits best, by least squares on the logarithms."""
    return float(np.polyfit(np.log(lengths), np.log(values), 1)[0])


def two_parts(lengths: Sequence[float], values: Sequence[float]) -> tuple[float, float, float]:
    """a and b of a · n + b · n², neither negative, with the least squared relative errors; and the largest of these."""
    n, y = np.asarray(lengths, dtype=float), np.asarray(values, dtype=float)
    design = np.stack([n / y, n**2 / y], axis=1)
    both, *_ = np.linalg.lstsq(design, np.ones_like(n), rcond=None)
    candidates = [both] if (both >= 0).all() else []
    for column in range(2):
        alone = np.zeros(2)
        alone[column] = design[:, column].sum() / (design[:, column] ** 2).sum()
        candidates.append(alone)
    best = min(candidates, key=lambda each: float(((design @ each - 1) ** 2).sum()))
    return float(best[0]), float(best[1]), float(np.abs(design @ best - 1).max())


def group_of(record: Record) -> str:
    """What a series of lengths has in common, in words."""
    case = record.case
    batch = {"1": "one text a batch", "fits": "as many texts as fit"}.get(case["batch"], f"{case['batch']} texts")
    return f"{record.part}: {case['lengths']} lengths, {batch}"


def series(records: Iterable[Record]) -> dict[str, dict[str, list[Record]]]:
    """Records by group, by variant, in order of their lengths; groups with more than one length."""
    groups: dict[str, dict[str, list[Record]]] = {}
    for record in records:
        if record.part in PARTS and not record.variant.endswith(AGAIN):
            groups.setdefault(group_of(record), {}).setdefault(record.variant, []).append(record)
    for variants in groups.values():
        for line in variants.values():
            line.sort(key=lambda record: int(record.case["length"]))
    return {name: lines for name, lines in groups.items() if any(len(_lengths(line)) > 1 for line in lines.values())}


def grown(records: Iterable[Record]) -> list[Growth]:
    """Fit every variant that was measured at two lengths or more."""
    return [
        _fit(group, variant, line)
        for group, variants in series(records).items()
        for variant, line in variants.items()
        if len(_lengths(line)) > 1
    ]


def seconds_a_text(record: Record) -> float:
    """Seconds of one text of a batch."""
    return record.seconds.median / int(record.case["batch_size"])


def _lengths(line: Sequence[Record]) -> set[int]:
    return {int(record.case["length"]) for record in line}


def _fit(group: str, variant: str, line: Sequence[Record]) -> Growth:
    lengths = [int(record.case["length"]) for record in line]
    seconds = [seconds_a_text(record) for record in line]
    linear, quadratic, worst = two_parts(lengths, seconds)
    peaks = [(record.peak_bytes or 0) / int(record.case["batch_size"]) for record in line]
    memory = power_law(lengths, peaks) if all(peaks) else None
    return Growth(group, variant, lengths, power_law(lengths, seconds), linear, quadratic, worst, memory)


def growth_lines(found: Sequence[Growth]) -> list[str]:
    """The fits as Markdown, a table a group."""
    lines: list[str] = []
    last = None
    for each in found:
        if each.group != last:
            last = each.group
            lines += [
                "",
                f"### growth, {each.group}",
                "",
                "| | lengths | time ∝ n^ | a, µs/token | b, ns/token² | a·n = b·n² at n | worst error | memory ∝ n^ |",
                "|---|---|--:|--:|--:|--:|--:|--:|",
            ]
        lines.append(f"| {' | '.join(_cells(asdict(each), each.crossover))} |")
    return lines


def _cells(values: Mapping[str, Any], crossover: float | None) -> list[str]:
    memory = values["memory_exponent"]
    return [
        values["variant"],
        ", ".join(map(str, values["lengths"])),
        f"{values['exponent']:.2f}",
        f"{values['linear'] * 1e6:.3g}",
        f"{values['quadratic'] * 1e9:.3g}",
        "–" if crossover is None or not math.isfinite(crossover) else f"{crossover:.0f}",
        f"{values['worst']:.0%}",
        "–" if memory is None else f"{memory:.2f}",
    ]
