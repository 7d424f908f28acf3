"""Every pipeline on a GPU without numbers: on one device, and what a pass reads it reads once, at its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fake_device import Reading, fake_device
from pipelines import PIPELINES, build, features_of, made
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from st_reba.modules.layers import layers_of
from st_reba.modules.layout import PARTS

Base = Callable[..., str]
TEXTS = ["你好，世界", "Hello, world, how are you today? 1 2 3 4 5 6 7", "x"]
CASES = [("llama", name) for name in PIPELINES]
CASES += [(of, name) for of in ("gemma2", "mistral") for name in ("echo last", "reba mean", "mask0", "reba mask0")]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("of", "name"), CASES)
def test_a_pass(base: Base, of: str, name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = made(base(of), name, dtype=dtype)
    features = features_of(model, TEXTS)
    with torch.inference_mode():
        wanted = model(dict(features))["sentence_embedding"]
        with Reading(layers_of(model[0].model)[0]) as reading:
            model(dict(features))
    # The authors' zeros need no answer; pieces run in a pass of their own.
    passes = 2 if "chunk" in name else 1
    expected = 0 if "authors" in name and PIPELINES[name]["method"] == "reba" else passes
    # And transformers' own attention reads the padding of the pass behind that of the pieces.
    own = len(reading.read) - expected if "chunk" in name else 0
    assert own in (0, 1) and reading.read == ["is_nonzero"] * (expected + own), "the host waited inside the pass"
    monkeypatch.delitem(PARTS, "fused")  # of CPUs
    with fake_device() as device:
        device.take(model)
        found = model(device.features(features))["sentence_embedding"]
    assert device.reads == expected
    assert (found.shape, found.dtype, found.device.type) == (wanted.shape, wanted.dtype, device.name)


READS: list[Callable[[torch.Tensor], Any]] = [
    lambda hidden: float(hidden.sum()),
    lambda hidden: bool((hidden > 0).any()),
    lambda hidden: hidden[hidden > 0],
    lambda hidden: hidden.nonzero(),
]


@pytest.mark.parametrize("read", READS)
def test_what_reads_is_seen(base: Base, read: Callable[[torch.Tensor], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail, with numbers and without."""
    model: Any = build(base("llama"))
    layers_of(model[0].model)[1].register_forward_hook(lambda module, given, output: (read(output), None)[1])
    features = features_of(model, TEXTS)
    with torch.inference_mode(), Reading(layers_of(model[0].model)[0]) as reading:
        model(dict(features))
    assert len(reading.read) > 1
    monkeypatch.delitem(PARTS, "fused")
    with fake_device() as device:
        device.take(model)
        with pytest.raises((DataDependentOutputException, DynamicOutputShapeException)):
            model(device.features(features))
