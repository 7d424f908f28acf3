"""Options as frozen dataclasses: a field has a type, a default, bounds and one line of help; all else is derived."""

from __future__ import annotations

import math
import reprlib
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from difflib import get_close_matches
from functools import cache
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

# A repository is data from elsewhere, and its numbers become memory and time.
MOST_CHARACTERS = 1 << 16
MOST_LAYERS = 1024

# Cuts a long text or list before it is written out, and what is nested too deep.
_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxdict, _SHORT.maxlist, _SHORT.maxtuple = 3, 20, 50, 50
_SHORT.maxstring = _SHORT.maxother = 200
_T = TypeVar("_T", bound="Options")
# A class's types: to find them takes longer than to check its values.
_hints: Callable[[Any], dict[str, Any]] = cache(get_type_hints)


def option(
    default: Any,
    help: str,
    *,
    least: float | None = None,
    most: float | None = None,
    choices: Collection[str] | None = None,
) -> Any:
    """A field of :class:`Options`.

    Args:
        default: Its default.
        help: One line: what it does, and its unit.
        least, most: Smallest and largest number that is allowed, in lists too.
        choices: For a text: the names that are allowed, such as a registry.
    """
    return field(default=default, metadata={"help": help, "least": least, "most": most, "choices": choices})


@dataclass(frozen=True)
class Options:
    """Checked settings: every value has its field's type and lies within its bounds, or the error says what may.

    Lists become tuples, so that equal settings are equal wherever they come from.
    """

    # How configurations and the command line call these options.
    name: ClassVar[str] = ""

    def __post_init__(self) -> None:
        hints = _hints(type(self))
        for each in fields(self):
            value = getattr(self, each.name)
            object.__setattr__(self, each.name, _checked(self.title(each.name), value, hints[each.name], each))

    @classmethod
    def title(cls, option: str) -> str:
        """How messages call an option: ``echo: repeats``."""
        return f"{cls.name}: {option}" if cls.name else option

    @classmethod
    def names(cls) -> list[str]:
        """The names of the fields, in order."""
        return [each.name for each in fields(cls)]

    @classmethod
    def described(cls) -> Iterator[tuple[str, str, Any, str]]:
        """Each field's name, what it may be, its default, and its help."""
        for each in fields(cls):
            yield each.name, allowed(_hints(cls)[each.name], each), each.default, each.metadata["help"]

    @classmethod
    def of(cls: type[_T], values: Mapping[str, Any]) -> _T:
        """Settings from a mapping, as a file holds it."""
        if not isinstance(values, Mapping):
            raise ValueError(f"{cls.name or cls.__name__}: {shown(values)} must be a mapping of {cls.names()}.")
        for name in values:
            if name not in cls.names():
                raise ValueError(unknown(cls.title(str(name)), name, cls.names(), values[name]))
        for each in fields(cls):
            if each.default is MISSING and each.name not in values:
                raise ValueError(f"{cls.title(each.name)} is missing: {each.metadata['help']}")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """The fields that are not at their default, JSON-serializable; :meth:`of` reads it."""
        given = [each for each in fields(self) if getattr(self, each.name) != each.default]
        return {each.name: _plain(getattr(self, each.name)) for each in given}


def unknown(title: str, name: object, known: Sequence[str], value: object = None) -> str:
    """The message for a name that does not exist, with the nearest that does."""
    given = "" if value is None else f" (={shown(value)})"
    return f"{title}{given} is not known: choose from {list(known)}.{_meant(str(name), known)}"


def _meant(name: str, known: Sequence[str]) -> str:
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    return f" Did you mean {near[0]!r}?" if near else ""


def allowed(hint: Any, each: Field[Any]) -> str:
    """What an option may be, in words."""
    least, most = each.metadata["least"], each.metadata["most"]
    bounds = "" if least is None else f" from {least:,}" + ("" if most is None else f" to {most:,}")
    number = {int: f"a whole number{bounds}", float: f"a number{bounds}"}
    named = {**number, bool: "True or False", str: "a text", types.NoneType: "None"}
    words: list[str] = []
    for kind in alternatives(hint):
        origin = get_origin(kind) or kind
        if origin is Literal or (origin is str and each.metadata["choices"] is not None):
            words += map(repr, get_args(kind) or each.metadata["choices"])
        elif origin is tuple:
            inner = {int: "whole numbers", float: "numbers"}.get(get_args(kind)[0], "texts")
            words.append(f"a list of {inner}{bounds}")
        else:
            words.append(named.get(origin, "a mapping"))
    return " or ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def _checked(title: str, value: Any, hint: Any, each: Field[Any]) -> Any:
    if isinstance(value, list):
        value = tuple(value)
    if isinstance(value, str) and len(value) > MOST_CHARACTERS:
        raise ValueError(f"{title} has {len(value):,} characters: the most is {MOST_CHARACTERS:,}. Shorten it.")
    choices = each.metadata["choices"]
    for kind in alternatives(hint):
        known = kind is not str or choices is None or (isinstance(value, str) and value in choices)
        if known and _fits(value, kind, each.metadata["least"], each.metadata["most"]):
            return value
    if value == () == each.default:
        return value
    names = [v for kind in alternatives(hint) if get_origin(kind) is Literal for v in get_args(kind)]
    meant = _meant(value, [*names, *(choices or ())]) if isinstance(value, str) else ""
    raise ValueError(f"{title}={shown(value)} is not allowed: give {allowed(hint, each)}.{meant}")


def alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _fits(value: Any, kind: Any, least: float | None, most: float | None) -> bool:
    origin = get_origin(kind) or kind
    if origin is Literal:
        return any(type(value) is type(each) and value == each for each in get_args(kind))
    if origin is tuple:
        inner = get_args(kind)[0]
        many = isinstance(value, tuple) and 0 < len(value) <= MOST_LAYERS
        return many and all(any(_fits(each, one, least, most) for one in alternatives(inner)) for each in value)
    if origin in (int, float):
        number = isinstance(value, (int, origin)) and not isinstance(value, bool)
        return (
            number
            and -math.inf < value < math.inf
            and (least is None or value >= least)
            and (most is None or value <= most)
        )
    return isinstance(value, Mapping if origin not in (str, bool, types.NoneType) else origin)


def shown(value: object) -> str:
    """A value as an error shows it: whole where it is short, else its beginning."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"(a number of {value.bit_length()} bits)"
    text = _SHORT.repr(value)
    return text if len(text) <= 200 else f"{text[:80]}…"


def _plain(value: Any) -> Any:
    """As JSON holds it."""
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return {key: _plain(each) for key, each in value.items()} if isinstance(value, Mapping) else value
