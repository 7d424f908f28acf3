#!/usr/bin/env python
"""Quality against cost: docs/figures/quality-light.svg and quality-dark.svg, out of docs/results/sentences-en.md.

    python scripts/results/plot.py

The work and STS-B columns of SmolLM2's tables are read, for a few rows; MiniLM, which was trained,
is a line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "results" / "sentences-en.md"
FIGURES = DOCS / "figures"

WIDTH, HEIGHT = 790, 384
LEFT, RIGHT, TOP, BOTTOM = 64, 754, 46, 324
LOWEST_WORK, HIGHEST_WORK = 0.75, 5.0
LOWEST_SCORE, HIGHEST_SCORE = 30, 88
FONT = "system-ui, 'Noto Sans CJK SC', 'Microsoft YaHei', 'PingFang SC', sans-serif"


@dataclass(frozen=True)
class PlottedRow:
    """A row of the table.

    Args:
        row_name: In the table.
        label: In the plot.
        label_offset: From the point to the label, in pixels.
        label_anchor: The end of the label that is there, ``start`` or ``end``.
        is_highlighted: The default.
    """

    row_name: str
    label: str
    label_offset: tuple[int, int] = (12, 5)
    label_anchor: str = "start"
    is_highlighted: bool = False


@dataclass(frozen=True)
class Colours:
    """Of a figure, in the notation of CSS."""

    background: str
    text: str
    faint_text: str
    grid: str
    point: str
    highlight: str
    trained: str


ROWS = (
    PlottedRow("classical, mean", "the mean of the states"),
    PlottedRow("NoSink: MASK0-BIDIR, k = 9, mean", "NoSink, k chosen by labels"),
    PlottedRow("PromptEOL", "PromptEOL, as published"),
    PlottedRow(
        "in a word, four examples, attention outputs (the default)",
        "the default",
        is_highlighted=True,
    ),
    PlottedRow("Echo-2, mean", "Echo", label_offset=(12, 1)),
    PlottedRow("ReBA-2, mean", "ReBA", label_offset=(12, 17)),
    PlottedRow("in a word, four examples, both word orders, attention outputs", "both word orders"),
    PlottedRow(
        "three questions, attention outputs",
        "three questions",
        label_offset=(-12, 5),
        label_anchor="end",
    ),
)
TRAINED_ROW = "all-MiniLM-L6-v2"
THEMES = {
    "light": Colours("#ffffff", "#0f172a", "#475569", "#e2e8f0", "#6366f1", "#c2410c", "#64748b"),
    "dark": Colours("#0d1117", "#e6edf3", "#9da7b3", "#272e38", "#a5b4fc", "#fb923c", "#94a3b8"),
}


def read_tables(page_text: str) -> dict[str, dict[str, str]]:
    """The cells of every row by its name and their columns, in SmolLM2's tables and the trained model's."""
    rows: dict[str, dict[str, str]] = {}
    for table_name in ("smollm2 whole", "smollm2", TRAINED_ROW):
        table = re.search(rf"<!-- {table_name} -->\n(.*?)<!-- end -->", page_text, re.DOTALL)
        if table is None:
            raise ValueError(f"{PAGE} has no table {table_name!r}")
        lines = re.findall(r"^\| (.*) \|$", table[1], re.MULTILINE)
        columns = [column.strip() for column in lines[0].split("|")]
        for line in lines[1:]:
            cells = [cell.strip(" *") for cell in line.split("|")]
            rows[cells[0]] = dict(zip(columns, cells, strict=True))
    return rows


def horizontal_position(work: float) -> float:
    share = (work - LOWEST_WORK) / (HIGHEST_WORK - LOWEST_WORK)
    return LEFT + share * (RIGHT - LEFT)


def vertical_position(score: float) -> float:
    share = (score - LOWEST_SCORE) / (HIGHEST_SCORE - LOWEST_SCORE)
    return BOTTOM - share * (BOTTOM - TOP)


def written_text(x: float, y: float, text: str, fill: str, attributes: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}"{attributes}>{text}</text>'


def draw_axes(colours: Colours) -> list[str]:
    """The grid with its numbers, and what the axes are."""
    faint = colours.faint_text
    elements = [
        written_text(LEFT - 40, 32, "Similarity: Spearman × 100 on STSBenchmark", faint),
        written_text(
            RIGHT, BOTTOM + 48, "work, relative to the plain model", faint, ' text-anchor="end"'
        ),
    ]
    for score in range(40, 90, 10):
        y = vertical_position(score)
        elements.append(f'<path d="M{LEFT} {y:.1f}H{RIGHT}" stroke="{colours.grid}"/>')
        elements.append(written_text(LEFT - 10, y + 5, str(score), faint, ' text-anchor="end"'))
    for work in range(1, 6):
        x = horizontal_position(work)
        elements.append(f'<path d="M{x:.1f} {BOTTOM}v6" stroke="{faint}"/>')
        elements.append(written_text(x, BOTTOM + 24, f"{work} ×", faint, ' text-anchor="middle"'))
    elements.append(f'<path d="M{LEFT} {BOTTOM}H{RIGHT}" stroke="{faint}"/>')
    return elements


def draw_row(row: PlottedRow, cells: Mapping[str, str], colours: Colours) -> list[str]:
    """A point with its label."""
    x = horizontal_position(float(cells["work"]))
    score = float(cells["STS-B"])
    y = vertical_position(score)
    label_x = x + row.label_offset[0]
    label_y = y + row.label_offset[1]
    outline = f'stroke="{colours.background}" stroke-width="1.5"'
    if not row.is_highlighted:
        point = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" fill="{colours.point}" {outline}/>'
        anchor = f' text-anchor="{row.label_anchor}"'
        return [point, written_text(label_x, label_y, row.label, colours.text, anchor)]
    point = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="9" fill="{colours.highlight}" {outline}/>'
    label = f"{row.label}: {score}"
    return [
        point,
        written_text(label_x + 4, label_y, label, colours.highlight, ' font-weight="600"'),
    ]


def draw_trained(cells: Mapping[str, str], colours: Colours) -> list[str]:
    """The line of the trained model, whose work is not known."""
    y = vertical_position(float(cells["STS-B"]))
    line = f'<path d="M{LEFT} {y:.1f}H{RIGHT}" stroke="{colours.trained}" stroke-width="1.6" stroke-dasharray="6 5"/>'
    label = "all-MiniLM-L6-v2, trained on a billion pairs"
    return [line, written_text(RIGHT, y - 8, label, colours.trained, ' text-anchor="end"')]


def draw_figure(rows: Mapping[str, Mapping[str, str]], colours: Colours) -> str:
    """The whole figure, as SVG."""
    elements = draw_axes(colours) + draw_trained(rows[TRAINED_ROW], colours)
    for row in ROWS:
        elements += draw_row(row, rows[row.row_name], colours)
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" font-size="15"'
    lines = [
        f'{opening} font-family="{FONT}">',
        "<title>Similarity against work, SmolLM2-135M: the default is near the best, at 1.5 times the work</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="10" fill="{colours.background}"/>',
        *elements,
        "</svg>",
    ]
    return "\n".join([*lines, ""])


def main() -> None:
    rows = read_tables(PAGE.read_text(encoding="utf-8"))
    for theme, colours in THEMES.items():
        figure_path = FIGURES / f"quality-{theme}.svg"
        figure_path.write_text(draw_figure(rows, colours), encoding="utf-8", newline="\n")
        print(figure_path.relative_to(DOCS.parent))


if __name__ == "__main__":
    main()
