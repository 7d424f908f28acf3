"""What a stranger's folder may not do: name code, lead elsewhere, or ask for more than it holds."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    LayerNorm,
    Pooling,
    StaticEmbedding,
    Transformer,
    WordEmbeddings,
)
from sentence_transformers.sentence_transformer.modules.tokenizer import WhitespaceTokenizer
from transformers import AutoTokenizer

import st_reba
from st_reba.bases import BUNDLED
from st_reba.safety import RepositoryRefused
from st_reba.safety.loading import check_repository

MINI = str(BUNDLED["mini"])
TYPES = "sentence_transformers.models."
KERNEL = "evil/kernel"
SETTINGS = "sentence_bert_config.json"
MODEL_SETTINGS = "config_sentence_transformers.json"
Change = Callable[[Path], object]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound saved model; not to be changed."""
    folder = tmp_path_factory.mktemp("models") / "sound"
    modules = [Transformer(MINI), Pooling(192, "mean"), Dense(192, 16, bias=False)]
    SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(folder))
    return folder


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    """A copy of the sound model."""
    return Path(shutil.copytree(sound, tmp_path / "model"))


@pytest.fixture(autouse=True)
def time_limit() -> Iterator[None]:
    """A test that hangs fails after 20 seconds."""

    def stop(*_: object) -> None:
        raise TimeoutError("loading does not end")

    previous_handler = signal.signal(signal.SIGALRM, stop)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, previous_handler)


def write_json(file: Path, **values: Any) -> None:
    """Change values of a JSON file, which need not be there."""
    file.parent.mkdir(exist_ok=True, parents=True)
    stored_values = {}
    if file.exists():
        stored_values = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**stored_values, **values}), encoding="utf-8")


def list_modules(folder: Path, *entries: tuple[str, str]) -> None:
    """Write modules.json of types and folders."""
    modules = []
    for number, (type_name, path) in enumerate(entries):
        modules.append({"idx": number, "name": str(number), "path": path, "type": type_name})
        (folder / path).mkdir(exist_ok=True)
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")


def assert_refused(folder: Path, message: str) -> None:
    """Loading refuses the folder before anything of it is loaded."""
    with pytest.raises(RepositoryRefused, match=message):
        st_reba.load(folder, device="cpu")


@pytest.mark.parametrize(
    "tokenizer_class", ["sentence_transformers.SentenceTransformer", "os.system"]
)
def test_a_model_inside_a_model_is_refused(folder: Path, tokenizer_class: str) -> None:
    shutil.copytree(folder, folder / "0_Words")
    write_json(folder / "0_Words" / "config.json", _attn_implementation=KERNEL)
    write_json(folder / "0_Words" / "wordembedding_config.json", tokenizer_class=tokenizer_class)
    list_modules(folder, (TYPES + "WordEmbeddings", "0_Words"), (TYPES + "Pooling", "1_Pooling"))
    assert_refused(folder, "tokenizer_class")


def test_the_tokenizer_of_word_embeddings_is_checked(folder: Path) -> None:
    wrapper = f"{TYPES}tokenizer.TransformersTokenizerWrapper"
    embeddings = {"emb_layer.weight": torch.zeros(3, 192)}
    write_json(folder / "0_Words" / "wordembedding_config.json", tokenizer_class=wrapper)
    write_json(folder / "0_Words" / "tokenizer_config.json", tokenizer_class="AutoModel")
    save_file(embeddings, folder / "0_Words" / "model.safetensors")
    list_modules(folder, (TYPES + "WordEmbeddings", "0_Words"), (TYPES + "Pooling", "1_Pooling"))
    assert_refused(folder, "AutoModel")


LARGE_MODULES: dict[str, tuple[str, dict[str, Any]]] = {
    "LSTM": (
        "lstm_config.json",
        {"embedding_dimension": 9000, "hidden_dim": 9000, "num_layers": 4},
    ),
    "LayerNorm": ("config.json", {"dimension": 1_500_000_000}),
    "CNN": ("cnn_config.json", {"in_embedding_dimension": 9000, "out_channels": 9000}),
    "WeightedLayerPooling": ("config.json", {"embedding_dimension": 1, "layer_start": -(10**9)}),
    "Dense": ("config.json", {"in_features": 20000, "out_features": 20000}),
}


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("name", LARGE_MODULES)
def test_a_module_larger_than_its_weights_is_refused(
    folder: Path, name: str, is_first: bool
) -> None:
    """Also where it stands in place of the model, so that nothing tells how large that is."""
    file, values = LARGE_MODULES[name]
    write_json(folder / "8_Module" / file, **values)
    save_file({"weight": torch.zeros(3)}, folder / "8_Module" / "model.safetensors")
    modules = [(TYPES + "Transformer", ""), (TYPES + name, "8_Module")]
    list_modules(folder, *modules[is_first:])
    assert_refused(folder, "8_Module|reads no text")


def test_a_layer_norm_of_other_sizes_than_its_weights_is_refused(folder: Path) -> None:
    (folder / "8_Norm").mkdir()
    LayerNorm(7).save(str(folder / "8_Norm"))
    write_json(folder / "8_Norm" / "config.json", dimension=8)
    list_modules(folder, (TYPES + "Transformer", ""), (TYPES + "LayerNorm", "8_Norm"))
    assert_refused(folder, r"norm.bias is \(7,\)")


@pytest.mark.parametrize("other_name", ["2_Dense", "./2_Dense", "2_Dense//"])
def test_one_folder_for_many_modules_is_refused(folder: Path, other_name: str) -> None:
    copies = [(TYPES + "Dense", "2_Dense"), (TYPES + "Dense", other_name)]
    list_modules(folder, (TYPES + "Transformer", ""), (TYPES + "Pooling", "1_Pooling"), *copies)
    assert_refused(folder, "folder of several modules")


@pytest.mark.parametrize("name", ["..", "/etc", "a/../../b", "C:\\x"])
def test_a_module_outside_the_folder_is_refused(folder: Path, name: str) -> None:
    """In the list of modules, and in a Router."""
    list_modules(folder, (TYPES + "Router", "0_Router"))
    write_json(folder / "0_Router" / "router_config.json", types={name: TYPES + "Pooling"})
    assert_refused(folder, "leads out of")
    modules = [{"idx": 0, "name": "0", "path": name, "type": TYPES + "Transformer"}]
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    assert_refused(folder, "leads out of")


def test_a_router_in_a_router_is_refused(folder: Path) -> None:
    list_modules(folder, (TYPES + "Router", "0_Router"))
    write_json(folder / "0_Router" / "router_config.json", types={"a": TYPES + "Router"})
    assert_refused(folder, "router_config.json: type=.* is not a module of a Router")


@pytest.mark.parametrize("type_name", ["SparseStaticEmbedding", "SpladePooling", "MLMTransformer"])
def test_a_module_type_that_is_not_in_the_list_is_refused(folder: Path, type_name: str) -> None:
    full_name = f"sentence_transformers.sparse_encoder.modules.{type_name}"
    list_modules(folder, (TYPES + "Transformer", ""), (full_name, "1_Pooling"))
    assert_refused(folder, "that is checked")


def link_to_device(file: Path) -> None:
    """A link to an endless device."""
    file.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [os.mkfifo, link_to_device])
@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "model.safetensors", "README.md"]
)
def test_a_pipe_or_device_is_refused(folder: Path, tmp_path: Path, name: str, make: Change) -> None:
    base = Path(shutil.copytree(MINI, tmp_path / "base"))
    for place in (folder, base):
        (place / name).unlink()
        make(place / name)
    assert_refused(folder, f"{name}: it is a pipe or a device")
    with pytest.raises(RepositoryRefused, match="it is a pipe or a device"):
        st_reba.build(base, "echo", device="cpu")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "README.md"])
def test_a_text_of_hundreds_of_megabytes_is_refused(folder: Path, name: str) -> None:
    with (folder / name).open("wb") as stream:
        stream.truncate(300 << 20)
    assert_refused(folder, f"{name}: 314,572,800 bytes")


CONFIGURATIONS: list[dict[str, Any]] = [
    {"num_labels": 10**9},
    {"model_type": "rag"},
    {"model_type": "detr"},
    {"vision_config": {"model_type": "timm_wrapper"}},
    {"vision_config": {"architecture": "hf-hub:evil/model"}},
    {"fusion_config": {"patch": True}},
    {"transformers_weights": "adapter_model.bin"},
    {"_attn_implementation": "flash_attention_3"},
    {"_experts_implementation": "sonicmoe"},
    {"attribute_map": {"x": "_attn_implementation_internal"}, "x": KERNEL},
    {"text_config": {"attribute_map": {"x": "num_labels"}, "x": 10**9}},
    {"quantization_config": {"quant_method": "quark"}},
    {"quantization_config": {"load_in_8bit": True, "llm_int8_skip_modules": ["((a*)*)*X"]}},
    {"tokenizer_class": "AutoModel"},
    {"num_attention_heads": 10**9},
    {"vocab_file": f"../{Path.cwd().name}"},
]


@pytest.mark.parametrize("values", CONFIGURATIONS, ids=str)
def test_a_configuration_is_refused(folder: Path, tmp_path: Path, values: dict[str, Any]) -> None:
    """In a saved model, and in a base."""
    name = next(iter(values))
    base = Path(shutil.copytree(MINI, tmp_path / "base"))
    for place in (folder, base):
        write_json(place / "config.json", **values)
    assert_refused(folder, f"{name}|model_type|quant_method|architecture|attribute_map|skip")
    with pytest.raises(RepositoryRefused):
        st_reba.build(base, "echo", device="cpu")


STORED_SETTINGS: list[tuple[str, Any]] = [
    ("model_kwargs", {"file_name": "../model.onnx"}),
    ("processor_kwargs", {"tokenizer_file": "/dev/zero"}),
    ("transformer_task", "retrieval"),
    ("modality_config", {"text": {"method": "save_pretrained", "method_output_name": "x"}}),
    ("processing_kwargs", {"text": {"padding": "max_length", "max_length": 10**12}}),
    ("query_expansion", {"strategy": "fixed", "length": 10**9}),
    ("processing_kwargs", {"text": {"stride": 10**9}}),
]


@pytest.mark.parametrize(("name", "value"), STORED_SETTINGS)
def test_a_stored_setting_is_refused(folder: Path, name: str, value: Any) -> None:
    write_json(folder / SETTINGS, **{name: value})
    assert_refused(folder, SETTINGS)


def test_a_limit_of_texts_may_be_large_and_attention_be_named(folder: Path) -> None:
    write_json(folder / SETTINGS, max_seq_length=10**7)
    write_json(folder / "config.json", _attn_implementation="eager")
    assert st_reba.load(folder, device="cpu").encode("hi").shape == (16,)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("processor_class", "LlamaModel"),
        # It would load two tokenizers that a folder names.
        ("processor_class", "RagTokenizer"),
        ("image_processor_type", "LlamaModel"),
        ("feature_extractor_type", "LlamaModel"),
    ],
)
def test_what_is_no_processor_is_refused(folder: Path, name: str, value: str) -> None:
    write_json(folder / "preprocessor_config.json", **{name: value})
    assert_refused(folder, value)


def test_a_model_named_as_an_audio_tokenizer_is_refused(folder: Path) -> None:
    write_json(
        folder / "processor_config.json", audio_tokenizer={"audio_tokenizer_class": "DacModel"}
    )
    assert_refused(folder, "audio_tokenizer")


@pytest.mark.parametrize("size", [-5, 0, 10**9, True, "5", 2.5])
def test_a_truncate_dim_that_is_no_size_is_refused(folder: Path, size: Any) -> None:
    write_json(folder / MODEL_SETTINGS, truncate_dim=size)
    assert_refused(folder, "truncate_dim")


def test_one_dimension_is_a_size(folder: Path) -> None:
    write_json(folder / MODEL_SETTINGS, truncate_dim=1)
    assert st_reba.load(folder, device="cpu").encode("a").shape == (1,)


def rename_number_types(file: Path, number_type: str) -> None:
    """Say in a header that all numbers of two bytes are of another type."""
    content = file.read_bytes()
    header_size = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + header_size].decode()
    for stored_type in ("BF16", "F16"):
        header = header.replace(f'"{stored_type}"', f'"{number_type}"')
    encoded_header = header.encode()
    size = len(encoded_header).to_bytes(8, "little")
    file.write_bytes(size + encoded_header + content[8 + header_size :])


@pytest.mark.parametrize("number_type", ["I16", "U16"])
def test_weights_that_claim_to_be_whole_numbers_are_refused(
    tmp_path: Path, number_type: str
) -> None:
    base = Path(shutil.copytree(MINI, tmp_path / "base"))
    rename_number_types(base / "model.safetensors", number_type)
    with pytest.raises(RepositoryRefused, match=f"is stored as {number_type}"):
        st_reba.build(base, "echo", device="cpu")


@pytest.mark.parametrize("stored_type", ["BF16", "F16"])
def test_half_precision_weights_that_claim_to_be_of_the_other_type_are_refused(
    folder: Path, stored_type: str
) -> None:
    named_type = {"BF16": torch.float16, "F16": torch.bfloat16}[stored_type]
    file = folder / "model.safetensors"
    weights = {name: weight.to(named_type) for name, weight in load_file(file).items()}
    save_file(weights, file, {"format": "pt"})
    write_json(folder / "config.json", dtype=str(named_type).removeprefix("torch."))
    st_reba.load(folder, device="cpu")
    rename_number_types(file, stored_type)
    assert_refused(folder, f"is stored as {stored_type}")


def test_weights_in_another_number_type_than_the_configuration_names_load(folder: Path) -> None:
    """As many published models have them."""
    file = folder / "model.safetensors"
    weights = {name: weight.to(torch.float16) for name, weight in load_file(file).items()}
    save_file(weights, file, {"format": "pt"})
    write_json(folder / "config.json", dtype="bfloat16")
    assert st_reba.load(folder, device="cpu").encode("hi").shape == (16,)


def test_a_prompt_of_a_million_letters_is_refused(folder: Path) -> None:
    write_json(folder / MODEL_SETTINGS, prompts={"query": "a " * 500_000})
    assert_refused(folder, "1,000,000 letters are too many")


PADDING: list[dict[str, Any]] = [
    {"processing_kwargs": {"text": {"padding": "max_length", "max_length": 10**5}}},
    {"processing_kwargs": {"common": {"padding": "max_length"}, "text": {"max_length": 10**5}}},
    {"processing_kwargs": {"text": {"pad_to_multiple_of": 10**5}}},
    {"processing_kwargs": {"text": {"padding": "max_length"}}, "max_seq_length": 10**5},
    {"query_expansion": {"strategy": "fixed", "length": 10**5}},
]


@pytest.mark.parametrize("settings", PADDING, ids=str)
def test_padding_of_every_text_to_thousands_of_tokens_is_refused(
    folder: Path, settings: dict[str, Any]
) -> None:
    write_json(folder / SETTINGS, **settings)
    assert_refused(folder, "pads every text")


def test_padding_to_a_common_length_loads(folder: Path) -> None:
    write_json(
        folder / SETTINGS, processing_kwargs={"text": {"padding": "max_length", "max_length": 64}}
    )
    assert st_reba.load(folder, device="cpu").encode("hi").shape == (16,)


def test_a_module_that_reads_tokens_behind_one_that_gives_none_is_refused(folder: Path) -> None:
    write_json(
        folder / "0_BoW" / "config.json", vocab=["hi"], word_weights={}, unknown_word_weight=1
    )
    list_modules(folder, (TYPES + "BoW", "0_BoW"), (TYPES + "Pooling", "1_Pooling"))
    assert_refused(folder, "a Pooling reads tokens, and a BoW gives none")


def test_a_long_list_is_refused_where_no_words_are_listed(folder: Path) -> None:
    weights = {"vocab": ["hi"] * 2000, "word_weights": {}, "unknown_word_weight": 1}
    write_json(folder / "0_BoW" / "config.json", **weights)
    list_modules(folder, (TYPES + "BoW", "0_BoW"), (TYPES + "Normalize", "1_Normalize"))
    check_repository(str(folder))
    write_json(folder / "1_Normalize" / "config.json", p=[1] * 2000)
    assert_refused(folder, "p=")


def test_a_shard_that_is_not_a_safetensors_file_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "weights.bin")
    (folder / "other.safetensors").touch()
    index = folder / "model.safetensors.index.json"
    write_json(index, metadata={}, weight_map={"layer": "weights.bin"})
    assert_refused(folder, "is not a safetensors file beside it")


def adapter_weights(rank: int) -> dict[str, torch.Tensor]:
    """Of an adapter of one matrix in each layer of the tiny model."""
    weights = {}
    for layer in range(6):
        name = f"base_model.model.layers.{layer}.self_attn.q_proj.lora"
        weights[f"{name}_A.weight"] = torch.zeros(rank, 192)
        weights[f"{name}_B.weight"] = torch.zeros(192, rank)
    return weights


ADAPTERS: list[dict[str, Any]] = [
    {"r": 10**5},
    {"r": 100},  # less than the larger sides of its matrices
    {"rank_pattern": {"q_proj": 10**5}},
    {"layer_replication": [[0, 6]] * 100},
    {"target_modules": "(([a-z_.0-9]*)*)*X"},
    {"peft_type": "POLY"},
    {"target_modules": r"(\w?\w?\w?\w?\w?\w?\w?\w?.?.?.?.?.?.?.?.?)X"},
    {"target_modules": "(.|[a-z.])" * 30 + "X"},
    {"modules_to_save": ["(([a-z_.0-9]*)*)*X"]},
    {"init_lora_weights": "pissa_niter_1000000000"},
    {"init_lora_weights": "pissa_niter_1001"},
    {"base_model_name_or_path": 5},
]


@pytest.mark.parametrize("values", ADAPTERS, ids=str)
def test_an_adapter_is_refused(tmp_path: Path, values: dict[str, Any]) -> None:
    """One that asks for more than its weights hold, or whose pattern takes for ever."""
    adapter = {
        "peft_type": "LORA",
        "base_model_name_or_path": MINI,
        "target_modules": ["q_proj"],
        "r": 4,
    }
    write_json(tmp_path / "adapter_config.json", **{**adapter, **values})
    save_file(adapter_weights(4), tmp_path / "adapter_model.safetensors")
    with pytest.raises(RepositoryRefused, match=next(iter(values)) + "|r=1"):
        st_reba.build(tmp_path, "echo", device="cpu")


@pytest.mark.parametrize("is_pickle", [True, False])
def test_an_adapter_that_is_larger_than_its_weights_is_refused(
    tmp_path: Path, is_pickle: bool
) -> None:
    """As a pickle, whose header nobody reads; and where one large tensor stands for all ranks."""
    pytest.importorskip("peft")
    rank = 3000
    write_json(
        tmp_path / "adapter_config.json",
        peft_type="LORA",
        base_model_name_or_path=MINI,
        target_modules=["q_proj", "o_proj"],
        r=rank,
    )
    weights = adapter_weights(4)
    if is_pickle:
        torch.save(weights, tmp_path / "adapter_model.bin")
    else:
        large = {"large": torch.zeros(rank, rank)}
        save_file(weights | large, tmp_path / "adapter_model.safetensors")
    with pytest.raises(ValueError, match="adapter_config.json: it asks for far more|peft cannot"):
        st_reba.build(tmp_path, "echo", device="cpu")


@pytest.mark.parametrize("name", ["adapter_model.bin", "adapter_config.json"])
def test_what_peft_stumbles_over_names_the_adapter(tmp_path: Path, name: str) -> None:
    pytest.importorskip("peft")
    indices = [10**9] if name == "adapter_config.json" else None
    write_json(
        tmp_path / "adapter_config.json",
        peft_type="LORA",
        base_model_name_or_path=MINI,
        target_modules=["q_proj"],
        r=4,
        trainable_token_indices=indices,
    )
    torch.save(adapter_weights(4), tmp_path / "adapter_model.bin")
    if name == "adapter_model.bin":
        (tmp_path / name).write_bytes(b"cos\nsystem\n.")
    with pytest.raises(ValueError, match="peft cannot merge the adapter|its embeddings"):
        st_reba.build(tmp_path, "echo", device="cpu")


def write_weights_header(file: Path, header: bytes) -> None:
    """Write a file of weights with a header and no numbers."""
    padded = header + b" " * (-len(header) % 8)
    file.write_bytes(len(padded).to_bytes(8, "little") + padded)


def test_weights_whose_header_is_larger_than_a_models_are_refused(folder: Path) -> None:
    """It takes minutes to read."""
    tensor = '"dtype":"F32","shape":[0],"data_offsets":[0,0]'
    tensors = ",".join(f'"x{number}":{{{tensor}}}' for number in range(200_000))
    write_weights_header(folder / "model.safetensors", f"{{{tensors}}}".encode())
    with (folder / "model.safetensors").open("ab") as stream:
        stream.write(b"\0")
    assert_refused(folder, "its header has")


def test_an_index_of_shards_that_is_larger_than_a_models_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "shard.safetensors")
    names = dict.fromkeys(map(str, range(100_000)), "shard.safetensors")
    write_json(folder / "model.safetensors.index.json", metadata={}, weight_map=names)
    assert_refused(folder, "for these weights")


@pytest.mark.parametrize(
    "settings",
    [
        {"module_output_name": ["a"]},
        {"max_seq_length": ["a"]},
        {"max_seq_length": {"a": 1}},
        {"modality_config": {"text": {"method": "forward", "method_output_name": 5}}},
        {"modality_config": {"text": {"method": "forward", "method_output_name": [["a"]]}}},
    ],
    ids=str,
)
def test_settings_of_another_type_are_refused(folder: Path, settings: dict[str, Any]) -> None:
    write_json(folder / SETTINGS, **settings)
    assert_refused(folder, "is not a text|is not a number")


EMBEDDINGS = torch.rand(8192, 6)
TOKEN_WEIGHTS = torch.ones(8192)


def write_static(folder: Path, **tensors: torch.Tensor) -> None:
    """Write a StaticEmbedding of these tensors, as model2vec stores them."""
    module = StaticEmbedding(AutoTokenizer.from_pretrained(MINI), EMBEDDINGS)
    SentenceTransformer(modules=[module], device="cpu").save_pretrained(str(folder))
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"embeddings": EMBEDDINGS.short(), "weights": TOKEN_WEIGHTS}, "embeddings is stored as"),
        ({"embeddings": EMBEDDINGS.char()}, "embeddings is stored as I8"),
        ({"embeddings": EMBEDDINGS, "weights": TOKEN_WEIGHTS.short()}, "weights is stored as I16"),
        ({"embeddings": EMBEDDINGS, "weights": EMBEDDINGS.clone()}, "one number per token"),
        ({"embeddings": EMBEDDINGS, "mapping": TOKEN_WEIGHTS}, "mapping is stored as F32"),
        ({"embeddings": EMBEDDINGS, "mapping": torch.arange(3 << 20)}, "3,145,728 tokens do not"),
    ],
    ids=["I16", "I8 alone", "weights of I16", "weights in rows", "mapping of F32", "mapping"],
)
def test_embeddings_of_tokens_in_other_numbers_are_refused(
    tmp_path: Path, tensors: dict[str, torch.Tensor], message: str
) -> None:
    write_static(tmp_path, **tensors)
    assert_refused(tmp_path, message)


@pytest.mark.skipif(
    '"mapping"' not in inspect.getsource(StaticEmbedding.load),
    reason="sentence-transformers does not read a mapping of tokens",
)
def test_embeddings_of_tokens_that_are_rounded_to_8_bits_load(tmp_path: Path) -> None:
    """As model2vec does; their weights make them floating numbers."""
    mapping = torch.arange(8192)
    embeddings = (EMBEDDINGS * 100).char()
    write_static(tmp_path, embeddings=embeddings, weights=TOKEN_WEIGHTS, mapping=mapping)
    assert st_reba.load(tmp_path, device="cpu").encode("hi").any()


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("echo", {"template": "{text}" * 40_000}, "40000 slots for the text"),
        ("echo", {"template": ["{text}"] * 20_000}, "20000 templates"),
        (
            "nosink:setting=extend-bidir,k=2",
            {"second": [[0, "bidirectional"]] * 30_000},
            "30000 second runs",
        ),
    ],
    ids=["slots", "templates", "runs"],
)
def test_a_method_that_runs_without_end_is_refused(
    tmp_path: Path, method: str, settings: dict[str, Any], message: str
) -> None:
    st_reba.build("mini", method, device="cpu", check=False).save_pretrained(str(tmp_path))
    write_json(tmp_path / SETTINGS, **settings)
    with pytest.raises(ValueError, match=message):
        st_reba.load(tmp_path, device="cpu")


def test_sound_modules_of_every_kind_load(tmp_path: Path) -> None:
    """Embeddings of words and of tokens, and a Router of them."""
    tokenizer = WhitespaceTokenizer(["hi", "there"])
    words = [WordEmbeddings(tokenizer, torch.rand(3, 6)), Pooling(6), LayerNorm(6)]
    tokens = StaticEmbedding(AutoTokenizer.from_pretrained(MINI), torch.rand(8192, 6))
    for name, modules in {
        "words": words,
        "tokens": [tokens],
        "router": [Router.for_query_document([tokens], words), Dense(6, 4)],
    }.items():
        model = SentenceTransformer(modules=modules, device="cpu")
        model.save_pretrained(str(tmp_path / name))
        loaded = st_reba.load(tmp_path / name, device="cpu")
        options = {"task": "query"} if name == "router" else {}
        assert torch.equal(
            loaded.encode("hi", convert_to_tensor=True, **options),
            model.encode("hi", convert_to_tensor=True, **options),
        )
