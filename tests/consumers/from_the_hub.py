"""Who publishes models, and who reads them by name, each a process of its own: ``python from_the_hub.py JOB``.

A job has a ``role``, ``models`` (for each name its base and what ``build`` is given), ``texts``, and ``folder``, for
what is kept between roles. HF_ENDPOINT says where the Hub is.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from given import answering, assert_carried


def publish(job: dict[str, Any]) -> dict[str, Any]:
    """Build, encode, save and push, and gpt2 exported; vectors are those of the model that was never saved."""
    import st_reba
    from st_reba.hub import push, save
    from st_reba.onnx import export

    result = {}
    for name, (base, options) in job["models"].items():
        model = st_reba.build(base, dtype="float32", device="cpu", **options)
        vectors = model.encode(job["texts"])
        place = Path(job["folder"]) / name
        save(model, place / "torch")
        result[name] = {"vectors": vectors, "commit": push(place / "torch", f"org/{name}").commit}
        if name == "gpt2":
            export(model, place / "onnx")
            result["gpt2-onnx"] = {"vectors": vectors, "commit": push(place / "onnx", "org/gpt2-onnx").commit}
    return result


def plugin(job: dict[str, Any]) -> dict[str, Any]:
    """The package is installed, and no code of the repository is trusted."""
    import st_reba  # noqa: F401

    return {name: _load(f"org/{name}").encode(job["texts"]) for name in job["models"]}


def flag(job: dict[str, Any]) -> dict[str, Any]:
    """Without the package, the code of a pinned commit is trusted; then from a folder that this saved."""
    sys.modules["st_reba"] = None  # type: ignore[assignment]
    result = {}
    for name in job["models"]:
        folder = str(Path(job["folder"]) / name / "again")
        model = _load(f"org/{name}", trust_remote_code=True, revision=job["commits"][name])
        model.save_pretrained(folder)
        again = _load(folder, trust_remote_code=True)
        assert (again.encode(job["texts"]) == model.encode(job["texts"])).all()
        result[name] = model.encode(job["texts"])
    assert_carried(True)
    return result


def graph(job: dict[str, Any]) -> dict[str, Any]:
    """The published card's own example, on these texts, where there is no torch."""
    for package in ("torch", "transformers", "sentence_transformers", "st_reba"):
        sys.modules[package] = None  # type: ignore[assignment]
    from huggingface_hub import hf_hub_download

    card = Path(hf_hub_download("org/gpt2-onnx", "README.md")).read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    block, count = re.subn(r"^texts = .*$", f"texts = {job['texts']!r}", block, flags=re.MULTILINE)
    assert count == 1 and 'snapshot_download("org/gpt2-onnx"' in block, card
    names: dict[str, Any] = {}
    exec(compile(block, "README.md", "exec"), names)
    return {"gpt2-onnx": names["vectors"]}


def _load(name: str, **options: Any) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(name, device="cpu", **options)


ROLES = {role.__name__: role for role in (publish, plugin, flag, graph)}

if __name__ == "__main__":
    answering(lambda job: ROLES[job["role"]](job))
