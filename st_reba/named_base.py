"""A base given by name: weights, tokenizer and adapter from a folder, the Hub or a GGUF file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers

from . import bases
from .adapters import Adapter, count_embeddings, count_ids
from .backbones import check_backbone
from .gguf_files import GgufFile, check_gguf, complete_tokenizer, read_gguf
from .methods import Options
from .modules import RepeatTransformer
from .near_names import describe_failure, suggest_bases
from .optional import required
from .safety import (
    Repository,
    check_base,
    check_gguf_folder,
    check_tokenizer,
    limit_numbers,
    panics_as_errors,
)

KWARGS_OPTIONS = ("model_kwargs", "processor_kwargs", "config_kwargs")
# An adapter with a tokenizer has one of these files.
_TOKENIZER_FILES = ("tokenizer_config.json", "tokenizer.json", "vocab.json", "tokenizer.model")
# transformers' options for the files of one model, by the option of sentence-transformers that
# passes them on.
Kwargs = dict[str, dict[str, Any]]


class NamedBase:
    """A base by its name.

    Args:
        base: A folder, a Hub id, a GGUF file or the name of a bundled model.
        loading_options: Options of `build` that load it.

    Raises:
        ValueError: It is a model of this package.
    """

    def __init__(self, base: str | os.PathLike[str], loading_options: Options) -> None:
        dtype = loading_options.get("dtype")
        self.dtype, self.options = bases.split_dtype(dtype, loading_options)
        self.device: str | None = loading_options.get("device")
        self.tokenizer: str | None = loading_options.get("tokenizer")
        self.quantization: str | None = loading_options.get("quantization")
        location = bases.locate(base, loading_options.get("gguf_file"))
        self.path = location.path
        self.name = location.recorded_name
        self.gguf_name = location.gguf_file
        self.adapter: Adapter | None = None
        self.files = Repository(self.path, bases.choose_hub_options(self.path, loading_options))
        if self.gguf_name is not None:
            check_gguf_folder(self.files)
        else:
            check_base(self.files)
            self.adapter = Adapter.find(self.files, self.name)
        modules_file = self.files.find("modules.json")
        self.is_embedder = modules_file is not None  # a model of sentence-transformers
        if modules_file and '"st_reba.' in Path(modules_file).read_text(encoding="utf-8"):
            raise ValueError(
                f"base={self.name!r} is an embedder already. Load it, or build from its base model."
            )

    @property
    def keeps_device(self) -> bool:
        """Whether the weights stay on the devices that they were loaded on."""
        return "device_map" in (self.options.get("model_kwargs") or {})

    @property
    def is_stored(self) -> bool:
        """Whether the name alone loads the same weights, as it does for whoever loads an adapter."""
        model_kwargs = self.options.get("model_kwargs") or {}
        is_changed = self.quantization is not None or "quantization_config" in model_kwargs
        is_converted = self.gguf_name is not None or self.adapter is not None
        return not (is_changed or is_converted or self.options.get("config_kwargs"))

    def load(self) -> RepeatTransformer:
        """Load weights and tokenizer; a ValueError or OSError where they are not whole."""
        transformer_kwargs = self._make_kwargs()
        self._set_weights_type(transformer_kwargs["model_kwargs"])
        gguf_file = None
        if self.gguf_name is not None:
            gguf_file = self._set_gguf_file(transformer_kwargs)
        tokenizer_path = self._set_tokenizer(transformer_kwargs["processor_kwargs"])
        path = self.path if self.adapter is None else self.adapter.base_path
        with (
            self._explained_errors(),
            limit_numbers(self.files),
            panics_as_errors(),
        ):
            transformer = RepeatTransformer(
                path,
                tokenizer_name_or_path=tokenizer_path,
                **transformer_kwargs,  # type: ignore[arg-type]
            )
        if gguf_file is not None and self.tokenizer is None:
            complete_tokenizer(transformer.tokenizer, gguf_file)
        self._set_stored_dtype(transformer)
        self._check_weights(transformer)
        if self.adapter is not None:
            has_new_tokens = self.tokenizer is not None or self._adapter_has_tokenizer()
            self.adapter.merge(
                transformer.model, transformer.text_tokenizer, has_new_tokens=has_new_tokens
            )
        return transformer

    def _make_kwargs(self) -> Kwargs:
        shared_kwargs = {
            **self.files.transformers_options,
            "trust_remote_code": bool(self.options.get("trust_remote_code")),
        }
        if self.adapter is not None:
            shared_kwargs.pop("revision", None)  # it is the adapter's
        transformer_kwargs: Kwargs = {}
        for option in KWARGS_OPTIONS:
            transformer_kwargs[option] = shared_kwargs | dict(self.options.get(option) or {})
        return transformer_kwargs

    def _set_weights_type(self, model_kwargs: dict[str, Any]) -> None:
        weights_type = bases.weights_dtype(self.dtype, self.device)
        if self.quantization is not None:
            requested_dtype = weights_type if self.dtype else None
            model_kwargs["quantization_config"] = bases.quantization_config(
                self.quantization, requested_dtype
            )
            weights_type = requested_dtype or torch.bfloat16
        model_kwargs["dtype"] = weights_type

    def _set_gguf_file(self, transformer_kwargs: Kwargs) -> GgufFile:
        """Let the kwargs load the GGUF file, and return what was read of it.

        A file that cannot be read exactly is refused.
        """
        if not hasattr(transformers, "GgufConfig"):
            raise ImportError(
                f"base={self.name!r} needs a newer transformers. Run: pip install -U transformers"
            )
        required("gguf", "gguf", f"base={self.name!r}")
        model_kwargs = transformer_kwargs["model_kwargs"]
        if "quantization_config" in model_kwargs:
            raise ValueError(f"base={self.name!r}: a GGUF file is made dense. Drop quantization.")
        gguf_path = self.files.find(str(self.gguf_name))
        if gguf_path is None:
            raise OSError(
                f"base={self.name!r} could not be loaded, from a folder or the Hub: no such file."
            )
        gguf_file = read_gguf(gguf_path)
        check_gguf(gguf_file, has_other_tokenizer=self.tokenizer is not None)
        for file_kwargs in transformer_kwargs.values():
            file_kwargs["gguf_file"] = self.gguf_name
        model_kwargs["quantization_config"] = transformers.GgufConfig(dequantize=True)
        if model_kwargs["dtype"] == "auto":
            model_kwargs["dtype"] = torch.bfloat16
        return gguf_file

    def _set_tokenizer(self, processor_kwargs: dict[str, Any]) -> str | None:
        """Prepare ``processor_kwargs`` for another tokenizer, and return its folder or Hub id; None: the base's own."""
        if self.tokenizer is None:
            if self.adapter is None or not self._adapter_has_tokenizer():
                return None
            processor_kwargs["revision"] = self.files.hub_options.get("revision")
            return self.path
        if not isinstance(self.tokenizer, (str, os.PathLike)) or os.path.isfile(self.tokenizer):
            raise ValueError(f"tokenizer={self.tokenizer!r:.80} must be a folder or Hub id.")
        tokenizer_path = bases.resolve_bundled(os.fspath(self.tokenizer))
        hub_options = bases.choose_hub_options(tokenizer_path, {**self.options, "revision": None})
        tokenizer_files = Repository(tokenizer_path, hub_options)
        check_tokenizer(tokenizer_files)
        processor_kwargs.update(tokenizer_files.transformers_options)
        processor_kwargs["revision"] = None
        processor_kwargs.pop("gguf_file", None)
        return tokenizer_path

    def _adapter_has_tokenizer(self) -> bool:
        return any(self.files.find(name) for name in _TOKENIZER_FILES)

    @contextmanager
    def _explained_errors(self) -> Iterator[None]:
        """Inside the ``with`` block, other libraries' loading errors name the base, in one line."""
        subject = f"base={self.name!r}"
        if self.tokenizer is not None:
            subject += f", tokenizer={self.tokenizer!r}"
        try:
            yield
        except OSError as error:
            reason = suggest_bases(self.path) + describe_failure(self.path, _one_line(error))
            raise OSError(
                f"{subject} could not be loaded, from a folder or the Hub. {reason}"
            ) from error
        except (TypeError, AttributeError) as error:
            problem = f"cannot be loaded with these options: {_one_line(error)}"
            remedy = "Check model_kwargs, processor_kwargs and config_kwargs."
            raise ValueError(f"{subject} {problem}. {remedy}") from error
        except (ValueError, ImportError, RuntimeError, MemoryError):
            raise
        except Exception as error:
            detail = f"{type(error).__name__}: {error}"
            raise ValueError(f"{subject} could not be loaded. {detail}") from error

    def _set_stored_dtype(self, transformer: RepeatTransformer) -> None:
        if self.gguf_name is not None and self.dtype is None:
            transformer.stored_dtype = torch.bfloat16
            for weight in transformer.model.parameters():
                # Rounded now as saving will round it, so that a loaded model computes the same.
                weight.data = weight.data.to(torch.bfloat16).to(weight.dtype)
        elif self.dtype not in (None, "auto"):
            transformer.stored_dtype = None  # saved in the type that was asked for

    def _check_weights(self, transformer: RepeatTransformer) -> None:
        # An adapter may bring embeddings: they are counted when it is merged.
        if self.tokenizer is not None and self.adapter is None:
            id_count = count_ids(transformer.text_tokenizer)
            row_count = count_embeddings(transformer.model)
            if id_count > row_count:
                raise ValueError(
                    f"tokenizer={self.tokenizer!r} has {id_count} ids, but the base {row_count} embeddings."
                )
        check_backbone(transformer.model, self.name)
        missing_weights = sorted(map(str, transformer.loading_report.get("missing_keys") or ()))
        if missing_weights:
            problem = "weights are missing, and would be random numbers"
            raise ValueError(f"base={self.name!r}: {problem}: {missing_weights[0]}.")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
