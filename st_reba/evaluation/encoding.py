"""Vectors of a task's texts, by several methods from shared passes, or by one model."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer
from tqdm.auto import tqdm

from ..encode import computed_positions, encode_texts
from ..methods import Method
from ..words import encode_words, tokens_of_span
from . import readouts
from .instructions import Instructions
from .readouts import Vectors
from .tasks import Task
from .words import tagged_words


def shared_vectors(
    base: SentenceTransformer,
    task: Task,
    methods: Sequence[Method],
    instructions: Instructions,
    batch_tokens: int,
    show: bool | None,
) -> dict[Method, Vectors]:
    """The vectors of a task's texts by each method, from as few passes as there are inputs and masks."""
    transformer: Any = base[0]
    words, as_run, alone = token_spans(base, task), dict[Method, Method](), dict[Method, Vectors]()
    for each in methods:
        # A word's vector is the mean over its tokens, whatever the pooling, and not scaled.
        pooled = words is not None and each.name != "prompteol"
        as_run[each] = replace(each, pooling="mean", normalize=False, filter=None) if pooled else each
        unread = words is not None and (not pooled or readouts.readout_of(as_run[each], transformer.depth) is None)
        if task.kind == "NER" or unread:
            alone[each] = model_vectors(readouts.of_base(base, each), task, instructions, batch_tokens, show)
    passes: list[tuple[list[Method], list[str], dict[str, Any]]] = []
    total = 0
    together = readouts.shared([as_run[each] for each in methods if each not in alone], transformer.depth)
    for first, group in together.items():
        model: Any = readouts.of_base(base, replace(first, filter=None), check=False)
        named = has_field(model, None)
        for texts, role in _parts(task):
            layout = {"task": role, "prompt": instructions.before(task.name, role, named)}
            passes.append((group, list(texts), layout))
            total += sum(computed_positions(model[0], texts, layout))
    found: dict[Method, list[Vectors]] = {}
    with progress_bar(total, show) as bar:
        options: dict[str, Any] = {"parts": words, "batch_tokens": batch_tokens, "progress": bar.update}
        for group, mine, layout in passes:
            for method, rows in readouts.vectors(base, group, mine, **layout, **options).items():
                found.setdefault(method, []).append(rows)
    return {each: alone[each] if each in alone else np.concatenate(found[as_run[each]]) for each in methods}


def model_vectors(
    model: SentenceTransformer, task: Task, instructions: Instructions, batch_tokens: int | None, show: bool | None
) -> Vectors:
    """The vectors of a task's texts by one model: a row a text, or a word; of entities, every word of each text."""
    if task.kind == "NER" or task.spans:
        items = tagged_words(task) if task.kind == "NER" else list(zip(task.texts, task.spans, strict=True))
        prompt = instructions.before(task.name, None, has_field(model, None))
        return encode_words(model, items, prompt=prompt, batch_tokens=batch_tokens, show_progress_bar=bool(show))
    found = []
    with progress_bar(len(task.texts), show, "texts") as bar:
        for texts, role in _parts(task):
            prompt = instructions.before(task.name, role, has_field(model, role))
            given: dict[str, Any] = {} if prompt is None else {"prompt": prompt}
            options: dict[str, Any] = {"task": role, "batch_tokens": batch_tokens, "progress": bar.update, **given}
            found.append(encode_texts(model, texts, **options))
    return np.concatenate(found)


def token_spans(base: SentenceTransformer, task: Task) -> list[tuple[int, int]] | None:
    """The content tokens (first, end) of each text's word; None: the task is about whole texts."""
    if not task.spans:
        return None
    transformer: Any = base[0]
    offsets = transformer.content(list(task.texts), offsets=True)["offset_mapping"]
    words = enumerate(zip(task.texts, task.spans, offsets, strict=True))
    found = [tokens_of_span(number, text, span, each, len(each)) for number, (text, span, each) in words]
    return [(tokens[0], tokens[-1] + 1) for tokens in found]


def usable(vectors: Vectors, task: Task, label: str) -> Vectors:
    """The vectors, if all are finite and none is zero; else a ValueError that names the first one's text."""
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1) | ~vectors.any(axis=1))
    if len(bad):
        text = f"; the first is of {task.texts[bad[0]]!r:.80}" if len(vectors) == len(task.texts) else ""
        raise ValueError(f"{label}: {len(bad)} of {len(vectors)} vectors are zero or not finite{text}.")
    return vectors


def name_of(model: Any) -> str:
    """A model's name: of the base that it was made from."""
    name = getattr(model[0].model.config, "_name_or_path", "") if hasattr(model[0], "model") else ""
    return Path(name).name if os.path.isdir(name) else name or type(model).__name__


def has_field(model: SentenceTransformer, role: str | None) -> bool:
    """The model's template has a field for the instruction; without a role, a query's template counts too."""
    fields = getattr(model[0], "fields", None)
    return fields is not None and any("instruction" in fields(each) for each in ([role] if role else [None, "query"]))


def progress_bar(total: int, show: bool | None, unit: str = "positions") -> Any:
    """A bar; the time left is by the plain average, as batches differ in length."""
    hide = None if show is None else not show
    return tqdm(total=total, unit=f" {unit}", unit_scale=True, smoothing=0, disable=hide)


def _parts(task: Task) -> list[tuple[Sequence[str], Any]]:
    if not task.queries:
        return [(task.texts, None)]
    return [(task.texts[: task.queries], "query"), (task.texts[task.queries :], "document")]
