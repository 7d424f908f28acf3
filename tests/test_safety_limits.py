"""How much of what a stranger's folder may hold, and what it may still say."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from st_reba.safety import Repository, RepositoryRefused, check_base, check_repository
from st_reba.safety import repository as repository_module
from st_reba.safety.configurations import check_tokenizer, check_transformer
from st_reba.safety.weights import StoredTensor

TYPES = "sentence_transformers.models."
SETTINGS = "sentence_bert_config.json"
Change = Callable[[Path], object]


def write_json(file: Path, value: object) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(value), encoding="utf-8")


def list_modules(folder: Path, *entries: tuple[str, object]) -> None:
    """Write modules.json of types and folders."""
    modules: list[dict[str, object]] = []
    for type_name, module_path in entries:
        modules.append({"path": module_path, "type": TYPES + type_name})
    write_json(folder / "modules.json", modules)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sound model without weights: words are counted, and vectors scaled to length 1."""
    words = {"vocab": ["hi"], "word_weights": {}, "unknown_word_weight": 1}
    write_json(tmp_path / "0_BoW" / "config.json", words)
    (tmp_path / "1_Normalize").mkdir()
    list_modules(tmp_path, ("BoW", "0_BoW"), ("Normalize", "1_Normalize"))
    return tmp_path


def list_many_modules(module_count: int) -> Change:
    entries = [("Normalize", f"{number}_Normalize") for number in range(1, module_count)]
    return lambda folder: list_modules(folder, ("BoW", "0_BoW"), *entries)


def name_a_route(letter_count: int) -> Change:
    router = {
        "types": {"a": TYPES + "Normalize"},
        "parameters": {"route_mappings": {"x" * letter_count: ["a"]}},
    }

    def change(folder: Path) -> None:
        list_modules(folder, ("Router", "2_Router"))
        write_json(folder / "2_Router" / "router_config.json", router)

    return change


def add_module(type_name: str, file_name: str, **values: object) -> Change:
    def change(folder: Path) -> None:
        list_modules(folder, ("BoW", "0_BoW"), (type_name, "2_Module"))
        write_json(folder / "2_Module" / file_name, values)

    return change


def write_spaces(name: str, count: int) -> Change:
    """Make a file of JSON longer."""

    def change(folder: Path) -> None:
        with (folder / name).open("a", encoding="utf-8") as stream:
            stream.write(" " * count)

    return change


def put_file(name: str) -> Change:
    return lambda folder: (folder / name).touch()


# What is allowed, and what is a little more than that, with a part of the message.
ALLOWED: dict[str, Change] = {
    "nothing else": lambda folder: None,
    "64 modules": list_many_modules(64),
    "a route of 200 letters": name_a_route(200),
    "a list of words of 5 MB": write_spaces("0_BoW/config.json", 5 << 20),
    "a graph of openvino": put_file("1_Normalize/openvino_model.bin"),
    "a link to nothing": lambda folder: (folder / "old").symlink_to("nowhere"),
}
REFUSED: dict[str, tuple[Change, str]] = {
    "65 modules": (list_many_modules(65), "65 modules: at most 64"),
    "a route of 201 letters": (name_a_route(201), "is not a route"),
    "modules of 5 MB": (write_spaces("modules.json", 5 << 20), "than a configuration has"),
    "a path that is a number": (
        lambda folder: list_modules(folder, ("BoW", "0_BoW"), ("Normalize", 5)),
        "5 is not a path",
    ),
    "a path that no file has": (
        lambda folder: list_modules(folder, ("BoW", "0_BoW"), ("Normalize", "a\0b")),
        "leads out of",
    ),
    "a pickle": (put_file("1_Normalize/model.bin"), "model.bin: it is a pickle"),
    "an activation of another package": (
        add_module("Dense", "config.json", activation_function="evil.Tanh"),
        "activation_function='evil.Tanh'",
    ),
    "a module in place of an activation": (
        add_module("Dense", "config.json", activation_function="torch.nn.Transformer"),
        "activation_function='torch.nn.Transformer'",
    ),
    "1001 layers": (
        add_module("LSTM", "lstm_config.json", num_layers=1001),
        "num_layers=1001",
    ),
    "lists in lists": (add_module("Normalize", "config.json", p=[[1]]), r"p=\[\[1\]\]"),
}


@pytest.mark.parametrize("case", ALLOWED)
def test_a_sound_folder_is_allowed(folder: Path, case: str) -> None:
    ALLOWED[case](folder)
    check_repository(folder)


@pytest.mark.parametrize("case", REFUSED)
def test_a_folder_of_more_is_refused(folder: Path, case: str) -> None:
    change, part_of_message = REFUSED[case]
    change(folder)
    with pytest.raises(RepositoryRefused, match=part_of_message):
        check_repository(folder)


def test_files_are_counted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repository_module, "_MAX_FILES", 2)
    check_repository(folder)
    (folder / "0_BoW" / "more").touch()
    with pytest.raises(RepositoryRefused, match="more than 2 files"):
        check_repository(folder)


def test_only_a_list_of_shards_may_be_longer_than_a_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository_module, "_MAX_CONFIGURATION_BYTES", 10)
    write_json(tmp_path / "config.json", {"model_type": "llama"})
    repository = Repository(str(tmp_path))
    assert repository.configuration("config.json", is_list=True)
    with pytest.raises(RepositoryRefused, match="config.json: 23 bytes are more than"):
        repository.configuration("config.json")


def test_values_are_counted_at_any_depth(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repository_module, "_MAX_VALUES", 3)
    settings_file = folder / "config_sentence_transformers.json"
    write_json(settings_file, {"prompts": {"query": "", "document": ""}})
    check_repository(folder)
    write_json(settings_file, {"prompts": [["", ""]]})
    with pytest.raises(RepositoryRefused, match="more than 3 values"):
        check_repository(folder)


def test_a_text_may_have_a_quarter_of_the_size_of_the_weights(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository_module, "_MAX_TEXT_BYTES", 200)
    (folder / "vocab.txt").write_bytes(bytes(1000))
    with pytest.raises(RepositoryRefused, match="1,000 bytes: at most 200 here"):
        check_repository(folder)
    (folder / "model.safetensors").write_bytes(bytes(3996))
    with pytest.raises(RepositoryRefused, match="1,000 bytes: at most 999 here"):
        check_repository(folder)
    (folder / "model.safetensors").write_bytes(bytes(4000))
    check_repository(folder)


# The names are written out here: if they were taken from the package, none could be missed there.
# Settings by which transformers, timm, peft or a tokenizer read other files or replace classes.
SETTINGS_OF_OTHER_FILES = (
    "attribute_map",
    "audio_tokenizer",
    "configuration_files",
    "fusion_config",
    "gguf_file",
    "init_inputs",
    "kernel_config",
    "layer_replication",
    "megatron_config",
    "transformers_weights",
    "use_kernels",
    "use_pretrained_backbone",
    "use_timm_backbone",
)
PROCESSOR_FILES = (
    "audio_tokenizer_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "special_tokens_map.json",
    "tokenizer_config.json",
    "video_preprocessor_config.json",
)
MODEL_TYPES_OF_SEVERAL_MODELS = (
    "encoder-decoder",
    "rag",
    "speech-encoder-decoder",
    "timm_backbone",
    "timm_wrapper",
    "vision-encoder-decoder",
    "vision-text-dual-encoder",
)
# The file and the setting in which options are passed on to transformers.
PLACES_OF_OPTIONS = [
    *((SETTINGS, f"{name}_args") for name in ("config", "model", "tokenizer", "processor")),
    *((SETTINGS, f"{name}_kwargs") for name in ("config", "model", "processor")),
    *(
        (f"sentence_{name}_config.json", "model_args")
        for name in ("albert", "camembert", "distilbert", "roberta", "xlm-roberta", "xlnet")
    ),
]
PADDED = {"processing_kwargs": {"text": {"padding": "max_length"}}}
ENDLESS_PATTERN = "(a*)*X"
SOUND_SETTINGS: list[tuple[str, dict[str, Any]]] = [
    (SETTINGS, {"model_args": {"cache_dir": None, "attn_implementation": "eager"}}),
    (SETTINGS, {**PADDED, "max_seq_length": 4096}),
    (SETTINGS, {"window": 2**20, "max_seq_length": 2**20 + 1}),
    ("config.json", {"model_type": "llama", "vocab_file": "/no/such/file"}),
    ("config.json", {"model_type": "llama", "_name_or_path": "org/model", "gguf_file": ""}),
    ("config.json", {"model_type": "llama", "quantization_config": {"load_in_4bit": True}}),
    ("tokenizer_config.json", {"tokenizer_class": "TokenizerOfALaterVersion"}),
    ("adapter_config.json", {"peft_type": "LORA", "target_modules": "a+b+c+d+"}),
]
UNSOUND_SETTINGS: list[tuple[str, dict[str, Any], str]] = [
    (SETTINGS, {"model_args": {"cache_dir": "x"}}, "cache_dir may not be stored"),
    (SETTINGS, {"model_args": {"dtype": ["x"]}}, "dtype may not be stored"),
    (SETTINGS, {**PADDED, "max_seq_length": 4097}, "max_length=4097 pads every text"),
    (SETTINGS, PADDED, "max_length=inf pads every text"),
    (SETTINGS, {"window": 2**20 + 1}, "window=1048577 must be from -1048576 to"),
    (SETTINGS, {"window": -(2**20) - 1}, "window=-1048577 must be from -1048576 to"),
    ("config.json", {"model_type": "llama", "vocab_file": __file__}, "elsewhere on this machine"),
    ("config.json", {"model_type": "llama", "text_name_or_path": "a/b"}, "text_name_or_path"),
    ("config.json", {"model_type": "llama", "quantization_config": {}}, "quant_method=None is"),
    ("adapter_config.json", {"peft_type": "LORA", "target_modules": "a+b+c+d+e+"}, "take|match"),
    *(
        ("adapter_config.json", {"peft_type": "LORA", setting: ENDLESS_PATTERN}, setting)
        for setting in ("exclude_modules", "target_modules", "modules_to_save", "rank_pattern")
    ),
    *(
        (
            "config.json",
            {
                "model_type": "llama",
                "quantization_config": {"quant_method": "awq", setting: [ENDLESS_PATTERN]},
            },
            setting,
        )
        for setting in ("llm_int8_skip_modules", "modules_to_not_convert")
    ),
    *(
        ("config.json", {"model_type": "llama", setting: "x"}, f"{setting}='x' can lead")
        for setting in SETTINGS_OF_OTHER_FILES
    ),
    *(
        ("config.json", {"model_type": "llama", "inner": {"model_type": model_type}}, "together")
        for model_type in MODEL_TYPES_OF_SEVERAL_MODELS
    ),
    *((name, {"gguf_file": "x"}, f"{name}: gguf_file") for name in PROCESSOR_FILES),
    *(
        (name, {setting: {"cache_dir": "x"}}, f"{name}: {setting}: cache_dir may not")
        for name, setting in PLACES_OF_OPTIONS
    ),
]


@pytest.mark.parametrize(("file_name", "values"), SOUND_SETTINGS, ids=str)
def test_settings_of_sound_models_are_allowed(
    tmp_path: Path, file_name: str, values: dict[str, Any]
) -> None:
    write_json(tmp_path / file_name, values)
    check_transformer(Repository(str(tmp_path)), SETTINGS)


@pytest.mark.parametrize(("file_name", "values", "part_of_message"), UNSOUND_SETTINGS, ids=str)
def test_settings_that_lead_elsewhere_or_take_for_ever_are_refused(
    tmp_path: Path, file_name: str, values: dict[str, Any], part_of_message: str
) -> None:
    write_json(tmp_path / file_name, values)
    with pytest.raises(RepositoryRefused, match=part_of_message):
        check_transformer(Repository(str(tmp_path)), SETTINGS)


def test_whole_numbers_are_weights_where_they_are_packed(tmp_path: Path) -> None:
    packed_weights = {"layer.qweight": torch.zeros(4, 4, dtype=torch.int32)}
    save_file(packed_weights, tmp_path / "model.safetensors")
    config: dict[str, object] = {"model_type": "llama"}
    write_json(tmp_path / "config.json", config)
    with pytest.raises(RepositoryRefused, match="layer.qweight is stored as I32"):
        check_base(Repository(str(tmp_path)))
    config["quantization_config"] = {"quant_method": "gptq"}
    write_json(tmp_path / "config.json", config)
    check_base(Repository(str(tmp_path)))


@pytest.mark.parametrize(
    ("name", "shape", "is_table"),
    [
        ("layers.0.bias", (1, 1, 8, 8), True),
        ("layers.0.bias", (8,), False),
        ("embeddings.position_ids", (1, 8), True),
        ("layers.0.weight", (1, 1, 8, 8), False),
    ],
)
def test_tables_and_masks_may_be_whole_numbers(
    name: str, shape: tuple[int, ...], is_table: bool
) -> None:
    assert StoredTensor("U8", shape, "").is_integer_table(name) is is_table


@pytest.mark.parametrize("setting", ["r", "rank", "init_r", "target_r"])
def test_an_adapter_has_no_higher_rank_than_its_weights(tmp_path: Path, setting: str) -> None:
    save_file({"a": torch.zeros(4, 9)}, tmp_path / "adapter_model.safetensors")
    write_json(tmp_path / "adapter_config.json", {"peft_type": "ADALORA", setting: 4})
    check_base(Repository(str(tmp_path)))
    write_json(tmp_path / "adapter_config.json", {"peft_type": "ADALORA", setting: 5})
    with pytest.raises(RepositoryRefused, match="r=5 is more than the rank of the weights, 4"):
        check_base(Repository(str(tmp_path)))


def test_an_adapter_of_itself_is_refused(tmp_path: Path) -> None:
    adapter_config = {"peft_type": "LORA", "base_model_name_or_path": str(tmp_path)}
    write_json(tmp_path / "adapter_config.json", adapter_config)
    with pytest.raises(RepositoryRefused, match="an adapter of an adapter is not read"):
        check_base(Repository(str(tmp_path)))


def test_a_pipe_in_place_of_a_tokenizer_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tokenizer.json")
    with pytest.raises(RepositoryRefused, match="tokenizer.json: it is a pipe"):
        check_tokenizer(Repository(str(tmp_path)))
