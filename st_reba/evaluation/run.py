"""Score methods on tasks: a result a method and task, kept as soon as it is known, so that a run can be stopped."""

from __future__ import annotations

import errno
import gc
import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from tqdm.auto import tqdm

from ..batches import check_sizes
from ..encode import Task as Role
from ..fingerprint import PROBES, encoding_rate
from ..layers import Layers, layer_numbers
from .data import Task, read_tasks
from .encoding import Prompts, encoded
from .instructions import NONE, Instructions, read_instructions
from .items import Ranking, Vectors
from .methods import Base, Limit, Method, methods_for
from .mteb_tasks import Encoder, MtebTask, NoData, find_tasks, model_meta, suites
from .results import Result, Results, identity, one_line
from .statistics import Evidence, interval
from .templates import drawn_templates
from .toy import LANGUAGES, STRUCTURES, toy_tasks
from .words import Questions

logger = logging.getLogger(__name__)

# mteb's own, so that scores can be set beside published ones.
MTEB_SEED = 42
UNSEEN = "not seen whole by the method: counted as wrong"
# Seconds: of work that takes longer, it is said how long it will take.
SAID_FROM = 30


class TasksFailed(ValueError):
    """Some tasks could not be scored; the others were, and are kept.

    Args:
        failures: What failed, and why: a line each.
        results: The others.
    """

    def __init__(self, failures: Sequence[str], results: Sequence[Result]) -> None:
        self.failures, self.results = list(failures), list(results)
        super().__init__(
            f"{len(self.failures)} of {len(self.failures) + len(self.results)} failed; the rest is kept, and the same "
            f"command continues from there. {'; '.join(self.failures)}"
        )


def tasks_of(words: Sequence[Any], **options: Any) -> list[Task | MtebTask]:
    """Tasks as people name them.

    Args:
        words: Files of one's own (see :func:`~st_reba.evaluation.data.read_tasks`), "toy" (or of it "toy:S1", "toy:en",
            "toy:S3,early"), names of the papers' sets (C-MTEB, MTEB-15, MTEB-MINI, MTEB-56), of mteb's tasks or
            benchmarks; or tasks.
        **options: Of :func:`~st_reba.evaluation.data.read_task`, for files.

    Raises:
        ValueError: A name is not known, or two tasks share one.
    """
    named: list[Task | MtebTask] = []
    for word in words:
        if isinstance(word, (Task, MtebTask)):
            named.append(word)
        elif str(word).partition(":")[0] == "toy":
            named += _toy(str(word), limit=options.get("limit"), seed=options.get("seed", 0))
        elif isinstance(word, (str, PathLike)) and _is_file(str(word)):
            named += read_tasks([str(word)], **options)
        else:
            named += find_tasks([word])
    if not named:
        raise ValueError("tasks: name one at least, as pairs.tsv, STS=pairs.tsv, toy, C-MTEB or STSB.")
    if options.get("limit") is not None and all(isinstance(each, MtebTask) for each in named):
        raise ValueError(f"limit={options['limit']} (--limit): mteb's own tasks are scored whole. Drop the option.")
    found: dict[tuple[str, str | None], Task | MtebTask] = {}
    for each in named:
        if found.setdefault((each.name, each.prompts), each).fingerprint != each.fingerprint:
            raise ValueError(
                f"two tasks are called {each.name!r}, with other data, splits or subsets, so that tables could not "
                "tell them apart. Rename a file, or run them one after the other, each with an --out of its own."
            )
    return list(found.values())


def _toy(word: str, **options: Any) -> list[Task]:
    """The toy structures, or those of them that are named behind the colon."""
    named = [each for each in word.partition(":")[2].split(",") if each]
    part = [each for each in named if each not in (*STRUCTURES, *LANGUAGES)]
    if len(part) > 1:
        raise ValueError(f"{word!r}: name structures {list(STRUCTURES)}, languages {list(LANGUAGES)} and one part.")
    return toy_tasks(
        [each for each in named if each in STRUCTURES] or list(STRUCTURES),
        [each for each in named if each in LANGUAGES] or list(LANGUAGES),
        part[0] if part else "whole",  # type: ignore[arg-type]
        **options,
    )


def _is_file(word: str) -> bool:
    # A folder of results may be called C-MTEB, and mteb's names end in .v2.
    if word.lower() in (name.lower() for name in suites()):
        return False
    return "=" in word or "/" in word or Path(word).exists() or re.search(r"\.(?!v?\d)\w+$", word) is not None


@dataclass(frozen=True)
class _Variant:
    """A method on a base, how much it reads of a text, and what tells it from other variants of the method."""

    base: Base
    method: Method
    limit: Limit
    settings: Mapping[str, Any]


def evaluate(
    models: str | Base | Sequence[str | Base],
    tasks: Any,
    methods: str | Sequence[Any] | None = None,
    out: str | PathLike[str] | Results = "results",
    *,
    max_tokens: int | Sequence[int] | None = None,
    budget: Literal["total", "content"] = "total",
    templates: int | None = None,
    language: Literal["en", "zh"] = "en",
    prompts: str | Instructions | None = None,
    layers: Layers = "last",
    batch_size: int | None = None,
    batch_tokens: int | None = None,
    seed: int = MTEB_SEED,
    stop: bool = False,
    command: str = "",
    show_progress_bar: bool | None = None,
    say: Callable[[str], object] = logger.info,
) -> list[Result]:
    """Score methods on tasks.

    A result that is in the folder already is taken from there, and a model with no task left is not built.

    Args:
        models: Base models, or saved embedders, which have a method of their own.
        tasks: See :func:`tasks_of`: one, or several.
        methods: As ``"classical,echo-3,reba:pooling=mean"``, or :class:`Method` objects; None: classical, echo, reba.
        out: The folder of results; mteb keeps its own files in its ``mteb``.
        max_tokens: How much of a text is read; several: each in turn; None: what the model takes.
        budget: What ``max_tokens`` counts: see :class:`Limit`.
        templates: Score each method with so many drawn templates in place of its own.
        language: Of these.
        prompts: A name or file of instructions before the texts, see
            :func:`~st_reba.evaluation.instructions.read_instructions`; None: those of the paper's set.
        layers: Of WordSense: "last", "all", or numbers of layers.
        batch_size: Texts a forward pass, in place of the next.
        batch_tokens: Positions a forward pass.
        seed: Of all that mteb draws.
        stop: Stop at the first task that fails; else the others are run first.
        command: What runs it again.
        show_progress_bar: Show one; None: on a terminal.
        say: Gets a line where there is something to tell, such as how long it will take.

    Returns:
        A result a model, method and task, in this order; of WordSense one a layer.

    Raises:
        ValueError: A task, method or instruction is not known.
        OSError: A model is not there.
        BlockingIOError: Another process writes to the folder.
        TasksFailed: Tasks could not be scored.

    Example:
        >>> from st_reba.evaluation import make_task
        >>> rows = [(f"{n} cats sleep", f"{n % 5} ships sail", n % 3) for n in range(20)]
        >>> found = evaluate("mini", make_task("STS", rows, "cats"), "classical,echo", "out")
        >>> [(result.task, result.method, result.items) for result in found]
        [('cats', 'classical last', 20), ('cats', 'echo-2 last', 20)]
    """
    check_sizes(batch_size, batch_tokens)
    jobs = tasks_of(list(tasks) if isinstance(tasks, Iterable) and not isinstance(tasks, str) else [tasks])
    given = read_instructions(prompts) if isinstance(prompts, str) else prompts
    if given is not None:
        # A task that two sets bring with instructions of their own now stands there twice.
        jobs = list({each.name: each for each in jobs}.values())
        names = [name for each in jobs for name in each.names]
        if given.tasks and not {*names, "*"} & set(given.tasks):
            raise ValueError(
                f"prompts: {given.name!r} has none of the tasks {names[:20]}, but {sorted(given.tasks)[:20]}."
            )
    named = [models] if isinstance(models, (str, PathLike, Base)) else list(models)
    bases = [each if isinstance(each, Base) else Base(str(each)) for each in named]
    for base in bases:
        base.identity  # noqa: B018  # what is not there, is told before work begins
    # Beside base models, a saved embedder stands as it is.
    mixed = not all(base.saved for base in bases)
    budgets = [max_tokens] if max_tokens is None or isinstance(max_tokens, int) else list(max_tokens)
    variants = [
        _Variant(base, each, Limit(tokens, budget), settings)
        for tokens in budgets
        for base in bases
        for method in methods_for(base, None if base.saved and mixed else methods)
        for each, settings in _with_templates(method, templates, language)
    ]
    results = out if isinstance(out, Results) else Results(out)
    sizes = {"batch_size": batch_size, "batch_tokens": batch_tokens}
    disable = None if show_progress_bar is None else not show_progress_bar
    with results.writing(), tqdm(total=len(variants) * len(jobs), unit=" tasks", disable=disable) as bar:
        run = _Run(results, jobs, variants, given, layers, sizes, seed, command, stop, bar, say)
        for variant in variants:
            run.variant(variant)
    if run.failures:
        raise TasksFailed(run.failures, run.found)
    return run.found


class _Meter:
    """Counts what was encoded: texts, and positions, all copies included; None: these are not counted."""

    def __init__(self, bar: Any) -> None:
        self.texts = 0
        self.positions: int | None = 0
        self._bar = bar

    def __call__(self, texts: int, positions: int | None = None) -> None:
        self.texts += texts
        if texts:
            self.positions = None if self.positions is None or positions is None else self.positions + positions
        self._bar.set_postfix_str(f"{self.texts:,} texts", refresh=False)
        self._bar.update(0)


@dataclass
class _Run:
    """All methods on all tasks; see :func:`evaluate`."""

    results: Results
    jobs: Sequence[Task | MtebTask]
    variants: Sequence[_Variant]
    instructions: Instructions | None
    layers: Layers
    sizes: Mapping[str, int | None]
    seed: int
    command: str
    stop: bool
    bar: Any
    say: Callable[[str], object]
    found: list[Result] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    # Data that one method could not load, no other can.
    missing: set[str] = field(default_factory=set)
    told: bool = False

    def variant(self, variant: _Variant) -> None:
        """Score a method on all tasks; its model is built for the first that is not there yet."""
        method = variant.method
        built: list[SentenceTransformer] = []

        def model() -> SentenceTransformer:
            if not built:
                # A limit of content is set for each instruction.
                limit = variant.limit if variant.limit.of == "total" else Limit()
                built.append(limit.build(method, variant.base))
                self._estimate(built[0])
            return built[0]

        for job in self.jobs:
            self.bar.set_description_str(f"{method.name}, {job.name}")
            if job.name not in self.missing:
                try:
                    self.found += self._results(variant, job, model)
                except NoData as error:
                    self.missing.add(job.name)
                    self._fail(f"{job.name}: {error}", error)
                except Exception as error:
                    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                        raise  # nothing that comes after it could be kept
                    if not built:
                        # It could not be built: no other task will do better.
                        self._fail(f"{method.name}: {one_line(error)}", error)
                        break
                    self._fail(f"{job.name}, {method.name}: {one_line(error)}", error)
            self.bar.update()
        if built:
            built.clear()
            gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _results(
        self, variant: _Variant, job: Task | MtebTask, model: Callable[[], SentenceTransformer]
    ) -> list[Result]:
        """A method's results on a task, one a layer: those that are there, or all of them made now."""
        keys = self._keys(variant, job, self._layers(job, model))
        known = [each for key in keys if (each := self.results.find(key)) is not None]
        if len(known) == len(keys):
            return known
        meter = _Meter(self.bar)
        began = time.monotonic()
        if isinstance(job, MtebTask):
            made: list[Any] = [(self._of_mteb(job, model(), variant, meter), None, None)]
        else:
            layers = [settings.get("layer", -1) for settings in keys.values()]
            made = [_of_items(job, vectors) for vectors in self._vectors(job, model(), variant, meter, layers)]
        about: dict[str, Any] = {"kind": job.kind, "task": job.name, "base": variant.base.label}
        about |= {"method": variant.method.name, "arguments": dict(variant.method.arguments), "command": self.command}
        about |= {"texts": meter.texts, "tokens": meter.positions, "seconds": round(time.monotonic() - began, 3)}
        for (key, settings), (scores, evidence, draws) in zip(keys.items(), made, strict=True):
            self.results.add(Result(identity=key, settings=settings, **about, **scores), evidence, draws)
        return [each for key in keys if (each := self.results.find(key)) is not None]

    def _keys(
        self, variant: _Variant, job: Task | MtebTask, layers: Sequence[Mapping[str, Any]]
    ) -> dict[str, dict[str, Any]]:
        """The settings of each layer's result, by its identity."""
        instructions = self._instructions(job)
        shared = {**variant.settings, **variant.limit.settings}
        whole: dict[str, Any] = {"data": job.fingerprint, "prompts": instructions.concerning(job.names)}
        if whole["prompts"]:
            shared["prompts"] = instructions.name
        if isinstance(job, MtebTask):
            whole["seed"] = self.seed
            if self.seed != MTEB_SEED:
                shared["seed"] = self.seed
        wanted = [{**shared, **layer} for layer in layers]
        return {identity(variant.base, variant.method, **whole, settings=each): each for each in wanted}

    def _instructions(self, job: Task | MtebTask) -> Instructions:
        return self.instructions or read_instructions(job.prompts or NONE)

    def _layers(self, job: Task | MtebTask, model: Callable[[], SentenceTransformer]) -> list[dict[str, Any]]:
        """What the layers add to the settings; the last one adds nothing."""
        if not (isinstance(job, Task) and isinstance(job.items, Questions)) or self.layers == "last":
            return [{}]
        transformer: Any = model()[0]
        numbers = layer_numbers(self.layers, transformer.depth)
        return [{} if number == transformer.depth else {"layer": number} for number in numbers]

    def _vectors(
        self, job: Task, model: SentenceTransformer, variant: _Variant, meter: _Meter, layers: Sequence[int]
    ) -> Iterator[Vectors]:
        """The vectors of a task's texts, by each of the layers; only WordSense has several."""
        instructions, limit, items = self._instructions(job), variant.limit, job.whole
        roles: tuple[Role | None, Role] = ("query" if isinstance(items, Ranking) else None, "document")
        prompts = Prompts(*(instructions.before(job.name, role, model) for role in roles))
        options: dict[str, Any] = {"progress": meter, "prompts": prompts, **self.sizes}
        limit.fit(model, prompts.query)
        if isinstance(items, Questions):
            yield from items.layers(model, "last" if layers == [-1] else layers, **options)
        elif isinstance(items, Ranking) and limit.of == "content":
            # Queries and documents have templates and prompts of their own, which leave them unlike room.
            parts = []
            for role, texts in zip(roles, (items.texts[: items.queries], items.texts[items.queries :]), strict=True):
                limit.fit(model, prompts.of(role), role)
                parts.append(encoded(model, texts, role, **options))
            yield np.concatenate(parts)
        else:
            yield items.vectors(model, **options)

    def _of_mteb(self, job: MtebTask, model: SentenceTransformer, variant: _Variant, meter: _Meter) -> dict[str, Any]:
        """What a result has of a task of mteb."""
        base, method, limit, instructions = variant.base, variant.method, variant.limit, self._instructions(job)
        # mteb keeps what it finds by name and revision: both hold all but the task.
        whole = instructions.concerning(list(instructions.tasks))
        revision = identity(base, method, prompts=whole, seed=self.seed, limit=limit.settings)
        label = f"{base.label}--{method.name}" + (f"--{instructions.name}" if whole else "")
        meta = model_meta(label, revision, model)
        encoder = Encoder(model, meta, instructions, limit=limit, progress=meter, **self.sizes)
        scores = job.scores(encoder, self.results.folder / "mteb", self.seed)
        items = encoder.scored // 2 if job.kind in ("STS", "PairClassification") else encoder.scored
        main = job.task.metadata.main_score
        return {"scores": scores, "main": main, "paper": job.paper(scores), "items": items}

    def _estimate(self, model: SentenceTransformer) -> None:
        """Say once how long it will take, as far as short texts tell."""
        if self.told:
            return
        self.told = True
        characters = sum(self._left(variant, job) for variant in self.variants for job in self.jobs)
        seconds = characters / (sum(map(len, PROBES)) / len(PROBES)) / encoding_rate(model) if characters else 0.0
        if seconds > SAID_FROM:
            shown = f"{seconds:.0f} seconds" if seconds < 120 else f"{seconds / 60:.0f} minutes"
            self.say(f"{characters:,} characters are to be encoded, copies not counted: about {shown}")

    def _left(self, variant: _Variant, job: Task | MtebTask) -> int:
        """How many characters of one's own texts are still to be encoded; how many mteb has, nobody knows yet."""
        if isinstance(job, MtebTask):
            return 0
        with suppress(Exception):  # of another base, which will fail in its turn
            if all(self.results.find(key) for key in self._keys(variant, job, [{}])):
                return 0
        return sum(len(text) for part in (job.items, job.train) if part is not None for text in part.texts)

    def _fail(self, line: str, error: BaseException) -> None:
        if self.stop:
            raise TasksFailed([line], self.found) from error
        self.failures.append(line)
        logger.warning(f"{line} (the other tasks are run)", exc_info=logger.isEnabledFor(logging.DEBUG))


def _of_items(job: Task, vectors: Vectors) -> tuple[dict[str, Any], Evidence, Any]:
    """What a result has of a task of one's own, its evidence, and its metrics' draws."""
    items, judge, evidence = job.items, job.whole, job.evidence(vectors)
    draws = {name: judge.draws(evidence, name) for name in (items.main, items.paper) if name is not None}
    unseen = items.unseen(vectors)
    found = {
        "scores": {name: metric(evidence) for name, metric in judge.metrics.items()},
        "main": items.main,
        "paper": items.paper,
        "data": job.fingerprint,
        "intervals": {name: interval(values) for name, values in draws.items()},
        "items": len(items),
        "left_out": {**job.left_out, **({UNSEEN: unseen} if unseen else {})},
    }
    return found, evidence, draws


def _with_templates(method: Method, count: int | None, language: str) -> list[tuple[Method, dict[str, Any]]]:
    """The method; or as many of it as templates are drawn, each with its number."""
    if count is None:
        return [(method, {})]
    arguments = dict(method.arguments)
    if not arguments:
        raise ValueError("templates (--templates): a saved embedder has a template of its own. Drop the option.")
    # The template says how often the text stands in it.
    repeats = arguments.pop("repeats", None) or 2
    drawn = drawn_templates(arguments["method"], count, language=language, repeats=repeats)
    return [
        (Method({**arguments, "template": template}, label=method.name), {"template": number, "language": language})
        for number, template in enumerate(drawn, 1)
    ]
