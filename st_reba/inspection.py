"""What a repository asks for is read and judged before anything of it is loaded or run."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path, PureWindowsPath
from typing import Any, NoReturn, cast

from sentence_transformers.base.modules import Module, Router
from sentence_transformers.sentence_transformer.modules import Transformer
from sentence_transformers.util import import_from_string, load_file_path

from .modules import (
    MODULES,
    ChunkedReBAPooling,
    DecoderTransformer,
    LayerPlan,
    NoSinkTransformer,
    PromptEnsemble,
    ReBAPooling,
    RepeatTransformer,
    named_plan,
)
from .modules.depth import check_layer
from .modules.limits import MOST_CHARACTERS, MOST_LAYERS, MOST_TOKENS, check_text, check_whole, shown
from .modules.record import check_record
from .modules.repeat import check_layout

# A configuration is a few kilobytes; some list tens of thousands of labels.
MOST_BYTES = 1 << 22
MOST_MODULES = 64
MOST_PROMPTS = 256
# Pickles by their usual names: opening one can run code.
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")

_OWN = {f"{each.__module__}.{each.__name__}": each for each in MODULES}
_POOLINGS = (ReBAPooling, ChunkedReBAPooling)
# Modules without weights, whose configuration says all.
_CONFIGURED = (*_POOLINGS, PromptEnsemble)
_SETTINGS = "config_sentence_transformers.json"
# A limit beyond this is transformers' way of saying that a tokenizer knows none.
_NO_LIMIT = 10**12
# What a repository may not say to transformers: where else to look, whom to ask, and to open pickles.
_REACHING = frozenset(
    (
        "adapter_kwargs",
        "code_revision",
        "gguf_file",
        "kernel_config",
        "offload_folder",
        "proxies",
        "state_dict",
        "use_kernels",
        "use_safetensors",
        "weights_only",
    )
)
# Pickles that a training leaves, and that nothing here opens.
_OF_TRAINING = frozenset(("training_args.bin", "optimizer.pt", "scheduler.pt", "scaler.pt", "rng_state.pth"))
_KWARGS = ("model_kwargs", "processor_kwargs", "config_kwargs", "model_args", "tokenizer_args", "config_args")


class RepositoryRefused(ValueError):
    """A repository asks for what it may not have; nothing of it was loaded or run."""


def check_repository(model: str | os.PathLike[str], *, trust_remote_code: bool = False, **hub: Any) -> None:
    """Refuse a sentence-transformers repository that is malicious or broken, before anything of it is loaded.

    Read are modules.json and the configurations: module types other than sentence-transformers' own and st_reba's
    are refused, and so are folders outside the repository, settings beyond their limits, and, in a folder,
    pickled weights where there are no others. (In a Hub repository, which is not listed, pickles are left to
    loading with ``use_safetensors=True``.) Files of weights are not opened, and none is downloaded.

    Args:
        model: Folder or Hub id. One without a modules.json is not judged.
        trust_remote_code: Allow module types from the repository or from other packages.
        **hub: ``token``, ``cache_folder``, ``revision`` and ``local_files_only``, as ``SentenceTransformer`` takes
            them.

    Raises:
        RepositoryRefused: What is wrong, in which file, and what to do.

    Example:
        >>> import st_reba, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     st_reba.build("mini").save_pretrained(folder)
        ...     check_repository(folder)
    """
    path = os.fspath(model)
    modules = read_json(path, "modules.json", **hub)
    if modules is None:
        return
    repository = _Repository(path, hub, trust_remote_code)
    kinds = repository.modules(modules)
    repository.settings()
    for number, (module, kind) in enumerate(zip(modules, kinds, strict=True)):
        repository.module(module["path"], kind, first=number == 0)


def read_json(model: str, name: str, *, finite: bool = True, **hub: Any) -> Any:
    """A JSON file of a repository; None: it has no such file.

    Args:
        model: Folder or Hub id.
        name: The file's path in it.
        finite: Refuse NaN and infinity, which transformers alone may write.
        **hub: As :func:`check_repository`.

    Raises:
        RepositoryRefused: It is too large, no JSON in UTF-8, nested too deeply, or lies outside the repository.
    """
    if _leaves(name):
        raise RepositoryRefused(f"MODEL={model!r}: the path {shown(name)} leads out of the repository. Correct it.")
    file = load_file_path(model, name, **hub)
    if file is None:
        return None
    if os.path.isdir(model) and not _inside(Path(model), Path(file)):
        raise RepositoryRefused(
            f"MODEL={model!r}: {name} is a link to a place outside of it. Put the file itself there."
        )
    if not os.path.isfile(file) or (size := os.path.getsize(file)) > MOST_BYTES:
        found = f"{size} bytes" if os.path.isfile(file) else "no plain file"
        raise RepositoryRefused(
            f"MODEL={model!r}: {name} is no configuration: {found}, at most {MOST_BYTES} bytes are read. Build the "
            "model again."
        )
    try:
        with open(file, encoding="utf-8") as stream:
            return json.load(stream, parse_constant=_no_number if finite else None)
    except (ValueError, RecursionError) as error:
        raise RepositoryRefused(f"MODEL={model!r}: {name} is not JSON ({error}).") from error


class _Repository:
    """A repository under inspection."""

    def __init__(self, path: str, hub: Mapping[str, Any], trusted: bool) -> None:
        self.path = path
        self.hub = hub
        self.trusted = trusted

    def refuse(self, name: str, why: object) -> NoReturn:
        raise RepositoryRefused(f"MODEL={self.path!r}: {name}: {why}") from (
            why if isinstance(why, Exception) else None
        )

    def read(self, name: str, *, finite: bool = True) -> dict[str, Any] | None:
        value = read_json(self.path, name, finite=finite, **self.hub)
        if value is not None and not isinstance(value, dict):
            self.refuse(name, "it is no JSON object. Build the model again.")
        return value

    def modules(self, modules: object) -> list[type | None]:
        """The classes that modules.json names; None for one that is trusted."""
        if not isinstance(modules, list) or not all(isinstance(each, dict) for each in modules):
            self.refuse("modules.json", "it is no list of modules. Build the model again.")
        if not 0 < len(modules) <= MOST_MODULES:
            self.refuse("modules.json", f"it lists {len(modules)} modules: 1 to {MOST_MODULES} are allowed.")
        kinds, names = [], set()
        for each in modules:
            for key in ("name", "path", "type"):
                if not isinstance(each.get(key), str):
                    self.refuse("modules.json", f"{key}={shown(each.get(key))} of a module must be a string.")
            if each["name"] in names:
                self.refuse("modules.json", f"two modules have the name {shown(each['name'])}.")
            names.add(each["name"])
            self.check_path("modules.json", each["path"])
            kinds.append(self.kind("modules.json", each["type"]))
        for number, kind in enumerate(kinds):
            if kind is None:
                continue
            if issubclass(kind, DecoderTransformer) and number > 0:
                self.refuse("modules.json", f"{kind.__name__} is module {number}, but it must be the first.")
            if kind in _POOLINGS and (number == 0 or any(each in _POOLINGS for each in kinds[:number])):
                self.refuse(
                    "modules.json", f"{kind.__name__} is module {number}: one pooling follows the first module."
                )
        return kinds

    def kind(self, file: str, name: str) -> type | None:
        """The class of a type's name, if it is one of sentence-transformers' modules or of this package's."""
        if name in _OWN:
            return _OWN[name]
        if name.startswith("sentence_transformers."):
            try:
                found: Any = import_from_string(name)
            except Exception:
                found = None
            own = isinstance(found, type) and issubclass(found, Module) and found.__module__.startswith("sentence_tr")
            if not own:
                # No matter who is trusted: any name of that package would be fetched, and its ``load`` called.
                self.refuse(file, f"type={shown(name)} is no module of sentence-transformers. Build the model again.")
            return cast(type, found)
        if self.trusted:
            return None
        self.refuse(
            file,
            f"type={shown(name)} is neither a module of sentence-transformers nor one of st_reba's {sorted(_OWN)}: "
            "loading it would run code from elsewhere. If you have read and trust that code: trust_remote_code=True.",
        )

    def check_path(self, file: str, path: str) -> None:
        if _leaves(path):
            self.refuse(file, f"path={shown(path)} leads out of the repository. Correct it.")
        root = Path(self.path)
        if root.is_dir() and not _inside(root, root / path):
            self.refuse(file, f"path={shown(path)} is a link to a place outside of the repository. Copy it there.")

    def settings(self) -> None:
        """The repository's own settings: prompts and dimension."""
        settings = self.read(_SETTINGS) or {}
        prompts = settings.get("prompts")
        if prompts is not None and (not isinstance(prompts, dict) or len(prompts) > MOST_PROMPTS):
            self.refuse(_SETTINGS, f"prompts={shown(prompts)} must be a mapping of at most {MOST_PROMPTS} strings.")
        try:
            for name, prompt in (prompts or {}).items():
                if prompt is not None:
                    check_text(f"the prompt {shown(name)}", prompt)
            if settings.get("truncate_dim") is not None:
                check_whole("truncate_dim", settings["truncate_dim"], MOST_TOKENS)
        except ValueError as error:
            self.refuse(_SETTINGS, error)

    def module(self, path: str, kind: type | None, *, first: bool) -> None:
        """A module's configuration and the kind of its weights."""
        if kind is None:
            return
        if issubclass(kind, Router):
            self.router(path)
            return
        transformer = issubclass(kind, Transformer)
        recipe = False
        if transformer:
            recipe = self.transformer(path, cast("type[Transformer]", kind))
        elif kind in _CONFIGURED:
            name = _joined(path, "config.json")
            config = self.read(name)
            if config is None:
                self.refuse(name, "it is missing. Build the model again.")
            try:
                kind(**config)
            except (TypeError, ValueError) as error:
                self.refuse(name, error)
        if not recipe:
            self.weights(path, adapters=transformer)

    def router(self, path: str) -> None:
        """The modules inside a Router, which names types and folders of its own."""
        name = _joined(path, "router_config.json")
        config = self.read(name)
        if config is None:
            name = _joined(path, "config.json")
            config = self.read(name) or {}
        types = config.get("types")
        if not isinstance(types, dict) or len(types) > MOST_MODULES:
            self.refuse(name, f"types={shown(types)} must be a mapping of at most {MOST_MODULES} modules.")
        for inner, type_ in types.items():
            if not isinstance(type_, str):
                self.refuse(name, f"type={shown(type_)} of a module must be a string.")
            self.check_path(name, _joined(path, inner))
            kind = self.kind(name, type_)
            if kind is not None and issubclass(kind, Router):
                self.refuse(name, "a Router stands inside a Router. Build the model again.")
            if inner:
                self.module(_joined(path, inner), kind, first=False)

    def transformer(self, path: str, kind: type[Transformer]) -> bool:
        """A Transformer's settings; whether it takes its weights from a base model."""
        name = _joined(path, "sentence_bert_config.json")
        config = self.read(name) or {}
        own = issubclass(kind, DecoderTransformer)
        try:
            if own:
                cast("type[DecoderTransformer]", kind).check_config(config, here=os.path.isdir(self.path))
                _check_own(cast("type[DecoderTransformer]", kind), config)
            elif not self.trusted:
                _check_passed_on(config)
            processing = config.get("processor_kwargs", config.get("tokenizer_args", {}))
            limits = {"max_seq_length": config.get("max_seq_length")}
            if isinstance(processing, dict):
                limits["model_max_length"] = processing.get("model_max_length")
            for key, value in limits.items():
                _check_length(key, value)
        except ValueError as error:
            self.refuse(name, error)
        name = _joined(path, "tokenizer_config.json")
        try:
            _check_length("model_max_length", (self.read(name, finite=False) or {}).get("model_max_length"))
        except RepositoryRefused:
            raise
        except ValueError as error:
            self.refuse(name, error)
        name = _joined(path, "config.json")
        backbone = self.read(name, finite=False) or {}
        for key in ("attn_implementation", "_attn_implementation"):
            if not self.trusted and "/" in str(backbone.get(key, "")):
                self.refuse(name, f"{key}={shown(backbone[key])} would be downloaded and run. Remove it.")
        return own and bool(config.get("from_base"))

    def weights(self, path: str, *, adapters: bool) -> None:
        """Refuse a folder whose only weights are pickles; those beside others are never opened."""
        folder = Path(self.path, path)
        if not folder.is_dir():
            return
        names = sorted(each.name for each in folder.iterdir())
        safe = [each for each in names if each.endswith(".safetensors")]
        pickled = [each for each in names if each.lower().endswith(PICKLES) and each not in _OF_TRAINING]
        if adapters and "adapter_model.bin" in pickled and "adapter_model.safetensors" not in safe:
            pickled = ["adapter_model.bin"]
        elif safe or any(each in ("onnx", "openvino") or each.endswith(".onnx") for each in names):
            return
        if pickled:
            self.refuse(
                _joined(path, pickled[0]),
                "weights as a pickle, which can run code when it is opened, and none as safetensors. Ask for "
                "safetensors, or, where you trust the file, convert it: load it with "
                "torch.load(…, weights_only=True) and write it with safetensors.torch.save_file.",
            )


def _check_own(kind: type[DecoderTransformer], config: Mapping[str, Any]) -> None:
    """The settings of this package's input modules, by the modules' own rules."""
    check_layer(config.get("layer"), config.get("final_norm", True), config.get("join", "mean"))
    check_record(config.get("postfilter"))
    for name, least in (("prepend", 0), ("base_layers", 1)):
        if config.get(name) is not None:
            check_whole(name, config[name], MOST_LAYERS, least=least)
    if issubclass(kind, RepeatTransformer):
        names = ("template", "repeats", "separator", "instruction", "span", "compute_matched")
        check_layout(**{name: config[name] for name in names if name in config})
    if issubclass(kind, NoSinkTransformer):
        if "setting" not in config:
            raise ValueError("it lacks 'setting'. Build the model again.")
        named_plan(
            config["setting"],
            config.get("k"),
            config.get("k0"),
            config.get("m", 1),
            config.get("plan_variant", "paper"),
        )
    elif config.get("layers") is not None:
        LayerPlan.from_dict(config["layers"])


def _check_passed_on(config: Mapping[str, Any]) -> None:
    """What sentence-transformers' own Transformer would hand to transformers."""
    for name in _KWARGS:
        given = config.get(name, {})
        if not isinstance(given, dict):
            raise ValueError(f"{name}={shown(given)} must be a mapping.")
        kernel = given.get("attn_implementation")
        reaching = sorted(_REACHING & set(given)) or (["attn_implementation"] if "/" in str(kernel) else [])
        if reaching:
            raise ValueError(
                f"{name}: {reaching[0]}={shown(given[reaching[0]])} may not come from a repository. Remove it, and "
                "pass it when loading if it is needed."
            )
    if config.get("tokenizer_name_or_path") is not None:
        raise ValueError(
            f"tokenizer_name_or_path={shown(config['tokenizer_name_or_path'])} names a tokenizer elsewhere. Put its "
            "files into the repository."
        )


def _check_length(name: str, value: object) -> None:
    """A number of positions; transformers writes 1e30 where there is no limit."""
    if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool) and value > _NO_LIMIT):
        return
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    check_whole(name, value, _NO_LIMIT, also=", or null")


def _leaves(path: str) -> bool:
    """Whether a path is none inside a repository, on this system or another."""
    if len(path) > MOST_CHARACTERS:
        return True
    windows = PureWindowsPath(path)
    return bool(windows.anchor) or ".." in windows.parts or "\0" in path


def _inside(root: Path, path: Path) -> bool:
    """Whether a path leads into a folder, links followed; the files of huggingface_hub's cache lie beside it."""
    root = root.resolve()
    places = [root, root.parent.parent / "blobs"] if root.parent.name == "snapshots" else [root]
    found = path.resolve()
    return any(found.is_relative_to(place) for place in places)


def _joined(path: str, name: str) -> str:
    return f"{path}/{name}" if path not in ("", ".") else name


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")
