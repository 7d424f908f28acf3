"""Triples (q, s+, s-) whose early or late part alone tells s+ from s-, put together from a word list."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Literal

import yaml

Part = Literal["whole", "early", "late"]

LANGUAGES = ("zh", "en")
# q = [A, B] always; what stands at A and at B in s+ and in s-.
STRUCTURES: Mapping[str, str] = {
    "S1": "s+ = [A+, B+], s- = [A-, B]",
    "S2": "s+ = [A+, B+], s- = [A, B-]",
    "S3": "s+ = [A, B+], s- = [A, B-]",
}
# Of each topic, so many people and times: 30 topics make 120 triples.
DRAWS = 4


@dataclass(frozen=True)
class Sentence:
    """A sentence in two parts.

    Args:
        early: A, with the comma that ends it.
        late: B.
        joiner: What stands between them.
    """

    early: str
    late: str
    joiner: str = ""

    @property
    def text(self) -> str:
        """The whole sentence."""
        return self.early + self.joiner + self.late

    def span(self, part: Part) -> tuple[int, int]:
        """Where ``"early"``, ``"late"`` or ``"whole"`` stands in the text, in characters."""
        end = len(self.text)
        return {"early": (0, len(self.early)), "late": (end - len(self.late), end), "whole": (0, end)}[part]


@dataclass(frozen=True)
class Triple:
    """A query, a sentence that means the same, and one that does not.

    Args:
        id: Its name, as ``"S2-en-07-1"``.
        structure: ``"S1"``, ``"S2"`` or ``"S3"``.
        language: ``"zh"`` or ``"en"``.
        topic: Triples of the same topic share their wording but for the person and the time.
        query: q.
        positive: s+.
        negative: s-.
    """

    id: str
    structure: str
    language: str
    topic: str
    query: Sentence
    positive: Sentence
    negative: Sentence

    @property
    def sentences(self) -> tuple[Sentence, Sentence, Sentence]:
        """q, s+, s-."""
        return self.query, self.positive, self.negative


def triples(structure: str, language: str, *, seed: int = 0) -> tuple[Triple, ...]:
    """The triples of a structure.

    =========  ==============================  ==================================  ====================================
    structure  q                               s+: the same in other words         s-: shares a part, and differs in it
    =========  ==============================  ==================================  ====================================
    S1         [A, B]: detail, act             [A+, B+]                            [A-, B]: the early part tells
    S2         [A, B]: act, detail             [A+, B+]                            [A, B-]: the late part tells
    S3         [A, B]: act, detail             [A, B+]: A stays as it is           [A, B-]: the late part tells
    =========  ==============================  ==================================  ====================================

    S1 and S2 are made of the same acts and details in the opposite order, so that they differ in nothing but where the
    telling part stands. The paper numbers them so in section 3.1; its tables 8 and 9 the other way round.

    Args:
        structure: ``"S1"``, ``"S2"`` or ``"S3"``.
        language: ``"zh"`` or ``"en"``.
        seed: Which people and times go with a topic.

    Returns:
        120 triples, four of each topic, in the order of the topics.

    Raises:
        ValueError: There is no such structure or language.

    Source:
        Echo, section 3.1 and tables 8 to 10 (structure only; the sentences are this package's own).

    Example:
        >>> one = triples("S3", "en")[0]
        >>> one.query.early == one.positive.early == one.negative.early
        True
        >>> len(triples("S1", "zh"))
        120
    """
    if structure not in STRUCTURES:
        raise ValueError(f"structure={structure!r} is not known: choose one of {list(STRUCTURES)}.")
    if language not in LANGUAGES:
        raise ValueError(f"language={language!r} is not known: choose one of {list(LANGUAGES)}.")
    words = _words(language)
    made = []
    for number, topic in enumerate(words["topics"], 1):
        for draw, (who, when) in enumerate(_drawn(words, number, seed), 1):
            query, positive, negative = _sentences(structure, words, topic, who, when)
            name = f"{language}-{number:02}"
            made.append(Triple(f"{structure}-{name}-{draw}", structure, language, name, query, positive, negative))
    return tuple(made)


@cache
def _words(language: str) -> dict[str, Any]:
    words: dict[str, Any] = yaml.safe_load((Path(__file__).parent / f"{language}.yaml").read_text(encoding="utf-8"))
    return words


def _drawn(words: Mapping[str, Any], topic: int, seed: int) -> list[tuple[Mapping[str, str], Mapping[str, str]]]:
    """People and times of a topic, the same in every structure; no person twice."""

    def rank(pair: tuple[Mapping[str, str], Mapping[str, str]]) -> bytes:
        return hashlib.sha256(f"{seed}:{topic}:{pair[0]['is']}:{pair[1]['is']}".encode()).digest()

    chosen: dict[str, tuple[Mapping[str, str], Mapping[str, str]]] = {}
    for who, when in sorted(product(words["who"], words["when"]), key=rank):
        chosen.setdefault(who["is"], (who, when))
    return list(chosen.values())[:DRAWS]


def _sentences(
    structure: str,
    words: Mapping[str, Any],
    topic: Mapping[str, str],
    who: Mapping[str, str],
    when: Mapping[str, str],
) -> Sequence[Sentence]:
    """q, s+ and s-."""
    place = "last" if structure == "S1" else "first"
    layouts = words["layouts"]
    act = layouts[f"act_{place}"].format(who=who["is"], act=topic["act"], when=when["is"])
    act_again = layouts[f"act_{place}_again"].format(who=who["again"], act=topic["act_again"], when=when["again"])
    detail, detail_again, opposite = (
        layouts["detail_first" if place == "last" else "detail_last"].format(
            detail=topic[name].format(their=who.get("their", ""))
        )
        for name in ("detail", "again", "opposite")
    )

    def joined(one: str, other: str) -> Sentence:
        early, late = (other, one) if place == "last" else (one, other)
        return Sentence(early[:1].upper() + early[1:], late, words["joiner"])

    return (
        joined(act, detail),
        joined(act if structure == "S3" else act_again, detail_again),
        joined(act, opposite),
    )
