"""Adapters of PEFT as bases: merged into the weights of the model that they adapt."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .optional import required
from .safety import Repository, RepositoryRefused, limit_adapter


@dataclass(frozen=True)
class Adapter:
    """An adapter of weights.

    Args:
        files: Its files.
        name: Its name, for messages.
        config: Its configuration, a PeftConfig.
    """

    files: Repository
    name: str
    config: Any

    @classmethod
    def find(cls, files: Repository, name: str) -> Adapter | None:
        """The adapter, if a base is one; None: it is not."""
        if files.find("adapter_config.json") is None:
            return None
        peft: Any = required("peft", "train", f"base={name!r} is an adapter of peft")
        adapter_config = peft.PeftConfig.from_pretrained(files.path, **files.transformers_options)
        if adapter_config.is_prompt_learning or adapter_config.is_adaption_prompt:
            raise ValueError(
                f"base={name!r} is an adapter that adds positions without text. Use an adapter of weights."
            )
        if not adapter_config.base_model_name_or_path:
            raise ValueError(
                f"base={name!r}: adapter_config.json names no base_model_name_or_path. Add it."
            )
        adapter_config.task_type = None  # it says what a head is for
        return cls(files, name, adapter_config)

    @property
    def base_path(self) -> str:
        """Folder or Hub id of the model that it adapts."""
        return str(self.config.base_model_name_or_path)

    def merge(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        has_new_tokens: bool,
    ) -> None:
        """Merge the whole adapter into a model's weights, or raise a ValueError.

        Args:
            model: The model that it adapts.
            tokenizer: The tokenizer of both.
            has_new_tokens: The tokenizer is the adapter's, or the caller's choice, not the model's.
        """
        if getattr(model, "hf_quantizer", None) is not None:
            raise ValueError(
                f"base={self.name!r}: an adapter merged into quantized weights would be rounded. Load them unquantized."
            )
        peft: Any = required("peft", "train")
        row_count = count_embeddings(model)
        with self._explained_errors():
            adapter_weights = peft.utils.load_peft_weights(
                self.files.path, device="cpu", **self.files.transformers_options
            )
        self._resize_embeddings(model, tokenizer, adapter_weights)
        new_row_count = count_embeddings(model)
        if new_row_count > row_count and not has_new_tokens:
            raise ValueError(
                f"base={self.name!r}: the adapter has {new_row_count} embeddings, its base {row_count}, and it was "
                "saved without the tokenizer that has the new tokens. Name that tokenizer's folder, as tokenizer=…."
            )
        # An adapter of a model with a head names the decoder's weights from there.
        key_mapping = {rf"^{model.base_model_prefix}\.": ""}
        with self._explained_errors(), warnings.catch_warnings():
            warnings.filterwarnings("error", "Found missing adapter keys")
            with limit_adapter(self.files, adapter_weights):
                adapted_model = peft.PeftModel.from_pretrained(
                    model,
                    self.files.path,
                    config=self.config,
                    key_mapping=key_mapping,
                    **self.files.transformers_options,
                )
            adapted_model.merge_and_unload()
        vars(model).pop("peft_config", None)
        model.requires_grad_(True)

    @contextmanager
    def _explained_errors(self) -> Iterator[None]:
        """Inside the ``with`` block, peft's errors become a ValueError that names the base."""
        try:
            yield
        except (RepositoryRefused, OSError):
            raise
        except Exception as error:
            problem = " ".join(str(error).split())[:500]
            raise ValueError(
                f"base={self.name!r}: peft cannot merge the adapter. {problem}"
            ) from error

    def _resize_embeddings(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        adapter_weights: Mapping[str, Tensor],
    ) -> None:
        """Give a model an embedding for each token id, if the adapter holds the new ones."""
        row_count = count_embeddings(model)
        id_count = count_ids(tokenizer)
        new_row_count = _count_saved_embeddings(adapter_weights, _embedding_name(model))
        if new_row_count is None:
            new_row_count = max(row_count, id_count)
            if not _trained_tokens(self.config).issuperset(range(row_count, new_row_count)):
                raise ValueError(
                    f"base={self.name!r}: its tokenizer has {new_row_count} ids, its base {row_count} embeddings, and "
                    "the adapter holds none for the others. Save it again with save_embedding_layers=True."
                )
        if id_count > new_row_count:
            raise ValueError(
                f"base={self.name!r}: its tokenizer has {id_count} ids, its embeddings are {new_row_count}."
            )
        if new_row_count != row_count:
            # The adapter overwrites the new ones.
            model.resize_token_embeddings(new_row_count, mean_resizing=False)


def _embedding_name(model: PreTrainedModel) -> str:
    embeddings = model.get_input_embeddings()
    for name, module in model.named_modules():
        if module is embeddings:
            return str(name).rpartition(".")[2]
    raise ValueError(f"{type(model).__name__} has no embeddings. Use another base.")


def _count_saved_embeddings(weights: Mapping[str, Tensor], embedding_name: str) -> int | None:
    """Number of embeddings that an adapter holds; None: it holds none, or only what is added to them."""
    for name, weight in weights.items():
        is_of_embeddings = f".{embedding_name}." in name and name.endswith(".weight")
        if is_of_embeddings and "lora_" not in name:
            return len(weight)
    return None


def _trained_tokens(adapter_config: Any) -> set[int]:
    """Token ids whose embeddings an adapter holds."""
    token_ids = adapter_config.to_dict().get("trainable_token_indices") or ()
    if isinstance(token_ids, Mapping):
        return set().union(*token_ids.values())
    return set(token_ids)


def count_ids(tokenizer: PreTrainedTokenizerBase) -> int:
    """The number of embeddings that a tokenizer's ids need."""
    return int(max(tokenizer.get_vocab().values())) + 1


def count_embeddings(model: PreTrainedModel) -> int:
    """The number of a model's input embeddings."""
    return len(model.get_input_embeddings().weight)  # type: ignore[arg-type]
