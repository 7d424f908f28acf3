"""Index of documents: built, opened, searched and changed."""

from __future__ import annotations

import logging
import operator
import os
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from ..corpus.encode import Settings
from ..corpus.folder import Corpus, is_corpus
from ..corpus.records import Document, Reject
from ..corpus.source import Input, open_source, unique
from ..probe import Probe, check, load, located, version_of
from .building import add_into, build_into, check_target, is_index, loaded_model, one_writer
from .changes import Change, compact, delete
from .export import about, export, verify
from .search import Snapshot, query_texts
from .store import State, Store, all_documents, documents, read_state
from .vectors import scaled_queries
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

    def __init__(self, path: Path, model: SentenceTransformer | None, options: dict[str, Any]) -> None:
        self._path, self._store, self._model, self._options = path, Store(path), model, options
        self._snapshot: Snapshot | None = None
        self._lock = threading.Lock()
        self._checked: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

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
        passages: str | None = None,
        strict: bool = True,
        overwrite: bool = False,
        workers: int | None = None,
        settings: Settings | None = None,
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
                string, as "HNSW32" or "IVF4096,PQ48,RFlat".
            parameters: FAISS search parameters, as "nprobe=32"; None: nprobe 1/32 of the lists, efSearch 64.
            passages: Tokens of a passage and of the overlap, as "256:32"; None: texts are not cut.
            strict: Stop at the first record that cannot be taken; else it is set aside, see `rejects`.
            overwrite: Replace an index that is already there, at the moment when the new one is complete.
            text_column, id_column, workers, settings, show_progress_bar: As for ``encode_corpus``.
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
        folder, settings = Path(os.path.realpath(path)), settings or Settings()
        if isinstance(input, (str, PathLike)) and is_corpus(input):
            source: Any = Corpus(input)
        else:
            columns: dict[str, Any] = {"text_column": text_column, "id_column": id_column}
            source = unique(open_source(input, **columns, encoding=settings.encoding))
        check_target(folder, overwrite=overwrite)
        loaded = loaded_model(model, loading)
        running: dict[str, Any] = {"source_of": model, "strict": strict, "workers": workers}
        running["show_progress_bar"] = show_progress_bar
        build_into(folder, loaded, source, settings, passages, factory, parameters, **running)
        return cls(folder, loaded, {})

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
        folder = Path(os.path.realpath(path))
        if not is_index(folder):
            raise FileNotFoundError(f"{folder}: no index is there; st-reba index makes one")
        index = cls(folder, None, loading)
        with index._store.reading() as tx:
            index._present(tx)
        if model is not None:
            index._model = loaded_model(model, loading)
            index._check(index._model, index._state())
        return index

    def search(
        self,
        queries: str | Sequence[str] | NDArray[np.floating[Any]],
        k: int = 10,
        *,
        where: Where | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
    ) -> list[Any]:
        """Find the nearest documents of one or more queries.

        Args:
            queries: A text, a list of texts, or ready vectors of shape [dim] or [queries, dim].
            k: How many documents to return for each query; all when there are fewer.
            where: Conditions on the metadata, which must all hold: ``{"lang": "zh", "year": {">=": 2020}}``. The
                operators are =, !=, <, <=, >, >=, "in" (a list), "has" (a list there contains it), "exists".
            prompt: Put in front of the queries instead of the model's own prompt.
            batch_size: Queries a forward pass.

        Returns:
            The results of one text or of one vector, best first; a list of such lists for several. Documents with the
            same score are in the order they were added.

        Raises:
            ValueError: k, a query or a condition cannot be used; `OtherModelError`: the model did not build the index.

        Example:
            >>> import st_reba
            >>> from st_reba.corpus import Document
            >>> texts = [Document("Cats sleep.", "a", {"year": 2019}), Document("Cats purr.", "b", {"year": 2024})]
            >>> index = st_reba.Index.build(st_reba.build("mini", "reba", pooling="mean"), texts, "my_index")
            >>> [result.id for result in index.search("Cats sleep.", where={"year": {">=": 2020}})]
            ['b']
        """
        if isinstance(k, bool) or (k := operator.index(k)) < 1:
            raise ValueError(f"k={k} must be a whole number from 1 on")
        single = isinstance(queries, str) or (isinstance(queries, np.ndarray) and queries.ndim == 1)
        if isinstance(queries, np.ndarray):
            vectors: NDArray[Any] = np.atleast_2d(queries)
        else:
            texts = query_texts([queries] if isinstance(queries, str) else queries)
            if not texts:
                return []
            options: dict[str, Any] = {"prompt": prompt, "batch_size": batch_size, "show_progress_bar": False}
            vectors = np.asarray(self._its_model().encode_query(texts, **options))
        with self._store.reading() as tx:
            snapshot = self._present(tx)
            given = isinstance(queries, np.ndarray)
            if self._model is not None and (given or self._checked[self._model][1] != snapshot.state.model):
                # It was not checked yet, or another model's index took the place of this one meanwhile.
                self._check(self._model, snapshot.state)
            ready = scaled_queries(vectors, snapshot.state.dim, snapshot.state.metric)
            results = snapshot.search(tx, ready, k, where)
        return results[0] if single else results

    def _its_model(self) -> SentenceTransformer:
        """The model to encode with, checked."""
        state = self._state()
        if self._model is None:
            place, revision = located(Probe.from_json(state.model), self._path)
            self._model = load(place, {**revision, **self._options})
        self._check(self._model, state)
        return self._model

    def _check(self, model: SentenceTransformer, state: State) -> None:
        """Refuse a model that did not build the index; one that was trained since is another."""
        wanted = (version_of(model), state.model)
        if self._checked.get(model) != wanted:
            try:
                check(Probe.from_json(state.model), model, "the index")
            except ValueError as error:
                raise OtherModelError(str(error)) from error
            self._checked[model] = wanted

    def _present(self, tx: Any) -> Snapshot:
        """The last generation that was committed, as a reading transaction sees it."""
        with self._lock:
            state = read_state(tx, self._store.path)
            while self._snapshot is None or self._snapshot.state != state:
                try:
                    self._snapshot = Snapshot.read(tx, self._store, state, self._snapshot)
                except FileNotFoundError:
                    # A writer may have replaced the file since this transaction began: so it begins anew.
                    tx.execute("ROLLBACK")
                    tx.execute("BEGIN")
                    gone, state = state, read_state(tx, self._store.path)
                    if state.generation == gone.generation:
                        raise
            return self._snapshot

    def _state(self) -> State:
        with self._store.reading() as tx:
            return read_state(tx, self._store.path)

    def get(self, ids: str | Sequence[str]) -> Any:
        """Documents by id; None in place of one that is not there."""
        wanted = [ids] if isinstance(ids, str) else list(ids)
        with self._store.reading() as tx:
            there = {one.id: one.document(self._store.path) for one in documents(tx, "id", wanted)}
        return there.get(ids) if isinstance(ids, str) else [there.get(one) for one in wanted]

    def __contains__(self, identity: object) -> bool:
        return isinstance(identity, str) and self.get(identity) is not None

    def __iter__(self) -> Iterator[Document]:
        """All documents in the order they were added, as they are when the loop begins."""
        with self._store.reading() as tx:
            for one in all_documents(tx):
                yield one.document(self._store.path)

    def __len__(self) -> int:
        return self._state().count

    def add(self, input: Input, **options: Any) -> Change:
        """Add documents. An addition that is killed goes on with the same call, and nothing is added twice.

        A document whose id, text and metadata are there already is left as it is, and not encoded. So is a text without
        an id if the index has the same text and metadata without an id (and, of a .txt file, from the same file).

        Args:
            input: As for `build`.
            **options: text_column, id_column, strict, workers, settings, show_progress_bar, as for `build`;
                columns and passages are those of the build.

        Raises:
            ValueError: With ``strict``: an id is there with another text (use `upsert`), or a record cannot be taken.
        """
        return self._take("add", input, **options)

    def upsert(self, input: Input, **options: Any) -> Change:
        """Add documents that have ids, in the place of those with the same ids; otherwise as `add`."""
        return self._take("upsert", input, **options)

    def _take(
        self,
        kind: Literal["add", "upsert"],
        input: Input,
        *,
        text_column: str | None = None,
        id_column: str | None = None,
        strict: bool = True,
        workers: int | None = None,
        settings: Settings | None = None,
        show_progress_bar: bool | None = None,
    ) -> Change:
        state, settings = self._state(), settings or Settings()
        columns: dict[str, Any] = {"text_column": text_column, "id_column": id_column}
        columns = {**state.columns, **{name: one for name, one in columns.items() if one is not None}}
        source = open_source(input, **columns, encoding=settings.encoding)
        running: dict[str, Any] = {"strict": strict, "workers": workers}
        running["show_progress_bar"] = show_progress_bar
        return add_into(self._store, self._its_model(), source, settings, kind, **running)

    def delete(self, ids: Iterable[str], *, missing: Literal["error", "ignore"] = "error") -> Change:
        """Delete documents by id: they are no longer found. `compact` removes them from the disk.

        With ``missing="error"``, nothing is deleted if an id is not there; with "ignore" such ids are passed over.
        """
        if missing not in ("error", "ignore"):
            raise ValueError(f"missing={missing!r} is not known: give 'error' or 'ignore'")
        wanted = [ids] if isinstance(ids, str) else list(ids)
        if isinstance(ids, str) or not all(isinstance(one, str) for one in wanted):
            raise TypeError(f"ids={ids!r}: give a list of strings")
        return delete(self._store, wanted, missing)

    def compact(self, *, factory: str | None = None, parameters: str | None = None) -> Change:
        """Write the FAISS file anew, with what was added and without what was deleted, which leaves the disk.

        Nothing is encoded again. It happens by itself when many vectors were added.

        Args:
            factory, parameters: Another FAISS index, as for `build`; None: the same, with its training and its codes.
        """
        if factory is None and parameters is not None:
            raise ValueError(f"parameters={parameters!r}: of another index; name its factory")
        change, gone = compact(self._store, factory, parameters)
        if not gone:
            logger.warning("%s: being read, so what was deleted is on the disk until the next compact", self._path)
        with suppress(BlockingIOError), one_writer(self._path):
            pass  # the texts of an addition that failed leave the disk too
        return change

    def export(
        self, out: str | PathLike[str], *, overwrite: bool = False, show_progress_bar: bool | None = None
    ) -> int:
        """Write all vectors, as they are at one moment, for other tools; returns their number.

        Args:
            out: ``X.parquet``: the columns key, id, text, metadata (JSON), passage and vector. ``X.faiss``: one FAISS
                file of the vectors, its ids the keys.
            overwrite: Replace a file.
            show_progress_bar: Show a bar; None: on a terminal.
        """
        with self._store.reading() as tx:
            return export(self._store, tx, Path(out), overwrite=overwrite, show=show_progress_bar)

    def rejects(self) -> list[Reject]:
        """Records that were set aside by the last change that set any aside."""
        with self._store.reading() as tx:
            rows = tx.execute(
                "SELECT place, reason, id, text FROM rejects WHERE generation = (SELECT MAX(generation) FROM rejects)"
            )
            return [Reject(*row) for row in rows]

    def info(self) -> dict[str, Any]:
        """Facts about the index, as JSON values."""
        with self._store.reading() as tx:
            return about(self._store, tx)

    def verify(self) -> dict[str, Any]:
        """Compare every file with the digests that were kept, or raise a ValueError; returns the same as `info`."""
        with self._store.reading() as tx:
            return verify(self._store, tx)

    @property
    def path(self) -> Path:
        """The folder of the index."""
        return self._path

    def close(self) -> None:
        """Let go of the files and the model."""
        self._snapshot = self._model = None
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = self._state()
        return f"Index({str(self._path)!r}, {state.count} documents, dim {state.dim}, {state.metric})"
