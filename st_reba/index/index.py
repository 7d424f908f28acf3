"""Index of documents: built, opened, searched and changed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ..corpus.encode import longest_input
from ..corpus.folder import Corpus, is_corpus
from ..corpus.records import Document, Reject
from ..corpus.source import Input, open_source
from ..storage.files import parse_path
from ..storage.probe import Probe, check, load, located, probe, remembered, version_of
from .arguments import parse_count, parse_ids, resolve_folder
from .changes import Change, changing, check_target, one_writer, take_in
from .export import export, verify
from .queries import Mode, Queries, Question, Vectors, check_mode, choose_mode, read_queries
from .query_terms import read_terms
from .search import Snapshot
from .store import State, Store, documents, documents_with, read_state
from .vectors import METRICS, scaled_queries, try_factory
from .where import Where

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)


class OtherModelError(ValueError):
    """The model is not the one that built the index."""


class Index:
    """Documents and their vectors in a folder, searched exactly or approximately. Make one with `build` or `open`.

    Every search sees the last change that was committed, by whichever process. Safe from several threads as far as the
    model is.

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini", "reba", pooling="mean")
        >>> index = st_reba.Index.build(model, ["Cats sleep.", "Ships sail."], "my_index")
        >>> index.search("Cats sleep", k=1)[0].text, index.get("1").text, "7" in index
        ('Cats sleep.', 'Ships sail.', False)
        >>> index.add(["Bread rises."]).added, index.upsert([{"id": "0", "text": "Cats run."}]).replaced, len(index)
        (1, 1, 3)
        >>> index.delete(["1"]).count, index.compact().deleted, index.export("my_vectors.parquet")
        (2, 2, 2)
    """

    def __init__(self, store: Store, model: SentenceTransformer | None, options: dict[str, Any]) -> None:
        self._store, self._model, self._options = store, model, options
        self._snapshot: Snapshot | None = None
        self._lock, self._loading = threading.Lock(), threading.Lock()
        self._absent_words_told = False
        self._checked: tuple[Any, Any] = (None, None)  # version of the model, and the probe that it was compared with

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
        show_progress_bar: bool | None = None,
        **loading: Any,
    ) -> Index:
        """Encode documents and write them to an index folder. A build that is killed goes on with the same call.

        Args:
            model: The model, or its folder or Hub id; its ``similarity_fn_name`` must be "cosine" or "dot". The index
                remembers where it came from; a folder relative to the index.
            input: Texts, documents, a table, or a file or folder of them, as ``st_reba.corpus.encode_corpus`` takes; or
                the folder of a corpus that it has encoded.
            path: The folder to make.
            factory: "auto": exact search ("Flat") up to 200,000 vectors, beyond that "IVF4√n,Flat"; or a FAISS factory
                string of inverted lists, as "IVF1024,SQ8" or "IVF4096,PQ48np".
            parameters: FAISS search parameters, as "nprobe=32"; None: nprobe 1/32 of the lists.
            passages: Tokens of a passage and of the overlap, as "256:32"; None: texts are not cut.
            strict: Stop at the first record that cannot be taken; else it is set aside, see `rejects`.
            overwrite: Replace an index that is already there, at the moment when the new one is complete.
            text_column, id_column, encoding, batch_tokens, part_size, workers, show_progress_bar: As for
                ``encode_corpus``.
            **loading: Of a model that is loaded, as `st_reba.load` takes them: device, dtype, trust_remote_code.

        Raises:
            FileExistsError: The path exists and ``overwrite`` is False, or it is not an index.
            OSError: Another process is writing there, or the disk is full. An index that was there still is.
            ValueError: A record, a vector (``strict``), the model's similarity or the factory cannot be used.

        Example:
            >>> import st_reba
            >>> st_reba.Index.build(st_reba.build("mini"), ["Cats sleep.", "Ships sail."], "my_index")
            Index('...my_index', 2 documents, dim 192, cosine)
        """
        store, source = Store(resolve_folder(path)), input
        running: dict[str, Any] = {"batch_tokens": batch_tokens, "part_size": part_size, "workers": workers}
        reading = {"text_column": text_column, "id_column": id_column, "encoding": encoding}
        if isinstance(input, (str, PathLike)) and is_corpus(input):
            given = {**running, **reading, "passages": passages}
            if useless := [name for name, value in given.items() if value is not None]:
                raise ValueError(f"{useless[0]}={given[useless[0]]!r}: {input} is encoded already; leave it out")
            source, columns = Corpus(input), dict[str, str | None]()
            source.verify()
            passages = source.header()["settings"]["passages"]
        else:
            source = open_source(input, **reading).unique()
            columns = source.columns
        check_target(store, overwrite=overwrite)
        loaded = load(model, loading)
        mark, metric = probe(loaded), loaded.similarity_fn_name
        if metric not in METRICS:
            raise ValueError(f"the model's similarity_fn_name is {metric!r}; an index needs {' or '.join(METRICS)}")
        if factory == "auto" and parameters is not None:
            raise ValueError(f"parameters={parameters!r}: name the factory that they are of")
        if factory != "auto":
            try_factory(factory, mark.dimension, parameters)
        about, length = remembered(model, mark, store.folder), longest_input(loaded)
        fresh = State(about, metric, mark.dimension, columns, passages, length)
        running |= {"factory": factory, "parameters": parameters, "show_progress_bar": show_progress_bar}
        take_in(store, loaded, source, strict=strict, fresh=fresh, overwrite=overwrite, **running)
        return cls(store, loaded, {})

    @classmethod
    def open(
        cls, path: str | PathLike[str], model: SentenceTransformer | str | PathLike[str] | None = None, **loading: Any
    ) -> Index:
        """Open an index folder.

        Args:
            path: The folder.
            model: The model to encode with, or its folder or Hub id; None: the one that the index remembers, loaded
                when a text needs it.
            **loading: Of a model that is loaded, as `st_reba.load` takes them: device, dtype, trust_remote_code.

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
        with index._store.reading() as tx:
            state = index._present(tx).state
        if model is not None:
            index._model = load(model, loading)
            index._check(state)
        return index

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
            queries: A text, a list of texts, or ready vectors of shape [dim] or [queries, dim].
            k: How many documents to return for each query; all when there are fewer.
            where: Conditions on the metadata, which must all hold: ``{"lang": "zh", "year": {">=": 2020}}``. The
                operators are =, !=, <, <=, >, >=, "in" (a list), "has" (a list there contains it), "exists".
            mode: "vectors": by the cosine or inner product with the query, which is the score. "words": by BM25, which
                is the score; documents without any word of the query are not found, and no model is needed. "hybrid":
                both, in a score from 0 to 1. It ranks the documents of one query: scores of two queries cannot be
                compared. None: hybrid for texts, vectors for an array, or if the index has no words.
            explain: Also give the scores of both sides, as ``vector_score`` and ``word_score``.
            vectors: Ready vectors of the texts, [dim] or [queries, dim]; None: the model encodes them.

        Returns:
            The results of one text or of one vector, best first; a list of such lists for several. Up to 32 documents
            with the same score are in the order they were added.

        Raises:
            ValueError: k, a query, a condition or the mode cannot be used; `OtherModelError`: the model did not build
                the index.

        Example:
            >>> import st_reba
            >>> from st_reba.corpus import Document
            >>> texts = [Document("Cats sleep.", "a", {"year": 2019}), Document("Cats purr.", "b", {"year": 2024})]
            >>> index = st_reba.Index.build(st_reba.build("mini", "reba", pooling="mean"), texts, "my_index")
            >>> [result.id for result in index.search("Cats sleep.", where={"year": {">=": 2020}})]
            ['b']
            >>> [result.id for result in index.search("purrs", mode="words")]
            ['b']
        """
        k = parse_count(k, "k")
        asked = read_queries(queries, vectors)
        check_mode(mode, asked)
        if asked.texts == []:
            return []
        ready_vectors, known = asked.vectors, self._checked[1]
        if ready_vectors is None and mode != "words":
            ready_vectors, known = self._encoded(asked.texts or []), None
        with self._store.reading() as tx:
            snapshot = self._present(tx)
            state = snapshot.state
            chosen = choose_mode(mode, asked, has_words=state.words is not None, index_folder=self.path)
            # Another model's index may have taken the place of the one that vectors are for.
            if self._model is not None and chosen != "words" and known != state.model:
                self._check(state)
            if mode is None and state.words is None and asked.texts is not None:
                self._tell_of_absent_words()
            question = self._question(chosen, asked, ready_vectors, state)
            results = snapshot.search(tx, question, k, where, explain=explain)
        return results[0] if asked.is_single else results

    def _encoded(self, texts: list[str]) -> Vectors:
        return np.asarray(self._its_model().encode_query(texts, show_progress_bar=False))

    def _question(self, mode: Mode, asked: Queries, vectors: Vectors | None, state: State) -> Question:
        scaled_vectors = None
        if mode != "words" and vectors is not None:
            scaled_vectors = scaled_queries(vectors, state.dimension, state.metric)
        query_terms = None
        if mode != "vectors" and state.words is not None:
            query_terms = read_terms(state.words, asked.texts or [])
        return Question(scaled_vectors, query_terms)

    def _tell_of_absent_words(self) -> None:
        if not self._absent_words_told:
            logger.warning(
                "%s: no words yet, so vectors alone are searched; Index.compact (st-reba prune %s --compact) adds "
                "words, and mode='vectors' needs none",
                self.path, self.path,
            )  # fmt: skip
            self._absent_words_told = True

    def _its_model(self) -> SentenceTransformer:
        with self._loading:
            if self._model is None:
                place, revision = located(Probe.from_json(self._store.state().model), self.path)
                self._model = load(place, {**revision, **self._options})
            return self._model

    def _check(self, state: State) -> None:
        model = self._its_model()
        wanted = (version_of(model), state.model)
        if self._checked != wanted:
            try:
                check(Probe.from_json(state.model), model, "the index")
            except ValueError as error:
                raise OtherModelError(str(error)) from error
            self._checked = wanted

    def _present(self, tx: Any, *, check_digest: bool = False) -> Snapshot:
        """The index as a transaction sees it; ``check_digest``: its FAISS file is compared with its SHA-256."""
        with self._lock:
            state = read_state(tx, self._store.path)
            while True:
                try:
                    if self._snapshot is None or self._snapshot.state != state:
                        self._snapshot = Snapshot.read(tx, self._store, state, self._snapshot)
                    if check_digest and self._snapshot.file is not None:
                        self._snapshot.file.check_digest()
                    return self._snapshot
                except FileNotFoundError:
                    # A writer may have replaced the file since this transaction began: so it begins anew.
                    tx.execute("ROLLBACK")
                    tx.execute("BEGIN")
                    gone, state = state, read_state(tx, self._store.path)
                    if state.changes == gone.changes:
                        raise

    def get(self, ids: str | Sequence[str]) -> Any:
        """Documents by id; None in place of one that is not there."""
        wanted = [ids] if isinstance(ids, str) else parse_ids(ids)
        with self._store.reading() as tx:
            there = {one.id: one.document() for one in documents_with(tx, "id", wanted)}
        return there.get(ids) if isinstance(ids, str) else [there.get(one) for one in wanted]

    def __contains__(self, identity: object) -> bool:
        return isinstance(identity, str) and self.get(identity) is not None

    def __iter__(self) -> Iterator[Document]:
        """All documents in the order they were added, as they are when the loop begins."""
        with self._store.reading() as tx:
            yield from (one.document() for one in documents(tx))

    def __len__(self) -> int:
        return self._store.state().documents

    def add(self, input: Input, **options: Any) -> Change:
        """Add documents. An addition that is killed goes on with the same call, and nothing is added twice.

        A document whose id, text and metadata are there already is left as it is, and not encoded. So is a text without
        an id if the index has the same text and metadata without an id (and, of a .txt file, from the same file).

        Args:
            input: As for `build`.
            **options: text_column, id_column, encoding, batch_tokens, part_size, workers, strict, show_progress_bar, as
                for `build`; columns and passages are those of the build.

        Raises:
            ValueError: With ``strict``: an id is there with another text (use `upsert`), or a record cannot be taken.
        """
        return self._take(input, upsert=False, **options)

    def upsert(self, input: Input, **options: Any) -> Change:
        """Add documents that have ids, in the place of those with the same ids; otherwise as `add`."""
        return self._take(input, upsert=True, **options)

    def _take(
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
        state, given = self._store.state(), {"text_column": text_column, "id_column": id_column}
        columns = {**state.columns, **{name: one for name, one in given.items() if one is not None}}
        source = open_source(input, **columns, encoding=encoding)
        self._check(state)
        running: dict[str, Any] = {"batch_tokens": batch_tokens, "part_size": part_size, "workers": workers}
        running |= {"strict": strict, "show_progress_bar": show_progress_bar}
        return take_in(self._store, self._its_model(), source, upsert=upsert, **running)

    def delete(self, ids: Iterable[str]) -> Change:
        """Delete documents by id: they are no longer found. `compact` removes them from the disk.

        A warning names ids that are not there.
        """
        wanted = dict.fromkeys(parse_ids(ids))
        with changing(self._store) as writer:
            found = [one for one in documents_with(writer.tx, "id", wanted) if one.id in wanted]  # NUL ends it
            if absent := wanted.keys() - {one.id for one in found}:
                logger.warning("%s: not in the index: %s", self.path, ", ".join(sorted(absent)[:5]))
            for document in found:
                writer.remove(document)
        return Change(writer.state.documents, deleted=len(found))

    def compact(self, *, factory: str | None = None, parameters: str | None = None) -> Change:
        """Write the FAISS file and the words anew, without what was deleted, which leaves the disk.

        Nothing is encoded again. An index that had no words has them then. The FAISS file is also written anew by
        itself when many vectors were added.

        Args:
            factory, parameters: Another FAISS index, as for `build`; None: the same, with its training and its codes.
        """
        if factory is None and parameters is not None:
            raise ValueError(f"parameters={parameters!r}: of another index; name its factory")
        with changing(self._store) as writer:
            deleted = writer.state.deleted
            writer.write_words()
            writer.fold([], factory, parameters)
        if not self._store.clear_log():
            logger.warning("%s: being read, so what was deleted is on the disk until the next compact", self.path)
        with suppress(BlockingIOError), one_writer(self.path, patience=0):
            pass  # the texts of an addition that failed leave the disk too
        return Change(writer.state.documents, deleted=deleted)

    def export(self, out: str | PathLike[str], *, overwrite: bool = False) -> int:
        """Write all vectors, as they are at one moment, for other tools; returns their number.

        Args:
            out: ``X.parquet``: the columns key, id, text, metadata (JSON), passage and vector. ``X.faiss``: one FAISS
                file of the vectors, its ids the keys. A quantized factory gives approximate vectors.
            overwrite: Replace a file.
        """
        target = parse_path(out, "out")
        with self._store.reading() as tx:
            return export(self._present(tx, check_digest=True), tx, target, overwrite=overwrite)

    def rejects(self) -> list[Reject]:
        """Records that the last build or addition set aside."""
        with self._store.reading() as tx:
            return [Reject(*row) for row in tx.execute("SELECT place, reason, id, text FROM rejects")]

    def info(self) -> dict[str, Any]:
        """Facts about the index, as JSON values."""
        state = self._store.state()
        model = Probe.from_json(state.model)
        size = sum(one.stat().st_size for one in self.path.iterdir() if one.is_file())
        found = {"path": str(self.path), **asdict(state), "vectors": state.filed - state.deleted + state.pending}
        return {**found, "bytes": size, "model": str(model), "model_source": model.source, "revision": model.revision}

    def verify(self) -> dict[str, Any]:
        """Compare every file with the digests that were kept, and search; returns the same as `info`.

        Raises:
            ValueError: A file is not what was written, or no search can use the index's parameters.
        """
        with self._store.reading() as tx:
            verify(self._present(tx, check_digest=True), tx)
        return self.info()

    @property
    def path(self) -> Path:
        """The folder of the index."""
        return self._store.folder

    def close(self) -> None:
        """Let go of the files and the model."""
        self._snapshot = self._model = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = self._store.state()
        return f"Index({str(self.path)!r}, {state.documents} documents, dim {state.dimension}, {state.metric})"
