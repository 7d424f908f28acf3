"""What the tests of the command line share: a runner, a model and an index that are made once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sentence_transformers import SentenceTransformer
from typer.testing import CliRunner

import st_reba
from st_reba.cli import app
from st_reba.hub.saving import save
from st_reba.index import Index

TEXTS = ["A cat sleeps on the warm roof.", "The ship left the harbour.", "银行昨天提高了存款利率。"]
# Runs a command: exit code, stdout, stderr; and one that must be refused: its one line on stderr.
Run = Callable[..., tuple[int, str, str]]
Refused = Callable[..., str]


@pytest.fixture
def run() -> Run:
    """Run a command: exit code, stdout and stderr."""

    def call(*arguments: object, stdin: str | None = None, **options: Any) -> tuple[int, str, str]:
        found = CliRunner().invoke(app, [*map(str, arguments)], input=stdin, prog_name="st-reba", **options)
        assert found.exception is None or isinstance(found.exception, SystemExit), found.exception
        return found.exit_code, found.stdout, found.stderr

    return call


@pytest.fixture
def refused(run: Run) -> Refused:
    """Run a command that must fail cleanly: exit code 2, nothing on stdout, one line on stderr, which is returned."""

    def call(*arguments: object, **options: Any) -> str:
        status, out, err = run(*arguments, **options)
        assert (status, out) == (2, ""), (status, out, err)
        (line,) = err.splitlines()
        assert line.startswith("st-reba")
        return line

    return call


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and an index beside each other; not to be changed."""
    folder = tmp_path_factory.mktemp("saved")
    model = st_reba.build("mini", pooling="mean", prompts={"query": "Query: "})
    save(model, folder / "model")
    Index.build(model, TEXTS, folder / "index", model_source=folder / "model").close()
    (folder / "texts.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def model(saved: Path) -> SentenceTransformer:
    return SentenceTransformer(str(saved / "model"), device="cpu")


@pytest.fixture
def copied(saved: Path, tmp_path: Path) -> Path:
    """A copy of what was saved, to be changed."""
    return shutil.copytree(saved, tmp_path / "saved")
