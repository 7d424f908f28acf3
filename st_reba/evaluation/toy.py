"""Echo's toy structures: does an embedding tell what comes early in a sentence, and what comes late?"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from .task import Task, TextIndex, TextSpan
from .task_source import subsample

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

    def span(self, part: str) -> TextSpan:
        """The text, and where a part of it is, in characters."""
        text = self.early + self.joiner + self.late
        if part == "early":
            return text, (0, len(self.early))
        if part == "late":
            return text, (len(text) - len(self.late), len(text))
        return text, (0, len(text))


class Triple(NamedTuple):
    """A sentence, another one with the same meaning, and one with another meaning; and their topic."""

    topic: str
    anchor: Sentence
    positive: Sentence
    negative: Sentence


def toy_tasks(
    structures: Sequence[str] = STRUCTURES,
    languages: Sequence[str] = LANGUAGES,
    part: str = "whole",
    limit: int | None = None,
    seed: int = 0,
) -> list[Task]:
    """The toy structures as tasks: how often is cos(q, s+) > cos(q, s-)? docs/how-to/evaluate.md describes them.

    Args:
        structures, languages: Some of ``STRUCTURES``, numbered as in the paper's section 3.1, and
            of ``LANGUAGES``.
        part: Vector of a sentence: ``"whole"``: its embedding; ``"early"`` or ``"late"``: only
            the words of its part A or B. ``"early"`` in S3 shows whether early tokens hold the meaning
            of later ones: A is the same in all three sentences.
        limit: Number of triples of each structure and language to draw, of 120.
        seed: Seed of the people and times that go with a topic, and of the limit's draw.

    Returns:
        One task of triples per language and structure. Bootstraps draw whole topics, as the triples
        of a topic share their wording.

    Source:
        Echo, section 3.1, figure 2 (``"early"``: its panel C), tables 8 to 10. The sentences are
        this package's own.

    Example:
        >>> [task.name for task in toy_tasks(["S1", "S3"], ["en"], "early")]
        ['S1 en early', 'S3 en early']
    """
    tasks: list[Task] = []
    for language, structure in product(languages, structures):
        drawn_triples = subsample(triples(structure, language, seed=seed), limit, seed)
        tasks.append(_make_task(f"{structure} {language}", drawn_triples, part))
    return tasks


def _make_task(name: str, drawn_triples: Sequence[Triple], part: str) -> Task:
    sentences: TextIndex[TextSpan] = TextIndex()
    triple_items: list[tuple[int, ...]] = []
    topics: list[str] = []
    for topic, *triple in drawn_triples:
        triple_items.append(tuple(sentences.add(sentence.span(part)) for sentence in triple))
        topics.append(topic)
    texts, spans = zip(*sentences.texts, strict=True)
    if part == "whole":
        spans = ()
    else:
        name = f"{name} {part}"
    return Task(name, "Triples", texts, tuple(triple_items), spans=spans, groups=tuple(topics))


def toy_tasks_named(
    name: str,
    limit: int | None = None,
    seed: int = 0,
) -> list[Task]:
    """The toy structures that a name selects: ``"toy"``, ``"toy:S1"``, ``"toy:en"``, ``"toy:S3,early"``."""
    _, _, selection = name.partition(":")
    words = list(filter(None, selection.split(",")))
    structures = [word for word in words if word in STRUCTURES]
    languages = [word for word in words if word in LANGUAGES]
    parts = [word for word in words if word in PARTS]
    if len(parts) > 1 or len(words) > len(structures + languages + parts):
        choices = f"structures {', '.join(STRUCTURES)}, languages {', '.join(LANGUAGES)}, one of {', '.join(PARTS)}"
        raise ValueError(f"{name!r}: name {choices}.")
    part = parts[0] if parts else "whole"
    return toy_tasks(structures or STRUCTURES, languages or LANGUAGES, part, limit, seed)


def triples(
    structure: str,
    language: str,
    *,
    seed: int = 0,
) -> list[Triple]:
    """The 120 triples (q, s+, s-) of a structure, four of each topic."""
    path = Path(__file__).with_name(f"toy_{language}.yaml")
    wordings = yaml.safe_load(path.read_text(encoding="utf-8"))
    all_triples: list[Triple] = []
    for topic_number, topic in enumerate(wordings["topics"], 1):
        for person, time in _draw_pairs(wordings, topic_number, seed):
            writer = TripleWriter(wordings, topic, person, time)
            all_triples.append(writer.write(f"{language}-{topic_number:02}", structure))
    return all_triples


Words = Mapping[str, str]


def _draw_pairs(
    wordings: Mapping[str, Any],
    topic_number: int,
    seed: int,
) -> list[tuple[Words, Words]]:
    """Pairs of a person and a time; no person occurs twice."""

    def rank(pair: tuple[Words, Words]) -> bytes:
        person, time = pair
        return hashlib.sha256(
            f"{seed}:{topic_number}:{person['is']}:{time['is']}".encode()
        ).digest()

    pair_of_person: dict[str, tuple[Words, Words]] = {}
    for person, time in sorted(product(wordings["who"], wordings["when"]), key=rank):
        pair_of_person.setdefault(person["is"], (person, time))
    return list(pair_of_person.values())[:DRAWS]


@dataclass(frozen=True)
class TripleWriter:
    """Writes the sentences of a topic about a person and a time."""

    wordings: Mapping[str, Any]
    topic: Words
    person: Words
    time: Words

    def write(self, topic_name: str, structure: str) -> Triple:
        """The triple of a structure: in S1 the act comes last, and in S3 all three begin alike."""
        is_act_last = structure == "S1"
        act_layout = "act_last" if is_act_last else "act_first"
        act = self._fill(
            act_layout,
            who=self.person["is"],
            act=self.topic["act"],
            when=self.time["is"],
        )
        paraphrase = act
        if structure != "S3":
            paraphrase = self._fill(
                f"{act_layout}_again",
                who=self.person["again"],
                act=self.topic["act_again"],
                when=self.time["again"],
            )
        return Triple(
            topic_name,
            self._join(act, "detail", is_act_last),
            self._join(paraphrase, "again", is_act_last),
            self._join(act, "opposite", is_act_last),
        )

    def _fill(self, layout: str, **words: str) -> str:
        text: str = self.wordings["layouts"][layout].format(**words)
        return text

    def _join(
        self,
        act: str,
        detail_name: str,
        is_act_last: bool,
    ) -> Sentence:
        detail = self.topic[detail_name].format(their=self.person.get("their", ""))
        if is_act_last:
            early = self._fill("detail_first", detail=detail)
            late = act
        else:
            early = act
            late = self._fill("detail_last", detail=detail)
        return Sentence(early[:1].upper() + early[1:], late, self.wordings["joiner"])
