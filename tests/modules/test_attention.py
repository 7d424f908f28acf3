"""Attention in blocks: its result, its gradient, memory that no head adds to, and checks of a base's own."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import Any

import families
import pytest
import torch
from marks import Base, slow_but
from pipelines import PIPELINES, assert_gradients, build, encoded, features_of, gradients, made
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from st_reba.modules import RepeatTransformer, blocks
from st_reba.modules.attention import attention
from st_reba.modules.blocks import ScoreTerms, attend
from st_reba.modules.capture import BackwardAttention
from st_reba.modules.eager import mask_of_chosen_keys
from st_reba.modules.nosink import LayerMasks
from st_reba.modules.passes import ForwardPass, current_pass, running
from st_reba.modules.training import CheckpointInPass

TEXTS = ["The river runs past the old mill.", "hi", "银行关门了, again"]
LENGTH = 200  # positions
ATTEND, FORWARD = BackwardAttention.attend, RepeatTransformer.forward  # before a test replaces them


def tensors(dtype: torch.dtype = torch.float64, width: int = 8) -> list[Tensor]:
    generator, sizes = torch.Generator().manual_seed(0), ((4, 8), (2, 8), (2, width))
    return [torch.randn(2, heads, LENGTH, size, generator=generator).to(dtype) for heads, size in sizes]


RANDOM = torch.Generator().manual_seed(1)
MASK = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool).tril()
NEAR = MASK.triu(-6)
PADDED = MASK & (torch.arange(LENGTH) < torch.tensor([[LENGTH], [9]]))[:, None, None] | torch.eye(LENGTH).bool()
BIAS = torch.randn(1, 4, LENGTH, LENGTH, generator=RANDOM, dtype=torch.float64)
SINKS = torch.randn(4, generator=RANDOM, dtype=torch.float64)
SCORES = {
    "causal": ScoreTerms(causal=True, scaling=0.4), "soft cap": ScoreTerms(causal=True, scaling=0.9, softcap=1.5),
    "window": ScoreTerms(NEAR, scaling=0.4), "additive": ScoreTerms(BIAS.masked_fill(~MASK, -torch.inf), scaling=0.4),
    "padding": ScoreTerms(PADDED, scaling=0.4), "sinks": ScoreTerms(NEAR, scaling=0.4, sinks=SINKS),
    "bias": ScoreTerms(causal=True, scaling=0.4, bias=BIAS),
}  # fmt: skip


def by_hand(query: Tensor, key: Tensor, value: Tensor, how: ScoreTerms) -> tuple[Tensor, Tensor]:
    """Output [B, T, H, D] and probabilities, with all of both in memory."""
    key, value = (each.repeat_interleave(2, dim=1) for each in (key, value))
    found = query @ key.mT * how.scaling
    found = found if how.softcap is None else torch.tanh(found / how.softcap) * how.softcap
    found = found if how.bias is None else found + how.bias
    mask = torch.ones(LENGTH, LENGTH).tril().bool() if how.mask is None else how.mask
    found = found.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else found + mask
    weights = found.exp()
    below = weights.sum(-1, keepdim=True) + (0 if how.sinks is None else how.sinks.exp()[:, None, None])
    return (weights / below @ value).transpose(1, 2), weights / below


@pytest.mark.parametrize("how", SCORES.values(), ids=SCORES)
def test_blocks(how: ScoreTerms, monkeypatch: pytest.MonkeyPatch) -> None:
    """Grouped heads: output, probabilities and gradients; without gradients, few queries of a text at a time."""
    monkeypatch.setattr(blocks, "BLOCK", 32 * 4 * LENGTH)
    given = [each.requires_grad_() for each in tensors(width=5)]
    output, wanted = by_hand(*given, how)
    sizes = []

    def see(block: Tensor, texts: slice, start: int) -> None:
        sizes.append(block.numel())
        torch.testing.assert_close(block, wanted[texts, :, start : start + block.shape[2], : block.shape[3]])

    found = attend(*given, how, see)
    with torch.no_grad():
        torch.testing.assert_close(attend(*given, how, see), output)
    assert sizes[0] > blocks.BLOCK >= max(sizes[1:]) and len(sizes) == (11 if how.causal else 15)
    torch.testing.assert_close(found, output)
    weights = torch.randn_like(output)
    for got, one in zip(*(torch.autograd.grad((each * weights).sum(), given) for each in (found, output)), strict=True):
        torch.testing.assert_close(got, one)


def test_chosen_keys() -> None:
    """Those that an indexer chose, as far as a mask of numbers shows them."""
    mask = torch.zeros(1, 1, 2, 3).masked_fill(torch.ones(2, 3).triu(1).bool(), torch.finfo(torch.float32).min)
    shown = mask_of_chosen_keys(mask, torch.tensor([[[0, 2], [1, 1]]]), 3)
    assert shown.tolist() == [[[[True, False, False], [False, True, False]]]]


def test_every_attention_must_show(base: Base) -> None:
    """That of a layer that runs twice, twice; not of those that have none."""
    kinds = [*["full_attention"] * 3, "linear_attention", "mamba"]
    cases: list[tuple[dict[str, Any], int]] = [
        ({"layer_types": kinds}, 3), ({"layers_block_type": ["hybrid", *kinds]}, 4),
        ({"layer_types": ["mamba"], "num_hidden_layers": 4}, 4),
    ]  # fmt: skip
    for (name, shown), (config, layers) in product((("reba mean", 3), ("reba inter", 4)), cases):
        model: Any = made(base("llama"), name)
        vars(model[0].config).update(config)
        says = f"of {layers} layers, but {shown} showed"
        with nullcontext() if layers == 3 else pytest.raises(ValueError, match=says):
            encoded(model)


def test_attention_that_is_observed(base: Base, caplog: pytest.LogCaptureFixture) -> None:
    """It is said once; a layer whose hook is lost is missed."""
    model: Any = build(base("bloom"))
    assert torch.equal(encoded(model), encoded(model)) and caplog.text.count("eager attention is observed") == 1
    model[0].model.h[0].self_attention._forward_hooks.clear()
    with pytest.raises(ValueError, match="2 layers, but 1 showed"):
        encoded(model)


def test_what_few_models_ask_for() -> None:
    """More keys than queries, dropout in 16 bits, no scale, biases of positions."""
    (query, key, value), how = tensors(), ScoreTerms(causal=True)
    torch.testing.assert_close(attend(query[:, :, 2:], key, value, how), attend(query, key, value, how)[:, 2:])
    seen: list[Tensor] = []
    half = attend(*tensors(torch.bfloat16), how._replace(dropout=1.0), lambda block, *_: seen.append(block))
    assert seen[0].dtype == torch.float32 and half.dtype == torch.bfloat16 and not half.any()
    given = (torch.nn.Module(), *torch.randn(3, 3, 2, 4, 16), None)
    assert torch.equal(*(attention(*given, softcap=2.0, scaling=each)[0] for each in (None, 0.25)))
    bias = torch.randn(1, 2, 4, 4)
    mask = bias.masked_fill(torch.ones(4, 4).triu(1).bool(), -torch.inf).expand(3, -1, -1, -1)
    torch.testing.assert_close(attention(*given, position_bias=bias)[0], attention(*given[:-1], mask)[0])


def test_what_layers_may_not_pass(base: Base) -> None:
    state = ForwardPass(None, {"spans": [], "attention_mask": torch.ones(2, 4), "copy_ids": None})
    LayerMasks(made(base("llama"), "mask0")[0]).before_layers(state)
    state.attention_reader = object()
    for says, index, keys, options in (
        ("'sinks'", 0, 4, {"sinks": 1}), ("'block_indices'", 0, 4, {"block_indices": 1}), ("more keys", 0, 5, {}),
        ("by an indexer", 0, 4, {"indices": torch.zeros(2, 4, 1)}), ("mask of shape", 1, 5, {}),
        *((f"layer_idx={index}", index, 4, {}) for index in (None, -1, 3)),
    ):  # fmt: skip
        module: Any = SimpleNamespace(layer_idx=index)
        query, key, mask = torch.zeros(2, 2, 4, 8), torch.zeros(2, 2, keys, 8), torch.ones(2, 1, 4, keys).bool()
        with running(state), pytest.raises(ValueError, match=says):
            attention(module, query, key, key, mask, **options)  # type: ignore[arg-type]


class Largest(TorchDispatchMode):
    """The most numbers that one tensor made inside the ``with`` block holds."""

    numbers = 0

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operator(*args, **(kwargs or {}))
        for each in filter(torch.is_tensor, tree_leaves(result)):
            self.numbers = max(self.numbers, each.untyped_storage().nbytes() // each.itemsize)
        return result


@pytest.mark.parametrize(
    "name", slow_but(["reba mean", "reba mask0", "authors mean", "mask0", "inter"], "reba mean", "mask0")
)
def test_no_matrix_of_all_heads(base: Base, name: str) -> None:
    model: Any = made(base("llama"), name)
    model[0].tokenizer.model_max_length = 2000
    model[0].config.max_position_embeddings = 2000
    features = features_of(model, ["The river runs past the old mill. " * 200])
    length = features["input_ids"].shape[1]
    with torch.inference_mode(), Largest() as largest:
        model(features)
    assert length > 1900 and largest.numbers < 3 * length**2, "of four heads"


@pytest.mark.parametrize("name", PIPELINES)
def test_gradients(base: Base, name: str) -> None:
    """Along one direction, against differences; of gpt2, which computes in float64 throughout."""
    model = made(base("gpt2"), name, dtype="float64")
    features = features_of(model, TEXTS)
    found = gradients(model, features)
    torch.manual_seed(0)
    aim = torch.randn(len(TEXTS), model.get_embedding_dimension(), dtype=torch.float64)
    direction = {key: torch.randn_like(each) * each.detach().abs().mean() for key, each in model.named_parameters()}
    values = []
    with torch.no_grad():
        for step in (1e-6, -2e-6):
            for key, each in model.named_parameters():
                each.add_(step * direction[key])
            values.append(float((model(dict(features))["sentence_embedding"] * aim).sum()))
    slope = sum(float((found[key] * direction[key]).sum()) for key in found)
    assert slope == pytest.approx((values[0] - values[1]) / 2e-6, rel=1e-4)


@pytest.mark.parametrize("name", ["reba last", "reba mean", "authors mean", "mask0", "reba mask0", "layers"])
@pytest.mark.parametrize("of", ["llama", "gpt2"])
def test_checkpointing(base: Base, of: str, name: str) -> None:
    """A layer that runs once more finds the pass that it belongs to."""
    model: Any = made(base(of), name).train()
    features = features_of(model, TEXTS)
    wanted = gradients(model, features)
    model[0].model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for _ in range(2):
        assert_gradients(gradients(model, features), wanted)
    found = [getattr(each, "_gradient_checkpointing_func", None) for each in model.modules()]
    assert {type(each.checkpoint) for each in found if isinstance(each, CheckpointInPass)} == {partial}


def test_nothing_is_left_of_an_error(base: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    model = made(base("llama"), "reba inter")
    wanted = encoded(model)
    with monkeypatch.context() as patch:
        patch.setattr(BackwardAttention, "update_maxima", lambda *given, **options: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            encoded(model)
    assert current_pass() is None and torch.equal(encoded(model), wanted)


def ahead(self: Any, query: Any, key: Any, value: Any, scores: Any, looks_ahead: bool) -> Any:
    everything = torch.ones(1, 1, query.shape[2], key.shape[2], dtype=torch.bool)
    return ATTEND(self, query, key, value, scores._replace(causal=False, mask=everything), looks_ahead)


@pytest.mark.parametrize(
    ("attend", "says"), [(lambda *given: ATTEND(*given) * 1.1, "hidden states change by"), (ahead, "looks both ways")]
)
def test_capturing_only_observes(monkeypatch: pytest.MonkeyPatch, attend: Any, says: str) -> None:
    """A base whose captured attention is another than its own, or that looks both ways, is refused."""
    monkeypatch.setattr(BackwardAttention, "attend", attend)
    with pytest.raises(ValueError, match=says):
        build("mini", "reba")


def test_an_encoder(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a baseline it is embedded, if it is told of padding; ReBA refuses layers like its own, later too."""
    families.save("bert", tmp_path, decoder=False)
    build(str(tmp_path), "classical", pooling="mean")
    for module in (model := build("mini", "reba")).modules():
        module.is_causal = False
    with pytest.raises(ValueError, match="looks both ways"):
        model.encode("Cats sleep.")

    def blind(self: Any, features: dict[str, Any], **options: Any) -> Any:
        return FORWARD(self, {**features, "attention_mask": torch.ones_like(features["attention_mask"])}, **options)

    monkeypatch.setattr(RepeatTransformer, "forward", blind)
    with pytest.raises(ValueError, match="when a text is padded"):
        build(str(tmp_path), "classical", pooling="mean")
