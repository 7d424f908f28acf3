"""The toy structures."""

from __future__ import annotations

import pytest

from st_reba.evaluation.toy import LANGUAGES, STRUCTURES, toy_tasks, toy_tasks_named, triples


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_triple_differs_where_its_structure_says(structure: str, language: str) -> None:
    made = triples(structure, language)
    assert len(made) == len({q for _, (q, _, _) in made}) == 120
    for _, (q, same, other) in made:
        assert q != same != other != q
        assert (q.early == same.early) == (structure == "S3")
        assert (q.early == other.early) == (structure != "S1")
        assert (q.late == other.late) == (structure == "S1")
        assert q.late != same.late


def test_topics_are_numbered_from_1() -> None:
    """The figures of docs/results/mini.md are those of this draw."""
    assert [topic for topic, _ in triples("S1", "en")][::40] == ["en-01", "en-11", "en-21"]
    assert triples("S1", "en")[0][1][0].early.startswith("Humming old tunes")


def test_s1_and_s2_are_of_the_same_parts() -> None:
    first, second = triples("S1", "en"), triples("S2", "en")
    for (topic, (q, _, _)), (same, (other, _, _)) in zip(first, second, strict=True):
        assert topic == same
        assert q.early.rstrip(",").lower() == other.late.rstrip(".").lower()


def test_the_tasks_of_a_part_stand_for_its_characters() -> None:
    (task,) = toy_tasks(["S3"], ["en"], "early")
    shown = [text[start:end] for text, (start, end) in zip(task.texts, task.spans, strict=True)]
    q, same, other = (shown[place] for place in task.items[0])
    assert q == same == other
    assert q.endswith(",")
    assert len(set(task.groups)) == 30
    (late,) = toy_tasks(["S3"], ["en"], "late")
    assert late.texts[0][late.spans[0][0] :] == task.texts[0][len(q) :].lstrip()


def test_draws() -> None:
    assert triples("S1", "zh") == triples("S1", "zh", seed=0) != triples("S1", "zh", seed=1)
    (task,) = toy_tasks(["S1"], ["zh"], limit=30)
    assert [task] == toy_tasks(["S1"], ["zh"], limit=30, seed=0) == toy_tasks_named("toy:S1,zh", 30)
    assert len(task.items) == 30
    assert [task.name for task in toy_tasks_named("toy:en,S2,late")] == ["S2 en late"]
    assert len(toy_tasks_named("toy")) == 6


@pytest.mark.parametrize("word", ["toy:S4", "toy:S1,S4", "toy:early,late"])
def test_refused(word: str) -> None:
    with pytest.raises(ValueError):
        toy_tasks_named(word)
