"""The toy structures."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import pytest

from st_reba.evaluation.toy import LANGUAGES, STRUCTURES, toy_tasks, toy_tasks_named, triples


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_parts_of_a_triple_differ_where_its_structure_says(structure: str, language: str) -> None:
    all_triples = triples(structure, language)
    assert len(all_triples) == 120
    assert len(set(map(attrgetter("anchor"), all_triples))) == 120
    for _, anchor, positive, negative in all_triples:
        assert len({anchor, positive, negative}) == 3
        assert (anchor.early == positive.early) == (structure == "S3")
        assert (anchor.early == negative.early) == (structure != "S1")
        assert (anchor.late == negative.late) == (structure == "S1")
        assert anchor.late != positive.late


def test_topics_are_numbered_from_1() -> None:
    """The figures of docs/results/mini.md are those of this draw."""
    all_triples = triples("S1", "en")
    assert list(map(attrgetter("topic"), all_triples[::40])) == [
        "en-01",
        "en-11",
        "en-21",
    ]
    assert all_triples[0].anchor.early.startswith("Humming old tunes")


def test_s1_and_s2_consist_of_the_same_parts() -> None:
    for first, second in zip(triples("S1", "en"), triples("S2", "en"), strict=True):
        assert first.topic == second.topic
        first_part = first.anchor.early.rstrip(",").lower()
        assert first_part == second.anchor.late.rstrip(".").lower()


def test_spans_of_a_part_are_its_characters() -> None:
    (early_task,) = toy_tasks(["S3"], ["en"], "early")
    spans = zip(early_task.texts, early_task.spans, strict=True)
    early_parts = [text[start:end] for text, (start, end) in spans]
    anchor, positive, negative = (early_parts[index] for index in early_task.items[0])
    assert anchor == positive == negative
    assert anchor.endswith(",")
    (late_task,) = toy_tasks(["S3"], ["en"], "late")
    late_start, _ = late_task.spans[0]
    assert late_task.texts[0][late_start:] == early_task.texts[0][len(anchor) :].lstrip()


def test_triples_of_a_topic_are_a_group() -> None:
    (task,) = toy_tasks(["S3"], ["en"])
    assert len(set(task.groups)) == 30


def test_draws_depend_on_the_seed() -> None:
    assert triples("S1", "zh") == triples("S1", "zh", seed=0)
    assert triples("S1", "zh") != triples("S1", "zh", seed=1)


def test_a_limit_draws_triples() -> None:
    (task,) = toy_tasks(["S1"], ["zh"], limit=30)
    assert len(task.items) == 30
    assert [task] == toy_tasks(
        ["S1"],
        ["zh"],
        limit=30,
        seed=0,
    )
    assert [task] == toy_tasks_named("toy:S1,zh", 30)


def test_a_name_selects_structures_languages_and_a_part() -> None:
    assert list(map(attrgetter("name"), toy_tasks_named("toy:en,S2,late"))) == ["S2 en late"]
    assert len(toy_tasks_named("toy")) == 6


@pytest.mark.parametrize("name", ["toy:S4", "toy:S1,S4", "toy:early,late"])
def test_names_that_are_not_known_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="name structures"):
        toy_tasks_named(name)


@pytest.mark.parametrize("limit", [-1, 0, 2.5, "5"])
def test_a_limit_that_draws_nothing_is_refused(limit: Any) -> None:
    with pytest.raises(ValueError, match=f"^limit={limit!r} must be a whole number"):
        toy_tasks(["S1"], ["zh"], limit=limit)
