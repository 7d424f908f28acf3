"""Whether two sets of vectors come from one model: test texts, distance, and the allowed distance.

An index, corpus or filter asks whether a given model made its vectors, in whatever number type: see
`model_tolerance`. For a saved model, the question is whether this machine computes what the machine
that saved it computed: see `machine_tolerance`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sentence_transformers import SentenceTransformer

# Indexes, corpora and filters store vectors of these texts, in this order, without the texts.
PROBE_TEXTS = (
    "春天来了，河边的柳树发了新芽，孩子们在草地上放风筝。",
    "The committee read the report twice before it agreed to fund the new bridge.",
    "猫",
    "Dogs bark.",
    "def add(a, b):\n    return a + b",
    "3.14159, 2.71828; 42%",
    "请问去火车站怎么走？",
    "It was a cold morning, and the harbour lay under a thick fog; the ferries waited, their lamps "
    "lit, while gulls walked up and down the pier as if they owned it.",
)
# A saved model stores vectors of these, together with the texts.
GOLDEN_TEXTS = (
    "",
    *PROBE_TEXTS,
    "我在银行取了三百块钱，然后沿着河岸走回家。",
    "“随便”这两个字，往往最不随便——你说是不是？",
    "第3季度营收为1,284.5亿元，同比增长7.2%；净利润率则由11.9%降至10.4%。",
    "北京（Beijing）到上海（Shanghai）的 G1 次列车，全程约 4 小时 28 分。",
    "昨夜的雨一直下到天亮，院子里的石榴花落了一地。母亲起得很早，扫完地，又把水缸挑满，才坐下来喝"
    "第一碗热茶。她说，日子就像这口井，天天打水，也不见它空；可要是哪一天忘了盖上，树叶就落满了。"
    "我那时还小，不懂她说的是什么。",
    "开会改到周五下午两点半了，别忘了带上次的记录👍",
    "WHERE is the nearest station?? I've been looking for 20 minutes...",
    "Order #58213: 2 x 0.75 l @ $13.40 = $26.80 (incl. 19% VAT)",
    "The word 意思 has at least six meanings, and 没意思 is not the opposite of any of them.",
    "To whom it may concern: the lease for the flat at 12 Mill Lane ends on 31 March. The tenants "
    "have looked after the garden, repaired the gate at their own cost and never once paid late. If "
    "they ask for a reference, please tell the new landlord that we would let to them again without "
    "a second thought, and that the cracked window on the stairs was there long before they came.",
    "naïve café, Zürich, Ærø, São Paulo, İstanbul, and a happy birthday 🎂 to all!",
)
_EXACT_TYPES = ("float32", "float64")
# Below this share of their length, vectors count as equal: rounding in float32 is nearly as large as what
# `machine_tolerance` allows of it.
_MIN_SPREAD = 1e-2
_TINY = np.finfo(np.float64).tiny


def relative_distance(stored_vectors: ArrayLike, vectors: ArrayLike) -> float:
    """Distance of two sets of vectors, relative to how far the stored ones lie from their mean.

    Args:
        stored_vectors: [texts, d].
        vectors: [texts, d], of the same texts. Where shapes differ or a value is not finite, the
            distance is infinite.
    """
    stored = np.asarray(stored_vectors, np.float64)
    current = np.asarray(vectors, np.float64)
    if stored.shape != current.shape or not np.isfinite([stored, current]).all():
        return float("inf")
    spread = np.linalg.norm(stored - stored.mean(axis=0))
    min_spread = _MIN_SPREAD * np.linalg.norm(stored)
    return float(np.linalg.norm(stored - current) / max(spread, min_spread, _TINY))


def text_distances(
    stored_vectors: NDArray[np.float64], vectors: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Distance of each text's two vectors, relative to the length of the stored one, [texts]."""
    stored_lengths = np.maximum(np.linalg.norm(stored_vectors, axis=1), _TINY)
    return np.asarray(np.linalg.norm(vectors - stored_vectors, axis=1) / stored_lengths)


def model_tolerance(stored_dtype: str | None, dtype: str | None) -> float:
    """The largest `relative_distance` allowed between vectors of one model, by their number types.

    Measured on two models: another type gives 0.0007 to 0.019, and the nearest other method on the
    same weights 0.03; two runs in float32 differ by less than a thousandth of what is allowed.
    """
    are_exact = stored_dtype == dtype and dtype in (None, "float32")
    return 0.005 if are_exact else 0.025


def machine_tolerance(model: SentenceTransformer, dtype: str | None = None) -> float:
    """The largest `relative_distance` allowed between a model's vectors on two machines.

    Rounding errors grow with the square root of the number L of layers. In real models, vectors in
    bfloat16 and float16 were at most 1.1·ε·√L off those in float32, off those of other kernels, and
    in a batch, where ε is the type's precision; in float32, at most 4·ε·√L off those in a batch,
    and 25·ε·√L in random models. Two machines may both be that far off, so 2.5·ε·√L is allowed in
    16 bits, and 64·ε·√L in float32. Another method is off by 0.27 or more, where 0.11 is allowed
    (bfloat16, 30 layers; for vectors of length 1, 1 − cosine is then at most 0.006 on average).

    Args:
        model: The model.
        dtype: Number type of its weights; None: as they are.
    """
    backbone: Any = model.transformers_model
    depth = 1
    if backbone is not None:  # which a model of word vectors lacks
        depth = getattr(backbone.config.get_text_config(), "num_hidden_layers", None) or 1
    if getattr(backbone, "hf_quantizer", None) is not None:
        # Kernels for quantized weights round differently from machine to machine.
        dtype = "bfloat16"
    dtype = dtype or dtype_name(model) or "float32"
    factor, precise_type = (64, "float32") if dtype in _EXACT_TYPES else (2.5, dtype)
    precision = torch.finfo(getattr(torch, precise_type)).eps
    return float(f"{factor * precision * math.sqrt(depth):.2g}")


def dtype_name(model: SentenceTransformer) -> str | None:
    """The number type that a model computes in; None: it has no weights."""
    for weight in model.parameters():
        if weight.is_floating_point():  # quantized weights do not show it
            return str(weight.dtype).removeprefix("torch.")
    return None
