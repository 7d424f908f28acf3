"""Build an index folder, open it and search it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..batches import check_sizes
from ..corpus.model_source import relative
from .building.build import BuildReport, IndexSettings
from .folder.generation import Generation
from .writer import Writer

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from ..corpus.engines import Engine
    from ..corpus.source import Input


class Index(Writer):
    """Documents and their vectors in a folder, searched exactly or nearly so. Make one with `build` or `open`.

    Searching is safe from several threads as far as the model is; with ready vectors it always is.

    Example:
        >>> import st_reba
        >>> index = Index.build(st_reba.build("mini", pooling="mean"), ["Cats sleep.", "Ships sail."], "my_index")
        >>> index.search("Cats sleep", k=1)[0].text
        'Cats sleep.'
    """

    @classmethod
    def build(
        cls,
        model: SentenceTransformer,
        texts: Input,
        path: str | PathLike[str],
        *,
        factory: str = "Flat",
        parameters: str | None = None,
        recall_aim: float = 0.95,
        train_size: int | None = None,
        seed: int = 0,
        batch_size: int | None = None,
        batch_tokens: int | None = None,
        overwrite: bool = False,
        show_progress_bar: bool | None = None,
        ids: Iterable[str] | None = None,
        model_source: str | PathLike[str] | None = None,
        strict: bool = True,
        engine: str | Engine = "single",
        **corpus_options: Any,
    ) -> Index:
        """Encode documents and write them to an index folder. A build that is killed goes on with the same call.

        Args:
            model: The model; its `similarity_fn_name` must be "cosine" or "dot".
            texts: Texts, documents, or a file or folder of them, as `st_reba.corpus.encode_corpus` takes them.
            path: The folder to make.
            factory: A FAISS factory string, as "HNSW32", "IVF1024,Flat" or "IVF4096,PQ48,RFlat"; "auto" chooses one by
                the number of documents. Only "Flat" is exact; of others recall@10 is measured and kept in the manifest.
            parameters: FAISS search parameters, as "nprobe=32"; None: found by measuring.
            recall_aim: The recall@10 that they are to reach; a warning says so if nothing does.
            train_size: How many vectors an index that needs it is trained on; None: by its centroids.
            seed: Of the training sample and of the queries that recall is measured with.
            batch_size: How many texts the model takes at once. Excludes `batch_tokens`.
            batch_tokens: How many positions the model takes at once, padding included, which is at most 5 % of them;
                a text counts with all its copies, the template and special tokens. None:
                `st_reba.batches.DEFAULT_BATCH_TOKENS`, unless `batch_size` is given.
            overwrite: Replace an index that is already there, at the moment when the new one is complete.
            show_progress_bar: Show bars; None shows them on a terminal only.
            ids: One id for each text, when the texts are plain strings.
            model_source: The Hub id or folder to load the model from when the index is opened alone. A folder is
                remembered relative to the index.
            strict: Stop at the first record that is no document, or whose vector cannot be used; else such records
                are set aside in ``rejects.jsonl`` in the folder.
            engine: Where to encode: "single", "local", "ray", or an engine.
            **corpus_options: As `encode_corpus` takes them: workers, devices, shard_size, dtype, text_column,
                id_column, encoding, split, max_chars.

        Returns:
            The index, ready to be searched with the same model.

        Raises:
            FileExistsError: The path exists and `overwrite` is False, or it is not an index.
            BlockingIOError: Another process is writing there.
            OSError: The disk is full, or the folder may not be written. An index that was there still is.
            ValueError: There is no document, an id is used twice, a vector is NaN, infinite or zero, the model's
                similarity is not supported, the factory is not known or does not fit, or both `batch_size` and
                `batch_tokens` are given.
            TypeError: Something other than a text or a document was given.

        Example:
            >>> import st_reba
            >>> Index.build(st_reba.build("mini"), ["Cats sleep.", "Ships sail."], "my_index")
            Index('...my_index', 2 documents, dim 192, cosine, built with 'mini')
        """
        from .building.making import build_index

        check_sizes(batch_size, batch_tokens)
        target = Path(os.path.realpath(path))
        settings = IndexSettings(factory, parameters, recall_aim, train_size, seed)
        report = build_index(
            model,
            texts,
            target,
            settings,
            overwrite=overwrite,
            strict=strict,
            show_progress_bar=show_progress_bar,
            model_source=None if model_source is None else relative(model_source, target),
            batch_size=batch_size,
            batch_tokens=batch_tokens,
            ids=ids,
            engine=engine,
            **corpus_options,
        )
        return cls._built(target, model, report)

    @classmethod
    def from_corpus(
        cls,
        corpus: str | PathLike[str] | Sequence[str | PathLike[str]],
        path: str | PathLike[str],
        model: SentenceTransformer | None = None,
        *,
        factory: str = "Flat",
        parameters: str | None = None,
        recall_aim: float = 0.95,
        train_size: int | None = None,
        seed: int = 0,
        overwrite: bool = False,
        show_progress_bar: bool | None = None,
        model_source: str | PathLike[str] | None = None,
        verify: bool = True,
    ) -> Index:
        """Make an index of what `st_reba.corpus.encode_corpus` encoded; nothing is encoded again.

        Args:
            corpus: A corpus folder or several, by one model, no id in two of them. Documents whose vectors cannot be
                used are left out, as the corpus says.
            path: The folder to make.
            model: The model, held against the one that encoded the corpus; None: the corpus is trusted.
            factory: As for `build`; so are the others that are not told here.
            parameters: As for `build`.
            recall_aim: As for `build`.
            train_size: As for `build`.
            seed: As for `build`.
            overwrite: As for `build`.
            show_progress_bar: As for `build`.
            model_source: As for `build`; None: where the corpus says.
            verify: Compare the SHA-256 of all files of the corpus first.

        Returns:
            The index.

        Raises:
            FileNotFoundError: There is no such corpus, or a file of it is missing.
            ValueError: A corpus is damaged, not complete or by another model, or an id is used twice; and as `build`.
            OSError: As for `build`.

        Example:
            >>> import st_reba
            >>> from st_reba.corpus import encode_corpus
            >>> model = st_reba.build("mini", pooling="mean")
            >>> corpus = encode_corpus(model, ["Cats sleep.", "Ships sail."], "my_corpus")
            >>> Index.from_corpus("my_corpus", "my_index", model).search("Cats sleep", k=1)[0].text
            'Cats sleep.'
        """
        from .building.making import index_corpora

        target = Path(os.path.realpath(path))
        folders = [corpus] if isinstance(corpus, (str, PathLike)) else corpus
        report = index_corpora(
            [Path(folder) for folder in folders],
            target,
            IndexSettings(factory, parameters, recall_aim, train_size, seed),
            model=model,
            overwrite=overwrite,
            show_progress_bar=show_progress_bar,
            model_source=None if model_source is None else relative(model_source, target),
            verify=verify,
        )
        return cls._built(target, model, report)

    @classmethod
    def _built(cls, path: Path, model: SentenceTransformer | None, report: BuildReport) -> Index:
        # What was just written was also just measured.
        index = cls(path, Generation.open(path, verify=False), verify=False)
        index._report = report
        if model is not None:
            index._model = model
            index._checked.add(model)
        return index
