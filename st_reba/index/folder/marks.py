"""What tells a repeated command from a new one, after the first was killed just as it took effect.

Documents with ids need none of it: what is already there is left as it is. Documents without would be added twice.

- An addition of files is named in the manifest (``addition``), by the files' names, sizes and times.
- Of other input, ``.addition.json`` holds a digest from just before the manifest is replaced until the call returns.
  What is found with the manifest's own generation is an addition that took effect, and whose caller may not know.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...corpus.documents import Document, Reject
from ...corpus.folder import Corpus
from ...corpus.source import Source
from ...files import whole_file
from .manifest import BUILDING, Manifest

MARK_FILE = ".addition.json"


class Digest:
    """The digest of an input's records, taken while they are read."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def over(self, source: Source) -> Source:
        """The same source; every record that is read from it goes into the digest."""

        def records() -> Iterator[Document | Reject]:
            for record in source.records():
                if isinstance(record, Document):
                    value = [record.id, record.text, record.metadata]
                else:
                    value = [record.reason, record.id, record.text]
                self._hash.update(json.dumps(value, sort_keys=True).encode() + b"\n")
                yield record

        return replace(source, read=records)

    def hexdigest(self) -> str:
        """Of all records so far."""
        return self._hash.hexdigest()


def write_mark(folder: Path, following: Manifest, digest: str | None = None) -> None:
    """Say what a manifest adds, just before it is written."""
    value = {"created": following.created, "generation": following.generation, "digest": digest}
    with whole_file(folder / MARK_FILE) as stream:
        stream.write(json.dumps(value).encode() + b"\n")


def clean_up(folder: Path) -> None:
    """Remove what an addition worked with, when it has taken effect. The mark goes last, so the next writer goes on."""
    remove_building(folder)
    (folder / MARK_FILE).unlink(missing_ok=True)


def unacknowledged(folder: Path, manifest: Manifest) -> str | None:
    """The digest of an addition that took effect before its writer was killed; what it left is removed.

    Args:
        folder: The index folder, whose lock the caller has.
        manifest: The present manifest.

    Returns:
        The digest; None: the last writer came to its end, or had not yet changed anything.
    """
    try:
        mark = json.loads((folder / MARK_FILE).read_bytes())
        created, generation, digest = mark["created"], int(mark["generation"]), mark["digest"]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):  # it is written whole, so somebody else wrote there
        (folder / MARK_FILE).unlink(missing_ok=True)
        return None
    if (
        created != manifest.created or generation > manifest.generation
    ):  # its manifest was never written: the addition goes on
        (folder / MARK_FILE).unlink(missing_ok=True)
        return None
    if generation < manifest.generation or digest is None:
        clean_up(folder)
        return None
    remove_building(folder)
    return str(digest)


def remove_building(folder: Path) -> None:
    """Remove ``.building``, if it is there."""
    shutil.rmtree(folder / BUILDING, ignore_errors=True)


def abandon(folder: Path) -> None:
    """After an error: keep ``.building`` only if there is something in it to go on with."""
    with suppress(OSError):
        if not any((folder / BUILDING / "shards").glob("*.vectors.json")):
            remove_building(folder)


def repeats(manifest: Manifest, source: Source, kind: str) -> bool:
    """Whether the last change was the same addition of the same files, and documents had no ids of their own."""
    last = manifest.addition or {}
    return source.identity is not None and last.get("kind") == kind and last.get("input") == source.identity


def addition_of(source: Source, kind: str, first_record: int, corpus: Corpus) -> dict[str, Any] | None:
    """What the manifest says of an addition of files in which documents had no ids of their own."""
    if source.identity is None:
        return None
    totals = corpus.gathered() or {}
    numbers = range(first_record, first_record + int(totals["records"]))
    for shard in range(int(totals["shards"])):
        with corpus.open_documents(shard) as store:
            if any(_as_number(identity) in numbers for identity, _, _ in store.records()):
                return {"kind": kind, "input": source.identity}
    return None


def first_free_id(corpus: Corpus) -> int:
    """The first number above every id of a corpus that is a number; see `DocumentStore.free_number`."""
    free = 0
    for shard in range(corpus.shard_count()):
        with corpus.open_documents(shard) as store:
            free = max(free, store.free_number())
    return free


def _as_number(identity: str) -> int:
    return int(identity) if len(identity) <= 15 and identity.isascii() and identity.isdecimal() else -1
