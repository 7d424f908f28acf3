"""Input layout: templates, and where the copies of a text stand in a row of token ids."""

from __future__ import annotations

import copyreg
import re
import string
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import torch


class Parts(dict[str, Any]):
    """Sections of this code that not every repository carries, and what the installed package adds, by name."""

    def __missing__(self, name: str) -> Any:
        raise ValueError(f"This copy of st_reba's code lacks {name!r}, which the model needs: pip install st-reba.")


# "pass", "running" and "show" come from the section attention; "reader", "outputs", "reverse", "second" and "both_ways"
# from sections that only some models need; "fused", "training", "eager", "code" and "stored_as" from the package alone.
PARTS = Parts()
TASKS = ("query", "document")
# Fields of a template that stand for the text: as it is, or its words (in Chinese its characters) in reverse order.
SLOTS = ("text", "reversed")
# A fast tokenizer keeps its settings as state that other calls change, so one call runs at a time.
_tokenizing = threading.Lock()
_SURROGATES = re.compile("[\ud800-\udfff]")
# Pairs of a literal and the field after it, or None.
Template = tuple[tuple[str, str | None], ...]


def published(kind: Any) -> Any:
    """Class decorator: modules.json calls the class ``st_reba.…``; pickle uses the module that it was loaded from."""
    copyreg.pickle(kind, partial(_reduce, kind.__module__))
    kind.__module__ = "st_reba"
    return kind


def _reduce(home: str, module: Any) -> tuple[Any, ...]:
    """How pickle and copy take a module apart, its class named by the file that defines it."""
    reduced: Any = object.__reduce_ex__(module, 4)
    return (_new, (home, type(module).__name__), *reduced[2:])


def _new(home: str, name: str) -> Any:
    """An empty module of a class, which pickle then fills."""
    kind = getattr(import_module(home), name)
    return kind.__new__(kind)


def decoder_of(model: Any) -> Any:
    """The decoder beside a vision or audio tower; the model itself where there is no other tower."""
    body = model.get_decoder()
    return body if hasattr(body, "set_attn_implementation") else model


class Span(NamedTuple("Span", [("start", int), ("length", int), ("total", int)])):
    """Where a text stands in its row: start of the first copy, tokens per copy, real tokens of the row."""

    def __new__(cls, start: Any, *others: int) -> Span:
        # Some trainers rebuild tuples as type(x)(iterable) when they move features to a device.
        return super().__new__(cls, *((start, *others) if others else start))


def parse_template(template: str) -> Template:
    """Split a template at its fields; literal braces are doubled, as in ``str.format``."""
    try:
        parsed = list(string.Formatter().parse(template))
    except ValueError as error:
        raise ValueError(f"template={template!r} is malformed ({error}). Double a literal brace: {{{{.") from error
    if any(name is not None and (not name.isidentifier() or spec or how) for _, name, spec, how in parsed):
        raise ValueError(f"template={template!r} has a field that is no plain name, as {{text}} or {{instruction}}.")
    pieces = tuple((literal, name) for literal, name, _, _ in parsed)
    if len(slots := {name for _, name in pieces if name in SLOTS}) != 1:
        problem = "has no {text} slot" if not slots else "mixes {text} and {reversed}: give each a template of its own"
        raise ValueError(f"template={template!r} {problem}.")
    return pieces


def parse_templates(template: Any, repeats: int) -> list[dict[str, Template]]:
    """The template of each task, for every row that a text makes; arguments: see RepeatTransformer."""
    if template is None:
        return [dict.fromkeys(TASKS, (("", "text"),) * repeats)]
    if isinstance(template, Sequence) and not isinstance(template, str):
        rows = [row for each in template for row in parse_templates(each, repeats)]
    else:
        by_task = dict.fromkeys(TASKS, template) if isinstance(template, str) else template
        if not isinstance(by_task, Mapping) or set(by_task) != set(TASKS):
            raise ValueError(f"template={template!r}: give a text, or a mapping with the keys {', '.join(TASKS)}.")
        rows = [{task: parse_template(by_task[task]) for task in TASKS}]
    if len({copies_of(each) for row in rows for each in row.values()}) != 1:
        raise ValueError(f"template={template!r}: every template needs the same number of {{text}} slots.")
    return rows


def copies_of(template: Template) -> int:
    """Number of slots for the text."""
    return sum(name in SLOTS for _, name in template)


def fields_of(template: Template) -> set[str]:
    """Names of the fields other than the text's."""
    return {name for _, name in template if name is not None and name not in SLOTS}


@dataclass(frozen=True)
class Frame:
    """Token ids around the copies of a text, special tokens included; None stands for a copy."""

    parts: tuple[tuple[int, ...] | None, ...]
    # Whether the copies hold the reversed text.
    of_reversed: bool = False

    @property
    def copies(self) -> int:
        """Number of copies k."""
        return self.parts.count(None)

    @property
    def overhead(self) -> int:
        """Number of template and special tokens."""
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
    with _tokenizing:
        return dict(tokenizer(clean, add_special_tokens=False, **options))


def special_tokens(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ids that the tokenizer puts before and after a text."""
    options = {"padding": False, "truncation": False, "verbose": False}
    for probe in ("a", "0", "the", "中"):
        with _tokenizing:
            whole = list(tokenizer(probe, add_special_tokens=True, **options)["input_ids"])
            bare = list(tokenizer(probe, add_special_tokens=False, **options)["input_ids"])
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
    """Token ids around the copies; each literal is tokenized by itself. ``prompt`` stands first, or as instruction."""
    literal = "" if "instruction" in fields_of(template) else prompt
    parts: list[tuple[int, ...] | None] = [special[0]]
    for number, (text, name) in enumerate([*template, ("", None)]):
        literal += text + ("" if name in (None, *SLOTS) else values[str(name)])
        if literal and (name in SLOTS or number == len(template)):
            parts.append(tuple(tokenize(tokenizer, [literal], special=True)["input_ids"][0]))
            literal = ""
        parts += [None] if name in SLOTS else []
    return Frame((*parts, special[1]), any(name == "reversed" for _, name in template))
