"""The toy structures: what the sentences share and what they do not, and accuracies against a plain loop."""

from __future__ import annotations

import configparser
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import st_reba
from st_reba.evaluation.figures import save_figure
from st_reba.evaluation.methods import Base, Limit, Method, read_methods
from st_reba.evaluation.results import Results
from st_reba.evaluation.structures import LANGUAGES, STRUCTURES, Triple, draw_similarities, evaluate_structures, triples
from st_reba.evaluation.structures import evaluate as module
from st_reba.evaluation.structures.evaluate import TIE, score_cosines, similarities, similarities_file

BASE = Base("mini", device="cpu")
SETS = [(structure, language) for structure in STRUCTURES for language in LANGUAGES]


def words(text: str, language: str) -> list[str]:
    return list(text) if language == "zh" else text.lower().replace(",", "").replace(".", "").split()


@pytest.mark.parametrize(("structure", "language"), SETS)
def test_what_each_structure_shares(structure: str, language: str) -> None:
    made = triples(structure, language)
    assert len(made) == 120 and len({triple.topic for triple in made}) == 30
    for triple in made:
        q, positive, negative = triple.sentences
        same = {
            name: (
                getattr(q, name).lower() == getattr(positive, name).lower(),
                getattr(q, name) == getattr(negative, name),
            )
            for name in ("early", "late")
        }
        # Of (s+, s-), which keeps q's early and late part word by word.
        assert same["early"] == {"S1": (False, False), "S2": (False, True), "S3": (True, True)}[structure], triple
        assert same["late"] == {"S1": (False, True), "S2": (False, False), "S3": (False, False)}[structure], triple
        if structure == "S3":
            assert q.early == positive.early
        telling = "early" if structure == "S1" else "late"
        assert getattr(positive, telling) != getattr(negative, telling)
        for sentence in triple.sentences:
            assert sentence.text == sentence.early + ("" if language == "zh" else " ") + sentence.late
            assert sentence.early[-1] in "，," and sentence.late[-1] in "。." and "{" not in sentence.text
            assert sentence.text[slice(*sentence.span("early"))] == sentence.early
            assert sentence.text[slice(*sentence.span("late"))] == sentence.late
            assert sentence.text[0].isupper() or language == "zh"


@pytest.mark.parametrize(("structure", "language"), SETS)
def test_the_parts_have_the_papers_lengths_and_other_words(structure: str, language: str) -> None:
    """The part that tells has ten words or more, the other fewer; s+ says it again without q's words."""
    for triple in triples(structure, language):
        telling, other = ("early", "late") if structure == "S1" else ("late", "early")
        if language == "en":
            assert all(len(words(getattr(one, telling), "en")) >= 10 for one in triple.sentences), triple
            assert len(words(getattr(triple.query, other), "en")) < 10, triple
        else:
            assert all(14 <= len(getattr(one, telling)) <= 28 for one in triple.sentences), triple
        q, positive, negative = (set(words(getattr(one, telling), language)) for one in triple.sentences)
        small = {"and", "the", "a", "to", "of", "for", "at", "in", "with", "by", "all", "is", "every"}
        for one in (positive, negative):
            shared = (q & one) - small
            assert len(shared) / len(q | one) < 0.35, (triple.id, shared)


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_triple_is_another(language: str) -> None:
    for structure in STRUCTURES:
        made = triples(structure, language)
        assert len({triple.id for triple in made}) == 120
        assert len({tuple(one.text for one in triple.sentences) for triple in made}) == 120
        assert len({triple.query.text for triple in made}) == 120
        for triple in made:
            assert len({one.text for one in triple.sentences}) == 3
    # The mirror: S1 and S2 say the same in the opposite order.
    for one, other in zip(triples("S1", language), triples("S2", language), strict=True):
        assert one.id[2:] == other.id[2:] and one.topic == other.topic
        assert one.query.early[:-1].lower() == other.query.late[:-1].lower()
        assert one.query.late[:-1].lower() == other.query.early[:-1].lower()
        assert one.negative.early[:-1].lower() == other.negative.late[:-1].lower()


def test_the_seed_draws_people_and_times() -> None:
    assert triples("S1", "en") == triples("S1", "en", seed=0) != triples("S1", "en", seed=1)
    assert len({triple.query.text for triple in triples("S2", "zh", seed=3)}) == 120
    # The data are what they were: scores of other days depend on it.
    content = "\n".join(one.text for key in SETS for triple in triples(*key) for one in triple.sentences)
    assert hashlib.sha256(content.encode()).hexdigest()[:16] == "4d1d8923254cf1aa"


def test_the_word_lists_are_packaged() -> None:
    setup = configparser.ConfigParser()
    setup.read(Path(__file__).parents[2] / "setup.cfg")
    package = Path(st_reba.__file__).parent
    shipped = {path for each in setup["options.package_data"]["st_reba"].split() for path in package.glob(each)}
    assert {package / "evaluation" / "structures" / f"{language}.yaml" for language in LANGUAGES} <= shipped


@pytest.mark.parametrize(("structure", "language"), [("S4", "en"), ("S1", "de")])
def test_no_such_set(structure: str, language: str) -> None:
    with pytest.raises(ValueError, match="is not known: choose one of"):
        triples(structure, language)


def vector(text: str) -> NDArray[np.float32]:
    """What only the text decides."""
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    return np.random.default_rng(seed).standard_normal(16).astype(np.float32)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Random vectors in place of a model's; what was built and encoded."""
    seen: list[str] = []

    def build(self: Limit, method: Method, base: Base, prompt: str | None = None) -> Any:
        seen.append(f"built {method.name}")
        return object()

    def encode(model: Any, texts: Sequence[str], **options: Any) -> NDArray[np.float32]:
        seen.extend(texts)
        return np.stack([vector(text) for text in texts])

    monkeypatch.setattr(Limit, "build", build)
    monkeypatch.setattr(module, "encode_texts", encode)
    monkeypatch.setattr(module, "position_counts", lambda model, texts, **options: [1] * len(texts))
    return seen


def loop(made: Sequence[Triple]) -> tuple[float, float, float]:
    """Accuracy and mean similarities, one triple after the other."""
    right, sums = 0, [0.0, 0.0]
    for triple in made:
        q, positive, negative = ([float(value) for value in vector(one.text)] for one in triple.sentences)

        def cosine(a: list[float], b: list[float]) -> float:
            return (
                float(sum(x * y for x, y in zip(a, b, strict=True)))
                / (sum(x * x for x in a) * sum(y * y for y in b)) ** 0.5
            )

        right += cosine(q, positive) > cosine(q, negative)
        sums = [sums[0] + cosine(q, positive), sums[1] + cosine(q, negative)]
    return right / len(made), sums[0] / len(made), sums[1] / len(made)


def test_accuracy_by_a_plain_loop(fake: list[str], tmp_path: Path) -> None:
    results = Results(tmp_path / "out")
    found = evaluate_structures(BASE, read_methods("echo"), results, show_progress_bar=False)
    assert [one.task for one in found] == [f"{s} {language}" for language in ("zh", "en") for s in STRUCTURES]
    assert {one.kind for one in found} == {"toy structures"} and {one.main for one in found} == {"accuracy"}
    for one in found:
        structure, language = one.task.split()
        made = triples(structure, language)
        accuracy, positive, negative = loop(made)
        assert one.scores["accuracy"] == pytest.approx(accuracy, abs=1e-12) and one.scores["ties"] == 0
        assert one.scores["mean sim(q,s+)"] == pytest.approx(positive, abs=1e-7)
        assert one.scores["mean sim(q,s-)"] == pytest.approx(negative, abs=1e-7)
        low, high = one.intervals["accuracy"]
        assert low < one.scores["accuracy"] < high and 0.05 < high - low < 0.35
        cosines = similarities(results, one)
        assert cosines.shape == (120, 2) and score_cosines(cosines).mean() == one.scores["accuracy"]
        assert one.items == 120 and one.texts == len({s.text for triple in made for s in triple.sentences})
    # Each distinct text of a set once.
    assert len(fake) == 1 + sum(one.texts for one in found)


@pytest.mark.slow
def test_a_killed_run_goes_on(fake: list[str], tmp_path: Path) -> None:
    def run(methods: str = "echo,reba", **options: Any) -> list[Any]:
        fake.clear()
        return evaluate_structures(
            BASE, read_methods(methods), Results(tmp_path / "out"), show_progress_bar=False, **options
        )

    first = run("echo", languages=["en"])
    again = run("echo", languages=["en"])
    assert again == first and fake == []
    more = run("echo,reba", languages=["en"])
    assert more[:3] == first and fake.count("built reba-2 last") == 1 and "built echo-2 last" not in fake
    # What was lost of one result is made again, and nothing else.
    results = Results(tmp_path / "out")
    similarities_file(results, first[1]).unlink()
    assert [one.scores for one in run("echo", languages=["en"])] == [one.scores for one in first]
    assert len(fake) == 1 + first[1].texts and similarities(results, first[1]).shape == (120, 2)
    # Another seed, sample, prompt or budget is another result.
    for options in ({"seed": 1}, {"sample": 50}, {"prompt": "x: "}, {"limit": Limit(90)}):
        other = run("echo", structures=["S1"], languages=["en"], **options)
        assert other[0].identity != first[0].identity and fake[0] == "built echo-2 last"
    assert other[0].settings == {"max_tokens": 90, "budget": "total"}


def test_a_sample_is_drawn_by_the_seed(fake: list[str], tmp_path: Path) -> None:
    results = Results(tmp_path / "out")
    one, other = (
        evaluate_structures(
            BASE,
            read_methods("echo"),
            results,
            structures=["S2"],
            languages=["zh"],
            sample=40,
            seed=seed,
            show_progress_bar=False,
        )[0]
        for seed in (0, 1)
    )
    assert (one.items, other.items) == (40, 40)
    assert one.settings == {"limit": 40} and other.settings == {"limit": 40, "seed": 1}
    ids = [similarities_file(results, each).read_text(encoding="utf-8").split(",")[0::1] for each in (one, other)]
    assert ids[0] != ids[1]


def test_ties_count_a_half() -> None:
    cosines = np.array([[0.9, 0.1], [0.1, 0.9], [0.5, 0.5], [0.5, 0.5 + TIE / 2], [0.5 + 2 * TIE, 0.5]])
    assert score_cosines(cosines).tolist() == [1, 0, 0.5, 0.5, 1]


@pytest.mark.slow
def test_real_embeddings_and_parts(tmp_path: Path) -> None:
    """The cosines are those of the model's own encode; an early part that sees nothing else cannot tell in S3."""
    results = Results(tmp_path / "out")
    found = evaluate_structures(
        BASE,
        read_methods("classical:pooling=mean,echo:pooling=mean,reba:pooling=mean"),
        results,
        structures=["S3"],
        parts=["whole", "early"],
        languages=["en"],
        sample=12,
        show_progress_bar=False,
    )
    by = {(one.method, one.settings.get("part", "whole")): one for one in found}
    assert len(by) == 6
    chosen = {row.split(",")[0] for row in similarities_file(results, found[0]).read_text().splitlines()[1:]}
    made = [triple for triple in triples("S3", "en") if triple.id in chosen]
    for method in ("echo", "reba"):
        model = st_reba.build("mini", method, pooling="mean", device="cpu")
        whole = similarities(results, by[f"{method}-2 mean", "whole"])
        early = similarities(results, by[f"{method}-2 mean", "early"])
        for row, triple in enumerate(made[:4]):
            q, positive, negative = model.encode([one.text for one in triple.sentences]).astype(np.float64)
            assert whole[row] == pytest.approx([q @ positive, q @ negative], abs=1e-5)
            q, positive, negative = (
                st_reba.encode_words(model, [(one.text, (0, len(one.early)))])[0].astype(np.float64)
                for one in triple.sentences
            )
            wanted = [q @ other / np.linalg.norm(q) / np.linalg.norm(other) for other in (positive, negative)]
            assert early[row] == pytest.approx(wanted, abs=1e-5)
        assert by[f"{method}-2 mean", "early"].scores["ties"] == 0
        assert np.ptp(early) > 1e-4
    alone = by["classical mean", "early"]
    assert alone.scores["ties"] == 1.0 and alone.scores["accuracy"] == 0.5
    assert alone.intervals["accuracy"] == (0.5, 0.5) and by["classical mean", "whole"].scores["ties"] == 0
    figure = draw_similarities(results)
    assert [axes.get_title() for axes in figure.axes[:3]] == ["classical mean", "echo-2 mean", "reba-2 mean"]
    assert [figure.axes[0].get_ylabel(), figure.axes[3].get_ylabel()] == ["S3 en", "S3 en\nearly part"]
    heights = [patch.get_height() for patch in figure.axes[0].patches]
    assert sum(heights) == 24 and "accuracy 0.50" in figure.axes[3].texts[0].get_text()
    save_figure(figure, tmp_path / "toy.png")
    assert (tmp_path / "toy.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"structures": ["S9"]}, r"structures=\['S9'\]: 'S9' is none of"),
        ({"languages": ["en", "en"]}, "one stands twice"),
        ({"parts": []}, r"parts=\[\]: give a list of"),
        ({"structures": "S1"}, "structures='S1': give a list"),
        ({"sample": 0}, "sample=0 must be a whole number from 1 on"),
        ({"batch_size": 1, "batch_tokens": 2}, "exclude each other"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        evaluate_structures(BASE, read_methods("echo"), Results(tmp_path / "out"), **options)


def test_a_damaged_file_is_named(fake: list[str], tmp_path: Path) -> None:
    results = Results(tmp_path / "out")
    with pytest.raises(ValueError, match="no results of toy structures to draw"):
        draw_similarities(results)
    found = evaluate_structures(
        BASE, read_methods("echo"), results, structures=["S1"], languages=["en"], show_progress_bar=False
    )
    path = similarities_file(results, found[0])
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(lines[:-1]), encoding="utf-8")
    with pytest.raises(ValueError, match="119 triples, not 120. Delete it. Run the evaluation again"):
        similarities(results, found[0])
    path.write_text("".join([*lines[:-1], "S1-en-30-4,en-30,much,0.1\n"]), encoding="utf-8")
    with pytest.raises(ValueError, match="not the cosines of 120 triples"):
        similarities(results, found[0])
    path.unlink()
    with pytest.raises(FileNotFoundError, match="Run the evaluation again"):
        draw_similarities(results)


@pytest.mark.parametrize("bad", [0.0, float("nan")])
def test_a_vector_that_is_like_nothing(bad: float, fake: list[str], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "encode_texts", lambda model, texts, **options: np.full((len(texts), 4), bad))
    with pytest.raises(ValueError, match="is zero or not finite"):
        evaluate_structures(BASE, read_methods("echo"), Results(tmp_path / "out"), show_progress_bar=False)
