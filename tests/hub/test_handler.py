"""The handler of Inference Endpoints: pushed when it is asked for, and right from the repository alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from server import Hub

import st_reba
from st_reba.hub.push import push
from st_reba.hub.saving import save

TEXTS = ["猫在睡觉。", "The bank cut its interest rates again.", ""]
ASKED = [
    {"inputs": TEXTS},
    {"inputs": TEXTS[0]},
    {"inputs": TEXTS, "parameters": {"task": "query"}},
    {"inputs": TEXTS[0], "parameters": {"task": "document"}},
    {"inputs": []},
]
REFUSED = [
    {"inputs": 3},
    {"inputs": [3]},
    {},
    {"inputs": "a", "parameters": {"task": "x"}},
    {"inputs": "a", "parameters": {"dimensions": 3}},
]
# As the endpoint's own server does it, where st_reba is not installed.
SERVER = """
import json, sys
sys.modules["st_reba"] = None
sys.path.insert(0, sys.argv[1])
from handler import EndpointHandler
handler = EndpointHandler(path=sys.argv[1])
asked, refused = json.loads(sys.argv[2])
for one in refused:
    try:
        handler(one)
    except ValueError as error:
        continue
    raise AssertionError(one)
print(json.dumps([handler(one) for one in asked]))
"""


@pytest.mark.slow
def test_with_endpoint(hub: Hub, tmp_path: Path) -> None:
    model = st_reba.build("mini", "echo", prompts={"query": "Query: ", "document": "Document: "}, device="cpu")
    folder, served = tmp_path / "model", tmp_path / "served"
    save(model, folder)
    options = {"verify": False, "say": lambda line: None}
    pushed = push(folder, "org/model", with_endpoint=True, **options)
    files = hub.repos["org/model"].files("main")
    assert {"handler.py", "requirements.txt"} <= set(pushed.files) <= set(files)
    for path, blob in files.items():
        (served / path).parent.mkdir(parents=True, exist_ok=True)
        (served / path).write_bytes(blob.data)
    done = subprocess.run(
        [sys.executable, "-c", SERVER, str(served), json.dumps([ASKED, REFUSED])],
        env={"PATH": "", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "HF_MODULES_CACHE": str(tmp_path / "code")},
        cwd=tmp_path,
        capture_output=True,
        encoding="utf-8",
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    expected = [
        model.encode(TEXTS),
        model.encode(TEXTS[0]),
        model.encode_query(TEXTS),
        model.encode_document(TEXTS[0]),
        np.empty(0),
    ]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6, rtol=0)

    again = push(folder, "org/model", **options)
    assert again.removed == ("handler.py", "requirements.txt"), "a later push without it takes them away"
