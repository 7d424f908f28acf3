"""Options made of the fields that dataclasses declare: a field is listed in one place, where it is checked."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import MISSING, make_dataclass
from typing import Any, get_type_hints

from ..modules.options import Options, alternatives
from ..spec import read_value
from .options import completing, opt


class Fields:
    """The base of what :func:`options_of` makes: only what was given is set."""

    _hints: Mapping[str, Any]

    @property
    def given(self) -> dict[str, Any]:
        """The fields that were given, as their dataclass takes them."""
        found = {name: getattr(self, name) for name in self._hints if getattr(self, name) not in (None, False)}
        found |= {name: False for name, hint in self._hints.items() if hint is bool and getattr(self, f"no_{name}")}
        return {
            name: read_value(each, self._hints[name]) if isinstance(each, str) else each for name, each in found.items()
        }


def options_of(
    panel: str, kinds: Iterable[tuple[str, type[Options]]], only: Collection[str] | None = None
) -> type[Fields]:
    """A dataclass of options, one a field.

    Args:
        panel: Their heading in help.
        kinds: Dataclasses, each with what its user is called; fields of one name become one option.
        only: Fields that are taken; None: all.
    """
    kinds = list(kinds)
    described: dict[str, list[tuple[str, str, Any, str]]] = {}
    hints: dict[str, Any] = {}
    for user, kind in kinds:
        for name, allowed, default, words in kind.described():
            if only is None or name in only:
                described.setdefault(name, []).append((user, allowed, default, words))
                hints.setdefault(name, get_type_hints(kind)[name])
    options: list[tuple[str, Any, Any]] = []
    for name, uses in described.items():
        users = dict.fromkeys(user for user, *_ in uses)
        whose = f"Of {', '.join(users)}: " if users.keys() < {user for user, _ in kinds} else ""
        options += _options(name, hints[name], uses, whose)
    return make_dataclass("Given", options, bases=(Fields,), namespace={"panel": panel, "_hints": hints})


def _options(name: str, hint: Any, uses: list[tuple[str, str, Any, str]], whose: str) -> Iterable[tuple[str, Any, Any]]:
    """Name, type and option of a field; of one that is True or False two, so that a recipe's can be turned round."""
    default, words = uses[0][2:]
    words = words if whose else words[0].upper() + words[1:]
    if hint is bool:
        # Help shows the one that makes a difference.
        yield name, bool, opt(False, f"{whose}{words}.", hidden=default is True)
        yield (
            f"no_{name}",
            bool,
            opt(False, f"{whose}{'do' if whose else 'Do'} not {words[0].lower()}{words[1:]}.", hidden=default is False),
        )
        return
    choices = list(dict.fromkeys(each for _, allowed, *_ in uses for each in re.findall("'([^']*)'", allowed)))
    numeric = bool({int, float} & set(alternatives(hint)))
    listed = f" ({', '.join(choices)})" if choices and not numeric else ""
    told = f" [default: {default}]" if default not in (None, "", MISSING) else ""
    metavar = "N|all" if "all" in choices and numeric else "N" if numeric else "NAME" if choices else "TEXT"
    yield (
        name,
        str | None,
        opt(None, f"{whose}{words}{listed}.{told}", metavar, autocompletion=completing(choices)),
    )
