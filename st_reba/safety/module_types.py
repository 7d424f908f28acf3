"""The module types that a repository may name, and what the configuration of each may say."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from sentence_transformers.base.modules import Normalize, Router
from sentence_transformers.sentence_transformer import modules as st_modules
from sentence_transformers.util import import_from_string

from .. import modules
from .configurations import check_model_files, check_processors, check_transformer
from .repository import COPY_AGAIN, Repository
from .weights import check_number_types, check_pickles, check_shapes, read_headers

_MOST_NUMBER = 1 << 24
_MOST_LAYERS = 1000
_MOST_ITEMS = 1000
_MOST_MODULES = 64
_MOST_KEY_LENGTH = 200
# Names under which sentence-transformers also finds the settings of a Transformer.
_OLDER_NAMES = ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
_WORD_TOKENIZERS = ("WhitespaceTokenizer", "PhraseTokenizer", "TransformersTokenizerWrapper")
_ACTIVATIONS = {*torch.nn.modules.activation.__all__, "Identity"} - {"MultiheadAttention"}
_ACTIVATION_PACKAGES = ("torch.nn", "torch.nn.modules.activation", "torch.nn.modules.linear")


@dataclass(frozen=True)
class ModulePlace:
    """A module of a repository: its class, the folder of its files, and the file that lists it."""

    repository: Repository
    kind: Any
    folder: str

    def path_of(self, name: str) -> str:
        """A file of the module."""
        return os.path.join(self.folder, name)

    @property
    def file(self) -> str:
        """Its configuration."""
        return self.path_of(str(self.kind.config_file_name))


def check_modules(repository: Repository, entries: list[Any], *, trusted: bool) -> list[str]:
    """Check every module that modules.json lists; their folders, and those within them."""
    file = "modules.json"
    if len(entries) > _MOST_MODULES:
        raise repository.refusal(file, f"{len(entries)} modules: at most {_MOST_MODULES}.")
    folders: list[str] = []
    with repository.explaining(file):
        if entries and module_class(entries[0]["type"]) in _NOT_FIRST:
            raise repository.refusal(file, f"its first module reads no text. {COPY_AGAIN}")
        for entry in entries:
            folder = repository.check_folder_name(entry["path"], file)
            checked = check_module(repository, folder, entry["type"], file, trusted=trusted)
            repeated = set(checked) & set(folders)
            if repeated and _holds_weights(repository, repeated):
                reason = f"{sorted(repeated)[0]!r} is the folder of several modules. {COPY_AGAIN}"
                raise repository.refusal(file, reason)
            folders += checked
    return folders or [""]


def _holds_weights(repository: Repository, folders: set[str]) -> bool:
    return any(read_headers(repository, folder) for folder in folders)


def check_module(repository: Repository, folder: str, type_name: Any, file: str, *, trusted: bool) -> list[str]:
    """Check a module's type, its files and its configuration; its folder, and those of modules in it."""
    kind = module_class(type_name)
    check = _CHECKS.get(kind)
    if kind is None or check is None:
        if trusted and not str(type_name).startswith("sentence_transformers."):
            return [folder]
        reason = (
            f"type={type_name!r:.80} is no module of sentence-transformers or st_reba that is"
            " checked, and could run code from elsewhere. If you have read and trust it:"
            " trust_remote_code=True."
        )
        raise repository.refusal(file, reason)
    repository.check_files(folder)
    check_pickles(repository, folder)
    place = ModulePlace(repository, kind, folder)
    if kind is Router:
        return [folder, *_check_router(place, trusted=trusted)]
    check(place)
    return [folder]


def module_class(type_name: Any) -> Any:
    """The class of a module's type; None: it is neither sentence-transformers' nor ours."""
    package, _, rest = str(type_name).partition(".")
    if package == "st_reba" and rest in modules.MODULES:
        return getattr(modules, rest)
    if package != "sentence_transformers" or not isinstance(type_name, str):
        return None
    try:
        kind = import_from_string(type_name)
        return kind if isinstance(kind, type) else None
    except Exception:
        return None


def _check_router(place: ModulePlace, *, trusted: bool) -> list[str]:
    repository = place.repository
    file = place.file
    values = repository.read_object(file)
    if not values:
        file = place.path_of("config.json")  # as older versions named it
        values = repository.read_object(file)
    folders: list[str] = []
    with repository.explaining(file):
        inner_types = values["types"]
        if len(inner_types) > _MOST_MODULES:
            raise repository.refusal(file, f"{len(inner_types)} modules: at most {_MOST_MODULES}.")
        for name in values.get("parameters", {}).get("route_mappings") or {}:
            if len(name) > _MOST_KEY_LENGTH:
                raise repository.refusal(file, f"{name!r:.80} is no route. Correct it.")
        for name, type_name in inner_types.items():
            folder = place.path_of(repository.check_folder_name(name, file))
            inner_name = type_name
            if module_class(type_name) is Router:
                inner_name = None  # a Router in a Router is nobody's
            folders += check_module(repository, folder, inner_name, file, trusted=trusted)
    return folders


def _check_scalars(place: ModulePlace, lists: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Values of a configuration of texts, booleans and numbers of a usual size.

    Args:
        place: The module.
        lists: How many items the values may have that are lists or objects, by name; None of it: any.
    """
    lists = lists or {}
    values = place.repository.read_object(place.file)
    for name, value in values.items():
        items = [value]
        if isinstance(value, (list, dict)):
            if len(value) > lists.get(name, _MOST_ITEMS):
                _refuse_value(place, name, value)
            items = list(value.values()) if isinstance(value, dict) else value
        for item in items:
            is_large = isinstance(item, int) and not -_MOST_NUMBER <= item <= _MOST_NUMBER
            if is_large or isinstance(item, (list, dict)):
                _refuse_value(place, name, value)
        if name.endswith("layers") and isinstance(value, int) and value > _MOST_LAYERS:
            _refuse_value(place, name, value)
    return values


def _refuse_value(place: ModulePlace, name: str, value: Any) -> None:
    reason = f"{name}={value!r:.80} is no value of a {place.kind.__name__}. {COPY_AGAIN}"
    raise place.repository.refusal(place.file, reason)


def _check_computing(place: ModulePlace) -> None:
    """A module without weights."""
    _check_scalars(place)


def _check_sized(place: ModulePlace) -> None:
    """A module whose configuration says how large its weights are: made without memory, and compared."""
    values = _check_scalars(place)
    values.pop("activation_function", None)
    tensors = _required_headers(place)
    with place.repository.explaining(place.file):
        for old_name, new_name in place.kind.config_key_renames.items():
            if old_name in values:
                values.setdefault(new_name, values.pop(old_name))
        if place.kind is st_modules.Dense:
            values = {name: value for name, value in values.items() if name in _DENSE_OPTIONS}
        with torch.device("meta"):
            expected = place.kind(**values).state_dict()
    check_shapes(place.repository, place.folder, tensors, expected)


def _check_dense(place: ModulePlace) -> None:
    name = place.repository.read_object(place.file).get("activation_function")
    if name is not None:
        package, _, activation = str(name).rpartition(".")
        if package not in _ACTIVATION_PACKAGES or activation not in _ACTIVATIONS:
            _refuse_value(place, "activation_function", name)
    _check_sized(place)


def _required_headers(place: ModulePlace) -> Any:
    tensors = read_headers(place.repository, place.folder)
    if tensors is None:
        file = place.path_of("model.safetensors")
        raise place.repository.refusal(file, f"it is missing. {COPY_AGAIN}")
    check_number_types(place.repository, place.folder, tensors)
    return tensors


def _check_words(place: ModulePlace) -> None:
    """Weights of words, which stand in the configuration itself."""
    most_words = _MOST_NUMBER
    _check_scalars(place, {"vocab": most_words, "word_weights": most_words})
    if place.kind is st_modules.WordWeights and read_headers(place.repository, place.folder):
        _required_headers(place)


def _check_word_embeddings(place: ModulePlace) -> None:
    values = _check_scalars(place)
    name = str(values.get("tokenizer_class"))
    package, _, tokenizer = name.rpartition(".")
    is_ours = package.startswith("sentence_transformers.") and ".tokenizer" in package
    if not is_ours or tokenizer not in _WORD_TOKENIZERS:
        _refuse_value(place, "tokenizer_class", name)
    _required_headers(place)
    if tokenizer == "TransformersTokenizerWrapper":
        check_model_files(place.repository, place.folder)


def _check_static(place: ModulePlace) -> None:
    """Embeddings of tokens, which may be stored once for several of them (model2vec)."""
    tensors = read_headers(place.repository, place.folder)
    if tensors is None:
        _required_headers(place)
        return
    mapping, embeddings = tensors.get("mapping"), tensors.get("embeddings")
    if mapping is not None and embeddings is not None:
        width = embeddings.shape[-1] if embeddings.shape else 1
        if mapping.size * width > 8 * embeddings.size + _MOST_NUMBER:
            reason = f"its mapping of {mapping.size:,} tokens is far larger than its embeddings."
            raise place.repository.refusal(place.path_of("model.safetensors"), reason)
    elif embeddings is None:
        check_number_types(place.repository, place.folder, tensors)
    check_processors(place.repository, place.folder)


def _check_transformer(place: ModulePlace) -> None:
    older_names = [place.path_of(f"sentence_{name}_config.json") for name in _OLDER_NAMES]
    check_transformer(place.repository, place.folder, [place.file, *older_names])


def _check_nothing(place: ModulePlace) -> None:
    """A Router is checked with the modules in it."""


_DENSE_OPTIONS = ("in_features", "out_features", "bias", "use_residual")
_CHECKS: dict[Any, Callable[[ModulePlace], None]] = {
    st_modules.Transformer: _check_transformer,
    st_modules.CLIPModel: _check_transformer,
    Router: _check_nothing,
    Normalize: _check_computing,
    st_modules.Pooling: _check_computing,
    st_modules.Dropout: _check_computing,
    st_modules.Dense: _check_dense,
    st_modules.LayerNorm: _check_sized,
    st_modules.LSTM: _check_sized,
    st_modules.CNN: _check_sized,
    st_modules.WeightedLayerPooling: _check_sized,
    st_modules.BoW: _check_words,
    st_modules.WordWeights: _check_words,
    st_modules.WordEmbeddings: _check_word_embeddings,
    st_modules.StaticEmbedding: _check_static,
    modules.RepeatTransformer: _check_transformer,
    modules.NoSinkTransformer: _check_transformer,
    modules.ReBAPooling: _check_computing,
    modules.AuthorsReBAPooling: _check_computing,
    modules.ChunkedReBAPooling: _check_computing,
    modules.PromptEnsemble: _check_computing,
}
# Modules that read what others give, not text.
_NOT_FIRST = {kind for kind, check in _CHECKS.items() if check in (_check_sized, _check_computing)}
_NOT_FIRST |= {st_modules.Dense, st_modules.WordWeights}
