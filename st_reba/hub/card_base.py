"""What a card says of the base: its name and place on the Hub, its weights, its licence, and how it was trained."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import metadata_load, try_to_load_from_cache
from sentence_transformers import SentenceTransformer

from ..backbones import is_8bit, quantization_settings
from ..bases import BUNDLED
from ..encode import transformer_of
from ..methods import LOADING_RECORD
from ..modules import RepeatTransformer
from ..packaged import PACKAGED

CARD_FILE = "README.md"
# Keys of a recipe's ``about`` that a card uses: a note for the limits; rows of the result tables
# (task, metric, value, table, perhaps interval), measured here and taken from a paper; licence, its
# link and language codes of the base's weights.
FACTS = ("note", "measured", "scores", "licence", "licence_link", "language")
# Recorded names of GGUF files: ``organization/repository/file (GGUF, type)``, or of a local file
# only its name.
_GGUF_NAME = re.compile(r"^(?:([\w.-]+/[\w.-]+)/)?(.+) \(GGUF.*\)$")
_HUB_ID = re.compile(r"^([\w.-]+/[\w.-]+)(/.*)?$")
_TRAINING_SECTION = re.compile(
    r"^## Training(?: Details)?\n+(.*?)\n+(?=## |\Z)", re.MULTILINE | re.DOTALL
)
# What anyone who redistributes weights under these licences must state.
_NOTICES = {
    "llama2": "Llama 2 is licensed under the LLAMA 2 Community License, Copyright (c) Meta Platforms, Inc. All "
    "Rights Reserved.",
    "llama3": "Built with Meta Llama 3.",
    "llama3.1": "Built with Llama.",
    "llama3.2": "Built with Llama.",
    "gemma": "Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms.",
}


@dataclass(frozen=True)
class BaseDescription:
    """The base of a model.

    Args:
        recorded_name: As it was recorded when the model was built.
        markdown_link: The name in Markdown, with a link where the base is on the Hub.
        hub_id: Of the base's repository; None: it has none that is known.
        base_revision: The commit that was asked for.
        recipe_name: The name by which a recipe asks for it.
        tokenizer: Another tokenizer than the base's, by its name; None: it is the base's.
        gguf_file: The file in a repository of the Hub, where the base is one.
        is_bundled: It comes with st_reba.
        is_local: It is a folder or file, so its name means nothing to others.
        has_own_code: Its modelling code is in its repository, not in transformers.
        layer_summary: Number of layers, and the class that runs them.
        parameter_count: Number of parameters.
        quantization: How its weights are rounded; None: they are not.
        recipe_quantization: The option of a recipe that rounds them so; None: there is none.
    """

    recorded_name: str
    markdown_link: str
    hub_id: str | None
    base_revision: str | None
    recipe_name: str
    tokenizer: str | None
    gguf_file: str | None
    is_bundled: bool
    is_local: bool
    has_own_code: bool
    layer_summary: str
    parameter_count: int
    quantization: str | None
    recipe_quantization: str | None

    @property
    def short_name(self) -> str:
        """The name without the organization."""
        return self.recorded_name.rsplit("/", 1)[-1]

    @property
    def local_parts(self) -> list[str]:
        """What a recipe must name by a path that others do not have."""
        parts = ["the base"] if self.is_local else []
        if self.tokenizer and "/" not in self.tokenizer and self.tokenizer not in BUNDLED:
            parts.append("the tokenizer")
        return parts


@dataclass(frozen=True)
class Licence:
    """Licence and languages of the base's weights, as the Hub spells them."""

    license: str | None = None
    license_name: str | None = None
    license_link: str | None = None
    language: str | list[str] | None = None

    @property
    def notice(self) -> str | None:
        """What anyone who redistributes the weights must state."""
        return _NOTICES.get(str(self.license))


def describe_base(transformer: RepeatTransformer) -> BaseDescription:
    """Describe the base of a model that was loaded or built."""
    recorded_name = _plain(transformer.base_model or "a base without a name")
    tokenizer = loading_record(transformer).get("tokenizer")
    number_type = _number_type(transformer)
    hub_id, recipe_name, gguf_file = _parse_name(recorded_name)
    markdown_link = f"`{recorded_name}`"
    if hub_id is not None:
        markdown_link = f"[{recorded_name}]({_hub_page(hub_id)})"
    return BaseDescription(
        recorded_name=recorded_name,
        markdown_link=markdown_link,
        hub_id=hub_id,
        base_revision=transformer.base_revision,
        recipe_name=recipe_name,
        tokenizer=_plain(tokenizer) if tokenizer else None,
        gguf_file=gguf_file,
        is_bundled=recorded_name in BUNDLED,
        is_local=hub_id is None and recorded_name not in BUNDLED,
        has_own_code=bool(getattr(transformer.model.config, "auto_map", None)),
        layer_summary=f"{transformer.depth} of {type(transformer.model).__name__}",
        parameter_count=transformer.model.num_parameters(),
        quantization=_quantization(transformer),
        recipe_quantization=number_type if number_type in ("nf4", "int8") else None,
    )


def loading_record(transformer: RepeatTransformer) -> dict[str, Any]:
    """What was recorded of how the base was loaded; empty: nothing was."""
    recipe = transformer.recipe
    record = recipe.get(LOADING_RECORD) if isinstance(recipe, dict) else None
    return record if isinstance(record, dict) else {}


def saved_prompts(model: SentenceTransformer) -> dict[str, str]:
    """The prompts of a model that are not empty."""
    return {name: prompt for name, prompt in model.prompts.items() if prompt}


def whole_dimension(model: SentenceTransformer) -> int:
    """The dimension of the vectors before `truncate_dim` cuts them."""
    with model.truncate_embeddings(None):
        return int(model.get_embedding_dimension() or 0)


def is_cut(model: SentenceTransformer) -> bool:
    """Whether `truncate_dim` cuts dimensions off."""
    return model.truncate_dim is not None and model.truncate_dim < whole_dimension(model)


def _plain(name: object) -> str:
    """A name in one line of a code span: a stranger's may hold anything."""
    return " ".join(str(name).replace("`", "'").split())


def _parse_name(recorded_name: str) -> tuple[str | None, str, str | None]:
    """The Hub's id of a recorded base, the name by which a recipe asks for it, and its file if a recipe names one."""
    gguf_name = _GGUF_NAME.match(recorded_name)
    if gguf_name is None:
        hub_name = _HUB_ID.match(recorded_name)
        hub_id = None if hub_name is None else hub_name[1]
        return hub_id, recorded_name, None
    hub_id, file_name = gguf_name.groups()
    if hub_id is not None:
        return hub_id, hub_id, file_name
    if file_name in PACKAGED:
        return PACKAGED[file_name].hub_id, file_name, None
    return None, file_name, None


def _quantization(transformer: RepeatTransformer) -> str | None:
    if "GGUF" in str(transformer.base_model):
        return "dequantized from the base's GGUF file, whose rounding they keep"
    settings = quantization_settings(transformer.model)
    if not settings:
        return None
    quantization_method = str(settings["quant_method"])
    number_type = _number_type(transformer)
    if number_type is None:
        return quantization_method
    bits = 8 if number_type == "int8" else 4
    return f"{quantization_method}, {bits} bits ({number_type})"


def _number_type(transformer: RepeatTransformer) -> str | None:
    """What bitsandbytes rounded the weights to, such as ``nf4`` or ``int8``; None: it did not."""
    settings = quantization_settings(transformer.model)
    if settings.get("load_in_4bit") or settings.get("_load_in_4bit"):
        return str(settings.get("bnb_4bit_quant_type", ""))
    return "int8" if is_8bit(settings) else None


def find_licence(
    model: SentenceTransformer, base: BaseDescription, facts: Mapping[str, Any]
) -> Licence:
    """Find licence and languages: as the facts say, as sentence-transformers knows them, or as the base's card says."""
    metadata = _base_metadata(transformer_of(model), base)
    card_data = model.model_card_data
    languages = facts["language"] or ()
    if isinstance(languages, str):
        languages = [languages]
    stated_values = {
        "license": facts["licence"] or card_data.license,
        "license_link": facts["licence_link"],
        "language": list(languages) or card_data.language,
    }
    for metadata_key, stated_value in stated_values.items():
        if stated_value:
            metadata[metadata_key] = stated_value
    if metadata.get("license") == "other":  # for which the Hub wants a name and a link
        metadata["license_name"] = metadata.get("license_name") or "as-base-model"
        metadata["license_link"] = metadata.get("license_link") or _hub_page(base.hub_id)
    safe_values = {
        metadata_key: metadata_value
        for metadata_key, metadata_value in metadata.items()
        if _is_text_or_list_of_texts(metadata_value)
    }
    return Licence(**safe_values)  # type: ignore[arg-type]


def _hub_page(hub_id: str | None) -> str | None:
    if hub_id is None:
        return None
    return f"https://huggingface.co/{hub_id}"


def _is_text_or_list_of_texts(value: object) -> bool:
    # A few lists of lists in a stranger's card can stand for gigabytes.
    if isinstance(value, list):
        return bool(value) and all(isinstance(item, str) for item in value)
    return isinstance(value, str)


def _base_metadata(transformer: RepeatTransformer, base: BaseDescription) -> dict[str, object]:
    """What the card beside the base's weights says about licence and languages."""
    packaged_base = PACKAGED.get(base.recipe_name)
    # The ids differ if it is a folder that has a packaged base's name.
    if packaged_base is not None and packaged_base.hub_id == base.hub_id:
        return {"license": packaged_base.license, "language": list(packaged_base.language)}
    weights_source = str(getattr(transformer.model, "name_or_path", ""))
    try:
        if os.path.isdir(weights_source):
            card_path = Path(weights_source, CARD_FILE)
        else:
            cached_path = try_to_load_from_cache(
                weights_source, CARD_FILE, revision=transformer.base_revision
            )
            card_path = Path(str(cached_path))
        metadata = metadata_load(card_path) or {}
    except Exception:  # whatever a stranger's card holds, this model gets a card of its own
        return {}
    return {key: metadata.get(key) for key in Licence.__dataclass_fields__}


def training_section(model: SentenceTransformer) -> str | None:
    """How the model was trained: sentence-transformers' own section, of its trainer or of the model's earlier card."""
    card_data = model.model_card_data
    if card_data.train_datasets or getattr(card_data, "trainer", None) is not None:
        from sentence_transformers.base.model_card import generate_model_card

        card_text = generate_model_card(model)
    else:
        card_text = model._model_card_text or ""
    found_section = _TRAINING_SECTION.search(card_text)
    # sentence-transformers lists versions of models that were never trained, too.
    if found_section is None or found_section[1].startswith("### Framework Versions"):
        return None
    return found_section[1]
