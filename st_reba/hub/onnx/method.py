"""What a graph has to compute for a model: where its copies stand, and how its vectors are pooled."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from torch import nn

from ...modules.backbone import TEXT_TOWER
from ...modules.chunked import ChunkedReBAPooling
from ...modules.decoder import DecoderTransformer
from ...modules.layout import Frame
from ...modules.plan import Stack
from ...modules.pooling import ReBAPooling
from ...modules.repeat import RepeatTransformer

Task = Literal["query", "document"]
_POOLED = ("mean", "lasttoken", "cls")
# What sentence-transformers looks for among the prompts, in this order.
_PROMPTS: dict[Task, tuple[str, ...]] = {"query": ("query",), "document": ("document", "passage", "corpus")}


@dataclass(frozen=True)
class Method:
    """All that a graph needs to know beside the backbone.

    Args:
        frame: Literal token ids around the copies, the tokenizer's special tokens included.
        before: Special tokens that the tokenizer puts in front of a text.
        after: Special tokens that it puts behind it.
        stand_in: Token id of a text without any token.
        stack: What each layer sees; None: what it sees by itself.
        span: The positions that ``pooling`` sees (see RepeatTransformer); not for reba.
        pooling: ``mean``, ``lasttoken`` or ``cls``; of reba ``mean`` or ``last``.
        reba: ReBAPooling's settings, or None.
        zeros: Whether a text whose states are not finite gets a zero vector.
        normalized: Whether vectors are scaled to length 1 (not in the graph, but behind it).
        budget: Content tokens a copy may hold.
        dimension: Of the vectors.
        behind: What stands between the pooling and the last ``Normalize``: dense layers, as a post-filter's, and what
            they need in front. All of it is in the graph, so that consumers have to know nothing of it.
    """

    frame: Frame
    before: int
    after: int
    stand_in: int | None
    stack: Stack | None
    span: str
    pooling: str
    reba: dict[str, Any] | None
    zeros: bool
    normalized: bool
    budget: int | None
    dimension: int
    behind: tuple[nn.Module, ...] = ()

    @property
    def copies(self) -> int:
        """Number of copies k."""
        return self.frame.copies

    @property
    def max_length(self) -> int | None:
        """Tokens that a tokenizer may hand over: the budget, and its own special tokens."""
        return None if self.budget is None else self.budget + self.before + self.after


def method_of(model: SentenceTransformer, task: Task | None = None) -> Method:
    """Read what a model computes.

    Args:
        model: A model of this package.
        task: Whose template and prompt the graph holds; None: those of both, which must be the same.

    Raises:
        ValueError: The model holds something that no graph can; what, and what to do, is said.
    """
    first, pooling, behind, normalized = _modules(model)
    _check_backbone(first)
    if model.truncate_dim is not None:
        raise ValueError(
            f"truncate_dim={model.truncate_dim}: consumers of a graph do not cut vectors. Set model.truncate_dim = "
            "None, and cut behind the graph."
        )
    prompt, asked = prompt_of(model, task)
    frame = first.frames(prompt, asked)[0]
    before, after = first.token_layout.special
    reba, dimension = None, int(pooling.embedding_dimension)
    if isinstance(pooling, ReBAPooling):
        names = ("variant", "include_special", "normalize_weights")
        reba = {name: getattr(pooling, name) for name in names}
        mode: str = pooling.pooling
        if mode not in ("last", "mean"):
            raise ValueError(f"pooling={mode!r} of backward attention cannot be exported: only 'last' and 'mean'.")
    else:
        mode = _mode(pooling)
    return Method(
        frame=frame,
        before=len(before),
        after=len(after),
        stand_in=first.token_layout.stand_in(),
        stack=first.stack,
        span="" if reba else first.layout.span,
        pooling=mode,
        reba=reba,
        zeros=first.zeros,
        normalized=normalized,
        budget=first.budget(prompt, asked),
        dimension=next((each.out_features for each in reversed(behind) if isinstance(each, Dense)), dimension),
        behind=behind,
    )


def _modules(model: SentenceTransformer) -> tuple[RepeatTransformer, Any, tuple[nn.Module, ...], bool]:
    """The first module, the pooling, what follows up to the last dense layer, and whether a Normalize follows that."""
    modules: list[Any] = list(model)
    names = [type(module).__name__ for module in modules]
    if not modules or not isinstance(modules[0], DecoderTransformer):
        raise ValueError(f"MODEL starts with {names[:1]}: only models that st-reba built can be exported.")
    if not isinstance(modules[0], RepeatTransformer):
        raise ValueError(
            "MODEL was converted from a sentence-transformers model, whose own input and pooling no graph is made for. "
            "Build from its backbone: give pooling=…."
        )
    modules[0].check_single()
    if isinstance(modules[1], ChunkedReBAPooling):
        raise ValueError(
            f"chunk={modules[1].chunk}: a text that is cut into pieces runs a number of times that depends on it, "
            "which a graph cannot hold. Build without chunk."
        )
    rest = modules[2:]
    known = all(isinstance(each, (Normalize, Dense)) for each in rest)
    if not isinstance(modules[1], (ReBAPooling, Pooling)) or not known:
        raise ValueError(f"MODEL is {names}: only a pooling, and Dense and Normalize behind it, can be exported.")
    for each in rest:
        if {each.module_input_name, each.module_output_name} != {"sentence_embedding"}:
            raise ValueError(
                f"{type(each).__name__} makes {each.module_output_name!r} of {each.module_input_name!r}: only what "
                "changes 'sentence_embedding' can be exported."
            )
        if getattr(each, "use_residual", False):
            raise ValueError(
                f"{type(each).__name__} has use_residual=True, which cannot be exported. Build without it."
            )
    last = max((number for number, each in enumerate(rest, 1) if isinstance(each, Dense)), default=0)
    return modules[0], modules[1], tuple(rest[:last]), len(rest) > last


def _mode(pooling: Pooling) -> str:
    mode = pooling.pooling_mode
    if not isinstance(mode, str) or mode not in _POOLED:
        raise ValueError(f"pooling_mode={mode!r} cannot be exported: only one of {list(_POOLED)}.")
    return mode


def _check_backbone(first: RepeatTransformer) -> None:
    name = first.backbone.name
    if first.stack is not None and first.stack.second:
        raise ValueError(
            f"{first.stack}: layers that run a second time (inter, extra, extend) cannot be exported. Use a "
            "plan of architecture 'inplace'."
        )
    if first.stage("prepend") is not None:
        raise ValueError("prepend: a token that is replaced between layers cannot be exported. Build without it.")
    if first.backbone.has_towers:
        raise ValueError(f"{name} has towers beside its decoder, and a graph holds text only. {TEXT_TOWER}")
    kinds = first.backbone.layer_types
    without = [kind for kind in kinds if "attention" not in kind or "linear" in kind]
    attends = any(re.search("attention", type(module).__name__, re.IGNORECASE) for module in first.model.modules())
    if without or not attends:
        raise ValueError(f"{name} has recurrent layers {sorted(set(without))}, whose scan no graph is made for.")
    rope = str(getattr(first.backbone.text_config, "rope_parameters", None))
    if "dynamic" in rope or "longrope" in rope:
        raise ValueError(
            f"{name}: its rotary embeddings depend on the sequence's length (dynamic or longrope), which a graph would "
            "fix at one length. Use a base without them."
        )
    if first.model.dtype != torch.float32:
        raise ValueError(
            f"dtype={first.model.dtype}: a graph is float32. Load the model with model_kwargs={{'dtype': 'float32'}}."
        )


def prompt_of(model: SentenceTransformer, task: Task | None) -> tuple[str | None, str | None]:
    """The prompt and the task by which the graph's template is filled.

    Args:
        model: The model, which starts with a RepeatTransformer.
        task: As for :func:`method_of`.

    Raises:
        ValueError: No such task, or None while a query is not laid out like a document.
    """
    first = cast(RepeatTransformer, model[0])
    found = {each: _saved_prompt(model, each) for each in _PROMPTS}
    if task is not None:
        if task not in _PROMPTS:
            raise ValueError(f"task={task!r} is not known: choose one of {list(_PROMPTS)}, or None.")
        return found[task], task
    default = model.prompts.get(model.default_prompt_name) if model.default_prompt_name else None
    calls: list[tuple[str | None, str | None]] = [(default, None), *((found[each], each) for each in _PROMPTS)]
    if len({first.frames(*call)[0].pieces for call in calls}) > 1:
        raise ValueError(
            "MODEL puts other words around a query than around a document (by its template or its prompts), and a "
            "graph holds one of both. Give task='query' or 'document' (--task), into a folder each."
        )
    return default, None


def _saved_prompt(model: SentenceTransformer, task: Task) -> str | None:
    prompts = cast("dict[str, str]", model.prompts)
    names = [*_PROMPTS[task], model.default_prompt_name]
    return next((prompts[name] for name in names if name is not None and name in prompts), None)
