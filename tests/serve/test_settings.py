"""Limits of a server: what they may be, and what follows from them."""

from __future__ import annotations

import pytest

from st_reba.serve import Settings


@pytest.mark.parametrize("name", ["delay", "batch_size", "queue"])
def test_settings_are_at_least_one(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        Settings(**{name: 0})


def test_bytes_of_bodies() -> None:
    """Many small requests may be received at once, and always a few of the largest."""
    small, large = Settings(max_body=1), Settings(max_body=100)
    assert (small.body_bytes, small.held_bytes) == (2**20, 64 * 2**20)
    assert (large.body_bytes, large.held_bytes) == (100 * 2**20, 400 * 2**20)
