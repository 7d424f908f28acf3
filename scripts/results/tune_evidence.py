"""Every candidate of tune's space, by views of unlabelled texts and by labels.

    python scripts/results/tune_evidence.py BASE DATA OUT.jsonl --sets STS-B STS13-16 StackOverflow
    python scripts/results/tune_evidence.py BASE DATA OUT.jsonl    # the table of what is there

DATA is a folder of public sets (sts/, clustering/, classification/, ranking/, pairs/). Passes that OUT.jsonl has are
not run again. Quality is Spearman's correlation (pairs), the share of texts whose nearest centroid is of their class
(topics), or mean average precision (search), on rows of another split than the texts that views are made of.

The best of hundreds is partly luck. "By labels" is the best on one half of the rows, compared on the other half (mean
over 50 splits). "Truth / best": of the luckiest on rows drawn again, what the truly best candidate would have.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch.nn.functional import normalize

from st_reba.encode import computed_positions
from st_reba.evaluation.readouts import of_base, opened, read
from st_reba.evaluation.run import markdown
from st_reba.evaluation.search import Pass, Scored, chosen, filtered, passes_of
from st_reba.evaluation.tasks import ROLES, Task, frame_of, read_task
from st_reba.evaluation.views import draw_texts, evidence, script_of, views_of
from st_reba.methods import Method

# Labelled rows, and unlabelled texts, of a set.
COUNT, TEXTS = 200, 120


def some(rows: list, count: int) -> list:
    return Random(0).sample(rows, min(count, len(rows)))


def pairs(*files: Path) -> list[tuple]:
    frames = [frame_of(file)[["text1", "text2", "score"]].astype({"score": float}) for file in files]
    return list(pd.concat(frames).itertuples(index=False, name=None))


def texts(rows: list[tuple]) -> list[str]:
    return list(dict.fromkeys(text for row in rows for text in row[:2]))


def classes(rows: list[tuple]) -> tuple[str, list[tuple], list[str]]:
    rows = some(list(dict(rows).items()), 2000)
    half = len(rows) // 2
    return "Classification", rows[: min(half, 3 * COUNT // 2)], [text for text, _ in rows[half:]]


def sets(data: Path) -> dict[str, tuple[str, list[tuple], list[str]]]:
    """By name: the kind of the labels, labelled rows, and texts of another split."""

    def lines(path: str) -> list[dict]:
        return [json.loads(line) for line in (data / path).read_text("utf-8").splitlines() if line]

    years = [some(pairs(*sorted(data.glob(f"sts/semeval/20{year}.*"))), 1000) for year in (13, 14, 15, 16)]
    early = some(some(pairs(*sorted(data.glob("sts/semeval/2012.*"))), 4000), 4000)
    alike = some([(r["sentence1"], r["sentence2"], float(r["label"])) for r in lines("sts/afqmc-dev.jsonl")], 4000)
    follows = {"entailment": 1.0, "contradiction": 0.0}
    ocnli = [row for row in lines("pairs/ocnli-dev.jsonl") if row["label"] in follows]
    ocnli = some([(row["sentence1"], row["sentence2"], follows[row["label"]]) for row in ocnli], 1800)
    queries: dict[str, list[tuple]] = {}
    for row in lines("ranking/qbqtc-dev.json"):
        queries.setdefault(row["query"], []).append((row["query"], row["title"], float(row["label"])))
    judged = [rows for rows in queries.values() if 0 < sum(row[2] > 0 for row in rows) < len(rows)]
    alone = [rows[0][1] for rows in queries.values() if len(rows) == 1]
    names = [(data / f"clustering/{part}_StackOverflow.txt").read_text("utf-8") for part in ("title", "label")]
    files = [f"classification/tnews/{part}.json" for part in ("train_few_all", "dev_few_all", "test_public")]
    news = [(row["sentence"], row["label_desc"]) for file in files for row in lines(file) if "label_desc" in row]
    known, chinese = (pairs(data / f"sts/{name}") for name in ("sts-dev.csv", "cnsd-sts-dev.txt"))
    return {
        "STS-B": ("STS", some(pairs(data / "sts/sts-test.csv"), COUNT), texts(known)),
        "STS13-16": ("STS", some(sum(years, []), COUNT), texts(known)),
        "STS12": ("STS", early[:COUNT], texts(early[1000:])),
        "StackOverflow": classes(list(zip(*(each.strip().split("\n") for each in names), strict=True))),
        "STS-B-zh": ("STS", some(pairs(data / "sts/cnsd-sts-test.txt"), COUNT), texts(chinese)),
        "AFQMC": ("STS", alike[: 2 * COUNT], texts(alike[1000:2000])),
        "OCNLI": ("STS", ocnli[: 2 * COUNT], texts(ocnli[800:])),
        "QBQTC": ("Reranking", [row for rows in judged[:COUNT] for row in rows], some(alone, 1000)),
        "TNEWS": classes(news),
    }


def lines_of(base: Any, each: Pass, name: str, views: Task, labelled: Task) -> list[dict]:
    """A line for each candidate of a pass: evidence of views, and of labelled items without and with a filter."""
    depth, model = base[0].depth, of_base(base, each.method)
    texts = list(dict.fromkeys([*views.texts, *labelled.texts]))
    place = {text: row for row, text in enumerate(texts)}
    mine, asked = ([place[text] for text in task.texts] for task in (views, labelled))
    costs = [sum(computed_positions(each[0], views.texts, {})) for each in (model, base)]
    found = []
    for readout, vectors in read(model, each.readouts(depth), texts).items():
        units, method = normalize(torch.from_numpy(vectors), dim=1), each.of(readout, depth)
        line = {"set": name, "pass": str(each.method), "method": str(method)}
        line["cost"] = costs[0] / costs[1] / depth * readout.layer
        # The papers' own; NoSink's is classical with masks here.
        plain = method.template is None or (method.name, method.template) == ("prompteol", "prompteol-zh")
        line["paper"] = method.layer is None and plain and (method.setting is None or method.name == "classical")
        values = {"views": evidence(views, filtered(units[mine])), "plain": evidence(labelled, units[asked])}
        values["filtered"] = evidence(labelled, filtered(units[asked], units[mine]))
        found.append(line | {key: [round(float(one), 3) for one in each] for key, each in values.items()})
    return found


def by_labels(candidates: np.ndarray, choice: np.ndarray) -> float:
    """The choice's quality by that of the best on the other half of the rows; candidates [C, N], choice [N]."""
    generator, ours, theirs = np.random.default_rng(0), 0.0, 0.0
    for _ in range(50):
        order = generator.permutation(len(choice))
        for one, other in ((order[::2], order[1::2]), (order[1::2], order[::2])):
            ours += choice[other].mean()
            theirs += candidates[candidates[:, one].mean(axis=1).argmax()][other].mean()
    return ours / theirs


def without_luck(candidates: np.ndarray) -> float:
    """The best candidate's quality by that of the luckiest, on rows that are drawn again (500 times)."""
    count = candidates.shape[1]
    draws = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), size=500).T / count
    again = candidates @ draws
    return again[candidates.mean(axis=1).argmax()].mean() / again.max(axis=0).mean()


def table(lines: list[dict]) -> str:
    """What tune's rule chooses of each set, beside the best of all, of the papers' methods, and the plain mean."""
    rows = []
    for name in dict.fromkeys(line["set"] for line in lines):
        mine = [line for line in lines if line["set"] == name]
        parts = [(Method.parse(line["method"]), "abtt", line["cost"], torch.tensor(line["views"])) for line in mine]
        choice = mine[(scored := [Scored(*part) for part in parts]).index(chosen(scored))]
        every = np.array([line["filtered"] for line in mine])
        quality, best = np.array(choice["filtered"]), every[every.mean(axis=1).argmax()]
        error = (best - quality).std(ddof=1) / len(best) ** 0.5
        papers = {line["method"]: float(np.mean(line["plain"])) for line in mine if line["paper"]}
        row = {"choice": quality.mean(), "best": best.mean(), "± 1 s.e.": error, "/ best": quality.mean() / best.mean()}
        row |= {"truth / best": without_luck(every), "/ by labels": by_labels(every, quality)}
        row |= {"/ best paper's": quality.mean() / max(papers.values())}
        row["/ plain mean"] = quality.mean() / papers.get("classical:pooling=mean", np.nan)
        rows.append({"set": name, "chosen": choice["method"], **row})
    return markdown(pd.DataFrame(rows).set_index("set"))


def main() -> None:
    """Run what is missing, and print the table."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("base")
    options.add_argument("data", type=Path)
    options.add_argument("out", type=Path)
    options.add_argument("--sets", nargs="+", default=[])
    given = options.parse_args()
    lines = [json.loads(line) for line in given.out.open(encoding="utf-8")] if given.out.exists() else []
    there = {(line["set"], line["pass"]) for line in lines}
    if given.sets:
        base, every = opened(given.base, dtype="bfloat16", max_seq_length=256), sets(given.data)
        for name in given.sets:
            kind, rows, apart = every[name]
            labelled = read_task(pd.DataFrame(rows, columns=list(ROLES[kind])), kind)
            unlabelled = draw_texts([text for text in apart if text not in set(labelled.texts)], TEXTS)
            for each in passes_of(base[0].depth, script_of(" ".join(unlabelled[:100]))):
                if (name, str(each.method)) not in there:
                    lines += (new := lines_of(base, each, name, views_of(unlabelled), labelled))
                    with given.out.open("a", encoding="utf-8") as out:
                        out.writelines(json.dumps(line) + "\n" for line in new)
                    print(name, each.method, file=sys.stderr)
    print(table(lines))


main()
