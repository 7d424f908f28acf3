"""The model card, README.md of a saved model: one template, filled from the model, its method and its files."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelCardData
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize

from ..encode import transformer_of
from ..graph_rules import tasks_of_graphs
from ..methods import Method
from ..modules import RepeatTransformer
from .card_base import (
    CARD_FILE,
    FACTS,
    BaseDescription,
    Licence,
    describe_base,
    find_licence,
    is_cut,
    saved_prompts,
    training_section,
    whole_dimension,
)
from .card_files import FolderDescription, describe_folder
from .card_method import (
    InputDescription,
    MethodDescription,
    describe_input,
    describe_method,
    is_linear,
)

TEMPLATE = Path(__file__).with_name("template.md")
# Name of the repository in the examples until `push` puts in its own.
PLACEHOLDER = "path/to/model"


@dataclass(frozen=True)
class CardValues:
    """The values that fill a card's template, which names them ``base.link``, ``folder.code``, etc.

    Args:
        card_data: The metadata that the Hub reads.
        title: The base's name and the method.
        repository: Where the examples load the model from.
        base, input, method, folder, licence: Descriptions of these.
        facts: What a recipe's ``about`` holds, and at least `FACTS`.
        dimension: Of the vectors.
        whole_dimension: Of the vectors that `truncate_dim` cuts to the dimension above; None: it cuts nothing off.
        is_normalized: Vectors have length 1.
        module_names: Class names of the pipeline.
        filter_sizes: Dimensions of each linear map of a filter.
        training: A section of its own, in Markdown; None: nothing was trained.
        needs_package: The code in the repository does not suffice.
        graph_tasks: The tasks that need an ONNX graph each; empty: one graph holds all; None: there is no graph.
    """

    card_data: ModelCardData
    title: str
    repository: str
    base: BaseDescription
    input: InputDescription
    method: MethodDescription
    folder: FolderDescription
    licence: Licence
    facts: Mapping[str, Any]
    dimension: int
    whole_dimension: int | None
    is_normalized: bool
    module_names: list[str]
    filter_sizes: list[str]
    training: str | None
    needs_package: bool
    graph_tasks: list[str] | None


def write_card(
    folder: Path, values: CardValues, template: Path = TEMPLATE, **more_values: object
) -> None:
    """Write a folder's README.md: a template with the card's values, and others that only this template has."""
    template_values: dict[str, Any] = {**vars(values), **more_values}
    card_data = template_values.pop("card_data")
    card = ModelCard.from_template(card_data, template_path=str(template), **template_values)
    without_blanks_at_ends = re.sub(r"[^\S\n]+\n", "\n", str(card.content))
    card_text = re.sub(r"\n{3,}", "\n\n", without_blanks_at_ends)
    # The same line ends everywhere.
    (folder / CARD_FILE).write_text(f"{card_text.strip()}\n", encoding="utf-8", newline="\n")


def card_values(
    model: SentenceTransformer,
    folder: Path,
    *,
    name: str | None = None,
    license: str | None = None,
    about: Mapping[str, object] | None = None,
) -> CardValues:
    """Values of a model of this package that was saved in a folder; options as for :func:`st_reba.hub.save`."""
    transformer = transformer_of(model)
    facts: dict[str, Any] = {**dict.fromkeys(FACTS), **(about or {})}
    if license:
        facts["licence"] = license
    base = describe_base(transformer)
    method = describe_method(model, base)
    licence = find_licence(model, base, facts)
    training = training_section(model)
    dense_layers = [module for module in model if isinstance(module, Dense)]
    differences: list[object] = [
        saved_prompts(model),
        training,
        list(map(_describe_sizes, dense_layers)),
    ]
    if is_cut(model):
        differences.append(model.truncate_dim)
    model_name = name or unique_name(base.short_name, method.method, differences)
    return CardValues(
        card_data=_metadata(
            model_name, base, method.method, licence, is_trained=training is not None
        ),
        title=f"{base.short_name} with {method.method or 'a pipeline of its own'}",
        repository=PLACEHOLDER,
        base=base,
        input=describe_input(model),
        method=method,
        folder=describe_folder(transformer, folder),
        licence=licence,
        facts=facts,
        dimension=int(model.get_embedding_dimension() or 0),
        whole_dimension=whole_dimension(model) if is_cut(model) else None,
        is_normalized=not is_cut(model) and any(isinstance(module, Normalize) for module in model),
        module_names=[type(module).__name__ for module in model],
        filter_sizes=[_describe_sizes(layer) for layer in dense_layers if is_linear(layer)],
        training=training,
        needs_package=_needs_package(transformer),
        graph_tasks=tasks_of_graphs(model),
    )


def _describe_sizes(layer: Dense) -> str:
    return f"{layer.in_features} to {layer.out_features}"


def _metadata(
    model_name: str,
    base: BaseDescription,
    method: Method | None,
    licence: Licence,
    *,
    is_trained: bool,
) -> ModelCardData:
    tags = ["sentence-transformers", "st-reba", "feature-extraction"]
    if method is not None:
        tags.insert(2, method.name)
    relation = None
    if base.hub_id is not None and is_trained:
        relation = "finetune"
    elif base.hub_id is not None and base.quantization is not None:
        relation = "quantized"
    return ModelCardData(
        model_name=model_name,
        base_model=base.hub_id,
        base_model_relation=relation,
        **vars(licence),
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        tags=tags,
    )


def _needs_package(transformer: RepeatTransformer) -> bool:
    """Whether only the package's hooks can observe the base's attention."""
    uses_eager_attention = transformer.model.config._attn_implementation == "eager"
    return transformer.requested_capture is not None and uses_eager_attention


def unique_name(base_name: str, method: Method | None, differences: Sequence[object]) -> str:
    """A name unique to base, method and further differences: mteb stores results under it."""
    readable_name = re.sub(r"[^\w.=]+", "-", f"{base_name}-{method or 'by-hand'}").strip("-")
    if len(readable_name) <= 80 and not any(differences):
        return readable_name
    options = method.to_dict() if method else None
    identity = json.dumps([base_name, options, *differences], sort_keys=True, ensure_ascii=False)
    digest = hashlib.sha256(identity.encode()).hexdigest()
    return f"{readable_name[:73].rstrip('-')}-{digest[:6]}"
