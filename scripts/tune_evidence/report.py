"""The tables and the figure of docs/results/tune.md, from what score.py wrote.

python scripts/tune_evidence/report.py results docs/figures/tune.png
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from measures import shared
from scipy.stats import spearmanr

# What chooses for each use.
CHOOSES = {"pairs": "overlap", "search": "overlap", "topics": "overlap"}
PLAIN = ("repeat-1", "mean", "no filter")


def loaded(folder: Path) -> pd.DataFrame:
    """A row a base, set and composition; a column a signal."""
    rows = []
    for path in sorted(folder.glob("*.jsonl")):
        near = np.load(path.with_suffix(".npz"))
        own = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for row in own:
            rows.append({**{k: v for k, v in row.items() if k != "signals"}, **row["signals"]})
        # Neighbours in common with those of all readings without a filter.
        by_set: dict[str, list[dict[str, Any]]] = {}
        for row in rows[-len(own) :]:
            by_set.setdefault(row["set"], []).append(row)
        for name, some in by_set.items():
            places = {row["number"]: near[f"{name}/{row['number']}/near"] for row in some}
            plain = [row["number"] for row in some if row["filter"] == "no filter"]
            for row in some:
                row["agreement"] = np.mean([shared(places[row["number"]], places[n]) for n in plain])
    return pd.DataFrame(rows)


SIGNALS = (
    "overlap", "disjoint", "query", "prefix", "order", "template", "hidden words", "hidden, near",
    "agreement", "RankMe", "TwoNN", "isotropy", "alignment", "uniformity", "hubness",
)  # fmt: skip


def correlations(frame: pd.DataFrame) -> pd.DataFrame:
    """Spearman of each signal and the quality on test, a row a base and set."""
    found = []
    for (base, use, name), group in frame.groupby(["base", "use", "set"], sort=False):
        row = {"base": base, "use": use, "set": name}
        for signal in (*SIGNALS, "dev"):
            if signal in group and group[signal].notna().all():
                row[signal] = spearmanr(group[signal], group["test"]).statistic
        found.append(row)
    return pd.DataFrame(found)


def plain_of(group: pd.DataFrame) -> pd.Series:
    """The plain mean of the last layer."""
    own = group[(group["paper"] == "classical") & group["read"].str.endswith(", mean")]
    return own.iloc[0]


def choices(frame: pd.DataFrame, choose: Callable[[pd.DataFrame], int]) -> pd.DataFrame:
    """What a rule chooses on each base and set, beside labels, hindsight, papers and the plain mean."""
    found = []
    for (base, use, name), group in frame.groupby(["base", "use", "set"], sort=False):
        chosen = group.loc[choose(group)]
        papers = group[group["paper"] != "composed"]
        found.append(
            {
                "base": base, "use": use, "set": name,
                "chosen": chosen["test"],
                "labels": group.loc[group["dev"].idxmax(), "test"],
                "best": group["test"].max(),
                "paper": papers["test"].max(),
                "plain": plain_of(group)["test"],
                "what": f"{chosen['arm']}; {chosen['read']}; {chosen['filter']}",
            }
        )  # fmt: skip
    return pd.DataFrame(found)


def best_by(signal: str) -> Callable[[pd.DataFrame], int]:
    return lambda group: int(group[signal].idxmax())


def ratios(table: pd.DataFrame) -> pd.DataFrame:
    """Shares of the choice in the others' quality, a row a use."""
    table = table.assign(
        **{f"/{other}": table["chosen"] / table[other] for other in ("labels", "best", "paper", "plain")}
    )
    return table.groupby("use", sort=False)[["/labels", "/best", "/paper", "/plain"]].agg(["mean", "min"])


def markdown(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table."""
    lines = ["| " + " | ".join(header) + " |", "|---" + "|--:" * (len(header) - 1) + "|"]
    lines += ["| " + " | ".join(f"{v:.2f}" if isinstance(v, float) else str(v) for v in row) + " |" for row in rows]
    return "\n".join(lines)
