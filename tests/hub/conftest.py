"""A Hub on the loopback address, in this process and for others."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import huggingface_hub.constants as constants
import huggingface_hub.hf_api
import pytest
from huggingface_hub.utils import close_session
from server import Hub, running

import st_reba
from st_reba import NoSink
from st_reba.hub.saving import save

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")

_getaddrinfo = socket.getaddrinfo


def _loopback_only(host: Any, *arguments: Any, **options: Any) -> Any:
    assert host in ("127.0.0.1", "localhost", None), f"{host} would be contacted"
    return _getaddrinfo(host, *arguments, **options)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """A server, and this process's huggingface_hub asks it, with a token that may write."""
    with running() as server:
        monkeypatch.setattr("socket.getaddrinfo", _loopback_only)
        monkeypatch.setattr(constants, "ENDPOINT", server.endpoint)
        monkeypatch.setattr(huggingface_hub.hf_api.api, "endpoint", server.endpoint)
        # Transformers keeps the client that it made first, with the address of that time.
        monkeypatch.setattr("transformers.utils.hub._hf_api", None, raising=False)
        template = server.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no_token"))
        monkeypatch.setenv("HF_TOKEN", "hf_writer")
        for name in PROXIES:
            monkeypatch.delenv(name, raising=False)
        close_session()
        yield server
        close_session()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that were waited for a further try, of which none passes."""
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    return waited


@pytest.fixture(scope="session")
def environment() -> Callable[[Hub, Path], dict[str, str]]:
    """``environment(hub, home)``: for a process whose only Hub is that server, with a cache of its own."""

    def make(hub: Hub, home: Path) -> dict[str, str]:
        dropped = (*PROXIES, "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_TOKEN", "HF_HUB_CACHE", "PYTHONPATH")
        kept = {name: value for name, value in os.environ.items() if name not in dropped}
        return {
            **kept,
            "HF_ENDPOINT": hub.endpoint,
            "HF_HOME": str(home),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "OMP_NUM_THREADS": "1",
        }

    return make


@pytest.fixture(scope="session")
def echo_saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with stages and a default prompt, saved; not to be changed."""
    folder = tmp_path_factory.mktemp("golden") / "model"
    stages = [NoSink("mask0-bidir", k=2)]
    model = st_reba.build("mini", "echo", pooling="mean", stages=stages, prompts={"query": "Q: "}, device="cpu")
    model.default_prompt_name = "query"
    save(model, folder)
    return folder
