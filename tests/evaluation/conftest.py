"""Fixtures of the tests of a search, and of labelled files."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from st_reba.evaluation.statistics import bootstrap


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Searches of few draws and small parts, without figures but where a test has ``drawn``."""
    monkeypatch.setattr("st_reba.evaluation.heldout.FEWEST", 16)
    monkeypatch.setattr("st_reba.evaluation.items.bootstrap", partial(bootstrap, draws=60))
    if "drawn" not in request.fixturenames:
        monkeypatch.setattr("st_reba.evaluation.search_report._figure", lambda *given: None)
        monkeypatch.setattr("st_reba.evaluation.search_report.save_figure", lambda figure, path: Path(path).touch())


@pytest.fixture
def drawn() -> None:
    """With figures."""


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """``scripted(value, kind=Halving, seed=0, **options)``: see :func:`scripted.scripted_search`."""
    from scripted import scripted_search

    return partial(scripted_search, monkeypatch, tmp_path)
