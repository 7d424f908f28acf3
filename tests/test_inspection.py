"""A malicious or broken repository is refused before anything of it runs, by every route that can see it."""

from __future__ import annotations

import json
import os
import pickle
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Pooling, Transformer

import st_reba
from st_reba.bases import EMBEDDED
from st_reba.hub.saving import save
from st_reba.inspection import RepositoryRefused, check_repository, read_json
from st_reba.persistence import load

MINI = str(EMBEDDED["mini"])
FIRST = "sentence_bert_config.json"
HUGE = 10**9
SPECS = {
    "reba": "reba",
    "echo": "echo:pooling=mean,template=echo",
    "nosink": "nosink:setting=mask0&bidir,k=2,k0=1",
    "chunked": "reba:chunk=20",
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
    for name, spec in SPECS.items():
        st_reba.build("mini", spec, check=False).save_pretrained(str(root / name))
    save(st_reba.build("mini", check=False), root / "recipe", weights=False, golden=False, base=MINI)
    texts = [f"第{n}个文件" for n in range(120)]
    st_reba.fit_postfilter(st_reba.build("mini", SPECS["echo"], check=False), texts, "center").save_pretrained(
        str(root / "filtered")
    )
    plain = [Transformer(MINI), Pooling(192, "mean"), Dense(192, 16)]
    SentenceTransformer(modules=plain, device="cpu", prompts={"query": "Q: "}).save_pretrained(str(root / "plain"))
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
            value.update(changes)
            (place / file).write_text(json.dumps(value), encoding="utf-8")
        return place

    return copy


def refused(place: Path, *words: str, trust: bool = False) -> str:
    """The check and the loading by this package both refuse, in a short message with these words."""
    message = ""
    for route in (check_repository, load):
        with pytest.raises(RepositoryRefused) as error:
            route(place, trust_remote_code=trust)
        message = str(error.value)
        assert not [word for word in (str(place), *words) if word not in message], message
        assert len(message) < 1500
    return message


def change(place: Path, number: int = 0, **fields: Any) -> None:
    """Change an entry of modules.json."""
    file = place / "modules.json"
    modules = json.loads(file.read_text(encoding="utf-8"))
    modules[number].update(fields)
    file.write_text(json.dumps(modules), encoding="utf-8")


def plant(folder: Path) -> None:
    """A module that would write the marker if it were imported."""
    folder.mkdir(exist_ok=True)
    code = "import os, pathlib\npathlib.Path(os.environ['PLANTED_MARKER']).write_text(__name__)\n"
    code += "from sentence_transformers.base.modules import Module\nclass Module(Module):\n    pass\n"
    (folder / "evil.py").write_text(code, encoding="utf-8")


class Planted:
    """Unpickled, it writes the marker."""

    def __reduce__(self) -> Any:
        # Named by exec, as a pickle from elsewhere knows nothing of this file.
        return exec, ("import os, pathlib; pathlib.Path(os.environ['PLANTED_MARKER']).write_text('pickle')",)


# What is sound is taken


@pytest.mark.parametrize("kind", [*SPECS, "recipe", "filtered", "plain"])
def test_sound(models: dict[str, Path], kind: str) -> None:
    check_repository(models[kind])
    plain = SentenceTransformer(str(models[kind]), device="cpu", model_kwargs={"dtype": "float32"})
    assert np.array_equal(load(models[kind], device="cpu").encode(["你好", "hi"]), plain.encode(["你好", "hi"]))


def test_bases_are_not_judged(tmp_path: Path) -> None:
    assert check_repository(MINI) is check_repository(tmp_path) is None


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
    check_repository(snapshot)


# What is incomplete, or larger than its weights, is refused by name


def lost(place: Path, name: str) -> None:
    (place / name).unlink()


def unpooled(place: Path, kept: list[int]) -> None:
    file = place / "modules.json"
    modules = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps([modules[number] for number in kept]), encoding="utf-8")


def cut(place: Path) -> None:
    """The header's length says more than there is."""
    file = place / "model.safetensors"
    file.write_bytes((1 << 60).to_bytes(8, "little") + file.read_bytes()[8:])


CONFIG = "config.json"
BROKEN: list[tuple[str, Callable[[Path], Any] | tuple[str, str, int], str]] = [
    ("reba", lambda place: lost(place, FIRST), FIRST),
    ("echo", lambda place: lost(place, FIRST), FIRST),
    ("reba", lambda place: lost(place, "1_ReBAPooling/config.json"), "1_ReBAPooling/config.json"),
    ("echo", lambda place: lost(place, "1_Pooling/config.json"), "1_Pooling/config.json"),
    ("reba", lambda place: unpooled(place, [0]), "modules.json"),
    ("reba", lambda place: unpooled(place, [0, 2]), "modules.json"),
    ("echo", (CONFIG, "num_hidden_layers", 2), CONFIG),
    ("echo", (CONFIG, "num_hidden_layers", 7), CONFIG),
    ("echo", (CONFIG, "num_hidden_layers", 1000), CONFIG),
    ("echo", (CONFIG, "num_hidden_layers", 10**6), "num_hidden_layers=1000000"),
    ("echo", (CONFIG, "vocab_size", 10**8), CONFIG),
    ("echo", (CONFIG, "vocab_size", 10**13), CONFIG),
    ("echo", (CONFIG, "hidden_size", 192 * 10**5), CONFIG),
    ("echo", (CONFIG, "intermediate_size", 10**9), CONFIG),
    ("filtered", ("3_Dense/config.json", "out_features", 20_000_000), "out_features=20000000"),
    ("filtered", ("3_Dense/config.json", "in_features", 10**12), "in_features=1000000000000"),
    ("reba", cut, "model.safetensors"),
]


@pytest.mark.parametrize("number", range(len(BROKEN)), ids=[f"{kind}-{word}" for kind, _, word in BROKEN])
def test_incomplete_or_too_large(repository: Copy, number: int) -> None:
    kind, damage, word = BROKEN[number]
    place = broken(repository, number)
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    for route in (load, SentenceTransformer):
        with pytest.raises(ValueError) as error:
            route(str(place), device="cpu")
        assert word in str(error.value), str(error.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400_000 and time.monotonic() - began < 20


def broken(repository: Copy, number: int) -> Path:
    kind, damage, _ = BROKEN[number]
    if isinstance(damage, tuple):
        file, name, value = damage
        return repository(kind, file, **{name: value})
    place = repository(kind)
    damage(place)
    return place


WITHOUT_IMPORT = """
import json, sys
from sentence_transformers import SentenceTransformer
for folder, word in json.loads(sys.argv[1]):
    try:
        SentenceTransformer(folder, trust_remote_code=True, device="cpu")
    except ValueError as error:
        assert word in str(error), (folder, word, error)
    else:
        raise AssertionError((folder, word))
assert "st_reba" not in sys.modules
"""


@pytest.mark.slow
def test_incomplete_without_the_package(repository: Copy, tmp_path: Path) -> None:
    """The code that travels with a repository refuses what is incomplete; who runs it trusts what it says."""
    places = []
    for number in (0, 2, 3, 4, 6, 8):
        place = shutil.move(broken(repository, number), tmp_path / str(number))
        places.append((str(place), BROKEN[number][2]))
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "HF_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-c", WITHOUT_IMPORT, json.dumps(places)]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]


# Numbers and texts


def stage(**fields: Any) -> dict[str, Any]:
    return {"stages": [fields]}


WILD: list[tuple[str, str, dict[str, Any], str]] = [
    *(
        ("chunked", "1_ChunkedReBAPooling/config.json", {"chunk": value}, "chunk=")
        for value in (HUGE, -1, 2.5, True, "2")
    ),
    ("reba", "1_ReBAPooling/config.json", {"embedding_dimension": HUGE}, "embedding_dimension=1000000000"),
    ("reba", "1_ReBAPooling/config.json", {"pooling": "first"}, "pooling='first'"),
    ("reba", "1_ReBAPooling/config.json", {"unknown": 1}, "unknown"),
    ("reba", "config_sentence_transformers.json", {"truncate_dim": HUGE}, "truncate_dim=1000000000"),
    ("reba", "config_sentence_transformers.json", {"prompts": {"query": "x" * 10**6}}, "prompt"),
    ("reba", "config_sentence_transformers.json", {"prompts": {"query": 3}}, "prompt=3"),
    ("reba", "config_sentence_transformers.json", {"prompts": ["x"]}, "prompts="),
    ("reba", "config_sentence_transformers.json", {"prompts": {str(i): "" for i in range(300)}}, "prompts="),
    *(("reba", FIRST, {"max_seq_length": value}, "max_seq_length=") for value in (0, -1, True, "1024", 1.5)),
    ("reba", "tokenizer_config.json", {"model_max_length": 0}, "model_max_length=0"),
    ("reba", FIRST, {"layout": {"repeats": HUGE}}, "repeats=1000000000"),
    ("echo", FIRST, {"layout": {"template": "x" * 10**6 + "{text}"}}, "template"),
    ("echo", FIRST, {"layout": {"template": "{text}" * 10**5}}, "600,000 characters"),
    ("echo", FIRST, {"layout": {"template": ["{text}"] * 10**5}}, "template="),
    ("echo", FIRST, {"layout": {"template": 3}}, "template=3"),
    ("echo", FIRST, {"layout": {"span": "x" * 10**6}}, "span"),
    ("echo", FIRST, {"layout": {"compute_matched": 1}}, "compute_matched=1"),
    ("reba", FIRST, stage(layers={"layers": {"backward": list(range(10**5))}}), "backward="),
    ("reba", FIRST, stage(layers={"architecture": "extend", "k": HUGE}), "k=1000000000"),
    ("reba", FIRST, stage(read={"layers": HUGE}), "layers=1000000000"),
    ("reba", FIRST, stage(evil={}), "evil"),
    ("reba", FIRST, {"stages": [{"prepend": {}}] * 10**5}, "stages"),
    ("nosink", FIRST, stage(nosink={"setting": "x" * 10**6}), "setting"),
    ("nosink", FIRST, stage(nosink={"setting": "mask0-bidir", "k": 2, "m": -1}), "m=-1"),
    ("reba", FIRST, {"surprise": 1}, "surprise"),
    ("reba", FIRST, {"from_base": "yes"}, "from_base='yes'"),
    ("reba", FIRST, {"tokenizer_name_or_path": "/etc"}, "tokenizer_name_or_path"),
    ("reba", FIRST, {"model_kwargs": {"weights_only": False}}, "weights_only"),
    ("reba", FIRST, {"model_args": {"proxies": {"https": "evil"}}}, "proxies"),
    ("reba", FIRST, {"model_kwargs": {"attn_implementation": "evil/kernel"}}, "evil/kernel"),
    ("reba", FIRST, {"config_kwargs": {"code_revision": "x"}}, "code_revision"),
    ("reba", FIRST, {"model_kwargs": [1]}, "model_kwargs"),
    ("reba", CONFIG, {"_attn_implementation": "evil/kernel"}, "evil/kernel"),
    ("echo", CONFIG, {"text_config": {"attn_implementation": {"": "evil/kernel"}}}, "evil/kernel"),
    ("plain", FIRST, {"model_kwargs": {"weights_only": False}}, "weights_only"),
    ("plain", FIRST, {"model_args": {"use_safetensors": False}}, "use_safetensors"),
    ("plain", FIRST, {"model_kwargs": {"attn_implementation": "evil/kernel"}}, "evil/kernel"),
    ("plain", FIRST, {"tokenizer_args": 3}, "tokenizer_args"),
]


@pytest.mark.parametrize(("kind", "file", "changes", "word"), WILD, ids=[f"{c[0]}-{c[3]}" for c in WILD])
def test_wild_settings(repository: Copy, kind: str, file: str, changes: dict[str, Any], word: str) -> None:
    place = repository(kind, file, **changes)
    refused(place, file, word)
    if kind != "plain" and file in (FIRST, CONFIG, "1_ReBAPooling/config.json") and "max_seq_length" not in changes:
        # Without this package's loading the modules themselves refuse.
        with pytest.raises((ValueError, TypeError)) as error:
            SentenceTransformer(str(place), device="cpu")
        assert len(str(error.value)) < 1500


def test_lengths_that_mean_none(repository: Copy) -> None:
    for value in (1, 512.0, 10**30, 1e30, None):
        check_repository(repository("reba", "tokenizer_config.json", model_max_length=value))


# Modules and paths

TYPES = [
    *("os.system", "evil.Module", "builtins.exec", "st_reba.Evil", "st_reba.LayerPlan", "", "x" * 10**6),
    "sentence_transformers.util.import_from_string",
    "sentence_transformers.base.model.torch",
    "sentence_transformers.SentenceTransformer",
    "sentence_transformers..models.Pooling",
]


@pytest.mark.parametrize("type_", TYPES, ids=[each[:50] for each in TYPES])
def test_unknown_types(repository: Copy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, type_: str) -> None:
    place = repository("reba")
    plant(place)
    plant(tmp_path / "path")
    monkeypatch.syspath_prepend(str(tmp_path / "path"))
    change(place, type=type_)
    message = refused(place, "modules.json", "type=")
    assert ("trust_remote_code=True" in message) != type_.startswith("sentence_transformers.")
    if type_.startswith("sentence_transformers."):
        # Trust in a repository's code opens nothing there.
        refused(place, "is no module of sentence-transformers", trust=True)
    assert "evil" not in sys.modules


def test_trusted_code_is_taken(repository: Copy, marker: Path) -> None:
    """The planted module does run where it is trusted: the other tests would see it."""
    place = repository("reba")
    plant(place)
    change(place, type="evil.Module")
    check_repository(place, trust_remote_code=True)
    with pytest.raises(ValueError, match="could not be loaded"):
        load(place, trust_remote_code=True)
    marker.unlink()


PATHS = ["../../etc", "/etc", "a/../../b", "..\\..\\etc", "C:\\x", "\\\\server\\share", "a\0b", "/", "x/../..", 3, None]


@pytest.mark.parametrize("path", PATHS, ids=map(repr, PATHS))
def test_paths_that_leave(repository: Copy, path: Any) -> None:
    place = repository("reba")
    change(place, path=path)
    refused(place, "modules.json", "path=")


def test_links_that_leave(repository: Copy, models: dict[str, Path]) -> None:
    place = repository("reba")
    shutil.rmtree(place / "1_ReBAPooling")
    (place / "1_ReBAPooling").symlink_to(models["reba"] / "1_ReBAPooling")
    refused(place, "1_ReBAPooling", "link")
    (place / "1_ReBAPooling").unlink()
    (place / "1_ReBAPooling").mkdir()
    (place / "1_ReBAPooling" / "config.json").symlink_to("/etc/hostname")
    refused(place, "1_ReBAPooling/config.json", "link")


@pytest.mark.parametrize(
    ("order", "word"),
    [
        ([0, 0, 1], "RepeatTransformer is module 1"),
        ([1, 0], "ReBAPooling is module 0"),
        ([0, 1, 1], "ReBAPooling is module 2"),
        ([], "0 modules"),
        ([0] + [2] * 100, "101 modules"),
    ],
)
def test_modules_in_another_order(repository: Copy, order: list[int], word: str) -> None:
    place = repository("reba")
    modules = json.loads((place / "modules.json").read_text(encoding="utf-8"))
    value = [{**modules[old], "idx": new, "name": str(new)} for new, old in enumerate(order)]
    (place / "modules.json").write_text(json.dumps(value), encoding="utf-8")
    refused(place, "modules.json", word)


def test_inside_a_router(repository: Copy) -> None:
    """A Router names types and folders of its own."""
    place = repository("plain")
    plant(place)
    change(place, type="sentence_transformers.sentence_transformer.modules.Router")
    for types, word in (
        ({"query_0": "evil.Module"}, "evil.Module"),
        ({"../../etc": "sentence_transformers.models.Normalize"}, "../../etc"),
        ({"query_0": 3}, "type=3"),
        ({"query_0": "sentence_transformers.models.Router"}, "Router"),
        (["evil"], "types="),
    ):
        config = {"types": types, "structure": {}, "parameters": {}}
        (place / "router_config.json").write_text(json.dumps(config), encoding="utf-8")
        refused(place, "router_config.json", word)


# Pickles


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pkl", "MODEL.PTH"])
def test_pickle_in_place_of_safetensors(repository: Copy, name: str) -> None:
    place = repository("reba")
    (place / "model.safetensors").unlink()
    (place / name).write_bytes(pickle.dumps(Planted()))
    refused(place, name, "safetensors")


def test_pickles_of_other_modules(repository: Copy) -> None:
    place = repository("plain")
    (place / "adapter_model.bin").write_bytes(pickle.dumps(Planted()))
    refused(place, "adapter_model.bin")
    save_file({"a": torch.zeros(1)}, place / "adapter_model.safetensors")
    check_repository(place)
    (place / "2_Dense" / "model.safetensors").unlink()
    (place / "2_Dense" / "pytorch_model.bin").write_bytes(pickle.dumps(Planted()))
    refused(place, "2_Dense/pytorch_model.bin")


def test_pickle_beside_safetensors(repository: Copy) -> None:
    """It is never opened."""
    place = repository("reba")
    for name in ("pytorch_model.bin", "model.pkl", "optimizer.pt"):
        (place / name).write_bytes(pickle.dumps(Planted()))
    assert load(place, device="cpu").encode("hi").shape == (192,)


def test_pickle_of_the_base(repository: Copy, tmp_path: Path, marker: Path) -> None:
    """Weights that a repository without any takes from elsewhere, by the module's own rule."""
    base = tmp_path / "base"
    shutil.copytree(MINI, base)
    (base / "model.safetensors").unlink()
    (base / "pytorch_model.bin").write_bytes(pickle.dumps(Planted()))
    place = repository("recipe", FIRST, base_model=str(base))
    for route in (load, SentenceTransformer):
        with pytest.raises((OSError, ValueError), match="safetensors"):
            route(str(place), device="cpu")
    # The planted pickle does what all these tests look for.
    pickle.loads((base / "pytorch_model.bin").read_bytes())
    marker.unlink()


# JSON

JSON: list[tuple[str, bytes]] = [
    ("deep", b"[" * 200_000 + b"]" * 200_000),
    ("huge", b'{"a": "' + b"x" * (1 << 22) + b'"}'),
    ("not UTF-8", b'{"a": "\xff\xfe"}'),
    ("NaN", b'{"repeats": NaN}'),
    ("infinity", b'{"repeats": -Infinity}'),
    ("digits", b'{"repeats": ' + b"9" * 5000 + b"}"),
    ("a list", b"[1]"),
    ("cut", b'{"a": '),
]


@pytest.mark.parametrize("file", ["modules.json", FIRST, "1_ReBAPooling/config.json"])
@pytest.mark.parametrize(("what", "content"), JSON, ids=[each[0] for each in JSON])
def test_json(repository: Copy, file: str, what: str, content: bytes) -> None:
    place = repository("reba")
    (place / file).write_bytes(content)
    refused(place, file)


def test_no_plain_file(repository: Copy, models: dict[str, Path]) -> None:
    place = repository("reba")
    (place / FIRST).unlink()
    (place / FIRST).mkdir()
    refused(place, FIRST, "no plain file")
    assert read_json(str(models["reba"]), "nothing.json") is None
    with pytest.raises(RepositoryRefused, match="leads out"):
        read_json(str(models["reba"]), "../reba/modules.json")


# The base of a repository without weights


@pytest.mark.parametrize(
    ("base", "revision", "word"),
    [("../other", None, "base_model="), (None, None, "base_model="), ("org/model", "main\n", "base_revision=")],
)
def test_base_that_is_refused(repository: Copy, base: Any, revision: Any, word: str) -> None:
    """What is refused is told by the module's own check too."""
    place = repository("recipe", FIRST, base_model=base, base_revision=revision)
    refused(place, FIRST, word)
    with pytest.raises(ValueError, match="base_"):
        SentenceTransformer(str(place), device="cpu")


def test_base_that_is_allowed(repository: Copy) -> None:
    check_repository(repository("recipe", FIRST, base_model="org/model-1.5_b", base_revision="refs/pr/3"))
