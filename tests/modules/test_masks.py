"""Every NoSink setting against the float64 oracle, alone and together with ReBA."""

from __future__ import annotations

from itertools import product
from typing import Any
from unittest.mock import Mock

import pytest
import reference
import torch
from architectures import SLIDING
from marks import Base, slow_but
from oracle import TEXTS, assert_close, double, oracle
from pipelines import build, encoded, features_of
from reference_nosink import Plan, hooked, plan, run, visible

from st_reba.modules.masks import MASKS, LayerMasks, NoSinkTransformer
from st_reba.modules.masks import visible as see

DEPTH = 3
BIDIR, NOSINK = "bidirectional", "nosink-bidirectional"
APART = Plan(("backward", None, "backward"), "inter", variant="published")
# Setting with its numbers → the oracle's plan, for models of three layers; test_settings.py has every setting.
CASES: list[Any] = [
    pytest.param({"setting": setting, **numbers}, wanted, id=f"{setting} {numbers}")
    for setting, numbers, wanted in (
        ("baseline", {}, plan(DEPTH)),
        ("inplace-back", {"k": 2}, plan(DEPTH, kind="backward", k=2)),
        ("inplace-bidir", {"k": "all"}, plan(DEPTH, k=3)),
        ("inplace-bidir", {"k": [0, -1]}, Plan((BIDIR, None, BIDIR))),
        ("inter-back", {"k": 2}, plan(DEPTH, "inter", "backward", 2)),
        ("inter-bidir", {"k": [0, 2]}, Plan((BIDIR, None, BIDIR), "inter")),
        ("inter-back", {"k": [0, 2], "implementation": "authors"}, APART),
        ("inter-bidir", {"k": 2, "implementation": "authors"}, plan(DEPTH, "inter", k=2, variant="published")),
        ("extra-back", {"k": 3}, plan(DEPTH, "extra", "backward", 3)),
        ("extra-bidir", {"k": [1]}, Plan((None, BIDIR, None), "extra")),
        ("extra-bidir", {"k": 2, "implementation": "authors"}, plan(DEPTH, "extra", k=2, variant="published")),
        ("extra-back", {"k": 1, "implementation": "authors"}, plan(DEPTH, "extra", "backward", 1, variant="published")),
        ("extend-back", {"k": 1}, plan(DEPTH, "extend", "backward", 1)),
        ("extend-bidir", {"k": 2}, plan(DEPTH, "extend", k=2)),
        ("mask0-for", {"k": 2}, plan(DEPTH, kind="nosink-forward", k=2)),
        ("mask0-for", {"k": 3, "m": 3}, plan(DEPTH, kind="nosink-forward", k=3, m=3)),
        ("mask0-bidir", {"k": 1}, plan(DEPTH, kind=NOSINK, k=1)),
        ("mask0-bidir", {"k": [1], "m": 2}, Plan((None, NOSINK, None), m=2)),
        ("mask0-all", {"k": 1}, plan(DEPTH, kind=NOSINK, k=1, others="nosink-forward")),
        ("rerouted", {"k": 2}, plan(DEPTH, kind="rerouted", k=2)),
        ("mask0-mid", {"k": 3, "k0": 2}, plan(DEPTH, k=3, k0=1)),
        ("mask0&bidir", {"k": 3, "k0": 2}, plan(DEPTH, k=3, k0=2)),
    )
]  # fmt: skip


def windows(name: str) -> list[int | None]:
    width, layers = SLIDING.get(name, (0, ()))
    return [width if index in layers else None for index in range(DEPTH)]


@pytest.mark.parametrize(("options", "wanted"), CASES)
@pytest.mark.parametrize(("name", "exact"), slow_but([("gpt2", hooked), ("llama", run)], "llama", rows=True))
def test_settings(base: Base, name: str, exact: Any, options: Any, wanted: Plan) -> None:
    """The mean over content, special tokens around it, by layers run one after another."""
    path = base(name, "bos_eos")
    got = encoded(build(path, "nosink", **options))
    moved = []
    for text, vector in zip(TEXTS, got, strict=True):
        placed, plain, _ = oracle(path, text, (None,))
        converted = reference.classical(exact(double(path), placed.ids, wanted)[0], placed, "mean")
        assert_close(vector, converted)
        moved.append((converted - reference.classical(plain, placed, "mean")).abs().max())
    assert max(moved) > 0.01 or options["setting"] == "baseline", "nothing was converted"


# With windows, soft caps and sinks; and the rows that ReBA takes of layers that look ahead or run twice.
SOME = CASES[::3]


@pytest.mark.parametrize(("options", "wanted"), SOME)
@pytest.mark.parametrize("name", ["gemma2", "gpt_oss"])
def test_windows_caps_and_sinks(base: Base, name: str, options: Any, wanted: Plan) -> None:
    path = base(name)
    model, texts = build(path, "nosink", **options), TEXTS[1:4]
    for text, vector in zip(texts, encoded(model, texts), strict=True):
        placed = oracle(path, text, (None,))[0]
        hidden, _ = hooked(double(path), placed.ids, wanted, windows(name))
        assert_close(vector, reference.classical(hidden, placed, "mean"))


@pytest.mark.parametrize(("options", "wanted"), SOME[1:])
@pytest.mark.parametrize(("name", "pooling"), [("llama", "last"), ("gpt_oss", "mean")])
def test_with_reba(base: Base, name: str, options: Any, wanted: Plan, pooling: Any) -> None:
    """A^new takes every run of every layer, both ways within a head where a layer looks ahead."""
    path = base(name)
    model, texts = build(path, "reba", pooling=pooling, **options), TEXTS[1:4]
    for text, vector in zip(texts, encoded(model, texts), strict=True):
        placed = oracle(path, text, (None, None))[0]
        hidden, maps = hooked(double(path), placed.ids, wanted, windows(name))
        fused = reference.symmetrized_max(maps)
        if options.get("implementation") == "authors":  # of both
            published = {"last": reference.published_last, "mean": reference.published_mean}
            assert_close(vector, published[pooling](hidden, fused))
        else:
            assert_close(vector, reference.reba(hidden, fused, placed, pooling))


BY_HAND: dict[tuple[str, int, int, int | None], list[str]] = {
    ("nosink-forward", 4, 2, None): ["x...", "xx..", "..x.", "..xx"],
    ("nosink-bidirectional", 4, 2, None): ["xxxx", "xxxx", "..xx", "..xx"],
    # All tokens are among the first m: the rows keep what the kind gives without nosink.
    ("nosink-forward", 2, 5, None): ["x.", "xx"],
    ("nosink-bidirectional", 2, 5, None): ["xx", "xx"],
    ("forward", 4, 1, 2): ["x...", "xx..", ".xx.", "..xx"],
    ("backward", 4, 1, 2): ["xx..", ".xx.", "..xx", "...x"],
    ("bidirectional", 4, 1, 2): ["xx..", "xxx.", ".xxx", "..xx"],
    ("nosink-forward", 4, 1, 2): ["x...", ".x..", ".xx.", "..xx"],
    ("nosink-bidirectional", 4, 1, 2): ["xx..", ".xx.", ".xxx", "..xx"],
    ("nosink-bidirectional", 5, 2, 3): ["xxx..", "xxxx.", "..xxx", "..xxx", "..xxx"],
}


@pytest.mark.parametrize(("kind", "length", "m", "window"), BY_HAND)
def test_visible(kind: str, length: int, m: int, window: int | None) -> None:
    rows = [[cell == "x" for cell in row] for row in BY_HAND[kind, length, m, window]]
    assert visible(kind, length, m, window).tolist() == rows


@pytest.mark.parametrize("m", [1, 2, 5])
@pytest.mark.parametrize("name", MASKS)
def test_masks(name: str, m: int) -> None:
    """Of every length and window, and with padding, which nobody sees but itself."""
    for length in (1, 2, 6):
        for window in (None, 2):
            own = visible("forward", length, m, window)[None, None]
            assert torch.equal(see(name, own, m=m)[0, 0], visible(name, length, m, window))
    own = torch.ones(1, 1, 6, 6, dtype=torch.bool).tril()
    real = torch.tensor([[1, 1, 1, 1, 0, 0], [1] * 6]).bool()
    added = torch.zeros(own.shape).masked_fill(~own, torch.finfo(torch.float32).min)
    assert torch.equal(LayerMasks._own(Mock(real=real), added, True), own)
    short, long = see(name, own, real, m)[:, 0]
    assert torch.equal(long, visible(name, 6, m)) and torch.equal(short[:4, :4], visible(name, 4, m))
    assert torch.equal(short[:, 4:], torch.eye(6, dtype=torch.bool)[:, 4:])


def test_by_hand(base: Base) -> None:
    """One copy with one sink unless said, and no masks where the attention was changed."""
    made = NoSinkTransformer(base("llama"), layer_masks=["nosink-forward"] * DEPTH)
    assert (made.m, made.copies, made.own_input) == (1, 1, False)
    assert NoSinkTransformer(base("llama"), layer_masks=["nosink-forward"] * DEPTH, m=0).m == 0
    made.model.set_attn_implementation("sdpa")
    with pytest.raises(ValueError, match="not used"):
        made(made.preprocess(["a"]))


def test_one_token(base: Base) -> None:
    """A text of one token, without any special one, is never left without a key."""
    for name, (options, wanted) in product(("gpt2", "gpt_oss"), (case.values for case in SOME)):
        path = base(name, "plain")
        model = build(path, "nosink", **options)
        ids = features_of(model, ["a"])["input_ids"]
        hidden, _ = hooked(double(path), ids[0].tolist(), wanted, windows(name))
        assert ids.shape == (1, 1)
        assert_close(encoded(model, ["a", TEXTS[1]])[0], hidden[0])
