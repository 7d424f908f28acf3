"""Backbones: what a configuration says of the quantization of their weights."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModel

from st_reba.backbones import check_backbone


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
