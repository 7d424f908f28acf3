"""The one reader of tables and texts.

It reads .csv, .tsv, .jsonl, .parquet, .txt and .md, and folders of the datasets library.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from ..optional import required
from . import text_files
from .delimited import DEFAULT_SEPARATORS, DelimitedRows, encloses_fields
from .json_rows import has_value_per_line, read_json_lines, read_json_values
from .records import clean_text, preview
from .text_files import Cells, TableRow, decoding_fault, named_errors, open_text, read_text_lines

if TYPE_CHECKING:
    from pandas import DataFrame  # type: ignore[import-untyped, unused-ignore]

logger = logging.getLogger(__name__)

# Files that are one text each.
WHOLE_SUFFIXES = (".md", ".markdown", ".rst", ".adoc", ".org")
JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
TEXT_SUFFIXES = (".txt", *JSON_SUFFIXES, ".csv", ".tsv", *WHOLE_SUFFIXES)
SUPPORTED = f"{', '.join(TEXT_SUFFIXES)} (each also with .gz), or .parquet"
# In a folder, .json is mostly settings.
ONLY_BY_NAME = ".json"
_BATCH_SIZE = 256


def read_table(path: str | PathLike[str], encoding: str | None = None) -> DataFrame:
    """Read a file or a folder of the datasets library as a DataFrame.

    Args:
        path: .csv and .tsv begin with a line of column names; their cells are strings. A .tsv may
            be without quotes, as most are. A string in a .jsonl counts as {"text": string}; so does
            a line of a .txt, and all of a .md.
        encoding: Of a text file; None: UTF-8 or, after its mark, UTF-16 or UTF-32.

    Returns:
        The table; cells that a row lacks are NaN. Lone surrogates are replaced by U+FFFD.

    Raises:
        ValueError: The suffix is not supported, or a row cannot be read; the message has its line.

    Example:
        >>> _ = Path("pairs.tsv").write_text('text\\tscore\\n6" pipe\\t3.5\\n', encoding="utf-8")
        >>> read_table("pairs.tsv").to_dict("records")
        [{'text': '6" pipe', 'score': '3.5'}]
    """
    return frame_of_rows(read_rows(path, encoding=encoding))


def frame_of_rows(table_rows: Iterable[TableRow]) -> DataFrame:
    """Rows as a DataFrame; a ValueError for one that cannot be read."""
    rows = []
    for row_place, row in table_rows:
        if isinstance(row, str):
            raise ValueError(f"{row_place}: {row}")
        rows.append({clean_text(name): _clean_cell(cell) for name, cell in row.items()})
    import pandas  # type: ignore[import-untyped, unused-ignore]

    return pandas.DataFrame(rows)


def _clean_cell(cell: object) -> object:
    """A cell whose strings have no lone surrogates, which pandas refuses."""
    if isinstance(cell, str):
        return clean_text(cell)
    if isinstance(cell, list):
        return list(map(_clean_cell, cell))
    return cell


def read_rows(
    path: str | PathLike[str],
    *,
    name: str | None = None,
    encoding: str | None = None,
) -> Iterator[TableRow]:
    """Read a file's rows one by one.

    Args:
        path: The file, or a folder of the datasets library.
        name: Its name in places; None: the path.
        encoding: Of a text file; None: UTF-8 or, after its mark, UTF-16 or UTF-32.
    """
    path = Path(path)
    name = name or str(path)
    suffix = suffix_of(path)
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file or folder")
    if path.is_dir():
        return _read_dataset_folder(path, name)
    if suffix is None:
        file_suffix = path.suffix
        if file_suffix.lower() == ".gz":
            file_suffix = "".join(path.suffixes[-2:])
        raise ValueError(
            f"{path}: the suffix {file_suffix!r} is not supported; use one of {SUPPORTED}"
        )
    if suffix == ".parquet":
        return _read_parquet(path, name)
    return _read_text(path, name, encoding, suffix)


def _read_dataset_folder(path: Path, name: str) -> Iterator[TableRow]:
    dataset = required("datasets", "corpus").load_from_disk(str(path))
    if isinstance(dataset, dict):
        split_paths = ", ".join(str(path / split) for split in dataset)
        raise ValueError(f"{path}: several datasets; name one: {split_paths}")
    return _read_dataset(dataset, name)


def _read_dataset(dataset: Any, name: str) -> Iterator[TableRow]:
    batches = dataset.with_format("arrow").iter(_BATCH_SIZE)
    return _arrow_rows(batches, dataset.features.arrow_schema, name)


def suffix_of(path: Path) -> str | None:
    """The suffix that determines how a file is read; None: it cannot be read."""
    name = path.name.lower()
    if name.endswith(".parquet"):
        return ".parquet"
    suffix = Path(name.removesuffix(".gz")).suffix
    if suffix in TEXT_SUFFIXES:
        return suffix
    return None


def _read_text(path: Path, name: str, encoding: str | None, suffix: str) -> Iterator[TableRow]:
    with named_errors(str(path)):
        for row_place, row in _text_rows(path, encoding, suffix):
            yield f"{name}, {row_place}", row


def _text_rows(path: Path, encoding: str | None, suffix: str) -> Iterator[TableRow]:
    has_quotes = suffix == ".csv"
    has_lines = False
    if suffix == ".tsv":
        with open_text(path, encoding) as stream, open_text(path, encoding) as second_stream:
            has_quotes = encloses_fields(stream, second_stream)
    if suffix in JSON_SUFFIXES:
        with open_text(path, encoding) as stream:
            has_lines = has_value_per_line(stream, suffix)
    with open_text(path, encoding) as stream:
        if suffix in WHOLE_SUFFIXES:
            yield from _whole_text(stream)
        elif suffix == ".txt":
            yield from read_text_lines(stream)
        elif suffix in DEFAULT_SEPARATORS:
            yield from DelimitedRows(stream, suffix, has_quotes=has_quotes).read()
        elif has_lines:
            yield from read_json_lines(stream)
        else:
            yield from read_json_values(stream)


def _whole_text(stream: TextIO) -> Iterator[TableRow]:
    text = stream.read(text_files.MAX_CHARS + 1)
    if len(text) > text_files.MAX_CHARS:
        yield (
            "the text",
            f"too long: it has more than {text_files.MAX_CHARS:,} characters; split it",
        )
    elif text.strip():
        yield (
            "the text",
            decoding_fault(text, stream.encoding) or {"text": text.replace("\r\n", "\n")},
        )


def _read_parquet(path: Path, name: str) -> Iterator[TableRow]:
    from pyarrow import ArrowException, parquet  # type: ignore[import-untyped, unused-ignore]

    try:
        with parquet.ParquetFile(path, pre_buffer=False) as file:
            batches = file.iter_batches(_BATCH_SIZE, use_threads=False)
            yield from _arrow_rows(batches, file.schema_arrow, name)
    except _UnusableColumn:
        raise
    except (OSError, ArrowException, ValueError, KeyError, OverflowError) as error:
        raise ValueError(
            f"{path}: not a Parquet file, or damaged ({error}); write it again"
        ) from None


class _UnusableColumn(ValueError):
    """A column of a table that is not damaged."""


def _arrow_rows(batches: Iterable[Any], schema: Any, name: str) -> Iterator[TableRow]:
    if len(set(schema.names)) < len(schema.names):
        shown_names = preview(schema.names)
        raise _UnusableColumn(
            f"{name}: two columns have one name; there: {shown_names}; rename one"
        )
    byte_columns = []
    column_names = []
    for schema_field in schema:
        if _is_of_bytes(schema_field.type):
            byte_columns.append(schema_field.name)
        elif not schema_field.name.startswith("__index_level_"):
            column_names.append(schema_field.name)
    if byte_columns:
        warn_of_byte_columns(name, byte_columns)
    row_number = 0
    for batch in batches:
        for start in range(0, batch.num_rows, _BATCH_SIZE):  # a table in memory is one batch
            for cells in _cells_of(batch.select(column_names).slice(start, _BATCH_SIZE), name):
                yield f"{name}, row {row_number}", cells
                row_number += 1


def _cells_of(batch: Any, name: str) -> list[Cells]:
    try:
        rows: list[Cells] = batch.to_pylist()
    except OverflowError:
        for column_name in batch.schema.names:
            try:
                batch.column(column_name).to_pylist()
            except OverflowError as error:
                raise _UnusableColumn(
                    f"{name}: the column {column_name!r} holds a value that Python cannot represent ({error}); "
                    "correct it, or leave the column out"
                ) from None
        raise
    return rows


def _is_of_bytes(arrow_type: Any) -> bool:
    """True for a type of Arrow that holds bytes, by itself, or in a structure or a list."""
    from pyarrow import BaseExtensionType, types  # type: ignore[import-untyped, unused-ignore]

    if isinstance(arrow_type, BaseExtensionType):
        if arrow_type.extension_name == "arrow.uuid":
            return False
        return _is_of_bytes(arrow_type.storage_type)
    if types.is_dictionary(arrow_type):
        return _is_of_bytes(arrow_type.value_type)
    if types.is_fixed_size_binary(arrow_type) or types.is_binary_view(arrow_type):
        return True
    if types.is_binary(arrow_type) or types.is_large_binary(arrow_type):
        return True
    inner_fields = map(arrow_type.field, range(arrow_type.num_fields))
    return any(_is_of_bytes(schema_field.type) for schema_field in inner_fields)


def warn_of_byte_columns(name: str, column_names: Iterable[str]) -> None:
    logger.warning("%s: columns of bytes are left out: %s", name, ", ".join(column_names))


def holds_bytes(value: object) -> bool:
    """True for bytes and for decoded images and sounds, by themselves or in a dict or a list.

    Example:
        >>> [holds_bytes(value) for value in (b"raw", {"bytes": b"raw", "path": None}, ["text"], 7)]
        [True, True, False, False]
    """
    if isinstance(value, (str, int, float)) or value is None:
        return False
    if isinstance(value, (bytes, bytearray, memoryview)):
        return True
    if isinstance(value, Mapping):
        return any(holds_bytes(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return any(holds_bytes(item) for item in value)
    if getattr(getattr(value, "dtype", None), "kind", "") in ("O", "S", "V"):  # an array of NumPy
        return holds_bytes(cast(Any, value).tolist())
    library = type(value).__module__.partition(".")[0]
    return library in ("PIL", "torchcodec", "datasets")


def is_dataset(folder: Path) -> bool:
    """True if ``save_to_disk`` of the datasets library wrote a folder."""
    return any((folder / name).is_file() for name in ("state.json", "dataset_dict.json"))


def table_rows(table: Any) -> Iterator[TableRow] | None:
    """Rows of a table of pandas, datasets, polars or Arrow; None: it is none."""
    name = f"the {type(table).__name__}"
    if hasattr(table, "itertuples"):
        return _pandas_rows(table, name)
    if hasattr(table, "to_frame") and _index_names(table):
        return _pandas_rows(table.to_frame("text"), name)
    if hasattr(table, "with_format") and getattr(table, "features", None) is not None:
        return _read_dataset(table, name)
    has_columns = hasattr(table, "columns") or hasattr(table, "schema")
    if hasattr(table, "__arrow_c_stream__") and has_columns:
        import pyarrow  # type: ignore[import-untyped, unused-ignore]

        reader = pyarrow.RecordBatchReader.from_stream(table)
        return _arrow_rows(reader, reader.schema, name)
    return None


def _pandas_rows(table: Any, name: str) -> Iterator[TableRow]:
    """The rows of a DataFrame; levels of its index that have a name are columns, as in Parquet."""
    column_names = list(map(str, table.columns))
    added_levels = [level for level in _index_names(table) if str(level) not in column_names]
    if added_levels:
        table = table.reset_index(level=added_levels)
        column_names = list(map(str, table.columns))
    if len(set(column_names)) < len(column_names):
        shown_names = ", ".join(map(repr, column_names))
        raise ValueError(f"{name}: two columns have one name; there: {shown_names}; rename one")
    for row_number, cells in enumerate(table.itertuples(index=False, name=None)):
        yield f"{name}, row {row_number}", dict(zip(column_names, cells, strict=True))


def _index_names(table: Any) -> list[Any]:
    """Names of the levels of a pandas index that have one."""
    index = getattr(table, "index", None)
    names = getattr(index, "names", None) or ()
    return [index_name for index_name in names if index_name is not None]
