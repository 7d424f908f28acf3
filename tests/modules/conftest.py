"""Bases of three layers, made once a session."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import reference_nosink
from pipelines import FAMILIES


@pytest.fixture(scope="session")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """``deep(name, tokenizer="bos")``: the folder of a family's model of three layers."""
    made: dict[tuple[str, str], str] = {}

    def get(name: str, tokenizer: str = "bos") -> str:
        if (name, tokenizer) not in made:
            folder = tmp_path_factory.mktemp(name)
            made[name, tokenizer] = str(reference_nosink.save(name, FAMILIES[name][0], folder, tokenizer))
        return made[name, tokenizer]

    return get
