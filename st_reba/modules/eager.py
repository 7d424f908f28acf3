"""Backbones that do not call transformers' attention interface: their eager attention is observed by hooks.

Only repositories of such backbones carry this file, where they capture.
"""

from __future__ import annotations

import logging
import re
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from .backbone import Backbone
from .capture import looks_both_ways
from .stages import current

logger = logging.getLogger(__name__)


def hook_in(model: PreTrainedModel) -> None:
    """Reduce a backbone's eager attention by hooks; one layer's [B, H, T, T] is held at a time."""
    decoder = Backbone(model).decoder
    if decoder.config._attn_implementation == "eager" and any(
        reduce_output in module._forward_hooks.values() for module in decoder.modules()
    ):
        return
    decoder.config._attn_implementation = "eager"
    for module in decoder.modules():
        if re.search("attention", type(module).__name__, re.IGNORECASE):
            module.register_forward_hook(reduce_output)
    logger.warning(
        f"{type(decoder).__name__} does not call transformers' attention interface: its eager attention is captured "
        "layer by layer instead. The vectors are the same; time and memory are those of eager attention."
    )


def reduce_output(module: nn.Module, arguments: tuple[Any, ...], output: Any) -> Any:
    """Forward hook: show an eager attention module's probabilities to the observer and drop them from its output."""
    run = current()
    if run is None or run.observer is None or not isinstance(output, (tuple, list)):
        return output
    batch, length = run.real.shape
    kept: list[Any] = []
    for value in output:
        if isinstance(value, Tensor) and value.ndim == 4 and value.shape == (batch, value.shape[1], length, length):
            run.observer.begin_layer()
            if run.observer.needs_causal:
                ahead = value.detach().amax(dim=1).triu(1).amax(dim=2) * run.real
                run.doubts.append((~(ahead > 1e-6).any(), looks_both_ways(module)))
            run.observer.update(value, 0)
            run.observer.end_layer()
            kept.append(None)
        else:
            kept.append(value)
    return type(output)(*kept) if hasattr(output, "_fields") else type(output)(kept)
