"""The trials of a run, kept on disk as they are made, so that a run that was stopped can go on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from ..ledger import RunFolder

Key = tuple[str, int, int | None]


@dataclass(frozen=True)
class Trial:
    """One converted model, scored.

    Args:
        setting: The paper's name, as of :class:`st_reba.NoSink`.
        k: Number of converted layers.
        k0: The nosink ones among them, where bidirectional ones are combined with them; else None.
        m: Sink tokens that nosink layers hide.
        pooling: Of the model.
        stack: The layers, for people.
        validation: Score, a fraction; None: it failed.
        heldout: Score, a fraction; None: it failed.
        seconds: What it took; 0: an equal stack had been scored already.
        error: Why it failed.
    """

    setting: str
    k: int
    k0: int | None
    m: int
    pooling: str
    stack: str
    validation: float | None
    heldout: float | None
    seconds: float
    error: str | None = None

    @property
    def key(self) -> Key:
        """What tells it from the run's other trials."""
        return self.setting, self.k, self.k0

    def __str__(self) -> str:
        name = self.setting.upper()
        if self.setting == "baseline":
            return name
        return f"{name} k={self.k}" + ("" if self.k0 is None else f" k0={self.k0}")


def best(trials: Sequence[Trial]) -> Trial | None:
    """The trial of the highest validation score; among equals the smaller k, then the smaller k0, then the earlier.

    Args:
        trials: Those that failed are passed over.

    Returns:
        The best; None: there is none.

    Source:
        NoSink, section 4.1: k and k0 are chosen on the validation set.

    Example:
        >>> trials = [Trial("mask0-bidir", k, None, 1, "mean", "", score, 0.9, 0) for k, score in [(3, 0.7), (2, 0.7)]]
        >>> best(trials).k
        2
    """
    scored = [
        (-trial.validation, trial.k, trial.k0 or 0, n) for n, trial in enumerate(trials) if trial.validation is not None
    ]
    return trials[min(scored)[-1]] if scored else None


class Ledger(RunFolder[Key, Trial]):
    """The trials of NoSink's settings; see :class:`RunFolder`.

    Example:
        >>> with Ledger("run", {"base": "mini"}) as ledger:
        ...     ledger.add(Trial("baseline", 0, None, 1, "mean", "6 forward", 0.5, 0.6, 1.5))
        >>> with Ledger("run", {"base": "mini"}) as ledger:
        ...     [str(trial) for trial in ledger.trials.values()]
        ['BASELINE']
        >>> Ledger("run", {"base": "other"})
        Traceback (most recent call last):
        ...
        ValueError: run: another run is there: base was 'mini', now 'other'. Give another folder, or ...
    """

    def key(self, trial: Trial) -> Key:
        return trial.key

    def to_json(self, trial: Trial) -> Any:
        return asdict(trial)

    def from_json(self, values: Any) -> Trial | None:
        if not isinstance(values, dict) or set(values) != {field.name for field in fields(Trial)}:
            return None
        return Trial(**values)
