"""Plans set on a module again and again, NoSinkTransformer by hand, and what undoes a plan."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from oracle import folder
from pipelines import transformer

from st_reba import LayerPlan, NoSink, NoSinkTransformer, RepeatTransformer


def test_by_hand() -> None:
    path = folder("mini")
    first = NoSinkTransformer(path, "MASK0&BIDIR", k=2, k0=1)
    assert (
        first.stack == RepeatTransformer(path, stages=[LayerPlan(k=2, k0=1)]).stack == LayerPlan(k=2, k0=1).resolve(6)
    )
    assert first.repeats == 1 and first.stages == (NoSink("mask0&bidir", k=2, k0=1),)
    given = dict(first.preprocess(["天", "Hello"]))
    other: Any = transformer("mini", "nosink", first.stages)
    with torch.inference_mode():
        assert torch.equal(first(given)["token_embeddings"], other(given)["token_embeddings"])
    assert NoSinkTransformer(path, "baseline", template="{text} {text}").repeats == 2
    with pytest.raises(ValueError, match="NoSinkTransformer needs setting"):
        NoSinkTransformer(path)
    with pytest.raises(ValueError, match="do the same thing"):
        NoSinkTransformer(path, "baseline", stages=[LayerPlan()])
    with pytest.raises(ValueError, match="needs k"):
        NoSinkTransformer(path, "mask0-bidir")
    with pytest.raises(ValueError, match="k=3: setting='baseline' takes no k"):
        NoSinkTransformer(path, k=3, stages=[NoSink("mask0-bidir", k=2)])
