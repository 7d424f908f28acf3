"""The folder of a search: it goes on after a kill, and takes no other run and no second writer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from marks import slow_but
from searched import run, task_of

from st_reba import NoSink
from st_reba.evaluation import heldout, rungs
from st_reba.evaluation.choice import Chosen
from st_reba.evaluation.crossfit import Scored
from st_reba.evaluation.halving import Halving
from st_reba.evaluation.ledger import Ledger, Result
from st_reba.evaluation.trials import Arm, Filter, Read

pytestmark = pytest.mark.usefixtures("quick")


def lines(out: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (out / "trials.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def test_what_a_kill_leaves_is_cleared_away(tmp_path: Path) -> None:
    """A line that is not whole, a file that was being written, and vectors of a pass; the results stay."""
    rows = (Scored(Read(0, 2, False, "mean", "concat"), Filter("whiten", 1, 0.5, 0.75), 0.123456),)
    made = [
        Result(Arm("总：{text}", kind="bidirectional", first=1, sink=2), 0, 50, 900, 1.5, rows),
        Result(Arm(nosink=NoSink("mask0-mid", k=3, k0=2)), 1, 90, 0, 0.0, (), "cannot look ahead"),
    ]
    with Ledger.opened(tmp_path, {"base": "mini"}) as ledger:
        for result in made:
            ledger.add(result)
    whole = (tmp_path / "trials.jsonl").read_bytes()
    with (tmp_path / "trials.jsonl").open("ab") as stream:
        stream.write(b'{"arm": {"repe')
    (tmp_path / ".run.json.0123.tmp").touch()
    (tmp_path / ".vectors-left").mkdir()
    with Ledger.opened(tmp_path, {"base": "mini"}) as ledger:
        assert list(ledger.results.values()) == made
        assert (tmp_path / "trials.jsonl").read_bytes() == whole
        assert not [path for path in tmp_path.iterdir() if path.name.startswith((".vectors", ".run"))]
        with pytest.raises(BlockingIOError, match="another process is writing here"), Ledger.opened(tmp_path, {}):
            pass


def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with Ledger.opened(tmp_path / "run", {}) as ledger:
        ledger.add(Result(Arm(), 0, 50, 900, 1.5, ()))
    trials = tmp_path / "run" / "trials.jsonl"
    for line in ("[1]", '{"arm": {}}', "{"):
        trials.write_text(trials.read_text().splitlines()[0] + f"\n{line}\n", encoding="utf-8")
        with (
            pytest.raises(ValueError, match="trials.jsonl, line 2: no result; remove it"),
            Ledger.opened(tmp_path / "run", {}),
        ):
            pass
    (tmp_path / "run" / "run.json").write_text("[", encoding="utf-8")
    with pytest.raises(ValueError, match="run.json: not readable as JSON"), Ledger.opened(tmp_path / "run", {}):
        pass
    with pytest.raises(FileExistsError, match="a file is there; name a folder"), Ledger.opened(trials, {}):
        pass


@pytest.mark.parametrize("preset", slow_but(["compose", "nosink"], "compose"))
def test_a_run_that_was_killed_goes_on(base: Any, preset: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed among the arms, and again among the held-out scores."""
    monkeypatch.setattr(rungs, "FEWEST", 6)
    options: dict[str, Any] = {"preset": preset, **({"tokens": 9_000} if preset == "compose" else {})}
    whole, _ = run(base, task_of("STS", 40), tmp_path / "whole", **options)
    wanted = lines(tmp_path / "whole")
    assert preset == "nosink" or len({row["arm"].get("first") for row in wanted}) > 1
    kind: Any = Halving if preset == "compose" else Chosen

    def killed(real: Callable[..., Any], most: int) -> Callable[..., Any]:
        calls = count(1)

        def call(*given: Any, **named: Any) -> Any:
            if next(calls) > most:
                raise KeyboardInterrupt
            return real(*given, **named)

        return call

    out = tmp_path / "out"
    for place, name, most in ((kind, "scored", 3), (heldout, "_tested", 2)):
        said: list[str] = []
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(place, name, killed(getattr(place, name), most))
            run(base, task_of("STS", 40), out, say=said.append, **options)
        assert "the same command goes on from there" in said[-1] and not (out / "recipe.yaml").exists()
    monkeypatch.setattr(kind, "scored", lambda *given: pytest.fail("an arm ran again"))
    report, said = run(base, task_of("STS", 40), out, **options)
    assert any("going on after" in line for line in said)
    assert lines(out) == wanted and report.rows == whole.rows and report.differences == whole.differences
    # What is finished is not made again.
    monkeypatch.setattr(heldout, "_tested", lambda *given: pytest.fail("scored again"))
    assert run(base, task_of("STS", 40), out, **options)[0].rows == whole.rows


def test_another_run_in_the_folder_is_refused(base: Any, tmp_path: Path) -> None:
    task, out = task_of("STS", 40), tmp_path / "out"
    copied = shutil.copytree(base("gpt2"), tmp_path / "base")

    def again(**options: Any) -> None:
        run(lambda name: str(copied), task, out, **{"preset": "nosink", **options})

    again()
    for options, message in (
        ({"pooling": "last"}, "options.pooling was 'mean', now 'last'"),
        ({"seed": 1}, "options.seed was 0, now 1"),
        ({"dtype": "bfloat16"}, "base.dtype was 'float32', now 'bfloat16'"),
        ({"preset": "compose"}, "preset was 'nosink', now 'compose'"),
    ):
        with pytest.raises(ValueError, match=f"another run is there: .*{message}"):
            again(**options)
    # One number in the middle of the weights.
    weights = copied / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.write_bytes(bytes(data))
    with pytest.raises(ValueError, match="another run is there: base.weights was"):
        again()
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "mine.txt").touch()
    with pytest.raises(FileExistsError, match="not the folder of a run"):
        run(base, task, tmp_path / "else")
