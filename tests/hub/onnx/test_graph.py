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
from st_reba.hub.onnx.attention import graph_attention
from st_reba.hub.onnx.graph import EmbeddingGraph
from st_reba.hub.onnx.method import Method, method_of

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
    "reba-published": {"variant": "published"},
    "reba-published-mean": {"variant": "published", "pooling": "mean", "repeats": 3},
    "reba-nosink": {"pooling": "mean", "stages": [st_reba.NoSink("mask0-bidir", k=1)]},
    "reba-backward": {"stages": [st_reba.NoSink("inplace-back", k=1)], "normalize": False},
    "echo": {"method": "echo"},
    "echo-mean": {"method": "echo", "pooling": "mean", "template": "Say: {text} Again: {text}!", "max_seq_length": 70},
    "echo-repeats": {"method": "echo", "pooling": "mean", "repeats": 3, "span": "repeats"},
    "echo-end": {"method": "echo", "pooling": "mean", "span": "last_copy_and_end", "compute_matched": True},
    "classical": {"method": "classical", "pooling": "mean"},
    "classical-last": {"method": "classical", "pooling": "last", "span": "end"},
    "classical-cls": {"method": "classical", "pooling": "cls", "template": "Text: {text}"},
    "prompteol": {"method": "prompteol"},
    "nosink": {"method": "nosink", "setting": "mask0&bidir", "k": 2, "k0": 1, "m": 2},
    "nosink-all": {"method": "nosink", "setting": "mask0-all", "k": 1, "pooling": "last"},
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
]


def graph_vectors(model: SentenceTransformer, method: Method, texts: list[str], side: str) -> Any:
    """What stock pooling makes of the graph's output; the input is laid out here, by hand."""
    tokenizer = model.tokenizer
    rows = []
    for text in texts:
        ids = tokenizer(text, add_special_tokens=False, split_special_tokens=True, verbose=False)["input_ids"]
        whole = tokenizer("a")["input_ids"]
        inner = tokenizer("a", add_special_tokens=False)["input_ids"]
        at = next(i for i in range(len(whole)) if whole[i : i + len(inner)] == inner)
        assert (at, len(whole) - at - len(inner)) == (method.before, method.after)
        rows.append([*whole[:at], *ids[: method.budget], *whole[at + len(inner) :]])
    width = max(map(len, rows))
    ids, mask = torch.full((len(rows), width), 7), torch.zeros(len(rows), width, dtype=torch.long)
    for row, tokens in enumerate(rows):
        place = slice(width - len(tokens), width) if side == "left" else slice(0, len(tokens))
        ids[row, place], mask[row, place] = torch.tensor(tokens), 1
    first: Any = model[0]
    with torch.no_grad(), graph_attention(first.model):
        hidden = EmbeddingGraph(first, method).eval()(ids, mask)
    assert hidden.shape == (len(rows), width, method.dimension)
    pooled = torch.stack([states[real.bool()].mean(dim=0) for states, real in zip(hidden, mask, strict=True)])
    return (torch.nn.functional.normalize(pooled, dim=1) if method.normalized else pooled).numpy()


def build(base: str, **options: Any) -> SentenceTransformer:
    return st_reba.build(base, dtype="float32", device="cpu", check=False, **options)


def difference(found: Any, wanted: Any) -> float:
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


@pytest.mark.parametrize(("architecture", "tokenizer", "name"), slow_but(CASES, "gpt_oss", rows=True))
def test_same_vectors(base: Callable[..., str], architecture: str, tokenizer: str, name: str) -> None:
    model = build(base(architecture, tokenizer), **METHODS[name])
    before = model[0].model.config._attn_implementation  # type: ignore[union-attr]
    wanted = model.encode(TEXTS)
    method = method_of(model)
    for side in ("right", "left"):
        assert difference(graph_vectors(model, method, TEXTS, side), wanted) < 1e-5
    for row in (0, 2):
        assert difference(graph_vectors(model, method, TEXTS[row : row + 1], "right"), wanted[row : row + 1]) < 1e-5
    # The model is as it was.
    assert model[0].model.config._attn_implementation == before  # type: ignore[union-attr]
    assert np.array_equal(model.encode(TEXTS), wanted)


@pytest.mark.parametrize(
    ("architecture", "tokenizer"), [("mini", "bos"), ("qwen3", "bos_eos"), ("gemma3_text", "cls_sep")]
)
def test_empty_text(base: Callable[..., str], architecture: str, tokenizer: str) -> None:
    for options in METHODS["reba-mean"], METHODS["echo-mean"], METHODS["nosink"]:
        model = build(base(architecture, tokenizer), **options)
        texts = ["", "not empty"]
        wanted = model.encode(texts)
        for given, rows in ((texts, wanted), (texts[:1], wanted[:1])):
            assert difference(graph_vectors(model, method_of(model), given, "left"), rows) < 1e-5


def test_text_without_any_token(base: Callable[..., str]) -> None:
    """A tokenizer without special tokens makes no token of an empty text; beside others its row is all padding."""
    model = build(base("gpt2", "plain"))
    first: Any = model[0]
    with torch.no_grad(), graph_attention(first.model):
        graph = EmbeddingGraph(first, method_of(model)).eval()
        hidden = graph(torch.tensor([[5, 6, 7], [5, 5, 5]]), torch.tensor([[1, 1, 1], [0, 0, 0]]))
    vector = torch.nn.functional.normalize(hidden[1, 0], dim=0).numpy()
    assert difference(vector, model.encode("")) < 1e-5


@pytest.mark.parametrize("name", ["reba-mean", "echo-repeats"])
def test_token_vectors(base: Callable[..., str], name: str) -> None:
    """Of mean methods, e_i stands at content token i, and the sentence vector at special tokens."""
    model = build(base("qwen3", "bos_eos"), **METHODS[name], normalize=False)
    text = "A cat sleeps."
    ids = torch.tensor([model.tokenizer(text)["input_ids"]])
    first: Any = model[0]
    with torch.no_grad(), graph_attention(first.model):
        states = EmbeddingGraph(first, method_of(model)).eval()(ids, torch.ones_like(ids))[0].numpy()
    sentence = model.encode(text)
    assert difference(states[0], sentence) < 1e-5 and difference(states[-1], sentence) < 1e-5
    if name == "echo-repeats":
        hidden = first(first.preprocess([text]))["token_embeddings"][0].detach().numpy()
        n = len(states) - 2
        tokens = (hidden[1 + n : 1 + 2 * n] + hidden[1 + 2 * n : 1 + 3 * n]) / 2
    else:
        tokens = np.asarray(model.encode(text, output_value="token_embeddings"))
    assert difference(states[1:-1], tokens) < 1e-5


def test_zeros(base: Callable[..., str]) -> None:
    model = build(base("gpt2", "bos"), pooling="mean", normalize=False, variant="published")
    first: Any = model[0]
    with torch.no_grad():
        first.model.wte.weight[9] = float("nan")
    ids = torch.tensor([[5, 9, 6], [5, 7, 6]])
    method = method_of(model)
    assert first.zeros
    with torch.no_grad(), graph_attention(first.model):
        states = EmbeddingGraph(first, method).eval()(ids, torch.ones_like(ids))
    assert not states[0].any() and states[1].all()


def test_tasks(base: Callable[..., str]) -> None:
    model = build(base("qwen3"), method="echo", pooling="mean", template="echo-instruct", instruction="Find it.")
    for task, encode in (("query", model.encode_query), ("document", model.encode_document)):
        method = method_of(model, task)  # type: ignore[arg-type]
        assert difference(graph_vectors(model, method, TEXTS, "right"), encode(TEXTS)) < 1e-5


def test_saved_prompts(base: Callable[..., str]) -> None:
    model = build(base("qwen3"), prompts={"query": "Question: ", "document": ""})
    assert difference(graph_vectors(model, method_of(model, "query"), TEXTS, "left"), model.encode_query(TEXTS)) < 1e-5
    same = build(base("qwen3"), prompts={"query": "Text: ", "document": "Text: ", "plain": "Text: "})
    same.default_prompt_name = "plain"
    assert difference(graph_vectors(same, method_of(same), TEXTS, "right"), same.encode(TEXTS)) < 1e-5
