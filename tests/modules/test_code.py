"""The file that travels with a model: its sections and size; tests/test_save_load.py runs it without the package."""

from __future__ import annotations

import copy
import pickle
import re
from typing import Any

import pytest
import torch
from marks import Base
from pipelines import encoded, made

from st_reba.modules.code import _has_terms, code_of

REBA = "attention blocks capture pooling"
# Most lines of the file, and its sections behind those of every file.
FILES: dict[tuple[str, str], tuple[int, str]] = {
    ("llama", "reba mean"): (960, REBA), ("llama", "reba template"): (1000, f"templates {REBA}"),
    ("llama", "authors last"): (1065, "attention blocks capture both_ways pooling authors"),
    ("llama", "chunk mean"): (1095, f"{REBA} pieces"), ("llama", "concat"): (1060, f"layers reader {REBA}"),
    ("llama", "chunk mask0"): (1285, "attention blocks masks capture both_ways pooling pieces"),
    ("llama", "echo last"): (570, ""), ("llama", "reversed"): (690, "templates reversal ensemble"),
    ("llama", "outputs"): (720, "layers outputs templates"), ("llama", "mask0"): (800, "attention masks"),
    ("llama", "inter"): (900, "layers attention masks second"), ("gpt_oss", "echo last"): (570, ""),
    ("gpt_oss", "mask0"): (900, "attention blocks masks"), ("gemma2", "echo last"): (740, "attention blocks"),
}  # fmt: skip


@pytest.mark.parametrize(("of", "name"), FILES)
def test_files(base: Base, of: str, name: str) -> None:
    """A model takes with it what it needs, and no more."""
    code, (most, sections) = code_of(made(base(of), name).modules()), FILES[of, name]
    assert re.findall(r"^- (\w+): [A-Z]", code, re.M) == ["layout", "passes", "transformer", *sections.split()]
    assert len(code.splitlines()) <= most


def test_code_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have every term of the scores, as may a model without numbered layers."""
    layer: Any = torch.nn.Linear(1, 1)
    assert _has_terms(layer)
    layer.layer_idx = 0
    assert not _has_terms(layer)
    monkeypatch.setattr(torch.nn.Linear, "__module__", "nowhere")
    assert _has_terms(layer)


@pytest.mark.parametrize("name", ["reba mean", "mask0", "inter", "layers", "ensemble", "chunk mean"])
def test_copies(base: Base, name: str) -> None:
    """Pickled and copied, a model computes the same, and none hears of another's passes."""
    model = made(base("llama"), name)
    wanted = encoded(model)
    for copied in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert torch.equal(encoded(copied), wanted)
        copied[0].model.get_input_embeddings().weight.data.zero_()
    assert torch.equal(encoded(model), wanted)
