"""Training every pipeline: losses that run texts twice, models that have learned, several processes."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from marks import slow_but
from pipelines import (
    BASES,
    TEXTS,
    TWICE,
    assert_gradients,
    build,
    cases,
    enable_checkpointing,
    encoded,
    features_of,
    gradients,
    on,
    pipeline,
    sentences,
)
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import (
    CachedMultipleNegativesRankingLoss,
    MultipleNegativesRankingLoss,
)
from torch import Tensor

import st_reba
from st_reba import NoSink
from st_reba.modules.training import Remembering

Base = Callable[..., str]


@pytest.mark.parametrize("name", ["echo-last", "mask0", "inter", "reba-mean", "chunked-last"])
def test_gradcache(base: Base, name: str) -> None:
    """A loss that runs every text twice, in parts, has the gradient of one that runs all at once."""
    model = build(base("llama"), name)
    pairs = [features_of(model, TEXTS), features_of(model, [text + " again" for text in TEXTS])]

    def loss(kind: Any, **options: Any) -> Callable[[], Tensor]:
        return lambda: kind(model, scale=20.0, **options)([dict(each) for each in pairs], None)

    wanted = gradients(model, loss(MultipleNegativesRankingLoss))
    assert_gradients(gradients(model, loss(CachedMultipleNegativesRankingLoss, mini_batch_size=2)), wanted, 1e-4)


@pytest.mark.parametrize("name", ["echo-last", "mask0", "reba-mean", "chunked-mean"])
def test_after_a_step(base: Base, name: str, tmp_path: Path) -> None:
    """A model that has learned is copied, pickled, saved and loaded as any other."""
    model = build(base("llama"), name)
    before = encoded(model, TEXTS)
    model.train()
    aim = torch.randn(len(TEXTS), 32, generator=torch.Generator().manual_seed(1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = -(sentences(model, features_of(model)) * aim).sum()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[2] < losses[1] < losses[0]
    model.eval()
    after = encoded(model, TEXTS)
    assert float((after - before).abs().max()) > 1e-3
    copied, pickled = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    model.save_pretrained(str(tmp_path))
    for each in (model, copied, pickled, SentenceTransformer(str(tmp_path), device="cpu")):
        assert torch.equal(encoded(each, TEXTS), after)
        # Nothing of the passes before is left in it.
        again = sentences(each, features_of(each)).detach()
        np.testing.assert_allclose(again, after, atol=1e-6)


WORKER = """
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import st_reba

rank, folder, base, texts = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
found = {}
for name, options in {"reba": {"pooling": "mean"}, "nosink": {"setting": "mask0-bidir", "k": 1}}.items():
    model = st_reba.build(base, name, check=False, device="cpu", **options)
    parallel = DistributedDataParallel(model)
    aim = torch.randn(len(texts), 32, generator=torch.Generator().manual_seed(1))
    part = slice(rank, None, 2)
    vectors = parallel(dict(model[0].preprocess(texts[part])))["sentence_embedding"]
    (vectors * aim[part]).sum(dim=1).mean().backward()
    found |= {f"{name} {key}": each.grad for key, each in model.named_parameters() if each.grad is not None}
torch.save(found, f"{folder}/{rank}.pt")
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes(base: Base, tmp_path: Path) -> None:
    """DistributedDataParallel's gradient is that of both processes' texts together."""
    texts = [*TEXTS, "A cat sleeps."]
    path = os.pathsep.join([str(Path(st_reba.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(rank), str(tmp_path), base("llama"), *texts],
            env=environment,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )
        for rank in range(2)
    ]
    errors = [worker.communicate(timeout=300)[1] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], errors
    wanted = {}
    aim = torch.randn(len(texts), 32, generator=torch.Generator().manual_seed(1))
    models = {
        "reba": pipeline(base("llama"), pooling="mean", normalize=True),
        "nosink": pipeline(base("llama"), "nosink", [NoSink("mask0-bidir", k=1)], normalize=True),
    }
    for name, model in models.items():
        (sentences(model, features_of(model, texts)) * aim).sum(dim=1).mean().backward()
        wanted |= {f"{name} {key}": each.grad for key, each in model.named_parameters() if each.grad is not None}
    for rank in range(2):
        assert_gradients(torch.load(tmp_path / f"{rank}.pt", weights_only=True), wanted)


@pytest.mark.parametrize(
    ("architecture", "name"),
    slow_but(
        cases(
            ("reba-last", "reba-mean", "published-last", "chunked-mean", "reba-plan", "mask0"), ("llama", *BASES[:4])
        ),
        "llama",
        "falcon",
        rows=True,
    ),
)
def test_checkpointing(base: Base, architecture: str, name: str) -> None:
    model = on(base, architecture, name)
    model.train()

    def loss() -> Tensor:
        # Two passes before one backward pass: each layer has to find its own.
        first, second = (sentences(model, features_of(model, texts)) for texts in (TEXTS, TEXTS[::-1][:2]))
        return (first[:2] * second).sum()

    wanted = gradients(model, loss)
    enable_checkpointing(model)
    assert_gradients(gradients(model, loss), wanted)
    assert any(isinstance(getattr(m, "_gradient_checkpointing_func", None), Remembering) for m in model.modules())
    # Again, and after it was switched off and on.
    model[0].model.gradient_checkpointing_disable()
    enable_checkpointing(model)
    assert_gradients(gradients(model, loss), wanted)


@pytest.mark.parametrize("name", TWICE)
def test_checkpointing_of_second_passes_is_refused(base: Base, name: str) -> None:
    model = build(base("llama"), name)
    enable_checkpointing(model)
    model.train()
    with pytest.raises(ValueError, match=r"layers that run twice.*gradient_checkpointing_disable"):
        model(features_of(model))
    # Without a gradient nothing is checkpointed.
    with torch.no_grad():
        model(features_of(model))
    model.eval()
    sentences(model, features_of(model)).sum().backward()


def test_reentrant_checkpointing_is_refused(base: Base) -> None:
    model = build(base("llama"), "reba-last")
    enable_checkpointing(model, use_reentrant=True)
    model.train()
    with pytest.raises(ValueError, match=r'use_reentrant=True no gradient.*"use_reentrant": False'):
        model(features_of(model))
    for module in model.modules():
        if hasattr(module, "_gradient_checkpointing_func"):
            del module._gradient_checkpointing_func
    with pytest.raises(ValueError, match=r"in a way that is not known.*disable"):
        model(features_of(model))
