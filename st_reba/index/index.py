"""An index: documents and their vectors in a folder, built, searched and changed."""

from __future__ import annotations

import logging
import operator
import os
import re
import shutil
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from ..corpus.encode import Engine, Settings
from ..corpus.folder import Corpus
from ..corpus.records import Document, Reading, Reject, clean_text
from ..corpus.source import Input, open_source
from ..files import make_folder
from ..fingerprint import ModelFingerprint, check, fingerprint, version_of
from ..persistence import loaded, located, place_of
from .ann import Recipe
from .changes import Change, compact, delete, no_index, take_in
from .export import Format, export
from .snapshot import Found, Snapshot
from .store import COLUMNS, FILE, State, Store, Stored, by_ids, by_keys, damaged, read_state
from .vectors import METRICS, scaled_queries
from .verify import about, verify
from .where import Where
from .work import BUILDING, New, Options, encoded, sweep, unfinished

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)


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
        self._snapshot: Snapshot | None = None
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
        factory: str = Recipe.factory,
        parameters: str | None = None,
        recall_aim: float = Recipe.recall_aim,
        train_size: int | None = None,
        seed: int = Recipe.seed,
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
        check_target(folder, overwrite=overwrite)
        model, model_source = loaded(model, model_source)
        mark = fingerprint(model)
        recipe.check(mark.dimension, source.total)
        state = State(mark.to_json(), _metric(model.similarity_fn_name), mark.dimension)
        new = New(source, None, upsert=False, strict=work.strict)
        with _making(folder):
            state.model_source = place_of(model_source, folder)
            with encoded(folder, model, new, work) as (corpus, found):
                found.check(source.name)
                state.reading = {**source.reading.used, "passages": work.settings.passages}
                options = {"fresh": state, "recipe": recipe, "strict": work.strict, "show": work.show}
                index = cls._built(folder, model, [corpus], **options)
            sweep(folder, None)
        return index

    @classmethod
    def from_corpus(
        cls,
        corpus: str | PathLike[str] | Sequence[str | PathLike[str]],
        path: str | PathLike[str],
        model: SentenceTransformer | str | PathLike[str] | None = None,
        *,
        factory: str = Recipe.factory,
        parameters: str | None = None,
        recall_aim: float = Recipe.recall_aim,
        train_size: int | None = None,
        seed: int = Recipe.seed,
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
        check_target(folder, overwrite=overwrite)
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
        recipe.check(mark.dimension, sum(one.header()["totals"]["vectors"] for one in corpora))
        state = State(mark.to_json(), _metric(first["similarity"]), mark.dimension)
        state.reading = {"passages": first["settings"]["passages"]}
        with _making(folder):
            state.model_source = place_of(model_source, folder)
            options: dict[str, Any] = {"fresh": state, "recipe": recipe, "strict": False, "show": show_progress_bar}
            return cls._built(folder, model, corpora, **options)

    @classmethod
    def _built(cls, folder: Path, model: Any, corpora: Sequence[Corpus], **options: Any) -> Index:
        index = cls(folder, Store(folder), model, {})
        index.change = take_in(index._store, corpora, "build", **options)
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
                index.check(index._model)
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
        used = None
        if isinstance(queries, np.ndarray):
            vectors: NDArray[Any] = np.atleast_2d(queries)
        else:
            texts = _query_texts([queries] if isinstance(queries, str) else queries)
            used = self._its_model(model)
            options: dict[str, Any] = {"prompt": prompt, "batch_size": batch_size, "show_progress_bar": False}
            vectors = (
                np.asarray(used.encode_query(texts, **options))
                if texts
                else np.zeros((0, self._present().state.dim), dtype=np.float32)
            )
        with self._store.reading() as tx:
            snapshot = self._present()
            if used is not None:
                # Another model's index may have taken the place of this one meanwhile.
                self.check(used)
            state = snapshot.state
            ready = scaled_queries(vectors, state.dim, state.metric)
            allowed = None if where is None else snapshot.allowed(tx, where)
            found = snapshot.nearest(tx, ready, k, allowed)
            results = self._results(tx, found, cut=state.passages is not None, ids_only=ids_only)
        return results[0] if single else results

    def _its_model(self, model: Any = None) -> SentenceTransformer:
        """The model to encode with, checked."""
        if model is None:
            if self._model is None:
                self._model = loaded(self.find_model(), None, **self._settings)[0]
            model = self._model
        used: SentenceTransformer = loaded(model, None, **self._settings)[0]
        self.check(used)
        return used

    def check(self, model: SentenceTransformer) -> None:
        """See whether the index, as it is now, is of this model.

        Raises:
            ValueError: It is another model's.
        """
        about = self._present().state.model
        # A model that was trained on since is another one.
        if self._checked.get(model) != (version_of(model), about):
            check(ModelFingerprint.from_json(about), model, "the index")
            self._checked[model] = (version_of(model), about)

    def _present(self) -> Snapshot:
        """The last generation that was committed, as the reading transaction of this thread sees it."""
        with self._store.reading() as tx, self._lock:
            state = read_state(tx, self._store.path)
            if state is None:
                raise FileNotFoundError(no_index(self._path))
            old = self._snapshot
            while old is None or old.state.generation != state.generation:
                try:
                    old = self._snapshot = Snapshot.read(tx, self._path, state, old)
                except FileNotFoundError:
                    # A writer may have replaced the file since this transaction began: so it begins anew.
                    tx.execute("ROLLBACK")
                    tx.execute("BEGIN")
                    gone, state = state, read_state(tx, self._store.path)
                    if state is None or state.generation == gone.generation:
                        raise
            return old

    def _results(self, tx: Any, found: list[list[Found]], *, cut: bool, ids_only: bool) -> list[list[SearchResult]]:
        rows = by_keys(tx, {one.document for listed in found for one in listed}, "key, id" if ids_only else COLUMNS)

        def result(rank: int, one: Found) -> SearchResult:
            if one.document not in rows:
                raise ValueError(damaged(self._store.path, f"there is no document {one.document}"))
            if ids_only:
                return SearchResult(rank, one.score, rows[one.document][1], "", {})
            stored = Stored(*rows[one.document])
            document = stored.document(self._store.path)
            passage = stored.text[slice(*stored.bounds(one.vector))] if cut else None
            return SearchResult(rank, one.score, stored.id, stored.text, document.metadata, passage)

        return [[result(rank, one) for rank, one in enumerate(listed, 1)] for listed in found]

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
                for row in tx.execute(f"SELECT {COLUMNS} FROM documents ORDER BY key"):
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
        done = [one.header() for one in unfinished(self._path)]
        done = [one for one in done if one.get("token") in tokens]
        new = New(source, self._store, upsert=kind == "upsert", strict=work.strict)
        with encoded(self._path, used, new, work, state.next_number) as (corpus, found):
            # What had taken effect before its writer was killed.
            same = [one["token"] for one in done if one.get("digest") == new.digest]
            repeated = bool(same) or (new.digest == state.last_addition and not again)
            if repeated or not (found.documents + found.rejected):
                change = Change(kind, state.count, repeated=repeated and found.documents > 0)
            else:
                change = take_in(self._store, [corpus], kind, strict=work.strict, show=work.show)
            # What another addition has left that was killed stays, so that its repetition is known.
            same.append(corpus.header()["token"])
        sweep(self._path, same)
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
        self,
        out: str | PathLike[str],
        to: Format | None = None,
        *,
        overwrite: bool = False,
        show_progress_bar: bool | None = None,
    ) -> int:
        """Write all documents with their vectors, as they are at one moment, for other tools.

        Args:
            out: Where to.
            to: ``"parquet"``: the columns id, text, metadata (JSON), passage and vector. ``"lancedb"``: a LanceDB
                database, whose table ``documents`` has the same columns. ``"faiss"``: one FAISS file, its ids the keys.
                ``"npy"``: a folder with vectors.npy, documents.jsonl (key, id, text, metadata, passage; a line a
                vector) and index.faiss. None: by the name, ``X.parquet``, ``X.lancedb``, ``X.faiss`` or ``X``.
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
                return export(store, tx, Path(out), to, overwrite=overwrite, show=show_progress_bar)
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
        with self._store.reading() as tx:
            return about(self._store, tx)

    def verify(self) -> dict[str, Any]:
        """Read every file and hold it against the digests that were kept with each change.

        Returns:
            What `info` gives.

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


def _query_texts(queries: Any) -> list[str]:
    """Queries as the model takes them."""
    if not isinstance(queries, Sequence) or not all(isinstance(query, str) for query in queries):
        raise TypeError(
            f"cannot search for {type(queries).__name__}; give a text, a list of texts, or a NumPy array of floats"
        )
    if empty := [number for number, query in enumerate(queries) if not query.strip()]:
        raise ValueError(f"query {empty[0]} is empty; give it a text, or leave it out")
    return [clean_text(query) for query in queries]


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
    settings = taken(Settings, {name: name for name in ("batch_size", "batch_tokens", "part_size", "passages")})
    if given:
        raise TypeError(f"{next(iter(given))}={next(iter(given.values()))!r}: there is no such option")
    return reading, ids, Options(settings, engine, strict, show)


def _metric(similarity: str | None) -> str:
    if similarity not in METRICS:
        raise ValueError(
            f"the model's similarity is {similarity!r}; an index compares by {' or '.join(METRICS)}: set "
            'model.similarity_fn_name = "cosine"'
        )
    return similarity


def check_target(folder: Path, *, overwrite: bool) -> None:
    """Refuse to build where something else is than an index, or what a build leaves that was killed."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise FileExistsError(f"{folder}: a file is there; name a folder")
    # Without the SQLite file, FAISS files are somebody else's.
    ours = rf"{FILE}(-wal|-shm|-journal)?|{re.escape(BUILDING)}"
    ours += r"|vectors-\d+\.faiss|\.vectors-.*\.tmp" if (folder / FILE).is_file() else ""
    if any(not re.fullmatch(ours, path.name) for path in folder.iterdir()):
        raise FileExistsError(f"{folder}: not an index, so nothing is written there; give another path")
    try:
        there = is_index(folder)
    except ValueError:
        there = True  # a damaged one can be replaced
    if there and not overwrite:
        raise FileExistsError(
            f"{folder}: already there; give another path, or overwrite=True (--overwrite) to replace an index"
        )


@contextmanager
def _making(folder: Path) -> Iterator[None]:
    """A folder for a build; where that fails, what it has made is removed, but for parts that were encoded."""
    made = make_folder(folder)
    try:
        yield
    except BaseException:
        with suppress(OSError, ValueError):
            if not any((folder / BUILDING).glob("*/vectors/*.npy")):
                shutil.rmtree(folder / BUILDING, ignore_errors=True)
            if not is_index(folder):
                for path in folder.glob(f"{FILE}*"):
                    path.unlink()
            if made:
                folder.rmdir()
        raise
