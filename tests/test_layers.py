"""Word vectors of every layer out of one pass, against each layer's own hidden states."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import reference
import torch
from oracle import assert_close, item, loaded, oracle_of

import st_reba
from st_reba import encode_word_layers, encode_words
from st_reba.layers import layer_numbers

Base = Callable[..., str]
# Layers that go by the interface and by hooks, with scaled embeddings, positions added, windows, final norms.
NAMES = ["mini", "llama", "gpt2", "bloom", "gemma2"]
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


@pytest.mark.parametrize("name", NAMES)
def test_every_layer(base: Base, name: str) -> None:
    path = base(name)
    wanted: dict[str, list[list[torch.Tensor]]] = {"reba": [], "published": [], "echo": []}
    for one in ITEMS:
        where, _, fused, found = oracle_of(path, one, (None, None))
        states = states_of(path, tuple(where.ids))
        wanted["reba"].append([reference.reba_word(each, fused, where, found) for each in states])
        wanted["published"].append([reference.published_word(each, fused, where, found) for each in states])
        wanted["echo"].append([reference.echo_word(each, where, found) for each in states])
    for kind, rows in wanted.items():
        variant: dict[str, Any] = {"variant": "published"} if kind == "published" else {}
        model = st_reba.build(path, "echo" if kind == "echo" else "reba", **variant)
        for batch_size in (1, 5):
            vectors = encode_word_layers(model, ITEMS, batch_size=batch_size)
            assert vectors.shape == (model[0].depth + 1, len(ITEMS), model[0].get_embedding_dimension())
            for place, each in enumerate(rows):
                for layer, one_vector in enumerate(each):
                    assert_close(vectors[layer, place], one_vector)
            # The premise: layers differ.
            assert np.abs(vectors[1:] - vectors[:-1]).max() > 1e-2 * np.abs(vectors).max()


@pytest.mark.parametrize("method", ["reba", "echo", "classical", "prompteol", "nosink"])
def test_the_last_is_that_of_encode_words(base: Base, method: str) -> None:
    options = {"setting": "mask0&bidir", "k": 1, "k0": 1} if method == "nosink" else {}
    model = st_reba.build(base("llama", "bos_eos"), method, **options)
    given: dict[str, Any] = {"prompt": "Query: ", "normalize": True}
    wanted = encode_words(model, ITEMS, **given)
    every = encode_word_layers(model, ITEMS, **given)
    np.testing.assert_allclose(every[-1], wanted, rtol=0, atol=1e-6 * np.abs(wanted).max())
    np.testing.assert_array_equal(encode_word_layers(model, ITEMS, "last", **given)[0], wanted)
    # In the order that is asked for, once each.
    np.testing.assert_array_equal(encode_word_layers(model, ITEMS, [1, -1, 0, 2], **given), every[[1, 2, 0]])


def test_converted_layers(base: Base) -> None:
    """NoSink in place: layers below the converted one are the base model's own."""
    plain = encode_word_layers(st_reba.build(base("mini"), "classical"), ITEMS)
    converted = encode_word_layers(st_reba.build(base("mini"), "nosink", setting="inplace-bidir", k=2), ITEMS)
    np.testing.assert_allclose(converted[:5], plain[:5], rtol=0, atol=1e-5 * np.abs(plain).max())
    for layer in (5, 6):
        assert np.abs(converted[layer] - plain[layer]).max() > 1e-3 * np.abs(plain[layer]).max()


def test_one_pass_for_all_layers(base: Base) -> None:
    """And what another thread runs on the same model meanwhile does not get in."""
    model = st_reba.build(base("llama"))
    wanted = encode_word_layers(model, ITEMS, batch_size=2)
    passes: list[int] = []
    model[0].model.layers[0].register_forward_pre_hook(lambda _, arguments: passes.append(len(arguments[0])))
    seen: list[int] = []
    encode_word_layers(model, ITEMS, "all", batch_size=2, progress=lambda words, positions: seen.append(words))
    assert passes == seen == [2, 2, 1]
    main = threading.get_ident()
    ran: list[int] = []

    def interfere(*_: Any) -> None:
        if threading.get_ident() == main:
            other = threading.Thread(target=lambda: ran.append(len(model.encode(["x"] * 5, show_progress_bar=False))))
            other.start()
            other.join()

    model[0].model.layers[1].register_forward_hook(interfere)
    np.testing.assert_array_equal(encode_word_layers(model, ITEMS, batch_size=2), wanted)
    assert ran == [5, 5, 5]


def test_what_has_no_inner_layers(base: Base) -> None:
    chunked = st_reba.build(base("mini"), chunk=8)
    with pytest.raises(ValueError, match=r"layers=\[0\]: chunk=8 runs each piece .*layers='last'"):
        encode_word_layers(chunked, ITEMS, [0])
    np.testing.assert_array_equal(encode_word_layers(chunked, ITEMS, [-1])[0], encode_words(chunked, ITEMS))
    twice = st_reba.build(base("llama"), "nosink", setting="inter-bidir", k=1)
    with pytest.raises(ValueError, match=r"layers=\[1, 2\]: .*runs layers twice.*layers='last'"):
        encode_word_layers(twice, ITEMS, [1, 2])
    assert encode_word_layers(twice, ITEMS, "last").shape[0] == 1
    reads = st_reba.build(base("mini"), "echo", stages=[st_reba.ReadLayers(3)])
    with pytest.raises(ValueError, match=r"layers=\[0\]: this model reads inner layers itself \(ReadLayers\(layers=3"):
        encode_word_layers(reads, ITEMS, [0])
    # A backbone whose layers pass on something else than one stream of hidden states, or are no list.
    odd: Any = st_reba.build(base("llama"), "echo")
    first, second = odd[0].model.layers
    first.register_forward_hook(lambda _, given, output: output[:, :, None], prepend=True)
    second.forward = lambda hidden, *_, **__: hidden[:, :, 0]
    with pytest.raises(ValueError, match=r"what layer 1 of LlamaModel hands on is \[5, .*layers='last'"):
        encode_word_layers(odd, ITEMS, [1], batch_size=5)
    for layer in odd[0].model.layers:
        layer.self_attn.layer_idx = None
    with pytest.raises(ValueError, match=r"layers=\[0\]: LlamaModel has no list of 2 layers.*layers='last'"):
        encode_word_layers(odd, ITEMS, [0])


@pytest.mark.parametrize("variant", ["paper", "published"])
def test_not_finite(base: Base, variant: str) -> None:
    """An inner layer's infinity is an error, or zeros in the published variant."""
    model = st_reba.build(base("llama"), variant=variant)
    wanted = encode_word_layers(model, ITEMS)

    def spoil(_: Any, given: Any, output: Any) -> Any:
        hidden = output.clone()
        hidden[0, 0, 0] = torch.inf
        return hidden

    model[0].model.layers[0].register_forward_hook(spoil, prepend=True)
    model[0].model.layers[1].register_forward_hook(lambda _, given, output: torch.zeros_like(output))
    if variant == "paper":
        with pytest.raises(ValueError, match=r"layer 1 of LlamaModel gave NaN or infinity \(torch.float32\)"):
            encode_word_layers(model, ITEMS, [1], batch_size=1)
        return
    vectors = encode_word_layers(model, ITEMS, [1], batch_size=5)[0]
    # The longest text comes first in its batch.
    longest = max(range(len(ITEMS)), key=lambda place: len(model[0].content([ITEMS[place][0]])["input_ids"][0]))
    assert not vectors[longest].any() and wanted[1][longest].any()


def test_layer_numbers() -> None:
    for layers, numbers in (
        ("last", [3]),
        ("all", [0, 1, 2, 3]),
        ([0, 3, -1, -4, 2], [0, 3, 2]),
        ((-2,), [2]),
    ):
        assert layer_numbers(layers, 3) == numbers
    for wrong, message in (
        ([4], r"layers=\[4\]: 4 is no layer of this model, which has 0 \(embeddings\) to 3"),
        ([0, -5], "-5 is no layer .* or -1 to -4"),
        ([True], "True is no layer"),
        ([1.0], "1.0 is no layer"),
        (["1"], "'1' is no layer"),
        ([], "name one at least"),
        ("first", "layers='first' is not known"),
    ):
        with pytest.raises(ValueError, match=message):
            layer_numbers(wrong, 3)
