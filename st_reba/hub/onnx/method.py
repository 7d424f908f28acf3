"""What a graph has to compute for a model: where its copies stand, and how its vectors are pooled."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from torch import nn

from ...encode import Task as Task
from ...encode import saved_prompt
from ...modules.backbone import TEXT_TOWER
from ...modules.chunked import ChunkedReBAPooling
from ...modules.layout import Frame
from ...modules.pooling import ReBAPooling
from ...modules.repeat import RepeatTransformer


@dataclass(frozen=True)
class Method:
    """All that a graph needs to know of a model beside its first module."""

    task: Task | None  # whose template and prompt it holds; None: both have the same
    prompt: str | None
    frame: Frame  # literal token ids around the copies, the tokenizer's special tokens included
    before: int  # special tokens that the tokenizer puts in front of a text
    after: int
    stand_in: int | None  # token id of a text without any token
    pooling: str  # mean, lasttoken or cls; of reba mean or last
    reba: ReBAPooling | None  # the pooling, where it is by backward attention
    behind: tuple[nn.Module, ...]  # between the pooling and the last Normalize: dense layers, as a post-filter's
    normalized: bool  # whether vectors are scaled to length 1, which is not in the graph, but behind it
    budget: int | None  # content tokens a copy may hold
    dimension: int  # of the vectors

    @property
    def max_length(self) -> int | None:
        """Tokens that a tokenizer may hand over: the budget, and its own special tokens."""
        return None if self.budget is None else self.budget + self.before + self.after


def method_of(model: SentenceTransformer, task: Task | None = None) -> Method:
    """Read what a model computes; with ``task=None`` queries and documents must be laid out alike.

    Raises:
        ValueError: The model holds something that no graph can; what, and what to do, is said.
    """
    modules: list[Any] = list(model)
    first = modules[0] if modules else None
    if not isinstance(first, RepeatTransformer):
        raise ValueError(
            f"MODEL starts with {type(first).__name__}, whose input no graph is made for. Build from its backbone with "
            "st-reba, and give pooling=…."
        )
    _check_backbone(first)
    pooling, *rest = modules[1:] or [None]
    reba = pooling if isinstance(pooling, ReBAPooling) and not isinstance(pooling, ChunkedReBAPooling) else None
    mode = str(getattr(pooling, "pooling_mode" if reba is None else "pooling", None))
    modes = ["mean", "lasttoken", "cls"] if reba is None else ["last", "mean"]
    if not isinstance(pooling, (ReBAPooling, Pooling)) or mode not in modes:
        raise ValueError(f"{pooling} cannot be exported. Build without chunk, with a pooling of {modes}.")
    for each in rest:
        names = {getattr(each, f"module_{way}_name", None) for way in ("input", "output")}
        if (
            not isinstance(each, (Normalize, Dense))
            or names != {"sentence_embedding"}
            or vars(each).get("use_residual")
        ):
            raise ValueError(
                f"{each} behind the pooling cannot be exported: only Dense without use_residual, and Normalize, both "
                "from 'sentence_embedding' to 'sentence_embedding'."
            )
    if model.truncate_dim is not None:
        raise ValueError(
            f"truncate_dim={model.truncate_dim}: consumers of a graph do not cut vectors. Set model.truncate_dim = "
            "None, and cut behind the graph."
        )
    prompt = _prompt(model, task)
    before, after = first.token_layout.special
    dense = [number for number, each in enumerate(rest) if isinstance(each, Dense)]
    behind = rest[: dense[-1] + 1] if dense else []
    return Method(
        task=task,
        prompt=prompt,
        frame=first.frames(prompt, task)[0],
        before=len(before),
        after=len(after),
        stand_in=first.token_layout.stand_in(),
        pooling=mode,
        reba=reba,
        behind=tuple(behind),
        normalized=len(rest) > len(behind),
        budget=first.budget(prompt, task),
        dimension=behind[-1].out_features if behind else int(pooling.embedding_dimension),
    )


def _check_backbone(first: RepeatTransformer) -> None:
    first.check_single()
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
    without = {kind for kind in first.backbone.layer_types if "attention" not in kind or "linear" in kind}
    attends = any(re.search("attention", type(module).__name__, re.IGNORECASE) for module in first.model.modules())
    if without or not attends:
        raise ValueError(f"{name} has recurrent layers {sorted(without)}, whose scan no graph is made for.")
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


def _prompt(model: SentenceTransformer, task: Task | None) -> str | None:
    """The prompt by which the graph's template is filled."""
    every: tuple[Task | None, ...] = (None, "query", "document")
    if task not in every:
        raise ValueError(f"task={task!r} is not known: choose 'query' or 'document', or None.")
    first: Any = model[0]
    calls = [(saved_prompt(model, each), each) for each in every]
    if task is None and len({first.frames(*call)[0].pieces for call in calls}) > 1:
        raise ValueError(
            "MODEL puts other words around a query than around a document (by its template or its prompts), and a "
            "graph holds one of both. Give task='query' or 'document' (--task), into a folder each."
        )
    return saved_prompt(model, task)
