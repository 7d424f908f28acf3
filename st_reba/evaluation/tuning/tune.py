"""Find NoSink's k, then its k0, on a labelled file, as the paper chooses them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer

from ... import build
from ...bases import weights_dtype
from ...modules import LayerPlan
from ...optional import required
from ...version import __version__
from ..reading import read_task
from ..tasks import Task
from .report import Report, recipe_of, write_report
from .search import Search
from .trials import Ledger, best

# Versions that can move a score by more than rounding.
_PACKAGES = ("sentence-transformers", "transformers", "torch", "numpy", "scipy", "scikit-learn")


def tune(
    base: str | os.PathLike[str],
    task: Task | str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    everything: bool = False,
    pooling: str | None = "mean",
    m: int = 1,
    dtype: str | torch.dtype | None = None,
    device: str | None = None,
    batch_size: int = 64,
    max_seq_length: int | None = None,
    prompt: str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    seed: int = 0,
    show_progress_bar: bool | None = None,
    say: Callable[[str], object] = print,
) -> Report:
    """Convert a base model in many ways, score each, and choose by the validation part of a task.

    In turn: INPLACE-BIDIR for k = 0 … L, whose best k is k_b; MASK0-BIDIR for k = 1 … L, whose best k is k_m;
    MASK0&BIDIR with k = k_b and k0 = k_m (LAST) or half of k_m (MID). Among equals the smaller k is chosen. The weights
    are loaded once. Every finished trial is on disk, so that the same call goes on where another was stopped.

    Args:
        base: As for :func:`st_reba.build`.
        task: A task, or a file for :func:`read_task`.
        out: The folder of the run. When it ends: ``recipe.yaml`` (keyword arguments of ``build``, the chosen model),
            ``trials.md``, ``trials.csv`` and ``tune.png``; all along ``trials.jsonl`` and ``run.json``.
        everything: Run the grids of the paper's figures 2, 4 and 6 too, and choose among all.
        pooling: ``"mean"``, ``"last"`` or ``"cls"``; None: the own one of a sentence-transformers model.
        m: Sink tokens that nosink layers hide.
        dtype: Of the weights, as for ``build``.
        device: Where to run.
        batch_size: Texts a forward pass.
        max_seq_length: As for ``build``.
        prompt: In front of every text, and not pooled; the recipe does not hold it.
        revision: Hub revision of the base.
        trust_remote_code: Allow the base's own modelling code.
        seed: Of the parts, where ``task`` is a file.
        show_progress_bar: Show one a phase; None: on a terminal.
        say: Gets a line for each step, and the report at the end.

    Returns:
        All trials, the chosen one, and the recipe.

    Raises:
        ImportError: The extra ``evaluation`` is not installed.
        FileExistsError: ``out`` holds something else.
        ValueError: ``out`` holds another run (what differs is named), an option does not fit, or the unconverted model
            cannot be scored.

    Source:
        NoSink, sections 3.2 to 3.6 and 4.1 (k and k0 by the validation set).

    Example:
        >>> with open("pairs.csv", "w", encoding="utf-8") as file:
        ...     _ = file.write("text1,text2,score\\n")
        ...     _ = file.writelines(f"text {n},text {n % 7},{n % 5}\\n" for n in range(40))
        >>> report = tune("mini", "pairs.csv", "tuned", say=lambda line: None)  # doctest: +SKIP
        >>> report.recipe["setting"]  # doctest: +SKIP
        'inplace-bidir'
    """
    labelled: Task = read_task(task, seed=seed) if isinstance(task, (str, os.PathLike)) else task
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"batch_size={batch_size!r} must be a whole number from 1 on.")
    if isinstance(m, bool) or not isinstance(m, int) or m < 1:
        raise ValueError(f"m={m!r} must be a whole number from 1 on.")
    # What is missing is told before hours of work, not after.
    required("matplotlib.figure", "evaluation")
    packages: tuple[str, ...] = _PACKAGES
    if labelled.kind == "tags":
        required("seqeval.metrics", "evaluation")
        packages += ("seqeval",)
    options = {
        "pooling": pooling,
        "m": m,
        "dtype": str(weights_dtype(dtype, device)),
        "max_seq_length": max_seq_length,
        "prompt": prompt,
        "revision": revision,
    }
    about = {
        "base": os.fspath(base),
        "task": {name: getattr(labelled, name) for name in ("name", "kind", "metric", "fingerprint")},
        "options": options,
        "versions": {"st-reba": __version__, **{package: _version(package) for package in packages}},
    }
    given = {"pooling": pooling, "max_seq_length": max_seq_length, "revision": revision}
    kept: dict[str, Any] = {name: value for name, value in given.items() if value is not None}

    def load() -> SentenceTransformer:
        model = build(
            base,
            "nosink",
            stages=[LayerPlan()],
            dtype=dtype,
            device=device,
            trust_remote_code=trust_remote_code,
            **kept,
        )
        # Zeros are found when the vectors are scored: a conversion that breaks the model ends its trial, not the run.
        transformer: Any = model[0]
        transformer.zeros = True
        return model

    with Ledger(out, about) as ledger:
        say(f"Task: {labelled.describe()}")
        if ledger.trials:
            say(f"{ledger.folder}: going on after {len(ledger.trials)} trials")
        search = Search(
            ledger,
            load,
            labelled,
            pooling=pooling or "",
            m=m,
            batch_size=batch_size,
            prompt=prompt,
            show_progress_bar=show_progress_bar,
            say=say,
        )
        try:
            say(f"Base: {os.fspath(base)}, {search.depth} layers")
            search.choose()
            if everything:
                search.grids()
        except KeyboardInterrupt:
            say(f"{ledger.folder}: stopped after {len(ledger.trials)} trials; the same command goes on from there")
            raise
    trials = tuple(search.made.values())
    chosen = best(trials)
    assert chosen is not None
    report = Report(
        base=os.fspath(base),
        task=labelled.describe(),
        metric=labelled.metric,
        layers=search.depth,
        trials=trials,
        skipped=tuple(search.skipped),
        recipe={
            "base": os.fspath(base),
            "method": "nosink",
            **recipe_of(chosen),
            **kept,
        },
        command=_command(
            [os.fspath(base), *labelled.arguments[:1], os.fspath(out), *labelled.arguments[1:]]
            if labelled.arguments
            else [],
            everything=everything,
            pooling=pooling if pooling != "mean" else None,
            m=m if m != 1 else None,
            dtype=None if dtype is None else str(dtype).removeprefix("torch."),
            max_seq_length=max_seq_length,
            prompt=prompt,
            revision=revision,
            trust_remote_code=trust_remote_code,
        ),
        folder=Path(out),
    )
    write_report(report)
    say(str(report))
    return report


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _command(words: Sequence[str], **options: object) -> str:
    """What runs it again; nothing for a task that no file holds."""
    command = list(words)
    for name, value in options.items():
        if command and value is not None and value is not False:
            command += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
    return shlex.join(["st-reba", "tune", *command]) if command else ""
