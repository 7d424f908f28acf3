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

from ..encode import encode_batch, in_order, planned_batches
from ..methods import Method
from . import readouts
from .instructions import Instructions
from .tasks import Task

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
    words = {each: replace(each, pooling="mean", normalize=False) for each in methods if each.name != "prompteol"}
    own = [each for each in methods if readouts.readout_of(words.get(each, each), layers.depth) is None]
    alone = list(methods) if task.kind == "NER" else own if task.spans else []
    found = {
        each: model_vectors(readouts.of_base(base, each), task, instructions, batch_tokens, show) for each in alone
    }
    fielded = [
        each
        for each in methods
        if each.template is not None and has_field(readouts.of_base(base, each, check=False), None)
    ]
    groups = [
        [each for each in methods if each not in found and (each in fielded) == with_field] for with_field in (0, 1)
    ]
    plans: list[tuple[list[Method], list[Method], list[Any]]] = []
    total = 0
    for with_field, group in enumerate(groups):
        wanted = [words[each] for each in group] if task.spans else group
        runs = [
            (list(texts), {"task": role, "prompt": instructions.before(task.name, role, bool(with_field))})
            for texts, role in _parts(task)
        ]
        for first in readouts.shared(wanted, layers.depth):
            transformer: Any = readouts.of_base(base, replace(first, filter=None), check=False)[0]
            single = readouts.readout_of(first, layers.depth) is not None
            total += sum(sum(readouts.positions(transformer, one, **how)) if single else len(one) for one, how in runs)
        plans.append((group, wanted, runs if wanted else []))
    with progress_bar(total, show) as bar:
        options: dict[str, Any] = {"parts": token_spans(base, task), "batch_tokens": batch_tokens}
        options["progress"] = lambda texts, positions: bar.update(positions)
        for group, wanted, runs in plans:
            made = [readouts.vectors(base, wanted, texts, **how, **options) for texts, how in runs]
            rows = zip(group, wanted, strict=True)
            found |= {each: np.concatenate([one[as_run] for one in made]) for each, as_run in rows}
    return {each: found[each] for each in methods}


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
    planned: list[Any] = []
    for texts, role in _parts(task):
        prompt = instructions.before(task.name, role, has_field(model, role))
        given: dict[str, Any] = {} if prompt is None else {"prompt": prompt}
        batches, counts = planned_batches(model, texts, task=role, batch_tokens=batch_tokens, **given)
        planned.append((texts, {"task": role, **given}, batches, counts or [len(text) for text in texts]))
    found = []
    with progress_bar(sum(sum(counts) for *_, counts in planned), show) as bar:
        for texts, options, batches, counts in planned:
            rows = []
            for batch in batches:
                rows.append(encode_batch(model, [texts[place] for place in batch], **options))
                bar.update(sum(counts[place] for place in batch))
            found.append(in_order(rows, batches))
    return np.concatenate(found)


def token_spans(base: SentenceTransformer, task: Task) -> list[tuple[int, int]] | None:
    """The content tokens (first, end) of each text's word; None: the task is about whole texts."""
    if not task.spans:
        return None
    transformer: Any = base[0]
    offsets = transformer.content(list(task.texts), offsets=True)["offset_mapping"]
    found = []
    for text, (start, end), each in zip(task.texts, task.spans, offsets, strict=True):
        tokens = [token for token, (a, b) in enumerate(each) if a < end and b > start and b > a]
        if not tokens:
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
def progress_bar(total: int, show: bool | None) -> Iterator[Any]:
    """A bar over positions; the time left is by the plain average, as batches differ in length."""
    from tqdm.auto import tqdm

    hide = None if show is None else not show
    with tqdm(total=total, unit=" positions", unit_scale=True, smoothing=0, disable=hide) as bar:
        yield bar


def _parts(task: Task) -> list[tuple[Sequence[str], Any]]:
    """The texts by their role."""
    if not task.queries:
        return [(task.texts, None)]
    return [(task.texts[: task.queries], "query"), (task.texts[task.queries :], "document")]
