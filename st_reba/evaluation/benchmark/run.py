"""Score methods on mteb's tasks, through mteb's own runner: a result a method and task, kept as soon as it is known."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tqdm.auto import tqdm

from ..methods import Base, Limit, Method, identity
from ..results import Result, Results
from .data import NoData, draw_anew, loaded, one_line, quiet
from .encoder import Encoder, model_meta
from .metrics import paper_metric, read_scores
from .package import mteb_module
from .prompts import NONE, Prompts, read_prompts
from .suites import Chosen, fingerprint, parts, read_tasks

# mteb's own, so that scores can be set beside published ones.
SEED = 42
# Rows that mteb hands over at a time; how they run is decided by token budget.
_HANDED_OVER = 1024
_PAIRS = ("STS", "PairClassification")

logger = logging.getLogger(__name__)


class TasksFailed(ValueError):
    """Some tasks could not be scored; the others were, and are kept.

    Args:
        failures: What failed, and why: a line each.
        results: The others.
    """

    def __init__(self, failures: Sequence[str], results: Sequence[Result]) -> None:
        self.failures = list(failures)
        self.results = list(results)
        super().__init__(
            f"{len(self.failures)} of {len(self.failures) + len(self.results)} failed; the rest is kept, and the same "
            f"command goes on from there. {'; '.join(self.failures)}"
        )


def evaluate_mteb(
    base: Base,
    methods: Sequence[Method],
    tasks: str | Iterable[Any],
    results: Results,
    *,
    limit: Limit | None = None,
    prompts: str | Prompts | None = None,
    batch_size: int | None = None,
    batch_tokens: int | None = None,
    seed: int = SEED,
    settings: Mapping[str, Any] | None = None,
    stop: bool = False,
    command: str = "",
    show_progress_bar: bool | None = None,
) -> list[Result]:
    """Score methods on tasks of mteb, or on data of one's own.

    A result that is in the folder already is taken from there, and a model with no task left is not built. mteb keeps
    its own files of results in the folder's ``mteb``, as for its leaderboard.

    Args:
        base: The base model.
        methods: Its methods.
        tasks: As for :func:`st_reba.evaluation.benchmark.read_tasks`: suites, names, ``KIND=PATH``, mteb's objects.
        results: Where results go, and are found again.
        limit: How much of a text is read; None: what the model takes.
        prompts: What stands before texts: see :func:`st_reba.evaluation.benchmark.read_prompts`; None: a suite's own.
        batch_size: Texts a forward pass, in place of the next.
        batch_tokens: Positions a forward pass, padding included.
        seed: Of all that mteb draws.
        settings: What else results differ by; stands in their settings.
        stop: Stop at the first task that fails; otherwise the others are run first.
        command: What runs it again.
        show_progress_bar: Show one; None: on a terminal.

    Returns:
        A result a method and task, method by method.

    Raises:
        ValueError: A task or a prompt is not known.
        TasksFailed: Tasks could not be scored.

    Example:
        >>> found = evaluate_mteb(Base("mini"), read_methods("echo"), "STS=pairs.tsv", Results("out"))  # doctest: +SKIP
        >>> found[0].main, found[0].paper  # doctest: +SKIP
        ('cosine_spearman', 'cosine_pearson')
    """
    given = read_prompts(prompts) if isinstance(prompts, str) else prompts
    chosen = read_tasks(tasks, seed=seed)
    if given is not None:
        # A task that two suites bring with prompts of their own now stands there twice.
        chosen = list({each.name: each for each in chosen}.values())
    if given is not None and given.tasks:
        names = [part.metadata.name for each in chosen for part in parts(each.task)]
        if not set(names) & set(given.tasks):
            raise ValueError(
                f"prompts: {given.name!r} has none of the tasks {names[:20]}, but {sorted(given.tasks)[:20]}."
            )
    jobs = [_Job(each, given or read_prompts(each.prompts or NONE)) for each in chosen]
    run = _Run(
        base,
        results,
        limit or Limit(),
        {"batch_size": batch_size, "batch_tokens": batch_tokens, "show_progress_bar": show_progress_bar},
        seed,
        dict(settings or {}),
        stop,
        command,
    )
    disable = None if show_progress_bar is None else not show_progress_bar
    with tqdm(total=len(methods) * len(jobs), desc=base.label, unit=" tasks", disable=disable) as bar:
        for method in methods:
            run.method(method, jobs, bar)
    if run.failures:
        raise TasksFailed(run.failures, run.found)
    return run.found


@dataclass(frozen=True)
class _Job:
    chosen: Chosen
    prompts: Prompts

    @property
    def prompt(self) -> dict[str, Any]:
        """What of the prompts concerns the task."""
        return self.prompts.of([part.metadata.name for part in parts(self.chosen.task)])


class _Run:
    def __init__(
        self,
        base: Base,
        results: Results,
        limit: Limit,
        running: dict[str, Any],
        seed: int,
        settings: dict[str, Any],
        stop: bool,
        command: str,
    ) -> None:
        self.base, self.results, self.limit, self.running = base, results, limit, running
        self.seed, self.settings, self.stop, self.command = seed, settings, stop, command
        self.found: list[Result] = []
        self.failures: list[str] = []
        # Data that one method could not load, no other can.
        self._missing: dict[str, str] = {}

    def method(self, method: Method, jobs: Sequence[_Job], bar: Any) -> None:
        """Score a method on all tasks; its model is built for the first that is not there yet."""
        encoder: Encoder | None = None
        for job in jobs:
            key = self._identity(method, job)
            bar.set_postfix_str(f"{method.name}, {job.chosen.name}")
            result = self.results.find(key)
            if result is None and job.chosen.name not in self._missing:
                if encoder is None:
                    try:
                        encoder = self._encoder(method)
                    except Exception as error:
                        self._fail(f"{method.name}: {one_line(error)}", error)
                        bar.update(len(jobs) - jobs.index(job))
                        break
                result = self._scored(encoder, method, job, key)
            if result is not None:
                self.found.append(result)
            bar.update()
        del encoder
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _identity(self, method: Method, job: _Job) -> str:
        task = fingerprint(job.chosen.task)
        return identity(
            self.base, method, task=task, prompt=job.prompt, seed=self.seed, **self.limit.settings, **self._extra()
        )

    def _extra(self) -> dict[str, Any]:
        return {f"setting {name}": value for name, value in self.settings.items()}

    def _encoder(self, method: Method) -> Encoder:
        # A limit of content is set for each prompt, by the encoder.
        limited = self.limit if self.limit.of == "total" else Limit()
        model = limited.build(method, self.base)
        return Encoder(model, None, limit=self.limit, **self.running)

    def _meta(self, encoder: Encoder, method: Method, prompts: Prompts) -> Any:
        """mteb keeps what it finds by name and revision: both hold all but the task."""
        whole = prompts.of(list(prompts.tasks))
        revision = identity(self.base, method, prompts=whole, seed=self.seed, **self.limit.settings, **self._extra())
        label = f"{self.base.label}--{method.name}" + (f"--{prompts.name}" if whole else "")
        return model_meta(label, revision, encoder.model)

    def _scored(self, encoder: Encoder, method: Method, job: _Job, key: str) -> Result | None:
        task = job.chosen.task
        try:
            with loaded(task, self.seed):
                result = self._result(encoder, method, job, key)
        except NoData as error:
            self._missing[job.chosen.name] = str(error)
            self._fail(f"{job.chosen.name}: {error}", error)
            return None
        except Exception as error:
            self._fail(f"{job.chosen.name}, {method.name}: {one_line(error)}", error)
            return None
        self.results.add(result)
        return result

    def _result(self, encoder: Encoder, method: Method, job: _Job, key: str) -> Result:
        mteb = mteb_module()
        task = job.chosen.task
        encoder.start(self._meta(encoder, method, job.prompts), job.prompts)
        cache = mteb.ResultCache(self.results.folder / "mteb")
        draw_anew(task, self.seed)
        start = time.monotonic()
        with quiet():
            answer = mteb.evaluate(
                encoder,
                task,
                co2_tracker=False,
                cache=cache,
                overwrite_strategy=_strategy(cache, task, encoder.meta),
                encode_kwargs={"batch_size": _HANDED_OVER, "show_progress_bar": False},
                show_progress_bar=False,
            )
        seconds = time.monotonic() - start
        if not answer.task_results:
            raise ValueError("; ".join(each.exception for each in answer.exceptions or ()) or "mteb gave no result")
        scores = read_scores(task, answer.task_results[0])
        counts = encoder.counts
        settings = {**self.settings, **self.limit.settings}
        if job.prompt:
            settings["prompts"] = job.prompts.name
        if self.seed != SEED:
            settings["seed"] = self.seed
        return Result(
            kind=task.metadata.type,
            task=job.chosen.name,
            base=self.base.label,
            method=method.name,
            identity=key,
            scores=scores,
            main=task.metadata.main_score,
            paper=paper_metric(task, scores),
            settings=settings,
            arguments=dict(method.arguments),
            items=getattr(task, "size", counts.items // 2 if task.metadata.type in _PAIRS else counts.items),
            left_out=getattr(task, "left_out", {}),
            texts=counts.texts,
            tokens=counts.tokens,
            seconds=round(seconds, 3),
            command=self.command,
        )

    def _fail(self, line: str, error: BaseException) -> None:
        if self.stop:
            raise TasksFailed([line], self.found) from error
        self.failures.append(line)
        logger.warning(f"{line} (the other tasks are run)", exc_info=logger.isEnabledFor(logging.DEBUG))


def _strategy(cache: Any, task: Any, meta: Any) -> str:
    """Whether what mteb kept may be used: it does not itself ask whether the data or mteb's version are the same."""
    mteb = mteb_module()
    for part in (task, *parts(task)):
        try:
            kept = cache.load_task_result(part.metadata.name, meta)
        except Exception:
            # It writes its files in place: a run that was killed may leave half of one.
            return "always"
        if kept is not None and (
            kept.dataset_revision != part.metadata.dataset["revision"] or kept.mteb_version != mteb.__version__
        ):
            return "always"
    return "only-missing"
