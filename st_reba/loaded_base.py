"""A base that the caller has loaded: its weights are shared, so that one model in memory both writes and embeds."""

from __future__ import annotations

import os
import tempfile
from typing import Any

from transformers import PreTrainedModel

from .backbones import check_backbone, share_backbone
from .methods import Options
from .modules import RepeatTransformer

# Options that were decided when the model was loaded.
_REFUSED_OPTIONS = (
    "dtype",
    "quantization",
    "gguf_file",
    "revision",
    "model_kwargs",
    "processor_kwargs",
    "config_kwargs",
)


class LoadedBase:
    """A loaded model of transformers.

    Args:
        model: The model.
        loading: Options of `build`; ``tokenizer`` is its tokenizer.
    """

    keeps_device = True
    is_stored = False  # its weights may have been changed

    def __init__(self, model: PreTrainedModel, loading: Options) -> None:
        for option_name in _REFUSED_OPTIONS:
            if loading.get(option_name) is not None:
                raise ValueError(
                    f"{option_name}={loading[option_name]!r}: a loaded model is taken as it is. Drop it."
                )
        self.model = model
        self.tokenizer: Any = loading.get("tokenizer")
        self.options = dict(loading)
        self.device: str | None = loading.get("device")
        self.name = str(getattr(model, "name_or_path", "") or type(model).__name__)
        if os.path.isdir(self.name):
            self.name = os.path.basename(os.path.normpath(self.name))

    def load(self) -> RepeatTransformer:
        """A RepeatTransformer around the same weights; its tokenizer is a copy, with settings of its own."""
        class_name = type(self.model).__name__
        if not hasattr(self.model, "base_model"):
            raise ValueError(
                f"base={class_name} is neither a name nor a loaded model of transformers."
            )
        if any(".base_layer." in name for name, _ in self.model.named_parameters()):
            # These names would be saved without the adapter's configuration.
            raise ValueError(
                f"base={class_name} holds an adapter of PEFT that is not merged into its weights. "
                "Give peft_model.merge_and_unload()."
            )
        if self.tokenizer is None or isinstance(self.tokenizer, (str, os.PathLike)):
            raise ValueError(
                "A loaded model needs its tokenizer: build(llm, tokenizer=tokenizer, …)."
            )
        backbone = share_backbone(self.model)
        check_backbone(backbone, self.name)

        class SharingTransformer(RepeatTransformer):
            def _load_model(self, *args: object, **kwargs: object) -> PreTrainedModel:
                return backbone

        trust_options = {"trust_remote_code": bool(self.options.get("trust_remote_code"))}
        with tempfile.TemporaryDirectory() as config_folder:
            backbone.config.save_pretrained(config_folder)
            self.tokenizer.save_pretrained(config_folder)
            return SharingTransformer(
                config_folder, config_kwargs=trust_options, processor_kwargs=trust_options
            )
