"""The NoSink paper's settings: which layers are converted, and to what."""

from __future__ import annotations

from typing import Any

# By name: architecture, mask of the converted layers, mask of the others, k0.
SETTINGS: dict[str, tuple[str, str, str, int | None]] = {
    "baseline": ("inplace", "forward", "forward", 0),
    "inplace-back": ("inplace", "backward", "forward", 0),
    "inplace-bidir": ("inplace", "bidirectional", "forward", 0),
    "inter-back": ("inter", "backward", "forward", 0),
    "inter-bidir": ("inter", "bidirectional", "forward", 0),
    "extra-back": ("extra", "backward", "forward", 0),
    "extra-bidir": ("extra", "bidirectional", "forward", 0),
    "extend-back": ("extend", "backward", "forward", 0),
    "extend-bidir": ("extend", "bidirectional", "forward", 0),
    "mask0-for": ("inplace", "nosink-forward", "forward", 0),
    "mask0-bidir": ("inplace", "nosink-bidirectional", "forward", 0),
    "mask0-all": ("inplace", "nosink-bidirectional", "nosink-forward", 0),
    "mask0&bidir": ("inplace", "bidirectional", "forward", None),
    "mask0-1": ("inplace", "bidirectional", "forward", 1),
    "mask0-2": ("inplace", "bidirectional", "forward", 2),
    "mask0-3": ("inplace", "bidirectional", "forward", 3),
    "mask0-last": ("inplace", "bidirectional", "forward", None),
    "mask0-mid": ("inplace", "bidirectional", "forward", None),
    # KV-Embedding (2026): every token also sees the last one.
    "rerouted": ("inplace", "rerouted", "forward", 0),
}
# Layers of a model of which nothing is known yet: no model has more.
_DEPTH = 1 << 10
# What token i sees in a layer, by the name of its mask; {m}: number of sink tokens.
MASKS = {
    "forward": "the tokens up to i, as in the base",
    "backward": "the tokens from i on",
    "bidirectional": "all tokens",
    "nosink-forward": "the tokens up to i, but not the first {m} (the sink), which later tokens do not see",
    "nosink-bidirectional": "all tokens, but not the first {m} (the sink), which later tokens do not see",
    "rerouted": "the tokens up to i and the very last one, past any window",
}


def masks_of(
    setting: str, depth: int | None, *, k: Any = None, k0: int | None = None, m: int = 1, implementation: str = "paper"
) -> dict[str, Any]:
    """What NoSinkTransformer takes for a setting of the paper.

    ``mask0-1`` to ``mask0-3`` are ``mask0&bidir`` with k0 = 1 to 3. ``mask0-last`` and ``mask0-mid`` take as k0 the
    best k of MASK0-BIDIR, and use it, or half of it (at least 1). Where ``depth``, the number of layers, is None, k and
    k0 are not compared with it; the options are those of :class:`st_reba.Method`.

    Source:
        NoSink, sections 3.1, 3.5 and 3.6, figures 2 and 4 to 6.

    Example:
        >>> masks_of("mask0&bidir", 4, k=2, k0=1)["layer_masks"]
        ['forward', 'forward', 'bidirectional', 'nosink-bidirectional']
    """
    architecture, mask, others, fixed = SETTINGS[setting]
    if (k is None) != (setting == "baseline"):
        raise ValueError(f"setting={setting!r}, k={k!r}: baseline takes no k, all others need it, layers from the top.")
    if (k0 is None) != (fixed is not None):
        needing = [name for name in SETTINGS if SETTINGS[name][3] is None]
        raise ValueError(f"setting={setting!r}, k0={k0!r}: k0, topmost layers, belongs to {', '.join(needing)}.")
    if m != 1 and not setting.startswith("mask0"):
        raise ValueError(f"m={m}: setting={setting!r} hides no sink. Drop m.")
    hiding = k0 or fixed or 0
    if setting == "mask0-mid":
        hiding = hiding // 2 or hiding  # at least 1, if any
    layers = _layers(k, depth, extend=architecture == "extend")
    depth = depth or _DEPTH
    if hiding > len(layers):
        raise ValueError(f"k0={hiding} is more than k={k!r}: of the converted layers, k0 hide the sink.")
    masks = [mask] * (len(layers) - hiding) + ["nosink-bidirectional"] * hiding
    second: list[Any] = [list(each) for each in zip(layers, masks, strict=True)]
    plain = [others] * depth
    if architecture == "inplace":
        for layer, each in second:
            plain[layer] = each
        second = []
    elif architecture == "inter" and implementation == "authors" and second:
        # Two streams from the first converted layer on.
        chosen = dict(second)
        second = [[layer, chosen.get(layer, others)] for layer in range(layers[0], depth)]
    named = {"architecture": architecture if second else "inplace", "m": m, "implementation": implementation}
    return {"layer_masks": plain, "second": second, **named}


def _layers(k: Any, known: int | None, *, extend: bool) -> list[int]:
    """The converted layers, from the bottom; of EXTEND the last one, k times."""
    depth = known or _DEPTH
    number = 0 if k is None else depth if k == "all" and not extend else k
    if type(number) is int and number >= 0 and (extend or number <= depth):
        return [depth - 1] * number if extend else list(range(depth - number, depth))
    if isinstance(k, (list, tuple)) and not extend and all(type(each) is int and -depth <= each < depth for each in k):
        layers = sorted({each % depth for each in k})
        if 0 < len(layers) == len(k):
            return layers
    others = " (no list with extend)" if extend else ", all, or a list of different layers"
    raise ValueError(f"k={k!r} must be a number of {f'its {known}' if known else f'at most {_DEPTH}'} layers{others}.")
