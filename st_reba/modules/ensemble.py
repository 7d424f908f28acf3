"""The stage that lays every text out in several templates, whose vectors are put together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from .layout import TextTemplate, task_templates
from .options import option, shown, unknown
from .stages import Stage

MOST_TEMPLATES = 64
# MetaEOL asks for one word from several sides; a contrastive ensemble asks for what is to be taken away. The wording is
# this project's own.
ENSEMBLES: dict[str, tuple[str, ...]] = {
    "metaeol": (
        'The text: "{text}" In one word, what it says is: "',
        'The text: "{text}" In one word, its subject is: "',
        'The text: "{text}" In one word, its mood is: "',
        'The text: "{text}" In one word, its main fact is: "',
        'The text: "{text}" In one word, said differently: "',
    ),
    "metaeol-zh": (
        "这句话：“{text}”的意思用一个词概括是：“",
        "这句话：“{text}”的主题用一个词说是：“",
        "这句话：“{text}”的感情用一个词说是：“",
        "这句话：“{text}”里最重要的事用一个词说是：“",
        "换一种说法，这句话：“{text}”用一个词说是：“",
    ),
    "contrastive": (
        'This sentence: "{text}" means in one word:"',
        'A word that has nothing to do with this sentence: "{text}" is: "',
    ),
    "contrastive-zh": (
        "这句话：“{text}”的意思用一个词概括是：“",
        "与这句话：“{text}”无关的一个词是：“",
    ),
}
# What their vectors are multiplied by, where that is not the same for all.
_WEIGHTS = {"contrastive": (1.0, -0.25), "contrastive-zh": (1.0, -0.25)}


@dataclass(frozen=True)
class Ensemble(Stage):
    """Every text stands in several templates, and its vectors are added.

    Equal weights are MetaEOL, the average over prompts that ask for different things; a negative weight is
    contrastive: what a text's vector has in common with that in an auxiliary prompt is taken away.

    Source:
        MetaEOL (Lei et al., 2024: meta-task prompting, average). Contrastive prompting, here on the finished vectors:
        the published one subtracts inside a layer's attention.

    Example:
        >>> Ensemble("contrastive").summed
        (1.0, -0.25)
    """

    name: ClassVar[str] = "ensemble"
    order: ClassVar[int] = 5

    templates: str | tuple[str | Mapping[str, str], ...] = option(
        "metaeol", "a named ensemble, or from 2 to 64 templates with as many {text} slots each"
    )
    weights: tuple[float, ...] | None = option(None, "one a template; None: the named ensemble's, or the average")
    equal_norms: bool = option(True, "divide each vector by its length first, so that no template outweighs others")

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.templates, str) and self.templates not in ENSEMBLES:
            raise ValueError(unknown("ensemble: templates", self.templates, sorted(ENSEMBLES), self.templates))
        given = f"ensemble: templates={shown(self.templates)}"
        if not 2 <= len(self.listed) <= MOST_TEMPLATES:
            raise ValueError(f"{given} are {len(self.listed)}: give from 2 to {MOST_TEMPLATES}.")
        if len(copies := {each["document"].copies for each in self.rows()}) > 1:
            raise ValueError(f"{given} have {sorted(copies)} {{text}} slots, but need as many, for their one pooling.")
        if not any(self.summed):
            raise ValueError(
                f"ensemble: weights={shown(self.weights)} are all 0, so every vector would be. Change one."
            )
        if len(self.summed) != len(self.listed):
            counts = f"{len(self.summed)}, for {len(self.listed)} templates"
            raise ValueError(f"ensemble: weights={shown(self.weights)} are {counts}. Give one each.")

    @property
    def listed(self) -> tuple[str | Mapping[str, str], ...]:
        """The templates."""
        return ENSEMBLES[self.templates] if isinstance(self.templates, str) else self.templates

    @property
    def summed(self) -> tuple[float, ...]:
        """The weights that the vectors are multiplied by."""
        if self.weights is not None:
            return tuple(map(float, self.weights))
        own = _WEIGHTS.get(self.templates) if isinstance(self.templates, str) else None
        return own or (1 / len(self.listed),) * len(self.listed)

    def rows(self) -> tuple[dict[str, TextTemplate], ...]:
        """Each task's template, once for each row that a text makes."""
        return tuple(task_templates(each) for each in self.listed)
