"""Add, replace and delete documents of an index, one writer at a time; readers see a change whole or not at all."""

from __future__ import annotations

import json
import logging
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from ...corpus.documents import MAX_CHARS, Document, Reject, beginning
from ...corpus.folder import REJECTS_FILE, Corpus
from ...corpus.source import Input, Source, open_source
from ...files import whole_file
from ...fingerprint import check
from ...lock import writers_lock
from ..building.making import encode_within
from ..building.shards import Shards
from ..folder.commit import commit, sweep
from ..folder.manifest import Manifest
from ..folder.marks import Digest, abandon, addition_of, clean_up, first_free_id, repeats, unacknowledged, write_mark
from ..folder.segments import OpenSegment
from .merging import rearranged
from .rows import Piece

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from ...corpus.engines import Engine

logger = logging.getLogger(__name__)
Kind = Literal["add", "upsert", "delete", "compact"]
_AT_A_TIME = 500


@dataclass(frozen=True)
class Change:
    """What a change of an index came to.

    Args:
        kind: "add", "upsert", "delete" or "compact".
        generation: Of the index, afterwards.
        count: Documents in the index, afterwards.
        added: New documents.
        replaced: Documents that took the place of another with the same id.
        deleted: Documents that are no longer there.
        unchanged: Documents that were there already with the same text and metadata: they were left as they are.
        rejected: Records that were set aside.
        rejects: The file that says why, if there are any.
        repeated: The same addition had taken effect already, so nothing was done.
    """

    kind: Kind
    generation: int
    count: int
    added: int = 0
    replaced: int = 0
    deleted: int = 0
    unchanged: int = 0
    rejected: int = 0
    rejects: Path | None = None
    repeated: bool = False


def add(
    folder: str | PathLike[str],
    model: SentenceTransformer,
    input: Input,
    *,
    upsert: bool = False,
    ids: Iterable[str] | None = None,
    text_column: str = "text",
    id_column: str = "id",
    encoding: str = "utf-8-sig",
    split: str | None = None,
    max_chars: int = MAX_CHARS,
    strict: bool = True,
    again: bool = False,
    engine: str | Engine = "single",
    show_progress_bar: bool | None = None,
    **corpus_options: Any,
) -> Change:
    """Add documents to an index. An addition that is killed goes on with the same call, and nothing is added twice.

    A document whose id, text and metadata are there already is left as it is. Where documents have no ids, adding the
    same unchanged files once more directly after does nothing.

    Args:
        folder: The index folder.
        model: The model that built it.
        input: Texts, documents, or a file or folder of them, as `st_reba.corpus.encode_corpus` takes them.
        upsert: Replace documents whose ids are there, in the same step; else they are an error, or set aside.
        ids: One id for each text of an iterable. Without, a document's id is its number, counted on from the last.
        text_column: The column or key that holds the text.
        id_column: The column or key that holds the id.
        encoding: Of text files.
        split: Of a DatasetDict.
        max_chars: The longest text, in characters.
        strict: Stop at the first record that cannot be taken; else such records are set aside in ``rejects.jsonl`` in
            the folder. An id that the input has twice is one of them.
        again: Add the same files once more, if the last change added them.
        engine: Where to encode: "single", "local", "ray", or an engine.
        show_progress_bar: Show bars; None: on a terminal.
        **corpus_options: As `encode_corpus` takes them: batch_size, batch_tokens, workers, devices, shard_size.

    Returns:
        What was done.

    Raises:
        FileNotFoundError: There is no such index.
        BlockingIOError: Another process is writing there.
        OSError: The disk is full, or the folder may not be written. The index is as it was.
        ValueError: The model is not the one that built the index; an id is there already, or a record cannot be taken
            (`strict`); a file of the index is damaged.

    Example:
        >>> import st_reba
        >>> from st_reba.index import Index
        >>> model = st_reba.build("mini", pooling="mean")
        >>> Index.build(model, ["Cats sleep.", "Ships sail."], "my_index").close()
        >>> add("my_index", model, ["Bread rises."]).count
        3
        >>> add("my_index", model, ["Cats sleep a lot."], ids=["0"], upsert=True).replaced
        1
    """
    reading: dict[str, Any] = {"text_column": text_column, "id_column": id_column, "encoding": encoding, "split": split}
    source = open_source(input, ids=ids, max_chars=max_chars, **reading)
    kind: Kind = "upsert" if upsert else "add"
    with writing_change(folder) as (target, manifest, pending):
        check(manifest.model, model)
        if not again and repeats(manifest, source, kind):
            logger.warning("%s", _repeated(source))
            return Change(kind, manifest.generation, manifest.count, repeated=True)
        digest = Digest()
        with opened(target, manifest) as segments:
            read = source if source.identity is not None else digest.over(source)
            if strict and not upsert:
                read = _refusing(read, segments)
            corpus = encode_within(
                target,
                model,
                read,
                strict=strict,
                engine=engine,
                first_record=manifest.next_record,
                show_progress_bar=show_progress_bar,
                **corpus_options,
            )
            own = None if source.identity is not None else digest.hexdigest()
            if own is not None and own == pending:
                logger.warning("%s", _repeated(source))
                clean_up(target)
                return Change(kind, manifest.generation, manifest.count, repeated=True)
            shards = Shards([corpus.path], manifest.dim, manifest.metric)
            with _rejects(target, corpus) as reject:
                staged = _stage(shards, segments, None if strict else reject, upsert=upsert)
            done = Change(
                kind,
                manifest.generation,
                manifest.count,
                added=staged.added,
                replaced=staged.replaced,
                unchanged=staged.unchanged,
                rejected=reject.count,
                rejects=target / REJECTS_FILE if reject.count else None,
            )
            if not staged.added + staged.replaced:
                clean_up(target)
                return done
            records = int((corpus.gathered() or {})["records"])
            following = manifest.succeeding(
                **rearranged(
                    target,
                    manifest,
                    segments,
                    staged.gone_rows(),
                    Piece(shards, staged.keep),
                    show_progress_bar=show_progress_bar,
                ),
                next_record=max(manifest.next_record + records, first_free_id(corpus)),
                rejected=manifest.rejected + reject.count,
                addition=addition_of(source, kind, manifest.next_record, corpus),
            )
            write_mark(target, following, own)
            commit(target, following)
        clean_up(target)
    return replace(done, generation=following.generation, count=following.count)


def delete(folder: str | PathLike[str], ids: Iterable[str], *, missing: Literal["error", "ignore"] = "error") -> Change:
    """Delete documents by id. Their rows are only marked, until `compact`, or until half of a segment is deleted.

    Args:
        folder: The index folder.
        ids: Which; an id may be given more than once.
        missing: "error": an id that is not there is an error and nothing is deleted; "ignore": it is passed over.

    Returns:
        What was done.

    Raises:
        FileNotFoundError: There is no such index.
        BlockingIOError: Another process is writing there.
        OSError: The disk is full, or the folder may not be written. The index is as it was.
        ValueError: An id is not there, or a file of the index is damaged.

    Example:
        >>> import st_reba
        >>> from st_reba.index import Index
        >>> Index.build(st_reba.build("mini"), ["Cats sleep.", "Ships sail."], "my_index").close()
        >>> delete("my_index", ["0"]).count
        1
    """
    if missing not in ("error", "ignore"):
        raise ValueError(f"missing={missing!r} is not known: give 'error' or 'ignore' (--missing)")
    if isinstance(ids, str):
        raise TypeError(f"ids is one string; give a list: [{ids!r}]")
    wanted = dict.fromkeys(ids)
    for one in wanted:
        if not isinstance(one, str):
            raise TypeError(f"the id {one!r} is a {type(one).__name__}; ids are strings")
    with writing_change(folder) as (target, manifest, _), opened(target, manifest) as segments:
        found = _live(segments, wanted)
        absent = [one for one in wanted if one not in found]
        if absent and missing == "error":
            shown = ", ".join(repr(one) for one in absent[:5]) + (", …" if len(absent) > 5 else "")
            raise ValueError(
                f"{len(absent)} of {len(wanted)} ids are not in the index: {shown}; nothing was deleted. "
                "Leave them out, or give missing='ignore' (--missing ignore)"
            )
        if not found:
            return Change("delete", manifest.generation, manifest.count)
        gone = {
            place: np.array(sorted(row for owner, row in found.values() if owner == place), np.int64)
            for place in range(len(segments))
        }
        following = manifest.succeeding(**rearranged(target, manifest, segments, gone))
        commit(target, following)
    return Change("delete", following.generation, following.count, deleted=len(found))


@contextmanager
def writing_change(folder: str | PathLike[str]) -> Iterator[tuple[Path, Manifest, str | None]]:
    """Be the folder's one writer; after an error the index is as its manifest says.

    Yields:
        The folder; the present manifest; the digest of an addition whose writer was killed when it had taken effect.
    """
    target = Path(os.path.realpath(folder))
    Manifest.read(target)
    with writers_lock(target):
        manifest = Manifest.read(target)
        sweep(target, manifest)
        pending = unacknowledged(target, manifest)
        try:
            yield target, manifest, pending
        except BaseException:
            sweep(target, Manifest.read(target))
            abandon(target)
            raise


@contextmanager
def opened(folder: Path, manifest: Manifest) -> Iterator[list[OpenSegment]]:
    with ExitStack() as stack:
        segments = []
        for record in manifest.segments:
            # Only sizes: what is copied is read whole before.
            segment = OpenSegment.open(folder, record, manifest.dim, verify=False)
            stack.callback(segment.close)
            segments.append(segment)
        yield segments


@dataclass
class _Staged:
    keep: NDArray[np.bool_]
    gone: dict[int, array[int]] = field(default_factory=dict)
    added: int = 0
    replaced: int = 0
    unchanged: int = 0

    def gone_rows(self) -> dict[int, NDArray[np.int64]]:
        """Rows that are replaced, sorted, by the segment's place."""
        return {place: np.sort(np.array(rows, np.int64)) for place, rows in self.gone.items()}


def _stage(
    shards: Shards, segments: Sequence[OpenSegment], reject: Callable[[Reject], object] | None, *, upsert: bool
) -> _Staged:
    """Compare what was encoded with what is there, by id."""
    staged = _Staged(np.ones(shards.count, dtype=bool))
    records = shards.records()
    row = 0
    while chunk := list(islice(records, _AT_A_TIME)):
        found = _live(segments, [identity for identity, _, _ in chunk])
        old = _documents(segments, found)
        for identity, text, metadata in chunk:
            if identity not in found:
                staged.added += 1
            elif old[identity].text == text and old[identity].metadata == json.loads(metadata):
                staged.keep[row] = False
                staged.unchanged += 1
            elif upsert:
                place, gone = found[identity]
                staged.gone.setdefault(place, array("q")).append(gone)
                staged.replaced += 1
            elif reject is None:
                raise ValueError(_there(identity))
            else:
                staged.keep[row] = False
                reject(Reject("in the index", _there(identity), identity, beginning(text)))
            row += 1
    return staged


def _refusing(source: Source, segments: Sequence[OpenSegment]) -> Source:
    """The source; an id that is in the index with another text ends it, before anything is encoded."""

    def records() -> Iterator[Document | Reject]:
        read = source.records()
        while chunk := list(islice(read, _AT_A_TIME)):
            named = {one.id: one for one in chunk if isinstance(one, Document) and one.id is not None}
            for identity, old in _documents(segments, _live(segments, named)).items():
                if (old.text, old.metadata) != (named[identity].text, named[identity].metadata):
                    raise ValueError(_there(identity))
            yield from chunk

    return replace(source, read=records)


def _live(segments: Sequence[OpenSegment], ids: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Where documents are: segment and row, by id."""
    wanted = list(ids)
    found = {}
    for place, segment in enumerate(segments):
        rows = segment.store.find(wanted)
        live = segment.is_live(np.fromiter(rows.values(), np.int64, len(rows)))
        found.update(
            {one: (place, row) for (one, row), there in zip(rows.items(), live.tolist(), strict=True) if there}
        )
    return found


def _documents(segments: Sequence[OpenSegment], found: dict[str, tuple[int, int]]) -> dict[str, Document]:
    documents: dict[str, Document] = {}
    for place, segment in enumerate(segments):
        here = {one: row for one, (owner, row) in found.items() if owner == place}
        documents.update(zip(here, segment.store.get(list(here.values())), strict=True))
    return documents


class _RejectWriter:
    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.count = 0

    def __call__(self, reject: Reject) -> None:
        self._stream.write(reject.to_line())
        self.count += 1


@contextmanager
def _rejects(folder: Path, corpus: Corpus) -> Iterator[_RejectWriter]:
    """Write what this change sets aside, in place of what an earlier one did."""
    with whole_file(folder / REJECTS_FILE) as stream:
        write = _RejectWriter(stream)
        for reject in corpus.rejects():
            write(reject)
        yield write
    if not write.count:
        (folder / REJECTS_FILE).unlink()


def _there(identity: str) -> str:
    return (
        f"the id {identity!r} is already in the index, with another text or metadata; replace that document with "
        "upsert, or give this one another id"
    )


def _repeated(source: Source) -> str:
    return (
        f"{source.name}: the last change of the index added just this, so nothing was done; to add it once more, give "
        "again=True (--again)"
    )
