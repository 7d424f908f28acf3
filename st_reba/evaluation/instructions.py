"""Instructions that stand before a task's texts, as the papers list them or as a file says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..recipe import read_yaml

_FOLDER = Path(__file__).with_name("prompts")
_FIELD = "{instruction}"


@dataclass(frozen=True)
class Instructions:
    """Instructions before texts, by task.

    Args:
        name: Its name in results.
        tasks: Instructions by the task's name, "*" for all others: of queries and of texts that are neither query nor
            document; or a mapping with ``query`` and ``document``.
        query, document: How an instruction is written before such a text, unless the template has a field for it.

    Example:
        >>> instructions = Instructions("mine", {"STSB": "Say it."}, query="Instruct: {instruction}")
        >>> [instructions.before("STSB", role, has_field=False) for role in (None, "document")]
        ['Instruct: Say it.', None]
    """

    name: str = "none"
    tasks: Mapping[str, str | Mapping[str, str]] = field(default_factory=dict)
    query: str = _FIELD
    document: str = _FIELD

    def before(self, task: str, role: str | None, has_field: bool) -> str | None:
        """The instruction before a task's texts: as written, or alone where the template has a field for it."""
        found = self.tasks.get(task, self.tasks.get("*"))
        if isinstance(found, Mapping):
            found = found.get(role or "query")
        elif role == "document":
            found = None
        written = self.document if role == "document" else self.query
        return found if found is None or has_field else written.replace(_FIELD, found)


def read_instructions(source: Any) -> Instructions:
    """Read instructions.

    Args:
        source: ``"nosink"`` (table 3), ``"echo"`` (table 16), None or ``"none"``; or a YAML file or mapping of tasks
            and what stands before their texts, as ``STSB: …`` or ``STSB: {query: …, document: …}``. With the key
            ``tasks`` for these, ``query`` and ``document`` say how an instruction is written.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It does not hold instructions.
    """
    if isinstance(source, Instructions):
        return source
    if source is None or source == "none":
        return Instructions()
    name = "own"
    if not isinstance(source, Mapping):
        name, path = Path(source).stem, _FOLDER / f"{source}.yaml" if source in ("nosink", "echo") else Path(source)
        if not path.is_file():
            raise FileNotFoundError(f"prompts={str(source)!r} is neither nosink, echo or none, nor a YAML file.")
        source = read_yaml(path)
    whole = dict(source) if isinstance(source, Mapping) else {}
    ways, tasks = (whole, whole.pop("tasks")) if isinstance(whole.get("tasks"), Mapping) else ({}, whole)
    if not {*ways} <= {"query", "document"} or not all(_FIELD in str(each) for each in ways.values()):
        raise ValueError(f"prompts={name!r}: beside tasks stand query and document alone, texts with {_FIELD}.")
    texts = [one for each in tasks.values() for one in (each.values() if isinstance(each, Mapping) else [each])]
    if not texts or not all(isinstance(each, str) and each for each in texts):
        raise ValueError(f"prompts={name!r} must hold tasks and texts, as STSB: Retrieve semantically similar text.")
    return Instructions(name, tasks, **ways)
