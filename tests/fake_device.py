"""A GPU without numbers: tensors have shapes, number types and a device there, and nothing is computed.

Whatever reads a number is an error, and so is whatever mixes devices, or copies what the host would wait for.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import masking_utils

# What the host waits for, by the operators' names.
READING = frozenset({"_local_scalar_dense", "is_nonzero", "item", "nonzero", "equal", "masked_select", "_unique2"})


class FakeDevice:
    """A device without numbers, inside of :func:`fake_device`."""

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
        """The tensors of features here."""
        return {name: self.empty(each) if isinstance(each, Tensor) else each for name, each in features.items()}

    def finite(self, flag: Tensor) -> bool:
        """In place of the one place where a pass waits; elsewhere an error."""
        if sys._getframe(2).f_code.co_name != "_run":
            return bool(flag.item())
        assert flag.device == torch.empty(0, device=self.name).device
        self.reads += 1
        return True


@contextmanager
def fake_device() -> Iterator[FakeDevice]:
    """Inside the ``with`` block tensors live on a device without numbers."""
    device = FakeDevice(_name())
    replaced: list[Any] = [
        patch.object(FakeTensor, "__bool__", lambda flag: device.finite(flag), create=True),
        patch.object(nn.functional, "scaled_dot_product_attention", _attention),
    ]
    if hasattr(masking_utils, "fast_all"):
        # transformers' own reads whether anything is padded, before the first layer.
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
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *_: Any, **__: Any
) -> Tensor:
    """What SDPA gives, by its shape; of a device of our own torch knows no kernel."""
    devices = {each.device for each in (query, key, value, attn_mask) if each is not None}
    assert len(devices) == 1, devices
    return torch.empty(*query.shape[:3], value.shape[3], dtype=query.dtype, device=query.device)


class Reading(TorchDispatchMode):
    """Counts on a real device what the host waits for, from a model's first layer on.

    Before it, transformers' own attention reads whether anything is padded.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.begun = False
        self.read: list[str] = []
        self._hook = layer.register_forward_pre_hook(lambda module, given: setattr(self, "begun", True))

    def __exit__(self, *error: Any) -> None:
        self._hook.remove()
        super().__exit__(*error)

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = operator.overloadpacket.__name__
        # A mask of true and false as an index is counted first.
        indices = args[1] if name in ("index", "index_put_", "_index_put_impl_") else ()
        masked = any(isinstance(each, Tensor) and each.dtype in (torch.bool, torch.uint8) for each in indices)
        if self.begun and (name in READING or masked):
            self.read.append(name)
        return operator(*args, **(kwargs or {}))
