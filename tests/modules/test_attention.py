"""Attention in blocks: its result, its gradient, memory that no head adds to, and checks of a base's own."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import families
import pytest
import torch
from marks import Base, slow_but
from pipelines import (
    PIPELINES,
    assert_gradients,
    build,
    build_pipeline,
    encoded,
    features_of,
    gradients,
)
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from st_reba.modules import RepeatTransformer, blocks, selfcheck
from st_reba.modules.attention import attention
from st_reba.modules.blocks import ScoreTerms, attend_in_blocks
from st_reba.modules.capture import BackwardAttention
from st_reba.modules.eager import mask_of_chosen_keys
from st_reba.modules.nosink import LayerMasks
from st_reba.modules.passes import ForwardPass, current_pass, running
from st_reba.modules.training import CheckpointInPass

TEXTS = ["The river runs past the old mill.", "hi", "银行关门了, again"]
LENGTH = 200  # positions
STEP = 1e-6  # of a finite difference
# The originals, before a test replaces them.
CAPTURED_ATTENTION = BackwardAttention.attend
FORWARD = RepeatTransformer.forward


def random_heads(dtype: torch.dtype = torch.float64, value_size: int = 8) -> list[Tensor]:
    """Queries of four heads, and keys and values of two."""
    generator = torch.Generator().manual_seed(0)
    heads: list[Tensor] = []
    for head_count, size in ((4, 8), (2, 8), (2, value_size)):
        numbers = torch.randn(2, head_count, LENGTH, size, generator=generator)
        heads.append(numbers.to(dtype))
    return heads


def without_later_keys(numbers: Tensor) -> Tensor:
    """Minus infinity where a key is later than the query."""
    later_keys = torch.ones(numbers.shape[-2:]).triu(1).bool()
    return numbers.masked_fill(later_keys, -torch.inf)


GENERATOR = torch.Generator().manual_seed(1)
BIAS = torch.randn(1, 4, LENGTH, LENGTH, generator=GENERATOR, dtype=torch.float64)
SINKS = torch.randn(4, generator=GENERATOR, dtype=torch.float64)
CAUSAL = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool).tril()
WINDOW = CAUSAL.triu(-6)
REAL_KEYS = torch.arange(LENGTH) < torch.tensor([[LENGTH], [9]])
PADDED = CAUSAL & REAL_KEYS[:, None, None] | torch.eye(LENGTH).bool()
SCORES = {
    "causal": ScoreTerms(causal=True, scaling=0.4),
    "soft cap": ScoreTerms(causal=True, scaling=0.9, softcap=1.5),
    "window": ScoreTerms(WINDOW, scaling=0.4),
    "additive": ScoreTerms(without_later_keys(BIAS), scaling=0.4),
    "padding": ScoreTerms(PADDED, scaling=0.4),
    "sinks": ScoreTerms(WINDOW, scaling=0.4, sinks=SINKS),
    "bias": ScoreTerms(causal=True, scaling=0.4, bias=BIAS),
}


def whole_attention(
    query: Tensor, key: Tensor, value: Tensor, terms: ScoreTerms
) -> tuple[Tensor, Tensor]:
    """Output [B, T, H, D] and probabilities, with all of both in memory."""
    key = key.repeat_interleave(2, dim=1)
    value = value.repeat_interleave(2, dim=1)
    scores = query @ key.mT * terms.scaling
    if terms.softcap is not None:
        scores = torch.tanh(scores / terms.softcap) * terms.softcap
    if terms.bias is not None:
        scores = scores + terms.bias
    if terms.mask is None:
        scores = scores.masked_fill(~CAUSAL, -torch.inf)
    elif terms.mask.dtype == torch.bool:
        scores = scores.masked_fill(~terms.mask, -torch.inf)
    else:
        scores = scores + terms.mask
    exponentials = scores.exp()
    divisor = exponentials.sum(-1, keepdim=True)
    if terms.sinks is not None:
        divisor = divisor + terms.sinks.exp()[:, None, None]
    probabilities = exponentials / divisor
    return (probabilities @ value).transpose(1, 2), probabilities


@pytest.mark.parametrize("terms", SCORES.values(), ids=SCORES)
def test_blocks_have_the_output_and_the_probabilities_of_the_whole(
    terms: ScoreTerms, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Grouped heads; without gradients, few queries of a text at a time."""
    monkeypatch.setattr(blocks, "BLOCK_SIZE", 32 * 4 * LENGTH)
    heads = random_heads(value_size=5)
    expected_output, expected_probabilities = whole_attention(*heads, terms)
    block_sizes: list[int] = []

    def check_block(block: Tensor, texts: slice, start: int) -> None:
        block_sizes.append(block.numel())
        end = start + block.shape[2]
        torch.testing.assert_close(
            block, expected_probabilities[texts, :, start:end, : block.shape[3]]
        )

    for head_tensor in heads:
        head_tensor.requires_grad_()
    torch.testing.assert_close(attend_in_blocks(*heads, terms, check_block), expected_output)
    with torch.no_grad():
        torch.testing.assert_close(attend_in_blocks(*heads, terms, check_block), expected_output)
    whole_size, *small_sizes = block_sizes
    assert whole_size > blocks.BLOCK_SIZE >= max(small_sizes)
    assert len(block_sizes) == (11 if terms.causal else 15)


@pytest.mark.parametrize(
    ("room", "text_count", "query_count"),
    [(0, 1, 16), (63, 1, 63), (64, 2, 32)],
    ids=["no room", "one text", "two texts"],
)
def test_a_block_takes_another_text_where_each_has_room_for_32_queries(
    room: int, text_count: int, query_count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block of one text has at least 16 queries; ``room`` is for queries of a text with four heads."""
    monkeypatch.setattr(blocks, "BLOCK_SIZE", room * 4 * LENGTH)
    shapes: list[tuple[int, ...]] = []
    with torch.no_grad():
        attend_in_blocks(
            *random_heads(),
            SCORES["window"],
            lambda block, texts, start: shapes.append(block.shape),
        )
    assert shapes[0] == (text_count, 4, query_count, LENGTH)


@pytest.mark.parametrize("terms", SCORES.values(), ids=SCORES)
def test_blocks_have_the_gradients_of_the_whole(
    terms: ScoreTerms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "BLOCK_SIZE", 32 * 4 * LENGTH)
    heads = [numbers.requires_grad_() for numbers in random_heads(value_size=5)]
    expected_output, _ = whole_attention(*heads, terms)
    output = attend_in_blocks(*heads, terms, lambda block, texts, start: None)
    random_weights = torch.randn_like(expected_output)
    gradients_of_blocks = torch.autograd.grad((output * random_weights).sum(), heads)
    expected_gradients = torch.autograd.grad((expected_output * random_weights).sum(), heads)
    for actual, expected in zip(gradients_of_blocks, expected_gradients, strict=True):
        torch.testing.assert_close(actual, expected)


def test_keys_that_an_indexer_chose_are_read_as_far_as_the_mask_shows_them() -> None:
    lowest = torch.finfo(torch.float32).min
    causal_mask = torch.zeros(1, 1, 2, 3).masked_fill(torch.ones(2, 3).triu(1).bool(), lowest)
    chosen_keys = torch.tensor([[[0, 2], [1, 1]]])
    visible_keys = mask_of_chosen_keys(causal_mask, chosen_keys, 3)
    assert visible_keys.tolist() == [[[[True, False, False], [False, True, False]]]]


THREE_ATTENTION_LAYERS = [*["full_attention"] * 3, "linear_attention", "mamba"]


@pytest.mark.parametrize("pipeline", ["reba mean", "reba inter"])
def test_layers_without_attention_show_none(base: Base, pipeline: str) -> None:
    model: Any = build_pipeline(base("llama"), pipeline)
    model[0].config.layer_types = THREE_ATTENTION_LAYERS
    encoded(model)


# A layer that runs twice shows its attention twice.
@pytest.mark.parametrize(("pipeline", "shown_count"), [("reba mean", 3), ("reba inter", 4)])
@pytest.mark.parametrize(
    ("settings", "attention_layers"),
    [
        ({"layers_block_type": ["hybrid", *THREE_ATTENTION_LAYERS]}, 4),
        ({"layer_types": ["mamba"], "num_hidden_layers": 4}, 4),
    ],
    ids=["hybrid too", "none named"],
)
def test_every_layer_with_attention_must_show_it(
    base: Base, pipeline: str, shown_count: int, settings: dict[str, Any], attention_layers: int
) -> None:
    model: Any = build_pipeline(base("llama"), pipeline)
    vars(model[0].config).update(settings)
    message = f"of {attention_layers} layers, but {shown_count} showed"
    with pytest.raises(ValueError, match=message):
        encoded(model)


def test_observed_attention_is_said_once(base: Base, caplog: pytest.LogCaptureFixture) -> None:
    model: Any = build(base("bloom"))
    assert torch.equal(encoded(model), encoded(model))
    assert caplog.text.count("eager attention is observed") == 1


def test_a_pass_that_reads_layers_alone_takes_no_attention(base: Base) -> None:
    """Though hooks see it."""
    model: Any = build_pipeline(base("bloom"), "concat")
    features = features_of(model)
    model[0].requested_capture = None
    assert "backward_attention" not in model[0](features)


def test_a_layer_whose_hook_is_lost_is_missed(base: Base) -> None:
    model: Any = build(base("bloom"))
    model[0].model.h[0].self_attention._forward_hooks.clear()
    with pytest.raises(ValueError, match="2 layers, but 1 showed"):
        encoded(model)


def test_there_may_be_more_keys_than_queries() -> None:
    query, key, value = random_heads()
    terms = ScoreTerms(causal=True)
    last_queries = attend_in_blocks(query[:, :, 2:], key, value, terms)
    torch.testing.assert_close(last_queries, attend_in_blocks(query, key, value, terms)[:, 2:])


def test_dropout_of_16_bits_is_shown_in_32() -> None:
    shown_blocks: list[Tensor] = []
    terms = ScoreTerms(causal=True, dropout=1.0)
    output = attend_in_blocks(
        *random_heads(torch.bfloat16),
        terms,
        lambda block, *_: shown_blocks.append(block),
    )
    assert shown_blocks[0].dtype == torch.float32
    assert output.dtype == torch.bfloat16
    assert not output.any()


def random_arguments() -> tuple[torch.nn.Module, Tensor, Tensor, Tensor]:
    """A module, and query, key and value of three texts: two heads of 16 numbers, four positions."""
    query, key, value = torch.randn(3, 3, 2, 4, 16)
    return torch.nn.Module(), query, key, value


def test_scores_are_divided_by_the_root_of_the_head_size_by_default() -> None:
    arguments = random_arguments()
    unscaled, _ = attention(*arguments, None, softcap=2.0, scaling=None)
    scaled, _ = attention(*arguments, None, softcap=2.0, scaling=0.25)
    assert torch.equal(unscaled, scaled)
    module, query, key, value = arguments
    halved, _ = attention(module, query / 2, key, value, None, softcap=2.0, scaling=0.5)
    assert torch.equal(halved, scaled)


def test_position_biases_are_added_to_scores() -> None:
    arguments = random_arguments()
    bias = torch.randn(1, 2, 4, 4)
    additive_mask = without_later_keys(bias).expand(3, -1, -1, -1)
    biased, _ = attention(*arguments, None, position_bias=bias)
    masked, _ = attention(*arguments, additive_mask)
    torch.testing.assert_close(biased, masked)


@pytest.mark.parametrize(
    ("message", "layer_index", "key_count", "options"),
    [
        ("'sinks'", 0, 4, {"sinks": 1}),
        ("'block_indices'", 0, 4, {"block_indices": 1}),
        ("more keys", 0, 5, {}),
        ("by an indexer", 0, 4, {"indices": torch.zeros(2, 4, 1)}),
        ("mask of shape", 1, 5, {}),
        ("layer_idx=None", None, 4, {}),
        ("layer_idx=-1", -1, 4, {}),
        ("layer_idx=3", 3, 4, {}),
    ],
)
def test_arguments_that_attention_cannot_read_are_refused(
    base: Base,
    message: str,
    layer_index: int | None,
    key_count: int,
    options: dict[str, Any],
) -> None:
    state = ForwardPass(
        None,
        {"spans": [], "attention_mask": torch.ones(2, 4), "copy_ids": None},
    )
    LayerMasks(build_pipeline(base("llama"), "mask0")[0]).before_layers(state)
    state.observer = object()
    module: Any = SimpleNamespace(layer_idx=layer_index)
    query = torch.zeros(2, 2, 4, 8)
    key = torch.zeros(2, 2, key_count, 8)
    mask = torch.ones(2, 1, 4, key_count).bool()
    with running(state), pytest.raises(ValueError, match=message):
        attention(module, query, key, key, mask, **options)


class LargestTensor(TorchDispatchMode):
    """The most numbers that one tensor made inside the ``with`` block holds."""

    number_count = 0

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = operator(*args, **(kwargs or {}))
        for tensor in filter(torch.is_tensor, tree_leaves(result)):
            number_count = tensor.untyped_storage().nbytes() // tensor.itemsize
            self.number_count = max(self.number_count, number_count)
        return result


PIPELINES_WITH_ATTENTION = [
    "reba mean",
    "reba mask0",
    "authors mean",
    "mask0",
    "inter",
]


@pytest.mark.parametrize("pipeline", slow_but(PIPELINES_WITH_ATTENTION, "reba mean", "mask0"))
def test_no_matrix_of_all_heads_is_made(base: Base, pipeline: str) -> None:
    model: Any = build_pipeline(base("llama"), pipeline)
    model[0].tokenizer.model_max_length = 2000
    model[0].config.max_position_embeddings = 2000
    features = features_of(model, ["The river runs past the old mill. " * 200])
    length = features["input_ids"].shape[1]
    assert length > 1900
    with torch.inference_mode(), LargestTensor() as largest_tensor:
        model(features)
    assert largest_tensor.number_count < 3 * length**2, "of four heads"


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_gradients_equal_finite_differences(base: Base, pipeline: str) -> None:
    """Along one direction; of gpt2, which computes in float64 throughout."""
    model = build_pipeline(base("gpt2"), pipeline, dtype="float64")
    features = features_of(model, TEXTS)
    weight_gradients = gradients(model, features)
    torch.manual_seed(0)
    vector_weights = torch.randn(len(TEXTS), model.get_embedding_dimension(), dtype=torch.float64)
    direction: dict[str, Tensor] = {}
    for name, weight in model.named_parameters():
        direction[name] = torch.randn_like(weight) * weight.detach().abs().mean()

    def value_after_step(step: float) -> float:
        with torch.no_grad():
            for name, weight in model.named_parameters():
                weight.add_(step * direction[name])
            vectors = model(dict(features))["sentence_embedding"]
        return float((vectors * vector_weights).sum())

    value_ahead = value_after_step(STEP)
    value_behind = value_after_step(-2 * STEP)
    slope = sum(
        float((weight_gradients[name] * direction[name]).sum()) for name in weight_gradients
    )
    assert slope == pytest.approx((value_ahead - value_behind) / (2 * STEP), rel=1e-4)


PIPELINES_WITH_A_PASS = [
    "reba last",
    "reba mean",
    "authors mean",
    "mask0",
    "reba mask0",
    "layers",
]


@pytest.mark.parametrize("pipeline", PIPELINES_WITH_A_PASS)
@pytest.mark.parametrize("base_name", ["llama", "gpt2"])
def test_a_checkpointed_layer_finds_its_pass_when_it_runs_again(
    base: Base, base_name: str, pipeline: str
) -> None:
    model: Any = build_pipeline(base(base_name), pipeline).train()
    features = features_of(model, TEXTS)
    expected = gradients(model, features)
    model[0].model.gradient_checkpointing_enable(
        gradient_checkpointing_kwargs={"use_reentrant": False}
    )
    for _ in range(2):
        assert_gradients(gradients(model, features), expected)
    checkpoint_types: set[type] = set()
    for module in model.modules():
        checkpoint = getattr(module, "_gradient_checkpointing_func", None)
        if isinstance(checkpoint, CheckpointInPass):
            checkpoint_types.add(type(checkpoint.checkpoint))
    assert checkpoint_types == {partial}


def test_an_error_leaves_no_pass_behind(base: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_pipeline(base("llama"), "reba inter")
    expected = encoded(model)
    with monkeypatch.context() as patch:
        patch.setattr(BackwardAttention, "update_maxima", lambda *args, **options: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            encoded(model)
    assert current_pass() is None
    assert torch.equal(encoded(model), expected)


def attend_larger(*args: Any) -> Tensor:
    return CAPTURED_ATTENTION(*args) * 1.1


def attend_ahead(
    self: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    terms: ScoreTerms,
    looks_ahead: bool,
) -> Tensor:
    whole_mask = torch.ones(1, 1, query.shape[2], key.shape[2], dtype=torch.bool)
    terms = terms._replace(causal=False, mask=whole_mask)
    return CAPTURED_ATTENTION(self, query, key, value, terms, looks_ahead)


@pytest.mark.parametrize(
    ("faulty_attend", "message"),
    [
        (attend_larger, "hidden states change by"),
        (attend_ahead, "looks both ways"),
    ],
)
def test_captured_attention_must_be_the_bases_own(
    monkeypatch: pytest.MonkeyPatch, faulty_attend: Any, message: str
) -> None:
    """A base whose captured attention is another than its own, or that looks both ways, is refused."""
    monkeypatch.setattr(BackwardAttention, "attend", faulty_attend)
    with pytest.raises(ValueError, match=message):
        build("mini", "reba")


def test_layers_that_look_both_ways_are_refused_after_the_build_too() -> None:
    model = build("mini", "reba")
    for module in model.modules():
        module.is_causal = False
    with pytest.raises(ValueError, match="looks both ways"):
        model.encode("Cats sleep.")


def test_an_encoder_is_a_baseline_if_it_is_told_of_padding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    families.save("bert", tmp_path, decoder=False)
    build(str(tmp_path), "classical", pooling="mean")

    def forward_without_mask(self: Any, features: dict[str, Any], **options: Any) -> Any:
        whole_mask = torch.ones_like(features["attention_mask"])
        return FORWARD(self, features | {"attention_mask": whole_mask}, **options)

    monkeypatch.setattr(RepeatTransformer, "forward", forward_without_mask)
    with pytest.raises(ValueError, match="when a text is padded"):
        build(str(tmp_path), "classical", pooling="mean")


def test_rounding_of_large_states_is_no_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    transformer: Any = build("mini", "classical")[0]
    transformer.causal = False
    states = Mock(side_effect=[torch.tensor([1000.0]), torch.tensor([1000.1])])
    monkeypatch.setattr(selfcheck, "states_of_text", states)
    selfcheck.check_padding(transformer, "mini")
