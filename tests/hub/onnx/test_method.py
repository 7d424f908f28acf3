"""What a graph has to compute is read of a model, and what no graph can is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sentence_transformers import SentenceTransformer

import st_reba
from st_reba import Prepend
from st_reba.hub.onnx.method import method_of


def build(base: str, **options: Any) -> SentenceTransformer:
    return st_reba.build(base, dtype="float32", device="cpu", check=False, **options)


def test_what_is_read(base: Callable[..., str]) -> None:
    model = build(base("qwen3", "bos_eos"), method="echo", pooling="mean", template="Say: {text} Again: {text}!")
    method = method_of(model)
    assert (method.task, method.prompt, method.pooling, method.reba) == (None, None, "mean", None)
    assert (method.before, method.after, method.normalized, method.behind) == (1, 1, True, ())
    assert method.dimension == model.get_embedding_dimension() and method.frame == model[0].frames(None, None)[0]  # type: ignore[operator, union-attr]
    assert method.max_length == model[0].budget() + 2 and method.frame.copies == 2  # type: ignore[operator, union-attr]
    backward = method_of(build(base("qwen3"), normalize=False, max_seq_length=41))
    assert (backward.pooling, backward.normalized, backward.budget) == ("last", False, 20)
    assert backward.reba is not None


def test_queries_and_documents_laid_out_differently(base: Callable[..., str]) -> None:
    by_template = build(base("qwen3"), method="echo", template="echo-instruct", instruction="Find it.")
    by_prompt = build(base("qwen3"), prompts={"query": "Question: ", "document": ""})
    for model in (by_template, by_prompt):
        with pytest.raises(ValueError, match=r"MODEL puts other words around a query.*\(--task\)"):
            method_of(model)
        found = [method_of(model, task) for task in ("query", "document")]
        assert found[0].frame != found[1].frame and [each.task for each in found] == ["query", "document"]
    assert method_of(by_prompt, "query").prompt == "Question: "
    with pytest.raises(ValueError, match="task='both'"):
        method_of(by_template, "both")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chunk": 8}, "'chunk': 8.*without chunk"),
        ({"method": "nosink", "setting": "inter-bidir", "k": 1}, "inplace"),
        ({"method": "nosink", "setting": "extra-back", "k": 1}, "inplace"),
        ({"method": "nosink", "setting": "extend-bidir", "k": 1}, "inplace"),
        ({"method": "echo", "template": "{instruction} {text} {text}"}, "instruction"),
        ({"method": "echo", "template": "{topic} {text} {text}"}, "topic"),
    ],
)
def test_refused(base: Callable[..., str], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        method_of(build(base("qwen3"), **options))


def test_refused_backbones(base: Callable[..., str]) -> None:
    with pytest.raises(ValueError, match="dtype"):
        method_of(st_reba.build(base("qwen3"), dtype="bfloat16", device="cpu", check=False))
    turning = build(base("llama"))
    turning[0].model.config.rope_parameters = {"rope_type": "dynamic", "factor": 2.0}  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="rotary"):
        method_of(turning)
    recurrent = build(base("qwen3"))
    recurrent[0].model.config.layer_types = ["linear_attention", "full_attention"]  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="recurrent"):
        method_of(recurrent)


def test_refused_settings(base: Callable[..., str]) -> None:
    cut = build(base("qwen3"))
    cut.truncate_dim = 8
    with pytest.raises(ValueError, match="truncate_dim=8"):
        method_of(cut)
    pooled = build(base("qwen3"), method="classical")
    pooled[1].pooling_mode = "weightedmean"  # type: ignore[assignment]
    with pytest.raises(ValueError, match="weightedmean"):
        method_of(pooled)


def test_prepended_placeholders_are_refused() -> None:
    model = build("mini", method="echo", stages=[Prepend(1)])
    with pytest.raises(ValueError, match="prepend: a token that is replaced"):
        method_of(model)
