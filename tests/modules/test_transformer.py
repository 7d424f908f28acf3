"""The first module: what holds where nothing is said, tokens around a text, weights, and the code that it saves."""

from __future__ import annotations

import ast
import copy
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import reference
import torch
from architectures import TOKENIZERS
from marks import Base
from oracle import assert_close, oracle
from pipelines import build, encoded, features_of, made
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Transformer
from tokenizers import normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from st_reba.modules import RepeatTransformer
from st_reba.modules.code import _has_terms, code_of
from st_reba.modules.extensions import Extensions
from st_reba.modules.layout import RowLayout, empty_text_token, make_row_layout, special_tokens, tokenize


def test_by_hand(base: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    """Soft caps need the package's attention; keys and values are not kept; weights of 4 bits are saved as they are."""
    monkeypatch.setattr(torch.nn.Linear, "support_avx512bf16_for_cpu", True, raising=False)
    model = RepeatTransformer(base("gemma2"))
    assert not any(getattr(each, "support_avx512bf16_for_cpu", False) for each in model.modules())
    assert model.model.config._attn_implementation == "st_reba" and not model.config.use_cache
    with pytest.raises(ValueError, match="repeats=65"):
        RepeatTransformer(base("llama"), repeats=65)


def test_the_task_follows_from_what_is_given(base: Base) -> None:
    first: Any = build(base("llama"), "echo", template="echo-instruct")[0]
    query, document = first.row_layouts("Find", "query"), first.row_layouts(task="document")
    assert (
        first.row_layouts("Find") == first.row_layouts(instruction="Find") == query != document == first.row_layouts()
    )


def test_special_tokens() -> None:
    """In a text their names are text, in a template they are what they name; nothing is cut, padded or added."""
    tokenizer = TOKENIZERS["bos_eos"]()
    tokenizer.model_max_length = 2
    bos, eos = (tokenizer.bos_token_id,), (tokenizer.eos_token_id,)
    found = tokenize(tokenizer, ["<s>", "a"])
    assert set(found) == {"input_ids"} and [len(ids) for ids in found["input_ids"]] == [3, 1]
    assert special_tokens(tokenizer) == (bos, eos)
    frame = make_row_layout(tokenizer, (("", "instruction"), ("</s>", "text")), (eos, bos), "b", {"instruction": "<s>"})
    assert frame == RowLayout((eos, bos + eos, None, bos))
    assert empty_text_token(SimpleNamespace(eos_token_id=None, sep_token_id=0, pad_token_id=1)) == 0
    with pytest.raises(ValueError):
        empty_text_token(SimpleNamespace())


@pytest.mark.parametrize(("matched", "limit"), [(False, 33), (True, 61), (False, 5), (True, 8)])
def test_long_texts_keep_every_copy(base: Base, matched: bool, limit: int) -> None:
    """Cut to ⌊(M − s) / k⌋ tokens a copy, compute-matched to half of them."""
    path, text = base("llama", "bos_eos"), "The river runs past the old mill and under the bridge. " * 3
    model: Any = build(path, pooling="mean", repeats=3, max_seq_length=limit, compute_matched=matched)
    room = model[0].budget()
    assert room == ((limit - 2) // 3) // (2 if matched else 1)
    placed, hidden, fused = oracle(path, text, (None,) * 3, 3 * room + 2)  # which knows no half
    assert_close(encoded(model, [text, "hi"])[0], reference.reba(hidden, fused, placed, "mean"))


def test_reversed(base: Base) -> None:
    """A reversed text's row is what the text, reversed by hand, has."""
    path, texts = base("llama"), ["the cat  sat.", "猫在GPU上。", "x"]
    model: Any = build(path, "prompteol", template=["A {text} B", "In {reversed} B"], weights=[1.0, 2.0])
    units = [
        torch.nn.functional.normalize(encoded(build(path, "prompteol", template=template), given).double(), dim=1)
        for template, given in (("A {text} B", texts), ("In {text} B", ["sat.  cat the", "。上GPU在猫", "x"]))
    ]
    for limit, room in ((256, 250), (10**30, None)):
        model[0].tokenizer.model_max_length = limit
        assert model[0].budget() == room
        for got, wanted in zip(encoded(model, texts), units[0] + 2 * units[1], strict=True):
            assert_close(got, wanted)


def test_the_cut_is_reported_once(base: Base, caplog: pytest.LogCaptureFixture) -> None:
    """A reversed text loses the same words."""
    short: Any = build(base("llama"), "classical", template="{reversed}", max_seq_length=8)
    long = " ".join(map(str, range(50)))
    features_of(short, [long[: short[0].content([long], offsets=True)["offset_mapping"][0][6][1]]])
    assert "was cut to" not in caplog.text
    for _ in range(2):
        ids = features_of(short, ["x", long])["input_ids"][1]
        assert caplog.text.count("was cut to 7 a copy") == 1
    assert ids[-1] == short[0].content([long])["input_ids"][0][0]


def test_numbers_that_are_not_finite(base: Base) -> None:
    """An error, but zeros in the authors' variant, for that text alone."""
    for name in ("prompteol", "reba last", "authors last"):
        model: Any = made(base("llama"), name)
        wanted, token = encoded(model, ["a", "银行"]), model[0].content(["a"])["input_ids"][0][0]
        model[0].model.get_input_embeddings().weight.data[token] = torch.inf
        refused = pytest.raises(ValueError, match="NaN or infinity for the text 'a'")
        with nullcontext() if name == "authors last" else refused:
            got = encoded(model, ["a", "银行"])
            assert not got[0].any() and torch.allclose(got[1], wanted[1], atol=1e-5)


def test_checkpointing_that_would_be_wrong_is_refused(base: Base) -> None:
    unsaid, safe = {"preserve_rng_state": True}, {"use_reentrant": False}  # unsaid, torch's is reentrant
    for name, given in (("echo last", unsaid), ("reba last", unsaid), ("reba inter", safe)):
        model: Any = made(base("llama"), name).train()
        model[0].model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=given)
        with nullcontext() if name == "echo last" else pytest.raises(ValueError, match="Gradient checkpointing"):
            model(features_of(model))
        with torch.no_grad():
            model(features_of(model))
        model.eval()(features_of(model))


def test_weights_of_an_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own may not be missing; those that it leaves to the base may."""
    loaded: Any = SimpleNamespace(model=SimpleNamespace(), loading={"missing_keys": ["q.lora_A", "k"]})
    monkeypatch.setattr(Transformer, "load", classmethod(lambda cls, path: loaded))
    for adapted, name in ((False, "k"), (True, "q.lora_A")):
        loaded.model._hf_peft_config_loaded = adapted
        with pytest.raises(ValueError, match=f"missing_keys: {name}"):
            RepeatTransformer.load("")
    loaded.loading["missing_keys"].remove("q.lora_A")
    assert RepeatTransformer.load("") is loaded


REBA = "attention blocks capture pooling"
# Most lines of the file that travels with a model: generous, so that they stop a file that has doubled.
MOST_LINES, MOST_LINES_OF_REBA, MOST_LINES_WITH_MASKS = 1200, 1400, 1600
# The sections of that file behind those of every file.
FILES: dict[tuple[str, str], str] = {
    ("llama", "reba mean"): REBA, ("llama", "reba template"): f"templates {REBA}",
    ("llama", "authors last"): "attention blocks capture both_ways pooling authors",
    ("llama", "chunk mean"): f"{REBA} pieces", ("llama", "concat"): f"layers reader {REBA}",
    ("llama", "chunk mask0"): "attention blocks masks nosink capture both_ways pooling pieces",
    ("llama", "echo last"): "shared_prefix",
    ("llama", "reversed"): "shared_prefix questions templates reversal ensemble",
    ("llama", "outputs"): "layers outputs shared_prefix templates", ("llama", "mask0"): "attention masks nosink",
    ("llama", "inter"): "layers attention masks nosink second", ("gpt_oss", "echo last"): "shared_prefix",
    ("gpt_oss", "mask0"): "attention blocks masks nosink", ("gemma2", "echo last"): "shared_prefix attention blocks",
}  # fmt: skip


@pytest.mark.parametrize(("of", "name"), FILES)
def test_files(base: Base, of: str, name: str) -> None:
    """A model takes with it what it needs, and no more."""
    code, sections = code_of(made(base(of), name).modules()), FILES[of, name]
    assert re.findall(r"^- (\w+): [A-Z]", code, re.M) == [
        "layout",
        "extensions",
        "passes",
        "transformer",
        *sections.split(),
    ]
    most_lines = MOST_LINES
    if "capture" in sections:
        most_lines = MOST_LINES_WITH_MASKS if "masks" in sections else MOST_LINES_OF_REBA
    assert len(code.splitlines()) <= most_lines
    ast.parse(code)


def test_the_registry_is_never_half_filled() -> None:
    """Whichever file is imported first: what another file offers is there, and what a model saves is whole."""
    program = """
from st_reba.modules.transformer import RepeatTransformer
from st_reba.modules.extensions import extensions
assert extensions.has("code_of") and extensions.reverse_words("a b") == "b a"
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_published_copy_names_the_section_that_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("st_reba.modules.extensions.IS_INSTALLED", False)
    empty_registry = Extensions()
    assert not empty_registry.has("run_shared")
    with pytest.raises(ValueError, match="lacks 'parse_templates'.* pip install st-reba"):
        empty_registry.parse_templates("{text}")


def test_code_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have every term of the scores, as may a model without numbered layers."""
    layer: Any = torch.nn.Linear(1, 1)
    assert _has_terms(layer)
    layer.layer_idx = 0
    assert not _has_terms(layer)
    monkeypatch.setattr(torch.nn.Linear, "__module__", "nowhere")
    assert _has_terms(layer)


@pytest.mark.parametrize("name", ["reba mean", "mask0", "inter", "layers", "ensemble", "chunk mean"])
def test_copies(base: Base, name: str) -> None:
    """Pickled and copied, a model computes the same, and none hears of another's passes."""
    model = made(base("llama"), name)
    wanted = encoded(model)
    for copied in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert torch.equal(encoded(copied), wanted)
        copied[0].model.get_input_embeddings().weight.data.zero_()
    assert torch.equal(encoded(model), wanted)


def lowercase(tokenizer: Any) -> None:
    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()


def split_digits(tokenizer: Any) -> None:
    steps = [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=True)]
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)


@pytest.mark.parametrize("change", [lowercase, split_digits])
def test_a_changed_tokenizer_reads_the_template_too(change: Callable[[Any], None], tmp_path: Path) -> None:
    """In memory as after it is saved and loaded, although the template was read before."""
    model: Any = build("mini", "prompteol", template='A Passage: "{text}" means in a word:"')
    before = model.encode("The Cat is 12 years old.")
    change(model.tokenizer)
    changed = model.encode("The Cat is 12 years old.")
    assert abs(changed - before).max() > 1e-3
    model.save_pretrained(str(tmp_path / "saved"))
    loaded = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    assert abs(loaded.encode("The Cat is 12 years old.") - changed).max() < 1e-6


def test_a_token_without_an_embedding_is_refused_and_the_remedy_helps() -> None:
    model: Any = build("mini", "echo", pooling="mean")
    model.tokenizer.add_tokens(["Newtok"])
    with pytest.raises(ValueError, match=r"token 8192, but the model only 8192 embeddings\. Call model\[0\]\.model\."):
        model.encode("Newtok sleeps.")
    model[0].model.resize_token_embeddings(len(model.tokenizer))
    assert model.encode("Newtok sleeps.").shape == (192,)


def test_a_post_processor_that_is_replaced_is_seen_at_once(tmp_path: Path) -> None:
    """In memory as after it is saved and loaded."""
    model: Any = build("mini", "echo", pooling="mean")
    text = "The cat is asleep."
    before = model.encode(text)
    tokenizer = model.tokenizer
    end = (tokenizer.eos_token, tokenizer.eos_token_id)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"$A {end[0]} {end[0]}", special_tokens=[end]
    )
    changed = model.encode(text)
    assert abs(changed - before).max() > 1e-3
    ids = model[0].preprocess([text])["input_ids"][0].tolist()
    assert ids[-2:] == [end[1]] * 2
    model.save_pretrained(str(tmp_path / "saved"))
    assert abs(SentenceTransformer(str(tmp_path / "saved"), device="cpu").encode(text) - changed).max() < 1e-6
