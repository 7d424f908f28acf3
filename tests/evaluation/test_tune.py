"""The choice without labels: what it writes, that its scores are the models', and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from searched import TEXTS, found_each_other, task_of

import st_reba
from st_reba.cli import main
from st_reba.evaluation import tune as module
from st_reba.evaluation.crossfit import FOLDS
from st_reba.evaluation.halving import Halving
from st_reba.evaluation.heldout import digest
from st_reba.evaluation.methods import Base
from st_reba.evaluation.search_report import Report
from st_reba.evaluation.space import Space
from st_reba.evaluation.trials import NO_FILTER, PAPERS
from st_reba.evaluation.tune import tune
from st_reba.evaluation.tuning import (
    CHEAPEST,
    HIGHEST,
    PLAIN,
)
from st_reba.evaluation.unlabelled import unlabelled
from st_reba.filters import PostFilter
from st_reba.persistence import load

SMALL = Space(
    templates=(None,), kinds=("forward",), sinks=False, layers=((0, 0, "mean"), (1, 1, "mean")), pooled=("mean",),
    filters=("center", {"kind": "abtt", "r": 1}),
)  # fmt: skip


pytestmark = pytest.mark.usefixtures("quick")


def run(base: Any, texts: Any, out: Path, **options: Any) -> tuple[Report, list[str]]:
    said: list[str] = []
    given = {"space": SMALL, "show_progress_bar": False, "say": said.append, **options}
    return tune(Base(base("gpt2"), device="cpu"), texts, out, **given), said


@pytest.fixture(scope="module")
def tuned(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Callable[[], tuple[Report, list[str]]]:
    """One whole run, made when the first test asks for it, which sets up what is quick."""
    made: list[tuple[Report, list[str]]] = []

    def get() -> tuple[Report, list[str]]:
        if not made:
            made.append(run(request.getfixturevalue("base"), TEXTS[:120], tmp_path_factory.mktemp("tuned") / "out"))
        return made[0]

    return get


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        (TEXTS[:10], {}, "the list: 10 different texts can be used, but 50 are needed at the least"),
        (["the same words every time"] * 500, {}, "1 different texts .* 499 are repeated"),
        ([" "] * 80, {}, "0 different texts .* 80 are empty or not readable"),
        ([f"word{n}" for n in range(300)], {}, "0 different texts .* 300 are too short for two views. Give .* longer"),
        ([], {}, "0 different texts"),
        (TEXTS, {"like": "pear"}, "like='pear' is not known.*Did you mean 'pairs'"),
        (TEXTS, {"budget": "fast"}, "budget='fast' is not known"),
        (TEXTS, {"quick": True}, "quick=True does not go with space"),
        (TEXTS, {"sample": 10}, "sample=10 must be a whole number from 50"),
        (TEXTS, {"labels": task_of("NER", 90)}, "NER is not searched with"),
    ],
)
def test_what_cannot_be_used_is_refused_before_a_model_loads(
    texts: Any, options: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        tune("no/such-model", texts, tmp_path / "out", **{"space": SMALL, **options})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("like", "mild"), [("pairs", True), ("search", False), ("topics", True)])
def test_filters_that_views_speak_too_well_of(like: str, mild: bool) -> None:
    space = module._searched(module.QUICK, like)
    kinds = {(each.kind, each.power) for each in space.postfilters}
    assert (("whiten", 0.75) in kinds) is not mild and (("whiten", 0.5) in kinds) is mild


def test_one_filter_for_several_scripts_is_told_of() -> None:
    """With the remedy."""
    settings = module._settings("balanced", SMALL)
    one, several = unlabelled(TEXTS[:60]), unlabelled([*TEXTS[:60], *TEXTS[-60:]])
    for labels in (None, "pairs.tsv"):
        assert module.MIXED in module._notes(several, settings, labels)
        assert module.MIXED not in module._notes(one, settings, labels)


# A whole run


def test_scores_are_those_of_the_models(tuned: Any, base: Any) -> None:
    """By plain loops, and by filters applied by NumPy: held-out, and of the plain method also what chose."""
    report, said = tuned()
    validation, asked = report.parts.validation, report.parts.heldout
    assert not set(validation.names) & set(asked.names) and len(validation) == 2 * len(asked) + len(validation) % 2
    for name in (PLAIN, "balanced"):
        row = report.row(name)
        arguments = row.trial.arguments(report.found.depth)
        model = st_reba.build(base("gpt2"), **arguments, device="cpu")
        vectors = model.encode(list(asked.texts))
        if row.trial.filter != NO_FILTER:
            fitted = PostFilter.load(report.folder / "heldout" / f"{digest(row.trial)}.safetensors")
            assert fitted.count == len(validation.fitted_on)
            vectors = fitted.apply(vectors)
        score = found_each_other(*(vectors[[item[side] for item in asked.items]] for side in (0, 1)))
        assert row.heldout == pytest.approx(score, abs=2e-3)
    plain = st_reba.build(base("gpt2"), "classical", pooling="mean", device="cpu").encode(list(validation.texts))
    parts = []
    for part in validation.folds(FOLDS):
        items = [validation.items[row] for row in part]
        parts.append(found_each_other(*(plain[[item[side] for item in items]] for side in (0, 1))))
    assert report.row(PLAIN).validation == pytest.approx(float(np.mean(parts)), abs=2e-3)
    assert report.row("balanced").validation >= report.row(PLAIN).validation
    assert report.row("balanced").cost <= 1 and {*PAPERS, PLAIN, "balanced"} <= {row.name for row in report.rows}


def test_what_is_written(tuned: Any, base: Any) -> None:
    report, said = tuned()
    text = (report.folder / "report.md").read_text(encoding="utf-8")
    assert "Nothing here is labelled" in text and "Steadiness: of 200 resamples" in text
    assert CHEAPEST in text and "over balanced" in text and said[-1] == f"Model: {report.folder / 'model'}"
    built = st_reba.build(str(report.folder / "recipe.yaml"), device="cpu")
    saved = load(str(report.folder / "model"), device="cpu")
    assert np.abs(built.encode(TEXTS[:5]) - saved.encode(TEXTS[:5])).max() < 1e-6
    trial = report.row("balanced").trial
    assert trial.filter != NO_FILTER
    # On all texts, also those that only reported.
    items = unlabelled(TEXTS[:120]).items
    assert saved[0].stage("filter").texts == len(items.fitted_on) > len(report.parts.validation.fitted_on)


def test_a_second_call_goes_on(tuned: Any, base: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    report, _ = tuned()
    monkeypatch.setattr(Halving, "scored", lambda *given: pytest.fail("an arm ran again"))
    again, said = run(base, TEXTS[:120], report.folder)
    assert again.found == report.found and again.rows == report.rows and any("going on after" in line for line in said)
    with pytest.raises(ValueError, match="another run is there: task.fingerprint"):
        run(base, TEXTS[:90], report.folder)


@pytest.mark.slow
def test_labels_choose_where_there_are_some(base: Any, tmp_path: Path) -> None:
    report, _ = run(base, TEXTS[:120], tmp_path / "out", labels=task_of("STS", 90), budget="speed")
    text = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert (
        report.metric == "cosine_spearman"
        and "The labelled items chose" in text
        and HIGHEST in text
        and "Steadiness" not in text
    )
    assert report.best.name == "speed" and (tmp_path / "out" / "model" / "modules.json").is_file()


@pytest.mark.slow
def test_build_auto(base: Any) -> None:
    model = st_reba.build(base("gpt2"), "auto", texts=TEXTS[:120], device="cpu", prompts={"query": "q: "})
    vectors = model.encode(TEXTS[:3])
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5) and model.prompts["query"] == "q: "
    spec = st_reba.spec_of(model)
    again = st_reba.build(base("gpt2"), "auto", texts=TEXTS[119::-1], device="cpu")
    # The order of the texts does not matter.
    assert st_reba.spec_of(again) == spec and np.abs(again.encode(TEXTS[:3]) - vectors).max() < 1e-5


def test_what_auto_refuses(base: Any) -> None:
    for given, message in (
        ({"method": "auto"}, "needs texts="),
        ({"method": "auto", "texts": TEXTS, "stages": []}, "stages: method='auto' finds"),
        ({"method": "auto", "texts": TEXTS, "pooling": "mean"}, "pooling: method='auto' finds"),
        ({"method": "echo", "texts": TEXTS}, "texts belong to method='auto'"),
        ({"method": "auto", "texts": TEXTS[:9]}, "50 are needed"),
    ):
        with pytest.raises(ValueError, match=message):
            st_reba.build(base("gpt2"), **given)
    with pytest.raises(ValueError, match="'zoo:mini-reba' is a recipe"):
        st_reba.build("zoo:mini-reba", "auto", texts=TEXTS)


def test_from_the_command_line(
    base: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("texts.txt").write_text("\n".join(TEXTS[:90]), encoding="utf-8")
    Path("small.yaml").write_text(
        "templates: [null]\nkinds: [forward]\npooled: [mean]\nlayers: [1, 2]\nfilters: [center]\n", encoding="utf-8"
    )
    words = [
        "tune",
        base("gpt2"),
        "texts.txt",
        "out",
        "--space",
        "small.yaml",
        "--device",
        "cpu",
        "--budget",
        "quality",
    ]
    monkeypatch.setattr("sys.argv", ["st-reba", *words])
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["model"] == str(Path("out/model")) and found["metric"] == "mrr" and found["against"] == "quality"
    assert "--budget quality" in Path("out/recipe.yaml").read_text(encoding="utf-8")
    assert "Caution: 90 texts are few" in Path("out/report.md").read_text(encoding="utf-8")
    assert main(["info", "out/model"]) == 0
    assert main([*words, "--like", "pears"]) == 2 and "'pairs'" in capsys.readouterr().err
