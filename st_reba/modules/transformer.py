"""RepeatTransformer: preprocess tokenizes a text once and places its ids in every copy; forward runs the decoder."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from sentence_transformers.sentence_transformer.modules import Transformer
from sentence_transformers.util import get_device_name
from torch import Tensor

from .extensions import extensions
from .layout import (
    SIMILARITY,
    TASKS,
    Features,
    Frame,
    Template,
    copies_of,
    decoder_of,
    empty_text_token,
    fields_of,
    make_frame,
    pad,
    published,
    spans_of,
    special_tokens,
    tokenize,
)
from .passes import ForwardPass, running

logger = logging.getLogger(__name__)

TEXT_ONLY: dict[str, Any] = {
    # Pinned, so that a model with a chat template is not wrapped in chat turns.
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    "module_output_name": "token_embeddings",
}
POOLED = ("last_copy", "repeats", "last_copy_and_end", "end", "all")
REQUIREMENTS = {"sentence-transformers": ">=6.0", "transformers": ">=5.0"}


@published
class RepeatTransformer(Transformer):
    """Decoder that reads a text several times.

    A text is tokenized once (names of special tokens in it are ordinary text), cut to the budget, and placed in every
    copy; the tokenizer's own special tokens stand once, around the whole. One copy is the classical input.

    Args:
        model_name_or_path: Folder or Hub id of the decoder; or a Transformer that is loaded, whose model is shared.
        template: Text with a ``{text}`` slot for each copy (or ``{reversed}``, see :func:`reverse_words`), a mapping of
            ``query``, ``document`` and, for what ``encode`` takes, ``similarity`` (by default as a document) to such
            texts, or a list of these, one row of the batch each (see PromptEnsemble). None: the bare text.
        repeats: Number of copies where there is no template.
        instruction: Value of the template's ``{instruction}`` where no prompt is given.
        pooled: Positions that a following ``Pooling`` sees: the content of the last copy, of copies 2 to k
            (``"repeats"``), of the last copy and the special tokens after it, the very last (``"end"``), or all.
        compute_matched: Halve the budget, so that two copies cost what one did.
        reading: What is read in place of the last layer's states: ``of`` (``"states"`` or ``"attention"``), and the
            arguments of LayerReader or OutputReader. None: the last layer's states, after the final norm.
        causal: True if hidden states never depend on later tokens; None: as the model's modules say.
        shares_prefix: True if rows may share what they begin with: tried when the model was built.
        recipe, base_model, base_revision: How the pipeline was built, for the record.
        **kwargs: As for ``Transformer``. Without a ``dtype``, weights are float32 on a machine without a GPU.

    Source:
        ReBA, section 3.2 (repetition); Echo, sections 4.2 and 4.4 (templates).

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini", "echo")
        >>> model[0].preprocess(["你好"])["copy_ids"].tolist()
        [[0, 1, 1, 2, 2]]
    """

    config_keys = [
        *Transformer.config_keys,
        *("template", "repeats", "instruction", "pooled", "compute_matched", "reading", "causal", "shares_prefix"),
        *("recipe", "base_model", "base_revision"),
    ]
    # The rows of attention that the pooling module asks for, a Capture; None if it needs none.
    capture: Any = None
    # The base's number type; and what transformers said of its weights: those that were missing, or not expected.
    stored_dtype: torch.dtype | None = None
    loading: Mapping[str, Any] = {}

    def __init__(
        self,
        model_name_or_path: str | Transformer,
        *,
        template: str | Mapping[str, str] | Sequence[Any] | None = None,
        repeats: int = 2,
        instruction: str = "",
        pooled: str = "last_copy",
        compute_matched: bool = False,
        reading: Mapping[str, Any] | None = None,
        causal: bool | None = None,
        shares_prefix: bool = False,
        recipe: Mapping[str, Any] | None = None,
        base_model: str | None = None,
        base_revision: str | None = None,
        **kwargs: Any,
    ) -> None:
        if isinstance(model_name_or_path, Transformer):
            self.__dict__ = dict(model_name_or_path.__dict__)
        else:
            weights = dict(kwargs.get("model_kwargs") or {})
            if not {"dtype", "torch_dtype"} & set(weights):
                # Faster and more exact on a CPU than 16 bits.
                kwargs["model_kwargs"] = {**weights, "dtype": torch.float32 if get_device_name() == "cpu" else "auto"}
            super().__init__(model_name_or_path, **{**TEXT_ONLY, **kwargs})
        self.template, self.repeats, self.instruction = template, repeats, instruction
        self.pooled, self.compute_matched, self.reading = pooled, compute_matched, reading
        self.recipe, self.base_model, self.base_revision = recipe, base_model, base_revision
        if pooled not in POOLED or repeats not in range(1, 65):
            raise ValueError(f"pooled={pooled!r} must be one of {', '.join(POOLED)}, repeats={repeats!r} 1 to 64.")
        bare: list[dict[str, Template]] = [dict.fromkeys(TASKS, (("", "text"),) * repeats)]
        # By row of the batch and by task; so many rows a text makes, with k copies in each.
        self.templates = bare if template is None else extensions.parse_templates(template)
        self.rows, self.copies = len(self.templates), copies_of(self.templates[0]["document"])
        if self.tokenizer is None:
            raise ValueError(f"{type(self.processor).__name__} holds no tokenizer. Put its files beside the model.")
        config: Any = self.config.get_text_config()  # of the decoder, beside which there may be towers
        positions = getattr(config, "max_position_embeddings", None) or 0
        if "model_max_length" not in (kwargs.get("processor_kwargs") or {}) and positions > 0:
            self.tokenizer.model_max_length = min(self.tokenizer.model_max_length, positions)
        self.config.use_cache = config.use_cache = False
        if getattr(config, "attn_logit_softcapping", None):
            # SDPA refuses soft caps, or drops them in some versions.
            extensions.install_attention(self.model)
        marks = [bool(each.is_causal) for each in decoder_of(self.model).modules() if hasattr(each, "is_causal")]
        self.causal = bool(marks and all(marks)) if causal is None else causal
        self.shares_prefix = shares_prefix
        self.reader: Any = None if reading is None else self._make_reader(dict(reading))
        self._warned = False
        self._pipeline: list[Any] = [self]

    def _make_reader(self, reading: dict[str, Any]) -> Any:
        source = reading.pop("of")
        layers = {"first_layer": reading.pop("first"), "last_layer": reading.pop("last")}
        if source == "attention":
            return extensions.output_reader(self, **layers, **reading)
        if source == "states":
            return extensions.layer_reader(self, **layers, **reading)
        raise ValueError(f"reading: of={source!r} is not known. Choose from states, attention.")

    @property
    def depth(self) -> int:
        """Number of layers L."""
        return int(self.config.get_text_config().num_hidden_layers)

    @property
    def default_task(self) -> str:
        """Whose templates ``encode`` uses, which names no task."""
        return SIMILARITY if SIMILARITY in self.templates[0] else "document"

    def fields(self, task: str | None = None) -> set[str]:
        """Names of the fields of a task's templates; None: of those that ``encode`` uses."""
        task = task or self.default_task
        return {name for templates in self.templates for name in fields_of(templates[task])}

    @property
    def forward_kwargs(self) -> set[str]:  # type: ignore[override]
        """The fields, which ``encode`` takes as keyword arguments."""
        return {name for task in self.templates[0] for name in self.fields(task)}

    def frames(self, prompt: str | None = None, task: str | None = None, **fields: str) -> tuple[Frame, ...]:
        """Token ids around the copies, one frame for each row of a text.

        Args:
            prompt: Value of ``{instruction}`` where a template has that field, else literal text before it.
            task: ``"query"``, ``"document"`` or ``"similarity"``; None: see `default_task`, but ``"query"`` if only its
                template has a place for the prompt and the fields.
            **fields: Values of the templates' fields.
        """
        if task is None:
            given = {*fields, "instruction"} if prompt else set(fields)
            task = "query" if given & (self.fields("query") - self.fields()) else self.default_task
        # Made anew each time, as parts of a tokenizer can be replaced without a sign of it.
        return self._make_frames(prompt or "", task, fields)

    def _make_frames(self, prompt: str, task: str, fields: Mapping[str, str]) -> tuple[Frame, ...]:
        if task not in self.templates[0]:
            raise ValueError(f"task={task!r} is not known. Choose from {', '.join(self.templates[0])}.")
        known = self.fields(task)
        if unknown := sorted(set(fields) - known):
            raise ValueError(f"{unknown[0]}={fields[unknown[0]]!r}: the template has only {sorted(known)}.")
        values = {"instruction": prompt or self.instruction, **fields}
        if missing := sorted(name for name in known if not values.get(name) or not isinstance(values[name], str)):
            raise ValueError(f"The template's {{{missing[0]}}} needs one text: encode(…, {missing[0]}='…').")
        special = special_tokens(self.tokenizer)
        return tuple(make_frame(self.tokenizer, each[task], special, prompt, values) for each in self.templates)

    def budget(self, prompt: str | None = None, task: str | None = None, **fields: str) -> int | None:
        """Content tokens that a copy holds, ⌊(max_seq_length − overhead) / k⌋; None: no limit. See `frames`."""
        limit: Any = self.tokenizer.model_max_length  # type: ignore[union-attr]
        if limit is None or limit > 1e12:  # transformers' way of saying that there is none
            return None
        positions = getattr(self.config.get_text_config(), "max_position_embeddings", None) or 0
        if limit > positions > 0:
            raise ValueError(f"max_seq_length={limit} is more than the model's {positions} positions. Lower it.")
        room = min((limit - frame.overhead) // frame.copies for frame in self.frames(prompt, task, **fields))
        if room < 1:
            raise ValueError(f"max_seq_length={limit} leaves no room for {self.copies} copies of a text. Raise it.")
        return max(1, room // 2) if self.compute_matched else int(room)

    def content(self, texts: Sequence[str], *, offsets: bool = False) -> dict[str, Any]:
        """Token ids of texts as content, never cut; with ``offsets`` each token's characters, as ``offset_mapping``."""
        if others := [each for each in texts if not isinstance(each, str)]:
            raise ValueError(f"An input is no text but {type(others[0]).__name__}: {others[0]!r:.80}.")
        return tokenize(self.tokenizer, texts, offsets=offsets)

    def preprocess(  # type: ignore[override]
        self, inputs: Sequence[Any], prompt: str | None = None, *, task: str | None = None, **fields: Any
    ) -> dict[str, Any]:
        """Tokenize each text once and place its copies; ``prompt``, ``task`` and ``fields`` as for `frames`.

        Returns:
            ``input_ids``, ``attention_mask``, ``copy_ids`` [B, T] int64, padded on the right, and ``spans``, a list of
            B; with P templates B·P rows, those of a text one after another.
        """
        fields = {name: value for name, value in fields.items() if value is not None}
        frames, budget = self.frames(prompt, task, **fields), self.budget(prompt, task, **fields)
        contents = self.content(inputs)["input_ids"]
        turned = contents
        if any(frame.is_reversed for frame in frames):
            turned = self.content([extensions.reverse_words(text) for text in inputs])["input_ids"]
        longest = max(map(len, contents), default=0)
        if budget is not None and longest > budget and not self._warned:
            self._warned = True
            logger.warning("A text of %d tokens was cut to %d a copy. Further cuts are not reported.", longest, budget)
        rows = []
        for ids, backwards in zip(contents, turned, strict=True):
            for frame in frames:
                # The text's end is cut, which is the beginning of the reversed text.
                kept = backwards[-(budget or 0) :] if frame.is_reversed else ids[:budget]
                rows.append(frame.place(kept or [empty_text_token(self.tokenizer)]))
        features = pad(rows)
        self._check_embeddings(features["input_ids"])
        return features

    def _check_embeddings(self, token_ids: Tensor) -> None:
        """Refuse a token that the tokenizer was given and the model was not: on a GPU it would end the process."""
        count: Any = getattr(self.model.get_input_embeddings(), "num_embeddings", None)
        if count is None or not token_ids.numel():
            return
        highest = int(token_ids.max())
        if highest >= count:
            remedy = "Call model[0].model.resize_token_embeddings(len(model.tokenizer)), and train it"
            raise ValueError(f"The tokenizer has token {highest}, but the model only {count} embeddings. {remedy}.")

    def forward(self, features: dict[str, Any], capture: Any = None, **kwargs: Any) -> dict[str, Any]:
        """Run the decoder.

        Args:
            features: What `preprocess` gives; not changed.
            capture: Rows of attention to keep (a Capture), in place of those that the pooling asks for.

        Returns:
            The features with ``token_embeddings`` [B, T, d], zero at padding; ``attention_mask``, the positions that
            are pooled; and ``backward_attention`` [B, R, T] if rows are captured.
        """
        capture = self.capture if capture is None else capture
        if len(features.get("spans") or ()) != len(features["attention_mask"]):
            # Another package's code split the batch, or passed on the tensors alone.
            features = {**features, "spans": spans_of(features)}
        if capture is None or capture.pieces is None:
            return self._run(features, capture)
        pieces = [(one, self._run(batch, capture)) for one, batch in capture.pieces.batches(features, self.config)]
        return {**self._run(features, None), "captured": capture, "pieces": pieces}

    def _hooks(self, capture: Any) -> list[Any]:
        """What acts in a pass: ``begin`` before the layers run, and ``finish`` behind them, in reverse order."""
        return [hook for hook in (capture, self.reader) if hook is not None]

    def can_share(self, hooks: Sequence[Any] | None = None) -> bool:
        """Whether rows may share what they begin with, as `build` tried, where ``hooks`` act in a pass."""
        acting = self._hooks(self.capture) if hooks is None else hooks
        return self.causal and self.shares_prefix and all(getattr(hook, "by_position", False) for hook in acting)

    def run_pass(self, features: Features, hooks: Sequence[Any], arguments: Features) -> Tensor:
        """Hidden states [B, T, d] of one pass of the decoder; ``features`` gets what hooks hand to the pooling."""
        state, mask = ForwardPass(self.model, features), features["attention_mask"]
        for hook in hooks:
            hook.before_layers(state)
        # In a causal model, padding after a text affects no real token, and attention without a mask is fastest.
        shown = torch.ones_like(mask) if self.causal else mask
        with running(state):
            inputs = {"input_ids": features["input_ids"], "attention_mask": shown, **state.model_arguments, **arguments}
            hidden: Tensor = super().forward(inputs)["token_embeddings"]
        for hook in reversed(hooks):
            hidden = hook.after_layers(state, hidden)
        features.update(state.pooling_features)
        return hidden

    def _run(self, features: dict[str, Any], capture: Any) -> dict[str, Any]:
        result, hooks = dict(features), self._hooks(capture)
        mask, hidden = features["attention_mask"], None
        if self.training and extensions.has("checkpoint_in_pass"):
            extensions.checkpoint_in_pass(self.model, hooks)
        if extensions.has("run_shared"):
            hidden = extensions.run_shared(self, features, hooks)
        if hidden is None:
            hidden = self.run_pass(result, hooks, {})
        if any(span.total < mask.shape[1] for span in features["spans"]):
            hidden = hidden.masked_fill(mask[:, :, None] == 0, 0.0)
        result |= {"captured": capture, "token_embeddings": hidden, "attention_mask": self._pooled(features)}
        finite = hidden.detach().sum(dim=(1, 2), dtype=torch.promote_types(hidden.dtype, torch.float32)).isfinite()
        if capture is not None and capture.zeros:
            for name in ("token_embeddings", "backward_attention"):
                result[name] = result[name].masked_fill(~finite[:, None, None], 0.0)
        elif not bool(finite.all()):  # the one place where this code waits for the device
            self._check_finite(hidden, features)
        return result

    def _check_finite(self, hidden: Tensor, features: Mapping[str, Any]) -> None:
        rows = (~hidden.isfinite().flatten(1).all(dim=1)).nonzero()
        if len(rows):  # else the sum alone was too large
            ids = features["input_ids"][int(rows[0])][features["copy_ids"][int(rows[0])] == 1].tolist()
            text = self.tokenizer.decode(ids)[:80]  # type: ignore[union-attr]
            raise ValueError(f"The model gave NaN or infinity for the text {text!r}. Load it in float32 or bfloat16.")

    def _pooled(self, features: Mapping[str, Any]) -> Tensor:
        """The positions that are pooled, [B, T]."""
        real, copies = features["attention_mask"], features["copy_ids"]
        last = copies == self.copies
        if self.pooled in ("end", "last_copy_and_end"):
            ends = torch.tensor([[span.total] for span in features["spans"]]).to(real.device, non_blocking=True)
            after = 1 if self.pooled == "end" else len(special_tokens(self.tokenizer)[1])
            end = (torch.arange(real.shape[1], device=real.device) >= ends - after) & real.bool()
            pooled = end if self.pooled == "end" else last | end
        else:
            pooled = {"all": real, "repeats": copies >= min(2, self.copies), "last_copy": last}[self.pooled]
        return pooled.to(real.dtype)  # type: ignore[no-any-return]

    def get_embedding_dimension(self) -> int:
        """Dimension d of the hidden states; of joined layers that of all."""
        return int(super().get_embedding_dimension()) * getattr(self.reader, "width_factor", 1)

    def on_model_ready(self, model: Any) -> None:
        """Refuse a pipeline in which nothing makes one vector of a text's tokens, or of its rows."""
        super().on_model_ready(model)
        names = [type(module).__name__ for module in model]
        self._pipeline = [each for each in model.modules() if hasattr(each, "on_model_ready")]
        unpooled = {"Dense", "Dropout", "LayerNorm", "Normalize", "PromptEnsemble", "QueryShift"}
        if model[0] is self and hasattr(model, "encode_query") and set(names[1:]) <= unpooled:
            raise ValueError(f"modules.json: no pooling follows {names[0]}. Copy all files of the model, or add one.")
        if self.rows > 1 and "PromptEnsemble" not in names:
            raise ValueError(f"A text has {self.rows} templates, so PromptEnsemble must follow the pooling.")

    @classmethod
    def load_config(cls, model_name_or_path: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The stored configuration; an error where it is incomplete."""
        config: dict[str, Any] = super().load_config(model_name_or_path, *args, **kwargs)
        if missing := sorted(set(cls.config_keys) - set(Transformer.config_keys) - set(config)):
            raise ValueError(f"sentence_bert_config.json is missing or lacks {missing[0]}. Copy all files.")
        return config

    @classmethod
    def load(cls, model_name_or_path: str, *args: Any, **kwargs: Any) -> RepeatTransformer:
        """Load a saved module; an error where the weights do not fill the configuration."""
        loaded: RepeatTransformer = super().load(model_name_or_path, *args, **kwargs)
        adapted = getattr(loaded.model, "_hf_peft_config_loaded", False)
        for key in ("missing_keys", "mismatched_keys", "unexpected_keys"):
            # Some versions of transformers drop an adapter's weights, and make new ones.
            names = sorted(each for each in map(str, loaded.loading.get(key) or ()) if not adapted or "lora_" in each)
            if names:
                raise ValueError(f"The weights do not fit config.json: {key}: {names[0]}. Copy all files of the model.")
        return loaded

    def _load_model(self, *args: Any, **kwargs: Any) -> Any:
        _, _, config, backend, *_ = args
        # Private in sentence-transformers: the one place to hear how weights are stored, and which are missing.
        text_config = config.get_text_config() if hasattr(config, "get_text_config") else config
        self.stored_dtype = getattr(text_config, "dtype", None) or getattr(config, "dtype", None)
        asked: dict[str, Any] = {"output_loading_info": True} if backend == "torch" else {}
        found: Any = super()._load_model(*args, **{**asked, **kwargs})
        model, self.loading = found if isinstance(found, tuple) else (found, {})
        for module in model.modules():
            if hasattr(module, "support_avx512bf16_for_cpu"):
                # bitsandbytes packs 4-bit weights for such CPUs, and breaks them when they are saved then.
                module.support_avx512bf16_for_cpu = False
        return model

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Save the module and its code; where st_reba is installed, weights keep the base's number type."""
        with extensions.stored_as(self.model, self.stored_dtype) if extensions.has("stored_as") else nullcontext():
            super().save(output_path, *args, **kwargs)
        root, name = Path(output_path), "config_sentence_transformers.json"
        if not (root / name).is_file() and (root.parent / name).is_file():
            root = root.parent  # a Router keeps its modules in folders of the repository
        settings = root / name
        if extensions.has("code_of"):
            (root / "st_reba.py").write_text(extensions.code_of(self._pipeline), encoding="utf-8")
        elif (root / "st_reba.py").resolve() != Path(__file__).resolve():
            shutil.copyfile(__file__, root / "st_reba.py")
        if settings.is_file():
            quantized = "bitsandbytes" in str(getattr(self.config, "quantization_config", ""))
            more = {"bitsandbytes": ">=0.45"} if quantized else {}
            value = {**json.loads(settings.read_text(encoding="utf-8")), "requirements": {**REQUIREMENTS, **more}}
            settings.write_text(json.dumps(value, indent=2, sort_keys=True), encoding="utf-8")
