"""The file that travels with a model: its size, that it computes the same without the package, and pickles."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from oracle import TEXTS, assert_close
from pipelines import encoded, made

Base = Callable[..., str]
# Most lines of the file.
LINES = {"reba mean": 1000, "echo last": 600, "mask0": 900, "inter": 1060, "concat": 1100, "ensemble": 700}
LINES |= {"chunk mask0": 1400}
SCRIPT = """
import sys
sys.modules["st_reba"] = None  # not to be imported
import pickle, torch
torch.set_num_threads(1)
from sentence_transformers import SentenceTransformer
found = {}
for folder in sys.argv[2:]:
    model = SentenceTransformer(folder, trust_remote_code=True, device="cpu")
    assert "transformers_modules" in type(model[0]).forward.__module__ + type(model[0]).forward.__globals__["__name__"]
    found[folder] = model.encode(pickle.load(open(sys.argv[1], "rb")), batch_size=9, convert_to_tensor=True)
    model.save_pretrained(folder + "-again")
pickle.dump(found, open(sys.argv[1] + ".out", "wb"))
"""


def test_without_the_package(base: Base, tmp_path: Path) -> None:
    wanted = {}
    for name, most in LINES.items():
        model, folder = made(base("llama"), name), tmp_path / name.replace(" ", "-")
        model.save_pretrained(str(folder))
        wanted[str(folder)] = encoded(model)
        code = (folder / "st_reba.py").read_text(encoding="utf-8")
        assert len(code.splitlines()) <= most, name
        compile(code, "st_reba.py", "exec")
    (tmp_path / "texts").write_bytes(pickle.dumps(list(TEXTS)))
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "texts"), *wanted]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    for folder, vectors in pickle.loads((tmp_path / "texts.out").read_bytes()).items():
        assert_close(vectors, wanted[folder].double())
        # Saved again without the package, it is whole.
        assert (Path(folder + "-again") / "st_reba.py").read_bytes() == (Path(folder) / "st_reba.py").read_bytes()


@pytest.mark.parametrize("name", ["reba mean", "mask0", "inter", "layers", "ensemble", "chunk mean"])
def test_copies(base: Base, name: str) -> None:
    """Pickled and copied, a model computes the same, and none hears of another's passes."""
    model = made(base("llama"), name)
    wanted = encoded(model)
    for copied in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert torch.equal(encoded(copied), wanted)
        copied[0].model.get_input_embeddings().weight.data.zero_()
    assert torch.equal(encoded(model), wanted)
