"""What arms and methods cost, counted without running any."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ...batches import copied_positions
from ...modules import Stage
from ...modules.layout import Layout
from ...modules.repeat import RepeatTransformer
from ...pipelines import copied
from .trial import Arm, Trial


@dataclass(frozen=True)
class Costs:
    """Positions of texts in every arm's input, and the work of methods.

    Args:
        positions: By input, then by text: copies as cut to the model's length, template and special tokens.
        depth: The base's number of layers L.
    """

    positions: Mapping[Layout, Mapping[str, int]]
    depth: int
    _means: dict[Layout, float] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._means.update((layout, sum(counts.values()) / len(counts)) for layout, counts in self.positions.items())

    def tokens(self, arm: Arm) -> float:
        """Positions a text, on average."""
        return self._means[arm.layout]

    def total(self, arm: Arm, texts: Iterable[str]) -> int:
        """Positions of some of the texts together."""
        counts = self.positions[arm.layout]
        return sum(counts[text] for text in texts)

    def of(self, trial: Trial) -> float:
        """Work of a method as a share of the unconverted base's over the text once: positions times layers.

        A position's attention over the others is left out: it costs little in texts of some hundred tokens.
        """
        return self.tokens(trial.arm) / self.tokens(Arm()) * trial.read.runs / self.depth


def laid_out(transformer: RepeatTransformer, layout: Layout, stages: Sequence[Stage] = ()) -> RepeatTransformer:
    """Another module around a module's backbone.

    Args:
        transformer: Whose backbone and tokenizer it shares.
        layout: Where the copies stand.
        stages: What happens around the layers.
    """
    other = copied(transformer)
    other.__dict__["layout"] = layout
    other.rebind(stages)
    return other


def costs_of(transformer: RepeatTransformer, arms: Sequence[Arm], texts: Sequence[str]) -> Costs:
    """Count what arms cost.

    Args:
        transformer: Whose tokenizer counts.
        arms: The arms.
        texts: The texts.

    Raises:
        ValueError: An input does not fit into the model's length.

    Example:
        >>> import st_reba
        >>> transformer = st_reba.build("mini", "classical")[0]
        >>> costs_of(transformer, [Arm(repeats=2)], ["Hello", "你好"]).tokens(Arm(repeats=2))
        6.0
    """
    positions: dict[Layout, Mapping[str, int]] = {}
    for layout in dict.fromkeys(arm.layout for arm in (Arm(), *arms)):
        try:
            counts = copied_positions(laid_out(transformer, layout), texts)
        except ValueError as error:
            name = f"template {layout.template!r}" if layout.template is not None else f"repeats={layout.repeats}"
            raise ValueError(f"{name}: {error} Or leave it out of the space.") from None
        positions[layout] = dict(zip(texts, counts, strict=True))
    return Costs(positions, transformer.depth)
