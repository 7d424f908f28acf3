"""One writer at a time in a folder."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from st_reba.lock import writers_lock


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    """Not by another thread either; and again as soon as the first has ended, also by an error."""
    told: list[str | None] = []

    def write() -> None:
        try:
            with writers_lock(str(tmp_path)):
                told.append(None)
        except BlockingIOError as error:
            told.append(str(error))

    with pytest.raises(RuntimeError, match="failed"), writers_lock(tmp_path):
        write()
        thread = threading.Thread(target=write)
        thread.start()
        thread.join()
        raise RuntimeError("failed")
    write()
    refused = f"{tmp_path}: another process is writing here, and there may be only one; wait until it ends, or "
    assert told == [f"{refused}give another path"] * 2 + [None]
