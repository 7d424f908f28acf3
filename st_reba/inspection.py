"""What a repository asks for is read and judged before anything of it is loaded or run."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import Any, NoReturn, cast

from sentence_transformers.base.modules import Module, Router
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from sentence_transformers.util import import_from_string, load_file_path

from . import modules
from .modules.decoder import DecoderTransformer
from .modules.guards import check_config, check_passed_on, check_sizes, joined
from .modules.layout import NO_LIMIT, Layout
from .modules.options import MOST_CHARACTERS, Options, option, shown
from .modules.pooling import ReBAPooling
from .modules.prompts import PromptEnsemble

# A configuration is a few kilobytes; some list tens of thousands of labels.
MOST_BYTES = 1 << 22
MOST_MODULES = 64
MOST_PROMPTS = 256
# Pickles by their usual names: opening one can run code.
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
# Those that a training leaves, and that nothing here opens.
_OF_TRAINING = frozenset(("training_args.bin", "optimizer.pt", "scheduler.pt", "scaler.pt", "rng_state.pth"))

_OWN = {f"st_reba.{name}" for name in modules.MODULES}
# Modules without weights, whose configuration says all.
_CONFIGURED = (ReBAPooling, PromptEnsemble)


class RepositoryRefused(ValueError):
    """A repository asks for what it may not have; nothing of it was loaded or run."""


@dataclass(frozen=True)
class _Settings(Options):
    max_seq_length: int | None = option(None, "positions", least=1, most=NO_LIMIT)
    model_max_length: int | None = option(None, "positions", least=1, most=NO_LIMIT)
    truncate_dim: int | None = option(None, "dimensions that are kept", least=1, most=1 << 24)
    prompt: str | None = option(None, "text in front")


def check_repository(model: str | os.PathLike[str], *, trust_remote_code: bool = False, **hub: Any) -> int | None:
    """Refuse a sentence-transformers repository that is malicious or broken, before anything of it is loaded.

    It reads modules.json, the configurations and the headers of the weights. Refused are module types other than
    sentence-transformers' own and st_reba's, paths outside the repository, settings beyond their limits or beyond what
    the weights hold, and, in a folder, pickled weights where there are no others. (A Hub repository is not listed;
    there, pickles are left to loading with ``use_safetensors=True``.)

    Args:
        model: Folder or Hub id. One without a modules.json is not judged.
        trust_remote_code: Allow module types from the repository or from other packages.
        **hub: ``token``, ``cache_folder``, ``revision`` and ``local_files_only``, as ``SentenceTransformer`` has them.

    Returns:
        How many numbers the first module's weights hold; None: not known.

    Raises:
        RepositoryRefused: What is wrong, in which file, and what to do.

    Example:
        >>> import st_reba, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     st_reba.build("mini").save_pretrained(folder)
        ...     check_repository(folder)
        3934656
    """
    repository = _Repository(os.fspath(model), hub, trust_remote_code)
    try:
        return repository.check()
    except RepositoryRefused:
        raise
    except (TypeError, ValueError) as error:
        where = f"{repository.file}: " if repository.file else ""
        raise RepositoryRefused(f"MODEL={repository.path!r}: {where}{error}") from error


def read_json(model: str, name: str, *, finite: bool = True, **hub: Any) -> Any:
    """A JSON file of a repository, by its path there; None: it has no such file.

    ``finite``: refuse NaN and infinity, which transformers alone may write. ``hub``: as for :func:`check_repository`.

    Raises:
        RepositoryRefused: It is too large, no JSON in UTF-8, nested too deeply, or lies outside the repository.
    """
    if _leaves(name):
        raise RepositoryRefused(f"MODEL={model!r}: the path {shown(name)} leads out of the repository. Correct it.")
    file = load_file_path(model, name, **hub)
    if file is None:
        return None
    if os.path.isdir(model) and not _inside(Path(model), Path(file)):
        raise RepositoryRefused(f"MODEL={model!r}: {name} is a link to a place outside. Put the file itself there.")
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
    """A repository under inspection. What is wrong is a ValueError, of the ``file`` that was read last."""

    def __init__(self, path: str, hub: Mapping[str, Any], trusted: bool) -> None:
        self.path, self.hub, self.trusted = path, hub, trusted
        self.file = ""

    def read(self, name: str, *, finite: bool = True) -> dict[str, Any] | None:
        self.file = name
        value = read_json(self.path, name, finite=finite, **self.hub)
        if value is not None and not isinstance(value, dict):
            raise ValueError("it is no JSON object. Build the model again.")
        return value

    def check(self) -> int | None:
        self.file = "modules.json"
        listed = read_json(self.path, self.file, **self.hub)
        if listed is None:
            return None
        kinds = self.modules(listed)
        settings = self.read("config_sentence_transformers.json") or {}
        prompts = settings.get("prompts") or {}
        if not isinstance(prompts, dict) or len(prompts) > MOST_PROMPTS:
            raise ValueError(f"prompts={shown(prompts)} must be a mapping of at most {MOST_PROMPTS} strings.")
        for prompt in prompts.values():
            _Settings(prompt=prompt)
        _Settings(truncate_dim=settings.get("truncate_dim"))
        for module, kind in zip(listed, kinds, strict=True):
            self.module(module["path"], kind)
        self.file = ""
        return check_sizes(self.path, listed[0]["path"], **self.hub)

    def modules(self, listed: object) -> list[type | None]:
        """The classes that modules.json names; None for one that is trusted."""
        if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
            raise ValueError("it is no list of modules. Build the model again.")
        if not 0 < len(listed) <= MOST_MODULES:
            raise ValueError(f"it lists {len(listed)} modules: 1 to {MOST_MODULES} are allowed.")
        for each in listed:
            for key in ("name", "path", "type"):
                if not isinstance(each.get(key), str):
                    raise ValueError(f"{key}={shown(each.get(key))} of a module must be a string.")
            self.check_path(each["path"])
        if len({each["name"] for each in listed}) < len(listed):
            raise ValueError("two modules have the same name.")
        kinds = [self.kind(each["type"]) for each in listed]
        pooled = False
        for number, kind in enumerate(kinds):
            if kind is not None and issubclass(kind, DecoderTransformer) and number > 0:
                raise ValueError(f"{kind.__name__} is module {number}, but it must be the first.")
            if kind is not None and issubclass(kind, ReBAPooling):
                if number == 0 or pooled:
                    raise ValueError(f"{kind.__name__} is module {number}: one pooling follows the first module.")
                pooled = True
        if issubclass(kinds[0] or Module, DecoderTransformer) and not any(
            kind is None or issubclass(kind, (Pooling, ReBAPooling)) for kind in kinds[1:]
        ):
            raise ValueError("no pooling follows the first module. Copy all of the model's files, or build it again.")
        return kinds

    def kind(self, name: str) -> type | None:
        """The class of a type's name, if it is one of sentence-transformers' modules or of this package's."""
        if name in _OWN:
            return cast(type, getattr(modules, name.removeprefix("st_reba.")))
        if name.startswith("sentence_transformers."):
            try:
                found: Any = import_from_string(name)
            except Exception:
                found = None
            own = isinstance(found, type) and issubclass(found, Module)
            if not own or not found.__module__.startswith("sentence_transformers."):
                # No matter who is trusted: any name of that package would be fetched, and its ``load`` called.
                raise ValueError(f"type={shown(name)} is no module of sentence-transformers. Build the model again.")
            return cast(type, found)
        if self.trusted:
            return None
        raise ValueError(
            f"type={shown(name)} is neither a module of sentence-transformers nor one of st_reba's {sorted(_OWN)}: "
            "loading it would run code from elsewhere. If you have read and trust that code: trust_remote_code=True."
        )

    def check_path(self, path: str) -> None:
        if _leaves(path):
            raise ValueError(f"path={shown(path)} leads out of the repository. Correct it.")
        root = Path(self.path)
        if root.is_dir() and not _inside(root, root / path):
            raise ValueError(f"path={shown(path)} is a link to a place outside of the repository. Copy it there.")

    def module(self, path: str, kind: type | None) -> None:
        """A module's configuration and the kind of its weights."""
        if kind is None:
            return
        if issubclass(kind, Router):
            self.router(path)
            return
        transformer = issubclass(kind, Transformer)
        elsewhere = transformer and self.transformer(path, cast("type[Transformer]", kind))
        if issubclass(kind, _CONFIGURED):
            if (config := self.read(joined(path, "config.json"))) is None:
                raise ValueError("it is missing. Copy all of the model's files, or build it again.")
            kind(**config)
        if not elsewhere:
            self.weights(path, adapters=transformer)

    def router(self, path: str) -> None:
        """The modules inside a Router, which names types and folders of its own."""
        config = self.read(joined(path, "router_config.json"))
        if config is None:
            config = self.read(joined(path, "config.json")) or {}
        types = config.get("types")
        if not isinstance(types, dict) or len(types) > MOST_MODULES:
            raise ValueError(f"types={shown(types)} must be a mapping of at most {MOST_MODULES} modules.")
        kinds = {}
        for inner, type_ in types.items():
            if not isinstance(type_, str):
                raise ValueError(f"type={shown(type_)} of a module must be a string.")
            self.check_path(joined(path, inner))
            kinds[inner] = kind = self.kind(type_)
            if kind is not None and issubclass(kind, Router):
                raise ValueError("a Router stands inside a Router. Build the model again.")
        for inner, kind in kinds.items():
            if inner:
                self.module(joined(path, inner), kind)

    def transformer(self, path: str, kind: type[Transformer]) -> bool:
        """A Transformer's settings; whether it takes its weights from a base model."""
        config = self.read(joined(path, "sentence_bert_config.json")) or {}
        own = issubclass(kind, DecoderTransformer)
        if own:
            check_config(config, kind.config_keys, here=os.path.isdir(self.path))
            Layout.of(config.get("layout", {}))
        elif not self.trusted:
            check_passed_on(self.file, config, own=False)
            if (elsewhere := config.get("tokenizer_name_or_path")) is not None:
                raise ValueError(
                    f"tokenizer_name_or_path={shown(elsewhere)} names a tokenizer elsewhere. Put its files into the "
                    "repository."
                )
        processing = config.get("processor_kwargs", config.get("tokenizer_args", {}))
        _check_length("max_seq_length", config.get("max_seq_length"))
        if isinstance(processing, dict):
            _check_length("model_max_length", processing.get("model_max_length"))
        tokenizer = self.read(joined(path, "tokenizer_config.json"), finite=False) or {}
        _check_length("model_max_length", tokenizer.get("model_max_length"))
        self.read(joined(path, "config.json"), finite=False)
        return own and bool(config.get("from_base"))

    def weights(self, path: str, *, adapters: bool) -> None:
        """Refuse a folder whose only weights are pickles; those beside others are never opened."""
        folder = Path(self.path, path)
        names = sorted(each.name for each in folder.iterdir()) if folder.is_dir() else []
        safe = [each for each in names if each.endswith(".safetensors")]
        pickled = [each for each in names if each.lower().endswith(PICKLES) and each not in _OF_TRAINING]
        if adapters and "adapter_model.bin" in pickled and "adapter_model.safetensors" not in safe:
            pickled = ["adapter_model.bin"]
        elif safe or any(each in ("onnx", "openvino") or each.endswith(".onnx") for each in names):
            return
        if pickled:
            self.file = joined(path, pickled[0])
            raise ValueError(
                "weights as a pickle, which can run code when it is opened, and none as safetensors. Ask for "
                "safetensors, or, where you trust the file, convert it: load it with torch.load(…, weights_only=True) "
                "and write it with safetensors.torch.save_file."
            )


def _check_length(name: str, value: Any) -> None:
    """A number of positions; transformers writes 1e30 where there is no limit."""
    if type(value) not in (int, float) or value <= NO_LIMIT or value != value:
        whole: Any = int(value) if type(value) is float and value.is_integer() else value
        _Settings(**{name: whole})


def _leaves(path: str) -> bool:
    """Whether a path is none inside a repository, on this system or another."""
    windows = PureWindowsPath(path)
    return len(path) > MOST_CHARACTERS or bool(windows.anchor) or ".." in windows.parts or "\0" in path


def _inside(root: Path, path: Path) -> bool:
    """Whether a path leads into a folder, links followed; the files of huggingface_hub's cache lie beside it."""
    root = root.resolve()
    places = [root, root.parent.parent / "blobs"] if root.parent.name == "snapshots" else [root]
    found = path.resolve()
    return any(found.is_relative_to(place) for place in places)


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")
