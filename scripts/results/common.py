"""Bases, public data, cached vectors and tables for the scripts of docs/results.

Every script takes DATA, a folder of public sets (docs/results/sentences-en.md lists them), and bases as NAME=FOLDER. It
keeps vectors in a cache, and writes tables into its page, between ``<!-- NAME -->`` and ``<!-- end -->``.
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

from st_reba.evaluation.encoding import usable
from st_reba.evaluation.readouts import opened, shared, vectors
from st_reba.evaluation.scores import SCORINGS
from st_reba.evaluation.tasks import Task, frame_of, read_task
from st_reba.filters import Filter
from st_reba.methods import Method

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
    "PromptEOL, layer {most}": "prompteol:layer={most}",
    "classical, mean, layer {half}": "classical:pooling=mean,layer={half}",
    "Echo-2, mean, layer {half}": "echo:pooling=mean,layer={half}",
    "Echo-2, mean, layer {most}": "echo:pooling=mean,layer={most}",
}
# Texts that are encoded before the cache is written, and that a filter is fitted on.
_AT_A_TIME, SAMPLE = 1000, 1000
# Pairs of the dev part that choose NoSink's k.
CHOOSING = 300


class Base:
    """A base, or a sentence-transformers model (method ``"itself"``), and a cache of its vectors.

    Args:
        name: What tables call it.
        folder: Where it is.
        cache: Folder of the cache.
        **loading: Arguments of ``build``, as ``dtype``.
    """

    def __init__(self, name: str, folder: str, cache: Path, **loading: Any) -> None:
        self.name, self.folder, self.loading = name, folder, loading
        self.cache = cache / "-".join([name, *map(str, loading.values())])

    @cached_property
    def model(self) -> Any:
        """The base, loaded."""
        return opened(self.folder, max_seq_length=4096, **self.loading)

    @cached_property
    def depth(self) -> int:
        """Number of layers L."""
        return int(json.loads(Path(self.folder, "config.json").read_text(encoding="utf-8"))["num_hidden_layers"])

    def vectors(self, methods: Sequence[str], texts: Sequence[str]) -> dict[str, Vectors]:
        """Vectors [N, d] of texts by each method; methods with the same input share the passes that are missing."""
        known = {each: self._stored(each) for each in methods}
        groups = [["itself"]] if "itself" in methods else []
        parsed = {Method.parse(each): each for each in methods if each != "itself"}
        groups += [[parsed[each] for each in group] for group in shared(list(parsed), self.depth).values()]
        for names in groups:
            missing = [text for text in dict.fromkeys(texts) if any(text not in known[name] for name in names)]
            for start in range(0, len(missing), _AT_A_TIME):
                part = missing[start : start + _AT_A_TIME]
                print(f"{self.name} {names}: {start + len(part)} of {len(missing)}", file=sys.stderr, flush=True)
                for name, found in self._encoded(names, part).items():
                    folder = self._folder(name)
                    folder.mkdir(parents=True, exist_ok=True)
                    file = folder / f"{hashlib.sha256(repr(part).encode()).hexdigest()[:16]}.npz"
                    np.savez(file, texts=np.array(part), vectors=found)
                    known[name] |= dict(zip(part, found, strict=True))
        return {each: np.stack([known[each][text] for text in texts]) for each in methods}

    def _encoded(self, names: Sequence[str], texts: Sequence[str]) -> dict[str, Vectors]:
        if names == ["itself"]:
            from sentence_transformers import SentenceTransformer

            return {"itself": SentenceTransformer(self.folder).encode(list(texts), normalize_embeddings=True)}
        made = vectors(self.model, [Method.parse(each) for each in names], texts, check=False)
        return {name: made[Method.parse(name)] for name in names}

    def _folder(self, name: str) -> Path:
        return self.cache / hashlib.sha256(name.encode()).hexdigest()[:16]

    def _stored(self, name: str) -> dict[str, Vectors]:
        found: dict[str, Vectors] = {}
        for file in self._folder(name).glob("*.npz"):
            with np.load(file) as held:
                found |= dict(zip(held["texts"].tolist(), held["vectors"], strict=True))
        return found


def score(task: Task, found: Vectors, label: str = "") -> float:
    """A task's main score, times 100."""
    scoring = SCORINGS[task.kind]
    return 100 * scoring.metrics[scoring.main](scoring.evidence(task, usable(found, task, label)))


def scores(base: Base, rows: Mapping[str, str], tasks: Sequence[Task], sample: Sequence[str] = ()) -> pd.DataFrame:
    """Main scores × 100: a row a method, a column a task.

    Args:
        base: The base.
        rows: Methods by their label; ``abtt-2 METHOD``: behind that filter, fitted on ``sample``.
        tasks: The tasks.
        sample: Texts without labels.
    """
    plain = {label: method.removeprefix("abtt-2 ") for label, method in rows.items()}
    fitted = [label for label, method in rows.items() if method.startswith("abtt-2 ")]
    known = base.vectors(list({plain[label] for label in fitted}), sample)
    filters = {label: Filter.fit(known[plain[label]], "abtt", r=2) for label in fitted}
    frame = pd.DataFrame(index=list(rows), columns=[task.name for task in tasks], dtype=float)
    for task in tasks:
        found = base.vectors(list(dict.fromkeys(plain.values())), task.texts)
        for label, method in plain.items():
            own = found[method]
            frame.loc[label, task.name] = score(task, filters[label].apply(own) if label in filters else own, label)
    return frame


def methods_of(base: Base, k: int, skip: str | None = None) -> dict[str, str]:
    """PAPERS, NoSink with k converted layers, and READINGS of a base, but for methods that match ``skip``."""
    layers = {"half": base.depth // 2, "most": 2 * base.depth // 3}
    readings = {label.format(**layers): method.format(**layers) for label, method in READINGS.items()}
    found = {**PAPERS, f"NoSink: MASK0-BIDIR, k = {k}, mean": f"nosink:setting=mask0-bidir,k={k}", **readings}
    return {label: method for label, method in found.items() if skip is None or not re.search(skip, method)}


def ks_of(base: Base) -> list[int]:
    """The numbers of converted layers that are tried."""
    step = -(-base.depth // 10)
    return sorted({1, 2, base.depth, *range(step, base.depth, step)})


def chosen_k(base: Base, task: Task) -> int:
    """The k of MASK0-BIDIR, mean, that scores best on a labelled task; among equals the smallest."""
    methods = {k: f"nosink:setting=mask0-bidir,k={k}" for k in ks_of(base)}
    found = base.vectors(list(methods.values()), task.texts)
    return max(methods, key=lambda k: (round(score(task, found[methods[k]]), 6), -k))


def semeval(data: Path, year: int, limit: int | None = None) -> Task:
    """All scored pairs of a year of SemEval STS; or so many of them, drawn with seed 0."""
    files = sorted((data / "sts" / "semeval").glob(f"{year}.*"))
    return read_task(pd.concat([frame_of(file) for file in files]), "STS", name=f"STS{year % 100}", limit=limit)


def stsb(data: Path, part: str, limit: int | None = None) -> Task:
    """STSBenchmark's dev or test part."""
    return read_task(data / "sts" / f"sts-{part}.csv", name="STS-B", limit=limit)


def table(frame: pd.DataFrame, first: str, digits: int = 1, bold: bool = True) -> str:
    """A table in Markdown, the best of each column in bold."""
    rows = [f"| {first} | {' | '.join(map(str, frame.columns))} |", f"|---|{'--:|' * len(frame.columns)}"]
    for label, values in frame.iterrows():
        cells = ["" if value != value else f"{value:.{digits}f}" for value in values]
        top = [bold and round(value, digits) == frame[name].round(digits).max() for name, value in values.items()]
        cells = [f"**{cell}**" if best else cell for cell, best in zip(cells, top, strict=True)]
        rows.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(rows)


def fill(page: str, name: str, text: str) -> None:
    """Replace what a page has between ``<!-- name -->`` and the next ``<!-- end -->``, and print it."""
    path = PAGES / page
    before, mark, rest = path.read_text(encoding="utf-8").partition(f"<!-- {name} -->\n")
    if not mark:
        raise SystemExit(f"{path}: there is no <!-- {name} -->.")
    path.write_text(f"{before}{mark}\n{text}\n\n<!-- end -->{rest.partition('<!-- end -->')[2]}", encoding="utf-8")
    print(f"{page}, {name}\n{text}\n", flush=True)


def arguments(about: str | None) -> argparse.Namespace:
    """The arguments of every script; ``bases`` are :class:`Base` objects, the trained model the last of them."""
    parser = argparse.ArgumentParser(description=(about or "").splitlines()[0])
    parser.add_argument("data", type=Path, help="folder of public sets")
    parser.add_argument("bases", nargs="*", metavar="NAME=FOLDER", help="bases")
    parser.add_argument("--trained", help="folder of all-MiniLM-L6-v2")
    parser.add_argument("--skip", help="pattern of methods that are left out")
    parser.add_argument("--cache", type=Path, default=Path("results-cache"), help="folder of vectors")
    parser.add_argument("--dtype", default="bfloat16", help="number type of the bases")
    given = parser.parse_args()
    named = [each.partition("=")[::2] for each in given.bases]
    given.bases = [Base(name, folder, given.cache, dtype=given.dtype) for name, folder in named]
    given.bases += [Base("all-MiniLM-L6-v2", given.trained, given.cache)] if given.trained else []
    return given
