"""Kill a process that writes, look at what a reader sees, run the same again, and compare with the undisturbed."""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import signal
import sqlite3
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

# By default processes that fork share the lock of progress bars: one that is killed while it holds it keeps it.
tqdm.set_lock(threading.RLock())
tqdm.monitor_interval = 0

# What a process does to files, as Python's audit hooks tell it just before.
EVENTS = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "shutil.rmtree", "sqlite3.connect")
KILLED = -signal.SIGKILL
State = dict[str, Any]


class Operation(NamedTuple):
    """Something that writes into a folder."""

    name: str
    prepare: Callable[[Path], None]  # makes what is there before, in an empty folder
    run: Callable[[Path], None]  # repeated after a kill
    state: Callable[[Path], State]  # all that a reader can see, comparable
    refusals: type[Exception] | tuple[()] = ()  # errors by which a repetition says that all is done already


class Outcome(NamedTuple):
    """Result of one kill."""

    killed: bool  # else the operation was faster
    after: bool  # a reader then saw the new state
    problem: str | None = None


class Trial:
    """One operation, with its undisturbed result, in a scratch folder."""

    def __init__(self, operation: Operation, folder: Path) -> None:
        self.operation, self._folder, self._before = operation, folder, folder / "before"
        self._before.mkdir(parents=True)
        operation.prepare(self._before)
        self.old = operation.state(self._before)
        with self.copy() as copy:
            began = time.perf_counter()
            status, said, self.events = run_child(lambda: operation.run(copy))
            self.seconds = time.perf_counter() - began
            assert status == 0, f"{operation.name}: {said}"
            self.new, self.files = operation.state(copy), _listed(copy)
        assert self.new != self.old, f"{operation.name} changes nothing"

    def kill(self, *, event: int | None = None, delay: float | None = None) -> Outcome:
        """Kill the operation before its n-th event, from 1, or after a time in seconds, and go on as a user would."""
        operation, after = self.operation, False
        with self.copy() as copy:
            status, said, _ = run_child(lambda: operation.run(copy), event=event, delay=delay)
            if status == 0:  # who called has been told, and does not call again
                return Outcome(False, True)
            try:
                assert status == KILLED, said
                seen = operation.state(copy)
                after = seen == self.new
                assert after or seen == self.old, f"a reader saw neither old nor new: {difference(seen, self.new)}"
                try:
                    operation.run(copy)
                except operation.refusals:
                    assert after, "the repetition was refused"
                    return Outcome(True, after)  # it took effect, and its writer was killed while it cleaned up
                result, files = operation.state(copy), _listed(copy)
                assert result == self.new, f"at last, it differs: {difference(result, self.new)}"
                assert files == self.files, f"at last, other files: {sorted(files ^ self.files)}"
            except Exception:
                return Outcome(True, after, traceback.format_exc())
        return Outcome(True, after)

    @contextmanager
    def copy(self) -> Iterator[Path]:
        """The folder before the operation, always at the same path, as some files tell it."""
        copy = self._folder / "work"
        shutil.copytree(self._before, copy)
        try:
            yield copy
        finally:
            shutil.rmtree(copy)


def _listed(folder: Path) -> frozenset[str]:
    """All files and folders below a folder; the numbers of some go on when an operation is repeated."""
    names = (re.sub(r"-\d+\.", ".", path.relative_to(folder).as_posix()) for path in folder.rglob("*"))
    # SQLite removes its log when the last connection is closed; a lock is held by a process, not by its file.
    return frozenset(name for name in names if not name.endswith(("-wal", "-shm", ".lock")))


def run_child(
    work: Callable[[], object], *, event: int | None = None, delay: float | None = None
) -> tuple[int, str, int]:
    """Run something in a fork of this process, which is killed before its n-th event or after a time.

    Returns:
        Its status, negative if it was killed; the error that it ended with, as "Kind: message"; its number of events.
    """
    fork = multiprocessing.get_context("fork")
    reading, writing = fork.Pipe(duplex=False)

    def child() -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for shown in (1, 2):
            os.dup2(nowhere, shown)
        seen, said = count_events(event), ""
        try:
            work()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"[:2000]
        writing.send((seen[0], said))

    process = fork.Process(target=child)
    process.start()
    writing.close()
    if delay is not None:
        time.sleep(delay)
        process.kill()
    process.join()
    try:
        number, said = reading.recv()
    except (EOFError, OSError):
        return process.exitcode or 1, "", 0
    return int(said != ""), said, number  # a kill between the end of the work and that of the process came too late


def count_events(last: int | None) -> list[int]:
    """Count what this process does to files, and statements of SQL; it kills itself before the one with this number."""
    seen = [0]

    def count(statement: str = "") -> None:
        seen[0] += 1
        if seen[0] == last:
            os.kill(os.getpid(), signal.SIGKILL)

    def hook(name: str, arguments: tuple[Any, ...]) -> None:
        if name == "open":
            _, mode, flags = arguments
            if {*"wxa+"} & {*(mode or "")} or (flags or 0) & (os.O_WRONLY | os.O_RDWR):
                count()
        elif name in EVENTS:
            count()

    real = sqlite3.connect

    def connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = real(*arguments, **options)
        connection.set_trace_callback(count)  # what SQLite writes for itself is not told to hooks
        return connection

    sqlite3.connect = connect  # type: ignore[assignment]
    sys.addaudithook(hook)
    return seen


def difference(found: State, expected: State) -> str:
    """Where two states differ, for people."""
    keys = [key for key in {**found, **expected} if found.get(key) != expected.get(key)]
    return "; ".join(f"{key}: {found.get(key)!s:.300} in place of {expected.get(key)!s:.300}" for key in keys)
