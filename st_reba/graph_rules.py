"""Which models an ONNX graph can hold, and for which task; for the export, and for what a card says of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, get_args

from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize
from torch import nn

from .encode import Role, saved_prompt, transformer_of
from .methods import how_to_fill, open_fields
from .modules.layout import SIMILARITY, RowLayout, decoder_of, reverses_text
from .modules.shift import QueryShift
from .modules.token_part import TokenPart
from .modules.transformer import RepeatTransformer
from .poolings import is_exportable

GraphTask = Role | Literal["similarity"] | None
_TASKS: tuple[GraphTask, ...] = ("document", "query", "similarity")
# Types of rotary embeddings that change with the length of the input.
_LENGTH_DEPENDENT = ("dynamic", "longrope")


def tasks_of_graphs(model: SentenceTransformer) -> list[str] | None:
    """The tasks that each need a graph of their own, documents first; empty: one graph holds all tasks.

    Args:
        model: Any SentenceTransformer.

    Returns:
        Values of ``--task`` of ``st-reba onnx``; None if no graph can hold the model. Bases that cannot be traced
        are not noticed here.
    """
    tasks = [str(task) for task in _TASKS if not any(problems_of_graph(model, task))]
    if not tasks:
        return None
    if not any(problems_of_graph(model, None)):
        return []
    # `encode` may take what `encode_document` takes.
    if {"document", SIMILARITY} <= set(tasks) and not _layouts_differ(model, (None, "document")):
        tasks.remove(SIMILARITY)
    return tasks


def problems_of_graph(model: SentenceTransformer, task: GraphTask) -> Iterator[str]:
    """Why no graph of a task can hold a model, each with a remedy.

    Args:
        model: Any SentenceTransformer; the type of its numbers does not matter here.
        task: Whose template and prompt the graph has, ``"similarity"`` for those of ``encode``;
            None: all are the same.
    """
    transformer = model[0]
    if not isinstance(transformer, RepeatTransformer) or transformer.own_input:
        name = type(transformer).__name__
        yield f"{name} keeps the base's own input: no graph. Build with pooling=…."
        return
    pooling = model[1] if len(model) > 1 else None
    if pooling is None or not is_exportable(pooling):
        yield f"{pooling} cannot be exported. Build without chunk, with pooling last, mean or cls."
    for reason in _reasons_against(model, transformer, task):
        name = type(transformer.model).__name__
        yield f"{name} cannot be exported, as it {reason}."
    for module in list(model)[2:]:
        if not _is_exportable_after_pooling(module):
            yield (
                f"{type(module).__name__} after the pooling cannot be exported: only QueryShift, TokenPart, "
                "Normalize, and Dense without use_residual, from 'sentence_embedding' to 'sentence_embedding'."
            )


def _reasons_against(
    model: SentenceTransformer, transformer: RepeatTransformer, task: GraphTask
) -> Iterator[str]:
    base = transformer.model
    if transformer.template_count > 1:
        yield "runs several templates for a text, and a graph holds one. Give one template"
    if any(map(reverses_text, transformer.templates[0].values())):
        yield "reverses a text's words before they are tokenized, which no graph can. Give a template with {text}"
    if not transformer.text_tokenizer.is_fast:
        name = type(transformer.text_tokenizer).__name__
        yield f"uses a {name} without tokenizer.json, which readers of a graph need"
    if decoder_of(base).config is not base.config:
        yield (
            "has towers besides its decoder, and a graph holds text only. Save its text decoder alone, and use that"
        )
    rope_parameters = str(getattr(transformer.config.get_text_config(), "rope_parameters", None))
    if any(name in rope_parameters for name in _LENGTH_DEPENDENT):
        yield "has rotary embeddings that depend on the sequence's length, which a graph fixes"
    if getattr(base, "hf_quantizer", None) is not None:
        yield "is quantized, and a graph is float32. Give dtype='float32'"
    if model.truncate_dim is not None:
        yield f"cuts its vectors (truncate_dim={model.truncate_dim}). Set it to None, and cut what the graph gives"
    if task is None and _depends_on_task(model):
        yield (
            "treats a query otherwise than a document or than what encode takes, and a graph holds one of these. "
            "Give task='query', 'document' or 'similarity' (--task), into a folder each"
        )
    role: Role | None = None if task == "similarity" else task
    for field_name in open_fields(model, role, saved_prompt(model, role)):
        yield (
            f"has a template whose {{{field_name}}} has no value, and a graph cannot be given one. "
            f"Build it with {how_to_fill(field_name)}"
        )


def _depends_on_task(model: SentenceTransformer) -> bool:
    if any(isinstance(module, (QueryShift, TokenPart)) for module in model):
        return True
    return _layouts_differ(model, (None, *get_args(Role)))


def _layouts_differ(model: SentenceTransformer, tasks: Sequence[Role | None]) -> bool:
    """Whether something else stands around the texts of some task; None: those of `encode`."""
    transformer = transformer_of(model)
    field_names = {
        field_name
        for task in tasks
        for field_name in open_fields(model, task, saved_prompt(model, task))
    }
    layouts: set[tuple[RowLayout, ...]] = set()
    for task in tasks:
        # Here any value will do.
        field_values = dict.fromkeys(field_names & transformer.fields(task), "-")
        layouts.add(transformer.row_layouts(saved_prompt(model, task), task, **field_values))
    return len(layouts) > 1


def _is_exportable_after_pooling(module: nn.Module) -> bool:
    if isinstance(module, (QueryShift, TokenPart)):
        return True
    if not isinstance(module, (Normalize, Dense)) or getattr(module, "use_residual", False):
        return False
    names = {
        getattr(module, "module_input_name", None),
        getattr(module, "module_output_name", None),
    }
    return names == {"sentence_embedding"}
