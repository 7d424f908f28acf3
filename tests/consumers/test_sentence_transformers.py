"""What sentence-transformers itself offers, once each, with a saved model that plain SentenceTransformer loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from given import QUESTIONS, TEXTS
from numpy.testing import assert_allclose
from peft import LoraConfig
from sentence_transformers import SentenceTransformer, quantize_embeddings
from sentence_transformers.util import mine_hard_negatives
from sentence_transformers.util.quantization import semantic_search_faiss

FEW = TEXTS[:8]


@pytest.fixture
def model(places: dict[str, Path]) -> SentenceTransformer:
    """ReBA, loaded anew."""
    return SentenceTransformer(str(places["reba"] / "my_model"), device="cpu")


@pytest.fixture(scope="module")
def wanted(vectors: Any) -> Any:
    """Vectors of the texts by the model that was never saved; they have length 1."""
    return vectors("reba", TEXTS, "plain")


def test_several_processes(model: SentenceTransformer, wanted: Any) -> None:
    pool = model.start_multi_process_pool(["cpu", "cpu"])
    try:
        assert_allclose(model.encode(TEXTS, pool=pool, chunk_size=20), wanted, atol=1e-6)
    finally:
        model.stop_multi_process_pool(pool)


@pytest.mark.parametrize(("precision", "multiplier", "kept"), [("uint8", 20, 24), ("ubinary", 8, 18)])
def test_quantized_search(model: SentenceTransformer, wanted: Any, precision: Any, multiplier: int, kept: int) -> None:
    """Of the 25 texts that exact search finds for five questions, those found in codes of a byte or a bit a number."""
    ranges = np.stack([wanted.min(axis=0), wanted.max(axis=0)])
    stored = quantize_embeddings(wanted, precision=precision, ranges=ranges)
    assert stored.dtype == np.uint8 and stored.shape[1] == wanted.shape[1] // (8 if precision == "ubinary" else 1)
    queries = model.encode_query(QUESTIONS)
    codes: dict[str, Any] = {"corpus_embeddings": stored, "corpus_precision": precision, "ranges": ranges}
    found, _ = semantic_search_faiss(queries, **codes, top_k=5, rescore_multiplier=multiplier)
    best = np.argsort(-(queries @ wanted.T), axis=1)[:, :5]
    assert sum(len({hit["corpus_id"] for hit in hits} & {*row}) for hits, row in zip(found, best, strict=True)) >= kept


def test_truncated(places: dict[str, Path], wanted: Any) -> None:
    short = SentenceTransformer(str(places["reba"] / "my_model"), device="cpu", truncate_dim=48)
    assert_allclose(short.encode(TEXTS), wanted[:, :48], atol=1e-6)


def test_hard_negatives(model: SentenceTransformer, wanted: Any) -> None:
    """Each is the nearest of the other positives."""
    pairs = Dataset.from_dict({"anchor": TEXTS[:20], "positive": TEXTS[20:40]})
    mined = mine_hard_negatives(pairs, model, num_negatives=1, verbose=False)
    near = wanted[:20] @ wanted[20:40].T
    np.fill_diagonal(near, -1)
    assert mined["negative"] == [TEXTS[20 + row] for row in near.argmax(axis=1)]


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
                each.fill_(0.02)
    changed = model.encode(FEW)
    assert np.abs(changed - wanted[:8]).max() > 1e-2
    model.save_pretrained(str(tmp_path / "adapted"))
    # Else an adapter loads in its base's number type.
    options = {"dtype": "float32"}
    again = SentenceTransformer(str(tmp_path / "adapted"), device="cpu", model_kwargs=options)
    assert_allclose(again.encode(FEW), changed, atol=1e-6)
