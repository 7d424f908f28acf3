"""An exported folder in the onnx backend of sentence-transformers 5.7.

Runs in an environment of its own (requirements-optimum.txt), without st_reba:
``ST_REBA_ONNX=FOLDER python -m pytest --noconftest tests/consumers/test_onnx_optimum.py``.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx_folder import check, folder

FOLDER = folder()


@pytest.fixture(scope="module")
def path() -> Path:
    return FOLDER


def test_vectors(path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(
        str(path), backend="onnx", device="cpu", model_kwargs={"provider": "CPUExecutionProvider"}
    )
    assert type(model[0].model if hasattr(model[0], "model") else model[0].auto_model).__name__.startswith("ORTModel")
    check(model, path)


def test_plain_loading_fails(path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    with pytest.raises((OSError, TypeError, ValueError)):
        SentenceTransformer(str(path), device="cpu")
