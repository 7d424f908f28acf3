"""Templates drawn at random: other words, punctuation and capitals, the same structure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

# A method's group of instructions; who repeats a text asks for a repetition.
_GROUPS = {
    "classical": "classical",
    "nosink": "classical",
    "prompteol": "prompteol",
    "echo": "repeating",
    "reba": "repeating",
}
# So many draws in vain, one after another, say that hardly a template is left.
_PATIENCE = 200


def sample_templates(method: str, count: int, *, seed: int = 0, language: str = "en", repeats: int = 2) -> list[str]:
    """Draw templates for a method.

    Args:
        method: ``"classical"``, ``"nosink"``, ``"echo"``, ``"reba"`` or ``"prompteol"``; echo and reba share theirs, so
            that they are compared on the same ones, as do classical and nosink.
        count: How many, all different; the first ones do not depend on it.
        seed: Of the draws: the same one gives the same templates, with any version of anything.
        language: ``"en"`` or ``"zh"``.
        repeats: Copies of the text (echo, reba).

    Returns:
        Templates for :func:`st_reba.build`.

    Raises:
        ValueError: An unknown method or language, or more templates than there are.

    Source:
        Echo, appendix D (the procedure; the words are this project's own).

    Example:
        >>> sample_templates("echo", 2, language="zh")[0].count("{text}")
        2
    """
    if method not in _GROUPS:
        raise ValueError(f"method={method!r} takes no template: choose one of {sorted(_GROUPS)}.")
    if language not in _words():
        raise ValueError(f"language={language!r} is not known: choose one of {sorted(_words())}.")
    for name, value, least in (("count", count, 1), ("repeats", repeats, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name}={value!r} must be a whole number from {least} on.")
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
    text = files(__package__).joinpath("templates.yaml").read_text(encoding="utf-8")
    words: dict[str, Any] = yaml.safe_load(text)
    return words


def _draw(group: str, words: dict[str, Any], repeats: int, purpose: str) -> str:
    def choose(part: str, options: Sequence[Any]) -> Any:
        # A hash in place of a generator, whose numbers could change with its library.
        digest = hashlib.sha256(f"{purpose}:{part}".encode()).digest()
        return options[int.from_bytes(digest[:8], "big") % len(options)]

    capitals = choose("capitals", words["capitals"])
    gap = words["gap"]

    def styled(text: str) -> str:
        return text.title() if capitals == "title" else text.upper() if capitals == "upper" else text

    verb = choose("verb", list(words["instructions"][group]))
    instruction = styled(verb + gap + choose("object", words["instructions"][group][verb]))
    separator = choose("separator", words["separators"])
    # A line break is its own gap.
    after = "" if separator.endswith("\n") else gap
    markers = choose("markers", words["markers"])
    names = choose("name", words["names"]), choose("name again", words["names_again"])

    def prefix(copy: int) -> str:
        words_before = [styled(names[min(copy, 1)]), markers[min(copy, 1)]]
        return "".join(word + gap for word in words_before if word)

    template: str = instruction + separator + after + prefix(0) + "{text}"
    if group == "prompteol":
        template += gap + styled(choose("one word", words["one_word"])) + separator.rstrip("\n")
    if group == "repeating":
        for copy in range(1, repeats):
            template += separator + after + prefix(copy) + "{text}"
    return template
