"""What sentence-transformers does with modules, with a saved model that plain SentenceTransformer loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from consumer_texts import TEXTS
from numpy.testing import assert_allclose
from peft import LoraConfig
from sentence_transformers import SentenceTransformer

import st_reba

FEW_TEXTS = TEXTS[:8]


@pytest.fixture
def model(model_parents: dict[str, Path]) -> SentenceTransformer:
    """ReBA, loaded anew."""
    return SentenceTransformer(str(model_parents["reba"] / "my_model"), device="cpu")


@pytest.fixture(scope="module")
def expected_vectors(model_vectors: Any) -> Any:
    """Vectors of the texts by the model that was never saved; they have length 1."""
    return model_vectors("reba", TEXTS, "plain")


def test_several_processes_give_the_vectors_of_one() -> None:
    """A worker has every section of the code, though it imports no more than a pickle names."""
    model = st_reba.build("mini", "prompteol", template="reverseol", device="cpu")
    expected_vectors = model.encode(TEXTS)
    pool = model.start_multi_process_pool(["cpu", "cpu"])
    try:
        assert_allclose(
            model.encode(TEXTS, pool=pool, chunk_size=20),
            expected_vectors,
            atol=1e-6,
        )
    finally:
        model.stop_multi_process_pool(pool)


def test_a_compiled_model_gives_the_same_vectors(
    model: SentenceTransformer, expected_vectors: Any
) -> None:
    """Traced by torch, without its compiler, which takes minutes."""
    model.compile(backend="eager", dynamic=True)
    assert_allclose(model.encode(TEXTS[:2]), expected_vectors[:2], atol=1e-6)
    torch._dynamo.reset()


@pytest.fixture
def adapted_model(model: SentenceTransformer) -> SentenceTransformer:
    """With a new LoRA adapter."""
    lora = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="FEATURE_EXTRACTION")
    model.add_adapter(lora)
    return model


def test_a_new_adapter_changes_nothing(
    adapted_model: SentenceTransformer, expected_vectors: Any
) -> None:
    assert_allclose(adapted_model.encode(FEW_TEXTS), expected_vectors[:8], atol=1e-6)


def test_a_filled_adapter_is_saved_and_loaded_with_the_model(
    adapted_model: SentenceTransformer,
    expected_vectors: Any,
    tmp_path: Path,
) -> None:
    with torch.no_grad():
        for name, weight in adapted_model.named_parameters():
            if "lora_B" in name:
                weight.fill_(0.1)
    changed_vectors = adapted_model.encode(FEW_TEXTS)
    assert np.abs(changed_vectors - expected_vectors[:8]).max() > 1e-2
    adapted_model.save_pretrained(str(tmp_path / "adapted"))
    loaded_model = SentenceTransformer(
        str(tmp_path / "adapted"),
        device="cpu",
        # Else an adapter loads in its base's number type.
        model_kwargs={"dtype": "float32"},
    )
    assert_allclose(loaded_model.encode(FEW_TEXTS), changed_vectors, atol=1e-6)
