"""The NoSink paper's settings: which layers are converted, and to what."""

from __future__ import annotations

from collections.abc import Sequence
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
# Layers of a model of which nothing is known yet: enough for k0 to be compared with k.
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
    if setting != "baseline" and k is None:
        raise ValueError(f"setting={setting!r} needs k, a number of layers from the top.")
    if (setting == "baseline" and k is not None) or (fixed is not None and k0 is not None):
        raise ValueError(f"setting={setting!r} takes no {'k' if setting == 'baseline' else 'k0'}. Drop it.")
    if fixed is None and k0 is None:
        raise ValueError(f"setting={setting!r} needs k0, the topmost layers that hide the sink.")
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
    converted = list(zip(layers, masks, strict=True))
    plain = [others] * depth
    if architecture == "inplace":
        for layer, each in converted:
            plain[layer] = each
        converted = []
    elif architecture == "inter" and implementation == "authors" and converted:
        # Two streams from the first converted layer on.
        chosen = dict(converted)
        converted = [(layer, chosen.get(layer, others)) for layer in range(converted[0][0], depth)]
    second = [list(each) for each in converted]
    architecture = architecture if second else "inplace"
    named = {"architecture": architecture, "m": m, "implementation": implementation}
    return {"layer_masks": plain, "second": second, **named}


def _layers(k: Any, known: int | None, *, extend: bool) -> list[int]:
    """The converted layers, from the bottom; of EXTEND the last one, k times."""
    depth = known or _DEPTH
    if isinstance(k, Sequence) and not isinstance(k, str):
        if extend or not k or not all(type(each) is int for each in k) or len({each % depth for each in k}) < len(k):
            raise ValueError(f"k={k!r} must be a number of layers, or a list of different layers (not with extend).")
        if known and not all(-depth <= each < depth for each in k):
            raise ValueError(f"k={list(k)!r}: the model has {depth} layers.")
        return sorted(each % depth for each in k)
    if k == "all" and not extend:
        return list(range(depth))
    if k is not None and (type(k) is not int or k < 0):
        raise ValueError(f"k={k!r} must be a number of layers{'' if extend else ', all, or a list of layers'}.")
    if known and not extend and (k or 0) > depth:
        raise ValueError(f"k={k}, but the model has {depth} layers.")
    return [depth - 1] * (k or 0) if extend else list(range(max(0, depth - (k or 0)), depth))
