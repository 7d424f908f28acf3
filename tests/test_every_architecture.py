"""Every architecture that transformers lists for causal language modelling: exact, or refused for a known reason.

One test a model type, so that a release of transformers that breaks one shows it by name.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import sweep_record
import transformers
from families import CAUSAL_LMS, NoModelError
from marks import slow_but
from sweep import METHODS, REFUSALS, TOLERANCE, encoder_error, sweep

REASONS = {*(f"refused: {reason}" for reason in REFUSALS.values()), "exact"}
RECORDED = sweep_record.release() == transformers.__version__
# Of each kind one: position biases, layers of two kinds, windows, states without attention, indexers.
QUICK = ("llama", "gpt2", "mamba", "bloom", "falcon_h1", "gemma2", "glm_moe_dsa")
# Types that are encoders, or can be.
ENCODERS = (
    *("bert", "bert-generation", "big_bird", "camembert", "cpmant", "data2vec-text", "electra", "ernie"),
    *("megatron-bert", "rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer", "xlm", "xlm-roberta"),
    *("xlm-roberta-xl", "xlnet", "xmod"),
)


@pytest.mark.parametrize("model_type", slow_but(sorted(CAUSAL_LMS), *QUICK))
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


def test_every_type_is_recorded() -> None:
    if not RECORDED:
        pytest.skip(f"transformers {transformers.__version__} was not recorded: {list(sweep_record.read())} were")
    assert set(sweep_record.recorded()) == set(CAUSAL_LMS)


def test_most_are_exact() -> None:
    newest = list(sweep_record.read().values())[-1].values()
    exact = {method: sum(entry[method] == "exact" for entry in newest) for method in METHODS}
    assert exact["reba"] >= 165 and exact["echo"] >= 176 and exact["nosink"] >= 138


def test_the_page_is_current() -> None:
    assert sweep_record.PAGE.read_text(encoding="utf-8") == sweep_record.page(sweep_record.read()), (
        f"stale: run {sweep_record.COMMAND}"
    )
