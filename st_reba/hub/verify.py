"""Hold a saved or an exported model against its golden vectors."""

from __future__ import annotations

import os
from dataclasses import replace

import torch
from sentence_transformers import SentenceTransformer

from ..persistence import load
from .code_state import code_of
from .golden import Report, compare
from .golden_file import find_golden, read_golden


def verify(
    model: SentenceTransformer | str | os.PathLike[str],
    golden: str | os.PathLike[str] | None = None,
    *,
    device: str | None = None,
    dtype: str | torch.dtype | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    token: bool | str | None = None,
    cache_folder: str | None = None,
    local_files_only: bool = False,
) -> Report:
    """Hold a model against the vectors that it gave when it was saved.

    Args:
        model: A saved or exported model's folder or Hub id, or a loaded model.
        golden: A file like golden.json, or the folder that holds one; needed for a loaded model, else the model's own.
        device: Where to run; an exported model's graph runs on a CPU.
        dtype: Of the weights; None: as they were when the vectors were made. A graph has its own.
        revision: Hub revision.
        trust_remote_code: Allow code from the repository.
        token: Hub token.
        cache_folder: Where downloads are kept.
        local_files_only: Download nothing.

    Returns:
        The result of each text, and what has changed since.

    Raises:
        FileNotFoundError: There is no golden.json.
        ImportError: An exported model's graph needs onnxruntime.
        ValueError: It is not what :func:`st_reba.hub.golden.write_golden` writes, or is of a newer format.

    Example:
        >>> import st_reba, tempfile
        >>> from st_reba.hub.saving import save
        >>> from st_reba.hub.verify import verify
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(st_reba.build("mini"), folder)
        ...     verify(folder).ok
        True
    """
    hub = {"revision": revision, "token": token, "cache_folder": cache_folder, "local_files_only": local_files_only}
    if isinstance(model, SentenceTransformer):
        if golden is None:
            raise ValueError("golden=None: name the golden.json that a loaded model is to be held against.")
        file = find_golden(os.fspath(golden), {})
        stored = read_golden(file)
    else:
        path = os.fspath(model)
        stored = read_golden(find_golden(path, hub) if golden is None else find_golden(os.fspath(golden), {}))
        if stored.get("graph") is not None:
            from .onnx.vectors import verify_graph

            return verify_graph(path, stored, device=device, dtype=dtype, hub=hub)
        model = load(
            path,
            device=device,
            dtype=dtype or stored["dtype"],
            trust_remote_code=trust_remote_code,
            **hub,
        )
        return replace(compare(model, stored), code=code_of(path, hub))
    return compare(model, stored)
