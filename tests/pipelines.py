"""Pipelines put together from modules, each checkpoint loaded once a session; and their gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from oracle import TEXTS as ALL
from oracle import assert_close, folder
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import Tensor

from st_reba import ChunkedReBAPooling, LayerPlan, NoSink, PromptEnsemble, ReBA, ReBAPooling, RepeatTransformer, Spec
from st_reba.modules import Method, Stage

Features = dict[str, Any]

# Families of three layers: their settings, and every layer's window.
DEPTH = 3
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
_SIZED = {**SIZES, "head_dim": 8}
_ALTERNATING = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "sliding_window": 6}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
FAMILIES: dict[str, tuple[dict[str, Any], list[int | None]]] = {
    "gpt2": ({"n_embd": 32, "n_layer": DEPTH, "n_head": 4, "n_positions": 256}, [None] * DEPTH),
    "llama": (SIZES, [None] * DEPTH),
    "mistral": ({**SIZES, "sliding_window": 5}, [5] * DEPTH),
    "qwen2": ({**SIZES, "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}, [None, 6, 6]),
    "qwen3": (_SIZED, [None] * DEPTH),
    "phi3": ({**SIZES, "original_max_position_embeddings": 256, "sliding_window": 5}, [5] * DEPTH),
    "olmo2": (SIZES, [None] * DEPTH),
    # A cap this low bends most of the logits, so code that forgets it cannot agree.
    "gemma2": ({**_SIZED, **_ALTERNATING, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 3.0}, [6, None, 6]),
    "gemma3_text": ({**_SIZED, **_ALTERNATING, "query_pre_attn_scalar": 8}, [6, None, 6]),
    "gpt_oss": (
        {**_SIZED, **_ALTERNATING, **_EXPERTS, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
        [6, None, 6],
    ),
    "stablelm": (SIZES, [None] * DEPTH),
    "starcoder2": ({**SIZES, "sliding_window": 6}, [6] * DEPTH),
    "smollm3": (
        {**SIZES, "use_sliding_window": True, "sliding_window": 5, "no_rope_layers": [1, 0, 1]},
        [None, 5, None],
    ),
    "cohere2": ({**_SIZED, **_ALTERNATING}, [6, None, 6]),
}
_MODES: dict[str, Any] = {"last": "lasttoken", "mean": "mean", "cls": "cls"}


# Bounded, as two processes share a small machine.
@lru_cache(maxsize=96)
def checkpoint(path: str, dtype: str = "float32", experts: str | None = None) -> RepeatTransformer:
    """A checkpoint as its module; never changed, only copied."""
    options = {"dtype": dtype, **({} if experts is None else {"experts_implementation": experts})}
    return RepeatTransformer(path, model_kwargs=options)


def transformer(
    base: str,
    method: str | Method | None = None,
    stages: Sequence[Stage] = (),
    *,
    dtype: str = "float32",
    **fields: Any,
) -> RepeatTransformer:
    """The input module of a method."""
    experts, limit = fields.pop("experts", None), fields.get("max_seq_length")
    spec = Spec.make(method, stages, fields)
    first = copy.deepcopy(checkpoint(folder(base), dtype, experts))
    first.method, first.layout = {spec.method.name: spec.method.to_dict()}, spec.method.layout
    first.rebind(spec.stages)
    if limit is not None:
        first.max_seq_length = limit
    return first


def pipeline(
    base: str,
    method: str | Method | None = None,
    stages: Sequence[Stage] = (),
    *,
    width: int | None = None,
    normalize: bool = False,
    **fields: Any,
) -> SentenceTransformer:
    """What ``st_reba.build`` makes, without its checks, and not normalized unless that is asked for."""
    first = transformer(base, method, stages, **fields)
    width = width or first.get_embedding_dimension()
    given: Any = Spec.make(
        method, stages, {name: value for name, value in fields.items() if name not in ("dtype", "experts")}
    ).method
    modules: list[torch.nn.Module] = [first]
    if not isinstance(given, ReBA):
        modules.append(Pooling(width, _MODES[given.pooling]))
    elif given.chunk is None:
        modules.append(ReBAPooling(width, given.pooling, given.variant, given.include_special, given.normalize_weights))
    else:
        special = (given.include_special, given.normalize_weights)
        modules.append(ChunkedReBAPooling(width, given.chunk, given.pooling, given.repeats or 2, *special))
    ensemble: Any = first.stage("ensemble")
    if ensemble is not None:
        modules.append(PromptEnsemble())
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


# Methods and poolings, by one name


METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "reba last": ("reba", {}),
    "reba mean": ("reba", {"pooling": "mean"}),
    "published last": ("reba", {"variant": "published"}),
    "published mean": ("reba", {"variant": "published", "pooling": "mean"}),
    "chunked": ("reba", {"chunk": 20}),
    "echo mean": ("echo", {"pooling": "mean"}),
    "echo template": ("echo", {"pooling": "mean", "template": "echo"}),
    "classical last": ("classical", {}),
    "classical cls": ("classical", {"pooling": "cls"}),
    "prompteol": ("prompteol", {}),
}


def of_method(base: Callable[..., str], name: str, tokenizer: str, method: str, **options: Any) -> SentenceTransformer:
    chosen, fields = METHODS[method]
    return pipeline(base(name, tokenizer), chosen, **{"normalize": True, **fields, **options})


def assert_same(got: Any, wanted: Any) -> None:
    for one, other in zip(got, wanted, strict=True):
        assert_close(one, torch.as_tensor(other).double())


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
TWICE = [name for name, (_, _, stages) in PIPELINES.items() if any(each.plan.resolve(2).second for each in stages)]  # type: ignore[attr-defined]


def build(base: str, name: str, **options: Any) -> SentenceTransformer:
    method, fields, stages = PIPELINES[name]
    return pipeline(base, method, stages, **{"normalize": True, **fields, **options})


# Bases with learned positions and dropout, a soft cap, sinks, and hooks in place of the interface.
BASES = ("gpt2", "gemma2", "gpt_oss", "falcon", "bloom")

# What they run where what layers see can be changed, for any number of layers.
PLANNED: list[Any] = [LayerPlan(kind="nosink-bidirectional", k=1)]


def cases(names: tuple[str, ...], architectures: tuple[str, ...]) -> list[tuple[str, str]]:
    """Both, but for plans where what layers see cannot be changed."""
    return [
        (each, name)
        for name in names
        for each in architectures
        if each not in ("falcon", "bloom") or not PIPELINES[name][2]
    ]


def on(base: Callable[..., str], architecture: str, name: str, **options: Any) -> SentenceTransformer:
    """A pipeline on a base of any depth."""
    method, fields, stages = PIPELINES[name]
    # The grouped kernel of experts knows no float64.
    experts = {"experts": "eager"} if architecture == "gpt_oss" else {}
    return pipeline(
        base(architecture), method, PLANNED if stages else [], **{"normalize": True, **fields, **experts, **options}
    )


def features_of(model: SentenceTransformer, texts: Sequence[str] = TEXTS) -> Features:
    first: Any = model[0]
    return dict(first.preprocess(list(texts)))


def sentences(model: SentenceTransformer, features: Features) -> Tensor:
    vectors: Tensor = model(features)["sentence_embedding"]
    return vectors


def enable_checkpointing(model: SentenceTransformer, **options: Any) -> None:
    backbone: Any = model[0].model
    # By its newer name, where it has one.
    enable = getattr(backbone, "activation_checkpointing_enable", backbone.gradient_checkpointing_enable)
    enable(*([options] if options else []))


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
