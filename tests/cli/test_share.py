"""verify, onnx and push: what they say, and what they refuse."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from commanding import Refused, Run


def test_verify_says_no(run: Run, copied: Path) -> None:
    assert run("verify", copied / "model", "--quiet") == (0, "", "")
    assert "20 of 20 texts agree" in run("verify", copied / "model")[1]
    config = copied / "model" / "1_ReBAPooling" / "config.json"
    config.write_text(config.read_text().replace('"mean"', '"last"'))
    status, out, _ = run("verify", copied / "model", "--json")
    assert status == 1 and json.loads(out)["ok"] is False


def test_onnx_leaves_a_saved_model_alone(refused: Refused, copied: Path) -> None:
    shutil.rmtree(copied / "index")
    for more in ([], ["--overwrite"]):
        message = refused("onnx", copied / "model", copied / "model", *more)
        assert "not an exported model, so it is not replaced" in message


def test_an_index_is_verified_too(run: Run, saved: Path) -> None:
    assert "3 documents and 3 vectors are as they were written" in run("verify", saved / "index")[1]
    assert json.loads(run("verify", saved / "index", "--json")[1])["vectors"] == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mini-reba", "org"], "ORG/NAME 'org': write the repository as ORG/NAME"),
        (["mini-reba", "org/a/b"], "ORG/NAME 'org/a/b': write"),
        (["mini-rebba", "org/a"], "SOURCE 'mini-rebba': there is no such folder, and the zoo has no such name"),
        (["model", "org/a", "--dtype", "float16"], "go with a recipe, which is built first"),
        (["model", "org/a", "--no-weights"], "a folder is published as it is"),
        (["space", "org/a", "--revision", "new"], "--revision does not go with a Space"),
        (["space", "org/a", "--with-endpoint"], "--with-endpoint does not go with a Space"),
        (["index", "org/a"], "is an index, not a saved model"),
    ],
    ids=str,
)
def test_mistakes_of_push(
    refused: Refused, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    """Nothing is asked of the Hub."""
    monkeypatch.setattr("socket.getaddrinfo", lambda *given, **options: pytest.fail("asked"))
    monkeypatch.chdir(tmp_path)
    for name in ("model", "index"):
        (tmp_path / name).symlink_to(saved / name)
    (tmp_path / "space").mkdir()
    for name in ("app.py", "requirements.txt"):
        (tmp_path / "space" / name).touch()
    assert message in refused("push", *arguments)
