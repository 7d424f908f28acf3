"""The module types that a repository may name, and what the configuration of each may say."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from sentence_transformers.base.modules import Normalize, Router
from sentence_transformers.sentence_transformer import modules as st_modules
from sentence_transformers.util import import_from_string

from .. import modules
from ..modules import ModuleDeclaration
from .configurations import check_model_files, check_processors, check_transformer
from .repository import COPY_AGAIN, Configuration, JsonObject, JsonValue, Repository
from .weights import (
    StoredTensors,
    check_number_types,
    check_pickles,
    check_shapes,
    read_headers,
)

_LARGEST_NUMBER = 1 << 24
_MOST_LAYERS = 1000
_MOST_ITEMS = 1000
_MOST_MODULES = 64
_MOST_ROUTE_LETTERS = 200
# Names under which sentence-transformers also finds the settings of a Transformer.
_OLDER_NAMES = (
    "albert",
    "camembert",
    "distilbert",
    "roberta",
    "xlm-roberta",
    "xlnet",
)
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
# What else a Dense has says nothing of its size.
_DENSE_SIZES = (
    "bias",
    "in_features",
    "out_features",
    "use_residual",
)
_WORD_LISTS = (st_modules.BoW, st_modules.WordWeights)
ModuleClass: TypeAlias = Any


@dataclass(frozen=True)
class StoredModule:
    """A module of a repository: its class, and the folder of its files."""

    repository: Repository
    module_class: ModuleClass
    folder: str

    def path_of(self, file_name: str) -> str:
        """A file of the module, from the repository's folder."""
        return os.path.join(self.folder, file_name)

    @property
    def config(self) -> Configuration:
        """Its configuration."""
        config_file = self.path_of(self.module_class.config_file_name)
        return self.repository.configuration(config_file, is_list=self.module_class in _WORD_LISTS)

    def required_headers(self) -> StoredTensors:
        """The tensors of its weights, which it must have."""
        tensors = read_headers(self.repository, self.folder)
        if tensors is None:
            weights_file = self.path_of("model.safetensors")
            raise self.repository.refusal(weights_file, f"it is missing. {COPY_AGAIN}")
        return tensors


Check: TypeAlias = Callable[[StoredModule], object]


def check_modules(
    repository: Repository,
    entries: list[JsonValue],
    *,
    trusted: bool,
) -> list[str]:
    """Check every module that modules.json lists.

    Args:
        repository: The files.
        entries: What modules.json holds.
        trusted: Whether module types of the repository's own code are allowed.

    Returns:
        The folders of the modules, and of those within them.
    """
    list_file = "modules.json"
    if len(entries) > _MOST_MODULES:
        reason = f"{len(entries)} modules: at most {_MOST_MODULES}. Remove some."
        raise repository.refusal(list_file, reason)
    folders: list[str] = []
    with repository.explaining(list_file):
        if entries and not may_stand_first(find_module_class(entries[0]["type"])):
            raise repository.refusal(list_file, f"its first module reads no text. {COPY_AGAIN}")
        _check_tokens(repository, list_file, [entry["type"] for entry in entries])
        for entry in entries:
            folder = repository.check_folder_name(entry["path"], list_file)
            checked_folders = check_module(
                repository,
                folder,
                entry["type"],
                list_file,
                trusted=trusted,
            )
            _check_not_shared(repository, list_file, set(checked_folders) & set(folders))
            folders += checked_folders
    return folders or [""]


def _check_tokens(repository: Repository, list_file: str, type_names: list[JsonValue]) -> None:
    """Refuse modules that read the vectors of tokens behind one that gives none."""
    module_classes = [find_module_class(type_name) for type_name in type_names]
    if not module_classes or module_classes[0] not in _WITHOUT_TOKENS:
        return
    for module_class in module_classes[1:]:
        if reads_tokens(module_class):
            first_name = module_classes[0].__name__
            reason = f"a {module_class.__name__} reads tokens, and a {first_name} gives none."
            raise repository.refusal(list_file, f"{reason} Remove it.")


def _check_not_shared(repository: Repository, list_file: str, shared_folders: set[str]) -> None:
    """Weights are compared with those of one module, so several may not load the same."""
    for folder in sorted(shared_folders):
        if read_headers(repository, folder):
            reason = f"{folder!r} is the folder of several modules. {COPY_AGAIN}"
            raise repository.refusal(list_file, reason)


def check_module(
    repository: Repository,
    folder: str,
    type_name: JsonValue,
    list_file: str,
    *,
    trusted: bool,
) -> list[str]:
    """Check a module's type, its files and its configuration.

    Args:
        repository: The files.
        folder: Where those of the module are.
        type_name: Its type.
        list_file: The file that says so.
        trusted: Whether types of the repository's own code are allowed.

    Returns:
        Its folder, and those of modules within it.
    """
    module_class = find_module_class(type_name)
    check = find_check(module_class)
    if check is None:
        if trusted and not str(type_name).startswith("sentence_transformers."):
            return [folder]
        reason = (
            f"type={type_name!r:.80} is no module of sentence-transformers or st_reba that is"
            " checked, and could run code from elsewhere. If you have read and trust it:"
            " trust_remote_code=True."
        )
        raise repository.refusal(list_file, reason)
    repository.check_files(folder)
    check_pickles(repository, folder)
    stored_module = StoredModule(repository, module_class, folder)
    if module_class is Router:
        return [folder, *_check_router(stored_module, trusted=trusted)]
    check(stored_module)
    return [folder]


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


def own_declaration(module_class: ModuleClass) -> ModuleDeclaration | None:
    """The declaration of a class of ours; None: it is another's."""
    if getattr(module_class, "__module__", None) != "st_reba":
        return None
    return modules.MODULES.get(module_class.__name__)


def find_check(module_class: ModuleClass) -> Check | None:
    """How the configuration of a module's class is checked; None: the class is not allowed."""
    declaration = own_declaration(module_class)
    if declaration is None:
        return _CHECKS.get(module_class)
    if declaration.reads == "text":
        return _check_transformer
    return _check_sized if declaration.has_weights else _check_computing


def reads_tokens(module_class: ModuleClass) -> bool:
    """Whether a module reads the vectors of tokens."""
    declaration = own_declaration(module_class)
    if declaration is None:
        return module_class in _READ_TOKENS
    return declaration.reads == "tokens"


def may_stand_first(module_class: ModuleClass) -> bool:
    """Whether a module reads texts."""
    declaration = own_declaration(module_class)
    if declaration is None:
        return module_class not in _NOT_FIRST
    return declaration.reads == "text"


def _check_router(stored_module: StoredModule, *, trusted: bool) -> list[str]:
    repository = stored_module.repository
    config = stored_module.config
    if not config.values:
        # As older versions named it.
        config = repository.configuration(stored_module.path_of("config.json"))
    folders: list[str] = []
    with config.explaining():
        inner_types = config.values["types"]
        if len(inner_types) > _MOST_MODULES:
            reason = f"{len(inner_types)} modules: at most {_MOST_MODULES}. Remove some."
            raise config.refusal(reason)
        parameters = config.values.get("parameters", {})
        for route in parameters.get("route_mappings") or {}:
            if len(route) > _MOST_ROUTE_LETTERS:
                raise config.refusal(f"{route!r:.80} is no route. Correct it.")
        for inner_folder, type_name in inner_types.items():
            checked_name = repository.check_folder_name(inner_folder, config.file_name)
            if find_module_class(type_name) is Router:
                raise config.refusal_of("type", type_name, "is no module of a Router. Remove it.")
            folders += check_module(
                repository,
                stored_module.path_of(checked_name),
                type_name,
                config.file_name,
                trusted=trusted,
            )
    return folders


def _check_scalars(stored_module: StoredModule, *, most_items: int = _MOST_ITEMS) -> JsonObject:
    """Values of a configuration, which may be texts, booleans, numbers, and lists of these.

    Args:
        stored_module: The module.
        most_items: How long a list may be.
    """
    config = stored_module.config
    for setting, value in config.values.items():
        items = [value]
        if isinstance(value, list):
            items = value
        elif isinstance(value, dict):
            items = [*value.values()]
        if len(items) > most_items or not all(map(_is_scalar, items)):
            _refuse_value(stored_module, setting, value)
        if setting.endswith("layers") and isinstance(value, int) and value > _MOST_LAYERS:
            _refuse_value(stored_module, setting, value)
    return config.values


def _is_scalar(value: JsonValue) -> bool:
    if isinstance(value, int):
        return abs(value) <= _LARGEST_NUMBER
    return value is None or isinstance(value, (str, float))


def _refuse_value(stored_module: StoredModule, setting: str, value: JsonValue) -> None:
    reason = f"is no value of a {stored_module.module_class.__name__}. {COPY_AGAIN}"
    raise stored_module.config.refusal_of(setting, value, reason)


def _check_computing(stored_module: StoredModule) -> None:
    """A module without weights."""
    _check_scalars(stored_module)


def _check_sized(stored_module: StoredModule) -> None:
    """A module whose configuration says how large it is: made without memory, and compared."""
    config_values = _check_scalars(stored_module)
    tensors = stored_module.required_headers()
    module_class = stored_module.module_class
    with stored_module.config.explaining():
        for old_name, new_name in module_class.config_key_renames.items():
            if old_name in config_values:
                config_values.setdefault(new_name, config_values.pop(old_name))
        if module_class is st_modules.Dense:
            sizes = {name: config_values[name] for name in _DENSE_SIZES if name in config_values}
            config_values = sizes
        with torch.device("meta"):
            expected_weights = module_class(**config_values).state_dict()
    check_number_types(stored_module.repository, stored_module.folder, tensors)
    check_shapes(stored_module.repository, stored_module.folder, tensors, expected_weights)


def _check_dense(stored_module: StoredModule) -> None:
    activation = stored_module.config.values.get("activation_function")
    if activation is not None:
        package, _, class_name = str(activation).rpartition(".")
        if package not in _ACTIVATION_PACKAGES or class_name not in _ACTIVATIONS:
            _refuse_value(stored_module, "activation_function", activation)
    _check_sized(stored_module)


def _check_words(stored_module: StoredModule) -> None:
    """Weights of words, which stand in the configuration itself."""
    _check_scalars(stored_module, most_items=_LARGEST_NUMBER)


def _check_word_embeddings(stored_module: StoredModule) -> None:
    config_values = _check_scalars(stored_module)
    tokenizer_name = str(config_values.get("tokenizer_class"))
    package, _, class_name = tokenizer_name.rpartition(".")
    is_theirs = package.startswith("sentence_transformers.") and ".tokenizer" in package
    if not is_theirs or class_name not in _WORD_TOKENIZERS:
        _refuse_value(stored_module, "tokenizer_class", tokenizer_name)
    tensors = stored_module.required_headers()
    check_number_types(stored_module.repository, stored_module.folder, tensors)
    if class_name == "TransformersTokenizerWrapper":
        check_model_files(stored_module.repository, stored_module.folder)


def _check_static(stored_module: StoredModule) -> None:
    """Embeddings of tokens, which may be stored once for several of them (model2vec)."""
    repository = stored_module.repository
    tensors = stored_module.required_headers()
    token_mapping = tensors.get("mapping")
    token_weights = tensors.get("weights")
    embeddings = tensors.get("embeddings")
    # model2vec rounds embeddings to whole numbers of 8 bits, and multiplies them by weights.
    is_rounded = embeddings is not None and embeddings.dtype == "I8" and token_weights is not None
    floats = {name: tensor for name, tensor in tensors.items() if name != "mapping"}
    if is_rounded:
        del floats["embeddings"]
    check_number_types(repository, stored_module.folder, floats)
    weights_file = stored_module.path_of("model.safetensors")
    if token_weights is not None and len(token_weights.shape) != 1:
        reason = f"weights is {token_weights.shape}, and not one number a token. {COPY_AGAIN}"
        raise repository.refusal(weights_file, reason)
    if token_mapping is not None and token_mapping.dtype not in ("I32", "I64"):
        reason = (
            f"mapping is stored as {token_mapping.dtype}, and not as whole numbers. {COPY_AGAIN}"
        )
        raise repository.refusal(weights_file, reason)
    if embeddings is not None and token_mapping is not None:
        row_size = max(embeddings.shape[-1:], default=1)
        if token_mapping.size * row_size > 8 * embeddings.size + _LARGEST_NUMBER:
            reason = (
                f"mapping: {token_mapping.size:,} tokens do not fit its embeddings. {COPY_AGAIN}"
            )
            raise repository.refusal(weights_file, reason)
    check_processors(stored_module.repository, stored_module.folder)


def _check_transformer(stored_module: StoredModule) -> None:
    settings_files = [stored_module.path_of(stored_module.module_class.config_file_name)]
    for older_name in _OLDER_NAMES:
        settings_files.append(stored_module.path_of(f"sentence_{older_name}_config.json"))
    check_transformer(stored_module.repository, stored_module.folder, settings_files)


# The module types of sentence-transformers that may be loaded, and how the configuration of each is
# checked.
_CHECKS: dict[ModuleClass, Check] = {
    Normalize: _check_computing,
    Router: _check_scalars,  # checked with the modules in it
    st_modules.BoW: _check_words,
    st_modules.CLIPModel: _check_transformer,
    st_modules.CNN: _check_sized,
    st_modules.Dense: _check_dense,
    st_modules.Dropout: _check_computing,
    st_modules.LayerNorm: _check_sized,
    st_modules.LSTM: _check_sized,
    st_modules.Pooling: _check_computing,
    st_modules.StaticEmbedding: _check_static,
    st_modules.Transformer: _check_transformer,
    st_modules.WeightedLayerPooling: _check_sized,
    st_modules.WordEmbeddings: _check_word_embeddings,
    st_modules.WordWeights: _check_words,
}
# Modules that make the vector of a text at once.
_WITHOUT_TOKENS = {st_modules.BoW, st_modules.StaticEmbedding}
_READ_TOKENS = {
    st_modules.CNN,
    st_modules.LSTM,
    st_modules.Pooling,
    st_modules.WeightedLayerPooling,
    st_modules.WordWeights,
}
# Modules that read what others give, not text.
_NOT_FIRST = {
    *_READ_TOKENS,
    Normalize,
    st_modules.Dense,
    st_modules.Dropout,
    st_modules.LayerNorm,
}
