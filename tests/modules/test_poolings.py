"""The registry of poolings: a new one is an entry, and depends on no batch either."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from pipelines import encoded, pipeline

from st_reba import ReBA, ReBAPooling
from st_reba.modules.pooling import normalized
from st_reba.modules.poolings import POOLINGS, SentencePooling

Base = Callable[..., str]


def test_a_new_pooling_depends_on_no_batch(base: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is not linear in its rows gives a short text the same vector alone and beside a long one."""

    def by_entropy(rows: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        entropies = torch.special.entr(normalized(rows)).sum(dim=2)
        return (normalized(entropies)[:, :, None] * rows).sum(dim=1)

    monkeypatch.setitem(POOLINGS, "entropy", SentencePooling("copy", by_entropy, None, "(1/H) Σ_i H_i e_i"))
    short, long = "hi there", "The bank of the river is steep, and nobody swims there."
    for options in ({}, {"include_special": True}, {"normalize_weights": True}):
        model = pipeline(base("llama", "bos_eos"), pooling="entropy", normalize=True, **options)
        alone, together = encoded(model, [short]), encoded(model, [short, long])
        torch.testing.assert_close(together[:1], alone, rtol=0, atol=1e-6)
    for make in (lambda: ReBAPooling(32, "entropy", "published"), lambda: ReBA(pooling="entropy", variant="published")):
        with pytest.raises(ValueError, match="pooling='entropy' is not in the authors' code"):
            make()
