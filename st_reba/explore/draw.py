"""Numbers as HTML: tables that are heat maps, tokens with their weights, lists of what was found."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from ..words import words_of
from .compute import Hit, Inside

Numbers = NDArray[np.floating[Any]]
Words = Mapping[str, str]

# The lower end of the scale of attention.
FAINTEST = 1e-3
# All texts of the page, by language.
WORDS: dict[str, dict[str, str]] = yaml.safe_load(Path(__file__).with_name("words.yaml").read_text(encoding="utf-8"))
# A cell's --s is its share of the darkest colour, 0 to 1 (page.css); its text is white from this share on.
_DEEP = 0.65


def page(*parts: str) -> str:
    """Join the parts of an answer."""
    return f'<div class="reba">{"".join(parts)}</div>'


def problem(title: str, message: str) -> str:
    """A message in the place of an answer."""
    return f'<div class="reba problem" role="alert"><b>{escape(title)}</b><p>{escape(message)}</p></div>'


def comparison(tables: Mapping[str, Numbers], texts: Sequence[str], words: Words) -> str:
    """Similarity tables of several models side by side, on one scale."""
    off = np.concatenate([table[~np.eye(len(texts), dtype=bool)] for table in tables.values()])
    lowest = float(off.min(initial=1.0))
    width = max(1.0 - lowest, 1e-6)
    rows = [f"{number} {text}" for number, text in enumerate(texts, 1)]
    columns = [str(number) for number in range(1, len(texts) + 1)]
    figures = []
    for name, table in tables.items():
        heat = _heat(table, (table - lowest) / width, rows, columns, numbers=True)
        figures.append(f"<figure><figcaption>{escape(name)}</figcaption>{heat}</figure>")
    scale = f'<span class="legend">{lowest:.3f}<span class="scale"></span>1</span>'
    wide = f"--wide: {7 + 3 * len(texts)}rem"
    return page(f'<p>{escape(words["cosines"])} {scale}</p><div class="tables" style="{wide}">{"".join(figures)}</div>')


def inside_text(inside: Inside, weights: Numbers, chosen: Sequence[int], layer: int, words: Words) -> str:
    """A text's copies and weights, its A^new, one layer's attention, and the sink."""
    tokens, shown, log = inside.maps.tokens, inside.maps.layers[layer], words["log"]
    first = [token for token, copy in zip(tokens, inside.copies, strict=True) if copy == 1]
    matrix = _heat(inside.rows, _logarithmic(inside.rows), first, tokens, marked=chosen)
    attention = _heat(shown.matrix, _logarithmic(shown.matrix), tokens, tokens)
    left = _section(words["matrix_title"], f"{words['matrix_about']} ({log})", matrix)
    left += _section(words["sink_title"], words["sink_about"].format(token=tokens[0]), _sinks(inside, layer, words))
    right = _section(words["layer_title"].format(layer=_name(shown)), f"{words['layer_about']} ({log})", attention)
    return page(
        _section(words["copies_title"], words["copies_about"], _lines(inside, weights, words)),
        f'<div class="tables" style="--wide: 28rem"><div>{left}</div><div>{right}</div></div>',
    )


def results(found: Mapping[str, Sequence[Hit]], query: str, about: str) -> str:
    """Results of several methods side by side; words of the query are marked."""
    figures = []
    for name, hits in found.items():
        items = "".join(f"<li><b>{score:.3f}</b><span>{_marked(query, text)}</span></li>" for score, text in hits)
        figures.append(f"<figure><figcaption>{escape(name)}</figcaption><ol>{items}</ol></figure>")
    return page(f'<p>{escape(about)}</p><div class="tables" style="--wide: 17rem">{"".join(figures)}</div>')


def _marked(query: str, text: str) -> str:
    known = {query[start:end].casefold() for _, (start, end) in words_of(query)}
    html, place = "", 0
    for _, (start, end) in words_of(text):
        if text[start:end].casefold() in known:
            html += f"{escape(text[place:start])}<mark>{escape(text[start:end])}</mark>"
            place = end
    return html + escape(text[place:])


def _section(title: str, about: str, body: str) -> str:
    return f"<section><h3>{escape(title)}</h3><p>{escape(about)}</p>{body}</section>"


def _heat(
    values: Numbers,
    shares: Numbers,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    numbers: bool = False,
    marked: Sequence[int] = (),
) -> str:
    """A table whose cells are as dark as their share of the scale; its numbers inside, or shown at the pointer."""
    head = "".join(f'<th title="{escape(name)}">{escape(name)}</th>' for name in columns)
    lines = []
    for place, (name, line, own) in enumerate(zip(rows, values, shares.clip(0.0, 1.0), strict=True)):
        cells = []
        for column, value, share in zip(columns, line, own, strict=True):
            deep = ' class="deep"' if share > _DEEP else ""
            title = "" if numbers else f' title="{escape(f"{name} → {column}: {value:.3f}")}"'
            cells.append(f'<td{deep}{title} style="--s:{share:.3f}">{f"{value:.3f}" if numbers else ""}</td>')
        chosen = ' class="chosen"' if place in marked else ""
        label = f'<th title="{escape(name)}">{escape(name)}</th>'
        lines.append(f"<tr{chosen}>{label}{''.join(cells)}</tr>")
    kind = "heat" if numbers else "heat small"
    head = f"<thead><tr><th></th>{head}</tr></thead>"
    return f'<div class="scroll"><table class="{kind}">{head}<tbody>{"".join(lines)}</tbody></table></div>'


def _logarithmic(values: Numbers) -> Numbers:
    shares: Numbers = 1.0 - np.log10(values.clip(min=FAINTEST)) / math.log10(FAINTEST)
    return shares


def _lines(inside: Inside, weights: Numbers, words: Words) -> str:
    tokens, largest = inside.maps.tokens, float(weights.max()) or 1.0
    lines = []
    for copy, places in groupby(range(len(tokens)), key=lambda place: inside.copies[place]):
        chips = []
        for place in places:
            token, share = escape(tokens[place]), float(weights[place]) / largest
            kind = "none" if copy == 0 else "deep" if share > _DEEP else ""
            number = "–" if copy == 0 else f"{weights[place]:.3f}"
            chips.append(f'<span class="chip {kind}" style="--s:{share:.3f}">{token}<small>{number}</small></span>')
        label = words["copy"].format(number=copy) if copy else words["frame"]
        lines.append(f'<div class="line"><b>{escape(label)}</b>{"".join(chips)}</div>')
    return "".join(lines)


def _sinks(inside: Inside, chosen: int, words: Words) -> str:
    head = "".join(f"<th>{escape(words[name])}</th>" for name in ("layer", "sink", "even", "itself"))
    lines = []
    for place, each in enumerate(inside.sinks):
        numbers = "".join(f"<td>{share:.3f}</td>" for share in (each.sink, each.even, each.itself))
        bar = f'<td><span class="bar" style="width: {8 * each.sink:.2f}rem"></span></td>'
        mark = ' class="chosen"' if place == chosen else ""
        lines.append(f"<tr{mark}><th>{_name(each)} {escape(each.mask)}</th>{numbers}{bar}</tr>")
    table = f"<table><thead><tr>{head}<th></th></tr></thead><tbody>{''.join(lines)}</tbody></table>"
    return f'<div class="scroll">{table}</div>'


def _name(layer: Any) -> str:
    return str(layer.layer) if layer.run == 1 else f"{layer.layer} ({layer.run})"
