"""Vectors on their way to disk: those that cannot be used are found, and a .npy file grows a few rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..files import whole_path

_NOT_FINITE = (
    "the model's vector is NaN or infinite; load the model in another dtype (--dtype float32), or leave the text out"
)
_ZERO = "the model's vector is zero, so nothing is nearer to it than anything else; leave the text out"


def storable(vectors: NDArray[np.float32], dtype: str, first_row: int = 0) -> tuple[NDArray[Any], dict[int, str]]:
    """Vectors as they are stored: NaN in the place of each that cannot be used.

    Args:
        vectors: [texts, d], as the model gives them.
        dtype: "float32" or "float16".
        first_row: The number of the first row, for the reasons.

    Returns:
        The vectors in that dtype; and why a row cannot be used, by its number.

    Example:
        >>> rows, unusable = storable(np.array([[3, 4], [0, 0], [1e5, 0]], np.float32), "float16", first_row=10)
        >>> rows.tolist(), sorted(unusable)
        ([[3.0, 4.0], [nan, nan], [nan, nan]], [11, 12])
    """
    with np.errstate(over="ignore", under="ignore"):
        rows: NDArray[Any] = vectors.astype(dtype)
    finite: Any = np.isfinite(vectors).all(axis=1)
    some: Any = vectors.any(axis=1)
    bad = ~(np.isfinite(rows).all(axis=1) & rows.any(axis=1))
    unusable = {}
    for row in np.flatnonzero(bad).tolist():
        if not finite[row]:
            reason = _NOT_FINITE
        elif not some[row]:
            reason = _ZERO
        else:
            value = float(np.abs(vectors[row]).max())
            reason = f"the vector's largest value, {value:.3g}, is not a {dtype}; store float32 (--store-dtype float32)"
        unusable[first_row + row] = reason
    rows[bad] = np.nan
    return rows, unusable


@contextmanager
def npy_writer(path: Path, count: int, dtype: str) -> Iterator[Callable[[NDArray[Any]], None]]:
    """Write a .npy file a few rows at a time, so that memory stays flat; it appears whole or not at all.

    Args:
        path: The file to write or replace.
        count: How many rows there will be.
        dtype: Of the file.

    Yields:
        A function to call with rows [some, d], in order.

    Raises:
        ValueError: There were fewer rows, or more, or of another dimension.
    """
    written = 0
    dimension: int | None = None

    def write(rows: NDArray[Any]) -> None:
        nonlocal written, dimension
        if dimension is None:
            dimension = rows.shape[1]
            header = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False}
            np.lib.format.write_array_header_1_0(stream, {**header, "shape": (count, dimension)})
        if rows.shape[1] != dimension or written + len(rows) > count:
            raise ValueError(f"{path}: rows of the shape {rows.shape} after {written} of {count} of {dimension}")
        stream.write(np.ascontiguousarray(rows, dtype=dtype).data)
        written += len(rows)

    try:
        # Not mapped into memory: on a full disk that would kill the process instead of raising an error.
        with whole_path(path) as temporary, temporary.open("wb") as stream:
            yield write
            if dimension is None or written != count:
                raise ValueError(f"{path}: {written} rows were written of {count}")
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = str(path)
        raise
