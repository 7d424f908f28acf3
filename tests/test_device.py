"""Every method and stage on a GPU without numbers: on one device, and what a pass reads it reads once, at its end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from fake_device import CASES, FakeDevice, Living, Reading, fake_device, trusted
from pipelines import pipeline
from sentence_transformers import SentenceTransformer
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

import count_costs

from st_reba.modules import kernels, scores
from st_reba.modules.attention import ATTENTION_NAME
from st_reba.modules.decoder import DecoderTransformer
from st_reba.modules.layer_list import layers_of
from st_reba.modules.stages import Bound

TEXTS = ["你好，世界", "Hello, world, how are you today? 1 2 3 4 5 6 7", "x"]
What = Callable[[torch.Tensor], Any]
SHORT = ("echo", "reba mean", "mask0", "reba and mask0")
# Windows, soft caps and grouped heads; and half as many bits.
PASSES = [
    *(("llama", name, "float32") for name in CASES),
    *((base, name, "float32") for base in ("gemma2", "mistral") for name in SHORT),
    *(("llama", name, "bfloat16") for name in ("echo", "reba mean", "chunk mean")),
    ("gemma2", "reba mean", "bfloat16"),
]


def made(base: str, name: str, dtype: str = "float32") -> SentenceTransformer:
    method, stages, fields = CASES[name]
    return pipeline(base, method, stages, normalize=True, dtype=dtype, **fields)


def vectors(model: SentenceTransformer, features: dict[str, Any]) -> torch.Tensor:
    found: torch.Tensor = model(features)["sentence_embedding"]
    return found


@contextmanager
def counted() -> Iterator[list[str]]:
    """A list with one entry for each pass through a decoder."""
    passes: list[str] = []
    forward: Any = DecoderTransformer.forward

    def counting(self: DecoderTransformer, features: Any, **given: Any) -> Any:
        passes.append(self.backbone.name)
        return forward(self, features, **given)

    with patch.object(DecoderTransformer, "forward", counting):
        yield passes


@pytest.mark.parametrize(("name", "dtype", "of"), [(n, d, b) for b, n, d in PASSES])
def test_a_pass(base: Callable[..., str], name: str, dtype: str, of: str) -> None:
    model = made(base(of), name, dtype)
    first: Any = model[0]
    features = first.preprocess(TEXTS)
    flags = "published" not in name
    with torch.inference_mode(), trusted(), counted() as passes, Reading(layers_of(first.backbone)[0]) as reading:
        wanted = vectors(model, features)
    assert len(passes) == (2 if "chunk" in name else 1)
    if first.backbone.attention == ATTENTION_NAME:
        assert reading.read_before == [], "transformers' own attention reads there whether anything is padded"
    assert reading.read == ["is_nonzero"] * flags * len(passes), "the host waited for something inside the pass"
    with fake_device() as device:
        device.take(model)
        found = vectors(model, device.features(features))
    assert device.reads == flags * len(passes)
    assert (found.shape, found.dtype, found.device.type) == (wanted.shape, getattr(torch, dtype), device.name)


def of_length(first: Any, length: int, device: FakeDevice) -> dict[str, Any]:
    """Features of a text that makes a row of about so many positions, on a device."""
    return device.features(first.place([[5] * ((length - 8) // first.repeats)], *first.frames()))


ALIKE = (
    *("classical cls", "echo end mean", "chunk last", "back", "extend", "prompteol", "published last"),
    "chunk and inter",
)


@pytest.mark.parametrize("name", [name for name in CASES if name not in ALIKE])
def test_no_matrix_of_all_heads(base: Callable[..., str], name: str) -> None:
    """At 4,096 positions all that lives at one time is less than one layer's T × T numbers of every head."""
    assert_small(base("llama"), name)


@pytest.mark.parametrize(("of", "name"), [("gemma2", "reba mean"), ("mistral", "reba mean"), ("mistral", "mask0")])
def test_no_matrix_of_all_heads_of_others(
    base: Callable[..., str], of: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A few blocks would hold all that so few heads have.
    monkeypatch.setattr(scores, "GPU_BLOCK_NUMBERS", 1 << 23)
    assert_small(base(of), name)


def assert_small(base: str, name: str, length: int = 4096) -> None:
    model = made(base, name)
    first: Any = model[0]
    with fake_device() as device:
        device.take(model)
        features = of_length(first, length, device)
        positions = features["input_ids"].shape[1]
        assert positions > 0.9 * length
        with Living(model, features) as living:
            vectors(model, features)
    heads = first.backbone.text_config.num_attention_heads
    assert 0 < living.largest <= living.peak < 4 * heads * positions**2, f"{living.peak / 2**20:.0f} MiB"


class Planted(Bound):
    """Does something behind the second layer."""

    def __init__(self, what: What) -> None:
        self.what = what

    def after_layer(self, run: Any, call: Any) -> torch.Tensor:
        if call.index == 1:
            self.what(call.hidden)
        return call.hidden


def planted(base: str) -> tuple[SentenceTransformer, dict[str, Any], Planted]:
    """A model that does something inside a pass, features, and what does it."""
    model = made(base, "reba last")
    first: Any = model[0]
    layers_of(first.backbone)
    does = Planted(lambda hidden: None)
    first.watchers.append(does)
    return model, first.preprocess(TEXTS), does


READS: list[What] = [
    lambda hidden: float(hidden.sum()),
    lambda hidden: bool((hidden > 0).any()),
    lambda hidden: hidden[hidden > 0],
    lambda hidden: hidden.nonzero(),
    lambda hidden: torch.equal(hidden, hidden + 1),
]


def test_what_reads_is_seen(base: Callable[..., str]) -> None:
    """The tests above see what the host waits for also on a device with numbers."""
    model, features, does = planted(base("llama"))
    first: Any = model[0]
    for does.what in READS:
        with torch.inference_mode(), trusted(), Reading(layers_of(first.backbone)[0]) as reading:
            vectors(model, features)
        assert len(reading.read) > 1


def test_what_reads_is_an_error_without_numbers(base: Callable[..., str]) -> None:
    model, features, does = planted(base("llama"))
    reads = (DataDependentOutputException, DynamicOutputShapeException)
    with fake_device() as device:
        device.take(model)
        features = device.features(features)
        vectors(model, features)
        for does.what in [*READS, lambda hidden: hidden.sum().tolist()]:
            with pytest.raises(reads):
                vectors(model, features)
        for does.what in [lambda hidden: hidden.cpu(), lambda hidden: torch.ones(3).to(hidden.device)]:
            with pytest.raises(AssertionError, match="copied from"):
                vectors(model, features)
        does.what = lambda hidden: hidden + torch.ones(hidden.shape[-1])
        with pytest.raises(RuntimeError, match="device"):
            vectors(model, features)


def test_what_holds_a_matrix_is_found(base: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without kernels, and in blocks as long as the text, all heads' numbers would live at once."""
    monkeypatch.setitem(kernels.KERNELS, "cuda", ())
    monkeypatch.setattr(scores, "GPU_BLOCK_NUMBERS", 1 << 40)
    with pytest.raises(AssertionError, match="MiB"):
        assert_small(base("llama"), "reba last")


def test_products_by_hand() -> None:
    """scripts/count_costs.py: of Llama-2-7B at 512 positions, by its configuration."""
    plain, mean, both = (
        count_costs.count("Llama-2-7B", method, 512, 2)
        for method in (count_costs.PLAIN, "ReBA-2 mean", "ReBA-2 mean with MASK0-BIDIR")
    )
    weights = 4 * 4096 * 4096 + 3 * 4096 * 11008
    products = 32 * (2 * 512 * weights + 2 * 2 * 512 * 512 * 4096)
    angles = 2 * 512 * 64  # a product too in older transformers
    assert plain.flops in (products, products + angles)
    # A[t, r] of 256 anchors and all positions, in one block; with a plan A[r, t] too; then the weighted sum.
    columns, summed = 32 * 2 * 512 * 256 * 4096, 2 * 512 * 4096
    assert mean.flops - plain.flops == columns + summed
    assert both.flops - plain.flops == 2 * columns + summed
