"""What of Ray's engine needs no Ray; tests/consumers/test_ray.py has the rest."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import numpy as np
import pytest

import st_reba
from st_reba.corpus import Corpus, encode_corpus
from st_reba.corpus.engines.ray import RayEngine
from st_reba.corpus.engines.ray_cluster import Share, first_line, share_out
from st_reba.corpus.engines.ray_workers import Failure, Finished, Job, Loaded, _Delivered, _Encoder, _Reader
from st_reba.corpus.settings import EncodeSettings
from st_reba.fingerprint import fingerprint

TEXTS = [f"第{row}句。" + "The quick brown fox jumps. " * (row % 4) for row in range(12)]


@pytest.mark.parametrize(
    ("nodes", "workers", "share"),
    [
        ([(16, 4), (32, 4)], None, Share(8, 4, 1)),
        ([(16, 4), (32, 4)], 3, Share(3, 4, 1)),
        ([(2, 4)], None, Share(4, 1, 1)),
        # A head node without GPUs has no part in it.
        ([(64, 0), (16, 8)], None, Share(8, 2, 1)),
        ([(16, 0), (8, 0)], None, Share(2, 8, 0)),
        ([(16, 0), (8, 0)], 3, Share(3, 8, 0)),
        ([(16, 0), (8, 0)], 4, Share(4, 5, 0)),
        ([(2, 0)], 2, Share(2, 1, 0)),
        ([(0, 0), (4, 0)], None, Share(1, 4, 0)),
    ],
)
def test_shares(nodes: list[tuple[int, int]], workers: int | None, share: Share) -> None:
    assert share_out(nodes, workers) == share
    # Every worker has a place.
    room = [gpus if share.gpus else cores // share.reserved_cpus for cores, gpus in nodes]
    assert sum(room) >= share.workers
    assert share.reserved_cpus == (0 if share.gpus else share.threads)


def test_shares_without_the_gpus() -> None:
    assert share_out([(16, 4)], 2, use_gpus=False) == Share(2, 8, 0)


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
        encode_corpus(st_reba.build("mini"), TEXTS, tmp_path / "corpus", engine="ray")
    assert not (tmp_path / "corpus").exists()


def test_devices_are_rays_own() -> None:
    with pytest.raises(ValueError, match=r"devices=\['cuda:0'\] does not go with engine='ray'.*--workers"):
        RayEngine(devices=["cuda:0"])


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    model = st_reba.build("mini", device="cpu")
    return encode_corpus(model, TEXTS, tmp_path / "corpus", shard_size=6, show_progress_bar=False)


def job(corpus: Corpus, path: str | None = None) -> Job:
    return Job(
        path=path or str(corpus.path),
        settings=EncodeSettings(),
        fingerprint=fingerprint(st_reba.build("mini", device="cpu")),
        model=lambda device: st_reba.build("mini", device=device),
        share=Share(1, 1, 0),
        counter=None,
        attempts=1,
    )


def test_read_and_delivered(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block holds the shard's texts, and encoding takes them from there: bit for bit as from the file."""
    pytest.importorskip("pyarrow")
    block = _Reader(job(corpus))({"shard": np.array([1])})
    assert block.to_pydict() == {"shard": [1], "texts": [TEXTS[6:]], "failure": [None]}
    with _Delivered(corpus.path, TEXTS[6:]).open_documents(1) as store:
        assert len(store) == 6
        assert [text for _, text, _ in store.records()] == TEXTS[6:]
        assert [text for _, text, _ in store.records(2, 4)] == TEXTS[8:10]
    monkeypatch.setattr("st_reba.corpus.engines.ray_workers.DELIVERED_BYTES", 10)
    assert _Reader(job(corpus))({"shard": np.array([1])})["texts"].to_pylist() == [None]


def test_a_node_without_the_folder(corpus: Corpus, tmp_path: Path) -> None:
    """The reading stage sends the error on, and the encoding stage passes it."""
    pytest.importorskip("pyarrow")
    elsewhere = job(corpus, str(tmp_path / "not_shared"))
    block = _Reader(elsewhere)({"shard": np.array([0])})
    row = _Encoder(elsewhere)(block)
    outcome = pickle.loads(row["outcome"][0])
    assert isinstance(outcome, Failure) and isinstance(outcome.error, ValueError)
    assert "not_shared: not there on the node" in str(outcome.error)
    assert "same path" in str(outcome.error)


def test_outcomes_travel(corpus: Corpus) -> None:
    record = corpus.vectors(0)
    assert record is not None
    assert pickle.loads(pickle.dumps(Finished(0, 6, record))) == Finished(0, 6, record)


class Awkward(Exception):
    """It is made of two arguments and keeps one, so that pickle cannot make it again."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first + second)


def test_any_error_travels() -> None:
    for error in (OSError(28, "No space left on device", "x.npy"), KeyError("k")):
        sent = pickle.loads(pickle.dumps(Failure.of(error)))
        assert type(sent.error) is type(error) and str(sent.error) == str(error)
    sent = pickle.loads(pickle.dumps(Failure.of(Awkward("out ", "of luck"))))
    assert isinstance(sent.error, RuntimeError) and str(sent.error) == "Awkward: out of luck"
    assert "Awkward: out of luck" in sent.trace


def test_a_source_is_loaded_in_the_models_dtype(tmp_path: Path) -> None:
    st_reba.build("mini", device="cpu").save_pretrained(str(tmp_path / "model"))
    loaded = Loaded(str(tmp_path / "model"), "bfloat16", False)("cpu")
    assert {str(parameter.dtype) for parameter in loaded.parameters()} == {"torch.bfloat16"}


def test_first_line() -> None:
    assert first_line(RuntimeError("\n  no cluster.\ntrace\n")) == "no cluster"
    assert first_line(KeyboardInterrupt()) == "KeyboardInterrupt"
