"""The card of an exported folder: the model's own card, and what the graph holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sentence_transformers import SentenceTransformer

from ..hub.card import TEMPLATE, card_values, render_card, write_rendered
from ..hub.card_method import quoted
from .graph import EmbeddingGraph

GRAPH_TEMPLATE = TEMPLATE.with_name("template_onnx.md")


@dataclass(frozen=True)
class GraphDescription:
    """An exported graph.

    Args:
        task: What it embeds: queries, documents, or (None) all texts.
        encoder: The method of the model that gives the same vectors.
        template: What it puts around a text, quoted; None: nothing.
        prompt: The prompt in it, quoted; empty: none.
        max_length: Largest number of tokens of a text, special tokens included; None: no limit.
        special_token_count: Special tokens that the tokenizer puts around a text.
        int8: What the graph in 8 bits loses; None: there is no such graph.
        tolerance: Largest distance from torch's vectors.
    """

    task: str | None
    encoder: str
    template: str | None
    prompt: str | None
    max_length: int | None
    special_token_count: int
    int8: Mapping[str, object] | None
    tolerance: float


def write_graph_card(
    model: SentenceTransformer,
    graph: EmbeddingGraph,
    folder: Path,
    *,
    int8: Mapping[str, object] | None,
    tolerance: float,
) -> None:
    """Write the README.md of an exported folder."""
    values = card_values(model, folder)
    card_data = values.card_data
    card_data.tags = [*(card_data.tags or ()), "onnx"]
    name_words = [card_data.model_name or "", "onnx"]
    if graph.requested_task is not None:
        name_words.append(graph.requested_task)
    card_data.model_name = "-".join(name_words)
    template = None
    if graph.prompt or not values.input.is_bare:
        task = graph.task or graph.transformer.default_task
        template = quoted(values.input.templates[task][0])
    description = GraphDescription(
        task=graph.task,
        encoder=f"encode_{graph.task}" if graph.task else "encode",
        template=template,
        prompt=graph.prompt and quoted(graph.prompt),
        max_length=graph.max_length,
        special_token_count=graph.special_token_count,
        int8=int8,
        tolerance=tolerance,
    )
    write_rendered(folder, render_card(GRAPH_TEMPLATE, values, graph=description))
