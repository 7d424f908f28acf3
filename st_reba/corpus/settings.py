"""How the shards of a corpus are encoded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..batches import check_sizes

DTYPES = ("float32", "float16")


@dataclass(frozen=True)
class EncodeSettings:
    """What decides the vectors of a shard, and how they are stored.

    Args:
        dtype: Of the stored vectors: "float32", or "float16" for half the disk and about three digits.
        batch_size: Texts a forward pass. Excludes ``batch_tokens``.
        batch_tokens: Positions a forward pass; None: ``st_reba.batches.DEFAULT_BATCH_TOKENS``, unless ``batch_size``
            is given.

    Raises:
        ValueError: The dtype is another, or both sizes are given.

    Example:
        >>> EncodeSettings(batch_tokens=8192).dtype
        'float32'
    """

    dtype: Literal["float32", "float16"] = "float32"
    batch_size: int | None = None
    batch_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype={self.dtype!r} is not known: choose one of {', '.join(DTYPES)} (--store-dtype).")
        check_sizes(self.batch_size, self.batch_tokens)
