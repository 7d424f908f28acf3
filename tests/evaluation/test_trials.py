"""A whole method: whose paper's it is."""

from __future__ import annotations

import pytest

from st_reba import NoSink
from st_reba.evaluation.trials import Arm, Filter, Read, Trial

LAST = Read(6, 6, True, "mean")


@pytest.mark.parametrize(
    ("trial", "paper"),
    [
        (Trial(Arm(), LAST), "classical"),
        (Trial(Arm(), Read(6, 6, True, "last")), "classical"),
        (Trial(Arm(), LAST, Filter("center")), "composed"),
        (Trial(Arm(), Read(5, 5, True, "mean")), "composed"),
        (Trial(Arm(), Read(6, 6, False, "mean")), "composed"),
        # One copy in a template is no classical method, whatever is pooled.
        (Trial(Arm("prompteol"), LAST), "composed"),
        (Trial(Arm("echo-classical"), Read(6, 6, True, "last")), "composed"),
        (Trial(Arm("prompteol"), Read(6, 6, True, "end")), "prompteol"),
        (Trial(Arm("总：{text}。"), Read(6, 6, True, "end")), "composed"),
        (Trial(Arm("echo"), LAST), "echo"),
        (Trial(Arm(repeats=3), LAST), "echo"),
        (Trial(Arm(repeats=2, separator=" / "), LAST), "composed"),
        (Trial(Arm(repeats=2), Read(6, 6, True, "reba last")), "reba"),
        (Trial(Arm("echo"), Read(6, 6, True, "reba last")), "composed"),
        (Trial(Arm(repeats=2, kind="bidirectional"), Read(6, 6, True, "reba last")), "composed"),
        (Trial(Arm(kind="bidirectional", first=3, sink=4), LAST), "nosink"),
        (Trial(Arm(nosink=NoSink("mask0-bidir", k=2)), LAST), "nosink"),
        (Trial(Arm(kind="rerouted"), LAST), "composed"),
        (Trial(Arm(repeats=2, kind="bidirectional"), LAST), "composed"),
    ],
)
def test_a_papers_name_is_for_its_published_form(trial: Trial, paper: str) -> None:
    assert trial.paper(6) == paper
