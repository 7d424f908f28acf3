"""Verify a saved or exported model: recompute its golden vectors, and check its code."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer

from ..bases import choose_hub_options
from ..modules import RepeatTransformer
from ..modules.extensions import extensions
from ..modules.version import __version__
from ..near_names import describe_failure
from ..safety import Repository, load
from .digests import WEIGHTS_SUFFIX, describe_damage
from .golden import GOLDEN_FILE, Report, compare, read_golden
from .graph_runner import verify_graph

CODE = "st_reba.py"
PACKAGE_CODE = f"the installed st_reba {__version__}, and none of the repository's {CODE}"
_VERSION = re.compile(r'""".*\bst_reba (\S+), ')


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
    hub.update(choose_hub_options(source, hub))
    repository = Repository(source, hub)
    repository.check_files()
    golden_path = repository.find(GOLDEN_FILE)
    if golden_path is None:
        lacking = f"It holds no {GOLDEN_FILE}. st-reba build and st_reba.hub.save write one."
        reason = describe_failure(source, lacking)
        raise FileNotFoundError(f"{source!r} could not be verified: {reason}")
    stored = read_golden(golden_path)
    text_count = len(stored["texts"]) + len(stored.get("searches", ()))
    announce = report_step or (lambda step: None)
    failure: ValueError | None = None
    if stored.get("graph") is not None:
        announce(f"Running the graph of {source} on {text_count} texts")
        report = verify_graph(source, stored, device=device, dtype=dtype, hub=hub)
    else:
        dtype = dtype or stored["made"]["dtype"]
        announce(f"Loading {source} in {str(dtype).removeprefix('torch.')}")
        model = load(source, device=device, dtype=dtype, trust_remote_code=trust_remote_code, **hub)
        announce(f"Encoding {text_count} texts")
        try:
            report = compare(model, stored)
        except ValueError as error:
            failure = error
            report = Report(math.inf, stored["tolerance"], {}, {})
        if isinstance(model[0], RepeatTransformer):
            code, foreign = _compare_code(model, repository.find(CODE))
            report = replace(report, ran=PACKAGE_CODE, code=code, foreign=foreign)
    damage: list[str] | None = None
    if stored.get("digests"):
        announce("Comparing weights, tokenizer and settings with what was saved")
        damage = describe_damage(stored["digests"], repository)
    if failure is not None and not any(WEIGHTS_SUFFIX in line for line in damage or ()):
        raise failure
    return replace(report, damage=damage)


def _compare_code(model: SentenceTransformer, path: str | None) -> tuple[str | None, bool]:
    """How a repository's code differs from what the installed package writes, and whether it is of another version."""
    if path is None:
        return f"There is no {CODE}: only readers with st_reba can load the model", True
    # As it was written, whatever a checkout did to the line ends.
    repository_code = Path(path).read_bytes().replace(b"\r\n", b"\n").decode("utf-8", "replace")
    package_code = extensions.code_of(model)
    if repository_code == package_code:
        return None, False
    stated_version = _VERSION.match(repository_code)
    if stated_version is not None and stated_version[1] != __version__:
        problem = (
            f"Read {CODE} before you let it run: it says that it is of st_reba {stated_version[1]}, "
            f"so it was not compared with the installed {__version__}"
        )
        return problem, True
    problem = (
        f"Do not trust {CODE} before you have read it: it is not what st_reba {__version__} writes. "
        f"{_first_difference(repository_code, package_code)}"
    )
    return problem, False


def _first_difference(repository_code: str, package_code: str) -> str:
    """The first line that differs, as both sides have it."""
    line_number = 1
    line_pairs = zip_longest(repository_code.split("\n"), package_code.split("\n"))
    for line, package_line in line_pairs:
        if line != package_line:
            break
        line_number += 1
    difference = f"{_quoted_line(line)} in place of {_quoted_line(package_line)}"
    return f"The first line that differs is {line_number}: {difference}"


def _quoted_line(line: str | None) -> str:
    if line is None:
        return "the end"
    return json.dumps(line[:80], ensure_ascii=False)
