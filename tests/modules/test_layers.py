"""The list of a decoder's layers, and their hooks."""

from __future__ import annotations

from typing import Any

import torch
from marks import Base
from pipelines import build, encoded

from st_reba.modules.layers import layers_of, watch_layers


def test_the_list_of_layers(base: Base) -> None:
    """Another list of the same length is not taken for it."""
    decoder = build(base("llama"), "echo")[0].model
    decoder.embed_tokens.others = torch.nn.ModuleList([torch.nn.Identity() for _ in decoder.layers])
    decoder.embed_tokens.others[0].layer_idx = 0
    assert layers_of(decoder) is decoder.layers


def test_layers_are_watched_once(base: Base) -> None:
    model: Any = build(base("gpt2"), "echo", layer=[1, 2])
    wanted = encoded(model)
    watch_layers(model[0].model)
    assert torch.equal(encoded(model), wanted)
