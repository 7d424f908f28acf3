"""Vectors of a task's texts, by several methods from shared passes, or by one model."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer

from ..encode import Role, encode_texts, transformer_of
from ..methods import Method
from ..progress import progress_bar
from ..words import encode_words, tokens_of_span
from .instructions import Instructions
from .readouts import MethodGroup, build_on, depth_of, group_by_pass, readout_of
from .shared_pass import TokenRange
from .statistics import Evidence
from .task import Task
from .vectors import Vectors


def shared_vectors(
    base_model: SentenceTransformer,
    task: Task,
    methods: Sequence[Method],
    instructions: Instructions,
    batch_tokens: int,
    show_progress_bar: bool | None,
) -> dict[Method, Vectors]:
    """Vectors of a task's texts by each method, with one pass for each input with its masks."""
    vectors_by_method: dict[Method, Vectors] = {}
    shared_methods: dict[Method, Method] = {}
    for method in methods:
        shared_method = _shared_method(task, method, depth_of(base_model))
        if shared_method is not None:
            shared_methods[method] = shared_method
            continue
        model = build_on(base_model, method)
        vectors_by_method[method] = model_vectors(
            model, task, instructions, batch_tokens, show_progress_bar
        )
    token_ranges = find_token_ranges(base_model, task)
    groups = group_by_pass(list(shared_methods.values()), depth_of(base_model))
    method_groups = [
        MethodGroup(base_model, methods_of_pass) for methods_of_pass in groups.values()
    ]
    vectors_by_shared_method = _encode_groups(
        method_groups, task, token_ranges, instructions, batch_tokens, show_progress_bar
    )
    for method, shared_method in shared_methods.items():
        vectors_by_method[method] = vectors_by_shared_method[shared_method]
    return vectors_by_method


def _encode_groups(
    method_groups: Sequence[MethodGroup],
    task: Task,
    token_ranges: Sequence[TokenRange] | None,
    instructions: Instructions,
    batch_tokens: int,
    show_progress_bar: bool | None,
) -> dict[Method, Vectors]:
    """Run the pass of each group over a task's texts, with one bar for all positions."""
    encoders: list[partial[dict[Method, Vectors]]] = []
    total_positions = 0
    for method_group in method_groups:
        for texts, role in _texts_by_role(task):
            input_options: dict[str, Any] = {
                "task": role,
                "prompt": _prompt_for(method_group.model, task, role, instructions),
            }
            encode_group = partial(
                method_group.encode,
                texts,
                token_ranges=token_ranges,
                batch_tokens=batch_tokens,
                **input_options,
            )
            encoders.append(encode_group)
            total_positions += method_group.count_positions(texts, input_options)
    rows_by_method = defaultdict[Method, list[Vectors]](list)
    with averaging_bar(total_positions, show_progress_bar) as bar:
        for encode_group in encoders:
            for method, vector_rows in encode_group(progress=bar.update).items():
                rows_by_method[method].append(vector_rows)
    return {method: np.concatenate(blocks) for method, blocks in rows_by_method.items()}


def _shared_method(
    task: Task,
    method: Method,
    depth: int,
) -> Method | None:
    """The method to read from a shared pass for a task; None: this method cannot share one."""
    if not task.task_kind.list_words(task):
        return method
    # Not shared: several words in a text, or a prompt that asks for a word.
    if not task.spans or method.name == "prompteol":
        return None
    # The vector of a word is the mean over its tokens, whatever the pooling, and not scaled.
    word_method = replace(method, pooling="mean", normalize=False, filter=None)
    return None if readout_of(word_method, depth) is None else word_method


def model_vectors(
    model: SentenceTransformer,
    task: Task,
    instructions: Instructions,
    batch_tokens: int | None,
    show_progress_bar: bool | None,
) -> Vectors:
    """The vectors of a task's texts by one model, one row per text; or of its words."""
    words = task.task_kind.list_words(task)
    if words:
        return encode_words(
            model,
            words,
            prompt=_prompt_for(model, task, None, instructions),
            batch_tokens=batch_tokens,
            show_progress_bar=bool(show_progress_bar),
        )
    vectors: list[Vectors] = []
    with averaging_bar(len(task.texts), show_progress_bar, "texts") as bar:
        for texts, role in _texts_by_role(task):
            vectors.append(
                encode_texts(
                    model,
                    texts,
                    task=role,
                    prompt=_prompt_for(model, task, role, instructions),
                    batch_tokens=batch_tokens,
                    progress=bar.update,
                )
            )
    return np.concatenate(vectors)


def _prompt_for(
    model: SentenceTransformer, task: Task, role: Role | None, instructions: Instructions
) -> str | None:
    """The instruction before a task's texts, as a model's template takes it."""
    return instructions.before(task.name, role, has_instruction_field(model, role))


def find_token_ranges(base_model: SentenceTransformer, task: Task) -> list[TokenRange] | None:
    """The content tokens of each text's word; None: the task is about whole texts."""
    if not task.spans:
        return None
    content = transformer_of(base_model).tokenize_content(list(task.texts), offsets=True)
    token_ranges: list[TokenRange] = []
    for index, offsets in enumerate(content["offset_mapping"]):
        tokens = tokens_of_span(
            index,
            task.texts[index],
            task.spans[index],
            offsets,
            len(offsets),
        )
        token_ranges.append((tokens[0], tokens[-1] + 1))
    return token_ranges


def compute_evidence(
    task: Task,
    vectors: Vectors,
    label: str,
) -> Evidence:
    """The evidence from the vectors of a method or model (``label``).

    Raises:
        ValueError: Some vectors are zero or not finite.
    """
    is_unusable = ~np.isfinite(vectors).all(axis=1) | ~vectors.any(axis=1)
    unusable_rows = np.flatnonzero(is_unusable)
    if len(unusable_rows):
        example = ""
        if len(vectors) == len(task.texts):
            example = f"; the first is of {task.texts[unusable_rows[0]]!r:.80}"
        count = f"{len(unusable_rows)} of {len(vectors)} vectors"
        raise ValueError(f"{label}: {count} are zero or not finite{example}.")
    return task.task_kind.evidence(task, vectors)


def name_of(model: SentenceTransformer) -> str:
    """Name of the folder or repository that a model was loaded from; of tune's ``OUT/model``, both parts."""
    inner_model = getattr(model[0], "model", None)
    name = getattr(getattr(inner_model, "config", None), "_name_or_path", "")
    if os.path.isdir(name):
        folder = Path(name).absolute()
        return f"{folder.parent.name}/model" if folder.name == "model" else folder.name
    return name or type(model).__name__


def has_instruction_field(model: SentenceTransformer, role: str | None) -> bool:
    """Whether the template has an instruction field; without a role, the query's counts too."""
    fields_of = getattr(model[0], "fields", None)
    if fields_of is None:
        return False
    if role is None and "instruction" in fields_of("query"):
        return True
    return "instruction" in fields_of(role)


def averaging_bar(
    total: int,
    is_shown: bool | None,
    unit: str = "positions",
) -> AbstractContextManager[Any]:
    """A progress bar; it estimates the time left from the average, as batches differ in length."""
    return progress_bar(None, unit, total, is_shown=is_shown, unit_scale=True, smoothing=0)


def _texts_by_role(task: Task) -> list[tuple[list[str], Role | None]]:
    if not task.query_count:
        return [(list(task.texts), None)]
    queries = list(task.texts[: task.query_count])
    documents = list(task.texts[task.query_count :])
    return [(queries, "query"), (documents, "document")]
