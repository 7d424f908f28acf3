"""Records of files, and which of their columns has which role."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..corpus.readers import read_file, read_jsonl
from ..corpus.records import Reject, beginning
from ..modules.options import unknown

# What the columns of some roles are called in the wild, the most telling name first.
Names = Mapping[str, tuple[str, ...]]
# A place for people to find a record by, and its values in the order of the roles; or why it cannot be read.
Record = tuple[str, tuple[Any, ...]] | Reject

_FIRST = ("text1", "sentence1", "text_a", "question1", "s1", "sent1")
_SECOND = ("text2", "sentence2", "text_b", "question2", "s2", "sent2")
_TEXT = ("text", "sentence", "review", "content", "question", "query", "title")
_LABEL = ("label", "class", "category", "intent", "sentiment")
_GRADED: Names = {
    "query": ("query", "question", "anchor"),
    "document": ("document", "passage", "doc", "title", "text", "answer"),
    "relevance": ("relevance", "grade", "score", "label"),
}
# The roles of each kind's columns.
ROLES: Mapping[str, Names] = {
    "STS": {"text1": _FIRST, "text2": _SECOND, "score": ("score", "similarity_score", "similarity", "gold", "label")},
    "PairClassification": {"text1": _FIRST, "text2": _SECOND, "label": ("label", "labels", "gold_label", "score")},
    "Triples": {
        "anchor": ("anchor", "query", "text", "sentence"),
        "positive": ("positive", "pos", "nearer"),
        "negative": ("negative", "neg", "farther"),
    },
    "Classification": {"text": _TEXT, "label": _LABEL},
    "Clustering": {"text": _TEXT, "label": _LABEL},
    "Reranking": _GRADED,
    "Retrieval": _GRADED,
}
# Kinds that columns alone can tell, in the order in which they are tried.
TOLD: Mapping[str, Names] = {kind: ROLES[kind] for kind in ("Triples", "STS", "Classification")}
# The three tables of a ranking, as BEIR has them: their files in a folder, and their columns.
TABLES: Mapping[str, tuple[tuple[str, ...], Names]] = {
    "queries": (("queries.jsonl",), {"id": ("_id", "id", "query_id", "qid"), "query": ("text", "query", "question")}),
    "documents": (
        ("corpus.jsonl", "documents.jsonl"),
        {
            "id": ("_id", "id", "document_id", "doc_id", "docid", "pid"),
            "document": ("text", "document", "passage", "doc"),
        },
    ),
    "relevance": (
        ("qrels/test.tsv", "qrels.tsv"),
        {
            "query_id": ("query-id", "query_id", "qid"),
            "document_id": ("corpus-id", "document_id", "corpus_id", "doc_id", "docid", "pid"),
            "relevance": ("score", "relevance", "label"),
        },
    ),
}
TITLE: Names = {"title": ("title",)}
_SHOWN = 20


class Table:
    """The records of a file with named columns: .csv, .tsv, .jsonl, .json, .parquet.

    It is what the corpus's readers ask how to read, where a corpus has its text and its id.

    Args:
        path: The file.
        kinds: Of each kind that it may hold, the roles and the names of their columns; the first whose columns are all
            there is it.
        columns: Names of columns by role, where they are known.
        optional: Roles that need not be there.
    """

    encoding = "utf-8-sig"
    max_chars = 1_000_000
    text_column = None
    id_column = ""

    def __init__(
        self, path: Path, kinds: Mapping[str, Names], columns: Mapping[str, str], optional: Names | None = None
    ) -> None:
        self.path, self.columns, self.optional = path, columns, optional or {}
        self.kinds = {kind: names for kind, names in kinds.items() if set(columns) <= {*names, *self.optional}}
        if not self.kinds:
            roles = list(dict.fromkeys(role for names in kinds.values() for role in names))
            wrong = next((role for role in columns if role not in roles), ", ".join(columns))
            raise ValueError(unknown(f"columns={dict(columns)!r}: {wrong!r}", wrong, roles) + " (--columns)")
        # Known once a record was read.
        self.kind: str | None = None
        self.names: dict[str, str] = {}

    def records(self) -> Iterator[Record]:
        """Each record."""
        reading: Any = self
        if suffix(self.path) not in (".json", ".ndjson"):
            records: Any = read_file(self.path, self.path.name, reading)
        elif first_line(self.path).lstrip().startswith("["):
            records = self._array()
        else:
            records = read_jsonl(self.path, self.path.name, reading)
        for number, record in enumerate(records, 1):
            # Of JSON lines that are no objects the readers make documents.
            is_record = isinstance(record, (tuple, Reject))
            yield record if is_record else Reject(f"{self.path.name}, record {number}", "it is not one JSON object")

    def _array(self) -> Iterator[Record]:
        try:
            values = json.loads(content(self.path))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{self.path}: not JSON ({error}). Correct it.") from None
        for number, value in enumerate(values, 1):
            place = f"{self.path.name}, object {number}"
            if isinstance(value, dict):
                yield (self if self.names else self.resolved(value)).document(value, place)
            else:
                yield Reject(place, f"{value!r:.60} is not one JSON object")

    def resolved(self, names: Iterable[str]) -> Table:
        """Finds the columns of the roles, and with them the kind.

        Raises:
            ValueError: They are not there; the message has those that are.
        """
        there = list(names)
        shown = [beginning(name) for name in there[:_SHOWN]]
        if gone := [name for name in self.columns.values() if name not in there]:
            raise ValueError(f"there is no column {gone[0]!r}; there are {shown}. Correct --columns.")
        for kind, roles in self.kinds.items():
            found = {
                role: self.columns.get(role) or next((name for name in guesses if name in there), None)
                for role, guesses in roles.items()
            }
            columns = {role: name for role, name in found.items() if name is not None}
            if len(set(columns.values())) == len(roles):
                # Another record may have what this one lacks.
                spare = {role: self.columns.get(role, guesses[0]) for role, guesses in self.optional.items()}
                used = columns.values()
                self.kind = kind
                self.names = columns | {role: name for role, name in spare.items() if name not in used}
                return self
        wanted = " or ".join(f"{', '.join(roles)} ({kind})" for kind, roles in self.kinds.items())
        role = next(iter(next(iter(self.kinds.values()))))
        bare = suffix(self.path) in (".csv", ".tsv")
        header = ", or give the file a first line that names its columns" if bare else ""
        raise ValueError(
            f"no columns for {wanted} were found; there are {shown}. Name them, as --columns {role}="
            f"{shown[0] if shown else 'NAME'}{header}"
        )

    def document(self, fields: Mapping[str, Any], place: str) -> Record:
        """The values of a record's roles."""
        if missing := [name for role, name in self.names.items() if name not in fields and role not in self.optional]:
            return Reject(place, f"no {missing[0]!r}")
        return place, tuple(fields.get(name) for name in self.names.values())


def beir_files(folder: Path) -> dict[str, Path]:
    """The three tables of a ranking in a folder.

    Raises:
        FileNotFoundError: One is not there.
    """
    found = {}
    for part, (names, _) in TABLES.items():
        there = [folder / name for name in names if (folder / name).is_file()]
        if not there:
            raise FileNotFoundError(f"{folder}: no {' or '.join(names)} there, as a folder of a ranking has")
        found[part] = there[0]
    return found


def suffix(path: Path) -> str:
    """What a file's name says that it holds, whether or not it is compressed."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def content(path: Path) -> str:
    """A file's text, which must be UTF-8; ends of lines are ``\\n``.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is not UTF-8, or damaged; the message has the line and the remedy.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: {'not a file' if path.exists() else 'no such file'}")
    data = path.read_bytes()
    try:
        data = gzip.decompress(data) if path.suffix.lower() == ".gz" else data
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{path}, line {line}: not UTF-8 (byte 0x{data[error.start]:02x}); save the file as UTF-8, for example "
            "with: iconv -f gb18030 -t utf-8"
        ) from None
    except (EOFError, OSError, zlib.error) as error:
        raise ValueError(f"{path}: damaged or truncated gzip data ({error}). Write the file again.") from None


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, with their numbers."""
    return ((number, line) for number, line in enumerate(content(path).split("\n"), 1) if line.strip())


def first_line(path: Path) -> str:
    """The first line that is not blank; "" of Parquet, which has none.

    Raises:
        ValueError: There is none.
    """
    if suffix(path) == ".parquet" and path.is_file():
        return ""
    for _, line in lines(path):
        return line
    raise ValueError(f"{path}: the file is empty.")
