"""Find which stages go best together on a base model: successive halving over a space, a report on other items."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer

from ... import build
from ...bases import weights_dtype
from ...files import whole_file
from ...modules.repeat import RepeatTransformer
from ...optional import required
from ..results import package_versions
from .costs import costs_of
from .halving import Halving
from .heldout import reported, tested
from .reading import Parted, read_parts
from .report import POSTFILTERS, ComposedReport, write_composed
from .results import Results
from .space import Space
from .spacefile import write_space
from .trial import Arm

SPACE_FILE = "space.yaml"
# The share of the base's work that a fast method may take.
SPEED = 0.5


def compose(
    base: str | os.PathLike[str],
    task: Parted | str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    space: Space | None = None,
    minutes: float | None = None,
    tokens: int | None = None,
    speed: float = SPEED,
    dtype: str | torch.dtype | None = None,
    device: str | None = None,
    max_seq_length: int | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    seed: int | None = None,
    show_progress_bar: bool | None = None,
    say: Callable[[str], object] = print,
) -> ComposedReport:
    """Search templates, repetition, layer plans, layers, poolings and post-filters together.

    An arm is an input and a plan; one forward pass of it gives every layer, pooling and filter. All arms run on some of
    the validation items, the best third on three times as many, and the last on all: the best of all, the best of the
    fast, and the best of each single paper's method. Filters are fitted on the validation texts, without their labels.
    Only the methods that are reported see the held-out items. The weights are loaded once for the search, and once for
    each method that is reported. Every finished arm is on disk, so that the same call goes on where another was
    stopped.

    Args:
        base: As for :func:`st_reba.build`.
        task: The items, or a file for :func:`read_parts`.
        out: The folder of the run. When it ends: ``recipe.yaml`` and ``recipe-fast.yaml`` with their post-filters,
            ``report.md``, ``trials.csv`` and ``costs.png``; all along ``trials.jsonl`` and ``run.json``, and
            ``space.yaml`` where the space is not the default.
        space: What is searched; None: the default of :class:`Space`.
        minutes: Draw as many arms as fit into so many minutes of search, by the time that the single papers' methods
            take on the first items. The held-out scores come on top.
        tokens: Draw as many arms as fit into so many forward tokens: positions, padding excluded, that pass all layers
            which are read. Both: whichever is less. Arms of single papers' methods always run, and the best of each is
            kept, also where that alone takes more.
        speed: The share of the unconverted base's work (positions times layers, the text once) that a method may take
            to count as fast.
        dtype: Of the weights, as for ``build``.
        device: Where to run.
        max_seq_length: As for ``build``.
        revision: Hub revision of the base.
        trust_remote_code: Allow the base's own modelling code.
        seed: Of the draws of arms and of items, and of the parts, where ``task`` is a file; None: the parts' own.
        show_progress_bar: Show one a rung; None: on a terminal.
        say: Gets a line for each step, and the report at the end.

    Returns:
        The best composition, the best fast one, and the best of each single paper's method, with held-out scores.

    Raises:
        ImportError: The extra ``evaluation`` is not installed.
        FileExistsError: ``out`` holds something else.
        ValueError: ``out`` holds another run (what differs is named), an option does not fit, or nothing can be scored.

    Source:
        The stages: ReBA, Echo, NoSink, All-but-the-Top; successive halving: Jamieson and Talwalkar (2016).

    Example:
        >>> from st_reba.evaluation import Space
        >>> with open("pairs.csv", "w", encoding="utf-8") as file:
        ...     _ = file.write("text1,text2,score\\n")
        ...     _ = file.writelines(f"text {n},text {n % 7},{n % 5}\\n" for n in range(200))
        >>> small = Space(kinds=(), pooled=("mean",))
        >>> report = compose("mini", "pairs.csv", "composed", space=small, say=lambda line: None)  # doctest: +SKIP
        >>> report.recipe["pooling"]  # doctest: +SKIP
        'mean'
    """
    for name, value in (("minutes", minutes), ("tokens", tokens), ("speed", speed)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0):
            raise ValueError(f"{name}={value!r} must be a number above 0.")
    if isinstance(task, (str, os.PathLike)):
        task = read_parts(task, seed=0 if seed is None else seed)
    if seed is None:
        seed = task.seed
    searched = Space() if space is None else space
    # What is missing is told before hours of work, not after.
    required("matplotlib.figure", "evaluation")
    required("scipy.stats", "evaluation")
    required("sklearn.linear_model", "evaluation")
    loading: dict[str, Any] = {
        "dtype": dtype,
        "device": device,
        "max_seq_length": max_seq_length,
        "revision": revision,
        "trust_remote_code": trust_remote_code,
    }
    about = {
        "base": os.fspath(base),
        "task": {"name": task.name, "kind": task.validation.kind, "fingerprint": task.fingerprint},
        "space": {name: _plain(value) for name, value in asdict(searched).items()},
        "options": {
            "minutes": minutes,
            "tokens": tokens,
            "speed": speed,
            "dtype": str(weights_dtype(dtype, device)),
            "max_seq_length": max_seq_length,
            "revision": revision,
            "seed": seed,
        },
        "versions": package_versions(),
    }
    loaded: list[SentenceTransformer] = []

    def transformer() -> RepeatTransformer:
        if not loaded:
            loaded.append(build(base, "classical", **loading))
        first = loaded[0][0]
        assert isinstance(first, RepeatTransformer)
        return first

    with Results(out, about) as results:
        if searched != Space():
            with whole_file(results.folder / SPACE_FILE) as stream:
                stream.write(write_space(searched).encode())
        say(f"Task: {task.describe()}")
        if results.trials:
            say(f"{results.folder}: going on after {len(results.trials)} arms")
        arms = searched.arms(transformer().depth)
        costs = costs_of(transformer(), arms, task.validation.texts)
        halving = Halving(
            results,
            transformer,
            task.validation,
            searched,
            costs,
            speed=speed,
            seed=seed,
            show_progress_bar=show_progress_bar,
            say=say,
        )
        try:
            budget = _budget(halving, results, arms, minutes, tokens)
            drawn = arms if budget is None else halving.drawn(arms, budget)
            say(f"Base: {os.fspath(base)}, {costs.depth} layers; {len(drawn)} of {len(arms)} arms")
            made = halving.run(drawn, budget)
            chosen = reported(made, costs, speed)
            say(f"Held-out: {len(chosen)} methods")
            # What is reported is built anew, and two models may not fit side by side.
            loaded.clear()
            files = {name: results.folder / file for name, file in POSTFILTERS.items()}
            rows = tested(
                chosen, task, base, loading, costs, seed=seed, files=files, show_progress_bar=show_progress_bar
            )
        except KeyboardInterrupt:
            say(f"{results.folder}: stopped after {len(results.trials)} arms; the same command goes on from there")
            raise
        report = ComposedReport(
            base=os.fspath(base),
            task=task.describe(),
            metric=task.validation.metric,
            layers=costs.depth,
            arms=len(drawn),
            tokens=sum(result.tokens for result in made),
            seconds=round(sum(result.seconds for result in made), 1),
            rows=tuple(rows),
            results=tuple(made),
            costs=costs,
            options={
                name: value
                for name, value in loading.items()
                if name in ("max_seq_length", "revision") and value is not None
            },
            command=_command(
                [os.fspath(base), *task.arguments[:1], os.fspath(out), "--compose", *task.arguments[1:]],
                minutes=minutes,
                tokens=tokens,
                speed=speed if speed != SPEED else None,
                space=results.folder / SPACE_FILE if searched != Space() else None,
                dtype=None if dtype is None else str(dtype).removeprefix("torch."),
                max_seq_length=max_seq_length,
                revision=revision,
                trust_remote_code=trust_remote_code,
            )
            # Parts and search have one seed on the command line.
            if task.arguments and seed == task.seed
            else "",
            folder=Path(out),
        )
    write_composed(report)
    say(str(report))
    return report


def _budget(
    halving: Halving, results: Results, arms: list[Arm], minutes: float | None, tokens: float | None
) -> float | None:
    """Positions that the search may run; None: any number."""
    if minutes is None:
        return tokens
    if "tokens_a_second" not in results.found:
        # Measured once: a run that goes on draws the same arms.
        results.find(tokens_a_second=round(halving.rate(arms), 3))
    within = 60 * minutes * float(results.found["tokens_a_second"])
    return within if tokens is None else min(within, tokens)


def _command(words: list[str], **options: Any) -> str:
    """What runs it all again."""
    command = ["st-reba", "tune", *words]
    for name, value in options.items():
        if value is not None and value is not False:
            text = f"{value:.10g}" if isinstance(value, float) else str(value)
            command += [f"--{name.replace('_', '-')}"] + ([] if value is True else [text])
    return shlex.join(command)


def _plain(value: Any) -> Any:
    """As JSON gives it back."""
    if isinstance(value, (tuple, list)):
        return [_plain(each) for each in value]
    return {name: _plain(each) for name, each in value.items()} if isinstance(value, dict) else value
