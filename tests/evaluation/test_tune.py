"""The search on scripted scores, a run that is killed, and the files it writes."""

from __future__ import annotations

import csv
import json
import sys
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import st_reba
from st_reba import LayerPlan, NoSink
from st_reba.evaluation import Report, Scores, tune
from st_reba.evaluation.figures import Curve, draw_curves, save_figure
from st_reba.evaluation.vectors import UnusableVectors

report_module: Any = import_module("st_reba.evaluation.tuning.report")

DEPTH = 6
FILES = ["recipe.yaml", "run.json", "trials.csv", "trials.jsonl", "trials.md", "tune.png"]
Script = Callable[[str], float]


class Scripted:
    """A task whose scores are a function of the stack."""

    name, kind, metric, fingerprint = "scripted", "pairs", "Spearman", "00"

    def __init__(self, validation: Script, heldout: Script = lambda stack: 0.5) -> None:
        self.validation, self.heldout = validation, heldout
        self.arguments: tuple[str, ...] = ("my file.txt", "--limit", "50")
        self.scored: list[str] = []

    def describe(self) -> str:
        return "scripted: pairs"

    def score(self, model: Any, *, batch_size: int = 64, prompt: str | None = None) -> Scores:
        stack = str(model[0].stages[0].resolve(DEPTH))
        self.scored.append(stack)
        return Scores(self.validation(stack), self.heldout(stack))


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The calls of build, which gives a model of six layers without weights."""
    calls: list[dict[str, Any]] = []

    def build(base: Any, method: str, **options: Any) -> list[Any]:
        assert method == "nosink" and options["stages"] == [LayerPlan()]
        calls.append(options)
        made = SimpleNamespace(depth=DEPTH, stages=(LayerPlan(),))
        made.rebind = lambda stages: setattr(made, "stages", tuple(stages))
        return [made]

    monkeypatch.setattr(import_module("st_reba.evaluation.tuning.tune"), "build", build)
    monkeypatch.setattr(import_module("st_reba.evaluation.tuning.search"), "check_plan", lambda transformer: None)
    # Drawing takes longer than all the rest.
    monkeypatch.setattr(report_module, "draw_curves", lambda *panels, **options: None)
    monkeypatch.setattr(report_module, "save_figure", lambda figure, path: Path(path).touch())
    return calls


@pytest.fixture
def drawn(builds: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """With figures nevertheless."""
    monkeypatch.setattr(report_module, "draw_curves", draw_curves)
    monkeypatch.setattr(report_module, "save_figure", save_figure)


def stack_of(setting: str, k: int | None = None, k0: int | None = None) -> str:
    return str(NoSink.of({"setting": setting, "k": k, "k0": k0}).plan.resolve(DEPTH))


def scripted(scores: dict[tuple[Any, ...], float], default: float = 0.1) -> Script:
    """Scores by (setting, k, k0)."""
    by_stack = {stack_of(*name): score for name, score in scores.items()}
    return lambda stack: by_stack.get(stack, default)


def run(task: Any, out: Path, **options: Any) -> tuple[Report, list[str]]:
    said: list[str] = []
    return tune("mini", task, out, say=said.append, show_progress_bar=False, **options), said


def keys(report: Report) -> list[tuple[str, int, int | None]]:
    return [trial.key for trial in report.trials]


STANDARD = [
    ("baseline", 0, None),
    *(("inplace-bidir", k, None) for k in range(1, 7)),
    *(("mask0-bidir", k, None) for k in range(1, 7)),
]
# INPLACE-BIDIR is best at 5, MASK0-BIDIR at 4; the combination of both is better than either.
SCORES = {
    ("baseline",): 0.3,
    ("inplace-bidir", 5): 0.5,
    ("mask0-bidir", 4): 0.6,
    ("mask0&bidir", 5, 4): 0.7,
    ("mask0&bidir", 5, 2): 0.65,
}


def test_the_papers_choice(builds: list[dict[str, Any]], tmp_path: Path) -> None:
    task = Scripted(scripted(SCORES))
    report, said = run(task, tmp_path, device="cpu", max_seq_length=99)
    assert keys(report) == [*STANDARD, ("mask0-mid", 5, 2), ("mask0-last", 5, 4)]
    assert report.chosen.key == ("mask0-last", 5, 4) and report.chosen.validation == 0.7
    assert report.recipe == {
        **{"base": "mini", "method": "nosink", "setting": "mask0&bidir", "k": 5, "k0": 4, "m": 1},
        **{"pooling": "mean", "max_seq_length": 99},
    }
    assert report.skipped == () and report.baseline.validation == 0.3
    assert len(builds) == 1 and builds[0]["max_seq_length"] == 99
    assert "INPLACE-BIDIR: best k = 5 of 0 to 6" in said and "MASK0-BIDIR: best k = 4 of 1 to 6" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES
    assert {name: trial.key for name, trial in report.best_of_each.items()} == {
        "baseline": ("baseline", 0, None),
        "inplace-bidir": ("inplace-bidir", 5, None),
        "mask0-bidir": ("mask0-bidir", 4, None),
        "mask0-mid": ("mask0-mid", 5, 2),
        "mask0-last": ("mask0-last", 5, 4),
    }


def test_k0_above_k_is_not_tried_and_said(builds: list[dict[str, Any]], tmp_path: Path) -> None:
    scores = {("baseline",): 0.3, ("inplace-bidir", 2): 0.5, ("mask0-bidir", 5): 0.6}
    report, said = run(Scripted(scripted(scores)), tmp_path / "a")
    assert keys(report) == [*STANDARD, ("mask0-mid", 2, 2)]
    assert report.skipped == ("MASK0-LAST k=2 k0=5: not tried, as k0 is more than k",)
    assert report.skipped[0] in said and report.skipped[0] in (tmp_path / "a" / "trials.md").read_text()
    # k = 0, the unconverted model, is one of INPLACE-BIDIR's.
    report, said = run(Scripted(scripted({("baseline",): 0.3, ("mask0-bidir", 1): 0.4})), tmp_path / "b")
    assert keys(report) == STANDARD and len(report.skipped) == 2
    assert "INPLACE-BIDIR: best k = 0 of 0 to 6" in said


def test_the_baseline_wins_a_draw(builds: list[dict[str, Any]], tmp_path: Path) -> None:
    report, _ = run(Scripted(lambda stack: 0.3, lambda stack: 0.4 if stack == "6 forward" else 0.9), tmp_path)
    assert report.chosen.key == ("baseline", 0, None)
    assert report.recipe == {"base": "mini", "method": "nosink", "setting": "baseline", "pooling": "mean"}
    assert "No conversion was better than the unconverted model." in (tmp_path / "recipe.yaml").read_text()


def test_only_validation_decides(builds: list[dict[str, Any]], tmp_path: Path) -> None:
    chosen = [
        run(Scripted(scripted(SCORES), heldout), tmp_path / str(number))[0].chosen.key
        for number, heldout in enumerate((scripted(SCORES), lambda stack: -scripted(SCORES)(stack)))
    ]
    assert chosen == [("mask0-last", 5, 4)] * 2


def test_all_grids(builds: list[dict[str, Any]], tmp_path: Path) -> None:
    task = Scripted(scripted(SCORES))
    report, _ = run(task, tmp_path, everything=True)
    wanted: set[tuple[str, int, int | None]] = set(STANDARD)
    for name in ("inplace", "inter", "extra"):
        wanted |= {(f"{name}-{kind}", k, None) for kind in ("back", "bidir") for k in range(1, 7)}
    wanted |= {(f"extend-{kind}", k, None) for kind in ("back", "bidir") for k in range(1, 6)}
    wanted |= {(f"mask0-{kind}", k, None) for kind in ("for", "bidir", "all") for k in range(1, 7)}
    for name, k0 in (("1", 1), ("2", 2), ("3", 3), ("mid", 2), ("last", 4)):
        wanted |= {(f"mask0-{name}", k, k0) for k in range(k0, 7)}
    assert set(keys(report)) == wanted and len(report.trials) == len(wanted)
    # Equal stacks, such as MASK0-2 and MASK0-MID here, are scored once.
    assert max(Counter(task.scored).values()) == 1
    assert set(task.scored) == {trial.stack for trial in report.trials}
    for trial in report.trials:
        assert trial.stack == stack_of("mask0&bidir" if trial.k0 else trial.setting, trial.k or None, trial.k0)
        assert trial.validation == scripted(SCORES)(trial.stack)
    # The trials of a smaller run are used.
    task = Scripted(scripted(SCORES))
    run(task, tmp_path / "small")
    assert len(task.scored) == 15
    assert run(task, tmp_path / "small", everything=True)[0].to_json().keys() == report.to_json().keys()
    assert max(Counter(task.scored).values()) == 1


def test_more_sink_tokens(builds: list[dict[str, Any]], tmp_path: Path) -> None:
    report, _ = run(Scripted(lambda stack: 0.9 if stack.endswith("3 nosink-bidirectional(2)") else 0.1), tmp_path, m=2)
    assert report.chosen.key == ("mask0-bidir", 3, None) and report.recipe["m"] == 2
    assert "--m 2" in report.command


@pytest.mark.parametrize("stop", [1, 2, 9, 15])
@pytest.mark.parametrize("torn", [False, True])
def test_a_killed_run_goes_on(
    builds: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str], stop: int, torn: bool
) -> None:
    straight, _ = run(Scripted(scripted(SCORES)), tmp_path / "straight")

    def killed(stack: str) -> float:
        if len(task.scored) == stop:
            raise KeyboardInterrupt
        return scripted(SCORES)(stack)

    task = Scripted(killed)
    said: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        tune("mini", task, tmp_path / "out", say=said.append)
    assert said[-1].endswith(f"stopped after {stop - 1} trials; the same command goes on from there")
    # No bar where there is no terminal.
    assert capsys.readouterr().err == ""
    trials = tmp_path / "out" / "trials.jsonl"
    assert len(trials.read_bytes().splitlines()) == stop - 1
    assert not (tmp_path / "out" / "recipe.yaml").exists()
    if torn:
        trials.write_bytes(trials.read_bytes() + b'{"setting": "mask0-bid')
    again = Scripted(scripted(SCORES))
    report, said = run(again, tmp_path / "out")
    assert again.scored == [trial.stack for trial in straight.trials][stop - 1 :]
    assert [(t.key, t.validation, t.heldout) for t in report.trials] == [
        (t.key, t.validation, t.heldout) for t in straight.trials
    ]
    assert report.recipe == straight.recipe
    assert (f"{tmp_path / 'out'}: going on after {stop - 1} trials" in said) == (stop > 1)


def test_a_finished_run_loads_nothing(builds: list[dict[str, Any]], tmp_path: Path) -> None:
    first, _ = run(Scripted(scripted(SCORES)), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    builds.clear()
    task = Scripted(scripted(SCORES))
    assert run(task, tmp_path)[0] == first
    assert not builds and not task.scored
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_another_run_in_the_folder_is_refused(builds: list[dict[str, Any]], tmp_path: Path) -> None:
    run(Scripted(scripted(SCORES)), tmp_path)
    other = Scripted(scripted(SCORES))
    other.fingerprint = "11"
    with pytest.raises(ValueError, match="another run is there: task.fingerprint was '00', now '11'"):
        run(other, tmp_path)
    for options, message in (
        ({"pooling": "last"}, "options.pooling was 'mean', now 'last'"),
        ({"m": 2}, "options.m was 1, now 2"),
        ({"dtype": "bfloat16"}, "options.dtype was 'torch.float32', now 'torch.bfloat16'"),
        ({"max_seq_length": 7}, "options.max_seq_length was None, now 7"),
        ({"prompt": "x"}, "options.prompt was None, now 'x'"),
    ):
        with pytest.raises(ValueError, match=message):
            run(Scripted(scripted(SCORES)), tmp_path, **{"device": "cpu", **options})  # type: ignore[dict-item]
    versions = json.loads((tmp_path / "run.json").read_text())
    versions["versions"]["torch"] = "1.0"
    (tmp_path / "run.json").write_text(json.dumps(versions))
    with pytest.raises(ValueError, match="versions.torch was '1.0', now"):
        run(Scripted(scripted(SCORES)), tmp_path)


def test_a_conversion_that_breaks_the_model_ends_its_trial_only(builds: list[dict[str, Any]], tmp_path: Path) -> None:
    def fails(stack: str) -> float:
        if stack == stack_of("mask0-bidir", 4):
            raise UnusableVectors("3 of 9 vectors | are zero")
        return scripted(SCORES)(stack)

    report, said = run(Scripted(fails), tmp_path / "a")
    broken = next(trial for trial in report.trials if trial.key == ("mask0-bidir", 4, None))
    assert broken.validation is None and broken.error == "3 of 9 vectors | are zero"
    assert "MASK0-BIDIR k=4: failed, 3 of 9 vectors | are zero" in said
    text = (tmp_path / "a" / "trials.md").read_text()
    assert "| failed |" in text and "- MASK0-BIDIR k=4: failed, 3 of 9 vectors \\| are zero" in text
    # Best of MASK0-BIDIR is now the smallest of equals.
    assert keys(report)[-2:] == [("mask0-mid", 5, 1), ("mask0-last", 5, 1)]

    def all_fail(stack: str) -> float:
        if stack != "6 forward":
            raise UnusableVectors("zeros")
        return 0.5

    with pytest.raises(ValueError, match="no converted model can be scored: zeros"):
        run(Scripted(all_fail), tmp_path / "b")

    def base_fails(stack: str) -> float:
        raise UnusableVectors("zeros")

    with pytest.raises(ValueError, match="the unconverted model cannot be scored: zeros"):
        run(Scripted(base_fails), tmp_path / "c")

    def no_mask(stack: str) -> float:
        if "nosink" in stack:
            raise UnusableVectors("zeros")
        return scripted(SCORES)(stack)

    report, said = run(Scripted(no_mask), tmp_path / "d", everything=True)
    assert report.chosen.key == ("inplace-bidir", 5, None)
    assert "MASK0&BIDIR: not tried, as no model of MASK0-BIDIR can be scored" in report.skipped


def test_the_files(drawn: None, tmp_path: Path) -> None:
    report, said = run(Scripted(scripted(SCORES)), tmp_path)
    with (tmp_path / "trials.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["setting"], int(row["k"]), row["k0"]) for row in rows] == [
        (setting, k, "" if k0 is None else str(k0)) for setting, k, k0 in keys(report)
    ]
    assert [float(row["validation"]) for row in rows] == [trial.validation for trial in report.trials]
    text = (tmp_path / "trials.md").read_text(encoding="utf-8")
    assert report.command == f"st-reba tune mini 'my file.txt' {tmp_path} --limit 50"
    assert f"```\n{report.command}\n```" in text
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    start = next(n for n, row in enumerate(table) if row[0] == "k")
    assert table[start] == ["k", "INPLACE-BIDIR", "MASK0-BIDIR", "MASK0-MID k0=2", "MASK0-LAST k0=4"]
    assert table[start + 1] == ["0", "0.3000", "0.3000", "0.3000", "0.3000"]
    assert table[start + 5] == ["4", "0.1000", "**0.6000**", "", ""]
    assert table[start + 6] == ["5", "**0.5000**", "0.1000", "**0.6500**", "**0.7000**"]
    assert len(table) == start + 8
    assert "| **MASK0-LAST** | **5** | **4** | **0.7000** | **0.5000** |" in text
    assert (tmp_path / "tune.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    shown = str(report)
    assert said[-1] == shown
    assert "* MASK0-LAST k=5 k0=4" in shown and "  BASELINE" in shown
    assert json.loads(json.dumps(report.to_json()))["chosen"]["k0"] == 4


def test_the_recipe_builds_what_was_scored(builds: list[dict[str, Any]], tmp_path: Path) -> None:
    cases: list[tuple[dict[tuple[Any, ...], float], str]] = [
        ({("baseline",): 0.3}, "6 forward"),
        (SCORES, "1 forward → 1 bidirectional → 4 nosink-bidirectional"),
        ({**SCORES, ("mask0&bidir", 5, 2): 0.9}, "1 forward → 3 bidirectional → 2 nosink-bidirectional"),
        ({**SCORES, ("mask0-all", 2): 0.9}, "4 nosink-forward → 2 nosink-bidirectional"),
        ({**SCORES, ("inter-back", 1): 0.9}, "5 forward → 1 forward + backward"),
    ]
    for number, (scores, stack) in enumerate(cases):
        out = tmp_path / str(number)
        report, _ = run(Scripted(scripted(scores)), out, everything=True)
        recipe = yaml.safe_load((out / "recipe.yaml").read_text(encoding="utf-8"))
        assert recipe == report.recipe and report.chosen.stack == stack
        model: Any = st_reba.build(**recipe, device="cpu")
        assert str(model[0].stage("nosink").plan.resolve(DEPTH)) == stack


def test_figures_are_drawn_from_the_scores(drawn: None, tmp_path: Path) -> None:
    small, _ = run(Scripted(scripted(SCORES)), tmp_path / "a")
    (axes,) = report_module._figure(small).axes
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert list(lines) == ["BASELINE", "INPLACE-BIDIR", "MASK0-BIDIR", "MASK0-MID k0=2", "MASK0-LAST k0=4", "chosen"]
    assert list(lines["MASK0-BIDIR"].get_xdata()) == [1, 2, 3, 4, 5, 6]
    assert list(lines["MASK0-BIDIR"].get_ydata()) == [0.1, 0.1, 0.1, 0.6, 0.1, 0.1]
    assert set(lines["BASELINE"].get_ydata()) == {0.3} and lines["BASELINE"].get_linestyle() == "--"
    assert (list(lines["chosen"].get_xdata()), list(lines["chosen"].get_ydata())) == ([5], [0.7])
    large, _ = run(Scripted(scripted(SCORES)), tmp_path / "b", everything=True)
    panels = report_module._figure(large).axes
    assert [axes.get_title() for axes in panels] == ["Architectures", "Masking the sink", "MASK0&BIDIR"]
    colours: dict[str, str] = {}
    for axes in panels:
        curves = [line for line in axes.get_lines() if line.get_label() not in ("BASELINE", "chosen")]
        assert len({line.get_color() for line in curves}) == len({line.get_marker() for line in curves}) == len(curves)
        for line in curves:
            assert colours.setdefault(line.get_label(), line.get_color()) == line.get_color()
    assert len(colours) == 16
    figure = draw_curves({"面板": [Curve("曲线", [(1, 0.5)], 0)]}, 0.4, title="模型 $x$", y_label="$y$")
    assert figure.get_suptitle() == "?? $x$" and figure.axes[0].get_title() == "??"


def test_options_are_checked_before_the_work(builds: list[dict[str, Any]], tmp_path: Path, monkeypatch: Any) -> None:
    task = Scripted(scripted(SCORES))
    for options, message in (({"batch_size": 0}, "batch_size=0"), ({"m": 0}, "m=0"), ({"m": True}, "m=True")):
        with pytest.raises(ValueError, match=message):
            run(task, tmp_path / "out", **options)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"needs matplotlib.*Run: pip install 'st-reba\[evaluation\]'"):
        run(task, tmp_path / "out")
    task.kind = "tags"
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "seqeval.metrics", None)
    with pytest.raises(ImportError, match="needs seqeval"):
        run(task, tmp_path / "out")
    assert not (tmp_path / "out").exists() and not builds
