"""Threads: each gets what it would get alone, through one model and through several at once."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from oracle import TEXTS
from pipelines import encoded, features_of, pipeline
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

import st_reba
from st_reba import DecoderTransformer, LayerPlan, Prepend, ReadLayers
from st_reba.modules.stages import current

Base = Callable[..., str]
Task = Callable[[], list[NDArray[np.float32]]]
THREADS = 8
ROUNDS = 3
# Own lengths for every thread, so that one's capture would not fit another's.
BATCHES = [[text * (1 + (thread + shift) % 3) for shift, text in enumerate(TEXTS)] for thread in range(THREADS)]


@pytest.fixture(autouse=True)
def _hurried() -> Iterator[None]:
    """Threads take turns far more often than they do of themselves."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(before)
    assert current() is None


def together(tasks: list[Task]) -> list[list[NDArray[np.float32]]]:
    """Results of the tasks, a thread each, all begun at once."""
    barrier = threading.Barrier(len(tasks))

    def run(task: Task) -> list[NDArray[np.float32]]:
        barrier.wait(timeout=60)
        return task()

    with ThreadPoolExecutor(len(tasks)) as pool:
        return list(pool.map(run, tasks))


def check(tasks: list[Task]) -> None:
    alone = [task() for task in tasks]
    for got, wanted in zip(together(tasks), alone, strict=True):
        for one, other in zip(got, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=2e-6 * np.abs(other).max())


def encoding(model: SentenceTransformer, thread: int) -> Task:
    return lambda: [model.encode(BATCHES[thread], batch_size=2 + turn % 4) for turn in range(ROUNDS)]


def words(model: SentenceTransformer, thread: int) -> Task:
    items = [(text, (len(text) - 1, len(text))) for text in BATCHES[thread]]
    return lambda: [st_reba.encode_words(model, items, batch_size=1 + turn % 5) for turn in range(ROUNDS)]


def token_vectors(model: SentenceTransformer, thread: int) -> Task:
    def task() -> list[NDArray[np.float32]]:
        batches = (BATCHES[thread][turn % 5 :] for turn in range(ROUNDS))
        return [one.numpy() for texts in batches for one in model.encode(texts, output_value="token_embeddings")]

    return task


MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "reba": ("llama", "reba", {}),
    "published": ("gpt2", "reba", {"variant": "published"}),
    "echo": ("llama", "echo", {"pooling": "mean"}),
    "hooks": ("bloom", "reba", {"pooling": "mean"}),
}


def build(base: Base, name: str) -> SentenceTransformer:
    path, method, options = MODELS[name]
    return pipeline(base(path, "bos_eos"), method, **options)


@pytest.mark.parametrize("names", [("reba",), ("hooks",), ("reba", "echo"), ("hooks", "published"), tuple(MODELS)])
def test_everything_at_once(base: Base, names: tuple[str, ...]) -> None:
    """Sentences, token vectors and words; both of these take another capture, which others must not see."""
    models = [build(base, name) for name in names]
    kinds = (encoding, token_vectors, encoding, words)
    check([kinds[thread % 4](models[thread % len(models)], thread) for thread in range(THREADS)])


STAGES: list[list[Any]] = [
    [],
    [LayerPlan(k=2, k0=1)],
    [LayerPlan("inter", "backward", k=2)],
    [LayerPlan("extra", k=2)],
    [LayerPlan("extend", "nosink-bidirectional", k=2)],
    [ReadLayers(1)],
    [ReadLayers((0, 2))],
    [Prepend(1)],
]


def test_one_backbone(deep: Base) -> None:
    """Stages over one backbone do not meet, nor does the plain model, one after another or at once."""
    plain = Transformer(deep("llama", "cls_sep"))

    def shared(stages: list[Any]) -> SentenceTransformer:
        # Prepending needs a placeholder, which a plain transformer's input has no place for.
        stages = [stage for stage in stages if stage.name != "prepend"]
        module = DecoderTransformer.adopt(plain, stages) if stages else plain
        return SentenceTransformer(modules=[module, Pooling(32, "mean")], device="cpu")

    before = encoded(shared([]))
    models = [shared(stages) for stages in STAGES]
    np.testing.assert_allclose(encoded(models[0]), before, atol=1e-5)
    assert float((encoded(models[1]) - before).abs().max()) > 1e-2
    check([encoding(models[thread], thread) for thread in range(THREADS)])
    assert all(len(layer._forward_hooks) == 1 for layer in plain.model.layers)


@pytest.mark.parametrize("method", ["echo", "reba"])
def test_stages(deep: Base, method: str) -> None:
    models = [pipeline(deep("llama", "cls_sep"), method, stages) for stages in STAGES]
    check([encoding(models[thread], thread) for thread in range(THREADS)])


def test_features_computed_on_demand(base: Base) -> None:
    """Threads that ask one feature dictionary for its token vectors all get the same."""
    model = build(base, "reba")
    wanted = model.encode(TEXTS[1], output_value="token_embeddings").numpy()
    features = model(features_of(model, [TEXTS[1]]))

    def task() -> list[NDArray[np.float32]]:
        return [features["token_embeddings"][0].detach().numpy()]

    for (got,) in together([task] * THREADS):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-6 * np.abs(wanted).max())


def test_tokenizer_settings(base: Base) -> None:
    """Prompts and texts are tokenized by other settings of one tokenizer: threads must not see each other's."""
    first: Any = build(base, "reba")[0]
    special = first.text_tokenizer.bos_token_id

    def prompts() -> list[NDArray[np.float32]]:
        return [np.array([piece == (special,) for piece in first.frames("<s>")[0].pieces[1:2]]) for _ in range(200)]

    def texts() -> list[NDArray[np.float32]]:
        return [np.array([special not in first.content(["<s>" * 9])["input_ids"][0]]) for _ in range(400)]

    for results in together([prompts, texts] * (THREADS // 2)):
        assert all(result.all() for result in results)
