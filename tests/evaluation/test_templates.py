"""Templates drawn at random."""

from __future__ import annotations

import pytest

import st_reba
from st_reba.evaluation.templates import drawn_templates

METHODS = ("classical", "nosink", "echo", "reba", "prompteol")


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("method", METHODS)
def test_templates_have_their_methods_structure(method: str, language: str) -> None:
    templates = drawn_templates(method, 40, language=language)
    assert len(set(templates)) == 40
    for template in templates:
        assert template.count("{text}") == (2 if method in ("echo", "reba") else 1)
        assert not template.startswith("{text}") and "  " not in template
        # PromptEOL asks behind the text, which all others end with.
        assert template.endswith("{text}") == (method != "prompteol")
        assert any("一" <= letter <= "鿿" for letter in template) == (language == "zh")


def test_draws_depend_on_the_seed_and_not_on_the_count() -> None:
    first = drawn_templates("echo", 5, seed=1)
    assert drawn_templates("echo", 20, seed=1)[:5] == first
    assert drawn_templates("echo", 5, seed=2) != first
    # Written down once: other versions of anything must draw these.
    assert drawn_templates("echo", 2) == [
        "REPEAT THE SENTENCE, a) {text}, ANSWER b) {text}",
        "REPEAT THE PROMPT, QUERY a) {text}, ANSWER b) {text}",
    ]


def test_methods_that_are_compared_share_their_templates() -> None:
    assert drawn_templates("echo", 9, seed=3) == drawn_templates("reba", 9, seed=3)
    assert drawn_templates("classical", 9, seed=3) == drawn_templates("nosink", 9, seed=3)


def test_every_part_is_drawn() -> None:
    templates = "".join(drawn_templates("echo", 300))
    for part in [
        "Repeat",
        "REWRITE",
        "Rephrase",
        "Fill In The Blank",
        "the query",
        "::",
        "\n",
        "(B)",
        "Response",
        "Prompt",
    ]:
        assert part in templates


@pytest.mark.parametrize("repeats", [1, 2, 4])
def test_copies(repeats: int) -> None:
    assert all(each.count("{text}") == repeats for each in drawn_templates("reba", 10, repeats=repeats))


@pytest.mark.parametrize("method", METHODS)
def test_models_are_built_with_them(method: str) -> None:
    options = {"setting": "mask0-bidir", "k": 2} if method == "nosink" else {}
    for language in ("en", "zh"):
        (template,) = drawn_templates(method, 1, language=language, seed=4)
        model = st_reba.build("mini", method, template=template, **options)  # type: ignore[arg-type]
        assert model.encode("天气很好").shape == (192,)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"method": "pooled"}, "method='pooled' takes no template"),
        ({"language": "fr"}, "language='fr' is not known"),
        ({"count": 0}, "count=0 must be a whole number from 1 on"),
        ({"repeats": 0}, "repeats=0 must be"),
        ({"method": "classical", "language": "zh", "count": 100_000}, "there are only about"),
    ],
)
def test_what_cannot_be_drawn_is_named(change: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        drawn_templates(**{"method": "echo", "count": 2, **change})  # type: ignore[arg-type]
