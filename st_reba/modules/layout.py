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

# False in the file of a published repository, which holds copies of these sections.
IS_INSTALLED = __name__.startswith("st_reba.")
TASKS = ("query", "document")
# The optional third part of a template: for texts that `encode` takes, neither query nor document.
SIMILARITY = "similarity"
# Fields of a template that stand for the text: as it is, or its words (in Chinese its characters) in reverse order.
SLOTS = ("text", "reversed")
# A fast tokenizer keeps its settings as state that other calls change, so one call runs at a time.
tokenizer_lock = threading.RLock()
_SURROGATES = re.compile("[\ud800-\udfff]")
Features = dict[str, Any]  # what modules hand on, by name
# Pairs of a literal and the field after it, or None.
Template = tuple[tuple[str, str | None], ...]


def published(cls: Any) -> Any:
    """Class decorator: modules.json names ``st_reba.…``; pickle, the whole package, or the file that it came from."""
    home = "st_reba.modules" if IS_INSTALLED else cls.__module__

    def reduce(module: Any) -> tuple[Any, ...]:
        return (_new, (home, type(module).__name__), *object.__reduce_ex__(module, 4)[2:])

    copyreg.pickle(cls, reduce)
    cls.__module__ = "st_reba"
    return cls


def _new(home: str, name: str) -> Any:
    cls = getattr(import_module(home), name)
    return cls.__new__(cls)


def decoder_of(model: Any) -> Any:
    """The decoder beside a vision or audio tower; the model itself where there is no other tower."""
    body = model.get_decoder()
    return body if hasattr(body, "set_attn_implementation") else model


@dataclass(frozen=True)
class Span:
    """Where a text stands in its row: start of the first copy, tokens per copy, real tokens of the row."""

    start: int
    length: int
    total: int


def copies_of(template: Template) -> int:
    """Number of slots for the text."""
    return sum(name in SLOTS for _, name in template)


def fields_of(template: Template) -> set[str]:
    """Names of the fields other than the text's."""
    return {name for _, name in template if name is not None and name not in SLOTS}


def has_reversed_copies(rows: Sequence[Mapping[str, Template]]) -> bool:
    """Whether a template of any row and task has a slot for the reversed text."""
    for templates in rows:
        for template in templates.values():
            if any(name == "reversed" for _, name in template):
                return True
    return False


@dataclass(frozen=True)
class Frame:
    """Token ids around the copies of a text."""

    parts: tuple[tuple[int, ...] | None, ...]  # None stands for a copy
    is_reversed: bool = False  # the copies hold the text with its words reversed

    @property
    def copies(self) -> int:
        """Number of copies k."""
        return self.parts.count(None)

    @property
    def overhead(self) -> int:
        """Number s of template and special tokens."""
        return sum(len(part) for part in self.parts if part is not None)

    def place(self, content: Sequence[int]) -> tuple[list[int], list[int], Span]:
        """Token ids of one row, copy ids (c in copy c, 0 elsewhere), and the span."""
        ids: list[int] = []
        copy_ids: list[int] = []
        copy = 0
        for part in self.parts:
            copy += part is None
            ids += content if part is None else part
            copy_ids += [copy] * len(content) if part is None else [0] * len(part)
        return ids, copy_ids, Span(copy_ids.index(1), len(content), len(ids))


def pad(rows: Sequence[tuple[list[int], list[int], Span]]) -> dict[str, Any]:
    """Features of rows, padded on the right with each row's own first token; attention_mask is 0 there."""
    spans = [span for _, _, span in rows]
    width = max((span.total for span in spans), default=0)
    totals = torch.tensor([[span.total] for span in spans], dtype=torch.long)
    return {
        "input_ids": torch.tensor([ids + ids[:1] * (width - len(ids)) for ids, _, _ in rows], dtype=torch.long),
        "copy_ids": torch.tensor([copies + [0] * (width - len(copies)) for _, copies, _ in rows], dtype=torch.long),
        "attention_mask": (torch.arange(width) < totals).long(),
        "spans": spans,
    }


def spans_of(features: Mapping[str, Any]) -> list[Span]:
    """Spans found again where features lost them, as when a batch is split; the host waits for the device."""
    mask = features["attention_mask"].cpu()
    content = features["copy_ids"].cpu() == 1 if "copy_ids" in features else mask.bool()
    found = content.int().argmax(dim=1), content.sum(dim=1), mask.sum(dim=1)
    return [Span(*row) for row in torch.stack(found, dim=1).tolist()]


def tokenize(tokenizer: Any, texts: Sequence[str], *, special: bool = False, offsets: bool = False) -> dict[str, Any]:
    """Token ids of texts, without the tokenizer's own special tokens.

    Names of special tokens are ordinary text unless ``special``; ``offsets``: give each token's characters too.
    """
    # Half of a surrogate pair has no UTF-8 form; its length is kept for the offsets.
    clean = [_SURROGATES.sub("\ufffd", text) for text in texts]
    options = {"padding": False, "truncation": False, "verbose": False, "return_attention_mask": False}
    options |= {"split_special_tokens": not special, "return_token_type_ids": False, "return_offsets_mapping": offsets}
    with tokenizer_lock:
        return dict(tokenizer(clean, add_special_tokens=False, **options))


def special_tokens(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ids that the tokenizer puts before and after a text."""
    for probe in ("a", "0", "the", "中"):
        bare = list(tokenize(tokenizer, [probe])["input_ids"][0])
        with tokenizer_lock:
            whole = list(tokenizer(probe, padding=False, truncation=False, verbose=False)["input_ids"])
        for start in range(len(whole) - len(bare) + 1):
            if bare and whole[start : start + len(bare)] == bare:
                return tuple(whole[:start]), tuple(whole[start + len(bare) :])
    raise ValueError(f"{type(tokenizer).__name__} does not put its special tokens around the text. Use another one.")


def empty_text_token(tokenizer: Any) -> int:
    """Id of the special token that stands for a text without a token."""
    for name in ("eos", "sep", "bos", "cls", "unk", "pad"):
        if (token := getattr(tokenizer, f"{name}_token_id", None)) is not None:
            return int(token)
    raise ValueError("A text holds no token, and the tokenizer has no special token to stand for it. Drop such texts.")


def make_frame(
    tokenizer: Any, template: Template, special: Sequence[tuple[int, ...]], prompt: str, values: Mapping[str, str]
) -> Frame:
    """The frame of a template: what stands before, between and after the copies is tokenized, each by itself.

    ``special`` stands around all; ``prompt`` stands first, unless the template has a field for it.
    """
    around = ["" if "instruction" in fields_of(template) else prompt]
    for literal, name in template:
        around[-1] += literal
        if name in SLOTS:
            around.append("")
        elif name is not None:
            around[-1] += values[name]
    parts: list[tuple[int, ...] | None] = [special[0]]
    for number, text in enumerate(around):
        parts += [None] if number else []
        parts += [tuple(tokenize(tokenizer, [text], special=True)["input_ids"][0])] if text else []
    return Frame((*parts, special[1]), any(name == "reversed" for _, name in template))
