"""One call from a base to a model: what it puts together, what it keeps, and what it refuses."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import TOKENIZERS, lose, save
from marks import Base, slow_but
from oracle import TEXTS, assert_close
from pipelines import PIPELINES, build, encoded, features_of, made
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

import st_reba
from st_reba import ChunkedReBAPooling, Method, PromptEnsemble, ReBAPooling, RepeatTransformer, method_of
from st_reba.modules import NoSinkTransformer
from st_reba.modules.layout import PARTS, special_tokens

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
    modules = [RepeatTransformer(base("llama"), repeats=3), ReBAPooling(32, "mean"), Normalize()]
    plain = RepeatTransformer(base("llama"))
    assert plain.repeats == 2 and not plain.compute_matched
    by_hand = SentenceTransformer(modules=modules, device="cpu")
    built = build(base("llama"), repeats=3, pooling="mean", normalize=True)
    assert torch.equal(encoded(by_hand), encoded(built)) and method_of(by_hand) is None


def test_prompts_and_fields(base: Base) -> None:
    """A prompt stands in front of the copies, or is the template's instruction."""
    path = base("llama", "bos_eos")
    model: Any = build(path, "echo", prompts={"query": "Find: "})
    wanted = build(path, "echo", template="Find: {text}{text}")
    assert torch.equal(model.encode_query(TEXTS[2:3], convert_to_tensor=True), encoded(wanted, TEXTS[2:3]))
    assert torch.equal(model.encode_document(TEXTS[2:3], convert_to_tensor=True), encoded(model, TEXTS[2:3]))
    taught = build(path, "echo", template="echo-instruct", instruction="Find it")
    wanted = build(path, "echo", template="Instruct: Find it\nQuery: {text}\nQuery again: {text}")
    assert torch.equal(taught.encode_query(TEXTS[2:3], convert_to_tensor=True), encoded(wanted, TEXTS[2:3]))
    bare = build(path, "echo", template="echo-instruct")
    vector = bare.encode_query(TEXTS[2:3], prompt="Find it", convert_to_tensor=True)
    assert torch.equal(vector, encoded(wanted, TEXTS[2:3]))
    field = build(path, "echo", template="{kind}: {text} {text}")
    assert_close(encoded(field, kind="a"), encoded(build(path, "echo", template="a: {text} {text}")).double())


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(("tokenizer", "include"), [("chat", True), ("bos_eos", False)])
def test_nosink_keeps_the_input_of_an_embedder(tmp_path: Path, tokenizer: str, include: bool, side: str) -> None:
    """Chat turns, and a pooling that leaves the prompt out; padding on either side."""
    backend = TOKENIZERS[tokenizer]()
    backend.padding_side, backend.pad_token = side, backend.pad_token or backend.eos_token
    modules = [Transformer(str(save("llama", tmp_path / "base", backend))), Pooling(32, "mean", include_prompt=include)]
    path = str(tmp_path / "embedder")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        SentenceTransformer(modules=modules, prompts={"query": "Find: "}, device="cpu").save_pretrained(path)
    plain = SentenceTransformer(path, device="cpu")
    same = st_reba.build(path, "nosink", setting="baseline", device="cpu")
    converted = st_reba.build(path, "nosink", setting="mask0-bidir", k="all", device="cpu")
    assert converted[0].layer_masks == ["nosink-bidirectional"] * 3
    for text in TEXTS:
        assert_close(torch.tensor(same.encode_query(text)), torch.tensor(plain.encode_query(text)).double())
    alone = torch.stack([torch.tensor(converted.encode_query(text)) for text in TEXTS])
    assert_close(converted.encode_query(list(TEXTS), convert_to_tensor=True), alone.double())
    assert (alone - plain.encode_query(list(TEXTS), convert_to_tensor=True)).abs().max() > 1e-2
    converted.save_pretrained(str(tmp_path / "saved"))
    again = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    assert torch.equal(encoded(again), encoded(converted))
    own = ({"max_seq_length": 20}, {"tokenizer": "mini"}, {"quantization": "nf4"}, {"normalize": False})
    for wrong in (*own, {"config_kwargs": {"output_hidden_states": True}}):
        with pytest.raises(ValueError, match="keeps its own|states of every layer"):
            st_reba.build(path, "nosink", setting="mask0-bidir", k=1, **wrong)
    lose(tmp_path / "embedder" / "model.safetensors", "q_proj")
    with pytest.raises(ValueError, match="weights are missing"):
        st_reba.build(path, "nosink", setting="mask0-bidir", k=1)


def test_another_tokenizer(base: Base, tmp_path: Path) -> None:
    """It may have as many tokens as the base has embeddings."""
    tokenizer = TOKENIZERS["cls_sep"]()
    tokenizer.add_tokens([f"<{number}>" for number in range(512 - len(tokenizer))])
    tokenizer.save_pretrained(tmp_path)
    model = build(base("llama", "bos"), "echo", tokenizer=str(tmp_path))
    wanted = build(base("llama", "cls_sep"), "echo")
    assert torch.equal(encoded(model), encoded(wanted))
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


REFUSALS: dict[str, Callable[[str], Any]] = {
    "option": lambda path: build(path, repeat=2),
    "prompts that are no texts": lambda path: build(path, prompts={"query": 3}),
    "no such device": lambda path: build(path, device="cpuu"),
    "texts without auto": lambda path: build(path, texts=["a"]),
    "auto without texts": lambda path: build(path, "auto"),
    "auto with an option": lambda path: build(path, "auto", texts=["a"], layer=1),
    "tokenizer object": lambda path: build(path, tokenizer=TOKENIZERS["bos"]()),
    "a layer too many": lambda path: build(path, layer=[1, 5]),
    "a layer too few": lambda path: build(path, layer=-5),
    "no attention below the layers": lambda path: build(path, "prompteol", read="attention", layer=0),
    "both slots": lambda path: build(path, template="{text} {reversed}"),
    "layers upside down": lambda path: build(path, layer=[2, 1]),
    "k too large": lambda path: build(path, "nosink", setting="mask0-bidir", k=9),
    "a template's format": lambda path: build(path, template="{text} {text!r}"),
    "an open brace": lambda path: build(path, template="{text} {"),
    "tasks": lambda path: build(path, template={"query": "{text}"}),
    "slots": lambda path: build(path, template={"query": "{text}", "document": "{text}{text}"}),
    "slots of an ensemble": lambda path: build(path, "prompteol", template=["{text}", "{text}{text}"]),
    "repeats beside slots": lambda path: build(path, template="{text}{text}", repeats=3),
    "slots of classical": lambda path: build(path, "classical", template="{text}{text}"),
    "instruction without a place": lambda path: build(path, instruction="x"),
    "no room": lambda path: build(path, max_seq_length=2),
    "more than the positions": lambda path: build(path, max_seq_length=257),
    "more than they later": lambda path: setattr(model := build(path), "max_seq_length", 9999) or encoded(model),
    "no copy": lambda path: RepeatTransformer(path, repeats=0),
    "pooled": lambda path: RepeatTransformer(path, pooled="first"),
    "join": lambda path: RepeatTransformer(path, reading={"of": "states", "first": 1, "last": 2, "join": "sum"}),
    "pooling": lambda path: ReBAPooling(32, "first"),
    "no pieces": lambda path: ChunkedReBAPooling(32, chunk=0),
    "pieces of none": lambda path: ChunkedReBAPooling(32, chunk=4, repeats=0),
    "pieces": lambda path: SentenceTransformer(modules=[RepeatTransformer(path), ChunkedReBAPooling(32, chunk=4)]),
    "weights": lambda path: SentenceTransformer(modules=[RepeatTransformer(path), Pooling(32), PromptEnsemble([1, 1])]),
    "no weights": lambda path: PromptEnsemble([0.0, 0.0]),
    "no number": lambda path: PromptEnsemble([1.0, float("nan")]),
    "weights that cancel": lambda path: build(path, "prompteol", template=["{text} a", "{text} a"], weights=[1, -1]),
    "layers that are not": lambda path: NoSinkTransformer(path, layer_masks=["forward"] * 3, second=[(9, "backward")]),
    "a layer that is not": lambda path: RepeatTransformer(path, reading={"of": "states", "first": 1, "last": 9}),
    "pieces and a prompt": lambda path: build(path, chunk=120).encode("x " * 55, prompt="y " * 50),
    "another device": lambda path: build(path, device="meta", model_kwargs={"device_map": "cpu"}),
    "half a text": lambda path: PromptEnsemble([1.0, 1.0])({"sentence_embedding": torch.ones(3, 2)}),
    "a part of the package": lambda path: PARTS["nothing"],
    "no place": lambda path: special_tokens(lambda text, **_: {"input_ids": [[3]] if isinstance(text, list) else [1]}),
    "a chunk too long": lambda path: build(path, chunk=128),
    "a field without a value": lambda path: encoded(build(path, template="{kind} {text}{text}")),
    "an unknown field": lambda path: build(path)[0].frames(kind="x"),  # type: ignore[operator]
    "an unknown task": lambda path: build(path)[0].frames(task="x"),  # type: ignore[operator]
    "no text": lambda path: build(path)[0].preprocess([3]),  # type: ignore[operator]
    "no pooling": lambda path: SentenceTransformer(modules=[RepeatTransformer(path)]),
    "templates without an ensemble": lambda path: SentenceTransformer(
        modules=[RepeatTransformer(path, template=["{text}a", "{text}"]), Pooling(32)]
    ),
    "another transformer": lambda path: SentenceTransformer(modules=[Transformer(path), ReBAPooling(32)]),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(base: Base, name: str) -> None:
    with pytest.raises(ValueError) as raised:
        REFUSALS[name](base("llama"))
    assert len(str(raised.value).splitlines()) == 1
