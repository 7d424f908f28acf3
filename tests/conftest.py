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


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Two workers share the cores; one thread each keeps them from fighting."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _cards_compiled_once() -> Iterator[None]:
    """The template of a card is compiled once, not for each model that is saved."""
    from jinja2 import Environment

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Environment, "compile", cache(Environment.compile))
        yield


@pytest.fixture(autouse=True)
def _no_bar_unasked(request: pytest.FixtureRequest) -> Iterator[None]:
    """No progress bar is shown, except in tests that are marked ``bars``."""
    from tqdm import std

    callers: list[str] = []
    original_init = std.tqdm.__init__

    def init_and_record(bar: std.tqdm, *args: object, **options: object) -> None:
        original_init(bar, *args, **options)
        if not bar.disable:
            callers.append(calling_module(sys._getframe(1)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(std.tqdm, "__init__", init_and_record)
        yield
    our_callers = [
        name for name in callers if name.startswith("st_reba") or name.endswith(".model")
    ]
    assert not our_callers or request.node.get_closest_marker("bars")


def calling_module(frame: FrameType) -> str:
    """Name of the module that made a bar, outside tqdm."""
    name: str = frame.f_globals["__name__"]
    if name.startswith("tqdm") and frame.f_back is not None:
        return calling_module(frame.f_back)
    return name


def pytest_collection_finish() -> None:
    """Exempt the imported libraries from garbage collection, so that it is quick after each file."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _forgotten(request: pytest.FixtureRequest) -> Iterator[None]:
    """Clear a file's caches after its last test; their models would add up to gigabytes."""
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


STORIES = Path(__file__).parents[2] / "shared" / "data" / "models" / "stories260K"


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """``base(name, tokenizer="bos")``: what ``build`` takes for an architecture, ``mini`` or ``stories260K``."""
    from architectures import save

    @cache
    def save_once(name: str, tokenizer: str) -> str:
        return str(save(name, tmp_path_factory.mktemp(name), tokenizer))

    def folder_of(name: str, tokenizer: str = "bos") -> str:
        if name == "mini":
            return name
        if name != "stories260K":
            return save_once(name, tokenizer)
        if not STORIES.is_dir():
            pytest.skip("stories260K is not on this machine: its exactness is not tested here")
        return str(STORIES)

    return folder_of


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama with its language-modelling head, as most bases are; not to be changed."""
    from architectures import save

    return save("llama", tmp_path_factory.mktemp("llama"), "bos", causal_lm=True)
