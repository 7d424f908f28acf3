"""The best recipe for a base model, from unlabelled texts alone."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, cast

from ..corpus.source import Input
from ..filters import fit_postfilter, postfilter_of
from ..modules.options import unknown
from .data import Task, in_parts, read_task
from .heldout import Parts, parts_of
from .ledger import Ledger
from .methods import Base, Method
from .rungs import Say
from .search import Source, found_by, run_search
from .search_report import Report
from .space import Space
from .trials import NO_FILTER
from .tuning import BUDGETS, Tune, Tuned, settled
from .unlabelled import Unlabelled, unlabelled

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

Like = Literal["pairs", "search", "topics"]
Budget = Literal["speed", "balanced", "quality"]
MODEL = "model"
# Texts that ``build(base, "auto")`` looks at.
AUTO = 300
# Of the texts, these choose; the others report. A filter is fitted on all in the end.
CHOOSE = 2 / 3


# Views of a text share its rare words, and vectors that are whitened in full know little else. By that signal they win
# where labels say that they lose, but in search (docs/results/tune.md).
MILD: tuple[str | Mapping[str, Any], ...] = (
    "center",
    *({"kind": "abtt", "r": r} for r in (1, 2)),
    {"kind": "whiten", "power": 0.5},
)
MIXED = (
    "The texts are in several scripts. One filter is fitted on the same share of each, as views prefer it; by labels "
    "each language by itself was better (docs/results/tune.md). Where languages are not searched together, tune on "
    "each: st-reba tune BASE TEXTS-OF-ONE OUT-OF-ONE."
)
# By use, the filters that may be chosen; None: all of the space.
USES: Mapping[str, tuple[str | Mapping[str, Any], ...] | None] = {"pairs": MILD, "search": None, "topics": MILD}
# Conversions that hide the sink in upper layers alone double the arms.
SPACE = Space(sinks=False)
QUICK = Space(
    templates=(None,),
    kinds=("forward",),
    sinks=False,
    filters=("center", {"kind": "abtt", "r": 1}, {"kind": "whiten", "share": 0.5}, {"kind": "whiten", "power": 0.75}),
)


def tune(
    base: str | os.PathLike[str] | Base,
    texts: Input,
    out: str | os.PathLike[str],
    *,
    like: Like = "pairs",
    budget: Budget = "balanced",
    labels: Source | None = None,
    sample: int = 1000,
    quick: bool = False,
    space: Space | Mapping[str, Any] | None = None,
    minutes: float | None = None,
    text_column: str | None = None,
    max_seq_length: int | None = None,
    seed: int = 0,
    show_progress_bar: bool | None = None,
    say: Say = print,
    command: str = "",
) -> Report:
    """Find which recipe suits a base model and texts, without any label; write it, the model and a report.

    Each text is shown in two views. A recipe is good if the vectors of the two find each other among those of the other
    texts. The search is that of :func:`st_reba.evaluation.compose`; two thirds of the texts choose, and the others
    only tell what the choice is worth. Of recipes that cannot be told from the best the cheapest is chosen. Its filter
    is then fitted on all texts.

    Args:
        base: As for :func:`st_reba.build`; or a :class:`~st_reba.evaluation.Base`, which says too how it is loaded, and
            where it runs.
        texts: A file, a folder, a table or texts, as for an index; each text counts once.
        out: The folder of the run: ``recipe.yaml``, ``model``, ``report.md``, ``costs.png``. The same call goes on
            where it was stopped.
        like: What the vectors are for: ``"pairs"`` (which sentences mean the same), ``"search"``, ``"topics"``.
        budget: What a method may cost, as a multiple of one pass of the text through the base: ``"speed"`` 0.5,
            ``"balanced"`` 1, ``"quality"`` anything. The report has all three, and a recipe for each.
        labels: Labelled items, or their file for ``read_task``, that choose in place of views. The texts still fit the
            filter.
        sample: Draw so many of the texts.
        quick: Search a small space: layers, poolings and a few filters.
        space: Another space, or its fields.
        minutes: Draw as many arms as fit into so many minutes.
        text_column: The column or key of the text, where its name is not guessed.
        max_seq_length: Positions of a text, as for ``build``.
        seed: Of all draws.
        show_progress_bar: Show bars; None: on a terminal.
        say: Gets a line for each step, and the report at the end.
        command: What runs it again, for the report.

    Returns:
        The report. Its row ``plain`` is the mean of the last layer.

    Raises:
        ImportError: The extra ``evaluation`` is not installed.
        FileExistsError: ``out`` holds something else.
        ValueError: There are too few texts that can be used, ``out`` holds another run, or an argument cannot be.

    Source:
        Two crops of a text as a pair: Izacard et al. (2022), Contriever, section 3.1. The stages: see ``compose``.

    Example:
        >>> import st_reba
        >>> report = st_reba.tune("mini", "texts.txt", "tuned", quick=True)  # doctest: +SKIP
        >>> report.recipe["method"]  # doctest: +SKIP
        'classical'
    """
    base = _base(base)
    if quick and space is not None:
        raise ValueError("quick=True does not go with space=…, which says what is searched. Drop one.")
    _check(like, budget)
    disable = None if show_progress_bar is None else not show_progress_bar
    drawn = unlabelled(texts, sample=sample, seed=seed, text_column=text_column, disable=disable)
    parts = _parts(drawn, like, labels, seed)
    own = QUICK if quick else SPACE
    searched = space if space is not None else own if labels is not None else _searched(own, like)
    settings = _settings(budget, searched, minutes)
    say(f"Texts: {drawn}")
    notes = _notes(drawn, settings, labels)
    for note in notes:
        say(note)
    report = run_search(
        base,
        parts,
        out,
        settings,
        Tuned,
        settle=lambda found, rows: settled(replace(found, notes=(*notes, *found.notes)), rows),
        max_seq_length=max_seq_length,
        seed=seed,
        show_progress_bar=show_progress_bar,
        say=say,
        command=command,
    )
    _fitted(report, drawn, show_progress_bar)
    say(f"Model: {report.folder / MODEL}")
    return report


def auto(
    base: str | os.PathLike[str],
    texts: Input,
    *,
    like: Like = "pairs",
    budget: Budget = "balanced",
    seed: int = 0,
    max_seq_length: int | None = None,
    **loading: Any,
) -> SentenceTransformer:
    """What ``build(base, "auto", texts=…)`` does: :func:`tune` in a small space, with all of 300 texts choosing.

    Args:
        base: The base.
        texts, like, budget, seed, max_seq_length: As for :func:`tune`.
        **loading: Further arguments of ``build``, such as ``device`` and ``prompts``.
    """
    given = {name: value for name, value in loading.items() if value is not None}
    own = ("revision", "tokenizer", "dtype", "device", "trust_remote_code")
    model_of = _base(base, **{name: given.pop(name) for name in own if name in given})
    given |= {} if max_seq_length is None else {"max_seq_length": max_seq_length}
    _check(like, budget)
    drawn = unlabelled(texts, sample=AUTO, seed=seed)
    settings = _settings(budget, _searched(QUICK, like))
    parts = Parts(Task(drawn.name, drawn.items), drawn.items, drawn.items)
    how: dict[str, Any] = {"seed": seed, "disable": None, "say": lambda line: None}
    with TemporaryDirectory(prefix="st_reba-auto-") as folder, Ledger.opened(folder, {"base": model_of.name}) as ledger:
        found = found_by(Tuned, ledger, parts, model_of, given, settings, **how)
    trial, _ = found.chosen[found.against]
    model = Method(trial.arguments(found.depth)).build(model_of, **given)
    if trial.filter == NO_FILTER:
        return model
    options = trial.filter.options(cast(int, model.get_embedding_dimension()))
    return fit_postfilter(model, drawn.items.fitted_on, **options, seed=seed, show_progress_bar=False)


def _base(base: str | os.PathLike[str] | Base, **options: Any) -> Base:
    made = base if isinstance(base, Base) else Base(os.fspath(base), **options)
    if made.name.startswith("zoo:") or made.name.endswith((".yaml", ".yml")):
        raise ValueError(f"base={made.name!r} is a recipe, and a recipe is what is looked for. Name its base model.")
    return made


def _check(like: str, budget: str) -> None:
    for name, value, known in (("like", like, USES), ("budget", budget, BUDGETS)):
        if value not in known:
            raise ValueError(unknown(f"{name}={value!r}", value, list(known)))


def _searched(space: Space, like: Like) -> Space:
    """The space without the filters that views speak too well of."""
    allowed = USES[like]
    return space if allowed is None else replace(space, filters=allowed)


def _settings(budget: Budget, space: Space | Mapping[str, Any], minutes: float | None = None) -> Tune:
    # Arms that are cheap enough for the budget have a share of their own.
    limit = min(BUDGETS[budget], 1.0)
    fields = space.to_dict() if isinstance(space, Space) else space
    return Tune(space=fields, minutes=minutes, speed=limit, budget=budget)


def _parts(drawn: Unlabelled, like: str, labels: Source | None, seed: int) -> Parts:
    """The items that choose, and those that report."""
    if labels is not None:
        task = read_task(labels, seed=seed) if isinstance(labels, (str, os.PathLike)) else labels
        if task.kind in ("Retrieval", "NER", "WordSense"):
            raise ValueError(f"labels: {task.kind} is not searched with. Give pairs, classes, triples or Reranking.")
        return parts_of(task, None, 0.5, seed)
    task = Task(f"{drawn.name}, like {like}", drawn.items)
    made = in_parts(task, {"choosing": CHOOSE, "heldout": 1 - CHOOSE}, seed)
    return Parts(task, made["choosing"], made["heldout"])


def _notes(drawn: Unlabelled, settings: Tune, labels: Source | None) -> tuple[str, ...]:
    """What the report says of the texts."""
    mixed = [MIXED] if drawn.mixed else []
    if labels is not None:
        return ("The labelled items chose, and report; the texts only fitted the filters of the recipes.", *mixed)
    note = (
        "Nothing here is labelled: a score is the mean reciprocal rank with which two views of a text "
        "find each other. It tells methods apart, but is no quality that others know. More texts are harder to tell "
        "apart, so scores of choosing and of held-out texts do not compare. The filters of recipes and model are "
        "fitted on all texts."
    )
    if settings.searched.filters == MILD:
        note += (
            " Filters that whiten in full were not tried: but for search, they seem better by views than they are by "
            "labels."
        )
    return (note, *mixed, *([f"Caution: {drawn.warning}."] if drawn.warning else []))


def _fitted(report: Report, drawn: Unlabelled, show_progress_bar: bool | None) -> None:
    """Fit the recipes' filters on all texts, and save the chosen model."""
    from ..building import build
    from ..hub.saving import save

    texts = drawn.items.fitted_on
    for name in report.found.recipes:
        trial = report.row(name).trial
        if trial.filter != NO_FILTER:
            model = Method(trial.arguments(report.found.depth)).build(report.base, **report.loading)
            options = trial.filter.options(cast(int, model.get_embedding_dimension()))
            fitted = postfilter_of(model, texts, **options, show_progress_bar=bool(show_progress_bar))
            fitted.save(report.folder / report.filter_of(name))
    model = build(
        report.folder / report.found.recipes[report.best.name],
        dtype=report.base.dtype,
        device=report.base.device,
        trust_remote_code=report.base.trust_remote_code,
    )
    save(model, report.folder / MODEL, overwrite=True)
