"""A Ray cluster: joined or started, kept quiet, and its GPUs and cores shared out among workers."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ...optional import required


def load_ray() -> Any:
    """The package, which is imported only where it is asked for.

    Raises:
        ImportError: It is not installed.
    """
    need = "engine='ray' needs Ray Data"
    required("ray.data", "ray", need)
    return required("ray", "ray", need)


@dataclass(frozen=True)
class Share:
    """What each worker gets.

    Args:
        workers: How many there are.
        threads: Threads of each.
        gpus: GPUs of each: 1 or 0.
    """

    workers: int
    threads: int
    gpus: int

    @property
    def reserved_cpus(self) -> int:
        """Cores that are asked of the cluster: they spread the workers over its nodes, unless GPUs do that."""
        return 0 if self.gpus else self.threads


def share_out(nodes: Sequence[tuple[int, int]], workers: int | None, *, use_gpus: bool = True) -> Share:
    """Share out a cluster.

    Args:
        nodes: Cores and GPUs of each node.
        workers: How many are wanted; None: one a GPU, or without GPUs one a node that has cores.
        use_gpus: Use GPUs where there are any.

    Returns:
        What each worker gets: as many threads as every worker can have, wherever it is put.

    Raises:
        ValueError: There are more workers than GPUs, or than cores.

    Example:
        >>> share_out([(16, 4), (32, 4)], None)
        Share(workers=8, threads=4, gpus=1)
        >>> share_out([(16, 0), (8, 0)], 3)
        Share(workers=3, threads=8, gpus=0)
    """
    with_gpus = [(cores, gpus) for cores, gpus in nodes if gpus and cores] if use_gpus else []
    if with_gpus:
        count = sum(gpus for _, gpus in with_gpus)
        if workers is not None and workers > count:
            raise ValueError(
                f"workers={workers}: the Ray cluster has {count} GPUs, and each worker needs one. Give at most {count} "
                "(--workers), or devices=['cpu'] (--devices cpu) to use none."
            )
        return Share(workers or count, max(1, min(cores // gpus for cores, gpus in with_gpus)), 1)
    cores = [cores for cores, _ in nodes if cores]
    wanted = workers or max(1, len(cores))
    for threads in range(max(cores, default=0), 0, -1):
        if sum(count // threads for count in cores) >= wanted:
            return Share(wanted, threads, 0)
    raise ValueError(
        f"workers={wanted}: the Ray cluster has {sum(cores)} cores, and each worker needs one. Give fewer (--workers), "
        "or add nodes."
    )


@contextmanager
def joined(address: str | None, workers: int | None, verbose: bool) -> Iterator[None]:
    """A cluster that is joined; what was started for it is ended."""
    ray = load_ray()
    if ray.is_initialized():
        yield
        return
    options: dict[str, Any] = {"log_to_driver": verbose, "logging_level": logging.INFO if verbose else logging.ERROR}
    found = address or os.environ.get("RAY_ADDRESS")
    if found in (None, "", "local"):
        cores = max(workers or 1, os.cpu_count() or 1)
        options |= {"address": "local", "num_cpus": cores, "include_dashboard": False}
    else:
        options |= {"address": found}
    with _environment(RAY_BACKEND_LOG_LEVEL=None if verbose else "fatal"):
        try:
            ray.init(**options)
        except ConnectionError as error:
            raise RuntimeError(
                f"no Ray cluster at {found!r} ({first_line(error)}): start one (ray start --head), or set RAY_ADDRESS "
                "to one that runs, or unset it to run on this machine alone."
            ) from error
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def _environment(**values: str | None) -> Iterator[None]:
    """Variables of the environment for a while, where they are not set already."""
    new = {name: value for name, value in values.items() if value is not None and name not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            os.environ.pop(name, None)


@contextmanager
def quiet(verbose: bool) -> Iterator[None]:
    """No bars and messages of Ray Data's for a while."""
    if verbose:
        yield
        return
    context, logger = load_ray().data.DataContext.get_current(), logging.getLogger("ray.data")
    before = (context.enable_progress_bars, context.print_on_execution_start, logger.level)
    context.enable_progress_bars, context.print_on_execution_start = False, False
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        context.enable_progress_bars, context.print_on_execution_start = before[:2]
        logger.setLevel(before[2])


def first_line(error: BaseException) -> str:
    """Of an error's words, without the traces that Ray hangs on."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
