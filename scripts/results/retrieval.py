#!/usr/bin/env python
"""nDCG@10 and recall@100 of an index by words, by vectors and by both, on folders in BEIR's layout.

    python scripts/results/retrieval.py MODEL FOLDER [FOLDER ...]
    python scripts/results/retrieval.py MODEL FOLDER --dtype bfloat16 --no-whiten

MODEL is a saved model, FOLDER holds corpus.jsonl, queries.jsonl and qrels/test.tsv. Prints a table.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from sentence_transformers import SentenceTransformer

import st_reba
from st_reba.evaluation.beir import BeirFolder, read_beir
from st_reba.index.queries import MODES

DEPTH = 100


def ndcg_at_10(documents: Sequence[str], grades: Mapping[str, float]) -> float:
    """Normalized discounted cumulative gain of the first ten documents."""
    gains = [grades.get(document, 0.0) for document in documents[:10]]
    ideal_gains = sorted(grades.values(), reverse=True)[:10]
    return discounted(gains) / discounted(ideal_gains)


def discounted(gains: Sequence[float]) -> float:
    """Sum of gains, each divided by the logarithm of its rank."""
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, 1))


def recall_at_100(documents: Sequence[str], grades: Mapping[str, float]) -> float:
    """Share of the relevant documents that are among the first hundred."""
    relevant = {document for document, grade in grades.items() if grade > 0}
    return len(relevant.intersection(documents[:DEPTH])) / len(relevant)


def judged_queries(folder: BeirFolder) -> dict[str, Mapping[str, float]]:
    """Grades by document, of the queries that have a relevant one."""
    grades_by_query: dict[str, Mapping[str, float]] = {}
    for query, grades in folder.grades.items():
        if max(grades.values()) > 0:
            grades_by_query[query] = grades
    return grades_by_query


def measure_folder(model: SentenceTransformer, path: Path, whiten: bool | None) -> list[str]:
    """A row of the table for each mode."""
    folder = read_beir(path)
    grades_by_query = judged_queries(folder)
    queries = list(grades_by_query)
    rows: list[str] = []
    with tempfile.TemporaryDirectory() as index_folder:
        started = time.perf_counter()
        documents = [text for text in folder.documents if text.strip()]
        index = st_reba.Index.build(model, documents, index_folder, whiten=whiten, overwrite=True)
        seconds = time.perf_counter() - started
        for mode in MODES:
            results_by_query = index.search(queries, DEPTH, mode=mode)
            ndcg_sum = 0.0
            recall_sum = 0.0
            for query, results in zip(queries, results_by_query, strict=True):
                listed = [result.text for result in results]
                ndcg_sum += ndcg_at_10(listed, grades_by_query[query])
                recall_sum += recall_at_100(listed, grades_by_query[query])
            ndcg = 100 * ndcg_sum / len(queries)
            recall = 100 * recall_sum / len(queries)
            rows.append(f"| {path.name} | {mode} | {ndcg:.1f} | {recall:.1f} | {seconds:.0f} |")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("folders", metavar="FOLDER", type=Path, nargs="+")
    parser.add_argument("--dtype", help="number type of the weights, as bfloat16")
    parser.add_argument("--max-seq-length", type=int, help="positions that are read of a document")
    parser.add_argument("--whiten", action=argparse.BooleanOptionalAction, help="default: as the index decides")
    options = parser.parse_args()
    model = st_reba.load(options.model, dtype=options.dtype)
    if options.max_seq_length is not None:
        model.max_seq_length = options.max_seq_length
    print("| collection | mode | nDCG@10 | recall@100 | seconds to build |")
    print("|---|---|--:|--:|--:|")
    for folder in options.folders:
        for row in measure_folder(model, folder, options.whiten):
            print(row, flush=True)


if __name__ == "__main__":
    main()
