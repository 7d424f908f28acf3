"""What a request asks for, checked field by field: an unknown one is an error, never ignored."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..corpus.records import clean_text
from ..encode import Task
from .errors import Refusal

# Those that ask for a kind by another word are the services that first had this field.
_INPUT_TYPES: dict[str, Task] = {"query": "query", "document": "document", "passage": "document"}
_MAX_RESULTS = 1000


@dataclass(frozen=True)
class Wanted:
    """Vectors of texts."""

    texts: list[str]
    task: Task | None
    dimensions: int | None
    base64: bool


@dataclass(frozen=True)
class Sought:
    """Documents for queries; ``single``: there was one text, not a list."""

    texts: list[str]
    single: bool
    k: int
    where: dict[str, Any] | None
    ids_only: bool


def read_json(body: bytes) -> dict[str, Any]:
    """The object that a body holds."""
    try:
        given = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"The body is no JSON ({error}).") from None
    if not isinstance(given, dict):
        raise Refusal(400, "The body must be a JSON object.")
    return given


def wanted(given: Mapping[str, Any], name: str, dimension: int) -> Wanted:
    """A request of ``/v1/embeddings``.

    Args:
        given: Its JSON.
        name: What the model is called here.
        dimension: Of its vectors.

    Example:
        >>> wanted({"input": "a cat", "model": "m:query", "dimensions": 2}, "m", 8)
        Wanted(texts=['a cat'], task='query', dimensions=2, base64=False)
    """
    _check_names(given, ("input", "model", "dimensions", "encoding_format", "user", "input_type"))
    texts, _ = _texts(given, "input")
    form = given.get("encoding_format")
    if form not in (None, "float", "base64"):
        raise Refusal(400, f"encoding_format={form!r}: give 'float' or 'base64'.", "encoding_format")
    cut = given.get("dimensions")
    if cut is not None and (type(cut) is not int or not 1 <= cut <= dimension):
        raise Refusal(400, f"dimensions={cut!r}: give a whole number from 1 to {dimension}.", "dimensions")
    user = given.get("user")
    if user is not None and not isinstance(user, str):
        raise Refusal(400, "user must be a string.", "user")
    return Wanted(texts, task_of(given, name), cut, form == "base64")


def sought(given: Mapping[str, Any]) -> Sought:
    """A request of ``/v1/search``.

    Example:
        >>> sought({"query": "a cat", "where": {"lang": "en"}}).k
        10
    """
    _check_names(given, ("query", "k", "where", "ids_only"))
    texts, single = _texts(given, "query")
    if not all(text.strip() for text in texts):
        raise Refusal(400, "A query is empty: give it a text, or leave it out.", "query")
    k, where, ids_only = given.get("k", 10), given.get("where"), given.get("ids_only", False)
    if type(k) is not int or not 1 <= k <= _MAX_RESULTS:
        raise Refusal(400, f"k={k!r}: give a whole number from 1 to {_MAX_RESULTS}.", "k")
    if where is not None and not isinstance(where, dict):
        raise Refusal(400, 'where must be an object, as {"lang": "zh", "year": {">=": 2020}}.', "where")
    if not isinstance(ids_only, bool):
        raise Refusal(400, "ids_only must be true or false.", "ids_only")
    return Sought([clean_text(text) for text in texts], single, k, where, ids_only)


def task_of(given: Mapping[str, Any], name: str) -> Task | None:
    """Whose prompt is meant: the model is called NAME, NAME:query or NAME:document, or ``input_type`` says it."""
    asked, kind = given.get("model", name), given.get("input_type")
    if kind is not None and kind not in _INPUT_TYPES:
        raise Refusal(400, f"input_type={kind!r}: give 'query' or 'document'.", "input_type")
    task = None if kind is None else _INPUT_TYPES[kind]
    names: dict[Any, Task | None] = {name: None, f"{name}:query": "query", f"{name}:document": "document"}
    if not isinstance(asked, str) or asked not in names:
        raise Refusal(404, f"There is no model {asked!r} here, but {', '.join(names)}.", "model", "model_not_found")
    if task is not None and names[asked] not in (None, task):
        raise Refusal(400, f"model={asked!r} and input_type={kind!r} exclude each other: drop one.", "input_type")
    return task or names[asked]


def _check_names(given: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for name in given:
        if name not in known:
            raise Refusal(400, f"{name!r} is not known here. Known are: {', '.join(known)}.", str(name))


def _texts(given: Mapping[str, Any], field: str) -> tuple[list[str], bool]:
    value = given.get(field)
    if isinstance(value, str):
        return [_well_formed(value, field)], True
    if isinstance(value, list) and value:
        if all(isinstance(one, str) for one in value):
            return [_well_formed(one, field) for one in value], False
        if all(isinstance(one, (int, list)) for one in value):
            raise Refusal(
                400,
                f"{field} holds token ids. Ids of another model's tokenizer would give wrong vectors: send the texts "
                "themselves (LangChain: check_embedding_ctx_length=False).",
                field,
            )
    raise Refusal(400, f"{field} must be a string, or a list of strings that is not empty.", field)


def _well_formed(text: str, field: str) -> str:
    if re.search("[\ud800-\udfff]", text):
        raise Refusal(400, f"{field}: {text[:20]!r} holds half a character (a lone surrogate).", field)
    return text
