"""The evidence's labelled sets, the texts that signals see of each, and the compositions."""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from shown import WAYS, hidden_words, ways
from transformers import AutoTokenizer

import st_reba
from st_reba.evaluation import make_task, read_task
from st_reba.evaluation.data import Task
from st_reba.evaluation.signals import views
from st_reba.evaluation.trials import NO_FILTER, Arm, Filter, Read

# Sets of all uses but search, where what takes long is looked at.
SOME = ("STS-B-zh", "TNEWS", "STSBenchmark")
# Texts that views are made of, and rows of hidden words: every arm runs them all.
SHOWN, HIDDEN = 120, 200
# A whitening filter of mini's 192 dimensions needs 768.
UNLABELLED = 800
# Tokens of mini's corpus that are looked through for so many articles.
CORPUS, LEADS = 14_000_000, 760


@dataclass
class Set:
    """A labelled set.

    Args:
        name: What tables call it.
        use: ``"pairs"``, ``"search"`` or ``"topics"``.
        language: Of the texts.
        dev: Items with labels that a choice by labels looks at, and that classifiers learn from.
        test: What quality is measured on.
        texts: Unlabelled ones; those of ``dev`` are among them.
    """

    name: str
    use: str
    language: str
    dev: Task
    test: Task
    texts: list[str]
    shown: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = field(default_factory=dict)
    hidden: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        seen = set(self.test.items.texts)
        others = [text for text in dict.fromkeys(self.texts) if text not in seen and text.strip()]
        self.texts = Random(0).sample(others, min(UNLABELLED, len(others)))
        found = views(self.texts)
        self.shown["overlap"] = found.first[:SHOWN], found.second[:SHOWN]
        for how in WAYS:
            first, second = zip(*(ways(self.texts[row], how) for row in found.rows[:SHOWN]), strict=True)
            self.shown[how] = first, second
        rows = hidden_words(self.texts, fewest=6)
        words = list(dict.fromkeys(word for _, word in rows))
        # The rarest words go until the rows fit.
        while len(rows) > HIDDEN:
            gone = words.pop()
            rows = [row for row in rows if row[1] != gone]
        self.hidden = rows if self.use == "topics" or self.name in SOME else []

    def everything(self) -> list[str]:
        """All texts that an arm runs."""
        found = [*self.texts, *self.dev.items.texts, *self.test.items.texts, *(text for text, _ in self.hidden)]
        for first, second in self.shown.values():
            found += [*first, *second]
        return list(dict.fromkeys(found))


def _pairs(name: str, language: str, dev: Path, test: Path, size: int) -> Set:
    parts = [read_task(dev, "STS"), read_task(test, "STS", limit=size, seed=1)]
    known = set(parts[1].items.texts)
    rows = [
        (items.texts[a], items.texts[b], s)
        for items in (parts[0].items,)
        for a, b, s in items.items
        if items.texts[a] not in known and items.texts[b] not in known
    ]
    chosen = Random(0).sample(rows, 400)
    texts = [text for row in chosen for text in row[:2]]
    # Dev pairs share sentences; others of the file make up for them.
    texts += [text for row in Random(1).sample(rows, len(rows)) for text in row[:2]]
    texts = list(dict.fromkeys(texts))[:UNLABELLED]
    return Set(name, "pairs", language, make_task("STS", chosen), parts[1], texts)


def _labelled(name: str, use: str, language: str, kind: str, rows: Sequence[tuple[str, str]], test: int) -> Set:
    rows = Random(0).sample(list(dict(rows).items()), min(len(dict(rows)), UNLABELLED + test))
    own, asked = rows[:-test], rows[-test:]
    dev = make_task(kind, own)
    known = {label for _, label in own}
    return Set(
        name,
        use,
        language,
        dev,
        Task("test", make_task(kind, [r for r in asked if r[1] in known]).items, dev.items)
        if kind == "Classification"
        else make_task(kind, asked),
        [text for text, _ in own],
    )


def _ranking(data: Path) -> Set:
    whole = read_task(data / "ranking/qbqtc-dev.json", "Reranking")
    titles = [json.loads(line)["title"] for line in (data / "ranking/qbqtc-dev.json").open(encoding="utf-8")]
    order = Random(0).sample(range(len(whole.items)), len(whole.items))
    half = len(order) // 2
    dev, test = (Task("QBQTC", whole.items.subset(sorted(part))) for part in (order[:half], order[half:]))
    texts = [*dev.items.texts, *Random(0).sample(titles, UNLABELLED)]
    return Set("QBQTC", "search", "zh", dev, test, list(dict.fromkeys(texts))[:UNLABELLED])


def _leads(tokens: Path) -> Set:
    """The first sentence of an article of English Wikipedia, which mini learnt from too, searches what follows it."""
    with lzma.open(tokens) as stream:
        ids = np.frombuffer(stream.read(2 * CORPUS), "<u2")
    tokenizer: Any = AutoTokenizer.from_pretrained(Path(st_reba.__file__).parent / "mini")
    rows: dict[str, str] = {}
    ends = np.flatnonzero(ids == tokenizer.eos_token_id)
    for start, end in zip(ends, ends[1:], strict=False):
        if re.search("[\u4e00-\u9fff]", tokenizer.decode(ids[start + 1 : start + 9])):
            continue
        text = tokenizer.decode(ids[start + 1 : min(end, start + 200)], skip_special_tokens=True)
        match = re.match(r"\s*[^\n]*\n+([^\n]{30,180}?\.) ([^\n]{60,})", text)
        if match and not re.search("[\u4e00-\u9fff]", text):
            rows[match[1]] = match[2][:90].rsplit(" ", 1)[0]
        if len(rows) == LEADS:
            break
    every = list(rows.items())
    test, dev, others = every[:200], every[200:350], every[350:]
    tasks = [make_task("Retrieval", [(query, body, 1) for query, body in part]) for part in (dev, test)]
    texts = [text for row in dev for text in row] + [text for row in others for text in row]
    return Set("Wikipedia leads", "search", "en", *tasks, texts[:UNLABELLED])


def sets(data: Path, tokens: Path, languages: Sequence[str] = ("zh", "en")) -> list[Set]:
    """The labelled sets in these languages."""
    lines = {
        name: (data / f"clustering/{name}_StackOverflow.txt").read_text(encoding="utf-8").strip().split("\n")
        for name in ("title", "label")
    }
    tnews = [
        (row["sentence"], row["label_desc"])
        for part in ("train_few_all", "dev_few_all")
        for row in map(json.loads, (data / f"classification/tnews/{part}.json").open(encoding="utf-8"))
    ]
    afqmc = data / "sts/afqmc-dev.jsonl"
    makers = {
        "zh": [
            lambda: _pairs("STS-B-zh", "zh", data / "sts/cnsd-sts-dev.txt", data / "sts/cnsd-sts-test.txt", 400),
            lambda: _pairs("AFQMC", "zh", afqmc, afqmc, 500),
            lambda: _ranking(data),
            lambda: _labelled("TNEWS", "topics", "zh", "Classification", tnews, 600),
        ],
        "en": [
            lambda: _pairs("STSBenchmark", "en", data / "sts/sts-dev.csv", data / "sts/sts-test.csv", 300),
            lambda: _leads(tokens),
            lambda: _labelled(
                "StackOverflow",
                "topics",
                "en",
                "Clustering",
                list(zip(lines["title"], lines["label"], strict=True)),
                800,
            ),
        ],
    }
    return [make() for language in languages for make in makers[language]]


def arms(depth: int) -> list[Arm]:
    """The inputs and plans; NoSink's first converted layer is where a third of the layers is below it."""
    first = depth // 3
    return [
        Arm(),
        Arm(repeats=2),
        Arm(kind="nosink-bidirectional", first=first),
        Arm(repeats=2, kind="nosink-bidirectional", first=first),
        Arm("prompteol"),
    ]


def reads(arm: Arm, depth: int) -> list[Read]:
    """What is read of an arm."""
    middle = round(depth * 2 / 3)
    if arm.template is not None:
        return [Read(n, n, True, "end") for n in (depth, middle)]
    found = [Read(depth, depth, True, "mean"), Read(middle, middle, True, "mean"), Read(0, depth, True, "mean")]
    if arm.kind == "forward":
        found.append(Read(depth, depth, True, "last"))
        if arm.repeats > 1:
            found += [Read(depth, depth, True, pooled) for pooled in ("reba mean", "reba last")]
    return found


FILTERS = (
    NO_FILTER,
    Filter("center"),
    Filter("abtt", 2),
    Filter("whiten", power=0.5),
    Filter("whiten", r=1, power=0.75),
    Filter("whiten"),
)
