"""Take documents into an index: build a new one, or extend an existing one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from sqlite3 import Connection
from typing import TYPE_CHECKING, Literal

from ..corpus.encode import encode_documents, longest_input, warn_of_truncation
from ..corpus.folder import Corpus
from ..corpus.options import EncodeOptions
from ..corpus.records import Document, Reject, describe_rejects, preview
from ..corpus.source import Source
from ..files import LOCK_FILE
from .changes import BUILDING, Change, IndexWriter, changing, sole_encoder
from .samples import draw_segment
from .schema import IN_JSON_ARRAY
from .state import IndexState
from .store import DATABASE_FILE, Store
from .whitening import should_whiten

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

_NO_ID = "no id: upsert replaces by id; name the column of the ids, or add the texts instead"
_ID_IN_INDEX = "id in the index: {!r} is that of another document there; replace it with upsert, or give another id"
_GROUP_SIZE = 64  # records that SQLite looks up in one query


def check_target(store: Store, *, overwrite: bool) -> None:
    """Refuse to build where there is anything but an index, or the remains of a killed build."""
    folder = store.folder
    file_names = set()
    if folder.is_dir():
        file_names = {path.name for path in folder.iterdir()}
    is_index = DATABASE_FILE in file_names or file_names <= {BUILDING, LOCK_FILE}
    if folder.is_file() or not is_index:
        raise FileExistsError(
            f"{folder}: not an index, so nothing is written there; give another path"
        )
    with suppress(FileNotFoundError):
        store.state()
        if not overwrite:
            raise FileExistsError(
                f"{folder}: already there; give another path, or overwrite=True to replace the index"
            )


def build_index(
    store: Store,
    model: SentenceTransformer,
    source: Source | Corpus,
    new_state: IndexState,
    options: EncodeOptions,
    *,
    factory: str,
    parameters: str | None,
    whiten: bool | None,
    tokens: bool,
    strict: bool,
) -> None:
    """Build an index of documents, or of an encoded corpus.

    Args:
        store: The store of the index.
        model: The model.
        source: The documents.
        new_state: The state of an index without documents.
        options: Options of encoding; ``overwrite`` replaces an index.
        factory, parameters, whiten, tokens, strict: As for ``Index.build``.
    """
    with sole_encoder(store.folder) as building:
        # Checked again, as another build may have finished meanwhile.
        check_target(store, overwrite=options.overwrite)
        if isinstance(source, Corpus):
            corpus = source
            strict = False
            _check_length(corpus.header()["settings"]["max_seq_length"], new_state)
        else:
            corpus = _encode(model, source, building, options, new_state, strict)
        with changing(store, new_state) as writer:
            raw_vectors = writer.insert_documents(corpus, strict=strict)
            if not writer.state.documents:
                raise ValueError(describe_rejects(list(corpus.rejects())))
            if should_whiten(model, whiten):
                writer.fit_whitening(
                    draw_segment(raw_vectors),
                    model,
                    with_tokens=tokens,
                    is_asked_for=whiten is True,
                )
            writer.write_words()
            writer.write_vectors(writer.whitened(raw_vectors, model), factory, parameters)
    _warn_of_truncation(store, writer)


def extend_index(
    store: Store,
    model: SentenceTransformer,
    source: Source,
    options: EncodeOptions,
    *,
    upsert: bool,
    strict: bool,
) -> Change:
    """Add the documents that an index does not have; arguments as for ``Index.add``."""
    with sole_encoder(store.folder) as building:
        state = store.state()
        _check_length(longest_input(model), state)
        new_records = _NewRecords(source.reject_repeated_ids(number_is_id=False), store, upsert)
        new_source = replace(source, read=new_records.read)
        corpus = _encode(model, new_source, building, options, state, strict)
        with changing(store) as writer:
            raw_vectors = writer.insert_documents(corpus, strict=strict)
            writer.store_vectors(writer.whitened(raw_vectors, model))
    _warn_of_truncation(store, writer)
    return Change(
        count=writer.state.documents,
        added=writer.counts["added"],
        replaced=writer.counts["replaced"],
        unchanged=new_records.unchanged_count,
        rejected=dict(writer.rejected),
        truncated=writer.counts["truncated"],
    )


def _check_length(max_seq_length: int | None, state: IndexState) -> None:
    if max_seq_length != state.max_seq_length:
        raise ValueError(
            f"max_seq_length is {max_seq_length}, but {state.max_seq_length} in the index; set the model's to that"
        )


def _encode(
    model: SentenceTransformer,
    source: Source,
    building: Path,
    options: EncodeOptions,
    state: IndexState,
    strict: bool,
) -> Corpus:
    corpus = Corpus(building)
    if strict:
        source = source.strict()
    corpus_options = replace(options, passages=state.passages, overwrite=True)
    encode_documents(model, source, corpus, corpus_options)
    return corpus


def _warn_of_truncation(store: Store, writer: IndexWriter) -> None:
    counts = writer.counts
    inserted_count = counts["added"] + counts["replaced"]
    max_seq_length = writer.state.max_seq_length
    warn_of_truncation(store.folder, counts["truncated"], inserted_count, max_seq_length)


class _NewRecords:
    """The records of a source that an index does not have."""

    def __init__(self, source: Source, store: Store, upsert: bool) -> None:
        self.unchanged_count = 0
        self._source = source
        self._store = store
        self._upsert = upsert

    def read(self) -> Iterator[Document | Reject]:
        numbered_records = enumerate(self._source.read())
        while record_group := list(islice(numbered_records, _GROUP_SIZE)):
            documents = [record for _, record in record_group if isinstance(record, Document)]
            with self._store.reading() as connection:
                ids = [document.id for document in documents]
                known_ids = _known_values(connection, "id", ids)
                content_hashes = [document.content_hash for document in documents]
                known_hashes = _known_values(connection, "content_hash", content_hashes)
            for record_number, record in record_group:
                if isinstance(record, Reject):
                    yield record
                elif record.id is None and self._upsert:
                    yield _reject(record, record_number, _NO_ID)
                elif record.content_hash in known_hashes:
                    self.unchanged_count += 1
                elif record.id in known_ids and not self._upsert:
                    yield _reject(record, record_number, _ID_IN_INDEX.format(record.id))
                else:
                    yield record


def _known_values(
    connection: Connection, column: Literal["id", "content_hash"], values: Sequence[str | None]
) -> set[str]:
    """Those of some values that documents of the index have in a column."""
    query = f"SELECT {column} FROM documents WHERE {column} {IN_JSON_ARRAY}"
    return {value for (value,) in connection.execute(query, (json.dumps(values),))}


def _reject(document: Document, record_number: int, reason: str) -> Reject:
    return Reject(f"record {record_number}", reason, document.id, preview(document.text))
