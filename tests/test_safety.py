"""A malicious or broken repository is refused before anything of it runs."""

from __future__ import annotations

import json
import os
import pickle
import resource
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from damage import (
    CONFIG,
    FIRST,
    KERNEL,
    MINI,
    Damage,
    Planted,
    add,
    change,
    elsewhere,
    half,
    header,
    keep,
    lose,
    no_map,
    older_name,
    pickled,
    plant,
    refused,
    shard,
)
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Pooling, Transformer

import st_reba
from st_reba.safety import RepositoryRefused, check_repository, load, sized

METHODS: dict[str, dict[str, Any]] = {
    "reba": {},
    "echo": {"method": "echo", "template": "echo"},
    "nosink": {"method": "nosink", "setting": "mask0&bidir", "k": 2, "k0": 1},
    "chunked": {"chunk": 20},
    "ensemble": {"method": "prompteol", "template": "contrastive"},
    "tokenizer": {"tokenizer": "mini"},
}
Copy = Callable[..., Path]


@pytest.fixture(autouse=True)
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A file that planted code would write; none has when a test ends, unless the test took it away itself."""
    path = tmp_path / "ran"
    monkeypatch.setenv("PLANTED_MARKER", str(path))
    yield path
    assert not path.exists(), path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Sound repositories of every kind; not to be changed."""
    root = tmp_path_factory.mktemp("models")
    for name, options in METHODS.items():
        st_reba.build("mini", check=False, device="cpu", **{"method": "reba", **options}).save_pretrained(
            str(root / name)
        )
    texts = [f"第{n}个文件" for n in range(120)]
    echo = st_reba.build("mini", "echo", check=False, device="cpu")
    st_reba.fit_filter(echo, texts, "center").save_pretrained(str(root / "filtered"))
    plain = [Transformer(MINI), Pooling(192, "mean"), Dense(192, 16)]
    SentenceTransformer(modules=plain, device="cpu", prompts={"query": "Q: "}).save_pretrained(str(root / "plain"))
    # As older versions of sentence-transformers wrote it.
    old = {"word_embedding_dimension": 192, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
    shutil.copytree(root / "plain", root / "old")
    (root / "old" / "1_Pooling" / "config.json").write_text(json.dumps(old), encoding="utf-8")
    return {path.name: path for path in root.iterdir()}


@pytest.fixture
def repository(models: dict[str, Path], tmp_path: Path) -> Copy:
    """A copy of a repository; settings of one of its JSON files are changed."""

    def copy(kind: str, file: str = "", **changes: Any) -> Path:
        place = tmp_path / "repository"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(models[kind], place, copy_function=shutil.copy)
        if file:
            value = json.loads((place / file).read_text(encoding="utf-8"))
            (place / file).write_text(json.dumps({**value, **changes}), encoding="utf-8")
        return place

    return copy


@pytest.mark.parametrize("kind", [*METHODS, "filtered", "plain", "old"])
def test_sound(models: dict[str, Path], kind: str) -> None:
    plain = SentenceTransformer(str(models[kind]), device="cpu", model_kwargs={"dtype": "float32"})
    assert np.array_equal(load(models[kind], device="cpu").encode(["你好", "hi"]), plain.encode(["你好", "hi"]))


def test_what_is_no_saved_model(tmp_path: Path) -> None:
    for place in ("mini", MINI, tmp_path, "no/such-model-anywhere"):
        with pytest.raises(ValueError):
            load(place)


def test_links_of_a_cache(models: dict[str, Path], tmp_path: Path) -> None:
    """In huggingface_hub's cache every file of a repository is a link to one beside it."""
    snapshot = tmp_path / "models--a--b" / "snapshots" / ("0" * 40)
    for number, file in enumerate(sorted(path for path in models["reba"].rglob("*") if path.is_file())):
        blob = tmp_path / "models--a--b" / "blobs" / str(number)
        link = snapshot / file.relative_to(models["reba"])
        link.parent.mkdir(parents=True, exist_ok=True)
        blob.parent.mkdir(exist_ok=True)
        shutil.copy(file, blob)
        link.symlink_to(os.path.relpath(blob, link.parent))
    assert load(snapshot, device="cpu").encode("hi").shape == (192,)


# Incomplete, or larger than the weights.


BROKEN: list[tuple[str, Damage | tuple[str, str, Any], str]] = [
    ("reba", lose(FIRST), FIRST),
    ("echo", lose(FIRST), FIRST),
    ("reba", lose("1_ReBAPooling/config.json"), "1_ReBAPooling/config.json"),
    ("echo", lose("1_Pooling/config.json"), "1_Pooling/config.json"),
    ("ensemble", lose("2_PromptEnsemble/config.json"), "2_PromptEnsemble/config.json"),
    ("reba", keep(0), "modules.json"),
    ("reba", keep(0, 2), "modules.json"),
    ("echo", (CONFIG, "num_hidden_layers", 2), CONFIG),
    ("echo", (CONFIG, "num_hidden_layers", 7), CONFIG),
    ("echo", (CONFIG, "num_hidden_layers", 900), CONFIG),
    ("echo", (CONFIG, "num_hidden_layers", 10**6), "num_hidden_layers=1000000"),
    ("echo", (CONFIG, "vocab_size", 10**8), CONFIG),
    ("echo", (CONFIG, "vocab_size", 10**13), CONFIG),
    ("echo", (CONFIG, "hidden_size", 192 * 10**5), CONFIG),
    ("echo", (CONFIG, "intermediate_size", 10**9), CONFIG),
    ("filtered", ("3_Dense/config.json", "out_features", 20_000_000), "20000000"),
    ("filtered", ("3_Dense/config.json", "in_features", 10**12), "1000000000000"),
    ("reba", header, "model.safetensors"),
    ("reba", half, "model.safetensors"),
    ("reba", shard, "b.safetensors"),
    ("reba", no_map, "model.safetensors.index.json"),
    ("reba", pickled, "model.safetensors"),
    ("filtered", lose("3_Dense/model.safetensors"), "3_Dense/model.safetensors"),
]


@pytest.mark.parametrize(("kind", "damage", "word"), BROKEN, ids=[f"{kind}-{word}" for kind, _, word in BROKEN])
def test_incomplete_or_too_large(repository: Copy, kind: str, damage: Any, word: str) -> None:
    if isinstance(damage, tuple):
        place = repository(kind, damage[0], **{damage[1]: damage[2]})
    else:
        damage(place := repository(kind))
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    with pytest.raises(ValueError) as error:
        load(place, device="cpu")
    assert word in str(error.value), str(error.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400_000 and time.monotonic() - began < 20


# Settings.

WILD: list[tuple[str, str, dict[str, Any], str]] = [
    ("reba", FIRST, {"tokenizer_name_or_path": "/etc"}, "tokenizer_name_or_path"),
    ("reba", FIRST, {"model_kwargs": {"weights_only": False}}, "weights_only"),
    ("reba", FIRST, {"model_kwargs": {"trust_remote_code": True}}, "trust_remote_code"),
    ("reba", FIRST, {"model_args": {"proxies": {"https": "evil"}}}, "proxies"),
    ("reba", FIRST, {"model_kwargs": {"attn_implementation": KERNEL}}, KERNEL),
    ("reba", FIRST, {"config_kwargs": {"code_revision": "x"}}, "code_revision"),
    ("reba", CONFIG, {"_attn_implementation": KERNEL}, KERNEL),
    ("echo", CONFIG, {"text_config": {"attn_implementation": {"": KERNEL}}}, KERNEL),
    ("plain", FIRST, {"model_args": {"use_safetensors": False}}, "use_safetensors"),
    ("plain", FIRST, {"model_kwargs": {"attn_implementation": KERNEL}}, KERNEL),
    ("plain", FIRST, {"tokenizer_args": {"trust_remote_code": True}}, "trust_remote_code"),
]


@pytest.mark.parametrize(("kind", "file", "changes", "word"), WILD, ids=[f"{c[0]}-{c[3]}" for c in WILD])
def test_wild_settings(repository: Copy, kind: str, file: str, changes: dict[str, Any], word: str) -> None:
    refused(repository(kind, file, **changes), word, trust=word == KERNEL)


@pytest.mark.parametrize(
    ("kind", "file", "changes"),
    [
        ("chunked", "1_ChunkedReBAPooling/config.json", {"chunk": -1}),
        ("reba", "1_ReBAPooling/config.json", {"pooling": "first"}),
        ("reba", FIRST, {"repeats": 10**9}),
        ("echo", FIRST, {"template": "{text}" * 10**5}),
        ("echo", FIRST, {"template": 3}),
        ("reba", FIRST, {"pooled": "x" * 10**6}),
        ("nosink", FIRST, {"layer_masks": ["evil"] * 6}),
        ("nosink", FIRST, {"layer_masks": ["forward"] * 10**5}),
        ("nosink", FIRST, {"second": [[0, "forward"]] * 10**6}),
        ("nosink", FIRST, {"m": -1}),
    ],
)
def test_values_of_our_modules(repository: Copy, kind: str, file: str, changes: dict[str, Any]) -> None:
    """Refused when the model is loaded, or at its first text."""
    place, began = repository(kind, file, **changes), time.monotonic()
    with pytest.raises((ValueError, TypeError)):
        load(place, device="cpu").encode("hi")
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (elsewhere, KERNEL),
        (older_name, KERNEL),
        (add(CONFIG, layers=[{"attn_implementation": KERNEL}]), KERNEL),
        (add(CONFIG, _attn_implementation_internal=KERNEL), KERNEL),
        (add(CONFIG, configuration_files=["config.4.0.0.json"]), "configuration_files"),
        (add("adapter_config.json", megatron_config={"a": 1}), "megatron_config"),
        (add("config_sentence_transformers.json", model_type="CrossEncoder"), "CrossEncoder"),
    ],
)
def test_what_is_read_in_place_of_what_modules_json_names(repository: Copy, damage: Damage, word: str) -> None:
    damage(place := repository("plain"))
    refused(place, word)


def test_kernel_and_size_of_a_base(repository: Copy) -> None:
    for changes in ({"_attn_implementation": KERNEL}, {"num_hidden_layers": 10**6}):
        with pytest.raises(RepositoryRefused), sized(str(repository("reba", CONFIG, **changes))):
            pass
    elsewhere(place := repository("reba"))
    with pytest.raises(RepositoryRefused), sized(str(place)):
        pass
    with sized(MINI), pytest.raises(RepositoryRefused):
        torch.nn.Linear(10**6, 10**6, device="meta")


# Modules and paths.

TYPES = [
    *("os.system", "evil.Module", "builtins.exec", "st_reba.Evil", "st_reba.MODULES", "", "x" * 10**6, 3),
    "sentence_transformers.util.import_from_string",
    "sentence_transformers.base.model.torch",
    "sentence_transformers.SentenceTransformer",
    "sentence_transformers..models.Pooling",
]


@pytest.mark.parametrize("type_", TYPES, ids=[str(each)[:50] for each in TYPES])
def test_unknown_types(repository: Copy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, type_: Any) -> None:
    place = repository("reba")
    plant(place)
    plant(tmp_path / "path")
    monkeypatch.syspath_prepend(str(tmp_path / "path"))
    change(place, type=type_)
    refused(place, "modules.json")
    if str(type_).startswith("sentence_transformers."):
        # Trust in a repository's code opens nothing there.
        refused(place, "modules.json", trust=True)


def test_trusted_code_is_taken(repository: Copy, marker: Path) -> None:
    """The planted module does run where it is trusted: the other tests would see it."""
    place = repository("reba")
    plant(place)
    change(place, type="evil.Module")
    with pytest.raises(ValueError, match="could not be loaded"):
        load(place, trust_remote_code=True)
    marker.unlink()


@pytest.mark.parametrize(
    "path", ["../../etc", "/etc", "a/../../b", "..\\..\\etc", "C:\\x", "\\\\a\\b", "a\0b", 3, None]
)
def test_paths_that_leave(repository: Copy, path: Any) -> None:
    place = repository("reba")
    change(place, path=path)
    refused(place, "modules.json")


def test_links_that_leave(repository: Copy, models: dict[str, Path]) -> None:
    place = repository("reba")
    shutil.rmtree(place / "1_ReBAPooling")
    (place / "1_ReBAPooling").symlink_to(models["reba"] / "1_ReBAPooling")
    refused(place, "1_ReBAPooling")
    (place / "1_ReBAPooling").unlink()
    (place / "1_ReBAPooling").mkdir()
    (place / "1_ReBAPooling" / "config.json").symlink_to("/etc/hostname")
    refused(place, "1_ReBAPooling/config.json")
    for name in ("tokenizer.json", "model.safetensors"):
        place = repository("reba")
        (place / name).unlink()
        (place / name).symlink_to(models["reba"] / name)
        refused(place, name)


@pytest.mark.parametrize("name", [CONFIG, "tokenizer.json"])
def test_a_pipe_is_not_waited_for(repository: Copy, name: str) -> None:
    place = repository("reba")
    (place / name).unlink()
    os.mkfifo(place / name)
    refused(place, name)


@pytest.mark.parametrize(
    "types",
    [
        {"query_0": "evil.Module"},
        {"../../etc": "sentence_transformers.models.Normalize"},
        {"query_0": 3},
        {"query_0": "sentence_transformers.sentence_transformer.modules.Router"},
        ["evil"],
    ],
)
def test_inside_a_router(repository: Copy, types: Any) -> None:
    place = repository("plain")
    plant(place)
    change(place, type="sentence_transformers.sentence_transformer.modules.Router")
    config = {"types": types, "structure": {}, "parameters": {}}
    (place / "router_config.json").write_text(json.dumps(config), encoding="utf-8")
    refused(place, "router_config.json")


# Pickles.


@pytest.mark.parametrize(
    ("kind", "lost", "name"),
    [
        ("reba", "model.safetensors", "pytorch_model.bin"),
        ("reba", "model.safetensors", "MODEL.PTH"),
        ("plain", "2_Dense/model.safetensors", "2_Dense/pytorch_model.bin"),
    ],
)
def test_pickle_in_place_of_safetensors(repository: Copy, kind: str, lost: str, name: str) -> None:
    place = repository(kind)
    (place / lost).unlink()
    (place / name).write_bytes(pickle.dumps(Planted()))
    (place / name).with_name("onnx").mkdir()
    refused(place, name)


def test_pickle_of_an_adapter(repository: Copy) -> None:
    place = repository("plain")
    (place / "adapter_model.bin").write_bytes(pickle.dumps(Planted()))
    refused(place, "adapter_model.bin")
    save_file({"a": torch.zeros(1)}, place / "adapter_model.safetensors")
    check_repository(place)


def test_pickle_beside_safetensors(repository: Copy, marker: Path) -> None:
    """It is never opened."""
    place = repository("reba")
    for name in ("pytorch_model.bin", "model.pkl", "optimizer.pt"):
        (place / name).write_bytes(pickle.dumps(Planted()))
    assert load(place, device="cpu").encode("hi").shape == (192,)
    # The planted pickle does what all these tests look for.
    pickle.loads((place / "pytorch_model.bin").read_bytes())
    marker.unlink()


# JSON.


@pytest.mark.parametrize("file", ["modules.json", FIRST, "1_ReBAPooling/config.json"])
@pytest.mark.parametrize(
    "content", [b"[" * 200_000 + b"]" * 200_000, b'{"a": "' + b"x" * (1 << 22) + b'"}', b'{"a": "\xff\xfe"}', b'{"a": ']
)
def test_json(repository: Copy, file: str, content: bytes) -> None:
    place = repository("reba")
    (place / file).write_bytes(content)
    refused(place, file)
    (place / file).unlink()
    (place / file).mkdir()
    with pytest.raises(ValueError, match=file):
        load(place, device="cpu")
