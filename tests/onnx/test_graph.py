"""The module that becomes a graph, run by torch: the vectors of ``encode``, for every method, padding and batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from marks import slow_but
from sentence_transformers import SentenceTransformer

import st_reba
from st_reba.onnx.attention import graph_attention
from st_reba.onnx.graph import EmbeddingGraph

TEXTS = ["A cat sleeps on the roof.", "银行今天关门了。", "hi", "The old mill </s> under the bridge. " * 12, "x"]
METHODS: dict[str, dict[str, Any]] = {
    "reba": {},
    "reba-mean": {"pooling": "mean"},
    "reba-weights": {
        "pooling": "mean",
        "normalize_weights": True,
        "include_special": True,
        "template": "{text} / {text}",
    },
    "reba-authors": {"implementation": "authors"},
    "reba-authors-mean": {"implementation": "authors", "pooling": "mean", "repeats": 3},
    "reba-nosink": {"pooling": "mean", "setting": "mask0-bidir", "k": 1},
    "reba-backward": {"setting": "inplace-back", "k": 1, "normalize": False},
    "reba-inter": {"pooling": "mean", "setting": "inter-bidir", "k": 1},
    "echo": {"method": "echo"},
    "echo-mean": {"method": "echo", "pooling": "mean", "template": "Say: {text} Again: {text}!", "max_seq_length": 70},
    "echo-repeats": {"method": "echo", "pooling": "mean", "repeats": 3, "pooled": "repeats"},
    "echo-end": {"method": "echo", "pooling": "mean", "pooled": "last_copy_and_end", "compute_matched": True},
    "echo-layer": {"method": "echo", "pooling": "mean", "layer": 1},
    "classical": {"method": "classical", "pooling": "mean"},
    "classical-last": {"method": "classical", "pooling": "last", "pooled": "end"},
    "classical-cls": {"method": "classical", "pooling": "cls", "template": "Text: {text}"},
    "prompteol": {"method": "prompteol"},
    "nosink": {"method": "nosink", "setting": "mask0&bidir", "k": 2, "k0": 1, "m": 2},
    "nosink-all": {"method": "nosink", "setting": "mask0-all", "k": 1, "pooling": "last"},
    "nosink-extra": {"method": "nosink", "setting": "extra-back", "k": 2},
    "nosink-extend": {"method": "nosink", "setting": "extend-bidir", "k": 2},
    "nosink-rerouted": {"method": "nosink", "setting": "rerouted", "k": 1},
    "layer": {"layer": 1},
    "layers": {"method": "classical", "pooling": "mean", "layer": [0, -1], "final_norm": False},
    "outputs": {"method": "classical", "pooling": "mean", "read": "attention"},
    "layers-concat": {"pooling": "mean", "layer": [1, 2], "join": "concat", "normalize": False},
}
_FEW = ("reba-mean", "echo", "nosink")
# Every architecture and every tokenizer meets many methods.
CASES = [
    *(("gpt2", "plain", name) for name in METHODS),
    *(("qwen3", "bos_eos", name) for name in METHODS),
    *(("gemma2", "cls_sep", name) for name in METHODS if "reba" in name or "nosink" in name),
    *(("gpt_oss", "no_pad_no_eos", name) for name in _FEW),
    *(("mistral", "bos", name) for name in _FEW),
    *(("mini", "bos", name) for name in _FEW),
    *(("bloom", "bos", name) for name in ("echo-layer", "classical")),
]


def graph_vectors(graph: EmbeddingGraph, texts: list[str], side: str) -> Any:
    """What stock pooling makes of the graph's output; the input is laid out here, by hand."""
    tokenizer = graph.first.tokenizer
    rows = []
    for text in texts:
        ids = tokenizer(text, add_special_tokens=False, split_special_tokens=True, verbose=False)["input_ids"]
        whole = tokenizer("a")["input_ids"]
        inner = tokenizer("a", add_special_tokens=False)["input_ids"]
        at = next(i for i in range(len(whole)) if whole[i : i + len(inner)] == inner)
        assert (at, len(whole) - at - len(inner)) == (graph.before, graph.after)
        rows.append([*whole[:at], *ids[: graph.budget], *whole[at + len(inner) :]])
    width = max(map(len, rows))
    ids, mask = torch.full((len(rows), width), 7), torch.zeros(len(rows), width, dtype=torch.long)
    for row, tokens in enumerate(rows):
        place = slice(width - len(tokens), width) if side == "left" else slice(0, len(tokens))
        ids[row, place], mask[row, place] = torch.tensor(tokens), 1
    hidden = run(graph, ids, mask)
    assert hidden.shape == (len(rows), width, graph.dimension)
    pooled = torch.stack([states[real.bool()].mean(dim=0) for states, real in zip(hidden, mask, strict=True)])
    return (torch.nn.functional.normalize(pooled, dim=1) if graph.normalized else pooled).numpy()


def run(graph: EmbeddingGraph, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    with torch.no_grad(), graph_attention(graph.model):
        return graph.eval()(ids, mask)


def build(base: str, **options: Any) -> SentenceTransformer:
    options = {"method": "reba", **options}
    return st_reba.build(base, dtype="float32", device="cpu", check=False, **options)


def difference(found: Any, wanted: Any) -> float:
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


@pytest.mark.parametrize(("architecture", "tokenizer", "name"), slow_but(CASES, "gpt_oss", "qwen3", rows=True))
def test_same_vectors(base: Callable[..., str], architecture: str, tokenizer: str, name: str) -> None:
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


def test_empty_text(base: Callable[..., str]) -> None:
    """Alone, beside another, and where the tokenizer makes no token of it, so that its row is all padding."""
    model = build(base("qwen3", "bos_eos"), pooling="mean")
    wanted = model.encode(["", "not empty"])
    for texts in (["", "not empty"], [""]):
        assert difference(graph_vectors(EmbeddingGraph(model), texts, "left"), wanted[: len(texts)]) < 1e-5
    bare = build(base("gpt2", "plain"))
    hidden = run(EmbeddingGraph(bare), torch.tensor([[5, 6, 7], [5, 5, 5]]), torch.tensor([[1, 1, 1], [0, 0, 0]]))
    assert difference(torch.nn.functional.normalize(hidden[1, 0], dim=0).numpy(), bare.encode("")) < 1e-5


@pytest.mark.parametrize("name", ["reba-mean", "echo-repeats"])
def test_token_vectors(base: Callable[..., str], name: str) -> None:
    """Of mean methods, e_i stands at content token i, and the sentence vector at special tokens."""
    model = build(base("qwen3", "bos_eos"), **METHODS[name], normalize=False)
    text = "A cat sleeps."
    ids = torch.tensor([model.tokenizer(text)["input_ids"]])
    states = run(EmbeddingGraph(model), ids, torch.ones_like(ids))[0].numpy()
    sentence, first = model.encode(text), model[0]
    assert difference(states[0], sentence) < 1e-5 and difference(states[-1], sentence) < 1e-5
    if name == "echo-repeats":
        hidden = first(first.preprocess([text]))["token_embeddings"][0].detach().numpy()  # type: ignore[operator]
        n = len(states) - 2
        tokens = (hidden[1 + n : 1 + 2 * n] + hidden[1 + 2 * n : 1 + 3 * n]) / 2
    else:
        tokens = np.asarray(model.encode(text, output_value="token_embeddings"))
    assert difference(states[1:-1], tokens) < 1e-5


def test_zeros_of_a_text_that_is_not_finite(base: Callable[..., str]) -> None:
    model = build(base("gpt2", "bos"), pooling="mean", normalize=False, implementation="authors")
    graph = EmbeddingGraph(model)
    with torch.no_grad():
        graph.model.wte.weight[9] = float("nan")
    ids = torch.tensor([[5, 9, 6], [5, 7, 6]])
    states = run(graph, ids, torch.ones_like(ids))
    assert not states[0].any() and states[1].all()


def test_tasks_and_saved_prompts(base: Callable[..., str]) -> None:
    models = [
        build(base("qwen3"), method="echo", pooling="mean", template="echo-instruct", instruction="Find it."),
        build(base("qwen3"), prompts={"query": "Question: ", "document": ""}),
    ]
    for model in models:
        for task, encode in (("query", model.encode_query), ("document", model.encode_document)):
            graph = EmbeddingGraph(model, task)  # type: ignore[arg-type]
            assert difference(graph_vectors(graph, TEXTS, "right"), encode(TEXTS)) < 1e-5
