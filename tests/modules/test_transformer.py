"""The first module: its defaults, tokens around a text, weights, and the code that it saves."""

from __future__ import annotations

import ast
import copy
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import reference
import torch
from architectures import TOKENIZERS
from marks import Base
from oracle import assert_close, oracle
from pipelines import build, build_pipeline, encoded, features_of, save_and_load
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Transformer
from tokenizers import normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from st_reba.modules import RepeatTransformer
from st_reba.modules.code import _has_terms, code_of, merged_imports
from st_reba.modules.extensions import Extensions
from st_reba.modules.layout import (
    RowLayout,
    empty_text_token,
    make_row_layout,
    special_tokens,
    tokenize,
)
from st_reba.modules.training import checkpoint_in_pass


def test_bfloat16_products_of_few_processors_are_switched_off(
    base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.nn.Linear, "support_avx512bf16_for_cpu", True, raising=False)
    transformer = RepeatTransformer(base("gemma2"))
    for module in transformer.modules():
        assert not getattr(module, "support_avx512bf16_for_cpu", False)


def test_soft_caps_need_the_packages_attention(base: Base) -> None:
    transformer = RepeatTransformer(base("gemma2"))
    assert transformer.model.config._attn_implementation == "st_reba"


def test_no_keys_are_kept(base: Base) -> None:
    assert not RepeatTransformer(base("gemma2")).config.use_cache


def test_two_copies_that_share_nothing_are_the_default(base: Base) -> None:
    """They fill the 256 positions, but for the token before them."""
    transformer = RepeatTransformer(base("llama"))
    features = transformer.preprocess(["a"])
    assert transformer.copies == features["copy_ids"].max() == 2
    assert transformer.max_seq_length == 256
    assert transformer.budget() == (256 - 1) // 2
    assert set(features) == {"input_ids", "attention_mask", "copy_ids", "spans"}
    assert not transformer.can_share()


def test_more_than_64_copies_are_refused(base: Base) -> None:
    assert RepeatTransformer(base("llama"), repeats=64).copies == 64
    with pytest.raises(ValueError, match="repeats=65"):
        RepeatTransformer(base("llama"), repeats=65)


@pytest.mark.parametrize(
    ("flags", "is_causal"),
    [((True, True, True), True), ((True, False, True), False), ((), False)],
    ids=["all", "not all", "none is known"],
)
def test_a_model_is_causal_if_all_of_its_layers_say_so(
    base: Base, flags: tuple[bool, ...], is_causal: bool
) -> None:
    loaded: Any = Transformer(base("llama"))
    for layer in loaded.model.layers:
        del layer.self_attn.is_causal
    for layer, flag in zip(loaded.model.layers, flags, strict=False):
        layer.self_attn.is_causal = flag
    assert RepeatTransformer(loaded).causal == is_causal


def test_a_processor_without_a_tokenizer_is_refused(base: Base) -> None:
    loaded: Any = Transformer(base("llama"))
    loaded.processor = SimpleNamespace()
    with pytest.raises(ValueError, match="SimpleNamespace holds no tokenizer"):
        RepeatTransformer(loaded)


def test_an_instruction_makes_a_text_a_query(base: Base) -> None:
    transformer: Any = build(base("llama"), "echo", template="echo-instruct")[0]
    query_layout = transformer.row_layouts("Find", "query")
    assert transformer.row_layouts("Find") == query_layout
    assert transformer.row_layouts(instruction="Find") == query_layout


def test_a_text_without_an_instruction_is_a_document(base: Base) -> None:
    transformer: Any = build(base("llama"), "echo", template="echo-instruct")[0]
    document_layout = transformer.row_layouts(task="document")
    assert transformer.row_layouts() == document_layout
    assert document_layout != transformer.row_layouts("Find", "query")


def test_a_text_is_not_cut_and_gets_no_special_tokens() -> None:
    tokenizer = TOKENIZERS["bos_eos"]()
    tokenizer.model_max_length = 2
    tokens = tokenize(tokenizer, ["<s>", "a"])
    assert set(tokens) == {"input_ids"}
    assert [len(token_ids) for token_ids in tokens["input_ids"]] == [3, 1]


def test_special_tokens_in_a_template_are_what_they_name() -> None:
    tokenizer = TOKENIZERS["bos_eos"]()
    bos = (tokenizer.bos_token_id,)
    eos = (tokenizer.eos_token_id,)
    assert special_tokens(tokenizer) == (bos, eos)
    template = (("", "instruction"), ("</s>", "text"))
    row_layout = make_row_layout(tokenizer, template, (eos, bos), "b", {"instruction": "<s>"})
    assert row_layout == RowLayout((eos, bos + eos, None, bos))


def test_an_empty_text_is_a_special_token() -> None:
    tokenizer = SimpleNamespace(eos_token_id=None, sep_token_id=0, pad_token_id=1)
    assert empty_text_token(tokenizer) == 0
    with pytest.raises(ValueError):
        empty_text_token(SimpleNamespace())


@pytest.mark.parametrize(
    ("compute_matched", "limit"),
    [(False, 33), (True, 61), (False, 5), (True, 8)],
)
def test_long_texts_keep_every_copy(base: Base, compute_matched: bool, limit: int) -> None:
    """Cut to ⌊(M − s) / k⌋ tokens per copy, compute-matched to half of them."""
    path = base("llama", "bos_eos")
    text = "The river runs past the old mill and under the bridge. " * 3
    model: Any = build(
        path,
        pooling="mean",
        repeats=3,
        max_seq_length=limit,
        compute_matched=compute_matched,
    )
    budget = model[0].budget()
    tokens_a_copy = (limit - 2) // 3
    assert budget == (tokens_a_copy // 2 if compute_matched else tokens_a_copy)
    oracle_limit = 3 * budget + 2  # the oracle knows no half
    text_layout, hidden_states, fused_attention = oracle(path, text, (None,) * 3, oracle_limit)
    vector = encoded(model, [text, "hi"])[0]
    assert_close(
        vector,
        reference.reba(hidden_states, fused_attention, text_layout, "mean"),
    )


def test_a_prompt_that_leaves_no_room_is_told_by_its_positions(base: Base) -> None:
    model = build(base("llama"), "echo", pooling="mean", max_seq_length=16)
    prompt = "a b c " * 9
    position_count = len(model.tokenizer(prompt)["input_ids"])
    message = (
        rf"max_seq_length=16 .* template and prompt take {position_count} positions\. Shorten them"
    )
    with pytest.raises(ValueError, match=message):
        model.encode("a", prompt=prompt)


def test_the_longest_of_several_templates_leaves_no_room(base: Base) -> None:
    template = ["{text}", "A long wording: {text}", "A word: {text}"]
    transformer = RepeatTransformer(base("llama"), template=template)
    taken = max(len(transformer.text_tokenizer(wording[:-6])["input_ids"]) for wording in template)
    transformer.text_tokenizer.model_max_length = taken
    with pytest.raises(ValueError, match=f"template and prompt take {taken} positions"):
        transformer.budget()


def test_a_limit_beyond_the_positions_is_refused_where_it_is_given(base: Base) -> None:
    transformer = RepeatTransformer(base("llama"), processor_kwargs={"model_max_length": 257})
    with pytest.raises(ValueError, match="max_seq_length=257 is more than the model's 256"):
        transformer.budget()


@pytest.mark.parametrize("pipeline", ["echo last", "reba mean", "mask0"])
def test_states_are_zero_at_padding_alone(base: Base, pipeline: str) -> None:
    model: Any = build_pipeline(base("llama"), pipeline)
    features = features_of(model, ["a", "The river runs past the old mill."])
    is_real = features["attention_mask"].bool()
    with torch.no_grad():
        states = model[0](features)["token_embeddings"]
    assert torch.equal(states.any(dim=2), is_real)


# 10³⁰ is transformers' way of saying that the tokenizer has no limit; the model has 256 positions.
@pytest.mark.parametrize(("token_limit", "budget"), [(256, 250), (10**30, 250)])
def test_a_reversed_text_is_encoded_as_if_reversed_by_hand(
    base: Base, token_limit: int, budget: int
) -> None:
    path = base("llama")
    texts = ["the cat  sat.", "猫在GPU上。", "x"]
    reversed_texts = ["sat.  cat the", "。上GPU在猫", "x"]
    model: Any = build(
        path,
        "prompteol",
        template=["A {text} B", "In {reversed} B"],
        weights=[1.0, 2.0],
    )
    plain_model = build(path, "prompteol", template="A {text} B")
    other_model = build(path, "prompteol", template="In {text} B")
    plain_vectors = torch.nn.functional.normalize(encoded(plain_model, texts).double(), dim=1)
    reversed_vectors = torch.nn.functional.normalize(
        encoded(other_model, reversed_texts).double(), dim=1
    )
    expected_vectors = plain_vectors + 2 * reversed_vectors
    model[0].tokenizer.model_max_length = token_limit
    assert model[0].budget() == budget
    for vector, expected in zip(encoded(model, texts), expected_vectors, strict=True):
        assert_close(vector, expected)


def test_the_cut_is_reported_once(base: Base, caplog: pytest.LogCaptureFixture) -> None:
    """A reversed text loses the same words."""
    model: Any = build(base("llama"), "classical", template="{reversed}", max_seq_length=8)
    long_text = " ".join(map(str, range(50)))
    offsets = model[0].tokenize_content([long_text], offsets=True)["offset_mapping"][0]
    longest_uncut_text = long_text[: offsets[6][1]]
    features_of(model, [longest_uncut_text])
    assert "was cut to" not in caplog.text
    for _ in range(2):
        token_ids = features_of(model, ["x", long_text])["input_ids"][1]
        assert caplog.text.count("was cut to 7 per copy") == 1
    assert token_ids[-1] == model[0].tokenize_content([long_text])["input_ids"][0][0]


def model_with_infinite_token(base: Base, pipeline: str) -> tuple[Any, Any]:
    """A model whose embedding of "a" is infinite, and its vector of a text without that token."""
    model: Any = build_pipeline(base("llama"), pipeline)
    _, finite_vector = encoded(model, ["a", "银行"])
    token = model[0].tokenize_content(["a"])["input_ids"][0][0]
    model[0].model.get_input_embeddings().weight.data[token] = torch.inf
    return model, finite_vector


@pytest.mark.parametrize("pipeline", ["prompteol", "reba last"])
def test_numbers_that_are_not_finite_are_refused(base: Base, pipeline: str) -> None:
    model, _ = model_with_infinite_token(base, pipeline)
    with pytest.raises(ValueError, match="NaN or infinity for the text 'a'"):
        encoded(model, ["a", "银行"])


def test_numbers_that_are_not_finite_are_the_authors_zeros(base: Base) -> None:
    """For that text alone."""
    model, finite_vector = model_with_infinite_token(base, "authors last")
    zero_vector, other_vector = encoded(model, ["a", "银行"])
    assert not zero_vector.any()
    assert torch.allclose(other_vector, finite_vector, atol=1e-5)


REENTRANT_BY_DEFAULT = {"preserve_rng_state": True}
NOT_REENTRANT = {"use_reentrant": False}


@pytest.mark.parametrize(
    ("pipeline", "checkpointing", "is_right"),
    [
        ("echo last", REENTRANT_BY_DEFAULT, True),
        ("reba last", REENTRANT_BY_DEFAULT, False),
        ("reba inter", NOT_REENTRANT, False),
    ],
)
def test_checkpointing_that_would_be_wrong_is_refused(
    base: Base, pipeline: str, checkpointing: dict[str, bool], is_right: bool
) -> None:
    model: Any = build_pipeline(base("llama"), pipeline).train()
    model[0].model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=checkpointing)
    with nullcontext() if is_right else pytest.raises(ValueError, match="Gradient checkpointing"):
        model(features_of(model))
    with torch.no_grad():
        model(features_of(model))
    model.eval()(features_of(model))
    assert model[0].train().model.training


def test_checkpointing_in_an_unknown_way_is_called_so() -> None:
    layer: Any = torch.nn.Linear(1, 1)
    layer.gradient_checkpointing = True
    with pytest.raises(ValueError, match="Linear does it in an unknown way"):
        checkpoint_in_pass(layer, [object()])


def test_an_adapter_whose_base_is_in_no_folder_is_not_trained(base: Base) -> None:
    model: Any = build_pipeline(base("llama"), "echo last").train()
    transformer = model[0]
    transformer.is_base_stored = False
    model(features_of(model))
    transformer.model._hf_peft_config_loaded = True  # as PEFT sets it
    with pytest.raises(ValueError, match="An adapter is saved without its base"):
        model(features_of(model))


def loaded_with_missing_keys(
    monkeypatch: pytest.MonkeyPatch, *missing_keys: str, has_adapter: bool
) -> Any:
    """What the load of sentence-transformers gives, when these weights were missing."""
    loaded: Any = SimpleNamespace(
        model=SimpleNamespace(_hf_peft_config_loaded=has_adapter),
        loading_report={"missing_keys": list(missing_keys)},
    )
    monkeypatch.setattr(Transformer, "load", classmethod(lambda cls, path: loaded))
    return loaded


@pytest.mark.parametrize(("has_adapter", "name"), [(False, "k"), (True, "q.lora_A")])
def test_missing_weights_are_refused(
    monkeypatch: pytest.MonkeyPatch, has_adapter: bool, name: str
) -> None:
    """Of an adapter its own; those of the base, which it leaves to it, are not named."""
    loaded_with_missing_keys(monkeypatch, "q.lora_A", "k", has_adapter=has_adapter)
    with pytest.raises(ValueError, match=f"missing_keys: {name}"):
        RepeatTransformer.load("")


def test_an_adapter_leaves_the_weights_of_its_base_to_the_base(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded = loaded_with_missing_keys(monkeypatch, "k", has_adapter=True)
    assert RepeatTransformer.load("") is loaded


# Most lines of the file that travels with a model: generous, so that they stop a file that has
# doubled.
MAX_LINES = 1400
MAX_LINES_OF_REBA = 1500
MAX_LINES_WITH_MASKS = 1900
MAX_LINES_OF_CHUNKS = 200  # in addition
SECTIONS_OF_ALL = ["layout", "extensions", "passes", "transformer"]
REBA_SECTIONS = "attention blocks capture pooling"
# The sections of that file after those of all files.
SECTIONS: dict[tuple[str, str], str] = {
    ("llama", "reba mean"): REBA_SECTIONS,
    ("llama", "reba template"): f"templates {REBA_SECTIONS}",
    (
        "llama",
        "authors last",
    ): "attention blocks capture both_ways pooling authors",
    ("llama", "chunk mean"): f"{REBA_SECTIONS} chunks",
    ("llama", "concat"): f"layers reader {REBA_SECTIONS}",
    (
        "llama",
        "chunk mask0",
    ): "attention blocks masks nosink capture both_ways pooling chunks",
    ("llama", "echo last"): "shared_prefix",
    (
        "llama",
        "reversed",
    ): "shared_prefix questions templates reversal ensemble",
    ("llama", "outputs"): "layers outputs shared_prefix templates",
    ("llama", "mask0"): "attention masks nosink",
    ("llama", "inter"): "layers attention masks nosink second",
    ("gpt_oss", "echo last"): "shared_prefix",
    ("gpt_oss", "mask0"): "attention blocks masks nosink",
    ("gemma2", "echo last"): "shared_prefix attention blocks",
}


@pytest.mark.parametrize(("base_name", "pipeline"), SECTIONS)
def test_a_model_takes_the_code_with_it_that_it_needs_and_no_more(
    base: Base, base_name: str, pipeline: str
) -> None:
    code = code_of(build_pipeline(base(base_name), pipeline).modules())
    expected_sections = SECTIONS[base_name, pipeline].split()
    section_list = re.search(r"^- Sections: ([^.]+)\.$", code, re.M)
    assert section_list is not None
    listed_sections = re.findall(r"\w+", section_list[1])
    assert sorted(listed_sections) == sorted(SECTIONS_OF_ALL + expected_sections)
    account = code.partition("Shapes of tensors")[0]
    assert ("run_shared" in account) == ("shared_prefix" in expected_sections)
    assert ("install_attention" in account) == ("attention" in expected_sections)
    max_lines = MAX_LINES
    if "capture" in expected_sections:
        max_lines = MAX_LINES_WITH_MASKS if "masks" in expected_sections else MAX_LINES_OF_REBA
    if "chunks" in expected_sections:
        max_lines += MAX_LINES_OF_CHUNKS
    assert len(code.splitlines()) <= max_lines
    ast.parse(code)


def test_a_section_may_use_the_name_of_an_import_that_must_stand_first() -> None:
    statements = ast.parse("from __future__ import annotations").body
    assert merged_imports(statements, {"annotations"}) == []


@pytest.mark.slow
def test_the_registry_is_never_half_filled() -> None:
    """Whichever file is imported first: what another file offers is there, and what a model saves is whole."""
    program = """
from st_reba.modules.transformer import RepeatTransformer
from st_reba.modules.extensions import extensions
assert extensions.has("code_of") and extensions.reverse_words("a b") == "b a"
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_published_copy_names_the_section_that_it_lacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("st_reba.modules.extensions.IS_INSTALLED", False)
    monkeypatch.setattr("st_reba.modules.load_sections", lambda: pytest.fail("it was loaded"))
    empty_registry = Extensions()
    assert not empty_registry.has("run_shared")
    with pytest.raises(ValueError, match="lacks 'parse_templates'.* pip install st-reba"):
        empty_registry.parse_templates("{text}")


def test_the_package_loads_its_sections_for_a_name_that_is_not_there_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry = Extensions()
    load_sections = partial(setattr, registry, "reverse_words", str.swapcase)
    monkeypatch.setattr("st_reba.modules.load_sections", load_sections)
    assert registry.reverse_words("a") == "A"
    with pytest.raises(ValueError, match="lacks 'no_such_section'"):
        registry.no_such_section("a")


def test_numbered_layers_whose_code_can_be_read_lack_the_terms_that_it_does_not_name() -> None:
    layer: Any = torch.nn.Linear(1, 1)
    layer.layer_idx = 0
    assert not _has_terms(layer)


def test_a_layer_without_a_number_may_have_every_term() -> None:
    assert _has_terms(torch.nn.Linear(1, 1))


def test_a_layer_whose_code_cannot_be_read_may_have_every_term(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layer: Any = torch.nn.Linear(1, 1)
    layer.layer_idx = 0
    monkeypatch.setattr(torch.nn.Linear, "__module__", "nowhere")
    assert _has_terms(layer)


def copy_by_pickle(model: SentenceTransformer) -> Any:
    return pickle.loads(pickle.dumps(model))


@pytest.mark.parametrize("make_copy", [copy_by_pickle, copy.deepcopy])
@pytest.mark.parametrize(
    "pipeline",
    ["reba mean", "mask0", "inter", "layers", "ensemble", "chunk mean"],
)
def test_a_copy_computes_the_same_and_shares_nothing(
    base: Base, pipeline: str, make_copy: Callable[..., Any]
) -> None:
    model = build_pipeline(base("llama"), pipeline)
    expected = encoded(model)
    copied_model = make_copy(model)
    assert torch.equal(encoded(copied_model), expected)
    copied_model[0].model.get_input_embeddings().weight.data.zero_()
    assert torch.equal(encoded(model), expected)


def lowercase(tokenizer: Any) -> None:
    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()


def split_digits(tokenizer: Any) -> None:
    digits = pre_tokenizers.Digits(True)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])


@pytest.mark.parametrize("change_tokenizer", [lowercase, split_digits])
def test_a_changed_tokenizer_reads_the_template_too(
    change_tokenizer: Callable[[Any], None], tmp_path: Path
) -> None:
    """In memory as after it is saved and loaded, although the template was read before."""
    model: Any = build("mini", "prompteol", template='A Passage: "{text}" means in a word:"')
    text = "The Cat is 12 years old."
    original_vector = model.encode(text)
    change_tokenizer(model.tokenizer)
    changed_vector = model.encode(text)
    assert abs(changed_vector - original_vector).max() > 1e-3
    loaded_model = save_and_load(model, tmp_path / "saved")
    assert abs(loaded_model.encode(text) - changed_vector).max() < 1e-6


def test_a_token_without_an_embedding_is_refused_and_the_remedy_helps() -> None:
    model: Any = build("mini", "echo", pooling="mean")
    model.tokenizer.add_tokens(["Newtok"])
    message = r"token 8192, but the model only 8192 embeddings\. Call model\[0\]\.model\."
    with pytest.raises(ValueError, match=message):
        model.encode("Newtok sleeps.")
    model[0].model.resize_token_embeddings(len(model.tokenizer))
    assert model.encode("Newtok sleeps.").shape == (192,)


def test_a_post_processor_that_is_replaced_is_seen_at_once(
    tmp_path: Path,
) -> None:
    """In memory as after it is saved and loaded."""
    model: Any = build("mini", "echo", pooling="mean")
    text = "The cat is asleep."
    original_vector = model.encode(text)
    end_token = model.tokenizer.eos_token
    end_token_id = model.tokenizer.eos_token_id
    model.tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"$A {end_token} {end_token}",
        special_tokens=[(end_token, end_token_id)],
    )
    changed_vector = model.encode(text)
    assert abs(changed_vector - original_vector).max() > 1e-3
    token_ids = model[0].preprocess([text])["input_ids"][0].tolist()
    assert token_ids[-2:] == [end_token_id, end_token_id]
    loaded_model = save_and_load(model, tmp_path / "saved")
    assert abs(loaded_model.encode(text) - changed_vector).max() < 1e-6
