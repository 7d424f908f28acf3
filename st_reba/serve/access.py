"""Who may use the server: API keys."""

from __future__ import annotations

import hmac
from collections.abc import Sequence

API_KEY_VARIABLE = "ST_REBA_API_KEY"


def read_keys(value: str | None) -> list[str]:
    """Read the value of ST_REBA_API_KEY.

    Args:
        value: Keys, separated by commas; None: the variable is not set.

    Returns:
        The keys; without any, the server asks for none.

    Raises:
        ValueError: A key is empty: a variable that was meant to hold a key must not open the
            server.

    Example:
        >>> read_keys("first, second")
        ['first', 'second']
    """
    if value is None:
        return []
    keys = [api_key.strip() for api_key in value.split(",")]
    check_keys(keys)
    return keys


def check_keys(api_keys: Sequence[str]) -> None:
    """Refuse keys that would let everybody in; no message holds a key."""
    if isinstance(api_keys, (str, bytes)):
        raise ValueError("keys must be a list of keys: in a string, every letter would be a key.")
    for key_number, api_key in enumerate(api_keys, 1):
        if not isinstance(api_key, str) or not api_key.strip():
            raise ValueError(
                f"{API_KEY_VARIABLE}: key {key_number} of {len(api_keys)} is empty. Write KEY or KEY,KEY; "
                "to serve without a key, unset the variable."
            )


def key_is_known(authorization: str, api_keys: Sequence[bytes]) -> bool:
    """Whether an Authorization header holds one of the keys, in the form ``Bearer KEY``."""
    scheme, _, credentials = authorization.partition(" ")
    if scheme.lower() != "bearer":
        return False
    sent_key = credentials.strip().encode("latin-1")  # the bytes as they came
    # Every key is compared, in constant time.
    comparisons = [hmac.compare_digest(sent_key, api_key) for api_key in api_keys]
    return any(comparisons)
