"""What a server is told: its limits, and how requests are joined."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ..batches import DEFAULT_BATCH_TOKENS

_MIB = 2**20


@dataclass(frozen=True)
class Settings:
    """Limits are refused with 413, 422 or 429, so that memory stays as it is.

    Args:
        batch_size: Texts of waiting requests that are joined.
        delay: Milliseconds that a batch which is not full waits for more.
        batch_tokens: Positions a forward pass.
        max_body: MiB of a request.
        max_texts: Texts of a request.
        max_tokens: Positions of a request, with all copies of its texts, template and prompt.
        queue: Texts that may wait, over all requests.
        read_seconds: Seconds in which a request's body must have come.

    Example:
        >>> Settings(batch_size=64).delay
        2.0
    """

    batch_size: int = 32
    delay: float = 2.0
    batch_tokens: int = DEFAULT_BATCH_TOKENS
    max_body: int = 4
    max_texts: int = 2048
    max_tokens: int = 300_000
    queue: int = 8192
    read_seconds: float = 30.0

    def __post_init__(self) -> None:
        for one in fields(self):
            number = getattr(self, one.name)
            if not number >= 1:
                # The library that joins requests would spin where it is told not to wait.
                raise ValueError(f"{one.name}={number!r}: give a number from 1 on.")

    @property
    def body_bytes(self) -> int:
        """Of one request."""
        return self.max_body * _MIB

    @property
    def held_bytes(self) -> int:
        """Of all bodies that are held at once."""
        return max(64 * _MIB, 4 * self.body_bytes)
