"""Changes of an index, each in one transaction: documents inserted and deleted, vectors rewritten.

What is encoded for a change is kept in ``.building``, a corpus, until the change has taken effect.
"""

from __future__ import annotations

import re
import shutil
import uuid
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from sqlite3 import Connection
from typing import TYPE_CHECKING, Literal

import numpy as np

from ..corpus.folder import Corpus, Progress, Row, is_corpus, read_progress
from ..corpus.records import Reject, preview
from ..files import refuse_links, sole_writer
from ..probe import Probe
from .factories import FaissIndex, add_vectors, train_index, try_factory_with_tokens
from .samples import read_sample, read_texts
from .schema import TABLES, StoredDocument, insert_document, read_documents
from .scoring import Keys, Mask, Matrix, Segment, prepare_vectors
from .state import IndexState, damaged, read_state, write_state
from .store import Store, check_keys, read_keys, read_pending, vector_keys
from .vector_file import VectorFile, write_index
from .whitening import Whitening, log_whitening, read_whitening, write_whitening
from .words import drop_words, insert_words, remove_words, write_words

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

BUILDING = ".building"
_ENCODED_PARTS = "vectors/*.npy"
# And what is not finished.
_FAISS_FILES = re.compile(r"vectors-\d+\.faiss|\.vectors-.*\.tmp")
# Pending vectors are in SQLite, and not yet in the FAISS file. A new file is written when they
# exceed 1,000 or, if that is more, 10 % of the file; but always when they exceed 20,000.
MIN_PENDING = 1_000
PENDING_SHARE = 0.1
MAX_PENDING = 20_000


@dataclass(frozen=True)
class Change:
    """Outcome of a change."""

    count: int  # documents in the index, afterwards
    added: int = 0
    replaced: int = 0
    deleted: int = 0  # documents; by "compact": vectors that are no longer on the disk
    unchanged: int = 0  # documents that were there already, with the same content
    rejected: dict[str, int] = field(default_factory=dict)  # rejects by kind of reason
    truncated: int = 0  # added and replaced documents that are longer than the model reads


def stopped_progress(folder: Path) -> Progress | None:
    """How far a stopped build or addition got in an index folder, for the same call to resume.

    Returns:
        How many documents are encoded, and how many there are; None if no document is encoded.

    Example:
        >>> stopped_progress(Path("no_such_index")) is None
        True
    """
    return read_progress(folder / BUILDING)


@contextmanager
def sole_encoder(folder: Path, *, patience: float | None = None) -> Iterator[Path]:
    """Keep other builds and additions out of an index folder.

    Yields:
        The folder of the corpus that is encoded for the index. It stays after an error if anything
        in it is encoded.
    """
    building = folder / BUILDING
    is_kept = False
    with sole_writer(folder, f"{BUILDING}/{_ENCODED_PARTS}", patience=patience):
        if not is_corpus(building):  # a writer was killed while removing a corpus
            shutil.rmtree(building, ignore_errors=True)
        try:
            yield building
        except BaseException as error:
            is_kept = any(building.glob(_ENCODED_PARTS))
            progress = stopped_progress(folder)
            if progress is not None:
                error.add_note(f"{folder}: {progress}; repeat the call to resume")
            raise
        finally:
            if not is_kept:
                shutil.rmtree(building, ignore_errors=True)


def remove_failed_addition(folder: Path) -> None:
    """Remove the texts that a failed addition left, unless an addition is running."""
    with suppress(BlockingIOError), sole_encoder(folder, patience=0):
        pass  # it removes them at the end of the block


@contextmanager
def changing(store: Store, new_state: IndexState | None = None) -> Iterator[IndexWriter]:
    """A change, which takes effect at the end of the ``with`` block.

    Args:
        store: The store of the index.
        new_state: State of an index that is being built; None: the existing index is changed.
    """
    refuse_links(store.folder)
    with store.writing(create=new_state is not None) as connection:
        try:
            old_state = read_state(connection, store.path)
        except FileNotFoundError:
            if new_state is None:
                raise
            old_state = new_state
        # A copy, as `read_state` shares its result. The count of changes numbers the FAISS files: it
        # goes on, so that the new file does not overwrite the old one.
        state = replace(new_state or old_state, changes=old_state.changes)
        old_file = old_state.vector_file
        _remove_faiss_files(store.folder, except_name=old_file)
        if new_state is not None:
            for table in TABLES:
                connection.execute(f"DELETE FROM {table}")
            drop_words(connection)
        try:
            yield IndexWriter(store, connection, state)
            state.changes += 1
            state.change_id = uuid.uuid4().hex
            write_state(connection, state)
        except BaseException:
            _remove_faiss_files(store.folder, except_name=old_file)
            raise
    if old_file is not None and old_file != state.vector_file:
        # Only this file: others may belong to a writer that has the lock by now.
        _remove_if_possible(store.folder / old_file)


class IndexWriter:
    """One change of an index, within its transaction."""

    def __init__(self, store: Store, connection: Connection, state: IndexState) -> None:
        self.connection = connection
        self.state = state
        self.counts = Counter[str]()
        self.rejected = Counter[str]()
        self._folder = store.folder
        self._first_new_key = state.next_key  # documents from this key on are of this change
        self._is_first_change = state.next_key == 0

    def insert_documents(self, corpus: Corpus, *, strict: bool) -> list[Segment]:
        """Insert the documents of a corpus, or reject them.

        For an addition, the corpus holds new documents, and those that replace others by their ids.

        Args:
            corpus: The documents, encoded by the index's model.
            strict: Stop at the first record that cannot be taken.

        Returns:
            The raw vectors of documents that were inserted, which are loaded when they are needed.
        """
        # Since the corpus was encoded, an index of another model may have replaced this one.
        corpus_probe = Probe.from_json(corpus.header()["model"])
        corpus_probe.check_same(Probe.from_json(self.state.model), f"the corpus {corpus.path}")
        self.connection.execute("DELETE FROM rejects")
        first_number = self.state.next_number
        part_infos = corpus.part_infos()
        if part_infos:
            self.state.next_number += part_infos[-1].end
        segments = []
        for part_number in range(len(part_infos)):
            first_key = self.state.next_key
            is_inserted = self._insert_part(corpus, part_number, first_number, strict)
            if not is_inserted.any():
                continue
            load = partial(_load_vectors, corpus, part_number, is_inserted, self.state.metric)
            keys = np.arange(first_key, self.state.next_key)
            segments.append(Segment(keys, load))
        return segments

    def _insert_part(
        self,
        corpus: Corpus,
        part_number: int,
        first_number: int,
        strict: bool,
    ) -> Mask:
        """Insert the documents of a part.

        Returns:
            Whether the document of each vector was inserted, [vectors].
        """
        corpus_part = corpus.part(part_number)
        vector_counts = corpus_part.vector_counts
        shape = corpus.vectors(part_number).shape
        if shape != (sum(vector_counts), self.state.dimension):
            reason = f"{shape} for {sum(vector_counts)} texts"
            raise damaged(corpus.vectors_path(part_number), reason)
        unusable = corpus.unusable(part_number)
        truncated_rows = set(corpus.truncated(part_number))
        rejects = list(corpus_part.rejects)
        is_inserted = np.zeros(len(vector_counts), bool)
        record_name = "record" if self._is_first_change else "new record"
        for row_number, row in enumerate(corpus_part.rows):
            document_id = row.id
            if document_id is None:
                document_id = str(first_number + row.record)
            row_place = f"{record_name} {row.record}"
            if row_number in unusable:
                rejects.append(replace(unusable[row_number], place=row_place, id=document_id))
                continue
            outcome = self._insert(row, document_id, is_truncated=row_number in truncated_rows)
            if outcome is None:
                reason = (
                    f"id used twice: {document_id!r} is the number of another record too; "
                    "give each its own"
                )
                rejects.append(Reject(row_place, reason, document_id, preview(row.text)))
                continue
            self.counts[outcome] += 1
            is_inserted[row_number] = True
        self._write_rejects(rejects, strict)
        return np.repeat(is_inserted, vector_counts)

    def _write_rejects(self, rejects: Sequence[Reject], strict: bool) -> None:
        if strict and rejects:
            raise ValueError(str(rejects[0]))
        rows = map(astuple, rejects)
        self.connection.executemany("INSERT INTO rejects VALUES (?, ?, ?, ?)", rows)
        self.rejected.update(reject.kind for reject in rejects)

    def _insert(
        self,
        row: Row,
        document_id: str,
        *,
        is_truncated: bool,
    ) -> Literal["added", "replaced"] | None:
        """Insert a document, or replace the one with its id.

        Args:
            row: The document.
            document_id: Its id, or the number of its record.
            is_truncated: It is longer than the model reads.

        Returns:
            None: it is not inserted, because another document of this change has its id.
        """
        replaced_document = None
        if row.id is None:
            document_id = self._free_number(document_id)
        else:
            replaced_document = self._find(document_id)
        if replaced_document is not None:
            if replaced_document.key >= self._first_new_key:
                return None
            self.remove(replaced_document)
        document = StoredDocument.from_row(
            self.state.next_key, document_id, row, is_truncated=is_truncated
        )
        if not insert_document(self.connection, document):  # the corpus has the id twice
            return None
        if self.state.words:
            insert_words(self.connection, document.key, document.text)
        self.counts["truncated"] += document.is_truncated
        self.state.truncated += document.is_truncated
        self.state.next_key += document.vector_count
        self.state.documents += 1
        return "added" if replaced_document is None else "replaced"

    def _free_number(self, number: str) -> str:
        """A number that is to be an id; the next free one if a document has it as its own id."""
        while self._find(number) is not None:
            number = str(self.state.next_number)
            self.state.next_number += 1
        return number

    def _find(self, document_id: str) -> StoredDocument | None:
        if self._is_first_change:  # the ids of a first corpus are checked when it is read
            return None
        return next(read_documents(self.connection, "id = ?", document_id), None)

    def remove(self, document: StoredDocument) -> None:
        """Delete a document and its pending vectors; those in the FAISS file stay, with tombstones for their keys."""
        state = self.state
        self.connection.execute("DELETE FROM documents WHERE key = ?", (document.key,))
        if state.words:
            remove_words(self.connection, document.key, document.text)
        state.truncated -= document.is_truncated
        state.documents -= 1
        key_rows = [(key,) for key in document.keys]
        if document.key >= state.first_pending_key:
            self.connection.executemany("DELETE FROM pending WHERE key = ?", key_rows)
            state.pending -= document.vector_count
        else:
            self.connection.executemany("INSERT INTO tombstones VALUES (?)", key_rows)
            state.deleted += document.vector_count

    def write_words(self) -> None:
        """Write the words of all documents anew."""
        self.state.words = write_words(self.connection)

    @cached_property
    def _old_file(self) -> VectorFile | None:
        """The FAISS file that the change began with, in memory, its keys compared with the documents."""
        old_file = None
        file_keys = None
        if self.state.vector_file is not None:
            old_file = VectorFile(self._folder, self.state, mmap=False)
            file_keys = old_file.keys
        check_keys(self.connection, self.state, file_keys, before=self._first_new_key)
        return old_file

    def stored_vectors(self) -> list[Segment]:
        """All vectors that the index holds, as they are stored."""
        state = self.state
        segments = [read_pending(self.connection, state).segment]
        if self._old_file is not None:
            keys = vector_keys(self.connection, state, "key < ?", state.first_pending_key)
            segments = [*self._old_file.segments(keys), *segments]
        return segments

    def raw_vectors(self, stored_vectors: list[Segment]) -> list[Segment]:
        """Stored vectors as the model gave them."""
        whitening = read_whitening(self.connection, self.state)
        if whitening is None:
            return stored_vectors
        return [
            segment.converted(lambda keys, vectors: whitening.invert(vectors))
            for segment in stored_vectors
        ]

    def fit_whitening(
        self,
        raw_sample: Segment,
        model: SentenceTransformer,
        *,
        with_tokens: bool,
        is_asked_for: bool,
    ) -> None:
        """Fit a whitening, as complete as the number of texts allows; it replaces any earlier one.

        Args:
            raw_sample: Raw vectors of documents that are inserted already.
            model: The index's model.
            with_tokens: As for `Whitening.fit`.
            is_asked_for: Warn if there are too few texts.
        """
        sample = read_sample(self.connection, raw_sample)
        whitening = Whitening.fit(model, sample, self.state.metric, with_tokens=with_tokens)
        log_whitening(whitening, self._folder, is_asked_for=is_asked_for)
        write_whitening(self.connection, self.state, whitening)

    def remove_whitening(self) -> None:
        """From now on, raw vectors are stored."""
        write_whitening(self.connection, self.state, None)

    def whitened(self, raw_vectors: list[Segment], model: SentenceTransformer) -> list[Segment]:
        """Raw vectors as the index stores them."""
        whitening = read_whitening(self.connection, self.state)
        if whitening is None:
            return raw_vectors

        def whiten(keys: Keys, vectors: Matrix) -> Matrix:
            texts = None
            if whitening.token_dimension:
                texts = list(read_texts(self.connection, keys))
            return whitening.convert(vectors, "document", model, texts)

        return [segment.converted(whiten) for segment in raw_vectors]

    def store_vectors(self, segments: Sequence[Segment]) -> None:
        """Add new vectors to the pending ones; if these are too many, write a new FAISS file."""
        limit = max(MIN_PENDING, min(PENDING_SHARE * self.state.indexed_count, MAX_PENDING))
        new_count = sum(len(segment.keys) for segment in segments)
        if self.state.pending + new_count > limit:
            self.merge_pending(segments)
            return
        for segment in segments:
            vectors = [vector.astype("<f4").tobytes() for vector in segment.load()]
            checksums = map(zlib.crc32, vectors)
            rows = zip(segment.keys.tolist(), checksums, vectors, strict=True)
            self.connection.executemany("INSERT INTO pending VALUES (?, ?, ?)", rows)
        self.state.pending += new_count

    def merge_pending(self, new_segments: Sequence[Segment] = ()) -> None:
        """Write a FAISS file with the pending and new vectors; its training and its codes stay."""
        segments = [read_pending(self.connection, self.state).segment, *new_segments]
        if self._old_file is None:
            self.write_vectors(segments)
            return
        index = self._old_file.remove(read_keys(self.connection, self.state, "tombstones"))
        add_vectors(index, segments)
        self._replace_file(index)

    def write_vectors(
        self,
        segments: Sequence[Segment],
        factory: str = "auto",
        parameters: str | None = None,
    ) -> None:
        """Write a FAISS file of all vectors of the index, trained anew.

        Args:
            segments: The vectors, as they are to be stored.
            factory: "auto": by the number of vectors.
            parameters: As for ``Index.build``.
        """
        state = self.state
        if factory != "auto":
            try_factory_with_tokens(factory, state.dimension, state.token_dimension, parameters)
        index = None
        if any(len(segment.keys) for segment in segments):
            trained = train_index(factory, state.vector_dimension, parameters, segments)
            index = trained.index
            state.factory = trained.factory
            state.parameters = trained.parameters
            add_vectors(index, segments)
        self._replace_file(index)

    def _replace_file(self, index: FaissIndex | None) -> None:
        """Write a FAISS file, after which no vector is pending; None: no vector is left."""
        state = self.state
        expected_count = len(vector_keys(self.connection, state))
        vector_count = 0
        if index is not None:
            vector_count = int(index.ntotal)
        if vector_count != expected_count:
            raise ValueError(
                f"the FAISS index holds {vector_count:,} of {expected_count:,} vectors; name another factory"
            )
        self.connection.execute("DELETE FROM pending")
        self.connection.execute("DELETE FROM tombstones")
        state.pending = 0
        state.deleted = 0
        state.indexed_count = vector_count
        if vector_count:
            path = self._folder / f"vectors-{state.changes + 1}.faiss"
            state.vector_file_size, state.vector_file_sha256 = write_index(path, index)
            state.vector_file = path.name
            state.first_pending_key = state.next_key
        else:  # nothing is left that another index could be trained on
            state.vector_file = None
            state.first_pending_key = 0
            state.factory = "Flat"
            state.parameters = None


def _load_vectors(corpus: Corpus, part_number: int, is_inserted: Mask, metric: str) -> Matrix:
    vectors = corpus.vectors(part_number)
    if not is_inserted.all():
        vectors = vectors[is_inserted]
    return prepare_vectors(vectors, metric)


def _remove_faiss_files(folder: Path, *, except_name: str | None) -> None:
    """Remove FAISS files that killed or failed writers left; to be called by the one writer."""
    for path in folder.iterdir():
        if path.name != except_name and _FAISS_FILES.fullmatch(path.name):
            _remove_if_possible(path)


def _remove_if_possible(path: Path) -> None:
    with suppress(OSError):  # Windows keeps a file that a reader has mapped
        path.unlink()
