"""Every pipeline on the meta device: no two devices are mixed, and the host waits only once, at the end of a pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from marks import Base, slow_but
from pipelines import PIPELINES, build_pipeline, features_of
from sentence_transformers.util import batch_to_device
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from st_reba.modules.layers import layers_of

TEXTS = ["你好，世界", "Hello, world, how are you today? 1 2 3 4 5 6 7", "x"]
CASES = [("llama", name) for name in PIPELINES]
for architecture in ("gemma2", "mistral"):
    CASES += [(architecture, name) for name in ("echo last", "reba mean", "mask0", "reba mask0")]
# What the host would wait for on a GPU, by the operators' names.
READING_OPERATORS = {
    "_local_scalar_dense",
    "is_nonzero",
    "item",
    "nonzero",
    "equal",
    "masked_select",
    "_unique2",
}
INDEXING_OPERATORS = {"index", "index_put_", "_index_put_impl_"}


class ReadCounter(TorchDispatchMode):
    """Records the operators that the host would wait for, from the first layer on.

    Before it, transformers looks for padding.
    """

    def __init__(self, first_layer: nn.Module) -> None:
        super().__init__()
        self.has_begun = False
        self.operators: list[str] = []
        first_layer.register_forward_pre_hook(self.begin)

    def begin(self, module: nn.Module, inputs: object) -> None:
        self.has_begun = True

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = operator.overloadpacket.__name__
        if self.has_begun and (name in READING_OPERATORS or has_mask_index(name, args)):
            self.operators.append(name)
        return operator(*args, **(kwargs or {}))


def has_mask_index(name: str, arguments: Any) -> bool:
    """Whether an operator indexes by a mask of true and false, which is counted first."""
    if name not in INDEXING_OPERATORS:
        return False
    indices = [index for index in arguments[1] if isinstance(index, Tensor)]
    return any(index.dtype in (torch.bool, torch.uint8) for index in indices)


def expected_read_counts(name: str, row_count: int) -> tuple[int, ...]:
    """How often the host may read something in a pass."""
    if "chunk" in name:
        # Pieces run in a pass of their own, after which transformers looks for padding.
        return (2, 3)
    if "authors" in name and PIPELINES[name]["method"] == "reba":
        return (0,)  # the authors' zeros need no answer
    if row_count > 1:
        return (1, 2)  # each stage of several questions is a pass of its own
    return (1,)


@pytest.mark.parametrize("dtype", slow_but(["float32", "bfloat16"], "float32"))
@pytest.mark.parametrize(("architecture", "name"), CASES)
def test_a_pass_reads_once_and_stays_on_its_device(
    base: Base,
    architecture: str,
    name: str,
    dtype: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model: Any = build_pipeline(base(architecture), name, dtype=dtype)
    features = features_of(model, TEXTS)
    first_layer = layers_of(model[0].model)[0]
    with torch.inference_mode(), ReadCounter(first_layer) as counter:
        vectors = model(dict(features))["sentence_embedding"]
    assert len(counter.operators) in expected_read_counts(name, model[0].template_count), (
        "the host waited inside the pass"
    )
    assert set(counter.operators) <= {"is_nonzero"}
    monkeypatch.setattr(torch.Tensor, "__bool__", lambda flag: True)
    # Before a pass, the host reads which rows begin alike.
    model[0].shares_prefix = False
    model.to("meta")
    moved_features = batch_to_device(features, torch.device("meta"))
    with torch.inference_mode():
        moved_vectors = model(moved_features)["sentence_embedding"]
    assert moved_vectors.shape == vectors.shape
    assert moved_vectors.dtype == vectors.dtype
    assert moved_vectors.device.type == "meta"
