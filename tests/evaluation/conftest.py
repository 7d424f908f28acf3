"""Fixtures of the tests of a search, and of labelled files."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from st_reba.evaluation.statistics import bootstrap


@pytest.fixture(scope="module", autouse=True)
def _no_waiting_for_the_disk() -> Iterator[None]:
    """No test cuts the power, and only that could tell."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda descriptor: None)
        yield


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


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Any], Path]:
    """``write(name, content)``: a file in the folder that a test works in; a list is written as JSON lines."""
    monkeypatch.chdir(tmp_path)

    def write(name: str, content: Any) -> Path:
        if isinstance(content, list):
            content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in content)
        content = content if isinstance(content, bytes) else content.encode()
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return path

    return write
