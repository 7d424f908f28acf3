"""The NoSink paper's settings: which layers are converted, and to what. Read without torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .masks import MASKS

# Upper bound on the number of layers while the model is not loaded.
_MAX_LAYERS = 1 << 10
# Copies of a text, and second runs of layers in a model with fewer layers: `MAX_REPEATS` of
# layout.py, which imports torch.
MAX_REPEATS = 64


@dataclass(frozen=True)
class Setting:
    """A setting of the paper.

    Args:
        architecture: ``"inplace"``, or how the second runs of layers join: see NoSinkTransformer.
        mask: Of the converted layers.
        other_masks: Of the other layers.
        top_count: The topmost of the converted layers that have ``top_mask`` instead; None: the
            option k0 says.
        top_mask: Their mask.
    """

    architecture: str
    mask: str
    other_masks: str = "forward"
    top_count: int | None = 0
    top_mask: str = "nosink-bidirectional"

    @property
    def hides_sink(self) -> bool:
        """Whether one of its masks depends on m."""
        names = {self.mask, self.other_masks}
        if self.top_count != 0:
            names.add(self.top_mask)
        return any(MASKS[name].hides_sink for name in names)


# The settings that are more than one mask for the converted layers.
_COMPOSED = {
    "inter-back": Setting("inter", "backward"),
    "inter-bidir": Setting("inter", "bidirectional"),
    "extra-back": Setting("extra", "backward"),
    "extra-bidir": Setting("extra", "bidirectional"),
    "extend-back": Setting("extend", "backward"),
    "extend-bidir": Setting("extend", "bidirectional"),
    "mask0-all": Setting("inplace", "nosink-bidirectional", other_masks="nosink-forward"),
    "mask0&bidir": Setting("inplace", "bidirectional", top_count=None),
    "mask0-1": Setting("inplace", "bidirectional", top_count=1),
    "mask0-2": Setting("inplace", "bidirectional", top_count=2),
    "mask0-3": Setting("inplace", "bidirectional", top_count=3),
    "mask0-last": Setting("inplace", "bidirectional", top_count=None),
    "mask0-mid": Setting("inplace", "bidirectional", top_count=None),
}


class Settings:
    """All settings by name: one for each mask that is declared, and the composed ones."""

    def __iter__(self) -> Iterator[str]:
        for mask in MASKS.values():
            yield mask.inplace_setting
        yield from _COMPOSED

    def __getitem__(self, name: str) -> Setting:
        for mask in MASKS.values():
            if mask.inplace_setting == name:
                return Setting("inplace", mask.name)
        return _COMPOSED[name]


SETTINGS = Settings()


class LayerPlan(NamedTuple):
    """What NoSinkTransformer takes for a setting, by the names of its arguments."""

    layer_masks: list[str]
    second: list[tuple[int, str]]  # layers that run twice, and the mask of their second run
    architecture: str
    m: int
    implementation: str


def plan_layers(
    setting: str,
    depth: int | None,
    *,
    k: object = None,
    k0: int | None = None,
    m: int = 1,
    implementation: str = "paper",
) -> LayerPlan:
    """Plan the layers of a model by a setting of the paper.

    ``mask0-1`` to ``mask0-3`` are ``mask0&bidir`` with k0 = 1 to 3. ``mask0-last`` and
    ``mask0-mid`` take as k0 the best k of MASK0-BIDIR, and use it, or half of it (at least 1).
    Where ``depth``, the number of layers, is None, k and k0 are not compared with it; the options
    are those of :class:`st_reba.Method`.

    Source:
        NoSink, sections 3.1, 3.5 and 3.6, figures 2 and 4 to 6.

    Example:
        >>> plan_layers("mask0&bidir", 4, k=2, k0=1).layer_masks
        ['forward', 'forward', 'bidirectional', 'nosink-bidirectional']
    """
    declared = SETTINGS[setting]
    _check_options(setting, k, k0, m)
    top_count = k0 or declared.top_count or 0
    if setting == "mask0-mid" and top_count > 1:
        top_count //= 2
    converted = _converted_layers(k, depth, is_extended=declared.architecture == "extend")
    if top_count > len(converted):
        raise ValueError(
            f"k0={top_count} is more than k={k!r}: of the converted layers, k0 hide the sink."
        )
    lower_count = len(converted) - top_count
    converted_masks = [declared.mask] * lower_count
    converted_masks += [declared.top_mask] * top_count
    second_runs = list(zip(converted, converted_masks, strict=True))
    layer_masks = [declared.other_masks] * (depth or _MAX_LAYERS)
    if declared.architecture == "inplace" or not converted:
        for layer, mask in second_runs:
            layer_masks[layer] = mask
        return LayerPlan(layer_masks, [], "inplace", m, implementation)
    if declared.architecture == "inter" and implementation == "authors":
        second_runs = _second_stream(second_runs, layer_masks)
    return LayerPlan(layer_masks, second_runs, declared.architecture, m, implementation)


def _check_options(setting: str, k: object, k0: int | None, m: int) -> None:
    if (k is None) != (setting == "baseline"):
        raise ValueError(
            f"setting={setting!r}, k={k!r}: baseline takes no k, all others need it, layers from the top."
        )
    if (k0 is None) != (SETTINGS[setting].top_count is not None):
        with_k0 = [name for name in SETTINGS if SETTINGS[name].top_count is None]
        raise ValueError(
            f"setting={setting!r}, k0={k0!r}: k0, topmost layers, belongs to {', '.join(with_k0)}."
        )
    if m != 1 and not SETTINGS[setting].hides_sink:
        raise ValueError(f"m={m}: setting={setting!r} hides no sink. Drop m.")


def _second_stream(
    converted: list[tuple[int, str]],
    layer_masks: list[str],
) -> list[tuple[int, str]]:
    """The layers of the authors' second stream: all from the first converted one on."""
    converted_masks = dict(converted)
    first_layer = converted[0][0]
    stream: list[tuple[int, str]] = []
    for layer in range(first_layer, len(layer_masks)):
        mask = converted_masks.get(layer, layer_masks[layer])
        stream.append((layer, mask))
    return stream


def _converted_layers(k: object, depth: int | None, *, is_extended: bool) -> list[int]:
    """The converted layers, from the bottom; of EXTEND the last one, k times."""
    layer_count = depth or _MAX_LAYERS
    if k is None:
        return []
    if is_extended:
        max_runs = max(layer_count, MAX_REPEATS)
        if type(k) is int and 0 <= k <= max_runs:
            return [layer_count - 1] * k
        raise ValueError(f"k={k!r} must be a number of at most {max_runs} runs (extend).")
    if k == "all":
        return list(range(layer_count))
    elif type(k) is int and 0 <= k <= layer_count:
        return list(range(layer_count - k, layer_count))
    elif isinstance(k, (list, tuple)):
        layers = _listed_layers(k, layer_count)
        if layers:
            return layers
    count_in_words = f"its {depth}" if depth else f"at most {_MAX_LAYERS}"
    alternatives = "all, or a list of different layers"
    raise ValueError(f"k={k!r} must be a number of {count_in_words} layers, {alternatives}.")


def _listed_layers(numbers: Sequence[object], layer_count: int) -> list[int]:
    """Layers of a list, counted from the bottom; -1 is the topmost. Empty if a number is wrong or repeated."""
    layers: set[int] = set()
    for layer_number in numbers:
        if type(layer_number) is not int or not -layer_count <= layer_number < layer_count:
            return []
        layers.add(layer_number % layer_count)
    if len(layers) < len(numbers):
        return []
    return sorted(layers)
