"""The toy structures: what the sentences share and what they do not, and their evidence against plain loops."""

from __future__ import annotations

import configparser
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from marks import slow_but

import st_reba
from st_reba.evaluation.figures import save_figure
from st_reba.evaluation.statistics import bootstrap, interval
from st_reba.evaluation.toy import LANGUAGES, STRUCTURES, Toy, draw_similarities, toy_tasks, triples

SETS = [(structure, language) for structure in STRUCTURES for language in LANGUAGES]


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    return {name: st_reba.build("mini", name, pooling="mean", device="cpu") for name in ("classical", "echo", "reba")}


def words(text: str, language: str) -> list[str]:
    return list(text) if language == "zh" else text.lower().replace(",", "").replace(".", "").split()


@pytest.mark.parametrize(("structure", "language"), SETS)
def test_what_each_structure_shares(structure: str, language: str) -> None:
    """Which parts s+ and s- repeat word by word; the part that tells is the longer one, and in other words."""
    made = triples(structure, language)
    assert len({each.id for each in made}) == len(made) == 120 and len({each.topic for each in made}) == 30
    assert len({each.sentences[0].text for each in made}) == 120
    telling, other = ("early", "late") if structure == "S1" else ("late", "early")
    small = {"and", "the", "a", "to", "of", "for", "at", "in", "with", "by", "all", "is", "every"}
    for each in made:
        q, same, opposite = each.sentences
        shared = [[one.early == q.early, one.late == q.late] for one in (same, opposite)]
        assert (
            shared
            == {
                "S1": [[False, False], [False, True]],
                "S2": [[False, False], [True, False]],
                "S3": [[True, False], [True, False]],
            }[structure]
        ), each
        assert getattr(same, telling) != getattr(opposite, telling)
        for one in each.sentences:
            assert one.text == one.early + ("" if language == "zh" else " ") + one.late and "{" not in one.text
            assert one.early[-1] in "，," and one.late[-1] in "。." and (one.text[0].isupper() or language == "zh")
            assert one.text[slice(*one.span("early"))] == one.early and one.text[slice(*one.span("late"))] == one.late
            long = len(words(getattr(one, telling), language))
            assert 14 <= long <= 28 if language == "zh" else long >= 10, each
            mine, theirs = (set(words(getattr(which, telling), language)) for which in (q, one))
            assert one == q or len((mine & theirs) - small) / len(mine | theirs) < 0.35, each
        assert language == "zh" or len(words(getattr(q, other), "en")) < 10, each


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_first_two_differ_only_in_the_order(language: str) -> None:
    def bare(part: str) -> str:
        return part[:-1].lower()

    for one, other in zip(triples("S1", language), triples("S2", language), strict=True):
        assert one.id[2:] == other.id[2:] and one.topic == other.topic
        for mine, theirs in zip(one.sentences, other.sentences, strict=True):
            if mine is not one.sentences[1]:
                assert (bare(mine.early), bare(mine.late)) == (bare(theirs.late), bare(theirs.early))


def test_the_seed_draws_people_and_times() -> None:
    assert triples("S1", "en") == triples("S1", "en", seed=0) != triples("S1", "en", seed=1)
    # The data are what they were: scores of other days depend on it.
    content = "\n".join(one.text for key in SETS for each in triples(*key) for one in each.sentences)
    assert hashlib.sha256(content.encode()).hexdigest()[:16] == "4d1d8923254cf1aa"


def test_the_word_lists_are_packaged() -> None:
    setup = configparser.ConfigParser()
    setup.read(Path(__file__).parents[2] / "setup.cfg")
    package = Path(st_reba.__file__).parent
    shipped = {path for each in setup["options.package_data"]["st_reba"].split() for path in package.glob(each)}
    assert {package / "evaluation" / f"{name}.yaml" for name in ("toy_en", "toy_zh", "templates")} <= shipped


def test_tasks_and_limits() -> None:
    """A limit's draw depends on the seed alone: not on what else is asked for, nor on the order."""
    assert [task.name for task in toy_tasks()] == [f"{s} {language}" for language in LANGUAGES for s in STRUCTURES]
    (one,) = toy_tasks(["S2"], ["zh"], limit=40)
    assert len(one.items) == 40 and list(one.items.names) == sorted(one.items.names)
    assert one.fingerprint == toy_tasks(["S3", "S2"], ["en", "zh"], limit=40)[3].fingerprint
    assert toy_tasks(["S2"], ["zh"], limit=40, seed=1)[0].items.names != one.items.names
    assert set(one.items.names) < set(toy_tasks(["S2"], ["zh"], limit=41)[0].items.names)
    parts = {toy_tasks(["S2"], ["zh"], part)[0].fingerprint for part in ("whole", "early", "late")}
    assert len(parts) == 3


@pytest.mark.parametrize("part", slow_but(["whole", "early", "late"], "whole", "late"))
def test_evidence_is_a_plain_loop(part: Any, models: dict[str, Any]) -> None:
    (task,) = toy_tasks(["S1"], ["en"], part, limit=10)
    items, model = task.items, models["echo"]
    counted: list[int] = []
    vectors = items.vectors(model, progress=lambda texts, positions: counted.append(texts))
    assert sum(counted) == len(items.texts) == len(vectors)
    evidence = items.evidence(vectors)
    named = {each.id: each.sentences for each in triples("S1", "en")}
    wanted = []
    for name in items.names:
        if part == "whole":
            found = model.encode([one.text for one in named[name]])
        else:
            found = st_reba.encode_words(model, [(one.text, one.span(part)) for one in named[name]])
        q, *others = found.tolist()
        wanted.append([])
        for other in others:
            lengths = [sum(value * value for value in each) ** 0.5 for each in (q, other)]
            wanted[-1].append(sum(a * b for a, b in zip(q, other, strict=True)) / lengths[0] / lengths[1])
    np.testing.assert_allclose(evidence, wanted, atol=2e-6)
    right = sum(1 if near > far else 0.5 if near == far else 0 for near, far in evidence.tolist())
    assert items.metrics["accuracy"](evidence) == pytest.approx(right / len(evidence), abs=1e-12)
    # A part of the items keeps where each one's part stands; so do two parts joined.
    half = items.subset([7, 2])
    np.testing.assert_allclose(half.evidence(half.vectors(model)), evidence[[7, 2]], atol=2e-6)
    both = half.joined(items.subset([1]))
    np.testing.assert_allclose(both.evidence(both.vectors(model)), evidence[[7, 2, 1]], atol=2e-6)


def test_an_early_part_that_sees_nothing_else_cannot_tell(models: dict[str, Any]) -> None:
    """In S3 the early part is the same in all three sentences."""
    (task,) = toy_tasks(["S3"], ["zh"], "early", limit=16)
    for name, model in models.items():
        evidence = task.items.evidence(task.items.vectors(model))
        scores = {metric: score(evidence) for metric, score in task.items.metrics.items()}
        if name == "classical":
            assert (scores["accuracy"], scores["ties"]) == (0.5, 1.0) and (evidence == 1).all()
            draws = bootstrap(evidence, task.items.metrics["accuracy"], groups=task.items.groups, draws=20)
            assert interval(draws) == (0.5, 0.5)
        else:
            assert scores["ties"] == 0 and np.ptp(evidence) > 1e-4


def test_drawing(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    evidences = {
        ("S3 en", "classical"): generator.random((12, 2)),
        ("S3 en", "echo"): generator.random((12, 2)),
        ("S3 en early", "classical"): np.ones((12, 2)),
    }
    figure = draw_similarities(evidences)
    assert [axes.get_title() for axes in figure.axes] == ["classical", "echo", "", ""]
    assert [axes.get_ylabel() for axes in figure.axes] == ["S3 en", "", "S3 en early", ""]
    assert [sum(patch.get_height() for patch in axes.patches) for axes in figure.axes] == [24, 24, 24, 0]
    assert figure.axes[2].texts[0].get_text() == "accuracy 0.50"
    save_figure(figure, tmp_path / "toy.png")
    assert (tmp_path / "toy.png").read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(ValueError, match="nothing to draw"):
        draw_similarities({})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"structures": ["S9"]}, "structures: 'S9' is not known: choose from"),
        ({"languages": ["en", "en"]}, "'en' stands twice"),
        ({"languages": []}, r"languages=\[\]: give a list of"),
        ({"structures": "S1"}, "structures='S1': give a list"),
        ({"part": "middle"}, "part: 'middle' is not known"),
        ({"limit": 3}, "S1 zh: 3 items, but 10 are needed"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        toy_tasks(**options)


def test_a_zero_vector_is_refused(models: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    zeros = lambda model, items, *rest, **options: np.zeros((1, len(items), 4), np.float32)  # noqa: E731
    monkeypatch.setattr("st_reba.evaluation.toy.encode_word_layers", zeros)
    (task,) = toy_tasks(["S1"], ["en"], "late")
    assert isinstance(task.items, Toy)
    with pytest.raises(ValueError, match="zero or not finite"):
        task.items.vectors(models["echo"])
