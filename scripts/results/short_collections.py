#!/usr/bin/env python
"""Collections of short texts for retrieval.py, made of labelled pairs.

    python scripts/results/short_collections.py DATA FOLDER

DATA is a folder of public sets, as for results.py; FOLDER gets a folder in BEIR's layout for each:

sts-b, sts-b-zh  STS-B's test part (sts/sts-test.csv, sts/cnsd-sts-test.txt): the first sentence of
                 a pair with a score of 4 or more looks for the second one among all second ones
afqmc            questions to a payment service in Chinese (sts/afqmc-dev.jsonl): one looks for
                 another that was labelled as the same question
qbqtc            Chinese web searches (ranking/qbqtc-dev.json): a search looks for titles, of grade
                 1 and 2
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random

from examples import STSB_SCORE_COLUMN, Pair, read_chinese_pairs, read_pairs

QUERY_COUNT = 400
DOCUMENT_COUNT = 4000
SAME_MEANING = 4.0  # of 5 points
# A query, a document, and the grade of the document for it.
Judgement = tuple[str, str, int]


def judge_pairs(scored_pairs: Iterable[Pair]) -> list[Judgement]:
    """Pairs as judgements: 1 where both texts mean the same."""
    judgements: list[Judgement] = []
    for score, first_text, second_text in scored_pairs:
        judgements.append((first_text, second_text, int(score >= SAME_MEANING)))
    return judgements


def read_judgements(path: Path, query_key: str, document_key: str) -> list[Judgement]:
    """Judgements of a file with a JSON object a line."""
    judgements: list[Judgement] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        judgements.append((row[query_key], row[document_key], int(row["label"])))
    return judgements


def draw_queries(judgements: Sequence[Judgement]) -> list[str]:
    """Some of the queries for which another text is relevant."""
    queries: dict[str, None] = {}
    for query, document, grade in judgements:
        if grade > 0 and query != document:
            queries[query] = None
    return Random(0).sample(list(queries), min(QUERY_COUNT, len(queries)))


def draw_documents(
    judgements: Sequence[Judgement], relevant_documents: set[str], left_out: set[str]
) -> list[str]:
    """The relevant texts, and others up to the number that is wanted."""
    others: dict[str, None] = {}
    for _, document, _ in judgements:
        if document not in relevant_documents | left_out:
            others[document] = None
    other_documents = list(others)
    Random(1).shuffle(other_documents)
    other_count = max(0, DOCUMENT_COUNT - len(relevant_documents))
    return sorted(relevant_documents) + other_documents[:other_count]


def write_collection(folder: Path, judgements: Sequence[Judgement]) -> None:
    """A folder in BEIR's layout, in which no query is a document."""
    queries = draw_queries(judgements)
    query_texts = set(queries)
    # Each pair once; where it was judged twice, by the last grade.
    grades: dict[tuple[str, str], int] = {}
    for query, document, grade in judgements:
        if query in query_texts and document not in query_texts and grade > 0:
            grades[query, document] = grade
    relevant_documents = {document for _, document in grades}
    documents = draw_documents(judgements, relevant_documents, query_texts)
    query_ids = {query: f"q{number}" for number, query in enumerate(queries)}
    document_ids = {document: f"d{number}" for number, document in enumerate(documents)}
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    write_texts(folder / "corpus.jsonl", document_ids)
    write_texts(folder / "queries.jsonl", query_ids)
    lines = ["query-id\tcorpus-id\tscore"]
    for (query, document), grade in grades.items():
        lines.append(f"{query_ids[query]}\t{document_ids[document]}\t{grade}")
    (folder / "qrels" / "test.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    judged_count = len({query for query, _ in grades})
    print(f"{folder.name}: {len(documents)} documents, {judged_count} queries")


def write_texts(path: Path, id_by_text: dict[str, str]) -> None:
    """Texts as BEIR has them, a line of JSON each."""
    lines: list[str] = []
    for text, text_id in id_by_text.items():
        lines.append(json.dumps({"_id": text_id, "title": "", "text": text}, ensure_ascii=False))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("data", metavar="DATA", type=Path)
    parser.add_argument("folder", metavar="FOLDER", type=Path)
    options = parser.parse_args()
    sts = options.data / "sts"
    english_pairs = read_pairs(sts / "sts-test.csv", STSB_SCORE_COLUMN)
    chinese_pairs = read_chinese_pairs(sts / "cnsd-sts-test.txt")
    questions = read_judgements(sts / "afqmc-dev.jsonl", "sentence1", "sentence2")
    searches = read_judgements(options.data / "ranking" / "qbqtc-dev.json", "query", "title")
    write_collection(options.folder / "sts-b", judge_pairs(english_pairs))
    write_collection(options.folder / "sts-b-zh", judge_pairs(chinese_pairs))
    write_collection(options.folder / "afqmc", questions)
    write_collection(options.folder / "qbqtc", searches)


if __name__ == "__main__":
    main()
