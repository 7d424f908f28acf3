"""The module that becomes a graph, run by torch: the vectors of ``encode``, for every method, padding and batch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from marks import Base, slow_but
from pipelines import PIPELINES
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense
from torch.nn.utils.rnn import pad_sequence

import st_reba
from st_reba import QueryShift
from st_reba.onnx.attention import GraphMasks, attend, graph_attention
from st_reba.onnx.graph import EmbeddingGraph

TEXTS = ["A cat sleeps on the roof.", "银行今天关门了。", "hi", "The old mill </s> under the bridge. " * 12, "x"]
# Every pipeline that a graph can hold, and what none of them has.
METHODS: dict[str, dict[str, Any]] = {
    **{name: each for name, each in PIPELINES.items() if name.split()[0] not in ("chunk", "ensemble", "reversed")},
    "reba back": {"setting": "inplace-back", "k": 1, "normalize": False},
    "echo cut": {"method": "echo", "pooling": "mean", "template": "Say: {text} Again: {text}!", "max_seq_length": 70},
    "echo repeats": {"method": "echo", "pooling": "mean", "repeats": 3, "pooled": "repeats"},
    "classical end": {"method": "classical", "pooling": "last", "pooled": "end", "template": "Text: {text}"},
}
_FEW = ("reba mean", "authors mean", "echo end", "mask0")
# Every architecture and every tokenizer meets some methods.
CASES = [
    *(("qwen3", "bos_eos", name) for name in METHODS),
    *(("gemma2", "cls_sep", name) for name, each in METHODS.items() if "reba" in name or "setting" in each),
    *((*base, name) for base in (("gpt2", "plain"), ("gpt_oss", "no_pad_no_eos"), ("mini", "bos")) for name in _FEW),
    *(("bloom", "bos", name) for name in ("echo end", "classical end")),
]


def run(graph: EmbeddingGraph, ids: torch.Tensor, mask: torch.Tensor) -> Any:
    """The vectors [B, d]: each stands at every position."""
    with torch.no_grad(), graph_attention(graph.model):
        states = graph.eval()(ids, mask)
    assert states.shape == (*ids.shape, graph.dimension) and bool((states == states[:, :1]).all())
    return states[:, 0].numpy()


def graph_vectors(graph: EmbeddingGraph, texts: list[str], side: str) -> Any:
    options: dict[str, Any] = {"truncation": graph.max_length is not None, "max_length": graph.max_length}
    found = graph.transformer.tokenizer(texts, split_special_tokens=True, **options)["input_ids"]
    rows = [torch.tensor(each) for each in found]
    ids = pad_sequence(rows, True, 7, side)
    return run(graph, ids, pad_sequence([torch.ones_like(each) for each in rows], True, 0, side))


def build(base: str, **options: Any) -> SentenceTransformer:
    options = {"method": "reba", **options}
    return st_reba.build(base, dtype="float32", device="cpu", check=False, **options)


def difference(found: Any, wanted: Any) -> float:
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


@pytest.mark.parametrize(
    ("architecture", "tokenizer", "name"),
    slow_but(CASES, "gpt_oss", "qwen3", ("gemma2", "cls_sep", "reba last"), rows=True),
)
def test_same_vectors(base: Base, architecture: str, tokenizer: str, name: str) -> None:
    model = build(base(architecture, tokenizer), **METHODS[name])
    before = model[0].model.config._attn_implementation  # type: ignore[union-attr]
    wanted = model.encode(TEXTS)
    graph = EmbeddingGraph(model)
    for side in ("right", "left"):
        assert difference(graph_vectors(graph, TEXTS, side), wanted) < 1e-5
    for row in (0, 2):
        assert difference(graph_vectors(graph, TEXTS[row : row + 1], "right"), wanted[row : row + 1]) < 1e-5
    # The model is as it was.
    assert model[0].model.config._attn_implementation == before  # type: ignore[union-attr]
    assert np.array_equal(model.encode(TEXTS), wanted)


def test_empty_text(base: Base) -> None:
    """Alone, beside another, and where the tokenizer makes no token of it, so that its row is all padding."""
    model = build(base("qwen3", "bos_eos"), pooling="mean")
    wanted = model.encode(["", "not empty"])
    for texts in (["", "not empty"], [""]):
        assert difference(graph_vectors(EmbeddingGraph(model), texts, "left"), wanted[: len(texts)]) < 1e-5
    bare = build(base("gpt2", "plain"))
    found = run(EmbeddingGraph(bare), torch.tensor([[5, 6, 7], [5, 5, 5]]), torch.tensor([[1, 1, 1], [0, 0, 0]]))
    assert difference(found[1], bare.encode("")) < 1e-5


def test_tasks_and_saved_prompts(base: Base) -> None:
    instructed = {"method": "echo", "pooling": "mean", "template": "echo-instruct", "instruction": "Find it."}
    for options in (instructed, {"prompts": {"query": "Question: ", "document": ""}}):
        model = build(base("qwen3"), **options)
        for task, encode in (("query", model.encode_query), ("document", model.encode_document)):
            graph = EmbeddingGraph(model, task)  # type: ignore[arg-type]
            assert difference(graph_vectors(graph, TEXTS, "right"), encode(TEXTS)) < 1e-5
        with pytest.raises(ValueError, match="task="):
            EmbeddingGraph(model)


def test_masks_with_biases() -> None:
    own, (kept, other) = torch.tensor([[[[-0.5, -torch.inf]]]]), (SimpleNamespace(layer_idx=each) for each in (0, 1))
    masks = GraphMasks(SimpleNamespace(layer_masks=["forward", "backward"]))
    assert masks.mask_for_layer(kept, own, True)[0].tolist() == [[[[-0.5, -1e9]]]]
    for call in (lambda: masks.mask_for_layer(other, own, True), lambda: attend(kept, own, own, own, None, sinks=own)):  # type: ignore[arg-type]
        with pytest.raises(ValueError):
            call()


@pytest.mark.parametrize(
    ("says", "options", "change"),
    [
        ("without chunk", {"chunk": 8}, None),
        ("own input", {}, lambda model: setattr(model[0], "own_input", True)),
        ("several templates", {"method": "prompteol", "template": "contrastive"}, None),
        ("reverses", {"method": "prompteol", "template": "{reversed}:"}, None),
        ("topic", {"method": "echo", "template": "{topic} {text} {text}"}, None),
        ("rotary", {}, lambda model: model[0].model.config.update({"rope_parameters": {"rope_type": "dynamic"}})),
        ("float32", {}, lambda model: model[0].model.to(torch.bfloat16)),
        ("truncate_dim", {}, lambda model: setattr(model, "truncate_dim", 8)),
        ("pooling", {"method": "classical"}, lambda model: setattr(model[1], "pooling_mode", "weightedmean")),
        ("pooling", {"normalize": False}, lambda model: model.pop(1)),
        ("Dense", {"normalize": False}, lambda model: model.append(Dense(32, 32, use_residual=True))),
        ("Dense", {}, lambda model: model.append(Dense(32, 8, module_output_name="other"))),
        ("Identity", {}, lambda model: model.append(torch.nn.Identity())),
    ],
)
def test_refused(base: Base, says: str, options: dict[str, Any], change: Any) -> None:
    model = build(base("qwen3"), **options)
    if change is not None:
        EmbeddingGraph(model)
        change(model)
    with pytest.raises(ValueError, match=says):
        EmbeddingGraph(model)


SEARCH_TEMPLATE = {"query": "Query: {text} Word:", "document": "Text: {text}", "similarity": "It says: {text} Word:"}


@pytest.mark.parametrize("task", ["query", "document", "similarity"])
def test_graph_of_a_task_embeds_as_the_model_does(base: Base, task: Any) -> None:
    """The wordings are those of the task."""
    model = build(base("qwen3"), method="prompteol", template=SEARCH_TEMPLATE)
    encode = {"query": model.encode_query, "document": model.encode_document, "similarity": model.encode}[task]
    vectors = graph_vectors(EmbeddingGraph(model, task), TEXTS, "right")
    assert difference(vectors, encode(TEXTS)) < 1e-5


@pytest.mark.parametrize("task", ["query", "document"])
def test_graph_shifts_queries_alone(base: Base, task: Any) -> None:
    model = build(base("qwen3"), method="prompteol", normalize=False)
    width = model.get_embedding_dimension() or 0
    shift = QueryShift(width, torch.linspace(-5, 5, width))
    shifted_model = SentenceTransformer(modules=[*model, shift], device="cpu")
    encode = {"query": shifted_model.encode_query, "document": shifted_model.encode_document}[task]
    vectors = graph_vectors(EmbeddingGraph(shifted_model, task), TEXTS, "right")
    assert difference(vectors, encode(TEXTS)) < 1e-5
    with pytest.raises(ValueError, match="treats a query otherwise.*task='query', 'document' or 'similarity'"):
        EmbeddingGraph(shifted_model)
