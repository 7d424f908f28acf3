"""Compare a saved or an exported model with its golden vectors, here or in a process of its own."""

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
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import load_file_path

from ..modules.vendoring import NAME, carried, code
from ..persistence import load
from ..version import __version__
from .golden import Report, compare, find_golden, read_golden

_VERSION = re.compile(r"# st_reba (\d[\w.+-]{0,40})\s")
# What another process runs; its last line is the report.
_SCRIPT = (
    "import json, sys; from st_reba.hub.verify import verify; "
    "print(json.dumps(verify(sys.argv[1], device=sys.argv[2] or None).to_dict()))"
)


def verify(
    model: SentenceTransformer | str | os.PathLike[str],
    golden: str | os.PathLike[str] | None = None,
    *,
    device: str | None = None,
    dtype: str | torch.dtype | None = None,
    trust_remote_code: bool = False,
    **hub: Any,
) -> Report:
    """Compare a model's vectors with those that it gave when it was saved.

    Args:
        model: A saved or exported model's folder or Hub id, or a loaded model.
        golden: A file like golden.json, or the folder that holds one; needed for a loaded model, else the model's own.
        device: Where to run; an exported model's graph runs on a CPU.
        dtype: Of the weights; None: as they were when the vectors were made. A graph has its own.
        trust_remote_code: Allow code from the repository.
        **hub: ``token``, ``cache_folder``, ``revision`` and ``local_files_only``, as ``SentenceTransformer`` has them.

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
    if isinstance(model, SentenceTransformer):
        if golden is None:
            raise ValueError("golden=None: name the golden.json that a loaded model is to be compared with.")
        return compare(model, read_golden(find_golden(os.fspath(golden), {})))
    path = os.fspath(model)
    stored = read_golden(find_golden(path, hub) if golden is None else find_golden(os.fspath(golden), {}))
    if stored.get("graph") is not None:
        from .onnx import verify_graph

        return verify_graph(path, stored, device=device, dtype=dtype, hub=hub)
    loaded = load(path, device=device, dtype=dtype or stored["dtype"], trust_remote_code=trust_remote_code, **hub)
    return replace(compare(loaded, stored), code=code_state(path, **hub))


def code_state(path: str, **hub: Any) -> str | None:
    """How the code that a repository carries differs from the installed package's; None: it does not.

    It runs only for readers who have no st_reba and trust the repository's code. Arguments as for :func:`verify`.
    """
    main = _read(path, f"{NAME}.py", hub)
    if main is None:
        return "none in the repository; readers need st_reba installed"
    text = main.decode("utf-8", "replace")
    try:
        # As the repository itself says: which classes it has, and which files.
        classes, files = carried(text)
        wanted = code(*classes, files=files)
    except (ImportError, AttributeError, OSError):
        wanted = {f"{NAME}.py": b""}
    wrong = {name for name, content in wanted.items() if _read(path, name, hub) != content}
    if os.path.isdir(path):
        wrong |= {file.name for file in Path(path).glob(f"{NAME}*.py")} - set(wanted)
    if not wrong:
        return None
    version = _VERSION.match(text)
    says = f"says it is of st_reba {version[1]}" if version else "names no version"
    listed = ", ".join(sorted(wrong)[:4]) + (f" and {len(wrong) - 4} more" if len(wrong) > 4 else "")
    return f"differs from st_reba {__version__} ({says}): {listed}"


def verify_fresh(folder: Path, *, device: str | None = None) -> None:
    """Compute a folder's golden vectors again in another process, so that nothing of this one can help.

    Raises:
        ValueError: A vector differs, or the model does not load.
    """
    # The package that runs now, and not whatever the new process would find.
    package = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-c", _SCRIPT, str(folder), device or ""]
    run = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    try:
        told = json.loads(run.stdout.splitlines()[-1])
        texts, rounded = told["texts"], told["rounded"]
    except (ValueError, LookupError, TypeError):
        reason = " ".join(run.stderr.split("\n")[-4:]).strip()
    else:
        if told["ok"]:
            return
        wrong = [each for each in texts if not each["ok"]]
        if wrong:
            reason = (
                f"{len(wrong)} of {len(texts)} texts differ, the first by {wrong[0]['difference']:.1e} of its scale"
            )
        else:
            reason = f"{rounded['graph']} gives cosines of min {rounded['min']}, mean {rounded['mean']} only"
    raise ValueError(
        f"FOLDER={str(folder)!r} does not give its golden vectors, so it is not published (more: st-reba verify "
        f"{folder}): {reason}"
    )


def _read(path: str, name: str, hub: Mapping[str, Any]) -> bytes | None:
    file = load_file_path(path, name, **hub)
    # As written, whatever a checkout made of the line ends.
    return None if file is None else Path(file).read_bytes().replace(b"\r\n", b"\n")
