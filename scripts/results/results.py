"""The tables of docs/results on public sets, a page a run.

    python scripts/results/results.py PAGE DATA smollm2=FOLDER gemma3=FOLDER --trained MINILM

PAGE is sentences-en, sentences-zh, captions, chunk, nosink, quantized or words. DATA is a folder of public sets
(docs/results/sentences-en.md lists them), FOLDER a base. Vectors are cached. A table goes into its page, between
``<!-- NAME -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from st_reba.encode import computed_positions
from st_reba.evaluation import Task, compare, read_task
from st_reba.evaluation.attention import attention_maps, sink_table
from st_reba.evaluation.encoding import usable
from st_reba.evaluation.readouts import of_base, opened, shared, vectors
from st_reba.evaluation.scores import SCORINGS
from st_reba.evaluation.tasks import frame_of
from st_reba.filters import Filter
from st_reba.methods import Method
from st_reba.safety import load

PAGES = Path(__file__).parents[2] / "docs" / "results"
Vectors = NDArray[np.float32]
# The papers' methods at their published settings; NoSink's k is chosen by labels, in `chosen_k`.
PAPERS = {
    "classical, last": "classical",
    "classical, mean": "classical:pooling=mean",
    "PromptEOL": "prompteol",
    "Echo-2, last": "echo",
    "Echo-2, mean": "echo:pooling=mean",
    "ReBA-2, last": "reba",
    "ReBA-2, mean": "reba:pooling=mean",
}
# PromptEOL's other readings, and inner layers; {half}, {most}: a half and two thirds of them.
READINGS = {
    "PromptEOL with an example": "prompteol:template=prompteol-example",
    "PromptEOL, attention outputs": "prompteol:read=attention",
    "PromptEOL, both word orders": "prompteol:template=reverseol",
    "both word orders, attention outputs": "prompteol:template=reverseol,read=attention",
    "the same with an example": "prompteol:template=reverseol-example,read=attention",
    "three questions, attention outputs": "prompteol:template=three-questions,read=attention",
    "another wording": "prompteol:template=prompteol-says",
    "another wording, attention outputs": "prompteol:template=prompteol-says,read=attention",
    "another wording, both word orders": "prompteol:template=reverseol-says",
    "another wording, both word orders, attention outputs": "prompteol:template=reverseol-says,read=attention",
    "a topic, attention outputs": "prompteol:template=prompteol-topic,read=attention",
    "a topic, one example, attention outputs": "prompteol:template=prompteol-topic-1,read=attention",
    "a topic, four examples": "prompteol:template=prompteol-topic-4",
    "a topic, four examples, attention outputs (the default)": "prompteol:template=prompteol-topic-4,read=attention",
    "a topic, eight examples, attention outputs": "prompteol:template=prompteol-topic-8,read=attention",
    "a topic, four examples, both word orders, attention outputs": (
        "prompteol:template=reverseol-topic-4,read=attention"
    ),
    "PromptEOL, layer {most}": "prompteol:layer={most}",
    "classical, mean, layer {half}": "classical:pooling=mean,layer={half}",
    "Echo-2, mean, layer {half}": "echo:pooling=mean,layer={half}",
    "Echo-2, mean, layer {most}": "echo:pooling=mean,layer={most}",
}
# Texts that are encoded before the cache is written, and that a filter is fitted on; pairs that choose NoSink's k.
AT_A_TIME, SAMPLE, CHOOSING = 1000, 1000, 300
# Positions of a sequence at the most, of bases that have more.
MOST_POSITIONS = 4096
# Queries among the captions of STS-B's test part, and what a right caption holds: a match of every pattern.
QUERIES = {
    "a man plays the guitar": (r"\b(man|boy)\b", r"guitar", r"play|sing"),
    "someone is cutting onions": (r"onion", r"\b(slic|cut|chop|dic)"),
    "a dog runs in the snow": (r"\b(dogs?|poodles)\b", r"snow", r"run|walk|play|frolic"),
    "a woman dances": (r"\b(wom[ae]n|lady|girls?|ballerina)\b", r"danc"),
    "kids jump on a trampoline": (r"kids|children", r"trampoline"),
    "a person rides a horse": (r"horse", r"\brid(e|es|ing)\b"),
    "he is peeling a potato": (r"\b(man|guy|person)\b", r"peel", r"potato"),
    "soccer players kick a ball": (r"soccer|kick", r"play|ball"),
    "a cat lies on the sofa": (r"\bcats?\b", r"couch|sofa|coach|chair"),
    "a plane in the sky": (r"plane", r"flight|fly"),
    "a train on the rails": (r"train", r"track"),
    "a boy on a skateboard": (r"skateboard",),
    "cows behind a fence": (r"cow", r"fence|\bpen\b"),
    "people eating in a restaurant": (r"restaurant|dining table|eating in",),
    "a man holds a sleeping baby": (r"\b(man|father)\b", r"sleep|napping", r"baby|infant"),
    "surfing on a big wave": (r"surf", r"wave"),
    "a lady puts on lipstick": (r"make-?up|lipstick|eyeliner",),
    "somebody climbs a mountain": (r"climb", r"cliff|rock|hill"),
    "a couple kisses": (r"kiss",),
    "a woman talks on the phone": (r"\b(woman|girls?)\b", r"phone"),
}


class Base:
    """A base, or a sentence-transformers model (method ``"itself"``, no loading), and a cache of its vectors."""

    def __init__(self, name: str, folder: str, cache: Path, **loading: Any) -> None:
        self.name, self.folder, self.loading = name, folder, loading
        self.cache = cache / "-".join([name, *map(str, loading.values())])
        self.cache.mkdir(parents=True, exist_ok=True)

    @cached_property
    def model(self) -> Any:
        """The base or model, loaded."""
        if not self.loading:
            return load(self.folder)
        length = min(MOST_POSITIONS, self.config["max_position_embeddings"])
        return opened(self.folder, max_seq_length=length, **self.loading)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The base's config.json."""
        found: dict[str, Any] = json.loads(Path(self.folder, "config.json").read_text(encoding="utf-8"))
        return found

    @property
    def depth(self) -> int:
        """Number of layers L."""
        return int(self.config["num_hidden_layers"])

    def vectors(self, methods: Sequence[str], texts: Sequence[str]) -> dict[str, Vectors]:
        """Vectors [N, d] of texts by each method; methods with the same input share the passes that are missing."""
        groups = [["itself"]] if "itself" in methods else []
        parsed = {Method.parse(each): each for each in methods if each != "itself"}
        groups += [[parsed[each] for each in group] for group in shared(list(parsed), self.depth).values()]
        found: dict[str, list[Vectors]] = {}
        for names in groups:
            for start in range(0, len(texts), AT_A_TIME):
                part = list(texts[start : start + AT_A_TIME])
                keys = {name: hashlib.sha256(repr([name, *part]).encode()).hexdigest()[:24] for name in names}
                files = {name: self.cache / f"{key}.npy" for name, key in keys.items()}
                if not all(file.exists() for file in files.values()):
                    print(f"{self.name} {names}: {start + len(part)} of {len(texts)}", file=sys.stderr, flush=True)
                    if names == ["itself"]:
                        np.save(files["itself"], self.model.encode(part, normalize_embeddings=True))
                    else:
                        made = vectors(self.model, list(map(Method.parse, names)), part, check=False)
                        for name, rows in zip(names, made.values(), strict=True):
                            np.save(files[name], rows)
                for name, file in files.items():
                    found.setdefault(name, []).append(np.load(file))
        return {name: np.concatenate(parts) for name, parts in found.items()}

    def scores(self, methods: Mapping[Any, str], task: Task) -> dict[Any, float]:
        """The task's main score × 100 of each labelled method."""
        found = self.vectors(list(dict.fromkeys(methods.values())), task.texts)
        return {label: score(task, found[method]) for label, method in methods.items()}

    @property
    def ks(self) -> list[int]:
        """The numbers of converted layers that are tried."""
        step = -(-self.depth // 10)
        return sorted({1, 2, self.depth, *range(step, self.depth, step)})

    def methods(self, data: Path, skip: str | None) -> dict[str, str]:
        """PAPERS, NoSink with the k that is best on labelled pairs, and READINGS, but for what matches ``skip``."""
        if not self.loading:
            return {self.name: "itself"}
        layers = {"half": self.depth // 2, "most": 2 * self.depth // 3}
        readings = {label.format(**layers): method.format(**layers) for label, method in READINGS.items()}
        skipped = re.compile(skip or "(?!)").search
        nosink = {k: f"nosink:setting=mask0-bidir,k={k}" for k in self.ks}
        by_k = {1: 0.0} if skipped(nosink[1]) else self.scores(nosink, stsb(data, "dev", CHOOSING))
        k = max(by_k, key=lambda k: (round(by_k[k], 4), -k))
        found = {**PAPERS, f"NoSink: MASK0-BIDIR, k = {k}, mean": nosink[k], **readings}
        return {label: method for label, method in found.items() if not skipped(method)}


def score(task: Task, found: Vectors) -> float:
    """A task's main score, times 100."""
    scoring = SCORINGS[task.kind]
    return 100 * scoring.metrics[scoring.main](scoring.evidence(task, usable(found, task, task.name)))


def stsb(data: Path, part: str, limit: int | None = None) -> Task:
    """STSBenchmark's dev or test part."""
    return read_task(data / "sts" / f"sts-{part}.csv", name="STS-B", limit=limit)


def sentences_en(base: Base, given: argparse.Namespace) -> None:
    """STS-B, STS13 to STS16 and StackOverflow, by method and base."""
    names = {"text": "title", "label": "label"}
    lines = {name: Path(given.data, f"clustering/{part}_StackOverflow.txt") for name, part in names.items()}
    topics = pd.DataFrame({name: file.read_text(encoding="utf-8").splitlines() for name, file in lines.items()})
    tasks = [stsb(given.data, "test")]
    for year in (2013, 2014, 2015, 2016):
        pairs = pd.concat(map(frame_of, sorted(given.data.glob(f"sts/semeval/{year}.*"))))
        tasks.append(read_task(pairs, "STS", name=f"STS{year % 100}", limit=None if given.whole else 125))
    tasks.append(read_task(topics, "Clustering", name="StackOverflow", limit=500))
    every = base.methods(given.data, given.skip)
    methods = {label: method for label, method in every.items() if re.search(given.only, label)}
    frame = pd.DataFrame({task.name: base.scores(methods, task) for task in tasks})
    half, sample = base.depth // 2, stsb(given.data, "dev").texts[:SAMPLE]
    also = ("PromptEOL", "PromptEOL, attention outputs", "orders, attention outputs", "questions, attention outputs")
    also += ("another wording", "(the default)", f"Echo-2, mean, layer {half}")
    for label in (label for label in methods if label.endswith(also)):
        fitted = Filter.fit(base.vectors([methods[label]], sample)[methods[label]], "abtt", r=2)
        for task in tasks:
            own = fitted.apply(base.vectors([methods[label]], task.texts)[methods[label]])
            frame.loc[f"{label} + filter", task.name] = score(task, own)
    frame.insert(len(tasks) - 1, "mean of STS", frame.iloc[:, :-1].mean(axis=1))
    frame = beside_old_rows(frame, "sentences-en.md", base.name + " whole" * given.whole)
    if base.loading:
        models = {name: of_base(base.model, Method.parse(every[name])) for name in frame.index if name in every}
        work = pd.Series({name: sum(computed_positions(each[0], tasks[0].texts, {})) for name, each in models.items()})
        frame.insert(0, "work", work / min(work))
    fill("sentences-en.md", base.name + " whole" * given.whole, table(frame, base.name))


def sentences_zh(base: Base, given: argparse.Namespace) -> None:
    """Seven Chinese sets, by method and base."""
    sts, topics = given.data / "sts", given.data / "classification"
    drawn = {"STS-B-zh": (sts / "cnsd-sts-test.txt", "STS"), "AFQMC": (sts / "afqmc-dev.jsonl", "STS")}
    drawn["OCNLI"] = (given.data / "pairs" / "ocnli-dev.jsonl", "PairClassification")
    drawn["waimai"] = (topics / "waimai_10k.csv", "Classification")
    labels = {"OCNLI": {"entailment": 1, "contradiction": 0}}
    tasks = [read_task(*each, name=name, limit=200, labels=labels.get(name)) for name, each in drawn.items()]
    for name, label in (("tnews", "label_desc"), ("eprstmt", "label")):
        rows = pd.read_json(topics / name / "test_public.json", lines=True)
        columns = {"text": "sentence", "label": label}
        tasks.append(read_task(rows, "Classification", name=name.upper(), limit=200, columns=columns))
    rows = pd.read_json(given.data / "ranking" / "qbqtc-dev.json", lines=True)
    tasks.insert(3, read_task(rows, "Reranking", name="QBQTC", limit=60))
    half, chinese = base.depth // 2, "prompteol:template=prompteol-zh"
    methods = {**PAPERS, f"NoSink: MASK0-BIDIR, k = {half}, mean": f"nosink:setting=mask0-bidir,k={half}"}
    methods["PromptEOL, another wording"] = "prompteol:template=prompteol-says"
    methods["PromptEOL in Chinese"] = chinese
    methods["the same with an example"] = "prompteol:template=prompteol-example-zh"
    methods["the same, attention outputs"] = f"{chinese},read=attention"
    methods["both word orders"] = "prompteol:template=reverseol-zh"
    methods["both word orders, attention outputs"] = "prompteol:template=reverseol-zh,read=attention"
    methods["a topic in Chinese, four examples"] = "prompteol:template=prompteol-topic-4-zh"
    methods["the same, attention outputs (the Chinese default)"] = (
        "prompteol:template=prompteol-topic-4-zh,read=attention"
    )
    methods["the English default"] = "prompteol:template=prompteol-topic-4,read=attention"
    methods = {label: method for label, method in methods.items() if re.search(given.only, label)}
    frame = pd.DataFrame({task.name: base.scores(methods, task) for task in tasks})
    frame = beside_old_rows(frame.assign(mean=frame.mean(axis=1)), "sentences-zh.md", base.name)
    fill("sentences-zh.md", base.name, table(frame, base.name))


def chunk(base: Base, given: argparse.Namespace) -> None:
    """Halves of news articles find each other, by ReBA whole and by pieces."""
    rows = []
    for part in ("train", "valid", "test"):
        blocks = (given.data / "ner" / f"{part}.txt").read_text(encoding="utf-8").split("\n\n")
        lines = [" ".join(line.split()[0] for line in block.splitlines() if line.strip()) for block in blocks]
        # A headline, and then a place and date, stand before an article. Tables of results have short lines.
        dates = [n for n, line in enumerate(lines) if re.fullmatch(r".{2,40} 1996-\d\d-\d\d", line)]
        for first, following in zip(dates, [*dates[1:], len(lines) + 1], strict=True):
            article = lines[first + 1 : following - 1]
            if (words := len(" ".join(article).split())) >= 300 and words >= 18 * len(article):
                half = len(article) // 2
                rows.append((" ".join(article[:half]), " ".join(article[half:]), 1))
    pairs = pd.DataFrame(rows, columns=["query", "document", "relevance"]).drop_duplicates()
    task = read_task(pairs.sample(50, random_state=0), "Retrieval", name="nDCG@10 × 100")
    methods = {name: PAPERS[name] for name in ("classical, mean", "Echo-2, mean", "ReBA-2, last", "ReBA-2, mean")}
    methods |= {f"ReBA-2, mean, pieces of {size}": f"reba:pooling=mean,chunk={size}" for size in (128, 32)}
    fill("chunk.md", base.name, table(pd.DataFrame({task.name: base.scores(methods, task)}), base.name))


def captions(base: Base, given: argparse.Namespace) -> None:
    """The rank of the first right caption of each query."""
    rows = [line.split("\t") for line in (given.data / "sts" / "sts-test.csv").read_text(encoding="utf-8").splitlines()]
    texts = list(dict.fromkeys(text for row in rows if row[0] == "main-captions" for text in row[5:7]))
    right = [[all(re.search(one, text, re.I) for one in wanted) for text in texts] for wanted in QUERIES.values()]
    methods, frame = base.methods(given.data, given.skip), pd.DataFrame(dtype=float)
    if base.loading:
        methods[f"NoSink: MASK0-BIDIR, k = {base.depth // 3}, mean"] = f"nosink:setting=mask0-bidir,k={base.depth // 3}"
    vectors = base.vectors(list(methods.values()), [*texts, *QUERIES])
    for label, method in methods.items():
        own = vectors[method]
        for name, each in (("", own), (", filter", Filter.fit(own[: len(texts)], "abtt", r=2).apply(own))):
            unit = each / np.linalg.norm(each, axis=1, keepdims=True)
            order = (unit[len(texts) :] @ unit[: len(texts)].T).argsort(axis=1)[:, ::-1]
            ranks = np.array([row[places].argmax() + 1 for row, places in zip(np.array(right), order, strict=True)])
            frame.loc[label, f"first is right{name}"] = (ranks == 1).sum()
            frame.loc[label, f"MRR × 100{name}"] = 100 * (1 / ranks).mean()
            frame.loc[label, f"guitar{name}"] = ranks[0]
    fill("captions.md", base.name, table(frame, base.name, digits=0, bold=False))


def nosink(base: Base, given: argparse.Namespace) -> None:
    """NoSink's k on STS-B, and the share of attention that the first token gets."""
    methods = {0: "classical:pooling=mean"} | {k: f"nosink:setting=mask0-bidir,k={k}" for k in base.ks}
    frame = pd.DataFrame({"STS-B, dev": base.scores(methods, stsb(given.data, "dev", CHOOSING))})
    fill("nosink.md", f"{base.name} k", table(frame, f"{base.name}, k"))
    model, texts = of_base(base.model, Method("classical")), stsb(given.data, "dev").texts[:50]
    found = sink_table(attention_maps(model, text) for text in texts)
    columns = {"on the first token": "sink", "if it were even": "even", "on the token itself": "itself"}
    shown = 100 * found.set_index(found["layer"] + 1)[list(columns.values())].set_axis(list(columns), axis=1)
    fill("nosink.md", f"{base.name} sink", table(shown, f"{base.name}, layer", digits=0, bold=False))


def quantized(base: Base, given: argparse.Namespace) -> None:
    """Methods by the number type of the base."""
    half, task = base.depth // 2, stsb(given.data, "test", 100)
    methods = {**PAPERS, f"NoSink: MASK0-BIDIR, k = {half}, mean": f"nosink:setting=mask0-bidir,k={half}"}
    methods["PromptEOL, attention outputs"] = "prompteol:read=attention"
    methods[f"Echo-2, mean, layer {half}"] = f"echo:pooling=mean,layer={half}"
    loadings = [("dtype", "float32"), ("dtype", "bfloat16"), ("quantization", "int8"), ("quantization", "nf4")]
    typed = {name: Base(base.name, base.folder, given.cache, **{option: name}) for option, name in loadings}
    frame = pd.DataFrame({name: each.scores(methods, task) for name, each in typed.items()})
    fill("quantized.md", base.name, table(frame, base.name, bold=False))


def words(base: Base, given: argparse.Namespace) -> None:
    """Word senses: which of four sentences uses a word otherwise, by method and layer."""
    layers, half = [base.depth * part // 6 for part in (2, 3, 4, 5, 6)], base.depth // 2
    named = {"classical": "classical", "Echo-2": "echo", "ReBA-2": "reba"}
    methods = {(label, layer): f"{name}:layer={layer}" for label, name in named.items() for layer in layers}
    # From the middle layer on, masks look both ways.
    for layer in (layer for layer in layers if layer > half):
        methods["MASK0-BIDIR", layer] = f"nosink:setting=mask0-bidir,k={layer - half},layer={layer}"
    for name in ("SLPWC", "WSD"):
        task, frame = read_task(given.data / "words" / f"{name}_v1.csv", limit=100), pd.DataFrame(dtype=float)
        results = compare(base.model, task, list(methods.values()), draws=0).results
        for (label, layer), result in zip(methods, results, strict=True):
            for distance, metric in (("cosine", "accuracy cosine"), ("Euclidean", "accuracy euclidean")):
                frame.loc[f"{label}, {distance}", f"layer {layer}"] = 100 * result.scores[metric]
        fill("words.md", f"{base.name} {name}", table(frame, f"{base.name}, {name}"))


def table(frame: pd.DataFrame, first: str, digits: int = 1, bold: bool = True) -> str:
    """A table in Markdown, the best of each column in bold."""
    rows = [f"| {first} | {' | '.join(map(str, frame.columns))} |", f"|---|{'--:|' * len(frame.columns)}"]
    best = frame.drop(columns="work", errors="ignore").round(digits).max() if bold else {}
    for label, values in frame.iterrows():
        cells = ["" if value != value else f"{value:.{digits}f}" for value in values]
        top = [round(value, digits) == best.get(name) for name, value in values.items()]
        cells = [f"**{cell}**" if is_best else cell for cell, is_best in zip(cells, top, strict=True)]
        rows.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(rows)


def beside_old_rows(frame: pd.DataFrame, page: str, name: str) -> pd.DataFrame:
    """Rows that a page has already, as they are, and those that were run."""
    content = (PAGES / page).read_text(encoding="utf-8")
    old_table = content.partition(f"<!-- {name} -->")[2].partition("<!-- end -->")[0]
    old_rows: dict[str, list[float]] = {}
    header: list[str] = []
    for line in old_table.strip().splitlines():
        label, *cells = [cell.strip(" *") for cell in line.strip("|").split("|")]
        if not header:
            header = cells
        elif not label.startswith("---"):
            old_rows[label] = [float(cell or "nan") for cell in cells]
    old_frame = pd.DataFrame.from_dict(old_rows, orient="index", columns=header)
    rows_to_keep = old_frame.drop(index=frame.index, columns="work", errors="ignore")
    return pd.concat([rows_to_keep, frame])


def fill(page: str, name: str, text: str) -> None:
    """Replace what a page has between ``<!-- name -->`` and the next ``<!-- end -->``, and print it."""
    path = PAGES / page
    before, mark, rest = path.read_text(encoding="utf-8").partition(f"<!-- {name} -->\n")
    if not mark:
        raise SystemExit(f"{path}: there is no <!-- {name} -->.")
    path.write_text(f"{before}{mark}\n{text}\n\n<!-- end -->{rest.partition('<!-- end -->')[2]}", encoding="utf-8")
    print(f"{page}, {name}\n{text}\n", flush=True)


def main() -> None:
    """Fill a page."""
    every = (sentences_en, sentences_zh, captions, chunk, nosink, quantized, words)
    pages = {each.__name__.replace("_", "-"): each for each in every}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", choices=pages)
    parser.add_argument("data", type=Path, help="folder of public sets")
    parser.add_argument("bases", nargs="*", metavar="NAME=FOLDER", help="bases")
    parser.add_argument("--trained", help="folder of all-MiniLM-L6-v2")
    parser.add_argument("--skip", help="pattern of methods that are left out")
    parser.add_argument("--only", default="", help="sentences-*: pattern of rows that are run; others stay")
    parser.add_argument("--whole", action="store_true", help="sentences-en: all pairs of STS13 to STS16")
    parser.add_argument("--cache", type=Path, default=Path("results-cache"), help="folder of vectors")
    given = parser.parse_args()
    named = [each.partition("=")[::2] for each in given.bases]
    bases = [Base(name, folder, given.cache, dtype="bfloat16") for name, folder in named]
    for base in [*bases, *([Base("all-MiniLM-L6-v2", given.trained, given.cache)] if given.trained else [])]:
        pages[given.page](base, given)


main()
