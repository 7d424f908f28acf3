"""What sentence-transformers itself offers, once each, with a saved model that plain SentenceTransformer loads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from sentence_transformers import SentenceTransformer, quantize_embeddings
from sentence_transformers.util import mine_hard_negatives
from sentence_transformers.util.quantization import semantic_search_faiss


@pytest.fixture(scope="module")
def model(places: dict[str, Path]) -> SentenceTransformer:
    """ReBA, loaded anew."""
    return SentenceTransformer(str(places["reba"] / "my_model"), device="cpu")


@pytest.fixture(scope="module")
def vectors(models: dict[str, SentenceTransformer], given: dict[str, Any]) -> Any:
    """Of the texts, by the model that was never saved."""
    return models["reba"].encode(given["texts"])


def test_several_processes(
    model: SentenceTransformer, vectors: Any, given: dict[str, Any], close: Callable[[Any, Any], None]
) -> None:
    pool = model.start_multi_process_pool(["cpu", "cpu"])
    try:
        close(model.encode(given["texts"], pool=pool, chunk_size=20), vectors)
    finally:
        model.stop_multi_process_pool(pool)


@pytest.mark.parametrize(("precision", "multiplier", "kept"), [("uint8", 20, 24), ("ubinary", 8, 18)])
def test_quantized_search(
    model: SentenceTransformer, vectors: Any, given: dict[str, Any], precision: Any, multiplier: int, kept: int
) -> None:
    """Of the 25 texts that exact search finds for five questions, those found in codes of a byte or a bit a number."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    ranges = np.stack([unit.min(axis=0), unit.max(axis=0)])
    stored = quantize_embeddings(unit, precision=precision, ranges=ranges)
    assert stored.dtype == np.uint8 and stored.shape[1] == unit.shape[1] // (8 if precision == "ubinary" else 1)
    queries = model.encode_query(given["questions"], normalize_embeddings=True)
    found, _ = semantic_search_faiss(
        queries,
        corpus_embeddings=stored,
        corpus_precision=precision,
        ranges=ranges,
        top_k=5,
        rescore_multiplier=multiplier,
    )
    best = np.argsort(-(queries @ unit.T), axis=1)[:, :5]
    shared = [
        len({hit["corpus_id"] for hit in hits} & set(row.tolist())) for hits, row in zip(found, best, strict=True)
    ]
    assert sum(shared) >= kept, shared


def test_truncated(
    places: dict[str, Path], vectors: Any, given: dict[str, Any], close: Callable[[Any, Any], None]
) -> None:
    short = SentenceTransformer(str(places["reba"] / "my_model"), device="cpu", truncate_dim=48)
    close(short.encode(given["texts"]), vectors[:, :48])


def test_hard_negatives(model: SentenceTransformer, vectors: Any, given: dict[str, Any]) -> None:
    """Each is the nearest of the other positives."""
    texts, unit = given["texts"][:40], vectors[:40] / np.linalg.norm(vectors[:40], axis=1, keepdims=True)
    pairs = Dataset.from_dict({"anchor": texts[:20], "positive": texts[20:]})
    mined = mine_hard_negatives(pairs, model, num_negatives=1, verbose=False)
    near = unit[:20] @ unit[20:].T
    np.fill_diagonal(near, -1)
    assert mined["negative"] == [texts[20 + row] for row in near.argmax(axis=1)]


def test_compiled(
    places: dict[str, Path],
    models: dict[str, SentenceTransformer],
    given: dict[str, Any],
    close: Callable[[Any, Any], None],
) -> None:
    """Traced by torch, without its compiler, which takes minutes."""
    compiled = SentenceTransformer(str(places["echo"] / "my_model"), device="cpu")
    compiled.compile(backend="eager", dynamic=True)
    close(compiled.encode(given["texts"][:2]), models["echo"].encode(given["texts"][:2]))
    torch._dynamo.reset()


def test_adapter(
    places: dict[str, Path], vectors: Any, given: dict[str, Any], tmp_path: Path, close: Callable[[Any, Any], None]
) -> None:
    """A new LoRA adapter changes nothing, a filled one does, and it is saved and loaded with the model."""
    adapted = SentenceTransformer(str(places["reba"] / "my_model"), device="cpu")
    adapted.add_adapter(LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="FEATURE_EXTRACTION"))
    texts = given["texts"][:8]
    close(adapted.encode(texts), vectors[:8])
    with torch.no_grad():
        for name, each in adapted.named_parameters():
            if "lora_B" in name:
                each.fill_(0.02)
    changed = adapted.encode(texts)
    assert np.abs(changed - vectors[:8]).max() > 1e-2
    adapted.save_pretrained(str(tmp_path / "adapted"))
    again = SentenceTransformer(str(tmp_path / "adapted"), device="cpu")
    close(again.encode(texts), changed)
