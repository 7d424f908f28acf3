"""Take documents into an index: build a new one, or extend an existing one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from ..corpus.encode import encode_documents, longest_input, warn_of_truncation
from ..corpus.folder import Corpus
from ..corpus.options import EncodeOptions
from ..corpus.records import Document, Reject, describe_rejects, preview
from ..corpus.source import Source
from ..files import LOCK_FILE
from .changes import BUILDING, Change, IndexWriter, changing, sole_encoder
from .samples import sample_corpus
from .schema import documents_with
from .state import IndexState
from .store import FILE, Store
from .whitening import Whitening, is_to_be_whitened, tell_what_was_fitted

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

_NO_ID = "no id: upsert replaces by id; name the column of the ids, or add the texts instead"
_ID_IN_INDEX = "id in the index: {!r} is there already, with other content; replace it with upsert, or give another id"
_GROUP_SIZE = 64  # records that SQLite looks up in one query
_Content = str | tuple[str, int | None]
"""All that a user gave with an id, as JSON; text and content hash of a document without one."""


def check_target(store: Store, *, overwrite: bool) -> None:
    """Refuse to build where there is anything but an index, or the remains of a killed build."""
    folder = store.folder
    file_names = set()
    if folder.is_dir():
        file_names = {path.name for path in folder.iterdir()}
    is_index = FILE in file_names or file_names <= {BUILDING, LOCK_FILE}
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
) -> Change:
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
        whitening = None
        if is_to_be_whitened(model, whiten):
            sample = sample_corpus(corpus, new_state.metric)
            whitening = Whitening.fit(model, sample, new_state.metric, with_tokens=tokens)
            tell_what_was_fitted(whitening, store.folder, is_asked_for=whiten is True)
        with changing(store, new_state) as writer:
            writer.whiten(whitening, model)
            segments = writer.insert_documents(corpus, model, strict=strict)
            if not writer.state.documents:
                raise ValueError(describe_rejects(list(corpus.rejects())))
            writer.write_words()
            writer.rewrite_vectors(segments, factory, parameters)
    return _finish(store, writer, unchanged_count=0)


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
        new_records = _NewRecords(source.unique(numbers=False), store, upsert)
        new_source = replace(source, read=new_records.read)
        corpus = _encode(model, new_source, building, options, state, strict)
        with changing(store) as writer:
            segments = writer.insert_documents(corpus, model, strict=strict)
            writer.store_vectors(segments)
    return _finish(store, writer, new_records.unchanged_count)


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


def _finish(store: Store, writer: IndexWriter, unchanged_count: int) -> Change:
    counts = writer.counts
    state = writer.state
    inserted_count = counts["added"] + counts["replaced"]
    warn_of_truncation(store.folder, counts["truncated"], inserted_count, state.max_seq_length)
    return Change(
        count=state.documents,
        added=counts["added"],
        replaced=counts["replaced"],
        unchanged=unchanged_count,
        rejected=dict(writer.rejected),
        truncated=counts["truncated"],
    )


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
            group_documents = [record for _, record in record_group if isinstance(record, Document)]
            known_ids, known_contents = self._read_known(group_documents)
            for record_number, record in record_group:
                if isinstance(record, Reject):
                    yield record
                elif _content_of(record) in known_contents:
                    self.unchanged_count += 1
                else:
                    yield self._reject_if_refused(record, record_number, known_ids)

    def _read_known(self, documents: Sequence[Document]) -> tuple[set[str], set[_Content]]:
        """The documents' ids that are in the index, and contents there that may be the same."""
        ids = [document.id for document in documents if document.id is not None]
        content_hashes: list[int] = []
        if not self._upsert:
            content_hashes = [
                document.content_hash for document in documents if document.id is None
            ]
        known_ids: set[str] = set()
        known_contents: set[_Content] = set()
        with self._store.reading() as connection:
            for stored in documents_with(connection, "id", ids):
                known_ids.add(stored.id)
                known_contents.add(_content_of(stored.document()))
            for stored in documents_with(connection, "content_hash", content_hashes):
                known_contents.add((stored.text, stored.content_hash))
        return known_ids, known_contents

    def _reject_if_refused(
        self, document: Document, record_number: int, known_ids: set[str]
    ) -> Document | Reject:
        reason = None
        if document.id is None:
            if self._upsert:
                reason = _NO_ID
        elif document.id in known_ids and not self._upsert:
            reason = _ID_IN_INDEX.format(document.id)
        if reason is None:
            return document
        return Reject(f"record {record_number}", reason, document.id, preview(document.text))


def _content_of(document: Document) -> _Content:
    """What identifies a document's content."""
    if document.id is None:
        return document.text, document.content_hash
    return document.content
