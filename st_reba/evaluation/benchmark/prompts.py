"""Instructions that stand before a task's texts, as the papers list them or as a file says."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

_FOLDER = Path(__file__).with_name("prompts")
_FIELD = "{instruction}"
NAMED = ("nosink", "echo")
NONE = "none"

Role = Literal["query", "document"]


@dataclass(frozen=True)
class Prompts:
    """What stands before texts, task by task.

    Args:
        name: What results call it.
        tasks: Instructions by mteb's name of the task: of queries and of texts that are neither query nor document; or
            a mapping with ``query`` and ``document``.
        query: How an instruction is written before a text, unless the template has a field of that name.
        document: The same, of documents.

    Example:
        >>> prompts = Prompts("mine", {"STSB": "Say it.", "ArguAna": {"query": "Ask.", "document": "Answer."}})
        >>> prompts.instruction("STSB"), prompts.instruction("STSB", "document"), prompts.instruction("BQ")
        ('Say it.', None, None)
    """

    name: str = NONE
    tasks: Mapping[str, str | Mapping[str, str]] = field(default_factory=dict)
    query: str = _FIELD
    document: str = _FIELD

    def instruction(self, task: str, role: Role | None = None) -> str | None:
        """The bare instruction for texts of a role (None: neither query nor document); None: there is none."""
        value = self.tasks.get(task)
        if value is None or isinstance(value, str):
            return value if role != "document" else None
        return value.get(role or "query")

    def written(self, instruction: str, role: Role | None = None) -> str:
        """An instruction as it stands before a text."""
        return (self.document if role == "document" else self.query).replace(_FIELD, instruction)

    def of(self, tasks: list[str]) -> dict[str, Any]:
        """What scores on tasks depend on; nothing where none of them has an instruction."""
        found = {task: self.tasks[task] for task in tasks if self.tasks.get(task)}
        return {"tasks": found, "query": self.query, "document": self.document} if found else {}


def read_prompts(word: str) -> Prompts:
    """Read the instructions that people name.

    Args:
        word: ``"nosink"`` (table 3), ``"echo"`` (table 16), ``"none"``, or a YAML file: tasks and their instructions,
            as ``STSB: …`` or ``STSB: {query: …, document: …}``, which stand before the texts as they are. With the key
            ``tasks`` for these, ``query`` and ``document`` say how an instruction is written.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is none of instructions.

    Example:
        >>> read_prompts("nosink").instruction("SciFact")
        'Given a scientific claim, retrieve documents that support or refute the claim.'
    """
    if word == NONE:
        return Prompts()
    named = word in NAMED
    path = _FOLDER / f"{word}.yaml" if named else Path(word)
    if not path.is_file():
        raise FileNotFoundError(
            f"prompts={word!r} is neither one of {[*NAMED, NONE]} nor a file. Give a YAML file of tasks and texts."
        )
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not a YAML file in UTF-8 ({error}).") from None
    whole = _whole(values, str(path))
    name = word
    if not named:
        text = json.dumps(whole, sort_keys=True, ensure_ascii=False)
        name = f"{path.stem}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"
    return Prompts(name, **whole)


def _whole(values: Any, source: str) -> dict[str, Any]:
    """A file's content as arguments of Prompts, each of which is checked."""
    if not isinstance(values, dict) or not values:
        raise ValueError(f"{source}: holds no tasks. Write lines such as STSB: Retrieve semantically similar text.")
    whole = values if isinstance(values.get("tasks"), dict) else {"tasks": values}
    if unknown := sorted(set(whole) - {"tasks", "query", "document"}):
        raise ValueError(f"{source}: {unknown[0]!r} is not known beside tasks, query and document.")
    for role in ("query", "document"):
        if role in whole and (not isinstance(whole[role], str) or _FIELD not in whole[role]):
            raise ValueError(f"{source}: {role}={whole[role]!r} must be text with {_FIELD} in it.")
    for task, value in whole["tasks"].items():
        texts = list(value.values()) if isinstance(value, dict) and set(value) <= {"query", "document"} else [value]
        if not isinstance(task, str) or not texts or not all(isinstance(text, str) and text for text in texts):
            raise ValueError(f"{source}: {task!r}: {value!r} must be a text, or texts for query and document.")
    return whole
