"""Every pipeline on a device without numbers: no two devices meet; and what a pass reads it reads once, at its end."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from marks import Base, slow_but
from pipelines import PIPELINES, features_of, made
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from st_reba.modules.layers import layers_of

TEXTS = ["你好，世界", "Hello, world, how are you today? 1 2 3 4 5 6 7", "x"]
CASES = [("llama", name) for name in PIPELINES]
CASES += [(of, name) for of in ("gemma2", "mistral") for name in ("echo last", "reba mean", "mask0", "reba mask0")]
# What the host would wait for on a GPU, by the operators' names.
READING = frozenset({"_local_scalar_dense", "is_nonzero", "item", "nonzero", "equal", "masked_select", "_unique2"})


class Reading(TorchDispatchMode):
    """Keeps what the host would wait for from a model's first layer on: before, transformers looks for padding."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.begun, self.read = False, list[str]()
        layer.register_forward_pre_hook(lambda module, given: setattr(self, "begun", True))

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = operator.overloadpacket.__name__
        # A mask of true and false as an index is counted first.
        indices = args[1] if name in ("index", "index_put_", "_index_put_impl_") else ()
        masked = any(isinstance(each, Tensor) and each.dtype in (torch.bool, torch.uint8) for each in indices)
        self.read += [name] * (self.begun and (name in READING or masked))
        return operator(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", slow_but(["float32", "bfloat16"], "float32"))
@pytest.mark.parametrize(("of", "name"), CASES)
def test_a_pass(base: Base, of: str, name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = made(base(of), name, dtype=dtype)
    features = features_of(model, TEXTS)
    with torch.inference_mode(), Reading(layers_of(model[0].model)[0]) as reading:
        wanted = model(dict(features))["sentence_embedding"]
    # The authors' zeros need no answer; pieces run in a pass of their own, behind which transformers looks for padding.
    chunked, zeros = "chunk" in name, "authors" in name and PIPELINES[name]["method"] == "reba"
    # Each stage of several questions is a pass of its own, too.
    asked = (2, 3) if chunked else (0,) if zeros else (1, 2) if model[0].rows > 1 else (1,)
    assert len(reading.read) in asked and {*reading.read} <= {"is_nonzero"}, "the host waited inside the pass"
    monkeypatch.setattr(torch.Tensor, "__bool__", lambda flag: True)
    # Before a pass, the host reads which rows begin alike.
    model[0].shares_prefix = False
    model.to("meta")
    moved = {key: each.to("meta") if isinstance(each, Tensor) else each for key, each in features.items()}
    with torch.inference_mode():
        found = model(moved)["sentence_embedding"]
    assert (found.shape, found.dtype, found.device.type) == (wanted.shape, wanted.dtype, "meta")
