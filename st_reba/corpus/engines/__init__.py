"""Where the shards of a corpus are encoded: in this process, in several on this machine, or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from ..folder import Corpus, ShardVectors
from ..settings import EncodeSettings
from ..shard import Progress

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

ENGINES = ("single", "local", "ray")

# Called with a shard's number and its record as soon as its vectors are written.
Report = Callable[[int, ShardVectors], object]


class Engine(Protocol):
    """Encodes shards. Whatever happens to it, a shard is finished or not begun."""

    def encode(
        self,
        model: SentenceTransformer,
        corpus: Corpus,
        numbers: Sequence[int],
        settings: EncodeSettings,
        report: Report,
        progress: Progress,
    ) -> None:
        """Encode the shards with these numbers, in any order.

        Args:
            model: The model.
            corpus: The folder, with the shards' documents.
            numbers: Shards without vectors.
            settings: How.
            report: Called once a shard, when it is finished.
            progress: Called with the texts that have just been encoded, and their positions (0: not counted).
        """
        ...


def make_engine(name: str, workers: int | None = None, devices: Sequence[str] | None = None) -> Engine:
    """The engine of a name.

    Args:
        name: One of ``ENGINES``.
        workers: Processes that encode; None: the engine's choice. Not for "single".
        devices: Where they run, as ``["cuda:0", "cuda:1"]``; None: the engine's choice. Not for "single".

    Returns:
        The engine.

    Raises:
        ValueError: There is no such engine, or it takes no such option.
        ImportError: It needs a package that is not installed.

    Example:
        >>> make_engine("single")
        SingleEngine()
    """
    if name not in ENGINES:
        raise ValueError(f"engine={name!r} is not known: choose one of {', '.join(ENGINES)} (--engine).")
    for option, value in (("workers", workers), ("devices", devices)):
        if name == "single" and value is not None:
            raise ValueError(
                f"{option}={value!r} does not go with engine='single', which encodes in this process, where the model "
                f"is. Choose engine='local' (--engine local), or leave out {option} (--{option})."
            )
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
        raise ValueError(f"workers={workers!r} must be a whole number from 1 on (--workers).")
    if name == "ray":
        from .ray import RayEngine

        return RayEngine(workers=workers, devices=devices)
    if name == "local":
        from .local import LocalEngine

        return LocalEngine(workers=workers, devices=devices)
    from .single import SingleEngine

    return SingleEngine()
