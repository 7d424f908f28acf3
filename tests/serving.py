"""A server in a process of its own, and the vectors of its answers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import st_reba

if TYPE_CHECKING:
    import httpx

PATH = "/v1/embeddings"
ROOT = Path(st_reba.__file__).parents[1]


@contextmanager
def server_process(
    folder: Path, *command_options: str, model_name: str = "model", **more_environment: str
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server of a model in the folder, and its address; it is stopped at the end."""
    program_path = str(Path(sys.executable).with_name("st-reba"))
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    with subprocess.Popen(
        [program_path, "serve", model_name, "--port", "0", *command_options],
        cwd=folder,
        env=environment | more_environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            # It is printed when the server takes connections.
            first_line = server.stdout.readline()
            base_address, path, _ = first_line.partition("/v1 ")
            assert path
            yield server, base_address
        finally:
            server.kill()


def vectors_of(answer: httpx.Response) -> NDArray[Any]:
    """The vectors of an answer, which come in the order of the texts."""
    assert answer.status_code == 200, answer.text
    data = answer.json()["data"]
    assert [item["index"] for item in data] == list(range(len(data)))
    return np.array([item["embedding"] for item in data])


def assert_near(vectors: Any, expected_vectors: Any) -> None:
    np.testing.assert_allclose(vectors, expected_vectors, atol=1e-6, rtol=0)
