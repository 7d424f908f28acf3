"""One call from a base to a model: what it puts together, what it keeps, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from architectures import TOKENIZERS, lose, save
from marks import Base, slow_but
from oracle import TEXTS, assert_close
from pipelines import PIPELINES, build, build_pipeline, encoded, features_of, save_and_load
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

import st_reba
from st_reba import (
    ChunkedReBAPooling,
    Filter,
    Method,
    PromptEnsemble,
    ReBAPooling,
    RepeatTransformer,
    method_of,
)
from st_reba.modules import NoSinkTransformer
from st_reba.modules.extensions import extensions
from st_reba.modules.layout import special_tokens

# One of each kind of option.
DESCRIBED_PIPELINES = (
    "reba mean",
    "authors mean",
    "chunk mean",
    "echo end",
    "ensemble",
    "reversed",
    "outputs",
    "mask0",
    "concat",
    "inter authors",
    "rerouted",
    "layers",
)


@pytest.mark.parametrize("name", slow_but(PIPELINES, *DESCRIBED_PIPELINES))
def test_a_model_keeps_its_method_when_it_is_saved(base: Base, name: str, tmp_path: Path) -> None:
    options = dict(PIPELINES[name])
    method = Method(options.pop("method"), **options)
    model = build_pipeline(base("llama"), name, normalize=True)
    vectors = encoded(model)
    assert method_of(model) == method
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(len(TEXTS)))
    loaded_model = save_and_load(model, tmp_path)
    assert method_of(loaded_model) == method
    assert torch.equal(encoded(loaded_model), vectors)
    assert torch.equal(encoded(build(base("llama"), str(method), normalize=True)), vectors)


def test_modules_put_together_by_hand_are_those_of_build(base: Base) -> None:
    modules = [RepeatTransformer(base("llama"), repeats=3), ReBAPooling(32, "mean"), Normalize()]
    model = SentenceTransformer(modules=modules, device="cpu")
    assert method_of(model) is None
    built_model = build(base("llama"), repeats=3, pooling="mean", normalize=True)
    assert torch.equal(encoded(model), encoded(built_model))


def test_a_transformer_makes_two_copies_and_pools_the_last_by_default(base: Base) -> None:
    transformer = RepeatTransformer(base("llama"))
    assert (transformer.copies, transformer.pooled) == (2, "last_copy")
    assert not transformer.compute_matched
    assert transformer.causal


def test_a_prompt_stands_in_front_of_the_copies(base: Base) -> None:
    base_path, text = base("llama", "bos_eos"), TEXTS[2]
    model = build(base_path, "echo", prompts={"query": "Find: "})
    expected_vector = build(base_path, "echo", template="Find: {text}{text}").encode(text)
    assert np.array_equal(model.encode_query(text), expected_vector)
    assert np.array_equal(model.encode_document(text), model.encode(text))


def test_a_prompt_is_the_instruction_of_a_template_that_has_one(base: Base) -> None:
    base_path, text = base("llama", "bos_eos"), TEXTS[2]
    template = "Instruct: Find it\nQuery: {text}\nQuery again: {text}"
    expected_vector = build(base_path, "echo", template=template).encode(text)
    instructed_model = build(base_path, "echo", template="echo-instruct", instruction="Find it")
    assert np.array_equal(instructed_model.encode_query(text), expected_vector)
    model = build(base_path, "echo", template="echo-instruct")
    assert np.array_equal(model.encode_query(text, prompt="Find it"), expected_vector)


def test_a_field_is_filled_with_the_text(base: Base) -> None:
    base_path = base("llama", "bos_eos")
    model = build(base_path, "echo", template="{kind}: {text} {text}")
    expected_vectors = encoded(build(base_path, "echo", template="a: {text} {text}")).double()
    assert_close(encoded(model, kind="a"), expected_vectors)


MASKED = "nosink:setting=mask0-bidir,k=all"


def save_embedder(
    folder: Path, tokenizer_name: str, padding_side: str, include_prompt: bool
) -> str:
    """A model of sentence-transformers with chat turns, or with a pooling that leaves the prompt out."""
    tokenizer = TOKENIZERS[tokenizer_name]()
    tokenizer.padding_side = padding_side
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    transformer = Transformer(str(save("llama", folder / "base", tokenizer)))
    modules = [transformer, Pooling(32, "mean", include_prompt=include_prompt)]
    model = SentenceTransformer(modules=modules, prompts={"query": "Find: "}, device="cpu")
    embedder_path = str(folder / "embedder")
    model.save_pretrained(embedder_path)
    return embedder_path


def query_vectors(model: SentenceTransformer) -> torch.Tensor:
    """Vectors of the texts as queries, each alone."""
    return torch.stack([torch.tensor(model.encode_query(text)) for text in TEXTS])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("padding_side", ["left", "right"])
@pytest.mark.parametrize(("tokenizer_name", "include_prompt"), [("chat", True), ("bos_eos", False)])
def test_nosink_keeps_the_input_of_an_embedder(
    tmp_path: Path,
    tokenizer_name: str,
    include_prompt: bool,
    padding_side: str,
) -> None:
    embedder_path = save_embedder(tmp_path, tokenizer_name, padding_side, include_prompt)
    plain_vectors = query_vectors(SentenceTransformer(embedder_path, device="cpu"))
    baseline_model = st_reba.build(embedder_path, "nosink:setting=baseline", device="cpu")
    assert_close(query_vectors(baseline_model), plain_vectors.double())
    masked_model = st_reba.build(embedder_path, MASKED, device="cpu")
    masked_vectors = query_vectors(masked_model)
    assert (masked_vectors - plain_vectors).abs().max() > 1e-2
    batch_vectors = masked_model.encode_query(list(TEXTS), convert_to_tensor=True)
    assert_close(batch_vectors, masked_vectors.double())
    assert masked_model[0].layer_masks == ["nosink-bidirectional"] * 3
    loaded_model = save_and_load(masked_model, tmp_path / "saved")
    assert torch.equal(encoded(loaded_model), encoded(masked_model))


@pytest.mark.parametrize(
    "options",
    [
        {"max_seq_length": 20},
        {"tokenizer": "mini"},
        {"quantization": "nf4"},
        {"normalize": False},
        {"config_kwargs": {"output_hidden_states": True}},
    ],
    ids=str,
)
def test_options_that_an_embedder_keeps_are_refused(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    embedder_path = save_embedder(tmp_path, "bos_eos", "right", True)
    with pytest.raises(ValueError, match="keeps its own|states of every layer"):
        st_reba.build(embedder_path, MASKED, **options)


def test_nosink_on_an_embedder_takes_a_filter(tmp_path: Path) -> None:
    embedder_path = save_embedder(tmp_path, "bos_eos", "right", True)
    vectors = np.random.default_rng(0).normal(size=(200, 32)).astype(np.float32)
    filter_path = tmp_path / "center.safetensors"
    Filter.fit(vectors, "center").save(filter_path)
    model = st_reba.build(embedder_path, MASKED, filter=str(filter_path), device="cpu")
    names = [type(module).__name__ for module in model]
    assert names == ["NoSinkTransformer", "Pooling", "Dense"]
    unfiltered_model = st_reba.build(embedder_path, MASKED, device="cpu")
    expected_vectors = Filter.load(filter_path).apply(encoded(unfiltered_model).numpy())
    np.testing.assert_allclose(encoded(model).numpy(), expected_vectors, atol=1e-5)


def test_an_embedder_without_all_weights_is_refused(tmp_path: Path) -> None:
    embedder_path = save_embedder(tmp_path, "bos_eos", "right", True)
    lose(Path(embedder_path, "model.safetensors"), "q_proj")
    with pytest.raises(ValueError, match="weights are missing"):
        st_reba.build(embedder_path, MASKED)


def test_another_tokenizer_may_have_as_many_tokens_as_there_are_embeddings(
    base: Base, tmp_path: Path
) -> None:
    tokenizer = TOKENIZERS["cls_sep"]()
    missing_count = 512 - len(tokenizer)
    tokenizer.add_tokens([f"<{number}>" for number in range(missing_count)])
    tokenizer.save_pretrained(tmp_path)
    model = build(base("llama", "bos"), "echo", tokenizer=str(tmp_path))
    assert torch.equal(encoded(model), encoded(build(base("llama", "cls_sep"), "echo")))
    tokenizer.add_tokens(["<one more>"])
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="513 ids"):
        build(base("llama", "bos"), "echo", tokenizer=str(tmp_path))


def test_the_largest_chunk_that_fits_is_accepted(base: Base) -> None:
    # Two copies, and a token on either side.
    build(base("llama", "bos_eos"), chunk=127, max_seq_length=256)


def test_chunks_are_repeated_and_a_template_holds_one(base: Base) -> None:
    model = build(base("llama"), chunk=16, repeats=3, template="About {text}")
    assert model[0].copies == 1
    assert model[1].repeats == 3


@pytest.mark.parametrize(("tokenizer", "is_warned"), [("bos", False), ("cls_sep", True)])
def test_a_token_after_the_prompt_is_told(
    base: Base, tokenizer: str, is_warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """PromptEOL is to be read where the model is about to say a word."""
    build(base("llama", tokenizer), "prompteol")
    assert ("appends '[SEP]', so the vector is read there" in caplog.text) == is_warned


def test_layers_may_be_counted_from_the_top(base: Base) -> None:
    base_path = base("llama", "bos_eos")
    lowest_model = build(base_path, "echo", layer=-4)
    embeddings_model = build(base_path, "echo", layer=0)
    assert torch.equal(encoded(lowest_model), encoded(embeddings_model))


def test_the_last_of_the_remaining_layers_needs_no_reader(base: Base) -> None:
    assert build(base("llama", "bos_eos"), layer=1)[0].reading is None


def test_features_without_spans_give_the_same_vectors(base: Base) -> None:
    """A training loop splits features so."""
    model = build_pipeline(base("llama"), "reba mean")
    features = features_of(model)
    expected_vectors = model(dict(features))["sentence_embedding"]
    features.pop("spans")
    later_features = {name: value[1:] for name, value in features.items()}
    assert torch.equal(model(later_features)["sentence_embedding"], expected_vectors[1:])


CANCELLING = {"template": ["{text} a", "{text} a"], "weights": [1, -1]}
CANCELLING_QUERIES = {
    "template": [
        {"query": "{text} a", "document": "{text} b"},
        {"query": "{text} a", "document": "{text} c"},
    ],
    "weights": [1, -1],
}
# Options, and a part of the message that refuses them.
REFUSED_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"repeat": 2}, "repeat=2"),
    ({"prompts": {"query": 3}}, "prompts={'query': 3}"),
    ({"device": "cpuu"}, "device='cpuu'"),
    ({"device": "meta", "model_kwargs": {"device_map": "cpu"}}, "device='meta'"),
    ({"tokenizer": TOKENIZERS["bos"]()}, "tokenizer="),
    ({"texts": ["a"]}, "texts=…"),
    ({"method": "auto"}, "needs texts=…"),
    ({"method": "auto", "texts": ["a"], "layer": 1}, "chooses layer"),
    ({"layer": [1, 5]}, "layer=(1, 5)"),
    ({"layer": [2, 1]}, "layer=(2, 1)"),
    ({"layer": -5}, "layer=-5"),
    ({"layer": [-6, 3]}, "layer=(-6, 3)"),
    ({"method": "prompteol:read=attention,layer=0"}, "layer=0"),
    ({"method": "nosink:setting=mask0-bidir,k=9"}, "k=9"),
    ({"template": "{text} {reversed}"}, "mixes {text} and {reversed}"),
    ({"template": "{features} {text}"}, "the name of an argument of encode"),
    ({"template": "{text} {text!r}"}, "a field that is not a plain name"),
    ({"template": "{text} {"}, "template='{text} {' is malformed"),
    ({"template": {"query": "{text}"}}, "the keys query, document"),
    ({"template": {"query": "{text}", "document": "{text}{text}"}}, "same number of {text} slots"),
    ({"template": "{text}{text}", "repeats": 3}, "repeats=3"),
    ({"method": "classical", "template": "{text}{text}"}, "template has 2 {text} slots"),
    ({"method": "prompteol", "template": ["{text}", "{text}{text}"]}, "number of {text} slots"),
    ({"method": "prompteol", **CANCELLING}, "weights=(1, -1)"),
    ({"method": "prompteol", **CANCELLING_QUERIES}, "task='query' cancel each other"),
    ({"instruction": "x"}, "instruction='x'"),
    ({"max_seq_length": 2}, "max_seq_length=2 "),
    ({"max_seq_length": 257}, "max_seq_length=257"),
    ({"chunk": 128}, "chunk=128"),
]


@pytest.mark.parametrize(("options", "part_of_message"), REFUSED_OPTIONS, ids=str)
def test_a_refused_option_is_named_in_one_line(
    base: Base, options: dict[str, Any], part_of_message: str
) -> None:
    with pytest.raises(ValueError) as raised:
        build(base("llama"), **options)
    (message,) = str(raised.value).splitlines()
    assert part_of_message in message


def pipeline(*modules: torch.nn.Module) -> SentenceTransformer:
    return SentenceTransformer(modules=list(modules))


def encode_more_than_the_positions(base_path: str) -> None:
    model = build(base_path)
    model.max_seq_length = 9999
    encoded(model)


def encode_without_a_limit(base_path: str) -> None:
    model = build(base_path)
    model.max_seq_length = None
    encoded(model)


def find_no_content_token(base_path: str) -> None:
    """A tokenizer that adds no special tokens around a pair, and a token to a text."""
    special_tokens(lambda text, **_: {"input_ids": [[3]] if isinstance(text, list) else [1]})


def read(base_path: str, **reading: Any) -> RepeatTransformer:
    return RepeatTransformer(base_path, reading={"of": "states", "first": 1, **reading})


# Calls with the path of a llama, and a part of the message that refuses them.
REFUSED_CALLS: dict[str, tuple[Callable[[str], object], str]] = {
    "more than the positions": (encode_more_than_the_positions, "max_seq_length=9999"),
    "no limit": (encode_without_a_limit, "max_seq_length=None"),
    "no copy": (lambda path: RepeatTransformer(path, repeats=0), "repeats=0"),
    "unknown positions": (lambda path: RepeatTransformer(path, pooled="first"), "pooled='first'"),
    "unknown join": (lambda path: read(path, last=2, join="sum"), "join='sum'"),
    "an unknown reading": (lambda path: read(path, of="keys", last=2), "of='keys'"),
    "a layer that is not there": (lambda path: read(path, last=9), "layers 1 to 9"),
    "a second run of no layer": (
        lambda path: NoSinkTransformer(path, layer_masks=["forward"] * 3, second=[(9, "backward")]),
        "second=[(9, 'backward')]",
    ),
    "fewer than no sinks": (
        lambda path: NoSinkTransformer(path, layer_masks=["forward"] * 3, m=-1),
        "give an m of 0 or more",
    ),
    "unknown pooling": (lambda path: ReBAPooling(32, "first"), "pooling='first'"),
    "empty pieces": (lambda path: ChunkedReBAPooling(32, chunk=0), "chunk=0"),
    "pieces without a copy": (
        lambda path: ChunkedReBAPooling(32, chunk=4, repeats=0),
        "repeats=0",
    ),
    "weights of zero": (lambda path: PromptEnsemble([0.0, 0.0]), "weights=[0.0, 0.0]"),
    "a weight that is not a number": (
        lambda path: PromptEnsemble([1.0, float("nan")]),
        "weights=[1.0, nan]",
    ),
    "a weight beyond float32": (lambda path: PromptEnsemble([1.0, 1e39]), "weights=[1.0, 1e+39]"),
    "half a text": (
        lambda path: PromptEnsemble([1.0, 1.0])({"sentence_embedding": torch.ones(3, 2)}),
        "3 vectors for 2 templates",
    ),
    "pieces of several copies": (
        lambda path: pipeline(RepeatTransformer(path), ChunkedReBAPooling(32, chunk=4)),
        "Give RepeatTransformer repeats=1",
    ),
    "weights without templates": (
        lambda path: pipeline(RepeatTransformer(path), Pooling(32), PromptEnsemble([1, 1])),
        "weights=[1.0, 1.0]",
    ),
    "templates without an ensemble": (
        lambda path: pipeline(RepeatTransformer(path, template=["{text}a", "{text}"]), Pooling(32)),
        "PromptEnsemble must follow",
    ),
    "no pooling": (lambda path: pipeline(RepeatTransformer(path)), "no pooling follows"),
    "another transformer": (
        lambda path: pipeline(Transformer(path), ReBAPooling(32)),
        "not a Transformer",
    ),
    "pieces and a prompt": (
        lambda path: build(path, chunk=120).encode("x " * 55, prompt="y " * 50),
        "chunk=120",
    ),
    "an unknown extension": (lambda path: extensions.nothing, "lacks 'nothing'"),
    "no content token": (find_no_content_token, "function does not put its special tokens"),
    "a field without a value": (
        lambda path: encoded(build(path, template="{kind} {text}{text}")),
        "{kind} needs one text",
    ),
    "a field that is not a text": (
        lambda path: RepeatTransformer(path, template="{kind} {text}").row_layouts(kind=3),
        "{kind} needs one text",
    ),
    "an unknown field": (lambda path: RepeatTransformer(path).row_layouts(kind="x"), "kind='x'"),
    "an unknown task": (lambda path: RepeatTransformer(path).row_layouts(task="x"), "task='x'"),
    "no text": (lambda path: RepeatTransformer(path).preprocess([3]), "not a text but int: 3"),
}


@pytest.mark.parametrize("fault", REFUSED_CALLS)
def test_a_fault_is_named_in_one_line(base: Base, fault: str) -> None:
    refused_call, part_of_message = REFUSED_CALLS[fault]
    with pytest.raises(ValueError) as raised:
        refused_call(base("llama"))
    (message,) = str(raised.value).splitlines()
    assert part_of_message in message
