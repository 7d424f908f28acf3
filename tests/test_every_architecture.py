"""Every architecture that transformers lists for causal language modelling: exact, or refused for a known reason.

One test a model type, so that a release of transformers that breaks one shows it by name.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import sweep_record
import transformers
from families import CAUSAL_LMS, NoModelError
from marks import slow_but
from sweep import METHODS, REFUSALS, TOLERANCE, encoder_error, sweep

SCRIPT = Path(__file__).parents[1] / "scripts" / "architectures.py"
REASONS = {*(f"refused: {reason}" for reason in REFUSALS.values()), "exact"}
RECORDED = sweep_record.release() == transformers.__version__
# Types that are encoders, or can be.
ENCODERS = (
    *("bert", "bert-generation", "big_bird", "camembert", "cpmant", "data2vec-text", "electra", "ernie"),
    *("megatron-bert", "rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer", "xlm", "xlm-roberta"),
    *("xlm-roberta-xl", "xlnet", "xmod"),
)


@pytest.mark.parametrize("model_type", slow_but(sorted(CAUSAL_LMS), "llama", "gpt2", "mamba"))
def test_type(model_type: str, tmp_path: Path) -> None:
    """As recorded; in a release that nobody has recorded yet, exact or refused, and exact if it was."""
    wanted = sweep_record.recorded().get(model_type)
    if wanted is None:
        pytest.skip(f"{model_type} is new in transformers {transformers.__version__}: run {sweep_record.COMMAND}")
    found = sweep(model_type, tmp_path)
    assert not found.unfit, "the tiny model proves nothing"
    hint = f"errors: {found.errors}; if this is right, run {sweep_record.COMMAND}"
    if RECORDED or wanted["how"] == "none":
        assert found.record() == wanted, hint
    else:
        assert set(found.methods.values()) <= REASONS, hint
        assert all(found.methods[each] == "exact" for each in METHODS if wanted[each] == "exact"), hint


@pytest.mark.parametrize("model_type", slow_but(ENCODERS, "bert", "xlnet"))
def test_an_encoder_sees_no_padding(model_type: str, tmp_path: Path) -> None:
    """As a baseline, an encoder looks both ways: padding in a batch must be hidden from it, or the encoder refused."""
    try:
        error = encoder_error(model_type, tmp_path)
    except NoModelError as reason:
        pytest.skip(f"{model_type}: {reason}")
    assert error <= TOLERANCE


def test_nothing_is_recorded_but_what_holds() -> None:
    for types in sweep_record.read().values():
        for name, entry in types.items():
            statuses = {entry[method] for method in METHODS}
            if entry["how"] == "none":
                assert len(statuses) == 1 and statuses.pop().startswith("no model: "), name
            else:
                assert statuses <= REASONS, name
                assert (entry["how"] == "refused") == (entry["reba"] != "exact"), name


def test_every_type_is_recorded() -> None:
    if not RECORDED:
        pytest.skip(f"transformers {transformers.__version__} was not recorded: {list(sweep_record.read())} were")
    assert set(sweep_record.recorded()) == set(CAUSAL_LMS)


def test_most_are_exact() -> None:
    newest = list(sweep_record.read().values())[-1].values()
    exact = {method: sum(entry[method] == "exact" for entry in newest) for method in METHODS}
    assert exact["reba"] >= 110 and exact["echo"] >= 110 and exact["nosink"] >= 90


def test_the_page_is_current() -> None:
    assert sweep_record.PAGE.read_text(encoding="utf-8") == sweep_record.page(sweep_record.read()), (
        f"stale: run {sweep_record.COMMAND}"
    )


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_the_script() -> None:
    done = run("llama", "mamba", "--json")
    assert done.returncode == 0, done.stderr[-2000:]
    wanted = {name: sweep_record.recorded()[name] for name in ("llama", "mamba")}
    assert json.loads(done.stdout) == wanted
    done = run("llama", "--check")
    assert done.returncode == 0 and "1 as recorded" in done.stdout, done.stderr[-2000:]
    done = run("nothing")
    assert done.returncode == 2 and "'nothing'" in done.stderr and "Traceback" not in done.stderr
    assert "--check" in run("--help").stdout


def test_what_changed_is_named() -> None:
    types = sweep_record.recorded()
    assert sweep_record.changes(types, types) == []
    broken = {**types, "llama": {**types["llama"], "reba": "inexact: 3e-02"}}
    assert sweep_record.changes(broken, types) == ["llama: reba: 'exact' is now 'inexact: 3e-02'"]
    assert sweep_record.changes({"new": types["llama"]}, types) == ["new: is not recorded"]
