"""Figures: which fonts are found, and what no font has is told once."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import pytest
from matplotlib import font_manager
from matplotlib.image import imread

from st_reba.evaluation import figures


def test_a_font_that_was_installed_since_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """matplotlib keeps its list of fonts between runs: one that comes later is not in it."""
    file = Path(shutil.copy(font_manager.findfont("DejaVu Serif"), tmp_path / "new.ttf"))
    others = [each for each in font_manager.fontManager.ttflist if each.name != "DejaVu Serif"]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", others)
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [str(file)])
    monkeypatch.setattr(figures, "FONTS", ("DejaVu Sans", "DejaVu Serif"))
    figures._new_font_files.cache_clear()
    try:
        assert figures._fonts() == ["DejaVu Sans", "DejaVu Serif"]
    finally:
        figures._new_font_files.cache_clear()


def test_characters_without_a_font_are_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(figures, "FONTS", ("DejaVu Sans",))
    figure, axes = figures.new_figure(2, 1, columns=2)
    axes[0, 0].set_title("银行")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figures.save_figure(figure, tmp_path / "a.png")
    (told,) = [each.getMessage() for each in caplog.records if each.name == figures.logger.name]
    assert "a.png: 2 characters have no font here; install Noto Sans CJK" in told
    assert imread(tmp_path / "a.png").shape[:2] == (120, 240)
