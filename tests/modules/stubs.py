"""A decoder of one backbone without a pipeline around it, and a GPU without one."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor, FakeTensorMode

from st_reba.modules.backbone import Backbone
from st_reba.modules.stages import Bound, Pass, Place, running


class Decoder:
    """What a pass asks of its decoder."""

    def __init__(self, model: Any) -> None:
        self.model, self.backbone, self.runs = model, Backbone(model), None

    @property
    def depth(self) -> int:
        return self.backbone.depth


class Layers:
    """Layers' kinds, by their index."""

    def __init__(self, masks: Any, *kinds: str) -> None:
        self.masks, self.kinds, self.stack = masks, kinds, type("Stack", (), {"second": ()})

    def kind(self, module: Any) -> str:
        return self.kinds[getattr(module, "layer_idx", 0)]


def new_pass(places: Sequence[Place], *bound: Bound, decoder: Any = None, device: str = "cpu") -> Pass:
    """A pass over texts of these places, padded on the right."""
    real = torch.zeros(len(places), max(place[2] for place in places), dtype=torch.long, device=device)
    for row, place in enumerate(places):
        real[row, : place[2]] = 1
    return Pass(decoder, real, places, bound)


def check(state: Pass) -> None:
    """What a decoder does with a pass's doubts, where there are numbers."""
    for flag, message in state.doubts:
        if not isinstance(flag, FakeTensor) and not flag:
            raise ValueError(message)


def run(model: Any, ids: Tensor, places: Sequence[Place], *bound: Bound) -> tuple[Tensor, dict[str, Any]]:
    """Hidden states, and what the bound stages add, as a decoder's forward pass computes them."""
    state = new_pass(places, *bound, decoder=Decoder(model), device=str(ids.device))
    for each in bound:
        each.begin(state)
    inputs = state.decoder.backbone.inputs(ids, state.real.long())
    eager = model.config._attn_implementation == "eager"
    with running(state):
        hidden = model(**inputs, **({"output_attentions": True} if eager else {})).last_hidden_state
    added: dict[str, Any] = {}
    for each in bound:
        hidden = each.finish(state, hidden)
        added |= each.features(state)
    check(state)
    return hidden, added


@contextmanager
def fake_gpu() -> Iterator[str]:
    """Tensors on this device have shapes, but no numbers; reading one is an error."""
    if not torch.cuda._is_compiled():
        # A torch without CUDA has no guard for its devices; any that does nothing will do.
        library = ctypes.CDLL(str(next(Path(torch.__file__).with_name("lib").glob("*c10.*"))))
        guards = (ctypes.c_void_p * 20).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
        guards[1] = guards[14]
    with FakeTensorMode():
        yield "cuda:0"
