"""What a filter is fitted as, and from how many texts."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal["center", "abtt", "whiten"]

# The mean of fewer vectors is unreliable. From this number on, a search with it is better than one
# without (on four collections).
MIN_FOR_MEAN = 20
# Directions need more.
MIN_FOR_DIRECTIONS = 100
# Texts per dimension that full whitening needs.
_TEXTS_PER_DIMENSION = 4
FULL_POWER = 0.5
SEARCH_POWER = 0.25
# For the token part of a vector: its maximum dimension, and the weight of its cosine, relative to 1
# for the whitened vectors. Both chosen on Cranfield, CISI, STARD and XQuAD.
TOKEN_DIMENSIONS = 256
TOKEN_SHARE = 0.4
_DEFAULT_REMOVED_DIRECTIONS = 3
# What `FilterOptions.describe` writes.
_DESCRIPTION = re.compile(rf"({'|'.join(get_args(Kind))}):(\w+=[^,]*,)*texts=\d+(,.*)?")


@dataclass(frozen=True)
class FilterOptions:
    """Options of a filter, checked: principal directions that are removed or kept, and the power of whitening."""

    kind: Kind
    r: int | None
    dimensions: int | None
    power: float
    direction_count: int

    @classmethod
    def make(
        cls,
        kind: Kind,
        r: int | None,
        dimensions: int | None,
        power: float | None,
        text_count: int,
        width: int,
    ) -> FilterOptions:
        """Checked options; one of another kind, an invalid value or too few texts are refused."""
        if kind not in get_args(Kind):
            raise ValueError(
                f"kind={kind!r} is not known. Choose from {', '.join(get_args(Kind))}."
            )
        _check_directions("r", r, "abtt", kind, width - 1)
        _check_directions("dimensions", dimensions, "whiten", kind, width)
        _check_power(power, kind)
        direction_count = 0
        if kind == "abtt":
            r = r or _DEFAULT_REMOVED_DIRECTIONS
            direction_count = r
        if kind == "whiten":
            direction_count = dimensions or width
        options = cls(kind, r, dimensions, power or FULL_POWER, direction_count)
        needed_count = options.needed_texts(width)
        if text_count < needed_count:
            raise ValueError(
                f"{kind}: {text_count} different texts are too few for {width} dimensions. Give {needed_count} or more."
            )
        return options

    def needed_texts(self, width: int) -> int:
        """How many vectors of d = ``width`` dimensions a fit needs."""
        if self.kind == "center":
            return MIN_FOR_MEAN
        if self.kind == "abtt":
            return max(MIN_FOR_DIRECTIONS, width)
        if self.power == FULL_POWER:
            return max(MIN_FOR_DIRECTIONS, _TEXTS_PER_DIMENSION * self.direction_count)
        return MIN_FOR_DIRECTIONS

    def describe(self, text_count: int, query_count: int | None) -> str:
        """The options as the recipe of a model keeps them."""
        facts: dict[str, object] = {"r": self.r, "dimensions": self.dimensions}
        if self.power != FULL_POWER:
            facts["power"] = self.power
        facts["texts"] = text_count
        facts["queries"] = query_count
        written_facts = [f"{name}={value}" for name, value in facts.items() if value is not None]
        return f"{self.kind}:" + ",".join(written_facts)


def check_filter_name(filter_name: str | None) -> None:
    """Refuse the description of a fitted filter, as the method of a model has it, in place of a file's name."""
    if filter_name is None or os.path.exists(filter_name):
        return
    # A recipe's file puts its folder in front.
    if _DESCRIPTION.fullmatch(os.path.basename(filter_name)):
        raise ValueError(
            f"filter={filter_name!r} describes a fitted filter, and names no file. Fit it again with "
            "fit_filter, or drop filter."
        )


def _check_directions(
    name: str,
    value: int | None,
    kind_of_option: Kind,
    kind: Kind,
    maximum: int,
) -> None:
    if value is None:
        return
    if kind != kind_of_option:
        raise ValueError(
            f"{name}={value!r} belongs to kind={kind_of_option!r}, not to {kind!r}. Drop it."
        )
    if type(value) is not int or not 1 <= value <= maximum:
        raise ValueError(f"{name}={value!r} must be a whole number from 1 to {maximum}.")


def _check_power(power: float | None, kind: Kind) -> None:
    if power is None:
        return
    if kind != "whiten":
        raise ValueError(f"power={power!r} belongs to kind='whiten', not to {kind!r}. Drop it.")
    if type(power) not in (int, float) or not 0 < power <= FULL_POWER:
        raise ValueError(f"power={power!r} must be a number above 0, and at most {FULL_POWER}.")
