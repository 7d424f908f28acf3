"""Kernels of torch that tell, beside attention's output, the logarithm of every row's sum.

They are those that SDPA itself runs, which drops that logarithm. With it any single probability is known. They are no
public names of torch: each is tried on a few random numbers first, and where none agrees, attention runs in blocks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor

from .scores import Scores, additive, blocked_attention

logger = logging.getLogger(__name__)

# query, key, value, additive mask, causal, scaling → output [B, H, T, D'], logarithms of the rows' sums [B, H, T].
Kernel = Callable[[Tensor, Tensor, Tensor, "Tensor | None", bool, float], tuple[Tensor, Tensor]]
_HALVES = (torch.bfloat16, torch.float16)
# Widths and rows that GPUs' kernels take are multiples of these.
_WIDTH, _ROW = 8, 16
# Of each kernel, device, number type and shape of heads: whether it may be used.
_trusted: dict[tuple[object, ...], bool] = {}


def attention_with_totals(
    scores: Scores, value: Tensor, sinks: Tensor | None = None, dropout: float = 0.0
) -> tuple[Tensor, Tensor] | None:
    """As :func:`blocked_attention`, by a fused kernel; masks are additive, of the queries' type. None: none can."""
    query, key, mask = scores.query, scores.key, scores.mask
    if dropout or scores.softcap is not None or scores.bias is not None:
        return None
    if sinks is not None and torch.is_grad_enabled() and any(each.requires_grad for each in (query, key, sinks)):
        # The kernel's gradient knows nothing of the sums it tells, by which a sink's share is taken.
        return None
    kernel = kernel_for(query, key, value, mask)
    if kernel is None:
        return None
    output, totals = kernel(query, key, value, mask, scores.causal and mask is None, scores.factor)
    output = output.transpose(1, 2)
    if sinks is not None:
        everything = torch.logaddexp(totals, sinks.to(totals.dtype)[None, :, None])
        output = output * torch.exp(totals - everything).transpose(1, 2)[..., None].to(output.dtype)
        totals = everything
    return output, totals.detach()


def kernel_for(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Kernel | None:
    """The kernel for a layer's attention, tried on its device. None: there is none."""
    if query.dtype != key.dtype or query.dtype != value.dtype:
        return None
    for kernel in KERNELS.get(query.device.type, ()):
        if kernel is flash_on_gpu and not _suits_flash(query, value, mask):
            continue
        if kernel is efficient_on_gpu and query.dtype not in (*_HALVES, torch.float32):
            continue
        if isinstance(query, FakeTensor):
            # It has no numbers to try with.
            return kernel
        shape = (query.shape[1], key.shape[1], query.shape[3], value.shape[3])
        case = (kernel, query.device, query.dtype, *shape, mask is None)
        if case not in _trusted:
            _trusted[case] = _agrees(kernel, query, key, value, mask)
        if _trusted[case]:
            return kernel
    return None


def flash_on_cpu(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scaling: float
) -> tuple[Tensor, Tensor]:
    """Flash attention on a CPU."""
    operator: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    width = value.shape[-1]
    if width != query.shape[-1]:
        most = max(width, query.shape[-1])
        query, key, value = (nn.functional.pad(each, (0, most - each.shape[-1])) for each in (query, key, value))
    output, totals = operator(query, key, value, 0.0, causal, attn_mask=mask, scale=scaling)
    return output[..., :width], totals


def flash_on_gpu(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scaling: float
) -> tuple[Tensor, Tensor]:
    """Flash attention on a GPU: 16-bit numbers, no mask, widths up to 256."""
    operator: Any = torch.ops.aten._scaled_dot_product_flash_attention
    width = value.shape[-1]
    output, totals, *_ = operator(*map(_padded, (query, key, value)), 0.0, causal, False, scale=scaling)
    return output[..., :width], totals


def efficient_on_gpu(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scaling: float
) -> tuple[Tensor, Tensor]:
    """Memory-efficient attention on a GPU: 32-bit numbers too, and any mask."""
    operator: Any = torch.ops.aten._scaled_dot_product_efficient_attention
    batch, heads, length, _ = query.shape
    width, keys = value.shape[-1], key.shape[2]
    if mask is not None:
        if mask.stride(-2) % _ROW or mask.stride(-1) != 1:
            mask = nn.functional.pad(mask, (0, -keys % _ROW))[..., :keys]
        mask = mask.expand(batch, heads, length, keys)
    query, key, value = (_padded(each) for each in (query, key, value))
    # It knows no groups. Of a single one this is a view.
    key, value = (
        each[:, :, None].expand(-1, -1, heads // each.shape[1], -1, -1).reshape(batch, heads, keys, -1)
        for each in (key, value)
    )
    output, totals, *_ = operator(query, key, value, mask, True, 0.0, causal, scale=scaling)
    # It tells more rows than there are.
    return output[..., :width], totals[..., :length]


# By device, the fastest first.
KERNELS: dict[str, tuple[Kernel, ...]] = {"cpu": (flash_on_cpu,), "cuda": (flash_on_gpu, efficient_on_gpu)}


def _suits_flash(query: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    width = query.shape[-1]
    return mask is None and query.dtype in _HALVES and width == value.shape[-1] <= 256


def _padded(tensor: Tensor) -> Tensor:
    """Zeros in further columns change neither a product nor what the others hold."""
    if missing := -tensor.shape[-1] % _WIDTH:
        return nn.functional.pad(tensor, (0, missing))
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


@torch.compiler.disable  # type: ignore[untyped-decorator]
@torch.no_grad()
def _agrees(kernel: Kernel, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    """Whether a kernel computes what blocks compute, on a few numbers of the kind that it is to be used for."""
    generator = torch.Generator().manual_seed(0)
    length = 20
    few, keys, values = (
        torch.randn(2, like.shape[1], length, like.shape[3], generator=generator).to(query)
        for like in (query, key, value)
    )
    hidden = None
    if mask is not None:
        visible = torch.ones(1, 1, length, length, dtype=torch.bool, device=query.device).tril().triu(-7)
        hidden = additive(visible, query.dtype)
    tolerance = 1e-4 if torch.finfo(query.dtype).bits >= 32 else 5e-2
    try:
        output, totals = kernel(few, keys, values, hidden, hidden is None, 0.1)
        # In 64 bits, whatever a device or autocast makes of products in 32.
        shown = None if hidden is None else hidden.double()
        scores = Scores(few.double(), keys.double(), shown, shown is None, 0.1)
        exact, sums = blocked_attention(scores, values.double())
        torch.testing.assert_close(output.transpose(1, 2).double(), exact, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(totals.double(), sums, rtol=tolerance, atol=tolerance)
    except (AttributeError, AssertionError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        logger.warning(
            f"torch's {getattr(kernel, '__name__', kernel)} on {query.device} ({query.dtype}) does not tell what is "
            f"needed of it ({reason}). Attention runs in another kernel or in blocks: slower, the vectors are the same."
        )
        return False
    return True
