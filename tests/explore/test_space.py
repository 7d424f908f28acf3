"""The folder of a Space: it opens the page with its models, replaces nothing unasked, and needs no other machine."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import st_reba
from st_reba.explore import write_space


def test_a_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = ["mini", "mini echo:pooling=mean", "Qwen/Qwen3-0.6B"]
    folder = write_space(tmp_path / "space", models, title='Mine: "1"', language="zh")
    head = yaml.safe_load((folder / "README.md").read_text(encoding="utf-8").split("---\n")[1])
    assert (head["title"], head["sdk"], head["app_file"]) == ('Mine: "1"', "gradio", "app.py")
    assert re.fullmatch(r"\d+\.\d+\.\d+", head["sdk_version"])
    assert (folder / "requirements.txt").read_text() == f"st-reba[explore]>={st_reba.__version__}\n"
    given: list[Any] = []
    monkeypatch.setattr(st_reba.explore, "launch", lambda *names, **all: given.append((names, all)))
    code = (folder / "app.py").read_text(encoding="utf-8")
    exec(compile(ast.parse(code), "app.py", "exec"), {})
    assert given == [((models,), {"host": "0.0.0.0", "port": 7860, "language": "zh"})]


def test_a_space_replaces_nothing_unasked(tmp_path: Path) -> None:
    folder = write_space(tmp_path / "space", ["mini"])
    with pytest.raises(FileExistsError, match="overwrite"):
        write_space(folder, ["mini echo"])
    write_space(folder, ["mini echo"], overwrite=True)
    assert "mini echo" in (folder / "app.py").read_text()
    (folder / "mine.txt").write_text("kept")
    with pytest.raises(FileExistsError, match="not a Space"):
        write_space(folder, ["mini"], overwrite=True)
    assert (folder / "mine.txt").read_text() == "kept"


def test_a_space_cannot_read_this_machine(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "recipe.yaml").write_text("base: mini\n")
    for model in (str(tmp_path / "model"), f"{tmp_path / 'model'} echo", str(tmp_path / "recipe.yaml")):
        with pytest.raises(ValueError, match="st-reba push"):
            write_space(tmp_path / "space", [model])
    with pytest.raises(ValueError, match="you named 0 models"):
        write_space(tmp_path / "space", [])
    with pytest.raises(ValueError, match="language"):
        write_space(tmp_path / "space", ["mini"], language="de")
    assert not (tmp_path / "space").exists()
