"""Files of results and figures: which of them can be written."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from st_reba.evaluation.figures import check_writable
from st_reba.evaluation.result_files import OutputFiles


@pytest.mark.parametrize(("letter_count", "is_long"), [(255, False), (256, True)])
def test_a_name_has_at_most_255_bytes(letter_count: int, is_long: bool, tmp_path: Path) -> None:
    file = tmp_path / ("x" * letter_count)
    if is_long:
        with pytest.raises(ValueError, match="more than 255 bytes"):
            check_writable(file, "out (--out)")
    else:
        check_writable(file, "out (--out)")


@pytest.mark.parametrize("is_there", [True, False])
def test_a_file_that_may_not_be_written_is_named(
    is_there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "results.jsonl"
    if is_there:
        file.touch()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(PermissionError, match=r"--out.*results\.jsonl' cannot be written"):
        check_writable(file, "out (--out)")


def test_an_empty_file_takes_results(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    file.touch()
    assert OutputFiles(file, None).lines == file


LONG_RESULT = {"task": "a" * 2**20, "metric": "accuracy", "score": 1}


@pytest.mark.parametrize(
    "content",
    ["text1\ttext2\tscore\n", '{"text": "a"}\n', "[1]\n", json.dumps(LONG_RESULT)],
    ids=["table", "texts", "list", "over a megabyte"],
)
def test_results_are_not_appended_to_another_file(tmp_path: Path, content: str) -> None:
    table = tmp_path / "table"
    table.write_text(content)
    with pytest.raises(ValueError, match=r"--out.*table' is there and holds no results\. Give"):
        OutputFiles(table, None)
    assert table.read_text() == content
