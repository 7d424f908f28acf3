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


@pytest.fixture(scope="module")
def wheel() -> zipfile.ZipFile:
    (found,) = (ROOT / "dist").glob("*.whl")
    return zipfile.ZipFile(found)


def test_it_holds_the_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    package = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "st_reba").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    weights = "st_reba/mini/model.safetensors"
    assert lzma.decompress(wheel.read(f"{weights}.xz")) == (ROOT / weights).read_bytes()
    # A file that is missing is to be named in setup.cfg's options.package_data.
    assert names - {f"{weights}.xz"} == package - {weights}
    assert {"st_reba/py.typed", "st_reba/modules/version.py"} <= names
    assert Path(str(wheel.filename)).stat().st_size <= 6_000_000


def test_the_source_archive_holds_it_too(wheel: zipfile.ZipFile) -> None:
    (found,) = (ROOT / "dist").glob("*.tar.gz")
    with tarfile.open(found) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {name.removesuffix(".xz") for name in wheel.namelist() if ".dist-info/" not in name}
    assert wanted | {"LICENSE", "README.md", "pyproject.toml", "setup.cfg", "setup.py"} <= held


def test_it_says_what_it_is(wheel: zipfile.ZipFile) -> None:
    (info,) = {name.partition("/")[0] for name in wheel.namelist() if ".dist-info/" in name}
    said = HeaderParser().parsestr(wheel.read(f"{info}/METADATA").decode())
    version: dict[str, str] = {}
    exec((ROOT / "st_reba" / "modules" / "version.py").read_text(encoding="utf-8"), version)
    assert (said["Name"], said["Version"], said["License"]) == ("st-reba", version["__version__"], "Apache-2.0")
    assert said["Requires-Python"] == ">=3.11"
    assert f"{info}/licenses/LICENSE" in wheel.namelist()
    assert str(said.get_payload()).strip() == (ROOT / "README.md").read_text(encoding="utf-8").strip()


def test_it_runs_where_only_it_and_what_it_asks_for_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    where = Path(str(distribution("st-reba").locate_file("st_reba"))).resolve()
    assert where != ROOT / "st_reba" and sys.prefix in str(where)
    command = [str(Path(sys.executable).with_name("st-reba"))]
    texts = tmp_path / "texts.txt"
    texts.write_text("A cat sat on the mat.\n河边的柳树发了新芽。\n", encoding="utf-8")

    def run(*arguments: str) -> str:
        done = subprocess.run([*command, *arguments], cwd=tmp_path, capture_output=True, encoding="utf-8")
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run("--version").split()[-1] == distribution("st-reba").version
    run("build", "mini", "model")
    card = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    assert "license: apache-2.0" in card
    (weights,) = tmp_path.glob("cache/assets/st_reba/*/mini/model.safetensors")
    assert weights.read_bytes() == (ROOT / "st_reba" / "mini" / "model.safetensors").read_bytes()
    run("index", "texts.txt", "index", "--model", "model")
    first = run("search", "index", "cat", "--json").splitlines()[0]
    assert "A cat sat on the mat." in first
