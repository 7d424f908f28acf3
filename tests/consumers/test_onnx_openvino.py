"""An exported folder in sentence-transformers' openvino backend.

Runs in an environment of its own (requirements-openvino.txt), without st_reba:
``ST_REBA_ONNX=FOLDER python -m pytest --noconftest tests/consumers/test_onnx_openvino.py``.
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

    # openvino's default on many processors is bfloat16, which is off by a hundredth.
    settings = {"from_onnx": True, "ov_config": {"INFERENCE_PRECISION_HINT": "f32"}}
    model = SentenceTransformer(str(path), backend="openvino", device="cpu", model_kwargs=settings)
    assert type(model[0].model).__name__.startswith("OVModel")
    check(model, path)


def test_plain_loading_fails(path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    with pytest.raises((OSError, TypeError, ValueError)):
        SentenceTransformer(str(path), device="cpu")
