"""What is searched: a space of arms, and what is read from each."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any, ClassVar, get_args

import yaml

from ..modules.ensemble import ENSEMBLES
from ..modules.kinds import kind_of
from ..modules.layout import task_templates
from ..modules.options import Options, option, shown
from ..recipe import read_yaml
from .trials import NO_FILTER, POOLED, Arm, Filter, Join, Pooled, Read, Trial


@dataclass(frozen=True)
class Space(Options):
    """What a search goes through; the papers' methods in their published form come on top.

    A filter is a name, or a mapping of :class:`Filter`'s fields; the last one stands for all of them where readings are
    chosen to try all on. Layers are a number, ``[first, last]`` or ``[first, last, "concat"]``.

    Raises:
        ValueError: A field has a value that it cannot have; it is named.

    Example:
        >>> space = Space.of({"layers": [3, [0, 3], [2, 3, "concat"]], "filters": [{"kind": "abtt", "r": 2}]})
        >>> space.layers
        ((3, 3, 'mean'), (0, 3, 'mean'), (2, 3, 'concat'))
        >>> [str(each) for each in space.postfilters]
        ['no filter', 'abtt-2']
    """

    name: ClassVar[str] = "space"

    templates: tuple[str | None, ...] = option(
        (None, "echo", "prompteol"), "templates, by name or as text; null: the text by itself"
    )
    repeats: tuple[int, ...] = option((1, 2), "numbers of copies, where there is no template", least=1)
    separators: tuple[str, ...] = option(("",), "between copies")
    kinds: tuple[str, ...] = option(
        ("bidirectional", "nosink-bidirectional"), "what converted layers see; forward: none is converted"
    )
    sinks: bool = option(True, "try bidirectional layers with the sink hidden in their upper part too")
    pooled: tuple[Pooled, ...] = option(POOLED, "poolings")
    layers: tuple[tuple[int | Join, ...], ...] | None = option(
        None,
        "layers that are read; null: each, the means from the embeddings up to each and from each up to the last, and "
        "each two neighbours side by side",
        least=0,
    )
    norms: tuple[bool, ...] = option((True,), "behind the final norm, or before it")
    filters: tuple[str | Mapping[str, Any], ...] = option(
        (
            "center",
            *({"kind": "abtt", "r": r} for r in (1, 2, 3, 8)),
            "standardize",
            {"kind": "whiten", "share": 0.5},
            *({"kind": "whiten", "r": r, "power": power} for power in (0.5, 1.0, 0.9, 0.75) for r in (2, 1, 0)),
        ),
        "post-filters; none is always tried",
    )

    def __post_init__(self) -> None:
        if isinstance(self.layers, (list, tuple)):
            object.__setattr__(self, "layers", tuple(map(_ends, self.layers)))
        super().__post_init__()
        for template in self.templates:
            _check_template(template)
        for kind in self.kinds:
            kind_of(kind)
        # Refuses a filter that is none.
        self.postfilters  # noqa: B018

    @cached_property
    def postfilters(self) -> tuple[Filter, ...]:
        """The filters, and no filter among them."""
        named = (Filter.of({"kind": each} if isinstance(each, str) else each) for each in self.filters)
        found = tuple(dict.fromkeys(named))
        return found if NO_FILTER in found else (NO_FILTER, *found)

    def arms(self, depth: int) -> list[Arm]:
        """All arms for a base of L layers (``depth``), those of the papers' methods first.

        Raises:
            ValueError: A layer is named that the base has not.
        """
        numbers = spread(depth)
        papers = [Arm(), Arm(repeats=2), Arm("echo"), Arm("prompteol")]
        papers += [Arm(kind=kind, first=n) for kind in ("bidirectional", "nosink-bidirectional") for n in numbers]
        inputs = [Arm(template) for template in self.templates if template is not None]
        if None in self.templates:
            for repeats in self.repeats:
                inputs += [Arm(None, repeats, each) for each in (self.separators if repeats > 1 else ("",))]
        converted = []
        for first, kind, each in product(numbers, self.kinds, inputs):
            if kind != "forward":
                hiding = self.sinks and kind == "bidirectional"
                sinks = [None, *(n for n in numbers if hiding and n > first)]
                converted += [replace(each, kind=kind, first=first, sink=sink) for sink in sinks]
        # An input that nothing is read from would be run for nothing.
        return [arm for arm in dict.fromkeys([*papers, *inputs, *converted]) if self.reads(arm, depth)]

    def reads(self, arm: Arm, depth: int) -> list[Read]:
        """What is read from an arm's pass: the papers' readings of it, and the space's.

        Raises:
            ValueError: A layer is named that the base has not.
        """
        if self.layers is None:
            means = [(0, last) for last in range(1, depth + 1)] + [(first, depth) for first in range(1, depth)]
            ends = [_ends(layer) for layer in range(depth + 1)] + [_ends(each) for each in means]
            ends += [(layer, layer + 1, "concat") for layer in range(depth)]
        else:
            ends = [_ends(each) for each in self.layers]
        if (most := max(last for _, last, _ in ends)) > depth:
            raise ValueError(f"space: layers: there is no layer {most}: the base has 0 (embeddings) to {depth}.")
        fitting = _fitting(arm)
        whole = [Read(depth, depth, True, pooled) for pooled in fitting]
        found = [read for read in whole if Trial(arm, read).paper(depth) != "composed"]
        for (first, last, join), norm in product(ends, self.norms):
            # A single token's vector is no better for being several layers'.
            pooled = [each for each in self.pooled if each in fitting and (first == last or each.endswith("mean"))]
            found += [Read(first, last, norm, each, join) for each in pooled]
        return list(dict.fromkeys(found))


def spread(depth: int, most: int = 8) -> list[int]:
    """Layer indices from 0 to ``depth`` − 1: all of a shallow model, evenly spread ones of a deep model.

    Example:
        >>> spread(6), spread(32)
        ([0, 1, 2, 3, 4, 5], [0, 4, 9, 13, 18, 22, 27, 31])
    """
    if depth <= most:
        return list(range(depth))
    return sorted({round(n * (depth - 1) / (most - 1)) for n in range(most)})


def read_space(path: str | os.PathLike[str]) -> Space:
    """Read a space from a YAML file, a mapping of :class:`Space`'s fields; what it does not name is as by default.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is no mapping, or has a key or a value that the space has not; it is named.

    Example:
        >>> with open("space.yaml", "w", encoding="utf-8") as file:
        ...     _ = file.write(write_space(Space(repeats=(1, 2, 3), filters=("center",))))
        >>> read_space("space.yaml").repeats
        (1, 2, 3)
    """
    file = os.fspath(path)
    if not os.path.isfile(path):
        raise FileNotFoundError(f"space={file!r}: no such file. Write one: docs/how-to/compose.md has an example.")
    with open(path, encoding="utf-8") as stream:
        values = read_yaml(stream, file)
    try:
        return Space.of(values)
    except ValueError as error:
        raise ValueError(f"space={file!r}: {error}") from None


def write_space(space: Space) -> str:
    """The YAML that :func:`read_space` reads as this space."""
    return yaml.safe_dump(space.to_dict(), sort_keys=False, allow_unicode=True, default_flow_style=None, width=100)


def _check_template(template: str | None) -> None:
    """Refuse what is not one template, of queries and documents alike, without further fields."""
    if template is None:
        return
    try:
        tasks = {} if template in ENSEMBLES else task_templates(template)
    except ValueError as error:
        raise ValueError(f"space: templates: {error}") from None
    if not tasks or tasks["query"] != tasks["document"] or tasks["document"].fields:
        raise ValueError(
            f"space: templates: {shown(template)} must be one template's name or text with {{text}}, for all texts "
            "alike, or null."
        )


def _ends(given: Any) -> tuple[int, int, Join]:
    """The first layer, the last, and how they are joined."""
    several = isinstance(given, (list, tuple)) and len(given) in (2, 3)
    first, last, join = (*given, "mean")[:3] if several else (given, given, "mean")
    if type(first) is not int or type(last) is not int or not 0 <= first <= last or join not in get_args(Join):
        raise ValueError(
            f"space: layers: {shown(given)} must be a layer from 0 (embeddings) on, or [first, last] or "
            "[first, last, concat]."
        )
    return first, last, join


def _fitting(arm: Arm) -> list[Pooled]:
    """The poolings that make sense of an arm."""
    copies = arm.copies
    # Behind the text there is more than the text only where a template has an end of its own.
    end = arm.template is not None and copies == 1
    return [each for each in POOLED if (end if each == "end" else copies > 1 or not each.startswith("reba"))]
