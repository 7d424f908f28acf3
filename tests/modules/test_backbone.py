"""The traits of backbones: which are refused, which look back only, and what each is called with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from architectures import _fill
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, LlamaModel

from st_reba.modules.backbone import Backbone, is_trained

Base = Callable[..., str]
SIZES = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 99}


def made(model_type: str, **settings: Any) -> Any:
    sizes = {**SIZES, "hidden_size": 32, **settings}
    model = AutoModel.from_config(AutoConfig.for_model(model_type, pad_token_id=0, **sizes)).eval()
    _fill(model, 0)
    return model


def test_traits(base: Base) -> None:
    llama, gemma = (Backbone(AutoModel.from_pretrained(base(name))) for name in ("llama", "gemma2"))
    assert (llama.name, llama.depth, llama.layer_types, llama.capped) == ("LlamaModel", 2, [], False)
    sliding = ["sliding_attention", "full_attention", "sliding_attention"]
    assert (gemma.name, gemma.depth, gemma.layer_types, gemma.capped) == ("Gemma2Model", 3, sliding, True)
    assert llama.decoder is llama.model and not llama.has_towers
    assert "input_ids" in llama.parameters and llama.attention == llama.model.config._attn_implementation


def test_what_it_is_called_with(base: Base) -> None:
    """A cache is turned off wherever one could be made."""
    ids = torch.ones(1, 2, dtype=torch.long)
    found = Backbone(AutoModel.from_pretrained(base("llama"))).inputs(ids, ids)
    assert set(found) == {"input_ids", "attention_mask", "use_cache"} and found["use_cache"] is False
    assert set(Backbone(made("mpnet")).inputs(ids, ids)) == {"input_ids", "attention_mask"}


@pytest.mark.parametrize(
    ("model", "causal", "back"),
    [
        (lambda: made("llama"), True, True),
        (lambda: made("llama", is_causal=False), False, False),
        (lambda: made("bert"), False, False),
        # These do not say, and are tried: XGLM looks back, XLNet and MPNet ahead.
        (lambda: made("xglm", d_model=32, num_layers=2, attention_heads=4, ffn_dim=48), True, True),
        (lambda: made("xlnet", d_model=32, n_layer=2, n_head=4, d_inner=48), True, False),
        (lambda: made("mpnet"), True, False),
    ],
)
def test_who_looks_back(model: Callable[[], Any], causal: bool, back: bool) -> None:
    backbone = Backbone(model())
    backbone.model.train()
    assert (backbone.is_causal, backbone.looks_back) == (causal, back)
    assert backbone.model.training


class NeedsImages(LlamaModel):
    def forward(self, input_ids: Any, pixel_values: Any, attention_mask: Any = None) -> Any:  # type: ignore[override]
        raise AssertionError


def test_backbones_that_cannot_be_embedded_with(base: Base) -> None:
    config = AutoConfig.from_pretrained(base("llama"))
    with pytest.raises(ValueError, match="NeedsImages needs 'pixel_values' beside a text.*get_decoder"):
        Backbone(NeedsImages(config))
    with pytest.raises(ValueError, match="LlamaForCausalLM hands out no last hidden states.*get_decoder"):
        Backbone(AutoModelForCausalLM.from_config(config))
    whole = made("t5", d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4)
    with pytest.raises(ValueError, match="T5Model is an encoder-decoder.*Use a decoder-only base model"):
        Backbone(whole)
    model = AutoModel.from_config(config)
    model.config.__dict__["num_hidden_layers"] = None
    with pytest.raises(ValueError, match="LlamaModel is no single stack of layers"):
        Backbone(model)


def test_what_has_weights_to_learn() -> None:
    model = nn.Linear(2, 2)
    assert is_trained(model)
    model.weight.requires_grad_(False)
    assert is_trained(model)
    assert not is_trained(model.requires_grad_(False))
    # DataParallel's replicas hold their weights in another way.
    assert is_trained(nn.Module())
