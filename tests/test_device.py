"""Every pipeline on a device without numbers: no two devices meet; and what a pass reads it reads once, at its end."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from marks import Base, slow_but
from pipelines import PIPELINES, build_pipeline, features_of
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from st_reba.modules.layers import layers_of

TEXTS = ["你好，世界", "Hello, world, how are you today? 1 2 3 4 5 6 7", "x"]
CASES = [("llama", pipeline) for pipeline in PIPELINES]
for _base_name in ("gemma2", "mistral"):
    for _pipeline in ("echo last", "reba mean", "mask0", "reba mask0"):
        CASES.append((_base_name, _pipeline))
# What the host would wait for on a GPU, by the operators' names.
READING_OPERATORS = frozenset(
    {
        "_local_scalar_dense",
        "is_nonzero",
        "item",
        "nonzero",
        "equal",
        "masked_select",
        "_unique2",
    }
)
INDEXING_OPERATORS = ("index", "index_put_", "_index_put_impl_")


class HostReads(TorchDispatchMode):
    """Keeps what the host would wait for from a model's first layer on: before, transformers looks for padding."""

    def __init__(self, first_layer: nn.Module) -> None:
        super().__init__()
        self.has_started = False
        self.operator_names: list[str] = []
        first_layer.register_forward_pre_hook(self._start)

    def _start(self, module: nn.Module, inputs: Any) -> None:
        self.has_started = True

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = operator.overloadpacket.__name__
        if self.has_started and (name in READING_OPERATORS or has_mask_as_index(name, args)):
            self.operator_names.append(name)
        return operator(*args, **(kwargs or {}))


def has_mask_as_index(operator_name: str, arguments: Any) -> bool:
    """A mask of true and false as an index is counted first."""
    if operator_name not in INDEXING_OPERATORS:
        return False
    index_types = {index.dtype for index in arguments[1] if isinstance(index, Tensor)}
    return not index_types.isdisjoint({torch.bool, torch.uint8})


def allowed_reads(pipeline: str, rows_per_text: int) -> tuple[int, ...]:
    if "chunk" in pipeline:
        # Pieces run in a pass of their own, behind which transformers looks for padding.
        return (2, 3)
    if "authors" in pipeline and PIPELINES[pipeline]["method"] == "reba":
        # The authors' zeros need no answer.
        return (0,)
    if rows_per_text > 1:
        # Each stage of several questions is a pass of its own, too.
        return (1, 2)
    return (1,)


@pytest.mark.parametrize("dtype", slow_but(["float32", "bfloat16"], "float32"))
@pytest.mark.parametrize(("base_name", "pipeline"), CASES)
def test_a_pass_reads_once_and_stays_on_its_device(
    base: Base,
    base_name: str,
    pipeline: str,
    dtype: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model: Any = build_pipeline(base(base_name), pipeline, dtype=dtype)
    features = features_of(model, TEXTS)
    first_layer = layers_of(model[0].model)[0]
    with torch.inference_mode(), HostReads(first_layer) as host_reads:
        expected = model(dict(features))["sentence_embedding"]
    assert len(host_reads.operator_names) in allowed_reads(pipeline, model[0].rows)
    assert set(host_reads.operator_names) <= {"is_nonzero"}, "the host waited inside the pass"
    monkeypatch.setattr(torch.Tensor, "__bool__", lambda flag: True)
    # Before a pass, the host reads which rows begin alike.
    model[0].shares_prefix = False
    model.to("meta")
    for name, feature in features.items():
        if isinstance(feature, Tensor):
            features[name] = feature.to("meta")
    with torch.inference_mode():
        vectors = model(features)["sentence_embedding"]
    assert vectors.device.type == "meta"
    assert (vectors.shape, vectors.dtype) == (expected.shape, expected.dtype)
