"""Word vectors of every layer out of one pass, against each layer's own hidden states."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import reference
import torch
from marks import slow_but
from oracle import assert_close, loaded, oracle

import st_reba
from st_reba import encode_words
from st_reba.layers import layer_numbers
from st_reba.words import Item, encode_word_layers, unseen_words

Base = Callable[..., str]
SIDES = ["left", "right"]
# Layers that go by the interface and by hooks, with scaled embeddings, positions added, windows, final norms.
NAMES = ["mini", "llama", "gpt2", "bloom", "gemma2"]


def item(text: str, word: str) -> Item:
    start = text.index(word)
    return text, (start, start + len(word))


ITEMS = [
    item("他在银行取了钱，then went home.", "银行"),
    item("The bank of the river is steep.", "river"),
    item("意思意思就行了，你这是什么意思？", "什么意思"),
    item("天", "天"),
    item("a bank on the bank", "on the"),
]


@lru_cache(maxsize=64)
def states_of(base: str, ids: tuple[int, ...]) -> list[torch.Tensor]:
    """[T, d] of each layer in float64, as transformers itself hands them out."""
    body = reference.as_double(loaded(base)[0]).base_model
    with torch.no_grad(), reference._double_by_default():
        output = body(input_ids=torch.tensor([list(ids)]), output_hidden_states=True, use_cache=False)
    return [each[0].double() for each in (*output.hidden_states[:-1], output.last_hidden_state)]


def tokens_of(base: str, one: Item) -> list[int]:
    text, (start, end) = one
    offsets = loaded(base)[1](text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    return [index for index, (first, last) in enumerate(offsets) if {*range(first, last)} & {*range(start, end)}]


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("name", slow_but(NAMES, "llama"))
def test_every_layer(base: Base, name: str, k: int) -> None:
    path = base(name)
    wanted: dict[str, list[list[torch.Tensor]]] = {"reba": [], "echo": [], "published": []}
    for one in ITEMS:
        where, _, fused = oracle(path, one[0], (None,) * k)
        found = tokens_of(path, one)
        states = states_of(path, tuple(where.ids))
        wanted["reba"].append([reference.reba_word(each, fused, where, found) for each in states])
        wanted["echo"].append([reference.echo_word(each, where, found) for each in states])
        wanted["published"].append([reference.published_word(each, fused, where, found) for each in states])
    for side, (kind, rows) in zip((*SIDES, "left"), wanted.items(), strict=True):
        options: dict[str, Any] = {"variant": "published"} if kind == "published" else {}
        method = "echo" if kind == "echo" else "reba"
        model = st_reba.build(path, method, repeats=k, padding_side=side, **options)
        for batch_size in (1, 5):
            vectors = encode_word_layers(model, ITEMS, batch_size=batch_size)
            assert vectors.shape == (model[0].depth + 1, len(ITEMS), model[0].get_embedding_dimension())
            assert vectors.dtype == np.float32
            for place, each in enumerate(rows):
                for layer, one in enumerate(each):
                    assert_close(vectors[layer, place], one)
            # The premise: layers differ.
            assert np.abs(vectors[1:] - vectors[:-1]).max() > 1e-2 * np.abs(vectors).max()


@pytest.mark.parametrize("options", [{"normalize_weights": True}, {"include_special": True}, {"template": "echo"}])
@pytest.mark.parametrize("side", slow_but(SIDES, "left"))
def test_the_last_is_that_of_encode_words(base: Base, side: str, options: dict[str, Any]) -> None:
    for method in ("reba", "echo", "classical", "prompteol", "nosink"):
        given = options if method == "reba" or (method == "echo" and "template" in options) else {}
        given = {**given, **({"setting": "mask0&bidir", "k": 1, "k0": 1} if method == "nosink" else {})}
        model = st_reba.build(base("llama", "bos_eos"), method, padding_side=side, **given)
        wanted = encode_words(model, ITEMS, prompt="Query: ", normalize=True)
        scale = np.abs(wanted).max()
        options_here: dict[str, Any] = {"prompt": "Query: ", "normalize": True}
        for layers in ("all", [-1], [0, 1, 2]):
            vectors = encode_word_layers(model, ITEMS, layers, **options_here)
            np.testing.assert_allclose(vectors[-1], wanted, rtol=0, atol=1e-6 * scale)
        np.testing.assert_array_equal(encode_word_layers(model, ITEMS, "last", **options_here)[0], wanted)
        # In the order that is asked for, once each.
        every = encode_word_layers(model, ITEMS, "all", **options_here)
        np.testing.assert_array_equal(encode_word_layers(model, ITEMS, [1, -1, 0, 2], **options_here), every[[1, 2, 0]])


def test_converted_layers(base: Base) -> None:
    """NoSink in place: layers below the converted one are the base model's own."""
    path = base("mini")
    plain = encode_word_layers(st_reba.build(path, "classical"), ITEMS)
    converted = encode_word_layers(st_reba.build(path, "nosink", setting="inplace-bidir", k=2), ITEMS)
    depth = len(plain) - 1
    scale = np.abs(plain).max()
    np.testing.assert_allclose(converted[: depth - 1], plain[: depth - 1], rtol=0, atol=1e-5 * scale)
    for layer in (depth - 1, depth):
        assert np.abs(converted[layer] - plain[layer]).max() > 1e-3 * np.abs(plain[layer]).max()


@pytest.mark.parametrize("method", ["reba", "echo"])
def test_one_pass_for_all_layers(base: Base, method: str) -> None:
    model = st_reba.build(base("llama"), method)
    encode_words(model, ITEMS)
    passes: list[int] = []
    model[0].model.layers[0].register_forward_pre_hook(lambda _, arguments: passes.append(len(arguments[0])))
    seen: list[int] = []
    encode_word_layers(model, ITEMS, "all", batch_size=2, progress=seen.append)
    assert passes == seen == [2, 2, 1]
    # Nothing stays behind.
    assert all(len(layer._forward_pre_hooks) == (place == 0) for place, layer in enumerate(model[0].model.layers))


def test_a_beginning_that_is_shared(base: Base) -> None:
    """Texts whose beginning would be run once for all: the layers see all of it, and the setting stays."""
    model = st_reba.build(base("llama"), "echo")
    prompt = "Tell me what the word means in the sentence that follows after this: "
    items = [item(f"The river bank {n}", "bank") for n in range(30)]
    wanted = encode_words(model, items, prompt=prompt, batch_size=30)
    assert model[0].shares_prefix is True
    vectors = encode_word_layers(model, items, prompt=prompt, batch_size=30)
    np.testing.assert_allclose(vectors[-1], wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
    one = np.stack([encode_word_layers(model, [each], prompt=prompt)[:, 0] for each in items], axis=1)
    np.testing.assert_allclose(vectors, one, rtol=0, atol=1e-5 * np.abs(one).max())
    assert model[0].shares_prefix is True


def test_another_thread(base: Base) -> None:
    """What it runs on the same model does not get in."""
    model = st_reba.build(base("llama"))
    wanted = encode_word_layers(model, ITEMS, batch_size=5)
    main = threading.get_ident()
    ran: list[int] = []

    def interfere(*_: Any) -> None:
        if threading.get_ident() == main:
            other = threading.Thread(target=lambda: ran.append(len(model.encode(["x"] * 5, show_progress_bar=False))))
            other.start()
            other.join()

    model[0].model.layers[1].register_forward_hook(interfere)
    np.testing.assert_array_equal(encode_word_layers(model, ITEMS, batch_size=5), wanted)
    assert ran == [5]


def test_what_has_no_inner_layers(base: Base) -> None:
    chunked = st_reba.build(base("mini"), chunk=8)
    with pytest.raises(ValueError, match=r"layers=\[0\]: chunk=8 runs each piece .*layers='last'"):
        encode_word_layers(chunked, ITEMS, [0])
    np.testing.assert_array_equal(encode_word_layers(chunked, ITEMS, [-1])[0], encode_words(chunked, ITEMS))
    for setting in ("inter-bidir", "extra-back", "extend-bidir"):
        twice = st_reba.build(base("llama"), "nosink", setting=setting, k=1)
        with pytest.raises(ValueError, match=r"layers=\[1, 2\]: .*runs layers twice.*layers='last'"):
            encode_word_layers(twice, ITEMS, [1, 2])
        assert encode_word_layers(twice, ITEMS, "last").shape[0] == 1
    # A backbone whose layers pass on something else than one stream of hidden states, or are no list.
    odd: Any = st_reba.build(base("llama"), "echo")
    first, second = odd[0].model.layers
    first.register_forward_hook(lambda _, given, output: output[:, :, None])
    second.forward = lambda hidden, *_, **__: hidden[:, :, 0]
    with pytest.raises(ValueError, match=r"layers: Llama\w+ passes on 4-dimensional hidden states.*layers='last'"):
        encode_word_layers(odd, ITEMS, [1], batch_size=5)
    for layer in odd[0].model.layers:
        layer.self_attn.layer_idx = None
    with pytest.raises(ValueError, match=r"layers=\[0\]: LlamaModel has no list of 2 layers.*layers='last'"):
        encode_word_layers(odd, ITEMS, [0])


def test_not_finite(base: Base) -> None:
    """An inner layer's infinity is an error, or zeros where they are asked for."""
    model = st_reba.build(base("llama"), "echo")
    wanted = encode_word_layers(model, ITEMS)

    def spoil(_: Any, given: Any, output: Any) -> Any:
        hidden = output.clone()
        hidden[0, 0, 0] = torch.inf
        return hidden

    model[0].model.layers[0].register_forward_hook(spoil, prepend=True)
    model[0].model.layers[1].register_forward_hook(lambda _, given, output: torch.zeros_like(output))
    with pytest.raises(ValueError, match=r"layer 1 of LlamaModel gave NaN or infinity \(torch.float32\)"):
        encode_word_layers(model, ITEMS, [1])
    model[0].non_finite = "zeros"
    vectors = encode_word_layers(model, ITEMS, [1], batch_size=5)[0]
    # The longest text comes first in its batch.
    longest = max(range(len(ITEMS)), key=lambda place: len(model[0].content([ITEMS[place][0]])["input_ids"][0]))
    assert not vectors[longest].any()
    rest = [place for place in range(len(ITEMS)) if place != longest]
    np.testing.assert_allclose(vectors[rest], wanted[1][rest], rtol=0, atol=1e-5 * np.abs(wanted[1]).max())


@pytest.mark.parametrize(
    ("layers", "depth", "numbers"),
    [
        ("last", 3, [3]),
        ("all", 3, [0, 1, 2, 3]),
        ([0, 3, -1, -4, 2], 3, [0, 3, 2]),
        ((-2,), 3, [2]),
    ],
)
def test_layer_numbers(layers: Any, depth: int, numbers: list[int]) -> None:
    assert layer_numbers(layers, depth) == numbers


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([4], r"layers=\[4\]: 4 is no layer of this model, which has 0 \(embeddings\) to 3"),
        ([0, -5], "-5 is no layer .* or -1 to -4"),
        ([True], "True is no layer"),
        ([1.0], "1.0 is no layer"),
        (["1"], "'1' is no layer"),
        ([], "name one at least"),
        ("first", "layers='first' is not known"),
    ],
)
def test_layers_that_are_not(layers: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        layer_numbers(layers, 3)


@pytest.mark.parametrize("method", ["classical", "echo", "reba"])
def test_unseen_words(base: Base, method: str) -> None:
    """Those, and only those, that encode_words refuses; each by its place."""
    model = st_reba.build(base("mini"), method, max_seq_length=14)
    texts = [("The river runs past the old mill, under the bridge.", match) for match in ("river", "mill", "bridge")]
    items = [item(*each) for each in texts] + [("cafe\u0301", (4, 5)), *ITEMS] * 20
    found = unseen_words(model, items)
    for place, one in enumerate(items[:12]):
        if place in found:
            with pytest.raises(
                ValueError, match=re.escape("past the cut" if found[place] != "on no token" else "on no")
            ):
                encode_words(model, [one])
        else:
            assert encode_words(model, [one]).any()
    # The premise: all three kinds are there, in every piece of the list.
    assert set(found.values()) == {"on no token", "past the cut"} and 0 not in found and max(found) > 100
    prompted = unseen_words(model, items, prompt="one two three four")
    assert set(found) < set(prompted)
    with pytest.raises(ValueError, match="Item 1: the span"):
        unseen_words(model, [ITEMS[0], ("a", (1, 1))])
