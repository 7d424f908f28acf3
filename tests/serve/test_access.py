"""Nobody is let in by a key that is empty, or by another scheme than the one that clients send."""

from __future__ import annotations

from typing import Any

import pytest

import st_reba
from st_reba.serve.access import API_KEY_VARIABLE, key_is_known, read_keys
from st_reba.serve.app import EmbeddingServer


def test_keys_are_separated_by_commas() -> None:
    assert read_keys(" first,second word ") == ["first", "second word"]
    assert read_keys(None) == []


@pytest.mark.parametrize("value", ["", " ", ",", ", ,", "secret,", "secret,,other", "\t"])
def test_a_variable_with_an_empty_key_starts_no_server(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(API_KEY_VARIABLE, value)
    monkeypatch.setattr(st_reba, "load", lambda *args, **kwargs: pytest.fail("loaded"))
    with pytest.raises(ValueError, match=f"{API_KEY_VARIABLE}: key . of . is empty") as error:
        st_reba.serve.serve("organization/model", port=0)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("keys", [[""], ["first", " "], "first", [None]])
def test_an_application_takes_no_empty_key(keys: Any, plain: Any) -> None:
    with pytest.raises(ValueError, match="key"):
        EmbeddingServer(plain, "m", keys=keys)


@pytest.mark.parametrize(
    ("header", "is_known"),
    [
        ("Bearer first", True), ("bearer second", True), ("BEARER  first ", True), ("Basic first", False),
        ("first", False), ("", False), ("Bearer", False), ("Bearer ", False), ("Token first", False),
        ("Bearer firs", False),
    ],
)  # fmt: skip
def test_only_bearer_counts(header: str, is_known: bool) -> None:
    assert key_is_known(header, [b"first", b"second"]) is is_known
