"""A GPU without numbers: tensors have shapes, number types and a device there, and nothing is computed.

A pass runs as it would on a GPU, by the same kernels. Whatever reads a number is an error, and so is whatever mixes
devices, or copies what the host would wait for. Nothing takes memory, so that a model of any size fits.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import masking_utils

from st_reba import Ensemble, LayerPlan, NoSink, Prepend, ReadLayers
from st_reba.modules import decoder, kernels
from st_reba.modules.scores import additive

Case = tuple[str, list[Any], dict[str, Any]]
# Every method and stage, for bases of two layers or more: method, stages and fields.
CASES: dict[str, Case] = {
    "classical": ("classical", [], {}),
    "classical cls": ("classical", [], {"pooling": "cls"}),
    "prompteol": ("prompteol", [], {}),
    "echo": ("echo", [], {}),
    "echo end mean": ("echo", [], {"span": "last_copy_and_end", "pooling": "mean"}),
    "reba last": ("reba", [], {}),
    "reba mean": ("reba", [], {"pooling": "mean", "normalize_weights": True}),
    "published last": ("reba", [], {"variant": "published"}),
    "published mean": ("reba", [], {"variant": "published", "pooling": "mean"}),
    "chunk last": ("reba", [], {"chunk": 4}),
    "chunk mean": ("reba", [], {"chunk": 4, "pooling": "mean"}),
    "mask0": ("nosink", [NoSink("mask0-bidir", k=2)], {}),
    "back": ("nosink", [NoSink("inplace-back", k=1)], {}),
    "inter": ("nosink", [NoSink("inter-bidir", k=1)], {}),
    "extra": ("nosink", [NoSink("extra-bidir", k=1)], {}),
    "extend": ("nosink", [NoSink("extend-bidir", k=1)], {}),
    "rerouted": ("echo", [LayerPlan(kind="rerouted", k=2)], {}),
    "reba and mask0": ("reba", [NoSink("mask0-bidir", k=2)], {"pooling": "mean"}),
    "chunk and inter": ("reba", [NoSink("inter-bidir", k=1)], {"chunk": 4}),
    "read": ("echo", [ReadLayers([0, 1], join="concat")], {}),
    "prepend": ("classical", [Prepend(1)], {}),
    "ensemble": ("prompteol", [Ensemble("contrastive")], {}),
}
# What the host waits for, by the operators' names.
READING = frozenset({"_local_scalar_dense", "is_nonzero", "item", "nonzero", "equal", "masked_select", "_unique2"})


class FakeDevice:
    """A device without numbers, inside of :func:`fake_device`.

    Args:
        name: Its name.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        # How often a pass read whether its vectors are finite.
        self.reads = 0

    def empty(self, like: Tensor) -> Tensor:
        """A tensor of the same shape and number type on this device."""
        return torch.empty(like.shape, dtype=like.dtype, device=self.name)

    def take(self, model: nn.Module) -> None:
        """Move a module's weights here; they are lost, and learn nothing."""
        for module in model.modules():
            for name, weight in module._parameters.items():
                if weight is not None:
                    module._parameters[name] = nn.Parameter(self.empty(weight), requires_grad=False)
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    module._buffers[name] = self.empty(buffer)

    def features(self, features: dict[str, Any]) -> dict[str, Any]:
        """Features with their tensors here."""
        return {name: self.empty(value) if isinstance(value, Tensor) else value for name, value in features.items()}

    def _finite(self, flag: Tensor) -> bool:
        assert flag.numel() == 1 and flag.device == torch.empty(0, device=self.name).device
        self.reads += 1
        return True


@contextmanager
def fake_device() -> Iterator[FakeDevice]:
    """Inside the ``with`` block tensors live on a device without numbers; see :class:`FakeDevice`."""
    device = FakeDevice(_name())
    replaced = [
        patch.object(decoder, "on_host", device._finite),
        patch.object(nn.functional, "scaled_dot_product_attention", _attention),
        patch.dict(kernels.KERNELS, {device.name: kernels.KERNELS["cuda"]}),
    ]
    if hasattr(masking_utils, "fast_all"):
        # Without numbers it would make masks that nobody needs. No pass shows transformers' own attention any padding.
        replaced.append(patch.object(masking_utils, "fast_all", lambda mask: True))
        replaced.append(patch.object(masking_utils, "is_tracing", lambda tensor=None: False))
    for each in replaced:
        each.start()
    try:
        # What the host makes, it makes of real numbers; moved to the device they are none.
        with FakeTensorMode(allow_non_fake_inputs=True), torch.inference_mode(False), torch.no_grad(), _Copies():
            yield device
    finally:
        for each in reversed(replaced):
            each.stop()


@functools.cache
def _name() -> str:
    """``cuda`` where torch was built for it; else a device of our own, which says that it is not available."""
    try:
        with FakeTensorMode():
            torch.empty(2, device="cuda")[:, None]
    except (AssertionError, RuntimeError):
        module, hook = _Module(), _Hook()
        backend_registration._setup_privateuseone_for_python_backend("fakegpu", backend_module=module, hook=hook)
        return "fakegpu"
    return "cuda"


class _Copies(TorchDispatchMode):
    """Refuses copies between devices for which the host would wait."""

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operator(*args, **(kwargs or {}))
        name = operator.overloadpacket.__name__
        if name in ("_to_copy", "copy_"):
            source, target = args[name == "copy_"].device.type, result.device.type
            unwaited = (kwargs or {}).get("non_blocking") or args[2:3] == (True,)
            assert source == target or (source == "cpu" and unwaited), f"copied from {source} to {target}"
        return result


class _Module(backend_registration._DummyBackendModule):
    def is_available(self) -> bool:
        return False

    def device_count(self) -> int:
        return 0


class _Hook(backend_registration._DummyPrivateUse1Hook):
    def is_available(self) -> bool:
        return False


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """As torch's SDPA chooses on a GPU; of a device of our own it knows no kernel."""
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    if kernels._suits_flash(query, value, attn_mask):
        return kernels.flash_on_gpu(query, key, value, None, is_causal, factor)[0]
    mask = attn_mask if attn_mask is None else additive(attn_mask, query.dtype)
    return kernels.efficient_on_gpu(query, key, value, mask, is_causal, factor)[0]


class Living(TorchDispatchMode):
    """Adds up the bytes of all tensors that were made inside the ``with`` block and still live.

    Args:
        *before: Models and tensors that were there before, which are not counted.
    """

    def __init__(self, *before: Any) -> None:
        super().__init__()
        self.now = self.peak = self.largest = 0
        # Shape and number type of the largest of them.
        self.shown: tuple[tuple[int, ...], torch.dtype] = ((), torch.float32)
        self._seen: weakref.WeakKeyDictionary[Any, None] = weakref.WeakKeyDictionary()
        for each in before:
            for tensor in [*each.parameters(), *each.buffers()] if isinstance(each, nn.Module) else tree_leaves(each):
                if isinstance(tensor, Tensor):
                    self._seen[tensor.untyped_storage()] = None

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operator(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and (storage := tensor.untyped_storage()) not in self._seen:
                size = storage.nbytes()
                self._seen[storage] = None
                weakref.finalize(storage, self._gone, size)
                self.now += size
                self.peak = max(self.peak, self.now)
                if size > self.largest:
                    self.largest, self.shown = size, (tuple(tensor.shape), tensor.dtype)
        return result

    def _gone(self, size: int) -> None:
        self.now -= size


class Reading(TorchDispatchMode):
    """Counts on a real device what the host waits for, from a model's first layer on.

    Args:
        layer: The first layer.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.begun = False
        # The operators, in order; those before the first layer by themselves.
        self.read: list[str] = []
        self.read_before: list[str] = []
        self._hook = layer.register_forward_pre_hook(lambda module, given: setattr(self, "begun", True))

    def __exit__(self, *error: Any) -> None:
        self._hook.remove()
        super().__exit__(*error)

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = operator.overloadpacket.__name__
        # A mask of true and false as an index is counted first.
        indices = args[1] if name in ("index", "index_put_", "_index_put_impl_") else ()
        masked = any(isinstance(each, Tensor) and each.dtype in (torch.bool, torch.uint8) for each in indices)
        if name in READING or masked:
            (self.read if self.begun else self.read_before).append(name)
        return operator(*args, **(kwargs or {}))


@contextmanager
def trusted() -> Iterator[None]:
    """Each kernel is tried once a process, on a few numbers that the host reads: not inside the ``with`` block."""
    with patch.dict(kernels._trusted), patch.object(kernels, "_agrees", lambda *given: True):
        yield
