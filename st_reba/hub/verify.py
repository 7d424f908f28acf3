"""Verify a saved or exported model: its golden vectors again, and the code that it carries."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from sentence_transformers.util import load_file_path

from ..modules.layout import PARTS
from ..safety import load
from ..version import __version__
from .golden import FILE, Report, compare, read_golden

CODE = "st_reba.py"
_VERSION = re.compile(r'""".*\bst_reba (\S+), ')
_SCRIPT = (
    "import json, sys; from st_reba.hub import verify; "
    "print(json.dumps(verify(sys.argv[1], trust_remote_code=sys.argv[2] == 'True').to_dict()))"
)


def verify(
    path: str | os.PathLike[str],
    *,
    device: str | None = None,
    dtype: str | torch.dtype | None = None,
    trust_remote_code: bool = False,
    **hub: Any,
) -> Report:
    """Compare a model's vectors with those that it gave when it was saved, and its code with the installed package's.

    Args:
        path: Folder or Hub id of a saved or exported model.
        device: Where to run; an exported model's graph runs on a CPU.
        dtype: Of the weights; None: as when the vectors were made.
        trust_remote_code: Run code from the repository, as the base may need.
        **hub: ``token``, ``cache_folder``, ``revision`` and ``local_files_only``, as ``SentenceTransformer`` has them.

    Returns:
        The distance of the vectors, and what has changed since.

    Raises:
        FileNotFoundError: There is no golden.json.
        ValueError: It is damaged, or the model cannot be loaded.

    Example:
        >>> import st_reba
        >>> from st_reba import hub
        >>> hub.save(st_reba.build("mini"), "my_model")
        >>> hub.verify("my_model").ok
        True
    """
    folder = os.fspath(path)
    file = _file(folder, FILE, hub)
    if file is None:
        raise FileNotFoundError(f"{folder!r} holds no {FILE}. st-reba build and st_reba.hub.save write one.")
    stored = read_golden(file)
    if stored.get("graph") is not None:
        from ..onnx import verify_graph

        return verify_graph(folder, stored, device=device, dtype=dtype, hub=hub)
    dtype = dtype or stored["made"]["dtype"]
    model = load(folder, device=device, dtype=dtype, trust_remote_code=trust_remote_code, **hub)
    return replace(compare(model, stored), **_code(model, folder, hub))


def verify_fresh(folder: str | os.PathLike[str], *, trust_remote_code: bool = False) -> str:
    """Verify a folder in a process of its own, so that nothing of this one can help.

    Returns:
        What was compared, in a sentence.

    Raises:
        ValueError: It does not hold.
    """
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-c", _SCRIPT, os.path.abspath(folder), str(trust_remote_code)]
    run = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    try:
        found = json.loads(run.stdout.splitlines()[-1])
        reason = found["code"] or f"its vectors are off by {found['distance']:.1e}, of {found['tolerance']:.1e} allowed"
        right = found["ok"] and found["code"] is None
    except (ValueError, LookupError, TypeError):
        reason, right = " ".join(run.stderr.strip().splitlines()[-1:]), False
    if not right:
        raise ValueError(f"{str(folder)!r} is not what it was when it was saved: {reason}. Save the model again.")
    code = (
        f"{found['graph']} was run by onnxruntime" if found["graph"] else f"the code is that of st_reba {__version__}"
    )
    distance = f"{found['distance']:.1e} from the stored ones ({found['tolerance']:.1e} allowed)"
    return f"The vectors of {len(found['texts'])} texts are {distance}; {code}."


def _code(model: Any, folder: str, hub: Mapping[str, Any]) -> dict[str, Any]:
    """Compare the repository's code with what the installed package writes: ``code`` and ``foreign`` of the report."""
    first = model[0]
    if not hasattr(first, "base_model"):
        return {}
    file = _file(folder, CODE, hub)
    if file is None:
        return {"code": f"there is no {CODE}, so only readers with st_reba can load the model", "foreign": True}
    # As written, whatever a checkout made of the line ends.
    text = Path(file).read_bytes().replace(b"\r\n", b"\n").decode("utf-8", "replace")
    if text == PARTS["code"](first, {type(module).__name__ for module in model}):
        return {}
    found = _VERSION.match(text)
    if found and found[1] != __version__:
        return {"code": f"{CODE} is of st_reba {found[1]}, and was not compared with {__version__}", "foreign": True}
    return {"code": f"{CODE} is not what st_reba {__version__} writes. Do not trust it before you have read it"}


def _file(path: str, name: str, hub: Mapping[str, Any]) -> str | None:
    places = ("token", "cache_folder", "revision", "local_files_only")
    return load_file_path(path, name, **{place: hub[place] for place in places if place in hub})
