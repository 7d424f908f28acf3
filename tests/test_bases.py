"""Bases that are loaded in a way of their own give the vectors of their plain twins, or are refused."""

from __future__ import annotations

import json
import lzma
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import families
import huggingface_hub
import numpy as np
import pytest
import torch
import transformers
from architectures import TOKENIZERS, lose, on_the_hub, save_adapter
from gguf_writing import gguf_file
from huggingface_hub.errors import HFValidationError
from oracle import assert_close
from pipelines import PIPELINES, build, encoded, save_and_load
from sentence_transformers import SentenceTransformer
from tiny import tiny_model
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

import st_reba
from st_reba import RepeatTransformer, bases, named_base
from st_reba.evaluation.readouts import encode_methods, load_base
from st_reba.hub import verify
from st_reba.modules import selfcheck
from st_reba.modules.selfcheck import is_causal, run_ids

needs_gguf = pytest.mark.skipif(
    not hasattr(transformers, "GgufConfig"), reason="no GGUF file is made dense"
)


def bytes_per_number(model: SentenceTransformer, folder: Path) -> float:
    """Size of a saved model's weights, for each number of them."""
    number_count = sum(parameter.numel() for parameter in model.parameters())
    return (folder / "model.safetensors").stat().st_size / number_count


@needs_gguf
@pytest.mark.parametrize("kind", ["F32", "Q8_0", "Q4_0"])
def test_a_gguf_file_is_loaded_as_it_will_be_saved(kind: str, tmp_path: Path) -> None:
    """Dense and in bfloat16."""
    file = gguf_file(tmp_path, kind)
    model: Any = build(file, pooling="mean")
    vectors = encoded(model)
    assert vectors.isfinite().all()
    assert kind in model[0].base_model
    assert not model[0].is_base_stored
    assert str(tmp_path) not in model[0].base_model
    assert torch.equal(encoded(save_and_load(model, tmp_path / "saved")), vectors)
    assert bytes_per_number(model, tmp_path / "saved") < 2.2


@needs_gguf
@pytest.mark.parametrize("kind", ["F32", "Q8_0", "Q4_0"])
def test_a_gguf_file_is_named_by_path_by_folder_or_in_it(kind: str, tmp_path: Path) -> None:
    file = gguf_file(tmp_path, kind)
    model: Any = build(file, pooling="mean")
    tokenizer_folder = tmp_path / "tokenizer"
    model[0].tokenizer.save_pretrained(tokenizer_folder)
    same_models = [
        build(tmp_path, pooling="mean"),
        build(tmp_path, pooling="mean", gguf_file=file.name),
        build(file, pooling="mean", tokenizer=tokenizer_folder),
    ]
    for same_model in same_models:
        assert torch.equal(encoded(same_model), encoded(model))


@needs_gguf
def test_a_gguf_file_is_not_quantized_again(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Drop quantization"):
        build(gguf_file(tmp_path, "Q8_0"), model_kwargs={"quantization_config": {}})


def test_a_gguf_file_needs_a_transformers_that_makes_it_dense(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = gguf_file(tmp_path, "Q8_0")
    monkeypatch.setattr(named_base, "transformers", object())
    with pytest.raises(ImportError, match="newer transformers"):
        build(file)


TENSOR_COUNT = slice(8, 16)


def test_a_gguf_file_that_holds_less_than_it_says_is_refused(tmp_path: Path) -> None:
    file = gguf_file(tmp_path, "Q8_0")
    content = bytearray(file.read_bytes())
    cut_contents = [content[:-5000], content[:4000], content[:30]]
    content[TENSOR_COUNT] = (1 << 60).to_bytes(8, "little")
    for damaged_content in (content, *cut_contents):
        file.write_bytes(damaged_content)
        with pytest.raises(ValueError, match=r"tiny-Q8_0.gguf.*beyond its end"):
            build(file)


def test_a_gguf_type_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Readable: .*Q4_0"):
        build(gguf_file(tmp_path, "Q8_1"))


def test_one_of_several_gguf_files_has_to_be_named(tmp_path: Path) -> None:
    for kind in ("Q8_0", "F32"):
        gguf_file(tmp_path, kind)
    with pytest.raises(ValueError, match="several GGUF files"):
        build(tmp_path)
    with pytest.raises(OSError, match="no such file"):
        build(tmp_path / "none.gguf")


@needs_gguf
@pytest.mark.parametrize(
    ("extra", "module", "option"),
    [("gguf", "gguf", "gguf_file"), ("quantized", "bitsandbytes", "quantization")],
)
def test_an_extra_that_is_missing_is_named(
    extra: str,
    module: str,
    option: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"st-reba\[{extra}\]"):
        st_reba.build("mini", **{option: "nf4"})


@pytest.mark.parametrize("quantization", ["nf4", "int8"])
@pytest.mark.parametrize("pipeline_name", ["reba mean", "echo last", "mask0"])
def test_quantized_vectors_do_not_depend_on_their_batch(
    llama: Path,
    quantization: str,
    pipeline_name: str,
    tmp_path: Path,
) -> None:
    """Saved, they are loaded by sentence-transformers alone."""
    pytest.importorskip("bitsandbytes")
    options: dict[str, Any] = {"quantization": quantization, "dtype": "float32"}
    model: Any = build(llama, **options, **PIPELINES[pipeline_name])
    config = model[0].model.config.quantization_config
    assert config.load_in_8bit == (quantization == "int8")
    assert config.bnb_4bit_compute_dtype == torch.float32
    vectors = encoded(model)
    assert_close(encoded(model, alone=True), vectors.double())
    exact_vectors = encoded(build(llama, **PIPELINES[pipeline_name]))
    assert (vectors - exact_vectors).abs().max() > 1e-4, "they were not quantized"
    saved_folder = tmp_path / "saved"
    assert_close(encoded(save_and_load(model, saved_folder)), vectors.double(), 1e-6)
    assert "quantization_config" in (saved_folder / "config.json").read_text(encoding="utf-8")
    settings = (saved_folder / "config_sentence_transformers.json").read_text(encoding="utf-8")
    assert "bitsandbytes" in settings


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_dora": True},
        {"use_rslora": True},
        {"bias": "all"},
        {"target_modules": "all-linear"},
        {"modules_to_save": ["embed_tokens"]},
        {"modules_to_save": ["input_layernorm"]},
        {"modules_to_save": ["lm_head"]},
        {"task_type": "FEATURE_EXTRACTION"},
    ],
    ids=str,
)
def test_an_adapter_becomes_part_of_the_weights(
    llama: Path, options: dict[str, Any], tmp_path: Path
) -> None:
    """As peft merges it."""
    adapter_folder, merged_folder = save_adapter(llama, tmp_path, **options)
    model: Any = build(adapter_folder, pooling="mean")
    assert_close(encoded(model), encoded(build(merged_folder, pooling="mean")).double())
    assert torch.equal(encoded(save_and_load(model, tmp_path / "saved")), encoded(model))
    assert not (tmp_path / "saved" / "adapter_config.json").exists()
    assert model[0].base_model == "adapter"
    assert not model[0].is_base_stored
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_revision_is_that_of_the_adapter(llama: Path, tmp_path: Path) -> None:
    """The base has none of that name; the tokenizer is the adapter's own."""
    adapter_folder, merged_folder = save_adapter(llama, tmp_path)
    for folder in (adapter_folder, merged_folder):
        TOKENIZERS["cls_sep"]().save_pretrained(folder)
    shutil.copy(llama / "config.json", adapter_folder)
    on_the_hub(tmp_path, "a/base", llama)
    config_path = adapter_folder / "adapter_config.json"
    config = json.loads(config_path.read_text())
    config["base_model_name_or_path"] = "a/base"
    config_path.write_text(json.dumps(config))
    on_the_hub(tmp_path, "a/adapter", adapter_folder, "v1")
    hub_options = {"cache_folder": str(tmp_path), "local_files_only": True}
    model: Any = build("a/adapter", revision="v1", **hub_options)
    assert_close(encoded(model), encoded(build(merged_folder)).double())
    assert (model[0].base_model, model[0].base_revision) == ("a/adapter", "v1")


@pytest.mark.parametrize(
    ("peft_type", "problem"),
    [("PROMPT_TUNING", "positions"), ("ADAPTION_PROMPT", "positions"), ("LORA", "names no base")],
)
def test_adapters_that_cannot_be_merged_are_refused(
    peft_type: str, problem: str, tmp_path: Path
) -> None:
    pytest.importorskip("peft")
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": peft_type}))
    with pytest.raises(ValueError, match=problem):
        build(tmp_path)


def build_without_a_weight(base_folder: Path, folder: Path) -> None:
    shutil.copytree(base_folder, folder)
    lose(folder / "model.safetensors", "q_proj")
    build(folder)


def build_an_empty_folder(base_folder: Path, folder: Path) -> None:
    folder.mkdir()
    build(folder)


def build_an_embedder(base_folder: Path, folder: Path) -> None:
    build(base_folder).save_pretrained(str(folder))
    build(folder)


def convert_a_bag_of_words(base_folder: Path, folder: Path) -> None:
    tiny_model().save_pretrained(str(folder))
    st_reba.build(folder, "nosink:setting=mask0-1,k=2")


def build_half_an_adapter(base_folder: Path, folder: Path) -> None:
    adapter_folder, _ = save_adapter(base_folder, folder)
    lose(adapter_folder / "adapter_model.safetensors", "lora_B")
    build(adapter_folder)


def quantize_an_adapter(base_folder: Path, folder: Path) -> None:
    adapter_folder, _ = save_adapter(base_folder, folder)
    build(adapter_folder, quantization="nf4")


def build_a_gguf_file_of_mini(base_folder: Path, folder: Path) -> None:
    st_reba.build("mini", gguf_file="a.gguf", local_files_only=True)


# Calls with the llama's folder and one that is not there, by a part of the message.
REFUSED_CALLS: dict[str, Callable[[Path, Path], object]] = {
    "weights are missing": build_without_a_weight,
    "no config.json and": build_an_empty_folder,
    "is a file": lambda base_folder, folder: build(base_folder / "config.json"),
    "there is no such folder": lambda base_folder, folder: build(folder / "none"),
    "could not be loaded": lambda base_folder, folder: build("no-such-folder"),
    "'float7'": lambda base_folder, folder: build(base_folder, dtype="float7"),
    "'int3'": lambda base_folder, folder: build(base_folder, quantization="int3"),
    "an embedder already": build_an_embedder,
    "StaticEmbedding of": convert_a_bag_of_words,
    "missing adapter keys": build_half_an_adapter,
    "into quantized": quantize_an_adapter,
    "mini/a.gguf (GGUF)": build_a_gguf_file_of_mini,
}


@pytest.mark.parametrize("problem", REFUSED_CALLS)
def test_bases_that_cannot_be_built_on_are_refused(
    llama: Path, problem: str, tmp_path: Path
) -> None:
    # An ImportError where an older transformers reads no GGUF files.
    with pytest.raises((ValueError, OSError, ImportError)) as raised:
        REFUSED_CALLS[problem](llama, tmp_path / "new")
    message = str(raised.value)
    assert problem in message
    assert type(raised.value) is OSError or len(message.splitlines()) == 1


@pytest.fixture
def projecting_base(tmp_path: Path) -> Path:
    """An OPT whose layers have 32 dimensions, and whose last states have 16."""
    config = transformers.OPTConfig(
        vocab_size=600,
        hidden_size=32,
        word_embed_proj_dim=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        ffn_dim=64,
        max_position_embeddings=128,
    )
    AutoModel.from_config(config).save_pretrained(tmp_path)
    TOKENIZERS["bos"]().save_pretrained(tmp_path)
    return tmp_path


def test_words_and_comparisons_have_the_size_of_the_last_states(projecting_base: Path) -> None:
    model = st_reba.build(projecting_base, "echo", pooling="mean", device="cpu")
    vector = model.encode("cat")
    (word_vector,) = st_reba.encode_words(model, [("cat", "cat")])
    assert vector.shape == (16,)
    assert np.allclose(word_vector / np.linalg.norm(word_vector), vector, atol=1e-6)
    base_model = load_base(projecting_base)
    method = st_reba.Method("echo", pooling="mean")
    assert np.allclose(encode_methods(base_model, [method], ["cat"])[method], vector, atol=1e-6)
    inner_method = st_reba.Method("echo", layer=1)
    with pytest.raises(ValueError, match="projects its last states to another size"):
        encode_methods(base_model, [method, inner_method], ["cat"])


@pytest.mark.parametrize(
    ("options", "is_stored"),
    [
        ({"model_kwargs": {"attn_implementation": "eager"}}, True),
        ({"quantization": "nf4"}, False),
        ({"model_kwargs": {"quantization_config": {}}}, False),
        ({"config_kwargs": {"rope_theta": 1.0}}, False),
    ],
    ids=str,
)
def test_a_base_that_loading_changes_is_not_the_stored_one(
    options: dict[str, Any], is_stored: bool
) -> None:
    assert named_base.NamedBase("mini", options).is_stored is is_stored


def test_a_base_without_its_upper_layers_is_not_the_stored_one(llama: Path) -> None:
    assert build(llama, "echo")[0].is_base_stored
    assert not build(llama, "echo", layer=1)[0].is_base_stored


def test_an_unforeseen_error_names_the_base(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_base, "RepeatTransformer", Mock(side_effect=KeyError("rope")))
    with pytest.raises(ValueError, match="^base=.* could not be loaded. KeyError: 'rope'"):
        build(llama)


@pytest.fixture
def packed_mini(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The llama as a bundled model, its weights packed; they are unpacked into ``tmp_path``."""
    folder = shutil.copytree(llama, tmp_path / "packed")
    weights = folder / "model.safetensors"
    (folder / "model.safetensors.xz").write_bytes(lzma.compress(weights.read_bytes()))
    weights.unlink()
    cached_assets_path = partial(bases.cached_assets_path, assets_dir=tmp_path)
    monkeypatch.setattr(bases, "cached_assets_path", cached_assets_path)
    monkeypatch.setitem(bases.BUNDLED, "mini", folder)
    return folder


def test_a_folder_that_is_called_mini_is_not_taken_for_the_bundled_model(
    llama: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(llama, tmp_path / "mini")
    assert build(folder, "echo")[0].base_model == "other-mini"
    assert bases.recorded_name(bases.BUNDLED["mini"]) == "mini"


def test_unpacked_weights_are_used_where_they_are(
    llama: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(bases.BUNDLED, "mini", llama)
    assert bases.resolve_bundled("mini") == str(llama)
    assert bases.resolve_bundled("other/mini") == "other/mini"


def test_packed_weights_are_unpacked_once_with_all_files_beside_them(
    llama: Path,
    packed_mini: Path,
    tmp_path: Path,
) -> None:
    vector = st_reba.build("mini", "echo").encode("A cat sleeps.")
    expected_vector = st_reba.build(llama, "echo", tokenizer="mini").encode("A cat sleeps.")
    assert (vector == expected_vector).all()
    (unpacked_folder,) = tmp_path.glob("st_reba/*/mini")
    file_names = {path.name for path in unpacked_folder.iterdir()}
    assert file_names == {path.name for path in llama.iterdir()}
    (unpacked_folder / "config.json").write_text("unchanged")
    assert bases.resolve_bundled("mini") == str(unpacked_folder)
    assert (unpacked_folder / "config.json").read_text() == "unchanged"


def test_other_files_are_unpacked_elsewhere(packed_mini: Path) -> None:
    unpacked_folder = bases.resolve_bundled("mini")
    (packed_mini / "config.json").write_text("new")
    other_folder = bases.resolve_bundled("mini")
    assert other_folder != unpacked_folder
    assert Path(other_folder, "config.json").read_text(encoding="utf-8") == "new"


def test_a_cache_that_cannot_be_written_is_named(
    packed_mini: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bases, "cached_assets_path", Mock(side_effect=PermissionError("no")))
    with pytest.raises(OSError, match="HF_HOME"):
        st_reba.build("mini")


def test_a_layer_that_looks_both_ways_makes_a_model_that_does(llama: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(llama)
    assert is_causal(model)
    model.model.layers[1].self_attn.is_causal = False
    assert not is_causal(model)


def test_where_no_layer_says_which_way_it_looks_it_is_tried(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In large states, a rounding error may be large too."""

    def run_roughly(model: Any, token_ids: list[list[int]]) -> torch.Tensor:
        states = 1000 * run_ids(model, token_ids)
        states[1] *= 1.001
        return states

    monkeypatch.setattr(selfcheck, "run_ids", run_roughly)
    families.save("bert", tmp_path, decoder=False)
    for folder, looks_back_alone in ((llama, True), (tmp_path, False)):
        model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
        for module in model.modules():
            vars(module).pop("is_causal", None)
        assert is_causal(model) is looks_back_alone


@pytest.fixture(scope="module")
def half_llama(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The llama, stored in bfloat16."""
    folder = tmp_path_factory.mktemp("half")
    AutoModelForCausalLM.from_pretrained(llama).to(torch.bfloat16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(llama).save_pretrained(folder)
    return folder


def test_weights_are_float32_on_a_cpu(half_llama: Path) -> None:
    assert RepeatTransformer(str(half_llama)).model.dtype == torch.float32
    assert st_reba.build(half_llama).dtype == torch.float32


@pytest.mark.parametrize(
    ("dtype", "expected_bytes"),
    [(None, 2), ("float32", 4), (torch.bfloat16, 2), ("auto", 2)],
)
def test_weights_are_saved_as_the_base_stores_them_or_as_asked_for(
    half_llama: Path,
    dtype: Any,
    expected_bytes: int,
    tmp_path: Path,
) -> None:
    model = build(half_llama, dtype=dtype)
    loaded_model = save_and_load(model, tmp_path, model_kwargs={"dtype": torch.float32})
    if dtype in (None, "float32"):
        assert model.dtype == torch.float32
        assert torch.equal(encoded(loaded_model), encoded(model))
    assert bytes_per_number(model, tmp_path) == pytest.approx(expected_bytes, rel=0.05)


@pytest.mark.parametrize("value", ["bfloat16", "torch.bfloat16", torch.bfloat16])
@pytest.mark.parametrize("name", ["dtype", "torch_dtype"])
@pytest.mark.parametrize("option", ["model_kwargs", "config_kwargs"])
def test_either_name_of_the_number_type_is_obeyed(
    llama: Path,
    option: str,
    name: str,
    value: Any,
    tmp_path: Path,
) -> None:
    options: dict[str, Any] = {option: {name: value}}
    model = build(llama, **options)
    assert model.dtype == torch.bfloat16
    model.save_pretrained(str(tmp_path / "saved"))
    assert st_reba.load(tmp_path / "saved", device="cpu", **options).dtype == torch.bfloat16
    assert st_reba.load(tmp_path / "saved", device="cpu").dtype == torch.float32


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "float16", "model_kwargs": {"torch_dtype": "bfloat16"}},
        {"model_kwargs": {"dtype": "float16", "torch_dtype": "bfloat16"}},
        {"model_kwargs": {"dtype": "float16"}, "config_kwargs": {"torch_dtype": "bfloat16"}},
    ],
    ids=str,
)
def test_number_types_that_differ_are_refused(llama: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"torch_dtype.*differ\. Give one"):
        build(llama, **options)


def test_the_same_number_type_may_be_given_twice(llama: Path) -> None:
    model = build(llama, dtype=torch.half, model_kwargs={"torch_dtype": "float16"})
    assert model.dtype == torch.float16


@pytest.mark.parametrize("value", ["float7", "torch.auto", torch.int8, 7])
def test_an_unknown_number_type_is_refused_by_its_option(llama: Path, value: object) -> None:
    with pytest.raises(ValueError, match=rf"model_kwargs\['torch_dtype'\]={value!r} is not known"):
        build(llama, model_kwargs={"torch_dtype": value})


@pytest.mark.parametrize(
    "options",
    [
        {"model_kwargs": 5},
        {"model_kwargs": {"nope": 1}},
        {"model_kwargs": {"quantization_config": 5}},
        {"processor_kwargs": 5},
        {"processor_kwargs": {"model_max_length": "x"}},
        {"config_kwargs": 5},
        {"gguf_file": 5},
        {"revision": 5},
        {"trust_remote_code": "yes"},
        {"truncate_dim": -1},
        {"truncate_dim": "x"},
        {"model_card_data": 3},
    ],
    ids=str,
)
def test_an_odd_value_is_refused_in_one_line_that_names_its_option(
    llama: Path, options: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=next(iter(options))) as raised:
        build(llama, **options)
    assert len(str(raised.value).splitlines()) == 1


def test_a_revision_of_what_is_not_on_the_hub_is_refused(llama: Path) -> None:
    for base in ("mini", "smollm2", str(llama), llama):
        with pytest.raises(ValueError, match="revision='v1': base=.* has no revisions. Drop it."):
            st_reba.build(base, "echo", revision="v1")


def test_no_base_is_refused() -> None:
    with pytest.raises(ValueError, match="base=None"):
        st_reba.build(None)


@pytest.mark.parametrize(
    "load",
    [
        lambda: build("no/such"),
        lambda: build("mini", tokenizer="no/such"),
        lambda: st_reba.load("no/such"),
        lambda: verify("no/such"),
    ],
    ids=["base", "tokenizer", "model", "verify"],
)
def test_a_hub_that_does_not_answer_is_asked_once(
    load: Callable[[], object], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.hf_api.api, "endpoint", "http://127.0.0.1:1")
    ask_for_file = Mock()
    monkeypatch.setattr("huggingface_hub.file_download.get_hf_file_metadata", ask_for_file)
    with pytest.raises((OSError, ValueError), match="no/such"):
        load()
    # transformers 5.0 asks for the processor of a tokenizer all the same.
    assert ask_for_file.call_count <= 1
    (warning,) = caplog.messages
    assert warning.startswith(
        "no/such: the Hub does not answer, so only files in its cache are used"
    )


def test_a_hub_that_knows_no_such_model_answers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(bases, "model_info", Mock(side_effect=HFValidationError))
    assert bases.choose_hub_options("no/such", {}) == {}
    assert caplog.messages == []


def test_a_hub_is_not_asked_for_what_is_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    ask_hub = Mock()
    monkeypatch.setattr(bases, "model_info", ask_hub)
    bases.choose_hub_options(str(tmp_path), {})
    bases.choose_hub_options("no/such", {"local_files_only": True})
    ask_hub.assert_not_called()
