"""What a task of plain files is: ``KIND=PATH``, or an entry of a tasks file."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from ...recipe import read_yaml
from ..labelled import BadLines
from .files import KINDS, ROLES, Source
from .local_ranking import PARTS

_SHORT = {"pair": "PairClassification", "class": "Classification", "cluster": "Clustering", "rerank": "Reranking"}
_KINDS = {**{kind.lower(): kind for kind in KINDS}, **_SHORT}
# Languages as mteb writes them, by what people write.
_LANGUAGES = {"zh": "cmn-Hans", "en": "eng-Latn"}
UNKNOWN_LANGUAGE = "und-Zyyy"
TEST_FRACTION = 0.2


@dataclass(frozen=True)
class Definition:
    """A task of plain files.

    Args:
        where: Where it is defined, for messages.
        name: What results call it.
        kind: One of ``KINDS``.
        sources: Files by part: ``"all"``; or ``"train"`` and ``"test"``.
        columns: Names that are not guessed, by role.
        labels: What stands for a label, score or relevance; None there: left out.
        language: As mteb writes it.
        limit: Of the rows, or of the queries.
        bad_lines: What to do with lines that cannot be read.
        main_score: Another than mteb's.
        settings: Of the kind's protocol.
        listed: It is an entry of a tasks file.
    """

    where: str
    name: str
    kind: str
    sources: dict[str, Source]
    columns: dict[str, str] = field(default_factory=dict)
    labels: dict[Any, Any] | None = None
    language: str = UNKNOWN_LANGUAGE
    limit: int | None = None
    bad_lines: BadLines = "error"
    main_score: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    listed: bool = False


def read_definitions(spec: str) -> list[Definition]:
    """Read ``KIND=PATH`` or a tasks file.

    Args:
        spec: ``STS=pairs.csv``, or the path of a ``.yaml``.

    Raises:
        FileNotFoundError: There is no such tasks file.
        ValueError: It is neither, a key is not known or does not fit, or a name stands twice.

    Example:
        >>> [(each.kind, each.name) for each in read_definitions("pair=data/afqmc-dev.jsonl")]
        [('PairClassification', 'afqmc-dev')]
    """
    kind, equals, path = spec.partition("=")
    if equals and _plain(kind) in _KINDS:
        if not path:
            raise ValueError(f"{spec!r}: name a file after the =, as {kind}=data.csv.")
        return [Definition(spec, _name_of(Path(path)), _KINDS[_plain(kind)], {"all": Path(path)})]
    if not spec.endswith((".yaml", ".yml")):
        raise ValueError(f"{spec!r}: write KIND=PATH, with one of {_names()} for KIND, or name a tasks file (.yaml).")
    file = Path(spec)
    if not file.is_file():
        raise FileNotFoundError(f"{spec}: {'not a file' if file.exists() else 'no such tasks file'}")
    with file.open(encoding="utf-8") as stream:
        entries = read_yaml(stream, spec)
    if not isinstance(entries, list) or not entries:
        raise ValueError(f"{spec}: a tasks file is a list of tasks, as '- {{kind: STS, file: pairs.csv}}'.")
    found = [_entry(entry, f"task {number}", file) for number, entry in enumerate(entries, 1)]
    names = [each.name.casefold() for each in found]
    if twice := [each.name for each in found if names.count(each.name.casefold()) > 1]:
        raise ValueError(f"{spec}: the name {twice[0]!r} stands twice. Give each task its own, as name: ….")
    return found


def check_name(name: str, where: str) -> None:
    """Raise unless a name can be a file's and a task's."""
    if not re.fullmatch(r"[^\s/\\:*?\"<>|.][^/\\:*?\"<>|\n\r\t]{0,79}", name):
        raise ValueError(
            f'{where}: name={name!r} must be of 1 to 80 characters, none of them a line break or one of / \\ : * ? " '
            "< > |, as results are filed under it."
        )


def _checked(given: object, place: str, file: str) -> dict[str, Any]:
    """A mapping of known keys whose values fit."""
    if not isinstance(given, Mapping):
        raise ValueError(f"{file!r}: {place}={given!r} must be a mapping with keys of {list(_KEYS)}.")
    for key, value in given.items():
        if key not in _KEYS:
            raise ValueError(f"{file!r}: {place} has the key {key!r}; it may have {list(_KEYS)}.")
        fits, words = _KEYS[key]
        if not fits(value):
            raise ValueError(f"{file!r}: {place}, {key}={value!r} must be {words}.")
    return dict(given)


def _entry(given: object, place: str, file: Path) -> Definition:
    where = f"{file}, {place}"
    values = _checked(given, place, str(file))
    if "kind" not in values:
        raise ValueError(f"{where} has no kind; give one of {_names()}.")
    kind = _KINDS[_plain(values["kind"])]
    if alien := [key for key in values if key in _OF_KINDS and kind not in _OF_KINDS[key]]:
        raise ValueError(f"{where}: {alien[0]} belongs to {' and '.join(_OF_KINDS[alien[0]])}, not to {kind}. Drop it.")
    if {"max_document_to_embed", "max_fraction_of_documents_to_embed"} <= set(values):
        raise ValueError(f"{where}: max_document_to_embed and max_fraction_of_documents_to_embed exclude each other.")
    sources = _sources(values, kind, where, file.parent)
    name = values.get("name")
    if name is None:
        named = sources.get("all", sources.get("test"))
        if not isinstance(named, Path):
            raise ValueError(f"{where}: a task of several files needs a name, as name: questions.")
        name = _name_of(named)
    if "test_fraction" in values and "all" not in sources:
        raise ValueError(f"{where}: test_fraction={values['test_fraction']} is for one file, but test has its own.")
    language = values.get("language", UNKNOWN_LANGUAGE)
    return Definition(
        where,
        name,
        kind,
        sources,
        values.get("columns", {}),
        values.get("labels"),
        _LANGUAGES.get(language, language),
        values.get("limit"),
        values.get("bad_lines", "error"),
        values.get("main_score"),
        {key: value for key, value in values.items() if key in _SETTINGS},
        listed=True,
    )


def _sources(values: Mapping[str, Any], kind: str, where: str, folder: Path) -> dict[str, Source]:
    given = [key for key in ("file", "files", "train", "test") if key in values]
    pairs = (["file"], ["files"], ["train", "test"])
    if given not in pairs:
        raise ValueError(
            f"{where} has {given or 'no file'}; give file: PATH, or files: {{ROLE: PATH, …}}"
            f"{', or train: and test: both' if kind == 'Classification' else ''}."
        )
    known = [set(ROLES[kind]), *([set(PARTS)] if kind in ("Reranking", "Retrieval") else [])]

    def source(key: str) -> Source:
        value = values[key]
        if isinstance(value, str):
            return folder / value
        if set(value) not in known:
            needed = " or ".join(str(sorted(each)) for each in known)
            raise ValueError(f"{where}: {key} has {list(value)}, but {kind} needs {needed}.")
        return {role: folder / path for role, path in value.items()}

    if len(given) == 1:
        if isinstance(values[given[0]], str) != (given == ["file"]):
            raise ValueError(f"{where}: file is one path, as file: pairs.csv; files is a path a role.")
        return {"all": source(given[0])}
    return {"train": source("train"), "test": source("test")}


def _plain(kind: str) -> str:
    return re.sub(r"[\s_-]", "", kind).lower()


def _names() -> str:
    short = {kind: name for name, kind in _SHORT.items()}
    return ", ".join(f"{kind} ({short[kind]})" if kind in short else kind for kind in KINDS)


def _name_of(path: Path) -> str:
    whole = Path(os.path.abspath(path))
    return whole.name.removesuffix(whole.suffix)


# --- the keys


def _text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _texts(value: object) -> bool:
    return isinstance(value, dict) and bool(value) and all(_text(part) for pair in value.items() for part in pair)


def _labels(value: object) -> bool:
    return isinstance(value, dict) and all(
        isinstance(key, (str, int, float)) and isinstance(each, (str, int, float, type(None)))
        for key, each in value.items()
    )


_A_COUNT = (_count, "a whole number from 1 on")
_SETTINGS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "samples_per_label": _A_COUNT,
    "n_experiments": _A_COUNT,
    "test_fraction": (lambda value: _number(value) and 0 < value < 1, "a fraction between 0 and 1"),
    "max_document_to_embed": _A_COUNT,
    "max_fraction_of_documents_to_embed": (lambda value: _number(value) and 0 < value <= 1, "a fraction, up to 1"),
    "max_documents_per_cluster": _A_COUNT,
    "n_clusters": _A_COUNT,
    "k_mean_batch_size": _A_COUNT,
    "k_values": (
        lambda value: isinstance(value, list) and value and all(map(_count, value)),
        "a list of whole numbers, as [50, 200]",
    ),
}
_OF_KINDS = {
    "train": ("Classification",),
    "test": ("Classification",),
    **{key: ("Classification",) for key in ("samples_per_label", "n_experiments", "test_fraction")},
    **{key: ("Clustering",) for key in _SETTINGS if key.startswith(("max_", "n_clusters", "k_mean"))},
    "k_values": ("Reranking", "Retrieval"),
}
_A_SOURCE = (lambda value: _text(value) or _texts(value), "a path, or a path a role")
_KEYS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "name": (_text, "a text"),
    "kind": (lambda value: isinstance(value, str) and _plain(value) in _KINDS, f"one of {_names()}"),
    "file": (_text, "a path"),
    "files": (_texts, "a path a role, as {text: titles.txt, label: labels.txt}"),
    "train": _A_SOURCE,
    "test": _A_SOURCE,
    "columns": (_texts, "the name of a column by its role, as {text1: question}"),
    "labels": (_labels, "what stands for each label, as {entailment: 1, contradiction: 0, neutral: null}"),
    "language": (
        lambda value: isinstance(value, str) and (value in _LANGUAGES or re.fullmatch("[a-z]{3}-[A-Z][a-z]{3}", value)),
        "zh, en, or a language and a script as in eng-Latn",
    ),
    "limit": _A_COUNT,
    "bad_lines": (lambda value: value in get_args(BadLines), f"one of {list(get_args(BadLines))}"),
    "main_score": (_text, "one of the scores"),
    **_SETTINGS,
}
