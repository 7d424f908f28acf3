"""Verify a saved or exported model: its golden vectors again, and the code that it carries."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from sentence_transformers.util import load_file_path

from ..bases import HUB
from ..modules import RepeatTransformer
from ..modules.extensions import extensions
from ..modules.version import __version__
from ..safety import Repository, load
from .digests import files_of
from .golden import FILE, Report, compare, read_golden, with_digests

CODE = "st_reba.py"
_VERSION = re.compile(r'""".*\bst_reba (\S+), ')


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
    place = {name: hub[name] for name in HUB if name in hub}
    repository = Repository(folder, place)
    repository.check_files()
    file = repository.find(FILE)
    if file is None:
        raise FileNotFoundError(f"{folder!r} holds no {FILE}. st-reba build and st_reba.hub.save write one.")
    stored = read_golden(file)
    if stored.get("graph") is not None:
        from ..onnx import verify_graph

        report = verify_graph(folder, stored, device=device, dtype=dtype, hub=hub)
        return _compare_files(report, stored, folder, place)
    dtype = dtype or stored["made"]["dtype"]
    model = load(folder, device=device, dtype=dtype, trust_remote_code=trust_remote_code, **hub)
    report = replace(compare(model, stored), **_code(model, load_file_path(folder, CODE, **place)))
    return _compare_files(report, stored, folder, place)


def _compare_files(report: Report, stored: dict[str, Any], folder: str, place: dict[str, Any]) -> Report:
    """Add to the report what differs in the files; those of a repository on the Hub are in its snapshot's folder."""
    if not os.path.isdir(folder):
        for name in files_of(stored.get("digests", {})):
            load_file_path(folder, name, **place)  # loading the model may not have asked for all
    return with_digests(report, stored, Path(str(load_file_path(folder, FILE, **place))).parent)


def _code(model: Any, file: str | None) -> dict[str, Any]:
    """Compare the repository's code with what the installed package writes: ``code`` and ``foreign`` of the report."""
    if not isinstance(model[0], RepeatTransformer):
        return {}
    if file is None:
        return {"code": f"there is no {CODE}, so only readers with st_reba can load the model", "foreign": True}
    # As written, whatever a checkout made of the line ends.
    text = Path(file).read_bytes().replace(b"\r\n", b"\n").decode("utf-8", "replace")
    if text == extensions.code_of(model):
        return {}
    found = _VERSION.match(text)
    if found and found[1] != __version__:
        return {"code": f"{CODE} is of st_reba {found[1]}, and was not compared with {__version__}", "foreign": True}
    return {"code": f"{CODE} is not what st_reba {__version__} writes. Do not trust it before you have read it"}
