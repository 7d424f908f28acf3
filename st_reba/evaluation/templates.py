"""Templates drawn at random: other words, punctuation and capitals, the same structure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

# A method's group of instructions. Methods of one group share their templates, so that they are compared on the same.
_GROUPS = {
    "classical": "classical",
    "nosink": "classical",
    "prompteol": "prompteol",
    "echo": "repeating",
    "reba": "repeating",
}
# So many draws in vain, one after another, say that hardly a template is left.
_PATIENCE = 200


def drawn_templates(method: str, count: int, *, language: str = "en", seed: int = 0, repeats: int = 2) -> list[str]:
    """Draw templates for a method.

    Args:
        method: ``"classical"``, ``"nosink"``, ``"echo"``, ``"reba"`` or ``"prompteol"``. Echo and ReBA share theirs, as
            do classical and NoSink.
        count: How many, all different; the first ones do not depend on it.
        language: ``"en"`` or ``"zh"``.
        seed: Of the draws: the same one gives the same templates, with any version of any library.
        repeats: Copies of the text (Echo, ReBA).

    Returns:
        Templates for :func:`st_reba.build`.

    Raises:
        ValueError: An unknown method or language, or more templates than there are.

    Source:
        Echo, appendix D (the procedure; the words are this project's own).

    Example:
        >>> drawn_templates("echo", 2, language="zh")[0].count("{text}")
        2
    """
    if method not in _GROUPS:
        raise ValueError(f"method={method!r} takes no template: choose one of {sorted(_GROUPS)}.")
    if language not in _words():
        raise ValueError(f"language={language!r} is not known: choose one of {sorted(_words())}.")
    for name, value in (("count", count), ("repeats", repeats)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name}={value!r} must be a whole number from 1 on.")
    group = _GROUPS[method]
    found: dict[str, None] = {}
    number = last_found = 0
    while len(found) < count:
        if number - last_found > _PATIENCE:
            raise ValueError(f"count={count}: there are only about {len(found)} such templates. Ask for fewer.")
        template = _draw(group, _words()[language], repeats, f"{seed}:{language}:{group}:{number}")
        if template not in found:
            found[template] = None
            last_found = number
        number += 1
    return list(found)


@cache
def _words() -> dict[str, Any]:
    words: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    return words


def _draw(group: str, words: dict[str, Any], repeats: int, purpose: str) -> str:
    def choose(part: str, options: Sequence[Any]) -> Any:
        # A hash in place of a generator, whose numbers could change with its library.
        digest = hashlib.sha256(f"{purpose}:{part}".encode()).digest()
        return options[int.from_bytes(digest[:8], "big") % len(options)]

    capitals = choose("capitals", words["capitals"])
    gap: str = words["gap"]

    def styled(text: str) -> str:
        return text.title() if capitals == "title" else text.upper() if capitals == "upper" else text

    verb = choose("verb", list(words["instructions"][group]))
    instruction = styled(verb + gap + choose("object", words["instructions"][group][verb]))
    separator: str = choose("separator", words["separators"])
    # A line break is its own gap.
    after = "" if separator.endswith("\n") else gap
    markers = choose("markers", words["markers"])
    names = choose("name", words["names"]), choose("name again", words["names_again"])

    def copy(number: int) -> str:
        before = (styled(names[min(number, 1)]), markers[min(number, 1)])
        return separator + after + "".join(word + gap for word in before if word) + "{text}"

    template: str = instruction + copy(0)
    if group == "repeating":
        template += "".join(map(copy, range(1, repeats)))
    if group == "prompteol":
        template += gap + styled(choose("one word", words["one_word"])) + separator.rstrip("\n")
    return template
