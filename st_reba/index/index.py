"""An index: documents and their vectors in a folder, built, searched and changed."""

from __future__ import annotations

import logging
import operator
import os
import shutil
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from ..corpus.encode import Engine, Settings
from ..corpus.folder import Corpus, sha256
from ..corpus.records import Document, Reading, Reject, clean_text
from ..corpus.source import Input, open_source
from ..fingerprint import ModelFingerprint, check, fingerprint, version_of
from ..persistence import loaded, located, place_of
from .ann import Recipe
from .changes import Change, compact, delete, no_index, open_file, take_in
from .export import export
from .searcher import Searcher
from .store import (
    FILE,
    State,
    Store,
    Stored,
    Sums,
    by_ids,
    by_keys,
    damaged,
    owners,
    read_dead,
    read_pending,
    read_state,
)  # fmt: skip
from .vectors import METRICS, Keys, Matrix, best, scaled_queries
from .where import Where, conditions
from .work import BUILDING, New, Options, encoded, sweep, unfinished

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)

Model = "SentenceTransformer | str | PathLike[str]"
# Fetched beyond k, so that equal scores at the cut are told apart by their order.
_TIES = 32
_KEPT_CONDITIONS = 8


@dataclass(frozen=True)
class SearchResult:
    """One document that was found.

    Args:
        rank: 1 for the best document of a query.
        score: The cosine or the inner product with the query; higher is better.
        id: The id of the document.
        text: Its text.
        metadata: What was stored with it.
        passage: The passage of the text that was found, where the index cuts texts.
    """

    rank: int
    score: float
    id: str
    text: str
    metadata: dict[str, Any]
    passage: str | None = None


class _Options(TypedDict, total=False):
    where: Where | None
    ids_only: bool
    model: Any
    batch_size: int
    prompt: str | None


@dataclass
class _Snapshot:
    """What a search needs of one generation, in memory."""

    state: State
    searcher: Searcher | None
    alive: NDArray[np.bool_]  # by key
    pending_keys: Keys
    pending: Matrix
    last_dead: int
    conditions: dict[str, NDArray[np.bool_]]


class Index:
    """Documents and their vectors in a folder, searched exactly or nearly so. Make one with `build` or `open`.

    Every search sees the last change that was committed, by whichever process. Safe from several threads as far as the
    model is.

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini", pooling="mean")
        >>> index = st_reba.Index.build(model, ["Cats sleep.", "Ships sail."], "my_index")
        >>> index.search("Cats sleep", k=1)[0].text
        'Cats sleep.'
    """

    def __init__(self, path: Path, store: Store, model: SentenceTransformer | None, settings: dict[str, Any]) -> None:
        self._path, self._store, self._model, self._settings = path, store, model, settings
        self._snapshot: _Snapshot | None = None
        self._lock = threading.Lock()
        self._checked: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self.change: Change | None = None
        """What building it came to, if this object was just built."""

    # Making and opening

    @classmethod
    def build(
        cls,
        model: SentenceTransformer | str | PathLike[str],
        texts: Input,
        path: str | PathLike[str],
        *,
        factory: str = "Flat",
        parameters: str | None = None,
        recall_aim: float = 0.95,
        train_size: int | None = None,
        seed: int = 0,
        overwrite: bool = False,
        model_source: str | PathLike[str] | None = None,
        **options: Any,
    ) -> Index:
        """Encode documents and write them to an index folder. A build that is killed goes on with the same call.

        Args:
            model: The model, or its folder or Hub id; its ``similarity_fn_name`` must be "cosine" or "dot".
            texts: Texts, documents, a table, or a file or folder of them, as ``st_reba.corpus.encode_corpus`` takes.
            path: The folder to make.
            factory: A FAISS factory string, as "HNSW32", "IVF1024,Flat" or "IVF4096,PQ48,RFlat"; "auto" chooses one by
                the number of vectors. Only "Flat" is exact; of others recall@10 is measured and kept.
            parameters: FAISS search parameters, as "nprobe=32"; None: found by measuring.
            recall_aim: The recall@10 that they are to reach; a warning says so if nothing does.
            train_size: How many vectors an index that needs it is trained on; None: by its centroids.
            seed: Of the training sample and of the queries that recall is measured with.
            overwrite: Replace an index that is already there, at the moment when the new one is complete.
            model_source: The Hub id or folder to load the model from when the index is opened alone; None: where it
                came from, if that is known. A folder is remembered relative to the index.
            **options: As ``encode_corpus`` takes them: ids, text_column, id_column, encoding, split, max_chars, strict
                (here on by default), passages, engine, workers, devices, batch_size, batch_tokens, part_size,
                show_progress_bar.

        Returns:
            The index, ready to be searched with the same model.

        Raises:
            FileExistsError: The path exists and ``overwrite`` is False, or it is not an index.
            BlockingIOError: Another process is writing there.
            OSError: The disk is full, or the folder may not be written. An index that was there still is.
            ValueError: There is no document, a record or a vector cannot be used (``strict``), the model's similarity
                is not supported, or the factory is not known or does not fit.

        Example:
            >>> import st_reba
            >>> st_reba.Index.build(st_reba.build("mini"), ["Cats sleep.", "Ships sail."], "my_index")
            Index('...my_index', 2 documents, dim 192, cosine, built with 'mini')
        """
        recipe = Recipe(factory, parameters, recall_aim, train_size, seed)
        reading, given, work = _options(options)
        folder = Path(os.path.realpath(path))
        source = open_source(texts, reading, given).begun()
        _check_target(folder, overwrite=overwrite)
        model, model_source = loaded(model, model_source)
        mark = fingerprint(model)
        recipe.check(mark.dimension, source.total)
        made = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        new = New(source, None, upsert=False, strict=work.strict)
        try:
            with encoded(folder, model, new, work) as (corpus, found):
                found.check(source.name)
                state = _fresh(model, mark, place_of(model_source, folder))
                state.reading = _remembered(reading, work)
                change = _built(folder, [corpus], state, recipe, work.strict, work.show)
            sweep(folder, None)
        except BaseException:
            _undo(folder, made)
            raise
        return cls._opened(folder, model, change)

    @classmethod
    def from_corpus(
        cls,
        corpus: str | PathLike[str] | Sequence[str | PathLike[str]],
        path: str | PathLike[str],
        model: SentenceTransformer | str | PathLike[str] | None = None,
        *,
        factory: str = "Flat",
        parameters: str | None = None,
        recall_aim: float = 0.95,
        train_size: int | None = None,
        seed: int = 0,
        overwrite: bool = False,
        model_source: str | PathLike[str] | None = None,
        show_progress_bar: bool | None = None,
    ) -> Index:
        """Build an index of what ``encode_corpus`` has encoded.

        Args:
            corpus: The folder of a complete corpus, or several of one model.
            path: The folder to make.
            model: The model, to search with at once; it must be the one that encoded.
            factory, parameters, recall_aim, train_size, seed, overwrite, model_source: As for `build`.
            show_progress_bar: Show a bar; None: on a terminal.

        Returns:
            The index.

        Raises:
            FileNotFoundError: A folder is no corpus.
            ValueError: A corpus is not complete or damaged, or of another model.

        Example:
            >>> import st_reba
            >>> from st_reba.corpus import encode_corpus
            >>> _ = encode_corpus(st_reba.build("mini"), ["Cats sleep.", "Ships sail."], "my_corpus")
            >>> len(st_reba.Index.from_corpus("my_corpus", "my_index"))
            2
        """
        recipe = Recipe(factory, parameters, recall_aim, train_size, seed)
        corpora = [Corpus(one) for one in ([corpus] if isinstance(corpus, (str, PathLike)) else corpus)]
        if not corpora:
            raise ValueError("there is no corpus; give one, or a list of them")
        folder = Path(os.path.realpath(path))
        _check_target(folder, overwrite=overwrite)
        first = corpora[0].header()
        mark = ModelFingerprint.from_json(first["model"])
        for one in corpora:
            one.verify()
            check(mark, ModelFingerprint.from_json(one.header()["model"]), f"the corpus {corpora[0].path}")
        if model is not None:
            model, model_source = loaded(model, model_source)
            check(mark, model, f"the corpus {corpora[0].path}")
        elif model_source is None and first["model_source"]:
            model_source = located(first["model_source"], corpora[0].path, must=False)
        made = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        state = State(mark.to_json(), _metric(first["similarity"]), mark.dimension)
        state.model_source = place_of(model_source, folder)
        state.reading = {"passages": first["settings"]["passages"]}
        try:
            recipe.check(mark.dimension, sum(one.header()["totals"]["vectors"] for one in corpora))
            change = _built(folder, corpora, state, recipe, False, show_progress_bar)
        except BaseException:
            _undo(folder, made)
            raise
        return cls._opened(folder, model, change)

    @classmethod
    def _opened(cls, folder: Path, model: Any, change: Change) -> Index:
        index = cls(folder, Store(folder), model, {})
        index.change = change
        return index

    @classmethod
    def open(
        cls,
        path: str | PathLike[str],
        model: SentenceTransformer | str | PathLike[str] | None = None,
        *,
        device: str | None = None,
        dtype: str | None = None,
        trust_remote_code: bool = False,
    ) -> Index:
        """Open an index folder.

        Args:
            path: The folder.
            model: The model to encode with, or its folder or Hub id; None: the one that the index remembers, loaded
                when a text needs it.
            device: Where a model that is loaded runs.
            dtype: Of its weights; None: float32 on a CPU, as stored on a GPU.
            trust_remote_code: Allow its own Python code.

        Returns:
            The index. Only what a search needs is read, when it needs it; `verify` reads all.

        Raises:
            FileNotFoundError: There is no index, or a file of it is missing.
            ValueError: A file is damaged, or the model is not the one that built the index.

        Example:
            >>> import st_reba
            >>> model = st_reba.build("mini", pooling="mean")
            >>> st_reba.Index.build(model, ["Cats sleep.", "Ships sail."], "my_index").close()
            >>> with st_reba.Index.open("my_index", model) as index:
            ...     index.search("Cats sleep", k=1)[0].text
            'Cats sleep.'
        """
        folder = Path(os.path.realpath(path))
        if not is_index(folder):
            raise FileNotFoundError(no_index(folder))
        settings = {"device": device, "dtype": dtype, "trust_remote_code": trust_remote_code}
        index = cls(folder, Store(folder), None, settings)
        try:
            index._present()
            if model is not None:
                index._model = loaded(model, None, **settings)[0]
                index._check(index._model)
        except BaseException:
            index.close()
            raise
        return index

    # Searching

    @overload
    def search(self, queries: str, k: int = ..., **options: Unpack[_Options]) -> list[SearchResult]: ...

    @overload
    def search(
        self, queries: list[str] | tuple[str, ...], k: int = ..., **options: Unpack[_Options]
    ) -> list[list[SearchResult]]: ...

    @overload
    def search(
        self, queries: NDArray[np.floating[Any]], k: int = ..., **options: Unpack[_Options]
    ) -> list[SearchResult] | list[list[SearchResult]]: ...

    def search(
        self,
        queries: str | Sequence[str] | NDArray[np.floating[Any]],
        k: int = 10,
        *,
        where: Where | None = None,
        ids_only: bool = False,
        model: SentenceTransformer | str | PathLike[str] | None = None,
        batch_size: int = 32,
        prompt: str | None = None,
    ) -> list[SearchResult] | list[list[SearchResult]]:
        """Find the nearest documents of one or more queries.

        Args:
            queries: A text, a list of texts, or ready vectors of shape [dim] or [queries, dim].
            k: How many documents to return for each query; all when there are fewer.
            where: Conditions on the metadata, which must all hold: ``{"lang": "zh", "year": {">=": 2020}}``. The
                operators are =, !=, <, <=, >, >=, "in" (a list), "has" (a list there contains it), "exists".
            ids_only: Leave text and metadata out, which are then not read.
            model: The model, when none was given to `open`.
            batch_size: How many texts the model takes at once.
            prompt: What the model puts in front of the queries instead of its own prompt.

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
        try:
            k = operator.index(k)
        except TypeError:
            k = 0
        if k < 1:
            raise ValueError("k must be a whole number, 1 or more")
        single = isinstance(queries, str) or (isinstance(queries, np.ndarray) and queries.ndim == 1)
        if isinstance(queries, np.ndarray):
            vectors: NDArray[Any] = np.atleast_2d(queries)
        else:
            vectors = self._encode([queries] if isinstance(queries, str) else queries, model, batch_size, prompt)
        with self._store.reading() as tx:
            snapshot = self._present()
            state = snapshot.state
            ready = scaled_queries(vectors, state.dim, state.metric)
            allowed = None if where is None else self._allowed(tx, snapshot, where)
            found = self._nearest(tx, snapshot, ready, k, allowed)
            results = self._results(tx, found, passages=bool(state.reading.get("passages")), ids_only=ids_only)
        return results[0] if single else results

    def _encode(self, queries: Any, model: Any, batch_size: int, prompt: str | None) -> NDArray[Any]:
        if not isinstance(queries, Sequence) or not all(isinstance(query, str) for query in queries):
            raise TypeError(
                f"cannot search for {type(queries).__name__}; give a text, a list of texts, or a NumPy array of floats"
            )
        if empty := [number for number, query in enumerate(queries) if not query.strip()]:
            raise ValueError(f"query {empty[0]} is empty; give it a text, or leave it out")
        used = self._its_model(model)
        if not queries:
            return np.zeros((0, self._present().state.dim), dtype=np.float32)
        texts = [clean_text(query) for query in queries]
        return np.asarray(used.encode_query(texts, prompt=prompt, batch_size=batch_size, show_progress_bar=False))

    def _its_model(self, model: Any = None) -> SentenceTransformer:
        """The model to encode with, checked."""
        if model is None:
            if self._model is None:
                self._model = loaded(self.find_model(), None, **self._settings)[0]
            model = self._model
        used: SentenceTransformer = loaded(model, None, **self._settings)[0]
        self._check(used)
        return used

    def _check(self, model: SentenceTransformer) -> None:
        about = self._present().state.model
        # A model that was trained on since is another one.
        if self._checked.get(model) != (version_of(model), about):
            check(ModelFingerprint.from_json(about), model, "the index")
            self._checked[model] = (version_of(model), about)

    def _present(self) -> _Snapshot:
        """The last generation that was committed, as the reading transaction of this thread sees it."""
        with self._store.reading() as tx, self._lock:
            state = read_state(tx, self._store.path)
            if state is None:
                raise FileNotFoundError(no_index(self._path))
            old = self._snapshot
            if old is None or old.state.generation != state.generation:
                self._snapshot = self._load(tx, state, old)
            assert self._snapshot is not None
            return self._snapshot

    def _load(self, tx: Any, state: State, old: _Snapshot | None) -> _Snapshot:
        """What changed since the old snapshot is read, or all where there is another FAISS file."""
        if old is not None and (old.state.file != state.file or old.state.generation > state.generation):
            old = None
        stop = 0 if state.file is None else int(state.file["stop"])
        alive = np.zeros(state.next_key, bool)
        alive[:stop] = True
        keys, vectors = read_pending(
            tx, state.dim, -1 if old is None or not len(old.pending_keys) else int(old.pending_keys[-1])
        )
        dead, last = read_dead(tx, 0 if old is None else old.last_dead)
        if old is not None:
            alive[: len(old.alive)] = old.alive
            keys, vectors = np.concatenate([old.pending_keys, keys]), np.concatenate([old.pending, vectors])
        alive[keys] = True
        alive[dead] = False
        if not alive[keys].all():
            vectors, keys = vectors[alive[keys]], keys[alive[keys]]
        searcher = open_file(self._path, state) if old is None else old.searcher
        return _Snapshot(state, searcher, alive, keys, vectors, last, {})

    def _allowed(self, tx: Any, snapshot: _Snapshot, where: Where) -> NDArray[np.bool_]:
        """By key: which vectors belong to documents that meet conditions."""
        sql, parameters = conditions(where)
        name = repr((sql, parameters))
        if name not in snapshot.conditions:
            allowed = np.zeros(len(snapshot.alive), bool)
            for key, spans in tx.execute(f"SELECT key, spans FROM documents WHERE {sql}", parameters):
                allowed[key] = True
                if spans is not None:
                    allowed[Stored(key, "", "", spans, "").keys] = True
            if len(snapshot.conditions) >= _KEPT_CONDITIONS:
                snapshot.conditions.clear()
            snapshot.conditions[name] = allowed & snapshot.alive
        return snapshot.conditions[name]

    def _nearest(
        self, tx: Any, snapshot: _Snapshot, queries: Matrix, k: int, allowed: NDArray[np.bool_] | None
    ) -> list[list[tuple[int, int, float]]]:
        """The key of the document, that of the vector and the score, of the k best documents of each query."""
        state, searcher = snapshot.state, snapshot.searcher
        every = snapshot.alive if allowed is None else allowed
        among = None if allowed is None and not state.dead else every
        pending_keys, pending = snapshot.pending_keys, snapshot.pending
        if allowed is not None:
            pending, pending_keys = pending[allowed[pending_keys]], pending_keys[allowed[pending_keys]]
        later = (
            np.einsum("qd,pd->qp", queries.astype(np.float64), pending) if len(pending) < 64 else queries @ pending.T
        )
        cut, total = bool(state.reading.get("passages")), int(every.sum())
        fetch = k + _TIES
        while True:
            if searcher is None:
                scores, keys = np.zeros((len(queries), 0), np.float32), np.zeros((len(queries), 0), np.int64)
            else:
                stop = int((state.file or {})["stop"])
                scores, keys = searcher.search(queries, fetch, None if among is None else among[:stop])
            more = np.broadcast_to(pending_keys, (len(queries), len(pending_keys)))
            scores, keys = best(np.concatenate([scores, later], axis=1), np.concatenate([keys, more], axis=1), fetch)
            owner = owners(tx, {int(key) for key in keys.ravel() if key >= 0}) if cut else {}
            found = [
                _documents(row, values, owner, k) for row, values in zip(keys.tolist(), scores.tolist(), strict=False)
            ]
            if not cut or fetch >= total or all(len(one) >= k for one in found):
                return found
            # Several passages of one document are one result.
            fetch = min(4 * fetch, total)

    def _results(
        self, tx: Any, found: list[list[tuple[int, int, float]]], *, passages: bool, ids_only: bool
    ) -> list[list[SearchResult]]:
        keys = {key for one in found for key, _, _ in one}
        rows = by_keys(tx, keys, "id" if ids_only else "id, metadata, spans, text")
        results = []
        for one in found:
            listed: list[SearchResult] = []
            for key, vector, score in one:
                if key not in rows:
                    raise ValueError(damaged(self._store.path, f"there is no document {key}"))
                identity, metadata, spans, text = (*rows[key], "{}", None, "")[:4] if ids_only else rows[key]
                document = Stored(key, identity, metadata, spans, text).document(self._store.path)
                passage = None
                if passages and not ids_only:
                    bounds = [0, len(text)] if spans is None else Stored(key, "", "", spans, "").bounds(vector)
                    passage = text[bounds[0] : bounds[1]]
                listed.append(SearchResult(len(listed) + 1, score, identity, text, document.metadata, passage))
            results.append(listed)
        return results

    # Documents

    @overload
    def get(self, ids: str) -> Document | None: ...

    @overload
    def get(self, ids: list[str] | tuple[str, ...]) -> list[Document | None]: ...

    def get(self, ids: str | Sequence[str]) -> Document | None | list[Document | None]:
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
        store = Store(self._path)
        try:
            with store.reading() as tx:
                for row in tx.execute("SELECT key, id, metadata, spans, text FROM documents ORDER BY key"):
                    yield Stored(*row).document(store.path)
        finally:
            store.close()

    def __len__(self) -> int:
        return self._present().state.count

    # Changing

    def add(self, texts: Input, *, model: Any = None, again: bool = False, **options: Any) -> Change:
        """Add documents. An addition that is killed goes on with the same call, and nothing is added twice.

        A document whose id, text and metadata are there already is left as it is, and not encoded.

        Args:
            texts: Texts, documents, a table, or a file or folder of them.
            model: The model that built the index, when none was given to `open`.
            again: Add the same input once more, if the last change added it; those without ids are then there twice.
            **options: As for `build`. Columns and passages are those of the build unless given.

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
        return self._take("add", texts, model, again, options)

    def upsert(self, texts: Input, *, model: Any = None, again: bool = False, **options: Any) -> Change:
        """Add documents; those whose ids are there take the place of the old ones in the same step. As `add` otherwise.

        Example:
            >>> import st_reba
            >>> model = st_reba.build("mini", pooling="mean")
            >>> index = st_reba.Index.build(model, ["Cats sleep.", "Ships sail."], "my_index")
            >>> index.upsert(["Cats run."], ids=["0"]).replaced, index.search("Cats run.", k=1)[0].text
            (1, 'Cats run.')
        """
        return self._take("upsert", texts, model, again, options)

    def _take(
        self, kind: Literal["add", "upsert"], texts: Input, model: Any, again: bool, options: dict[str, Any]
    ) -> Change:
        state = self._present().state
        reading, ids, work = _options({**state.reading, **{k: v for k, v in options.items() if v is not None}})
        source = open_source(texts, reading, ids).begun()
        used = self._its_model(model)
        with self._store.reading() as tx:
            tokens = [token for (token,) in tx.execute("SELECT token FROM additions")]
        finished = {one.header().get("digest") for one in unfinished(self._path) if one.header().get("token") in tokens}
        new = New(source, self._store, upsert=kind == "upsert", strict=work.strict)
        with encoded(self._path, used, new, work) as (corpus, found):
            # What had taken effect before its writer was killed.
            repeated = new.digest in finished or (new.digest == state.last_addition and not again)
            if repeated or not (found.documents + found.rejected):
                change = Change(kind, state.count, repeated=repeated and found.documents > 0)
                tokens.append(corpus.header()["token"])
            else:
                change = take_in(self._store, [corpus], kind, strict=work.strict, show=work.show)
                tokens.append(corpus.header()["token"])
        sweep(self._path, tokens)
        if change.repeated:
            logger.warning(
                "%s: the last change of the index added just this, so nothing was done; to add it once more, give "
                "again=True (--again)", source.name,
            )  # fmt: skip
        return replace(change, unchanged=change.unchanged + new.unchanged)

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
            raise ValueError(f"missing={missing!r} is not known: give 'error' or 'ignore' (--missing)")
        if isinstance(ids, str):
            raise TypeError(f"ids is one string; give a list: [{ids!r}]")
        wanted = list(ids)
        for one in wanted:
            if not isinstance(one, str):
                raise TypeError(f"the id {one!r} is a {type(one).__name__}; ids are strings")
        return delete(self._store, wanted, missing)

    def compact(self, *, factory: str | None = None, show_progress_bar: bool | None = None, **options: Any) -> Change:
        """Write the FAISS file anew, with all that was added and without what was deleted, which leaves the disk.

        Nothing is encoded again. It happens by itself where pending vectors are more than a tenth of the others. What
        additions have left that were killed and not repeated is removed.

        Args:
            factory: Another FAISS index; None: the same, with its training and its codes.
            show_progress_bar: Show a bar; None: on a terminal.
            **options: Of another index, as for `build`: parameters, recall_aim, train_size, seed.

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
        if factory is None and options:
            raise ValueError(f"{', '.join(options)}: of another index; name it with factory (--factory)")
        change = compact(self._store, None if factory is None else Recipe(factory, **options), show_progress_bar)
        sweep(self._path, None)
        return change

    def export(
        self, out: str | PathLike[str], *, overwrite: bool = False, show_progress_bar: bool | None = None
    ) -> int:
        """Write all documents with their vectors, as they are at one moment, for other tools.

        Args:
            out: ``X.parquet``: the columns id, text, metadata (JSON), passage and vector. ``X.faiss``: one FAISS file,
                its ids the keys. Another name: a folder with vectors.npy, documents.jsonl (key, id, text, metadata,
                passage; a line a vector) and index.faiss.
            overwrite: Replace what is there, at one moment.
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
        store = Store(self._path)
        try:
            with store.reading() as tx:
                return export(store, tx, Path(out), overwrite=overwrite, show=show_progress_bar)
        finally:
            store.close()

    # What is there

    def find_model(self) -> str:
        """Where the model that built the index is: a Hub id or a folder.

        Raises:
            ValueError: The index was not told, or the folder is gone.
        """
        return located(self._present().state.model_source, self._path)

    def rejects(self) -> list[Reject]:
        """What was set aside by the last change that set anything aside."""
        with self._store.reading() as tx:
            rows = tx.execute(
                "SELECT place, reason, id, text FROM rejects WHERE generation = (SELECT MAX(generation) FROM rejects)"
            )
            return [Reject(*row) for row in rows]

    def info(self) -> dict[str, Any]:
        """What the index holds and how it was made, as JSON values."""
        state = self._present().state
        with self._store.reading() as tx:
            tokens = {token for (token,) in tx.execute("SELECT token FROM additions")}
        mark = ModelFingerprint.from_json(state.model)
        begun = [one for one in unfinished(self._path) if one.header().get("token") not in tokens]
        return {
            "path": str(self._path),
            "documents": state.count,
            "vectors": (state.file or {"vectors": 0})["vectors"] + state.pending - self._dead_in_file(state),
            "dimension": state.dim,
            "metric": state.metric,
            "factory": state.factory,
            "parameters": state.parameters,
            "recall": state.recall,
            "model": str(mark),
            "model_source": state.model_source,
            "reading": state.reading,
            "pending": state.pending,
            "deleted": state.dead,
            "changes": state.generation,
            "bytes": sum(file.stat().st_size for file in self._path.iterdir() if file.is_file()),
            "unfinished": [{"path": str(one.path), "parts": one.parts(), "left": len(one.pending())} for one in begun],
        }

    def _dead_in_file(self, state: State) -> int:
        stop = 0 if state.file is None else int(state.file["stop"])
        with self._store.reading() as tx:
            return int(tx.execute("SELECT COUNT(*) FROM dead WHERE key < ?", (stop,)).fetchone()[0])

    def verify(self) -> dict[str, Any]:
        """Read every file and hold it against the digests that were kept with each change.

        Returns:
            What `info` gives.

        Raises:
            FileNotFoundError: A file is missing.
            ValueError: Something is not what was written.
        """
        store = Store(self._path)
        try:
            with store.reading() as tx:
                state = read_state(tx, store.path)
                if state is None:
                    raise FileNotFoundError(no_index(self._path))
                (said,) = tx.execute("PRAGMA integrity_check(1)").fetchone()
                if said != "ok":
                    raise ValueError(damaged(store.path, said))
                sums, counts, vectors = Sums({name: "0" for name in state.sums}), {}, 0
                for table, columns in (
                    ("documents", "key, id, metadata, spans, text"),
                    ("pending", "key, vector"),
                    ("dead", "key"),
                ):
                    counts[table] = 0
                    for row in tx.execute(f"SELECT {columns} FROM {table}"):
                        sums.change(table, row)
                        counts[table] += 1
                        vectors += len(Stored(*row).keys) if table == "documents" else 0
                for table, count in (("documents", state.count), ("pending", state.pending), ("dead", state.dead)):
                    if sums.to_json()[table] != state.sums[table] or counts[table] != count:
                        raise ValueError(damaged(store.path, f"its {table} are not those that were written"))
                searcher = open_file(self._path, state)
                if state.file is not None and sha256(self._path / state.file["name"]) != state.file["sha256"]:
                    raise ValueError(damaged(self._path / state.file["name"], "its SHA-256 is not what was written"))
                filed = 0 if searcher is None else searcher.count
                if filed + state.pending - self._dead_in_file(state) != vectors:
                    raise ValueError(
                        damaged(self._path, f"{filed} vectors in the FAISS file, but {vectors} are needed")
                    )
        finally:
            store.close()
        return self.info()

    @property
    def path(self) -> Path:
        """The folder of the index."""
        return self._path

    def close(self) -> None:
        """Close the files. The index cannot be searched afterwards."""
        self._store.close()
        self._snapshot = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = self._present().state
        name = ModelFingerprint.from_json(state.model).name or "an unnamed model"
        return (
            f"Index({str(self._path)!r}, {state.count} documents, dim {state.dim}, {state.metric}, built with {name!r})"
        )


def is_index(folder: Path) -> bool:
    """Whether a folder holds an index."""
    if not (folder / FILE).is_file():
        return False
    store = Store(folder)
    try:
        with store.reading() as tx:
            return read_state(tx, store.path) is not None
    finally:
        store.close()


def _options(options: Mapping[str, Any]) -> tuple[Reading, Iterable[str] | None, Options]:
    """Options of a build or an addition: how records are read, their ids, and how they are encoded."""
    given = dict(options)
    ids, strict, show = given.pop("ids", None), given.pop("strict", True), given.pop("show_progress_bar", None)

    def taken(kind: type, names: Mapping[str, str]) -> Any:
        return kind(**{names[name]: given.pop(name) for name in list(given) if name in names})

    reading = taken(Reading, {name: name for name in ("text_column", "id_column", "encoding", "split", "max_chars")})
    engine = taken(Engine, {"engine": "name", "workers": "workers", "devices": "devices"})
    settings = taken(
        Settings, {name: name for name in ("batch_size", "batch_tokens", "part_size", "passages", "dtype")}
    )
    if given:
        raise TypeError(f"{next(iter(given))}={next(iter(given.values()))!r}: there is no such option")
    return reading, ids, Options(settings, engine, strict, show)


def _remembered(reading: Reading, work: Options) -> dict[str, str | None]:
    named = {"text_column": reading.text_column, "id_column": reading.id_column, "passages": work.settings.passages}
    return {name: value for name, value in named.items() if value is not None}


def _fresh(model: SentenceTransformer, mark: ModelFingerprint, model_source: str | None) -> State:
    return State(mark.to_json(), _metric(model.similarity_fn_name), mark.dimension, model_source=model_source)


def _metric(similarity: str | None) -> str:
    if similarity not in METRICS:
        raise ValueError(
            f"the model's similarity is {similarity!r}; an index compares by {' or '.join(METRICS)}: set "
            'model.similarity_fn_name = "cosine"'
        )
    return similarity


def _built(
    folder: Path, corpora: Sequence[Corpus], state: State, recipe: Recipe, strict: bool, show: bool | None
) -> Change:
    store = Store(folder)
    try:
        return take_in(store, corpora, "build", strict=strict, fresh=state, recipe=recipe, show=show)
    finally:
        store.close()


def _check_target(folder: Path, *, overwrite: bool) -> None:
    """Refuse to build where something else is than an index, or what a build leaves that was killed."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise FileExistsError(f"{folder}: a file is there; name a folder")
    ours = (FILE, BUILDING, "vectors-", ".vectors-")
    if any(not path.name.startswith(ours) for path in folder.iterdir()):
        raise FileExistsError(f"{folder}: not an index, so nothing is written there; give another path")
    try:
        there = is_index(folder)
    except ValueError:
        there = True  # a damaged one can be replaced
    if there and not overwrite:
        raise FileExistsError(
            f"{folder}: already there; give another path, or overwrite=True (--overwrite) to replace an index"
        )


def _undo(folder: Path, made: bool) -> None:
    """Remove what a build has made that failed, but for parts that were encoded."""
    with suppress(OSError, ValueError):
        if not any((folder / BUILDING).glob("*/vectors/*.npy")):
            shutil.rmtree(folder / BUILDING, ignore_errors=True)
        if not is_index(folder):
            for path in folder.glob(f"{FILE}*"):
                path.unlink()
        if made:
            folder.rmdir()


def _documents(keys: list[int], scores: list[float], owner: Mapping[int, int], k: int) -> list[tuple[int, int, float]]:
    """The key of the document, that of the vector and the score, of the k best documents."""
    found: dict[int, tuple[int, int, float]] = {}
    for key, score in zip(keys, scores, strict=True):
        if key >= 0 and len(found) < k:
            found.setdefault(owner.get(key, key), (owner.get(key, key), key, score))
    return list(found.values())
