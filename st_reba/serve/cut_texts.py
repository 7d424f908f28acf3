"""Which texts are longer than the model reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..encode import Task, saved_prompt


def find_cut_texts(model: Any, texts: Sequence[str], counts: Sequence[int], task: Task | None) -> list[int]:
    """Find the texts whose end is cut.

    Args:
        model: The SentenceTransformer.
        texts: One text or more.
        counts: Positions that each takes, as :func:`st_reba.encode.positions` counts them.
        task: As for :func:`st_reba.encode.encode_texts`.

    Returns:
        Their indices; none for a model without a tokenizer of transformers, which reads all of a text.

    Example:
        >>> import st_reba
        >>> from st_reba.encode import positions
        >>> model = st_reba.build("mini", "echo", max_seq_length=32)
        >>> texts = ["short", "long " * 40]
        >>> find_cut_texts(model, texts, positions(model, texts), None)
        [1]
    """
    prompt = saved_prompt(model, task)
    transformer: Any = model[0]
    if hasattr(transformer, "budget"):
        return _cut_by_budget(transformer, texts, counts, {"prompt": prompt, "task": task})
    return _cut_by_tokenizer(model, prompt or "", texts, counts)


def _cut_by_budget(transformer: Any, texts: Sequence[str], counts: Sequence[int], layout: dict[str, Any]) -> list[int]:
    budget = transformer.budget(**layout)
    if budget is None:
        return []
    frames = transformer.frames(**layout)
    full_length = len(frames) * (max(frame.overhead for frame in frames) + frames[0].copies * budget)
    cut_indices = []
    for index, count in enumerate(counts):
        # A text that takes less room than there is was not cut, and is not tokenized again.
        if count >= full_length and len(transformer.content([texts[index]])["input_ids"][0]) > budget:
            cut_indices.append(index)
    return cut_indices


def _cut_by_tokenizer(model: Any, prompt: str, texts: Sequence[str], counts: Sequence[int]) -> list[int]:
    from transformers import PreTrainedTokenizerBase

    tokenizer = getattr(model, "tokenizer", None)
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        return []
    limit = min(model.max_seq_length or tokenizer.model_max_length, tokenizer.model_max_length)
    cut_indices = []
    for index, count in enumerate(counts):
        if count < limit:
            continue
        token_ids = tokenizer(prompt + texts[index], truncation=False, verbose=False)["input_ids"]
        if len(token_ids) > limit:
            cut_indices.append(index)
    return cut_indices
