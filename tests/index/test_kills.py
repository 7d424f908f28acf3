"""Writers that are killed: readers see the old or the new, and the same call brings the undisturbed result."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from marks import slow_but

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from kills import Trial, run_child
from operations import operations

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")

torch.set_num_threads(1)
OPERATIONS = {operation.name: operation for operation in operations(size=6)}
# Operations that do little to files are killed before everything that they do, others at so many moments.
ALL_UP_TO = 20
MOMENTS = 8
RANDOM = 3


@pytest.fixture(
    params=slow_but(list(OPERATIONS), "delete a few", "add a list without ids", "compact", "export .parquet")
)
def trial(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Trial]:
    yield Trial(OPERATIONS[request.param], tmp_path / "trial")


def test_killed_before_what_it_does_to_files(trial: Trial) -> None:
    step = 1 if trial.events <= ALL_UP_TO else -(-trial.events // MOMENTS)
    first = sum(map(ord, trial.operation.name)) % step
    killed = set()
    for event in range(trial.events - first, 0, -step):
        outcome = trial.kill(event=event)
        assert outcome.problem is None, f"killed before event {event} of {trial.events}: {outcome.problem}"
        assert outcome.killed
        killed.add(outcome.after)
    assert False in killed


def test_killed_at_random_moments(trial: Trial) -> None:
    moments = random.Random(trial.operation.name)
    for _ in range(RANDOM):
        delay = moments.uniform(0, trial.seconds)
        outcome = trial.kill(delay=delay)
        assert outcome.problem is None, f"killed after {delay:.4f} s of {trial.seconds:.4f}: {outcome.problem}"


def test_a_child_that_is_killed_or_fails_is_told(tmp_path: Path) -> None:
    def write() -> None:
        (tmp_path / "a").write_text("a")
        (tmp_path / "b").write_text("b")

    assert run_child(write, event=2) == (-9, "", 0)
    assert (tmp_path / "a").exists() and not (tmp_path / "b").exists()
    assert run_child(write) == (0, "", 2)
    assert run_child(lambda: 1 / 0)[:2] == (1, "ZeroDivisionError: division by zero")
