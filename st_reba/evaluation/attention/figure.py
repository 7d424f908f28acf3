"""The figure of a text's attention: a heat map of each layer."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np

from ...optional import required
from ..figures import save_figure
from .maps import Maps

Scale = Literal["linear", "log"]

# More are no longer told apart in a figure, and up to this many are named.
MAX_DRAWN = 512
MAX_NAMED = 24
# The log scale's lower end; what is below has its colour.
FAINTEST = 1e-3
# matplotlib's own font has no Chinese; of these the first that has what it lacks is used, where one is installed.
FONT = "DejaVu Sans"
FURTHER_FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans SC",
    "Source Han Sans SC",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "PingFang SC",
    "Hiragino Sans GB",
    "Microsoft YaHei",
    "SimHei",
    "Arial Unicode MS",
)


def draw(maps: Maps, path: str | os.PathLike[str], *, scale: Scale = "log") -> None:
    """Draw a heat map of each layer, all in one figure on one colour scale from 0 to 1.

    What a query does not see (exactly no attention) stays white. Up to 24 tokens are named where an installed font has
    their characters; else the axes count positions, from 0.

    Args:
        maps: From :func:`attention_maps`.
        path: The PNG file to write or replace, whole or not at all.
        scale: ``"log"``, which tells faint attention apart down to 0.001, or ``"linear"``.

    Raises:
        ValueError: An unknown scale, or more than 512 tokens.
        ImportError: matplotlib is not installed.

    Source:
        NoSink, figures 3, 8 and 9.

    Example:
        >>> import st_reba
        >>> from st_reba.evaluation.attention.maps import attention_maps
        >>> draw(attention_maps(st_reba.build("mini"), "天气很好"), "attention.png")
        >>> open("attention.png", "rb").read(4)
        b'\\x89PNG'
    """
    save_figure(attention_figure(maps, scale), path)


def attention_figure(maps: Maps, scale: Scale) -> Any:
    if scale not in get_args(Scale):
        raise ValueError(f"scale={scale!r} is not known: choose one of {list(get_args(Scale))}.")
    length, count = len(maps.tokens), len(maps.layers)
    if length > MAX_DRAWN:
        raise ValueError(
            f"The text takes {length} tokens (copies and template included), too many to draw: {MAX_DRAWN} at most. "
            f"Shorten the text, set model.max_seq_length = {MAX_DRAWN}, or measure it alone with sink_table."
        )
    named = _axis_labels(maps.tokens) if length <= MAX_NAMED else None
    columns = math.ceil(math.sqrt(count))
    lines = math.ceil(count / columns)
    # In inches. A single token's column must be a pixel wide at least, or the sink itself would vanish.
    side = max(2.6, 0.16 * length) if named else 2.6
    margin = 0.1 * max(map(len, named[0])) if named else 0.3
    figure = required("matplotlib.figure", "evaluation").Figure(
        figsize=(columns * side + margin + 1.2, lines * (side + 0.15) + margin + 0.4),
        dpi=max(110, math.ceil(1.2 * length / side)),
        layout="constrained",
    )
    # A drawing surface of its own: no window system, and no state that other figures share.
    required("matplotlib.backends.backend_agg", "evaluation").FigureCanvasAgg(figure)
    colors = required("matplotlib.colors", "evaluation")
    norm = colors.LogNorm(FAINTEST, 1.0, clip=True) if scale == "log" else colors.Normalize(0.0, 1.0)
    integers = required("matplotlib.ticker", "evaluation").MaxNLocator
    grid = figure.subplots(lines, columns, squeeze=False)
    image: Any = None
    for index, axes in enumerate(grid.flat):
        if index >= count:
            axes.set_axis_off()
            continue
        layer = maps.layers[index]
        seen = np.ma.masked_equal(layer.matrix, 0.0)
        image = axes.imshow(seen, norm=norm, cmap="viridis", interpolation="nearest")
        axes.set_title(str(layer), fontsize=9)
        # Some room, or the frame would cover the first token of a long text.
        edge = 0.5 + 0.015 * length
        axes.set(xlim=(-edge, length - 1 + edge), ylim=(length - 1 + edge, -edge))
        for axis, outer in ((axes.xaxis, index + columns >= count), (axes.yaxis, index % columns == 0)):
            if named:
                upright = {"rotation": "vertical"} if axis is axes.xaxis else {}
                axis.set_ticks(range(length), named[0], fontfamily=named[1], parse_math=False, **upright)
            else:
                axis.set_major_locator(integers(nbins=6, integer=True))
            axis.set_tick_params(length=2, labelsize=7, labelleft=outer, labelbottom=outer)
            if outer:
                axis.set_label_text("key" if axis is axes.xaxis else "query", fontsize=8)
    bar = figure.colorbar(image, ax=grid, shrink=min(1.0, 1.5 / lines), format="%g")
    faint = f" ({FAINTEST} and less in one colour)" if scale == "log" else ""
    bar.set_label(f"attention, mean over heads{faint}", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    return figure


def _axis_labels(tokens: Sequence[str]) -> tuple[list[str], list[str]]:
    """The tokens, cut, and the fonts that have all their characters; positions where no known font here has."""
    labels = [token if len(token) <= 12 else f"{token[:11]}\u2026" for token in tokens]
    missing = _without_glyph(FONT, set("".join(labels)))
    if not missing:
        return labels, [FONT]
    installed = {entry.name for entry in required("matplotlib.font_manager", "evaluation").fontManager.ttflist}
    for name in FURTHER_FONTS:
        if name in installed and not _without_glyph(name, missing):
            return labels, [FONT, name]
    return [str(position) for position in range(len(tokens))], [FONT]


def _without_glyph(family: str, characters: set[str]) -> set[str]:
    manager = required("matplotlib.font_manager", "evaluation")
    font = manager.get_font(manager.findfont(manager.FontProperties(family=family)))
    return {character for character in characters if not font.get_char_index(ord(character))}
