"""Index of documents: built, opened, searched and changed."""

from __future__ import annotations

import logging
import operator
import os
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from ..corpus.encode import Settings, encode_source
from ..corpus.folder import Corpus, is_corpus
from ..corpus.records import Document, Reject, clean_text
from ..corpus.source import Input, open_source
from ..probe import Probe, check, load, located, probe, remembered, version_of
from . import ann
from .building import New, check_target, is_index, one_writer, refuse_links
from .changes import Change, compact, delete, take_in
from .export import about, export, verify
from .search import Found, Snapshot
from .store import COLUMNS, State, Store, Stored, by_ids, by_keys, damaged, no_index, read_state
from .vectors import scaled_queries
from .where import Where

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SearchResult:
    """One document that was found.

    Args:
        rank: 1 for the best document of a query.
        score: The cosine or the inner product with the query; higher is better.
        id: Id of the document.
        text: Its text.
        metadata: Its metadata.
        passage: The passage of the text that was found, if the index cuts texts.
    """

    rank: int
    score: float
    id: str
    text: str
    metadata: dict[str, Any]
    passage: str | None = None


class Index:
    """Documents and their vectors in a folder, searched exactly or approximately. Make one with `build` or `open`.

    Every search sees the last change that was committed, by whichever process. Safe from several threads as far as the
    model is.

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini", pooling="mean")
        >>> index = st_reba.Index.build(model, ["Cats sleep.", "Ships sail."], "my_index")
        >>> index.search("Cats sleep", k=1)[0].text
        'Cats sleep.'
    """

    def __init__(self, path: Path, model: SentenceTransformer | None, options: dict[str, Any]) -> None:
        self._path, self._store, self._model, self._options = path, Store(path), model, options
        self._snapshot: Snapshot | None = None
        self._lock = threading.Lock()
        self._checked: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    # Making and opening

    @classmethod
    def build(
        cls,
        model: SentenceTransformer | str | PathLike[str],
        input: Input,
        path: str | PathLike[str],
        *,
        factory: str = "auto",
        parameters: str | None = None,
        ids: Iterable[str] | None = None,
        passages: str | None = None,
        strict: bool = True,
        overwrite: bool = False,
        **options: Any,
    ) -> Index:
        """Encode documents and write them to an index folder. A build that is killed goes on with the same call.

        Args:
            model: The model, or its folder or Hub id; its ``similarity_fn_name`` must be "cosine" or "dot". The index
                remembers where it came from; a folder relative to the index.
            input: Texts, documents, a table, or a file or folder of them, as ``st_reba.corpus.encode_corpus`` takes; or
                the folder of a corpus that it has encoded.
            path: The folder to make.
            factory: "auto": exact search ("Flat") up to 200,000 vectors, beyond that "IVF4√n,Flat", of whose lists a
                query looks at 1 in 32; or a FAISS factory string, as "Flat", "HNSW32" or "IVF4096,PQ48,RFlat".
            parameters: FAISS search parameters, as "nprobe=32"; None: nprobe 1/32 of the lists, efSearch 64.
            ids: One id for each text of an iterable.
            passages: Tokens of a passage and of the overlap, as "256:32"; None: texts are not cut.
            strict: Stop at the first record that cannot be taken; else it is set aside, see `rejects`.
            overwrite: Replace an index that is already there, at the moment when the new one is complete.
            **options: As ``encode_corpus`` takes them: text_column, id_column, workers, settings, show_progress_bar;
                and of a model that is loaded: device, dtype, trust_remote_code.

        Returns:
            The index.

        Raises:
            FileExistsError: The path exists and ``overwrite`` is False, or it is not an index.
            BlockingIOError: Another process is writing there.
            OSError: The disk is full, or the folder may not be written. An index that was there still is.
            ValueError: There is no document, a record or a vector cannot be used (``strict``), the model's similarity
                is not supported, or the factory is not known or does not fit.

        Example:
            >>> import st_reba
            >>> st_reba.Index.build(st_reba.build("mini"), ["Cats sleep.", "Ships sail."], "my_index")
            Index('...my_index', 2 documents, dim 192, cosine)
        """
        folder, settings, running = Path(os.path.realpath(path)), *_split(options, strict)
        ready = isinstance(input, (str, PathLike)) and is_corpus(input)
        source = None if ready else open_source(input, ids=ids, **running["columns"], **settings.reading)
        check_target(folder, overwrite=overwrite)
        loaded = load(model, running["load"])
        mark = probe(loaded)
        if loaded.similarity_fn_name not in ann.METRICS:
            raise ValueError(
                f"the model's similarity is {loaded.similarity_fn_name!r}; an index compares by "
                f'{" or ".join(ann.METRICS)}: set model.similarity_fn_name = "cosine"'
            )
        if factory != "auto":
            empty = ann.make_index(factory, mark.dimension, None if source is None else source.total)
            if parameters is not None:
                ann.set_parameters(empty, parameters)
        state = State(remembered(model, mark, folder), loaded.similarity_fn_name, mark.dimension)
        with one_writer(folder) as building:
            if source is None:
                corpus = Corpus(input)
                corpus.verify()
                check(Probe.from_json(corpus.header()["model"]), mark, f"the corpus {corpus.path}")
                state.passages = corpus.header()["settings"]["passages"]
            else:
                given = {"source_of": model, "overwrite": True, **running["run"]}
                corpus = encode_source(loaded, source, building, settings, passages, **given)
                state.columns, state.passages = source.columns, passages
            take_in(
                Store(folder), corpus, "build", strict=strict and not ready, fresh=state,
                factory=factory, parameters=parameters,
            )  # fmt: skip
        return cls(folder, loaded, {})

    @classmethod
    def open(
        cls,
        path: str | PathLike[str],
        model: SentenceTransformer | str | PathLike[str] | None = None,
        **options: Any,
    ) -> Index:
        """Open an index folder.

        Args:
            path: The folder.
            model: The model to encode with, or its folder or Hub id; None: the one that the index remembers, loaded
                when a text needs it.
            **options: Of a model that is loaded, as `st_reba.load` takes them: device, dtype, trust_remote_code.

        Returns:
            The index. Only what a search needs is read, when it needs it; `verify` reads all.

        Raises:
            FileNotFoundError: There is no index, or a file of it is missing.
            ValueError: A file is damaged, or the model is not the one that built the index.

        Example:
            >>> import st_reba
            >>> st_reba.build("mini", pooling="mean").save_pretrained("my_model")
            >>> _ = st_reba.Index.build("my_model", ["Cats sleep.", "Ships sail."], "my_index")
            >>> st_reba.Index.open("my_index").search("Cats sleep", k=1)[0].text
            'Cats sleep.'
        """
        folder = Path(os.path.realpath(path))
        if not is_index(folder):
            raise no_index(folder)
        index = cls(folder, None, options)
        with index._store.reading() as tx:
            index._present(tx)
        if model is not None:
            index._model = load(model, options)
            index._check(index._model)
        return index

    # Searching

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
            ValueError: k is below 1, a query is empty, the model is not the one that built the index, or a vector has
                another dimension, is NaN, infinite, or zero where cosines are compared.
            TypeError: The queries are none of these.

        Example:
            >>> import st_reba
            >>> from st_reba.corpus import Document
            >>> texts = [Document("Cats sleep.", "a", {"year": 2019}), Document("Cats purr.", "b", {"year": 2024})]
            >>> index = st_reba.Index.build(st_reba.build("mini", pooling="mean"), texts, "my_index")
            >>> [result.id for result in index.search("Cats sleep.", where={"year": {">=": 2020}})]
            ['b']
        """
        if isinstance(k, bool) or (k := operator.index(k)) < 1:
            raise ValueError(f"k={k} must be a whole number from 1 on")
        single = isinstance(queries, str) or (isinstance(queries, np.ndarray) and queries.ndim == 1)
        model = None
        if isinstance(queries, np.ndarray):
            vectors: NDArray[Any] = np.atleast_2d(queries)
        else:
            texts = _query_texts([queries] if isinstance(queries, str) else queries)
            if not texts:
                return []
            model = self._its_model()
            options: dict[str, Any] = {"prompt": prompt, "batch_size": batch_size, "show_progress_bar": False}
            vectors = np.asarray(model.encode_query(texts, **options))
        with self._store.reading() as tx:
            snapshot = self._present(tx)
            if model is not None:
                # Another model's index may have taken the place of this one meanwhile.
                self._check(model, snapshot.state)
            ready = scaled_queries(vectors, snapshot.state.dim, snapshot.state.metric)
            allowed = None if where is None else snapshot.allowed(tx, where)
            results = self._results(tx, snapshot.nearest(tx, ready, k, allowed), snapshot.state)
        return results[0] if single else results

    def _results(self, tx: Any, found: list[list[Found]], state: State) -> list[list[SearchResult]]:
        rows = by_keys(tx, {one.document for listed in found for one in listed})

        def result(rank: int, one: Found) -> SearchResult:
            if one.document not in rows:
                raise ValueError(damaged(self._store.path, f"there is no document {one.document}"))
            stored = Stored(*rows[one.document])
            document = stored.document(self._store.path)
            passage = None if state.passages is None else stored.passage(one.vector)
            return SearchResult(rank, one.score, stored.id, stored.text, document.metadata, passage)

        return [[result(rank, one) for rank, one in enumerate(listed, 1)] for listed in found]

    def _its_model(self) -> SentenceTransformer:
        """The model to encode with, checked."""
        if self._model is None:
            place, revision = located(Probe.from_json(self._state().model), self._path)
            self._model = load(place, {**revision, **self._options})
        self._check(self._model)
        return self._model

    def _check(self, model: SentenceTransformer, state: State | None = None) -> None:
        """Refuse a model that did not build the index; one that was trained since is another."""
        wanted = (version_of(model), (state or self._state()).model)
        if self._checked.get(model) != wanted:
            check(Probe.from_json(wanted[1]), model, "the index")
            self._checked[model] = wanted

    def _present(self, tx: Any) -> Snapshot:
        """The last generation that was committed, as a reading transaction sees it."""
        with self._lock:
            state = read_state(tx, self._store.path)
            if state is None:
                raise no_index(self._path)
            while self._snapshot is None or self._snapshot.state != state:
                try:
                    self._snapshot = Snapshot.read(tx, self._store, state, self._snapshot)
                except FileNotFoundError:
                    # A writer may have replaced the file since this transaction began: so it begins anew.
                    tx.execute("ROLLBACK")
                    tx.execute("BEGIN")
                    gone, state = state, read_state(tx, self._store.path)
                    if state is None or state.generation == gone.generation:
                        raise
            return self._snapshot

    def _state(self) -> State:
        with self._store.reading() as tx:
            if (state := read_state(tx, self._store.path)) is None:
                raise no_index(self._path)
            return state

    # Documents

    def get(self, ids: str | Sequence[str]) -> Any:
        """Documents by id; None in place of one that is not there.

        Example:
            >>> import st_reba
            >>> index = st_reba.Index.build(st_reba.build("mini"), ["Cats sleep.", "Ships sail."], "my_index")
            >>> index.get("1").text, index.get(["7"]), "0" in index
            ('Ships sail.', [None], True)
        """
        wanted = [ids] if isinstance(ids, str) else list(ids)
        with self._store.reading() as tx:
            found = by_ids(tx, wanted)
        documents = [found[one].document(self._store.path) if one in found else None for one in wanted]
        return documents[0] if isinstance(ids, str) else documents

    def __contains__(self, identity: object) -> bool:
        return isinstance(identity, str) and self.get(identity) is not None

    def __iter__(self) -> Iterator[Document]:
        """All documents in the order they were added, as they are when the loop begins."""
        with self._store.reading() as tx:
            for row in tx.execute(f"SELECT {COLUMNS} FROM documents ORDER BY key"):
                yield Stored(*row).document(self._store.path)

    def __len__(self) -> int:
        return self._state().count

    # Changing

    def add(self, input: Input, *, again: bool = False, **options: Any) -> Change:
        """Add documents. An addition that is killed goes on with the same call, and nothing is added twice.

        A document whose id, text and metadata are there already is left as it is, and not encoded.

        Args:
            input: Texts, documents, a table, or a file or folder of them.
            again: Add the same input once more, if the last change added it; those without ids are there twice.
            **options: As for `build`: ids, strict, text_column, id_column, workers, settings, show_progress_bar.
                Columns and passages are those of the build.

        Returns:
            What was done.

        Raises:
            ValueError: An id is there already with another text (use `upsert`), or a record cannot be taken
                (``strict``).
            BlockingIOError: Another process is writing there.
            OSError: The disk is full, or the folder may not be written. The index is as it was.

        Example:
            >>> import st_reba
            >>> model = st_reba.build("mini", pooling="mean")
            >>> index = st_reba.Index.build(model, ["Cats sleep.", "Ships sail."], "my_index")
            >>> index.add(["Bread rises."]).added, index.search("Bread rises.", k=1)[0].id
            (1, '2')
        """
        return self._take("add", input, again, **options)

    def upsert(self, input: Input, *, again: bool = False, **options: Any) -> Change:
        """Add documents; those whose ids are there take the place of the old ones in the same step. As `add` otherwise.

        Example:
            >>> import st_reba
            >>> model = st_reba.build("mini", pooling="mean")
            >>> index = st_reba.Index.build(model, ["Cats sleep.", "Ships sail."], "my_index")
            >>> index.upsert(["Cats run."], ids=["0"]).replaced, index.search("Cats run.", k=1)[0].text
            (1, 'Cats run.')
        """
        return self._take("upsert", input, again, **options)

    def _take(
        self,
        kind: Literal["add", "upsert"],
        input: Input,
        again: bool,
        *,
        ids: Iterable[str] | None = None,
        strict: bool = True,
        **options: Any,
    ) -> Change:
        state, (settings, running) = self._state(), _split(options, strict)
        columns = {**state.columns, **{name: one for name, one in running["columns"].items() if one is not None}}
        source = open_source(input, ids=ids, **columns, **settings.reading)
        model = self._its_model()
        with one_writer(self._path) as building:
            state = self._state()
            new = New(source, self._store, upsert=kind == "upsert", strict=strict)

            def is_new(documents: int) -> bool:
                return documents > 0 and not self._was_added(new.digest, again)

            given = {"overwrite": True, "first": state.next_number, "wanted": is_new, **running["run"]}
            corpus = encode_source(model, new.source, building, settings, state.passages, **given)
            repeated = self._was_added(new.digest, again)
            records = corpus.parts() > 0
            if repeated or not records:
                change = Change(kind, state.count, repeated=repeated and records)
            else:
                change = take_in(self._store, corpus, kind, strict=strict, digest=new.digest)
            # What has taken effect is remembered until the caller is told, who else repeats the call.
            with suppress(BlockingIOError), self._store.writing() as tx:
                tx.execute("DELETE FROM additions WHERE digest = ?", (new.digest,))
        if change.repeated:
            logger.warning(
                "%s: it was added just before, so nothing was done; to add it once more, give again=True", source.name
            )
        return replace(change, unchanged=change.unchanged + new.unchanged)

    def _was_added(self, digest: str, again: bool) -> bool:
        with self._store.reading() as tx:
            state = read_state(tx, self._store.path)
            if state is not None and state.last_addition == digest and not again:
                return True
            return tx.execute("SELECT 1 FROM additions WHERE digest = ?", (digest,)).fetchone() is not None

    def delete(self, ids: Iterable[str], *, missing: Literal["error", "ignore"] = "error") -> Change:
        """Delete documents by id: they are no longer found. `compact` removes texts and vectors from the disk.

        Args:
            ids: Which.
            missing: "error": an id that is not there is an error and nothing is deleted; "ignore": it is passed over.

        Raises:
            ValueError: An id is not there.
            BlockingIOError: Another process is writing there.

        Example:
            >>> import st_reba
            >>> index = st_reba.Index.build(st_reba.build("mini"), ["Cats sleep.", "Ships sail."], "my_index")
            >>> index.delete(["0"]).deleted, len(index)
            (1, 1)
        """
        if missing not in ("error", "ignore"):
            raise ValueError(f"missing={missing!r} is not known: give 'error' or 'ignore'")
        if isinstance(ids, str):
            raise TypeError(f"ids is one string; give a list: [{ids!r}]")
        wanted = list(ids)
        for one in wanted:
            if not isinstance(one, str):
                raise TypeError(f"the id {one!r} is a {type(one).__name__}; ids are strings")
        refuse_links(self._path)
        return delete(self._store, wanted, missing)

    def compact(self, *, factory: str | None = None, parameters: str | None = None) -> Change:
        """Write the FAISS file anew, with all that was added and without what was deleted, which leaves the disk.

        Nothing is encoded again. It happens by itself when many vectors were added. What an addition has left that was
        killed and not repeated is removed.

        Args:
            factory: Another FAISS index, or "auto", as for `build`; None: the same, with its training and its codes.
            parameters: Its search parameters.

        Raises:
            ValueError: The factory is not known or does not fit, or the index cannot give its vectors back.
            BlockingIOError: Another process is writing there.

        Example:
            >>> import st_reba
            >>> texts = ["Cats sleep.", "Ships sail.", "Bread rises."]
            >>> index = st_reba.Index.build(st_reba.build("mini"), texts, "my_index")
            >>> index.delete(["1"]).count, index.compact().deleted
            (2, 1)
        """
        if factory is None and parameters is not None:
            raise ValueError(f"parameters={parameters!r}: of another index; name its factory")
        refuse_links(self._path)
        change, gone = compact(self._store, factory, parameters)
        if not gone:
            logger.warning("%s: being read, so what was deleted is on the disk until the next compact", self._path)
        with suppress(BlockingIOError), one_writer(self._path):
            pass
        return change

    def export(
        self, out: str | PathLike[str], *, overwrite: bool = False, show_progress_bar: bool | None = None
    ) -> int:
        """Write all documents with their vectors, as they are at one moment, for other tools.

        Args:
            out: ``X.parquet``: the columns key, id, text, metadata (JSON), passage and vector. ``X.faiss``: one FAISS
                file of the vectors, its ids the keys.
            overwrite: Replace a file.
            show_progress_bar: Show a bar; None: on a terminal.

        Returns:
            How many vectors were written.

        Raises:
            FileExistsError: Something is there already.
            ValueError: There is nothing to write, or the index cannot give its vectors back.

        Example:
            >>> import st_reba
            >>> index = st_reba.Index.build(st_reba.build("mini"), ["Cats sleep.", "Ships sail."], "my_index")
            >>> index.export("my_vectors.parquet")
            2
        """
        with self._store.reading() as tx:
            return export(self._store, tx, Path(out), overwrite=overwrite, show=show_progress_bar)

    # What is there

    def rejects(self) -> list[Reject]:
        """Records that were set aside by the last change that set any aside."""
        with self._store.reading() as tx:
            rows = tx.execute(
                "SELECT place, reason, id, text FROM rejects WHERE generation = (SELECT MAX(generation) FROM rejects)"
            )
            return [Reject(*row) for row in rows]

    def info(self) -> dict[str, Any]:
        """Contents and making of the index, as JSON values."""
        with self._store.reading() as tx:
            return about(self._store, tx)

    def verify(self) -> dict[str, Any]:
        """Read every file and compare it with the digests that were kept with each change.

        Returns:
            The same as `info`.

        Raises:
            FileNotFoundError: A file is missing.
            ValueError: Something is not what was written.
        """
        with self._store.reading() as tx:
            return verify(self._store, tx)

    @property
    def path(self) -> Path:
        """The folder of the index."""
        return self._path

    def close(self) -> None:
        """Let go of the files and the model."""
        self._snapshot = self._model = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = self._state()
        return f"Index({str(self._path)!r}, {state.count} documents, dim {state.dim}, {state.metric})"


def _query_texts(queries: Any) -> list[str]:
    """Queries as the model takes them."""
    if not isinstance(queries, Sequence) or not all(isinstance(query, str) for query in queries):
        raise TypeError(
            f"cannot search for {type(queries).__name__}; give a text, a list of texts, or a NumPy array of floats"
        )
    if empty := [number for number, query in enumerate(queries) if not query.strip()]:
        raise ValueError(f"query {empty[0]} is empty; give it a text, or leave it out")
    return [clean_text(query) for query in queries]


def _split(options: dict[str, Any], strict: bool) -> tuple[Settings, dict[str, dict[str, Any]]]:
    """Options of a build or an addition: settings, columns, and how it is encoded."""
    left = dict(options)
    settings = replace(left.pop("settings", None) or Settings(), strict=strict)
    columns = {name: left.pop(name, None) for name in ("text_column", "id_column")}
    run = {"workers": left.pop("workers", None), "show": left.pop("show_progress_bar", None)}
    loading = {name: left.pop(name) for name in ("device", "dtype", "trust_remote_code") if name in left}
    if left:
        raise TypeError(f"{next(iter(left))}={next(iter(left.values()))!r}: there is no such option")
    return settings, {"columns": columns, "run": run, "load": loading}
