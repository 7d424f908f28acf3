"""The one reader of tables and texts: .csv, .tsv, .jsonl, .parquet, .txt, .md, and folders of the datasets library."""

from __future__ import annotations

import csv
import gzip
import json
import logging
import re
import zlib
from collections.abc import Iterable, Iterator
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from ..optional import required

if TYPE_CHECKING:
    from pandas import DataFrame  # type: ignore[import-untyped, unused-ignore]

logger = logging.getLogger(__name__)

# Files that are one text each.
WHOLE_SUFFIXES = (".md", ".markdown", ".rst", ".adoc", ".org")
TEXT_SUFFIXES = (".txt", ".jsonl", ".csv", ".tsv", *WHOLE_SUFFIXES)
SUPPORTED = f"{', '.join(TEXT_SUFFIXES)} (each also with .gz), or .parquet"
# Longest line or field, in characters: an unclosed quote must not pull a file into memory.
MOST_CHARS = 2**24
_BATCH = 256
_UNDECODED = re.compile("[\udc80-\udcff]")

Row = tuple[str, dict[str, Any] | str]
"""The place of a row, as "corpus.csv, line 3", and its cells by column; or why it cannot be read."""


def read_table(path: str | PathLike[str]) -> DataFrame:
    """Read a file or a folder of the datasets library as a DataFrame.

    Args:
        path: .csv and .tsv begin with a line of column names; their cells are strings. A .tsv may be without quotes,
            as most are. A string in a .jsonl counts as {"text": string}; so does a line of a .txt, and all of a .md.

    Returns:
        The table; cells that a row does not have are NaN.

    Raises:
        ValueError: The suffix is not supported, or a row cannot be read; the message has its line.

    Example:
        >>> _ = Path("pairs.tsv").write_text('text\\tscore\\n6" pipe\\t3.5\\n', encoding="utf-8")
        >>> read_table("pairs.tsv").to_dict("records")
        [{'text': '6" pipe', 'score': '3.5'}]
    """
    rows = []
    for place, row in read_rows(path):
        if isinstance(row, str):
            raise ValueError(f"{place}: {row}")
        rows.append(row)
    import pandas  # type: ignore[import-untyped, unused-ignore]

    return pandas.DataFrame(rows)


def read_rows(path: str | PathLike[str], *, name: str | None = None, encoding: str | None = None) -> Iterator[Row]:
    """Read a file's rows one by one, as UTF-8 or, after its mark, UTF-16; ``name`` is its name in places."""
    path = Path(path)
    name, suffix = name or str(path), suffix_of(path)
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file or folder")
    if path.is_dir():
        dataset = required("datasets", "corpus").load_from_disk(str(path))
        if isinstance(dataset, dict):
            raise ValueError(f"{path}: several datasets; name one: {', '.join(str(path / one) for one in dataset)}")
        return _arrow_rows(dataset.with_format("arrow").iter(_BATCH), dataset.features.arrow_schema, name)
    if suffix is None:
        raise ValueError(f"{path}: the suffix {path.suffix!r} is not supported; use one of {SUPPORTED}")
    if suffix == ".parquet":
        return _read_parquet(path, name)
    return _read_text(path, name, encoding, suffix)


def suffix_of(path: Path) -> str | None:
    """The suffix by which a file is read; None: it is not."""
    name = path.name.lower()
    suffix = Path(name.removesuffix(".gz")).suffix
    return suffix if suffix in TEXT_SUFFIXES or name.endswith(".parquet") else None


def _read_text(path: Path, name: str, encoding: str | None, suffix: str) -> Iterator[Row]:
    csv.field_size_limit(MOST_CHARS)
    try:
        if encoding is None:
            with _opened(path, "latin-1") as stream:
                encoding = "utf-16" if stream.read(2) in ("\xff\xfe", "\xfe\xff") else "utf-8"
        encoding = "utf-8-sig" if encoding.lower() in ("utf-8", "utf8") else encoding  # with or without a mark
        quoted = suffix == ".csv" or (suffix == ".tsv" and _is_quoted(path, encoding))
        with _opened(path, encoding) as stream:
            if suffix in WHOLE_SUFFIXES:
                read = _whole_text(stream)
            elif suffix in (".csv", ".tsv"):
                read = _delimited(_reader(stream, suffix, quoted))
            else:
                read = _text_lines(stream, suffix == ".jsonl")
            for place, row in read:
                values = json.dumps(row, ensure_ascii=False) if isinstance(row, dict) else ""
                if not values.isascii() and (bad := _UNDECODED.search(values)):
                    byte = f"0x{ord(bad.group()) - 0xDC00:02x}"
                    row = f"not {encoding}: byte {byte}; save it as UTF-8, or give its encoding, such as 'gb18030'"
                yield f"{name}, {place}", row
    except (ValueError, LookupError, csv.Error, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}: cannot be read as {suffix} in {encoding}: {error}") from None


def _opened(path: Path, encoding: str) -> TextIO:
    opened: Any = gzip.open if path.name.lower().endswith(".gz") else open
    return cast(TextIO, opened(path, "rt", encoding=encoding, errors="surrogateescape", newline=""))


def _whole_text(stream: TextIO) -> Iterator[tuple[str, dict[str, Any] | str]]:
    text = stream.read(MOST_CHARS + 1)
    if len(text) > MOST_CHARS:
        yield "the text", f"too long: it has more than {MOST_CHARS:,} characters; split it"
    elif text.strip():
        yield "the text", {"text": text.replace("\r\n", "\n")}


def _lines(stream: TextIO) -> Iterator[str]:
    """The lines; a ValueError of one that is too long, which must not pull the file into memory."""
    number = 0
    while line := stream.readline(MOST_CHARS):
        number += 1
        if len(line) == MOST_CHARS and line[-1] != "\n":
            raise ValueError(f"line {number} has more than {MOST_CHARS:,} characters; split its text")
        yield line


def _text_lines(stream: TextIO, as_json: bool) -> Iterator[tuple[str, dict[str, Any] | str]]:
    for number, line in enumerate(_lines(stream), 1):
        if not line.isspace():
            try:
                row = json.loads(line) if as_json else line.rstrip("\r\n")
                row = {"text": row} if isinstance(row, str) else row
                if not isinstance(row, dict):
                    raise ValueError(f"it is a {type(row).__name__}")
            except (ValueError, RecursionError) as error:
                row = f"wrong type: no JSON row ({error}); write one object or one string a line"
            yield f"line {number}", row


def _reader(stream: TextIO, suffix: str, quoted: bool) -> Any:
    # strict: a stray quote is an error, not a silent join of lines.
    quoting: Any = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    return csv.reader(_lines(stream), delimiter="," if suffix == ".csv" else "\t", strict=True, quoting=quoting)


def _is_quoted(path: Path, encoding: str) -> bool:
    """True if quotes in a .tsv enclose fields: then the whole file, read so, has as many fields in every line."""
    with _opened(path, encoding) as stream:
        try:
            fields = [len(row) for row in _reader(stream, ".tsv", True) if row]
        except csv.Error:
            return False
    with _opened(path, encoding) as stream:
        tabs = [line.count("\t") for line in _lines(stream) if not line.isspace()]
    # Quotes that join lines which are whole rows by themselves are marks of the texts.
    return len({*fields}) <= 1 and (len(tabs) == len(fields) or len({*tabs}) > 1 or not any(tabs))


def _delimited(reader: Any) -> Iterator[tuple[str, dict[str, Any] | str]]:
    header: list[str] = next(reader, [])
    if not header or len({*header}) < len(header):
        raise ValueError("the first line must name the columns, each once")
    row: list[str] | None = header
    while row is not None:
        place = f"line {reader.line_num + 1}"
        try:
            row = next(reader, None)
        except csv.Error as error:
            reason = f"{error}, at line {reader.line_num}; close every quote, and write quotes inside quotes twice"
            yield place, f"wrong type: {reason}"
            continue
        if row and len(row) != len(header):
            yield place, f"wrong type: {len(row)} fields, but {len(header)} columns; quote separators within fields"
        elif row:
            yield place, dict(zip(header, row, strict=True))


def _read_parquet(path: Path, name: str) -> Iterator[Row]:
    from pyarrow import ArrowException, parquet  # type: ignore[import-untyped, unused-ignore]

    try:
        with parquet.ParquetFile(path, pre_buffer=False) as file:
            yield from _arrow_rows(file.iter_batches(_BATCH, use_threads=False), file.schema_arrow, name)
    except (OSError, ArrowException, ValueError, KeyError, OverflowError) as error:
        raise ValueError(f"{path}: not a Parquet file, or damaged ({error}); write it again") from None


def _arrow_rows(batches: Iterable[Any], schema: Any, name: str) -> Iterator[Row]:
    from pyarrow import types  # type: ignore[import-untyped, unused-ignore]

    kinds = (types.is_binary, types.is_large_binary, types.is_fixed_size_binary)
    left_out = [one.name for one in schema if any(kind(one.type) for kind in kinds)]
    if left_out:
        logger.warning("%s: columns of bytes are left out: %s", name, ", ".join(left_out))
    columns = [one for one in schema.names if one not in left_out and not one.startswith("__index_level_")]
    row = 0
    for batch in batches:
        for start in range(0, batch.num_rows, _BATCH):  # a table in memory is one batch
            for fields in batch.select(columns).slice(start, _BATCH).to_pylist():
                yield f"{name}, row {row}", fields
                row += 1


def is_dataset(folder: Path) -> bool:
    """True if ``save_to_disk`` of the datasets library wrote a folder."""
    return any((folder / name).is_file() for name in ("state.json", "dataset_dict.json"))


def table_rows(table: Any) -> Iterator[Row] | None:
    """Rows of a table of pandas, datasets, polars or Arrow; None: it is none."""
    name = f"the {type(table).__name__}"
    if hasattr(table, "itertuples"):
        columns, rows = list(map(str, table.columns)), enumerate(table.itertuples(index=False, name=None))
        return ((f"{name}, row {number}", dict(zip(columns, row, strict=True))) for number, row in rows)
    if hasattr(table, "with_format") and hasattr(table, "data"):  # one that streams is an iterable of dicts
        return _arrow_rows(table.with_format("arrow").iter(_BATCH), table.features.arrow_schema, name)
    if hasattr(table, "__arrow_c_stream__") and (hasattr(table, "columns") or hasattr(table, "schema")):
        import pyarrow  # type: ignore[import-untyped, unused-ignore]

        reader = pyarrow.RecordBatchReader.from_stream(table)
        return _arrow_rows(reader, reader.schema, name)
    return None
