"""An index folder that is open: searching, seeing changes, and refusing models that did not make it."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from ..corpus.documents import clean_text
from ..corpus.model_source import located
from ..fingerprint import check
from .building.build import BuildReport
from .folder.generation import Generation, SearchResult
from .folder.manifest import Manifest
from .vectors.scaling import ready_queries

if TYPE_CHECKING:
    from typing import Self

    from sentence_transformers import SentenceTransformer


class Reader:
    """What `Index` does with a folder that is there.

    Args:
        path: The folder.
        generation: What it holds now.
        verify: How `refresh` opens it.
        mmap: How `refresh` opens it.
    """

    def __init__(self, path: Path, generation: Generation, *, verify: bool = True, mmap: bool = True) -> None:
        self._path = path
        self._generation = generation
        self._verify = verify
        self._mmap = mmap
        self._model: SentenceTransformer | None = None
        self._checked: weakref.WeakSet[SentenceTransformer] = weakref.WeakSet()
        self._report: BuildReport | None = None

    @classmethod
    def open(
        cls,
        path: str | PathLike[str],
        model: SentenceTransformer | None = None,
        *,
        verify: bool = True,
        mmap: bool = True,
    ) -> Self:
        """Open an index folder.

        Args:
            path: The folder.
            model: The model to encode queries with. It can also be given to `search`; ready vectors need none.
            verify: Read all files and compare their SHA-256; else only their sizes.
            mmap: Map the vectors, so that the system loads what is searched; else read them into memory.

        Returns:
            The index, as it is now; `refresh` sees later changes.

        Raises:
            FileNotFoundError: A file of the index is missing.
            ValueError: A file is damaged or does not fit the others, or the model is not the one that built the index.

        Example:
            >>> import st_reba
            >>> from st_reba.index import Index
            >>> model = st_reba.build("mini", pooling="mean")
            >>> Index.build(model, ["Cats sleep.", "Ships sail."], "my_index").close()
            >>> Index.open("my_index", model).search("Cats sleep", k=1)[0].text
            'Cats sleep.'
        """
        folder = Path(path)
        index = cls(folder, Generation.open(folder, verify=verify, mmap=mmap), verify=verify, mmap=mmap)
        if model is not None:
            try:
                index._check(model)
            except BaseException:
                index.close()
                raise
            index._model = model
        return index

    def refresh(self) -> bool:
        """Open the index as it is in its folder now. Searches that are running end on what they began with.

        Returns:
            Whether it had changed.

        Raises:
            FileNotFoundError: A file is missing; the index stays open as it was.
            ValueError: A file is damaged; the index stays open as it was.
        """
        if Manifest.read(self._path) == self.manifest:
            return False
        old, self._generation = self._generation, Generation.open(self._path, verify=self._verify, mmap=self._mmap)
        if old.manifest.model != self.manifest.model:
            self._checked.clear()
        old.retire()
        return True

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
            >>> from st_reba.index import Index
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
        ready = ready_queries(vectors, self.manifest.dim, self.manifest.metric)
        with self._present() as generation:
            found = generation.search(ready, k)
        return found[0] if single else found

    @contextmanager
    def _present(self) -> Iterator[Generation]:
        """The present generation, kept open during the ``with`` block whatever other threads do."""
        while not (generation := self._generation).begin_use():
            if generation is self._generation:
                raise ValueError("the index is closed; open it again")
        try:
            yield generation
        finally:
            generation.end_use()

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
            return np.zeros((0, self.manifest.dim), dtype=np.float32)
        texts = [clean_text(query) for query in queries]
        return np.asarray(model.encode_query(texts, prompt=prompt, batch_size=batch_size, show_progress_bar=False))

    def _check(self, model: SentenceTransformer) -> None:
        if model not in self._checked:
            check(self.manifest.model, model)
            self._checked.add(model)

    def find_model(self) -> str:
        """Where the model that built the index is: a Hub id or a folder.

        Raises:
            ValueError: The index was not told, or the folder is gone.
        """
        return located(self.manifest.model_source, self._path)

    @property
    def path(self) -> Path:
        """The folder of the index."""
        return self._path

    @property
    def manifest(self) -> Manifest:
        """What the index holds and which model made it."""
        return self._generation.manifest

    @property
    def report(self) -> BuildReport | None:
        """What building it came to, if this object was just built."""
        return self._report

    def close(self) -> None:
        """Close the files. The index cannot be searched afterwards."""
        self._generation.retire()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return self.manifest.count

    def __repr__(self) -> str:
        about = self.manifest
        return (
            f"Index({str(self._path)!r}, {about.count} documents, dim {about.dim}, {about.metric}, "
            f"built with {about.model.name or 'an unnamed model'!r})"
        )
