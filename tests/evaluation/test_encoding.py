"""Vectors of texts: the model's own, each text run once with its role's prompt, none unusable."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import st_reba
from st_reba.evaluation.data import make_task
from st_reba.evaluation.encoding import Prompts, UnusableVectors, check_memory, encoded
from st_reba.evaluation.items import Ranking


class Model:
    """Stands for a SentenceTransformer where only its ``encode`` matters."""

    def __init__(self, special: dict[str, list[float]]) -> None:
        self.special = special
        self.seen: list[tuple[str, Any, Any]] = []


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Model:
    model = Model({})

    def encode_batch(model: Model, texts: list[str], *, task: Any = None, prompt: Any = None) -> Any:
        model.seen += [(text, task, prompt) for text in texts]
        return np.array([model.special.get(text, [1.0, float(len(text))]) for text in texts], np.float32)

    def planned(model: Model, texts: Any, **options: Any) -> Any:
        return [[place] for place in reversed(range(len(texts)))], [len(text) for text in texts]

    monkeypatch.setattr("st_reba.evaluation.encoding.encode_batch", encode_batch)
    monkeypatch.setattr("st_reba.evaluation.encoding.planned_batches", planned)
    return model


@pytest.mark.parametrize("bad", [[0.0, 0.0], [math.nan, 1.0], [math.inf, 1.0]])
def test_unusable_vectors_are_named(fake: Any, bad: list[float]) -> None:
    fake.special["bb"] = bad
    with pytest.raises(UnusableVectors, match="1 of 3 vectors are zero or not finite; the first is that of 'bb'"):
        encoded(fake, ["a", "bb", "ccc"])


def test_each_text_runs_once_with_its_roles_prompt(fake: Any) -> None:
    items = Ranking.of({"q": {"d": 1, "e": 0}, "r": {"d": 0, "q": 1}})
    done: list[Any] = []
    vectors = items.vectors(fake, prompts=Prompts("ask: "), progress=lambda *each: done.append(each))
    assert sorted(fake.seen, key=str) == sorted(
        [("q", "query", "ask: "), ("r", "query", "ask: ")] + [(text, "document", None) for text in "deq"], key=str
    )
    assert vectors.shape == (5, 2) and done == [(1, 1)] * 5
    fake.seen.clear()
    pairs = make_task("STS", [("x", f"y{n % 3}", n) for n in range(10)]).items
    assert np.array_equal(pairs.vectors(fake)[:, 1], [1, 2, 2, 2])
    assert sorted(fake.seen) == [(text, None, None) for text in ("x", "y0", "y1", "y2")]


def test_vectors_are_the_models() -> None:
    model = st_reba.build("mini", "classical", device="cpu")
    texts = ["雨", "It rains.", "It rains a lot today."]
    found = encoded(model, texts, batch_tokens=16)
    assert np.abs(found - model.encode(texts)).max() < 1e-6


def test_memory() -> None:
    check_memory(200_000, 4096)
    with pytest.raises(ValueError, match=r"1,000,000,000 words of 4096 dimensions take 15258.8 GiB.*\(--limit\)"):
        check_memory(10**9, 4096)
