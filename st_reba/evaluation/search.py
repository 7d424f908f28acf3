"""Find which stages go best together on a base model, or which of NoSink's layer settings does, by labelled items."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..files import whole_file
from ..modules import LayerPlan
from ..modules.options import unknown
from ..optional import required
from .choice import Choice, Chosen
from .data import Task, read_task
from .halving import Compose, Halving
from .heldout import Found, Parts, Row, parts_of, score_heldout
from .ledger import Ledger
from .methods import Base, Method
from .results import package_versions
from .rungs import Say, Search
from .search_report import Report, write_report
from .space import write_space

SPACE_FILE, HELDOUT = "space.yaml", "heldout"
Source = Task | str | os.PathLike[str]
# What each preset takes, and how it searches.
PRESETS: Mapping[str, tuple[type[Compose] | type[Choice], type[Search]]] = {
    Compose.name: (Compose, Halving),
    Choice.name: (Choice, Chosen),
}


def compose(
    base: str | os.PathLike[str] | Base,
    task: Source,
    out: str | os.PathLike[str],
    preset: str = "compose",
    *,
    test: Source | None = None,
    validation: float = 0.5,
    max_seq_length: int | None = None,
    seed: int = 0,
    show_progress_bar: bool | None = None,
    say: Say = print,
    command: str = "",
    **options: Any,
) -> Report:
    """Search how a base model becomes the best embedder for a task, and write the recipe.

    ``"compose"``: templates, repetition, layer plans, layers, poolings and post-filters together, see :class:`Halving`.
    ``"nosink"``: that paper's own choice of k and k0, see :class:`Chosen`. Only the methods that are reported see
    held-out items, at the end. Every finished arm is on disk: the same call goes on where another was stopped.

    Args:
        base: As for :func:`st_reba.build`; or a :class:`Base`, which says too how it is loaded, and where it runs.
        task: The items, or a file for :func:`read_task`.
        out: The folder of the run; docs/how-to/compose.md names its files.
        preset: ``"compose"`` or ``"nosink"``.
        test: Other items, or their file, which report; None: what ``validation`` leaves of the task's own.
        validation: Share of the task's items that choose.
        max_seq_length: Positions of a text, as for ``build``.
        seed: Of the parts, of the draws of arms and items.
        show_progress_bar: Show one a phase; None: on a terminal.
        say: Gets a line for each step, and the report at the end.
        command: What runs it again, for the report.
        **options: Of the preset: ``space``, ``minutes``, ``tokens``, ``speed`` (see :class:`Compose`), or
            ``everything``, ``pooling``, ``m`` (see :class:`Choice`).

    Raises:
        ImportError: The extra ``evaluation`` is not installed.
        FileExistsError: ``out`` holds something else.
        BlockingIOError: Another process is writing there.
        ValueError: ``out`` holds another run (what differs is named), an option does not fit, or nothing can be scored.

    Source:
        The stages: ReBA, Echo, NoSink, All-but-the-Top. NoSink, sections 3.2 to 3.6 and 4.1 (k and k0).

    Example:
        >>> from st_reba.evaluation import make_task
        >>> rows = [(f"text {n}", f"text {n % 7}", n % 5) for n in range(200)]
        >>> small = {"kinds": ["forward"], "pooled": ["mean"]}
        >>> report = compose("mini", make_task("STS", rows), "out", space=small)  # doctest: +SKIP
        >>> report.recipe["pooling"]  # doctest: +SKIP
        'mean'
    """
    settings = _settings(preset, options)
    parts = _parts(preset, task, test, validation, seed)
    how: dict[str, Any] = {"max_seq_length": max_seq_length, "seed": seed, "show_progress_bar": show_progress_bar}
    return run_search(base, parts, out, settings, PRESETS[preset][1], say=say, command=command, **how)


def run_search(
    base: str | os.PathLike[str] | Base,
    parts: Parts,
    out: str | os.PathLike[str],
    settings: Compose | Choice,
    kind: type[Search],
    *,
    settle: Callable[[Found, Sequence[Row]], Found] = lambda found, rows: found,
    max_seq_length: int | None = None,
    seed: int = 0,
    show_progress_bar: bool | None = None,
    say: Say = print,
    command: str = "",
) -> Report:
    """Search with one part of the items, report with the other; arguments and errors as of :func:`compose`.

    Args:
        base: The base.
        parts: The items.
        out: The folder of the run.
        settings: The preset's options.
        kind: The search.
        settle: Makes the last word of what was found, by the held-out scores.
        max_seq_length, seed, show_progress_bar, say, command: As there.
    """
    tagged = ("seqeval.metrics",) if parts.validation.kind == "NER" else ()
    for module in ("matplotlib.figure", "pandas", "scipy.stats", "sklearn.linear_model", *tagged):
        required(module, "evaluation")
    base = base if isinstance(base, Base) else Base(os.fspath(base))
    loading = {} if max_seq_length is None else {"max_seq_length": max_seq_length}
    record = {
        "base": {"name": base.name, **base.identity},
        "task": {"name": parts.task.name, "kind": parts.task.kind, "fingerprint": parts.fingerprint},
        "preset": settings.name,
        "options": {"max_seq_length": max_seq_length, "seed": seed, **settings.record()},
        "versions": package_versions(),
    }
    how: dict[str, Any] = {"seed": seed, "disable": None if show_progress_bar is None else not show_progress_bar}
    with Ledger.opened(out, record) as ledger:
        say(f"Task: {parts}")
        if ledger.results:
            say(f"{ledger.folder}: going on after {len(ledger.results)} arms")
        try:
            found = found_by(kind, ledger, parts, base, loading, settings, say=say, **how)
            say(f"Held-out: {len(found.chosen)} methods")
            rows, apart = score_heldout(found, parts, base, loading, ledger.folder / HELDOUT, **how)
        except KeyboardInterrupt:
            say(f"{ledger.folder}: stopped after {len(ledger.results)} arms; the same command goes on from there")
            raise
        report = Report(base, parts, settle(found, rows), rows, apart, loading, command, ledger.folder)
        write_report(report, ledger.folder / HELDOUT)
    say(str(report))
    return report


def _parts(preset: str, task: Source, test: Source | None, validation: float, seed: int) -> Parts:
    """What chooses and what reports; what cannot be searched with, or is missing, is told before hours of work."""
    named = read_task(task, seed=seed) if isinstance(task, (str, os.PathLike)) else task
    other = read_task(test, named.kind, seed=seed) if isinstance(test, (str, os.PathLike)) else test
    if named.kind == "Retrieval":
        raise ValueError(
            "Retrieval is not searched with: every reading would search all documents. Name the kind Reranking, and "
            "each query's judged documents are ranked."
        )
    if preset == Compose.name and named.kind in ("NER", "WordSense"):
        raise ValueError(f"{named.kind} is not composed: its words have vectors of their own. Use the preset 'nosink'.")
    return parts_of(named, other, validation, seed)


def found_by(
    kind: type[Search],
    ledger: Ledger,
    parts: Parts,
    base: Base,
    loading: Mapping[str, Any],
    settings: Compose | Choice,
    **how: Any,
) -> Found:
    """What a search finds on the unconverted model; ``how`` are further arguments of :class:`Search`.

    That is let go of at the end: what is reported is built anew, and two models may not fit side by side.
    """
    method: dict[str, Any] = {"method": "classical", "pooling": "mean"}
    if isinstance(settings, Choice):
        method |= {"pooling": settings.pooling, "stages": [LayerPlan()]}
    elif settings.space is not None:
        with whole_file(ledger.folder / SPACE_FILE) as stream:
            stream.write(write_space(settings.searched).encode())
    model: Any = Method(method).build(base, **loading)
    # Zeros are found when the vectors are scored: an arm that breaks the model ends alone.
    model[0].zeros = True
    search = kind(ledger, model, parts, settings, **how)
    search.say(f"Base: {base.name}, {search.depth} layers")
    return search.found()


def _settings(preset: str, options: Mapping[str, Any]) -> Compose | Choice:
    """The preset's options; what belongs to another is refused, unless it is at its default."""
    if preset not in PRESETS:
        raise ValueError(unknown("preset", preset, list(PRESETS), preset))
    own = dict(options)
    for name, (kind, _) in PRESETS.items():
        for option, _, default, _ in kind.described():
            if name != preset and own.pop(option, default) != default:
                raise ValueError(
                    f"{option}={options[option]!r:.60} belongs to preset {name!r}. Drop it, or the preset."
                )
    return PRESETS[preset][0].of(own)
