"""Threads: each gets what it would get alone, through one model and through several at once."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from marks import slow_but
from numpy.typing import NDArray
from oracle import TEXTS
from sentence_transformers import SentenceTransformer

import st_reba

Base = Callable[..., str]
THREADS = 8
ROUNDS = 6
# Own lengths for every thread, so that one's capture would not fit another's.
BATCHES = [[text * (1 + (thread + shift) % 3) for shift, text in enumerate(TEXTS)] for thread in range(THREADS)]


@pytest.fixture(autouse=True)
def _hurried() -> Iterator[None]:
    """Threads take turns far more often than they do of themselves."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(before)


def together(tasks: list[Callable[[], list[NDArray[np.float32]]]]) -> list[list[NDArray[np.float32]]]:
    """Results of the tasks, a thread each, all begun at once."""
    barrier = threading.Barrier(len(tasks))

    def run(task: Callable[[], list[NDArray[np.float32]]]) -> list[NDArray[np.float32]]:
        barrier.wait(timeout=60)
        return task()

    with ThreadPoolExecutor(len(tasks)) as pool:
        return list(pool.map(run, tasks))


def check(tasks: list[Callable[[], list[NDArray[np.float32]]]]) -> None:
    alone = [task() for task in tasks]
    for got, wanted in zip(together(tasks), alone, strict=True):
        for one, other in zip(got, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-6 * np.abs(other).max())


def encoding(model: SentenceTransformer, thread: int, **options: Any) -> Callable[[], list[NDArray[np.float32]]]:
    def task() -> list[NDArray[np.float32]]:
        return [model.encode(BATCHES[thread], batch_size=1 + turn % 5, **options) for turn in range(ROUNDS)]

    return task


def words(model: SentenceTransformer, thread: int) -> Callable[[], list[NDArray[np.float32]]]:
    items = [(text, (len(text) - 1, len(text))) for text in BATCHES[thread]]

    def task() -> list[NDArray[np.float32]]:
        return [st_reba.encode_words(model, items, batch_size=1 + turn % 5) for turn in range(ROUNDS)]

    return task


def token_vectors(model: SentenceTransformer, thread: int) -> Callable[[], list[NDArray[np.float32]]]:
    def task() -> list[NDArray[np.float32]]:
        vectors = []
        for turn in range(ROUNDS):
            texts = BATCHES[thread][turn % 5 :]
            vectors += [one.numpy() for one in model.encode(texts, output_value="token_embeddings")]
        return vectors

    return task


MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "reba": ("llama", "reba", {}),
    "published": ("gpt2", "reba", {"variant": "published"}),
    "echo": ("llama", "echo", {"pooling": "mean"}),
    "hooks": ("bloom", "reba", {"pooling": "mean"}),
}


def build(base: Base, name: str) -> SentenceTransformer:
    path, method, options = MODELS[name]
    return st_reba.build(base(path, "bos_eos"), method, normalize=False, **options)


@pytest.mark.parametrize("name", slow_but(MODELS, "reba"))
def test_one_model(base: Base, name: str) -> None:
    model = build(base, name)
    check([encoding(model, thread) for thread in range(THREADS)])


@pytest.mark.parametrize(
    "names",
    slow_but(
        [("reba", "published"), ("reba", "echo"), ("hooks", "echo"), ("hooks", "published")], ("reba", "published")
    ),
)
def test_two_models(base: Base, names: tuple[str, str]) -> None:
    models = [build(base, name) for name in names]
    check([encoding(models[thread % 2], thread) for thread in range(THREADS)])


def test_everything_at_once(base: Base) -> None:
    """Sentences, token vectors and words, through four models."""
    models = [build(base, name) for name in MODELS]
    kinds = (encoding, token_vectors, words)
    check([kinds[thread % 3](models[thread % 4], thread) for thread in range(THREADS)])


@pytest.mark.parametrize("name", slow_but(["reba", "published", "hooks"], "reba"))
def test_token_vectors(base: Base, name: str) -> None:
    """They take a second forward pass with another capture, which sentences of other threads must not see."""
    model = build(base, name)
    check([(token_vectors if thread % 2 else encoding)(model, thread) for thread in range(THREADS)])


@pytest.mark.parametrize("name", slow_but(MODELS, "reba"))
def test_words(base: Base, name: str) -> None:
    model = build(base, name)
    check([(words if thread % 2 else encoding)(model, thread) for thread in range(THREADS)])


def test_features_computed_on_demand(base: Base) -> None:
    """Threads that ask one feature dictionary for its token vectors all get the same."""
    model = build(base, "reba")
    wanted = model.encode(TEXTS[1], output_value="token_embeddings").numpy()
    features = model(model.preprocess([TEXTS[1]]))

    def task() -> list[NDArray[np.float32]]:
        return [features["token_embeddings"][0].detach().numpy()]

    for (got,) in together([task] * THREADS):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-6 * np.abs(wanted).max())


def test_tokenizer_settings(base: Base) -> None:
    """Prompts and texts are tokenized by other settings of one tokenizer: threads must not see each other's."""
    transformer = build(base, "reba")[0]
    special = transformer.text_tokenizer.bos_token_id

    def prompts() -> list[NDArray[np.float32]]:
        return [np.array([piece == (special,) for piece in transformer.frame("<s>").pieces[1:2]]) for _ in range(200)]

    def texts() -> list[NDArray[np.float32]]:
        return [np.array([special not in transformer.content(["<s>" * 9])["input_ids"][0]]) for _ in range(400)]

    for results in together([prompts, texts] * (THREADS // 2)):
        assert all(result.all() for result in results)


def test_prompts(base: Base) -> None:
    """Texts with a prompt and without one, through one model."""
    model = build(base, "reba")
    check([encoding(model, thread, prompt="<s>: " if thread % 2 else None) for thread in range(THREADS)])
