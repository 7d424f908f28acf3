"""What a card says of the recipe that builds the model: its YAML, the command, and the help of its options."""

from __future__ import annotations

import re
from shlex import quote

import yaml
from sentence_transformers import SentenceTransformer

from ..encode import transformer_of
from ..methods import OPTIONS, Method, MutableOptions, write_value
from ..modules.masks import MASKS
from ..modules.transformer import RepeatTransformer
from ..named_base import KWARGS_OPTIONS
from ..poolings import poolings_of
from .card_base import BaseDescription, is_cut, loading_record, saved_prompts


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


def settings_of(model: SentenceTransformer) -> list[str]:
    """``name=value`` of each option that no recipe holds, quoted for a shell."""
    settings: dict[str, object] = {}
    if is_cut(model):
        settings["truncate_dim"] = model.truncate_dim
    if model.default_prompt_name in saved_prompts(model):
        settings["default_prompt_name"] = model.default_prompt_name
    if model.similarity_fn_name != "cosine":
        settings["similarity_fn_name"] = str(model.similarity_fn_name)
    return [quote(f"{name}={write_value(value)}") for name, value in settings.items()]


def python_options_of(transformer: RepeatTransformer) -> list[str]:
    """Options that changed the model, and that neither a recipe nor a command holds."""
    recorded_options = loading_record(transformer).get("python_options") or ()
    python_options = [name for name in KWARGS_OPTIONS if name in recorded_options]
    if _has_another_length(transformer) and transformer.own_input:
        python_options.append("max_seq_length")
    return python_options


def describe_options(model: SentenceTransformer, method: Method | None) -> dict[str, str]:
    """The help of each option in the recipe."""
    if method is None:
        return {}
    option_help: dict[str, str] = {}
    help_by_value = _help_by_value(method)
    for option_name in _recipe_options(model, method):
        if option_name in help_by_value:
            option_help[option_name] = help_by_value[option_name]
        elif option_name in OPTIONS:
            # The other choices follow a colon or semicolon.
            option_help[option_name] = re.split("[:;]", OPTIONS[option_name])[0]
    return option_help


def _help_by_value(method: Method) -> dict[str, str]:
    """The help of options whose meaning depends on their values."""
    help_by_value = {"pooling": _pooling_help(method)}
    if method.setting is not None:
        help_by_value["setting"] = _setting_help(method.setting)
        help_by_value["k"] = _k_help(method)
        help_by_value["k0"] = _k0_help(method.setting)
    return help_by_value


def _pooling_help(method: Method) -> str:
    pooling_help = "how the formula pools the positions"
    other_poolings = [name for name in poolings_of(method.name) if name != method.pooling]
    if not other_poolings:
        return pooling_help
    choices = "the other choice is" if len(other_poolings) == 1 else "the other choices are"
    return f"{pooling_help}; {choices} `{'` and `'.join(other_poolings)}`"


def _setting_help(setting: str) -> str:
    masks_of_settings = {mask.inplace_setting: mask.name for mask in MASKS.values()}
    if setting not in masks_of_settings:
        return "which masks the layers have, and whether some run again; the table at the top shows the result"
    setting_help = "the mask of the converted layers"
    mask_name = masks_of_settings[setting]
    if mask_name != setting:
        setting_help += f"; `{setting}` means {mask_name}"
    return setting_help


def _k_help(method: Method) -> str:
    if method.plan_layers(None).architecture == "extend":
        return "how many times more the topmost layer runs"
    if isinstance(method.k, int):
        return "how many layers, counted from the top, are converted"
    if method.k == "all":
        return "the converted layers"
    return "the converted layers; 0 is the lowest, -1 the topmost"


def _k0_help(setting: str) -> str:
    k0_help = "how many of the converted layers, counted from the top, hide the sink"
    if setting == "mask0-mid":
        k0_help = f"half of it, at least 1, is {k0_help}"
    return k0_help


def written_recipe(model: SentenceTransformer, base: BaseDescription, method: Method | None) -> str:
    """YAML that builds the model; empty: its modules were put together by hand."""
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
