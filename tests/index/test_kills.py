"""Killed writers: readers see the old or the new state, and the same call brings the whole one."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from indexes import texts_of
from kills import Trial, run_child
from marks import slow_but
from operations import model, operations

from st_reba.index import Index

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")

torch.set_num_threads(1)
OPERATIONS = {operation.name: operation for operation in operations(size=6)}
# Drawn events of an operation; all kinds of events come up over the operations.
DRAWN_EVENTS = 4


@pytest.fixture(
    params=slow_but(list(OPERATIONS), "encode_corpus", "build Flat", "upsert", "compact")
)
def trial(
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> Iterator[Trial]:
    yield Trial(OPERATIONS[request.param], tmp_path / "trial")


def test_a_kill_loses_nothing(trial: Trial) -> None:
    event_count = trial.event_count
    drawn = random.Random(trial.operation.name)
    events = set(drawn.sample(range(1, event_count + 1), min(DRAWN_EVENTS, event_count)))
    events.add(event_count)  # after the last, a repetition finds its work done
    saw_old_state = False
    for event in sorted(events):
        outcome = trial.kill(event=event)
        assert outcome.problem is None, f"killed before {event} of {event_count}: {outcome.problem}"
        assert outcome.was_killed
        saw_old_state |= not outcome.saw_new_state
    assert saw_old_state
    delay = drawn.uniform(0, trial.seconds)
    outcome = trial.kill(delay=delay)
    assert outcome.problem is None, (
        f"killed after {delay:.4f} s of {trial.seconds:.4f}: {outcome.problem}"
    )


def test_a_repeated_addition_is_recognized_after_another_change(tmp_path: Path) -> None:
    """An addition that took effect before its writer was killed, and texts of another since."""
    trial = Trial(OPERATIONS["add a file without ids"], tmp_path / "trial")
    other_texts = ["king", "moon moon"]
    expected_texts = sorted(texts_of(trial.new_state["documents in order"]) + other_texts)
    step = max(1, trial.event_count // 4)
    for event in range(trial.event_count, 0, -step):
        with trial.copy() as copy:
            run_child(lambda copy=copy: trial.operation.run(copy), event=event)
            index = Index.open(copy / "index", model())
            index.add(other_texts, show_progress_bar=False)
            trial.operation.run(copy)
            index_texts = sorted(texts_of(index))
            assert index_texts == expected_texts, f"killed before {event} of {trial.event_count}"
            index.verify()
