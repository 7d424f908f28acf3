"""Instructions before a task's texts, as the papers list them or as a file gives them."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..recipe import read_yaml

logger = logging.getLogger(__name__)

TaskInstructions = Mapping[str, str | Mapping[str, str]]
_FOLDER = Path(__file__).with_name("prompts")
_FIELD = "{instruction}"


@dataclass(frozen=True)
class Instructions:
    """Instructions before texts, by task.

    Args:
        name: Its name in results.
        tasks: By task name ("*": all others), an instruction for queries and for texts that are
            neither query nor document; or a mapping with ``query`` and ``document``.
        query, document: How an instruction is written before such a text, unless the template has a
            field for it.

    Raises:
        ValueError: There are no instructions, or no field for them.

    Example:
        >>> instructions = Instructions("mine", {"STSB": "Say it."}, query="Instruct: {instruction}")
        >>> [instructions.before("STSB", role, has_field=False) for role in (None, "document")]
        ['Instruct: Say it.', None]
    """

    name: str = "none"
    tasks: TaskInstructions = field(default_factory=dict)
    query: str = _FIELD
    document: str = _FIELD

    def __post_init__(self) -> None:
        for wording in (self.query, self.document):
            if _FIELD not in str(wording):
                raise ValueError(
                    f"prompts={self.name!r}: query and document are texts with {_FIELD}."
                )
        for instruction in self.tasks.values():
            texts = (
                list(instruction.values()) if isinstance(instruction, Mapping) else [instruction]
            )
            if not texts or not all(isinstance(text, str) and text for text in texts):
                example = "STSB: Retrieve semantically similar text."
                raise ValueError(
                    f"prompts={self.name!r} must hold tasks and texts, such as {example}"
                )

    def for_task(self, task: str) -> Instructions:
        """These, or none, with a warning, if they hold nothing for a task."""
        if not self.tasks or task in self.tasks or "*" in self.tasks:
            return self
        known_tasks = ", ".join(list(self.tasks)[:10])
        logger.warning(
            "prompts=%r holds no instruction for %r, but for %s. Name the table's file so, or give one for '*'.",
            self.name,
            task,
            known_tasks,
        )
        return Instructions()

    def before(
        self,
        task: str,
        role: str | None,
        has_field: bool,
    ) -> str | None:
        """The instruction before a task's texts: in its wording, or bare where the template has a field for it."""
        instruction = self.tasks.get(task, self.tasks.get("*"))
        if isinstance(instruction, Mapping):
            instruction = instruction.get(role or "query")
        elif role == "document":
            return None
        if instruction is None or has_field:
            return instruction
        wording = self.document if role == "document" else self.query
        return wording.replace(_FIELD, instruction)


def read_instructions(
    source: Instructions | TaskInstructions | str | os.PathLike[str] | None,
) -> Instructions:
    """Read instructions.

    Args:
        source: ``"nosink"`` (table 3), ``"echo"`` (table 16), None or ``"none"``; or a YAML file or
            mapping of tasks and the instructions before their texts, such as ``STSB: …`` or
            ``STSB: {query: …, document: …}``. With the key ``tasks`` for these, ``query`` and ``document``
            say how an instruction is written.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It does not hold instructions.
    """
    if isinstance(source, Instructions):
        return source
    if source is None or source == "none":
        return Instructions()
    if isinstance(source, Mapping):
        return _parse_instructions("own", source)
    path = Path(source)
    if source in ("nosink", "echo"):
        path = _FOLDER / f"{source}.yaml"
    if not path.is_file():
        raise FileNotFoundError(
            f"prompts={str(source)!r} is neither nosink, echo or none, nor a YAML file."
        )
    return _parse_instructions(path.stem, read_yaml(path))


def _parse_instructions(name: str, content: object) -> Instructions:
    if not isinstance(content, Mapping) or not content:
        raise ValueError(
            f"prompts={name!r} must hold tasks and texts, such as STSB: Retrieve semantically similar text."
        )
    if not isinstance(content.get("tasks"), Mapping):
        return Instructions(name, content)
    unknown_keys = content.keys() - {"tasks", "query", "document"}
    if unknown_keys or not content["tasks"]:
        raise ValueError(
            f"prompts={name!r}: besides tasks, the only keys are query and document, texts with {_FIELD}."
        )
    return Instructions(name, **content)
