"""A labelled file → a task: its kind is recognized, its items are parted by a seed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .labelled import BadLines, Kind, Labelled, read_labelled
from .tasks import ClassTask, PairTask, TagTask
from .vectors import Subtoken

_TASKS: dict[Kind, type[PairTask] | type[ClassTask] | type[TagTask]] = {
    "pairs": PairTask,
    "classes": ClassTask,
    "tags": TagTask,
}


def read_task(
    path: str | os.PathLike[str],
    kind: Kind | None = None,
    *,
    columns: Mapping[str, str] | None = None,
    train: str | os.PathLike[str] | None = None,
    test: str | os.PathLike[str] | None = None,
    validation: float | None = None,
    limit: int | None = None,
    seed: int = 0,
    bad_lines: BadLines = "error",
    separator: str = " ",
    subtoken: Subtoken = "first",
) -> PairTask | ClassTask | TagTask:
    """Read a task from a labelled file.

    =======  ===========================================================  ==========================================
    kind     file                                                         score
    =======  ===========================================================  ==========================================
    pairs    ``.csv``, ``.tsv``, ``.jsonl`` with two texts and a number;  Spearman of cosine and number
             ``id||text1||text2||score`` lines; STSBenchmark's
    classes  ``.csv``, ``.tsv``, ``.jsonl`` with a text and a label       accuracy of a logistic regression
    tags     a word and its columns a line (CoNLL-2003)                   entity F1 of a logistic regression
    =======  ===========================================================  ==========================================

    The parts are drawn by the seed; classes are spread evenly over the parts. Without further files, pairs are halved
    (validation, held-out); classes and tags are parted 60 : 20 : 20 (train, validation, held-out).

    Args:
        path: The file that the validation part is taken from.
        kind: ``"pairs"``, ``"classes"`` or ``"tags"``; None: recognized.
        columns: Names of columns (keys) that are not guessed, by role: ``text1``, ``text2``, ``score``; ``text``,
            ``label``. For tags ``{"label": "2"}`` counts the columns from 1.
        train: A further file to train on (classes, tags): nothing of ``path`` is.
        test: A further file that is held out, whole.
        validation: Fraction of ``path`` for validation; None: a half, or a fifth where the file is trained on too.
        limit: Use so many items of each file, drawn by the seed.
        seed: Of the draws.
        bad_lines: ``"error"``: a line that cannot be read is an error; ``"skip"``: it is left out, and counted in the
            task's description.
        separator: What stands between two words (tags): ``""`` where words are Chinese characters.
        subtoken: Which token stands for a word of several (tags): ``"first"`` or ``"last"``.

    Returns:
        The task.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The kind does not show, a line cannot be read, an option does not fit, or there are too few items.

    Example:
        >>> with open("pairs.csv", "w", encoding="utf-8") as file:
        ...     _ = file.write("text1,text2,score\\n")
        ...     _ = file.writelines(f"text {n},text {n % 7},{n % 5}\\n" for n in range(40))
        >>> task = read_task("pairs.csv")
        >>> task.kind, task.metric, len(task.validation), len(task.heldout)
        ('pairs', 'Spearman', 20, 20)
    """
    check_draws(limit, seed)
    arguments = arguments_of(
        path,
        columns,
        kind=kind,
        train=train,
        test=test,
        validation=validation,
        limit=limit,
        seed=seed or None,
        skip_bad_lines=bad_lines == "skip",
        word_separator=None if separator == " " else separator,
        subtoken=None if subtoken == "first" else subtoken,
    )
    main = read_labelled(Path(path), kind, columns, bad_lines)
    kind = main.kind
    if kind not in _TASKS:
        raise ValueError(
            f"{path} holds {kind}, which only the composed search takes: st-reba tune --compose, or "
            "st_reba.evaluation.compose."
        )
    for name, value, default in (("separator", separator, " "), ("subtoken", subtoken, "first")):
        if value != default and kind != "tags":
            raise ValueError(f"{name}={value!r} belongs to tags, but {path} holds {kind}. Drop it.")
    if train is not None and kind == "pairs":
        raise ValueError(f"train={os.fspath(train)!r}: nothing is trained on pairs. Drop it.")
    files = {"train": train, "heldout": test}
    further = {
        part: read_labelled(Path(file), kind, columns, bad_lines) for part, file in files.items() if file is not None
    }
    task = _TASKS[kind]
    missing = [part for part in task.names if part not in further]
    parts = divide(sampled(main.items, limit, seed), missing, validation, seed, stratify=kind == "classes")
    parts.update((part, sampled(labelled.items, limit, seed)) for part, labelled in further.items())
    note = "; ".join(
        [main.layout + skipped(main)]
        + [f"{part} from {Path(files[part] or '').name}{skipped(labelled)}" for part, labelled in further.items()]
    )
    options: dict[str, Any] = {part: tuple(parts[part]) for part in task.names}
    if kind == "tags":
        options.update(separator=separator, subtoken=subtoken)
    return task(name=Path(path).name, note=note, arguments=arguments, **options)


def check_draws(limit: object, seed: object) -> None:
    """Refuse a limit and a seed that are no numbers."""
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise ValueError(f"limit={limit!r} must be a whole number from 1 on, or None.")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise ValueError(f"seed={seed!r} must be a whole number.")


def sampled(items: list[Any], limit: int | None, seed: int) -> list[Any]:
    """Some of the items, in the file's order: files are often sorted by class."""
    if limit is None or limit >= len(items):
        return items
    return [items[index] for index in sorted(shuffled(range(len(items)), seed, "limit")[:limit])]


def divide(
    items: list[Any], parts: Sequence[str], validation: float | None, seed: int, *, stratify: bool
) -> dict[str, list[Any]]:
    """Items by part. The first part of train and held-out that is asked for takes what the others leave."""
    if len(parts) == 1:
        if validation is not None:
            raise ValueError(f"validation={validation!r}: all of the file is for validation, as the rest has its own.")
        return {parts[0]: items}
    most = 1 / (len(parts) - 1)
    if validation is None:
        validation = 0.2 if "train" in parts else 0.5
    if isinstance(validation, bool) or not isinstance(validation, (int, float)) or not 0 < validation < most:
        raise ValueError(
            f"validation={validation!r} must be a fraction between 0 and {most}, as {parts} share the file."
        )
    rest = "train" if "train" in parts else "heldout"
    groups: dict[str, list[int]] = {}
    for index, item in enumerate(items):
        groups.setdefault(item[1] if stratify else "", []).append(index)
    divided: dict[str, list[int]] = {part: [] for part in parts}
    for label, group in sorted(groups.items()):
        group = shuffled(group, seed, label)
        # One at least for every part, or all for the one that must not be without.
        count = min(max(1, round(validation * len(group))), (len(group) - 1) // (len(parts) - 1))
        for part in parts:
            if part != rest:
                divided[part] += group[:count]
                group = group[count:]
        divided[rest] += group
    return {part: [items[index] for index in sorted(indices)] for part, indices in divided.items()}


def shuffled(indices: Sequence[int], seed: int, purpose: str) -> list[int]:
    """An order that depends on the seed and nothing else: no version of a library can change a task's parts."""
    return sorted(indices, key=lambda index: hashlib.sha256(f"{seed}:{purpose}:{index}".encode()).digest())


def skipped(labelled: Labelled) -> str:
    """What is said of a file's bad lines."""
    if not labelled.bad:
        return ""
    lines = ", ".join(map(str, labelled.bad[:10])) + (", …" if len(labelled.bad) > 10 else "")
    return f", {len(labelled.bad)} bad lines skipped: {lines}"


def arguments_of(path: str | os.PathLike[str], columns: Mapping[str, str] | None, **options: object) -> tuple[str, ...]:
    """What stands for the task on a command line."""
    words = [os.fspath(path)]
    for role, name in (columns or {}).items():
        words += ["--column", f"{role}={name}"]
    for name, value in options.items():
        if value is not None and value is not False:
            words += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
    return tuple(words)
