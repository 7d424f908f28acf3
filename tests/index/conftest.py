"""Indexes that are there already, and what the model is asked to encode."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from indexes import GIVEN, MODEL, QUIET

from st_reba.corpus import part as encoding
from st_reba.index import Document, Index


@pytest.fixture(scope="session")
def _built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built") / "index"
    documents = [Document(text, f"d{n}", {"n": n}) for n, text in enumerate(GIVEN)]
    options: dict[str, Any] = {"factory": "IVF4,Flat", "parameters": "nprobe=4"}
    with Index.build(MODEL, documents, folder, **options, **QUIET) as index:
        index.add([*GIVEN[:5], " "], strict=False, **QUIET)
        index.delete(["d3", "d4", "41"])
    return folder


@pytest.fixture
def path(_built: Path, tmp_path: Path) -> Path:
    """An index with something in every table."""
    return Path(shutil.copytree(_built, tmp_path / "index"))


@pytest.fixture
def index(tmp_path: Path) -> Index:
    """A small one, open."""
    documents = [Document("cat", "a", {"n": 1}), Document("dog", "b"), Document("ship", "c")]
    return Index.build(MODEL, documents, tmp_path / "index", **QUIET)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that the model encodes as documents, but for the fingerprint's."""
    found: list[str] = []
    real = encoding.encode_batch

    def encode(model: Any, texts: list[str], **options: Any) -> Any:
        found.extend(texts)
        return real(model, texts, **options)

    monkeypatch.setattr(encoding, "encode_batch", encode)
    return found
