"""The search for k and k0: which conversions are tried, in which order, and what each scores."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from sentence_transformers import SentenceTransformer
from tqdm.auto import tqdm

from ...modules import LayerPlan, NoSink
from ...selfcheck import check_plan
from ..tasks import Task
from ..vectors import UnusableVectors
from .trials import Key, Ledger, Trial, best

# What the paper's figures 2 and 4 vary over k; figure 6 adds k0.
ARCHITECTURES = tuple(
    f"{name}-{kind}" for name in ("inplace", "inter", "extra", "extend") for kind in ("bidir", "back")
)
MASKS = ("mask0-bidir", "mask0-for", "mask0-all")
COMBINED = ("mask0-1", "mask0-2", "mask0-3", "mask0-mid", "mask0-last")
# EXTEND only falls, so that the paper ends it there.
MOST_EXTENDED = 5


def plan_of(setting: str, k: int, k0: int | None, m: int) -> LayerPlan:
    """The layer plan of a trial.

    Args:
        setting: The trial's.
        k: Number of converted layers.
        k0: The nosink ones among them, for the settings in ``COMBINED``: not halved again for MASK0-MID.
        m: Sink tokens.

    Example:
        >>> plan = plan_of("mask0-mid", 4, 2, 1)
        >>> plan.kind, plan.k, plan.k0
        ('bidirectional', 4, 2)
    """
    if setting == "baseline":
        return LayerPlan()
    if setting in COMBINED:
        return NoSink("mask0&bidir", k, k0, m).plan
    return NoSink.of({"setting": setting, "k": k, "m": m if setting in MASKS else 1}).plan


class Search:
    """Makes the trials of a run, in the paper's order.

    Args:
        ledger: Where trials are kept; those that are there are not made again.
        load: Loads the unconverted model; called once, when there is a trial to make.
        task: What is scored.
        pooling: The model's, for the record.
        m: Sink tokens.
        batch_size: Texts a forward pass.
        prompt: In front of every text.
        show_progress_bar: Show one a phase; None: on a terminal.
        say: Gets a line for each phase.
    """

    def __init__(
        self,
        ledger: Ledger,
        load: Callable[[], SentenceTransformer],
        task: Task,
        *,
        pooling: str,
        m: int,
        batch_size: int,
        prompt: str | None,
        show_progress_bar: bool | None,
        say: Callable[[str], object],
    ) -> None:
        self.made: dict[Key, Trial] = {}
        self.skipped: list[str] = []
        self._ledger, self._load, self._task, self._say = ledger, load, task, say
        self._pooling, self._m, self._batch_size, self._prompt = pooling, m, batch_size, prompt
        self._disable = None if show_progress_bar is None else not show_progress_bar
        self._loaded: SentenceTransformer | None = None

    @property
    def depth(self) -> int:
        """Number of the base's layers L."""
        if "layers" not in self._ledger.found:
            self._ledger.find(layers=int(self._transformer().depth))
        return int(self._ledger.found["layers"])

    def choose(self) -> None:
        """INPLACE-BIDIR's best k, MASK0-BIDIR's best k, and MASK0&BIDIR with both.

        Raises:
            ValueError: The unconverted model cannot be scored, or no converted one.

        Source:
            NoSink, section 3.6 and finding 5.
        """
        numbers = range(1, self.depth + 1)
        (baseline,) = self._phase("BASELINE", [("baseline", 0, None)])
        if baseline.validation is None:
            raise ValueError(f"the unconverted model cannot be scored: {baseline.error}")
        bidirectional = self._phase("INPLACE-BIDIR", [("inplace-bidir", k, None) for k in numbers])
        if best(bidirectional) is None:
            raise ValueError(f"no converted model can be scored: {bidirectional[0].error}")
        k = (best([baseline, *bidirectional]) or baseline).k
        self._say(f"INPLACE-BIDIR: best k = {k} of 0 to {self.depth}")
        masked = self._best_masked()
        if masked is None:
            self._skip("MASK0&BIDIR", "no model of MASK0-BIDIR can be scored")
            return
        self._say(f"MASK0-BIDIR: best k = {masked} of 1 to {self.depth}")
        wanted: list[Key] = []
        for setting, k0 in (("mask0-mid", max(1, masked // 2)), ("mask0-last", masked)):
            if k0 > k:
                self._skip(f"{setting.upper()} k={k} k0={k0}", "k0 is more than k")
            else:
                wanted.append((setting, k, k0))
        self._phase("MASK0&BIDIR", wanted)

    def grids(self) -> None:
        """All settings of the paper's figures 2, 4 and 6, for every k.

        Source:
            NoSink, sections 3.3, 3.5 and 3.6.
        """
        for setting in (*ARCHITECTURES, *MASKS):
            most = MOST_EXTENDED if setting.startswith("extend") else self.depth
            self._phase(setting.upper(), [(setting, k, None) for k in range(1, most + 1)])
        masked = self._best_masked()
        numbers = {"mask0-1": 1, "mask0-2": 2, "mask0-3": 3}
        if masked is not None:
            numbers.update({"mask0-mid": max(1, masked // 2), "mask0-last": masked})
        for setting, k0 in numbers.items():
            if k0 > self.depth:
                self._skip(setting.upper(), f"the base has {self.depth} layers")
            self._phase(f"{setting.upper()} k0={k0}", [(setting, k, k0) for k in range(k0, self.depth + 1)])

    def _best_masked(self) -> int | None:
        chosen = best(self._phase("MASK0-BIDIR", [("mask0-bidir", k, None) for k in range(1, self.depth + 1)]))
        return None if chosen is None else chosen.k

    def _skip(self, what: str, why: str) -> None:
        self.skipped.append(f"{what}: not tried, as {why}")
        self._say(self.skipped[-1])

    def _phase(self, title: str, keys: Sequence[Key]) -> list[Trial]:
        missing = [key for key in keys if key not in self._ledger.trials]
        with tqdm(total=len(missing), desc=title, unit=" trials", disable=self._disable if missing else True) as bar:
            for key in missing:
                trial = self._make(*key)
                self._ledger.add(trial)
                bar.update()
                if trial.error is not None:
                    self._say(f"{trial}: failed, {trial.error}")
        trials = [self._ledger.trials[key] for key in keys]
        self.made.update((trial.key, trial) for trial in trials)
        return trials

    def _make(self, setting: str, k: int, k0: int | None) -> Trial:
        plan = plan_of(setting, k, k0, self._m)
        stack = str(plan.resolve(self.depth))
        for other in self._ledger.trials.values():
            if other.stack == stack:
                # As MASK0-LAST with k = k0, which is MASK0-BIDIR.
                return replace(other, setting=setting, k=k, k0=k0, seconds=0.0)
        trial = Trial(setting, k, k0, self._m, self._pooling, stack, None, None, 0.0)
        start = time.perf_counter()
        transformer = self._transformer()
        try:
            transformer.rebind([plan, *(stage for stage in transformer.stages if stage.order != plan.order)])
            check_plan(transformer)
        except ValueError as error:
            return replace(trial, error=str(error))
        assert self._loaded is not None
        try:
            scores = self._task.score(self._loaded, batch_size=self._batch_size, prompt=self._prompt)
        except UnusableVectors as error:
            return replace(trial, error=str(error))
        seconds = round(time.perf_counter() - start, 3)
        return replace(trial, validation=scores.validation, heldout=scores.heldout, seconds=seconds)

    def _transformer(self) -> Any:
        """The model's first module, loaded when it is needed."""
        if self._loaded is None:
            self._loaded = self._load()
        return self._loaded[0]
