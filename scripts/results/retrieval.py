#!/usr/bin/env python
r"""What searches find in judged collections: nDCG@10 and recall@100 of methods, by words, vectors and both.

    python scripts/results/retrieval.py run smollm2 FOLDER cranfield cisi --results retrieval.jsonl
    python scripts/results/retrieval.py run smollm2 FOLDER scifact --rows default \
        --results retrieval.jsonl
    python scripts/results/retrieval.py run MiniLM FOLDER cranfield --rows trained \
        --results retrieval.jsonl
    python scripts/results/retrieval.py tables retrieval.jsonl --seconds xquad-zh-en

`run` takes a name for the table, a folder with the weights, and folders in BEIR's layout
(corpus.jsonl, queries.jsonl, qrels/test.tsv). Each row is kept in the file when it is done, and is
not run again. `tables` prints a table a base, with 95 % intervals over queries; with --seconds it
adds how long the documents of one collection took to encode.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sklearn.metrics import ndcg_score

import st_reba
from st_reba.evaluation.beir import BeirFolder, read_beir
from st_reba.evaluation.statistics import paired_bootstrap
from st_reba.index import Index
from st_reba.index.queries import Mode
from st_reba.methods import DEFAULT_METHOD

DEPTH = 100
WORDS = "words (BM25)"
# Each by its method; the default is also searched with whitened vectors, and with words.
METHODS = {
    "plain": "classical:pooling=mean",
    "echo": "echo:pooling=mean",
    "reba": "reba:pooling=mean",
    "nosink": "nosink:setting=mask0-bidir,k={k}",
    "prompteol": "prompteol",
    # The default, as callers that know only `encode` see it.
    "similarity": "prompteol:template=prompteol-word-4,read=attention",
    "default": DEFAULT_METHOD,
}
NAMES = {
    "plain": "mean of the states",
    "echo": "Echo, mean",
    "reba": "ReBA, mean",
    "nosink": "NoSink",
    "prompteol": "PromptEOL, as published",
    "similarity": "the default, encode for queries and documents",
    "default": "the default, vectors as they are",
    "trained": "vectors",
}
WHITENED = "the default, whitened"
WITH_TOKENS = "the default, whitened, with tokens"
HYBRID = "words and vectors"
TUNED = "tune's choice"


@dataclass(frozen=True)
class Result:
    """One way of searching one collection.

    Args:
        base: The base's name in the table.
        collection: The folder's name.
        row: The way of searching.
        ndcgs: nDCG@10, a query.
        recalls: recall@100, a query.
        seconds: To encode the documents; 0: they were encoded for another row.
        positions: Of a document, a copy, at most; None: as many as the model takes.
    """

    base: str
    collection: str
    row: str
    ndcgs: list[float]
    recalls: list[float]
    seconds: float = 0.0
    positions: int | None = None


class Collection:
    """Documents and judged queries of a folder in BEIR's layout."""

    def __init__(self, path: Path) -> None:
        folder = read_beir(path)
        self.name = path.name
        self.documents = [text for text in folder.documents if text.strip()]
        self.grades = judged_queries(folder)
        self.queries = list(self.grades)

    def score(self, index: Index, mode: Mode) -> tuple[list[float], list[float]]:
        """nDCG@10 and recall@100 of each query."""
        ndcgs: list[float] = []
        recalls: list[float] = []
        results_by_query = index.search(self.queries, DEPTH, mode=mode)
        for query, results in zip(self.queries, results_by_query, strict=True):
            listed = [result.text for result in results]
            ndcgs.append(ndcg_at_10(listed, self.grades[query]))
            recalls.append(recall_at_100(listed, self.grades[query]))
        return ndcgs, recalls


def judged_queries(folder: BeirFolder) -> dict[str, Mapping[str, float]]:
    """Grades by document, of the queries that have a relevant one."""
    grades_by_query: dict[str, Mapping[str, float]] = {}
    for query, grades in folder.grades.items():
        if max(grades.values()) > 0:
            grades_by_query[query] = grades
    return grades_by_query


def ndcg_at_10(documents: Sequence[str], grades: Mapping[str, float]) -> float:
    """Normalized discounted cumulative gain of the first ten documents."""
    ranked_grades = [grades.get(document, 0.0) for document in documents]
    # A short list does not bring what it lacks into the first ten.
    ranked_grades += [0.0] * (10 - len(ranked_grades))
    for document, grade in grades.items():
        if document not in documents:
            ranked_grades.append(grade)
    ranking_scores = -np.arange(len(ranked_grades))
    return float(ndcg_score([ranked_grades], [ranking_scores], k=10))


def recall_at_100(documents: Sequence[str], grades: Mapping[str, float]) -> float:
    """Share of the relevant documents that are among the first hundred."""
    relevant_documents: set[str] = set()
    for document, grade in grades.items():
        if grade > 0:
            relevant_documents.add(document)
    listed_count = len(relevant_documents.intersection(documents[:DEPTH]))
    return listed_count / len(relevant_documents)


class ResultsFile:
    """Results, a line of JSON each."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.results: list[Result] = []
        if not path.exists():
            return
        for line in path.read_text(encoding="utf-8").splitlines():
            fields = json.loads(line)
            self.results.append(Result(**fields))

    def find(self, base: str, collection: str, row: str) -> Result | None:
        """What was kept of a row; None: it was not run."""
        for result in self.results:
            if result.base not in ("", base):
                continue
            if result.collection == collection and result.row == row:
                return result
        return None

    def add(self, result: Result) -> None:
        """Keep one more."""
        self.results.append(result)
        with self._path.open("a", encoding="utf-8") as stream:
            line = json.dumps(asdict(result), ensure_ascii=False)
            stream.write(line + "\n")

    def names(self, column: str, base: str | None = None) -> list[str]:
        """Different values of a column, in the order in which they came."""
        values: dict[str, None] = {}
        for result in self.results:
            if base is None or result.base in ("", base):
                values[getattr(result, column)] = None
        return list(values)


def load_row(row: str, options: argparse.Namespace) -> SentenceTransformer:
    """The model that encodes for a row."""
    if row in METHODS:
        method = METHODS[row].replace("{k}", str(options.nosink_layers))
        model = st_reba.build(options.weights, method, dtype=options.dtype)
    else:
        model = st_reba.load(options.weights, dtype=options.dtype)
    if options.positions is not None:
        copies = getattr(model[0], "copies", 1)
        model.max_seq_length = options.positions * copies
    return model


def search_in_all_ways(row: str, index: Index) -> Iterator[tuple[str, Mode]]:
    """The names and modes under which the vectors of a row are searched, as the index is at that time."""
    name = NAMES.get(row, TUNED)
    yield name, "vectors"
    if row == "default":
        index.compact(whiten=True, tokens=False)
        yield WHITENED, "vectors"
        index.compact(whiten=True)
        yield WITH_TOKENS, "vectors"
        yield HYBRID, "hybrid"
    elif row in ("trained", "tuned"):
        yield f"{name}, with words", "hybrid"


def run(options: argparse.Namespace) -> None:
    """Search collections by the rows that were asked for."""
    results_file = ResultsFile(options.results)
    for path in options.folders:
        collection = Collection(path)
        for row in options.rows:
            run_row(row, collection, options, results_file)


def run_row(
    row: str, collection: Collection, options: argparse.Namespace, results_file: ResultsFile
) -> None:
    """Encode a collection once, and search it in all ways of a row."""
    first_name = NAMES.get(row, TUNED)
    if results_file.find(options.base, collection.name, first_name):
        return
    model = load_row(row, options)
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        index = Index.build(model, collection.documents, folder, whiten=False, overwrite=True)
        seconds = time.perf_counter() - started
        if not results_file.find("", collection.name, WORDS):
            results_file.add(Result("", collection.name, WORDS, *collection.score(index, "words")))
        for name, mode in search_in_all_ways(row, index):
            ndcgs, recalls = collection.score(index, mode)
            results_file.add(
                Result(
                    options.base, collection.name, name, ndcgs, recalls, seconds, options.positions
                )
            )
            print(
                f"{options.base} {collection.name} {name}: {100 * np.mean(ndcgs):.1f}", flush=True
            )
            seconds = 0.0


def print_tables(options: argparse.Namespace) -> None:
    """A table a base: collections as columns."""
    results_file = ResultsFile(options.results)
    collections = results_file.names("collection")
    for base in results_file.names("base"):
        if base:
            print_table(results_file, base, collections, options.seconds)


def print_table(
    results_file: ResultsFile,
    base: str,
    collections: Sequence[str],
    timed_collection: str | None,
) -> None:
    """nDCG@10 with its 95 % interval, and recall@100; the seconds that one collection took to encode."""
    headings = list(collections)
    if timed_collection is not None:
        headings.append(f"seconds, {timed_collection}")
    print(f"\n**{base}**\n")
    print("| |", " | ".join(headings), "|")
    print("|---|" + "--:|" * len(headings))
    for row in results_file.names("row", base):
        cells: list[str] = []
        for collection in collections:
            result = results_file.find(base, collection, row)
            cells.append(cell_of(result))
        if timed_collection is not None:
            timed_result = results_file.find(base, timed_collection, row)
            cells.append(seconds_of(timed_result))
        print("|", row, "|", " | ".join(cells), "|")


def seconds_of(result: Result | None) -> str:
    """How long its documents took to encode; empty: they were encoded for another row, or not at all."""
    if result is None or not result.seconds:
        return ""
    return f"{result.seconds:.0f}"


def cell_of(result: Result | None) -> str:
    """A cell of the table; empty: it was not run."""
    if result is None:
        return ""
    ndcgs = 100 * np.array(result.ndcgs)
    intervals, _ = paired_bootstrap({result.row: ndcgs}, mean_of)
    low, high = intervals[result.row]
    recall = 100 * np.mean(result.recalls)
    return f"{ndcgs.mean():.1f} ({low:.0f}–{high:.0f}), {recall:.0f}"


def mean_of(values: NDArray[np.float64]) -> float:
    """The score of queries."""
    return float(values.mean())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    runner = commands.add_parser("run", help="search collections, and keep what comes out")
    runner.add_argument("base", metavar="NAME", help="name of the base in the table")
    runner.add_argument(
        "weights", metavar="WEIGHTS", help="folder of the base, or of a saved model"
    )
    runner.add_argument("folders", metavar="FOLDER", type=Path, nargs="+")
    rows = [*METHODS, "trained", "tuned"]
    runner.add_argument(
        "--rows", nargs="+", choices=rows, default=list(METHODS), help="default: all methods"
    )
    runner.add_argument("--results", type=Path, required=True, metavar="FILE.jsonl")
    runner.add_argument("--dtype", help="number type of the weights, such as bfloat16")
    runner.add_argument(
        "--positions", type=int, help="positions that are read of a document, in each of its copies"
    )
    runner.add_argument(
        "--nosink-layers",
        type=int,
        metavar="K",
        help="layers that NoSink converts; row nosink needs it",
    )
    runner.set_defaults(run=run)
    printer = commands.add_parser("tables", help="print what was kept")
    printer.add_argument("results", type=Path, metavar="FILE.jsonl")
    printer.add_argument(
        "--seconds", metavar="COLLECTION", help="also print how long this one took to encode"
    )
    printer.set_defaults(run=print_tables)
    options = parser.parse_args()
    if "nosink" in getattr(options, "rows", ()) and options.nosink_layers is None:
        parser.error("row nosink needs --nosink-layers: choose k as docs/how-to/evaluate.md says.")
    options.run(options)


if __name__ == "__main__":
    main()
