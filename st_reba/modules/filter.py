"""The stage that records a filter behind the pooling: what it is, and of which texts it was fitted."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Literal

from .options import option, shown
from .stages import Bound, Decoder, Stage

Kind = Literal["center", "abtt", "standardize", "whiten"]

_MOST_DIMENSIONS = 1 << 20
# The kinds that each number belongs to.
_OF = {"r": ("abtt", "whiten"), "dimensions": ("whiten",), "power": ("whiten",)}


@dataclass(frozen=True)
class Filter(Stage):
    """A linear filter of the sentence vectors; in a pass it does nothing.

    A saved model holds the filter itself as sentence-transformers' own ``Dense`` behind the pooling, and this as its
    record. A recipe names the filter's file instead.

    Example:
        >>> Filter("whiten", dimensions=48, texts=2000).to_dict()
        {'kind': 'whiten', 'dimensions': 48, 'texts': 2000}
    """

    name: ClassVar[str] = "filter"
    order: ClassVar[int] = 90

    kind: Kind | None = option(None, "what is filtered, see PostFilter; None: as the file says")
    r: int | None = option(
        None, "principal directions that abtt (None: 3) or whiten takes away", least=0, most=_MOST_DIMENSIONS
    )
    dimensions: int | None = option(None, "dimensions that whitening keeps; None: all", least=1, most=_MOST_DIMENSIONS)
    power: float = option(1.0, "of the standard deviations that whitening divides by", least=0, most=1)
    texts: int = option(0, "number of texts that it was fitted on", least=0, most=1 << 48)
    seed: int = option(0, "by which these texts were drawn", least=0, most=1 << 192)
    sha256: str | None = option(None, "of these texts")
    file: str | None = option(None, "in a recipe: the filter's file")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.file is not None:
            if extra := [name for name in self.to_dict() if name != "file"]:
                given = f"{extra[0]}={shown(getattr(self, extra[0]))}"
                raise ValueError(f"filter: {given}: the file {shown(self.file)} says what the filter is. Drop it.")
            return
        if self.kind is None:
            raise ValueError("filter: kind is missing: give 'center', 'abtt', 'standardize' or 'whiten'; or file=….")
        for name, kinds in _OF.items():
            if name in self.to_dict() and self.kind not in kinds:
                given = f"{name}={getattr(self, name)} belongs to kind={' or '.join(map(repr, kinds))}"
                raise ValueError(f"filter: {given}, not to kind={self.kind!r}. Drop it.")
        if self.power == 0:
            raise ValueError("filter: power=0 must be a number above 0, at most 1.")
        if self.kind == "abtt" and self.r == 0:
            raise ValueError("filter: r=0 takes no direction away: give 1 or more, or kind='center'.")
        if self.sha256 is not None and not re.fullmatch("[0-9a-f]{64}", self.sha256):
            raise ValueError(f"filter: sha256={shown(self.sha256)} must be 64 hexadecimal digits, or None.")

    def bind(self, decoder: Decoder) -> Bound:
        """Nothing: the vectors are filtered behind the pooling."""
        if self.file is not None:
            raise ValueError(
                f"filter: file={shown(self.file)}: a module holds a filter's record, not its file. Build with "
                "st_reba.build(base, method, stages=[st_reba.Filter(file=…)])."
            )
        return Bound()
