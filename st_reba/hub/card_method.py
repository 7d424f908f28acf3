"""What a card says of the method: where a text stands in the input, and how its vector is computed from there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from shlex import quote
from typing import Any, TypeAlias, cast

import yaml
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize

from ..encode import prompt_name_of, saved_prompt, transformer_of
from ..methods import (
    METHODS,
    OPTIONS,
    Method,
    MutableOptions,
    method_of,
    open_fields,
    write_value,
)
from ..modules import (
    ChunkedReBAPooling,
    PromptEnsemble,
    QueryShift,
    TokenPart,
)
from ..modules.layout import TASKS, empty_text_token, special_tokens
from ..modules.masks import MASKS
from ..modules.nosink import NoSinkTransformer
from ..modules.transformer import RepeatTransformer
from ..named_base import KWARGS_OPTIONS
from ..poolings import POSITIONS
from .card_base import BaseDescription, loading_record

# Of a field that gets its value with the text.
_ANY_VALUE = "…"
_IN_FRONT = "before all else but the special tokens"
_TASK_WORDS = {
    "document": "a document",
    "query": "a query",
    "similarity": "a text given to `encode`",
}

Templates: TypeAlias = "dict[str, list[str]]"


@dataclass(frozen=True)
class TaskLimits:
    """How long the input of a task is, and may be.

    Args:
        subject: The task's texts, such as ``"a query"``.
        overhead: Positions besides the text's copies.
        longest_text: Tokens of the longest text; None: there is no limit.
    """

    subject: str
    overhead: int
    longest_text: int | None


@dataclass(frozen=True)
class InputDescription:
    """Where a text stands in the input.

    Args:
        copy_count: Copies of a text, or of each of its pieces.
        row_count: Inputs that a text makes: one for each template.
        chunk_length: The most tokens of a piece; None: the text is not cut into pieces.
        templates: The templates of each task, with ``{names}`` where something is put in.
        is_bare: No template stands around the text.
        layout_lines: What stands before, between and after the copies, in sentences.
        document_arguments, query_arguments: What ``encode_document`` and ``encode_query`` need for
            fields, as code.
        limits: Of every text; or, where tasks have wordings of their own, of a document, a query
            and perhaps a text given to ``encode``.
        max_positions: Of the input.
        empty_token: What a text without a token is read as; None: such a text is refused.
    """

    copy_count: int
    row_count: int
    chunk_length: int | None
    templates: Templates
    is_bare: bool
    layout_lines: list[str]
    document_arguments: str
    query_arguments: str
    limits: list[TaskLimits]
    max_positions: int | None
    empty_token: str | None

    @property
    def has_one_wording(self) -> bool:
        """Whether queries, documents and other texts have the same templates."""
        return have_one_wording(self.templates)


@dataclass(frozen=True)
class MethodDescription:
    """How a text's vector is computed.

    Args:
        method: As it was built; None: its modules were put together by hand.
        summary: The method in one sentence.
        states: What v_t is.
        uses_attention: The formula names the attention A.
        formula: Lines, from v_t to the vector.
        masks: The masks of the layers, in runs.
        mask_descriptions: What a token sees, by the mask's name.
        looks_ahead: A layer sees later tokens that it does not see in the base.
        sink: What the sink is, and whether it is pooled; None: nothing is hidden.
        options: The help of each option that is not at its default.
        recipe: YAML that builds the model.
        settings: ``name=value`` of each option that no recipe holds, for ``st-reba build --set``.
        python_options: Options that changed the model, and that neither a recipe nor a command holds.
        citations: Keys of the papers.
    """

    method: Method | None
    summary: str
    states: str
    uses_attention: bool
    formula: list[str]
    masks: str
    mask_descriptions: Mapping[str, str]
    looks_ahead: bool
    sink: str | None
    options: Mapping[str, str]
    recipe: str
    settings: list[str]
    python_options: list[str]
    citations: list[str]


def have_one_wording(templates: Templates) -> bool:
    document_templates = templates["document"]
    return all(template == document_templates for template in templates.values())


def written_templates(transformer: RepeatTransformer) -> Templates:
    """The templates of each task, as text with ``{names}`` where something is put in."""
    templates: Templates = {}
    for row_templates in transformer.templates:
        for task, template in row_templates.items():
            written_text = ""
            for literal, field_name in template:
                written_text += literal
                if field_name is not None:
                    written_text += f"{{{field_name}}}"
            templates.setdefault(task, []).append(written_text)
    return templates


def saved_prompts(model: SentenceTransformer) -> dict[str, str]:
    """The prompts of a model that are not empty."""
    return {name: prompt for name, prompt in model.prompts.items() if prompt}


def fields_given_with_texts(model: SentenceTransformer, task: str) -> list[str]:
    """The fields of a task's templates that get their values with each text.

    The others have saved values: a prompt is that of ``{instruction}``. Where ``encode`` has no
    templates of its own, ``"similarity"`` means those that it uses.
    """
    template_task = task if task in transformer_of(model).templates[0] else None
    return open_fields(model, template_task, saved_prompt(model, task))


def filled_fields(model: SentenceTransformer, task: str) -> dict[str, str]:
    """Values of the fields of a task's templates: the saved prompt, and any value for what comes with a text."""
    values = dict.fromkeys(fields_given_with_texts(model, task), _ANY_VALUE)
    prompt = saved_prompt(model, task)
    if prompt and "instruction" in transformer_of(model).fields(task):
        values["instruction"] = prompt
    return values


def whole_dimension(model: SentenceTransformer) -> int:
    """The dimension of the vectors before `truncate_dim` cuts them."""
    with model.truncate_embeddings(None):
        return int(model.get_embedding_dimension() or 0)


def is_cut(model: SentenceTransformer) -> bool:
    """Whether `truncate_dim` cuts dimensions off."""
    return model.truncate_dim is not None and model.truncate_dim < whole_dimension(model)


def describe_input(model: SentenceTransformer) -> InputDescription:
    """Describe where a text stands in the input of a model of this package."""
    transformer = transformer_of(model)
    templates = written_templates(transformer)
    bare_template = ["{text}" * transformer.copies]
    is_bare = all(template == bare_template for template in templates.values())
    copy_count = transformer.copies
    chunk_length = None
    for module in model:
        if isinstance(module, ChunkedReBAPooling):
            copy_count = module.repeats
            chunk_length = module.chunk
    return InputDescription(
        copy_count=copy_count,
        row_count=transformer.rows,
        chunk_length=chunk_length,
        templates=templates,
        is_bare=is_bare,
        layout_lines=list(_layout_lines(model, templates, is_bare=is_bare)),
        document_arguments=_written_arguments(model, "document"),
        query_arguments=_written_arguments(model, "query"),
        limits=_describe_limits(model, templates),
        max_positions=model.max_seq_length,
        empty_token=_empty_token(transformer),
    )


def quoted(text: str) -> str:
    """A text in quotation marks, its line ends and quotation marks escaped."""
    return json.dumps(text, ensure_ascii=False)


def _written_arguments(model: SentenceTransformer, task: str) -> str:
    written_arguments = ""
    for field_name in fields_given_with_texts(model, task):
        written_arguments += f", {field_name}={quoted(_ANY_VALUE)}"
    return written_arguments


def _layout_lines(
    model: SentenceTransformer, templates: Templates, *, is_bare: bool
) -> Iterator[str]:
    transformer = transformer_of(model)
    if transformer.own_input:
        yield "The input is made as the base's own sentence-transformers model makes it."
        return
    yield _special_token_line(transformer)
    if not is_bare:
        yield from _template_lines(templates)
    encoder = _encoder_with_prompt_in_front(transformer)
    if encoder is not None and transformer.pooled != "all":
        sentence = f"A prompt that is given to `{encoder}` stands {_IN_FRONT}"
        yield f"{sentence}; it is seen, and not pooled."
    for prompt_name, prompt in saved_prompts(model).items():
        prompt_position = _prompt_position(transformer, _tasks_of_prompt(model, prompt_name))
        is_default = prompt_name == model.default_prompt_name
        by_default = ", the default" if is_default else ""
        yield f"Prompt `{prompt_name}`{by_default}, {prompt_position}: `{quoted(prompt)}`."


def _encoder_with_prompt_in_front(transformer: RepeatTransformer) -> str | None:
    """What takes a prompt that stands in front of the input; None: all templates have a place for it."""
    if "instruction" not in transformer.forward_kwargs:
        return "encode"
    for task in TASKS:
        if "instruction" not in transformer.fields(task):
            return f"encode_{task}"
    return None


def _tasks_of_prompt(model: SentenceTransformer, prompt_name: str) -> list[str]:
    """The tasks whose texts get a saved prompt, as those that `encode` takes with it."""
    transformer = transformer_of(model)
    tasks = [task for task in TASKS if prompt_name_of(model, task) == prompt_name]
    if prompt_name == model.default_prompt_name or not tasks:
        # As `RepeatTransformer.row_layouts` chooses the template for `encode`.
        only_queries_have_it = "instruction" in transformer.fields("query") - transformer.fields()
        tasks.append("query" if only_queries_have_it else transformer.default_task)
    return tasks


def _prompt_position(transformer: RepeatTransformer, tasks: Sequence[str]) -> str:
    have_field = ["instruction" in transformer.fields(task) for task in tasks]
    if all(have_field):
        return "where the template has `{instruction}`"
    if any(have_field):
        return f"where a template has `{{instruction}}`, and else {_IN_FRONT}"
    return _IN_FRONT


def _special_token_line(transformer: RepeatTransformer) -> str:
    tokens_before, tokens_after = special_tokens(transformer.text_tokenizer)
    if not tokens_before and not tokens_after:
        return "The tokenizer adds no special tokens."
    names_before = _token_list(transformer, tokens_before)
    names_after = _token_list(transformer, tokens_after)
    return f"The tokenizer puts {names_before} before the input, and {names_after} after it."


def _template_lines(templates: Templates) -> Iterator[str]:
    subjects = _TASK_WORDS
    if have_one_wording(templates):
        subjects = {"document": "every text"}
        templates = {"document": templates["document"]}
    for task, task_templates in templates.items():
        alternatives = [f"`{quoted(template)}`" for template in task_templates]
        subject = subjects[task].capitalize()
        yield f"{subject} is laid out, in JSON's notation, as {', and as '.join(alternatives)}."


def _describe_limits(model: SentenceTransformer, templates: Templates) -> list[TaskLimits]:
    """The limits of each task, documents first; of all texts, if their templates are the same."""
    if have_one_wording(templates):
        return [_limits_of(model, "document", "a text")]
    return [
        _limits_of(model, task, subject)
        for task, subject in _TASK_WORDS.items()
        if task in templates
    ]


def _limits_of(model: SentenceTransformer, task: str, subject: str) -> TaskLimits:
    transformer = transformer_of(model)
    field_values = filled_fields(model, task)
    features = transformer.preprocess(["a"], task=task, **field_values)
    is_around = features["attention_mask"].bool() & (features["copy_ids"] == 0)
    overhead = int(is_around.sum(dim=1).max())
    return TaskLimits(subject, overhead, transformer.budget(None, task, **field_values))


def _token_list(transformer: RepeatTransformer, token_ids: Sequence[int]) -> str:
    names = transformer.text_tokenizer.convert_ids_to_tokens(list(token_ids))
    if not names:
        return "nothing"
    # A stranger's tokenizer may hold anything.
    written_names = ["".join(name.replace("`", "'").split()) for name in names]
    return f"`{'`, `'.join(written_names)}`"


def _empty_token(transformer: RepeatTransformer) -> str | None:
    try:
        token_id = empty_text_token(transformer.text_tokenizer)
    except ValueError:
        return None
    return _token_list(transformer, [token_id])


def describe_method(model: SentenceTransformer, base: BaseDescription) -> MethodDescription:
    """Describe what a model of this package computes."""
    transformer = transformer_of(model)
    method = method_of(model)
    mask_names = _mask_names(transformer)
    return MethodDescription(
        method=method,
        summary=METHODS[method.name] if method else "modules put together by hand",
        states=_describe_states(model),
        uses_attention=method is not None and method.name == "reba",
        formula=_formula(model, method),
        masks=_describe_masks(transformer),
        mask_descriptions={
            name: MASKS[name].description.format(m=transformer.m) for name in mask_names
        },
        looks_ahead=not all(MASKS[name].is_causal for name in mask_names),
        sink=_describe_sink(model, mask_names),
        options=_option_help(model, method),
        recipe=_recipe(model, base, method),
        settings=_settings(model),
        python_options=_python_options(transformer),
        citations=_citations(method, mask_names),
    )


def _recipe_options(model: SentenceTransformer, method: Method) -> MutableOptions:
    """The name and the options of a method that a recipe can hold.

    ``filter`` is dropped: in a model with a filter, it describes the fit and does not name a file.
    """
    options = method.to_dict()
    options.pop("filter", None)
    transformer = transformer_of(model)
    if _has_another_length(transformer) and not transformer.own_input:
        options["max_seq_length"] = transformer.max_seq_length
    return options


def _has_another_length(transformer: RepeatTransformer) -> bool:
    """Whether ``max_seq_length`` is not what the base and the method make it."""
    record = loading_record(transformer)
    return bool(record) and record.get("max_seq_length") != transformer.max_seq_length


def _settings(model: SentenceTransformer) -> list[str]:
    settings: dict[str, object] = {}
    if is_cut(model):
        settings["truncate_dim"] = model.truncate_dim
    if model.default_prompt_name in saved_prompts(model):
        settings["default_prompt_name"] = model.default_prompt_name
    if model.similarity_fn_name != "cosine":
        settings["similarity_fn_name"] = str(model.similarity_fn_name)
    return [quote(f"{name}={write_value(value)}") for name, value in settings.items()]


def _python_options(transformer: RepeatTransformer) -> list[str]:
    recorded_options = loading_record(transformer).get("python_options") or ()
    python_options = [name for name in KWARGS_OPTIONS if name in recorded_options]
    if _has_another_length(transformer) and transformer.own_input:
        python_options.append("max_seq_length")
    return python_options


def _option_help(model: SentenceTransformer, method: Method | None) -> dict[str, str]:
    if method is None:
        return {}
    option_help: dict[str, str] = {}
    for option_name in _recipe_options(model, method):
        if option_name in OPTIONS:
            # The other choices follow a colon or semicolon.
            option_help[option_name] = re.split("[:;]", OPTIONS[option_name])[0]
    return option_help


def _recipe(model: SentenceTransformer, base: BaseDescription, method: Method | None) -> str:
    if method is None:
        return ""
    options = _recipe_options(model, method)
    values = {
        "base": base.recipe_name,
        "revision": base.base_revision,
        "tokenizer": base.tokenizer,
        "quantization": base.recipe_quantization,
        "method": options.pop("name"),
        **options,
        "gguf_file": base.gguf_file,
        "prompts": saved_prompts(model),
    }
    stated = {name: value for name, value in values.items() if value not in (None, {})}
    return str(yaml.safe_dump(stated, sort_keys=False, allow_unicode=True, width=120))


def _citations(method: Method | None, mask_names: Sequence[str]) -> list[str]:
    keys: list[str] = []
    if method is not None and method.name in ("reba", "echo", "prompteol"):
        keys.append(method.name)
    if mask_names:
        keys.append("nosink")
    return keys


def _describe_states(model: SentenceTransformer) -> str:
    transformer = transformer_of(model)
    reading = transformer.reading
    if reading is None:
        return "the model's last hidden state"
    lowest, highest = reading["first"], reading["last"]
    if reading["of"] == "attention":
        mean = f"the mean of the attention outputs of layers {lowest} to {highest}"
        # Only a pass shows whether norms follow.
        field_values: dict[str, Any] = dict.fromkeys(
            fields_given_with_texts(model, "document"), _ANY_VALUE
        )
        model.encode_document("a", show_progress_bar=False, **field_values)
        if not transformer.reader.has_norms:
            return mean
        normed_mean = "their mean after the norms that follow them"
        return f"the sum of two unit vectors: that of {mean}, and that of {normed_mean},"
    if lowest != highest:
        combination = {"mean": "mean", "concat": "concatenation"}[reading["join"]]
        return f"the {combination} of the hidden states of layers {lowest} to {highest}, each divided by its length,"
    if reading["final_norm"]:
        return f"the hidden state of layer {lowest}"
    return f"the hidden state of layer {lowest}, before the final norm,"


def _formula(model: SentenceTransformer, method: Method | None) -> list[str]:
    """Lines from v_t to the vector; none for modules that were put together by hand."""
    if method is None:
        return []
    transformer = transformer_of(model)
    *lines, pooled = _pooling_formula(transformer, method)
    steps = [pooled, *_later_steps(model)]
    for number, step in enumerate(steps, start=1):
        is_last = number == len(steps)
        symbol = "text" if is_last else "s"
        lines.append(f"{symbol:<5} = {step}")
    return lines


def _pooling_formula(transformer: RepeatTransformer, method: Method) -> list[str]:
    """Lines of the formula up to the pooled vector, which the last line gives."""
    if transformer.own_input:
        return ["what the base's own pooling makes of all v_t"]
    positions = POSITIONS[transformer.pooled][transformer.copies > 1]
    if transformer.pooled == "end":
        return [f"v_T, T {positions}"]
    return method.pooling_spec.describe(method, positions)


def _later_steps(model: SentenceTransformer) -> Iterator[str]:
    """What the modules after the pooling do with the vector s, and what is cut off in the end."""
    for module in model:
        if isinstance(module, PromptEnsemble):
            weights = ", ".join(f"{weight:.4g}" for weight in module.weights)
            vectors = "s_p / |s_p|" if module.equal_norms else "s_p"
            yield f"Σ_p w_p · {vectors}, s_p the s of template p, w = ({weights})"
        elif isinstance(module, Dense):
            yield "W s, the linear map of the filter"
        elif isinstance(module, QueryShift):
            yield "s + q for a query, s for all else; q is a fixed vector"
        elif isinstance(module, TokenPart):
            yield (
                f"(s, √{module.share:g} · t) / √{1 + module.share:g}, t of length 1, "
                "from the mean embedding of the text's tokens"
            )
        elif isinstance(module, Normalize):
            yield "s / |s|"
    if is_cut(model):
        yield f"the first {model.truncate_dim} dimensions of s"


def _mask_names(transformer: RepeatTransformer) -> list[str]:
    """The names of the masks that a model has, each once, from the bottom."""
    second_masks = [mask for _, mask in transformer.second]
    return list(dict.fromkeys([*transformer.layer_masks, *second_masks]))


def _describe_masks(transformer: RepeatTransformer) -> str:
    """Masks of the layers, in runs, such as ``1-4 forward``, with the layers that run twice."""
    runs: list[str] = []
    layer = 0
    for mask, layers in groupby(transformer.layer_masks):
        first_layer = layer + 1
        layer += len(list(layers))
        numbers = f"{first_layer}-{layer}" if layer > first_layer else f"{layer}"
        runs.append(f"{numbers} {mask}")
    second_runs = [f"{layer + 1} {mask}" for layer, mask in transformer.second]
    if second_runs:
        architecture = cast(NoSinkTransformer, transformer).architecture
        runs.append(f"run again ({architecture}): {', '.join(second_runs)}")
    return "; ".join(runs)


def _describe_sink(model: SentenceTransformer, mask_names: Sequence[str]) -> str | None:
    """What the sink is in this model's inputs, and whether it is pooled."""
    transformer = transformer_of(model)
    hides_sink = any(MASKS[name].hides_sink for name in mask_names)
    sink_length = transformer.m
    if not hides_sink or not sink_length:
        return None
    sink = "first token of the input"
    if sink_length > 1:
        sink = f"first {sink_length} tokens of the input"
    sink_sentence = f"The sink, on which decoders concentrate their attention, is the {sink}"
    if transformer.own_input:
        return f"{sink_sentence}. The base's own pooling takes it as it takes any token."
    field_values = filled_fields(model, "document")
    features = transformer.preprocess(["a"], task="document", **field_values)
    text_start = features["spans"][0].start
    if text_start < sink_length:
        is_among = "that is" if sink_length == 1 else "among them is"
        return (
            f"{sink_sentence}. Without a prompt, {is_among} the text's own first token, which is"
            " pooled as its other tokens are."
        )
    token_names = _token_list(transformer, features["input_ids"][0, :sink_length].tolist())
    pooled = "is pooled as all positions are" if transformer.pooled == "all" else "is not pooled"
    return f"{sink_sentence}, here {token_names}, which stands before the text. It {pooled}."
