"""From a recipe to the reader's vectors: published on the loopback Hub, loaded by name in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from server import Hub

import st_reba
from st_reba.cli import main
from st_reba.hub.push import push, push_recipe
from st_reba.hub.saving import save
from st_reba.hub.verify import verify

REPO = "org/llama2-chinese-reba"
ROOT = Path(__file__).parents[2]
TEXTS = ["银行的利率又下调了。", "The cat is asleep."]
READER = """
import json, sys, time
wanted = json.loads(sys.argv[1])
if wanted["hurry"]:
    # huggingface_hub asks a server that is down again and again, for most of a minute.
    time.sleep = lambda seconds: None
if wanted["st_reba"]:
    import st_reba
else:
    # Wherever it may be installed: this reader has not got it.
    sys.modules["st_reba"] = None
from sentence_transformers import SentenceTransformer
found = {}
for name, options in wanted["loads"].items():
    try:
        model = SentenceTransformer(wanted["repo"], device="cpu", **options)
        found[name] = model.encode(wanted["texts"]).tolist()
    except Exception as error:
        found[name] = f"{type(error).__name__}: {error}"
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two versions of a model, saved."""
    folder = tmp_path_factory.mktemp("models")
    for name, pooling in (("first", "mean"), ("second", "last")):
        save(st_reba.build("mini", pooling=pooling), folder / name)
    return {name: folder / name for name in ("first", "second")}


@pytest.fixture(scope="module")
def expected(models: dict[str, Path]) -> dict[str, Any]:
    return {name: SentenceTransformer(str(path), device="cpu").encode(TEXTS) for name, path in models.items()}


@pytest.fixture
def read(hub: Hub, environment: Callable[[Hub, Path], dict[str, str]], tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """``read({name: options}, has_st_reba=…, offline=…)``: vectors, or the error, of each load in a fresh process."""
    variables = environment(hub, tmp_path / "home")

    def read(loads: dict[str, Any], *, has_st_reba: bool, hurry: bool = False, **more: str) -> dict[str, Any]:
        path = {"PYTHONPATH": str(ROOT)} if has_st_reba else {}
        wanted = {"st_reba": has_st_reba, "repo": REPO, "texts": TEXTS, "loads": loads, "hurry": hurry}
        command = [sys.executable, "-c", READER, json.dumps(wanted)]
        run = subprocess.run(
            command, env={**variables, **path, **more}, cwd=tmp_path, capture_output=True, text=True, timeout=300
        )
        assert run.returncode == 0, run.stderr
        found = json.loads(run.stdout.splitlines()[-1])
        return {name: value if isinstance(value, str) else np.array(value) for name, value in found.items()}

    return read


def near(found: Any, wanted: Any) -> bool:
    return not isinstance(found, str) and bool(np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max())


@pytest.mark.slow
def test_readers_get_its_vectors_by_name(
    hub: Hub,
    models: dict[str, Path],
    expected: dict[str, Any],
    read: Callable[..., dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checks: list[Path] = []
    monkeypatch.setattr("st_reba.hub.push.check_vectors", lambda folder: checks.append(folder))
    assert not near(expected["first"], expected["second"])
    push(models["first"], REPO, say=lambda line: None)
    branch = push(models["second"], REPO, revision="v2", say=lambda line: None)
    assert checks == [models["first"], models["second"]]
    loads = {"main": {}, "branch": {"revision": "v2"}, "commit": {"revision": branch.commit}}

    def right(found: dict[str, Any]) -> bool:
        second = near(found["branch"], expected["second"]) and near(found["commit"], expected["second"])
        return second and near(found["main"], expected["first"])

    hub.seen.clear()
    assert right(read(loads, has_st_reba=True))
    # The weights of both versions are the same, and are fetched once.
    fetched = [seen.path for seen in hub.seen if seen.endpoint == "cdn"]
    assert len(fetched) == len(set(fetched)) > 0
    assert {seen.token for seen in hub.seen} == {None}

    trusting = {name: {**options, "trust_remote_code": True} for name, options in loads.items()}
    found = read({**trusting, "refused": {}}, has_st_reba=False)
    assert right(found) and "trust_remote_code" in found["refused"]

    hub.stop()
    found = read({**loads, "never": {"revision": "v9"}}, has_st_reba=True, hurry=True)
    assert right(found) and isinstance(found["never"], str)
    assert right(read(trusting, has_st_reba=False, HF_HUB_OFFLINE="1"))


@pytest.fixture
def kept(hub: Hub, models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The first model is published."""
    push(models["first"], REPO, verify=False, say=lambda line: None)
    yield hub


def test_a_private_repository_says_what_is_missing(
    kept: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: dict[str, Any]
) -> None:
    kept.repos[REPO].private = True
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(Exception, match=r"(?s)private.*(token|log|authenticated)"):
        SentenceTransformer(REPO, cache_folder=str(tmp_path / "a"))
    # The oldest supported release does not hand on token=… to all that it downloads.
    monkeypatch.setenv("HF_TOKEN", "hf_reader")
    model = SentenceTransformer(REPO, cache_folder=str(tmp_path / "b"), device="cpu")
    assert near(model.encode(TEXTS), expected["first"])


def test_a_download_that_breaks_is_no_model(
    kept: Hub, tmp_path: Path, expected: dict[str, Any], waits: list[float]
) -> None:
    for kind in ("short", 503):
        kept.fail("cdn", kind, times=1000, path="")
        with pytest.raises(Exception, match=r"Consistency check failed|503"):
            SentenceTransformer(REPO, cache_folder=str(tmp_path / "a"), device="cpu")
        kept.heal()
    kept.fail("cdn", "cut", after=5_000_000)
    model = SentenceTransformer(REPO, cache_folder=str(tmp_path / "a"), device="cpu")
    assert near(model.encode(TEXTS), expected["first"])


@pytest.mark.slow
def test_altered_weights_are_found_by_their_golden_vectors(kept: Hub, tmp_path: Path) -> None:
    """huggingface_hub compares sizes, not contents: what tells is ``st-reba verify``."""
    assert verify(REPO, cache_folder=str(tmp_path / "a"), device="cpu").ok
    blob = kept.repos[REPO].files()["model.safetensors"]
    half = len(blob.data) // 2
    kept.repos[REPO].objects[blob.oid] = blob.data[:half] + bytes(4096) + blob.data[half + 4096 :]
    assert not verify(REPO, cache_folder=str(tmp_path / "b"), device="cpu").ok


@pytest.mark.slow
def test_a_recipe_is_built_checked_and_published(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "upload"
    assert main(["push", "mini-reba", "org/mini-reba", "--dry-run", str(out)]) == 0
    assert "org/mini-reba was not contacted" in capsys.readouterr().out
    # sentence-transformers itself asks whether the Hub has the base, for the card, and huggingface_hub now and then for
    # a list of its own.
    asked = {seen.path for seen in hub.seen}
    assert asked <= {"/api/models/st_reba/mini", "/api/agent-harnesses"} and hub.repos == {}
    assert verify(out, device="cpu").ok
    # Built again, it is the same to the byte: what was sent need not be sent again.
    monkeypatch.setattr("st_reba.hub.push.check_vectors", lambda folder: None)
    push(out, "org/mini-reba", say=lambda line: None)
    assert push_recipe("mini-reba", "org/mini-reba", say=lambda line: None).changed == ()
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(ValueError, match="no token"):
        push_recipe("mini-reba", "org/mini-reba")
    with pytest.raises(ValueError, match="'no-such' is not known"):
        push_recipe("no-such", "org/mini-reba")
    assert main(["push", "mini-reba", "org/mini-reba", "--no-weights", "--dry-run", str(tmp_path / "b")]) == 2
    assert "embedded" in capsys.readouterr().err


@pytest.mark.slow
def test_a_model_that_changed_after_it_was_saved_is_not_published(hub: Hub, models: dict[str, Path]) -> None:
    config = models["second"] / "1_ReBAPooling/config.json"
    before = config.read_bytes()
    config.write_bytes(before.replace(b'"last"', b'"mean"'))
    assert config.read_bytes() != before
    try:
        with pytest.raises(ValueError, match=r"does not give its golden vectors.*\d+ of 20 texts differ"):
            push(models["second"], REPO, say=lambda line: None)
    finally:
        config.write_bytes(before)
    assert os.environ["HF_TOKEN"] == "hf_writer" and hub.repos == {}
