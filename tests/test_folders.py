"""Folders appear whole or not at all, whenever their writer is killed, and leave nothing beside them."""

from __future__ import annotations

import os
import random
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from st_reba import folders
from st_reba.folders import check_folder, new_folder

# Writes versions of a folder over each other until it is killed; each file of a version holds its number.
WRITER = """
import sys
from pathlib import Path
from st_reba import folders
if sys.argv[2] == "renames":
    folders._exchange = lambda *_: False
print("begun", flush=True)
for version in range(1, 100000):
    with folders.new_folder(sys.argv[1], overwrite=True, kind="it", is_kind=lambda path: (path / "0").is_file()) as new:
        for name in range(20):
            (new / str(name)).write_text(str(version))
"""


def is_kind(path: Path) -> bool:
    return (path / "0").is_file()


def write(target: Path, content: str, overwrite: bool = True) -> None:
    with new_folder(target, overwrite=overwrite, kind="it", is_kind=is_kind) as new:
        (new / "0").write_text(content)


def version(target: Path) -> int:
    """Of a whole folder; names that appear and go while it is read are for the caller."""
    contents = {(target / str(name)).read_text() for name in range(20)}
    assert len(contents) == 1, contents
    return int(contents.pop())


@pytest.mark.parametrize("way", ["exchange", "renames"])
def test_a_killed_writer_leaves_a_whole_folder_and_the_next_clears_up(tmp_path: Path, way: str) -> None:
    target, pauses = tmp_path / "it", random.Random(7)
    environment = {**os.environ, "PYTHONPATH": str(Path(folders.__file__).parents[1])}
    for _ in range(3):
        command = [sys.executable, "-c", WRITER, str(target), way]
        writer = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
        assert writer.stdout is not None and writer.stdout.readline() == b"begun\n"
        for _ in range(200):
            if target.exists():
                break
            time.sleep(0.01)
        time.sleep(pauses.uniform(0.0, 0.1))
        writer.kill()
        writer.wait(10)
        # By an exchange it is there at every moment; by renames the next writer may have to put it back.
        if way == "exchange" or target.exists():
            version(target)
        with pytest.raises(FileExistsError, match="already there"):
            write(target, "", overwrite=False)
        version(target)
        assert list(tmp_path.iterdir()) == [target]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere two renames follow each other")
def test_a_reader_always_finds_one(tmp_path: Path) -> None:
    target, done, missing = tmp_path / "it", threading.Event(), []
    write(target, "0")

    def read() -> None:
        while not done.is_set():
            if not target.exists():
                missing.append(1)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(200):
        write(target, str(number))
    done.set()
    reader.join()
    assert not missing and (target / "0").read_text() == "199"


def test_killed_between_two_renames(tmp_path: Path) -> None:
    target, aside = tmp_path / "it", tmp_path / ".it.0123456789ab.old"
    write(target, "old")
    target.rename(aside)
    with pytest.raises(FileExistsError, match="overwrite=True"):
        write(target, "new", overwrite=False)
    assert (target / "0").read_text() == "old" and not aside.exists()
    # What is set aside goes only where a folder of the kind stands in its place.
    target.rename(aside)
    target.mkdir()
    (target / "other").touch()
    with pytest.raises(FileExistsError, match="not it, so it is not replaced"):
        write(target, "new")
    assert (aside / "0").read_text() == "old"


def test_another_writer_is_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "it"
    with new_folder(target, overwrite=True, kind="it", is_kind=is_kind) as slow:
        (slow / "0").write_text("slow")
        write(target, "fast")
        assert (target / "0").read_text() == "fast" and slow.is_dir()
    assert (target / "0").read_text() == "slow" and list(tmp_path.iterdir()) == [target]


def test_what_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "it"
    write(target, "old")
    with pytest.raises(OSError, match="disk full"), new_folder(target, overwrite=True, kind="it", is_kind=is_kind):
        raise OSError("disk full")
    file = tmp_path / "file"
    file.touch()
    for place, message in ((target, r"overwrite=True \(--overwrite\) to replace it"), (file, "a file is there")):
        with pytest.raises(FileExistsError, match=message):
            check_folder(place, overwrite=False, kind="it", is_kind=is_kind)
    assert (target / "0").read_text() == "old" and sorted(tmp_path.iterdir()) == [file, target]
    # An empty folder is filled, and a link is followed.
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    write(tmp_path / "link", "new", overwrite=False)
    assert (tmp_path / "empty" / "0").read_text() == "new" and (tmp_path / "link").is_symlink()


def test_others_may_read_what_a_library_wrote_for_its_owner(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with new_folder(tmp_path / "it", overwrite=False, kind="it", is_kind=is_kind) as new:
            os.close(os.open(new / "0", os.O_CREAT, 0o600))
    finally:
        os.umask(before)
    modes: dict[str, Any] = {path.name: oct(stat.S_IMODE(path.stat().st_mode)) for path in tmp_path.rglob("*")}
    assert modes == {"it": "0o750", "0": "0o640"}
