"""The runs of a curve: each point is an evaluation of its own, kept in the same folder of results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Literal

from ..benchmark import TasksFailed, evaluate_mteb
from ..methods import Base, Limit, Method
from ..results import Result, Results
from .templates import sample_templates


def sweep_tokens(
    base: Base,
    methods: Sequence[Method],
    tasks: Sequence[Any],
    results: Results,
    values: Sequence[int],
    *,
    of: Literal["total", "content"] = "total",
    **running: Any,
) -> list[Result]:
    """Score methods under token budgets.

    Args:
        base: The base model.
        methods: The methods.
        tasks: As for :func:`st_reba.evaluation.benchmark.evaluate_mteb`.
        results: Where the points go, and are found again.
        values: Tokens of a text, in any order.
        of: ``"total"``: what all copies share, so that at each point methods cost alike; ``"content"``: of each copy.
        **running: As for ``evaluate_mteb``.

    Returns:
        A result a budget, method and task; the budget stands in its settings.

    Raises:
        TasksFailed: Something could not be scored, such as a budget that a template alone uses up; the rest was.

    Source:
        Echo, section 4.7 and figure 4.
    """
    limits = [Limit(value, of) for value in _distinct("values", values)]
    return _points(
        partial(evaluate_mteb, base, methods, tasks, results, **{**running, "limit": limit}) for limit in limits
    )


def sweep_repeats(
    base: Base,
    methods: Sequence[Method],
    tasks: Sequence[Any],
    results: Results,
    values: Sequence[int],
    **running: Any,
) -> list[Result]:
    """Score methods with other numbers of copies; those that never repeat are scored once.

    Args:
        base: The base model.
        methods: The methods; of echo and reba the number of copies is replaced.
        tasks: As for ``evaluate_mteb``.
        results: Where the points go, and are found again.
        values: Numbers of copies k.
        **running: As for ``evaluate_mteb``.

    Source:
        ReBA, table 3 (two and three copies).
    """
    repeated: dict[str, Method] = {}
    for method in methods:
        repeats = method.arguments.get("method") in ("echo", "reba") and "template" not in method.arguments
        variants = [method.changed(repeats=k) for k in _distinct("values", values)] if repeats else [method]
        repeated.update((variant.name, variant) for variant in variants)
    return evaluate_mteb(base, list(repeated.values()), tasks, results, **running)


def sweep_prompts(
    base: Base,
    methods: Sequence[Method],
    tasks: Sequence[Any],
    results: Results,
    count: int,
    *,
    seed: int = 0,
    language: str = "en",
    **running: Any,
) -> list[Result]:
    """Score methods with templates drawn at random.

    Args:
        base: The base model.
        methods: The methods; each one's template is replaced.
        tasks: As for ``evaluate_mteb``.
        results: Where the points go, and are found again.
        count: Templates a method.
        seed: Of the draws.
        language: Of the templates: ``"en"`` or ``"zh"``.
        **running: As for ``evaluate_mteb``.

    Returns:
        A result a template, method and task; the template stands in its settings.

    Source:
        Echo, appendix D.
    """
    points = []
    for method in methods:
        arguments = dict(method.arguments)
        # The template says how often the text stands in it.
        repeats = arguments.pop("repeats", 2)
        templates = sample_templates(arguments["method"], count, seed=seed, language=language, repeats=repeats)
        for number, template in enumerate(templates, 1):
            variant = Method({**arguments, "template": template}, label=method.name)
            settings = {"prompt_number": number, "prompt": template}
            given = {**running, "settings": settings, "seed": seed}
            points.append(partial(evaluate_mteb, base, [variant], tasks, results, **given))
    return _points(points)


def _points(points: Iterable[Callable[[], list[Result]]]) -> list[Result]:
    """Run all points, and only then tell what failed."""
    found, failures = [], []
    for point in points:
        try:
            found += point()
        except TasksFailed as error:
            found += error.results
            failures += error.failures
    if failures:
        raise TasksFailed(list(dict.fromkeys(failures)), found)
    return found


def _distinct(name: str, values: Sequence[int]) -> list[int]:
    kept = list(dict.fromkeys(values))
    if not kept or any(isinstance(value, bool) or not isinstance(value, int) or value < 1 for value in kept):
        raise ValueError(f"{name}={list(values)!r} must be whole numbers from 1 on, one at the least.")
    return kept
