"""Who publishes models, and who reads them by name, each a process of its own: ``python hub_job.py JOB``.

A job has a ``role``, ``models`` (for each name its base and what ``build`` is given), ``texts``,
and ``folder``, for what is kept between roles. HF_ENDPOINT says where the Hub is.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from isolated import Job, answer_job, assert_published_code_ran


def publish(job: Job) -> dict[str, Any]:
    """Build, encode, save and push, and gpt2 exported; vectors are those of the model that was never saved."""
    import st_reba
    from st_reba.hub import push, save
    from st_reba.onnx import export

    published: dict[str, Any] = {}
    for name, (base, options) in job["models"].items():
        model = st_reba.build(base, dtype="float32", device="cpu", **options)
        vectors = model.encode(job["texts"])
        folder = Path(job["folder"]) / name
        save(model, folder / "torch")
        pushed = push(folder / "torch", f"org/{name}")
        published[name] = {"vectors": vectors, "commit": pushed.commit}
        if name == "gpt2":
            export(model, folder / "onnx")
            pushed = push(folder / "onnx", "org/gpt2-onnx")
            published["gpt2-onnx"] = {
                "vectors": vectors,
                "commit": pushed.commit,
            }
    return published


def load_with_package(job: Job) -> dict[str, Any]:
    """The package is installed, and no code of the repository is trusted."""
    import st_reba  # noqa: F401

    vectors: dict[str, Any] = {}
    for name in job["models"]:
        vectors[name] = load_model(f"org/{name}").encode(job["texts"])
    return vectors


def load_trusted_code(job: Job) -> dict[str, Any]:
    """Without the package, the code of a pinned commit is trusted; then from a folder that this saved."""
    sys.modules["st_reba"] = None  # type: ignore[assignment]
    vectors: dict[str, Any] = {}
    for name in job["models"]:
        folder = str(Path(job["folder"]) / name / "again")
        model = load_model(f"org/{name}", trust_remote_code=True, revision=job["commits"][name])
        vectors[name] = model.encode(job["texts"])
        model.save_pretrained(folder)
        saved_model = load_model(folder, trust_remote_code=True)
        assert (saved_model.encode(job["texts"]) == vectors[name]).all()
    assert_published_code_ran(True)
    return vectors


def run_graph(job: Job) -> dict[str, Any]:
    """The published card's own example, on these texts, where there is no torch."""
    for package in (
        "torch",
        "transformers",
        "sentence_transformers",
        "st_reba",
    ):
        sys.modules[package] = None  # type: ignore[assignment]
    from huggingface_hub import hf_hub_download

    card_file = hf_hub_download("org/gpt2-onnx", "README.md")
    card = Path(card_file).read_text(encoding="utf-8")
    (code_block,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    texts_line = f"texts = {job['texts']!r}"
    code_block, change_count = re.subn(r"^texts = .*$", texts_line, code_block, flags=re.MULTILINE)
    assert change_count == 1, card
    assert 'snapshot_download("org/gpt2-onnx"' in code_block, card
    names: dict[str, Any] = {}
    exec(compile(code_block, "README.md", "exec"), names)
    return {"gpt2-onnx": names["vectors"]}


def load_model(name: str, **options: Any) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(name, device="cpu", **options)


ROLES = {
    "publish": publish,
    "with the package": load_with_package,
    "with trusted code": load_trusted_code,
    "as a graph": run_graph,
}


def play_role(job: Job) -> dict[str, Any]:
    return ROLES[job["role"]](job)


if __name__ == "__main__":
    answer_job(play_role)
