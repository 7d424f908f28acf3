"""Verify a saved or exported model: its golden vectors again, and the code that it carries."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import load_file_path

from ..bases import HUB
from ..modules import RepeatTransformer
from ..modules.extensions import extensions
from ..modules.version import __version__
from ..safety import Repository, load
from .digests import files_of
from .golden import FILE, Report, compare, read_golden, with_digests
from .graph import verify_graph

CODE = "st_reba.py"
PACKAGE_CODE = f"the installed st_reba {__version__}, and none of the repository's {CODE}"
_VERSION = re.compile(r'""".*\bst_reba (\S+), ')


_COMPARING_FILES = "Comparing weights, tokenizer and settings with what was saved"


class CodeDifference(TypedDict):
    """Fields of a report: how a repository's code differs, and whether it is of another version."""

    code: str | None
    foreign: bool


def verify(
    path: str | os.PathLike[str],
    *,
    device: str | None = None,
    dtype: str | torch.dtype | None = None,
    trust_remote_code: bool = False,
    report_step: Callable[[str], object] | None = None,
    **hub: Any,
) -> Report:
    """Compare a model's vectors with those that it gave when it was saved, and its code with the installed package's.

    Args:
        path: Folder or Hub id of a saved or exported model.
        device: Where to run; an exported model's graph runs on a CPU.
        dtype: Of the weights; None: as when the vectors were made.
        trust_remote_code: Run code from the repository, as the base may need.
        report_step: Called before each step that takes a while, with a sentence about it.
        **hub: ``token``, ``cache_folder``, ``revision`` and ``local_files_only``, as
            ``SentenceTransformer`` has them.

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
    source = os.fspath(path)
    hub_options = {name: hub[name] for name in HUB if name in hub}
    repository = Repository(source, hub_options)
    repository.check_files()
    golden_path = repository.find(FILE)
    if golden_path is None:
        raise FileNotFoundError(
            f"{source!r} holds no {FILE}. st-reba build and st_reba.hub.save write one."
        )
    stored = read_golden(golden_path)
    text_count = len(stored["texts"]) + len(stored.get("searches", ()))
    announce = report_step or _announce_nothing
    if stored.get("graph") is not None:
        announce(f"Running the graph of {source} on {text_count} texts")
        report = verify_graph(source, stored, device=device, dtype=dtype, hub=hub)
        announce(_COMPARING_FILES)
        return _compare_files(report, stored, source, hub_options)
    dtype = dtype or stored["made"]["dtype"]
    announce(f"Loading {source} in {str(dtype).removeprefix('torch.')}")
    model = load(source, device=device, dtype=dtype, trust_remote_code=trust_remote_code, **hub)
    announce(f"Encoding {text_count} texts")
    report = compare(model, stored)
    if isinstance(model[0], RepeatTransformer):
        code_path = load_file_path(source, CODE, **hub_options)
        report = replace(report, ran=PACKAGE_CODE, **_compare_code(model, code_path))
    announce(_COMPARING_FILES)
    return _compare_files(report, stored, source, hub_options)


def _announce_nothing(step: str) -> None:
    """Stands for the caller who did not ask for steps."""


def _compare_files(
    report: Report,
    stored: dict[str, Any],
    source: str,
    hub_options: dict[str, Any],
) -> Report:
    """Add to the report what differs in the files; those of a repository on the Hub are in its snapshot's folder."""
    if not os.path.isdir(source):
        for name in files_of(stored.get("digests", {})):
            load_file_path(
                source, name, **hub_options
            )  # loading the model may not have asked for all
    golden_path = load_file_path(source, FILE, **hub_options)
    return with_digests(report, stored, Path(str(golden_path)).parent)


def _compare_code(model: SentenceTransformer, path: str | None) -> CodeDifference:
    """Compare a repository's code with what the installed package writes for this model."""
    if path is None:
        return {
            "code": f"There is no {CODE}: only readers with st_reba can load the model",
            "foreign": True,
        }
    # As written, whatever a checkout made of the line ends.
    repository_code = Path(path).read_bytes().replace(b"\r\n", b"\n").decode("utf-8", "replace")
    package_code = extensions.code_of(model)
    if repository_code == package_code:
        return {"code": None, "foreign": False}
    stated_version = _VERSION.match(repository_code)
    if stated_version is not None and stated_version[1] != __version__:
        problem = (
            f"Read {CODE} before you let it run: it says that it is of st_reba {stated_version[1]}, "
            f"so it was not compared with the installed {__version__}"
        )
        return {"code": problem, "foreign": True}
    problem = (
        f"Do not trust {CODE} before you have read it: it is not what st_reba {__version__} writes. "
        f"{_first_difference(repository_code, package_code)}"
    )
    return {"code": problem, "foreign": False}


def _first_difference(repository_code: str, package_code: str) -> str:
    """The first line that differs, as both sides have it."""
    repository_lines = repository_code.split("\n")
    package_lines = package_code.split("\n")
    line_number = 1
    for line, package_line in zip(repository_lines, package_lines, strict=False):
        if line != package_line:
            break
        line_number += 1
    line = _quoted_line(repository_lines, line_number)
    package_line = _quoted_line(package_lines, line_number)
    return f"The first line that differs is {line_number}: {line} in place of {package_line}"


def _quoted_line(lines: Sequence[str], line_number: int) -> str:
    if line_number > len(lines):
        return "the end"
    return json.dumps(lines[line_number - 1][:80], ensure_ascii=False)
