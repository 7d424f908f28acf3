"""Make an index of encoded corpora: write the segment, measure it, and let the manifest name it."""

from __future__ import annotations

import errno
import logging
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...corpus.clock import Clock
from ...corpus.folder import REJECTS_FILE, Corpus
from ...corpus.store import DocumentStore
from ...files import whole_file, whole_path
from ...fingerprint import ModelFingerprint
from ...lock import LOCK_FILE, writers_lock
from ..folder.commit import commit, free_segment_number, is_part, sweep
from ..folder.manifest import BUILDING, MANIFEST_FILE, Manifest, Segment, now
from ..folder.marks import MARK_FILE, unacknowledged, write_mark
from ..folder.segments import segment_paths, segment_record, write_documents
from ..vectors.factory import auto_factory, check_size, make_index, sample_rows, seed_training, set_parameters
from ..vectors.flat import load_faiss, write_flat
from .recall import Recall, measure_recall
from .shards import Shards

logger = logging.getLogger(__name__)

AUTO = "auto"
# What a full or failing disk, or one that may not be written to, gives.
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM}


@dataclass(frozen=True)
class IndexSettings:
    """Which FAISS index is built, and how.

    Args:
        factory: A FAISS factory string; or "auto": by the number of documents.
        parameters: Search parameters, as "nprobe=32"; None: found by measuring.
        recall_aim: The recall@10 against exact search that they are to reach.
        train_size: How many vectors an index that is trained is trained on; None: by the number of its centroids.
        seed: Of the training sample and of the queries that recall is measured with.

    Raises:
        ValueError: `recall_aim` is not above 0 and at most 1, or `train_size` is below 1.
    """

    factory: str = "Flat"
    parameters: str | None = None
    recall_aim: float = 0.95
    train_size: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.recall_aim <= 1:
            raise ValueError(f"recall_aim={self.recall_aim} (--recall-aim) must be above 0 and at most 1")
        if self.train_size is not None and self.train_size < 1:
            raise ValueError(f"train_size={self.train_size} (--train-size) must be a whole number from 1 on")
        if self.seed < 0:
            raise ValueError(f"seed={self.seed} (--seed) must be a whole number from 0 on")

    def check(self, dim: int, count: int | None = None) -> None:
        """Refuse, before anything is encoded, what cannot be built.

        Args:
            dim: The dimension of the vectors.
            count: The number of documents, if it is known.
        """
        if self.factory == AUTO:
            return
        index = make_index(self.factory, dim)
        if count is not None:
            check_size(index, self.factory, count)
        if self.parameters is not None:
            set_parameters(index, self.parameters)


@dataclass(frozen=True)
class BuildReport:
    """What building an index came to.

    Args:
        factory: The FAISS factory string.
        why: Why it was chosen, if it was.
        recall: Recall against exact search; None: the search is exact.
        rejected: Records set aside.
        rejects: The file that names them, if there are any.
        seconds: What each stage took.
    """

    factory: str
    why: str | None
    recall: Recall | None
    rejected: int
    rejects: Path | None
    seconds: dict[str, float]


@contextmanager
def writing(folder: Path, *, overwrite: bool) -> Iterator[Manifest | None]:
    """Hold an index folder for a new index; on failure nothing is left but what the same command can go on from.

    Args:
        folder: The folder to make, or that is there.
        overwrite: An index that is there may be replaced.

    Yields:
        The manifest of the index that is there, if there is one that can be read.

    Raises:
        FileExistsError: Something is there that may not be replaced.
    """
    try:
        _check_target(folder, overwrite=overwrite)
    except FileExistsError:
        _finish(folder)
        raise
    made = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with writers_lock(folder):
            # Again, as another process may have been faster.
            _check_target(folder, overwrite=overwrite)
            old = None
            with suppress(FileNotFoundError, ValueError):  # a damaged one can be replaced
                old = Manifest.read(folder)
            sweep_known(folder, old)
            try:
                yield old
            except BaseException:
                sweep_known(folder, old)
                if not any((folder / BUILDING / "shards").glob("*.vectors.json")):
                    shutil.rmtree(folder / BUILDING, ignore_errors=True)
                raise
    except BaseException as error:
        _remove_empty(folder, made)
        if isinstance(error, OSError) and error.errno in _DISK and "; nothing" not in str(error):
            # The system does not always say where, and never what is left.
            raise type(error)(
                error.errno, f"{error.strerror}; nothing that was there has changed", str(error.filename or folder)
            ) from error
        raise


def sweep_known(folder: Path, manifest: Manifest | None) -> None:
    """As `sweep`; but where a manifest is there that cannot be read, its files stay until the new one is."""
    if manifest is not None or not (folder / MANIFEST_FILE).exists():
        sweep(folder, manifest)


def make_generation(
    folder: Path,
    corpora: Sequence[Path],
    model: ModelFingerprint,
    metric: str,
    settings: IndexSettings,
    old: Manifest | None,
    *,
    model_source: str | None,
    show_progress_bar: bool | None,
) -> BuildReport:
    """Build the one segment of a new generation of an index and commit it.

    Args:
        folder: The index folder, held by `writing`.
        corpora: Complete corpora; their ids must differ.
        model: The fingerprint of the model that encoded them.
        metric: "cosine" or "dot".
        settings: Which index.
        old: The manifest of the index that is replaced, if any.
        model_source: Where to load the model from.
        show_progress_bar: Show a bar of the vectors that are added; None: on a terminal.

    Returns:
        What it came to.

    Raises:
        ValueError: There is no document, an id is used twice, or the factory does not fit.
        OSError: The disk is full, or the folder may not be written.
    """
    shards = Shards(corpora, model.dimension, metric)
    if not shards.count:
        raise ValueError("there are no documents; an index needs at least one")
    factory, why = settings.factory, None
    if factory == AUTO:
        factory, why = auto_factory(shards.count, shards.dim)
        settings = replace(settings, factory=factory)
        logger.info("%s: %s", factory, why)
    settings.check(shards.dim, shards.count)
    clock = Clock("documents", "train", "add", "recall", "write")
    number = free_segment_number(folder, old)
    segment, recall = write_segment(folder, number, shards, settings, clock, show_progress_bar)
    rejected, records = _copy_rejects(folder, corpora)
    with DocumentStore.open(folder / segment.documents.name) as store:
        # Numbers that are not yet ids: they name the documents that are added later without one.
        records = max(records, store.free_number())
    manifest = Manifest(
        created=now(),
        model=model,
        metric=metric,
        segments=(segment,),
        factory=factory,
        generation=1 if old is None else old.generation + 1,
        next_record=records,
        next_segment=number + 1,
        rejected=rejected,
        recall=None if recall is None else recall.to_json(),
        model_source=model_source,
    )
    write_mark(folder, manifest)
    commit(folder, manifest)
    if recall is not None and recall.recall < settings.recall_aim:
        logger.warning("%s", _below(recall, settings))
    rejects = folder / REJECTS_FILE if rejected else None
    return BuildReport(factory, why, recall, rejected, rejects, clock.seconds)


def write_segment(
    folder: Path, number: int, shards: Shards, settings: IndexSettings, clock: Clock, show: bool | None
) -> tuple[Segment, Recall | None]:
    from tqdm.auto import tqdm

    faiss = load_faiss()
    documents_path, vectors_path = segment_paths(folder, number)
    with clock.stage("documents"):
        stored = write_documents(documents_path, shards.records())
    if stored != shards.count:
        raise ValueError(f"{stored} documents, but {shards.count} vectors; encode the corpus again")
    index, recall = make_index(settings.factory, shards.dim), None
    disable = None if show is None else not show
    with tqdm(total=shards.count, desc="Indexing", unit=" vectors", unit_scale=True, disable=disable) as bar:

        def blocks() -> Iterator[Any]:
            for block in shards.blocks():
                yield block
                bar.update(len(block))

        if isinstance(index, faiss.IndexFlat):
            with clock.stage("add"):
                write_flat(vectors_path, blocks(), shards.dim)
            return segment_record(folder, number, shards.count, settings.factory), None
        if not index.is_trained:
            with clock.stage("train"):
                rows = sample_rows(index, shards.count, shards.dim, settings.train_size, settings.seed)
                bar.set_description(f"Training on {len(rows):,} vectors")
                logger.info("training %s on %d of %d vectors", settings.factory, len(rows), shards.count)
                seed_training(index, settings.seed)
                index.train(shards.take(rows))
        bar.set_description("Indexing")
        with clock.stage("add"):
            for block in blocks():
                index.add(block)
        bar.set_description("Measuring recall")
        with clock.stage("recall"):
            recall = measure_recall(
                index,
                shards,
                parameters=settings.parameters,
                aim=settings.recall_aim,
                seed=settings.seed,
                say=lambda line: logger.info("%s", line),
            )
    with clock.stage("write"):
        write_faiss(vectors_path, index)
    return segment_record(folder, number, shards.count, settings.factory, recall.parameters), recall


def write_faiss(path: Path, index: Any) -> None:
    with whole_path(path) as temporary:
        try:
            load_faiss().write_index(index, str(temporary))
        except RuntimeError as error:
            full = "No space" in str(error) or "space left" in str(error)
            raise OSError(errno.ENOSPC if full else errno.EIO, f"cannot write vectors ({error})", str(path)) from error


def _copy_rejects(folder: Path, corpora: Sequence[Path]) -> tuple[int, int]:
    """Write what was set aside; and tell how much that was, and how many records there were."""
    rejected = records = 0
    with whole_file(folder / REJECTS_FILE) as stream:
        for corpus in map(Corpus, corpora):
            totals = corpus.gathered() or {}
            records = max(records + int(totals["records"]), int(totals.get("first_record", 0)) + int(totals["records"]))
            for reject in corpus.rejects():
                stream.write(reject.to_line())
                rejected += 1
    if not rejected:
        (folder / REJECTS_FILE).unlink()
    return rejected, records


def _below(recall: Recall, settings: IndexSettings) -> str:
    if settings.parameters is not None:
        remedy = f"leave parameters={settings.parameters!r} (--parameters) out, then they are found"
    elif "HNSW" in settings.factory and "IVF" not in settings.factory:
        remedy = "take a graph of more links, as 'HNSW64'"
    else:
        remedy = "keep the vectors as they are beside the codes (add ',RFlat'), or take longer codes"
    return (
        f"recall@{recall.k} of {settings.factory} is {recall.recall:.3f}, below the aim of {settings.recall_aim} "
        f"({recall.parameters or 'no search parameters'}); {remedy}, or use 'Flat', which is exact"
    )


def _check_target(folder: Path, *, overwrite: bool) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise FileExistsError(f"{folder}: a file is there; name a folder")
    if (folder / MANIFEST_FILE).exists():
        if not overwrite:
            raise FileExistsError(
                f"{folder}: already there; give another path, or overwrite=True (--overwrite) to replace an index"
            )
    elif not (folder / BUILDING).is_dir() and not _is_empty(folder):
        raise FileExistsError(f"{folder}: not an index, so nothing is written there; give another path")


def _finish(folder: Path) -> None:
    """Remove what a build worked with that was killed when its index was complete: the same call is refused."""
    if (folder / MARK_FILE).exists():
        with suppress(OSError, ValueError), writers_lock(folder):
            unacknowledged(folder, Manifest.read(folder))


def _is_empty(folder: Path) -> bool:
    """Whether nothing is there but what a killed writer left."""
    left = [path.name for path in folder.iterdir() if path.name not in (LOCK_FILE, MARK_FILE, REJECTS_FILE)]
    return all(is_part(name) or (name.startswith(".") and ".tmp" in name) for name in left)


def _remove_empty(folder: Path, made: Sequence[Path]) -> None:
    """Remove the folders that were made for nothing."""
    if folder not in made:
        return
    with suppress(OSError):
        if {path.name for path in folder.iterdir()} <= {LOCK_FILE}:
            (folder / LOCK_FILE).unlink(missing_ok=True)
        for path in made:
            path.rmdir()
