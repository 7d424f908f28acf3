"""What sentence-transformers does with modules, with a saved model that plain SentenceTransformer loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from given import TEXTS
from numpy.testing import assert_allclose
from peft import LoraConfig
from sentence_transformers import SentenceTransformer

import st_reba

FEW = TEXTS[:8]


@pytest.fixture
def model(places: dict[str, Path]) -> SentenceTransformer:
    """ReBA, loaded anew."""
    return SentenceTransformer(str(places["reba"] / "my_model"), device="cpu")


@pytest.fixture(scope="module")
def wanted(vectors: Any) -> Any:
    """Vectors of the texts by the model that was never saved; they have length 1."""
    return vectors("reba", TEXTS, "plain")


def test_several_processes() -> None:
    """A worker has every section of the code, though it imports no more than a pickle names."""
    model = st_reba.build("mini", "prompteol", template="reverseol", device="cpu")
    wanted = model.encode(TEXTS)
    pool = model.start_multi_process_pool(["cpu", "cpu"])
    try:
        assert_allclose(model.encode(TEXTS, pool=pool, chunk_size=20), wanted, atol=1e-6)
    finally:
        model.stop_multi_process_pool(pool)


def test_compiled(model: SentenceTransformer, wanted: Any) -> None:
    """Traced by torch, without its compiler, which takes minutes."""
    model.compile(backend="eager", dynamic=True)
    assert_allclose(model.encode(TEXTS[:2]), wanted[:2], atol=1e-6)
    torch._dynamo.reset()


def test_adapter(model: SentenceTransformer, wanted: Any, tmp_path: Path) -> None:
    """A new LoRA adapter changes nothing, a filled one does, and it is saved and loaded with the model."""
    model.add_adapter(LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="FEATURE_EXTRACTION"))
    assert_allclose(model.encode(FEW), wanted[:8], atol=1e-6)
    with torch.no_grad():
        for name, each in model.named_parameters():
            if "lora_B" in name:
                each.fill_(0.1)
    changed = model.encode(FEW)
    assert np.abs(changed - wanted[:8]).max() > 1e-2
    model.save_pretrained(str(tmp_path / "adapted"))
    # Else an adapter loads in its base's number type.
    options = {"dtype": "float32"}
    again = SentenceTransformer(str(tmp_path / "adapted"), device="cpu", model_kwargs=options)
    assert_allclose(again.encode(FEW), changed, atol=1e-6)
