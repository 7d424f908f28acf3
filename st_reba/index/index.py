"""Build an index folder, open it and search it."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Sequence, Sized
from dataclasses import dataclass
from itertools import islice
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from st_reba.batches import check_sizes
from st_reba.files import whole_folder
from st_reba.index.documents import Document, as_documents
from st_reba.index.fingerprint import check, fingerprint
from st_reba.index.manifest import DOCUMENTS_FILE, MANIFEST_FILE, METRICS, VECTORS_FILE, Manifest, is_index
from st_reba.index.store import DocumentStore, clean_text
from st_reba.index.vectors import encode_documents, load_faiss, misfit, read_vectors, ready_vectors

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


@dataclass(frozen=True)
class SearchResult:
    """One document that was found.

    Args:
        rank: 1 for the best document of a query.
        score: The cosine or the inner product with the query; higher is better.
        id: The id of the document.
        text: Its text.
        metadata: What was stored with it.
    """

    rank: int
    score: float
    id: str
    text: str
    metadata: dict[str, Any]


class Index:
    """Documents and their vectors in a folder, searched exactly. Make one with `build` or `open`.

    Searching is safe from several threads as far as the model is; with ready vectors it always is.

    Example:
        >>> import st_reba
        >>> index = Index.build(st_reba.build("mini", pooling="mean"), ["Cats sleep.", "Ships sail."], "my_index")
        >>> index.search("Cats sleep", k=1)[0].text
        'Cats sleep.'
    """

    def __init__(self, path: Path, manifest: Manifest, vectors: Any, store: DocumentStore) -> None:
        self._path = path
        self._manifest = manifest
        self._vectors = vectors
        self._store = store
        self._model: SentenceTransformer | None = None
        self._checked: weakref.WeakSet[SentenceTransformer] = weakref.WeakSet()

    @classmethod
    def build(
        cls,
        model: SentenceTransformer,
        texts: Iterable[str | Document],
        path: str | PathLike[str],
        *,
        batch_size: int | None = None,
        batch_tokens: int | None = None,
        chunk_size: int = 1024,
        overwrite: bool = False,
        show_progress_bar: bool | None = None,
        ids: Iterable[str] | None = None,
        model_source: str | PathLike[str] | None = None,
    ) -> Index:
        """Encode documents and write them to a new index folder, all of it or nothing.

        Args:
            model: The model; its `similarity_fn_name` must be "cosine" or "dot".
            texts: Texts or documents; a generator is read once, a chunk at a time.
            path: The folder to make.
            batch_size: How many texts the model takes at once. Excludes `batch_tokens`.
            batch_tokens: How many positions the model takes at once, padding included, which is at most 5 % of them;
                a text counts with all its copies, the template and special tokens. None:
                `st_reba.batches.DEFAULT_BATCH_TOKENS`, unless `batch_size` is given.
            chunk_size: How many documents are sorted by length, encoded and written at a time.
            overwrite: Replace an index that is already there, after the new one is complete.
            show_progress_bar: Show a bar; None shows it on a terminal only.
            ids: One id for each text, when the texts are plain strings.
            model_source: The Hub id or folder to load the model from when the index is opened alone. A folder is
                remembered relative to the index.

        Returns:
            The index, ready to be searched with the same model.

        Raises:
            FileExistsError: The path exists and `overwrite` is False, or it is not an index.
            ValueError: There is no document, an id is used twice, a vector is NaN, infinite or zero, the model's
                similarity is not supported, or both `batch_size` and `batch_tokens` are given.
            TypeError: Something other than a text or a document was given.

        Example:
            >>> import st_reba
            >>> Index.build(st_reba.build("mini"), ["Cats sleep.", "Ships sail."], "my_index")
            Index('...my_index', 2 documents, dim 192, cosine, built with 'mini')
        """
        check_sizes(batch_size, batch_tokens)
        if chunk_size < 1:
            raise ValueError(f"chunk_size is {chunk_size}; it must be 1 or more")
        metric = model.similarity_fn_name
        if metric not in METRICS:
            raise ValueError(
                f"the model compares vectors by {metric!r}; an index needs model.similarity_fn_name to be "
                f"{' or '.join(repr(known) for known in METRICS)}"
            )
        target = Path(os.path.realpath(path))
        documents = as_documents(texts, ids)
        total = len(texts) if isinstance(texts, Sized) else None
        with whole_folder(path, overwrite=overwrite, kind="an index", is_kind=is_index) as folder:
            model_fingerprint = fingerprint(model)
            vectors = load_faiss().IndexFlatIP(model_fingerprint.dimension)
            bar = _progress_bar(total, show_progress_bar)
            with DocumentStore.create(folder / DOCUMENTS_FILE) as store, bar:
                while chunk := list(islice(documents, chunk_size)):
                    # Stored first: a repeated id or bad metadata shows before the time for encoding is spent.
                    store.add_many(chunk)
                    encoded = encode_documents(
                        model,
                        chunk,
                        len(store) - len(chunk),
                        metric,
                        vectors.d,
                        batch_size=batch_size,
                        batch_tokens=batch_tokens,
                        progress=bar.update,
                    )
                    vectors.add(encoded)
            if not vectors.ntotal:
                raise ValueError("there are no documents; an index needs at least one")
            load_faiss().write_index(vectors, str(folder / VECTORS_FILE))
            source = None if model_source is None else _relative(model_source, target)
            Manifest.new(model_fingerprint, metric, vectors.ntotal, source).write(folder / MANIFEST_FILE)
            del vectors  # not twice in memory while the files are read back
            index = cls._load(folder)
        index._path = target
        index._model = model
        index._checked.add(model)
        return index

    @classmethod
    def open(cls, path: str | PathLike[str], model: SentenceTransformer | None = None) -> Index:
        """Open an index folder.

        Args:
            path: The folder.
            model: The model to encode queries with. It can also be given to `search`; ready vectors need none.

        Returns:
            The index.

        Raises:
            FileNotFoundError: A file of the index is missing.
            ValueError: A file is damaged or does not fit the others, or the model is not the one that built the index.

        Example:
            >>> import st_reba
            >>> model = st_reba.build("mini", pooling="mean")
            >>> Index.build(model, ["Cats sleep.", "Ships sail."], "my_index").close()
            >>> Index.open("my_index", model).search("Cats sleep", k=1)[0].text
            'Cats sleep.'
        """
        index = cls._load(Path(path))
        if model is not None:
            try:
                index._check(model)
            except BaseException:
                index.close()
                raise
            index._model = model
        return index

    @classmethod
    def _load(cls, path: Path) -> Index:
        manifest = Manifest.read(path / MANIFEST_FILE)
        vectors = read_vectors(path / VECTORS_FILE, manifest)
        store = DocumentStore.open(path / DOCUMENTS_FILE)
        if len(store) != manifest.count:
            store.close()
            raise ValueError(misfit(path / DOCUMENTS_FILE, f"{len(store)} documents", f"{manifest.count}"))
        return cls(path, manifest, vectors, store)

    @overload
    def search(
        self,
        queries: str,
        k: int = ...,
        *,
        model: SentenceTransformer | None = ...,
        batch_size: int = ...,
        prompt: str | None = ...,
    ) -> list[SearchResult]: ...

    @overload
    def search(
        self,
        queries: list[str] | tuple[str, ...],
        k: int = ...,
        *,
        model: SentenceTransformer | None = ...,
        batch_size: int = ...,
        prompt: str | None = ...,
    ) -> list[list[SearchResult]]: ...

    @overload
    def search(
        self,
        queries: NDArray[np.floating[Any]],
        k: int = ...,
        *,
        model: SentenceTransformer | None = ...,
        batch_size: int = ...,
        prompt: str | None = ...,
    ) -> list[SearchResult] | list[list[SearchResult]]: ...

    def search(
        self,
        queries: str | Sequence[str] | NDArray[np.floating[Any]],
        k: int = 10,
        *,
        model: SentenceTransformer | None = None,
        batch_size: int = 32,
        prompt: str | None = None,
    ) -> list[SearchResult] | list[list[SearchResult]]:
        """Find the nearest documents of one or more queries.

        Args:
            queries: A text, a list of texts, or ready vectors of shape [dim] or [queries, dim].
            k: How many documents to return for each query; all when there are fewer.
            model: The model to encode the texts with, when none was given to `open`.
            batch_size: How many texts the model takes at once.
            prompt: What the model puts in front of the queries instead of its own prompt.

        Returns:
            The results of one text or of one vector, best first; a list of such lists for several. Documents with
            the same score are in the order they were added.

        Raises:
            ValueError: k is below 1, there is no model, the model is not the one that built the index, or a vector
                has another dimension, is NaN, infinite, or zero where cosines are compared.
            TypeError: The queries are none of these.

        Example:
            >>> import st_reba
            >>> index = Index.build(st_reba.build("mini", pooling="mean"), ["Cats sleep.", "Ships sail."], "my_index")
            >>> [[result.id for result in found] for found in index.search(["Cats sleep", "Ships sail"], k=1)]
            [['0'], ['1']]
        """
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise ValueError(f"k is {k!r}; it must be a whole number, 1 or more")
        if isinstance(queries, np.ndarray):
            single = queries.ndim == 1
            vectors = queries[None] if single else queries
        else:
            single = isinstance(queries, str)
            vectors = self._encode_queries(
                [queries] if isinstance(queries, str) else queries, model, batch_size, prompt
            )
        found = self._nearest(self._query_vectors(vectors), k)
        return found[0] if single else found

    def _encode_queries(
        self, queries: Sequence[str], model: SentenceTransformer | None, batch_size: int, prompt: str | None
    ) -> NDArray[Any]:
        if not isinstance(queries, Sequence) or not all(isinstance(query, str) for query in queries):
            raise TypeError(
                f"cannot search for {type(queries).__name__}; give a text, a list of texts, or a NumPy array of floats"
            )
        model = self._model if model is None else model
        if model is None:
            raise ValueError(
                "texts need a model: use Index.open(path, model), search(..., model=model), or give ready vectors"
            )
        self._check(model)
        if not queries:
            return np.zeros((0, self._manifest.dim), dtype=np.float32)
        texts = [clean_text(query) for query in queries]
        return np.asarray(model.encode_query(texts, prompt=prompt, batch_size=batch_size, show_progress_bar=False))

    def _check(self, model: SentenceTransformer) -> None:
        if model not in self._checked:
            check(self._manifest.model, model)
            self._checked.add(model)

    def _query_vectors(self, vectors: NDArray[Any]) -> NDArray[np.float32]:
        dim, metric = self._manifest.dim, self._manifest.metric
        if vectors.dtype.kind != "f":
            raise ValueError(f"the query vectors are {vectors.dtype}; give floats, as model.encode_query does")
        if vectors.ndim != 2 or vectors.shape[1] != dim:
            raise ValueError(
                f"the query vectors have the shape {vectors.shape}; this index needs [{dim}] or [queries, {dim}]"
            )
        ready, bad, zero = ready_vectors(vectors, metric)
        # A zero vector has an inner product with every document, but no cosine.
        refused = np.flatnonzero(bad | zero if metric == "cosine" else bad)
        if len(refused):
            what = "NaN or infinite" if bad[refused[0]] else "zero"
            raise ValueError(f"the vector of query {refused[0]} (from 0) is {what}; change or leave out that query")
        return ready

    def _nearest(self, vectors: NDArray[np.float32], k: int) -> list[list[SearchResult]]:
        count = self._manifest.count
        k = min(k, count)
        fetch = min(k + 1, count)
        while True:
            scores, rows = self._vectors.search(vectors, fetch)
            # Among equal scores FAISS keeps any rows, so look on until the cut does not fall between equals.
            if fetch == count or (scores[:, -1] < scores[:, k - 1]).all():
                break
            fetch = min(2 * fetch, count)
        order = np.lexsort((rows, -scores))[:, :k]
        scores, rows = np.take_along_axis(scores, order, axis=1), np.take_along_axis(rows, order, axis=1)
        documents = iter(self._store.get(rows.ravel().tolist()))
        return [
            [
                # Every stored document has an id.
                SearchResult(rank, score, document.id or "", document.text, document.metadata)
                for rank, (score, document) in enumerate(zip(row_scores, islice(documents, k), strict=True), 1)
            ]
            for row_scores in scores.tolist()
        ]

    def find_model(self) -> str:
        """Where the model that built the index is: a Hub id or a folder.

        Raises:
            ValueError: The index was not told, or the folder is gone.
        """
        source = self._manifest.model_source
        if source is None:
            raise ValueError("the index does not say where its model is; name it: --model FOLDER_OR_HUB_ID")
        if not source.startswith("."):
            return source
        folder = os.path.normpath(self._path / source)
        if not os.path.isdir(folder):
            # Never handed on: a missing folder's name could be somebody's repository on the Hub.
            raise ValueError(
                f"the index was built with the model in {folder!r}, which is gone; name it: --model FOLDER"
            )
        return folder

    @property
    def path(self) -> Path:
        """The folder of the index."""
        return self._path

    @property
    def manifest(self) -> Manifest:
        """What the index holds and which model made it."""
        return self._manifest

    def close(self) -> None:
        """Close the files. The index cannot be searched afterwards."""
        self._store.close()

    def __enter__(self) -> Index:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return self._manifest.count

    def __repr__(self) -> str:
        about = self._manifest
        return (
            f"Index({str(self._path)!r}, {about.count} documents, dim {about.dim}, {about.metric}, "
            f"built with {about.model.name or 'an unnamed model'!r})"
        )


def _relative(source: str | PathLike[str], target: Path) -> str:
    """A folder as seen from the index, beginning with a dot; anything else, as a Hub id, as it is."""
    source = os.fspath(source)
    if not os.path.isdir(source):
        return source
    relative = os.path.relpath(os.path.realpath(source), target)
    return relative if relative.startswith(".") else os.path.join(".", relative)


def _progress_bar(total: int | None, show: bool | None) -> Any:
    from tqdm.auto import tqdm

    return tqdm(total=total, desc="Indexing", unit=" texts", disable=None if show is None else not show)
