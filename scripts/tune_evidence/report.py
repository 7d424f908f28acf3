"""The tables and the figure of docs/results/tune.md, from what score.py, sizes.py and languages.py wrote.

python scripts/tune_evidence/report.py FOLDER results docs/figures/tune.png
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from measures import shared
from scipy.stats import spearmanr
from sets import sets

from st_reba.evaluation.statistics import differences

Rule = Callable[[pd.DataFrame], int]
OTHERS = ("labels", "best", "paper", "plain")
BASES = ("mini", "pruned", "shallow", "deep", "early", "260K")
USES = ("pairs", "search", "topics")
SIGNALS = (
    "overlap", "query", "disjoint", "prefix", "order", "template", "hidden words", "hidden, near",
    "TwoNN", "RankMe", "isotropy", "uniformity", "alignment", "hubness", "agreement",
)  # fmt: skip
# What is tried together with crops, and which filters a guard leaves.
PARTNERS = ("query", "disjoint", "prefix", "order", "template", "TwoNN", "RankMe", "uniformity", "agreement")
MILD = ("no filter", "center", "abtt-2")
HALF = (*MILD, "whiten power 0.5")


def loaded(folder: Path) -> pd.DataFrame:
    """A row a base, set and composition; a column a signal."""
    rows: list[dict[str, Any]] = []
    for base in BASES:
        path = folder / f"{base}.jsonl"
        if not path.exists():
            continue
        near = np.load(path.with_suffix(".npz"))
        by_set: dict[str, list[dict[str, Any]]] = {}
        for line in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            line |= line.pop("signals")
            by_set.setdefault(line["set"], []).append(line)
        for name, some in by_set.items():
            places = {row["number"]: near[f"{name}/{row['number']}/near"] for row in some}
            plain = [row["number"] for row in some if row["filter"] == "no filter"]
            for row in some:
                row["ranks"] = near[f"{name}/{row['number']}/ranks"][0].astype(float)
                # Neighbours in common with those of all readings without a filter.
                row["agreement"] = np.mean([shared(places[row["number"]], places[n]) for n in plain])
            rows += some
    return pd.DataFrame(rows)


def groups(frame: pd.DataFrame) -> Any:
    """The compositions of each base and set."""
    return frame.groupby(["base", "use", "set"], sort=False)


def correlations(frame: pd.DataFrame) -> pd.DataFrame:
    """Spearman's correlation of each signal, and of the score on dev, with the score on test; a row a base and set."""
    found = []
    for key, group in groups(frame):
        row = dict(zip(("base", "use", "set"), key, strict=True))
        for signal in (*SIGNALS, "dev"):
            if group[signal].notna().all():
                row[signal] = spearmanr(group[signal], group["test"]).statistic
        found.append(row)
    return pd.DataFrame(found)


def allowed(group: pd.DataFrame) -> pd.DataFrame:
    """The compositions that ``st-reba tune`` tries: no whitening beyond half for topics and pairs."""
    return group if group["use"].iloc[0] == "search" else group[group["filter"].isin(HALF)]


def highest(signal: str) -> Rule:
    """Choose the composition of the highest signal."""
    return lambda group: int(group[signal].idxmax())


def together(first: str, second: str, weight: float = 0.5) -> Rule:
    """Choose by the sum of two signals' ranks, the second's weighted; of equal sums, the one that the first prefers."""
    return lambda group: int((group[first].rank() * (1 + 1e-6) + weight * group[second].rank()).idxmax())


def guarded(rule: Rule) -> Rule:
    """The same among the compositions that tune tries."""
    return lambda group: rule(allowed(group))


def filtered(filters: Sequence[str], rule: Rule) -> Rule:
    """The same among some filters."""
    return lambda group: rule(group[group["filter"].isin(filters)])


def within(errors: float) -> Rule:
    """Choose by crops the cheapest that is behind the highest by so many standard errors at most, paired over texts."""

    def rule(group: pd.DataFrame) -> int:
        own = allowed(group)
        apart = own.loc[own["overlap"].idxmax(), "ranks"] - np.stack(list(own["ranks"]))
        most = errors * apart.std(axis=1, ddof=1) / np.sqrt(apart.shape[1]) + 1e-12
        near = own[apart.mean(axis=1) <= most]
        return int(near.sort_values(["cost", "overlap"], ascending=[True, False], kind="stable").index[0])

    return rule


tuned, HIGHEST = within(1), guarded(highest("overlap"))
# Those that spend nothing on being cheap.
SINGLE: dict[str, Rule] = {
    "the highest": HIGHEST,
    "overlap": highest("overlap"),
    "overlap, at most half whitening": filtered(HALF, highest("overlap")),
    "overlap, no whitening": filtered(MILD, highest("overlap")),
    **{name: highest(name) for name in ("query", "disjoint", "TwoNN", "RankMe")},
    **{f"{name}, guarded": guarded(highest(name)) for name in ("query", "prefix", "order", "template")},
}
TOGETHER: dict[str, Rule] = {f"overlap + half of {name}": together("overlap", name) for name in PARTNERS}
TOGETHER |= {f"{name}, guarded": guarded(rule) for name, rule in TOGETHER.items()}
# What tables compare.
SHOWN = ("disjoint", "template, guarded", "agreement")
RULES: dict[str, Rule] = {
    "tune": tuned,
    "tune, at most one pass": lambda group: tuned(group[group["cost"] <= 1]),
    "the highest, at most one pass": lambda group: HIGHEST(group[group["cost"] <= 1]),
    "within two standard errors": within(2),
    **SINGLE,
    **{name: TOGETHER[name] for name in (f"overlap + half of {each}" for each in SHOWN)},
}


def choices(frame: pd.DataFrame, rule: Rule) -> pd.DataFrame:
    """What a rule chooses on each base and set, beside labels, hindsight, papers and the plain mean; test scores."""
    found = []
    for (base, use, name), group in groups(frame):
        papers = group[group["paper"] != "composed"]
        plain = group[(group["paper"] == "classical") & group["read"].str.endswith(", mean")]
        rows = {
            "chosen": group.loc[rule(group)],
            "labels": group.loc[group["dev"].idxmax()],
            "best": group.loc[group["test"].idxmax()],
            "paper": papers.loc[papers["test"].idxmax()],
            "plain": plain.iloc[0],
        }
        row = {"base": base, "use": use, "set": name, "what": "; ".join(rows["chosen"][["arm", "read", "filter"]])}
        for key, each in rows.items():
            row |= {key: each["test"], f"number {key}": each["number"], f"cost {key}": each["cost"]}
        found.append(row)
    return pd.DataFrame(found)


def ratios(table: pd.DataFrame) -> pd.DataFrame:
    """The choice's score as a share of the others'."""
    return table.assign(**{f"/{other}": table["chosen"] / table[other] for other in OTHERS})


def left_out(frame: pd.DataFrame, leave: str) -> list[list[Any]]:
    """For each base, or each set, what the rule chooses there that is best on all others."""
    made = {name: ratios(choices(frame, rule)) for name, rule in (SINGLE | TOGETHER).items()}
    rows, parts = [], []
    for key in frame[leave].unique():
        name = max(made, key=lambda each: made[each].loc[made[each][leave] != key, "/labels"].mean())
        own = made[name][made[name][leave] == key]
        parts.append(own)
        rows.append([key, name, *(f"{own[f'/{other}'].mean():.2f} ({own[f'/{other}'].min():.2f})" for other in OTHERS)])
    whole = pd.concat(parts)
    rows.append(["all", "", *(f"{whole[f'/{other}'].mean():.2f} ({whole[f'/{other}'].min():.2f})" for other in OTHERS)])
    return rows


def rule_table(frame: pd.DataFrame) -> str:
    """Of each rule the share in the others' quality: the mean over bases and sets by use, and of all the smallest."""
    rows = []
    for name, rule in RULES.items():
        table = ratios(choices(frame, rule))
        row: list[Any] = [name]
        for use in USES:
            row.append(float(table.loc[table["use"] == use, "/labels"].mean()))
        for other, digits in (("labels", 3), ("paper", 2), ("plain", 2)):
            row.append(f"{table[f'/{other}'].mean():.{digits}f} ({table[f'/{other}'].min():.2f})")
        rows.append([*row, str(int((table["/plain"] < 1).sum())), float(table["cost chosen"].mean())])
    heads = [
        *(f"{use} / labels" for use in USES),
        "all / labels",
        "/ best paper",
        "/ plain mean",
        "below plain",
        "cost",
    ]
    return markdown(["rule", *heads], rows)


def intervals(table: pd.DataFrame, given: Any, folder: Path) -> pd.DataFrame:
    """95 % intervals of what the choice is ahead of labels, the best paper's method and the plain mean, paired."""
    found = []
    for row in table.to_dict("records"):
        items = given[row["set"]].test.items
        stored = np.load(folder / f"{row['base']}.npz")
        keys = ("chosen", "labels", "paper", "plain")
        evidence = {key: stored[f"{row['set']}/{row[f'number {key}']}/evidence"].astype(float) for key in keys}
        samples = {key: items.draws(each, items.main) for key, each in evidence.items()}
        scores = {key: items.metrics[items.main](each) for key, each in evidence.items()}
        line = {key: row[key] for key in ("base", "use", "set", "what", *keys, "best")}
        for each in differences(scores, samples, against="chosen"):
            low, high = each.interval
            line |= {each.first: scores[each.first], f"ahead of {each.first}": (-each.value, -high, -low)}
        found.append(line)
    return pd.DataFrame(found)


def set_table(table: pd.DataFrame) -> str:
    """Scores on test, and what tune's choice is ahead by, with 95 % intervals."""
    rows = []
    for row in table.to_dict("records"):
        ahead = [row[f"ahead of {key}"] for key in ("labels", "paper", "plain")]
        scores = [f"{row[key]:.3f}" for key in ("plain", "paper", "chosen", "labels", "best")]
        rows.append([f"{row['base']}, {row['set']}", *scores, *(f"{v:+.3f} [{a:+.3f}, {b:+.3f}]" for v, a, b in ahead)])
    heads = ("plain", "best paper", "tune", "by labels", "hindsight", "tune − labels", "tune − paper", "tune − plain")
    return markdown(["base, set", *heads], rows)


def markdown(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table."""
    lines = ["| " + " | ".join(header) + " |", "|---" + "|--:" * (len(header) - 1) + "|"]
    lines += ["| " + " | ".join(f"{v:.2f}" if isinstance(v, float) else str(v) for v in row) + " |" for row in rows]
    return "\n".join(lines)


def signal_table(frame: pd.DataFrame) -> str:
    """Mean and smallest correlation by use."""
    table = correlations(frame)
    rows = []
    for signal in (*SIGNALS, "dev"):
        row: list[Any] = [signal]
        for use in USES:
            values = table[table["use"] == use][signal].dropna()
            row.append(f"{values.mean():.2f} ({values.min():.2f})" if len(values) else "")
        rows.append(row)
    return markdown(["signal", *USES], rows)


def size_table(path: Path, frame: pd.DataFrame) -> str:
    """The share of hindsight's best by base and number of texts, for the highest that tune may choose."""
    known = {key: group.set_index("number") for key, group in frame.groupby(["base", "set"], sort=False)}
    lines = [json.loads(line) for line in path.open(encoding="utf-8")]
    for line in lines:
        every = known[line["base"], line["set"]]
        group = every.loc[line["numbers"]].assign(overlap=line["signals"]).reset_index()
        line |= {"share": group.loc[HIGHEST(group), "test"] / every["test"].max(), "count": len(group)}
    found = pd.DataFrame(lines)
    names, rows = list(found["set"].unique()), []
    for (base, size), some in found.groupby(["base", "size"], sort=False):
        shares = [some.loc[some["set"] == name, "share"] for name in names]
        told = [f"{each.mean():.2f} ({each.min():.2f})" if len(each) else "" for each in shares]
        rows.append([base, str(size), str(some["count"].max()), *told])
    return markdown(["base", "texts", "compositions", *names], rows)


def language_table(path: Path) -> str:
    """Means over bases and readings, by filter and way."""
    frame = pd.DataFrame(map(json.loads, path.open(encoding="utf-8")))
    columns = ["zh", "en", "both", "signal"]
    # Single tokens are poor everywhere, and blur what filters do.
    frame = frame[~frame["trial"].str.contains("prompteol|, last")]
    rows = []
    for (wanted, way), own in frame.groupby(["filter", "way"], sort=False):
        rows.append([f"{wanted}, {way}", *(f"{own[each].mean():.3f}" for each in columns)])
    return markdown(["filter", *columns], rows)


def figure(frame: pd.DataFrame, path: Path) -> None:
    """Signal against quality, a panel a set of one base, and what is chosen."""
    from matplotlib.figure import Figure

    own = frame[frame["base"] == "mini"]
    names = list(own["set"].unique())
    drawing = Figure(figsize=(12, 5.6), layout="constrained")
    panels = drawing.subplots(2, -(-len(names) // 2)).ravel()
    for panel, name in zip(panels, names, strict=False):
        group = own[own["set"] == name]
        for filters, colour, label in (
            (group["filter"].isin(MILD), "tab:blue", "none, center, abtt"),
            (~group["filter"].isin(MILD), "tab:orange", "whiten"),
        ):
            some = group[filters]
            panel.scatter(some["overlap"], some["test"], s=12, color=colour, alpha=0.7, label=label)
        plain = group[(group["paper"] == "classical") & group["read"].str.endswith(", mean")].iloc[0]
        panel.axhline(plain["test"], color="grey", linewidth=0.8, linestyle=":")
        chosen = group.loc[group["overlap"].idxmax()]
        panel.scatter(chosen["overlap"], chosen["test"], s=90, facecolors="none", edgecolors="black")
        panel.set_title(f"{name} ({chosen['use']})", fontsize=10)
        panel.tick_params(labelsize=8)
    for panel in panels[len(names) :]:
        panel.set_axis_off()
    panels[len(names) - 1].legend(fontsize=8)
    drawing.supxlabel("MRR of overlapping crops", fontsize=10)
    drawing.supylabel("score on labels (test)", fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("shared", "results", "figure"):
        parser.add_argument(name, type=Path)
    options = parser.parse_args()
    frame = loaded(options.results)
    print(signal_table(frame))
    print(rule_table(frame))
    for leave in ("base", "set"):
        print(f"The rule that is best on every other {leave}:")
        print(markdown(["left out", "rule", *(f"/ {each}" for each in OTHERS)], left_out(frame, leave)))
    given = {each.name: each for each in sets(options.shared / "data", options.shared / "mini/tokens-30M.u16.xz")}
    print(set_table(intervals(choices(frame, tuned), given, options.results)))
    for name, table in (("sizes", lambda path: size_table(path, frame)), ("languages", language_table)):
        if (path := options.results / f"{name}.jsonl").exists():
            print(table(path))
    figure(frame, options.figure)


if __name__ == "__main__":
    main()
