"""NoSink's own choice: that of plain loops on scripted scores, and that of a whole run."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from marks import slow_but
from searched import rescored, run, task_of

import st_reba
from st_reba import NoSink
from st_reba.evaluation.choice import Chosen
from st_reba.evaluation.heldout import parts_of


def plain_choice(value: Callable[[NoSink], float]) -> list[NoSink]:
    """What the paper does, in plain loops: the settings that are tried, the chosen one last."""
    tried = [NoSink()] + [NoSink("inplace-bidir", k=k) for k in range(1, 7)]
    best_k, best = 0, value(NoSink())
    for k in range(1, 7):
        if value(NoSink("inplace-bidir", k=k)) > best:
            best_k, best = k, value(NoSink("inplace-bidir", k=k))
    masked, best = 0, -1.0
    for k in range(1, 7):
        tried.append(NoSink("mask0-bidir", k=k))
        if value(NoSink("mask0-bidir", k=k)) > best:
            masked, best = k, value(NoSink("mask0-bidir", k=k))
    if max(1, masked // 2) <= best_k:
        tried.append(NoSink("mask0-mid", k=best_k, k0=masked))
    if masked <= best_k:
        tried.append(NoSink("mask0-last", k=best_k, k0=masked))
    top = max(value(each) for each in tried)
    return [*tried, min((each for each in tried if value(each) == top), key=lambda each: (each.k or 0, each.plan.k0))]


def by_stack(seed: int, ties: bool) -> Callable[[NoSink], float]:
    """Scores by the layers that run; with ties, of a few values."""

    def value(nosink: NoSink) -> float:
        score = random.Random(f"{seed} {nosink.plan.resolve(6)}").random()
        return round(score, 1) if ties else round(score, 6)

    return value


@pytest.mark.parametrize("seed", range(12))
def test_nosinks_choice_is_that_of_plain_loops(scripted: Callable[..., Any], seed: int) -> None:
    value = by_stack(seed, seed % 2 == 0)
    found = scripted(lambda trial: value(trial.arm.nosink or NoSink()), Chosen).found()
    *tried, chosen = plain_choice(value)
    assert {result.arm.nosink for result in found.results} == set(tried) and len(found.results) == len(tried)
    assert [file for file in found.recipes.values()] == ["recipe.yaml"] and found.against == "BASELINE"
    trial, score = found.chosen[next(iter(found.recipes))]
    assert (trial.arm.nosink, score) == (chosen, value(chosen))
    # Each setting's best is told.
    for name in {each.setting for each in tried}:
        best = max(value(each) for each in tried if each.setting == name)
        assert [score for trial, score in found.chosen.values() if trial.arm.nosink.setting == name] == [best]  # type: ignore[union-attr]


def test_the_grids_of_the_figures(scripted: Callable[..., Any]) -> None:
    value = by_stack(1, False)
    found = scripted(lambda trial: value(trial.arm.nosink or NoSink()), Chosen, everything=True).found()
    tried = {(each.setting, each.k, each.k0) for result in found.results if (each := result.arm.nosink)}
    masked = max(range(1, 7), key=lambda k: value(NoSink("mask0-bidir", k=k)))
    wanted: set[Any] = {("baseline", None, None)}
    for name in ("inplace", "inter", "extra", "extend"):
        wanted |= {(f"{name}-{kind}", k, None) for kind in ("back", "bidir") for k in range(1, 6 + (name != "extend"))}
    wanted |= {(f"mask0-{kind}", k, None) for kind in ("for", "bidir", "all") for k in range(1, 7)}
    wanted |= {(f"mask0-{k0}", k, None) for k0 in (1, 2, 3) for k in range(k0, 7)}
    wanted |= {("mask0-mid", k, masked) for k in range(max(1, masked // 2), 7)}
    wanted |= {("mask0-last", k, masked) for k in range(masked, 7)}
    assert tried == wanted
    # What runs the same layers, as MASK0-2 with k = 2 and MASK0-BIDIR, runs once.
    ran = [result for result in found.results if result.tokens]
    stacks = {str(result.arm.plan(6).resolve(6)) for result in found.results}
    assert len(ran) == len({str(result.arm.plan(6).resolve(6)) for result in ran}) == len(stacks)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("kind", "everything"),
    slow_but(
        [("STS", False), ("NER", False), ("WordSense", False), ("STS", True)],
        ("STS", False),
        "NER",
        "WordSense",
        rows=True,
    ),
)
def test_a_run_of_nosink(base: Any, kind: str, everything: bool, tmp_path: Path) -> None:
    task = task_of(kind, 40)
    report, _ = run(base, task, tmp_path / "out", preset="nosink", everything=everything)
    parts = parts_of(task, None, 0.5, 0)
    scores = {}
    for result in report.found.results:
        assert result.error is None and result.arm.nosink is not None
        if kind != "NER" and result.arm.nosink.setting in ("mask0-bidir", "inter-back"):
            model = st_reba.build(base("gpt2"), "classical", pooling="mean", stages=[result.arm.nosink], device="cpu")
            assert result.scored[0].score == pytest.approx(rescored(model, parts, parts.validation), abs=2e-5)
        scores[result.arm] = result.scored[0].score
    assert report.best.validation == max(scores.values()) and (kind != "WordSense" or len(set(scores.values())) > 1)
    model = st_reba.build(tmp_path / "out" / "recipe.yaml", device="cpu")
    both, count = parts.heldout.joined(parts.validation), len(parts.heldout)
    vectors = both.vectors(model)
    known = np.arange(count, len(both)) if both.learns else None
    wanted = both.metrics[both.main](both.evidence(vectors, np.arange(count), known))
    assert report.best.heldout == pytest.approx(wanted, abs=1e-9)
    assert "Validation scores by k:" in (tmp_path / "out" / "report.md").read_text()
