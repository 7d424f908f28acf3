"""Echo's toy structures: does an embedding see what is said early in a sentence, and what is said late?"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from .tasks import Task, drawn

LANGUAGES = ("zh", "en")
PARTS = ("whole", "early", "late")
STRUCTURES = ("S1", "S2", "S3")
# People and times of each topic: 30 topics make 120 triples.
DRAWS = 4


class Sentence(NamedTuple):
    """A sentence in two parts: A, with the comma that ends it, and B, with ``joiner`` between them."""

    early: str
    late: str
    joiner: str = ""

    def span(self, part: str) -> tuple[str, tuple[int, int]]:
        """The text, and where a part stands in it, in characters."""
        text = self.early + self.joiner + self.late
        start, end = len(text) - len(self.late), len(text)
        return text, {"early": (0, len(self.early)), "late": (start, end), "whole": (0, end)}[part]


def toy_tasks(
    structures: Sequence[str] = STRUCTURES,
    languages: Sequence[str] = LANGUAGES,
    part: str = "whole",
    limit: int | None = None,
    seed: int = 0,
) -> list[Task]:
    """The toy structures as tasks: how often is cos(q, s+) > cos(q, s-)? docs/how-to/evaluate.md describes them.

    Args:
        structures, languages: Some of ``STRUCTURES``, numbered as in the paper's section 3.1, and of ``LANGUAGES``.
        part: Vector of a sentence: ``"whole"``: its embedding; ``"early"`` or ``"late"``: the words of its part A
            or B alone, where they stand. ``"early"`` in S3 shows whether early tokens hold what is said later: A is the
            same in all three sentences.
        limit: Use so many of the 120 triples of each structure and language.
        seed: Seed of the people and times that go with a topic, and of the limit's draw.

    Returns:
        A task of triples a language and structure. Bootstraps draw topics, whose triples share their wording.

    Source:
        Echo, section 3.1, figure 2 (``"early"``: its panel C), tables 8 to 10. The sentences are this package's own.

    Example:
        >>> [task.name for task in toy_tasks(["S1", "S3"], ["en"], "early")]
        ['S1 en early', 'S3 en early']
    """
    tasks = []
    for language, structure in product(languages, structures):
        place: dict[tuple[str, tuple[int, int]], int] = {}
        items, topics = [], []
        for topic, sentences in drawn(triples(structure, language, seed=seed), limit, seed):
            items.append(tuple(place.setdefault(each.span(part), len(place)) for each in sentences))
            topics.append(topic)
        name = f"{structure} {language}" + (f" {part}" if part != "whole" else "")
        texts, spans = zip(*place, strict=True)
        spans = () if part == "whole" else spans
        tasks.append(Task(name, "Triples", texts, tuple(items), spans=spans, groups=tuple(topics)))
    return tasks


def toy_tasks_named(word: str, limit: int | None = None, seed: int = 0) -> list[Task]:
    """The toy structures that a word names: ``"toy"``, ``"toy:S1"``, ``"toy:en"``, ``"toy:S3,early"``."""
    named = [each for each in word.partition(":")[2].split(",") if each]
    structures, languages, part = ([each for each in named if each in of] for of in (STRUCTURES, LANGUAGES, PARTS))
    if len(part) > 1 or len(named) > len(structures) + len(languages) + len(part):
        known = f"structures {', '.join(STRUCTURES)}, languages {', '.join(LANGUAGES)}, one of {', '.join(PARTS)}"
        raise ValueError(f"{word!r}: name {known}.")
    return toy_tasks(structures or STRUCTURES, languages or LANGUAGES, part[0] if part else "whole", limit, seed)


def triples(structure: str, language: str, *, seed: int = 0) -> list[tuple[str, tuple[Sentence, Sentence, Sentence]]]:
    """The 120 triples (q, s+, s-) of a structure, each with its topic, four of each topic."""
    words = yaml.safe_load(Path(__file__).with_name(f"toy_{language}.yaml").read_text(encoding="utf-8"))
    return [
        (f"{language}-{number:02}", _sentences(structure, words, topic, who, when))
        for number, topic in enumerate(words["topics"], 1)
        for who, when in _drawn(words, number, seed)
    ]


def _drawn(words: Mapping[str, Any], topic: int, seed: int) -> list[tuple[Any, Any]]:
    def rank(pair: Any) -> bytes:
        return hashlib.sha256(f"{seed}:{topic}:{pair[0]['is']}:{pair[1]['is']}".encode()).digest()

    chosen: dict[str, tuple[Any, Any]] = {}
    for who, when in sorted(product(words["who"], words["when"]), key=rank):
        chosen.setdefault(who["is"], (who, when))
    return list(chosen.values())[:DRAWS]


def _sentences(
    structure: str, words: Any, topic: Mapping[str, str], who: Mapping[str, str], when: Mapping[str, str]
) -> tuple[Sentence, Sentence, Sentence]:
    last, layouts = structure == "S1", words["layouts"]
    act_layout, detail_layout = ("act_last", "detail_first") if last else ("act_first", "detail_last")
    act = layouts[act_layout].format(who=who["is"], act=topic["act"], when=when["is"])
    again = layouts[f"{act_layout}_again"].format(who=who["again"], act=topic["act_again"], when=when["again"])

    def sentence(act: str, name: str) -> Sentence:
        detail = layouts[detail_layout].format(detail=topic[name].format(their=who.get("their", "")))
        early, late = (detail, act) if last else (act, detail)
        return Sentence(early[:1].upper() + early[1:], late, words["joiner"])

    return sentence(act, "detail"), sentence(act if structure == "S3" else again, "again"), sentence(act, "opposite")
