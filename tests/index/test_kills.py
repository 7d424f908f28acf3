"""Writers that are killed: readers see the old or the new, and the same call brings the undisturbed result."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from kills import Trial, run_child
from marks import slow_but
from operations import model, operations

from st_reba.index import Index

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")

torch.set_num_threads(1)
OPERATIONS = {operation.name: operation for operation in operations(size=6)}
# So many moments before what an operation does to files; all of them come up over the operations.
MOMENTS = 4


@pytest.fixture(params=slow_but(list(OPERATIONS), "encode_corpus", "build Flat", "upsert", "compact"))
def trial(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Trial]:
    yield Trial(OPERATIONS[request.param], tmp_path / "trial")


def test_killed(trial: Trial) -> None:
    moments = random.Random(trial.operation.name)
    drawn_events = moments.sample(range(1, trial.events + 1), min(MOMENTS, trial.events))
    events = sorted({*drawn_events, trial.events})  # after the last, a repetition finds its work done
    killed = set()
    for event in events:
        outcome = trial.kill(event=event)
        assert outcome.problem is None, f"killed before event {event} of {trial.events}: {outcome.problem}"
        assert outcome.killed
        killed.add(outcome.after)
    assert False in killed
    delay = moments.uniform(0, trial.seconds)
    outcome = trial.kill(delay=delay)
    assert outcome.problem is None, f"killed after {delay:.4f} s of {trial.seconds:.4f}: {outcome.problem}"


def test_another_change_between_kill_and_repetition(tmp_path: Path) -> None:
    """An addition that took effect before its writer was killed is known, whatever came between."""
    trial = Trial(OPERATIONS["add a file without ids"], tmp_path / "trial")
    for event in range(trial.events, 0, -max(1, trial.events // 4)):
        with trial.copy() as copy:
            run_child(lambda copy=copy: trial.operation.run(copy), event=event)
            index = Index.open(copy / "index", model())
            index.add(["king", "moon moon"], show_progress_bar=False)
            trial.operation.run(copy)
            there = sorted(one.text for one in index)
            wanted = sorted([text for _, text, _ in trial.new["texts"]] + ["king", "moon moon"])
            assert there == wanted, f"killed before event {event} of {trial.events}"
            index.verify()
