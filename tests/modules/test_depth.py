"""Inner layers against the plain loop: which are read, before or behind the final norm, and that none above runs."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import reference
import reference_chunked
import reference_nosink
import test_multimodal
import test_threads
import torch
from architectures import ARCHITECTURES, EXTRA
from marks import slow_but
from oracle import TEXTS, assert_close, loaded
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

import st_reba
from st_reba import LayerPlan
from st_reba.modules import prefix, running
from st_reba.modules.depth import LayerList, Reading, cut_short, resolve_reading
from st_reba.modules.hooks import decoder_layers

Base = Callable[..., str]
Layer = int | tuple[int, int]
MODULES = Path(st_reba.__file__).parent / "modules"
SIDES = ["left", "right"]
# Two layers are too few to count from the top: mini has six, these three.
DEEP = {"gemma2": 3, "gpt_oss": 3, "gemma3_text": 3, "mini": 6}
# It says no layer_idx; and transformers computes alibi in two ways that disagree.
UNREADABLE, DISAGREES = "gpt_neo", "falcon_alibi"
NAMES = [name for name in (*ARCHITECTURES, *EXTRA, "mini") if name not in (UNREADABLE, DISAGREES)]


@lru_cache(maxsize=512)
def by_hand(path: str, text: str, copies: int = 1, *, final_norm: bool = True) -> tuple[reference.Layout, Tensor]:
    """Layout, and every layer's hidden states [L + 1, T, d] in float64."""
    model, tokenizer = loaded(path)
    placed = reference.layout(tokenizer, text, [None] * copies)
    return placed, reference.layer_states(_double(path), placed.ids, final_norm=final_norm)


@lru_cache(maxsize=4)
def _double(path: str) -> Any:
    return reference.as_double(loaded(path)[0])


def read(states: Tensor, layer: Layer) -> Tensor:
    """What is read of [L + 1, T, d], layers counted from 0."""
    return states[layer] if isinstance(layer, int) else reference.mean_of_layers(states, *layer)


def model_of(path: str, method: str = "classical", **options: Any) -> SentenceTransformer:
    options = {"pooling": "mean", "layer": 1, **options}
    return st_reba.build(path, method, normalize=False, **options)


def first_of(model: SentenceTransformer) -> Any:
    return model[0]


def hidden(model: SentenceTransformer, texts: tuple[str, ...] = TEXTS) -> list[Tensor]:
    """Hidden states of the texts as one batch, without the padding."""
    first = first_of(model)
    with torch.no_grad():
        given = first(first.preprocess(list(texts)))
    return [rows[mask.bool()] for rows, mask in zip(given["token_embeddings"], given["real_mask"], strict=True)]


@contextmanager
def counted(model: SentenceTransformer) -> Iterator[list[int]]:
    """Indices of the layers whose forward is called, in order."""
    first = first_of(model)
    ran: list[int] = []
    layers = decoder_layers(first.model, first.depth)
    before = {layer: layer.forward for layer in layers}

    def watched(layer: nn.Module, index: int) -> Any:
        def forward(*arguments: Any, **keywords: Any) -> Any:
            ran.append(index)
            return before[layer](*arguments, **keywords)

        return forward

    for layer, index in layers.items():
        layer.forward = watched(layer, index)
    try:
        yield ran
    finally:
        for layer in layers:
            del layer.forward


# ---------------------------------------------------------------------------------------------------------------------
# Which layer


@pytest.mark.parametrize("name", slow_but(NAMES, "llama", "gpt2", "gemma2"))
def test_every_layer(base: Base, name: str) -> None:
    """Every layer and range of every architecture, both paddings, before the norm and behind it."""
    path = base(name)
    depth = DEEP.get(name, 2)
    ranges = [(0, depth), (0, 1), (1, depth), (max(0, depth - 2), depth - 1)]
    for side in SIDES:
        model = model_of(path, padding_side=side)
        first = first_of(model)
        assert first.depth == depth
        for final_norm in (True, False):
            first.final_norm = final_norm
            for layer in (*range(depth + 1), *ranges):
                first.layer = layer
                texts = TEXTS if side == "left" else TEXTS[1:3]
                for text, got in zip(texts, hidden(model, texts), strict=True):
                    wanted = read(by_hand(path, text, final_norm=final_norm)[1], layer)
                    # Layers of unlike size beside one another: rounding of a large one counts for the small.
                    assert_close(got, wanted, 2e-5)


@pytest.mark.parametrize("side", SIDES)
def test_an_attention_of_its_own(base: Base, side: str) -> None:
    """Where transformers' eager attention is another, the layers are those that the model itself runs."""
    path = base(DISAGREES)
    model, plain = (model_of(path, padding_side=side, layer=layer) for layer in (1, None))
    first = first_of(model)
    features = first.preprocess([TEXTS[1]])
    output = first_of(plain).model(**{name: features[name] for name in ("input_ids", "attention_mask")},
                                   output_hidden_states=True)  # fmt: skip
    wanted = [*output.hidden_states[:-1]]
    for final_norm in (True, False):
        first.final_norm = final_norm
        for layer, states in enumerate(wanted):
            first.layer = layer
            normed = first_of(plain).model.ln_f(states) if final_norm else states
            assert_close(hidden(model, TEXTS[1:2])[0], normed[0].detach().double())


@pytest.mark.parametrize("name", ["llava", "gemma3", "qwen2_vl"])
def test_beside_a_tower(name: str, tmp_path: Path) -> None:
    """The layers are the text tower's, though the vision tower has as many."""
    path = test_multimodal.save(name, tmp_path)
    model = model_of(path)
    tower = test_multimodal.tower(path)
    for layer in (0, 1, 2, (0, 2)):
        first_of(model).layer = layer
        for text, got in zip(TEXTS, hidden(model), strict=True):
            states = reference.layer_states(tower, reference.layout(first_of(model).tokenizer, text, [None]).ids)
            assert_close(got, read(states, layer), 2e-5)


@pytest.mark.parametrize("name", ["mini", "gpt2", "gemma2"])
@pytest.mark.parametrize("method", ["classical", "reba"])
def test_side_by_side(base: Base, name: str, method: str) -> None:
    """Each layer's vectors of length 1, one behind the other."""
    path = base(name)
    depth, copies = DEEP.get(name, 2), 2 if method == "reba" else 1
    for final_norm in (True, False):
        model = model_of(path, method, layer=(0, depth - 1), join="concat", final_norm=final_norm)
        for text, got, vector in zip(TEXTS, hidden(model), model.encode(list(TEXTS)), strict=True):
            placed, states = by_hand(path, text, copies, final_norm=final_norm)
            rows = torch.cat([reference.mean_of_layers(states, layer, layer) for layer in range(depth)], dim=1)
            assert_close(got, rows)
            if method == "classical":
                assert_close(vector, reference.classical(rows, placed, "mean"))
                continue
            matrix = reference.symmetrized_max(_attention(path, text)[: depth - 1])
            assert_close(vector, reference.reba(rows, matrix, placed, "mean"), 2e-5)
    assert model.get_embedding_dimension() == rows.shape[1]


def test_without_layer_numbers(base: Base) -> None:
    with pytest.raises(ValueError, match=r"layer=\[1\]: GPTNeoModel has no list of 2 layers that say.*layer=None"):
        model_of(base(UNREADABLE))


@pytest.mark.parametrize(
    ("layer", "same"),
    [(-1, 6), (-7, 0), (-4, 3), ([-4, -1], (3, 6)), ([0, -1], (0, 6)), ([3, 3], 3), ((2, -3), (2, 4)), (6, 6)],
)
def test_numbers_from_the_end(layer: Any, same: Layer) -> None:
    model = model_of("mini", layer=layer)
    for text, got in zip(TEXTS, hidden(model), strict=True):
        assert_close(got, read(by_hand("mini", text)[1], same))
    assert model[0].layer == (layer if isinstance(layer, int) else list(layer))


def test_the_last_layer_is_none(base: Base) -> None:
    """What the backbone hands out by itself costs nothing, and leaves it as it was."""
    model = model_of("mini", layer=-1)
    assert model[0].reading.is_plain and type(model[0].model.layers) is nn.ModuleList
    np.testing.assert_array_equal(model.encode(list(TEXTS)), model_of("mini", layer=None).encode(list(TEXTS)))


@pytest.mark.parametrize("layer", [2, (1, 4)])
@pytest.mark.parametrize("final_norm", [True, False])
def test_bfloat16(layer: Layer, final_norm: bool) -> None:
    model = model_of("mini", layer=layer, final_norm=final_norm, dtype="bfloat16")
    for text, got in zip(TEXTS, hidden(model), strict=True):
        wanted = read(by_hand("mini", text, final_norm=final_norm)[1], layer)
        assert got.dtype == torch.bfloat16
        assert float(torch.cosine_similarity(got.double().flatten(), wanted.flatten(), dim=0)) > 0.999
    first = first_of(model)
    first.layer = None
    last = hidden(model)[1].double()
    assert float(torch.cosine_similarity(last.flatten(), hidden(model_of("mini"))[1].double().flatten(), dim=0)) < 0.9


@pytest.mark.parametrize("layer", [0, 1, 3, (2, 4), (0, 5), 5, 6])
@pytest.mark.parametrize("method", ["classical", "reba"])
def test_layers_above_do_not_run(method: str, layer: Any) -> None:
    last = layer if isinstance(layer, int) else layer[-1]
    model = model_of("mini", method, layer=layer, final_norm=False)
    normed: list[int] = []
    watch = model[0].model.norm.register_forward_pre_hook(lambda module, inputs: normed.append(len(inputs[0])))
    with counted(model) as ran:
        model.encode(list(TEXTS), batch_size=len(TEXTS))
    watch.remove()
    # What is read before the norm does not go through it beside the rest.
    assert ran == list(range(max(1, last))) and normed == [len(TEXTS)]
    # Whoever runs the backbone himself, or counts its layers, sees all of it.
    with counted(model) as ran, torch.no_grad():
        whole = model[0].model(input_ids=torch.tensor([[5, 6, 7]])).last_hidden_state
    assert ran == list(range(6)) and len(model[0].model.layers) == 6 and len(list(model[0].model.layers)) == 6
    with torch.no_grad():
        torch.testing.assert_close(whole, loaded("mini")[0](input_ids=torch.tensor([[5, 6, 7]])).last_hidden_state)


# ---------------------------------------------------------------------------------------------------------------------
# Plans, from the top of the layers that run

PLANS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "bidirectional": ({"k": 2, "k0": 1}, {"k": 2, "k0": 1}),
    "backward": ({"kind": "backward", "k": 1}, {"kind": "backward", "k": 1}),
    "mask0": ({"kind": "nosink-bidirectional", "k": "all", "m": 2}, {"kind": "nosink-bidirectional", "k": 3, "m": 2}),
    "others": ({"k": 1, "others": "nosink-forward"}, {"k": 1, "others": "nosink-forward"}),
    **{
        f"{name} {variant}": ({"architecture": name, "kind": kind, "k": 2, "variant": variant},) * 2
        for name, kind in (("inter", "backward"), ("extra", "bidirectional"))
        for variant in ("paper", "published")
    },
    "extend": ({"architecture": "extend", "k": 2}, {"architecture": "extend", "k": 2}),
}


def cut(model: Any, runs: int, *, final_norm: bool) -> Any:
    """A model that has the lowest layers only, by hand."""
    short = copy.deepcopy(reference_nosink._relayered(model, tuple(range(runs))))
    if not final_norm:
        short.norm = nn.Identity()
    return short


@pytest.mark.parametrize("name", slow_but(PLANS, "mask0", "extra paper"))
def test_plans(name: str) -> None:
    """k = 1 converts the highest layer that runs; what runs twice ends there too."""
    given, wanted = PLANS[name]
    runs = 3
    plan = reference_nosink.plan(runs, **wanted)
    for final_norm in (True, False):
        model = model_of("mini", "nosink", layer=runs, final_norm=final_norm, layers=LayerPlan(**given))
        assert len(model[0].stack.kinds) == runs
        short = cut(_double("mini"), runs, final_norm=final_norm)
        for text, got in zip(TEXTS, hidden(model), strict=True):
            ids = by_hand("mini", text)[0].ids
            assert_close(got, reference_nosink.hooked(short, ids, plan)[0])
        with counted(model) as ran:
            hidden(model)
        assert max(ran) == runs - 1


def test_the_issue_s_example() -> None:
    """layer=3 of 6, k=2: the layers of index 1 and 2 are converted."""
    model = model_of("mini", "nosink", layer=3, layers={"k": 2})
    assert str(model[0].stack) == "1 forward → 2 bidirectional"
    named = st_reba.build("mini", "nosink", setting="mask0-bidir", k=2, layer=3)
    assert str(named[0].stack) == "1 forward → 2 nosink-bidirectional"
    model[0].layer = 4
    assert str(model[0].stack) == "2 forward → 2 bidirectional"


@pytest.mark.parametrize("layer", [(1, 3), (0, 2)])
def test_ranges_of_a_plan(layer: tuple[int, int]) -> None:
    """Each layer as the converted stack gives it: one plan, one pass."""
    model = model_of("mini", "nosink", layer=layer, layers={"k": 2})
    runs = layer[-1]
    kinds = [None] * (runs - 2) + ["bidirectional"] * 2
    for text, got in zip(TEXTS, hidden(model), strict=True):
        ids = by_hand("mini", text)[0].ids
        states = []
        for number in range(runs + 1):
            if number == 0:
                states.append(by_hand("mini", text)[1][0])
                continue
            plan = reference_nosink.Plan(tuple(kinds[:number]))
            states.append(reference_nosink.hooked(cut(_double("mini"), number, final_norm=True), ids, plan)[0])
        assert_close(got, reference.mean_of_layers(torch.stack(states), *layer))


# ---------------------------------------------------------------------------------------------------------------------
# ReBA, words, prefixes


@pytest.mark.parametrize("name", slow_but(["mini", "gpt2", "bloom", "gemma2"], "gpt2"))
@pytest.mark.parametrize("final_norm", [True, False])
def test_reba(base: Base, name: str, final_norm: bool) -> None:
    """A^new is the maximum over the layers that run."""
    path = base(name)
    depth = DEEP.get(name, 2)
    models = {pooling: model_of(path, "reba", pooling=pooling, final_norm=final_norm) for pooling in ("last", "mean")}
    published = model_of(path, "reba", pooling="mean", variant="published", final_norm=final_norm)
    for layer in (*range(depth), (1, depth)):
        runs = max(1, layer if isinstance(layer, int) else layer[-1])
        for model in (*models.values(), published):
            model[0].layer = layer
        for text in TEXTS[1:4]:
            placed, states = by_hand(path, text, 2, final_norm=final_norm)
            rows = read(states, layer)
            matrix = reference.symmetrized_max(_attention(path, text)[:runs])
            for pooling, model in models.items():
                wanted = reference.reba(rows, matrix, placed, cast(Any, pooling))
                assert_close(model.encode(text), wanted, 2e-5)
            assert_close(published.encode(text), reference.published_mean(rows, matrix), 2e-5)


@lru_cache(maxsize=64)
def _attention(path: str, text: str) -> Tensor:
    return reference.hidden_and_attention(_double(path), by_hand(path, text, 2)[0].ids)[1]


@pytest.mark.parametrize("layer", [2, (1, 3)])
def test_words(layer: Any) -> None:
    runs = layer if isinstance(layer, int) else layer[-1]
    text = TEXTS[4]
    placed, states = by_hand("mini", text, 2)
    offsets = loaded("mini")[1](text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    at = text.index("银行")
    tokens = [i for i, (start, end) in enumerate(offsets) if start < at + 2 and end > at]
    rows = read(states, layer)
    matrix = reference.symmetrized_max(_attention("mini", text)[:runs])
    items = [(text, (at, at + 2))]
    got = st_reba.encode_words(model_of("mini", "reba", layer=layer), items)[0]
    assert_close(got, reference.reba_word(rows, matrix, placed, tokens))
    assert_close(
        st_reba.encode_words(model_of("mini", "echo", layer=layer), items)[0],
        reference.echo_word(rows, placed, tokens),
    )
    with pytest.raises(ValueError, match="layer"):
        st_reba.encode_word_layers(model_of("mini", "echo", layer=layer), items, [0, 6])


def test_words_side_by_side() -> None:
    """Two layers side by side are each layer's word vectors, of unit states, side by side."""
    items = [("他在银行取钱", (2, 4)), ("Hello, world", (0, 5))]
    model = model_of("mini", "echo", layer=[1, 2], join="concat")
    vectors = st_reba.encode_words(model, items)
    assert vectors.shape == (2, 2 * 192) and model[0].get_embedding_dimension() == 2 * 192
    half = np.split(vectors, 2, axis=1)
    mean = st_reba.encode_words(model_of("mini", "echo", layer=[1, 2]), items)
    np.testing.assert_allclose((half[0] + half[1]) / 2, mean, atol=1e-6)
    # Each is a mean of states of length 1.
    assert all(np.all(np.linalg.norm(each, axis=1) <= 1 + 1e-6) for each in half)


@pytest.mark.parametrize("layer", [3, (1, 3)])
@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_pieces(pooling: Any, layer: Any) -> None:
    """The text's own pass and its pieces' read the same layer, and their maxima are over those that run."""
    model = model_of("mini", "reba", layer=layer, chunk=6, pooling=pooling)

    def run(ids: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        attention = reference.hidden_and_attention(_double("mini"), ids)[1]
        return read(reference.layer_states(_double("mini"), ids), layer), reference.symmetrized_max(attention[:3])

    with counted(model) as ran:
        vectors = model.encode(list(TEXTS), batch_size=5)
    assert set(ran) == {0, 1, 2}
    for text, got in zip(TEXTS, vectors, strict=True):
        tokens = reference_chunked.chunked_tokens(run, by_hand("mini", text)[0], 6)
        assert_close(got, reference_chunked.chunked_pooled(tokens, pooling))


TEMPLATE = "Instruct: find the document. Text: {text} Again: {text}"


@pytest.mark.parametrize("layer", slow_but([0, 2, 5, (0, 3), (2, 5)], 2, (0, 3)))
@pytest.mark.parametrize("options", [{"method": "echo"}, {"method": "reba"}, {"method": "echo", "span": "all"}])
def test_a_shared_beginning(options: dict[str, Any], layer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What all texts begin with is run once, as many layers of it."""
    ran: list[int] = []
    run = prefix.run_prefix

    def recorded(model: Any, input_ids: Tensor, runs: int) -> Any:
        ran.append(runs)
        shared = run(model, input_ids, runs)
        assert shared is not None and len(shared[0].layers) == runs
        return shared

    monkeypatch.setattr(running, "run_prefix", recorded)
    monkeypatch.setattr(running, "WORTHWHILE", 4)
    for final_norm in (True, False):
        model = model_of("mini", layer=layer, final_norm=final_norm, template=TEMPLATE, **options)
        got = model.encode(list(TEXTS), batch_size=len(TEXTS), convert_to_tensor=True)
        assert ran and set(ran) == {model[0].reading.runs}
        ran.clear()
        model[0].shares_prefix = False
        wanted = model.encode(list(TEXTS), batch_size=len(TEXTS), convert_to_tensor=True)
        assert ran == []
        for one, other in zip(got, wanted, strict=True):
            assert_close(one, other.double())


# ---------------------------------------------------------------------------------------------------------------------
# Gradients, threads, copies


def checkpoint(model: Any, *, use_reentrant: bool) -> None:
    enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    enable({"use_reentrant": use_reentrant})


@pytest.mark.parametrize("method", ["classical", "reba"])
@pytest.mark.parametrize(
    ("layer", "final_norm"),
    slow_but([(3, True), (3, False), ((1, 3), True), ((0, 2), False)], ((1, 3), True), rows=True),
)
def test_gradients(method: str, layer: Any, final_norm: bool) -> None:
    """The same with checkpointing; none for a layer above; and those of the vectors that are computed without one."""

    def gradients(checkpointing: bool) -> tuple[dict[str, Tensor], Tensor]:
        model = model_of("mini", method, layer=layer, final_norm=final_norm)
        first = first_of(model)
        if checkpointing:
            checkpoint(first.model, use_reentrant=False)
        model.train()
        vectors = model(first.preprocess(list(TEXTS[1:4])))["sentence_embedding"]
        aim = torch.randn(vectors.shape, generator=torch.Generator().manual_seed(0))
        (vectors * aim).sum().backward()
        named = first.model.named_parameters()
        return {name: weight.grad for name, weight in named if weight.grad is not None}, vectors.detach()

    wanted, vectors = gradients(False)
    assert_close(vectors, torch.as_tensor(model_of("mini", method, layer=layer, final_norm=final_norm).encode(
        list(TEXTS[1:4]), convert_to_tensor=True)).double())  # fmt: skip
    runs = layer if isinstance(layer, int) else layer[-1]
    layers = {int(name.split(".")[1]) for name in wanted if name.startswith("layers.")}
    assert layers == set(range(runs)) and ("norm.weight" in wanted) == final_norm
    found, again = gradients(True)
    assert set(found) == set(wanted)
    torch.testing.assert_close(again, vectors)
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, wanted[name], rtol=1e-4, atol=1e-5 * float(wanted[name].abs().max()))


def test_reentrant_checkpointing_is_refused() -> None:
    model = model_of("mini", layer=[1, 3])
    checkpoint(model[0].model, use_reentrant=True)
    model.train()
    with pytest.raises(ValueError, match="use_reentrant=True"):
        model(model[0].preprocess(["天"]))


@pytest.mark.slow
def test_at_once() -> None:
    """Two models on one backbone, one of them cut short, at once; and others beside them."""
    whole, short, mean = (model_of("mini", layer=layer) for layer in (None, 2, (1, 4)))
    shared = first_of(short)
    first_of(mean).model = shared.model
    first_of(whole).model = shared.model
    reba = model_of("mini", "reba", layer=3, pooling="last")
    models = [whole, short, mean, reba]
    test_threads.check([test_threads.encoding(models[thread % 4], thread) for thread in range(test_threads.THREADS)])


def test_copies() -> None:
    model = model_of("mini", "reba", layer=(1, 3))
    wanted = model.encode(list(TEXTS))
    for again in (copy.deepcopy(model), copy.copy(model)):
        np.testing.assert_array_equal(again.encode(list(TEXTS)), wanted)
    other = copy.deepcopy(model)
    other[0].layer = 5
    assert np.abs(other.encode(list(TEXTS)) - wanted).max() > 0
    np.testing.assert_array_equal(model.encode(list(TEXTS)), wanted)
    with counted(other) as ran:
        other.encode("天")
    assert ran == [0, 1, 2, 3, 4]


# ---------------------------------------------------------------------------------------------------------------------
# Saved and loaded

SAVED: dict[str, dict[str, Any]] = {
    "one": {"method": "classical", "pooling": "mean", "layer": 3},
    "before": {"method": "echo", "layer": -3, "final_norm": False},
    "range": {"method": "reba", "layer": [2, 4]},
    "beside": {"method": "echo", "layer": [2, 4], "join": "concat"},
    "nosink": {"method": "nosink", "setting": "mask0-bidir", "k": 2, "layer": 3},
}


@pytest.mark.parametrize("name", SAVED)
def test_saved_and_loaded(tmp_path: Path, name: str) -> None:
    model = st_reba.build("mini", **SAVED[name])
    vectors = model.encode(list(TEXTS))
    model.save_pretrained(str(tmp_path / "first"))
    loaded_again = SentenceTransformer(str(tmp_path / "first"), device="cpu")
    loaded_again.save_pretrained(str(tmp_path / "second"))
    for again in (loaded_again, SentenceTransformer(str(tmp_path / "second"), device="cpu")):
        np.testing.assert_array_equal(again.encode(list(TEXTS)), vectors)
        assert (again[0].layer, again[0].final_norm) == (model[0].layer, model[0].final_norm)
        assert (
            again[0].reading == model[0].reading and again[0].join == model[0].join and again[0].stack == model[0].stack
        )
    file = "sentence_bert_config.json"
    assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()


def test_an_older_model(tmp_path: Path) -> None:
    """A folder that was written before there was a layer to name."""
    model = st_reba.build("mini", "echo")
    model.save_pretrained(str(tmp_path))
    file = tmp_path / "sentence_bert_config.json"
    settings = json.loads(file.read_text())
    del settings["layer"], settings["final_norm"], settings["join"]
    file.write_text(json.dumps(settings))
    again = SentenceTransformer(str(tmp_path), device="cpu")
    np.testing.assert_array_equal(again.encode(list(TEXTS)), model.encode(list(TEXTS)))
    assert again[0].layer is None and again[0].final_norm is True


@pytest.mark.parametrize("change", [{"layer": 9}, {"layer": [4, 2]}, {"layer": "3"}, {"final_norm": 1}])
def test_a_folder_that_is_wrong(tmp_path: Path, change: dict[str, Any]) -> None:
    st_reba.build("mini", "echo", layer=3).save_pretrained(str(tmp_path))
    file = tmp_path / "sentence_bert_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(ValueError, match=next(iter(change))):
        SentenceTransformer(str(tmp_path), device="cpu")


@pytest.mark.slow
def test_vendored(tmp_path: Path) -> None:
    """The modules run from the repository's own copies, without st_reba installed."""
    wanted = {}
    for name, options in SAVED.items():
        model = st_reba.build("mini", **options)
        model.save_pretrained(str(tmp_path / name))
        assert (tmp_path / name / "st_reba_depth.py").is_file()
        wanted[name] = str(model[0].reading), model.encode(list(TEXTS))
    script = (
        "import json, sys\n"
        "sys.modules['st_reba'] = None\n"
        "from sentence_transformers import SentenceTransformer\n"
        f"for name in {list(wanted)!r}:\n"
        "    model = SentenceTransformer(name, trust_remote_code=True, device='cpu')\n"
        f"    print(json.dumps([name, str(model[0].reading), model.encode({list(TEXTS)!r}).tolist()]))\n"
    )
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert [name for name, _, _ in found] == list(wanted)
    for name, reading, vectors in found:
        assert reading == wanted[name][0]
        np.testing.assert_allclose(vectors, wanted[name][1], atol=1e-6, rtol=0)


# ---------------------------------------------------------------------------------------------------------------------
# Refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer": 7}, r"layer=7: .* 0 \(embeddings\) to 6 .*-1 to -7 .*no 7"),
        ({"layer": -8}, "layer=-8: .*no -8"),
        ({"layer": [1, 7]}, r"layer=\[1, 7\]: .*no 7"),
        ({"layer": [4, 2]}, r"layer=\[4, 2\]: 4 stands above 2\. Give the lower"),
        ({"layer": [-1, 3]}, r"layer=\[-1, 3\]: 6 stands above 3"),
        ({"layer": [1, 2, 3]}, r"layer=\[1, 2, 3\] must name the first and the last"),
        ({"layer": [1]}, r"layer=\[1\] must name"),
        ({"layer": []}, r"layer=\[\] must name"),
        ({"layer": "3"}, "layer='3' must be a layer's number"),
        ({"layer": True}, "layer=True must be a layer's number"),
        ({"layer": 2.0}, "layer=2.0 must be a layer's number"),
        ({"layer": [1, False]}, r"layer=\[1, False\] must be"),
        ({"layer": 3, "final_norm": None}, "final_norm=None must be True or False"),
        ({"final_norm": 1}, "final_norm=1 must be True or False"),
        ({"layer": [1, 2], "join": "sum"}, "join='sum' is not known: choose one of"),
        ({"layer": 3, "layers": {"k": 4}}, r"layer=3 runs 3 of 6 layers\. Of these: k=4"),
        ({"layer": 0, "layers": {"k": 2}}, r"layer=0 runs 1 of 6 layers\. Of these: k=2"),
        ({"layer": [1, 3], "layers": {"architecture": "inter", "k": 1}}, r"layer=\[1, 3\]: .*INTER.*layers twice"),
        ({"layer": 0, "layers": {"architecture": "extra", "k": 1}}, r"layer=0: .*EXTRA.*in front of them"),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        st_reba.build("mini", "echo", **options)


def test_settings_stay_when_refused() -> None:
    model = model_of("mini", layer=3)
    wanted = model.encode(list(TEXTS))
    for layer in (7, [4, 2]):
        with pytest.raises(ValueError, match="layer"):
            model[0].layer = layer
    with pytest.raises(ValueError, match="k=4"):
        model[0].layers = {"k": 4}
    assert model[0].layer == 3
    np.testing.assert_array_equal(model.encode(list(TEXTS)), wanted)


def test_another_kind_of_list() -> None:
    class Odd(nn.ModuleList):
        pass

    with pytest.raises(ValueError, match=r"keeps its layers in a Odd.*layer=None"):
        cut_short(Odd())
    with pytest.raises(ValueError, match="in a list"):
        cut_short([])


def test_a_backbone_that_finds_its_layers_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer that should not run says so, and so does one that did not."""
    model = model_of("mini", layer=3, final_norm=False)
    monkeypatch.setattr(LayerList, "__iter__", lambda self: iter([self[index] for index in range(6)]))
    with pytest.raises(ValueError, match=r"ran as layer 4 of 6, though only 3 are needed.*layer=None"):
        model.encode("天")
    monkeypatch.setattr(LayerList, "__iter__", lambda self: iter([self[0], self[1]]))
    with pytest.raises(ValueError, match="layer 3 of the backbone was not seen to run"):
        model.encode("天")


def test_names() -> None:
    assert str(resolve_reading(None, True, 6)) == "layer 6 of 6, after the final norm"
    assert str(resolve_reading(-4, False, 6)) == "layer 3 of 6, before the final norm"
    assert str(resolve_reading([2, 4], True, 6)) == "mean of layers 2 to 4 of 6, after the final norm"
    assert Reading((0,), True, 6).runs == 1 and not Reading((6,), False, 6).is_plain
