"""Commands for an index that is there: search, prune and export."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Option

from .. import progress
from .app import command, silence_loading, to_json
from .options import (
    AsJson,
    Device,
    Dtype,
    IndexFolder,
    MovedModel,
    Overwrite,
    TextEncoding,
    Trust,
    WithoutTokens,
    refuse_options,
)
from .streams import STANDARD_INPUT, standard_input

if TYPE_CHECKING:
    from ..index import SearchResult

# Characters of a text shown in a line of results; --json has the whole text.
MAX_RESULT_LENGTH = 300
# A terminal obeys these, and documents may be a stranger's.
_TERMINAL_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@command
def search(
    index_folder: IndexFolder,
    queries: Annotated[
        list[str] | None, Argument(metavar="QUERY", help="Queries. [default: lines of stdin]")
    ] = None,
    result_count: Annotated[
        int, Option("--top", "-k", metavar="N", min=1, help="Results per query.")
    ] = 10,
    where: Annotated[
        list[str] | None, Option(metavar="C", help="Condition, such as 'year>=2020'. Repeatable.")
    ] = None,
    mode: Annotated[
        Literal["hybrid", "vectors", "words"] | None,
        Option(help="What is compared. [default: hybrid]"),
    ] = None,
    explains_scores: Annotated[
        bool, Option("--explain", help="Also show the scores of vectors and of words.")
    ] = False,
    model: MovedModel = None,
    text_encoding: TextEncoding = None,
    device: Device = None,
    dtype: Dtype = None,
    trust_remote_code: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Search an index by words, by vectors, or by both, which is the default.

    A query is just words: quotes and operators mean nothing. Hybrid scores go from 0 to 1, and rank
    the results of one query. Examples: st-reba search my_index 'why do stocks fall' --where
    'year>=2020'; st-reba search my_index --mode words --explain < queries.txt
    """
    from ..index import Index

    if queries:
        refuse_options("queries on the command line", {"--encoding": text_encoding})
    conditions = parse_where(where) if where else None
    silence_loading()
    opened_index = Index.open(
        index_folder, model, device=device, dtype=dtype, trust_remote_code=trust_remote_code
    )
    prints_query = not queries or len(queries) > 1
    query_count = 0
    for query in queries or _read_queries(text_encoding):
        query_count += 1
        results = opened_index.search(
            query, result_count, where=conditions, mode=mode, explain=explains_scores
        )
        if as_json:
            result_rows = [result.to_json() for result in results]
            print(to_json({"query": query, "results": result_rows}), flush=True)
            continue
        if prints_query:
            print(query)
        for result in results:
            print(_describe_result(result), flush=True)
        if not results:
            print("nothing found", file=sys.stderr)
    if not query_count:
        raise ValueError("no query: give one, or lines on standard input")


def _read_queries(text_encoding: str | None) -> Iterator[str]:
    """The lines of standard input, each as soon as it arrives."""
    from ..corpus.text_files import check_encoding, decode_stream, named_errors, read_text_lines

    check_encoding(text_encoding)
    with named_errors(STANDARD_INPUT):
        stream = decode_stream(standard_input(), STANDARD_INPUT, text_encoding)
        for line_name, row in read_text_lines(stream):
            if isinstance(row, str):
                raise ValueError(f"{STANDARD_INPUT}, {line_name}: {row}")
            yield row["text"]


def parse_where(condition_texts: Iterable[str]) -> dict[str, Any]:
    """Conditions of a command line, such as ``lang=zh``, ``year>=2020`` and ``tags={"has": "new"}``.

    Values are JSON, or else strings.
    """
    conditions: dict[str, Any] = {}
    for condition_text in condition_texts:
        match = re.fullmatch(
            r"\s*([^=<>!]+?)\s*(!=|<=|>=|==?|<|>)\s*(.*?)\s*", condition_text, re.DOTALL
        )
        if match is None:
            raise ValueError(
                f"--where {condition_text!r}: write NAME=VALUE, NAME>=VALUE (or !=, <, <=, >)"
            )
        field_name, operator, field_value = match.groups()
        with contextlib.suppress(ValueError):
            field_value = json.loads(field_value, parse_constant=_refuse_constant)
        new_conditions = {operator.replace("==", "="): field_value}
        if operator == "=" and isinstance(field_value, dict):
            new_conditions = field_value
        conditions_of_name = conditions.setdefault(field_name, {})
        for name in new_conditions.keys() & conditions_of_name.keys():
            raise ValueError(f"--where {condition_text!r}: {field_name}{name} is given twice")
        conditions_of_name.update(new_conditions)
    return conditions


def _refuse_constant(name: str) -> None:
    """Refuse NaN and Infinity, which are not JSON, so that they stay texts."""
    raise ValueError(name)


def _describe_result(result: SearchResult) -> str:
    text = " ".join((result.passage or result.text).split())
    if len(text) > MAX_RESULT_LENGTH:
        text = f"{text[:MAX_RESULT_LENGTH]}…"
    scores: list[str] = []
    if result.vector_score is not None:
        scores.append(f"vectors {result.vector_score:.4f}")
    if result.word_score is not None:
        scores.append(f"words {result.word_score:.4f}")
    explanation = f" ({', '.join(scores)})" if scores else ""
    line = f"{result.rank:>3}. {result.score:.4f}{explanation}  {_origin_of(result)}  {text}"
    return _TERMINAL_CONTROLS.sub("\ufffd", line)


def _origin_of(result: SearchResult) -> str:
    """The file and the line or row that a result was read from, or else its id."""
    metadata = result.metadata
    for unit in ("line", "row"):
        if {"file", unit} <= metadata.keys():
            return f"{metadata['file']}, {unit} {metadata[unit]}"
    return result.id


@command
def prune(
    index_folder: IndexFolder,
    ids: Annotated[
        list[str] | None, Argument(metavar="ID", help="Ids of documents to delete.")
    ] = None,
    compact: Annotated[
        bool, Option("--compact", help="Also rewrite the index without deleted documents.")
    ] = False,
    whiten: Annotated[
        bool | None,
        Option(
            "--whiten/--no-whiten", help="With --compact: fit the whitening again, or remove it."
        ),
    ] = None,
    without_tokens: WithoutTokens = False,
    model: MovedModel = None,
    device: Device = None,
    dtype: Dtype = None,
    trust_remote_code: Trust = False,
) -> None:
    """Delete documents from an index by id, or compact it. Only --whiten needs the model.

    Example: st-reba prune my_index doc-17 doc-18 --compact
    """
    if not ids and not compact:
        raise ValueError("nothing to do: give an id, or --compact")
    if whiten is not None and not compact:
        raise ValueError("--whiten and --no-whiten rewrite all vectors: give --compact too")
    if without_tokens and not whiten:
        raise ValueError("--no-tokens needs --compact --whiten, which fits everything again")
    from ..index import Index

    silence_loading()
    opened_index = Index.open(
        index_folder, model, device=device, dtype=dtype, trust_remote_code=trust_remote_code
    )
    if ids:
        change = opened_index.delete(ids)
        print(f"{index_folder}: {change.deleted:,} deleted; {change.count:,} documents")
    if compact:
        with progress.step(f"Compacting {index_folder}"):
            change = opened_index.compact(whiten=whiten, tokens=not without_tokens)
        removed_vectors = f"{change.deleted:,} vectors removed from the disk"
        print(f"{index_folder}: {removed_vectors}; {change.count:,} documents")


@command
def export(
    index_folder: IndexFolder,
    out: Annotated[
        Path,
        Argument(metavar="OUT", help="X.parquet: documents and vectors; X.faiss: vectors by key."),
    ],
    overwrite: Overwrite = False,
) -> None:
    """Export an index for other tools. Example: st-reba export my_index everything.parquet"""
    from ..index import Index

    with progress.step(f"Exporting {index_folder}"):
        vector_count = Index.open(index_folder).export(out, overwrite=overwrite)
    print(f"{out}: {vector_count:,} vectors")
