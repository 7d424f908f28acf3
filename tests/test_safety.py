"""A repository that asks for code, or for more than its weights hold, is refused before anything of it runs."""

from __future__ import annotations

import json
import pickle
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from architectures import lose, on_the_hub
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, LayerNorm, Pooling, Transformer

import st_reba
from st_reba.bases import EMBEDDED
from st_reba.safety import RepositoryRefused, _Files, check_repository, load, sized

METHODS: dict[str, dict[str, Any]] = {
    "reba": {},
    "echo": {"method": "echo", "template": "echo"},
    "nosink": {"method": "nosink", "setting": "mask0&bidir", "k": 2, "k0": 1},
    "ensemble": {"method": "prompteol", "template": "contrastive"},
}
MINI = str(EMBEDDED["mini"])
FIRST, CONFIG = "sentence_bert_config.json", "config.json"
APART, KERNEL = "0_Transformer", "evil/kernel"
ROUTER, ROUTES = "sentence_transformers.sentence_transformer.modules.Router", "router_config.json"
Damage = Callable[[Path], Any]


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
        model = st_reba.build("mini", check=False, device="cpu", **{"method": "reba", **options})
        model.save_pretrained(str(root / name))
    plain = [Transformer(MINI), Pooling(192, "mean"), Dense(192, 16, bias=False)]
    SentenceTransformer(modules=plain, device="cpu", prompts={"query": "Q: "}).save_pretrained(str(root / "plain"))
    # With a folder for the first module too.
    shutil.copytree(root / "plain", root / "apart")
    (root / "apart" / APART).mkdir()
    for path in root.joinpath("apart").iterdir():
        if path.is_file() and path.name not in ("modules.json", "config_sentence_transformers.json"):
            path.rename(root / "apart" / APART / path.name)
    change(root / "apart", path=APART)
    # As older versions of sentence-transformers wrote it.
    old = {"word_embedding_dimension": 192, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
    shutil.copytree(root / "plain", root / "old")
    (root / "old" / "1_Pooling" / "config.json").write_text(json.dumps(old), encoding="utf-8")
    return {path.name: path for path in root.iterdir()}


@pytest.fixture
def repository(models: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a repository."""

    def copy(kind: str) -> Path:
        place = tmp_path / "repository"
        shutil.rmtree(place, ignore_errors=True)
        return Path(shutil.copytree(models[kind], place))

    return copy


Copy = Callable[[str], Path]


def refused(place: Path, word: str, trust: bool = False) -> None:
    """Loading refuses, in a short message that names the place of the fault."""
    options: dict[str, Any] = {"trust_remote_code": True} if trust else {}
    for call in (load, check_repository):
        with pytest.raises(RepositoryRefused) as error:
            call(place, **options)
        assert word in str(error.value) and len(str(error.value)) < 1500, str(error.value)


def put(name: str, **values: Any) -> Damage:
    """Change values of a JSON file, which need not be there."""

    def change(place: Path) -> None:
        place.mkdir(exist_ok=True)
        stored = json.loads((place / name).read_text(encoding="utf-8")) if (place / name).exists() else {}
        (place / name).write_text(json.dumps({**stored, **values}), encoding="utf-8")

    return change


def change(place: Path, *others: dict[str, Any], without: int = 9, **fields: Any) -> None:
    """Change the first entry of modules.json, leave one out, or put others behind."""
    file = place / "modules.json"
    modules = json.loads(file.read_text(encoding="utf-8"))
    modules[0].update(fields)
    file.write_text(json.dumps([*modules[:without], *modules[without + 1 :], *others]), encoding="utf-8")


def plant(folder: Path) -> None:
    """A module that would write the marker if it were imported."""
    folder.mkdir(exist_ok=True)
    code = "import os, pathlib\npathlib.Path(os.environ['PLANTED_MARKER']).write_text(__name__)\n"
    code += "from sentence_transformers.base.modules import Module\nclass Module(Module):\n    pass\n"
    (folder / "evil.py").write_text(code, encoding="utf-8")


class Planted:
    """Unpickled, it writes the marker."""

    def __reduce__(self) -> Any:
        return exec, ("import os, pathlib; pathlib.Path(os.environ['PLANTED_MARKER']).write_text('pickle')",)


@pytest.mark.parametrize("kind", [*METHODS, "plain", "old", "apart"])
def test_sound(models: dict[str, Path], kind: str) -> None:
    plain = SentenceTransformer(str(models[kind]), device="cpu", model_kwargs={"dtype": "float32"})
    assert np.array_equal(load(models[kind], device="cpu").encode(["你好", "hi"]), plain.encode(["你好", "hi"]))


def test_what_is_passed_on(models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("st_reba.safety.SentenceTransformer", made := Mock())
    for backend, weights in (("torch", {"use_safetensors": True}), ("onnx", {})):
        load(models["plain"], device="cpu", backend=backend, model_kwargs={"a": 1})
        options = {"trust_remote_code": False, "model_kwargs": {"dtype": torch.float32, **weights, "a": 1}}
        made.assert_called_with(str(models["plain"]), device="cpu", backend=backend, **options)
    with pytest.raises(ValueError, match="'cpuu' cannot be used"):
        load(models["plain"], device="cpuu")


def test_from_the_hub(models: dict[str, Path], tmp_path: Path) -> None:
    """By its id, from huggingface_hub's cache."""
    snapshot = on_the_hub(tmp_path, "a/b", models["reba"])
    options: dict[str, Any] = {"cache_folder": str(tmp_path), "local_files_only": True}
    wanted = load(models["reba"], device="cpu").encode("hi")
    assert np.array_equal(load("a/b", device="cpu", **options).encode("hi"), wanted)
    assert np.array_equal(load(snapshot, device="cpu").encode("hi"), wanted)
    (snapshot / CONFIG).unlink()
    (snapshot / CONFIG).write_text(json.dumps({"_attn_implementation": KERNEL}))
    with pytest.raises(RepositoryRefused, match=KERNEL):
        load("a/b", **options)
    # As the base of an adapter, whose revision is its own.
    put("adapter_config.json", base_model_name_or_path="a/b")(adapter := tmp_path / "adapter")
    on_the_hub(tmp_path, "a/c", adapter, "v1")
    with pytest.raises(RepositoryRefused, match=KERNEL), sized("a/c", **{**options, "revision": "v1"}):
        pass


def missing(name: str) -> Damage:
    return lambda place: (place / name).unlink()


def weights(change: Callable[[bytes], bytes]) -> Damage:
    return lambda place: (file := place / "model.safetensors").write_bytes(change(file.read_bytes()))


def shard(place: Path) -> None:
    (place / "model.safetensors").rename(place / "a.safetensors")
    put("model.safetensors.index.json", weight_map={"x": "a.safetensors", "y": "b.safetensors"})(place)


def wide(place: Path) -> None:
    """A module that has no weights in the repository."""
    change(place, {"idx": 9, "name": "9", "path": "9", "type": f"{LayerNorm.__module__}.LayerNorm"})
    put(CONFIG, dimension=4 * 10**7)(place / "9")


BROKEN: list[tuple[str, Damage, str]] = [
    ("reba", missing(FIRST), FIRST),
    ("reba", missing("modules.json"), "Run: st-reba build"),
    ("reba", missing("1_ReBAPooling/config.json"), ""),
    ("reba", missing("model.safetensors"), "model.safetensors"),
    ("reba", lambda place: change(place, without=1), "modules.json"),
    ("echo", put(CONFIG, num_hidden_layers=2), CONFIG),
    ("echo", put(CONFIG, num_hidden_layers=900), CONFIG),
    ("echo", put(CONFIG, num_hidden_layers=1001), "num_hidden_layers=1001"),
    ("apart", put(f"{APART}/{CONFIG}", num_hidden_layers=900), "it asks for far more"),
    ("echo", put(CONFIG, vocab_size=10**13), CONFIG),
    ("echo", put(CONFIG, hidden_size=192 * 10**5), CONFIG),
    ("echo", put(CONFIG, max_position_embeddings=1 << 25), "max_position_embeddings"),
    ("echo", wide, "it asks for far more"),
    ("plain", put("2_Dense/config.json", out_features=20_000_000), "20000000"),
    ("plain", missing("2_Dense/model.safetensors"), "2_Dense"),
    ("nosink", put(FIRST, layer_masks=["forward"] * 10**5), "layer_masks"),
    ("nosink", put(FIRST, layer_masks=["sideways"] * 6), "'sideways'"),
    ("reba", weights(lambda whole: (1 << 60).to_bytes(8, "little") + whole[8:]), "model.safetensors: it is no"),
    ("reba", weights(lambda whole: whole[: len(whole) // 2]), "model.safetensors: it is no"),
    ("reba", lambda place: lose(place / "model.safetensors", "q_proj"), "missing_keys: "),
    ("reba", shard, "b.safetensors: it is missing"),
    ("reba", weights(lambda whole: pickle.dumps(Planted())), "model.safetensors: it is no"),
    ("reba", lambda place: (place / "modules.json").write_text("[" * 200_000), "modules.json: it is not"),
    ("plain", lambda place: (place / "modules.json").write_text('[{"idx": 0}]'), "modules.json: a value"),
    ("plain", lambda place: (place / "2_Dense" / CONFIG).write_text("[]"), "2_Dense/config.json: it holds a list"),
    ("plain", put("2_Dense/config.json", out_features="x"), "2_Dense/config.json: a value is"),
    ("plain", lambda place: (change(place, type=ROUTER), put(ROUTES, types=3)(place)), f"{ROUTES}: a value is"),
]


@pytest.mark.parametrize(("kind", "damage", "word"), BROKEN, ids=[f"{kind}-{word}" for kind, _, word in BROKEN])
def test_incomplete_or_too_large(repository: Copy, kind: str, damage: Damage, word: str) -> None:
    damage(place := repository(kind))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError) as error:
        load(place, device="cpu")
    assert word in str(error.value), str(error.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400_000


def elsewhere(place: Path) -> None:
    """An adapter, whose base is in a folder beside."""
    base = place.with_name("base")
    shutil.copytree(MINI, base)
    put(CONFIG, _attn_implementation=KERNEL)(base)
    put("adapter_config.json", peft_type="LORA", base_model_name_or_path=str(base))(place)


def older_name(place: Path) -> None:
    """Under which sentence-transformers finds the settings where the usual file says nothing."""
    (place / FIRST).write_text("{}", encoding="utf-8")
    put("sentence_xlnet_config.json", model_args={"attn_implementation": KERNEL})(place)


def pickled(lost: str, name: str) -> Damage:
    return lambda place: ((place / lost).unlink(), (place / name).write_bytes(pickle.dumps(Planted())))


WILD: list[tuple[str, Damage, str]] = [
    ("reba", put(FIRST, tokenizer_name_or_path="/etc"), "tokenizer_name_or_path"),
    ("reba", put(FIRST, model_kwargs={"weights_only": False}), "weights_only"),
    ("reba", put(FIRST, model_kwargs={"attn_implementation": KERNEL}), KERNEL),
    ("reba", put(FIRST, config_kwargs={"code_revision": "x"}), "code_revision"),
    ("reba", put(CONFIG, _attn_implementation=KERNEL), KERNEL),
    ("echo", put(CONFIG, text_config={"attn_implementation": {"": KERNEL}}), KERNEL),
    ("plain", put(FIRST, model_args={"use_safetensors": False}), "use_safetensors"),
    ("plain", put(FIRST, tokenizer_args={"trust_remote_code": True}), "trust_remote_code"),
    ("plain", elsewhere, KERNEL),
    ("plain", older_name, KERNEL),
    ("plain", put(CONFIG, layers=[{"_attn_implementation_internal": KERNEL}]), KERNEL),
    ("plain", put(CONFIG, configuration_files=["config.4.0.0.json"]), "configuration_files"),
    ("plain", put("adapter_config.json", megatron_config={"a": 1}), "megatron_config"),
    ("plain", put("config_sentence_transformers.json", model_type="CrossEncoder"), "CrossEncoder"),
    ("reba", pickled("model.safetensors", "pytorch_model.bin"), "pytorch_model.bin"),
    ("reba", pickled("model.safetensors", "MODEL.PTH"), "MODEL.PTH"),
    ("plain", pickled("2_Dense/model.safetensors", "2_Dense/pytorch_model.bin"), "2_Dense/pytorch_model.bin"),
]


@pytest.mark.parametrize(("kind", "damage", "word"), WILD, ids=[f"{kind}-{word}" for kind, _, word in WILD])
def test_wild_settings(repository: Copy, kind: str, damage: Damage, word: str) -> None:
    damage(place := repository(kind))
    refused(place, word, trust=word == KERNEL)


def test_kernel_and_size_of_a_base(repository: Copy) -> None:
    for damage in (put(CONFIG, _attn_implementation=KERNEL), put(CONFIG, num_hidden_layers=10**6), elsewhere):
        damage(place := repository("reba"))
        with pytest.raises(RepositoryRefused), sized(str(place)):
            pass
    with sized(MINI), pytest.raises(RepositoryRefused):
        torch.nn.Linear(10**6, 10**6, device="meta")


def test_numbers(tmp_path: Path) -> None:
    """Those of every module count, and packed ones as many."""
    for folder, size in (("", 3), ("1", 1000), ("2", 1)):
        (tmp_path / folder).mkdir(exist_ok=True)
        kept = {"a": torch.zeros(size, 2, dtype=torch.int32), "b": torch.zeros(5, dtype=torch.uint8)}
        save_file({**kept, "c": torch.zeros(4), "d": torch.zeros(7).half()}, tmp_path / folder / "model.safetensors")
    assert _Files(str(tmp_path), {}).numbers("") == 3 * 2 * 16 + 5 * 4 + 4 + 7
    assert _Files(str(tmp_path), {}).numbers("3") is None
    with sized(str(tmp_path), ["", "1", "2"]):
        torch.nn.Linear(1200, 1000, device="meta")
    for folders in ([""], ["", "2"]):
        with sized(str(tmp_path), folders), pytest.raises(RepositoryRefused):
            torch.nn.Linear(1200, 1000, device="meta")


TYPES = [
    *("os.system", "evil.Module", "builtins.exec", "st_reba.Evil", "st_reba.MODULES", "x" * 10**6, 3),
    *("ReBAPooling", "evil.ReBAPooling"),
    "sentence_transformers.util.import_from_string",
    "sentence_transformers.base.model.torch",
    "sentence_transformers.SentenceTransformer",
    "sentence_transformers..models.Pooling",
]


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("type_", TYPES, ids=[str(each)[:50] for each in TYPES])
def test_unknown_types(
    repository: Copy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, type_: Any, inside: bool
) -> None:
    """In the list of modules, and inside a Router."""
    place, file = repository("plain"), ROUTES if inside else "modules.json"
    plant(place)
    plant(tmp_path / "path")
    monkeypatch.syspath_prepend(str(tmp_path / "path"))
    change(place, type=ROUTER if inside else type_)
    put(ROUTES, types={"query_0": type_}, structure={}, parameters={})(place)
    refused(place, f"{file}: type=")
    if str(type_).startswith("sentence_transformers."):
        # Trust in a repository's code opens nothing there.
        refused(place, f"{file}: type=", trust=True)


def test_a_kernel_inside_a_router(repository: Copy) -> None:
    place = repository("plain")
    change(place, type=ROUTER)
    put(ROUTES, types={"query_0": ROUTER.replace("Router", "Transformer")}, structure={}, parameters={})(place)
    put(CONFIG, _attn_implementation=KERNEL)(place / "query_0")
    refused(place, "query_0/config.json")


def test_trusted_code_is_taken(repository: Copy, marker: Path) -> None:
    """The planted module does run where it is trusted: the other tests would see it."""
    place = repository("reba")
    plant(place)
    change(place, type="evil.Module")
    with pytest.raises(ValueError, match="could not be loaded"):
        load(place, trust_remote_code=True)
    marker.unlink()


def test_pickle_beside_safetensors(repository: Copy, marker: Path) -> None:
    """It is never opened; an adapter's weights need a file of their own."""
    place = repository("reba")
    for name in ("pytorch_model.bin", "model.pkl", "optimizer.pt"):
        (place / name).write_bytes(pickle.dumps(Planted()))
    assert load(place, device="cpu").encode("hi").shape == (192,)
    (place / "pytorch_model.bin").rename(place / "adapter_model.bin")
    refused(place, "adapter_model.bin")
    save_file({"a": torch.zeros(1)}, place / "adapter_model.safetensors")
    check_repository(place)
    # The planted pickle does what all these tests look for.
    pickle.loads((place / "adapter_model.bin").read_bytes())
    marker.unlink()
