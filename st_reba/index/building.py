"""Documents on their way into an index: what is new of an input, and the corpus in ``.building`` that is encoded."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..corpus.encode import Settings, encode_source
from ..corpus.folder import Corpus, is_corpus
from ..corpus.records import Document, Reject, beginning, to_json
from ..corpus.source import Input, Source, open_source
from ..files import LOCK_FILE, disk_errors, make_folder, writers_lock
from ..probe import Probe, check, load, probe, remembered
from .ann import METRICS, make_index, set_parameters
from .changes import Change, already_there, take_in
from .store import FILE, State, Store, by_ids, no_index, read_state

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)

BUILDING = ".building"
_AT_A_TIME, _MOST_CHARS = 500, 2**22


class New:
    """The records of an input that the index does not have.

    Ids that are there with another text are passed on (``upsert``), an error (``strict``), or rejects.
    """

    def __init__(self, source: Source, store: Store, *, upsert: bool, strict: bool) -> None:
        self.source = replace(source, read=self._read)
        self.unchanged = 0
        self._input, self._store, self._upsert, self._strict = source, store, upsert, strict
        self._digest = hashlib.sha256(b"upsert" if upsert else b"add")

    @property
    def digest(self) -> str:
        """SHA-256 of the whole input, once it is read."""
        return self._digest.hexdigest()

    def _read(self) -> Iterator[Document | Reject]:
        for chunk in _chunks(self._input.read()):
            self._digest.update(to_json([vars(record) for record in chunk]).encode())
            with self._store.reading() as tx:
                there = by_ids(tx, [one.id for one in chunk if one.id is not None])
            for record in chunk:
                old = there.get(record.id or "") if isinstance(record, Document) else None
                if old is None or isinstance(record, Reject):
                    yield record
                elif (old.text, old.metadata) == (record.text, to_json(record.metadata)):
                    self.unchanged += 1
                elif self._upsert:
                    yield record
                elif self._strict:
                    raise ValueError(already_there(old.id))
                else:
                    yield Reject("in the index", already_there(old.id), old.id, beginning(record.text))


def _chunks(records: Iterator[Document | Reject]) -> Iterator[list[Document | Reject]]:
    """Some records at a time: fewer of long ones."""
    while chunk := list(islice(records, 1)):
        chars = len(chunk[0].text or "")
        while len(chunk) < _AT_A_TIME and chars < _MOST_CHARS and (one := next(records, None)) is not None:
            chunk.append(one)
            chars += len(one.text or "")
        yield chunk


def is_index(folder: Path) -> bool:
    """True if a folder holds an index."""
    store = Store(folder)
    if not store.path.is_file():
        return False
    with closing(store), store.reading() as tx:
        return read_state(tx, store.path) is not None


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
        raise FileExistsError(f"{folder}: already there; give another path, or overwrite=True to replace an index")


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


def refuse_links(folder: Path) -> None:
    """Raise if a link is in a folder of ours: what is written or removed through it would be somebody else's."""
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            if os.path.islink(os.path.join(place, name)):
                raise ValueError(
                    f"{os.path.join(place, name)}: a link, through which nothing is written; put the file or folder "
                    "itself there, or remove it"
                )


@dataclass(frozen=True)
class Work:
    """Options of a build or an addition that are the corpus's, or of a model that is loaded."""

    settings: Settings
    columns: dict[str, Any]
    run: dict[str, Any]
    loading: dict[str, Any]

    @classmethod
    def of(cls, options: Mapping[str, Any], strict: bool) -> Work:
        """Sort the options of ``Index.build`` and ``Index.add``."""
        left = dict(options)
        settings = replace(left.pop("settings", None) or Settings(), strict=strict)
        columns = {name: left.pop(name, None) for name in ("text_column", "id_column")}
        run = {"workers": left.pop("workers", None), "show": left.pop("show_progress_bar", None), "overwrite": True}
        loading: dict[str, Any] = {
            name: left.pop(name) for name in ("device", "dtype", "trust_remote_code") if name in left
        }
        if left:
            raise TypeError(f"{next(iter(left))}={next(iter(left.values()))!r}: there is no such option")
        return cls(settings, columns, run, loading)


def build_into(
    folder: Path,
    model: SentenceTransformer | str | PathLike[str],
    input: Input,
    work: Work,
    ids: Iterable[str] | None,
    passages: str | None,
    factory: str,
    parameters: str | None,
    *,
    overwrite: bool,
) -> SentenceTransformer:
    """Build an index, arguments as for ``Index.build``; returns the model."""
    ready = isinstance(input, (str, PathLike)) and is_corpus(input)
    source = None if ready else open_source(input, ids=ids, **work.columns, **work.settings.reading)
    check_target(folder, overwrite=overwrite)
    loaded = load(model, work.loading)
    mark, metric = probe(loaded), loaded.similarity_fn_name
    if metric not in METRICS:
        raise ValueError(
            f"the model's similarity is {metric!r}, and an index compares by {' or '.join(METRICS)}; set "
            'model.similarity_fn_name = "cosine"'
        )
    if factory != "auto":
        empty = make_index(factory, mark.dimension, None if source is None else source.total)
        if parameters is not None:
            set_parameters(empty, parameters)
    state = State(remembered(model, mark, folder), metric, mark.dimension, passages=passages)
    with one_writer(folder) as building:
        _remove_damaged(folder)
        if source is None:
            corpus = Corpus(input)
            corpus.verify()
            check(Probe.from_json(corpus.header()["model"]), mark, f"the corpus {corpus.path}")
            state.passages = corpus.header()["settings"]["passages"]
        else:
            corpus = encode_source(loaded, source, building, work.settings, passages, source_of=model, **work.run)
            state.columns = source.columns
        options: dict[str, Any] = {"factory": factory, "parameters": parameters, "fresh": state}
        take_in(Store(folder), corpus, "build", strict=work.settings.strict and not ready, **options)
    return loaded


def _remove_damaged(folder: Path) -> None:
    """Remove a SQLite file that is damaged, which the index that is built could not replace."""
    try:
        is_index(folder)
    except ValueError:
        for path in folder.glob(f"{FILE}*"):
            path.unlink()


def add_into(
    store: Store, model: SentenceTransformer, source: Source, work: Work, *, upsert: bool, again: bool
) -> Change:
    """Add documents, arguments as for ``Index.add``."""
    kind: Literal["add", "upsert"] = "upsert" if upsert else "add"
    with one_writer(store.folder) as building:
        with store.reading() as tx:
            if (state := read_state(tx, store.path)) is None:
                raise no_index(store.folder)
        new = New(source, store, upsert=upsert, strict=work.settings.strict)
        options: dict[str, Any] = {"first": state.next_number, **work.run}
        options["wanted"] = lambda documents: documents > 0 and not _was_added(store, new.digest, again)
        corpus = encode_source(model, new.source, building, work.settings, state.passages, **options)
        repeated = _was_added(store, new.digest, again) and corpus.parts() > 0
        if repeated or not corpus.parts():
            change = Change(kind, state.count, repeated=repeated)
        else:
            change = take_in(store, corpus, kind, strict=work.settings.strict, digest=new.digest)
    # What has taken effect is remembered until the caller, who else repeats the call, is about to be told.
    with suppress(BlockingIOError), store.writing() as tx:
        tx.execute("DELETE FROM additions WHERE digest = ?", (new.digest,))
    if change.repeated:
        logger.warning("%s: it was added just before, so nothing was done; again=True adds it once more", source.name)
    return replace(change, unchanged=change.unchanged + new.unchanged)


def _was_added(store: Store, digest: str, again: bool) -> bool:
    with store.reading() as tx:
        state = read_state(tx, store.path)
        last = state is not None and state.last_addition == digest and not again
        return last or tx.execute("SELECT 1 FROM additions WHERE digest = ?", (digest,)).fetchone() is not None
