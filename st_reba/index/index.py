"""Index of documents: built, opened, searched and changed."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ..corpus.encode import longest_input
from ..corpus.folder import Corpus, is_corpus
from ..corpus.records import Document, Reject
from ..corpus.source import Input, Source, open_source
from ..files import parse_path
from ..probe import Probe, resolve_model, take_probe
from .arguments import parse_count, parse_ids, resolve_folder
from .changes import Change, changing, check_target, take_in
from .compaction import compact
from .export import export, verify
from .model import IndexModel
from .queries import Mode, Vectors, check_mode, choose_mode, read_queries
from .snapshots import Snapshots
from .store import State, Store, documents, documents_with
from .vectors import METRICS, try_factory
from .where import Where
from .whitening import check_whiten

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)


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
        self._store = store
        self._model = IndexModel(store, model, options)
        self._snapshots = Snapshots(store)
        self._absent_words_told = False

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
            whiten: Whiten the vectors, as untrained models need it for search: documents and queries lose a mean of
                their own, and what all documents share counts for less. It is fitted without labels, on 100 different
                texts or more; on 20 or more, means alone. None: if the model is a decoder without training or filter.
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
        store = Store(resolve_folder(path))
        running: dict[str, Any] = {"batch_tokens": batch_tokens, "part_size": part_size, "workers": workers}
        reading = {"text_column": text_column, "id_column": id_column, "encoding": encoding}
        source: Source | Corpus
        if isinstance(input, (str, PathLike)) and is_corpus(input):
            source = _open_corpus(Path(input), {**running, **reading, "passages": passages})
            columns: dict[str, str | None] = {}
            passages = source.header()["settings"]["passages"]
        else:
            source = open_source(input, **reading).unique()
            columns = source.columns
        check_whiten(whiten)
        check_target(store, overwrite=overwrite)
        loaded = resolve_model(model, loading)
        mark, metric = take_probe(loaded), loaded.similarity_fn_name
        if metric not in METRICS:
            raise ValueError(f"the model's similarity_fn_name is {metric!r}; an index needs {' or '.join(METRICS)}")
        if factory == "auto" and parameters is not None:
            raise ValueError(f"parameters={parameters!r}: name the factory that they are of")
        if factory != "auto":
            try_factory(factory, mark.dimension, parameters)
        about, length = mark.seen_from(store.folder, model).to_json(), longest_input(loaded)
        fresh = State(about, metric, mark.dimension, columns, passages, length)
        running |= {"factory": factory, "parameters": parameters, "show_progress_bar": show_progress_bar}
        running["whiten"] = whiten
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
            state = index._snapshots.read(tx).state
        if model is not None:
            index._model.loaded = resolve_model(model, loading)
            index._model.check(state)
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
            queries: A text, a list of texts, or ready vectors of shape [dim] or [queries, dim], as the model's
                ``encode_query`` gives them: if the index is whitened, it whitens them itself.
            k: How many documents to return for each query; all when there are fewer.
            where: Conditions on the metadata, which must all hold: ``{"lang": "zh", "year": {">=": 2020}}``. The
                operators are =, !=, <, <=, >, >=, "in" (a list), "has" (a list there contains it), "exists".
            mode: "vectors": by the cosine or inner product with the query, which is the score. "words": by BM25, which
                is the score; documents without any word of the query are not found, and no model is needed. "hybrid":
                both, in a score from 0 to 1. It ranks the documents of one query: scores of two queries cannot be
                compared. None: hybrid for texts, vectors for an array, or if the index has no words.
            explain: Also give the scores of both sides, as ``vector_score`` and ``word_score``.
            vectors: Ready vectors of the texts, as for an array; None: the model encodes them.

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
        query_vectors, known = asked.vectors, self._model.checked_probe
        if query_vectors is None and mode != "words":
            model = self._model.load()
            query_vectors, known = np.asarray(model.encode_query(asked.texts, show_progress_bar=False)), None
        with self._store.reading() as tx:
            snapshot = self._snapshots.read(tx)
            state = snapshot.state
            chosen = choose_mode(mode, asked, has_words=state.words is not None, index_folder=self.path)
            # Another model's index may have taken the place of the one that vectors are for.
            if self._model.loaded is not None and chosen != "words" and known != state.model:
                self._model.check(state)
            if mode is None and state.words is None and asked.texts is not None:
                self._tell_of_absent_words()
            question = snapshot.question(tx, chosen, asked, query_vectors)
            results = snapshot.search(tx, question, k, where, explain=explain)
        return results[0] if asked.is_single else results

    def _tell_of_absent_words(self) -> None:
        if not self._absent_words_told:
            logger.warning(
                "%s: no words yet, so vectors alone are searched; Index.compact (st-reba prune %s --compact) adds "
                "words, and mode='vectors' needs none",
                self.path, self.path,
            )  # fmt: skip
            self._absent_words_told = True

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
        self._model.check(state)
        running: dict[str, Any] = {"batch_tokens": batch_tokens, "part_size": part_size, "workers": workers}
        running |= {"strict": strict, "show_progress_bar": show_progress_bar}
        return take_in(self._store, self._model.load(), source, upsert=upsert, **running)

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

    def compact(
        self, *, factory: str | None = None, parameters: str | None = None, whiten: bool | None = None
    ) -> Change:
        """Write the FAISS file and the words anew, without what was deleted, which leaves the disk.

        No document is encoded again. An index that had no words has them then. The FAISS file is also written anew by
        itself when many vectors were added.

        Args:
            factory, parameters: Another FAISS index, as for `build`; None: the same, with its training and its codes.
            whiten: True: fit the whitening on the documents that are there, for which the model encodes some of their
                sentences, and apply it to all. False: give all vectors back as the model made them. None: leave it.
        """
        options: dict[str, Any] = {"factory": factory, "parameters": parameters, "whiten": whiten}
        return compact(self._store, self._snapshots, self._model, **options)

    def export(self, out: str | PathLike[str], *, overwrite: bool = False) -> int:
        """Write all vectors, as they are at one moment, for other tools; returns their number.

        Args:
            out: ``X.parquet``: the columns key, id, text, metadata (JSON), passage and vector. ``X.faiss``: one FAISS
                file of the vectors, its ids the keys. A quantized factory gives approximate vectors. They are the
                vectors that are searched: of a whitened index, ``X.parquet.whitening.safetensors`` beside it (or
                ``X.faiss…``) is what queries need, `st_reba.Filter.load(file).apply(query_vectors, "query")`.
            overwrite: Replace a file.
        """
        target = parse_path(out, "out")
        with self._store.reading() as tx:
            return export(self._snapshots.read(tx, check_digest=True), tx, target, overwrite=overwrite)

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
            verify(self._snapshots.read(tx, check_digest=True), tx)
        return self.info()

    @property
    def path(self) -> Path:
        """The folder of the index."""
        return self._store.folder

    def close(self) -> None:
        """Let go of the files and the model."""
        self._snapshots.latest = self._model.loaded = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = self._store.state()
        return f"Index({str(self.path)!r}, {state.documents} documents, dim {state.dimension}, {state.metric})"


def _open_corpus(path: Path, encoding_options: dict[str, Any]) -> Corpus:
    """A corpus, compared with its digests; options of encoding, which was done, are refused."""
    for name, value in encoding_options.items():
        if value is not None:
            raise ValueError(f"{name}={value!r}: {path} is encoded already; leave it out")
    corpus = Corpus(path)
    corpus.verify()
    return corpus
