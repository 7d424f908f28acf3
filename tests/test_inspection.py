"""A malicious or broken repository is refused before anything of it runs, by every route that can see it."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sys
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
from st_reba.build import EMBEDDED
from st_reba.describe import describe
from st_reba.hub.code_state import Code, code_of
from st_reba.hub.golden import Report, TextResult
from st_reba.hub.golden_file import read_golden
from st_reba.hub.saving import save
from st_reba.inspection import RepositoryRefused, check_repository, read_json
from st_reba.modules.limits import shown
from st_reba.persistence import load

MINI = str(EMBEDDED["mini"])
FIRST = "sentence_bert_config.json"
HUGE = 10**9
NOSINK = {"method": "nosink", "setting": "mask0&bidir", "k": 2, "k0": 1}
WHOLE: tuple[Any, ...] = (HUGE, -1, 2.5, True, "2", [2], {})


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is not there is not asked of the Hub."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


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
    for name, options in {"reba": {}, "nosink": NOSINK, "chunked": {"chunk": 20}, "echo": {"method": "echo"}}.items():
        st_reba.build("mini", check=False, **options).save_pretrained(str(root / name))
    save(st_reba.build("mini", check=False), root / "recipe", weights=False, golden=False, base=MINI)
    plain = SentenceTransformer(
        modules=[Transformer(MINI), Pooling(192, "mean"), Dense(192, 16)],
        device="cpu",
        prompts={"query": "Query: "},
    )
    plain.save_pretrained(str(root / "plain"))
    return {path.name: path for path in root.iterdir()}


@pytest.fixture
def repository(models: dict[str, Path], tmp_path: Path) -> Callable[..., Path]:
    """A copy of a repository; settings of one of its JSON files are changed."""

    def copy(kind: str, file: str = "", **changes: Any) -> Path:
        place = tmp_path / "repository"
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


def change(place: Path, **fields: Any) -> None:
    """Change the first entry of modules.json."""
    file = place / "modules.json"
    modules = json.loads(file.read_text(encoding="utf-8"))
    modules[0].update(fields)
    file.write_text(json.dumps(modules), encoding="utf-8")


def plant(folder: Path, name: str = "evil.py") -> None:
    """A module that would write the marker if it were imported."""
    folder.mkdir(exist_ok=True)
    code = "import os, pathlib\npathlib.Path(os.environ['PLANTED_MARKER']).write_text(__name__)\n"
    code += "from sentence_transformers.base.modules import Module\nclass Module(Module):\n    pass\n"
    (folder / name).write_text(code, encoding="utf-8")


class Planted:
    """Unpickled, it writes the marker."""

    def __reduce__(self) -> Any:
        # Named by exec, as a pickle from elsewhere knows nothing of this file.
        return exec, ("import os, pathlib; pathlib.Path(os.environ['PLANTED_MARKER']).write_text('pickle')",)


# What is sound is taken


@pytest.mark.parametrize("kind", ["reba", "nosink", "chunked", "echo", "recipe", "plain"])
def test_sound(models: dict[str, Path], kind: str) -> None:
    check_repository(models[kind])
    wanted = SentenceTransformer(str(models[kind]), device="cpu", model_kwargs={"dtype": "float32"}).encode(
        ["你好", "hi"]
    )
    assert np.array_equal(load(models[kind], device="cpu").encode(["你好", "hi"]), wanted)


def test_base_is_not_judged(tmp_path: Path) -> None:
    check_repository(MINI)
    check_repository(tmp_path)


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
    linked = tmp_path / "linked"
    linked.symlink_to(models["reba"])
    check_repository(linked)


# Numbers and texts


NUMBERS = [
    ("reba", FIRST, "repeats"),
    ("chunked", "1_ChunkedReBAPooling/config.json", "repeats"),
    ("chunked", "1_ChunkedReBAPooling/config.json", "chunk"),
    ("chunked", "1_ChunkedReBAPooling/config.json", "embedding_dimension"),
    ("reba", "1_ReBAPooling/config.json", "embedding_dimension"),
    ("nosink", FIRST, "k"),
    ("nosink", FIRST, "k0"),
    ("nosink", FIRST, "m"),
    ("reba", "config_sentence_transformers.json", "truncate_dim"),
]


@pytest.mark.parametrize(("kind", "file", "name"), NUMBERS)
def test_wild_numbers(repository: Callable[..., Path], kind: str, file: str, name: str) -> None:
    place = repository(kind)
    sound = (place / file).read_text(encoding="utf-8")
    for value in WHOLE:
        (place / file).write_text(json.dumps({**json.loads(sound), name: value}), encoding="utf-8")
        with pytest.raises(RepositoryRefused) as error:
            check_repository(place)
        assert file in str(error.value) and f"{name}=" in str(error.value)
    # More digits than Python reads.
    (place / file).write_text(sound.replace("{", '{"' + name + '": ' + "9" * 5000 + ",", 1), encoding="utf-8")
    with pytest.raises(RepositoryRefused, match=file):
        check_repository(place)


def test_wild_length(repository: Callable[..., Path]) -> None:
    place = repository("reba")
    for file, key in ((FIRST, "max_seq_length"), ("tokenizer_config.json", "model_max_length")):
        sound = (place / file).read_text(encoding="utf-8")
        for value in (0, -1, True, "1024", 1.5):
            (place / file).write_text(json.dumps({**json.loads(sound), key: value}), encoding="utf-8")
            with pytest.raises(RepositoryRefused, match=rf"{file}.*{key}="):
                check_repository(place)
        for value in (1, 512, 512.0, 10**30, 1e30, None):
            (place / file).write_text(json.dumps({**json.loads(sound), key: value}), encoding="utf-8")
            check_repository(place)
        (place / file).write_text(sound, encoding="utf-8")


TEXTS: list[tuple[str, str, Any, str]] = [
    ("reba", "separator", "x" * 10**6, "separator="),
    ("reba", "separator", 3, "separator=3"),
    ("echo", "instruction", "x" * 10**6, "instruction="),
    ("echo", "template", "x" * 10**6 + "{text}", "template="),
    ("echo", "template", "{text}" * 10**5, "600000 characters"),
    ("echo", "template", "{text}" * 65, "65 {text} slots"),
    ("echo", "template", {"query": "{text}" * 10**5, "document": "{text}"}, "template="),
    ("echo", "template", ["{text}"] * 10**5, "template="),
    ("echo", "template", "{text.__class__}", "text.__class__"),
    ("echo", "span", "x" * 10**6, "span="),
    ("echo", "span", ["all"], "span="),
    ("echo", "compute_matched", 1, "compute_matched=1"),
    ("reba", "layers", {"layers": {"backward": list(range(10**5))}}, "layers="),
    ("reba", "layers", {"layers": {"backward": [10**9]}}, "layer"),
    ("reba", "layers", {"architecture": "extend", "k": HUGE}, "k="),
    ("reba", "layers", [1] * 10**5, "layers="),
    ("nosink", "setting", "x" * 10**6, "setting="),
    ("reba", "surprise", 1, "surprise"),
    ("reba", "tokenizer_name_or_path", "/etc", "tokenizer_name_or_path"),
    ("reba", "model_kwargs", {"weights_only": False}, "weights_only"),
    ("reba", "model_args", {"proxies": {"https": "evil"}}, "proxies"),
    ("reba", "model_kwargs", {"attn_implementation": "evil/kernel"}, "evil/kernel"),
    ("reba", "config_kwargs", {"code_revision": "x"}, "code_revision"),
    ("reba", "model_kwargs", [1], "model_kwargs"),
    ("plain", "model_kwargs", {"weights_only": False}, "weights_only"),
    ("plain", "model_args", {"use_safetensors": False}, "use_safetensors"),
    ("plain", "model_kwargs", {"attn_implementation": "evil/kernel"}, "evil/kernel"),
    ("plain", "tokenizer_args", 3, "tokenizer_args"),
]


@pytest.mark.parametrize(("kind", "name", "value", "word"), TEXTS, ids=[f"{c[0]}-{c[1]}-{c[3]}" for c in TEXTS])
def test_wild_settings(repository: Callable[..., Path], kind: str, name: str, value: Any, word: str) -> None:
    refused(repository(kind, FIRST, **{name: value}), FIRST, word)


@pytest.mark.parametrize("value", [{"query": "x" * 10**6}, {"query": 3}, ["x"], {str(i): "" for i in range(300)}])
def test_wild_prompts(repository: Callable[..., Path], value: Any) -> None:
    refused(repository("reba", "config_sentence_transformers.json", prompts=value), "prompt")


def test_plain_sentence_transformers_is_protected_too(repository: Callable[..., Path]) -> None:
    """Without this package's loading: the modules themselves refuse."""
    for file, changes, word in (
        (FIRST, {"repeats": HUGE}, "repeats=1000000000 is too large"),
        (FIRST, {"model_kwargs": {"weights_only": False}}, "weights_only"),
        (FIRST, {"tokenizer_name_or_path": "/etc"}, "tokenizer_name_or_path"),
        ("1_ReBAPooling/config.json", {"embedding_dimension": HUGE}, "embedding_dimension=1000000000 is too large"),
    ):
        place = repository("reba", file, **changes)
        with pytest.raises(ValueError, match=word):
            SentenceTransformer(str(place), device="cpu")
        shutil.rmtree(place)


def test_build_keeps_to_the_same_limits() -> None:
    for options, word in (
        ({"repeats": 65}, "repeats=65"),
        ({"template": "{text}" * 65}, "65 {text} slots"),
        ({"separator": "x" * 70000}, "70000 characters"),
        ({"chunk": HUGE}, "chunk=1000000000"),
        ({"layers": {"architecture": "extend", "k": 1025}}, "k=1025"),
    ):
        with pytest.raises(ValueError) as error:
            st_reba.build("mini", **options)  # type: ignore[arg-type]
        assert word in str(error.value) and len(str(error.value)) < 500


def test_largest_that_is_allowed() -> None:
    assert st_reba.build("mini", "echo", repeats=64, check=False).encode("hi").shape == (192,)


def test_shown() -> None:
    assert shown("a" * 150) == repr("a" * 150)
    assert shown({"a": 1}) == "{'a': 1}"
    for value in ("a" * 10**6, ["a" * 1000] * 1000, {"a": "b" * 10**6}, 10**6000, list(range(201))):
        assert len(shown(value)) < 100


# Modules and paths


TYPES = [
    "os.system",
    "evil.Module",
    "builtins.exec",
    "st_reba.Evil",
    "st_reba.LayerPlan",
    "sentence_transformers.util.import_from_string",
    "sentence_transformers.base.model.torch",
    "sentence_transformers.SentenceTransformer",
    "sentence_transformers.models.Nothing",
    "sentence_transformers..models.Pooling",
    "sentence_transformers",
    "",
    "x" * 10**6,
]


@pytest.mark.parametrize("type_", TYPES, ids=[each[:50] for each in TYPES])
def test_unknown_types(
    repository: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, type_: str
) -> None:
    place = repository("reba")
    plant(place)
    plant(tmp_path / "path")
    monkeypatch.syspath_prepend(str(tmp_path / "path"))
    change(place, type=type_)
    message = refused(place, "modules.json", "type=")
    assert ("trust_remote_code=True" in message) != type_.startswith("sentence_transformers.")
    assert "evil" not in sys.modules
    with pytest.raises(ValueError):
        describe(place)


def test_trusted_code_is_taken(repository: Callable[..., Path], marker: Path) -> None:
    """The planted module does run where it is trusted: the other tests would see it."""
    place = repository("reba")
    plant(place)
    change(place, type="evil.Module")
    check_repository(place, trust_remote_code=True)
    with pytest.raises(ValueError, match="could not be loaded"):
        load(place, trust_remote_code=True)
    assert marker.exists()
    marker.unlink()


@pytest.mark.slow
def test_trust_does_not_open_sentence_transformers(repository: Callable[..., Path]) -> None:
    place = repository("reba")
    change(place, type="sentence_transformers.util.import_from_string")
    refused(place, "is no module of sentence-transformers", trust=True)


PATHS = ["../../etc", "/etc", "a/../../b", "..\\..\\etc", "C:\\x", "\\\\server\\share", "a\0b", "/", "x/../..", 3, None]


@pytest.mark.parametrize("path", PATHS, ids=map(repr, PATHS))
def test_paths_that_leave(repository: Callable[..., Path], path: Any) -> None:
    place = repository("reba")
    change(place, path=path)
    refused(place, "modules.json", "path=")


def test_links_that_leave(repository: Callable[..., Path], models: dict[str, Path]) -> None:
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
        ([1], "ReBAPooling is module 0"),
        ([], "0 modules"),
        ([0] + [2] * 100, "101 modules"),
    ],
)
def test_modules_in_another_order(repository: Callable[..., Path], order: list[int], word: str) -> None:
    place = repository("reba")
    modules = json.loads((place / "modules.json").read_text(encoding="utf-8"))
    value = [{**modules[old], "idx": new, "name": str(new)} for new, old in enumerate(order)]
    (place / "modules.json").write_text(json.dumps(value), encoding="utf-8")
    refused(place, "modules.json", word)


def test_two_of_one_name(repository: Callable[..., Path]) -> None:
    place = repository("reba")
    change(place, name="1")
    refused(place, "modules.json", "two modules have the name '1'")


def test_inside_a_router(repository: Callable[..., Path]) -> None:
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


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pkl", "weights.pt", "last.ckpt", "MODEL.PTH"])
def test_pickle_in_place_of_safetensors(repository: Callable[..., Path], name: str) -> None:
    place = repository("reba")
    (place / "model.safetensors").unlink()
    (place / name).write_bytes(pickle.dumps(Planted()))
    refused(place, name, "safetensors")


def test_pickle_beside_safetensors(repository: Callable[..., Path]) -> None:
    """It is never opened."""
    place = repository("reba")
    for name in ("pytorch_model.bin", "model.pkl", "optimizer.pt"):
        (place / name).write_bytes(pickle.dumps(Planted()))
    assert load(place, device="cpu").encode("hi").shape == (192,)


def test_pickles_are_not_asked_for(models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a repository is not listed, as on the Hub."""
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr("st_reba.persistence.SentenceTransformer", lambda *_, **kwargs: asked.append(kwargs))
    load(models["reba"])
    load(models["reba"], model_kwargs={"use_safetensors": False})
    assert [each["model_kwargs"]["use_safetensors"] for each in asked] == [True, False]


def test_pickle_of_a_later_module(repository: Callable[..., Path]) -> None:
    place = repository("plain")
    file = place / "2_Dense" / "model.safetensors"
    file.unlink()
    (place / "2_Dense" / "pytorch_model.bin").write_bytes(pickle.dumps(Planted()))
    refused(place, "2_Dense/pytorch_model.bin")


def test_pickle_of_an_adapter(repository: Callable[..., Path]) -> None:
    place = repository("plain")
    (place / "adapter_model.bin").write_bytes(pickle.dumps(Planted()))
    refused(place, "adapter_model.bin")
    save_file({"a": torch.zeros(1)}, place / "adapter_model.safetensors")
    check_repository(place)


def test_pickle_of_the_base(repository: Callable[..., Path], tmp_path: Path) -> None:
    """Weights that a recipe-only repository takes from elsewhere, by the module's own rule."""
    base = tmp_path / "base"
    shutil.copytree(MINI, base)
    (base / "model.safetensors").unlink()
    (base / "pytorch_model.bin").write_bytes(pickle.dumps(Planted()))
    place = repository("recipe", FIRST, base_model=str(base))
    for route in (load, lambda folder: SentenceTransformer(str(folder), device="cpu")):
        with pytest.raises((OSError, ValueError), match="safetensors"):
            route(place)


def test_a_pickle_would_run(tmp_path: Path, marker: Path) -> None:
    """The planted pickle does what the other tests look for."""
    (tmp_path / "planted").write_bytes(pickle.dumps(Planted()))
    pickle.loads((tmp_path / "planted").read_bytes())
    marker.unlink()


# JSON


JSON: list[tuple[str, bytes]] = [
    ("deep", b"[" * 200_000 + b"]" * 200_000),
    ("huge", b'{"a": "' + b"x" * (1 << 22) + b'"}'),
    ("not UTF-8", b'{"a": "\xff\xfe"}'),
    ("NaN", b'{"repeats": NaN}'),
    ("infinity", b'{"repeats": -Infinity}'),
    ("empty", b""),
    ("a list", b"[1]"),
    ("cut", b'{"a": '),
    ("a number", b"3"),
]


@pytest.mark.parametrize("file", ["modules.json", FIRST, "1_ReBAPooling/config.json"])
@pytest.mark.parametrize(("what", "content"), JSON, ids=[each[0] for each in JSON])
def test_json(repository: Callable[..., Path], file: str, what: str, content: bytes) -> None:
    place = repository("reba")
    (place / file).write_bytes(content)
    refused(place, file)
    with pytest.raises(ValueError) as error:
        describe(place)
    assert file in str(error.value)


def test_no_plain_file(repository: Callable[..., Path]) -> None:
    place = repository("reba")
    (place / FIRST).unlink()
    (place / FIRST).mkdir()
    refused(place, FIRST, "no plain file")


def test_reading(models: dict[str, Path]) -> None:
    assert read_json(str(models["reba"]), "nothing.json") is None
    with pytest.raises(RepositoryRefused, match="leads out"):
        read_json(str(models["reba"]), "../reba/modules.json")


# The base of a recipe-only repository


BASES: list[tuple[Any, Any, str]] = [
    ("/etc", None, "base_model='/etc'"),
    ("/etc/passwd", None, "base_model='/etc/passwd'"),
    ("../other", None, "base_model="),
    ("./other", None, "base_model="),
    (f"{MINI}/../mini", None, "base_model="),
    ("C:\\models", None, "base_model="),
    ("https://example.org/model", None, "base_model="),
    ("file:///etc", None, "base_model="),
    ("a/b/c", None, "base_model="),
    ("~/model", None, "base_model="),
    ("org/..", None, "base_model="),
    ("", None, "base_model=''"),
    (3, None, "base_model=3"),
    (None, None, "base_model=None"),
    ("org/model", "../../x", "base_revision="),
    ("org/model", "https://example.org", "base_revision="),
    ("org/model", "--upload-pack=x", "base_revision="),
    ("org/model", "a\nb", "base_revision="),
    ("org/model", "main\n", "base_revision="),
    ("org/model", 7, "base_revision=7"),
    ("org/model", "x" * 1000, "base_revision="),
]


@pytest.mark.parametrize(("base", "revision", "word"), BASES)
def test_base_that_is_refused(repository: Callable[..., Path], base: Any, revision: Any, word: str) -> None:
    place = repository("recipe", FIRST, base_model=base, base_revision=revision)
    refused(place, FIRST, word)
    with pytest.raises(ValueError, match="base_"):
        SentenceTransformer(str(place), device="cpu")


@pytest.mark.parametrize("revision", [None, "main", "v1.0", "refs/pr/3", "feature/a-b_c", "0" * 40])
def test_base_that_is_allowed(repository: Callable[..., Path], revision: str | None) -> None:
    check_repository(repository("recipe", FIRST, base_model="org/model-1.5_b", base_revision=revision))


def test_path_from_the_hub() -> None:
    """A folder of this machine is nothing that a repository from elsewhere may name."""
    config = {"from_base": True, "base_model": MINI}
    st_reba.RepeatTransformer.check_config(config, here=True)
    with pytest.raises(ValueError, match="base_model=.*no Hub id"):
        st_reba.RepeatTransformer.check_config(config, here=False)


# What travels beside the model


@pytest.mark.parametrize(
    "change",
    [
        {"texts": [{"text": "a", "vector": [10**400]}], "dimension": 1},
        {"texts": [{"text": "a", "vector": [1e39]}], "dimension": 1},
        {"texts": [{"text": "a" * 70000, "vector": [1]}], "dimension": 1},
        {"texts": [{"text": "a", "vector": [1]}] * 1001, "dimension": 1},
        {"fields": {"instruction": "x" * 70000}},
    ],
)
def test_wild_golden_vectors(tmp_path: Path, change: dict[str, Any]) -> None:
    value = {
        "format": 1,
        "dimension": 1,
        "dtype": "float32",
        "device": "cpu",
        "fields": {},
        "versions": {},
        "tolerance": {"difference": 1e-5},
        "texts": [{"text": "a", "vector": [1]}],
    }
    file = tmp_path / "golden.json"
    file.write_text(json.dumps(value), encoding="utf-8")
    assert read_golden(file) == value
    file.write_text(json.dumps({**value, **change}), encoding="utf-8")
    with pytest.raises(ValueError, match=f"'{next(iter(change))}' is missing or not as written"):
        read_golden(file)


def test_huge_golden_file(tmp_path: Path) -> None:
    file = tmp_path / "golden.json"
    with open(file, "wb") as stream:
        stream.truncate((1 << 26) + 1)
    with pytest.raises(ValueError, match="67108865 bytes"):
        read_golden(file)


def test_state_of_the_code(repository: Callable[..., Path]) -> None:
    place = repository("reba")
    assert code_of(place).state == "same" and st_reba.__version__ in str(code_of(place))
    plan = place / "st_reba_plan.py"
    plan.write_bytes(plan.read_bytes().replace(b"\n", b"\r\n"))
    (place / "modeling_other.py").write_text("", encoding="utf-8")
    assert code_of(place).state == "same"
    plan.write_bytes(plan.read_bytes() + b"# more\n")
    (place / "st_reba_extra.py").write_text("", encoding="utf-8")
    (place / "st_reba_masks.py").unlink()
    found = code_of(place)
    assert (found.state, found.version) == ("differs", st_reba.__version__)
    assert found.files == ("st_reba_extra.py", "st_reba_masks.py", "st_reba_plan.py")
    assert "differs" in str(found) and "st_reba_plan.py" in str(found)
    texts = (TextResult("a", 1.0, 0.0, True),)
    shown_lines = [str(Report(texts, {"difference": 1e-5}, {}, code)) for code in (None, Code("same"), found)]
    assert shown_lines[0] == shown_lines[1] and str(found) in shown_lines[2].splitlines()
    assert Report(texts, {}, {}, found).ok
    (place / "st_reba.py").unlink()
    assert code_of(place).state == "absent" and "none" in str(code_of(place))
