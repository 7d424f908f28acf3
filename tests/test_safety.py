"""A repository that asks for code, or for more than its weights hold, is refused before anything of it runs."""

from __future__ import annotations

import json
import pickle
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from architectures import lose, on_the_hub
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    LayerNorm,
    Pooling,
    Router,
    Transformer,
)

import st_reba
from st_reba.bases import BUNDLED
from st_reba.hub import verify
from st_reba.safety import (
    Repository,
    RepositoryRefused,
    check_base,
    check_repository,
    limit_numbers,
    load,
)
from st_reba.safety.names import largest_number
from st_reba.safety.weights import read_headers

METHODS = (
    "reba",
    "echo:template=echo",
    "nosink:setting=mask0&bidir,k=2,k0=1",
    "prompteol:template=contrastive",
)
MINI = str(BUNDLED["mini"])
CONFIG = "config.json"
MODULE_SETTINGS = "sentence_bert_config.json"
MODEL_SETTINGS = "config_sentence_transformers.json"
ROUTER_SETTINGS = "router_config.json"
WEIGHTS = "model.safetensors"
TRANSFORMER_FOLDER = "0_Transformer"
DENSE_CONFIG = "2_Dense/config.json"
KERNEL = "evil/kernel"
KERNEL_SETTINGS = {"attn_implementation": KERNEL}
# Code that writes the marker, also as a pickle.
PLANTED_CODE = "import os, pathlib; pathlib.Path(os.environ['PLANTED_MARKER']).write_text('ran')"
PLANTED_PICKLE = b"cbuiltins\nexec\n(V" + PLANTED_CODE.encode() + b"\ntR."
# What a refused folder may cost, in kilobytes.
MAX_MEMORY = 400_000
Damage = Callable[[Path], object]
CopyRepository = Callable[[str], Path]


def name_of_type(module_type: type) -> str:
    return f"{module_type.__module__}.{module_type.__name__}"


ROUTER_TYPE = name_of_type(Router)


@pytest.fixture(autouse=True)
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file that planted code writes; at the end of a test it must not exist."""
    path = tmp_path / "ran"
    monkeypatch.setenv("PLANTED_MARKER", str(path))
    yield path
    assert not path.exists()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Sound repositories of every kind; not to be changed."""
    root = tmp_path_factory.mktemp("models")
    for method in METHODS:
        method_name = method.partition(":")[0]
        st_reba.build("mini", method, check=False).save_pretrained(str(root / method_name))
    modules = [Transformer(MINI), Pooling(192, "mean"), Dense(192, 16, bias=False)]
    plain_model = SentenceTransformer(modules=modules, device="cpu", prompts={"query": "Q: "})
    plain_model.save_pretrained(str(root / "plain"))
    # One whose first module has a folder too.
    apart = root / "apart"
    shutil.copytree(root / "plain", apart / TRANSFORMER_FOLDER)
    for name in ("modules.json", MODEL_SETTINGS, "1_Pooling", "2_Dense"):
        (apart / TRANSFORMER_FOLDER / name).rename(apart / name)
    change_first_module(path=TRANSFORMER_FOLDER)(apart)
    return {path.name: path for path in root.iterdir()}


@pytest.fixture
def copy_repository(models: dict[str, Path], tmp_path: Path) -> CopyRepository:
    """``copy_repository(kind)``: a copy of a repository."""

    def copy(kind: str) -> Path:
        number = len(list(tmp_path.glob("repository *")))
        return Path(shutil.copytree(models[kind], tmp_path / f"repository {number}"))

    return copy


def assert_refused(
    folder: Path,
    message: str,
    error: type[ValueError] = RepositoryRefused,
    **options: Any,
) -> None:
    """Loading refuses, in a short message that names the fault, and takes no memory to speak of."""
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(error) as raised:
        load(folder, device="cpu", **options)
    assert message in str(raised.value), str(raised.value)
    assert len(str(raised.value)) < 1500
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < MAX_MEMORY


def write_json(name: str, **values: Any) -> Damage:
    """Change values of a JSON file, which need not be there."""

    def damage(folder: Path) -> None:
        file = folder / name
        file.parent.mkdir(exist_ok=True)
        stored_values = {}
        if file.exists():
            stored_values = json.loads(file.read_text(encoding="utf-8"))
        file.write_text(json.dumps({**stored_values, **values}), encoding="utf-8")

    return damage


def write_bytes(name: str, content: bytes) -> Damage:
    return lambda folder: (folder / name).write_bytes(content)


def change_first_module(**values: Any) -> Damage:
    """Change values of the first entry of modules.json."""

    def damage(folder: Path) -> None:
        modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
        modules[0].update(values)
        (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")

    return damage


def drop_module(number: int) -> Damage:
    """Leave an entry of modules.json out."""

    def damage(folder: Path) -> None:
        modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
        del modules[number]
        (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")

    return damage


def add_norm_without_weights(folder: Path) -> None:
    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    modules.append({"idx": 9, "name": "9", "path": "9", "type": name_of_type(LayerNorm)})
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    write_json("9/config.json", dimension=10**7)(folder)


def remove(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def replace_by_pickle(name: str, pickle_name: str) -> Damage:
    """Put a pickle in place of weights."""

    def damage(folder: Path) -> None:
        (folder / name).unlink()
        (folder / pickle_name).write_bytes(PLANTED_PICKLE)

    return damage


def all_of(*damages: Damage) -> Damage:
    def damage(folder: Path) -> None:
        for part_of_damage in damages:
            part_of_damage(folder)

    return damage


def claim_an_endless_header(folder: Path) -> None:
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes((1 << 60).to_bytes(8, "little") + content[8:])


def cut_weights(folder: Path) -> None:
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[: len(content) // 2])


def name_a_shard_that_is_missing(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "a.safetensors")
    shards = {"x": "a.safetensors", "y": "b.safetensors"}
    write_json(f"{WEIGHTS}.index.json", weight_map=shards)(folder)


def put_a_kernel_into_the_base_of_an_adapter(folder: Path) -> None:
    """The base is in a folder beside."""
    base_folder = folder.with_name("base")
    shutil.copytree(MINI, base_folder)
    write_json(CONFIG, _attn_implementation=KERNEL)(base_folder)
    adapter = {"peft_type": "LORA", "base_model_name_or_path": str(base_folder)}
    write_json("adapter_config.json", **adapter)(folder)


def put_a_kernel_into_a_router(folder: Path) -> None:
    change_first_module(type=ROUTER_TYPE)(folder)
    write_json(ROUTER_SETTINGS, types={"a": name_of_type(Transformer)})(folder)
    write_json("a/config.json", **KERNEL_SETTINGS)(folder)


@pytest.mark.parametrize("kind", ["reba", "echo", "nosink", "prompteol", "plain", "apart"])
def test_sound_repositories_load(models: dict[str, Path], kind: str) -> None:
    texts = ["你好", "hi"]
    model_kwargs = {"dtype": "float32"}
    expected_model = SentenceTransformer(str(models[kind]), device="cpu", model_kwargs=model_kwargs)
    assert np.array_equal(
        load(models[kind], device="cpu").encode(texts), expected_model.encode(texts)
    )


@pytest.mark.parametrize(
    ("backend", "weights"), [("torch", {"use_safetensors": True}), ("onnx", {})]
)
def test_options_are_passed_on(
    models: dict[str, Path],
    backend: str,
    weights: dict[str, bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    constructor = Mock()
    monkeypatch.setattr("st_reba.safety.loading.SentenceTransformer", constructor)
    load(models["plain"], device="cpu", backend=backend, model_kwargs={"a": 1})
    constructor.assert_called_with(
        str(models["plain"]),
        device="cpu",
        backend=backend,
        trust_remote_code=False,
        model_kwargs={"dtype": torch.float32, **weights, "a": 1},
    )


def test_a_file_is_no_model_and_the_hub_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.jsonl").write_text("{}", encoding="utf-8")
    monkeypatch.setattr("socket.getaddrinfo", Mock(side_effect=AssertionError("it was asked")))
    for open_model in (load, verify):
        with pytest.raises(ValueError, match="'x.jsonl' is a file, not a saved model. Give the"):
            open_model("x.jsonl")


def test_a_device_that_is_not_there_is_refused(models: dict[str, Path]) -> None:
    with pytest.raises(ValueError, match="'cpuu' cannot be used"):
        load(models["plain"], device="cpuu")


def hub_options(cache: Path) -> dict[str, Any]:
    return {"cache_folder": str(cache), "local_files_only": True}


def test_a_model_of_the_hub_loads_by_its_id_and_from_the_cache(
    models: dict[str, Path], tmp_path: Path
) -> None:
    snapshot = on_the_hub(tmp_path, "a/b", models["reba"])
    expected_vector = load(models["reba"], device="cpu").encode("hi")
    model = load("a/b", device="cpu", **hub_options(tmp_path))
    assert np.array_equal(model.encode("hi"), expected_vector)
    assert np.array_equal(load(snapshot, device="cpu").encode("hi"), expected_vector)


def test_a_kernel_on_the_hub_is_refused(models: dict[str, Path], tmp_path: Path) -> None:
    """Also in the base of an adapter, whose revision is its own."""
    snapshot = on_the_hub(tmp_path, "a/b", models["reba"])
    (snapshot / CONFIG).unlink()
    write_json(CONFIG, **KERNEL_SETTINGS)(snapshot)
    with pytest.raises(RepositoryRefused, match=KERNEL):
        load("a/b", **hub_options(tmp_path))
    adapter = tmp_path / "adapter"
    write_json("adapter_config.json", peft_type="LORA", base_model_name_or_path="a/b")(adapter)
    on_the_hub(tmp_path, "a/c", adapter, "v1")
    with pytest.raises(RepositoryRefused, match=KERNEL):
        check_base(Repository("a/c", {"revision": "v1", **hub_options(tmp_path)}))


# By repository: what is broken, and a part of the message.
BROKEN: dict[str, list[tuple[Damage, str]]] = {
    "reba": [
        (remove("modules.json"), "Run: st-reba build"),
        (remove(MODULE_SETTINGS), MODULE_SETTINGS),
        (remove(f"1_ReBAPooling/{CONFIG}"), ""),
        (remove(WEIGHTS), WEIGHTS),
        (drop_module(1), "modules.json"),
        (lambda folder: lose(folder / WEIGHTS, "q_proj"), "missing_keys: "),
    ],
    "echo": [(write_json(CONFIG, num_hidden_layers=2), CONFIG)],
    "nosink": [
        (write_json(MODULE_SETTINGS, layer_masks=["forward"] * 10**5), "layer_masks"),
        (write_json(MODULE_SETTINGS, layer_masks=["sideways"] * 6), "'sideways'"),
    ],
}
# What is refused before anything is loaded.
REFUSED: dict[str, list[tuple[Damage, str]]] = {
    "reba": [
        (claim_an_endless_header, f"{WEIGHTS}: it is no"),
        (cut_weights, f"{WEIGHTS}: it is no"),
        (write_bytes(WEIGHTS, PLANTED_PICKLE), f"{WEIGHTS}: it is no"),
        (write_bytes("modules.json", b"[" * 200_000), "modules.json: it is not"),
        (name_a_shard_that_is_missing, "b.safetensors: it is missing"),
        (replace_by_pickle(WEIGHTS, "pytorch_model.bin"), "pytorch_model.bin"),
        (replace_by_pickle(WEIGHTS, "MODEL.PTH"), "MODEL.PTH"),
        (write_json(CONFIG, _attn_implementation=KERNEL), KERNEL),
        (write_json(MODULE_SETTINGS, tokenizer_name_or_path="/etc"), "tokenizer_name_or_path"),
        (write_json(MODULE_SETTINGS, model_kwargs={"weights_only": False}), "weights_only"),
        (write_json(MODULE_SETTINGS, model_kwargs=KERNEL_SETTINGS), KERNEL),
        (write_json(MODULE_SETTINGS, config_kwargs={"code_revision": "x"}), "code_revision"),
    ],
    "echo": [
        (write_json(CONFIG, num_hidden_layers=900), CONFIG),
        (write_json(CONFIG, num_hidden_layers=1001), "num_hidden_layers=1001"),
        (write_json(CONFIG, hidden_size=192 * 10**5), CONFIG),
        (write_json(CONFIG, vocab_size=10**13), CONFIG),
        (write_json(CONFIG, max_position_embeddings=1 << 25), "max_position_embeddings"),
        (write_json(CONFIG, text_config={"attn_implementation": {"": KERNEL}}), KERNEL),
        (add_norm_without_weights, "9/model.safetensors: it is missing"),
    ],
    "apart": [
        (
            write_json(f"{TRANSFORMER_FOLDER}/{CONFIG}", num_hidden_layers=900),
            "it asks for far more",
        )
    ],
    "plain": [
        (write_bytes("modules.json", b'[{"idx": 0}]'), "modules.json: a value"),
        (put_a_kernel_into_the_base_of_an_adapter, KERNEL),
        (write_bytes(DENSE_CONFIG, b"[]"), f"{DENSE_CONFIG}: it holds a list"),
        (write_json(DENSE_CONFIG, out_features=20_000_000), "20000000"),
        (write_json(DENSE_CONFIG, out_features="x"), f"{DENSE_CONFIG}: a value is"),
        (remove(f"2_Dense/{WEIGHTS}"), "2_Dense"),
        (
            replace_by_pickle(f"2_Dense/{WEIGHTS}", "2_Dense/pytorch_model.bin"),
            "2_Dense/pytorch_model.bin",
        ),
        # An older name, under which sentence-transformers finds settings where the usual file is
        # empty.
        (
            all_of(
                write_bytes(MODULE_SETTINGS, b"{}"),
                write_json("sentence_xlnet_config.json", model_args=KERNEL_SETTINGS),
            ),
            KERNEL,
        ),
        (put_a_kernel_into_a_router, "a/config"),
        (
            all_of(change_first_module(type=ROUTER_TYPE), write_json(ROUTER_SETTINGS, types=3)),
            f"{ROUTER_SETTINGS}: a value is",
        ),
        (write_json(MODULE_SETTINGS, model_args={"use_safetensors": False}), "use_safetensors"),
        (
            write_json(MODULE_SETTINGS, model_args={"file_name": "onnx/model.onnx"}),
            "is an ONNX export, without weights for torch. Load it with SentenceTransformer(…, backend='onnx')",
        ),
        (
            write_json(MODULE_SETTINGS, tokenizer_args={"trust_remote_code": True}),
            "trust_remote_code",
        ),
        (write_json(CONFIG, layers=[{"_attn_implementation_internal": KERNEL}]), KERNEL),
        (write_json(CONFIG, configuration_files=["config.4.0.0.json"]), "configuration_files"),
        (write_json("adapter_config.json", megatron_config={"a": 1}), "megatron_config"),
        (write_json(MODEL_SETTINGS, model_type="CrossEncoder"), "CrossEncoder"),
    ],
}


def cases_of(damages_by_kind: dict[str, list[tuple[Damage, str]]]) -> list[Any]:
    cases: list[Any] = []
    for kind, damages in damages_by_kind.items():
        for damage, message in damages:
            cases.append(pytest.param(kind, damage, message, id=f"{kind}-{message}"))
    return cases


@pytest.mark.parametrize(("kind", "damage", "message"), cases_of(BROKEN))
def test_broken_repositories_are_named(
    copy_repository: CopyRepository,
    kind: str,
    damage: Damage,
    message: str,
) -> None:
    folder = copy_repository(kind)
    damage(folder)
    assert_refused(folder, message, ValueError)


@pytest.mark.parametrize(("kind", "damage", "message"), cases_of(REFUSED))
def test_repositories_that_ask_for_too_much_are_refused(
    copy_repository: CopyRepository,
    kind: str,
    damage: Damage,
    message: str,
) -> None:
    """Larger than their weights, or asking for code; a kernel where code is trusted too."""
    folder = copy_repository(kind)
    damage(folder)
    assert_refused(folder, message, trust_remote_code=message == KERNEL)


@pytest.mark.parametrize(
    "damage",
    [
        write_json(CONFIG, _attn_implementation=KERNEL),
        write_json(CONFIG, num_hidden_layers=10**6),
        put_a_kernel_into_the_base_of_an_adapter,
    ],
)
def test_kernels_and_sizes_of_bases_are_refused(
    copy_repository: CopyRepository, damage: Damage
) -> None:
    folder = copy_repository("reba")
    damage(folder)
    with pytest.raises(RepositoryRefused):
        check_base(Repository(str(folder)))


@pytest.mark.parametrize(
    ("setting", "largest"),
    [
        ("num_hidden_layers", 1000),
        ("max_position_embeddings", 1 << 24),
        ("num_labels", 1 << 17),
        ("hidden_size", 1 << 24),
        ("max_length", float("inf")),
        ("total_tokens", float("inf")),
    ],
)
def test_a_number_is_bounded_by_what_it_counts(setting: str, largest: float) -> None:
    """A length that is only a limit takes no memory."""
    assert largest_number(setting) == largest


def test_no_module_is_larger_than_the_weights() -> None:
    with limit_numbers(Repository(MINI)), pytest.raises(RepositoryRefused):
        torch.nn.Linear(10**6, 10**6, device="meta")


def test_no_table_is_far_larger_than_the_weights() -> None:
    with limit_numbers(Repository(MINI)), pytest.raises(RepositoryRefused):
        torch.nn.Module().register_buffer("table", torch.empty(10**12, device="meta"))


def test_no_model_has_far_more_modules_than_weights() -> None:
    torch.nn.ModuleList([torch.nn.Identity()] * 10_000)
    with limit_numbers(Repository(MINI)):
        torch.nn.ModuleList([torch.nn.Identity()] * 4000)
        with pytest.raises(RepositoryRefused):
            torch.nn.ModuleList([torch.nn.Identity()] * 10_000)


def test_a_weight_that_several_modules_share_counts_once(tmp_path: Path) -> None:
    save_file({"weight": torch.zeros(1000, 1000)}, tmp_path / WEIGHTS)
    with limit_numbers(Repository(str(tmp_path))):
        layer = torch.nn.Linear(1000, 1000, bias=False)
        for _ in range(9):
            torch.nn.Linear(1, 1, bias=False).weight = layer.weight
        torch.nn.Linear(1000, 1000, bias=False)
        with pytest.raises(RepositoryRefused):
            torch.nn.Linear(1000, 1000, bias=False)


@pytest.fixture
def packed_weights(tmp_path: Path) -> Path:
    """Three modules with weights, some of them packed: of the one in folder 1, 1,000 · 2 · 16 numbers."""
    for folder_name, size in (("", 3), ("1", 1000), ("2", 1)):
        folder = tmp_path / folder_name
        folder.mkdir(exist_ok=True)
        weights = {
            "a": torch.zeros(size, 2, dtype=torch.int32),
            "b": torch.zeros(5, dtype=torch.uint8),
            "c": torch.zeros(4),
            "d": torch.zeros(7).half(),
        }
        save_file(weights, folder / WEIGHTS)
        write_json(CONFIG, quantization_config={"quant_method": "gptq"})(folder)
    return tmp_path


def test_packed_numbers_are_counted_unpacked(packed_weights: Path) -> None:
    headers = read_headers(Repository(str(packed_weights)))
    assert headers is not None
    assert sum(tensor.unpacked_size for tensor in headers.values()) == 3 * 2 * 16 + 5 * 4 + 4 + 7
    assert sum(tensor.size for tensor in headers.values()) == 3 * 2 + 5 + 4 + 7


def test_a_folder_without_weights_has_no_headers(packed_weights: Path) -> None:
    assert read_headers(Repository(str(packed_weights), folder="3")) is None


def test_the_numbers_of_every_module_count(packed_weights: Path) -> None:
    root = Repository(str(packed_weights))
    with limit_numbers(root, root.inside("1"), root.inside("2")):
        torch.nn.Linear(1140, 1000, device="meta")
    for folders in ([root], [root, root.inside("2"), root.inside("./2")]):
        with limit_numbers(*folders), pytest.raises(RepositoryRefused):
            torch.nn.Linear(1140, 1000, device="meta")


UNKNOWN_TYPES = [
    "os.system",
    "evil.Module",
    "builtins.exec",
    "st_reba.Evil",
    "st_reba.MODULES",
    "ReBAPooling",
    "evil.ReBAPooling",
    "sentence_transformers.util.import_from_string",
    "sentence_transformers.base.model.torch",
    "sentence_transformers.SentenceTransformer",
    "sentence_transformers..models.Pooling",
    "x" * 10**6,
    3,
]


@pytest.mark.parametrize("is_routed", [False, True])
@pytest.mark.parametrize(
    "module_type", UNKNOWN_TYPES, ids=lambda module_type: str(module_type)[:50]
)
def test_unknown_types_of_modules_are_refused(
    copy_repository: CopyRepository,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    module_type: Any,
    is_routed: bool,
) -> None:
    """In the list of modules, and inside a Router."""
    folder = copy_repository("plain")
    for code_folder in (folder, tmp_path):
        (code_folder / "evil.py").write_text(PLANTED_CODE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    change_first_module(type=ROUTER_TYPE if is_routed else module_type)(folder)
    routes = {"types": {"query_0": module_type}, "structure": {}, "parameters": {}}
    write_json(ROUTER_SETTINGS, **routes)(folder)
    file = ROUTER_SETTINGS if is_routed else "modules.json"
    assert_refused(folder, f"{file}: type=")
    # Trust in a repository's code opens nothing of sentence-transformers.
    if str(module_type).startswith("sentence_transformers."):
        assert_refused(folder, f"{file}: type=", trust_remote_code=True)


def test_trusted_code_runs(copy_repository: CopyRepository, marker: Path) -> None:
    """The other tests would see it."""
    folder = copy_repository("reba")
    (folder / "evil.py").write_text(PLANTED_CODE, encoding="utf-8")
    change_first_module(type="evil.Module")(folder)
    assert_refused(folder, "could not be loaded", ValueError, trust_remote_code=True)
    marker.unlink()


def test_a_pickle_beside_weights_is_never_opened(copy_repository: CopyRepository) -> None:
    folder = copy_repository("reba")
    for name in ("pytorch_model.bin", "model.pkl", "optimizer.pt"):
        (folder / name).write_bytes(PLANTED_PICKLE)
    assert load(folder, device="cpu").encode("hi").shape == (192,)


def test_an_adapter_needs_weights_of_its_own_beside_a_pickle(
    copy_repository: CopyRepository,
) -> None:
    folder = copy_repository("reba")
    (folder / "adapter_model.bin").write_bytes(PLANTED_PICKLE)
    assert_refused(folder, "adapter_model.bin")
    save_file({"a": torch.zeros(1)}, folder / "adapter_model.safetensors")
    check_repository(folder)


def test_the_planted_pickle_writes_the_marker(marker: Path) -> None:
    pickle.loads(PLANTED_PICKLE)
    marker.unlink()
