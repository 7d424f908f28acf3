"""The folder that tune writes: nothing of something else is lost in it."""

from __future__ import annotations

from pathlib import Path

import pytest

import st_reba.evaluation.tune as tune

TEXTS = [f"Text {number} is about something else." for number in range(60)]


@pytest.mark.parametrize(
    ("file_name", "content", "base", "problem"),
    [
        ("report.md", "mine", "mini", "holds files of something else"),
        ("report.json", "mine", "mini", "holds files of something else"),
        ("report.json", '["method", "rows", "tried_count"]', "mini", "something else"),
        ("report.json", '{"method": "echo", "rows": []}', "mini", "something else"),
        ("model/notes.txt", "mine", "mini", "holds files of something else"),
        ("passes/model.txt", "mine", "passes", "holds the base"),
    ],
)
def test_files_of_something_else_are_not_overwritten(
    file_name: str,
    content: str,
    base: str,
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / file_name
    file.parent.mkdir(exist_ok=True)
    file.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=problem):
        tune.tune(base, TEXTS, tmp_path)
    assert file.read_text(encoding="utf-8") == content


def test_a_folder_that_tune_wrote_is_taken_again_without_its_passes(tmp_path: Path) -> None:
    report = '{"method": "echo", "rows": [], "tried_count": 9}'
    (tmp_path / "report.json").write_text(report, encoding="utf-8")
    tune._check_folder(tmp_path, "mini")


def test_a_folder_that_cannot_take_the_model_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "passes").mkdir()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(FileExistsError, match="is not a saved model"):
        tune.tune("mini", TEXTS, tmp_path)
