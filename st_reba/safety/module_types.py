"""The module types that a repository may name, and what the configuration of each may say."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from sentence_transformers.base.modules import Normalize, Router
from sentence_transformers.sentence_transformer import modules as st_modules
from sentence_transformers.util import import_from_string

from .. import modules
from .configurations import check_base, check_processors, check_transformer
from .repository import COPY_AGAIN, Configuration, JsonValue, Repository
from .weights import (
    WEIGHTS_FILE,
    check_number_types,
    check_pickles,
    check_shapes,
    read_headers,
    required_headers,
)

_LIST_FILE = "modules.json"
_LARGEST_NUMBER = 1 << 24
_MAX_LAYERS = 1000
_MAX_ITEMS = 1000
_MAX_MODULES = 64
_MAX_ROUTE_LETTERS = 200
_WORD_TOKENIZERS = (
    "PhraseTokenizer",
    "TransformersTokenizerWrapper",
    "WhitespaceTokenizer",
)
_ACTIVATION_PACKAGES = (
    "torch.nn",
    "torch.nn.modules.activation",
    "torch.nn.modules.linear",
)
_ACTIVATIONS = {*torch.nn.modules.activation.__all__, "Identity"} - {"MultiheadAttention"}
# Other settings of a Dense do not affect its size.
_DENSE_SIZES = (
    "bias",
    "in_features",
    "out_features",
    "use_residual",
)
ModuleClass: TypeAlias = Any


@dataclass(frozen=True)
class StoredModule:
    """A module of a repository.

    Args:
        repository: Its files.
        module_class: Its class.
        trusted: Whether modules within it may be of the repository's own code.
    """

    repository: Repository
    module_class: ModuleClass
    trusted: bool

    @property
    def config(self) -> Configuration:
        """Its configuration."""
        is_list = self.module_class in _WORD_LISTS
        return self.repository.configuration(self.module_class.config_file_name, is_list=is_list)


# Checks a module; returns the folders of the modules within it, if any.
Check: TypeAlias = Callable[[StoredModule], list[Repository] | None]


class ModuleType(NamedTuple):
    """What a module needs, and how its configuration is checked."""

    reads: Literal["text", "tokens", "vector"]
    check: Check


def check_modules(repository: Repository, *, trusted: bool) -> list[Repository]:
    """Check every module that modules.json lists.

    Args:
        repository: The files.
        trusted: Whether module types of the repository's own code are allowed.

    Returns:
        The folders of the modules, and of those within them.
    """
    entries = repository.read_list(_LIST_FILE)
    with repository.explaining(_LIST_FILE):
        listed_modules = [(entry["path"], entry["type"]) for entry in entries]
        folders = _check_listed(repository, _LIST_FILE, listed_modules, trusted=trusted)
        _check_order(repository, [find_module_class(entry["type"]) for entry in entries])
    return folders or [repository]


def _check_order(repository: Repository, module_classes: Sequence[ModuleClass]) -> None:
    """Refuse a first module that reads no text, and modules that read tokens where it gives none."""
    for module_class in module_classes:
        module_type = find_module_type(module_class)
        if module_type is None:
            continue
        first_class = module_classes[0]
        if module_class is first_class and module_type.reads != "text":
            raise repository.refusal(_LIST_FILE, f"its first module reads no text. {COPY_AGAIN}")
        if first_class in _WITHOUT_TOKENS and module_type.reads == "tokens":
            problem = (
                f"a {module_class.__name__} reads tokens, and a {first_class.__name__} gives none"
            )
            raise repository.refusal(_LIST_FILE, f"{problem}. Remove it.")


def _check_listed(
    repository: Repository,
    list_file: str,
    listed_modules: Collection[tuple[JsonValue, JsonValue]],
    *,
    trusted: bool,
) -> list[Repository]:
    """Check modules: their types, files and configurations.

    Args:
        repository: Where their folders are.
        list_file: The file that lists them.
        listed_modules: Folder and type of each.
        trusted: Whether types of the repository's own code are allowed.

    Returns:
        Their folders, and those of modules within them.
    """
    if len(listed_modules) > _MAX_MODULES:
        reason = f"{len(listed_modules)} modules: at most {_MAX_MODULES}. Remove some."
        raise repository.refusal(list_file, reason)
    folders: list[Repository] = []
    for path, type_name in listed_modules:
        folder = repository.inside(repository.check_inner_path(path, list_file))
        module_class = find_module_class(type_name)
        module_type = find_module_type(module_class)
        if module_class is Router and list_file != _LIST_FILE:
            reason = f"type={type_name!r:.80} is not a module of a Router. Remove it."
            raise repository.refusal(list_file, reason)
        module_folders = [folder]
        if module_type is not None:
            folder.check_files()
            check_pickles(folder)
            stored_module = StoredModule(folder, module_class, trusted)
            module_folders += module_type.check(stored_module) or []
        elif not trusted or str(type_name).startswith("sentence_transformers."):
            reason = (
                f"type={type_name!r:.80} is not a module of sentence-transformers or st_reba that is"
                " checked, and could run code from elsewhere. If you have read and trust it:"
                " trust_remote_code=True."
            )
            raise repository.refusal(list_file, reason)
        # Weights are checked against one module, so several modules may not load the same file.
        for shared_folder in set(module_folders) & set(folders):
            if read_headers(shared_folder):
                reason = f"{shared_folder.folder!r} is the folder of several modules. {COPY_AGAIN}"
                raise repository.refusal(list_file, reason)
        folders += module_folders
    return folders


def find_module_class(type_name: JsonValue) -> ModuleClass:
    """The class of a module's type; None: it is neither sentence-transformers' nor ours."""
    package, _, class_name = str(type_name).partition(".")
    if package == "st_reba" and class_name in modules.MODULES:
        return getattr(modules, class_name)
    if package != "sentence_transformers" or not isinstance(type_name, str):
        return None
    try:
        module_class: object = import_from_string(type_name)
    except Exception:
        return None
    return module_class if isinstance(module_class, type) else None


def find_module_type(module_class: ModuleClass) -> ModuleType | None:
    """What modules of a class need, and how they are checked; None: the class is not allowed."""
    declaration = modules.MODULES.get(getattr(module_class, "__name__", ""))
    if declaration is None or module_class.__module__ != "st_reba":
        return _MODULE_TYPES.get(module_class)
    check: Check = _check_scalars
    if declaration.reads == "text":
        check = _check_transformer
    elif declaration.has_weights:
        check = _check_sized
    return ModuleType(declaration.reads, check)


def _check_router(stored_module: StoredModule) -> list[Repository]:
    config = stored_module.config
    if not config.values:
        # As older versions named it.
        config = stored_module.repository.configuration("config.json")
    with config.explaining():
        parameters = config.values.get("parameters", {})
        for route in parameters.get("route_mappings") or {}:
            if len(route) > _MAX_ROUTE_LETTERS:
                raise config.refusal(f"{route!r:.80} is not a route. Correct it.")
        return _check_listed(
            stored_module.repository,
            config.file_name,
            config.values["types"].items(),
            trusted=stored_module.trusted,
        )


def _check_scalars(stored_module: StoredModule) -> None:
    """Refuse values other than texts, booleans, numbers, and lists of these."""
    max_items = _MAX_ITEMS
    if stored_module.module_class in _WORD_LISTS:
        max_items = _LARGEST_NUMBER
    for setting, value in stored_module.config.values.items():
        items = [value]
        if isinstance(value, list):
            items = value
        elif isinstance(value, dict):
            items = list(value.values())
        is_deep = setting.endswith("layers") and isinstance(value, int) and value > _MAX_LAYERS
        if is_deep or len(items) > max_items or not all(map(_is_scalar, items)):
            _refuse_value(stored_module, setting, value)


def _is_scalar(value: JsonValue) -> bool:
    if isinstance(value, int):
        return abs(value) <= _LARGEST_NUMBER
    return value is None or isinstance(value, (str, float))


def _refuse_value(stored_module: StoredModule, setting: str, value: JsonValue) -> None:
    reason = f"is not a value of a {stored_module.module_class.__name__}. {COPY_AGAIN}"
    raise stored_module.config.refusal_of(setting, value, reason)


def _check_sized(stored_module: StoredModule) -> None:
    """Check a module whose configuration gives its size: build it without memory, and compare."""
    _check_scalars(stored_module)
    repository, module_class = stored_module.repository, stored_module.module_class
    tensors = required_headers(repository)
    config = stored_module.config
    options = dict(config.values)
    with config.explaining():
        for old_name, new_name in module_class.config_key_renames.items():
            if old_name in options:
                options.setdefault(new_name, options.pop(old_name))
        if module_class is st_modules.Dense:
            options = {name: options[name] for name in _DENSE_SIZES if name in options}
        with torch.device("meta"):
            expected_weights = module_class(**options).state_dict()
    check_number_types(repository, tensors)
    check_shapes(repository, tensors, expected_weights)


def _check_dense(stored_module: StoredModule) -> None:
    activation = stored_module.config.values.get("activation_function")
    if activation is not None:
        package, _, class_name = str(activation).rpartition(".")
        if package not in _ACTIVATION_PACKAGES or class_name not in _ACTIVATIONS:
            _refuse_value(stored_module, "activation_function", activation)
    _check_sized(stored_module)


def _check_word_embeddings(stored_module: StoredModule) -> None:
    _check_scalars(stored_module)
    tokenizer_name = str(stored_module.config.values.get("tokenizer_class"))
    package, _, class_name = tokenizer_name.rpartition(".")
    is_theirs = package.startswith("sentence_transformers.") and ".tokenizer" in package
    if not is_theirs or class_name not in _WORD_TOKENIZERS:
        _refuse_value(stored_module, "tokenizer_class", tokenizer_name)
    repository = stored_module.repository
    check_number_types(repository, required_headers(repository))
    if class_name == "TransformersTokenizerWrapper":
        check_base(repository)


def _check_static(stored_module: StoredModule) -> None:
    """Check token embeddings; several tokens may share a stored one (model2vec)."""
    repository = stored_module.repository
    tensors = required_headers(repository)
    token_mapping = tensors.get("mapping")
    token_weights = tensors.get("weights")
    embeddings = tensors.get("embeddings")
    # model2vec rounds embeddings to whole numbers of 8 bits, and multiplies them by weights.
    is_rounded = embeddings is not None and embeddings.dtype == "I8" and token_weights is not None
    floats = {name: tensor for name, tensor in tensors.items() if name != "mapping"}
    if is_rounded:
        del floats["embeddings"]
    check_number_types(repository, floats)
    problem = None
    if token_weights is not None and len(token_weights.shape) != 1:
        problem = f"weights is {token_weights.shape}, and not one number per token"
    elif token_mapping is not None and token_mapping.dtype not in ("I32", "I64"):
        problem = f"mapping is stored as {token_mapping.dtype}, and not as whole numbers"
    elif embeddings is not None and token_mapping is not None:
        row_size = max(embeddings.shape[-1:], default=1)
        if token_mapping.size * row_size > 8 * embeddings.size + _LARGEST_NUMBER:
            problem = f"mapping: {token_mapping.size:,} tokens do not fit its embeddings"
    if problem is not None:
        raise repository.refusal(WEIGHTS_FILE, f"{problem}. {COPY_AGAIN}")
    check_processors(repository)


def _check_transformer(stored_module: StoredModule) -> None:
    check_transformer(stored_module.repository, stored_module.module_class.config_file_name)


# The module types of sentence-transformers that may be loaded.
_MODULE_TYPES: dict[ModuleClass, ModuleType] = {
    Normalize: ModuleType("vector", _check_scalars),
    Router: ModuleType("text", _check_router),
    st_modules.BoW: ModuleType("text", _check_scalars),
    st_modules.CLIPModel: ModuleType("text", _check_transformer),
    st_modules.CNN: ModuleType("tokens", _check_sized),
    st_modules.Dense: ModuleType("vector", _check_dense),
    st_modules.Dropout: ModuleType("vector", _check_scalars),
    st_modules.LayerNorm: ModuleType("vector", _check_sized),
    st_modules.LSTM: ModuleType("tokens", _check_sized),
    st_modules.Pooling: ModuleType("tokens", _check_scalars),
    st_modules.StaticEmbedding: ModuleType("text", _check_static),
    st_modules.Transformer: ModuleType("text", _check_transformer),
    st_modules.WeightedLayerPooling: ModuleType("tokens", _check_sized),
    st_modules.WordEmbeddings: ModuleType("text", _check_word_embeddings),
    st_modules.WordWeights: ModuleType("tokens", _check_scalars),
}
# Modules that make a text's vector directly, without vectors of tokens.
_WITHOUT_TOKENS = (st_modules.BoW, st_modules.StaticEmbedding)
# Modules whose configuration holds weights of words.
_WORD_LISTS = (st_modules.BoW, st_modules.WordWeights)
