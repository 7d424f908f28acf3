"""A repository that asks for code, or for more than its weights hold, is refused before anything of it runs."""

from __future__ import annotations

import json
import pickle
import resource
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from architectures import lose, on_the_hub
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, LayerNorm, Pooling, Router, Transformer

import st_reba
from st_reba.bases import EMBEDDED
from st_reba.safety import Repository, RepositoryRefused, check_base, check_repository, limit_numbers, load
from st_reba.safety.weights import read_headers

METHODS = ("reba", "echo:template=echo", "nosink:setting=mask0&bidir,k=2,k0=1", "prompteol:template=contrastive")
MINI = str(EMBEDDED["mini"])
FIRST, CONFIG, WEIGHTS = "sentence_bert_config.json", "config.json", "model.safetensors"
APART, DENSE, KERNEL = "0_Transformer", "2_Dense/config.json", "evil/kernel"
ASKS, ROUTES = {"attn_implementation": KERNEL}, "router_config.json"
SHARDS = {"x": "a.safetensors", "y": "b.safetensors"}
ROUTER, TRANSFORMER, NORM = (f"{each.__module__}.{each.__name__}" for each in (Router, Transformer, LayerNorm))
# Code that writes the marker, also as a pickle.
PLANTED = "import os, pathlib; pathlib.Path(os.environ['PLANTED_MARKER']).write_text('ran')"
PICKLE = b"cbuiltins\nexec\n(V" + PLANTED.encode() + b"\ntR."
Damage = Callable[[Path], Any]
Copy = Callable[[str], Path]


@pytest.fixture(autouse=True)
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A file that planted code would write; none has when a test ends, unless the test took it away itself."""
    path = tmp_path / "ran"
    monkeypatch.setenv("PLANTED_MARKER", str(path))
    yield path
    assert not path.exists()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Sound repositories of every kind; not to be changed."""
    root = tmp_path_factory.mktemp("models")
    for method in METHODS:
        st_reba.build("mini", method, check=False).save_pretrained(str(root / method.partition(":")[0]))
    plain = [Transformer(MINI), Pooling(192, "mean"), Dense(192, 16, bias=False)]
    SentenceTransformer(modules=plain, device="cpu", prompts={"query": "Q: "}).save_pretrained(str(root / "plain"))
    # With a folder for the first module too.
    shutil.copytree(root / "plain", root / "apart" / APART)
    for name in ("modules.json", "config_sentence_transformers.json", "1_Pooling", "2_Dense"):
        (root / "apart" / APART / name).rename(root / "apart" / name)
    listed(path=APART)(root / "apart")
    return {path.name: path for path in root.iterdir()}


@pytest.fixture
def repository(models: dict[str, Path], tmp_path: Path) -> Copy:
    """``repository(kind)``: a copy of a repository."""
    numbers = count()
    return lambda kind: Path(shutil.copytree(models[kind], tmp_path / f"repository {next(numbers)}"))


def refused(place: Path, word: str, error: type[ValueError] = RepositoryRefused, **options: Any) -> None:
    """Loading refuses, in a short message that names the place of the fault, and takes no memory to speak of."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(error) as raised:
        load(place, device="cpu", **options)
    assert word in str(raised.value) and len(str(raised.value)) < 1500, str(raised.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400_000


def put(name: str, **values: Any) -> Damage:
    """Change values of a JSON file, which need not be there."""

    def damage(place: Path) -> None:
        (file := place / name).parent.mkdir(exist_ok=True)
        stored = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        file.write_text(json.dumps({**stored, **values}), encoding="utf-8")

    return damage


def edit(name: str, by: Callable[[bytes], bytes]) -> Damage:
    return lambda place: (file := place / name).write_bytes(by(file.read_bytes()))


def listed(*others: dict[str, Any], without: int = 9, **fields: Any) -> Damage:
    """Change the first entry of modules.json, leave one out, or put others behind."""

    def by(content: bytes) -> bytes:
        first, *rest = json.loads(content)
        modules = [{**first, **fields}, *rest, *others]
        return json.dumps(modules[:without] + modules[without + 1 :]).encode()

    return edit("modules.json", by)


def missing(name: str) -> Damage:
    return lambda place: (place / name).unlink()


def pickled(lost: str, name: str) -> Damage:
    return lambda place: (place / lost).rename(place / name).write_bytes(PICKLE)


def both(*damages: Damage) -> Damage:
    return lambda place: [damage(place) for damage in damages]


@pytest.mark.parametrize("kind", ["reba", "echo", "nosink", "prompteol", "plain", "apart"])
def test_sound(models: dict[str, Path], kind: str) -> None:
    plain = SentenceTransformer(str(models[kind]), device="cpu", model_kwargs={"dtype": "float32"})
    assert np.array_equal(load(models[kind], device="cpu").encode(["你好", "hi"]), plain.encode(["你好", "hi"]))


def test_what_is_passed_on(models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("st_reba.safety.loading.SentenceTransformer", made := Mock())
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
    for found in (load("a/b", device="cpu", **options), load(snapshot, device="cpu")):
        assert np.array_equal(found.encode("hi"), wanted)
    (snapshot / CONFIG).unlink()
    put(CONFIG, **ASKS)(snapshot)
    with pytest.raises(RepositoryRefused, match=KERNEL):
        load("a/b", **options)
    # As the base of an adapter, whose revision is its own.
    put("adapter_config.json", peft_type="LORA", base_model_name_or_path="a/b")(adapter := tmp_path / "adapter")
    on_the_hub(tmp_path, "a/c", adapter, "v1")
    with pytest.raises(RepositoryRefused, match=KERNEL):
        check_base("a/c", **{**options, "revision": "v1"})


def elsewhere(place: Path) -> None:
    """An adapter, whose base is in a folder beside."""
    base = place.with_name("base")
    shutil.copytree(MINI, base)
    put(CONFIG, _attn_implementation=KERNEL)(base)
    put("adapter_config.json", peft_type="LORA", base_model_name_or_path=str(base))(place)


# By repository, and whether it is refused before anything is loaded: what is done to it, and a part of what is said.
CASES: dict[tuple[str, type[ValueError]], list[tuple[Damage, str]]] = {
    ("reba", ValueError): [
        (missing("modules.json"), "Run: st-reba build"), (missing(FIRST), FIRST),
        (missing(f"1_ReBAPooling/{CONFIG}"), ""), (missing(WEIGHTS), WEIGHTS), (listed(without=1), "modules.json"),
        (lambda place: lose(place / WEIGHTS, "q_proj"), "missing_keys: "),
    ],
    ("echo", ValueError): [(put(CONFIG, num_hidden_layers=2), CONFIG)],
    ("nosink", ValueError): [
        (put(FIRST, layer_masks=["forward"] * 10**5), "layer_masks"),
        (put(FIRST, layer_masks=["sideways"] * 6), "'sideways'"),
    ],
    ("reba", RepositoryRefused): [
        (edit(WEIGHTS, lambda whole: (1 << 60).to_bytes(8, "little") + whole[8:]), f"{WEIGHTS}: it is no"),
        (edit(WEIGHTS, lambda whole: whole[: len(whole) // 2]), f"{WEIGHTS}: it is no"),
        (edit(WEIGHTS, lambda _: PICKLE), f"{WEIGHTS}: it is no"),
        (edit("modules.json", lambda _: b"[" * 200_000), "modules.json: it is not"),
        (both(lambda place: (place / WEIGHTS).rename(place / "a.safetensors"),
              put(f"{WEIGHTS}.index.json", weight_map=SHARDS)), "b.safetensors: it is missing"),
        (pickled(WEIGHTS, "pytorch_model.bin"), "pytorch_model.bin"), (pickled(WEIGHTS, "MODEL.PTH"), "MODEL.PTH"),
        (put(CONFIG, _attn_implementation=KERNEL), KERNEL),
        (put(FIRST, tokenizer_name_or_path="/etc"), "tokenizer_name_or_path"),
        (put(FIRST, model_kwargs={"weights_only": False}), "weights_only"),
        (put(FIRST, model_kwargs=ASKS), KERNEL),
        (put(FIRST, config_kwargs={"code_revision": "x"}), "code_revision"),
    ],
    ("echo", RepositoryRefused): [
        (put(CONFIG, num_hidden_layers=900), CONFIG), (put(CONFIG, hidden_size=192 * 10**5), CONFIG),
        (put(CONFIG, vocab_size=10**13), CONFIG), (put(CONFIG, num_hidden_layers=1001), "num_hidden_layers=1001"),
        (put(CONFIG, max_position_embeddings=1 << 25), "max_position_embeddings"),
        # A module that has no weights.
        (both(listed({"idx": 9, "name": "9", "path": "9", "type": NORM}), put("9/config.json", dimension=10**7)),
         "9/model.safetensors: it is missing"),
        (put(CONFIG, text_config={"attn_implementation": {"": KERNEL}}), KERNEL),
    ],
    ("apart", RepositoryRefused): [(put(f"{APART}/{CONFIG}", num_hidden_layers=900), "it asks for far more")],
    ("plain", RepositoryRefused): [
        (edit("modules.json", lambda _: b'[{"idx": 0}]'), "modules.json: a value"), (elsewhere, KERNEL),
        (edit(DENSE, lambda _: b"[]"), f"{DENSE}: it holds a list"),
        (put(DENSE, out_features=20_000_000), "20000000"), (put(DENSE, out_features="x"), f"{DENSE}: a value is"),
        (missing(f"2_Dense/{WEIGHTS}"), "2_Dense"),
        # An older name, under which sentence-transformers finds settings where the usual file says nothing.
        (both(edit(FIRST, lambda _: b"{}"), put("sentence_xlnet_config.json", model_args=ASKS)), KERNEL),
        (both(listed(type=ROUTER), put(ROUTES, types={"a": TRANSFORMER}), put("a/config.json", **ASKS)), "a/config"),
        (both(listed(type=ROUTER), put(ROUTES, types=3)), f"{ROUTES}: a value is"),
        (pickled(f"2_Dense/{WEIGHTS}", "2_Dense/pytorch_model.bin"), "2_Dense/pytorch_model.bin"),
        (put(FIRST, model_args={"use_safetensors": False}), "use_safetensors"),
        (put(FIRST, tokenizer_args={"trust_remote_code": True}), "trust_remote_code"),
        (put(CONFIG, layers=[{"_attn_implementation_internal": KERNEL}]), KERNEL),
        (put(CONFIG, configuration_files=["config.4.0.0.json"]), "configuration_files"),
        (put("adapter_config.json", megatron_config={"a": 1}), "megatron_config"),
        (put("config_sentence_transformers.json", model_type="CrossEncoder"), "CrossEncoder"),
    ],
}  # fmt: skip
ROWS = [(*repository, *row) for repository, rows in CASES.items() for row in rows]


@pytest.mark.parametrize(("kind", "error", "damage", "word"), ROWS, ids=[f"{row[0]}-{row[3]}" for row in ROWS])
def test_refused(repository: Copy, kind: str, error: type[ValueError], damage: Damage, word: str) -> None:
    """Broken, larger than its weights, or asking for code; a kernel where code is trusted too."""
    damage(place := repository(kind))
    refused(place, word, error, trust_remote_code=word == KERNEL)


def test_kernel_and_size_of_a_base(repository: Copy) -> None:
    for damage in (put(CONFIG, _attn_implementation=KERNEL), put(CONFIG, num_hidden_layers=10**6), elsewhere):
        damage(place := repository("reba"))
        with pytest.raises(RepositoryRefused):
            check_base(str(place))
    with limit_numbers(MINI), pytest.raises(RepositoryRefused):
        torch.nn.Linear(10**6, 10**6, device="meta")


def test_numbers(tmp_path: Path) -> None:
    """Those of every module count, and as many as are packed where a configuration says so."""
    for folder, size in (("", 3), ("1", 1000), ("2", 1)):
        (tmp_path / folder).mkdir(exist_ok=True)
        kept = {"a": torch.zeros(size, 2, dtype=torch.int32), "b": torch.zeros(5, dtype=torch.uint8)}
        save_file({**kept, "c": torch.zeros(4), "d": torch.zeros(7).half()}, tmp_path / folder / "model.safetensors")
        put(CONFIG, quantization_config={"quant_method": "gptq"})(tmp_path / folder)
    headers = read_headers(Repository(str(tmp_path)), "")
    assert headers is not None and read_headers(Repository(str(tmp_path)), "3") is None
    assert sum(tensor.unpacked_size for tensor in headers.values()) == 3 * 2 * 16 + 5 * 4 + 4 + 7
    assert sum(tensor.size for tensor in headers.values()) == 3 * 2 + 5 + 4 + 7
    # 1000 · 2 · 16 numbers in folder 1.
    with limit_numbers(str(tmp_path), ["", "1", "2"]):
        torch.nn.Linear(1140, 1000, device="meta")
    for folders in ([""], ["", "2"]):
        with limit_numbers(str(tmp_path), folders), pytest.raises(RepositoryRefused):
            torch.nn.Linear(1140, 1000, device="meta")


TYPES = [
    "os.system", "evil.Module", "builtins.exec", "st_reba.Evil", "st_reba.MODULES", "x" * 10**6, 3, "ReBAPooling",
    "evil.ReBAPooling", "sentence_transformers.util.import_from_string", "sentence_transformers.base.model.torch",
    "sentence_transformers.SentenceTransformer", "sentence_transformers..models.Pooling",
]  # fmt: skip


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("type_", TYPES, ids=[str(each)[:50] for each in TYPES])
def test_unknown_types(
    repository: Copy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, type_: Any, inside: bool
) -> None:
    """In the list of modules, and inside a Router."""
    place, file = repository("plain"), ROUTES if inside else "modules.json"
    for folder in (place, tmp_path):
        (folder / "evil.py").write_text(PLANTED, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    listed(type=ROUTER if inside else type_)(place)
    put(ROUTES, types={"query_0": type_}, structure={}, parameters={})(place)
    # Trust in a repository's code opens nothing of sentence-transformers.
    for trusted in {False, str(type_).startswith("sentence_transformers.")}:
        refused(place, f"{file}: type=", trust_remote_code=trusted)


def test_trusted_code_is_taken(repository: Copy, marker: Path) -> None:
    """The planted module does run where it is trusted: the other tests would see it."""
    place = repository("reba")
    (place / "evil.py").write_text(PLANTED, encoding="utf-8")
    listed(type="evil.Module")(place)
    refused(place, "could not be loaded", ValueError, trust_remote_code=True)
    marker.unlink()


def test_pickle_beside_safetensors(repository: Copy, marker: Path) -> None:
    """It is never opened; an adapter's weights need a file of their own."""
    place = repository("reba")
    for name in ("pytorch_model.bin", "model.pkl", "optimizer.pt"):
        (place / name).write_bytes(PICKLE)
    assert load(place, device="cpu").encode("hi").shape == (192,)
    (place / "pytorch_model.bin").rename(place / "adapter_model.bin")
    refused(place, "adapter_model.bin")
    save_file({"a": torch.zeros(1)}, place / "adapter_model.safetensors")
    check_repository(place)
    # The planted pickle does what all these tests look for.
    pickle.loads((place / "adapter_model.bin").read_bytes())
    marker.unlink()
