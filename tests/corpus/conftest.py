"""A model that is made once, and what it runs."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from contents import MIXED, run
from sentence_transformers import SentenceTransformer

import st_reba
from st_reba.corpus import Corpus, part


@pytest.fixture(scope="session")
def model() -> SentenceTransformer:
    return st_reba.build("mini", pooling="mean", prompts={"document": "Text: "})


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[int]]:
    """Count forward passes from now on; the given one fails."""
    real: Any = part.encode_batch

    def count(fail: int | None = None) -> list[int]:
        done: list[int] = []

        def passed(model: Any, texts: list[str], **options: Any) -> Any:
            if len(done) == fail:
                raise KeyboardInterrupt
            done.append(len(texts))
            return real(model, texts, **options)

        monkeypatch.setattr(part, "encode_batch", passed)
        return done

    return count


@pytest.fixture(scope="session")
def _mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("mixed") / "whole", MIXED).path


@pytest.fixture
def whole(_mixed: Path, tmp_path: Path) -> Corpus:
    """A corpus of `MIXED`."""
    return Corpus(shutil.copytree(_mixed, tmp_path / "whole"))
