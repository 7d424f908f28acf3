"""Token Prepending against the float64 oracle: architectures × methods, alone and in a batch."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import reference
import torch
from marks import slow_but
from oracle import TEXTS, assert_close, double, loaded
from pipelines import DEPTH, enable_checkpointing, encoded, features_of, pipeline, sentences, transformer
from reference import Layout
from reference_nosink import plan
from reference_stages import ensemble, placed_behind, prepended, prepended_by_hooks
from torch import Tensor

from st_reba import Ensemble, LayerPlan, NoSink, Prepend, ReadLayers
from st_reba.batches import copied_positions
from st_reba.modules.layout import TokenLayout

Deep = Callable[..., str]
PROMPT = 'Say "{text}" in one word: "'
METHODS: dict[str, tuple[str, dict[str, Any], list[str | None]]] = {
    "classical": ("classical", {"pooling": "mean"}, [None]),
    "last": ("classical", {}, [None]),
    "echo": ("echo", {"pooling": "mean"}, [None, None]),
    "reba": ("reba", {}, [None, None]),
    "reba-mean": ("reba", {"pooling": "mean"}, [None, None]),
    "prompteol": ("prompteol", {"template": PROMPT}, ['Say "', None, '" in one word: "']),
}


def build(path: str, method: str, *stages: Any, **options: Any) -> Any:
    name, fields, _ = METHODS[method]
    return pipeline(path, name, stages, **{**fields, **options})


def layout(path: str, text: str, method: str) -> tuple[Layout, int]:
    tokenizer = loaded(path)[1]
    return placed_behind(reference.layout(tokenizer, text, METHODS[method][2]), tokenizer.eos_token_id)


def pooled(method: str, placed: Layout, hidden: Tensor, maps: Tensor) -> Tensor:
    if method.startswith("reba"):
        return reference.reba(hidden, reference.symmetrized_max(maps), placed, "mean" if "mean" in method else "last")
    if method == "prompteol":
        return reference.very_last(hidden)
    if method == "echo":
        return reference.echo(hidden, placed, "mean")
    return reference.classical(hidden, placed, "mean" if method == "classical" else "last")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", slow_but(["gpt2", "llama", "mistral", "qwen2", "gemma2"], "gpt2", "gemma2"))
def test_exact(deep: Deep, name: str, method: str) -> None:
    path = deep(name, "bos_eos")
    for layers in (1, 2):
        expected = []
        for text in TEXTS:
            placed, at = layout(path, text, method)
            expected.append(pooled(method, placed, *prepended_by_hooks(double(path), placed.ids, at, layers)))
        model = build(path, method, Prepend(layers))
        for wanted, got in zip(expected, encoded(model), strict=True):
            assert_close(got, wanted)
        assert_close(model.encode(TEXTS[1]), expected[1])


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize(
    ("kind", "k", "k0", "m"), [("bidirectional", 2, 1, 1), ("backward", 1, 0, 1), ("nosink-forward", 3, 0, 2)]
)
def test_with_plans(deep: Deep, name: str, kind: Any, k: int, k0: int, m: int) -> None:
    path, texts = deep(name, "bos_eos"), TEXTS[:4]
    wanted = plan(DEPTH, "inplace", kind, k, k0, m=m)
    for method in ("classical", "reba-mean"):
        model = build(path, method, Prepend(2), LayerPlan(kind=kind, k=k, k0=k0, m=m))
        for text, got in zip(texts, encoded(model, texts), strict=True):
            placed, at = layout(path, text, method)
            assert_close(got, pooled(method, placed, *prepended(double(path), placed.ids, at, 2, wanted)))


def test_of_an_inner_layer(deep: Deep) -> None:
    path = deep("llama", "bos_eos")
    for text, got in zip(TEXTS, encoded(build(path, "classical", Prepend(1), ReadLayers(2))), strict=True):
        placed, at = layout(path, text, "classical")
        hidden, _ = prepended(double(path), placed.ids, at, 1, plan(DEPTH), runs=2)
        assert_close(got, reference.classical(hidden, placed, "mean"))
    with pytest.raises(ValueError, match=r"prepend: layers=1, but 1 layers run"):
        build(path, "classical", Prepend(1), ReadLayers(1))


def test_ensemble(deep: Deep) -> None:
    """Each row has its placeholder where its own template puts the text."""
    path = deep("llama", "bos_eos")
    model = pipeline(
        path, "prompteol", [Ensemble(["Say {text}!", "{text} in one word:"], weights=[1, -0.5]), Prepend(2)]
    )  # type: ignore[arg-type]
    tokenizer = loaded(path)[1]
    for text, got in zip(TEXTS, encoded(model), strict=True):
        vectors = []
        for pieces in (["Say ", None, "!"], [None, " in one word:"]):
            placed, at = placed_behind(reference.layout(tokenizer, text, pieces), tokenizer.eos_token_id)
            vectors.append(reference.very_last(prepended_by_hooks(double(path), placed.ids, at, 2)[0]))
        assert_close(got, ensemble(vectors, [1, -0.5]))


def test_layout(deep: Deep) -> None:
    with_one, without = (
        transformer(deep("llama", "bos_eos"), "echo", stages, template="a {text} b {text}")
        for stages in ([Prepend(1)], [])
    )
    found, plain = (each.preprocess(["hi"]) for each in (with_one, without))
    ids, copies = found["input_ids"][0].tolist(), found["copy_ids"][0].tolist()
    at = copies.index(1) - 1
    assert ids[at] == with_one.token_layout.stand_in()
    assert ids[:at] + ids[at + 1 :] == plain["input_ids"][0].tolist()
    assert copies[:at] + copies[at + 1 :] == plain["copy_ids"][0].tolist()
    # Both take all of their room; the placeholder has a position of its own.
    assert copied_positions(with_one, ["hi"])[0] == copied_positions(without, ["hi"])[0] + 1
    for each in (with_one, without):
        each.max_seq_length = 40
        assert each.budget() == (40 - each.frames()[0].overhead) // 2
    assert with_one.frames()[0].overhead == without.frames()[0].overhead + 1


def test_gradient(deep: Deep) -> None:
    """The embeddings of the last token learn through the placeholder as well."""
    path, text = deep("llama", "bos_eos"), TEXTS[2]
    model = build(path, "last", Prepend(1))
    sentences(model, features_of(model, [text])).sum().backward()
    placed, at = layout(path, text, "last")
    whole: Any = double(path)

    def put(module: Any, arguments: Any, output: Any) -> Any:
        return torch.stack([output[:, -1] if row == at else output[:, row] for row in range(output.shape[1])], dim=1)

    hook = whole.layers[0].register_forward_hook(put)
    whole.zero_grad()
    hidden = whole(input_ids=torch.tensor([placed.ids]), use_cache=False).last_hidden_state[0]
    hidden[placed.positions(1)[-1]].sum().backward()
    hook.remove()
    assert_close(model[0].model.embed_tokens.weight.grad, whole.embed_tokens.weight.grad, 1e-4)


@pytest.mark.parametrize("layers", [0, -1, True, 2.0, "2", 1025, None])
def test_values_that_are_not_allowed(layers: Any) -> None:
    with pytest.raises(ValueError, match=r"prepend: layers=.* is not allowed: give a whole number from 1 to 1,024"):
        Prepend(layers)


def test_refused(deep: Deep, monkeypatch: pytest.MonkeyPatch) -> None:
    path = deep("llama", "bos_eos")
    with pytest.raises(ValueError, match=r"prepend: layers=3, but 3 layers run.*Give 1 to 2"):
        build(path, "classical", Prepend(3))
    # Later: the plan is set, the layers' hooks are gone, the tokenizer has no token for it.
    model = build(path, "classical", Prepend(1), NoSink("extra-bidir", k=1))
    with pytest.raises(ValueError, match="prepend: the layer plan has a second pass.*inplace"):
        model.encode("a")
    model[0].rebind([Prepend(1)])
    enable_checkpointing(model, use_reentrant=False)
    model.train()
    with pytest.raises(ValueError, match="prepend: it does not go with gradient checkpointing"):
        model(features_of(model))
    model.eval()
    for layer in model[0].model.layers:
        layer._forward_hooks.clear()
    with pytest.raises(ValueError, match="replaced behind 0 of 1 layers"):
        model.encode("a")
    call = SimpleNamespace(index=0, hidden=torch.zeros(2, 3, 8), module=model)
    with pytest.raises(ValueError, match=r"passes on states of shape \(2, 3, 8\), not \(2, 4\) and d"):
        model[0].bound[0].after_layer(SimpleNamespace(real=torch.ones(2, 4)), call)
    monkeypatch.setattr(TokenLayout, "stand_in", lambda self: None)
    with pytest.raises(ValueError, match="prepend: the tokenizer has no special token"):
        model.encode("a")
