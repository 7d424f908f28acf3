"""Every architecture that transformers lists for causal language modelling: exact, or refused for a known reason."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers
from families import CAUSAL_LMS
from marks import slow_but
from packaging.version import Version
from sweep import METHODS, REFUSALS, sweep
from sweep_record import COMMAND, PAGE, Records, page, read

INSTALLED = transformers.__version__
# Of each kind one: position biases, layers of two kinds, windows, states without attention,
# indexers.
QUICK = (
    "llama",
    "gpt2",
    "mamba",
    "bloom",
    "falcon_h1",
    "gemma2",
    "glm_moe_dsa",
)
# Types that are encoders, or can be; those that repeat one of these are left out.
ENCODERS = (
    "bert",
    "big_bird",
    "cpmant",
    "rembert",
    "roberta",
    "roc_bert",
    "roformer",
    "xlm",
    "xlnet",
    "xmod",
)
KNOWN_OUTCOMES = {"exact", *(f"refused: {reason}" for reason in REFUSALS)}


def record_of_installed_release() -> tuple[str, Records]:
    """The record that holds for the installed release: its own, or the last before it."""
    release = ""
    records: Records = {}
    for recorded_release, recorded in read().items():
        if Version(recorded_release) <= Version(INSTALLED):
            release = recorded_release
            records = recorded
    return release, records


RELEASE, RECORDS = record_of_installed_release()


@pytest.mark.parametrize("model_type", slow_but(sorted(CAUSAL_LMS), *QUICK))
def test_a_type_is_exact_or_refused_as_recorded(model_type: str, tmp_path: Path) -> None:
    """In a release that nobody has recorded yet, exact or refused, and exact if it was."""
    if model_type not in RECORDS:
        pytest.skip(f"new in transformers {INSTALLED}: run {COMMAND}")
    expected = RECORDS[model_type]
    outcome = sweep(model_type, tmp_path)
    assert not outcome.unfit, "the tiny model proves nothing"
    hint = f"{outcome.methods}; if this is right, run {COMMAND}"
    if RELEASE == INSTALLED or expected["how"] == "none":
        assert outcome.record() == expected, hint
        return
    assert set(outcome.methods.values()) <= KNOWN_OUTCOMES, hint
    for method in METHODS:
        if expected[method] == "exact":
            assert outcome.methods[method] == "exact", hint


@pytest.mark.parametrize("model_type", slow_but(ENCODERS, "bert", "xlnet"))
def test_an_encoder_sees_no_padding(model_type: str, tmp_path: Path) -> None:
    """As a baseline, an encoder looks both ways: padding in a batch must be hidden from it, or the encoder refused."""
    outcome = sweep(model_type, tmp_path, ["classical"], decoder=False)
    result = outcome.methods["classical"]
    if result.startswith("no model"):
        pytest.skip(result)
    assert result == "exact" or result.startswith("refused")


@pytest.mark.parametrize(("method", "exact_types"), [("reba", 165), ("echo", 176), ("nosink", 138)])
def test_most_types_are_exact(method: str, exact_types: int) -> None:
    *_, newest = read().values()
    assert sum(record[method] == "exact" for record in newest.values()) >= exact_types


def test_the_page_tells_what_the_record_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(read()), f"stale: run {COMMAND}"


def test_the_record_holds_every_type() -> None:
    if RELEASE != INSTALLED:
        pytest.skip(f"transformers {INSTALLED} was not recorded, so its types are not compared")
    assert set(RECORDS) == set(CAUSAL_LMS)
