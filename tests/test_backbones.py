"""Backbones: what a configuration says of quantization and positions, and what is cut with the layers."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoModel

from st_reba.backbones import check_backbone, cut_layers, max_exact_positions


@pytest.mark.parametrize(
    ("settings", "is_refused"),
    [
        ({"load_in_8bit": True, "llm_int8_threshold": 6.0}, True),
        ({"_load_in_8bit": True, "llm_int8_threshold": 6.0}, True),
        ({"load_in_8bit": True, "llm_int8_threshold": 0.0}, False),
        ({"load_in_4bit": True, "llm_int8_threshold": 6.0}, False),
    ],
    ids=str,
)
def test_a_threshold_is_refused_where_8_bits_follow_it(
    llama: Path, settings: dict[str, Any], is_refused: bool
) -> None:
    """Configurations of 4 bits hold one too, which nothing reads."""
    model: Any = AutoModel.from_pretrained(llama)
    model.hf_quantizer = object()
    model.config.quantization_config = {"quant_method": "bitsandbytes", **settings}
    message = "llm_int8_threshold=6.0 makes vectors depend on their batch"
    with pytest.raises(ValueError, match=message) if is_refused else nullcontext():
        check_backbone(model, "llama")


LONG_ROPE = {"rope_type": "longrope", "original_max_position_embeddings": 40}


@pytest.mark.parametrize(
    ("rope_parameters", "limit"),
    [
        (LONG_ROPE, 40),
        ({"sliding_attention": {"rope_type": "default"}, "full_attention": LONG_ROPE}, 40),
        ({"rope_type": "longrope"}, 50),
        ({"rope_type": "default"}, None),
        (None, None),
    ],
    ids=["of the model", "of some layers", "beside it", "another rope", "no rope"],
)
def test_positions_end_where_rotary_factors_change(
    rope_parameters: dict[str, Any] | None, limit: int | None
) -> None:
    text_config = SimpleNamespace(
        rope_parameters=rope_parameters, original_max_position_embeddings=50
    )
    config = SimpleNamespace(get_text_config=lambda: text_config)
    model: Any = SimpleNamespace(config=config, named_modules=dict)
    assert max_exact_positions(model) == limit


def test_settings_of_layers_are_cut_with_them_and_no_others(llama: Path) -> None:
    model: Any = AutoModel.from_pretrained(llama)
    model.config.layer_types = ["full_attention"] * 3
    model.config.eos_token_id = [1, 2, 3]
    cut_layers(model, 2)
    assert model.config.num_hidden_layers == len(model.layers) == 2
    assert model.config.layer_types == ["full_attention"] * 2
    assert model.config.eos_token_id == [1, 2, 3]
