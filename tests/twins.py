"""Models of bases that transformers loads in a way of its own, each to be compared with its plain twin's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from oracle import TEXTS
from sentence_transformers import SentenceTransformer
from torch import Tensor

import st_reba

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "classical": ("classical", {"pooling": "mean"}),
    "echo": ("echo", {}),
    "reba": ("reba", {"pooling": "mean"}),
    "inplace": ("nosink", {"setting": "mask0-bidir", "k": 1}),
    "inter": ("nosink", {"setting": "inter-bidir", "k": 1}),
    "extra": ("nosink", {"setting": "extra-bidir", "k": 2}),
    "reba and inter": ("reba", {"stages": [st_reba.NoSink("inter-bidir", k=1)]}),
}


def built(base: object, method: str, **options: Any) -> SentenceTransformer:
    name, given = METHODS[method]
    return st_reba.build(str(base), name, normalize=False, **given, **options)


def vectors(model: SentenceTransformer) -> Tensor:
    return model.encode(list(TEXTS), batch_size=len(TEXTS), convert_to_tensor=True)  # type: ignore[return-value]


def reloaded(model: SentenceTransformer, folder: Path) -> SentenceTransformer:
    model.save_pretrained(str(folder))
    return SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": torch.float32})


def lora(**options: Any) -> Any:
    peft = pytest.importorskip("peft")
    return peft.LoraConfig(**{"r": 4, "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM", **options})
