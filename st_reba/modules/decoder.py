"""The base of st_reba's input modules: a Transformer around a decoder, and stages around its layers."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Transformer
from sentence_transformers.util import get_device_name
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .backbone import Backbone, is_trained
from .options import shown
from .stages import Bound, Pass, Place, Stage, as_stored, running, stages_of
from .stored import check_complete, check_filled, check_whole, stored_as
from .vendoring import extra, leave_code, published

# Pinned, so that a backbone with a chat template is not wrapped in chat turns.
TEXT_ONLY: dict[str, Any] = {
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    "module_output_name": "token_embeddings",
}
# Modules that make no sentence vector, but change one.
_UNPOOLED = {"Dense", "Dropout", "LayerNorm", "Normalize", "PromptEnsemble"}


@published
class DecoderTransformer(Transformer):
    """Runs a backbone with stages around its layers, and what a following pooling asks a pass to watch.

    Unless ``model_kwargs`` says a ``dtype``, the weights run in float32 on a machine without a GPU, and in the
    checkpoint's own number type on one.

    Args:
        model_name_or_path: Folder or Hub id of the backbone.
        method: What the pipeline computes, ``{"name": {field: value}}``, for the record.
        stages: What happens around the layers: :class:`Stage`, or ``{"name": {field: value}}`` each.
        base_model: Name of the base model, for the record.
        base_revision: Its revision, for the record.
        from_base: The folder holds no weights: they are those of ``base_model`` at ``base_revision``.
        **kwargs: All that sentence-transformers' own ``Transformer`` takes.
    """

    config_keys = [*Transformer.config_keys, "method", "stages", "base_model", "base_revision"]

    # Base and revision, while a save leaves the weights there.
    left_at: tuple[str, str | None] | None = None
    # What transformers said of loading the weights, and the number type in which the base stores them.
    loading: Mapping[str, Any] | None = None
    stored_dtype: torch.dtype | None = None

    def __init__(
        self,
        model_name_or_path: str,
        *,
        method: Mapping[str, Any] | None = None,
        stages: Sequence[Stage | Mapping[str, Any]] = (),
        base_model: str | None = None,
        base_revision: str | None = None,
        from_base: bool = False,
        **kwargs: Any,
    ) -> None:
        stages = stages_of(stages)
        known = {} if method is None else method
        if not isinstance(known, Mapping) or not all(isinstance(each, Mapping) for each in known.values()):
            raise ValueError(f"method={shown(method)} must be a mapping of a method's name to its options.")
        kwargs = {**TEXT_ONLY, **kwargs}
        weights = dict(kwargs.get("model_kwargs") or {})
        if kwargs.get("backend", "torch") == "torch" and not {"dtype", "torch_dtype"} & set(weights):
            # Quicker and more exact on a CPU than 16 bits; a GPU takes the checkpoint's own.
            kwargs["model_kwargs"] = {**weights, "dtype": torch.float32 if get_device_name() == "cpu" else "auto"}
        if from_base:
            at_base = extra("at_base")
            base = at_base.base_of(model_name_or_path, base_model, base_revision, kwargs)
            with at_base.looked_for(base_model, base_revision):
                super().__init__(base, **kwargs)
        else:
            super().__init__(model_name_or_path, **kwargs)
        if not from_base and has_adapter(self.model):
            extra("adapters").complete_adapter(self.model, model_name_or_path, kwargs.get("model_kwargs") or {})
        positions = getattr(self.config.get_text_config(), "max_position_embeddings", None)
        asked = "model_max_length" in (kwargs.get("processor_kwargs") or {})
        if self.tokenizer is not None and not asked and isinstance(positions, int) and positions > 0:
            # A composed configuration keeps its positions with its decoder's.
            self.tokenizer.model_max_length = min(self.tokenizer.model_max_length, positions)
        self._equip(method, stages, base_model, base_revision)

    @classmethod
    def adopt(cls, transformer: Transformer, stages: Sequence[Stage], **record: str | None) -> DecoderTransformer:
        """Take over a plain Transformer, which shares its backbone; ``record``: ``base_model``, ``base_revision``."""
        adopted = cls.__new__(cls)
        adopted.__dict__ = dict(transformer.__dict__)
        adopted._equip(None, stages_of(stages), record.get("base_model"), record.get("base_revision"))
        return adopted

    def _equip(
        self, method: Mapping[str, Any] | None, stages: tuple[Stage, ...], base: str | None, revision: str | None
    ) -> None:
        """Set up what this class adds to the Transformer; also after the backbone was replaced."""
        self.base_model, self.base_revision = base, revision
        self.method = method
        # What every pass also runs: set by the module that needs it.
        self.watchers: list[Bound] = []
        # Whether a text that is not finite gets zeros (as in the published ReBA code), or an error.
        self.zeros = False
        self.rebind(stages)

    def rebind(self, stages: Sequence[Stage], model: PreTrainedModel | None = None) -> None:
        """Put other stages around the layers, or the same around another backbone; nothing changes where it fails."""
        stages = stages_of(stages)
        before = dict(self.__dict__), self._modules["model"]
        try:
            if model is not None:
                self._modules["model"] = model
            self.backbone = Backbone(self.model)
            if self.backbone.capped:
                extra("attention").switch_on(self.model)
            self.stages = stages
            self.bound: list[Bound] = []
            for stage in stages:
                self.bound.append(stage.bind(self))
        except ValueError:
            # A half of them would give another model's vectors.
            self.__dict__.update(before[0])
            self._modules["model"] = before[1]
            raise

    def stage(self, name: str) -> Stage | None:
        """The stage of a name, if there is one."""
        return next((stage for stage in self.stages if stage.name == name), None)

    @property
    def stack(self) -> Any:
        """What each layer that runs sees, by a layer plan; None: what it sees by itself."""
        stacks = (getattr(each, "stack", None) for each in self.bound)
        return next((stack for stack in stacks if stack is not None and not stack.is_plain), None)

    @property
    def depth(self) -> int:
        """The backbone's number of layers L."""
        return self.backbone.depth

    @property
    def runs(self) -> int:
        """How many of them run."""
        return min([self.depth, *(stage.runs(self.depth) for stage in self.stages)])

    @property
    def text_tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer; an error where the backbone has none."""
        if self.tokenizer is None:
            raise ValueError(
                f"{type(self.processor).__name__} holds no tokenizer, and st_reba embeds text only. Use a base with a "
                "language model, its tokenizer's files beside it."
            )
        return self.tokenizer

    def get_embedding_dimension(self) -> int:
        """Dimension of the hidden states that are read."""
        width = 1
        for each in self.bound:
            width *= each.width
        return width * int(super().get_embedding_dimension())

    def preprocess(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Tokenize as sentence-transformers does, padded on the right."""
        self.text_tokenizer.padding_side = "right"
        features: dict[str, Any] = super().preprocess(*args, **kwargs)
        return {**features, "places": places_of(features)}

    def forward(
        self, features: dict[str, Any], *, watch: Sequence[Bound] | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Run the backbone.

        Args:
            features: ``input_ids``, ``attention_mask`` and ``copy_ids``, each [B, T], and ``places``; not changed.
            watch: What this pass also runs, in place of what the pooling asks for.
            **kwargs: Ignored: they concern the input's layout.

        Returns:
            The features, with ``token_embeddings`` [B, T, d] (zero at padding) and what was captured.

        Raises:
            ValueError: The backbone gave NaN or infinity, or a stage was not obeyed.
        """
        mask: Tensor = features["attention_mask"]
        places: Sequence[Place] = features.get("places") or ()
        if len(places) != len(mask):
            # Features of another make, or a part of a batch that was split.
            places = places_of(features)
        bound = [*self.bound, *(self.watchers if watch is None else watch)]
        if bound and self.model.training and torch.is_grad_enabled() and is_trained(self.model):
            extra("training").prepare_checkpointing(self.model, twice=bool(self.stack and self.stack.second))
        run = Pass(self, mask, places, bound)
        hidden, added = self._run(run, features["input_ids"])
        if run.padded:
            hidden = hidden.masked_fill(~run.real[:, :, None], 0.0)
        # A sum is finite where all of its numbers are; one flag a text, which the host reads once, after the batch.
        finite = hidden.detach().sum(dim=(1, 2), dtype=torch.promote_types(hidden.dtype, torch.float32)).isfinite()
        flags = [flag.to(hidden.device) for flag, _ in run.doubts] + ([] if self.zeros else [finite.all()])
        if flags and not on_host(torch.stack(flags).all()):
            for flag, message in run.doubts:
                if not bool(flag):
                    raise ValueError(message)
            self._check_finite(hidden, features)
        if self.zeros:
            hidden = hidden.masked_fill(~finite[:, None, None], 0.0)
            added = {
                n: v.masked_fill(~finite[:, None, None], 0.0) if isinstance(v, Tensor) else v for n, v in added.items()
            }
        return {**features, "places": places, "token_embeddings": hidden, **added}

    def _run(self, run: Pass, input_ids: Tensor) -> tuple[Tensor, dict[str, Any]]:
        """The hidden states that are read, [B, T, d], and what else the pass gives."""
        for each in run.bound:
            each.begin(run)
        # Where nothing looks ahead, padding behind a text need not be masked, and attention without a mask is fastest.
        # What looks ahead by a plan gets its mask from the plan.
        unmasked = self.backbone.looks_back and not any(each.sees_all for each in run.bound)
        inputs: dict[str, Any] = self.backbone.inputs(
            input_ids, torch.ones_like(input_ids) if unmasked else run.real.long()
        )
        if run.observer is not None and self.backbone.attention == "eager":
            inputs["output_attentions"] = True
        run.unmasked = unmasked
        with running(run):
            hidden: Tensor = super().forward(inputs)["token_embeddings"]
        for each in reversed(run.bound):
            hidden = each.finish(run, hidden)
        added: dict[str, Any] = {}
        for each in run.bound:
            added |= each.features(run)
        return hidden, added

    def _check_finite(self, hidden: Tensor, features: dict[str, Any]) -> None:
        """Name the first text that is not finite."""
        rows = (~torch.isfinite(hidden).flatten(1).all(dim=1)).nonzero()
        if not len(rows):
            return  # The sum alone was too large.
        row = int(rows[0])
        shown = features["copy_ids"][row] == 1 if "copy_ids" in features else features["attention_mask"][row].bool()
        text = str(self.text_tokenizer.decode(features["input_ids"][row][shown].tolist()))
        raise ValueError(
            f"The backbone gave NaN or infinity ({hidden.dtype}) for the text {text[:80]!r}. Load it with "
            "model_kwargs={'dtype': 'float32'} (or 'bfloat16', whose range is wider than float16's)."
        )

    def on_model_ready(self, model: Any) -> None:
        """Refuse a pipeline in which nothing makes one vector of a text's tokens."""
        super().on_model_ready(model)
        behind = {type(module).__name__ for module in list(model)[1:]}
        if isinstance(model, SentenceTransformer) and model[0] is self and behind <= _UNPOOLED:
            raise ValueError(
                f"modules.json: no pooling follows {type(self).__name__}. Copy all of the files, or add one, as "
                "sentence_transformers' Pooling."
            )

    # How it is stored.

    @classmethod
    def load_config(cls, model_name_or_path: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The module's configuration as it is stored; an error for one that no save wrote."""
        config: dict[str, Any] = super().load_config(model_name_or_path, *args, **kwargs)
        if (guards := extra("guards", needed=False)) is None:
            check_whole(config, cls.config_keys)
        else:
            guards.check_config(config, cls.config_keys, here=os.path.isdir(model_name_or_path))
        return config

    @classmethod
    def load(cls, model_name_or_path: str, *args: Any, **kwargs: Any) -> DecoderTransformer:
        """Load a saved module; an error where files are missing, or the weights do not fill the configuration."""
        hub = {k: kwargs[k] for k in ("token", "cache_folder", "revision", "local_files_only") if k in kwargs}
        guards, limit = extra("guards", needed=False), nullcontext()
        if guards is None:
            check_complete(model_name_or_path, **hub)
        else:
            limit = guards.limited(guards.check_sizes(model_name_or_path, kwargs.get("subfolder") or "", **hub))
        with limit:
            loaded: DecoderTransformer = super().load(model_name_or_path, **kwargs)
        if loaded.loading is not None and not has_adapter(loaded.model):
            check_filled(loaded.model, loaded.loading)
        return loaded

    def _load_model(self, *args: Any, **kwargs: Any) -> PreTrainedModel:
        # Private in sentence-transformers: the one place where transformers can be asked what it left out.
        config, backend = args[2:4]
        text = config.get_text_config() if hasattr(config, "get_text_config") else config  # an adapter's has none
        dtype = getattr(text, "dtype", None) or getattr(config, "dtype", None)
        self.stored_dtype = dtype if isinstance(dtype, torch.dtype) else None
        if backend != "torch":
            return super()._load_model(*args, **kwargs)
        found: Any = super()._load_model(*args, output_loading_info=True, **kwargs)
        model, self.loading = found if isinstance(found, tuple) else (found, None)
        return model  # type: ignore[no-any-return]

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Save the module and the code that it runs; inside ``left_at_base`` without weights and tokenizer."""
        if self.left_at is None:
            with stored_as(self.model, self.stored_dtype):
                super().save(output_path, *args, **kwargs)
            _forget_reader(Path(output_path) / "tokenizer_config.json")
        else:
            self.model.config.save_pretrained(output_path)
            self.save_config(output_path)
        sinks = self.stack is not None and any(hasattr(module, "sinks") for module in self.model.modules())
        # What others load by name: only captures import the kernels, but attention sinks are faster with them.
        also = {"at_base": self.left_at is not None, "adapters": has_adapter(self.model), "kernels": sinks}
        also |= {"attention": self.backbone.capped, "second": bool(self.stack and self.stack.second)}
        leave_code(output_path, type(self), *map(type, self.stages), files=[name for name in also if also[name]])

    def get_config_dict(self) -> dict[str, Any]:
        config: dict[str, Any] = super().get_config_dict()
        config["stages"] = as_stored(self.stages)
        if self.left_at is not None:
            config |= extra("at_base").recorded(self)
        return config

    def __repr__(self) -> str:
        shown = {**self.get_config_dict(), "architecture": self.backbone.name}
        return f"{type(self).__name__}({shown})"


def has_adapter(model: PreTrainedModel) -> bool:
    """Whether a backbone has an adapter that was not merged into its weights: transformers' own mark."""
    return bool(getattr(model, "_hf_peft_config_loaded", False))


def places_of(features: Mapping[str, Any]) -> list[Place]:
    """Where each row's content stands, from tensors; where these are on a device, the host waits for it."""
    mask = features["attention_mask"].cpu()
    if not bool(mask[:, 0].all()):
        raise ValueError(
            "A batch is padded on the left, and st_reba pads on the right: set tokenizer.padding_side='right'."
        )
    content = features["copy_ids"].cpu() == 1 if "copy_ids" in features else mask.bool()
    counts = (content.int().argmax(dim=1).tolist(), content.sum(dim=1).tolist(), mask.sum(dim=1).tolist())
    return list(zip(*counts, strict=True))


def on_host(flag: Tensor) -> bool:
    """A flag's value: the one place where a pass waits for its device, behind its last layer."""
    return bool(flag)


def _forget_reader(file: Path) -> None:
    """Drop from a saved tokenizer whether whoever loaded it was offline, which transformers keeps with its settings."""
    settings = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    if settings.pop("local_files_only", None) is not None:
        text = json.dumps(settings, indent=2, sort_keys=True, ensure_ascii=False)
        file.write_text(text + "\n", encoding="utf-8")
