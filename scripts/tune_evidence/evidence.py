"""Every candidate of tune's space, by views of unlabelled texts and by labels: is what views choose good?

    python scripts/tune_evidence/evidence.py BASE DATA OUT.jsonl --sets STS-B STS13-16 StackOverflow
    python scripts/tune_evidence/evidence.py BASE DATA OUT.jsonl    # the table of what is there

DATA is a folder of public sets (sts/, clustering/, classification/, ranking/). Passes that OUT.jsonl has are not run
again. Quality is Spearman's correlation (pairs), the share of texts whose nearest centroid is of their class (topics),
or mean average precision (search), on rows of another split than the texts that views are made of.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch.nn.functional import normalize

from st_reba.evaluation.candidates import FILTERS, USES, Fitted, Pass, passes_of
from st_reba.evaluation.readouts import gathered, of_base, opened, read
from st_reba.evaluation.views import drawn, information, pairs_of, script_of, views_of

# Views' texts, and labelled rows, of a set.
SHOWN, ROWS = 250, 250


def tab(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.reader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))


def some(rows: list, count: int) -> list:
    return Random(0).sample(rows, min(count, len(rows)))


def sets(data: Path) -> dict[str, tuple[str, str, list[tuple], list[str]]]:
    """By name: use, kind of the labels, labelled rows, and texts of another split."""
    sts = {part: [(r[5], r[6], float(r[4])) for r in tab(data / f"sts/sts-{part}.csv")] for part in ("dev", "test")}
    years = [
        (row[1], row[2], float(row[0]))
        for year in (13, 14, 15, 16)
        for row in some([r for f in sorted((data / "sts/semeval").glob(f"20{year}.*")) for r in tab(f)], 250)
    ]
    chinese = {
        part: [
            (row[1], row[2], float(row[3]))
            for row in (
                line.split("||") for line in (data / f"sts/cnsd-sts-{part}.txt").read_text("utf-8").splitlines()
            )
            if len(row) == 4
        ]
        for part in ("dev", "test")
    }

    def lines(path: str) -> list[dict]:
        return [json.loads(line) for line in (data / path).read_text("utf-8").splitlines() if line]

    afqmc = some([(r["sentence1"], r["sentence2"], float(r["label"])) for r in lines("sts/afqmc-dev.jsonl")], 4000)
    queries: dict[str, list[tuple]] = {}
    for row in lines("ranking/qbqtc-dev.json"):
        queries.setdefault(row["query"], []).append((row["query"], row["title"], float(row["label"])))
    ranked = [rows for rows in queries.values() if len(rows) > 2]
    titles, labels = (
        (data / f"clustering/{part}_StackOverflow.txt").read_text("utf-8").strip().split("\n")
        for part in ("title", "label")
    )
    questions = some(list(dict(zip(titles, labels, strict=True)).items()), 2000)
    news = some(
        [
            (row["sentence"], row["label_desc"])
            for part in ("train_few_all", "dev_few_all", "test_public")
            for row in lines(f"classification/tnews/{part}.json")
            if "label_desc" in row
        ],
        2000,
    )

    def texts(rows: list[tuple]) -> list[str]:
        return list(dict.fromkeys(text for row in rows for text in row[:2]))

    return {
        "STS-B": ("pairs", "pairs", some(sts["test"], ROWS), texts(sts["dev"])),
        "STS13-16": ("pairs", "pairs", years, texts(sts["dev"])),
        "StackOverflow": ("topics", "classes", questions[: 2 * ROWS], [text for text, _ in questions[1000:]]),
        "STS-B-zh": ("pairs", "pairs", some(chinese["test"], ROWS), texts(chinese["dev"])),
        "AFQMC": ("pairs", "pairs", afqmc[:ROWS], texts(afqmc[1000:2000])),
        "QBQTC": (
            "search",
            "ranking",
            [row for rows in ranked[::2] for row in rows][:900],
            list(dict.fromkeys(row[1] for rows in ranked[1::2] for row in rows)),
        ),
        "TNEWS": ("topics", "classes", news[: 2 * ROWS], [text for text, _ in news[1000:]]),
    }


class Evidence:
    """Views and labelled items of some sets, and what the candidates of a pass are worth by both."""

    def __init__(self, base: str, data: Path, names: list[str], dtype: str) -> None:
        everything = sets(data)
        self.use = {name: everything[name][0] for name in names}
        self.items, self.texts, self.views = {}, {}, {}
        for name in names:
            _, kind, rows, texts = everything[name]
            own = {text for row in rows for text in row[: 1 if kind == "classes" else 2]}
            self.items[name] = pairs_of(rows, kind)
            self.texts[name] = drawn([text for text in texts if text not in own], SHOWN)
            self.views[name] = views_of(self.texts[name])
        parts = [(*self.texts[name], *self.items[name].texts, *self.views[name].texts) for name in names]
        self.place = {text: row for row, text in enumerate(dict.fromkeys(text for part in parts for text in part))}
        self.base = opened(base, dtype=dtype, max_seq_length=256)
        self.depth = self.base[0].depth
        self.passes = passes_of(self.depth, script_of(" ".join(self.texts[names[0]][:100])))

    def lines(self, each: Pass) -> list[dict]:
        """One line for each candidate and set."""
        lowest = 1 if each.first is None else each.first + 1
        layers = range(self.depth, lowest - 1, -max(1, -(-self.depth // 16)))
        model = of_base(self.base, each.method)
        found = gathered(read(model, each.readouts(list(layers)), list(self.place)), len(self.place))
        return [
            {"pass": str(each.method), "method": str(each.of(readout, self.depth)), **readout._asdict(), **line}
            for readout, vectors in found.items()
            for name in self.items
            for line in self._behind(name, normalize(torch.from_numpy(vectors), dim=1))
        ]  # fmt: skip

    def _behind(self, name: str, units: torch.Tensor) -> list[dict]:
        """What vectors of all texts are worth on a set, behind each filter."""

        def of(texts: tuple[str, ...]) -> torch.Tensor:
            return units[[self.place[text] for text in texts]]

        views, items = self.views[name], self.items[name]
        mine, test = of(views.texts), of(items.texts)
        # As tune fits them: views judge behind a filter of their own, a recipe's is of whole texts too.
        judging, fitted = Fitted(mine), Fitted(torch.cat([of(tuple(self.texts[name])), mine]))
        columns, lines = torch.tensor(views.places).T, []
        for filter_name in FILTERS:
            behind = judging.apply(filter_name, mine)
            crops, halves = (float(information(behind[columns[n]], behind[columns[n + 1]]).mean()) for n in (0, 2))
            quality = float(items.evidence(fitted.apply(filter_name, test)).mean())
            lines.append(
                {"use": self.use[name], "filter": filter_name, "crops": crops, "halves": halves, "quality": quality}
            )
        return lines  # fmt: skip


def table(lines: list[dict]) -> str:
    """What tune's rules choose of each set, beside the best of all, of the papers' methods, and the plain mean."""
    rows = ["| set | chosen | quality | / best | / best paper | / plain mean |", "|---|---|--:|--:|--:|--:|"]
    for name in dict.fromkeys(line["set"] for line in lines):
        mine = [line for line in lines if line["set"] == name]
        use = USES[mine[0]["use"]]
        allowed = {*use.filters, "whiten-half"}

        def score(line: dict, use: Any = use) -> float:
            bonus = use.end_bonus if line["pooling"] == "end" else 0.0
            return (line["crops"] + use.halves * line["halves"]) / (1 + use.halves) + bonus

        best = max((line for line in mine if line["filter"] in allowed), key=score)
        plain = [line for line in mine if line["filter"] == "none" and "layer=" not in line["method"]]
        papers = max(
            line["quality"] for line in plain if not ("echo" in line["method"] and "setting" in line["method"])
        )
        mean = next((line["quality"] for line in plain if line["method"] == "classical:pooling=mean"), float("nan"))
        ratios = (max(line["quality"] for line in mine), papers, mean)
        numbers = " | ".join([f"{best['quality']:.3f}", *(f"{best['quality'] / each:.2f}" for each in ratios)])
        rows.append(f"| {name} | {best['method']}, {best['filter']} | {numbers} |")
    return "\n".join(rows)


def main() -> None:
    """Run what is missing, and print the table."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("base")
    options.add_argument("data", type=Path)
    options.add_argument("out", type=Path)
    options.add_argument("--sets", nargs="+", default=[])
    options.add_argument("--dtype", default="bfloat16")
    options.add_argument("--passes", type=int, nargs="+", help="numbers, from 0; else all")
    given = options.parse_args()
    lines = [json.loads(line) for line in given.out.open(encoding="utf-8")] if given.out.exists() else []
    if given.sets:
        evidence = Evidence(given.base, given.data, given.sets, given.dtype)
        for number in given.passes if given.passes is not None else range(len(evidence.passes)):
            each = evidence.passes[number]
            if str(each.method) not in {line["pass"] for line in lines}:
                lines += (new := evidence.lines(each))
                with given.out.open("a", encoding="utf-8") as out:
                    out.writelines(json.dumps(line) + "\n" for line in new)
                print(each.method, file=sys.stderr)
    print(table(lines))


main()
