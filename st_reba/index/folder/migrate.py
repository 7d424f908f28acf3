"""Manifests of earlier versions, as the present one writes them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...corpus.store import DocumentStore
from ...files import StoredFile

_AGAIN = "build the index again"


def migrated(value: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Bring a parsed manifest to the present version. Nothing is written: the next change of the index does that.

    Args:
        value: A manifest of any version up to the present.
        folder: The index folder.

    Returns:
        The same index as the present version describes it.

    Raises:
        FileNotFoundError: A file that the manifest stands for is missing.
        ValueError: Such a file is damaged, or the manifest does not say what it must.
    """
    if value["format_version"] == 1:
        value = _from_1(value, folder)
    return value


def _from_1(value: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Version 1 had one flat FAISS file and one store, and no digests: they are taken as they are now."""
    count = value.get("count")
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ValueError(
            f"{folder / 'manifest.json'}: count: expected a whole number from 1 on, found {count!r}; {_AGAIN}"
        )
    files = []
    for name in ("vectors.faiss", "documents.sqlite"):
        try:
            files.append(asdict(StoredFile.of(folder / name, folder)))
        except (FileNotFoundError, IsADirectoryError):
            raise FileNotFoundError(f"{folder / name}: no such file; {_AGAIN}") from None
    with DocumentStore.open(folder / "documents.sqlite") as store:
        free = store.free_number()
    return {
        **value,
        "format_version": 2,
        "generation": 1,
        "rejected": 0,
        "next_record": max(count, free),
        "next_segment": 2,
        "segments": [
            {
                "number": 1,
                "count": count,
                "factory": value.get("factory"),
                "vectors": files[0],
                "documents": files[1],
                "deleted_count": 0,
            }
        ],
    }
