"""What of Ray's engine needs no Ray; tests/consumers/test_ray.py has the rest."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contents import files_of
from tiny import tiny_model

from st_reba.corpus import Corpus, encode_corpus
from st_reba.corpus import ray as engine
from st_reba.corpus.ray import ATTEMPTS, _Encoder, encode_on_ray, share_out

TEXTS = [f"cat {'dog ' * (row % 4)} {row}" for row in range(12)]


@pytest.mark.parametrize(
    ("nodes", "workers", "share"),
    [
        ([(16, 4), (32, 4)], None, (8, 4, 1)),
        ([(16, 4), (32, 4)], 3, (3, 4, 1)),
        ([(2, 4)], None, (4, 1, 1)),
        # A head node without GPUs has no part in it.
        ([(64, 0), (16, 8)], None, (8, 2, 1)),
        ([(16, 0), (8, 0)], None, (2, 8, 0)),
        ([(16, 0), (8, 0)], 3, (3, 8, 0)),
        ([(16, 0), (8, 0)], 4, (4, 5, 0)),
        ([(2, 0)], 2, (2, 1, 0)),
        ([(0, 0), (4, 0)], None, (1, 4, 0)),
    ],
)
def test_shares(nodes: list[tuple[int, int]], workers: int | None, share: tuple[int, int, int]) -> None:
    assert share_out(nodes, workers) == share
    # Every worker has a place.
    count, threads, gpus = share
    assert sum(there if gpus else cores // threads for cores, there in nodes) >= count


@pytest.mark.parametrize(
    ("nodes", "workers", "said"),
    [
        ([(16, 4)], 5, r"workers=5: the Ray cluster has 4 GPUs.*at most 4 \(--workers\).*--devices cpu"),
        ([(2, 0), (1, 0)], 4, r"workers=4: the Ray cluster has 3 cores.*--workers"),
        ([], None, "the Ray cluster has 0 cores"),
    ],
)
def test_too_many_workers(nodes: list[tuple[int, int]], workers: int | None, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        share_out(nodes, workers)


def test_ray_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in sys.modules if name == "ray" or name.startswith("ray.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"engine='ray' needs Ray Data.*pip install 'st-reba\[ray\]'"):
        encode_corpus(tiny_model(), TEXTS, tmp_path / "corpus", engine="ray")


def test_devices_are_rays_own(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"devices=\['cuda:0'\] does not go with engine='ray'.*--workers"):
        encode_on_ray(tiny_model(), Corpus(tmp_path), [0], lambda *_: None, workers=None, devices=["cuda:0"])


# A worker, in this process


class Sent:
    """In place of Ray's object store."""

    model: Any = None

    @classmethod
    def get(cls, sent: object) -> Any:
        return cls.model


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    """A corpus of two parts, the second of which has no vectors."""
    monkeypatch.setattr(engine, "load_ray", lambda: Sent)
    monkeypatch.setattr(Sent, "model", tiny_model())
    made = encode_corpus(tiny_model(), TEXTS, tmp_path / "corpus", part_size=6, show_progress_bar=False)
    made.vectors_path(1).rename(tmp_path / "wanted.npy")
    return made


def told(corpus: Corpus | Path) -> Any:
    """What a worker says of part 1: its number of texts, or the error."""
    path = corpus.path if isinstance(corpus, Corpus) else corpus
    row = _Encoder(None, str(path), "cpu", 1)({"part": np.array([1])})
    return pickle.loads(row["error"][0]) if row["error"][0] else row["texts"][0]


def test_a_worker_encodes_a_part(corpus: Corpus) -> None:
    assert told(corpus) == 6
    assert corpus.vectors_path(1).read_bytes() == (corpus.path.parent / "wanted.npy").read_bytes()
    corpus.verify()
    assert not [name for name in files_of(corpus.path) if "tries" in name]


def test_a_node_without_the_folder(corpus: Corpus, tmp_path: Path) -> None:
    error = told(tmp_path / "not_shared")
    assert isinstance(error, ValueError) and "not_shared: not there on the node" in str(error)


def test_another_model_is_refused(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sent, "model", tiny_model(seed=1))
    error = told(corpus)
    assert isinstance(error, ValueError) and "the corpus was built with" in str(error)
    assert corpus.pending() == [1]


def test_a_part_that_kills_its_workers_is_named(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the next run counts anew."""

    def die(*args: Any) -> None:
        raise KeyboardInterrupt  # which nothing in a worker catches

    with monkeypatch.context() as patch:
        patch.setattr("st_reba.corpus.ray.encode_part", die)
        for _ in range(ATTEMPTS):
            with pytest.raises(KeyboardInterrupt):
                told(corpus)
        error = told(corpus)
        assert isinstance(error, RuntimeError) and str(error).startswith(f"part 1: {ATTEMPTS} workers died over it")
        with pytest.raises(KeyboardInterrupt):
            told(corpus)
    run = encode_corpus(tiny_model(), TEXTS, corpus.path, part_size=6)
    run.verify()
    assert not [name for name in files_of(corpus.path) if "tries" in name]


class Awkward(Exception):
    """It is made of two arguments and keeps one, so that pickle cannot make it again."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first + second)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device", "x.npy"), Awkward("out ", "of luck")])
def test_any_error_travels(corpus: Corpus, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*args: Any) -> None:
        raise error

    monkeypatch.setattr("st_reba.corpus.ray.encode_part", fail)
    found = told(corpus)
    if isinstance(error, OSError):
        assert type(found) is OSError and str(found) == str(error)
    else:
        assert type(found) is RuntimeError and str(found) == "Awkward: out of luck"
