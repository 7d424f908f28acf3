"""Index of documents: built, opened, searched and changed."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack, overload

import numpy as np

from ..corpus.encode import longest_input
from ..corpus.folder import Corpus, is_corpus
from ..corpus.options import EncodeOptions
from ..corpus.records import Document, Reject
from ..corpus.source import Columns, Input, Source, open_source
from ..files import parse_path
from ..probe import Probe, resolve_model, take_probe
from .arguments import AddOptions, parse_count, parse_ids, resolve_folder
from .changes import Change, IndexWriter, changing, remove_failed_addition
from .export import export
from .factories import try_factory_with_tokens
from .ingest import build_index, check_target, extend_index
from .model import IndexModel
from .queries import Mode, SearchOptions, Vectors, choose_mode, read_queries
from .samples import draw_segment
from .schema import documents_with, read_documents
from .scoring import Segment
from .search import SearchResult
from .snapshots import Snapshots
from .state import IndexState
from .store import Store
from .vector_file import METRICS
from .verify import verify
from .where import Where
from .whitening import check_whiten, possible_token_dimension

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)

_SHOWN_IDS = 5


class Index:
    """Documents and their vectors in a folder, searched exactly or approximately.

    Make one with `build` or `open`. Every search sees the last committed change, whichever process
    made it. An index is as thread-safe as its model.

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini", "reba", pooling="mean")
        >>> index = st_reba.Index.build(model, ["Cats sleep.", "Ships sail."], "my_index")
        >>> index.search("Cats sleep", k=1)[0].text, index.get("1").text, "7" in index
        ('Cats sleep.', 'Ships sail.', False)
        >>> index.add(["Bread rises."]).added
        1
        >>> index.upsert([{"id": "0", "text": "Cats run."}]).replaced, len(index)
        (1, 3)
        >>> index.delete(["1"]).count, index.compact().deleted, index.export("my_vectors.parquet")
        (2, 2, 2)
    """

    def __init__(
        self,
        store: Store,
        model: SentenceTransformer | None,
        loading_options: dict[str, Any],
    ) -> None:
        self._store = store
        self._model = IndexModel(store, model, loading_options)
        self._snapshots = Snapshots(store)

    @classmethod
    def build(
        cls,
        model: SentenceTransformer | str | PathLike[str],
        input: Input,
        path: str | PathLike[str],
        *,
        factory: str = "auto",
        parameters: str | None = None,
        text_column: str | None = None,
        id_column: str | None = None,
        encoding: str | None = None,
        passages: str | None = None,
        batch_tokens: int | None = None,
        part_size: int | None = None,
        workers: int | None = None,
        strict: bool = True,
        overwrite: bool = False,
        whiten: bool | None = None,
        tokens: bool = True,
        show_progress_bar: bool | None = None,
        **loading: Any,
    ) -> Index:
        """Encode documents and write them to an index folder.

        If it is killed, the same call resumes it.

        Args:
            model: The model, or its folder or Hub id; its ``similarity_fn_name`` must be "cosine"
                or "dot". The index remembers its source; a folder as a path relative to the index.
            input: Texts, documents, a table, or a file or folder of them, as
                ``st_reba.corpus.encode_corpus`` takes; or the folder of a corpus that it has
                encoded.
            path: The folder to make.
            factory: "auto": exact search ("Flat") up to 200,000 vectors, beyond that "IVF4√n,Flat";
                or a FAISS factory string of inverted lists, such as "IVF1024,SQ8" or "IVF4096,PQ48np".
            parameters: FAISS search parameters, such as "nprobe=32"; None: nprobe 1/32 of the lists.
            passages: Tokens of a passage and of the overlap, such as "256:32"; None: texts are not cut.
            text_column, id_column, encoding: As for ``st_reba.corpus.open_source``.
            batch_tokens, part_size, workers: As for ``encode_corpus``; workers are Ray's, None: this
                process encodes.
            strict: Stop at the first record that cannot be taken; False: it is rejected, and
                `rejects` lists it.
            overwrite: Replace an index that is already there, at the moment when the new one is
                complete.
            whiten: Whiten the vectors, as untrained models need it for search: documents and
                queries lose a mean of their own, and directions that all documents share count for
                less. It is fitted without labels and needs 100 different texts; with 20 to 99,
                only the means are removed. None: whiten if the model is a decoder without training
                or filter.
            tokens: Add a part of up to 256 dimensions to whitened vectors of 100 texts or more: the
                mean embedding of a text's tokens. With it, mode="vectors" finds more; hybrid
                searches leave it out. False saves its space.
            show_progress_bar: Show bars; None: on a terminal.
            **loading: Of a model that is loaded, as `st_reba.load` takes them: device, dtype,
                trust_remote_code.

        Raises:
            FileExistsError: The path exists and ``overwrite`` is False, or it is not an index.
            OSError: Another process is writing there, or the disk is full. An existing index is
                kept.
            ValueError: A record, a vector (``strict``), the model's similarity or the factory
                cannot be used.

        Example:
            >>> import st_reba
            >>> model = st_reba.build("mini")
            >>> st_reba.Index.build(model, ["Cats sleep.", "Ships sail."], "my_index")
            Index('...my_index', 2 documents, dim 192, cosine)
        """
        encode_options = EncodeOptions(
            passages=passages,
            batch_tokens=batch_tokens,
            part_size=part_size,
            workers=workers,
            overwrite=overwrite,
            show_progress_bar=show_progress_bar,
        )
        read_options: dict[str, Any] = {
            "text_column": text_column,
            "id_column": id_column,
            "encoding": encoding,
        }
        store = Store(resolve_folder(path))
        source: Source | Corpus
        if isinstance(input, (str, PathLike)) and is_corpus(input):
            source = _open_corpus(Path(input), encode_options, read_options)
            columns: Columns = {}
            passages = source.header()["settings"]["passages"]
        else:
            source = open_source(input, **read_options).reject_repeated_ids()
            columns = source.columns
        check_whiten(whiten, tokens)
        check_target(store, overwrite=overwrite)
        loaded_model = resolve_model(model, loading)
        model_probe = take_probe(loaded_model)
        metric = _metric_of(loaded_model)
        dimension = model_probe.dimension
        if factory != "auto":
            token_dimension = possible_token_dimension(loaded_model, metric, whiten, tokens)
            try_factory_with_tokens(factory, dimension, token_dimension, parameters)
        elif parameters is not None:
            raise ValueError(f"parameters={parameters!r}: name the factory that they belong to")
        new_state = IndexState(
            model=model_probe.seen_from(store.folder, model).to_json(),
            metric=metric,
            dimension=dimension,
            columns=columns,
            passages=passages,
            max_seq_length=longest_input(loaded_model),
        )
        build_index(
            store,
            loaded_model,
            source,
            new_state,
            encode_options,
            factory=factory,
            parameters=parameters,
            whiten=whiten,
            tokens=tokens,
            strict=strict,
        )
        return cls(store, loaded_model, {})

    @classmethod
    def open(
        cls,
        path: str | PathLike[str],
        model: SentenceTransformer | str | PathLike[str] | None = None,
        **loading: Any,
    ) -> Index:
        """Open an index folder.

        Args:
            path: The folder.
            model: The model to encode with, or its folder or Hub id; None: the one that the index
                remembers, loaded when a text needs it.
            **loading: Of a model that is loaded, as `st_reba.load` takes them: device, dtype,
                trust_remote_code.

        Raises:
            FileNotFoundError: There is no index, or a file of it is missing.
            ValueError: A file is damaged, or the model is not the one that built the index.

        Example:
            >>> import st_reba
            >>> st_reba.build("mini", "reba", pooling="mean").save_pretrained("my_model")
            >>> _ = st_reba.Index.build("my_model", ["Cats sleep.", "Ships sail."], "my_index")
            >>> st_reba.Index.open("my_index").search("Cats sleep", k=1)[0].text
            'Cats sleep.'
        """
        index = cls(Store(resolve_folder(path)), None, loading)
        with index._store.reading() as connection:
            state = index._snapshots.read(connection).state
        if model is not None:
            index._model.loaded = resolve_model(model, loading)
            index._model.check(state)
        return index

    @overload
    def search(  # type: ignore[overload-overlap]
        self, queries: str, k: int = 10, **options: Unpack[SearchOptions]
    ) -> list[SearchResult]: ...

    @overload
    def search(
        self, queries: Sequence[str], k: int = 10, **options: Unpack[SearchOptions]
    ) -> list[list[SearchResult]]: ...

    @overload
    def search(
        self, queries: Vectors, k: int = 10, **options: Unpack[SearchOptions]
    ) -> list[Any]: ...

    def search(
        self,
        queries: str | Sequence[str] | Vectors,
        k: int = 10,
        *,
        where: Where | None = None,
        mode: Mode | None = None,
        explain: bool = False,
        vectors: Vectors | None = None,
    ) -> list[Any]:
        """Find the best documents for one or more queries.

        Args:
            queries: A text, a list of texts, or ready vectors of shape [dim] or [queries, dim], as
                the model's ``encode_query`` gives them: a whitened index whitens them itself.
            k: How many documents to return for each query; all when there are fewer.
            where: Conditions on the metadata, which must all hold:
                ``{"lang": "zh", "year": {">=": 2020}}``. The operators are =, !=, <, <=, >, >=,
                "in" (a list), "has" (a list there contains it), "exists".
            mode: "vectors": by the cosine or inner product with the query, which is the score.
                "words": by BM25, which is the score; documents without any word of the query are
                not found, and no model is needed. "hybrid": both, in a score from 0 to 1. It ranks
                the documents of one query: scores of two queries cannot be compared. None: hybrid
                for texts, vectors for an array.
            explain: Also give the scores of both sides, as ``vector_score`` and ``word_score``.
            vectors: Ready vectors of the texts, as for an array; None: the model encodes them.

        Returns:
            The results of one text or of one vector, best first; a list of such lists for several.
            Up to 32 documents with the same score are in the order they were added.

        Raises:
            ValueError: k, a query, a condition or the mode cannot be used; `OtherModelError`: the
                model did not build the index.

        Example:
            >>> import st_reba
            >>> from st_reba.corpus import Document
            >>> older = Document("Cats sleep.", "a", {"year": 2019})
            >>> newer = Document("Cats purr.", "b", {"year": 2024})
            >>> model = st_reba.build("mini", "reba", pooling="mean")
            >>> index = st_reba.Index.build(model, [older, newer], "my_index")
            >>> [result.id for result in index.search("Cats sleep.", where={"year": {">=": 2020}})]
            ['b']
            >>> [result.id for result in index.search("purrs", mode="words")]
            ['b']
        """
        k = parse_count(k, "k")
        parsed_queries = read_queries(queries, vectors)
        mode = choose_mode(mode, parsed_queries)
        if parsed_queries.texts == []:
            return []
        needs_encoding = parsed_queries.vectors is None and mode != "words"
        if needs_encoding:
            encoded = self._model.load().encode_query(parsed_queries.texts, show_progress_bar=False)
            parsed_queries = replace(parsed_queries, vectors=np.asarray(encoded))
        with self._store.reading() as connection:
            snapshot = self._snapshots.read(connection)
            model = None
            if snapshot.reads_tokens(mode, parsed_queries):
                model = self._model.load()
            if mode != "words":
                # The index on disk may have been rebuilt with another model.
                self._model.check(
                    snapshot.state, load_if_needed=needs_encoding or model is not None
                )
            results = snapshot.search(
                connection, mode, parsed_queries, model, k, where, explain=explain
            )
        if parsed_queries.is_single:
            return results[0]
        return results

    @overload
    def get(self, ids: str) -> Document | None: ...  # type: ignore[overload-overlap]

    @overload
    def get(self, ids: Sequence[str]) -> list[Document | None]: ...

    def get(self, ids: str | Sequence[str]) -> Any:
        """Documents by id; None in place of one that is not there."""
        if isinstance(ids, str):
            return self.get([ids])[0]
        document_ids = parse_ids(ids)
        with self._store.reading() as connection:
            found_documents = documents_with(connection, "id", document_ids)
            documents_by_id = {stored.id: stored.document() for stored in found_documents}
        return [documents_by_id.get(document_id) for document_id in document_ids]

    def __contains__(self, document_id: object) -> bool:
        return isinstance(document_id, str) and self.get(document_id) is not None

    def __iter__(self) -> Iterator[Document]:
        """All documents in the order they were added, as they are when the loop begins."""
        with self._store.reading() as connection:
            for stored in read_documents(connection):
                yield stored.document()

    def __len__(self) -> int:
        return self._store.state().documents

    def add(self, input: Input, **options: Unpack[AddOptions]) -> Change:
        """Add documents. If it is killed, the same call resumes it, and nothing is added twice.

        A document that is there already, the same in all its fields, is left as it is, and not
        encoded. So is one without an id if the index has the same content without an id. Metadata
        that `open_source` adds to texts of a folder are compared too, except for line and row.

        Args:
            input: As for `build`.
            **options: text_column, id_column, encoding, batch_tokens, part_size, workers, strict,
                show_progress_bar, as for `build`; passages are those of the build, and so are the
                columns, where the input has them.

        Raises:
            ValueError: With ``strict``: an id is there with another text (use `upsert`), or a
                record cannot be taken.
        """
        return self._extend(input, upsert=False, **options)

    def upsert(self, input: Input, **options: Unpack[AddOptions]) -> Change:
        """Add documents with ids, replacing those that have the same ids; otherwise like `add`."""
        return self._extend(input, upsert=True, **options)

    def _extend(
        self,
        input: Input,
        *,
        upsert: bool,
        text_column: str | None = None,
        id_column: str | None = None,
        encoding: str | None = None,
        batch_tokens: int | None = None,
        part_size: int | None = None,
        workers: int | None = None,
        strict: bool = True,
        show_progress_bar: bool | None = None,
    ) -> Change:
        state = self._store.state()
        source = open_source(
            input,
            text_column=text_column,
            id_column=id_column,
            encoding=encoding,
            remembered_columns=state.columns,
        )
        self._model.check(state)
        encode_options = EncodeOptions(
            batch_tokens=batch_tokens,
            part_size=part_size,
            workers=workers,
            show_progress_bar=show_progress_bar,
        )
        model = self._model.load()
        return extend_index(
            self._store, model, source, encode_options, upsert=upsert, strict=strict
        )

    def delete(self, ids: Iterable[str]) -> Change:
        """Delete documents by id: they are no longer found. `compact` removes them from the disk.

        A warning names ids that are not there.
        """
        absent_ids = set(parse_ids(ids))
        deleted_count = 0
        with changing(self._store) as writer:
            for stored in list(documents_with(writer.connection, "id", absent_ids)):
                if stored.id in absent_ids:  # SQLite ends an id at NUL
                    absent_ids.remove(stored.id)
                    writer.remove(stored)
                    deleted_count += 1
            if absent_ids:
                shown_ids = ", ".join(sorted(absent_ids)[:_SHOWN_IDS])
                logger.warning("%s: not in the index: %s", self.path, shown_ids)
        return Change(writer.state.documents, deleted=deleted_count)

    def compact(
        self,
        *,
        factory: str | None = None,
        parameters: str | None = None,
        whiten: bool | None = None,
        tokens: bool = True,
    ) -> Change:
        """Rewrite the FAISS file and the words; deleted data is removed from the disk.

        No document is encoded again. The FAISS file is also rewritten automatically when many
        vectors have been added.

        Args:
            factory, parameters: Another FAISS index, as for `build`; None: the same, with its
                training and its codes.
            whiten: True: fit the whitening on the present documents, some of whose sentences the
                model encodes for this, and apply it to all. False: change all vectors back to what
                the model gave. None: leave it as it is.
            tokens: With ``whiten=True``, as for `build`.
        """
        if factory is None and parameters is not None:
            raise ValueError(
                f"parameters={parameters!r}: these are for another index; name its factory"
            )
        check_whiten(whiten, tokens)
        if not tokens and not whiten:
            raise ValueError("tokens=False: give whiten=True too, which fits everything again")
        if whiten:
            # Before the change begins: other writers would wait while the model is loaded.
            self._model.check(self._store.state())
        with changing(self._store) as writer:
            deleted_count = writer.state.deleted
            writer.write_words()
            if factory is None and whiten is None:
                writer.merge_pending()
            else:
                segments = writer.stored_vectors()
                if whiten is not None:
                    segments = self._whiten_anew(writer, segments, whiten=whiten, tokens=tokens)
                if factory is None:
                    factory = writer.state.factory
                    parameters = writer.state.parameters
                writer.write_vectors(segments, factory, parameters)
        if not self._store.clear_log():
            logger.warning(
                "%s: being read, so deleted data stays on the disk until the next compact",
                self.path,
            )
        remove_failed_addition(self.path)
        return Change(writer.state.documents, deleted=deleted_count)

    def _whiten_anew(
        self, writer: IndexWriter, segments: list[Segment], *, whiten: bool, tokens: bool
    ) -> list[Segment]:
        """Replace or remove the whitening; returns all vectors as they are to be stored."""
        # The sample is drawn first, so that no other raw vectors are computed for it.
        raw_sample, *raw_vectors = writer.raw_vectors([draw_segment(segments), *segments])
        if not whiten:
            writer.remove_whitening()
            return raw_vectors
        self._model.check(writer.state)  # another model's index may have taken its place
        model = self._model.load()
        writer.fit_whitening(raw_sample, model, with_tokens=tokens, is_asked_for=True)
        return writer.whitened(raw_vectors, model)

    def export(self, out: str | PathLike[str], *, overwrite: bool = False) -> int:
        """Write a consistent copy of all vectors for other tools; returns their number.

        Args:
            out: ``X.parquet``: the columns key, those of the document, passage and vector.
                ``X.faiss``: one FAISS file of the vectors, its ids the keys. A quantized factory
                gives approximate vectors. They are the vectors that are searched, without the
                dimensions of tokens: of a whitened index, ``X.parquet.whitening.safetensors``
                beside it (or ``X.faiss…``) is what queries need,
                `st_reba.Filter.load(file).apply(query_vectors, "query")`.
            overwrite: Replace a file.
        """
        out_path = parse_path(out, "out")
        with self._store.reading() as connection:
            snapshot = self._snapshots.read(connection, check_digest=True)
            return export(snapshot, connection, out_path, overwrite=overwrite)

    def rejects(self) -> list[Reject]:
        """Records that the last build or addition rejected."""
        with self._store.reading() as connection:
            rows = connection.execute("SELECT place, reason, id, text FROM rejects")
            return [Reject(*row) for row in rows]

    def info(self) -> dict[str, Any]:
        """Facts about the index, as JSON values."""
        state = self._store.state()
        model_probe = Probe.from_json(state.model)
        file_sizes = [path.stat().st_size for path in self.path.iterdir() if path.is_file()]
        facts = asdict(state)
        facts |= {
            "path": str(self.path),
            "vectors": state.indexed_count - state.deleted + state.pending,
            "bytes": sum(file_sizes),
            "model": str(model_probe),
            "model_source": model_probe.source,
            "revision": model_probe.revision,
        }
        return facts

    def verify(self) -> dict[str, Any]:
        """Compare every file with the digests that were kept, and search.

        Returns:
            The same as `info`.

        Raises:
            ValueError: A file is not what was written.
        """
        with self._store.reading() as connection:
            verify(self._snapshots.read(connection, check_digest=True), connection)
        return self.info()

    @property
    def path(self) -> Path:
        """The folder of the index."""
        return self._store.folder

    def close(self) -> None:
        """Release the files and the model."""
        self._snapshots.latest = None
        self._model.loaded = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = self._store.state()
        size = f"{state.documents} documents, dim {state.dimension}"
        return f"Index({str(self.path)!r}, {size}, {state.metric})"


def _metric_of(model: SentenceTransformer) -> str:
    metric = model.similarity_fn_name
    if metric not in METRICS:
        choices = " or ".join(METRICS)
        raise ValueError(f"the model's similarity_fn_name is {metric!r}; an index needs {choices}")
    return metric


def _open_corpus(path: Path, encode_options: EncodeOptions, read_options: dict[str, Any]) -> Corpus:
    """Open a corpus that is complete; options of encoding are refused, as it is encoded already."""
    options = {
        **read_options,
        "batch_tokens": encode_options.batch_tokens,
        "part_size": encode_options.part_size,
        "workers": encode_options.workers,
        "passages": encode_options.passages,
    }
    for name, value in options.items():
        if value is not None:
            raise ValueError(f"{name}={value!r}: {path} is encoded already; leave it out")
    corpus = Corpus(path)
    corpus.check_complete()
    return corpus
