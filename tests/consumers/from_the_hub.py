"""Who publishes models, and who reads them by name: each a process of its own.

    python from_the_hub.py ROLE JOB

JOB is a JSON file: ``models`` (for each name its base and what ``build`` is given), ``texts``, ``folder`` (for what is
kept between roles) and ``result`` (the file to write: for each name, vectors). HF_ENDPOINT says where the Hub is.
"""

from __future__ import annotations

import json
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from reader import keep_from_the_network


def publish(job: dict[str, Any]) -> dict[str, Any]:
    """Build, encode, save, export and push; vectors are those of the model that was never saved."""
    import logging

    import st_reba
    from st_reba.hub import push, save
    from st_reba.onnx import export

    # The tracer writes of every operator.
    logging.getLogger("torch.__trace").propagate = False
    result = {}
    for name, (base, options) in job["models"].items():
        model = st_reba.build(base, dtype="float32", device="cpu", **options)
        vectors = model.encode(job["texts"]).tolist()
        place = Path(job["folder"]) / "saved" / name
        save(model, place / "torch")
        export(model, place / "onnx")
        commits = {
            kind: push(place / kind, f"org/{name}{end}", say=lambda line: None).commit
            for kind, end in (("torch", ""), ("onnx", "-onnx"))
        }
        result[name] = {"vectors": vectors, "commits": commits}
    return result


def carried() -> bool:
    """Whether the code that ran is the copy in a repository."""
    return any(name.startswith("transformers_modules.") and name.endswith("st_reba") for name in sys.modules)


def plugin(job: dict[str, Any]) -> dict[str, Any]:
    """The package is installed, and no code of the repository is trusted."""
    import_module("st_reba")
    from sentence_transformers import SentenceTransformer

    result = {}
    for name in job["models"]:
        model = SentenceTransformer(f"org/{name}", device="cpu")
        result[name] = model.encode(job["texts"]).tolist()
    assert not carried()
    return result


def flag(job: dict[str, Any]) -> dict[str, Any]:
    """The package is not there, and the repository's code is trusted; each model is saved again the plain way."""
    sys.modules["st_reba"] = None  # type: ignore[assignment]
    from sentence_transformers import SentenceTransformer

    result = {}
    for name in job["models"]:
        model = SentenceTransformer(f"org/{name}", device="cpu", trust_remote_code=True)
        result[name] = model.encode(job["texts"]).tolist()
        model.save_pretrained(str(Path(job["folder"]) / "again" / name))
    assert carried()
    return result


def again(job: dict[str, Any]) -> dict[str, Any]:
    """What :func:`flag` saved, without the package and without the Hub."""
    sys.modules["st_reba"] = None  # type: ignore[assignment]
    from sentence_transformers import SentenceTransformer

    result = {}
    for name in job["models"]:
        folder = str(Path(job["folder"]) / "again" / name)
        result[name] = SentenceTransformer(folder, device="cpu", trust_remote_code=True).encode(job["texts"]).tolist()
    return result


def graph(job: dict[str, Any]) -> dict[str, Any]:
    """The published card's own example, on these texts, where there is no torch."""
    for package in ("torch", "transformers", "sentence_transformers", "st_reba"):
        sys.modules[package] = None  # type: ignore[assignment]
    from huggingface_hub import hf_hub_download

    result = {}
    for name in job["models"]:
        card = Path(hf_hub_download(f"org/{name}-onnx", "README.md")).read_text(encoding="utf-8")
        (block,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
        block, count = re.subn(r"^texts = .*$", f"texts = {job['texts']!r}", block, flags=re.MULTILINE)
        assert count == 1 and f'snapshot_download("org/{name}-onnx"' in block, card
        names: dict[str, Any] = {}
        exec(compile(block, "README.md", "exec"), names)
        result[name] = names["vectors"].tolist()
    return result


def langchain(job: dict[str, Any]) -> dict[str, Any]:
    """LangChain, at the commit that was read and is trusted."""
    sys.modules["st_reba"] = None  # type: ignore[assignment]
    from langchain_huggingface import HuggingFaceEmbeddings

    result = {}
    for name in job["models"]:
        embeddings = HuggingFaceEmbeddings(
            model_name=f"org/{name}",
            model_kwargs={"trust_remote_code": True, "revision": job["commits"][name], "device": "cpu"},
        )
        result[name] = embeddings.embed_documents(job["texts"])
        asked = embeddings.embed_query(job["texts"][0])
        assert max(abs(x - y) for x, y in zip(asked, result[name][0], strict=True)) < 1e-6
    return result


ROLES = {role.__name__: role for role in (publish, plugin, flag, again, graph, langchain)}


def main(role: str, job: dict[str, Any]) -> None:
    asked = keep_from_the_network()
    told = ROLES[role](job)
    Path(job["result"]).write_text(json.dumps({"told": told, "asked": asked}), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], json.loads(Path(sys.argv[2]).read_text(encoding="utf-8")))
