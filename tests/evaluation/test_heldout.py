"""Items that choose and items that report: they share nothing, and no choice sees the latter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr
from searched import NARROW, rows_of, run, task_of

import st_reba
from st_reba.evaluation import halving, make_task, search
from st_reba.evaluation.heldout import Found, parts_of, score_heldout
from st_reba.evaluation.items import Items
from st_reba.evaluation.methods import Base
from st_reba.evaluation.passes import Costs
from st_reba.evaluation.trials import Arm, Filter, Read, Trial
from st_reba.filters import PostFilter

pytestmark = pytest.mark.usefixtures("quick")


@pytest.mark.parametrize("preset", ["compose", "nosink"])
def test_no_choice_sees_what_reports(base: Any, preset: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_of("STS", 40)
    parts = parts_of(task, None, 0.5, 0)
    held = set(parts.heldout.texts) - set(parts.validation.texts)
    assert len(held) > 10
    seen: list[set[str]] = []
    asked: list[Items] = []
    encode, vectors = halving.encode_arm, Items.vectors

    def encoded(transformer: Any, arm: Any, reads: Any, texts: Any, folder: Any) -> Any:
        seen.append(set(texts))
        return encode(transformer, arm, reads, texts, folder)

    def vectors_of(self: Items, *given: Any, **named: Any) -> Any:
        asked.append(self)
        return vectors(self, *given, **named)

    monkeypatch.setattr(halving, "encode_arm", encoded)
    monkeypatch.setattr(Items, "vectors", vectors_of)
    options = {"space": NARROW} if preset == "compose" else {}
    report, _ = run(base, task, tmp_path / "one", preset=preset, **options)
    assert not any(texts & held for texts in seen) and (preset == "nosink") == (not seen)
    # Held-out items are encoded at the end, and but once for each method that is reported.
    ends = [bool(set(items.texts) & held) for items in asked]
    assert ends == sorted(ends) and sum(ends) == len({row.trial for row in report.rows})
    # Other labels there change no choice.
    turned = replace(parts.heldout, items=tuple((one, two, -score) for one, two, score in parts.heldout.items))
    monkeypatch.setattr(search, "parts_of", lambda *given: replace(parts, heldout=turned))
    other, _ = run(base, task, tmp_path / "two", preset=preset, **options)
    assert [(row.trial, row.validation) for row in other.rows] == [(row.trial, row.validation) for row in report.rows]
    assert [row.heldout for row in other.rows] == pytest.approx([-row.heldout for row in report.rows])


def test_what_chooses_does_not_report() -> None:
    rows = rows_of("STS", 100)
    task = make_task("STS", [*rows, *((two, one, score) for one, two, score in rows[:30])])
    parts = parts_of(task, None, 0.5, 0)
    asked = [{frozenset(part.asked(item)) for item in part.items} for part in (parts.validation, parts.heldout)]  # type: ignore[call-overload]
    assert not asked[0] & asked[1] and len(parts.validation) + len(parts.heldout) == 130
    # Of a file of its own what validation asks for is left out, and counted.
    test = make_task("STS", rows_of("STS", 170)[50:])
    parts = parts_of(make_task("STS", rows), test, 0.5, 0)
    assert (len(parts.validation), len(parts.heldout), parts.again) == (100, 70, 50)
    assert "50 items that validation has are left out" in str(parts)
    with pytest.raises(ValueError, match=r"0 items held out, but .* needs 16"):
        parts_of(task, task, 0.5, 0)
    with pytest.raises(ValueError, match="holds Triples, and items STS"):
        parts_of(task, task_of("Triples", 60), 0.5, 0)
    with pytest.raises(ValueError, match="validation=1 must be a fraction"):
        parts_of(task, None, 1, 0)


def test_a_filter_is_fitted_on_what_chose(base: Any, tmp_path: Path) -> None:
    """By NumPy, on the vectors of a model without a filter; what is there already is not made again."""
    parts = parts_of(make_task("STS", [(f"text {n}", f"more {n}", float(n % 5)) for n in range(120)]), None, 0.5, 0)
    trial = Trial(Arm(), Read(2, 2, True, "mean"), Filter("center"))
    costs = Costs({Arm().layout: dict.fromkeys(parts.heldout.texts, 5)}, 2)
    found = Found((), {"one": (trial, 0.5), "other": (trial, 0.5)}, "one", {"one": "recipe.yaml"}, 2, costs)
    given = (Base(base("gpt2"), device="cpu"), {}, tmp_path / "heldout")
    rows, _ = score_heldout(found, parts, *given, seed=0, disable=True)
    model = st_reba.build(base("gpt2"), "classical", pooling="mean", device="cpu")
    chose, asked = (model.encode(list(part.texts)).astype(float) for part in (parts.validation, parts.heldout))
    filtered = asked - chose.mean(axis=0)
    filtered /= np.linalg.norm(filtered, axis=1, keepdims=True)
    cosines = [filtered[one] @ filtered[two] for one, two, _ in parts.heldout.items]
    wanted = spearmanr(np.round(cosines, 6), [item[2] for item in parts.heldout.items]).statistic
    assert [row.heldout for row in rows] == pytest.approx([wanted] * 2, abs=1e-3)
    assert PostFilter.load(next((tmp_path / "heldout").glob("*.safetensors"))).count == len(parts.validation.texts)
    nowhere = (Base("no/such-model"), *given[1:])
    assert score_heldout(found, parts, *nowhere, seed=0, disable=True)[0] == rows
