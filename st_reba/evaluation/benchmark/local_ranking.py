"""Queries with judged documents, for reranking and retrieval."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..labelled import BadLine
from ..reading import shuffled
from .files import Items, as_relevance, read_table

# The three files of one ranking, and the columns of each; "": it may be missing.
PARTS: dict[str, dict[str, tuple[str, ...]]] = {
    "queries": {"query_id": ("_id", "id", "query_id", "query-id", "qid"), "query": ("text", "query", "question")},
    "documents": {
        "document_id": ("_id", "id", "document_id", "corpus-id", "doc_id", "docid", "pid"),
        "document": ("text", "document", "passage", "doc"),
        "title": ("", "title"),
    },
    "relevance": {
        "query_id": ("query-id", "query_id", "qid"),
        "document_id": ("corpus-id", "document_id", "corpus_id", "doc_id", "docid", "pid"),
        "relevance": ("score", "relevance", "label"),
    },
}
_FOLDER = {
    "queries": ("queries.jsonl",),
    "documents": ("corpus.jsonl", "documents.jsonl"),
    "relevance": ("qrels/test.tsv", "qrels.tsv"),
}
_FOLDER_WORDS = "queries.jsonl, corpus.jsonl and qrels/test.tsv"
SAME = "the same query and document again"
CONTRARY = "the same query and document again, of another relevance: the highest is kept"
UNJUDGED = {
    "Reranking": "queries without both a relevant and an irrelevant document",
    "Retrieval": "queries without a relevant document",
}


@dataclass(frozen=True)
class Ranking:
    """Queries, documents, and what is relevant to what.

    Args:
        where: The files, for messages.
        queries: Texts by id.
        documents: Texts by id.
        judged: Of each query, the relevance of documents: 0 is irrelevant.
        left_out: The reason, and which queries or lines.
    """

    where: str
    queries: dict[str, str] = field(default_factory=dict)
    documents: dict[str, str] = field(default_factory=dict)
    judged: dict[str, dict[str, int]] = field(default_factory=dict)
    left_out: dict[str, list[str]] = field(default_factory=dict)

    def judge(self, query: str, document: str, relevance: int, place: str) -> None:
        """Note a judgement."""
        known = self.judged.setdefault(query, {})
        if document in known:
            self.left_out.setdefault(SAME if known[document] == relevance else CONTRARY, []).append(place)
            relevance = max(relevance, known[document])
        known[document] = relevance

    def chosen(self, kind: str, limit: int | None, seed: int) -> Ranking:
        """The queries that can be scored, or some of them; with a limit only the documents that are judged for these.

        Args:
            kind: ``"Reranking"``: only judged documents are ranked; ``"Retrieval"``: all are searched.
            limit: Of queries.
            seed: Of the draw.

        Raises:
            ValueError: There is none.
        """

        def fits(grades: Mapping[str, int]) -> bool:
            return any(grades.values()) and (kind == "Retrieval" or not all(grades.values()))

        usable = [query for query in self.queries if fits(self.judged.get(query, {}))]
        if not usable:
            raise ValueError(
                f"{self.where}: none of {len(self.queries)} queries has a document of relevance 1 or more"
                f"{' and one of 0' if kind == 'Reranking' else ''}, which {kind} needs. Look at the relevance column."
            )
        left_out = dict(self.left_out)
        if len(usable) < len(self.queries):
            there = set(usable)
            left_out[UNJUDGED[kind]] = [text for query, text in self.queries.items() if query not in there]
        drawn = limit is not None and limit < len(usable)
        if drawn:
            usable = [usable[index] for index in sorted(shuffled(range(len(usable)), seed, "limit")[:limit])]
        judged = {
            query: {key: grade for key, grade in self.judged[query].items() if grade or kind == "Reranking"}
            for query in usable
        }
        documents = self.documents
        if kind == "Reranking" or drawn:
            needed = {document for query in usable for document in self.judged[query]}
            documents = {document: text for document, text in documents.items() if document in needed}
        return Ranking(self.where, {query: self.queries[query] for query in usable}, documents, judged, left_out)


def from_items(found: Items) -> Ranking:
    """Queries and documents of rows that hold a judgement each; equal texts are one, where there are no ids.

    Raises:
        ValueError: An id stands for two texts.
    """
    ranking = Ranking(found.where, left_out=dict(found.left_out))
    for (query, document, relevance, query_id, document_id), line in zip(found.items, found.lines, strict=True):
        ids: list[str] = []
        for texts, text, given, role in (
            (ranking.queries, query, query_id, "query_id"),
            (ranking.documents, document, document_id, "document_id"),
        ):
            # Hashes, as ties are broken by id: numbers would favour what stands first in the file.
            key = given or hashlib.sha256(text.encode()).hexdigest()[:16]
            if texts.setdefault(key, text) != text:
                raise ValueError(
                    f"{found.where}, line {line}: the {role} {key!r} stands for {text!r:.60}, and before that for "
                    f"{texts[key]!r:.60}. Give each text its own, or leave that column out."
                )
            ids.append(key)
        ranking.judge(ids[0], ids[1], relevance, f"{Path(found.where).name}, line {line}")
    return ranking


def in_folder(folder: Path) -> dict[str, Path]:
    """The three files of a folder as BEIR has them.

    Raises:
        FileNotFoundError: One is missing.
    """
    found = {}
    for part, names in _FOLDER.items():
        there = [folder / name for name in names if (folder / name).is_file()]
        if not there:
            raise FileNotFoundError(f"{folder}: no {' or '.join(names)}; a folder has {_FOLDER_WORDS}")
        found[part] = there[0]
    return found


def from_files(files: Mapping[str, Path], columns: Mapping[str, str]) -> Ranking:
    """Queries, documents and judgements from a table each.

    Args:
        files: Of ``queries``, ``documents`` and ``relevance``.
        columns: Names that are not guessed, by role.

    Raises:
        ValueError: An id stands twice or is not there, a text is empty, or a relevance is no whole number.
    """
    roles = {role for part in PARTS.values() for role in part}
    if unknown := [role for role in columns if role not in roles]:
        raise ValueError(f"columns={dict(columns)!r}: {unknown[0]!r} is none of the roles {sorted(roles)}.")
    tables = {
        part: read_table(files[part], known, {role: name for role, name in columns.items() if role in known})
        for part, known in PARTS.items()
    }
    queries = _texts(files["queries"], tables["queries"], "query_id", "query")
    documents = _texts(files["documents"], tables["documents"], "document_id", "document")
    ranking = Ranking(str(files["relevance"]), queries, documents)
    for row in tables["relevance"]:
        place = f"{files['relevance']}, line {row['line']}"
        ids = []
        for role, known, part in (("query_id", queries, "queries"), ("document_id", documents, "documents")):
            key = str(row[role]).strip()
            if key not in known:
                raise ValueError(f"{place}: {role} {key!r} is not in {files[part].name}. Correct one of them.")
            ids.append(key)
        try:
            ranking.judge(
                ids[0], ids[1], as_relevance(row["relevance"]), f"{files['relevance'].name}, line {row['line']}"
            )
        except BadLine as error:
            raise ValueError(f"{place}: {error}.") from None
    return ranking


def _texts(path: Path, rows: list[dict[str, Any]], key: str, text: str) -> dict[str, str]:
    texts: dict[str, str] = {}
    for row in rows:
        place, name = f"{path}, line {row['line']}", str(row[key]).strip()
        if name in texts:
            raise ValueError(f"{place}: the {key} {name!r} stands twice. Give each text its own.")
        whole = " ".join(str(row[part]).strip() for part in ("title", text) if row.get(part))
        if not whole.strip() or not name:
            raise ValueError(f"{place}: the {text if name else key} is empty.")
        texts[name] = whole
    return texts
