"""What a card says of the method: where a text stands in the input, and how its vector is computed from there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeAlias, cast

from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import nn

from ..encode import prompt_name_of, saved_prompt, transformer_of
from ..methods import (
    METHOD_SOURCES,
    METHODS,
    Method,
    method_of,
    open_fields,
)
from ..modules import (
    AuthorsReBAPooling,
    ChunkedReBAPooling,
    PromptEnsemble,
    QueryShift,
    TokenPart,
)
from ..modules.code import has_reversed_text
from ..modules.layout import TASKS, empty_text_token, special_tokens
from ..modules.masks import MASKS
from ..modules.nosink import NoSinkTransformer
from ..modules.transformer import RepeatTransformer
from ..poolings import POSITIONS
from .card_base import BaseDescription, is_cut, saved_prompts
from .card_recipe import describe_options, python_options_of, settings_of, written_recipe

# Stands for the value of a field that is given with each text.
_ANY_VALUE = "…"
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
        template_count: Templates that each text is put into, one input each.
        chunk_length: The most tokens of a piece; None: the text is not cut into pieces.
        repeats_last_chunk_only: Only the last piece of a text is read again.
        is_of_base: The base's own sentence-transformers model makes the input.
        templates: The templates of each task, with ``{names}`` where something is put in.
        is_bare: No template stands around the text.
        tokenization: How a text becomes its copies, in sentences; empty: as the base has it.
        layout_lines: What stands before, between and after the copies, in sentences.
        document_arguments, query_arguments: What ``encode_document`` and ``encode_query`` need for
            fields, as code.
        limits: Of every text; or, where tasks have wordings of their own, of a document, a query
            and perhaps a text given to ``encode``.
        max_positions: Of the input.
        empty_token: What a text without a token is read as; None: such a text is refused.
    """

    copy_count: int
    template_count: int
    chunk_length: int | None
    repeats_last_chunk_only: bool
    is_of_base: bool
    templates: Templates
    is_bare: bool
    tokenization: str
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
        summary: The method in a few words.
        source: The paper that it comes from, or a part of it; None: it has no paper of its own.
        states: What v_t is.
        uses_attention: The formula names the attention A.
        uses_content_positions: The formula names content positions.
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
    source: str | None
    states: str
    uses_attention: bool
    uses_content_positions: bool
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


def describe_input(model: SentenceTransformer) -> InputDescription:
    """Describe where a text stands in the input of a model of this package."""
    transformer = transformer_of(model)
    templates = written_templates(transformer)
    bare_template = ["{text}" * transformer.copies]
    is_bare = all(template == bare_template for template in templates.values())
    copy_count = transformer.copies
    chunk_length = None
    repeats_last_chunk_only = False
    for module in model:
        if isinstance(module, ChunkedReBAPooling):
            copy_count = module.repeats
            chunk_length = module.chunk
            repeats_last_chunk_only = module.pooling == "last"
    return InputDescription(
        copy_count=copy_count,
        template_count=transformer.template_count,
        chunk_length=chunk_length,
        repeats_last_chunk_only=repeats_last_chunk_only,
        is_of_base=transformer.own_input,
        templates=templates,
        is_bare=is_bare,
        tokenization=_describe_tokenization(transformer, is_bare=is_bare),
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


def _describe_tokenization(transformer: RepeatTransformer, *, is_bare: bool) -> str:
    """How a text becomes its copies; with the whole row, where no template stands around them."""
    if transformer.own_input:
        return ""
    tokens_before, tokens_after = special_tokens(transformer.text_tokenizer)
    has_rows = transformer.template_count > 1
    parts = [] if is_bare else ["the templates" if has_rows else "the template"]
    parts.append("any prompt")
    if tokens_before or tokens_after:
        parts.append("the special tokens")
    apart = f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else parts[0]
    copy_count = transformer.copies
    times = {1: "once", 2: "twice"}.get(copy_count, f"{copy_count} times")
    subject = "It stands" if has_reversed_text(transformer) else "Its token ids stand"
    place = f"{times} in each input" if has_rows else f"{times} in the input"
    sentence = f"A text of n tokens is tokenized separately from {apart}. {subject} {place}"
    if not is_bare:
        return f"{sentence}."
    row = ["the text"]
    if copy_count > 1:
        row = [f"copy {number}" for number in range(1, copy_count + 1)]
    if copy_count > 3:
        row[2:-1] = ["…"]
    if tokens_before:
        row.insert(0, _token_list(transformer, tokens_before))
    if tokens_after:
        row.append(_token_list(transformer, tokens_after))
    return f"{sentence}{': ' + ', '.join(row) if len(row) > 1 else ''}."


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
    if has_reversed_text(transformer):
        yield "`{reversed}` is the text with its words (in Chinese, its characters) in reverse order."
    encoder = _encoder_with_prompt_in_front(transformer)
    if encoder is not None:
        yield f"A prompt given to `{encoder}` comes {_place_in_front(transformer)}{_pooling_of_prompt(model)}."
    for prompt_name, prompt in saved_prompts(model).items():
        prompt_position = _prompt_position(transformer, _tasks_of_prompt(model, prompt_name))
        is_default = prompt_name == model.default_prompt_name
        by_default = ", the default" if is_default else ""
        yield f"Prompt `{prompt_name}`{by_default}, {prompt_position}: `{quoted(prompt)}`."


def _place_in_front(transformer: RepeatTransformer) -> str:
    """Where a prompt stands for which the template has no place."""
    tokens_before, _ = special_tokens(transformer.text_tokenizer)
    if tokens_before:
        return f"right after {_token_list(transformer, tokens_before)}"
    return "at the very start of the input"


def _pooling_of_prompt(model: SentenceTransformer) -> str:
    """What the pooling does with a prompt in front of the input, to follow its place."""
    modules = list(model)
    if any(isinstance(module, AuthorsReBAPooling) for module in modules):
        return ", and is pooled as all positions are"
    if transformer_of(model).pooled == "all":
        return ""
    sentence = ". It is part of the input, but it is not pooled"
    for index, module in enumerate(modules):
        if isinstance(module, Pooling):
            return f"{sentence}; `include_prompt` in {index}_Pooling/config.json has no effect"
    return sentence


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
    place_in_front = _place_in_front(transformer)
    if any(have_field):
        return f"where a template has `{{instruction}}`, otherwise {place_in_front}"
    return place_in_front


def _special_token_line(transformer: RepeatTransformer) -> str:
    tokens_before, tokens_after = special_tokens(transformer.text_tokenizer)
    if not tokens_before and not tokens_after:
        return "The tokenizer adds no special tokens."
    names_before = _token_list(transformer, tokens_before)
    names_after = _token_list(transformer, tokens_after)
    if not tokens_after:
        return f"The tokenizer starts the input with {names_before} and adds nothing at its end."
    if not tokens_before:
        return f"The tokenizer ends the input with {names_after} and adds nothing at its start."
    return f"The tokenizer starts the input with {names_before} and ends it with {names_after}."


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
    formula = _formula(model, method)
    return MethodDescription(
        method=method,
        summary=METHODS[method.name] if method else "modules put together by hand",
        source=METHOD_SOURCES.get(method.name) if method else None,
        states=_describe_states(model),
        uses_attention=method is not None and method.name == "reba",
        uses_content_positions=any("content positions" in line for line in formula),
        formula=formula,
        masks=_describe_masks(transformer),
        mask_descriptions={
            name: MASKS[name].description.format(m=transformer.m) for name in mask_names
        },
        looks_ahead=not all(MASKS[name].is_causal for name in mask_names),
        sink=_describe_sink(model, mask_names),
        options=describe_options(model, method),
        recipe=written_recipe(model, base, method),
        settings=settings_of(model),
        python_options=python_options_of(transformer),
        citations=_citations(method, mask_names),
    )


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
        return "the model's last hidden state (after the final norm, if it has one)"
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
    lines += [f"s = {step}" for step in steps[:-1]]
    lines.append(f"vector = {steps[-1]}")
    return _aligned(lines)


def _aligned(lines: Sequence[str]) -> list[str]:
    """Lines ``symbol = value`` with their first equals signs below one another, and what continues a line after it."""
    equations = [re.match(r"(\S+) += (.*)", line) for line in lines]
    width = max(len(equation[1]) for equation in equations if equation is not None)
    return [
        f"{equation[1]:<{width}} = {equation[2]}"
        if equation is not None
        else f"{'':<{width}}   {line.strip()}"
        for line, equation in zip(lines, equations, strict=True)
    ]


def _pooling_formula(transformer: RepeatTransformer, method: Method) -> list[str]:
    """Lines of the formula up to the pooled vector, which the last line gives."""
    if transformer.own_input:
        return ["what the base's own pooling makes of all v_t"]
    positions = POSITIONS[transformer.pooled][transformer.copies > 1]
    if transformer.pooled == "end":
        return [f"v_T, T {positions}"]
    return method.pooling_spec.describe(method, positions)


def is_linear(layer: Dense) -> bool:
    """Whether a dense layer has no activation, as that of a filter."""
    return isinstance(layer.activation_function, nn.Identity)


def _later_steps(model: SentenceTransformer) -> Iterator[str]:
    """What the modules after the pooling do with the vector s, and what is cut off in the end."""
    for module in model:
        if isinstance(module, PromptEnsemble):
            weights = ", ".join(f"{weight:.4g}" for weight in module.weights)
            vectors = "s_p / ‖s_p‖₂" if module.equal_norms else "s_p"
            yield f"Σ_p w_p · {vectors}, s_p the s of template p, w = ({weights})"
        elif isinstance(module, Dense) and is_linear(module):
            yield "W s, the linear map of the filter"
        elif isinstance(module, Dense):
            yield f"{type(module.activation_function).__name__} of W s, a layer after the pooling"
        elif isinstance(module, QueryShift):
            yield "s + c for a query, s for all else; c is a fixed vector"
        elif isinstance(module, TokenPart):
            yield (
                f"(s, √{module.share:g} · u) / √{1 + module.share:g}, u of length 1, "
                "from the mean embedding of the text's tokens"
            )
        elif isinstance(module, Normalize):
            yield "s / ‖s‖₂"
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
