"""The one reader of tables: .csv, .tsv, .jsonl, .json, .txt, .parquet, and folders of the datasets library."""

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

if TYPE_CHECKING:
    from pandas import DataFrame  # type: ignore[import-untyped, unused-ignore]

logger = logging.getLogger(__name__)

TEXT_SUFFIXES = (".txt", ".jsonl", ".json", ".csv", ".tsv")
SUPPORTED = f"{', '.join(TEXT_SUFFIXES)} (each also with .gz), or .parquet"
# Longest line or field, in characters: an unclosed quote must not pull a file into memory.
MOST_CHARS = 2**24
_BATCH = 256
_UNDECODED = re.compile("[\udc80-\udcff]")

Row = tuple[str, dict[str, Any] | str]
"""The place of a row, as "corpus.csv, line 3", and its cells by column; or why it cannot be read."""


def read_table(path: str | PathLike[str], *, encoding: str = "utf-8-sig", split: str | None = None) -> DataFrame:
    """Read a file or a folder of the datasets library as a DataFrame.

    Args:
        path: .csv and .tsv begin with a line of column names; their cells are strings. A .tsv may be without quotes,
            as tab-separated data mostly are. Of .jsonl and .json, a string counts as {"text": string}; so does each
            line of a .txt.
        encoding: Of text files.
        split: Of a folder of several datasets.

    Returns:
        The table; cells that a row does not have are NaN.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The suffix is not supported, or a row cannot be read; the message has its line.

    Example:
        >>> _ = Path("pairs.tsv").write_text('text\\tscore\\n6" pipe\\t3.5\\n', encoding="utf-8")
        >>> read_table("pairs.tsv").to_dict("records")
        [{'text': '6" pipe', 'score': '3.5'}]
    """
    rows = []
    for place, row in read_rows(path, encoding=encoding, split=split):
        if isinstance(row, str):
            raise ValueError(f"{place}: {row}")
        rows.append(row)
    import pandas  # type: ignore[import-untyped, unused-ignore]

    return pandas.DataFrame(rows)


def read_rows(
    path: str | PathLike[str], *, name: str | None = None, encoding: str = "utf-8-sig", split: str | None = None
) -> Iterator[Row]:
    """Read the rows of a file one by one; arguments and errors as for `read_table`.

    Args:
        path, encoding, split: As for `read_table`.
        name: The name of the file in places.
    """
    path = Path(path)
    name = name or str(path)
    if (splits := dataset_splits(path)) is not None:
        return _read_dataset(path, name, splits, split)
    if split is not None:
        raise ValueError(f"split={split!r} belongs to a folder of several datasets, and {path} is none; drop it")
    suffix = suffix_of(path)
    if suffix is None:
        raise ValueError(f"{path}: the suffix {path.suffix!r} is not supported; use one of {SUPPORTED}")
    if not path.is_file():
        raise FileNotFoundError(f"{path}: {'not a file' if path.exists() else 'no such file'}")
    if suffix == ".parquet":
        return _read_parquet(path, name)
    try:
        "".encode(encoding)
    except LookupError:
        raise ValueError(f"{path}: unknown encoding {encoding!r}; use for example 'utf-8' or 'gb18030'") from None
    return _read_text(path, name, encoding, suffix)


def suffix_of(path: Path) -> str | None:
    """The suffix by which a file is read; None: it is not."""
    name = path.name.lower()
    suffix = Path(name.removesuffix(".gz")).suffix
    return suffix if suffix in TEXT_SUFFIXES or name.endswith(".parquet") else None


def _read_text(path: Path, name: str, encoding: str, suffix: str) -> Iterator[Row]:
    """Rows of a text file, bytes of another encoding set aside."""
    try:
        if suffix not in (".csv", ".tsv"):
            with _opened(path, encoding) as lines:
                read = _json_rows(lines) if suffix == ".json" else _lines(lines, suffix == ".jsonl")
                yield from _decoded(read, name, encoding)
            return
        quoted = suffix == ".csv" or _is_quoted(path, encoding)
        with _opened(path, encoding, newline="") as lines:
            yield from _decoded(_delimited(lines, "," if suffix == ".csv" else "\t", quoted), name, encoding)
    except UnicodeError as error:
        raise ValueError(f"{path}: not {encoding} ({error}); give its encoding, such as 'gb18030'") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}: damaged or truncated gzip data ({error}); write the file again") from None


def _opened(path: Path, encoding: str, newline: str | None = None) -> TextIO:
    """A text file; bytes that are not of the encoding become lone surrogates."""
    opened: Any = gzip.open if path.name.lower().endswith(".gz") else open
    return cast(TextIO, opened(path, "rt", encoding=encoding, errors="surrogateescape", newline=newline))


def _decoded(rows: Iterable[tuple[str, Any]], name: str, encoding: str) -> Iterator[Row]:
    for place, row in rows:
        values = " ".join(map(str, row.values())) if isinstance(row, dict) else ""
        if not values.isascii() and (bad := _UNDECODED.search(values)):
            byte = f"0x{ord(bad.group()) - 0xDC00:02x}"
            row = f"not {encoding}: byte {byte}; save the file as UTF-8, or give its encoding, such as 'gb18030'"
        yield f"{name}, {place}", row


def _lines(lines: TextIO, as_json: bool) -> Iterator[tuple[str, Any]]:
    """Rows of the lines that are not blank; in place of one that is too long or no JSON, the reason."""
    number = 0
    while line := lines.readline(MOST_CHARS):
        number += 1
        row: Any = {"text": line.rstrip("\n")}
        if len(line) == MOST_CHARS and line[-1] != "\n":
            while (more := lines.readline(MOST_CHARS)) and more[-1] != "\n":
                pass
            row = f"too long: the line has more than {MOST_CHARS:,} characters; split its text"
        elif line.isspace():
            continue
        elif as_json:
            try:
                row = _json_row(json.loads(line, parse_constant=_not_a_number))
            except (ValueError, RecursionError) as error:
                row = f"wrong type: not JSON ({error}); write one object or one string a line"
        yield f"line {number}", row


def _json_rows(lines: TextIO) -> Iterator[tuple[str, Any]]:
    try:
        values = json.load(lines, parse_constant=_not_a_number)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{lines.name}: not JSON ({error}); write a list of objects or strings") from None
    if not isinstance(values, list):
        raise ValueError(f"{lines.name}: not a list; write a list of objects or strings")
    for number, value in enumerate(values):
        yield f"item {number}", _json_row(value)


def _json_row(value: Any) -> dict[str, Any] | str:
    if isinstance(value, str):
        return {"text": value}
    return value if isinstance(value, dict) else "wrong type: neither a JSON object nor a JSON string"


def _not_a_number(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _is_quoted(path: Path, encoding: str) -> bool:
    """True if quotes in a .tsv enclose fields: then the whole file, read so, has as many fields in every line."""
    csv.field_size_limit(MOST_CHARS)
    with _opened(path, encoding, newline="") as lines:
        try:
            return len({len(row) for row in csv.reader(lines, delimiter="\t", strict=True) if row}) <= 1
        except csv.Error:
            return False


def _delimited(lines: TextIO, delimiter: str, quoted: bool) -> Iterator[tuple[str, Any]]:
    csv.field_size_limit(MOST_CHARS)
    quoting: Any = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    # strict: a stray quote is an error, not a silent join of lines.
    reader = csv.reader(lines, delimiter=delimiter, strict=True, quoting=quoting)
    header: list[str] = []
    row: list[str] | None = []
    while row is not None:
        first, problem = reader.line_num + 1, ""
        try:
            row = next(reader, None)
            if row and header and len(row) != len(header):
                problem = f"{len(row)} fields, but the header has {len(header)}; quote separators within fields"
        except csv.Error as error:
            problem = f"{error}; close every quote, and double quotes inside of quotes"
        last = reader.line_num
        place = f"lines {first} to {last}" if problem and last > first else f"line {first}"
        if not header and (problem or (row and len({*row}) < len(row))):
            raise ValueError(f"{lines.name}, {place}: it must name the columns, each once. {problem}")
        if problem:
            yield place, f"wrong type: {problem}"
        elif row and header:
            yield place, dict(zip(header, row, strict=True))
        elif row:
            header = row
    if not header:
        raise ValueError(f"{lines.name}: the file is empty; the first line must name the columns")


def _read_parquet(path: Path, name: str) -> Iterator[Row]:
    from pyarrow import ArrowException, parquet  # type: ignore[import-untyped, unused-ignore]

    try:
        with parquet.ParquetFile(path, pre_buffer=False) as file:
            yield from _arrow_rows(file.iter_batches(_BATCH, use_threads=False), file.schema_arrow, name)
    except (OSError, ArrowException) as error:
        raise ValueError(f"{path}: not a Parquet file, or damaged ({error}); write it again") from None


def _arrow_rows(batches: Iterable[Any], schema: Any, name: str) -> Iterator[Row]:
    """Rows of batches or tables of Arrow, without columns of bytes."""
    from pyarrow import types  # type: ignore[import-untyped, unused-ignore]

    if twice := {one for one in schema.names if schema.names.count(one) > 1}:
        raise ValueError(f"{name}: two columns are called {min(twice)!r}; rename one")
    bytes_in = [one.name for one in schema if types.is_binary(one.type) or types.is_large_binary(one.type)]
    if bytes_in:
        logger.warning("%s: columns of bytes are left out: %s", name, ", ".join(bytes_in))
    columns = [one for one in schema.names if one not in bytes_in and not one.startswith("__index_level_")]
    row = 0
    for batch in batches:
        for start in range(0, batch.num_rows, _BATCH):  # a table in memory is one batch
            try:
                rows = batch.select(columns).slice(start, _BATCH).to_pylist()
            except (ValueError, OverflowError) as error:  # bad UTF-8, a year beyond 9999
                raise ValueError(f"{name}, rows {row} to {row + _BATCH}: a value cannot be read ({error})") from None
            for fields in rows:
                yield f"{name}, row {row}", fields
                row += 1


def dataset_splits(folder: Path) -> list[str] | None:
    """Splits of a folder that ``DatasetDict.save_to_disk`` wrote, [] of ``Dataset.save_to_disk``; None of any other."""
    if (folder / "state.json").is_file() and (folder / "dataset_info.json").is_file():
        return []
    try:
        return [str(split) for split in json.loads((folder / "dataset_dict.json").read_bytes())["splits"]]
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{folder}: its dataset_dict.json is damaged ({error}); save the dataset again") from None


def _read_dataset(folder: Path, name: str, splits: list[str], split: str | None) -> Iterator[Row]:
    if splits and split not in splits:
        raise ValueError(f"{folder}: split={split!r} is not one of its splits, {', '.join(splits)}; name one")
    if not splits and split is not None:
        raise ValueError(f"split={split!r} belongs to a folder of several datasets, and {folder} is one; drop it")
    import datasets  # type: ignore[import-untyped, unused-ignore]

    try:
        dataset = datasets.load_from_disk(str(folder / split if split else folder))
    except (ValueError, KeyError, TypeError, FileNotFoundError) as error:
        raise ValueError(f"{folder}: not a dataset, or damaged ({error}); save it again") from None
    return _dataset_rows(dataset, name)


def _dataset_rows(dataset: Any, name: str) -> Iterator[Row]:
    """Rows of a ``datasets.Dataset``."""
    return _arrow_rows(dataset.with_format("arrow").iter(_BATCH), dataset.features.arrow_schema, name)


def table_rows(table: Any) -> Iterator[Row] | None:
    """Rows of a table of pandas, datasets, polars or Arrow; None: it is none."""
    kind = type(table)
    name, library = f"the {kind.__name__}", kind.__module__.partition(".")[0]
    if library == "datasets" and hasattr(table, "features"):
        return _dataset_rows(table, name)
    if library == "pandas" and hasattr(table, "columns"):
        return _pandas_rows(table, name)
    if hasattr(table, "__arrow_c_stream__") and (hasattr(table, "columns") or hasattr(table, "schema")):
        import pyarrow  # type: ignore[import-untyped, unused-ignore]

        reader = pyarrow.RecordBatchReader.from_stream(table)
        return _arrow_rows(reader, reader.schema, name)
    return None


def _pandas_rows(table: Any, name: str) -> Iterator[Row]:
    for start in range(0, len(table), _BATCH):
        for number, row in enumerate(table.iloc[start : start + _BATCH].to_dict("records"), start):
            yield f"{name}, row {number}", {str(column): value for column, value in row.items()}
