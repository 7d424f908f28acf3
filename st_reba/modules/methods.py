"""The methods as options: how a text is laid out, and how its sentence vector is read. All else derives from these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

from .layout import INSTRUCTION, MOST_COPIES, REPEATS, SPAN, TEMPLATE, Layout, Span, Template
from .options import Options, option, shown, unknown
from .poolings import POOLINGS, rows_of

MOST_TOKENS = 1 << 24


@dataclass(frozen=True)
class Method(Options):
    """What every method has. A subclass registers itself by its ``name``."""

    instruction: str = option("", INSTRUCTION)
    max_seq_length: int | None = option(None, "positions of a sequence, all copies together", least=1, most=10**9)
    normalize: bool = option(True, "scale vectors to length 1")

    # By name.
    registry: ClassVar[dict[str, type[Method]]] = {}
    # What the README's table and a card say of it.
    source: ClassVar[str] = ""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        Method.registry[cls.name] = cls

    @property
    def layout(self) -> Layout:
        """How the input module lays a text out."""
        named = {each.name for each in fields(Layout)} & {each.name for each in fields(self)}
        return Layout(**{name: getattr(self, name) for name in named})


@dataclass(frozen=True)
class ByHand(Method):
    """Modules that were put together by hand: which method they make is not known."""

    name: ClassVar[str] = "by-hand"


@dataclass(frozen=True)
class ReBA(Method):
    """Backward attention over a repeated text."""

    name: ClassVar[str] = "reba"
    source: ClassVar[str] = "ReBA, section 3"

    pooling: str = option(
        "last", "sentence vector; last: e_n of the last token, mean: the mean of all e_i", choices=POOLINGS
    )
    repeats: int | None = option(None, REPEATS, least=1, most=MOST_COPIES)
    template: Template = option(None, TEMPLATE)
    variant: Literal["paper", "published"] = option("paper", "the paper's formulas, or what the authors' code computes")
    include_special: bool = option(False, "sum over template and special tokens too")
    normalize_weights: bool = option(False, "divide each token's weights by their sum")
    compute_matched: bool = option(False, "halve the tokens that a copy may hold")
    chunk: int | None = option(
        None,
        "for long texts: run the text once, and copies only of pieces of so many tokens",
        least=1,
        most=MOST_TOKENS,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        rows_of(self.pooling, self.variant)
        for name, wanted in (("variant", "paper"), ("compute_matched", False)):
            if self.chunk is not None and getattr(self, name) != wanted:
                raise ValueError(
                    f"reba: chunk={self.chunk} needs {name}={wanted!r}, not {getattr(self, name)!r}. Drop one of both."
                )

    @property
    def layout(self) -> Layout:
        """Of a text in pieces it is laid out once; the pooling repeats the pieces."""
        if self.chunk is None:
            return super().layout
        return Layout(self.template, 1 if self.template is None else None, self.instruction)


@dataclass(frozen=True)
class Echo(Method):
    """The last copy of a repeated text."""

    name: ClassVar[str] = "echo"
    source: ClassVar[str] = "Echo, section 3"

    pooling: Literal["last", "mean"] = option("last", "sentence vector: the last token's, or the mean")
    repeats: int | None = option(None, REPEATS, least=1, most=MOST_COPIES)
    template: Template = option(None, TEMPLATE)
    span: Span = option("last_copy", SPAN)
    compute_matched: bool = option(False, "halve the tokens that a copy may hold")


@dataclass(frozen=True)
class Classical(Method):
    """The text once."""

    name: ClassVar[str] = "classical"
    source: ClassVar[str] = "the baseline of all three papers"

    pooling: Literal["last", "mean", "cls"] = option(
        "last", "sentence vector: the last token's, the mean, or the first's"
    )
    template: Template = option(
        None, "text with one {text} slot, a template's name, or a mapping with query and document"
    )
    span: Span | None = option(None, f"{SPAN}; None: all with cls, else last_copy")

    @property
    def layout(self) -> Layout:
        """One copy."""
        span = self.span or ("all" if self.pooling == "cls" else "last_copy")
        return Layout(self.template, 1 if self.template is None else None, self.instruction, span)


@dataclass(frozen=True)
class PromptEOL(Method):
    """The very last position of a prompt that asks for one word."""

    name: ClassVar[str] = "prompteol"
    source: ClassVar[str] = "Echo, section 4.2 and appendix D"

    pooling: Literal["last"] = option("last", "sentence vector: the last position's")
    template: Template = option("prompteol", "text with one {text} slot, a template's name, or a mapping")
    span: Span = option("end", SPAN)


def method_of(given: Mapping[str, Any]) -> Method:
    """A method from what a configuration stores, ``{"name": {field: value}}``.

    Raises:
        ValueError: An unknown method or field, or a value that is not allowed.
    """
    if not isinstance(given, Mapping) or len(given) != 1:
        raise ValueError(f"method={shown(given)} must be a mapping of a method's name to its options.")
    name = next(iter(given))
    if name not in Method.registry:
        raise ValueError(unknown("method", name, list(Method.registry), name))
    return Method.registry[name].of(given[name])
