"""The ids that a corpus has so far, on disk, so that their number is bounded by nothing else."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from .store import disk_errors

_NUMBER = re.compile("0|[1-9][0-9]{0,17}")
_CACHE_KIB = 2**16


class UsedIds:
    """Ids by the number of their record. A record's own number is an id too, and costs nothing to keep.

    Args:
        path: A file to make; it is of no use afterwards. One that is there is replaced.
        first_record: What is added to a record's number to make its id.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, UsedIds(Path(folder) / "ids.sqlite") as used:
        ...     used.claim([(0, None), (1, "a"), (2, "0"), (3, "a"), (4, "5"), (5, None)])
        {2: 0, 3: 1, 5: 4}
    """

    def __init__(self, path: Path, first_record: int = 0) -> None:
        self._path = path
        self._first = first_record
        self._given = False  # whether the table of given ids holds any
        self._run: tuple[int, int] | None = None  # the last unbroken run of records whose numbers are their ids
        self._runs = False  # whether there are earlier ones
        path.unlink(missing_ok=True)
        with disk_errors(path):
            self._connection = sqlite3.connect(path, isolation_level=None)
            # It is made anew whenever the input is read again: a journal would guard nothing.
            for setting in ("journal_mode = OFF", "synchronous = OFF", f"cache_size = -{_CACHE_KIB}"):
                self._connection.execute(f"PRAGMA {setting}")
            self._connection.execute("CREATE TABLE given (id TEXT PRIMARY KEY, record INTEGER NOT NULL) WITHOUT ROWID")
            self._connection.execute("CREATE TABLE runs (start INTEGER PRIMARY KEY, stop INTEGER NOT NULL)")

    def claim(self, records: Sequence[tuple[int, str | None]]) -> dict[int, int]:
        """Take the ids of documents, unless an earlier record has them.

        Args:
            records: Numbers of records, rising from call to call, and their ids; None: the record's number.

        Returns:
            Of each record whose id is taken, the record that has it.
        """
        given = [(identity, number) for number, identity in records if identity is not None]
        with disk_errors(self._path):
            self._connection.execute("BEGIN")
            try:
                if not given and not self._given:
                    for number, _ in records:
                        self._extend(number)
                    return {}
                if len(given) == len(records) and self._run is None:
                    return self._claim_given(given)
                return {number: first for number, identity in records if (first := self._take(number, identity)) >= 0}
            finally:
                self._given = self._given or bool(given)
                self._connection.execute("COMMIT")

    def _claim_given(self, given: list[tuple[str, int]]) -> dict[int, int]:
        added = self._connection.executemany("INSERT INTO given VALUES (?, ?) ON CONFLICT DO NOTHING", given).rowcount
        if added == len(given):
            return {}
        firsts = {number: self._owner(identity) for identity, number in given}
        return {number: first for number, first in firsts.items() if first != number}

    def _take(self, number: int, identity: str | None) -> int:
        """Take an id; the record that has it already, or −1."""
        if identity is None:
            first = self._owner(str(self._first + number))
            if first < 0:
                self._extend(number)
            return first
        if _NUMBER.fullmatch(identity) and self._in_run(own := int(identity) - self._first):
            return own
        done = self._connection.execute("INSERT INTO given VALUES (?, ?) ON CONFLICT DO NOTHING", (identity, number))
        return -1 if done.rowcount else self._owner(identity)

    def _owner(self, identity: str) -> int:
        row = self._connection.execute("SELECT record FROM given WHERE id = ?", (identity,)).fetchone()
        return -1 if row is None else int(row[0])

    def _extend(self, number: int) -> None:
        if self._run is not None and self._run[1] == number:
            self._run = (self._run[0], number + 1)
            return
        if self._run is not None:
            self._connection.execute("INSERT INTO runs VALUES (?, ?)", self._run)
            self._runs = True
        self._run = (number, number + 1)

    def _in_run(self, number: int) -> bool:
        if self._run is not None and self._run[0] <= number:
            return number < self._run[1]
        if not self._runs:
            return False
        row = self._connection.execute(
            "SELECT stop FROM runs WHERE start <= ? ORDER BY start DESC LIMIT 1", (number,)
        ).fetchone()
        return row is not None and number < int(row[0])

    def __enter__(self) -> UsedIds:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()
        self._path.unlink(missing_ok=True)
