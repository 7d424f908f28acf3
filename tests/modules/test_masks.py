"""Every NoSink setting, by a table and by the float64 oracle, also with ReBA; and layers that ignore their mask."""

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
from oracle import TEXTS, assert_close, float64_model, oracle
from pipelines import build, encoded
from reference import published_last, published_mean
from reference_nosink import Plan, hooked, plan_upper_layers, run, visible

from st_reba.modules import RepeatTransformer
from st_reba.modules.layers import ModuleCall
from st_reba.modules.mask_check import (
    length_to_tell_masks_apart,
    measure_visibility,
)
from st_reba.modules.masks import MASKS, declare_mask
from st_reba.modules.nosink import LayerMasks, NoSinkTransformer, apply_mask
from st_reba.modules.passes import LayerMask
from st_reba.modules.second import RepeatedLayers
from st_reba.modules.settings import SETTINGS, LayerPlan, plan_layers

MASK_FOR_LAYER = LayerMasks.mask_for_layer  # the original, before a test replaces it
FORWARD = "forward"
BACKWARD = "backward"
BIDIRECTIONAL = "bidirectional"
NOSINK_FORWARD = "nosink-forward"
NOSINK_BIDIRECTIONAL = "nosink-bidirectional"

# Setting → the masks of the upper three of five layers, with k = 3; the lower two stay as they are.
UPPER_MASKS = {
    "baseline": [FORWARD] * 3,
    "inplace-back": [BACKWARD] * 3,
    "inplace-bidir": [BIDIRECTIONAL] * 3,
    "rerouted": ["rerouted"] * 3,
    "mask0-for": [NOSINK_FORWARD] * 3,
    "mask0-bidir": [NOSINK_BIDIRECTIONAL] * 3,
    "mask0-1": [BIDIRECTIONAL, BIDIRECTIONAL, NOSINK_BIDIRECTIONAL],
    "mask0-2": [BIDIRECTIONAL, NOSINK_BIDIRECTIONAL, NOSINK_BIDIRECTIONAL],
    "mask0-3": [NOSINK_BIDIRECTIONAL] * 3,
}
# Setting with k0 → how many of the three are bidirectional; those above hide the sink.
BIDIRECTIONAL_LAYERS = {
    ("mask0&bidir", 0): 3,
    ("mask0&bidir", 2): 1,
    ("mask0-last", 3): 0,
    ("mask0-mid", 0): 3,
    ("mask0-mid", 1): 2,
    ("mask0-mid", 2): 2,
    ("mask0-mid", 3): 2,
}
# Setting → architecture, and the layers that run again, with their mask.
SECOND_LAYERS = {
    "inter-back": ("inter", [2, 3, 4], BACKWARD),
    "inter-bidir": ("inter", [2, 3, 4], BIDIRECTIONAL),
    "extra-back": ("extra", [2, 3, 4], BACKWARD),
    "extra-bidir": ("extra", [2, 3, 4], BIDIRECTIONAL),
    "extend-back": ("extend", [4, 4, 4], BACKWARD),
    "extend-bidir": ("extend", [4, 4, 4], BIDIRECTIONAL),
}


def test_every_setting_is_in_a_table() -> None:
    settings_with_k0 = {setting for setting, _ in BIDIRECTIONAL_LAYERS}
    assert {
        *UPPER_MASKS,
        *settings_with_k0,
        *SECOND_LAYERS,
        "mask0-all",
    } == set(SETTINGS)


def assert_layers_run_once(layer_plan: LayerPlan) -> None:
    assert layer_plan.second == []
    assert (layer_plan.architecture, layer_plan.m) == ("inplace", 1)


@pytest.mark.parametrize("setting", UPPER_MASKS)
def test_a_setting_converts_the_upper_layers(setting: str) -> None:
    layer_count = None if setting == "baseline" else 3
    layer_plan = plan_layers(setting, 5, k=layer_count)
    assert layer_plan.layer_masks == [FORWARD, FORWARD, *UPPER_MASKS[setting]]
    assert_layers_run_once(layer_plan)


@pytest.mark.parametrize(("setting", "k0"), BIDIRECTIONAL_LAYERS)
def test_k0_layers_hide_the_sink(setting: str, k0: int) -> None:
    layer_plan = plan_layers(setting, 5, k=3, k0=k0)
    bidirectional_count = BIDIRECTIONAL_LAYERS[setting, k0]
    expected_upper = [BIDIRECTIONAL] * bidirectional_count + [NOSINK_BIDIRECTIONAL] * (
        3 - bidirectional_count
    )
    assert layer_plan.layer_masks == [FORWARD, FORWARD, *expected_upper]
    assert_layers_run_once(layer_plan)


def test_mask0_all_hides_the_sink_in_every_layer() -> None:
    layer_plan = plan_layers("mask0-all", 5, k=3)
    assert layer_plan.layer_masks == [NOSINK_FORWARD] * 2 + [NOSINK_BIDIRECTIONAL] * 3
    assert_layers_run_once(layer_plan)


@pytest.mark.parametrize("setting", SECOND_LAYERS)
def test_a_setting_runs_layers_again(setting: str) -> None:
    architecture, layers, mask = SECOND_LAYERS[setting]
    layer_plan = plan_layers(setting, 5, k=3)
    assert layer_plan.layer_masks == [FORWARD] * 5
    assert layer_plan.second == [(layer, mask) for layer in layers]
    assert (layer_plan.architecture, layer_plan.m) == (architecture, 1)


@pytest.mark.parametrize(
    ("k", "converted_layers"),
    [
        (0, []),
        (3, [0, 1, 2]),
        ("all", [0, 1, 2]),
        ([0, -1], [0, 2]),
        ([-3, 2], [0, 2]),
        ([1], [1]),
    ],
)
def test_k_says_which_layers_are_converted(k: Any, converted_layers: list[int]) -> None:
    expected_masks = [FORWARD] * 3
    for layer in converted_layers:
        expected_masks[layer] = BACKWARD
    assert plan_layers("inplace-back", 3, k=k).layer_masks == expected_masks
    second_layers = plan_layers("extra-back", 3, k=k, implementation="authors").second
    assert second_layers == [(layer, BACKWARD) for layer in converted_layers]


def test_the_authors_second_stream_runs_all_layers_above() -> None:
    second_layers = plan_layers("inter-back", 4, k=[1], implementation="authors").second
    assert second_layers == [(1, BACKWARD), (2, FORWARD), (3, FORWARD)]


@pytest.mark.parametrize("pass_count", [0, 5, 64])
def test_extend_may_add_more_passes_than_there_are_layers(pass_count: int) -> None:
    assert plan_layers("extend-back", 3, k=pass_count).second == [(2, BACKWARD)] * pass_count


@pytest.mark.parametrize("pass_count", [-1, 65, 1 << 30])
def test_extend_adds_no_passes_without_end(pass_count: int) -> None:
    with pytest.raises(ValueError, match="at most 64 runs"):
        plan_layers("extend-back", 3, k=pass_count)


@pytest.mark.parametrize("k", [5, -1, [4], [0, -4], [], "some"], ids=str)
def test_layers_that_are_not_there_are_refused(k: Any) -> None:
    with pytest.raises(ValueError):
        plan_layers("inplace-back", 4, k=k)


def test_a_model_that_is_not_loaded_may_have_1024_layers() -> None:
    assert plan_layers("inplace-back", None, k=1024).layer_masks == [BACKWARD] * 1024
    with pytest.raises(ValueError, match="at most 1024 layers"):
        plan_layers("inplace-back", None, k=1025)


@pytest.mark.parametrize(
    ("k", "message"),
    [([1, True], "different"), ([1, 5], "5 layers"), (1, "k0=2 is more")],
)
def test_a_wrong_k_is_refused_with_its_reason(k: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan_layers("mask0-2", 5, k=k)


DEPTH = 3
# Setting with its numbers, and the oracle's plan, for models of three layers; of every kind one,
# then others.
CASES: list[tuple[dict[str, Any], Plan]] = [
    (
        {"setting": "inplace-bidir", "k": [0, -1]},
        Plan((BIDIRECTIONAL, None, BIDIRECTIONAL)),
    ),
    (
        {"setting": "inter-back", "k": [0, 2], "implementation": "authors"},
        Plan((BACKWARD, None, BACKWARD), "inter", variant="published"),
    ),
    (
        {"setting": "extra-bidir", "k": [1]},
        Plan((None, BIDIRECTIONAL, None), "extra"),
    ),
    (
        {"setting": "extend-back", "k": 1},
        plan_upper_layers(DEPTH, "extend", BACKWARD, 1),
    ),
    (
        {"setting": "mask0-for", "k": 3, "m": 3},
        plan_upper_layers(DEPTH, kind=NOSINK_FORWARD, k=3, m=3),
    ),
    (
        {"setting": "mask0-all", "k": 1},
        plan_upper_layers(DEPTH, kind=NOSINK_BIDIRECTIONAL, k=1, other_kind=NOSINK_FORWARD),
    ),
    (
        {"setting": "mask0&bidir", "k": 3, "k0": 2},
        plan_upper_layers(DEPTH, k=3, k0=2),
    ),
    (
        {"setting": "inter-back", "k": 2},
        plan_upper_layers(DEPTH, "inter", BACKWARD, 2),
    ),
    (
        {"setting": "inter-bidir", "k": [0, 2]},
        Plan((BIDIRECTIONAL, None, BIDIRECTIONAL), "inter"),
    ),
    (
        {"setting": "inter-bidir", "k": 2, "implementation": "authors"},
        plan_upper_layers(DEPTH, "inter", k=2, variant="published"),
    ),
    (
        {"setting": "extra-bidir", "k": 2, "implementation": "authors"},
        plan_upper_layers(DEPTH, "extra", k=2, variant="published"),
    ),
    (
        {"setting": "extend-bidir", "k": 2},
        plan_upper_layers(DEPTH, "extend", k=2),
    ),
    (
        {"setting": "mask0-bidir", "k": [1], "m": 2},
        Plan((None, NOSINK_BIDIRECTIONAL, None), m=2),
    ),
    (
        {"setting": "rerouted", "k": 2},
        plan_upper_layers(DEPTH, kind="rerouted", k=2),
    ),
]


def case_name(value: Any) -> str | None:
    return str(value) if isinstance(value, dict) else None


@pytest.mark.parametrize(("options", "oracle_plan"), CASES, ids=case_name)
@pytest.mark.parametrize(
    ("base_name", "run_plan"),
    slow_but([("gpt2", hooked), ("llama", run)], "llama", rows=True),
)
def test_settings_equal_layers_run_one_by_one(
    base: Base,
    base_name: str,
    run_plan: Any,
    options: dict[str, Any],
    oracle_plan: Plan,
) -> None:
    """The mean over content, special tokens around it."""
    path = base(base_name, "bos_eos")
    model = build(path, "nosink", **options)
    changes: list[float] = []
    for text, vector in zip(TEXTS, encoded(model), strict=True):
        text_layout, plain_states, _ = oracle(path, text, (None,))
        converted_states, _ = run_plan(float64_model(path), text_layout.ids, oracle_plan)
        expected = reference.classical(converted_states, text_layout, "mean")
        assert_close(vector, expected)
        plain_vector = reference.classical(plain_states, text_layout, "mean")
        changes.append(float((expected - plain_vector).abs().max()))
    assert max(changes) > 0.01, "nothing was converted"


def windows_of(base_name: str) -> list[int | None]:
    window, layers = SLIDING[base_name]
    return [window if layer in layers else None for layer in range(DEPTH)]


# A text of one token, without any special one, is never left without a key.
TEXTS_FOR_WINDOWS = ("a", *TEXTS[1:4])


@pytest.mark.parametrize(("options", "oracle_plan"), CASES[:7], ids=case_name)
@pytest.mark.parametrize("base_name", ["gemma2", "gpt_oss"])
def test_nosink_with_windows_caps_and_sinks(
    base: Base,
    base_name: str,
    options: dict[str, Any],
    oracle_plan: Plan,
) -> None:
    path = base(base_name, "plain")
    model = build(path, "nosink", **options)
    for text, vector in zip(TEXTS_FOR_WINDOWS, encoded(model, TEXTS_FOR_WINDOWS), strict=True):
        text_layout, _, _ = oracle(path, text, (None,))
        assert text != "a" or len(text_layout.ids) == 1
        hidden_states, _ = hooked(
            float64_model(path), text_layout.ids, oracle_plan, windows_of(base_name)
        )
        assert_close(vector, reference.classical(hidden_states, text_layout, "mean"))


@pytest.mark.parametrize(("options", "oracle_plan"), CASES[:7], ids=case_name)
@pytest.mark.parametrize(("base_name", "pooling"), [("gemma2", "last"), ("gpt_oss", "mean")])
def test_reba_takes_every_run_of_every_layer(
    base: Base,
    base_name: str,
    pooling: Any,
    options: dict[str, Any],
    oracle_plan: Plan,
) -> None:
    """With windows, caps and sinks; both ways within a head where a layer looks ahead."""
    path = base(base_name, "plain")
    model = build(path, "reba", pooling=pooling, **options)
    published_pooling = {"last": published_last, "mean": published_mean}[pooling]
    for text, vector in zip(TEXTS_FOR_WINDOWS, encoded(model, TEXTS_FOR_WINDOWS), strict=True):
        text_layout, _, _ = oracle(path, text, (None, None))
        hidden_states, attention_maps = hooked(
            float64_model(path), text_layout.ids, oracle_plan, windows_of(base_name)
        )
        fused_attention = reference.symmetrized_max(attention_maps)
        if "implementation" in options:
            expected = published_pooling(hidden_states, fused_attention)
        else:
            expected = reference.reba(hidden_states, fused_attention, text_layout, pooling)
        assert_close(vector, expected)


@pytest.mark.parametrize("m", [1, 2, 5])
@pytest.mark.parametrize("mask_name", MASKS)
@pytest.mark.parametrize("length", [1, 2, 6])
@pytest.mark.parametrize("window", [None, 2])
def test_masks_are_those_of_the_reference(
    mask_name: str, m: int, length: int, window: int | None
) -> None:
    native_mask = visible(FORWARD, length, m, window)[None, None]
    mask = apply_mask(mask_name, native_mask, m=m)[0, 0]
    assert torch.equal(mask, visible(mask_name, length, m, window))


@pytest.mark.parametrize("m", [1, 2, 5])
@pytest.mark.parametrize("mask_name", MASKS)
def test_padding_is_seen_by_nobody_but_itself(mask_name: str, m: int) -> None:
    native_mask = torch.ones(1, 1, 6, 6, dtype=torch.bool).tril()
    real_tokens = torch.tensor([[1, 1, 1, 1, 0, 0], [1] * 6]).bool()
    short_mask, long_mask = apply_mask(mask_name, native_mask, real_tokens, m)[:, 0]
    assert torch.equal(long_mask, visible(mask_name, 6, m))
    assert torch.equal(short_mask[:4, :4], visible(mask_name, 4, m))
    assert torch.equal(short_mask[:, 4:], torch.eye(6, dtype=torch.bool)[:, 4:])


def test_an_additive_mask_is_read_as_a_mask_of_true_and_false() -> None:
    native_mask = torch.ones(1, 1, 6, 6, dtype=torch.bool).tril()
    real_tokens = torch.tensor([[1, 1, 1, 1, 0, 0], [1] * 6]).bool()
    lowest = torch.finfo(torch.float32).min
    additive_mask = torch.zeros(native_mask.shape).masked_fill(~native_mask, lowest)
    boolean_mask = LayerMasks.boolean_mask(Mock(real_tokens=real_tokens), additive_mask, True)
    assert torch.equal(boolean_mask, native_mask)


def test_a_layer_that_is_not_converted_keeps_its_own_mask() -> None:
    """Also one of numbers that are added to scores, as position biases are."""
    transformer: Any = Mock(layer_masks=[FORWARD, NOSINK_FORWARD], second=(), m=1)
    masks = LayerMasks(transformer)
    native_mask = torch.zeros(1, 1, 2, 2)
    layer_mask = masks.mask_for_layer(Mock(layer_idx=0), native_mask, False)
    assert layer_mask.mask is native_mask
    assert masks.mask_for_layer(Mock(layer_idx=0), None, True) == LayerMask(None, True, False)


def test_one_copy_and_one_sink_are_the_defaults(base: Base) -> None:
    transformer = NoSinkTransformer(base("llama"), layer_masks=[NOSINK_FORWARD] * DEPTH)
    assert (transformer.m, transformer.copies, transformer.own_input) == (
        1,
        1,
        False,
    )


def test_tokens_that_the_model_lacks_are_refused_with_its_own_input_too(base: Base) -> None:
    transformer = NoSinkTransformer(
        base("llama"), layer_masks=[NOSINK_FORWARD] * DEPTH, own_input=True
    )
    transformer.tokenizer.pad_token = "<s>"
    transformer.tokenizer.add_tokens([f"new{number}" for number in range(99)])
    with pytest.raises(ValueError, match="the model only .* embeddings"):
        transformer.preprocess(["new98"])


def test_a_models_own_input_is_padded_on_the_right_whatever_its_tokenizer_does(base: Base) -> None:
    transformer = NoSinkTransformer(
        base("llama"), layer_masks=[NOSINK_FORWARD] * DEPTH, own_input=True
    )
    transformer.tokenizer.pad_token = "<s>"
    transformer.tokenizer.padding_side = "left"
    short_mask, long_mask = transformer.preprocess(["a", "a b c"])["attention_mask"].tolist()
    real_count = sum(short_mask)
    assert real_count < sum(long_mask) == len(long_mask)
    assert short_mask == [1] * real_count + [0] * (len(short_mask) - real_count)


def test_masks_that_the_attention_does_not_use_are_missed(base: Base) -> None:
    transformer = NoSinkTransformer(base("llama"), layer_masks=[NOSINK_FORWARD] * DEPTH)
    transformer.model.set_attn_implementation("sdpa")
    with pytest.raises(ValueError, match="not used"):
        transformer(transformer.preprocess(["a"]))


@pytest.mark.parametrize(
    ("layer", "other_mask", "message"),
    [
        (5, FORWARD, "nosink-bidirectional: its token 0 does not see token 1"),
        (4, BIDIRECTIONAL, "nosink-bidirectional: its token 1 sees token 0"),
        (
            3,
            NOSINK_BIDIRECTIONAL,
            "bidirectional: its token 1 does not see token 0",
        ),
        (1, BACKWARD, "forward: its token 0 sees token 1"),
        (0, NOSINK_FORWARD, "forward: its token 1 does not see token 0"),
    ],
)
def test_the_self_check_names_the_layer_that_runs_another_mask(
    monkeypatch: pytest.MonkeyPatch, layer: int, other_mask: str, message: str
) -> None:
    def mask_with_fault(self: Any, module: Any, native_mask: Any, is_causal: bool) -> Any:
        if module.layer_idx == layer:
            self.rerun_mask = other_mask
        else:
            self.rerun_mask = None
        mask = MASK_FOR_LAYER(self, module, native_mask, is_causal)
        self.rerun_mask = None
        self.last_attention = (module, self.layer_masks[module.layer_idx])
        return mask

    options: dict[str, Any] = {"setting": "mask0&bidir", "k": 4, "k0": 2}
    monkeypatch.setattr(LayerMasks, "mask_for_layer", mask_with_fault)
    with pytest.raises(
        ValueError,
        match=rf"layer {layer} \(LlamaAttention\), running as {message}",
    ):
        build("mini", "nosink", **options)
    build("mini", "nosink", check=False, **options)


@pytest.fixture
def window_mask() -> Iterator[None]:
    """A mask that differs from others only in texts of more than six tokens."""
    declare_mask(
        "window-6",
        inplace_setting="window-6",
        description="the six tokens up to i",
        visible_tokens=lambda view: (
            view.native_mask & (view.positions[:, None] - view.positions < 6)
        ),
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
        MASK_FOR_LAYER(self, module, native_mask, is_causal)
        return LayerMask(native_mask, is_causal, False)

    monkeypatch.setattr(LayerMasks, "mask_for_layer", forget_the_window)
    with pytest.raises(ValueError, match="running as window-6: its token 6 sees token 0"):
        build("mini", "nosink", setting="window-6", k=2)


@pytest.mark.parametrize(
    ("setting", "is_allowed"),
    [("window-6", False), ("mask0-for", True), ("inplace-bidir", False)],
)
def test_m_is_an_option_where_a_mask_hides_the_sink(
    window_mask: None, setting: str, is_allowed: bool
) -> None:
    with nullcontext() if is_allowed else pytest.raises(ValueError, match="hides no sink"):
        plan_layers(setting, 4, k=1, m=2)


def mask_of_lower_layers(self: Any, module: Any, native_mask: Any, is_causal: bool) -> Any:
    """As if the topmost layer asked for no mask."""
    if module.layer_idx == 5:
        return LayerMask(native_mask, is_causal, False)
    return MASK_FOR_LAYER(self, module, native_mask, is_causal)


@pytest.mark.parametrize(
    ("patched_class", "method", "replacement", "setting", "message"),
    [
        (
            LayerMasks,
            "mask_for_layer",
            mask_of_lower_layers,
            "mask0-for",
            "layer 5 ran as nosink-forward 0 times",
        ),
        (
            RepeatedLayers,
            "before_layers",
            Mock(),
            "inter-back",
            "layer 4 ran as backward 0 times",
        ),
        (
            RepeatTransformer,
            "forward",
            Mock(side_effect=RuntimeError("sizes")),
            "mask0-for",
            "cannot run it: sizes",
        ),
    ],
    ids=["no mask", "no second run", "an error"],
)
def test_a_setting_that_does_not_run_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    patched_class: type,
    method: str,
    replacement: Any,
    setting: str,
    message: str,
) -> None:
    monkeypatch.setattr(patched_class, method, replacement)
    with pytest.raises(ValueError, match=f"setting: .*{message}"):
        build("mini", "nosink", setting=setting, k=2)


@pytest.mark.parametrize("scale", [0.1, 1.0, 1000.0])
def test_faint_attention_is_seen_and_rounding_is_not(scale: float) -> None:
    """Measured by a part of the largest number."""
    hidden_states = 10 * torch.randn(9, 4, 16, generator=torch.Generator().manual_seed(1))
    earlier = torch.ones(4, 4).tril(-1).bool()
    later = torch.ones(4, 4).triu(1).bool()
    weights = scale * (torch.eye(4) + 5e-6 * earlier + 1e-9 * later)
    module = Mock(forward=lambda hidden_states: (weights @ hidden_states,))
    call_by_position = ModuleCall(module, (hidden_states,), {})
    call_by_name = ModuleCall(module, (), {"hidden_states": hidden_states})
    assert torch.equal(measure_visibility(call_by_position), ~later)
    assert torch.equal(measure_visibility(call_by_name), ~later)


@pytest.mark.parametrize(
    ("base_name", "m"),
    [
        ("mistral", 0),
        ("mistral", 5),
        ("gemma2", 1),
        ("gpt_oss", 40),
        ("gpt2", 1),
        ("gemma3_text", 1),
    ],
)
def test_windows_and_sinks_are_no_disobedience(base: Base, base_name: str, m: int) -> None:
    """Nor are whole layers that know their number, as those of gemma3 do."""
    path = base(base_name)
    build(path, "nosink", setting="mask0-all", k=2, m=m)
    build(path, "nosink", setting="mask0-for", k=2, m=m)
    build(path, "nosink", setting="extend-bidir", k=2, dtype="bfloat16")
