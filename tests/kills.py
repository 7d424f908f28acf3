"""Kill a process that writes, look at what a reader sees, run the same again, and compare."""

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
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tqdm import tqdm

# Forked processes share tqdm's lock by default. One that is killed while it holds the lock never
# releases it.
tqdm.set_lock(threading.RLock())
tqdm.monitor_interval = 0

# Python's audit events of changes to files.
FILE_EVENTS = (
    "os.rename",
    "os.remove",
    "os.mkdir",
    "os.rmdir",
    "os.truncate",
    "shutil.rmtree",
    "sqlite3.connect",
)
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR
_WRITE_MODES = frozenset("wxa+")
KILLED = -signal.SIGKILL
State = dict[str, Any]


class Operation(NamedTuple):
    """Something that writes into a folder.

    Args:
        name: The name of the test.
        prepare: Makes what is there before, in an empty folder.
        run: Writes; repeated after a kill.
        state: All that a reader can see, comparable.
        refusals: Errors by which a repetition says that all is done already.
    """

    name: str
    prepare: Callable[[Path], None]
    run: Callable[[Path], None]
    state: Callable[[Path], State]
    refusals: type[Exception] | tuple[()] = ()


class Outcome(NamedTuple):
    """Result of one kill.

    Args:
        was_killed: Whether the kill came before the end.
        saw_new_state: Whether a reader saw the new state after the kill.
        problem: The traceback of what went wrong; None: nothing.
    """

    was_killed: bool
    saw_new_state: bool
    problem: str | None = None


class ChildResult(NamedTuple):
    """How a child process ended.

    Args:
        status: Negative if it was killed.
        error_message: The error that it ended with: "Kind: message".
        event_count: Number of events.
    """

    status: int
    error_message: str
    event_count: int


class Trial:
    """One operation, with its undisturbed result, in a scratch folder."""

    def __init__(
        self,
        operation: Operation,
        folder: Path,
    ) -> None:
        self.operation = operation
        self._folder = folder
        self._original = folder / "before"
        self._original.mkdir(parents=True)
        operation.prepare(self._original)
        self.old_state = operation.state(self._original)
        with self.copy() as work_copy:
            start_time = time.perf_counter()
            result = run_child(lambda: operation.run(work_copy))
            self.seconds = time.perf_counter() - start_time
            assert result.status == 0, f"{operation.name}: {result.error_message}"
            self.event_count = result.event_count
            self.new_state = operation.state(work_copy)
            self.new_files = list_files(work_copy)
        assert self.new_state != self.old_state, f"{operation.name} changes nothing"

    def kill(
        self,
        *,
        event: int | None = None,
        delay: float | None = None,
    ) -> Outcome:
        """Kill the operation, and go on as a user would.

        Args:
            event: Kill before this event, from 1 on.
            delay: Kill after this many seconds.
        """
        saw_new_state = False
        with self.copy() as work_copy:
            result = run_child(lambda: self.operation.run(work_copy), event=event, delay=delay)
            if result.status == 0:  # the caller has been told, and does not call again
                return Outcome(False, True)
            try:
                assert result.status == KILLED, result.error_message
                saw_new_state = self._read_after_kill(work_copy)
                self._repeat(work_copy, saw_new_state)
            except Exception:
                return Outcome(True, saw_new_state, traceback.format_exc())
        return Outcome(True, saw_new_state)

    def _read_after_kill(self, work_copy: Path) -> bool:
        """True if a reader sees the new state, and not the old one."""
        state = self.operation.state(work_copy)
        if state == self.new_state:
            return True
        difference = describe_difference(state, self.new_state)
        assert state == self.old_state, f"a reader saw neither old nor new: {difference}"
        return False

    def _repeat(
        self,
        work_copy: Path,
        saw_new_state: bool,
    ) -> None:
        try:
            self.operation.run(work_copy)
        except self.operation.refusals:
            # It took effect, and its writer was killed while it cleaned up.
            assert saw_new_state, "the repetition was refused"
            return
        state = self.operation.state(work_copy)
        difference = describe_difference(state, self.new_state)
        assert state == self.new_state, f"at last, it differs: {difference}"
        other_files = sorted(list_files(work_copy) ^ self.new_files)
        assert not other_files, f"at last, other files: {other_files}"

    @contextmanager
    def copy(self) -> Iterator[Path]:
        """The folder before the operation, always at the same path, which some files hold."""
        work_copy = self._folder / "work"
        shutil.copytree(self._original, work_copy)
        try:
            yield work_copy
        finally:
            shutil.rmtree(work_copy)


def list_files(folder: Path) -> frozenset[str]:
    """All files and folders below a folder, without the numbers that repetitions increase."""
    names = set()
    for path in folder.rglob("*"):
        name = re.sub(r"-\d+\.", ".", path.relative_to(folder).as_posix())
        # SQLite removes its log when the last connection is closed; a lock is held by a process,
        # not by its file.
        if not name.endswith(("-wal", "-shm", ".lock")):
            names.add(name)
    return frozenset(names)


def run_child(
    child_work: Callable[[], object],
    *,
    event: int | None = None,
    delay: float | None = None,
) -> ChildResult:
    """Run something in a fork of this process, which is killed before an event or after a time."""
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    child_process = fork.Process(target=_work_in_child, args=(child_work, event, sender))
    child_process.start()
    sender.close()
    if delay is not None:
        time.sleep(delay)
        child_process.kill()
    child_process.join()
    try:
        event_count, error_message = receiver.recv()
    except (EOFError, OSError):
        return ChildResult(child_process.exitcode or 1, "", 0)
    # A kill between the end of the work and that of the process came too late.
    return ChildResult(int(error_message != ""), error_message, event_count)


def renew_thread_pool() -> None:
    """Give a forked process its own pool of torch threads before it starts any.

    Otherwise the first thread that computes creates the pool, and two that do so at once
    (transformers loads weights in several threads) fail with torch's "Invalid thread pool".
    """
    torch.set_num_threads(torch.get_num_threads())


def _work_in_child(
    child_work: Callable[[], object],
    event: int | None,
    sender: Connection,
) -> None:
    null_device = os.open(os.devnull, os.O_WRONLY)
    for output in (1, 2):
        os.dup2(null_device, output)
    renew_thread_pool()
    event_counter = EventCounter(event)
    event_counter.install()
    error_message = ""
    try:
        child_work()
    except BaseException as error:
        error_message = f"{type(error).__name__}: {error}"[:2000]
    sender.send((event_counter.count, error_message))


class EventCounter:
    """Counts changes to files and statements of SQL in this process, and kills it before one.

    Args:
        last_event: The event that it is killed before, from 1 on; None: none.
    """

    def __init__(self, last_event: int | None) -> None:
        self.count = 0
        self._last_event = last_event

    def install(self) -> None:
        connect = sqlite3.connect

        def connect_and_trace(*arguments: Any, **options: Any) -> sqlite3.Connection:
            connection = connect(*arguments, **options)
            # Audit hooks do not report what SQLite writes.
            connection.set_trace_callback(self._add)
            return connection

        sqlite3.connect = connect_and_trace  # type: ignore[assignment]
        sys.addaudithook(self._audit)

    def _add(self, statement: str = "") -> None:
        self.count += 1
        if self.count == self._last_event:
            os.kill(os.getpid(), signal.SIGKILL)

    def _audit(
        self,
        event_name: str,
        arguments: tuple[Any, ...],
    ) -> None:
        if event_name in FILE_EVENTS:
            self._add()
        elif event_name == "open":
            _, mode, flags = arguments
            is_written = not _WRITE_MODES.isdisjoint(mode or "")
            if is_written or (flags or 0) & _WRITE_FLAGS:
                self._add()


def describe_difference(
    state: State,
    expected_state: State,
) -> str:
    """Where two states differ, for people."""
    differences = []
    for key in {**state, **expected_state}:
        value = state.get(key)
        expected_value = expected_state.get(key)
        if value != expected_value:
            differences.append(f"{key}: {value!s:.300} in place of {expected_value!s:.300}")
    return "; ".join(differences)
