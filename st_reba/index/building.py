"""Documents on their way into an index: what is new of an input, and the corpus in ``.building`` that is encoded."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..corpus.encode import Settings, encode_corpus
from ..corpus.folder import Corpus
from ..corpus.records import Document, Reject, beginning, to_json
from ..corpus.source import Source, unique
from ..files import LOCK_FILE, disk_errors, make_folder, writers_lock
from ..probe import Probe, check, load, probe, remembered
from .ann import METRICS, make_index
from .changes import Change, already_there, refuse_links, take_in
from .store import FILE, State, Store, content_of, documents, read_state, state_or_none

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

BUILDING = ".building"
# Records that are looked up at a time, each at most a megabyte.
_AT_A_TIME = 64


class New:
    """The records of an input that the index does not have, as a source; and how many it has.

    An id that is there with another text is passed on (``upsert``), an error (``strict``), or a reject. A text without
    an id is there if another without an id has the same text and metadata.
    """

    def __init__(self, source: Source, store: Store, *, upsert: bool, strict: bool) -> None:
        self.source = replace(source, read=self._read)
        self.unchanged = 0
        self._records, self._store, self._upsert, self._strict = source.read(), store, upsert, strict

    def _read(self) -> Iterator[Document | Reject]:
        start = 0
        while chunk := list(islice(self._records, _AT_A_TIME)):
            given = [one for one in chunk if isinstance(one, Document)]
            contents = {content_of(one.text, to_json(one.metadata)) for one in given if one.id is None}
            with self._store.reading() as tx:
                by_id = {one.id: one for one in documents(tx, "id", [one.id for one in given if one.id is not None])}
                without_id = {(one.content, one.text) for one in documents(tx, "content", contents)}
            for number, record in enumerate(chunk, start):
                if isinstance(record, Reject):
                    yield record
                    continue
                metadata, reason = to_json(record.metadata), None
                if (old := by_id.get(record.id or "")) is not None:
                    known = (old.text, old.metadata) == (record.text, metadata)
                else:
                    known = record.id is None and (content_of(record.text, metadata), record.text) in without_id
                if record.id is None and self._upsert:
                    reason = "no id: upsert replaces by id; name the column of the ids, or add the texts instead"
                elif known:
                    self.unchanged += 1
                elif old is None or self._upsert:
                    yield record
                else:
                    reason = already_there(old.id)
                if reason is not None:
                    reject = Reject(f"record {number}", reason, record.id, beginning(record.text))
                    if self._strict:
                        raise ValueError(str(reject))
                    yield reject
            start += len(chunk)


def is_index(folder: Path) -> bool:
    """True if a folder holds an index."""
    store = Store(folder)
    if not store.path.is_file():
        return False
    with closing(store), store.reading() as tx:
        return state_or_none(tx, store.path) is not None


def check_target(folder: Path, *, overwrite: bool) -> None:
    """Refuse to build where something else is than an index, or what a build leaves that was killed."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise FileExistsError(f"{folder}: a file is there; name a folder")
    # Without the SQLite file, FAISS files are somebody else's.
    ours = rf"{FILE}(-wal|-shm|-journal)?|{re.escape(BUILDING)}|{re.escape(LOCK_FILE)}"
    ours += r"|vectors-\d+\.faiss|\.vectors-.*\.tmp" if (folder / FILE).is_file() else ""
    if any(not re.fullmatch(ours, path.name) for path in folder.iterdir()):
        raise FileExistsError(f"{folder}: not an index, so nothing is written there; give another path")
    try:
        there = is_index(folder)
    except ValueError:
        there = True  # a damaged one can be replaced
    if there and not overwrite:
        raise FileExistsError(f"{folder}: already there; give another path, or overwrite=True to replace the index")


@contextmanager
def one_writer(folder: Path) -> Iterator[Path]:
    """Keep other builds and additions out of an index folder, and give the folder of the corpus to be encoded.

    A folder that is made for it goes if nothing was encoded in it.
    """
    with disk_errors(folder):
        made = make_folder(folder)
        refuse_links(folder)
        building = folder / BUILDING
        try:
            with writers_lock(folder):
                try:
                    yield building
                    shutil.rmtree(building, ignore_errors=True)
                except BaseException:
                    if not any(building.glob("vectors/*.npy")):
                        shutil.rmtree(building, ignore_errors=True)
                    raise
        except BaseException:
            with suppress(OSError, ValueError):
                if made and not is_index(folder) and not building.exists():
                    shutil.rmtree(folder)
            raise


def build_into(
    folder: Path,
    model: SentenceTransformer,
    source: Source | Corpus,
    settings: Settings,
    passages: str | None,
    factory: str,
    parameters: str | None,
    *,
    source_of: str | PathLike[str] | SentenceTransformer,
    strict: bool,
    **running: Any,
) -> None:
    """Build an index of a source, or of an encoded corpus; arguments as for ``Index.build``.

    Args:
        source_of: The model as the caller named it.
        **running: workers and show_progress_bar, for ``encode_corpus``.
    """
    mark, metric = probe(model), model.similarity_fn_name
    if metric not in METRICS:
        raise ValueError(
            f"the model's similarity is {metric!r}, and an index compares by {' or '.join(METRICS)}; set "
            'model.similarity_fn_name = "cosine"'
        )
    if factory != "auto":
        make_index(factory, mark.dimension, parameters)
    state = State(remembered(source_of, mark, folder), metric, mark.dimension, passages=passages)
    with one_writer(folder) as building:
        try:
            is_index(folder)
        except ValueError:  # a damaged file, which the index that is built could not replace
            for path in folder.glob(f"{FILE}*"):
                path.unlink()
        if isinstance(source, Corpus):
            corpus = source
            corpus.verify()
            check(Probe.from_json(corpus.header()["model"]), mark, f"the corpus {corpus.path}")
            state.passages = corpus.header()["settings"]["passages"]
        else:
            settings = replace(settings, strict=strict)
            corpus = encode_corpus(
                model, source, building, passages=passages, settings=settings, overwrite=True, **running
            )
            state.columns = source.columns
        strict = strict and not isinstance(source, Corpus)
        take_in(Store(folder), corpus, "build", strict=strict, factory=factory, parameters=parameters, fresh=state)


def add_into(
    store: Store,
    model: SentenceTransformer,
    source: Source,
    settings: Settings,
    kind: Literal["add", "upsert"],
    *,
    strict: bool,
    **running: Any,
) -> Change:
    """Add documents; arguments as for ``Index.add``."""
    settings = replace(settings, strict=strict)
    with one_writer(store.folder) as building:
        with store.reading() as tx:
            state = read_state(tx, store.path)
        new = New(unique(source, state.next_number), store, upsert=kind == "upsert", strict=strict)
        running |= {"overwrite": True, "passages": state.passages}
        corpus = encode_corpus(model, new.source, building, settings=settings, **running)
        change = take_in(store, corpus, kind, strict=strict) if corpus.parts() else Change(kind, state.count)
    return replace(change, unchanged=change.unchanged + new.unchanged)


def loaded_model(model: SentenceTransformer | str | PathLike[str], loading: dict[str, Any]) -> SentenceTransformer:
    """A model, loaded if only its folder or Hub id is given; options of loading it may be given only then."""
    given = {name: value for name, value in loading.items() if value not in (None, False)}
    if given and not isinstance(model, (str, PathLike)):
        raise TypeError(f"{next(iter(given))}={next(iter(given.values()))!r}: the model is loaded already; drop it")
    return load(model, loading)
