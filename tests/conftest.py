"""Fixtures shared by all tests: bases to build on and a browser, made once a session."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

# Nothing here imports torch: the process that only hands out tests needs seconds less.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

STORIES = Path(__file__).parents[2] / "shared" / "data" / "models" / "stories260K"


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Two workers share the cores; one thread each keeps them from fighting."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _no_bar_unasked(request: pytest.FixtureRequest) -> Iterator[None]:
    """Where nobody looks on, no bar is shown, but where a test asks for one."""
    from tqdm import std

    modules_with_bars: list[str] = []
    original_init = std.tqdm.__init__

    def init(bar: std.tqdm, *args: object, **options: object) -> None:
        original_init(bar, *args, **options)
        if not bar.disable:
            modules_with_bars.append(_caller_outside_tqdm(sys._getframe(1)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(std.tqdm, "__init__", init)
        yield
    if request.node.get_closest_marker("bars"):
        return
    for module_name in modules_with_bars:
        assert not module_name.startswith("st_reba") and not module_name.endswith(".model")


def _caller_outside_tqdm(frame: FrameType) -> str:
    """The module that made a bar."""
    while frame.f_globals["__name__"].startswith("tqdm") and frame.f_back is not None:
        frame = frame.f_back
    return str(frame.f_globals["__name__"])


def pytest_collection_finish() -> None:
    """The libraries stay: the garbage collector need not walk through them again after each file."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _empty_caches(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a file's own caches hold goes with its last test: models would add up to gigabytes."""
    yield
    for value in vars(request.module).values():
        if hasattr(value, "cache_clear") and value.__module__ == request.module.__name__:
            value.cache_clear()
    gc.collect()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium, for scripts/test --browser."""
    from playwright.sync_api import sync_playwright

    path = os.environ.get("ST_REBA_CHROMIUM", "/usr/bin/chromium")
    with sync_playwright() as playwright:
        # Root has to do without the sandbox.
        yield playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """``base(name, tokenizer="bos")``: what ``build`` takes for an architecture, ``mini`` or ``stories260K``."""
    from architectures import save

    @cache
    def saved_base(name: str, tokenizer: str) -> str:
        return str(save(name, tmp_path_factory.mktemp(name), tokenizer))

    def find_base(name: str, tokenizer: str = "bos") -> str:
        if name == "mini":
            return name
        if name != "stories260K":
            return saved_base(name, tokenizer)
        if not STORIES.is_dir():
            pytest.skip("stories260K is not on this machine: its exactness is not tested here")
        return str(STORIES)

    return find_base
