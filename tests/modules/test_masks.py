"""Every NoSink setting, as a table and against the float64 oracle, with ReBA too; and layers that disobey."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any
from unittest.mock import Mock

import pytest
import reference
import torch
from architectures import SLIDING
from marks import Base, slow_but
from oracle import TEXTS, assert_close, double, oracle
from pipelines import build, encoded
from reference import published_last, published_mean
from reference_nosink import Plan, hooked, plan, run, visible

from st_reba.modules import RepeatTransformer
from st_reba.modules.layers import ModuleCall
from st_reba.modules.mask_check import length_to_tell_masks_apart, measure_visibility
from st_reba.modules.masks import MASKS, declare_mask
from st_reba.modules.nosink import LayerMasks, NoSinkTransformer, apply_mask
from st_reba.modules.second import RepeatedLayers
from st_reba.modules.settings import SETTINGS, plan_layers

MASK = LayerMasks.mask_for_layer  # before a test replaces it
SHORT = dict(zip(MASKS, "fbaFAr", strict=True))
# The masks of five layers with k = 3, and k0 where it stands beside the name; layers that run again, and their masks.
TABLE = {
    "baseline": "fffff", "inplace-back": "ffbbb", "inplace-bidir": "ffaaa", "rerouted": "ffrrr",
    "inter-back": "fffff 2b3b4b", "extra-back": "fffff 2b3b4b", "extend-back": "fffff 4b4b4b",
    "inter-bidir": "fffff 2a3a4a", "extra-bidir": "fffff 2a3a4a", "extend-bidir": "fffff 4a4a4a",
    "mask0-for": "ffFFF", "mask0-bidir": "ffAAA", "mask0-all": "FFAAA",
    "mask0-1": "ffaaA", "mask0-2": "ffaAA", "mask0-3": "ffAAA",
    "mask0&bidir 0": "ffaaa", "mask0&bidir 2": "ffaAA", "mask0-last 3": "ffAAA",
    "mask0-mid 0": "ffaaa", "mask0-mid 1": "ffaaA", "mask0-mid 2": "ffaaA", "mask0-mid 3": "ffaaA",
}  # fmt: skip


def test_every_setting() -> None:
    assert {setting.partition(" ")[0] for setting in TABLE} == {*SETTINGS}
    for setting, wanted in TABLE.items():
        name, _, k0 = setting.partition(" ")
        found = plan_layers(name, 5, k=None if name == "baseline" else 3, k0=int(k0) if k0 else None)
        second = "".join(f"{layer}{SHORT[each]}" for layer, each in found.second)
        assert f"{''.join(SHORT[each] for each in found.layer_masks)} {second}".strip() == wanted, setting
        assert found.architecture == (name.partition("-")[0] if second else "inplace") and found.m == 1


def test_layers() -> None:
    for k, masks in ((0, "fff"), (3, "bbb"), ("all", "bbb"), ([0, -1], "bfb"), ([-3, 2], "bfb"), ([1], "fbf")):
        assert "".join(SHORT[each] for each in plan_layers("inplace-back", 3, k=k).layer_masks) == masks
        second = plan_layers("extra-back", 3, k=k, implementation="authors").second
        assert second == [(number, "backward") for number, mask in enumerate(masks) if mask == "b"]
    authors = plan_layers("inter-back", 4, k=[1], implementation="authors").second
    assert authors == [(1, "backward"), (2, "forward"), (3, "forward")]
    for number in (0, 5):
        assert plan_layers("extend-back", 3, k=number).second == [(2, "backward")] * number
    for k in (5, -1, [4], [0, -4], [], "some"):
        with pytest.raises(ValueError):
            plan_layers("inplace-back", 4, k=k)
    for k, says in (([1, True], "different"), ([1, 5], "5 layers"), (1, "k0=2 is more")):
        with pytest.raises(ValueError, match=says):
            plan_layers("mask0-2", 5, k=k)


DEPTH = 3
BIDIR, NOSINK, AUTHORS = "bidirectional", "nosink-bidirectional", {"implementation": "authors"}
# Setting with its numbers → the oracle's plan, for models of three layers; of every kind one, then others.
CASES: list[Any] = [
    pytest.param({"setting": setting, **numbers}, wanted, id=f"{setting} {numbers}")
    for setting, numbers, wanted in (
        ("inplace-bidir", {"k": [0, -1]}, Plan((BIDIR, None, BIDIR))),
        ("inter-back", {"k": [0, 2], **AUTHORS}, Plan(("backward", None, "backward"), "inter", variant="published")),
        ("extra-bidir", {"k": [1]}, Plan((None, BIDIR, None), "extra")),
        ("extend-back", {"k": 1}, plan(DEPTH, "extend", "backward", 1)),
        ("mask0-for", {"k": 3, "m": 3}, plan(DEPTH, kind="nosink-forward", k=3, m=3)),
        ("mask0-all", {"k": 1}, plan(DEPTH, kind=NOSINK, k=1, others="nosink-forward")),
        ("mask0&bidir", {"k": 3, "k0": 2}, plan(DEPTH, k=3, k0=2)),
        ("inter-back", {"k": 2}, plan(DEPTH, "inter", "backward", 2)),
        ("inter-bidir", {"k": [0, 2]}, Plan((BIDIR, None, BIDIR), "inter")),
        ("inter-bidir", {"k": 2, **AUTHORS}, plan(DEPTH, "inter", k=2, variant="published")),
        ("extra-bidir", {"k": 2, **AUTHORS}, plan(DEPTH, "extra", k=2, variant="published")),
        ("extend-bidir", {"k": 2}, plan(DEPTH, "extend", k=2)),
        ("mask0-bidir", {"k": [1], "m": 2}, Plan((None, NOSINK, None), m=2)),
        ("rerouted", {"k": 2}, plan(DEPTH, kind="rerouted", k=2)),
    )
]  # fmt: skip


@pytest.mark.parametrize(("options", "wanted"), CASES)
@pytest.mark.parametrize(("name", "exact"), slow_but([("gpt2", hooked), ("llama", run)], "llama", rows=True))
def test_settings(base: Base, name: str, exact: Any, options: Any, wanted: Plan) -> None:
    """The mean over content, special tokens around it, by layers run one after another."""
    path, moved = base(name, "bos_eos"), []
    for text, vector in zip(TEXTS, encoded(build(path, "nosink", **options)), strict=True):
        placed, plain, _ = oracle(path, text, (None,))
        converted = reference.classical(exact(double(path), placed.ids, wanted)[0], placed, "mean")
        assert_close(vector, converted)
        moved.append((converted - reference.classical(plain, placed, "mean")).abs().max())
    assert max(moved) > 0.01, "nothing was converted"


@pytest.mark.parametrize(("options", "wanted"), CASES[:7])
@pytest.mark.parametrize(("name", "pooling"), [("gemma2", "last"), ("gpt_oss", "mean")])
def test_windows_caps_and_sinks(base: Base, name: str, pooling: Any, options: Any, wanted: Plan) -> None:
    """A^new takes every run of every layer, both ways within a head where a layer looks ahead.

    A text of one token, without any special one, is never left without a key.
    """
    path, texts, authors = base(name, "plain"), ("a", *TEXTS[1:4]), {"last": published_last, "mean": published_mean}
    alone, reba = build(path, "nosink", **options), build(path, "reba", pooling=pooling, **options)
    windows = [SLIDING[name][0] if layer in SLIDING[name][1] else None for layer in range(DEPTH)]
    for text, by_nosink, by_reba in zip(texts, encoded(alone, texts), encoded(reba, texts), strict=True):
        placed = oracle(path, text, (None,))[0]
        assert text != "a" or len(placed.ids) == 1
        hidden, _ = hooked(double(path), placed.ids, wanted, windows)
        assert_close(by_nosink, reference.classical(hidden, placed, "mean"))
        placed = oracle(path, text, (None, None))[0]
        hidden, maps = hooked(double(path), placed.ids, wanted, windows)
        fused = reference.symmetrized_max(maps)
        exact = reference.reba(hidden, fused, placed, pooling)
        assert_close(by_reba, authors[pooling](hidden, fused) if "implementation" in options else exact)


@pytest.mark.parametrize("m", [1, 2, 5])
@pytest.mark.parametrize("name", MASKS)
def test_masks(name: str, m: int) -> None:
    """Of every length and window, and with padding, which nobody sees but itself."""
    for length in (1, 2, 6):
        for window in (None, 2):
            own = visible("forward", length, m, window)[None, None]
            assert torch.equal(apply_mask(name, own, m=m)[0, 0], visible(name, length, m, window))
    own = torch.ones(1, 1, 6, 6, dtype=torch.bool).tril()
    real = torch.tensor([[1, 1, 1, 1, 0, 0], [1] * 6]).bool()
    added = torch.zeros(own.shape).masked_fill(~own, torch.finfo(torch.float32).min)
    assert torch.equal(LayerMasks.boolean_mask(Mock(real_tokens=real), added, True), own)
    short, long = apply_mask(name, own, real, m)[:, 0]
    assert torch.equal(long, visible(name, 6, m)) and torch.equal(short[:4, :4], visible(name, 4, m))
    assert torch.equal(short[:, 4:], torch.eye(6, dtype=torch.bool)[:, 4:])


def test_by_hand(base: Base) -> None:
    """One copy with one sink unless said, and no masks where the attention was changed."""
    made = NoSinkTransformer(base("llama"), layer_masks=["nosink-forward"] * DEPTH)
    assert (made.m, made.copies, made.own_input) == (1, 1, False)
    made.model.set_attn_implementation("sdpa")
    with pytest.raises(ValueError, match="not used"):
        made(made.preprocess(["a"]))


@pytest.mark.parametrize(
    ("layer", "other", "says"),
    [
        (5, "forward", "nosink-bidirectional: its token 0 does not see token 1"),
        (4, "bidirectional", "nosink-bidirectional: its token 1 sees token 0"),
        (3, "nosink-bidirectional", "bidirectional: its token 1 does not see token 0"),
        (1, "backward", "forward: its token 0 sees token 1"),
        (0, "nosink-forward", "forward: its token 1 does not see token 0"),
    ],
)
def test_the_layer_is_named(monkeypatch: pytest.MonkeyPatch, layer: int, other: str, says: str) -> None:
    """By the self-check: a layer that computes another mask than it says."""

    def disobey(self: Any, module: Any, own: Any, causal: bool) -> Any:
        self.rerun_mask = other if module.layer_idx == layer else None
        found = MASK(self, module, own, causal)
        self.rerun_mask, self.last_attention = None, (module, self.layer_masks[module.layer_idx])
        return found

    options: dict[str, Any] = {"setting": "mask0&bidir", "k": 4, "k0": 2}
    monkeypatch.setattr(LayerMasks, "mask_for_layer", disobey)
    with pytest.raises(ValueError, match=rf"layer {layer} \(LlamaAttention\), running as {says}"):
        build("mini", "nosink", **options)
    build("mini", "nosink", check=False, **options)


@pytest.fixture
def window_mask() -> Iterator[None]:
    """A mask that differs from others only in texts of more than six tokens."""
    declare_mask(
        "window-6",
        inplace_setting="window-6",
        description="the six tokens up to i",
        visible_tokens=lambda view: view.native_mask & (view.positions[:, None] - view.positions < 6),
        is_causal=True,
    )
    yield
    del MASKS["window-6"]


def test_the_check_runs_tokens_enough_to_tell_a_declared_mask_from_others(
    window_mask: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert length_to_tell_masks_apart(m=1) == 8
    model: Any = build("mini", "nosink", setting="window-6", k=2)
    assert model[0].layer_masks[-2:] == ["window-6", "window-6"]

    def forget_the_window(self: Any, module: Any, native_mask: Any, is_causal: bool) -> Any:
        MASK(self, module, native_mask, is_causal)
        return native_mask, is_causal, False

    monkeypatch.setattr(LayerMasks, "mask_for_layer", forget_the_window)
    with pytest.raises(ValueError, match="running as window-6: its token 6 sees token 0"):
        build("mini", "nosink", setting="window-6", k=2)


@pytest.mark.parametrize(
    ("setting", "is_allowed"), [("window-6", False), ("mask0-for", True), ("inplace-bidir", False)]
)
def test_m_is_an_option_where_a_mask_hides_the_sink(window_mask: None, setting: str, is_allowed: bool) -> None:
    with nullcontext() if is_allowed else pytest.raises(ValueError, match="hides no sink"):
        plan_layers(setting, 4, k=1, m=2)


def silent(self: Any, module: Any, *own: Any) -> Any:
    """As if the topmost layer asked for no mask."""
    return (*own, False) if module.layer_idx == 5 else MASK(self, module, *own)


@pytest.mark.parametrize(
    ("patched", "new", "setting", "says"),
    [
        ((LayerMasks, "mask_for_layer"), silent, "mask0-for", "layer 5 ran as nosink-forward 0 times"),
        ((RepeatedLayers, "before_layers"), Mock(), "inter-back", "layer 4 ran as backward 0 times"),
        ((RepeatTransformer, "forward"), Mock(side_effect=RuntimeError("sizes")), "mask0-for", "cannot run it: sizes"),
    ],
)
def test_what_does_not_run(monkeypatch: pytest.MonkeyPatch, patched: Any, new: Any, setting: str, says: str) -> None:
    monkeypatch.setattr(*patched, new)
    with pytest.raises(ValueError, match=f"setting: .*{says}"):
        build("mini", "nosink", setting=setting, k=2)


@pytest.mark.parametrize("size", [0.1, 1.0, 1000.0])
def test_what_is_seen_faintly(size: float) -> None:
    """By a part of the largest number; rounding is not seen."""
    hidden = 10 * torch.randn(9, 4, 16, generator=torch.Generator().manual_seed(1))
    below, above = torch.ones(4, 4).tril(-1).bool(), torch.ones(4, 4).triu(1).bool()
    weights = size * (torch.eye(4) + 5e-6 * below + 1e-9 * above)
    module = Mock(forward=lambda hidden_states: (weights @ hidden_states,))
    by_position = ModuleCall(module, (hidden,), {})
    by_name = ModuleCall(module, (), {"hidden_states": hidden})
    assert torch.equal(measure_visibility(by_position), ~above)
    assert torch.equal(measure_visibility(by_name), ~above)


@pytest.mark.parametrize(
    ("name", "m"), [("mistral", 0), ("mistral", 5), ("gemma2", 1), ("gpt_oss", 40), ("gpt2", 1), ("gemma3_text", 1)]
)
def test_windows_and_sinks_are_no_disobedience(base: Base, name: str, m: int) -> None:
    """Nor are whole layers that know their number, as those of gemma3 do."""
    for setting in ("mask0-all", "mask0-for"):
        build(base(name), "nosink", setting=setting, k=2, m=m)
    build(base(name), "nosink", setting="extend-bidir", k=2, dtype="bfloat16")
