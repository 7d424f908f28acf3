"""What is published holds the package whole and alone, says what it needs, and runs. ``scripts/test --wheel``."""

from __future__ import annotations

import lzma
import subprocess
import sys
import tarfile
import zipfile
from email.parser import HeaderParser
from importlib.metadata import distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


WEIGHTS = "st_reba/mini/model.safetensors"


@pytest.fixture(scope="module")
def wheel_archive() -> zipfile.ZipFile:
    (wheel_file,) = (ROOT / "dist").glob("*.whl")
    return zipfile.ZipFile(wheel_file)


def package_files() -> set[str]:
    paths: set[str] = set()
    for path in (ROOT / "st_reba").rglob("*"):
        if path.is_file() and path.suffix != ".pyc":
            paths.add(path.relative_to(ROOT).as_posix())
    return paths


def wheel_files(wheel_archive: zipfile.ZipFile) -> set[str]:
    return {name for name in wheel_archive.namelist() if ".dist-info/" not in name}


def metadata_folder(wheel_archive: zipfile.ZipFile) -> str:
    (metadata_file,) = [
        name for name in wheel_archive.namelist() if name.endswith(".dist-info/METADATA")
    ]
    return metadata_file.removesuffix("/METADATA")


def test_the_wheel_holds_the_package_and_nothing_else(
    wheel_archive: zipfile.ZipFile,
) -> None:
    """A file that is missing is to be named in setup.cfg's options.package_data."""
    names = wheel_files(wheel_archive)
    assert names - {f"{WEIGHTS}.xz"} == package_files() - {WEIGHTS}
    assert {"st_reba/py.typed", "st_reba/modules/version.py"} <= names


def test_the_wheel_holds_the_weights_of_mini_compressed(
    wheel_archive: zipfile.ZipFile,
) -> None:
    assert lzma.decompress(wheel_archive.read(f"{WEIGHTS}.xz")) == (ROOT / WEIGHTS).read_bytes()


def test_the_wheel_is_at_most_6_megabytes(wheel_archive: zipfile.ZipFile) -> None:
    assert Path(str(wheel_archive.filename)).stat().st_size <= 6_000_000


def test_the_source_archive_holds_the_package_too(
    wheel_archive: zipfile.ZipFile,
) -> None:
    (archive_file,) = (ROOT / "dist").glob("*.tar.gz")
    with tarfile.open(archive_file) as archive:
        root_folder = archive.getnames()[0].partition("/")[0]
        archive_files = set(archive.getnames())
    # Weights are compressed in the wheel alone.
    expected_files = wheel_files(wheel_archive) - {f"{WEIGHTS}.xz"} | {WEIGHTS}
    project_files = {
        "LICENSE",
        "README.md",
        "pyproject.toml",
        "setup.cfg",
        "setup.py",
    }
    for name in expected_files | project_files:
        assert f"{root_folder}/{name}" in archive_files


def test_the_metadata_are_those_of_the_project(wheel_archive: zipfile.ZipFile) -> None:
    folder = metadata_folder(wheel_archive)
    metadata = HeaderParser().parsestr(wheel_archive.read(f"{folder}/METADATA").decode())
    version_names: dict[str, str] = {}
    version_file = ROOT / "st_reba" / "modules" / "version.py"
    exec(version_file.read_text(encoding="utf-8"), version_names)
    assert metadata["Name"] == "st-reba"
    assert metadata["Version"] == version_names["__version__"]
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert f"{folder}/licenses/LICENSE" in wheel_archive.namelist()
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert str(metadata.get_payload()).strip() == readme.strip()


def test_the_installed_package_is_not_that_of_the_checkout() -> None:
    installed = Path(str(distribution("st-reba").locate_file("st_reba"))).resolve()
    assert installed != ROOT / "st_reba"
    assert sys.prefix in str(installed)


def test_it_runs_where_only_it_and_what_it_asks_for_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    command = str(Path(sys.executable).with_name("st-reba"))
    texts_file = tmp_path / "texts.txt"
    texts_file.write_text("A cat sat on the mat.\n河边的柳树发了新芽。\n", encoding="utf-8")

    def run(*arguments: str) -> str:
        completed = subprocess.run(
            [command, *arguments],
            cwd=tmp_path,
            capture_output=True,
            encoding="utf-8",
        )
        assert completed.returncode == 0, completed.stderr
        return completed.stdout

    assert run("--version").split()[-1] == distribution("st-reba").version
    run("build", "mini", "model")
    model_card = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    assert "license: apache-2.0" in model_card
    (unpacked_weights,) = tmp_path.glob("cache/assets/st_reba/*/mini/model.safetensors")
    assert unpacked_weights.read_bytes() == (ROOT / WEIGHTS).read_bytes()
    run("index", "texts.txt", "index", "--model", "model")
    first_hit = run("search", "index", "cat", "--json").splitlines()[0]
    assert "A cat sat on the mat." in first_hit
