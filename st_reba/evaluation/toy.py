"""Does an embedding see what is said early in a sentence, and what is said late? Echo's toy structures."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
import yaml
from sentence_transformers import SentenceTransformer

from ..optional import required
from ..words import encode_word_layers
from .data import Task
from .encoding import Prompts, check_usable
from .figures import new_figure
from .items import Rows, Triples, Vectors
from .reading import shuffled
from .statistics import Evidence

Part = Literal["whole", "early", "late"]
Words = Mapping[str, str]

LANGUAGES = ("zh", "en")
# q = [A, B] always; what stands at A and at B in s+ and in s-.
STRUCTURES: Mapping[str, str] = {
    "S1": "s+ = [A+, B+], s- = [A-, B]",
    "S2": "s+ = [A+, B+], s- = [A, B-]",
    "S3": "s+ = [A, B+], s- = [A, B-]",
}
# Of each topic, so many people and times: 30 topics make 120 triples.
DRAWS = 4
_BINS = 24
# Colours that people with any colour vision tell apart; the hatching does it in print.
_STYLES = (("cos(q, s+)", "#0072B2", ""), ("cos(q, s-)", "#D55E00", "///"))


class Sentence(NamedTuple):
    """A sentence in two parts: A, with the comma that ends it, and B, with ``joiner`` between them."""

    early: str
    late: str
    joiner: str = ""

    @property
    def text(self) -> str:
        return self.early + self.joiner + self.late

    def span(self, part: Part) -> tuple[int, int]:
        """Where a part stands in the text, in characters."""
        end = len(self.text)
        return {"early": (0, len(self.early)), "late": (end - len(self.late), end), "whole": (0, end)}[part]


class Triple(NamedTuple):
    """A query q, a sentence s+ that means the same, and a sentence s- that does not.

    Triples of one ``topic`` share their wording, except for the person and the time; an ``id`` is as ``"S2-en-07-1"``.
    """

    id: str
    topic: str
    sentences: tuple[Sentence, Sentence, Sentence]


@dataclass(frozen=True)
class Toy(Triples):
    """Items (q, s+, s-), or of a part of the sentences (q, s+, s-, and where this part stands in each of them).

    The vector of a part is the mean over its tokens, whatever the model's pooling.
    """

    kind: ClassVar[str] = "Toy structures"

    def vectors(self, model: SentenceTransformer, *, prompts: Prompts | None = None, **options: Any) -> Vectors:
        spans = {place: span for item in self.items for place, span in zip(item[:3], item[3:], strict=False)}
        if not spans:
            return super().vectors(model, prompts=prompts, **options)
        words = [(text, spans[place]) for place, text in enumerate(self.texts)]
        prompt = None if prompts is None else prompts.of(None)
        found: Vectors = encode_word_layers(model, words, "last", prompt=prompt, **options)[0]
        check_usable(found, self.texts)
        return found

    def evidence(self, vectors: Vectors, rows: Rows | None = None, learn: Rows | None = None) -> Evidence:
        return Triples(self.texts, tuple(item[:3] for item in self.items)).evidence(vectors, rows)


def toy_tasks(
    structures: Sequence[str] = tuple(STRUCTURES),
    languages: Sequence[str] = LANGUAGES,
    part: Part = "whole",
    limit: int | None = None,
    seed: int = 0,
) -> list[Task]:
    """The toy structures as tasks: how often is cos(q, s+) > cos(q, s-)?

    =========  ======================  ============================  =========================================
    structure  q                       s+: the same in other words   s-: one part is the same, the other differs
    =========  ======================  ============================  =========================================
    S1         [A, B]: detail, act     [A+, B+]                      [A-, B]: the early part tells
    S2         [A, B]: act, detail     [A+, B+]                      [A, B-]: the late part tells
    S3         [A, B]: act, detail     [A, B+]: A stays as it is     [A, B-]: the late part tells
    =========  ======================  ============================  =========================================

    S1 and S2 are made of the same acts and details in the opposite order, so that they differ only in where the telling
    part stands. The paper numbers them so in section 3.1; its tables 8 and 9 the other way round.

    Args:
        structures: Which of ``"S1"``, ``"S2"``, ``"S3"``.
        languages: Which of ``"zh"``, ``"en"``.
        part: What stands for a sentence: ``"whole"``: its embedding; ``"early"`` or ``"late"``: the words of its part A
            or B alone, where they stand (:func:`st_reba.encode_words`). ``"early"`` in S3 shows whether early tokens
            hold what is said later: A is the same in all three sentences.
        limit: Use so many of the 120 triples of each structure and language, drawn by the seed.
        seed: Of the people and times that go with a topic, and of the limit's draw.

    Returns:
        A task a language and structure, such as ``"S1 zh"`` or ``"S1 zh early"``. Intervals are drawn over topics.

    Raises:
        ValueError: There is no such structure, language or part, or one stands twice.

    Source:
        Echo, section 3.1, figure 2 (``"early"``: its panel C), tables 8 to 10. The sentences are this package's own.

    Example:
        >>> [task.name for task in toy_tasks(["S1", "S3"], ["en"], "early")]
        ['S1 en early', 'S3 en early']
        >>> str(toy_tasks(languages=["zh"], limit=40)[0])
        'S1 zh: Toy structures, 40 items (s+ = [A+, B+], s- = [A-, B])'
    """
    _check("structures", structures, tuple(STRUCTURES))
    _check("languages", languages, LANGUAGES)
    _check("part", [part], get_args(Part))
    tasks = []
    for language, structure in product(languages, structures):
        made = triples(structure, language, seed=seed)
        if limit is not None:
            made = [made[row] for row in sorted(shuffled(range(len(made)), seed, "sample")[:limit])]
        place = {text: n for n, text in enumerate(dict.fromkeys(one.text for each in made for one in each.sentences))}
        items = []
        for each in made:
            spans = () if part == "whole" else tuple(one.span(part) for one in each.sentences)
            items.append((*(place[one.text] for one in each.sentences), *spans))
        toy = Toy(tuple(place), tuple(items), tuple(each.id for each in made), tuple(each.topic for each in made))
        name = f"{structure} {language}" + (f" {part}" if part != "whole" else "")
        tasks.append(Task(name, toy, how=STRUCTURES[structure]))
    return tasks


def triples(structure: str, language: str, *, seed: int = 0) -> list[Triple]:
    """The 120 triples of a structure, four of each topic.

    Example:
        >>> q, same, other = triples("S3", "en")[0].sentences
        >>> q.early == same.early == other.early
        True
    """
    words = _words(language)
    made = []
    for number, topic in enumerate(words["topics"], 1):
        for draw, (who, when) in enumerate(_drawn(words, number, seed), 1):
            name = f"{language}-{number:02}"
            made.append(Triple(f"{structure}-{name}-{draw}", name, _sentences(structure, words, topic, who, when)))
    return made


def draw_similarities(evidences: Mapping[tuple[str, str], Evidence]) -> Any:
    """Draw the distributions of the cosines: a row a task, a column a method.

    Args:
        evidences: By task and method, [triples, 2]: cos(q, s+) and cos(q, s-).

    Returns:
        A matplotlib ``Figure``; :func:`st_reba.evaluation.figures.save_figure` writes it.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: There is nothing to draw.

    Source:
        Echo, figure 2.

    Example:
        >>> figure = draw_similarities({("S1 en", "echo"): np.array([[0.9, 0.8], [0.7, 0.75]])})
        >>> figure.axes[0].get_title(), figure.axes[0].texts[0].get_text()
        ('echo', 'accuracy 0.50')
    """
    if not evidences:
        raise ValueError("evidences={}: there is nothing to draw. Score a task of toy_tasks first.")
    tasks, methods = (list(dict.fromkeys(names)) for names in zip(*evidences, strict=True))
    figure, panels = new_figure(1.4 + 2.3 * len(methods), 1.0 + 1.8 * len(tasks), len(tasks), len(methods))
    ticks = required("matplotlib.ticker", "evaluation").MaxNLocator
    for (y, task), (x, method) in product(enumerate(tasks), enumerate(methods)):
        axes, cosines = panels[y, x], evidences.get((task, method))
        axes.set(yticks=[], xticks=[])
        if y == 0:
            axes.set_title(method, fontsize=9, parse_math=False)
        if x == 0:
            axes.set_ylabel(task, fontsize=9, parse_math=False)
        if cosines is None:
            continue
        low, high = float(cosines.min()), float(cosines.max())
        # All may be equal, as those of a part that sees nothing else: a bin must have a width.
        room = 0.0 if high - low > 1e-6 else 0.01
        for side, (label, colour, hatch) in enumerate(_STYLES):
            edges = np.linspace(low - room, high + room, _BINS + 1)
            axes.hist(cosines[:, side], edges, color=colour, alpha=0.5, hatch=hatch, label=label)
            axes.axvline(float(cosines[:, side].mean()), color=colour, linewidth=1.5)
        accuracy = Toy((), ()).metrics["accuracy"](cosines)
        axes.text(0.03, 0.95, f"accuracy {accuracy:.2f}", transform=axes.transAxes, va="top", fontsize=7)
        axes.xaxis.set_major_locator(ticks(3))
        axes.tick_params(labelsize=7)
        axes.set_xlabel("cosine" if y == len(tasks) - 1 else "", fontsize=8)
    handles = next(axes for axes in panels.flat if axes.patches).get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper center", ncols=2, frameon=False, fontsize=9)
    return figure


def _check(name: str, chosen: Sequence[str], allowed: Sequence[str]) -> None:
    if isinstance(chosen, str) or not chosen:
        raise ValueError(f"{name}={chosen!r}: give a list of {list(allowed)}.")
    for value in chosen:
        if value not in allowed:
            raise ValueError(f"{name}: {value!r} is not known: choose from {list(allowed)}.")
        if list(chosen).count(value) > 1:
            raise ValueError(f"{name}={list(chosen)!r}: {value!r} stands twice. Keep one.")


@cache
def _words(language: str) -> dict[str, Any]:
    text = Path(__file__).with_name(f"toy_{language}.yaml").read_text(encoding="utf-8")
    words: dict[str, Any] = yaml.safe_load(text)
    return words


def _drawn(words: Mapping[str, Any], topic: int, seed: int) -> list[tuple[Words, Words]]:
    """People and times of a topic, the same in every structure; no person twice."""

    def rank(pair: Any) -> bytes:
        return hashlib.sha256(f"{seed}:{topic}:{pair[0]['is']}:{pair[1]['is']}".encode()).digest()

    chosen: dict[str, tuple[Words, Words]] = {}
    for who, when in sorted(product(words["who"], words["when"]), key=rank):
        chosen.setdefault(who["is"], (who, when))
    return list(chosen.values())[:DRAWS]


def _sentences(
    structure: str, words: Mapping[str, Any], topic: Words, who: Words, when: Words
) -> tuple[Sentence, Sentence, Sentence]:
    """q, s+ and s-."""
    last = structure == "S1"
    layouts, act_layout = words["layouts"], "act_last" if last else "act_first"
    act = layouts[act_layout].format(who=who["is"], act=topic["act"], when=when["is"])
    again = layouts[f"{act_layout}_again"].format(who=who["again"], act=topic["act_again"], when=when["again"])

    def sentence(act: str, name: str) -> Sentence:
        detail = topic[name].format(their=who.get("their", ""))
        detail = layouts["detail_first" if last else "detail_last"].format(detail=detail)
        early, late = (detail, act) if last else (act, detail)
        return Sentence(early[:1].upper() + early[1:], late, words["joiner"])

    return sentence(act, "detail"), sentence(act if structure == "S3" else again, "again"), sentence(act, "opposite")
