"""The size of the file that travels with a model, and pickles; tests/test_save_load.py runs it without the package."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest
import torch
from marks import Base
from pipelines import encoded, made

# Most lines of the file.
LINES = {
    "reba mean": 960,
    "reba template": 1000,
    "authors last": 1065,
    "echo last": 570,
    "prompteol": 600,
    "ensemble": 680,
    "mask0": 800,
}
LINES |= {"inter": 900, "concat": 1060, "outputs": 720, "chunk mean": 1095, "chunk mask0": 1285}


@pytest.mark.parametrize("name", LINES)
def test_lines(base: Base, name: str, tmp_path: Path) -> None:
    made(base("llama"), name).save_pretrained(str(tmp_path))
    assert len((tmp_path / "st_reba.py").read_text(encoding="utf-8").splitlines()) <= LINES[name]


def test_readings(base: Base, tmp_path: Path) -> None:
    """What reads inner layers, or attention outputs, travels; and not both."""
    for name, classes in (("layers", (True, False)), ("outputs", (False, True))):
        made(base("llama"), name).save_pretrained(str(tmp_path / name))
        code = (tmp_path / name / "st_reba.py").read_text(encoding="utf-8")
        assert ("class LayerReader" in code, "class OutputReader" in code) == classes and "\n- passes: One " in code


@pytest.mark.parametrize("name", ["reba mean", "mask0", "inter", "layers", "ensemble", "chunk mean"])
def test_copies(base: Base, name: str) -> None:
    """Pickled and copied, a model computes the same, and none hears of another's passes."""
    model = made(base("llama"), name)
    wanted = encoded(model)
    for copied in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert torch.equal(encoded(copied), wanted)
        copied[0].model.get_input_embeddings().weight.data.zero_()
    assert torch.equal(encoded(model), wanted)
