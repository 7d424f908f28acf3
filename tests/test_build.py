"""One call from a base to a model: what it puts together, what it keeps, and what it refuses."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from architectures import TOKENIZERS, lose, save
from marks import Base, slow_but
from oracle import TEXTS, assert_close
from pipelines import PIPELINES, build, encoded, features_of
from pipelines import build_pipeline as made
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

import st_reba
from st_reba import ChunkedReBAPooling, Method, PromptEnsemble, ReBAPooling, RepeatTransformer, method_of
from st_reba.modules import NoSinkTransformer
from st_reba.modules.extensions import extensions
from st_reba.modules.layout import special_tokens

# Of each kind of option one.
SAYING = ("reba mean", "authors mean", "chunk mean", "echo end", "ensemble", "reversed", "outputs", "mask0", "concat")


@pytest.mark.parametrize("name", slow_but(PIPELINES, *SAYING, "inter authors", "rerouted", "layers"))
def test_a_model_says_what_it_is(base: Base, name: str, tmp_path: Path) -> None:
    """Its method is the one that was asked for, saved and loaded too, with the same vectors."""
    options = {key: value for key, value in PIPELINES[name].items() if key != "method"}
    model = made(base("llama"), name, normalize=True)
    wanted, vectors = Method(PIPELINES[name]["method"], **options), encoded(model)
    assert method_of(model) == wanted
    model.save_pretrained(str(tmp_path))
    again = SentenceTransformer(str(tmp_path), device="cpu")
    assert method_of(again) == wanted and torch.equal(encoded(again), vectors)
    assert torch.equal(encoded(build(base("llama"), str(wanted), normalize=True)), vectors)
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(len(TEXTS)))


def test_modules_by_hand(base: Base) -> None:
    plain = RepeatTransformer(base("llama"))
    assert (plain.copies, plain.pooled, plain.compute_matched, plain.causal) == (2, "last_copy", False, True)
    modules = [RepeatTransformer(base("llama"), repeats=3), ReBAPooling(32, "mean"), Normalize()]
    by_hand = SentenceTransformer(modules=modules, device="cpu")
    assert method_of(by_hand) is None
    assert torch.equal(encoded(by_hand), encoded(build(base("llama"), repeats=3, pooling="mean", normalize=True)))


def test_prompts_and_fields(base: Base) -> None:
    """A prompt stands in front of the copies, or is the template's instruction."""
    path, text = base("llama", "bos_eos"), TEXTS[2]
    model: Any = build(path, "echo", prompts={"query": "Find: "})
    wanted = build(path, "echo", template="Find: {text}{text}")
    assert np.array_equal(model.encode_query(text), wanted.encode(text))
    assert np.array_equal(model.encode_document(text), model.encode(text))
    wanted = build(path, "echo", template="Instruct: Find it\nQuery: {text}\nQuery again: {text}")
    taught = build(path, "echo", template="echo-instruct", instruction="Find it")
    bare = build(path, "echo", template="echo-instruct")
    for found in (taught.encode_query(text), bare.encode_query(text, prompt="Find it")):
        assert np.array_equal(found, wanted.encode(text))
    field = build(path, "echo", template="{kind}: {text} {text}")
    assert_close(encoded(field, kind="a"), encoded(build(path, "echo", template="a: {text} {text}")).double())


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(("tokenizer", "include"), [("chat", True), ("bos_eos", False)])
def test_nosink_keeps_the_input_of_an_embedder(tmp_path: Path, tokenizer: str, include: bool, side: str) -> None:
    """Chat turns, and a pooling that leaves the prompt out; padding on either side."""
    backend = TOKENIZERS[tokenizer]()
    backend.padding_side, backend.pad_token = side, backend.pad_token or backend.eos_token
    modules = [Transformer(str(save("llama", tmp_path / "base", backend))), Pooling(32, "mean", include_prompt=include)]
    path, methods = str(tmp_path / "embedder"), ("nosink:setting=baseline", "nosink:setting=mask0-bidir,k=all")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        SentenceTransformer(modules=modules, prompts={"query": "Find: "}, device="cpu").save_pretrained(path)
    models = [SentenceTransformer(path, device="cpu"), *(st_reba.build(path, each, device="cpu") for each in methods)]
    plain, same, converted = (torch.stack([torch.tensor(each.encode_query(text)) for text in TEXTS]) for each in models)
    assert_close(same, plain.double())
    assert (converted - plain).abs().max() > 1e-2
    model = models[2]
    assert_close(model.encode_query(list(TEXTS), convert_to_tensor=True), converted.double())
    assert model[0].layer_masks == ["nosink-bidirectional"] * 3
    model.save_pretrained(str(tmp_path / "saved"))
    assert torch.equal(encoded(SentenceTransformer(str(tmp_path / "saved"), device="cpu")), encoded(model))
    own = ({"max_seq_length": 20}, {"tokenizer": "mini"}, {"quantization": "nf4"}, {"normalize": False})
    for wrong in (*own, {"config_kwargs": {"output_hidden_states": True}}):
        with pytest.raises(ValueError, match="keeps its own|states of every layer"):
            st_reba.build(path, methods[1], **wrong)
    lose(tmp_path / "embedder" / "model.safetensors", "q_proj")
    with pytest.raises(ValueError, match="weights are missing"):
        st_reba.build(path, methods[1])


def test_another_tokenizer(base: Base, tmp_path: Path) -> None:
    """It may have as many tokens as the base has embeddings."""
    tokenizer = TOKENIZERS["cls_sep"]()
    tokenizer.add_tokens([f"<{number}>" for number in range(512 - len(tokenizer))])
    tokenizer.save_pretrained(tmp_path)
    model = build(base("llama", "bos"), "echo", tokenizer=str(tmp_path))
    assert torch.equal(encoded(model), encoded(build(base("llama", "cls_sep"), "echo")))
    tokenizer.add_tokens(["<one more>"])
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="513 ids"):
        build(base("llama", "bos"), "echo", tokenizer=str(tmp_path))


def test_the_most_that_may_be_asked_for(base: Base) -> None:
    path = base("llama", "bos_eos")
    build(path, chunk=127, max_seq_length=256)  # two copies, and a token on either side
    lowest, embeddings = (build(path, "echo", layer=layer) for layer in (-4, 0))
    assert torch.equal(encoded(lowest), encoded(embeddings))
    assert build(path, layer=1)[0].reading is None  # the last of the layers that are left


def test_features_without_spans(base: Base) -> None:
    """As a training loop splits them: the same vectors."""
    model = made(base("llama"), "reba mean")
    features = features_of(model)
    wanted = model(dict(features))["sentence_embedding"]
    features.pop("spans")
    assert torch.equal(model({name: each[1:] for name, each in features.items()})["sentence_embedding"], wanted[1:])


def modules(*modules: Any) -> SentenceTransformer:
    return SentenceTransformer(modules=list(modules))


# What build refuses, with the method where it is not ReBA.
OPTIONS: list[dict[str, Any]] = [
    {"repeat": 2}, {"prompts": {"query": 3}}, {"device": "cpuu"}, {"tokenizer": TOKENIZERS["bos"]()}, {"texts": ["a"]},
    {"method": "auto"}, {"method": "auto", "texts": ["a"], "layer": 1}, {"layer": [1, 5]}, {"layer": -5},
    {"layer": [2, 1]}, {"method": "prompteol:read=attention,layer=0"}, {"method": "nosink:setting=mask0-bidir,k=9"},
    {"template": "{text} {reversed}"}, {"template": "{text} {text!r}"}, {"template": "{text} {"},
    {"template": {"query": "{text}"}}, {"template": {"query": "{text}", "document": "{text}{text}"}},
    {"method": "prompteol", "template": ["{text}", "{text}{text}"]}, {"template": "{text}{text}", "repeats": 3},
    {"method": "prompteol", "template": ["{text} a", "{text} a"], "weights": [1, -1]}, {"instruction": "x"},
    {"method": "classical", "template": "{text}{text}"}, {"max_seq_length": 2}, {"max_seq_length": 257},
    {"device": "meta", "model_kwargs": {"device_map": "cpu"}}, {"chunk": 128},
]  # fmt: skip
CALLS: dict[str, Callable[[str], Any]] = {
    "more than the positions": lambda path: setattr(model := build(path), "max_seq_length", 9999) or encoded(model),
    "no copy": lambda path: RepeatTransformer(path, repeats=0),
    "pooled": lambda path: RepeatTransformer(path, pooled="first"),
    "join": lambda path: RepeatTransformer(path, reading={"of": "states", "first": 1, "last": 2, "join": "sum"}),
    "a layer that is not": lambda path: RepeatTransformer(path, reading={"of": "states", "first": 1, "last": 9}),
    "layers that are not": lambda path: NoSinkTransformer(path, layer_masks=["forward"] * 3, second=[(9, "backward")]),
    "pooling": lambda path: ReBAPooling(32, "first"),
    "no pieces": lambda path: ChunkedReBAPooling(32, chunk=0),
    "pieces of none": lambda path: ChunkedReBAPooling(32, chunk=4, repeats=0),
    "no weights": lambda path: PromptEnsemble([0.0, 0.0]),
    "no number": lambda path: PromptEnsemble([1.0, float("nan")]),
    "half a text": lambda path: PromptEnsemble([1.0, 1.0])({"sentence_embedding": torch.ones(3, 2)}),
    "pieces": lambda path: modules(RepeatTransformer(path), ChunkedReBAPooling(32, chunk=4)),
    "weights": lambda path: modules(RepeatTransformer(path), Pooling(32), PromptEnsemble([1, 1])),
    "no ensemble": lambda path: modules(RepeatTransformer(path, template=["{text}a", "{text}"]), Pooling(32)),
    "no pooling": lambda path: modules(RepeatTransformer(path)),
    "another transformer": lambda path: modules(Transformer(path), ReBAPooling(32)),
    "pieces and a prompt": lambda path: build(path, chunk=120).encode("x " * 55, prompt="y " * 50),
    "a part of the package": lambda path: extensions.nothing,
    "no place": lambda path: special_tokens(lambda text, **_: {"input_ids": [[3]] if isinstance(text, list) else [1]}),
    "a field without a value": lambda path: encoded(build(path, template="{kind} {text}{text}")),
    "an unknown field": lambda path: build(path)[0].row_layouts(kind="x"),  # type: ignore[operator]
    "an unknown task": lambda path: build(path)[0].row_layouts(task="x"),  # type: ignore[operator]
    "no text": lambda path: build(path)[0].preprocess([3]),  # type: ignore[operator]
}


@pytest.mark.parametrize("wrong", [*OPTIONS, *CALLS], ids=str)
def test_refusals(base: Base, wrong: Any) -> None:
    with pytest.raises(ValueError) as raised:
        build(base("llama"), **wrong) if isinstance(wrong, dict) else CALLS[wrong](base("llama"))
    assert len(str(raised.value).splitlines()) == 1
