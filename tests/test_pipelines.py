"""Models made of another's modules: what is changed in one is not changed in the other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pipelines import encoded, pipeline
from sentence_transformers.base.modules import Normalize
from sentence_transformers.sentence_transformer.modules import Pooling

import st_reba
from st_reba.pipelines import copied, rebuilt


@pytest.mark.parametrize("options", [{}, {"chunk": 4}], ids=str)
def test_a_rebuilt_model_is_one_of_its_own(options: dict[str, Any]) -> None:
    """Its pooling and its pieces follow what is set in it; weights are shared."""
    model: Any = pipeline("mini", pooling="mean", **options)
    before, plan = encoded(model), [st_reba.NoSink("mask0-bidir", k=3)]
    wanted = encoded(pipeline("mini", "reba", plan, pooling="mean", normalize=True, **options))
    found: Any = rebuilt(model, [*model, Normalize()])
    assert torch.equal(encoded(found), torch.nn.functional.normalize(before, dim=-1))
    found[0].rebind(plan)
    assert (wanted - torch.nn.functional.normalize(before, dim=-1)).abs().max() > 1e-3
    torch.testing.assert_close(encoded(found), wanted, rtol=0, atol=1e-5)
    assert torch.equal(encoded(model), before)
    assert found[1].source is found[0] and model[1].source is model[0]
    assert found[0].model is model[0].model and found.tokenizer is model.tokenizer
    # What one model's pooling asks of a pass is not asked of another's.
    plain: Any = rebuilt(model, [model[0], Pooling(192, "mean")])
    assert plain[0].watchers == [] and len(model[0].watchers) == len(found[0].watchers) == 1 - len(options)


def test_settings_are_carried_over_and_apart() -> None:
    model: Any = pipeline("mini", "echo")
    model.prompts, model.truncate_dim, model.similarity_fn_name = {"query": "Q: "}, 20, "dot"
    model.max_seq_length = 90
    found: Any = rebuilt(model, list(model))
    assert (found.truncate_dim, found.similarity_fn_name, found.max_seq_length) == (20, "dot", 90)
    assert found.model_card_data.model is found and model.model_card_data.model is model
    found.prompts["query"] = ""
    found.append(Normalize())
    assert model.prompts == {"query": "Q: "} and len(model) == 2
    assert [type(each).__name__ for each in found] == ["RepeatTransformer", "Pooling", "Normalize"]


def test_a_copy_has_hooks_and_modules_of_its_own() -> None:
    linear = torch.nn.Sequential(torch.nn.Linear(2, 2))
    other = copied(linear)
    other.register_forward_hook(lambda module, given, output: output + 1)
    other.append(torch.nn.Linear(2, 2))
    assert len(linear) == 1 and not linear._forward_hooks and other[0] is linear[0]
