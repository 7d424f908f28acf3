"""The card of an exported folder: the model's own card, and what the graph holds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sentence_transformers import SentenceTransformer

from ..hub.card import TEMPLATE, card_values, write_card
from ..hub.card_method import quoted
from .graph import EmbeddingGraph

GRAPH_TEMPLATE = TEMPLATE.with_name("template_onnx.md")


def write_graph_card(
    model: SentenceTransformer,
    graph: EmbeddingGraph,
    folder: Path,
    *,
    int8: Mapping[str, object] | None,
    tolerance: float,
) -> None:
    """Write the README.md of an exported folder.

    Args:
        model: The model.
        graph: Its graph.
        folder: The folder, which holds everything else already.
        int8: What the graph in 8 bits loses; None: there is no such graph.
        tolerance: Largest distance from torch's vectors.
    """
    values = card_values(model, folder)
    card_data = values.card_data
    card_data.tags = [*(card_data.tags or ()), "onnx"]
    name_words = [card_data.model_name or "", "onnx"]
    if graph.requested_task is not None:
        name_words.append(graph.requested_task)
    card_data.model_name = "-".join(name_words)
    wording = None
    if graph.prompt or not values.input.is_bare:
        task = graph.task or graph.transformer.default_task
        wording = quoted(values.input.templates[task][0])
    write_card(
        folder,
        values,
        GRAPH_TEMPLATE,
        graph=graph,
        wording=wording,
        prompt=quoted(graph.prompt or ""),
        int8=int8,
        tolerance=tolerance,
    )
