"""Backbones that do not call the attention interface: hooks show their eager attention, and it is dropped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from stubs import HOOKED, Seen, assert_whole_matrix, new_pass
from torch import nn
from transformers import AutoModel, PreTrainedModel

from st_reba.modules.attention import ATTENTION_NAME, switch_on
from st_reba.modules.eager import hook_in, reduce_output
from st_reba.modules.stages import running

Base = Callable[..., str]


@pytest.mark.parametrize("name", sorted(HOOKED))
def test_whole_matrix(base: Base, name: str) -> None:
    assert assert_whole_matrix(base(name)).config._attn_implementation == "eager"


def test_hooks_are_put_on_once_and_told_of_once(base: Base, caplog: pytest.LogCaptureFixture) -> None:
    bloom: PreTrainedModel = AutoModel.from_pretrained(base("bloom"))
    assert not switch_on(bloom) and bloom.config._attn_implementation != ATTENTION_NAME
    hook_in(bloom)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "BloomModel does not call transformers' attention interface" in caplog.text
    hooks = [len(module._forward_hooks) for module in bloom.modules()]
    hook_in(bloom)
    assert not switch_on(bloom)
    assert [len(module._forward_hooks) for module in bloom.modules()] == hooks


def test_only_attention_is_taken_out_of_an_output(base: Base) -> None:
    """Tensors of another shape stay, the kind of output too; outside a pass nothing changes."""

    class Output(NamedTuple):
        hidden: Any
        attention: Any

    probabilities, states = torch.full((1, 2, 3, 3), 1 / 3).tril(), torch.ones(1, 3, 8)
    seen = Seen()
    seen.length = 3
    state = new_pass([(0, 3, 3)])
    for output in (Output(states, probabilities), (states, probabilities, "cache"), [states, probabilities]):
        state.observer = None
        with running(state):
            assert reduce_output(nn.Module(), (), output) is output
        state.observer = seen
        with running(state):
            found = reduce_output(nn.Module(), (), output)
            assert reduce_output(nn.Module(), (), states) is states
        assert type(found) is type(output) and found[0] is states and list(found[1:]) == [None, *output[2:]]
        assert torch.equal(seen.layer(-1), probabilities)
    assert len(seen.blocks) == 3 and reduce_output(nn.Module(), (), output) is output
