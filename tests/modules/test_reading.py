"""Inner layers against the float64 oracle: which are read, before or behind the final norm, and none above runs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
import pytest
import reference
import reference_chunked
import reference_nosink
import torch
from architectures import ARCHITECTURES, EXTRA, VOCABULARY
from marks import slow_but
from oracle import TEXTS, assert_close, double, loaded
from pipelines import (
    SIZES,
    assert_gradients,
    enable_checkpointing,
    encoded,
    gradients,
    pipeline,
    sentences,
    states,
    transformer,
)
from torch import Tensor, nn
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaModel

from st_reba import LayerPlan, NoSink, ReadLayers
from st_reba.modules.layer_list import layers_of
from st_reba.modules.reading import Reading

Base = Callable[..., str]
Layer = int | tuple[int, int]
# Two layers are too few to count from the top: mini has six, these three.
DEEP = {"gemma2": 3, "gpt_oss": 3, "gemma3_text": 3, "mini": 6}
# It says no layer_idx; and transformers computes alibi in two ways that disagree.
UNREADABLE, DISAGREES = "gpt_neo", "falcon_alibi"
NAMES = [name for name in (*ARCHITECTURES, *EXTRA, "mini") if name not in (UNREADABLE, DISAGREES)]


@lru_cache(maxsize=512)
def by_hand(path: str, text: str, copies: int = 1, *, final_norm: bool = True) -> tuple[reference.Layout, Tensor]:
    """Layout, and every layer's hidden states [L + 1, T, d] in float64."""
    placed = reference.layout(loaded(path)[1], text, [None] * copies)
    return placed, reference.layer_states(double(path), placed.ids, final_norm=final_norm)


@lru_cache(maxsize=64)
def attention(path: str, text: str) -> Tensor:
    return reference.hidden_and_attention(double(path), by_hand(path, text, 2)[0].ids)[1]


def read(layers: Tensor, layer: Layer) -> Tensor:
    """What is read of [L + 1, T, d], layers counted from 0."""
    return layers[layer] if isinstance(layer, int) else reference.mean_of_layers(layers, *layer)


def model_of(path: str, method: str = "classical", stages: Any = (), **options: Any) -> Any:
    """A model that reads layer 1, or what ``stages`` say."""
    return pipeline(path, method, stages or [ReadLayers(1)], **{"pooling": "mean", **options})


def reads(model: Any, layer: Any, **options: Any) -> Any:
    others = [stage for stage in model[0].stages if stage.name != "read"]
    model[0].rebind([*others, ReadLayers(layer, **options)])
    return model


@contextmanager
def counted(model: Any) -> Iterator[list[int]]:
    """Indices of the layers whose forward is called, in order."""
    ran: list[int] = []
    layers = [nn.ModuleList.__getitem__(layers_of(model[0].backbone), index) for index in range(model[0].depth)]
    before = [layer.forward for layer in layers]

    def watched(index: int) -> Any:
        def forward(*arguments: Any, **keywords: Any) -> Any:
            ran.append(index)
            return before[index](*arguments, **keywords)

        return forward

    for index, layer in enumerate(layers):
        layer.forward = watched(index)
    try:
        yield ran
    finally:
        for layer in layers:
            del layer.forward


# Which layer


@pytest.mark.parametrize("name", slow_but(NAMES, "mini", "gpt2", "gemma2", "bloom"))
def test_every_layer(base: Base, name: str) -> None:
    """Every layer and range of every architecture, before the norm and behind it."""
    path, depth = base(name), DEEP.get(name, 2)
    texts = TEXTS if name in ("mini", "llama", "gpt2", "gemma2") else TEXTS[1:3]
    model = model_of(path)
    assert model[0].depth == depth
    for final_norm in (True, False):
        for layer in (*range(depth + 1), (0, depth), (0, 1), (1, depth), (max(0, depth - 2), depth - 1)):
            for text, got in zip(texts, states(reads(model, layer, final_norm=final_norm), texts), strict=True):
                # Layers of unlike size beside one another: rounding of a large one counts for the small.
                assert_close(got, read(by_hand(path, text, final_norm=final_norm)[1], layer), 2e-5)


def test_an_attention_of_its_own(base: Base) -> None:
    """Where transformers' eager attention is another, the layers are those that the model itself runs."""
    path = base(DISAGREES)
    model, plain = model_of(path), transformer(path, "classical")
    features = plain.preprocess([TEXTS[1]])
    with torch.no_grad():
        given = {name: features[name] for name in ("input_ids", "attention_mask")}
        wanted = plain.model(**given, output_hidden_states=True).hidden_states[:-1]
        for final_norm in (True, False):
            for layer, each in enumerate(wanted):
                got = states(reads(model, layer, final_norm=final_norm), TEXTS[1:2])[0]
                assert_close(got, (plain.model.ln_f(each) if final_norm else each)[0].double())


def test_beside_a_tower(base: Base) -> None:
    """The layers are the text tower's, though the vision tower has as many."""
    vision = CLIPVisionConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, image_size=8, patch_size=4
    )
    config = LlavaConfig(vision_config=vision, text_config=LlamaConfig(**SIZES, vocab_size=VOCABULARY))
    torch.manual_seed(0)
    both = LlavaModel._from_config(config, attn_implementation="eager").eval()
    # Some know their numbers too.
    layers = next(each for each in both.vision_tower.modules() if isinstance(each, nn.ModuleList) and len(each) == 3)
    for index, layer in enumerate(layers):
        layer.layer_idx = index
    first: Any = transformer(base("llama"), "classical")
    for layer in (0, 1, 2, (0, 2), 3):
        first.rebind([ReadLayers(layer)], both)
        with torch.no_grad():
            got = first(first.preprocess([TEXTS[1]]))["token_embeddings"][0]
        ids = reference.layout(first.text_tokenizer, TEXTS[1], [None]).ids
        assert_close(got, read(reference.layer_states(both.language_model, ids), layer), 2e-5)


@pytest.mark.parametrize(
    ("name", "method"),
    slow_but(
        product(("mini", "gpt2", "gemma2"), ("classical", "reba")),
        ("mini", "reba"),
        ("gpt2", "classical"),
        ("gemma2", "classical"),
        rows=True,
    ),
)
def test_side_by_side(base: Base, name: str, method: str) -> None:
    """Each layer's vectors of length 1, one behind the other."""
    path = base(name)
    depth, copies = DEEP.get(name, 2), 2 if method == "reba" else 1
    for final_norm in (True, False):
        model = model_of(path, method, [ReadLayers((0, depth - 1), "concat", final_norm)])
        for text, got, vector in zip(TEXTS, states(model), encoded(model), strict=True):
            placed, layers = by_hand(path, text, copies, final_norm=final_norm)
            rows = torch.cat([reference.mean_of_layers(layers, layer, layer) for layer in range(depth)], dim=1)
            assert_close(got, rows)
            if method == "classical":
                assert_close(vector, reference.classical(rows, placed, "mean"))
                continue
            matrix = reference.symmetrized_max(attention(path, text)[: depth - 1])
            assert_close(vector, reference.reba(rows, matrix, placed, "mean"), 2e-5)
    assert model[0].get_embedding_dimension() == rows.shape[1]


@pytest.mark.parametrize(
    ("layer", "same"),
    [(-1, 6), (-7, 0), (-4, 3), ([-4, -1], (3, 6)), ([0, -1], (0, 6)), ([3, 3], 3), ((2, -3), (2, 4)), (6, 6)],
    ids=str,
)
def test_numbers_from_the_end(layer: Any, same: Layer) -> None:
    model = model_of("mini", stages=[ReadLayers(layer)])
    for text, got in zip(TEXTS[1:3], states(model, TEXTS[1:3]), strict=True):
        assert_close(got, read(by_hand("mini", text)[1], same))


def test_the_last_layer_is_none() -> None:
    """What the backbone hands out by itself costs nothing, and leaves it as it was."""
    model = model_of("mini", stages=[ReadLayers(-1)])
    assert model[0].bound[0].reading.is_plain and type(model[0].model.layers) is nn.ModuleList
    assert torch.equal(encoded(model), encoded(pipeline("mini", "classical", pooling="mean")))


@pytest.mark.parametrize("layer", [2, (1, 4)])
@pytest.mark.parametrize("final_norm", [True, False])
def test_bfloat16(layer: Layer, final_norm: bool) -> None:
    model = model_of("mini", stages=[ReadLayers(layer, final_norm=final_norm)], dtype="bfloat16")
    for text, got in zip(TEXTS, states(model), strict=True):
        wanted = read(by_hand("mini", text, final_norm=final_norm)[1], layer)
        assert got.dtype == torch.bfloat16
        assert float(torch.cosine_similarity(got.double().flatten(), wanted.flatten(), dim=0)) > 0.999


@pytest.mark.parametrize(
    ("method", "layer"),
    [*(("classical", layer) for layer in (0, 1, 3, (2, 4), (0, 5), 5, 6)), ("reba", 3), ("reba", (2, 4))],
)
def test_layers_above_do_not_run(method: str, layer: Any) -> None:
    last = layer if isinstance(layer, int) else layer[-1]
    model = model_of("mini", method, [ReadLayers(layer, final_norm=False)])
    normed: list[int] = []
    watch = model[0].model.norm.register_forward_pre_hook(lambda module, inputs: normed.append(len(inputs[0])))
    with counted(model) as ran:
        encoded(model)
    watch.remove()
    # What is read before the norm does not go through it beside the rest.
    assert ran == list(range(max(1, last))) and normed == [len(TEXTS)]
    # Whoever runs the backbone himself, or counts its layers, sees all of it.
    ids = torch.tensor([[5, 6, 7]])
    with counted(model) as ran, torch.no_grad():
        whole = model[0].model(input_ids=ids).last_hidden_state
        torch.testing.assert_close(whole, loaded("mini")[0](input_ids=ids).last_hidden_state)
    assert ran == list(range(6)) and len(model[0].model.layers) == 6 and len(list(model[0].model.layers)) == 6


# Plans, from the top of the layers that run

PLANS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "bidirectional": ({"k": 2, "k0": 1}, {}),
    "mask0": ({"kind": "nosink-bidirectional", "k": "all", "m": 2}, {"k": 3}),
    "others": ({"kind": "backward", "k": 1, "others": "nosink-forward"}, {}),
    **{
        f"{name} {variant}": ({"architecture": name, "kind": kind, "k": 2, "variant": variant}, {})
        for name, kind in (("inter", "backward"), ("extra", "bidirectional"))
        for variant in ("paper", "published")
    },
    "extend": ({"architecture": "extend", "k": 2}, {}),
}


def cut(runs: int, *, final_norm: bool) -> Any:
    """A model that has the lowest layers only, by hand."""
    short = copy.deepcopy(reference_nosink._relayered(double("mini"), tuple(range(runs))))
    if not final_norm:
        short.norm = nn.Identity()
    return short


@pytest.mark.parametrize("name", PLANS)
def test_plans(name: str) -> None:
    """k = 1 converts the highest layer that runs; what runs twice ends there too."""
    given, changed = PLANS[name]
    plan = reference_nosink.plan(3, **{**given, **changed})
    for final_norm in (True, False):
        model = model_of("mini", "nosink", [LayerPlan(**given), ReadLayers(3, final_norm=final_norm)])
        assert len(model[0].stack.kinds) == 3
        short = cut(3, final_norm=final_norm)
        for text, got in zip(TEXTS[:3], states(model, TEXTS[:3]), strict=True):
            assert_close(got, reference_nosink.hooked(short, by_hand("mini", text)[0].ids, plan)[0])
        with counted(model) as ran:
            encoded(model)
        assert max(ran) == 2


@pytest.mark.parametrize("layer", [(1, 3), (0, 2)])
def test_ranges_of_a_plan(layer: tuple[int, int]) -> None:
    """Each layer as the converted stack gives it: one plan, one pass; a stage's place in the list says nothing."""
    model = model_of("mini", "nosink", [ReadLayers(layer), NoSink("inplace-bidir", k=2)])
    assert str(model[0].stack) == (f"{layer[1] - 2} forward → 2 bidirectional" if layer[1] > 2 else "2 bidirectional")
    kinds = [None] * (layer[1] - 2) + ["bidirectional"] * 2
    for text, got in zip(TEXTS[:3], states(model, TEXTS[:3]), strict=True):
        placed, plain = by_hand("mini", text)
        layers = [plain[0]]
        for number in range(1, layer[1] + 1):
            plan = reference_nosink.Plan(tuple(kinds[:number]))
            layers.append(reference_nosink.hooked(cut(number, final_norm=True), placed.ids, plan)[0])
        assert_close(got, reference.mean_of_layers(torch.stack(layers), *layer))


# ReBA and its pieces


@pytest.mark.parametrize(
    ("name", "final_norm"),
    slow_but(
        product(("mini", "gpt2", "bloom", "gemma2"), (True, False)),
        ("mini", True),
        ("gpt2", False),
        ("bloom", True),
        ("gemma2", False),
        rows=True,
    ),
)
def test_reba(base: Base, name: str, final_norm: bool) -> None:
    """A^new is the maximum over the layers that run."""
    path, depth, texts = base(name), DEEP.get(name, 2), TEXTS[1:3]
    models: dict[Any, Any] = {pooling: model_of(path, "reba", pooling=pooling) for pooling in ("last", "mean")}
    published = model_of(path, "reba", variant="published")
    for layer in (*range(depth), (1, depth)):
        runs = max(1, layer if isinstance(layer, int) else layer[-1])
        for text in texts:
            placed, layers = by_hand(path, text, 2, final_norm=final_norm)
            rows, matrix = read(layers, layer), reference.symmetrized_max(attention(path, text)[:runs])
            for pooling, model in models.items():
                got = reads(model, layer, final_norm=final_norm).encode(text)
                assert_close(got, reference.reba(rows, matrix, placed, pooling), 2e-5)
            got = reads(published, layer, final_norm=final_norm).encode(text)
            assert_close(got, reference.published_mean(rows, matrix), 2e-5)


@pytest.mark.parametrize(("pooling", "layer"), [("last", 3), ("mean", (1, 3))])
def test_pieces(pooling: Any, layer: Any) -> None:
    """The text's own pass and its pieces' read the same layer, and their maxima are over those that run."""
    model = model_of("mini", "reba", [ReadLayers(layer)], chunk=6, pooling=pooling)

    def run(ids: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        maps = reference.hidden_and_attention(double("mini"), ids)[1]
        return read(reference.layer_states(double("mini"), ids), layer), reference.symmetrized_max(maps[:3])

    with counted(model) as ran:
        vectors = encoded(model)
    assert set(ran) == {0, 1, 2}
    for text, got in zip(TEXTS, vectors, strict=True):
        tokens = reference_chunked.chunked_tokens(run, by_hand("mini", text)[0], 6)
        assert_close(got, reference_chunked.chunked_pooled(tokens, pooling))


# Gradients


@pytest.mark.parametrize(
    ("method", "layer", "final_norm"),
    [("classical", 3, True), ("classical", (0, 2), False), ("reba", (1, 3), True), ("reba", (0, 2), False)],
)
def test_gradients(method: str, layer: Any, final_norm: bool) -> None:
    """The same with checkpointing; none for a layer above; and those of the vectors that are computed without one."""
    model = model_of("mini", method, [ReadLayers(layer, final_norm=final_norm)])
    features = model[0].preprocess(list(TEXTS[1:4]))
    with torch.inference_mode():
        fast = sentences(model, features)
    aim = torch.randn(fast.shape, generator=torch.Generator().manual_seed(0))
    model.train()
    assert_close(sentences(model, features).detach(), fast.double())
    wanted = gradients(model, lambda: (sentences(model, features) * aim).sum())
    runs = layer if isinstance(layer, int) else layer[-1]
    layers = {int(name.split("layers.")[1].split(".")[0]) for name in wanted if "layers." in name}
    assert layers == set(range(runs)) and any(name.endswith("model.norm.weight") for name in wanted) == final_norm
    enable_checkpointing(model, use_reentrant=False)
    assert_gradients(gradients(model, lambda: (sentences(model, features) * aim).sum()), wanted)
    enable_checkpointing(model, use_reentrant=True)
    with pytest.raises(ValueError, match="use_reentrant=True"):
        model(features)


# Refusals


@pytest.mark.parametrize(
    ("layers", "stages", "message"),
    [
        (7, [], r"layers=7: .*no 7, but 0 \(embeddings\) to 6, or -1 to -7 "),
        (-8, [], "layers=-8: .*no -8"),
        ([1, 7], [], r"layers=\(1, 7\): .*no 7"),
        ([4, 2], [], r"layers=\(4, 2\): 4 stands above 2\. Give the lower"),
        ([-1, 3], [], r"layers=\(-1, 3\): 6 stands above 3"),
        ([1, 2, 3], [], r"layers=\[1, 2, 3\] must name the first and the last"),
        ([1], [], r"layers=\[1\] must name"),
        ([], [], r"layers=\(\) is not allowed"),
        ("3", [], "layers='3' is not allowed"),
        (True, [], "layers=True is not allowed"),
        (2.0, [], r"layers=2\.0 is not allowed"),
        (10**9, [], "layers=1000000000 is not allowed"),
        ([1, False], [], r"layers=\(1, False\) is not allowed"),
        (3, [LayerPlan(k=4)], r"layers: k=4, but 3 layers of the backbone run"),
        (0, [LayerPlan(k=2)], r"layers: k=2, but 1 layers"),
        ([1, 3], [LayerPlan("inter", k=1)], r"layers=\[1, 2, 3\]: the layer plan runs layers twice"),
        (0, [LayerPlan("extra", k=1)], r"layers=\[0\]: the layer plan runs layers twice.*in front of them"),
    ],
)
def test_refusals(layers: Any, stages: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        transformer("mini", "echo", [ReadLayers(layers), *stages])


def test_other_options() -> None:
    for options, message in (({"final_norm": 1}, "final_norm=1"), ({"join": "sum"}, "join='sum'.*'concat'")):
        with pytest.raises(ValueError, match=message):
            ReadLayers(2, **options)  # type: ignore[arg-type]


def test_names() -> None:
    assert str(ReadLayers().resolve(6)) == "layer 6 of 6, after the final norm"
    assert str(ReadLayers(-4, final_norm=False).resolve(6)) == "layer 3 of 6, before the final norm"
    assert str(ReadLayers([2, 4]).resolve(6)) == "mean of layers 2 to 4 of 6, after the final norm"  # type: ignore[arg-type]
    assert Reading((0,), True, 6).runs == 1 and not Reading((6,), False, 6).is_plain
    np.testing.assert_equal(ReadLayers([2, 4]), ReadLayers((2, 4)))  # type: ignore[arg-type]
