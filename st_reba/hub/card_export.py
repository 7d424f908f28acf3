"""What a card says of ONNX: whether `st-reba onnx` takes the model, and for which tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from sentence_transformers import SentenceTransformer

from ..encode import Role, saved_prompt
from ..graph_rules import GraphTask, problems_of_graph
from ..modules import RepeatTransformer
from ..modules.layout import SIMILARITY

_TASKS: tuple[GraphTask, ...] = ("document", "query", "similarity")


@dataclass(frozen=True)
class ExportDescription:
    """The graphs that `st-reba onnx` writes of a model.

    Args:
        tasks: Values of its option ``--task``, each for a graph of its own, documents first; empty:
            one graph holds all tasks.
    """

    tasks: list[str]


def describe_export(model: SentenceTransformer) -> ExportDescription | None:
    """Describe the graphs of a model; None: it cannot be exported.

    Bases that cannot be traced are not found here.
    """
    tasks = [str(task) for task in _TASKS if _has_graph(model, task)]
    if not tasks:
        return None
    if _has_graph(model, None):
        return ExportDescription([])
    if {"document", SIMILARITY} <= set(tasks) and not _has_similarity_of_its_own(model):
        tasks.remove(SIMILARITY)
    return ExportDescription(tasks)


def _has_graph(model: SentenceTransformer, task: GraphTask) -> bool:
    if any(problems_of_graph(model, task)):
        return False
    return bool(cast(RepeatTransformer, model[0]).text_tokenizer.is_fast)


def _has_similarity_of_its_own(model: SentenceTransformer) -> bool:
    """Whether `encode` puts something else around a text than `encode_document`."""
    transformer = cast(RepeatTransformer, model[0])
    roles: tuple[Role | None, ...] = (None, "document")
    layouts = [transformer.row_layouts(saved_prompt(model, role), role) for role in roles]
    return layouts[0] != layouts[1]
