"""What a card says of ONNX: whether `st-reba onnx` takes the model, and for which tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize
from torch import nn

from ..modules import QueryShift, RepeatTransformer, TokenPart
from ..modules.layout import SIMILARITY, RowLayout, decoder_of, reverses_text
from ..poolings import is_exportable
from .card_method import fields_of_texts, prompt_of_task

# Of rotary embeddings that change with the length of the input.
_LENGTH_DEPENDENT = ("dynamic", "longrope")
_TASKS = ("document", "query", SIMILARITY)


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
    if not _can_be_exported(model):
        return None
    layouts = _layouts_of_tasks(model)
    if not layouts:
        return None
    depends_on_task = any(isinstance(module, (QueryShift, TokenPart)) for module in model)
    if len(layouts) == len(_TASKS) and len(set(layouts.values())) == 1 and not depends_on_task:
        return ExportDescription([])
    if layouts.get(SIMILARITY) == layouts.get("document"):
        layouts.pop(SIMILARITY, None)
    return ExportDescription(list(layouts))


def _layouts_of_tasks(model: SentenceTransformer) -> dict[str, tuple[RowLayout, ...]]:
    """What stands around a text of each task, but of those whose templates have a field that each text fills."""
    transformer = cast(RepeatTransformer, model[0])
    layouts: dict[str, tuple[RowLayout, ...]] = {}
    for task in _TASKS:
        if not fields_of_texts(model, task):
            prompt = prompt_of_task(model, task)
            layouts[task] = transformer.row_layouts(prompt, None if task == SIMILARITY else task)
    return layouts


def _can_be_exported(model: SentenceTransformer) -> bool:
    """Whether `st_reba.onnx` takes the saved model, whichever the task."""
    transformer = model[0]
    if not isinstance(transformer, RepeatTransformer) or transformer.own_input:
        return False
    if len(model) < 2 or not is_exportable(model[1]):
        return False
    if transformer.rows > 1 or any(map(reverses_text, transformer.templates[0].values())):
        return False
    if model.truncate_dim is not None or not transformer.text_tokenizer.is_fast:
        return False
    return _is_base_exportable(transformer) and all(map(_is_module_exportable, list(model)[2:]))


def _is_base_exportable(transformer: RepeatTransformer) -> bool:
    base = transformer.model
    rotation = str(getattr(transformer.config.get_text_config(), "rope_parameters", None))
    return (
        decoder_of(base) is base
        and not any(name in rotation for name in _LENGTH_DEPENDENT)
        and getattr(base, "hf_quantizer", None) is None
    )


def _is_module_exportable(module: nn.Module) -> bool:
    """Whether a graph can hold a module behind the pooling."""
    if isinstance(module, (QueryShift, TokenPart)):
        return True
    if not isinstance(module, (Normalize, Dense)) or getattr(module, "use_residual", False):
        return False
    names = {
        getattr(module, "module_input_name", None),
        getattr(module, "module_output_name", None),
    }
    return names == {"sentence_embedding"}
