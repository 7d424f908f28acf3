"""Every architecture that transformers lists for causal language modelling: exact, or refused for a known reason."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers
from families import CAUSAL_LMS
from marks import slow_but
from packaging.version import Version
from sweep import METHODS, REFUSALS, sweep
from sweep_record import COMMAND, PAGE, page, read

INSTALLED = transformers.__version__
# The record that holds for the installed release: its own, or the last before it.
RELEASE, RECORD = [each for each in read().items() if Version(each[0]) <= Version(INSTALLED)][-1]
# Of each kind one: position biases, layers of two kinds, windows, states without attention, indexers.
QUICK = ("llama", "gpt2", "mamba", "bloom", "falcon_h1", "gemma2", "glm_moe_dsa")
# Types that are encoders, or can be; those that repeat one of these are left out.
ENCODERS = ("bert", "big_bird", "cpmant", "rembert", "roberta", "roc_bert", "roformer", "xlm", "xlnet", "xmod")


@pytest.mark.parametrize("model_type", slow_but(sorted(CAUSAL_LMS), *QUICK))
def test_type(model_type: str, tmp_path: Path) -> None:
    """As recorded; in a release that nobody has recorded yet, exact or refused, and exact if it was."""
    wanted = RECORD.get(model_type) or pytest.skip(f"new in transformers {INSTALLED}: run {COMMAND}")
    found = sweep(model_type, tmp_path)
    assert not found.unfit, "the tiny model proves nothing"
    hint = f"{found.methods}; if this is right, run {COMMAND}"
    if RELEASE == INSTALLED or wanted["how"] == "none":
        assert found.record() == wanted, hint
    else:
        assert set(found.methods.values()) <= {"exact", *(f"refused: {reason}" for reason in REFUSALS)}, hint
        assert all(found.methods[each] == "exact" for each in METHODS if wanted[each] == "exact"), hint


@pytest.mark.parametrize("model_type", slow_but(ENCODERS, "bert", "xlnet"))
def test_an_encoder_sees_no_padding(model_type: str, tmp_path: Path) -> None:
    """As a baseline, an encoder looks both ways: padding in a batch must be hidden from it, or the encoder refused."""
    (found,) = sweep(model_type, tmp_path, ["classical"], decoder=False).methods.values()
    if found.startswith("no model"):
        pytest.skip(found)
    assert found == "exact" or found.startswith("refused")


def test_the_record() -> None:
    """It holds every type, most of them exact, and the page tells what it says."""
    newest = list(read().values())[-1].values()
    exact = {method: sum(entry[method] == "exact" for entry in newest) for method in METHODS}
    assert exact["reba"] >= 165 and exact["echo"] >= 176 and exact["nosink"] >= 138
    assert PAGE.read_text(encoding="utf-8") == page(read()), f"stale: run {COMMAND}"
    if RELEASE != INSTALLED:
        pytest.skip(f"transformers {INSTALLED} was not recorded, so its types are not compared")
    assert set(RECORD) == set(CAUSAL_LMS)
