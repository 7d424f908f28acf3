"""Layout of the input: where the copies of a text, and what is around them, stand in a row of token ids."""

from __future__ import annotations

import copyreg
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

# Always False in the file of a published repository: what runs only where it is True is unused there.
IS_INSTALLED = __name__.startswith("st_reba.")
TASKS = ("query", "document")
# The optional third part of a template: for texts that `encode` takes, neither query nor document.
SIMILARITY = "similarity"
# Fields of a template that stand for the text: as it is, or its words (in Chinese its characters)
# in reverse order.
SLOTS = ("text", "reversed")
# The most copies of a text in a row, and rows per text: each takes time.
MAX_REPEATS = 64
POOLED = ("last_copy", "repeats", "last_copy_and_end", "end", "all")
# A fast tokenizer keeps its settings as state that other calls change, so one call runs at a time.
tokenizer_lock = threading.RLock()
_SURROGATES = re.compile("[\ud800-\udfff]")
Features = dict[str, Any]  # what modules hand on, by name
# Pairs of a literal and the field after it, or None.
ParsedTemplate = tuple[tuple[str, str | None], ...]


def published(module_class: Any) -> Any:
    """Class decorator: report the class as ``st_reba.X``, as modules.json stores it; pickle it by its real module."""
    home = "st_reba.modules" if IS_INSTALLED else module_class.__module__

    def pickle_parts(module: Any) -> tuple[Any, ...]:
        return (_new, (home, type(module).__name__), *object.__reduce_ex__(module, 4)[2:])

    copyreg.pickle(module_class, pickle_parts)
    module_class.__module__ = "st_reba"
    return module_class


def _new(home: str, name: str) -> object:
    module_class = getattr(import_module(home), name)
    return module_class.__new__(module_class)


def decoder_of(model: PreTrainedModel) -> PreTrainedModel:
    """The decoder beside a vision or audio tower; the model itself where there is no other tower."""
    body: PreTrainedModel = model.get_decoder()  # type: ignore[no-untyped-call]
    return body if hasattr(body, "set_attn_implementation") else model


def causal_flags(model: PreTrainedModel) -> list[bool]:
    """Whether a decoder's modules say that they are causal."""
    modules = decoder_of(model).modules()
    return [bool(module.is_causal) for module in modules if hasattr(module, "is_causal")]


@dataclass(frozen=True)
class Span:
    """Where a text stands in its row."""

    start: int  # position of the first token of copy 1
    text_length: int  # tokens of one copy
    row_length: int  # tokens of the row, without padding


def copies_of(template: ParsedTemplate) -> int:
    """Number of slots for the text."""
    return sum(name in SLOTS for _, name in template)


def fields_of(template: ParsedTemplate) -> set[str]:
    """Names of the fields other than the text's."""
    return {name for _, name in template if name is not None and name not in SLOTS}


def reverses_text(template: ParsedTemplate) -> bool:
    """Whether its slots hold the text with its words reversed."""
    return any(name == "reversed" for _, name in template)


@dataclass(frozen=True)
class RowLayout:
    """Where the copies of a text, and the tokens around them, stand in a row."""

    segments: tuple[tuple[int, ...] | None, ...]  # token ids; None: a copy
    is_reversed: bool = False  # the copies hold the text with its words reversed

    @property
    def copies(self) -> int:
        """Number of copies k."""
        return self.segments.count(None)

    @property
    def overhead(self) -> int:
        """Number s of template and special tokens."""
        return sum(len(segment or ()) for segment in self.segments)

    def build_row(self, content: Sequence[int]) -> tuple[list[int], list[int], Span]:
        """Token ids of one row, copy ids (c in copy c, 0 elsewhere), and the span."""
        token_ids: list[int] = []
        copy_ids: list[int] = []
        copy_number = 0
        for segment in self.segments:
            if segment is None:
                copy_number += 1
                token_ids += content
                copy_ids += [copy_number] * len(content)
            else:
                token_ids += segment
                copy_ids += [0] * len(segment)
        return token_ids, copy_ids, Span(copy_ids.index(1), len(content), len(token_ids))


def copy_starts(copy_ids: Tensor, copy_number: int) -> Tensor:
    """Position at which a copy begins in each row, [B, 1]."""
    return (copy_ids == copy_number).int().argmax(dim=1, keepdim=True)


def pooled_positions(
    pooled: str,
    copies: int,
    copy_ids: Tensor,
    real_tokens: Tensor,
    row_lengths: Tensor,
    special_suffix_length: int,
) -> Tensor:
    """The positions that a pooling sees, [B, T] bool; ``pooled`` is one of ``POOLED``, of k copies.

    ``real_tokens`` [B, T] mark the first ``row_lengths`` [B, 1] tokens; the last
    ``special_suffix_length`` of them are special.
    """
    if pooled == "all":
        return real_tokens
    if pooled == "repeats":
        return copy_ids >= min(2, copies)
    if pooled == "last_copy":
        return copy_ids == copies
    end_length = 1 if pooled == "end" else special_suffix_length
    is_end = torch.arange(copy_ids.shape[1], device=copy_ids.device) >= row_lengths - end_length
    if pooled == "end":
        return is_end & real_tokens
    return (copy_ids == copies) | (is_end & real_tokens)


def pad(rows: Sequence[tuple[list[int], list[int], Span]]) -> Features:
    """Features of rows, padded on the right with their first token (any would do); attention_mask is 0 there."""
    spans = [span for _, _, span in rows]
    longest = max((span.row_length for span in spans), default=0)
    padded_ids = [
        token_ids + token_ids[:1] * (longest - span.row_length) for token_ids, _, span in rows
    ]
    padded_copies = [copy_ids + [0] * (longest - span.row_length) for _, copy_ids, span in rows]
    row_lengths = torch.tensor([[span.row_length] for span in spans], dtype=torch.long)
    return {
        "input_ids": torch.tensor(padded_ids, dtype=torch.long),
        "copy_ids": torch.tensor(padded_copies, dtype=torch.long),
        "attention_mask": (torch.arange(longest) < row_lengths).long(),
        "spans": spans,
    }


def check_token_ids(token_ids: Tensor, model: PreTrainedModel) -> None:
    """Refuse a token that the tokenizer has but the model lacks: on a GPU it ends the process."""
    count: Any = getattr(model.get_input_embeddings(), "num_embeddings", None)
    if count is None or not token_ids.numel():
        return
    highest = int(token_ids.max())
    if highest >= count:
        remedy = "Call model[0].model.resize_token_embeddings(len(model.tokenizer)), and train it"
        raise ValueError(
            f"The tokenizer has token {highest}, but the model only {count} embeddings. {remedy}."
        )


def spans_of(features: Mapping[str, Any]) -> list[Span]:
    """Recompute the spans of features that lost them, for example when a batch was split; waits for the device."""
    attention_mask = features["attention_mask"].cpu()
    copy_ids = features["copy_ids"].cpu() if "copy_ids" in features else attention_mask
    starts = copy_starts(copy_ids, 1)[:, 0].tolist()
    lengths = (copy_ids == 1).sum(dim=1).tolist()
    totals = attention_mask.sum(dim=1).tolist()
    return list(map(Span, starts, lengths, totals))


def tokenize(
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    *,
    parse_special: bool = False,
    offsets: bool = False,
) -> Features:
    """Token ids of texts, without the tokenizer's own special tokens.

    With ``parse_special``, names of special tokens in a text become these tokens; otherwise they
    are ordinary text. ``offsets``: give each token's characters too.
    """
    # Half of a surrogate pair has no UTF-8 form; its length is kept for the offsets.
    clean_texts = [_SURROGATES.sub("\ufffd", text) for text in texts]
    options = {
        "padding": False,
        "truncation": False,
        "verbose": False,
        "add_special_tokens": False,
        "return_attention_mask": False,
        "return_token_type_ids": False,
        "return_offsets_mapping": offsets,
    }
    with tokenizer_lock:
        return dict(tokenizer(clean_texts, split_special_tokens=not parse_special, **options))


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ids that the tokenizer puts before and after a text."""
    for probe in ("a", "0", "the", "中"):
        bare_ids = list(tokenize(tokenizer, [probe])["input_ids"][0])
        with tokenizer_lock:
            encoding = tokenizer(probe, padding=False, truncation=False, verbose=False)
        whole_ids = list(encoding["input_ids"])
        for start in range(len(whole_ids) - len(bare_ids) + 1):
            end = start + len(bare_ids)
            if bare_ids and whole_ids[start:end] == bare_ids:
                return tuple(whole_ids[:start]), tuple(whole_ids[end:])
    raise ValueError(
        f"{type(tokenizer).__name__} does not put its special tokens around the text. Use another one."
    )


def empty_text_token(tokenizer: PreTrainedTokenizerBase) -> int:
    """Id of the special token that stands for a text without a token."""
    for name in ("eos", "sep", "bos", "cls", "unk", "pad"):
        token_id = getattr(tokenizer, f"{name}_token_id", None)
        if token_id is not None:
            return int(token_id)
    raise ValueError(
        "A text holds no token, and the tokenizer has no special token to stand for it. Drop such texts."
    )


def make_row_layout(
    tokenizer: PreTrainedTokenizerBase,
    template: ParsedTemplate,
    special: tuple[tuple[int, ...], tuple[int, ...]],
    prompt: str,
    values: Mapping[str, str],
) -> RowLayout:
    """Lay out the rows of a template.

    The literal texts before, between and after the copies are tokenized separately. The special
    prefix and suffix enclose the row; ``prompt`` comes right after the prefix, unless the template
    has a field for it.
    """
    special_prefix, special_suffix = special
    literals = ["" if "instruction" in fields_of(template) else prompt]
    for literal, name in template:
        literals[-1] += literal
        if name in SLOTS:
            literals.append("")
        elif name is not None:
            literals[-1] += values[name]
    segments: list[tuple[int, ...] | None] = [special_prefix]
    for literal_index, literal in enumerate(literals):
        if literal_index > 0:
            segments.append(None)
        if literal:
            token_ids = tokenize(tokenizer, [literal], parse_special=True)["input_ids"][0]
            segments.append(tuple(token_ids))
    segments.append(special_suffix)
    return RowLayout(tuple(segments), reverses_text(template))
