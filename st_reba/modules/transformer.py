"""RepeatTransformer: preprocess tokenizes a text once and places its ids in every copy; forward runs the decoder."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from sentence_transformers.sentence_transformer.modules import Transformer
from sentence_transformers.util import get_device_name
from torch import Tensor

from .extensions import extensions
from .layout import (
    IS_INSTALLED,
    MAX_REPEATS,
    POOLED,
    SIMILARITY,
    TASKS,
    Features,
    ParsedTemplate,
    RowLayout,
    causal_flags,
    check_token_ids,
    copies_of,
    empty_text_token,
    fields_of,
    make_row_layout,
    pad,
    pooled_positions,
    published,
    spans_of,
    special_tokens,
    tokenize,
)
from .passes import ForwardPass, running

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from .capture import Capture
    from .passes import PassHook

logger = logging.getLogger(__name__)

TEXT_ONLY: dict[str, Any] = {
    # Pinned, so that a model with a chat template is not wrapped in chat turns.
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    "module_output_name": "token_embeddings",
}
# They enclose the model card's section on the published folder, which copies must not have.
CARD_MARKS = ("<!-- st_reba: this folder -->", "<!-- st_reba: end of this folder -->")
REQUIREMENTS = {"sentence-transformers": ">=6.0", "transformers": ">=5.0"}
# Modules that make no vector of a text's tokens.
_NO_POOLING = {"Dense", "Dropout", "LayerNorm", "Normalize"}
_NO_POOLING |= {"PromptEnsemble", "QueryShift", "TokenPart"}


@published
class RepeatTransformer(Transformer):
    """Decoder that reads a text several times.

    A text is tokenized once (names of special tokens in it are ordinary text), cut to the budget,
    and placed in every copy; the tokenizer's own special tokens stand once, around the whole. One
    copy is the classical input.

    Args:
        model_name_or_path: Folder or Hub id of the decoder; or a Transformer that is loaded, whose
            model is shared.
        template: Text with a ``{text}`` slot for each copy (or ``{reversed}``, see
            :func:`reverse_words`), a mapping of ``query``, ``document`` and, for what ``encode``
            takes, ``similarity`` (by default as a document) to such texts, or a list of these, one
            row of the batch each (see PromptEnsemble). None: the bare text.
        repeats: Number of copies where there is no template.
        instruction: Value of the template's ``{instruction}`` where no prompt is given.
        pooled: Positions that a following ``Pooling`` sees (ReBAPooling takes its own): the content
            of the last copy, of copies 2 to k (``"repeats"``), of the last copy and the special
            tokens after it, the very last position (``"end"``), or all.
        compute_matched: Halve the budget, so that two copies cost what one did.
        reading: What is read in place of the last layer's states: ``of`` (``"states"`` or
            ``"attention"``), and the arguments of LayerReader or OutputReader. None: the last
            layer's states, after the final norm.
        causal: True if the base's own attention lets no token see a later one, whatever masks are
            put on it; None: as the model's modules say.
        shares_prefix: True if rows may share a prefix, as tried when the model was built.
        recipe, base_model, base_revision: How the pipeline was built, for the record.
        **kwargs: As for ``Transformer``. Without a ``dtype``, weights are float32 on a machine
            without a GPU.

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
        "template",
        "repeats",
        "instruction",
        "pooled",
        "compute_matched",
        "reading",
        "causal",
        "shares_prefix",
        "recipe",
        "base_model",
        "base_revision",
    ]
    # The rows of A^new to keep, set by ReBAPooling.on_model_ready; None: none.
    requested_capture: Capture | None = None
    adds_content_ids = False  # whether a module of the pipeline reads the tokens of whole texts
    own_input = False  # whether the input of a sentence-transformers model is kept as it is
    changes_masks = False  # whether a layer sees other tokens than in the base
    layer_masks: Sequence[str] = ()  # the mask of each layer, if any may be another than its own
    second: Sequence[tuple[int, str]] = ()  # layers that run twice, with their masks
    m = 1  # sink tokens that masks hide
    is_base_stored = True  # whether these weights are where their configuration says, for adapters
    mode_changes = 0  # calls of `train`; read by shared_prefix, a section of some files
    # The number type of the stored weights, and transformers' report of keys that do not fit.
    stored_dtype: torch.dtype | None = None
    loading_report: Mapping[str, Any] = {}

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
            model_kwargs = dict(kwargs.get("model_kwargs") or {})
            if not {"dtype", "torch_dtype"} & set(model_kwargs):
                # Faster and more exact on a CPU than 16 bits.
                model_kwargs["dtype"] = torch.float32 if get_device_name() == "cpu" else "auto"
            super().__init__(
                model_name_or_path, **{**TEXT_ONLY, **kwargs, "model_kwargs": model_kwargs}
            )
        if pooled not in POOLED or repeats not in range(1, MAX_REPEATS + 1):
            raise ValueError(
                f"pooled={pooled!r} must be one of {', '.join(POOLED)}, repeats={repeats!r} 1 to "
                f"{MAX_REPEATS}."
            )
        self.template, self.repeats, self.instruction = template, repeats, instruction
        self.pooled, self.compute_matched, self.reading = pooled, compute_matched, reading
        self.recipe, self.base_model, self.base_revision = recipe, base_model, base_revision
        self.shares_prefix = shares_prefix
        # By row of the batch and by task.
        self.templates: list[dict[str, ParsedTemplate]] = [
            dict.fromkeys(TASKS, (("", "text"),) * repeats)
        ]
        if template is not None:
            self.templates = extensions.parse_templates(template)
        # Each template makes a row of a text, with this many copies.
        self.template_count = len(self.templates)
        self.copies = copies_of(self.templates[0]["document"])
        if max(self.template_count, self.copies) > MAX_REPEATS:
            raise ValueError(
                f"template: {self.template_count} templates with {self.copies} slots for the text: "
                f"at most {MAX_REPEATS} of each. Remove some."
            )
        if self.tokenizer is None:
            raise ValueError(
                f"{type(self.processor).__name__} holds no tokenizer. Put its files beside the model."
            )
        processor_kwargs = kwargs.get("processor_kwargs") or {}
        if "model_max_length" not in processor_kwargs and self.position_count > 0:
            max_length = min(self.tokenizer.model_max_length, self.position_count)
            self.tokenizer.model_max_length = max_length
        # Of the decoder, beside which there may be towers.
        text_config: Any = self.config.get_text_config()
        self.config.use_cache = text_config.use_cache = False
        if getattr(text_config, "attn_logit_softcapping", None):
            # SDPA refuses soft caps, or drops them in some versions.
            extensions.install_attention(self.model)
        if causal is None:
            flags = causal_flags(self.model)
            causal = bool(flags) and all(flags)
        self.causal = causal
        self.reader: Any = None if reading is None else self._make_reader(dict(reading))
        self.has_reported_cut = False
        self._pipeline: list[Any] = [self]

    def _make_reader(self, reading: dict[str, Any]) -> Any:
        layers = {"first_layer": reading.pop("first"), "last_layer": reading.pop("last")}
        source = reading.pop("of")
        if source not in ("states", "attention"):
            raise ValueError(f"reading: of={source!r} is not known. Choose from states, attention.")
        reader_class = extensions.layer_reader if source == "states" else extensions.output_reader
        return reader_class(self, **layers, **reading)

    @property
    def text_tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer, which __init__ made sure is not None."""
        return self.tokenizer  # type: ignore[return-value]

    @property
    def depth(self) -> int:
        """Number of layers L."""
        return int(self.config.get_text_config().num_hidden_layers)

    @property
    def position_count(self) -> int:
        """Positions that the model has; 0: no limit is known."""
        return getattr(self.config.get_text_config(), "max_position_embeddings", None) or 0

    @property
    def default_task(self) -> str:
        """The task whose templates ``encode`` uses."""
        return SIMILARITY if SIMILARITY in self.templates[0] else "document"

    def fields(self, task: str | None = None) -> set[str]:
        """Names of the fields of a task's templates; None: of those that ``encode`` uses."""
        task = task or self.default_task
        return {name for templates in self.templates for name in fields_of(templates[task])}

    @property
    def forward_kwargs(self) -> set[str]:  # type: ignore[override]
        """The fields, which ``encode`` takes as keyword arguments."""
        return {name for task in self.templates[0] for name in self.fields(task)}

    def row_layouts(
        self,
        prompt: str | None = None,
        task: str | None = None,
        **fields: str,
    ) -> tuple[RowLayout, ...]:
        """Token ids around the copies, a layout for each row of a text.

        Args:
            prompt: Value of ``{instruction}`` where a template has that field, else literal text
                before it.
            task: ``"query"``, ``"document"`` or ``"similarity"``; None: see `default_task`, but
                ``"query"`` if only its template has a place for the prompt and the fields.
            **fields: Values of the templates' fields.
        """
        if task is None:
            given_fields = {*fields, "instruction"} if prompt else set(fields)
            query_fields = self.fields("query") - self.fields()
            task = "query" if given_fields & query_fields else self.default_task
        if task not in self.templates[0]:
            raise ValueError(
                f"task={task!r} is not known. Choose from {', '.join(self.templates[0])}."
            )
        known_fields = self.fields(task)
        for name in sorted(set(fields) - known_fields):
            raise ValueError(
                f"{name}={fields[name]!r}: the template has only {sorted(known_fields)}."
            )
        values = {"instruction": prompt or self.instruction, **fields}
        for name in sorted(known_fields):
            if not values.get(name) or not isinstance(values[name], str):
                raise ValueError(
                    f"The template's {{{name}}} needs one text: encode(…, {name}='…')."
                )
        # Computed anew each time: parts of a tokenizer can be replaced unnoticed.
        special = special_tokens(self.text_tokenizer)
        templates = [by_task[task] for by_task in self.templates]
        return tuple(
            make_row_layout(self.text_tokenizer, template, special, prompt or "", values)
            for template in templates
        )

    def budget(
        self,
        prompt: str | None = None,
        task: str | None = None,
        **fields: str,
    ) -> int | None:
        """Content tokens that a copy holds, ⌊(max_seq_length − overhead) / k⌋; None: no limit. See `row_layouts`."""
        limit = self._position_limit()
        if limit is None:
            return None
        return self._room(limit, self.row_layouts(prompt, task, **fields))

    def _position_limit(self) -> float | None:
        """The most positions that a row may have; None: no limit."""
        limit: Any = self.text_tokenizer.model_max_length
        if not isinstance(limit, (int, float)):
            raise ValueError(f"max_seq_length={limit!r} is not a number of positions.")
        if limit > 1e12:  # transformers' way of saying that there is none
            return self.position_count or None
        if limit > self.position_count > 0:
            raise ValueError(
                f"max_seq_length={limit} is more than the model's {self.position_count} positions. Lower it."
            )
        return limit

    def _room(self, limit: float, layouts: Sequence[RowLayout]) -> int:
        room = int(min((limit - layout.overhead) // layout.copies for layout in layouts))
        if room < 1:
            taken = max(layout.overhead for layout in layouts)
            raise ValueError(
                f"max_seq_length={limit} leaves no room for {self.copies} × a text: template and prompt take {taken} "
                "positions. Shorten them, or raise it."
            )
        return max(1, room // 2) if self.compute_matched else room

    def tokenize_content(self, texts: Sequence[str], *, offsets: bool = False) -> Features:
        """Token ids of texts as content, never cut; with ``offsets`` each token's characters, as ``offset_mapping``."""
        for text in texts:
            if not isinstance(text, str):
                raise ValueError(f"An input is not a text but {type(text).__name__}: {text!r:.80}.")
        return tokenize(self.text_tokenizer, texts, offsets=offsets)

    def preprocess(  # type: ignore[override]
        self,
        inputs: Sequence[Any],
        prompt: str | None = None,
        *,
        task: str | None = None,
        **fields: Any,
    ) -> Features:
        """Tokenize each text once and place its copies; ``prompt``, ``task`` and ``fields`` as for `row_layouts`.

        Returns:
            ``input_ids``, ``attention_mask``, ``copy_ids`` [B, T] int64, padded on the right, and
            ``spans``, a list of B; with P templates B·P rows, those of a text one after another.
            Where a module needs them, ``content_ids`` [B, C] int64: all tokens of each text.
        """
        fields = {name: value for name, value in fields.items() if value is not None}
        limit = self._position_limit()  # first, as a tokenizer may fail at a wrong one
        layouts = self.row_layouts(prompt, task, **fields)
        budget = None if limit is None else self._room(limit, layouts)
        contents = self.tokenize_content(inputs)["input_ids"]
        reversed_contents = contents
        if any(layout.is_reversed for layout in layouts):
            reversed_texts = list(map(extensions.reverse_words, inputs))
            reversed_contents = self.tokenize_content(reversed_texts)["input_ids"]
        longest = max(map(len, contents), default=0)
        if budget is not None and longest > budget and not self.has_reported_cut:
            self.has_reported_cut = True
            logger.warning(
                "A text of %d tokens was cut to %d per copy. Further cuts are not reported.",
                longest,
                budget,
            )
        rows = []
        for token_ids, reversed_ids in zip(contents, reversed_contents, strict=True):
            for layout in layouts:
                if not layout.is_reversed:
                    content = token_ids[:budget]
                else:  # the text's end is cut, which is the beginning of the reversed text
                    content = reversed_ids if budget is None else reversed_ids[-budget:]
                rows.append(layout.build_row(content or [empty_text_token(self.text_tokenizer)]))
        features = pad(rows)
        check_token_ids(features["input_ids"], self.model)
        if self.adds_content_ids:
            features["content_ids"] = extensions.pad_content(contents, self.model)
        return features

    def forward(
        self,
        features: Features,
        capture: Capture | None = None,
        **kwargs: object,
    ) -> Features:
        """Run the decoder.

        Args:
            features: What `preprocess` gives; not changed.
            capture: Rows of A^new to keep, in place of those that the pooling asks for.
            **kwargs: Ignored.

        Returns:
            The features with ``token_embeddings`` [B, T, d], zero at padding; ``attention_mask``,
            now the positions that ``Pooling`` sees; and ``backward_attention`` [B, R, T] if rows of
            A^new are captured.
        """
        capture = capture or self.requested_capture
        if len(features.get("spans") or ()) != len(features["attention_mask"]):
            # Another package's code split the batch, or passed on the tensors alone.
            features = {**features, "spans": spans_of(features)}
        if capture is None or capture.chunk_plan is None:
            return self._run(features, capture)
        chunk_outputs = []
        for chunks, chunk_features in capture.chunk_plan.batches(features, self.position_count):
            chunk_outputs.append((chunks, self._run(chunk_features, capture)))
        return {**self._run(features, None), "capture": capture, "chunk_outputs": chunk_outputs}

    def train(self, mode: bool = True) -> RepeatTransformer:
        """Change between training and inference, as `encode` does before the first batch; changes are counted."""
        self.mode_changes += 1
        return super().train(mode)

    def pass_hooks(self, capture: Capture | None) -> list[PassHook]:
        """The hooks of a pass: their before_layers run in this order, their after_layers in reverse."""
        return [hook for hook in (capture, self.reader) if hook is not None]

    def can_share(self, hooks: Sequence[PassHook] | None = None) -> bool:
        """Whether rows may share a prefix in passes with these ``hooks``, as `build` tried."""
        if hooks is None:
            hooks = self.pass_hooks(self.requested_capture)
        read_by_position = all(getattr(hook, "by_position", False) for hook in hooks)
        return self.causal and self.shares_prefix and read_by_position

    def run_pass(
        self,
        features: Features,
        hooks: Sequence[PassHook],
        model_arguments: Mapping[str, object] | None = None,
    ) -> Tensor:
        """Hidden states [B, T, d] of one pass of the decoder; ``features`` gets what hooks hand to the pooling."""
        forward_pass = ForwardPass(self.model, features)
        for hook in hooks:
            hook.before_layers(forward_pass)
        mask = features["attention_mask"]
        # In a causal model, padding after a text affects no real token, and attention without a
        # mask is fastest. (The masks of a NoSinkTransformer hide padding themselves.)
        inputs: Features = {
            "input_ids": features["input_ids"],
            "attention_mask": torch.ones_like(mask) if self.causal else mask,
            **forward_pass.model_arguments,
            **(model_arguments or {}),
        }
        with running(forward_pass):
            output = super().forward(inputs)
        hidden_states: Tensor = output["token_embeddings"]
        for hook in reversed(hooks):
            hidden_states = hook.after_layers(forward_pass, hidden_states)
        features.update(forward_pass.pooling_features)
        return hidden_states

    def _run(self, features: Features, capture: Capture | None) -> Features:
        result = dict(features)
        hooks = self.pass_hooks(capture)
        if self.training and IS_INSTALLED:
            extensions.check_adapter(self)
            extensions.checkpoint_in_pass(self.model, hooks)
        hidden_states: Tensor | None = None
        if extensions.has("run_shared"):
            hidden_states = extensions.run_shared(self, features, hooks)
        if hidden_states is None:
            hidden_states = self.run_pass(result, hooks)
        attention_mask = features["attention_mask"]
        if any(span.row_length < attention_mask.shape[1] for span in features["spans"]):
            hidden_states = hidden_states.masked_fill(attention_mask[:, :, None] == 0, 0.0)
        result["capture"] = capture
        result["token_embeddings"] = hidden_states
        result["attention_mask"] = self._pooled_positions(features).to(attention_mask.dtype)
        precision = torch.promote_types(hidden_states.dtype, torch.float32)
        is_finite = hidden_states.detach().sum(dim=(1, 2), dtype=precision).isfinite()
        if capture is not None and capture.zeroes_nonfinite_texts:
            for name in ("token_embeddings", "backward_attention"):
                result[name] = result[name].masked_fill(~is_finite[:, None, None], 0.0)
        elif not bool(is_finite.all()):  # bool() waits for the device, as little else does
            self._check_finite(hidden_states, features)
        return result

    def _check_finite(self, hidden_states: Tensor, features: Features) -> None:
        bad_rows = (~hidden_states.isfinite().flatten(1).all(dim=1)).nonzero()
        if len(bad_rows):  # else the sum alone was too large
            row = int(bad_rows[0])
            token_ids = features["input_ids"][row][features["copy_ids"][row] == 1].tolist()
            text = self.text_tokenizer.decode(token_ids)[:80]
            raise ValueError(
                f"The model gave NaN or infinity for the text {text!r}. Load it in float32 or bfloat16."
            )

    def _pooled_positions(self, features: Features) -> Tensor:
        """The positions that are pooled, [B, T] bool."""
        real_tokens = features["attention_mask"].bool()
        row_lengths = torch.tensor([[span.row_length] for span in features["spans"]])
        row_lengths = row_lengths.to(real_tokens.device, non_blocking=True)
        suffix_length = 0
        if self.pooled == "last_copy_and_end":
            suffix_length = len(special_tokens(self.text_tokenizer)[1])
        copy_ids = features["copy_ids"]
        return pooled_positions(
            self.pooled, self.copies, copy_ids, real_tokens, row_lengths, suffix_length
        )

    def get_embedding_dimension(self) -> int:
        """Dimension d of the hidden states; for joined layers, of all together."""
        return int(super().get_embedding_dimension()) * getattr(self.reader, "width_factor", 1)

    def on_model_ready(self, model: Any) -> None:
        """Note what the pipeline's modules need, and refuse a pipeline that makes no vector of a text."""
        super().on_model_ready(model)
        class_names = [type(module).__name__ for module in model]
        self._pipeline = [module for module in model.modules() if hasattr(module, "on_model_ready")]
        reads_content = [getattr(module, "reads_content", False) for module in self._pipeline]
        self.adds_content_ids = any(reads_content)
        is_embedder = model[0] is self and hasattr(model, "encode_query")
        if is_embedder and _NO_POOLING.issuperset(class_names[1:]):
            first_name = class_names[0]
            raise ValueError(
                f"modules.json: no pooling follows {first_name}. Copy all files of the model, or add one."
            )
        if self.template_count > 1 and "PromptEnsemble" not in class_names:
            raise ValueError(
                f"A text has {self.template_count} templates, so PromptEnsemble must follow the pooling."
            )
        _drop_folder_section(model)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self.model).__name__}, {self.get_config_dict()})"

    @classmethod
    def load_config(cls, model_name_or_path: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The stored configuration; an error where it is incomplete."""
        config: dict[str, Any] = super().load_config(model_name_or_path, *args, **kwargs)
        for key in sorted(set(cls.config_keys) - set(Transformer.config_keys) - set(config)):
            raise ValueError(
                f"sentence_bert_config.json is missing or lacks {key}. Copy all files."
            )
        return config

    @classmethod
    def load(cls, model_name_or_path: str, *args: Any, **kwargs: Any) -> RepeatTransformer:
        """Load a saved module; an error where the weights do not fill the configuration."""
        loaded: RepeatTransformer = super().load(model_name_or_path, *args, **kwargs)
        has_adapter = getattr(loaded.model, "_hf_peft_config_loaded", False)
        for report in ("missing_keys", "mismatched_keys", "unexpected_keys"):
            for weight_name in sorted(map(str, loaded.loading_report.get(report) or ())):
                # Some versions of transformers drop an adapter's weights, and make new ones.
                if not has_adapter or "lora_" in weight_name:
                    problem = f"{report}: {weight_name}"
                    raise ValueError(
                        f"The weights do not fit config.json: {problem}. Copy all files of the model."
                    )
        return loaded

    def _load_model(self, *args: Any, **kwargs: Any) -> Any:
        _, _, config, backend, *_ = args
        # Private in sentence-transformers: the one place to see how weights are stored, and which
        # are missing.
        text_config = config.get_text_config() if hasattr(config, "get_text_config") else config
        self.stored_dtype = getattr(text_config, "dtype", None) or getattr(config, "dtype", None)
        if backend == "torch":
            kwargs.setdefault("output_loading_info", True)
        model: Any = super()._load_model(*args, **kwargs)
        if isinstance(model, tuple):
            model, self.loading_report = model
        for module in model.modules():
            if hasattr(module, "support_avx512bf16_for_cpu"):
                # bitsandbytes packs 4-bit weights for such CPUs, and saving breaks packed ones.
                module.support_avx512bf16_for_cpu = False
        return model

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Save the module and its code; where st_reba is installed, weights keep the base's number type."""
        if IS_INSTALLED:
            extensions.check_adapter(self)
        with extensions.stored_as(self.model, self.stored_dtype) if IS_INSTALLED else nullcontext():
            super().save(output_path, *args, **kwargs)
        root = Path(output_path)
        config_name = "config_sentence_transformers.json"
        if not (root / config_name).is_file() and (root.parent / config_name).is_file():
            root = root.parent  # a Router keeps its modules in folders of the repository
        code_file = root / "st_reba.py"
        if IS_INSTALLED:
            code_file.write_text(extensions.code_of(self._pipeline), encoding="utf-8")
        elif code_file.resolve() != Path(__file__).resolve():
            shutil.copyfile(__file__, code_file)
        if not (root / config_name).is_file():
            return
        config = json.loads((root / config_name).read_text(encoding="utf-8"))
        config["requirements"] = dict(REQUIREMENTS)
        if "bitsandbytes" in str(getattr(self.config, "quantization_config", "")):
            config["requirements"]["bitsandbytes"] = ">=0.45"
        config_text = json.dumps(config, indent=2, sort_keys=True)
        (root / config_name).write_text(config_text, encoding="utf-8")


def _drop_folder_section(model: Any) -> None:
    # Private in sentence-transformers: the folder's card, which it copies into every new folder.
    card_text = getattr(model, "_model_card_text", None) or ""
    before_folder, _, from_folder = card_text.partition(CARD_MARKS[0])
    after_folder = from_folder.partition(CARD_MARKS[1])[2]
    if after_folder:
        model._model_card_text = before_folder + after_folder.lstrip()
