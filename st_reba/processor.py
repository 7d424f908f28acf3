"""Whether the processor is fast in bfloat16, and a hint when a long run would gain from it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)

# A run of this many positions or more is long: minutes, even with a small base.
LONG_RUN = 2_000_000

_has_hinted = False


def multiplies_bfloat16() -> bool:
    """Whether the processor multiplies bfloat16 natively, so about twice as fast as float32.

    False also where torch is too old to say (before ``torch.cpu.get_capabilities``).

    Example:
        >>> multiplies_bfloat16() in (True, False)
        True
    """
    import torch

    if not hasattr(torch.cpu, "get_capabilities"):
        return False
    capabilities: Mapping[str, object] = torch.cpu.get_capabilities()
    # Capabilities of x86 processors; others were not measured.
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def hint_at_bfloat16(model: SentenceTransformer, position_count: int) -> None:
    """Say, once per process, that a long run of this many positions would be faster in bfloat16."""
    global _has_hinted
    if _has_hinted or position_count < LONG_RUN or not gains_from_bfloat16(model):
        return
    _has_hinted = True
    logger.warning(
        "About %d million positions are to be encoded in float32. This processor is about twice as fast in "
        "bfloat16, whose vectors differ a little: load the model with dtype='bfloat16' (--dtype bfloat16).",
        round(position_count / 1e6),
    )


def gains_from_bfloat16(model: SentenceTransformer) -> bool:
    """Whether a transformer computes in float32, on a processor that multiplies faster in bfloat16."""
    import torch
    from sentence_transformers.sentence_transformer.modules import Transformer

    if not isinstance(model[0], Transformer) or model.device.type != "cpu":
        return False
    # Some numbers of quantized weights have another type.
    parameter_types = {parameter.dtype for parameter in model.parameters()}
    if parameter_types != {torch.float32}:
        return False
    return multiplies_bfloat16()
