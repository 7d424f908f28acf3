"""The module that becomes a graph, run by torch: the vectors of ``encode``, for every method, padding and batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import families
import numpy as np
import pytest
import torch
from marks import Base, slow_but
from numpy.typing import NDArray
from oracle import assert_close
from pipelines import PIPELINES
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

import st_reba
from st_reba import QueryShift, TokenPart
from st_reba.onnx.attention import GraphMasks, attend, graph_attention
from st_reba.onnx.graph import EmbeddingGraph

Vectors = NDArray[np.float32]
PADDING_ID = 7
TEXTS = [
    "A cat sleeps on the roof.",
    "银行今天关门了。",
    "hi",
    "The old mill </s> under the bridge. " * 12,
    "x",
]
_NOT_EXPORTABLE = ("chunk", "ensemble", "reversed")
# Every pipeline that a graph can hold, and what none of them has.
METHODS: dict[str, dict[str, Any]] = {
    "reba back": {"setting": "inplace-back", "k": 1, "normalize": False},
    "echo cut": {
        "method": "echo",
        "pooling": "mean",
        "template": "Say: {text} Again: {text}!",
        "max_seq_length": 70,
    },
    "echo repeats": {
        "method": "echo",
        "pooling": "mean",
        "repeats": 3,
        "pooled": "repeats",
    },
    "attention outputs": {"method": "prompteol", "read": "attention"},
    "classical end": {
        "method": "classical",
        "pooling": "last",
        "pooled": "end",
        "template": "Text: {text}",
    },
}
for _name, _options in PIPELINES.items():
    if _name.split()[0] not in _NOT_EXPORTABLE:
        METHODS[_name] = _options
_FEW_METHODS = ("reba mean", "authors mean", "echo end", "mask0")


def cases() -> list[tuple[str, str, str]]:
    """Architecture, tokenizer and method: every architecture and every tokenizer meets some methods."""
    chosen_cases: list[tuple[str, str, str]] = []
    for method_name, options in METHODS.items():
        chosen_cases.append(("qwen3", "bos_eos", method_name))
        if "reba" in method_name or "setting" in options or "read" in options:
            chosen_cases.append(("gemma2", "cls_sep", method_name))
    for architecture, tokenizer in (
        ("gpt2", "plain"),
        ("gpt_oss", "no_pad_no_eos"),
        ("mini", "bos"),
    ):
        for method_name in _FEW_METHODS:
            chosen_cases.append((architecture, tokenizer, method_name))
    for method_name in ("echo end", "classical end"):
        chosen_cases.append(("bloom", "bos", method_name))
    return chosen_cases


def run(graph: EmbeddingGraph, input_ids: Tensor, attention_mask: Tensor) -> Vectors:
    """The vectors [B, d], each of which stands at every position."""
    with torch.no_grad(), graph_attention(graph.model):
        states = graph.eval()(input_ids, attention_mask)
    assert states.shape == (*input_ids.shape, graph.dimension)
    assert bool((states == states[:, :1]).all())
    vectors: Vectors = states[:, 0].numpy()
    return vectors


def graph_vectors(
    graph: EmbeddingGraph,
    texts: list[str],
    padding_side: Literal["left", "right"] = "right",
) -> Vectors:
    tokenizer: Any = graph.transformer.tokenizer
    encodings = tokenizer(
        texts,
        split_special_tokens=True,
        truncation=graph.max_length is not None,
        max_length=graph.max_length,
    )
    rows = list(map(torch.tensor, encodings["input_ids"]))
    input_ids = pad_sequence(rows, True, PADDING_ID, padding_side)
    masks = list(map(torch.ones_like, rows))
    return run(graph, input_ids, pad_sequence(masks, True, 0, padding_side))


def build(base: str, **options: Any) -> SentenceTransformer:
    options.setdefault("method", "reba")
    return st_reba.build(base, dtype="float32", device="cpu", check=False, **options)


@pytest.mark.parametrize(
    ("architecture", "tokenizer", "method_name"),
    slow_but(cases(), "gpt_oss", "qwen3", ("gemma2", "cls_sep", "reba last"), rows=True),
)
def test_a_graph_gives_the_models_vectors(
    base: Base, architecture: str, tokenizer: str, method_name: str
) -> None:
    model: Any = build(base(architecture, tokenizer), **METHODS[method_name])
    attention_before = model[0].model.config._attn_implementation
    expected_vectors = model.encode(TEXTS)
    graph = EmbeddingGraph(model)
    assert_close(graph_vectors(graph, TEXTS, "right"), expected_vectors)
    assert_close(graph_vectors(graph, TEXTS, "left"), expected_vectors)
    for row in (0, 2):
        assert_close(graph_vectors(graph, [TEXTS[row]]), expected_vectors[row : row + 1])
    # The model is as it was.
    assert model[0].model.config._attn_implementation == attention_before
    assert np.array_equal(model.encode(TEXTS), expected_vectors)


@pytest.mark.parametrize("texts", [["", "not empty"], [""]])
def test_an_empty_text_has_the_models_vector(texts: list[str], base: Base) -> None:
    model = build(base("qwen3", "bos_eos"), pooling="mean")
    assert_close(graph_vectors(EmbeddingGraph(model), texts, "left"), model.encode(texts))


def test_a_row_of_padding_alone_is_an_empty_text(base: Base) -> None:
    """The tokenizer makes no token of an empty text."""
    model = build(base("gpt2", "plain"))
    input_ids = torch.tensor([[5, 6, 7], [5, 5, 5]])
    attention_mask = torch.tensor([[1, 1, 1], [0, 0, 0]])
    vectors = run(EmbeddingGraph(model), input_ids, attention_mask)
    assert_close(vectors[1], model.encode(""))


INSTRUCTED = {
    "method": "echo",
    "pooling": "mean",
    "template": "echo-instruct",
    "instruction": "Find it.",
}


@pytest.mark.parametrize(
    "model_options", [INSTRUCTED, {"prompts": {"query": "Question: ", "document": ""}}]
)
def test_a_graph_holds_the_prompt_of_its_task(model_options: dict[str, Any], base: Base) -> None:
    model = build(base("qwen3"), **model_options)
    query_graph = EmbeddingGraph(model, "query")
    assert_close(graph_vectors(query_graph, TEXTS), model.encode_query(TEXTS))
    document_graph = EmbeddingGraph(model, "document")
    assert_close(graph_vectors(document_graph, TEXTS), model.encode_document(TEXTS))
    with pytest.raises(ValueError, match="task="):
        EmbeddingGraph(model)


BIASED_MASK = torch.tensor([[[[-0.5, -torch.inf]]]])


def layer(index: int) -> Any:
    return SimpleNamespace(layer_idx=index)


def graph_masks() -> GraphMasks:
    transformer: Any = SimpleNamespace(layer_masks=["forward", "backward"], second=(), m=1)
    return GraphMasks(transformer)


def test_position_biases_stay_in_a_native_mask() -> None:
    mask = graph_masks().mask_for_layer(layer(0), BIASED_MASK, True).mask
    assert mask is not None
    assert mask.tolist() == [[[[-0.5, -1e9]]]]


def test_a_mask_with_position_biases_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="position biases"):
        graph_masks().mask_for_layer(layer(1), BIASED_MASK, True)


def test_an_unknown_term_of_attention_is_refused() -> None:
    with pytest.raises(ValueError, match="'sinks'"):
        attend(layer(0), BIASED_MASK, BIASED_MASK, BIASED_MASK, None, sinks=BIASED_MASK)


def set_dynamic_rotation(model: Any) -> None:
    model[0].model.config.update({"rope_parameters": {"rope_type": "dynamic"}})


def set_dense_output(model: Any) -> None:
    model.append(Dense(32, 8, module_output_name="other"))


@pytest.mark.parametrize(
    ("message", "model_options", "change_model"),
    [
        ("without chunk", {"chunk": 8}, None),
        ("own input", {}, lambda model: setattr(model[0], "own_input", True)),
        ("several templates", {"method": "prompteol", "template": "contrastive"}, None),
        ("reverses", {"method": "prompteol", "template": "{reversed}:"}, None),
        ("topic", {"method": "echo", "template": "{topic} {text} {text}"}, None),
        ("rotary", {}, set_dynamic_rotation),
        ("float32", {}, lambda model: model[0].model.to(torch.bfloat16)),
        ("truncate_dim", {}, lambda model: setattr(model, "truncate_dim", 8)),
        (
            "pooling",
            {"method": "classical"},
            lambda model: setattr(model[1], "pooling_mode", "weightedmean"),
        ),
        ("pooling", {"normalize": False}, lambda model: model.pop(1)),
        (
            "Dense",
            {"normalize": False},
            lambda model: model.append(Dense(32, 32, use_residual=True)),
        ),
        ("Dense", {}, set_dense_output),
        ("Identity", {}, lambda model: model.append(torch.nn.Identity())),
    ],
)
def test_a_model_that_no_graph_can_hold_is_refused(
    message: str,
    model_options: dict[str, Any],
    change_model: Callable[[Any], object] | None,
    base: Base,
) -> None:
    model = build(base("qwen3"), **model_options)
    if change_model is not None:
        EmbeddingGraph(model)
        change_model(model)
    with pytest.raises(ValueError, match=message):
        EmbeddingGraph(model)


def test_a_decoder_inside_its_model_is_no_tower(tmp_path: Path) -> None:
    families.save("opt", tmp_path)
    EmbeddingGraph(st_reba.build(tmp_path, "echo", device="cpu"))


SEARCH_TEMPLATE = {
    "query": "Query: {text} Word:",
    "document": "Text: {text}",
    "similarity": "It says: {text} Word:",
}


@pytest.mark.parametrize("task", ["query", "document", "similarity"])
def test_a_graph_holds_the_template_of_its_task(base: Base, task: Any) -> None:
    model = build(base("qwen3"), method="prompteol", template=SEARCH_TEMPLATE)
    encoders = {
        "query": model.encode_query,
        "document": model.encode_document,
        "similarity": model.encode,
    }
    vectors = graph_vectors(EmbeddingGraph(model, task), TEXTS)
    assert_close(vectors, encoders[task](TEXTS))


SIMILARITY_FIELD = {
    "query": 'Q "{text}":"',
    "document": 'D "{text}":"',
    "similarity": '{style} "{text}":"',
}


@pytest.mark.parametrize(
    ("template", "task", "remedy"),
    [
        (SIMILARITY_FIELD, None, r"Give task='query', .* \(--task\)"),
        (SIMILARITY_FIELD, "similarity", "Build it with .* in place of {style}"),
        ('{style} "{text}":"', None, "Build it with .* in place of {style}"),
        ('{instruction} "{text}":"', None, "Build it with instruction="),
    ],
    ids=["in one task", "in the exported task", "in all tasks", "the instruction"],
)
def test_a_field_without_a_value_is_refused_with_a_remedy(
    base: Base, template: Any, task: Any, remedy: str
) -> None:
    model = st_reba.build(base("deep"), "prompteol", template=template)
    with pytest.raises(ValueError, match=remedy):
        EmbeddingGraph(model, task)


def test_a_task_without_the_field_is_exported(base: Base) -> None:
    model = st_reba.build(base("deep"), "prompteol", template=SIMILARITY_FIELD)
    vectors = graph_vectors(EmbeddingGraph(model, "query"), TEXTS)
    assert_close(vectors, model.encode_query(TEXTS))


@pytest.mark.parametrize("task", ["query", "document"])
def test_a_graph_shifts_queries_alone(base: Base, task: Any) -> None:
    model = build(base("qwen3"), method="prompteol", normalize=False)
    width = model.get_embedding_dimension() or 0
    query_shift = QueryShift(width, torch.linspace(-5, 5, width))
    shifted_model = SentenceTransformer(modules=[*model, query_shift], device="cpu")
    encoders = {
        "query": shifted_model.encode_query,
        "document": shifted_model.encode_document,
    }
    vectors = graph_vectors(EmbeddingGraph(shifted_model, task), TEXTS)
    assert_close(vectors, encoders[task](TEXTS))
    message = "treats a query otherwise.*task='query', 'document' or 'similarity'"
    with pytest.raises(ValueError, match=message):
        EmbeddingGraph(shifted_model)


def with_token_part(model: SentenceTransformer) -> SentenceTransformer:
    """A model that appends vectors of tokens, by numbers that are drawn."""
    generator = torch.Generator().manual_seed(0)
    width = model.get_embedding_dimension() or 0
    token_part = TokenPart(width, len(model.tokenizer), width, 3, share=0.4)
    for name, buffer in token_part.named_buffers():
        drawn_numbers = torch.rand(buffer.shape, generator=generator)
        buffer.copy_(drawn_numbers if name == "token_weights" else drawn_numbers - 0.5)
    return SentenceTransformer(modules=[*model, token_part], device="cpu")


@pytest.mark.parametrize("task", ["query", "document"])
def test_a_graph_appends_the_vectors_of_tokens(base: Base, task: Any) -> None:
    model = with_token_part(build(base("qwen3"), method="prompteol", template=SEARCH_TEMPLATE))
    encoders = {"query": model.encode_query, "document": model.encode_document}
    # A graph gets no token of what was cut.
    whole_texts = [text for text in TEXTS if len(text) < 100] + [""]
    vectors = graph_vectors(EmbeddingGraph(model, task), whole_texts)
    assert_close(vectors, encoders[task](whole_texts))
    with pytest.raises(ValueError, match="treats a query otherwise"):
        EmbeddingGraph(model)
