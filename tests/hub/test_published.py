"""From a recipe to the reader's vectors: published on the loopback Hub, loaded by name in processes of their own."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from server import Hub

import st_reba
import st_reba.hub.push as pushing
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
    """Two versions of a model, saved; the second with a filter."""
    folder = tmp_path_factory.mktemp("models")
    save(st_reba.build("mini", pooling="mean", device="cpu"), folder / "first")
    texts = [
        f"{name} {deed} {number}" for name in ("Ann", "王芳") for deed in ("sells", "忘记了") for number in range(25)
    ]
    filtered = st_reba.fit_postfilter(st_reba.build("mini", "echo", device="cpu"), texts, "standardize")
    save(filtered, folder / "second")
    return {name: folder / name for name in ("first", "second")}


@pytest.fixture(scope="module")
def expected(models: dict[str, Path]) -> dict[str, Any]:
    return {name: SentenceTransformer(str(path), device="cpu").encode(TEXTS) for name, path in models.items()}


@pytest.fixture
def read(hub: Hub, environment: Callable[[Hub, Path], dict[str, str]], tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """``read({name: options}, has_st_reba=…)``: vectors, or the error, of each load in a fresh process."""
    variables = environment(hub, tmp_path / "home")

    def read(loads: dict[str, Any], *, has_st_reba: bool, hurry: bool = False, **more: str) -> dict[str, Any]:
        path = {"PYTHONPATH": str(ROOT)} if has_st_reba else {}
        wanted = {"st_reba": has_st_reba, "repo": REPO, "texts": TEXTS, "loads": loads, "hurry": hurry}
        command = [sys.executable, "-c", READER, json.dumps(wanted)]
        run = subprocess.run(
            command, env={**variables, **path, **more}, cwd=tmp_path, capture_output=True, text=True, timeout=600
        )
        assert run.returncode == 0, run.stderr
        found = json.loads(run.stdout.splitlines()[-1])
        return {name: value if isinstance(value, str) else np.array(value) for name, value in found.items()}

    return read


def near(found: Any, wanted: Any) -> bool:
    return not isinstance(found, str) and bool(np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max())


@pytest.mark.slow
def test_readers_get_its_vectors_by_name(
    hub: Hub, models: dict[str, Path], expected: dict[str, Any], read: Callable[..., dict[str, Any]]
) -> None:
    assert not near(expected["first"], expected["second"])
    push(models["first"], REPO, verify=False, say=lambda line: None)
    branch = push(models["second"], REPO, revision="v2", verify=False, say=lambda line: None)
    # Modules of the first version go with it; weights that are the same are not sent again.
    assert "1_ReBAPooling/config.json" in branch.removed and "3_Dense/model.safetensors" in branch.files
    loads = {"main": {}, "branch": {"revision": "v2"}, "commit": {"revision": branch.commit}}

    def right(found: dict[str, Any]) -> bool:
        second = near(found["branch"], expected["second"]) and near(found["commit"], expected["second"])
        return second and near(found["main"], expected["first"])

    hub.seen.clear()
    assert right(read(loads, has_st_reba=True))
    fetched = [seen.path for seen in hub.seen if seen.endpoint == "cdn"]
    assert len(fetched) == len(set(fetched)) > 0 and {seen.token for seen in hub.seen} == {None}
    trusting = {name: {**options, "trust_remote_code": True} for name, options in loads.items()}
    found = read({**trusting, "refused": {}}, has_st_reba=False)
    assert right(found) and "trust_remote_code" in found["refused"]
    hub.stop()
    found = read({**loads, "never": {"revision": "v9"}}, has_st_reba=True, hurry=True)
    assert right(found) and isinstance(found["never"], str)
    assert right(read(trusting, has_st_reba=False, HF_HUB_OFFLINE="1"))


def test_a_private_repository_and_broken_downloads(
    hub: Hub,
    models: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    expected: dict[str, Any],
    waits: list[float],
) -> None:
    push(models["first"], REPO, verify=False, private=True, say=lambda line: None)
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(Exception, match=r"(?s)private.*(token|log|authenticated)"):
        SentenceTransformer(REPO, cache_folder=str(tmp_path / "a"))
    monkeypatch.setenv("HF_TOKEN", "hf_reader")
    for kind in ("short", 503):
        hub.fail("cdn", kind, times=1000)
        with pytest.raises(Exception, match=r"Consistency check failed|503"):
            SentenceTransformer(REPO, cache_folder=str(tmp_path / "a"), device="cpu")
        hub.heal()
    hub.fail("cdn", "cut", after=5_000_000)
    model = SentenceTransformer(REPO, cache_folder=str(tmp_path / "a"), device="cpu")
    assert near(model.encode(TEXTS), expected["first"])
    # Huggingface_hub compares sizes, not contents: what finds changed weights is verify.
    assert verify(REPO, cache_folder=str(tmp_path / "a"), device="cpu").ok
    blob = hub.repos[REPO].files()["model.safetensors"]
    half = len(blob.data) // 2
    hub.repos[REPO].objects[blob.oid] = blob.data[:half] + bytes(4096) + blob.data[half + 4096 :]
    assert not verify(REPO, cache_folder=str(tmp_path / "b"), device="cpu").ok


@pytest.mark.slow
def test_a_recipe_is_built_checked_and_published(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    build, verify_fresh = st_reba.build, pushing.verify_fresh
    # The module, and not the function of the same name.
    building = sys.modules["st_reba.building"]
    monkeypatch.setattr(building, "build", lambda *a, **k: made.append(weakref.ref(found := build(*a, **k))) or found)

    def check(folder: Path) -> None:
        gc.collect()
        assert [each() for each in made] == [None], "the model is still held while another process loads it"
        verify_fresh(folder)

    monkeypatch.setattr(pushing, "verify_fresh", check)
    pushed = push_recipe("mini-reba", "org/mini-reba", say=lambda line: None)
    made.clear()
    monkeypatch.setattr(pushing, "verify_fresh", lambda folder: None)
    # Built again it is the same to the byte, and there is nothing to send.
    assert push_recipe("mini-reba", "org/mini-reba", say=lambda line: None).commit == pushed.commit
    card = hub.repos["org/mini-reba"].files()["README.md"].data.decode()
    assert "model_name: mini-reba" in card and 'SentenceTransformer("org/mini-reba"' in card and "path/to" not in card
    for token, name, weights, message in (
        ("hf_writer", "no-such", True, "no-such is not known"),
        ("hf_writer", "mini-reba", False, "'mini' is embedded"),
        ("", "mini-reba", True, "no token"),
    ):
        monkeypatch.setenv("HF_TOKEN", token)
        with pytest.raises(ValueError, match=message):
            push_recipe(name, "org/mini-reba", weights=weights)


@pytest.mark.slow
def test_a_model_that_changed_after_it_was_saved_is_not_published(hub: Hub, models: dict[str, Path]) -> None:
    config = models["first"] / "1_ReBAPooling/config.json"
    before = config.read_bytes()
    value = cast(dict[str, Any], json.loads(before))
    config.write_text(json.dumps({**value, "pooling": "last"}), encoding="utf-8")
    try:
        with pytest.raises(ValueError, match=r"does not give its golden vectors.*\d+ of 20 texts differ"):
            push(models["first"], REPO, say=lambda line: None)
    finally:
        config.write_bytes(before)
    assert hub.repos == {}
