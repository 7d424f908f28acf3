"""tune, compose and attention: what they hand on, and what is refused before a model loads.

What they find is tested where it is found, in tests/evaluation.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commanding import Refused, Run

import st_reba
from st_reba.cli.choose import _converted
from st_reba.cli.options import Running


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("texts.txt").write_text("a\nb\n", encoding="utf-8")
    Path("pairs.tsv").write_text("text1\ttext2\tscore\n" + "a\tb\t1\nc\td\t2\n" * 10, encoding="utf-8")
    Path("space.yaml").write_text("repeats: [1, 3]\n", encoding="utf-8")
    return tmp_path


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What the searches are asked for; none is made."""
    calls: list[tuple[Any, ...]] = []

    def search(*given: Any, **options: Any) -> Any:
        calls.append((*given, options))
        return SimpleNamespace(to_json=dict)

    monkeypatch.setattr("st_reba.evaluation.tune.tune", search)
    monkeypatch.setattr("st_reba.evaluation.search.compose", search)
    return calls


@pytest.mark.usefixtures("files")
def test_tune_hands_on(run: Run, searched: list[tuple[Any, ...]]) -> None:
    more = "--like search --budget speed --sample 60 --quick --minutes 2 --seed 3 --max-seq-length 99 --dtype bfloat16"
    assert run("tune", "mini", "texts.txt", "out", *more.split(), "--space", "space.yaml", "--quiet")[:2] == (0, "")
    ((base, file, out, options),) = searched
    assert (base.name, base.dtype, file, out) == ("mini", "bfloat16", "texts.txt", Path("out"))
    wanted = {
        "like": "search",
        "budget": "speed",
        "sample": 60,
        "quick": True,
        "minutes": 2.0,
        "seed": 3,
        "labels": None,
    }
    assert {**wanted, "max_seq_length": 99, "show_progress_bar": False}.items() <= options.items()
    assert options["space"].repeats == (1, 3)


@pytest.mark.usefixtures("files")
def test_compose_hands_on(run: Run, searched: list[tuple[Any, ...]]) -> None:
    more = "--preset nosink --tokens 500 --speed 0.25 --validation 0.3 --everything --pooling last --m 2"
    more += " --revision r --test pairs.tsv --json"
    status, _, err = run("compose", "mini", "pairs.tsv", "out", *more.split())
    assert (status, err) == (0, "")
    ((base, task, out, preset, options),) = searched
    assert (base.name, base.revision, task.kind, out) == ("mini", "r", "STS", Path("out"))
    assert preset == "nosink" and options["test"].kind == "STS"
    wanted = {"tokens": 500, "minutes": None, "speed": 0.25, "validation": 0.3, "space": None}
    assert {**wanted, "everything": True, "pooling": "last", "m": 2}.items() <= options.items()


@pytest.mark.usefixtures("files")
def test_refused_before_a_model_loads(refused: Refused, searched: list[tuple[Any, ...]]) -> None:
    for command, file in (("tune", "texts.txt"), ("compose", "pairs.tsv")):
        for given, message in (
            (["--minutes", "nan"], "--minutes nan: give a number above 0"),
            (["--space", "spase.yaml"], "space.yaml'"),
        ):
            assert message in refused(command, "mini", file, "out", *given)
        assert "is a file, not the folder of a search" in refused(command, "mini", file, "texts.txt")
    assert "--speed 0.0: give a number above 0" in refused("compose", "mini", "pairs.tsv", "out", "--speed", "0")
    assert "k" in refused("attention", "mini", "a text", "--setting", "mask0-bidir", "--k", "-1")
    assert searched == [] and not Path("out").exists()


def test_what_attention_looks_into(tmp_path: Path) -> None:
    """A base as it is, or converted; a saved model keeps its own layers, and is not converted again."""
    running = Running(None, None, False)
    plain, sinks = _converted("mini", {"m": 3}, running), _converted("mini", {"setting": "mask0-all", "k": 2}, running)
    assert str(st_reba.spec_of(plain)) == str(st_reba.spec_of(st_reba.build("mini", "nosink", setting="baseline")))
    wanted = st_reba.build("mini", "nosink", setting="mask0-all", k=2, m=1)
    assert st_reba.spec_of(sinks) == st_reba.spec_of(wanted)
    sinks.save_pretrained(str(tmp_path))
    assert st_reba.spec_of(_converted(str(tmp_path), {}, running)) == st_reba.spec_of(wanted)
    with pytest.raises(ValueError, match="--k 1: MODEL .* is converted already. Drop it."):
        _converted(str(tmp_path), {"k": 1}, running)
