"""Kernels of torch that tell, beside attention's output, the logarithm of every row's sum.

They are those that SDPA itself runs, which drops that logarithm. With it any single probability is known, so that
backward attention needs no second softmax. They are no public names of torch: each is tried on a few random numbers
before it is used, and where it is missing or does not agree, attention runs in blocks, slower and equal.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .blocked import blocked_attention
from .scores import Scores

logger = logging.getLogger(__name__)

# query, key, value, additive mask, causal, scaling → output [B, H, T, D], logarithms of the rows' sums [B, H, T].
Kernel = Callable[[Tensor, Tensor, Tensor, "Tensor | None", bool, "float | None"], tuple[Tensor, Tensor]]
_HALVES = (torch.bfloat16, torch.float16)
# Of each device, number type and shape of heads: whether its kernel may be used.
_trusted: dict[tuple[object, ...], bool] = {}


def kernel_for(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Kernel | None:
    """The kernel for a layer's attention.

    Args:
        query: [B, H, T, D].
        key: [B, H', S, D].
        value: [B, H', S, D'].
        mask: The layer's mask, if any.

    Returns:
        A kernel, tried on this device; None: there is none.
    """
    if query.dtype != key.dtype or query.dtype != value.dtype:
        return None
    kernel = KERNELS.get(query.device.type)
    if kernel is None or (kernel is flash_on_gpu and not _suits_gpu(query, mask)):
        return None
    case = (kernel, query.device, query.dtype, query.shape[1], key.shape[1], query.shape[3], mask is None)
    if case not in _trusted:
        _trusted[case] = _agrees(kernel, query, key, mask)
    return kernel if _trusted[case] else None


def flash_on_cpu(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scaling: float | None
) -> tuple[Tensor, Tensor]:
    """Flash attention on a CPU."""
    operator: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    output, totals = operator(query, key, value, 0.0, causal, attn_mask=mask, scale=scaling)
    return output, totals


def flash_on_gpu(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scaling: float | None
) -> tuple[Tensor, Tensor]:
    """Flash attention on a GPU: 16-bit numbers, no mask."""
    operator: Any = torch.ops.aten._scaled_dot_product_flash_attention
    output, totals, *_ = operator(query, key, value, 0.0, causal, False, scale=scaling)
    return output, totals


KERNELS: dict[str, Kernel] = {"cpu": flash_on_cpu, "cuda": flash_on_gpu}


def _suits_gpu(query: Tensor, mask: Tensor | None) -> bool:
    width = query.shape[-1]
    return mask is None and query.dtype in _HALVES and width % 8 == 0 and width <= 256


@torch.compiler.disable  # type: ignore[untyped-decorator]
@torch.no_grad()
def _agrees(kernel: Kernel, query: Tensor, key: Tensor, mask: Tensor | None) -> bool:
    """Whether a kernel computes what blocks compute, on a few numbers of the kind that it is to be used for."""
    generator = torch.Generator().manual_seed(0)
    length, width = 20, query.shape[-1]

    def sample(heads: int) -> Tensor:
        return torch.randn(2, heads, length, width, generator=generator).to(query)

    few, keys, values = sample(query.shape[1]), sample(key.shape[1]), sample(key.shape[1])
    hidden = None
    if mask is not None:
        visible = torch.ones(length, length, dtype=torch.bool, device=query.device).tril().triu(-7)
        hidden = torch.zeros(1, 1, length, length, dtype=query.dtype, device=query.device)
        hidden.masked_fill_(~visible, torch.finfo(query.dtype).min)
    tolerance = 1e-4 if torch.finfo(query.dtype).bits >= 32 else 5e-2
    try:
        output, totals = kernel(few, keys, values, hidden, hidden is None, 0.1)
        exact, sums = blocked_attention(Scores(few, keys, hidden, hidden is None, 0.1), values)
        torch.testing.assert_close(output.transpose(1, 2), exact, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(totals.to(sums), sums, rtol=tolerance, atol=tolerance)
    except (AttributeError, AssertionError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        logger.warning(
            f"torch's fused attention on {query.device} ({query.dtype}) is not used, as it does not tell "
            f"what is needed of it ({reason}). Attention runs in blocks: slower, the vectors are the same."
        )
        return False
    return True
