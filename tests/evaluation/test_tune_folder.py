"""The folder that tune writes: nothing of something else is lost in it."""

from __future__ import annotations

from pathlib import Path

import pytest

import st_reba.evaluation.tune as tune

TEXTS = [f"Text {number} is about something else." for number in range(60)]


@pytest.mark.parametrize(
    ("file_name", "base", "problem"),
    [
        ("report.md", "mini", "holds files of something else"),
        ("model/notes.txt", "mini", "holds files of something else"),
        ("passes/model.txt", "passes", "holds the base"),
    ],
)
def test_files_of_something_else_are_not_overwritten(
    file_name: str, base: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / file_name
    file.parent.mkdir(exist_ok=True)
    file.write_text("mine", encoding="utf-8")
    with pytest.raises(ValueError, match=problem):
        tune.tune(base, TEXTS, tmp_path)
    assert file.read_text(encoding="utf-8") == "mine"


def test_a_folder_that_cannot_take_the_model_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "passes").mkdir()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(FileExistsError, match="is not a saved model"):
        tune.tune("mini", TEXTS, tmp_path)
