"""Tables of the pages in docs/results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

PAGES = Path(__file__).parents[2] / "docs" / "results"


def format_table(
    score_frame: pd.DataFrame,
    first_heading: str,
    digits: int = 1,
    marks_best: bool = True,
) -> str:
    """A table in Markdown, the best of each column in bold."""
    lines = [
        f"| {first_heading} | {' | '.join(map(str, score_frame.columns))} |",
        f"|---|{'--:|' * len(score_frame.columns)}",
    ]
    rounded_frame = score_frame.round(digits)
    best_values = rounded_frame.max()
    for row_label, values in rounded_frame.iterrows():
        cells: list[str] = []
        for column, value in values.items():
            cell = "" if np.isnan(value) else f"{value:.{digits}f}"
            if marks_best and column != "work" and value == best_values[column]:
                cell = f"**{cell}**"
            cells.append(cell)
        lines.append(f"| {row_label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def add_old_rows(
    score_frame: pd.DataFrame,
    page: str,
    place_name: str,
) -> pd.DataFrame:
    """Rows that a page has already, as they are, and those that were run."""
    content = (PAGES / page).read_text(encoding="utf-8")
    _, _, rest = content.partition(f"<!-- {place_name} -->")
    old_table, _, _ = rest.partition("<!-- end -->")
    old_rows: dict[str, list[float]] = {}
    header: list[str] = []
    for line in old_table.strip().splitlines():
        row_label, *cells = [cell.strip(" *") for cell in line.strip("|").split("|")]
        if not header:
            header = cells
        elif not row_label.startswith("---"):
            old_rows[row_label] = [float(cell or "nan") for cell in cells]
    old_frame = pd.DataFrame.from_dict(old_rows, orient="index", columns=header)
    remaining_rows = old_frame.drop(index=score_frame.index, columns="work", errors="ignore")
    return pd.concat([remaining_rows, score_frame])


def replace_on_page(
    page: str,
    place_name: str,
    text: str,
) -> None:
    """Replace the text between ``<!-- place_name -->`` and the next ``<!-- end -->`` of a page."""
    path = PAGES / page
    content_before, place, content_after = path.read_text(encoding="utf-8").partition(
        f"<!-- {place_name} -->\n"
    )
    if not place:
        raise SystemExit(f"{path}: there is no <!-- {place_name} -->.")
    _, end, remaining_content = content_after.partition("<!-- end -->")
    path.write_text(
        f"{content_before}{place}\n{text}\n\n{end}{remaining_content}", encoding="utf-8"
    )


def fill_page(
    page: str,
    place_name: str,
    text: str,
) -> None:
    """Replace the text at a place of a page, and print it."""
    replace_on_page(page, place_name, text)
    print(f"{page}, {place_name}\n{text}\n", flush=True)
