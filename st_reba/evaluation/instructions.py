"""Instructions that stand before a task's texts, as the papers list them or as a file says."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from sentence_transformers import SentenceTransformer

from ..encode import PROMPT_NAMES, Task

_FOLDER = Path(__file__).with_name("prompts")
_FIELD = "{instruction}"
NAMED = ("nosink", "echo")
NONE = "none"


@dataclass(frozen=True)
class Instructions:
    """What stands before texts, task by task.

    Args:
        name: What results call it.
        tasks: Instructions by the name of the task, "*" for all others: of queries and of texts that are neither query
            nor document; or a mapping with ``query`` and ``document``.
        query: How an instruction is written before a text, unless the template has a field of that name.
        document: The same, of documents.

    Example:
        >>> instructions = Instructions("mine", {"STSB": "Say it.", "ArguAna": {"document": "Answer."}})
        >>> instructions.of("STSB"), instructions.of("STSB", "document"), instructions.of("BQ")
        ('Say it.', None, None)
    """

    name: str = NONE
    tasks: Mapping[str, str | Mapping[str, str]] = field(default_factory=dict)
    query: str = _FIELD
    document: str = _FIELD

    def of(self, task: str, role: Task | None = None) -> str | None:
        """The bare instruction for texts of a role (None: neither query nor document); None: there is none."""
        value = self.tasks.get(task, self.tasks.get("*"))
        if value is None or isinstance(value, str):
            return value if role != "document" else None
        return value.get(role or "query")

    def before(self, task: str, role: Task | None, model: SentenceTransformer) -> str | None:
        """What stands before a task's texts: the instruction as written, or alone where a template has a field.

        Where there is none, it is the model's saved prompt, if it has one.
        """
        found = self.of(task, role)
        if found is None:
            names = (*PROMPT_NAMES.get(role or "", ()), model.default_prompt_name)
            return next((model.prompts[name] for name in names if name in model.prompts), None)
        fields = getattr(model[0], "fields", None)
        # Without a role, whoever gives an instruction means a query's template.
        if fields is not None and any("instruction" in fields(each) for each in ([role] if role else [None, "query"])):
            return found
        return (self.document if role == "document" else self.query).replace(_FIELD, found)

    def concerning(self, tasks: Sequence[str]) -> dict[str, Any]:
        """What scores on tasks depend on; nothing where none of them has an instruction."""
        found = {task: value for task in tasks if (value := self.tasks.get(task, self.tasks.get("*")))}
        return {"tasks": found, "query": self.query, "document": self.document} if found else {}


def read_instructions(word: str) -> Instructions:
    """Read the instructions that people name.

    Args:
        word: ``"nosink"`` (table 3), ``"echo"`` (table 16), ``"none"``, or a YAML file: tasks and their instructions,
            as ``STSB: …`` or ``STSB: {query: …, document: …}``, which stand before the texts as they are. With the key
            ``tasks`` for these, ``query`` and ``document`` say how an instruction is written.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is none of instructions.

    Example:
        >>> read_instructions("nosink").of("SciFact")
        'Given a scientific claim, retrieve documents that support or refute the claim.'
    """
    if word == NONE:
        return Instructions()
    path = _FOLDER / f"{word}.yaml" if word in NAMED else Path(word)
    if not path.is_file():
        raise FileNotFoundError(
            f"prompts={word!r} is neither one of {[*NAMED, NONE]} nor a file. Give a YAML file of tasks and texts."
        )
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not a YAML file in UTF-8 ({error}).") from None
    whole = _whole(values, str(path))
    text = json.dumps(whole, sort_keys=True, ensure_ascii=False)
    own = f"{path.stem}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"
    return Instructions(word if word in NAMED else own, **whole)


def _whole(values: Any, source: str) -> dict[str, Any]:
    """A file's content as arguments of Instructions, each of which is checked."""
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
