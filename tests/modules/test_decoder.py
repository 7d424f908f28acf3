"""A decoder with stages around its layers: set again and again, what a pass takes and gives, and what it refuses."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import save
from marks import slow_but
from oracle import TEXTS, assert_close, oracle
from pipelines import METHODS, assert_same, encoded, features_of, of_method, pipeline, transformer
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import Tensor

import st_reba
from st_reba import (
    DecoderTransformer,
    LayerPlan,
    ReadLayers,
    RepeatTransformer,
)
from st_reba.modules.attention import ATTENTION_NAME

Base = Callable[..., str]
ORDINARY = ("天", "今天天气很好，我们去公园散步吧。", "The bank of the river is steep.", "hi")
PLANS: dict[str, LayerPlan] = {
    "inplace": LayerPlan(k=3, k0=1),
    "inter": LayerPlan("inter", "backward", k=2),
    "inter published": LayerPlan("inter", k=2, k0=1, variant="published"),
    "extra": LayerPlan("extra", k=2),
    "extra published": LayerPlan("extra", "nosink-forward", k=2, variant="published"),
    "extend": LayerPlan("extend", "nosink-bidirectional", k=2),
}


def test_plans_in_turn(tmp_path: Any) -> None:
    """One load of the weights serves any number of plans; hooks do not pile up, and nothing of them is saved."""
    model: Any = pipeline("mini", "nosink", [LayerPlan()])
    wanted = {name: encoded(pipeline("mini", "nosink", [plan])) for name, plan in PLANS.items()}
    plain = encoded(model)
    for name in (*PLANS, None, *reversed(PLANS), None, "extra", "inplace"):
        model[0].rebind([] if name is None else [PLANS[name]])
        torch.testing.assert_close(encoded(model), plain if name is None else wanted[name], atol=1e-5, rtol=0)
        assert model[0].stack == (None if name is None else PLANS[name].resolve(6))
    assert [len(layer._forward_hooks) for layer in model[0].model.layers] == [1] * 6
    model.save_pretrained(str(tmp_path))
    # Plain transformers must be able to load it.
    assert ATTENTION_NAME not in (tmp_path / "config.json").read_text(encoding="utf-8")


def test_stages_stay_when_others_are_refused(base: Base) -> None:
    model: Any = pipeline("mini", "nosink", [LayerPlan(k=3)])
    wanted, stages = encoded(model), model[0].stages
    for refused, message in (
        ([LayerPlan(k=7)], "layers: k=7, but 6 layers"),
        ([ReadLayers(3), LayerPlan(k=4)], "layers: k=4, but 3 layers"),
        ([LayerPlan("inter", k=1), ReadLayers([1, 3])], r"layers=\[1, 2, 3\].*runs layers twice"),
        ([{"read": {"layers": 9}}], "no 9"),
    ):
        with pytest.raises(ValueError, match=message):
            model[0].rebind(refused)
        assert model[0].stages == stages
        assert torch.equal(encoded(model), wanted)


@pytest.mark.parametrize("plan", [LayerPlan(k=2), LayerPlan("inter", k=2)], ids=str)
def test_a_plan_that_was_switched_off(plan: LayerPlan) -> None:
    """Whoever changes the attention implementation afterwards gets an error, not another model's vectors."""
    model: Any = pipeline("mini", "nosink", [plan])
    wanted = encoded(model)
    model[0].model.set_attn_implementation("sdpa")
    with pytest.raises(ValueError, match="LlamaModel did not run it: its attention implementation is 'sdpa'"):
        model.encode("天")
    model[0].rebind([plan])
    assert torch.equal(encoded(model), wanted)


def test_a_decoder_by_itself_can_be_pooled(base: Base) -> None:
    path = base("llama", "cls_sep")
    model = SentenceTransformer(modules=[DecoderTransformer(path), Pooling(32, "mean")], device="cpu")
    for text, got in zip(TEXTS, encoded(model), strict=True):
        assert_close(got, oracle(path, text, (None,))[1].mean(dim=0))


def poison(model: Any, text: str, value: float) -> None:
    """Fill the embedding of a token that of all texts only this one has, and that never stands for anything else."""
    used = {0, *model[0].text_tokenizer.all_special_ids}
    used.update(model[0].preprocess(list(ORDINARY))["input_ids"].flatten().tolist())
    token = next(token for token in model[0].content([text])["input_ids"][0] if token not in used)
    with torch.no_grad():
        model[0].model.get_input_embeddings().weight[token] = value


@pytest.mark.parametrize(
    "method", ["reba last", "reba mean", "published last", "published mean", "chunked", "echo mean", "prompteol"]
)
@pytest.mark.parametrize(
    ("name", "value"),
    slow_but(
        [("llama", math.nan), ("bloom", math.inf), ("gpt_oss", math.nan), ("gemma2", math.inf)],
        "llama",
        "bloom",
        rows=True,
    ),
)
def test_not_finite(base: Base, name: str, method: str, value: float) -> None:
    """One text's NaN is that text's alone: its mates are exact, and it is named, or zero as in the published code."""
    bad = "Zebra Quiz, 斑马 and so on: " * 5
    model = of_method(base, name, "bos", method)
    wanted = encoded(model, ORDINARY, alone=True)
    poison(model, bad, value)
    if "published" in method:
        got = encoded(model, (bad, *ORDINARY))
        assert not got[0].any()
        assert_same(got[1:], wanted)
        tokens = model.encode([bad, *ORDINARY], output_value="token_embeddings")
        assert all(bool(torch.isfinite(one).all()) for one in tokens) and not tokens[0].any()
        return
    for texts in ([*ORDINARY, bad], [bad]):
        with pytest.raises(ValueError, match="gave NaN or infinity.* 'Zebra Quiz, 斑马") as caught:
            model.encode(texts)
        assert "dtype" in str(caught.value) and "\n" not in str(caught.value)
    assert_same(encoded(model, ORDINARY), wanted)


def test_not_finite_weights(base: Base) -> None:
    """A broken parameter breaks every text."""
    for method in ("reba last", "published last"):
        model: Any = of_method(base, "llama", "bos", method)
        with torch.no_grad():
            next(model[0].model.parameters())[:] = float("nan")
        if "published" in method:
            assert not encoded(model, ORDINARY).any()
        else:
            with pytest.raises(ValueError, match="NaN or infinity.*'hi'.*float32"):
                model.encode("hi")


def test_not_finite_from_the_start(tmp_path: Path) -> None:
    """A base that gives NaN is built where that gives zeros, and is refused for what it is where it does not."""
    path = str(save("llama", tmp_path, "bos"))
    broken: Any = RepeatTransformer(path).model
    with torch.no_grad():
        next(broken.parameters())[:] = float("nan")
    broken.save_pretrained(path)
    for method in ("reba", "echo"):
        with pytest.raises(ValueError, match="gave NaN or infinity"):
            st_reba.build(path, method, device="cpu")
    assert not encoded(st_reba.build(path, variant="published", device="cpu"), ORDINARY).any()


def test_large_states_are_finite(base: Base) -> None:
    """The sum over a text may overflow where no number does."""
    first: Any = transformer(base("llama"), "classical")
    with torch.no_grad():
        first.model.norm.weight.fill_(1e38)
        found = first(features_of([first], ["a text of some tokens"]))["token_embeddings"]  # type: ignore[arg-type]
    assert bool(found.isfinite().all()) and not bool(found.sum().isfinite())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["llama", "bloom"])
def test_features_are_not_changed(base: Base, name: str, method: str) -> None:
    """Run twice, the same features give the same vectors, and are afterwards what they were."""
    model = of_method(base, name, "bos_eos", method)
    features = features_of(model, ["hi", *ORDINARY])
    before = {key: value.clone() if isinstance(value, Tensor) else list(value) for key, value in features.items()}
    with torch.inference_mode():
        first = model(features)
        tokens = first["token_embeddings"].clone()
        second = model(features)
        assert torch.equal(first["sentence_embedding"], second["sentence_embedding"])
        assert torch.equal(tokens, second["token_embeddings"])
    assert list(features) == list(before)
    for key, value in before.items():
        assert torch.equal(features[key], value) if isinstance(value, Tensor) else features[key] == value


@pytest.mark.parametrize("method", METHODS)
def test_places_that_do_not_fit(base: Base, method: str) -> None:
    """Whoever splits a batch splits its tensors: the list of places is then read from them again."""
    model = of_method(base, "llama", "bos_eos", method)
    features = features_of(model, ["hi", *ORDINARY])
    with torch.inference_mode():
        wanted = model(features)["sentence_embedding"]
        for places in ({"places": features["places"]}, {}):
            parts = []
            for rows in (slice(0, 2), slice(2, 3), slice(3, 5)):
                part = {name: value[rows] for name, value in features.items() if isinstance(value, Tensor)}
                given = {**part, **places}
                parts.append(model(given)["sentence_embedding"])
                assert given.get("places", features["places"]) == features["places"]
            assert_same(torch.cat(parts), wanted)


@pytest.mark.parametrize("method", ["reba last", "echo mean", "classical cls"])
def test_padding_in_front_is_refused(base: Base, method: str) -> None:
    model = of_method(base, "llama", "bos_eos", method)
    features = features_of(model, ORDINARY)
    turned = {name: value.flip(1) for name, value in features.items() if isinstance(value, Tensor)}
    with pytest.raises(
        ValueError, match=r"padded on the left, and st_reba pads on the right: set tokenizer\.padding_side"
    ):
        model(turned)
    # Without padding there is nothing in front.
    model({name: value[1:2] for name, value in turned.items()})
