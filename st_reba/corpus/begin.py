"""Whether a run may write into a folder: what is there, and whether it fits."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ..batches import DEFAULT_BATCH_TOKENS
from ..fingerprint import ModelFingerprint, check, fingerprint
from ..folders import check_folder
from ..lock import LOCK_FILE
from .folder import GATHERED_FILE, HEADER_FILE, REJECTS_FILE, Corpus, is_corpus
from .model_source import relative
from .settings import EncodeSettings

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# What is replaced, of what a run finds: nothing; what does not fit; that, and a complete corpus too.
Overwrite: TypeAlias = bool | Literal["misfit"]
# What a shard's vectors depend on, besides the model; the options by which it is given.
_OPTIONS = {
    "shard_size": "--shard-size",
    "dtype": "--store-dtype",
    "batch_size": "--batch-size",
    "batch_tokens": "--batch-tokens",
    "model_dtype": "--dtype",
}
_REMEDIES = {
    errno.ENOSPC: "free space",
    errno.EDQUOT: "free space",
    errno.EROFS: "make it writable, or give another path",
    errno.EACCES: "make it readable and writable, or give another path",
    errno.EPERM: "make it readable and writable, or give another path",
    errno.EIO: "look after the disk",
}


def check_target(folder: Path) -> None:
    """Refuse to write where something else is than a corpus, or what a run leaves that was killed at its very start.

    Raises:
        FileExistsError: Something else is there.
    """
    if folder.is_dir():
        begun = (LOCK_FILE, f".{HEADER_FILE}.")
        if all(file.name.startswith(begun) for file in folder.iterdir()):
            return
    check_folder(folder, overwrite=True, kind="an encoded corpus", is_kind=is_corpus)


def begin(
    corpus: Corpus,
    model: SentenceTransformer,
    settings: EncodeSettings,
    shard_size: int,
    model_source: str | PathLike[str] | None,
    overwrite: Overwrite,
) -> dict[str, Any]:
    """The corpus's header: that which is there, if the model and settings are the same, or a new one.

    Args:
        corpus: The folder, under the lock.
        model: The model.
        settings: How it encodes.
        shard_size: Records a shard.
        model_source: Where the model is.
        overwrite: "misfit": start anew where something is that does not fit; True: and where something complete is.

    Returns:
        The header, as it is written.

    Raises:
        ValueError: The corpus is of another model or other settings, and may not be replaced.
    """
    given = {
        "shard_size": shard_size,
        "dtype": settings.dtype,
        "batch_size": settings.batch_size,
        "batch_tokens": settings.batch_tokens or (None if settings.batch_size else DEFAULT_BATCH_TOKENS),
        "model_dtype": _model_dtype(model),
    }
    if is_corpus(corpus.path) and (overwrite or any((corpus.path / "shards").glob("[0-9]*.json"))):
        try:
            header = corpus.header()
            _check_fits(corpus, header, given, model)
            complete = header.get("status") == "complete"
            # Killed while it replaced a complete one, a run goes on; it does not begin at the beginning every time.
            if overwrite == "misfit" or not (overwrite and complete and corpus.is_complete()):
                if overwrite and complete:  # whether it still is, is seen when the input is read
                    header["status"] = "encoding"
                    corpus.write_header(header)
                return header
        except ValueError:
            if not overwrite:
                raise
        clear(corpus)
    source = None if model_source is None else relative(model_source, Path(os.path.realpath(corpus.path)))
    header = {
        "status": "encoding",
        "model": fingerprint(model).to_json(),
        "model_source": source,
        "metric": model.similarity_fn_name,
        "settings": given,
    }
    corpus.write_header(header)
    return corpus.header()


def _check_fits(
    corpus: Corpus, header: Mapping[str, Any], given: Mapping[str, Any], model: SentenceTransformer
) -> None:
    settings = header.get("settings")
    if not isinstance(settings, dict):
        raise ValueError(f"{corpus.path / HEADER_FILE}: no settings; encode it again with overwrite (--overwrite)")
    for name, option in _OPTIONS.items():
        if settings.get(name) != given[name]:
            raise ValueError(
                f"{corpus.path} was begun with {name}={settings.get(name)!r}, and now {name}={given[name]!r} is given. "
                f"Give {settings.get(name)!r} to go on ({option}), or overwrite=True (--overwrite) to encode all again."
            )
    try:
        stored = ModelFingerprint.from_json(header.get("model"))
    except ValueError as error:
        raise ValueError(f"{corpus.path / HEADER_FILE}: model: {error}; encode the corpus again") from None
    try:
        check(stored, model, f"the corpus {corpus.path}")
    except ValueError as error:
        raise ValueError(f"{error} (overwrite=True, --overwrite)") from None


def clear(corpus: Corpus) -> None:
    """Remove the files of a corpus, and nothing else. The header goes last: until then the folder is a corpus."""
    shards = corpus.path / "shards"
    parts = ("[0-9]*.json", "[0-9]*.npy", "[0-9]*.rejects.jsonl", "[0-9]*.sqlite", ".*.tmp*")
    names = [corpus.path / name for name in (GATHERED_FILE, REJECTS_FILE)]
    names += [file for part in parts for file in shards.glob(part)]
    names += list(corpus.path.glob("ids.sqlite*"))
    for file in names:
        file.unlink(missing_ok=True)
    if shards.is_dir() and not any(shards.iterdir()):
        shards.rmdir()
    (corpus.path / HEADER_FILE).unlink(missing_ok=True)


@contextmanager
def told(corpus: Corpus) -> Iterator[None]:
    """Say with an error of the disk what to do about it, and what is kept."""
    try:
        yield
    except OSError as error:
        if error.errno not in _REMEDIES:
            raise
        try:
            shards = (corpus.gathered() or {}).get("shards")
            there = len(list((corpus.path / "shards").glob("*.vectors.json")))
        except (OSError, ValueError):
            shards, there = None, 0
        kept = f"{there} of {shards} shards are kept" if shards else "all finished shards are kept"
        raise OSError(
            error.errno,
            f"{error.strerror}; {_REMEDIES[error.errno]}, then run the same command again: {kept}",
            str(corpus.path) if error.filename is None else error.filename,
        ) from error


def _model_dtype(model: SentenceTransformer) -> str | None:
    """Of the weights, as "float32"; None of a model without weights."""
    weight = next(iter(model.parameters()), None)
    return None if weight is None else str(weight.dtype).removeprefix("torch.")
