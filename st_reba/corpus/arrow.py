"""Readers of what Arrow reads: Parquet files, and folders that `datasets.save_to_disk` wrote."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from ..optional import required
from .documents import Document, Reject, beginning
from .fields import Reading, from_fields, missing

_ROWS = 256
_BUFFER = 2**20
_PANDAS_INDEX = "__index_level_"


def read_parquet(path: Path, name: str, reading: Reading) -> Iterator[Document | Reject]:
    """Every row of a Parquet file, a few hundred in memory at a time.

    All columns but the text and the id become metadata: numbers, strings, booleans, lists and structs as they are,
    dates and times in ISO format, decimals as strings, numbers that are not finite as null. Columns that JSON cannot
    hold (binary) are left out with a warning.

    Args:
        path: The file.
        name: What places call it; a row's number counts from 0.
        reading: Which columns are the text and the id.

    Raises:
        ImportError: pyarrow is not installed.
        ValueError: The file is no Parquet file or damaged, or there is no column of texts.
    """
    parquet = required("pyarrow.parquet", "corpus")
    try:
        file = parquet.ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False)
    except ValueError as error:
        raise ValueError(f"{path}: not a Parquet file, or damaged ({error}); write it again") from None
    return _read_parquet(file, path, name, reading)


def _read_parquet(file: Any, path: Path, name: str, reading: Reading) -> Iterator[Document | Reject]:
    with file:
        columns = _columns(file.schema_arrow, str(path), reading)
        batches = file.iter_batches(batch_size=_ROWS, columns=columns, use_threads=False)
        yield from _records(_whole(batches, path), name, reading)


def _whole(batches: Iterator[Any], path: Path) -> Iterator[Any]:
    row = 0
    while True:
        try:
            batch = next(batches, None)
        except (ValueError, OSError) as error:
            raise ValueError(f"{path}, after row {row - 1}: damaged ({error}); write the file again") from None
        if batch is None:
            return
        row += batch.num_rows
        yield batch


def dataset_splits(folder: Path) -> list[str] | None:
    """The splits of a folder that `DatasetDict.save_to_disk` wrote; None of any other folder.

    Raises:
        ValueError: The file that lists them is damaged.
    """
    path = folder / "dataset_dict.json"
    try:
        value = json.loads(path.read_bytes())
        return [str(split) for split in value["splits"]]
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, RecursionError, TypeError, KeyError) as error:
        raise ValueError(f"{path}: not a list of splits ({error}); save the dataset again") from None


def is_dataset(folder: Path) -> bool:
    """Whether `Dataset.save_to_disk` wrote a folder."""
    return (folder / "state.json").is_file() and (folder / "dataset_info.json").is_file()


def read_dataset(folder: Path, name: str, reading: Reading) -> Iterator[Document | Reject]:
    """Every row of a folder that `Dataset.save_to_disk` wrote; otherwise as :func:`read_parquet`.

    Raises:
        ImportError: datasets is not installed.
        ValueError: The folder is damaged, or there is no column of texts.
    """
    try:
        dataset = required("datasets", "corpus").load_from_disk(str(folder)).with_format("arrow")
    except (ValueError, KeyError, TypeError, FileNotFoundError) as error:
        raise ValueError(f"{folder}: not a dataset, or damaged ({error}); save it again") from None
    columns = _columns(dataset.features.arrow_schema, str(folder), reading)
    return _records(dataset.select_columns(columns).iter(batch_size=_ROWS), name, reading)


def _columns(schema: Any, what: str, reading: Reading) -> list[str]:
    """The columns to read.

    Raises:
        ValueError: The text's or the id's is missing, or cannot hold one.
    """
    types = required("pyarrow", "corpus").types
    if wrong := missing(schema.names, reading, "column"):
        raise ValueError(f"{what}: {wrong}")
    named = {field.name: _plain(field.type) for field in schema}
    text, identity = named[reading.text_column], named.get(reading.id_column)
    if not _is_text(text):
        raise ValueError(
            f"{what}: the column {reading.text_column!r} holds {text}, not strings; name another with text_column "
            "(--text-column)"
        )
    if not (identity is None or _is_text(identity) or types.is_integer(identity)):
        raise ValueError(
            f"{what}: the column {reading.id_column!r} holds {identity}, not strings or whole numbers; name another "
            "with id_column (--id-column), or write it as strings"
        )
    wanted = [name for name, kind in named.items() if _fits(kind) and not name.startswith(_PANDAS_INDEX)]
    if left := [f"{name!r} ({kind})" for name, kind in named.items() if not _fits(kind)]:
        warnings.warn(f"left out of the metadata, as JSON cannot hold it: {', '.join(left)}", stacklevel=2)
    return wanted


def _plain(kind: Any) -> Any:
    """The type behind a dictionary's or an extension's."""
    while (inner := getattr(kind, "value_type" if hasattr(kind, "index_type") else "storage_type", None)) is not None:
        kind = inner
    return kind


def _is_text(kind: Any) -> bool:
    types = required("pyarrow", "corpus").types
    view = getattr(types, "is_string_view", None)
    return bool(types.is_string(kind) or types.is_large_string(kind) or (view is not None and view(kind)))


def _fits(kind: Any) -> bool:
    """Whether a type's values can be given as JSON."""
    types, kind = required("pyarrow", "corpus").types, _plain(kind)
    if types.is_nested(kind):
        return all(_fits(kind.field(number).type) for number in range(kind.num_fields))
    return bool(
        _is_text(kind)
        or types.is_null(kind)
        or types.is_boolean(kind)
        or types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_decimal(kind)
        or types.is_temporal(kind)
    )


def _records(batches: Iterable[Any], name: str, reading: Reading) -> Iterator[Document | Reject]:
    row = 0
    for batch in batches:
        for fields in _rows(batch):
            place = f"{name}, row {row}"
            if isinstance(fields, str):
                yield Reject(place, fields)
            else:
                yield from_fields(fields, place, reading, "column")
            row += 1


def _rows(batch: Any) -> Iterator[dict[str, Any] | str]:
    """The rows of a batch or table; in place of one that Python cannot hold, why."""
    plain = {field.name for field in batch.schema if _is_text(field.type) or _is_whole(field.type)}
    try:
        rows = batch.to_pylist()
    except (ValueError, OverflowError) as error:  # bad UTF-8, a year beyond 9999, part of a microsecond
        if batch.num_rows == 1:
            yield f"a value cannot be read ({beginning(str(error))}); correct it, or leave the record out"
            return
        for number in range(batch.num_rows):
            yield from _rows(batch.slice(number, 1))
        return
    for fields in rows:
        for key, value in fields.items():
            if key not in plain:
                fields[key] = _as_json(value)
        yield fields


def _is_whole(kind: Any) -> bool:
    return bool(required("pyarrow", "corpus").types.is_integer(kind))


def _as_json(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (list, tuple)):
        return [_as_json(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _as_json(item) for key, item in value.items()}
    if isinstance(value, (date, time)):
        return value.isoformat()
    return str(value) if isinstance(value, (timedelta, Decimal)) else value
