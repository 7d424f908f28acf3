"""A decoder of one backbone without a pipeline around it, and a GPU without one."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from oracle import TEXTS, folder, loaded
from reference import symmetrized_max
from torch import Tensor, nn
from torch._subclasses import FakeTensor, FakeTensorMode
from transformers import AutoModel

from st_reba.modules.backbone import Backbone
from st_reba.modules.capture import AttentionObserver, Capture
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


# In these, transformers' attention interface is not called; in the last two it is from 5.24 on.
HOOKED = {"bloom", "falcon", "falcon_alibi", "gpt_neo", "mpt"}
EITHER = {"codegen", "gptj"}
EVERYTHING = Capture("copy", both=True)


class Seen(AttentionObserver):
    """Keeps all of it."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks: list[list[Tensor]] = []

    def begin_layer(self) -> None:
        super().begin_layer()
        self.blocks.append([])

    def update(self, probabilities: Tensor, first_query: int) -> None:
        assert first_query == sum(block.shape[2] for block in self.blocks[-1])
        self.blocks[-1].append(nn.functional.pad(probabilities, (0, self.length - probabilities.shape[3])))

    def begin(self, run: Any) -> None:
        super().begin(run)
        self.length = run.length

    def layer(self, index: int) -> Tensor:
        return torch.cat(self.blocks[index], dim=2)


def batch(sequences: list[list[int]]) -> tuple[Tensor, list[tuple[int, int, int]]]:
    ids = torch.zeros(len(sequences), max(map(len, sequences)), dtype=torch.long)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = torch.tensor(sequence)
    return ids, [(0, len(each), len(each)) for each in sequences]


@torch.no_grad()
def assert_whole_matrix(base: str) -> Any:
    """All of A^new, in both triangles, for a padded batch, against output_attentions=True on each text alone."""
    eager, tokenizer = loaded(base)
    sequences = [tokenizer(text)["input_ids"] for text in TEXTS]
    ids, places = batch(sequences)
    model = AutoModel.from_pretrained(folder(base), dtype=torch.float32).eval()
    _, added = run(model, ids, places, EVERYTHING)
    assert added["captured"] == EVERYTHING
    seen = Seen()
    run(model, ids, places, seen)
    for row, sequence in enumerate(sequences):
        length = len(sequence)
        single = torch.tensor([sequence])
        wanted = eager(single, attention_mask=torch.ones_like(single), output_attentions=True).attentions
        fused = symmetrized_max(torch.stack([layer[0] for layer in wanted]).double())
        got = added["backward_attention"][row]
        torch.testing.assert_close(got[:length, :length].double(), fused, atol=1e-5, rtol=0)
        assert not got[length:].any()
        for index, layer in enumerate(wanted):
            torch.testing.assert_close(seen.layer(index)[row, :, :length, :length], layer[0], atol=1e-5, rtol=0)
    return model
