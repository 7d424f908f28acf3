"""Vectors of a task's texts, by several methods from shared passes, or by one model."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..encode import encode_texts
from ..methods import Method
from . import readouts
from .instructions import Instructions
from .tasks import Task
from .words import tokens_of

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

Vectors = NDArray[np.float32]


def shared_vectors(
    base: SentenceTransformer,
    task: Task,
    methods: Sequence[Method],
    instructions: Instructions,
    batch_tokens: int,
    show: bool | None,
) -> dict[Method, Vectors]:
    """The vectors of a task's texts by each method, from as few passes as there are inputs and masks."""
    layers: Any = base[0]
    # A word's vector is the mean over its tokens, whatever the pooling, and not scaled.
    as_run = {each: replace(each, pooling="mean", normalize=False) for each in methods if each.name != "prompteol"}
    as_run = as_run if task.spans else {each: each for each in methods}
    shareable = [each for each in as_run if task.kind != "NER"]
    if task.spans:
        shareable = [each for each in shareable if readouts.readout_of(as_run[each], layers.depth) is not None]
    found = {
        each: model_vectors(readouts.of_base(base, each), task, instructions, batch_tokens, show)
        for each in methods
        if each not in shareable
    }
    plans: list[tuple[list[Method], list[Any]]] = []
    total = 0
    for first, group in readouts.shared([as_run[each] for each in shareable], layers.depth).items():
        model: Any = readouts.of_base(base, replace(first, filter=None), check=False)
        named = has_field(model, None)
        runs = [
            (list(texts), {"task": role, "prompt": instructions.before(task.name, role, named)})
            for texts, role in _parts(task)
        ]
        single = readouts.readout_of(first, layers.depth) is not None
        total += sum(sum(readouts.positions(model[0], one, **how)) if single else len(one) for one, how in runs)
        plans.append((group, runs))
    made: dict[Method, Vectors] = {}
    with progress_bar(total, show) as bar:
        options: dict[str, Any] = {"parts": token_spans(base, task), "batch_tokens": batch_tokens}
        options["progress"] = lambda texts, positions: bar.update(positions)
        for group, runs in plans:
            parts = [readouts.vectors(base, group, texts, **how, **options) for texts, how in runs]
            made |= {each: np.concatenate([one[each] for one in parts]) for each in group}
    return {each: found[each] if each in found else made[as_run[each]] for each in methods}


def model_vectors(
    model: SentenceTransformer, task: Task, instructions: Instructions, batch_tokens: int | None, show: bool | None
) -> Vectors:
    """The vectors of a task's texts by one model: a row a text, a word, or of entities a word of each text."""
    if task.kind == "NER":
        from .words import tagged_word_vectors

        return tagged_word_vectors(model, task)
    if task.spans:
        from ..words import encode_words

        return np.asarray(encode_words(model, list(zip(task.texts, task.spans, strict=True))), np.float32)
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
    found = []
    for text, (start, end), each in zip(task.texts, task.spans, offsets, strict=True):
        if not (tokens := tokens_of(each, start, end)):
            raise ValueError(f"The word {text[start:end]!r} falls on no token of {text!r:.60}.")
        found.append((tokens[0], tokens[-1] + 1))
    return found


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


@contextmanager
def progress_bar(total: int, show: bool | None, unit: str = "positions") -> Iterator[Any]:
    """A bar; the time left is by the plain average, as batches differ in length."""
    from tqdm.auto import tqdm

    hide = None if show is None else not show
    with tqdm(total=total, unit=f" {unit}", unit_scale=True, smoothing=0, disable=hide) as bar:
        yield bar


def _parts(task: Task) -> list[tuple[Sequence[str], Any]]:
    """The texts by their role."""
    if not task.queries:
        return [(task.texts, None)]
    return [(task.texts[: task.queries], "query"), (task.texts[task.queries :], "document")]
