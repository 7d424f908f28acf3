"""An opened index that is changed: each change is the folder's next generation, and is opened at once."""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

from .reader import Reader

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from ..corpus.source import Input
    from .changing.changes import Change


class Writer(Reader):
    """What an opened index does to its folder. Other readers see it when they `refresh`."""

    def add(
        self,
        texts: Input,
        *,
        model: SentenceTransformer | None = None,
        ids: Iterable[str] | None = None,
        **options: Any,
    ) -> Change:
        """Add documents.

        Args:
            texts: Texts, documents, or a file or folder of them.
            model: The model that built the index, when none was given to `open`.
            ids: One id for each text, when the texts are plain strings.
            **options: As `st_reba.index.add` takes them: strict, again, text_column, batch_tokens, ….

        Returns:
            What was done.

        Raises:
            ValueError: An id is there already with another text (use `upsert`); and as `st_reba.index.add`.
            BlockingIOError: Another process is writing there.

        Example:
            >>> import st_reba
            >>> from st_reba.index import Index
            >>> index = Index.build(st_reba.build("mini", pooling="mean"), ["Cats sleep.", "Ships sail."], "my_index")
            >>> index.add(["Bread rises."]).added, index.search("Bread rises.", k=1)[0].id
            (1, '2')
        """
        from .changing.changes import add

        return self._changed(add(self.path, self._writing_model(model), texts, ids=ids, **options))

    def upsert(
        self,
        texts: Input,
        *,
        model: SentenceTransformer | None = None,
        ids: Iterable[str] | None = None,
        **options: Any,
    ) -> Change:
        """Add documents; those whose ids are there take the place of the old ones in the same step.

        Args:
            texts: As for `add`; so are the others.
            model: As for `add`.
            ids: As for `add`.
            **options: As for `add`.

        Returns:
            What was done.

        Raises:
            ValueError: As `st_reba.index.add`.
            BlockingIOError: Another process is writing there.

        Example:
            >>> import st_reba
            >>> from st_reba.index import Index
            >>> index = Index.build(st_reba.build("mini", pooling="mean"), ["Cats sleep.", "Ships sail."], "my_index")
            >>> index.upsert(["Cats run."], ids=["0"]).replaced, index.search("Cats run.", k=1)[0].text
            (1, 'Cats run.')
        """
        from .changing.changes import add

        return self._changed(add(self.path, self._writing_model(model), texts, upsert=True, ids=ids, **options))

    def delete(self, ids: Iterable[str], *, missing: Literal["error", "ignore"] = "error") -> Change:
        """Delete documents by id.

        Args:
            ids: Which.
            missing: "error": an id that is not there is an error and nothing is deleted; "ignore": it is passed over.

        Returns:
            What was done.

        Raises:
            ValueError: An id is not there.
            BlockingIOError: Another process is writing there.

        Example:
            >>> import st_reba
            >>> from st_reba.index import Index
            >>> index = Index.build(st_reba.build("mini"), ["Cats sleep.", "Ships sail."], "my_index")
            >>> index.delete(["0"]).deleted, len(index)
            (1, 1)
        """
        from .changing.changes import delete

        return self._changed(delete(self.path, ids, missing=missing))

    def compact(self, **options: Any) -> Change:
        """Write the index anew as one segment, without what is deleted.

        Args:
            **options: As `st_reba.index.compact` takes them: factory, parameters, recall_aim, ….

        Returns:
            What was done.

        Raises:
            ValueError: As `st_reba.index.compact`.
            BlockingIOError: Another process is writing there.

        Example:
            >>> import st_reba
            >>> from st_reba.index import Index
            >>> index = Index.build(st_reba.build("mini"), ["Cats sleep.", "Ships sail.", "Bread rises."], "my_index")
            >>> index.delete(["1"]).count, index.compact().deleted
            (2, 1)
        """
        from .changing.compaction import compact

        return self._changed(compact(self.path, **options))

    def export(
        self, out: str | PathLike[str], *, overwrite: bool = False, show_progress_bar: bool | None = None
    ) -> int:
        """Write vectors and documents, as the folder holds them now, into a file.

        Args:
            out: ``X.npy`` or ``X.parquet``; see `st_reba.index.export`.
            overwrite: Replace what is there.
            show_progress_bar: Show a bar; None: on a terminal.

        Returns:
            How many documents were written.

        Raises:
            FileExistsError: Something is there already.
            ValueError: The suffix is another, or there is nothing to write.

        Example:
            >>> import st_reba
            >>> from st_reba.index import Index
            >>> index = Index.build(st_reba.build("mini"), ["Cats sleep.", "Ships sail."], "my_index")
            >>> index.export("my_vectors.npy")
            2
        """
        from .exporting import export

        return export(self.path, out, overwrite=overwrite, show_progress_bar=show_progress_bar)

    def _writing_model(self, model: SentenceTransformer | None) -> SentenceTransformer:
        model = self._model if model is None else model
        if model is None:
            raise ValueError("new documents need a model: use Index.open(path, model), or give model=")
        return model

    def _changed(self, change: Change) -> Change:
        self.refresh()
        return change
