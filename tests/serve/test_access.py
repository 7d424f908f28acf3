"""No caller is let in by a key that is empty, or by another scheme than the one that clients send."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
from sentence_transformers import SentenceTransformer

import st_reba
from st_reba.serve.access import API_KEY_VARIABLE, key_is_known, read_keys
from st_reba.serve.app import EmbeddingServer


def test_keys_are_separated_by_commas() -> None:
    assert read_keys(" first,second word ") == ["first", "second word"]


def test_without_the_variable_there_is_no_key() -> None:
    assert read_keys(None) == []


@pytest.mark.parametrize(
    ("value", "empty_key"),
    [
        ("", "key 1 of 1"),
        (" ", "key 1 of 1"),
        (",", "key 1 of 2"),
        (", ,", "key 1 of 3"),
        ("secret,", "key 2 of 2"),
        ("secret,,other", "key 2 of 3"),
        ("\t", "key 1 of 1"),
    ],
)
def test_a_variable_with_an_empty_key_starts_no_server(
    value: str, empty_key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(API_KEY_VARIABLE, value)
    load_model = Mock()
    monkeypatch.setattr(st_reba, "load", load_model)
    with pytest.raises(ValueError, match=f"{API_KEY_VARIABLE}: {empty_key} is empty") as error:
        st_reba.serve.serve("organization/model", port=0)
    assert "secret" not in str(error.value)
    assert not load_model.called


@pytest.mark.parametrize("api_keys", [[""], ["first", " "], "first", [None]])
def test_an_application_takes_no_empty_key(api_keys: Any, plain_model: SentenceTransformer) -> None:
    with pytest.raises(ValueError, match="key"):
        EmbeddingServer(plain_model, "m", keys=api_keys)


@pytest.mark.parametrize("header", ["Bearer first", "bearer second", "BEARER  first "])
def test_a_known_key_is_let_in(header: str) -> None:
    assert key_is_known(header, [b"first", b"second"])


@pytest.mark.parametrize(
    "header",
    ["Basic first", "first", "", "Bearer", "Bearer ", "Token first", "Bearer firs"],
)
def test_other_keys_and_schemes_are_refused(header: str) -> None:
    assert not key_is_known(header, [b"first", b"second"])
