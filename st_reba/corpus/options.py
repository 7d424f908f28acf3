"""Options for encoding a corpus, passed around as one object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from .records import preview

Dtype = Literal["float32", "float16"]
DTYPES: tuple[str, ...] = get_args(Dtype)


@dataclass(frozen=True)
class EncodeOptions:
    """How documents are encoded; each option is described at `encode_corpus`.

    Raises:
        ValueError: The value of an option is not known.
    """

    passages: str | None = None
    dtype: str = "float32"
    batch_tokens: int | None = None
    part_size: int | None = None
    workers: int | None = None
    overwrite: bool = False
    show_progress_bar: bool | None = None

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            choices = ", ".join(DTYPES)
            raise ValueError(f"dtype={self.dtype!r} is not known; choose one of {choices}")
        for name in ("batch_tokens", "part_size", "workers"):
            value = getattr(self, name)
            if value is None:
                continue
            if type(value) is not int or not 1 <= value < 2**31:
                shown_value = preview(value)
                raise ValueError(
                    f"{name}={shown_value} must be a whole number of at least 1, below 2³¹"
                )
