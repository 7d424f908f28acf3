"""Golden vectors computed again in a fresh process, as a stranger's machine would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from .contents import EXPORTED, GOLDEN, MODEL, kind_of
from .golden_file import read_golden


def check_vectors(folder: Path, *, offline: bool = False) -> None:
    """Compute the golden vectors again in a fresh process, as a stranger's machine would.

    Args:
        folder: The saved model.
        offline: Let that process ask no server; the base of a model without weights is then taken from the cache.

    Raises:
        ValueError: A vector differs, the model does not load, or golden.json is not that of what is published.
    """
    here = kind_of(lambda name: (folder / name).is_file()) or MODEL
    there = MODEL if read_golden(folder / GOLDEN).get("graph") is None else EXPORTED
    if here is not there:
        # A graph beside a model would vouch for weights that nobody has run.
        raise ValueError(
            f"FOLDER={str(folder)!r} holds {here.name}, but its golden.json is of {there.name}, so it is not "
            "published: write the folder again"
        )
    # The package that runs now, wherever it lies, and not whatever the new process would find.
    package = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "st_reba.cli", "verify", str(folder), "--json"]
    variables = {**os.environ, "PYTHONPATH": path, **({"HF_HUB_OFFLINE": "1"} if offline else {})}
    run = subprocess.run(command, env=variables, capture_output=True, text=True)
    if run.returncode == 0:
        return
    try:
        texts = json.loads(run.stdout)["texts"]
        wrong = [each for each in texts if not each["ok"]]
        reason = f"{len(wrong)} of {len(texts)} texts differ, the first by {wrong[0]['difference']:.1e} of its scale"
    except (ValueError, LookupError, TypeError):
        reason = " ".join(run.stderr.split("\n")[-4:]).strip()
    raise ValueError(
        f"FOLDER={str(folder)!r} does not give its golden vectors, so it is not published (more: st-reba verify "
        f"{folder}): {reason}"
    )
