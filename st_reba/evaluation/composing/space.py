"""What is searched: arms, which cost a forward pass each, and what can be read from a pass at no further cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from ...modules.ensemble import ENSEMBLES
from ...modules.kinds import KINDS as LAYER_KINDS
from ...modules.layout import task_templates
from ...modules.reading import Reading
from .trial import NO_FILTER, POOLED, Arm, Filter, Join, Pooled, Read, whole

# What converted layers may see.
KINDS_OF_LAYERS: tuple[str, ...] = tuple(kind for kind in LAYER_KINDS if kind != "forward")


@dataclass(frozen=True)
class Space:
    """What a search goes through.

    Args:
        templates: Templates, by name or as text; None: the text by itself.
        repeats: Numbers of copies, where there is no template.
        separators: Between copies.
        kinds: What converted layers see.
        sinks: Whether bidirectional layers are also tried with the sink hidden in their upper part.
        pooled: Poolings.
        layers: Layers to read, the first and the last each; None: every one; the means from the embeddings up to each
            and from each up to the last; and each two neighbours side by side.
        norms: Behind the final norm, or before it.
        filters: Post-filters; the last stands for all of them where readings are chosen to try all on. None at all is
            always tried.

    Raises:
        ValueError: A field has a value that it cannot have; it is named.
    """

    templates: tuple[str | None, ...] = (None, "echo", "prompteol")
    repeats: tuple[int, ...] = (1, 2)
    separators: tuple[str, ...] = ("",)
    kinds: tuple[str, ...] = ("bidirectional", "nosink-bidirectional")
    sinks: bool = True
    pooled: tuple[Pooled, ...] = POOLED
    layers: tuple[tuple[int, int, Join], ...] | None = None
    norms: tuple[bool, ...] = (True,)
    filters: tuple[Filter, ...] = (
        NO_FILTER,
        Filter("center"),
        *(Filter("abtt", r) for r in (1, 2, 3, 8)),
        Filter("standardize"),
        Filter("whiten", share=0.5),
        *(Filter("whiten", r, power=power) for power in (0.5, 1.0, 0.9, 0.75) for r in (2, 1, 0)),
    )

    def __post_init__(self) -> None:
        for name, allowed in (("kinds", KINDS_OF_LAYERS), ("pooled", POOLED), ("norms", (True, False))):
            for value in self._tuple(name):
                if value not in allowed or (name == "norms" and not isinstance(value, bool)):
                    raise ValueError(f"{name}: {value!r:.60} is not known: choose of {list(allowed)}.")
        for value in self._tuple("repeats"):
            if not whole(value, 1):
                raise ValueError(f"repeats: {value!r:.60} must be a whole number from 1 on.")
        for value in self._tuple("separators"):
            if not isinstance(value, str):
                raise ValueError(f"separators: {value!r:.60} must be a text, which may be empty.")
        for template in self._tuple("templates"):
            _check_template(template)
        if not isinstance(self.sinks, bool):
            raise ValueError(f"sinks={self.sinks!r:.60} must be true or false.")
        for name in ("templates", "repeats", "separators", "pooled", "norms"):
            if not getattr(self, name):
                raise ValueError(f"{name} is empty, so there is nothing to search; drop it for the default.")
        if self.layers is not None:
            if not self._tuple("layers"):
                raise ValueError("layers is empty, so there is nothing to search; drop it for every layer.")
            for layers in self.layers:
                _check_layers(layers)
        if wrong := [each for each in self._tuple("filters") if not isinstance(each, Filter)]:
            raise ValueError(f"filters: {wrong[0]!r:.60} is no Filter.")
        if NO_FILTER not in self.filters:
            object.__setattr__(self, "filters", (NO_FILTER, *self.filters))

    def _tuple(self, name: str) -> tuple[Any, ...]:
        value = getattr(self, name)
        if not isinstance(value, tuple):
            raise ValueError(f"{name}={value!r:.60} must be a tuple.")
        return value

    def arms(self, depth: int) -> list[Arm]:
        """All arms, the unconverted ones first.

        Args:
            depth: The base's number of layers L.

        Raises:
            ValueError: There is none, or a layer that the base has not.
        """
        inputs = [Arm(template) for template in self.templates if template is not None]
        if None in self.templates:
            for repeats in self.repeats:
                separators = self.separators if repeats > 1 else ("",)
                inputs += [Arm(None, repeats, separator) for separator in separators]
        found = dict.fromkeys(inputs)
        for first in spread(depth):
            for kind in self.kinds:
                for each in inputs:
                    found[replace(each, kind=kind, first=first)] = None
                    if kind == "bidirectional" and self.sinks:
                        for sink in spread(depth):
                            if sink > first:
                                found[replace(each, kind=kind, first=first, sink=sink)] = None
        # An input that nothing is read from would be run for nothing.
        if not (arms := [arm for arm in found if self.reads(arm, depth)]):
            raise ValueError(
                f"the space has nothing to read: pooled={list(self.pooled)} with templates={list(self.templates)}, "
                f"repeats={list(self.repeats)} and layers={self.layers}. The reba poolings need several copies, end a "
                "template of one copy, and several layers one of the means."
            )
        return arms

    def reads(self, arm: Arm, depth: int) -> list[Read]:
        """What is read from an arm's pass.

        Args:
            arm: The arm.
            depth: The base's number of layers L.
        """
        layers = self.layers
        if layers is not None and (most := max(last for _, last, _ in layers)) > depth:
            raise ValueError(f"layers: there is no layer {most}: the base has 0 (embeddings) to {depth}.")
        if layers is None:
            means = [(0, last) for last in range(1, depth + 1)] + [(first, depth) for first in range(1, depth)]
            layers = (
                *((layer, layer, "mean") for layer in range(depth + 1)),
                *((*ends, "mean") for ends in means),
                *((layer, layer + 1, "concat") for layer in range(depth)),
            )
        return [
            Read(first, last, norm, pooled, join)
            for first, last, join in layers
            for norm in self.norms
            for pooled in self.pooled
            # A single token's vector is no better for being several layers'.
            if _fits(pooled, arm) and (first == last or pooled.endswith("mean"))
        ]


def _check_template(template: Any) -> None:
    if template is None:
        return
    if not isinstance(template, str) or template in ENSEMBLES:
        raise ValueError(
            f"templates: {template!r:.60} must be one template's name or text with {{text}}, or null for the text by "
            "itself; ensembles and mappings are not searched."
        )
    try:
        tasks = task_templates(template)
    except ValueError as error:
        raise ValueError(f"templates: {error}") from None
    if tasks["query"] != tasks["document"] or tasks["document"].fields:
        raise ValueError(
            f"templates: {template!r:.60} treats queries apart, or needs a field such as {{instruction}}; the search "
            "runs every text alike, without one."
        )


def _check_layers(layers: Any) -> None:
    right = isinstance(layers, tuple) and len(layers) == 3 and all(whole(each, 0) for each in layers[:2])
    if not right or layers[0] > layers[1] or layers[2] not in get_args(Join):
        raise ValueError(
            f"layers: {layers!r:.60} must be a layer from 0 (embeddings) on, or the first and the last of several and "
            f"one of {list(get_args(Join))}."
        )


def _fits(pooled: Pooled, arm: Arm) -> bool:
    if pooled == "end":
        # Behind the text there is more than the text only where a template has an end of its own.
        return arm.template is not None and arm.copies == 1
    return arm.copies > 1 if pooled.startswith("reba") else True


def spread(depth: int, most: int = 8) -> list[int]:
    """Layer indices from 0 to ``depth`` − 1: all of a shallow model, evenly spread ones of a deep model.

    Example:
        >>> spread(6), spread(32)
        ([0, 1, 2, 3, 4, 5], [0, 4, 9, 13, 18, 22, 27, 31])
    """
    if depth <= most:
        return list(range(depth))
    return sorted({round(n * (depth - 1) / (most - 1)) for n in range(most)})


def reading_of(reads: Sequence[Read], depth: int, *, final_norm: bool) -> Reading:
    """What one pass has to read so that all of these can be had."""
    lowest, highest = min(read.first for read in reads), max(read.last for read in reads)
    return Reading(tuple(range(lowest, highest + 1)), final_norm, depth)
