"""Pipelines put together from modules, each checkpoint loaded once a session; and their gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from oracle import TEXTS as ALL
from oracle import folder
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import Tensor

from st_reba.modules import Ensemble, LayerPlan, Method, NoSink, ReBA
from st_reba.modules.chunked import ChunkedReBAPooling
from st_reba.modules.pooling import ReBAPooling
from st_reba.modules.prompts import PromptEnsemble
from st_reba.modules.repeat import RepeatTransformer
from st_reba.modules.stages import Stage
from st_reba.spec import Spec

Features = dict[str, Any]
_MODES: dict[str, Any] = {"last": "lasttoken", "mean": "mean", "cls": "cls"}


@lru_cache(maxsize=256)
def checkpoint(path: str, dtype: str = "float32", experts: str | None = None) -> RepeatTransformer:
    """A checkpoint as its module; never changed, only copied."""
    options = {"dtype": dtype, **({} if experts is None else {"experts_implementation": experts})}
    return RepeatTransformer(path, model_kwargs=options)


def transformer(
    base: str, method: str | Method | None = None, stages: Sequence[Stage] = (), *, dtype: str = "float32", **fields: Any
) -> RepeatTransformer:
    """The input module of a method."""
    experts = fields.pop("experts", None)
    spec = Spec.make(method, stages, fields)
    first = copy.deepcopy(checkpoint(folder(base), dtype, experts))
    first.method, limit = spec.method, getattr(spec.method, "max_seq_length", None)
    first.rebind(spec.stages)
    if limit is not None:
        first.max_seq_length = limit
    return first


def pipeline(
    base: str, method: str | Method | None = None, stages: Sequence[Stage] = (), *, normalize: bool = False, **fields: Any
) -> SentenceTransformer:
    """What ``st_reba.build`` makes, without its checks, and not normalized unless that is asked for."""
    first: Any = transformer(base, method, stages, **fields)
    given, width = first.method, first.get_embedding_dimension()
    pooling: torch.nn.Module
    if isinstance(given, ReBA):
        weights = (given.include_special, given.normalize_weights)
        if given.chunk is not None:
            pooling = ChunkedReBAPooling(width, given.chunk, given.pooling, given.repeats or 2, *weights)
        else:
            pooling = ReBAPooling(width, given.pooling, given.variant, *weights)
    else:
        pooling = Pooling(width, _MODES[given.pooling])
    modules = [first, pooling]
    modules += [PromptEnsemble(each.summed, each.equal_norms) for each in first.stages if isinstance(each, Ensemble)]
    return SentenceTransformer(modules=[*modules, *([Normalize()] if normalize else [])], device="cpu")


def encoded(model: SentenceTransformer, texts: Sequence[str] = ALL, *, alone: bool = False, **options: Any) -> Tensor:
    """The texts' vectors, as one batch of mixed lengths, or each by itself."""
    vectors: Tensor = model.encode(
        list(texts), batch_size=1 if alone else len(texts), convert_to_tensor=True, show_progress_bar=False, **options
    )
    return vectors


def states(model: SentenceTransformer, texts: Sequence[str] = ALL) -> list[Tensor]:
    """Hidden states of each text, from one batch, without the padding."""
    first: Any = model[0]
    with torch.inference_mode():
        given = first(first.preprocess(list(texts)))
    return [rows[: place[2]] for rows, place in zip(given["token_embeddings"], given["places"], strict=True)]


# Learning

TEXTS = ["The river runs past the old mill.", "hi", "银行关门了, again"]
PLAN = [LayerPlan(layers={"bidirectional": [0], "nosink-forward": [1]})]
# Method, fields and stages, for bases of two layers.
PIPELINES: dict[str, tuple[str, dict[str, Any], list[Stage]]] = {
    "classical-last": ("classical", {}, []),
    "classical-cls": ("classical", {"pooling": "cls"}, [LayerPlan(k=2)]),
    "echo-last": ("echo", {}, []),
    "echo-end": ("echo", {"span": "last_copy_and_end", "pooling": "mean"}, []),
    "echo-mean-plan": ("echo", {"pooling": "mean"}, PLAN),
    "prompteol": ("prompteol", {}, []),
    "inplace": ("nosink", {}, [NoSink("inplace-back", k=1)]),
    "mask0": ("nosink", {"pooling": "last"}, [NoSink("mask0&bidir", k=2, k0=1)]),
    "inter": ("nosink", {}, [NoSink("inter-bidir", k=1)]),
    "inter-published": ("nosink", {}, [NoSink("inter-back", k=2, variant="published")]),
    "extra": ("nosink", {}, [NoSink("extra-bidir", k=1)]),
    "extra-published": ("nosink", {}, [NoSink("extra-back", k=2, variant="published")]),
    "extend": ("nosink", {}, [NoSink("extend-bidir", k=2)]),
    "reba-last": ("reba", {}, []),
    "reba-mean": ("reba", {"pooling": "mean", "repeats": 3}, []),
    "reba-special": ("reba", {"pooling": "mean", "include_special": True}, []),
    "reba-normalized": ("reba", {"pooling": "mean", "normalize_weights": True}, []),
    "published-last": ("reba", {"variant": "published"}, []),
    "published-mean": ("reba", {"variant": "published", "pooling": "mean"}, []),
    "chunked-last": ("reba", {"chunk": 4}, []),
    "chunked-mean": ("reba", {"chunk": 4, "pooling": "mean", "normalize_weights": True}, []),
    "reba-plan": ("reba", {"pooling": "mean"}, PLAN),
    "reba-inter": ("reba", {}, [NoSink("inter-bidir", k=1)]),
    "chunked-plan": ("reba", {"chunk": 4}, [NoSink("mask0-bidir", k=1)]),
}
# Their layers run twice.
TWICE = [name for name, (_, _, stages) in PIPELINES.items() if str(stages).count(":setting=ex") or "inter-" in str(stages)]


def build(base: str, name: str, **options: Any) -> SentenceTransformer:
    method, fields, stages = PIPELINES[name]
    return pipeline(base, method, stages, **{"normalize": True, **fields, **options})


def features_of(model: SentenceTransformer, texts: Sequence[str] = TEXTS) -> Features:
    first: Any = model[0]
    return dict(first.preprocess(list(texts)))


def sentences(model: SentenceTransformer, features: Features) -> Tensor:
    vectors: Tensor = model(features)["sentence_embedding"]
    return vectors


def gradients(model: SentenceTransformer, loss: Callable[[], Tensor]) -> dict[str, Tensor]:
    """Of everything that has one, the model's random numbers the same each time."""
    model.zero_grad()
    torch.manual_seed(0)
    loss().backward()
    return {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}


def assert_gradients(found: dict[str, Tensor], wanted: dict[str, Tensor], tolerance: float = 1e-5) -> None:
    assert set(found) == set(wanted)
    largest = max(float(each.abs().max()) for each in wanted.values())
    for name, each in wanted.items():
        torch.testing.assert_close(found[name], each, rtol=0, atol=tolerance * largest, msg=name)
