"""Whole searches: stopped, gone on with, built again from the recipe, and told of."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from composing_data import SMALL, rows_of, write_rows
from marks import slow_but

import st_reba
from st_reba.evaluation import ComposedReport, Filter, Space, compose, read_parts
from st_reba.evaluation.composing.halving import Halving
from st_reba.evaluation.composing.scoring import score, units
from st_reba.evaluation.composing.trial import NO_FILTER, PAPERS

halving_module: Any = import_module("st_reba.evaluation.composing.halving")
heldout_module: Any = import_module("st_reba.evaluation.composing.heldout")
report_module: Any = import_module("st_reba.evaluation.composing.report")

FILES = {
    *("recipe.yaml", "recipe-fast.yaml", "report.md", "trials.csv", "costs.png", "trials.jsonl", "run.json"),
    "space.yaml",
}


SEARCH = replace(
    SMALL, layers=((1, 1, "mean"), (2, 2, "mean"), (0, 2, "mean")), filters=(*SMALL.filters, Filter("abtt", 1))
)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Two rungs of few items, few draws, and no figure but where it is looked at."""
    monkeypatch.setattr(heldout_module, "DRAWS", 60)
    if "files" in request.fixturenames:
        monkeypatch.setattr(halving_module, "FEWEST", 20)
    if request.node.name != "test_a_report_can_be_read":
        monkeypatch.setattr(report_module, "_figure", lambda report: None)
        monkeypatch.setattr(report_module, "save_figure", lambda figure, path: Path(path).touch())


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("files")
    return {
        kind: write_rows(folder / f"my {kind}.jsonl", rows_of(kind, 100 if kind == "ranking" else 180))
        for kind in ("pairs", "triples", "classes", "ranking")
    }


# Not enough for all.
BUDGET = 125_000


def run(base: Any, task: Any, out: Path, **options: Any) -> tuple[ComposedReport, list[str]]:
    said: list[str] = []
    given = {"space": SEARCH, "device": "cpu", "show_progress_bar": False, "say": said.append, **options}
    return compose(base("gpt2"), task, out, **given), said


def without_seconds(out: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (out / "trials.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


@pytest.mark.parametrize("kind", slow_but(["pairs", "triples", "classes", "ranking"], "triples"))
def test_the_recipe_is_what_was_reported(base: Any, files: dict[str, Path], kind: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    report, said = run(base, parted := read_parts(files[kind], kind), out)
    there = {path.name for path in out.iterdir()}
    filtered = {name for name in ("composed", "fast") if report.row(name).trial.filter != NO_FILTER}
    postfilters = {"composed": "postfilter.safetensors", "fast": "postfilter-fast.safetensors"}
    assert there == FILES | {postfilters[name] for name in filtered}
    for name, file in (("composed", "recipe.yaml"), ("fast", "recipe-fast.yaml")):
        row = report.row(name)
        recipe = yaml.safe_load((out / file).read_text())
        assert recipe == report.recipe_of(name)
        # Its held-out score, from nothing but the recipe and the file.
        model = st_reba.build(out / file, device="cpu")
        if kind == "classes":
            from sklearn.linear_model import LogisticRegression

            learn, ask = ([part.texts[item[0]] for item in part.items] for part in (parted.validation, parted.heldout))
            labels = [[item[1] for item in part.items] for part in (parted.validation, parted.heldout)]
            fitted = LogisticRegression(max_iter=100).fit(model.encode(learn), labels[0])
            assert row.heldout == pytest.approx(np.mean(fitted.predict(model.encode(ask)) == labels[1]))
        else:
            vectors = units(model.encode(list(parted.heldout.texts)).astype(np.float64))
            assert row.heldout == pytest.approx(score(parted.heldout, vectors), abs=1e-9)
        assert row.interval[0] < row.heldout < row.interval[1]
        # The validation score too, though it came from a pass that many methods shared.
        if kind != "classes":
            vectors = units(model.encode(list(parted.validation.texts)).astype(np.float64))
            assert row.validation == pytest.approx(score(parted.validation, vectors), abs=2e-3)
    assert report.row("composed").validation == max(row.validation for row in report.rows)
    assert report.row("fast").cost <= 0.5
    single = report.single
    assert single is not None and single.name in PAPERS
    assert single.validation == max(row.validation for row in report.rows if row.name in PAPERS)
    assert single.gain == (0, 0) and report.row("composed").gain != (0, 0)
    assert said[0] == f"Task: {parted.describe()}" and said[-1] == str(report)
    assert report.tokens == sum(row["tokens"] for row in without_seconds(out))
    with (out / "trials.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    # Each method once a rung, though arms differ in layers that some methods do not run.
    scored = [(result.rung, trial) for result in report.results for trial, _ in result.trials()]
    assert len(rows) == len(set(scored)) < len(scored)
    assert {row["method"] for row in rows} == {*PAPERS, "composed"}


@pytest.fixture(scope="module")
def kept() -> dict[str, ComposedReport]:
    return {}


@pytest.fixture
def undisturbed(
    base: Any, files: dict[str, Path], quick: None, kept: dict[str, ComposedReport], tmp_path_factory: Any
) -> ComposedReport:
    if not kept:
        out = tmp_path_factory.mktemp("runs") / "whole"
        kept["whole"] = run(base, read_parts(files["pairs"]), out, tokens=BUDGET)[0]
    return kept["whole"]


@pytest.mark.slow
@pytest.mark.parametrize("stop", [0, 3, 40])
def test_a_search_that_was_stopped_goes_on(
    base: Any,
    files: dict[str, Path],
    undisturbed: ComposedReport,
    stop: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task, whole = read_parts(files["pairs"]), undisturbed
    assert 5 < whole.arms < len(SEARCH.arms(2)) and len({result.rung for result in whole.results}) == 2
    options: dict[str, Any] = {"tokens": BUDGET}
    encode, calls = halving_module.encode_arm, 0

    def stopping(*arguments: Any, **given: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > stop:
            raise KeyboardInterrupt
        return encode(*arguments, **given)

    said: list[str] = []
    with monkeypatch.context() as patch:
        if stop < 40:
            patch.setattr(halving_module, "encode_arm", stopping)
        else:
            patch.setattr(heldout_module, "sentence_vectors", stopping)
            stop = -1
        with pytest.raises(KeyboardInterrupt):
            run(base, task, tmp_path / "out", say=said.append, **options)
    done = len(without_seconds(tmp_path / "out"))
    assert said[-1].endswith(f"stopped after {done} arms; the same command goes on from there")
    assert done == (stop if stop >= 0 else len(whole.results))
    if done:
        # A kill may also leave half a line.
        with (tmp_path / "out" / "trials.jsonl").open("a") as stream:
            stream.write('{"arm": {"templ')
    with monkeypatch.context() as patch:
        counted: list[Any] = []
        patch.setattr(halving_module, "encode_arm", lambda *given: counted.append(given) or encode(*given))
        again, said = run(base, task, tmp_path / "out", **options)
    assert len(counted) == len(whole.results) - done
    assert (f"{tmp_path / 'out'}: going on after {done} arms" in said) is bool(done)
    assert without_seconds(tmp_path / "out") == without_seconds(whole.folder)
    assert again.rows == whole.rows and again.arms == whole.arms
    for name in ("trials.csv", "recipe-fast.yaml"):
        same = [(folder / name).read_text().replace(str(folder), "F") for folder in (tmp_path / "out", whole.folder)]
        assert same[0] == same[1]
    with pytest.raises(ValueError, match=r"another run is there: options.tokens was 125000, now 50000"):
        run(base, task, tmp_path / "out", tokens=50_000)


@pytest.mark.slow
def test_minutes_are_measured_once(
    base: Any, files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Halving, "rate", lambda self, arms: 1000.0)
    task = read_parts(files["pairs"])
    first, _ = run(base, task, tmp_path, minutes=2)
    about = json.loads((tmp_path / "run.json").read_text())
    assert about["found"] == {"tokens_a_second": 1000.0} and len(first.results) > first.arms
    monkeypatch.setattr(Halving, "rate", lambda self, arms: 9.0)
    again, _ = run(base, task, tmp_path, minutes=2)
    # Five always run.
    assert 5 < again.arms == first.arms < len(SEARCH.arms(2))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pairs", "classes"])
def test_no_choice_sees_what_reports(
    base: Any, files: dict[str, Path], kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = read_parts(files[kind], kind)
    held = set(task.heldout.texts) - set(task.validation.texts)
    assert len(held) > 20
    seen: list[set[str]] = []
    encode, fit = halving_module.encode_arm, heldout_module.postfilter_of
    monkeypatch.setattr(halving_module, "encode_arm", lambda *given: seen.append(set(given[3])) or encode(*given))
    monkeypatch.setattr(
        heldout_module,
        "postfilter_of",
        lambda model, texts, **given: seen.append(set(texts)) or fit(model, texts, **given),
    )
    report, _ = run(base, task, tmp_path / "one")
    assert len(seen) >= 9 and not any(texts & held for texts in seen)
    # Other labels there change no choice.
    items = [(*item[:-1], item[-1] if kind == "classes" else -item[-1]) for item in task.heldout.items]  # type: ignore[attr-defined]
    turned = replace(task, heldout=replace(task.heldout, items=tuple(items[::-1])))  # type: ignore[type-var]
    other, _ = run(base, turned, tmp_path / "two")
    assert [row.trial for row in other.rows] == [row.trial for row in report.rows]
    assert [row.validation for row in other.rows] == [row.validation for row in report.rows]
    if kind == "pairs":
        assert [row.heldout for row in other.rows] == pytest.approx([-row.heldout for row in report.rows])


@pytest.mark.slow
def test_a_report_can_be_read(base: Any, files: dict[str, Path], tmp_path: Path) -> None:
    report, _ = run(base, read_parts(files["pairs"], seed=3), tmp_path / "out", speed=0.6, max_seq_length=100)
    words = f"{files['pairs']}' {tmp_path / 'out'} --compose --seed 3 --speed 0.6 --space {tmp_path / 'out'}/space.yaml"
    assert report.command == f"st-reba tune {base('gpt2')} '{words} --max-seq-length 100"
    markdown = (tmp_path / "out" / "report.md").read_text()
    assert report.command in markdown and "## " not in markdown and f"{report.tokens:,} positions" in markdown
    for row in report.rows:
        line = next(line for line in markdown.splitlines() if f"| {row.trial} |" in line)
        assert f"{row.validation:.4f}" in line and f"{row.heldout:.4f}" in line and f"{row.cost:.2f}" in line
    assert (tmp_path / "out" / "costs.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    recipe = (tmp_path / "out" / "recipe.yaml").read_text()
    assert f"# Found by: {report.command}" in recipe and "max_seq_length: 100" in recipe
    values = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert values["rows"][-1]["name"] == "composed" and values["recipes"]["composed"] == report.recipe
    # What no file holds has no command, nor has a search by another seed than the parts'.
    assert replace(report, command="").command == ""
    other, _ = run(base, read_parts(files["pairs"]), tmp_path / "other", seed=5)
    assert other.command == "" and "Found by" not in (tmp_path / "other" / "recipe.yaml").read_text()


def test_a_space_without_single_papers(base: Any, files: dict[str, Path], tmp_path: Path) -> None:
    space = Space(templates=(None,), repeats=(1,), kinds=(), layers=((1, 1, "mean"),), pooled=("mean",), filters=())
    report, _ = run(base, files["pairs"], tmp_path, space=space)
    assert [row.name for row in report.rows] == ["fast", "composed"] and report.single is None
    assert report.rows[0].gain is None and "best single" not in str(report)
    assert "No single paper's method" in (tmp_path / "report.md").read_text()
    assert not list(tmp_path.glob("*.safetensors"))


def test_wrong_options(base: Any, files: dict[str, Path], tmp_path: Path) -> None:
    for name, value in (("minutes", 0), ("tokens", -5), ("speed", True)):
        with pytest.raises(ValueError, match=f"{name}={value} must be a number above 0"):
            run(base, files["pairs"], tmp_path / "out", **{name: value})
    with pytest.raises(
        ValueError, match=r"template 'echo': max_seq_length=9 leaves no room.*leave it out of the space"
    ):
        run(base, files["pairs"], tmp_path / "out", max_seq_length=9, space=Space(templates=(None, "echo")))
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError, match="not the folder of a run"):
        run(base, files["pairs"], tmp_path)
    with pytest.raises(ValueError, match="there is no layer 3: the base has 0"):
        run(base, files["pairs"], tmp_path / "out", space=replace(SEARCH, layers=((3, 3, "mean"),)))
