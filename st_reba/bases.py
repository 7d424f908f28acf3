"""Where a base is, and the options by which it is loaded."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Mapping
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
import transformers
from huggingface_hub import cached_assets_path, constants, model_info
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from sentence_transformers import SentenceTransformerModelCardData
from sentence_transformers.util import get_device_name

from .files import whole_file
from .gguf_files import read_gguf
from .methods import Options
from .optional import required
from .packaged import PACKAGED, is_packaged, packaged_gguf

logger = logging.getLogger(__name__)
DType: TypeAlias = "torch.dtype | str | None"

# Models that come with the package.
BUNDLED = {"mini": Path(__file__).with_name("mini")}
# Options that find a model on the Hub: sentence-transformers' names, and transformers'.
HUB_OPTION_NAMES = {
    "revision": "revision",
    "token": "token",
    "cache_folder": "cache_dir",
    "local_files_only": "local_files_only",
}
_HUB_TIMEOUT = 10  # seconds
_MAPPING = (Mapping, "a mapping of names to values, such as {'attn_implementation': 'sdpa'}")
_TYPES_OF_OPTIONS: dict[str, tuple[Any, str]] = {
    "model_kwargs": _MAPPING,
    "processor_kwargs": _MAPPING,
    "config_kwargs": _MAPPING,
    "gguf_file": (str, "the name of a file in the base's folder or repository"),
    "revision": (str, "a branch, a tag or a commit"),
    "token": ((str, bool), "a token of the Hub"),
    "cache_folder": ((str, os.PathLike), "a folder"),
    "local_files_only": (bool, "True or False"),
    "trust_remote_code": (bool, "True or False"),
    "model_card_data": (SentenceTransformerModelCardData, "a SentenceTransformerModelCardData"),
}
_MODEL_FILES = {"config.json", "modules.json", "adapter_config.json"}
# transformers' names of the option, the older one last.
_DTYPE_NAMES = ("dtype", "torch_dtype")
_OPTIONS_WITH_DTYPE = ("model_kwargs", "config_kwargs")
_DTYPES = ("float32", "bfloat16", "float16", "float64")


def resolve_bundled(name: str) -> str:
    """The folder of a bundled model, unpacked if necessary; any other name unchanged."""
    model_folder = BUNDLED.get(name)
    if model_folder is None or (model_folder / "model.safetensors").exists():
        return str(model_folder or name)
    try:
        return _unpack(name, model_folder)
    except OSError as error:
        raise OSError(
            f"base={name!r} could not be unpacked into the Hub's cache: {error}. Set HF_HOME to a folder."
        ) from error


def _unpack(name: str, packed_folder: Path) -> str:
    """Copy a packed model (see setup.py) into a cache, under a digest of its files."""
    import lzma  # not every Python has it

    file_contents = {file.name: file.read_bytes() for file in sorted(packed_folder.iterdir())}
    digest = hashlib.sha256(b"".join(file_contents.values())).hexdigest()
    packed_weights = file_contents.pop("model.safetensors.xz")
    cache_folder = cached_assets_path("st_reba", namespace=digest[:16], subfolder=name)
    # The weights are written last: where they are, all files are.
    if not (cache_folder / "model.safetensors").exists():
        file_contents["model.safetensors"] = lzma.decompress(packed_weights)
        for file_name, content in file_contents.items():
            with whole_file(cache_folder / file_name) as stream:
                stream.write(content)
    return str(cache_folder)


class BaseLocation(NamedTuple):
    """Where a base is, and what it is called."""

    path: str  # folder or Hub id
    recorded_name: str  # never a path of this machine
    gguf_file: str | None  # its name in the folder or repository; None: there is none


def locate(base: str | os.PathLike[str], gguf_file: str | None = None) -> BaseLocation:
    """Find a base, or its GGUF file; a packaged one is downloaded, and a Hub id is taken as it is."""
    base_path = os.fspath(base)
    if gguf_file is None:
        if base_path in BUNDLED:
            return BaseLocation(resolve_bundled(base_path), base_path, None)
        if is_packaged(base_path):
            gguf_path = str(packaged_gguf(base_path))
            gguf_folder, gguf_file = os.path.split(gguf_path)
            return BaseLocation(gguf_folder, _gguf_name(base_path, gguf_path), gguf_file)
        if base_path.endswith(".gguf"):
            if not os.path.isfile(base_path):
                raise FileNotFoundError(f"base={base_path!r}: there is no such file.")
            base_path, gguf_file = os.path.split(os.path.abspath(base_path))
    if os.path.isfile(base_path):
        raise ValueError(
            f"base={base_path!r} is a file. Name the folder that holds the model, or a .gguf file."
        )
    if os.path.isabs(base_path) and not os.path.exists(base_path):
        raise FileNotFoundError(f"base={base_path!r}: there is no such folder.")
    is_folder = os.path.isdir(base_path)
    if is_folder and gguf_file is None:
        gguf_file = _only_gguf_file(base_path)
    base_name = recorded_name(base_path)
    if gguf_file is not None:
        shown_name = gguf_file if is_folder else f"{base_name}/{gguf_file}"
        base_name = _gguf_name(shown_name, os.path.join(base_path, gguf_file))
    return BaseLocation(base_path, base_name, gguf_file)


def recorded_name(path: str | os.PathLike[str]) -> str:
    """The name of a folder, without its path on this machine; any other name unchanged.

    A folder that has the name of a bundled model, and is another, is ``other-NAME``.
    """
    if not os.path.isdir(path):
        return os.fspath(path)
    name = os.path.basename(os.path.abspath(path))
    is_other = name in BUNDLED and not os.path.samefile(path, BUNDLED[name])
    return f"other-{name}" if is_other else name


def _gguf_name(name: str, gguf_path: str) -> str:
    if not os.path.isfile(gguf_path):
        return f"{name} (GGUF)"
    return f"{name} (GGUF, {read_gguf(gguf_path).quantization})"


def _only_gguf_file(base_folder: str) -> str | None:
    """The GGUF file of a folder that holds nothing else to load; None: it holds a model of another kind."""
    file_names = sorted(os.listdir(base_folder))
    if _MODEL_FILES.intersection(file_names):
        return None
    gguf_files = [name for name in file_names if name.endswith(".gguf")]
    if not gguf_files:
        raise ValueError(
            f"base={base_folder!r} holds no config.json and no .gguf file, so it is not a model."
        )
    if len(gguf_files) > 1:
        raise ValueError(
            f"base={base_folder!r} holds several GGUF files. Choose one, such as gguf_file={gguf_files[0]!r}."
        )
    return gguf_files[0]


def check_device(device: str | None) -> None:
    """Refuse a device that this machine does not have."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"device={device!r} cannot be used: {str(error).splitlines()[0]}"
        ) from error


def check_loading(base: object, loading: Options) -> None:
    """Refuse options of loading whose values are of the wrong type, before anything is loaded."""
    if base is None:
        raise ValueError(
            "base=None: give a folder, a Hub id, a GGUF file, a recipe or a loaded model."
        )
    for option_name, (types, description) in _TYPES_OF_OPTIONS.items():
        option_value = loading.get(option_name)
        if option_value is not None and not isinstance(option_value, types):
            raise ValueError(f"{option_name}={option_value!r:.80} must be {description}.")
    _check_revision(base, loading.get("revision"))
    _check_size("truncate_dim", loading.get("truncate_dim"))
    processor_kwargs = loading.get("processor_kwargs") or {}
    _check_size("processor_kwargs['model_max_length']", processor_kwargs.get("model_max_length"))


def _check_revision(base: object, revision: str | None) -> None:
    """Refuse a revision of what is not on the Hub: it would be ignored, and recorded all the same."""
    if revision is None or not isinstance(base, (str, os.PathLike)):
        return
    base_name = os.fspath(base)
    if base_name in BUNDLED or base_name in PACKAGED or os.path.exists(base_name):
        raise ValueError(
            f"revision={revision!r}: base={base_name!r} is not a repository on the Hub, and has no "
            "revisions. Drop it."
        )


def _check_size(option_name: str, size: object) -> None:
    is_whole_number = isinstance(size, Integral) and not isinstance(size, bool)
    if size is not None and not (is_whole_number and int(size) > 0):  # type: ignore[call-overload]
        raise ValueError(f"{option_name}={size!r:.80} must be a whole number of at least 1.")


def choose_hub_options(path: str, loading: Options) -> dict[str, Any]:
    """The loading options that find a model on the Hub, or in its cache if the Hub is silent."""
    hub_options = {
        name: loading[name] for name in HUB_OPTION_NAMES if loading.get(name) is not None
    }
    is_asked = not (constants.HF_HUB_OFFLINE or hub_options.get("local_files_only"))
    if is_asked and not os.path.exists(path) and not _hub_answers(path, hub_options):
        logger.warning(
            "%s: the Hub does not answer, so only files in its cache are used; HF_ENDPOINT names a mirror",
            path,
        )
        hub_options["local_files_only"] = True
    return hub_options


def _hub_answers(path: str, hub_options: Options) -> bool:
    """Whether the Hub answers, asked once: else each file is tried six times, for minutes."""
    try:
        model_info(path, token=hub_options.get("token"), timeout=_HUB_TIMEOUT)
    except (HfHubHTTPError, HFValidationError):  # it answers, or this is not a Hub id
        return True
    except Exception:  # its class depends on the version of huggingface_hub
        return False
    return True


def split_dtype(dtype: DType, loading: Options) -> tuple[DType, dict[str, Any]]:
    """The number type that a call asks for, and its options of loading without it.

    Args:
        dtype: The call's own option.
        loading: Its options of loading, whose ``model_kwargs`` and ``config_kwargs`` may hold
            either of transformers' names for it.

    Returns:
        A torch.dtype, ``"auto"``, or None if no type is asked for; and the other options.

    Raises:
        ValueError: A value is not known, or two of them differ.
    """
    remaining_options = dict(loading)
    option_values: dict[str, object] = {"dtype": dtype}
    for kwargs_option in _OPTIONS_WITH_DTYPE:
        kwargs = dict(loading.get(kwargs_option) or {})
        for name in _DTYPE_NAMES:
            option_values[f"{kwargs_option}[{name!r}]"] = kwargs.pop(name, None)
        if loading.get(kwargs_option):
            remaining_options[kwargs_option] = kwargs
    requested_types: dict[str, DType] = {}
    for name, value in option_values.items():
        if value is not None:
            requested_types[name] = _parse_dtype(name, value)
    if len(set(requested_types.values())) > 1:
        written_options = " and ".join(
            f"{name}={option_values[name]!r}" for name in requested_types
        )
        raise ValueError(f"{written_options} differ. Give one of them.")
    return next(iter(requested_types.values()), None), remaining_options


def _parse_dtype(option_name: str, value: object) -> torch.dtype | str:
    if value == "auto":
        return "auto"
    short_name = str(value).removeprefix("torch.")
    if short_name not in _DTYPES:
        choices = ", ".join(_DTYPES)
        raise ValueError(f"{option_name}={value!r} is not known. Choose from {choices}, auto.")
    parsed_type: torch.dtype = getattr(torch, short_name)
    return parsed_type


def weights_dtype(dtype: DType, device: str | None) -> torch.dtype | str:
    """What ``dtype`` means to transformers: None is float32 on a CPU, and as stored ("auto") on a GPU."""
    if dtype is not None:
        return dtype
    if str(device or get_device_name()).startswith("cpu"):
        return torch.float32
    return "auto"


def quantization_config(quantization: str, dtype: DType) -> transformers.BitsAndBytesConfig:
    """bitsandbytes' configuration for ``"nf4"`` or ``"int8"``; no vector depends on its batch."""
    if quantization not in ("nf4", "int8"):
        raise ValueError(f"quantization={quantization!r} is not known. Choose from nf4, int8.")
    required("bitsandbytes", "quantized", f"quantization={quantization!r} needs bitsandbytes")
    if quantization == "int8":
        # With a threshold, large numbers in one text change how the whole batch is rounded.
        return transformers.BitsAndBytesConfig(  # type: ignore[no-untyped-call]
            load_in_8bit=True,
            llm_int8_threshold=0.0,
        )
    compute_dtype = dtype if isinstance(dtype, torch.dtype) else torch.bfloat16
    return transformers.BitsAndBytesConfig(  # type: ignore[no-untyped-call]
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=compute_dtype,
    )
