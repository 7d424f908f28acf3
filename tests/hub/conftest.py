"""A Hub on the loopback address, in this process and for others."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub.constants as constants
import huggingface_hub.hf_api
import pytest
from huggingface_hub.utils import close_session
from server import Hub, running

import st_reba
from st_reba.hub import save

_original_getaddrinfo = socket.getaddrinfo


def _loopback_only(host: Any, *arguments: Any, **options: Any) -> Any:
    assert host in ("127.0.0.1", "localhost", None), f"{host} would be contacted"
    return _original_getaddrinfo(host, *arguments, **options)


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
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        close_session()
        yield server
        close_session()


@pytest.fixture(scope="session")
def saved_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved model; not to be changed."""
    folder = tmp_path_factory.mktemp("hub") / "model"
    save(
        st_reba.build(
            "mini",
            "echo",
            pooling="mean",
            prompts={"query": "Q: "},
            device="cpu",
        ),
        folder,
    )
    return folder


@pytest.fixture
def copied_folder(saved_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved_folder, tmp_path / "model"))
