"""Who may use the server: API keys, and the host names that requests may be addressed to."""

from __future__ import annotations

import hmac
import re
from collections.abc import Sequence

API_KEY_VARIABLE = "ST_REBA_API_KEY"
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def read_keys(value: str | None) -> list[str]:
    """Read the value of ST_REBA_API_KEY.

    Args:
        value: Keys, separated by commas; None: the variable is not set.

    Returns:
        The keys; without any, the server asks for none.

    Raises:
        ValueError: A key is empty. A variable that was meant to hold a key must not open the server.

    Example:
        >>> read_keys("first, second")
        ['first', 'second']
    """
    if value is None:
        return []
    keys = [key.strip() for key in value.split(",")]
    check_keys(keys)
    return keys


def check_keys(keys: Sequence[str]) -> None:
    """Refuse keys that would let everybody in; a message never holds a key."""
    if isinstance(keys, (str, bytes)):
        raise ValueError("keys must be a list of keys: of a string, every letter would be one.")
    for key_number, key in enumerate(keys, 1):
        if not isinstance(key, str) or not key.strip():
            raise ValueError(
                f"{API_KEY_VARIABLE}: key {key_number} of {len(keys)} is empty. Write KEY or KEY,KEY; "
                "to serve without a key, unset the variable."
            )


def key_is_known(authorization: str, keys: Sequence[bytes]) -> bool:
    """Whether an Authorization header holds one of the keys, as ``Bearer KEY``."""
    scheme, _, credentials = authorization.partition(" ")
    if scheme.lower() != "bearer":
        return False
    sent_key = credentials.strip().encode("latin-1")  # the bytes as they came
    # Every key is compared, in constant time.
    comparisons = [hmac.compare_digest(sent_key, key) for key in keys]
    return any(comparisons)


def host_name(header: str) -> str:
    """The name in a Host header. (Of one that is no name, Starlette gives the server's own address.)"""
    return re.sub(r":\d*$", "", header).strip("[]").lower()
