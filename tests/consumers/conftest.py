"""The same saved models for every consumer, and a fresh process for each that reads docs/how-to/tools.md."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from given import GIVEN, QUIET, ROOT, TEXTS
from page import MODEL, sections, without_trust
from sentence_transformers import SentenceTransformer

import st_reba

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """For each model, a folder that holds it as ``my_model``: the page's own, and ReBA without prompts."""
    places = {name: tmp_path_factory.mktemp(name) for name in ("echo", "reba")}
    names: dict[str, Any] = {}
    (block,) = sections()[MODEL]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(places["echo"])
        exec(compile(block, "docs/how-to/tools.md", "exec"), names)
    assert set(GIVEN) <= set(names), "the page's first section defines what the others go on from"
    st_reba.build("mini", "reba", pooling="mean").save_pretrained(str(places["reba"] / "my_model"))
    return places


@pytest.fixture(scope="session")
def models() -> dict[str, SentenceTransformer]:
    """The same models as built, never saved: what every consumer is held against."""
    return {
        "echo": st_reba.build("mini", "echo", prompts={"query": "Query: ", "document": "Document: "}, device="cpu"),
        "reba": st_reba.build("mini", "reba", pooling="mean", device="cpu"),
    }


@pytest.fixture(scope="module", params=["plugin", "flag"])
def told(
    request: pytest.FixtureRequest, places: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What the test module's ``told`` said of each model, in a process where its ``SECTION`` of the page has run."""
    folder = tmp_path_factory.mktemp("told")
    blocks = sections()[request.module.SECTION]
    if request.param == "plugin":
        blocks = [without_trust(block) for block in blocks]
    job = {
        "route": request.param,
        "module": Path(request.module.__file__).stem,
        "blocks": blocks,
        "given": GIVEN,
        "places": {name: str(place) for name, place in places.items()},
        "result": str(folder / "result.json"),
    }
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {**QUIET, "HF_MODULES_CACHE": str(folder / "code")}
    if request.param == "plugin":
        environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        [sys.executable, str(HERE / "reader.py"), str(folder / "job.json")],
        env=environment,
        cwd=folder,
        capture_output=True,
        encoding="utf-8",
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    assert result["asked"] == [], "hosts that the consumer would have contacted"
    carried = any(home.startswith("transformers_modules.") for home in result["homes"])
    assert result["homes"] and carried == (request.param == "flag"), result["homes"]
    found: dict[str, Any] = result["told"]
    return found


@pytest.fixture(scope="session")
def given() -> dict[str, Any]:
    """What the blocks are given: ``texts``, ``questions``, ``relevant`` and ``pairs``."""
    return GIVEN


@pytest.fixture
def close() -> Callable[[Any, Any], None]:
    """``close(found, wanted)``: the vectors are the same to 1e-6."""

    def check(found: Any, wanted: Any) -> None:
        assert np.asarray(wanted).size
        np.testing.assert_allclose(np.asarray(found, dtype=np.float64), wanted, atol=1e-6, rtol=0)

    return check


@pytest.fixture
def nearest() -> Callable[..., list[list[str]]]:
    """``nearest(queries, documents, k=10)``: the texts by exact search, of vectors that ``models`` gave."""

    def search(queries: Any, documents: Any, k: int = 10) -> list[list[str]]:
        scores = np.asarray(queries, dtype=np.float64) @ np.asarray(documents, dtype=np.float64).T
        rows = np.argsort(-scores, axis=1)[:, : k + 1]
        ranked = np.take_along_axis(scores, rows, axis=1)
        assert np.diff(-ranked, axis=1).min() > 1e-6, "texts too close to each other to be ranked"
        return [[TEXTS[row] for row in found[:k]] for found in rows]

    return search
