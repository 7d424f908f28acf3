"""Folders in BEIR's layout: corpus.jsonl, queries.jsonl and qrels/*.tsv, each also with .gz."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..corpus.tables import read_table
from ..corpus.text_files import named_errors, open_text, read_text_lines
from .tables import is_number

QUERY_NAMES = ("query-id", "query_id", "qid")
DOCUMENT_NAMES = ("corpus-id", "corpus_id", "doc_id", "docid", "pid")
GRADE_NAMES = ("score", "relevance", "label", "rel")


@dataclass(frozen=True)
class BeirFolder:
    """A folder's content.

    Args:
        grades: The grade of each judged document, by the texts of query and document.
        documents: The texts of all documents.
        dropped: What could not be used, counted by reason.
    """

    grades: Mapping[str, Mapping[str, float]]
    documents: Sequence[str]
    dropped: Mapping[str, int]


def is_beir_folder(folder: Path) -> bool:
    return folder.is_dir() and _table_in(folder, "corpus") is not None


def read_beir(folder: Path) -> BeirFolder:
    """Read a folder in BEIR's layout; the judgements of test, where there are several.

    Judgements of documents or queries that the folder lacks are dropped and counted, as published
    folders have some (ArguAna). Of rows with the same ``_id`` the last one counts, as in BEIR's own
    reader. Rows with the same text are one query or document here, and two in BEIR: they are
    counted.

    Args:
        folder: The folder.

    Raises:
        ValueError: A file is missing, or cannot be read.

    Example:
        >>> folder = Path("cats")
        >>> (folder / "qrels").mkdir(parents=True)
        >>> _ = (folder / "corpus.jsonl").write_text('{"_id": "d1", "text": "A cat"}')
        >>> _ = (folder / "queries.jsonl").write_text('{"_id": "q1", "text": "cats"}')
        >>> _ = (folder / "qrels" / "test.tsv").write_text("q1\\td1\\t1\\nq1\\td9\\t1\\n")
        >>> read_beir(folder).dropped
        {'judgements of documents that the corpus lacks': 1}
    """
    dropped_counts: Counter[str] = Counter()
    documents = _read_texts(folder, "corpus", dropped_counts)
    queries = _read_texts(folder, "queries", dropped_counts)
    grades: dict[str, dict[str, float]] = {}
    judged_queries: set[str] = set()
    for query_id, document_id, grade in _read_judgements(_qrels_file(folder)):
        judged_queries.add(query_id)
        if query_id not in queries:
            dropped_counts["judgements of queries that are missing"] += 1
        elif document_id not in documents:
            dropped_counts["judgements of documents that the corpus lacks"] += 1
        else:
            query_grades = grades.setdefault(queries[query_id], {})
            document = documents[document_id]
            query_grades[document] = max(grade, query_grades.get(document, -math.inf))
    judged_texts = [queries[query_id] for query_id in judged_queries & queries.keys()]
    for name, texts in (("queries", judged_texts), ("documents", list(documents.values()))):
        repeated_count = len(texts) - len(set(texts))
        if repeated_count:
            dropped_counts[f"{name} with the text of another, joined with it"] = repeated_count
    unjudged_queries = queries.keys() - judged_queries
    if unjudged_queries:
        dropped_counts["queries without a judgement"] = len(unjudged_queries)
    return BeirFolder(grades, list(documents.values()), dict(dropped_counts))


def _table_in(folder: Path, name: str) -> Path | None:
    for suffix in (".jsonl", ".jsonl.gz"):
        file_path = folder / (name + suffix)
        if file_path.is_file():
            return file_path
    return None


def _read_texts(
    folder: Path,
    name: str,
    dropped_counts: Counter[str],
) -> dict[str, str]:
    """Title and text of each row, by its ``_id``."""
    file_path = _table_in(folder, name)
    if file_path is None:
        raise ValueError(f"{folder}: there is no {name}.jsonl, as a folder in BEIR's layout has.")
    table = read_table(file_path)
    for column in ("_id", "text"):
        if column not in table.columns:
            columns = ", ".join(map(str, table.columns))
            raise ValueError(
                f"{file_path}: no row has {column!r}, but {columns or 'nothing'}. Rename its column."
            )
    texts: dict[str, str] = {}
    for row_number, row in enumerate(table.fillna("").to_dict("records"), 1):
        row_id = str(row["_id"])
        if not row_id:
            raise ValueError(f"{file_path}, row {row_number}: the _id is missing.")
        if row_id in texts:
            dropped_counts[f"rows of {file_path.name} whose _id comes again"] += 1
        texts[row_id] = f"{row.get('title', '')} {row['text']}".strip()
    return texts


def _qrels_file(folder: Path) -> Path:
    paths = sorted(folder.glob("qrels/*.tsv")) + sorted(folder.glob("qrels/*.tsv.gz"))
    if not paths:
        raise ValueError(f"{folder}: there is no qrels/*.tsv.")
    for file_path in paths:
        if file_path.name.startswith("test."):
            return file_path
    return paths[0]


def _read_judgements(file_path: Path) -> Iterator[tuple[str, str, float]]:
    """Read query, document and grade from the columns of BEIR, with or without their names, or of TREC."""
    columns: list[int] = []
    for line_name, line in _read_lines(file_path):
        separator = "\t" if "\t" in line else None  # TREC's are separated by spaces
        cells = [cell.strip() for cell in line.split(separator)]
        if not columns:
            columns = _find_columns(cells)
            if not is_number(cells[-1]):
                continue
        if len(cells) <= max(columns):
            needed = f"{max(columns) + 1} columns are needed: query, document, grade."
            raise ValueError(f"{line_name}: {needed}")
        query_id, document_id, grade = (cells[column] for column in columns)
        if not is_number(grade):
            raise ValueError(f"{line_name}: the grade {grade!r:.60} is not a number.")
        yield query_id, document_id, float(grade)


def _find_columns(first_cells: Sequence[str]) -> list[int]:
    """Find query, document and grade by their names in the first line, or by their usual order."""
    # TREC's second column is a number that nobody uses.
    columns = [0, 2, 3] if len(first_cells) == 4 else [0, 1, 2]
    for role, names in enumerate((QUERY_NAMES, DOCUMENT_NAMES, GRADE_NAMES)):
        for column, cell in enumerate(first_cells):
            if cell.lower() in names:
                columns[role] = column
                break
    return columns


def _read_lines(file_path: Path) -> Iterator[tuple[str, str]]:
    """The lines that are not blank, each with its file and number."""
    with named_errors(str(file_path)), open_text(file_path) as stream:
        for line_number, row in read_text_lines(stream):
            line_name = f"{file_path}, {line_number}"
            if isinstance(row, str):
                raise ValueError(f"{line_name}: {row}")
            yield line_name, row["text"]
