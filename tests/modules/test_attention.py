"""The attention function and the hooks: against transformers' own attention, entry by entry."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import ARCHITECTURES, EXTRA
from reference import symmetrized_max
from stubs import EITHER, EVERYTHING, HOOKED, Layers, Seen, assert_whole_matrix, batch, fake_gpu, new_pass, run
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, AutoConfig, AutoModel

from st_reba import DecoderTransformer
from st_reba.modules import attention, scores
from st_reba.modules.attention import ATTENTION_NAME, attend, switch_on
from st_reba.modules.capture import BackwardAttention, Capture
from st_reba.modules.kinds import KINDS, PassMasks
from st_reba.modules.stages import running

Base = Callable[..., str]
CPU = torch.device("cpu")


@pytest.mark.parametrize(
    "name", [each for each in (*ARCHITECTURES, *EXTRA, "mini", "stories260K") if each not in HOOKED]
)
def test_whole_matrix(base: Base, name: str) -> None:
    model = assert_whole_matrix(base(name))
    assert name in EITHER or model.config._attn_implementation == ATTENTION_NAME


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


HEADS, GROUPS, LENGTH, WIDTH = 6, 2, 23, 8
PLACES = [(1, 20, 23), (0, 19, 19)]


def by_hand(given: list[Tensor], visible: Tensor, **extra: Tensor | float) -> tuple[Tensor, Tensor]:
    """Probabilities [B, H, T, T] and output [B, T, H, D'], every number by itself."""
    query, key, value = given
    batch, heads, length = query.shape[:3]
    probabilities = torch.zeros(batch, heads, length, length, dtype=torch.float64)
    for b, h, q in torch.cartesian_prod(*(torch.arange(n) for n in (batch, heads, length))).tolist():
        row = key[b, h // (heads // key.shape[1])] @ query[b, h, q] * extra.get("scaling", WIDTH**-0.5)
        if "softcap" in extra:
            row = torch.tanh(row / extra["softcap"]) * extra["softcap"]
        if "position_bias" in extra:
            row = row + extra["position_bias"][0, h, q]
        row = row.masked_fill(~visible[b, q], -torch.inf).exp()
        sink = extra["s_aux"][h].exp() if "s_aux" in extra else 0
        probabilities[b, h, q] = row / (row.sum() + sink)
    repeated = value.repeat_interleave(heads // value.shape[1], dim=1)
    return probabilities, torch.einsum("bhqk,bhkd->bqhd", probabilities, repeated)


EXTRAS: dict[str, dict[str, Any]] = {
    "plain": {},
    "softcap": {"softcap": 1.5, "scaling": 0.3},
    "sinks": {"s_aux": normal(HEADS), "scaling": 0.3},
    "bias": {"position_bias": normal(1, HEADS, LENGTH, LENGTH), "scaling": 0.3},
}


@pytest.mark.parametrize("form", ["none", "boolean", "additive", "padded"])
@pytest.mark.parametrize("extra", EXTRAS)
@pytest.mark.parametrize("kind", KINDS)
def test_by_hand(monkeypatch: pytest.MonkeyPatch, kind: str, extra: str, form: str) -> None:
    """Each kind by each way (no mask, a window, padding), captured by rows, by blocks, and not at all."""
    query, key = 2 * normal(2, HEADS, LENGTH, WIDTH), 2 * normal(2, GROUPS, LENGTH, WIDTH, seed=1)
    given = [query, key, normal(2, GROUPS, LENGTH, 5, seed=2)]
    visible = torch.ones(2, 1, LENGTH, LENGTH, dtype=torch.bool).tril()
    places = PLACES if form == "padded" else [(1, 20, LENGTH)] * 2
    own = None
    if form in ("boolean", "additive"):
        visible = visible.triu(-7)
        own = visible[:1].expand(2, -1, -1, -1)
    if form == "additive":
        own = torch.zeros(visible.shape, dtype=torch.float64).masked_fill(~visible, torch.finfo(torch.float64).min)
    real = torch.arange(LENGTH) < torch.tensor([[length] for _, _, length in places])
    sees = KINDS[kind].sees(visible, real, 2)[:, 0]
    wanted, output = by_hand(given, sees, **EXTRAS[extra])
    module = nn.Module()
    module.num_key_value_groups = HEADS // GROUPS  # type: ignore[assignment]
    seen = Seen()
    seen.length = LENGTH
    for observer in (None, seen, BackwardAttention(EVERYTHING, places, LENGTH, CPU)):
        monkeypatch.setattr(scores, "BLOCK_NUMBERS", 2 * HEADS * LENGTH * 19)
        state = new_pass(places)
        state.observer = observer
        if kind != "forward" or form != "padded":
            state.kinds = Layers(PassMasks(state, 2), kind)
        with running(state):
            got, weights = attend(module, *given, own, **EXTRAS[extra])
        assert weights is None and all(bool(flag) for flag, _ in state.doubts)
        torch.testing.assert_close(got[real], output[real])
        if observer is seen:
            torch.testing.assert_close(seen.layer(0).transpose(1, 2)[real], wanted.transpose(1, 2)[real])
        elif observer is not None:
            assert observer.layers == 1
            for row, (first, count, length) in enumerate(places):
                fused = symmetrized_max(wanted[row, None, :, :length, :length])[first : first + count]
                matrix = observer.matrix()[row, :count, :length].double()
                torch.testing.assert_close(matrix, fused, atol=1e-6, rtol=0)


def test_nothing_is_captured_outside(base: Base) -> None:
    """A backbone that is used directly runs as ever, and a finished observer takes nothing more."""
    model = AutoModel.from_pretrained(base("llama"))
    ids, places = batch([[5, 6, 7, 8]])
    seen = Seen()
    with torch.no_grad():
        inside, _ = run(model, ids, places, seen)
        outside = model(ids).last_hidden_state
    assert seen.layers == 2
    torch.testing.assert_close(inside, outside)


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss", "bloom"])
def test_learning(base: Base, name: str) -> None:
    """With weights to learn the same rows have a gradient; without any they are computed as ever."""
    model = AutoModel.from_pretrained(base(name)).eval()
    given = batch([[5, 6, 7, 8, 9, 10, 11], [5, 6, 7, 8]])
    learnt = run(model, *given, EVERYTHING)[1]["backward_attention"]
    learnt.sum().backward()
    assert all(bool(each.grad.any()) for name, each in model.named_parameters() if "q_proj.weight" in name)
    model.requires_grad_(False)
    fast = run(model, *given, EVERYTHING)[1]["backward_attention"]
    assert learnt.requires_grad and not fast.requires_grad
    torch.testing.assert_close(learnt.detach(), fast, atol=5e-6, rtol=0)


def test_masks_are_made_once(base: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a pass, and once for all texts where it is the same for all."""
    model, made = AutoModel.from_pretrained(base("mistral")), []
    monkeypatch.setattr(attention, "additive", lambda *given: made.append(scores.additive(*given)) or made[-1])
    ids, places = batch([[5, 6, 7, 8, 9, 10, 11]] * 3)
    with torch.no_grad():
        _, added = run(model, ids, places, EVERYTHING)
        alone = run(model, ids[:1], places[:1], EVERYTHING)[1]
    assert [mask.shape for mask in made] == [(1, 1, 7, 7)] * 2
    torch.testing.assert_close(added["backward_attention"][1:2], alone["backward_attention"])


# What is refused


SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}


@pytest.mark.parametrize(
    ("model_type", "sizes", "error"),
    [
        ("bert", SIZES, "looks both ways"),
        # These neither call the interface nor say that they look both ways.
        ("rembert", SIZES, "looks both ways"),
        ("deberta-v2", SIZES, "looks both ways|attention of 0 of"),
        ("mpnet", SIZES, "looks both ways"),
        (
            "mamba",
            {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
            r"attention of 0 of its [02].*classical",
        ),
    ],
)
def test_backbones_without_backward_attention(model_type: str, sizes: dict[str, int], error: str) -> None:
    torch.manual_seed(0)
    model = AutoModel.from_config(AutoConfig.for_model(model_type, vocab_size=99, pad_token_id=0, **sizes)).eval()
    ids, places = batch([[5, 6, 7, 8, 9], [5, 6, 7]])
    with torch.no_grad(), pytest.raises(ValueError, match=error):
        run(model, ids, places, EVERYTHING)


def test_partly_captured_backbone(base: Base) -> None:
    """A layer that never calls the function would change the vectors silently."""
    model = AutoModel.from_pretrained(base("llama"))
    model.config.num_hidden_layers += 1
    for observer in (EVERYTHING, Seen()):
        with torch.no_grad(), pytest.raises(ValueError, match="2 of its 3"):
            run(model, *batch([[5, 6]]), observer)


def test_arguments() -> None:
    query, key = torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 3, 4)
    with pytest.raises(ValueError, match="'block_indices'"):
        attend(nn.Module(), query, query, query, None, block_indices=query)
    state = new_pass([(0, 2, 2)])
    state.observer = BackwardAttention(EVERYTHING, state.places, 2, CPU)
    with running(state), pytest.raises(ValueError, match="more keys than tokens"):
        attend(nn.Module(), query, key, key, torch.zeros(1, 1, 2, 3))


def test_indexer() -> None:
    """Keys that it chose are all there is; no layer with one can look otherwise."""
    given, indices = (
        [normal(1, 2, 4, 8, seed=seed) for seed in range(3)],
        torch.tensor([[[0, 0], [0, 1], [0, 2], [1, 3]]]),
    )
    visible = torch.zeros(1, 4, 4, dtype=torch.bool).scatter(2, indices, True)
    got, _ = attend(nn.Module(), *given, None, indices=indices)
    torch.testing.assert_close(got, by_hand(given, visible)[1])
    state = new_pass([(0, 4, 4)])
    state.kinds = Layers(PassMasks(state, 1), "bidirectional")
    with running(state), pytest.raises(ValueError, match="indexer that looks back"):
        attend(nn.Module(), *given, None, indices=indices)


# How a backbone is switched


def test_switching(base: Base, caplog: pytest.LogCaptureFixture) -> None:
    """The private attribute that tells whether a backbone calls the interface still does so."""
    llama = AutoModel.from_pretrained(base("llama"))
    assert switch_on(llama) and switch_on(llama) and not caplog.records
    assert AttentionInterface()[ATTENTION_NAME] is attend and ATTENTION_NAME in AttentionMaskInterface()


def test_soft_cap(base: Base, tmp_path: Path) -> None:
    """What transformers' SDPA may forget is computed here, and the code for it travels with such a backbone alone."""
    for name in ("gemma2", "llama"):
        model = DecoderTransformer(base(name))
        assert (model.backbone.attention == ATTENTION_NAME) == (name == "gemma2")
        model.save(str(tmp_path / name))
        assert (tmp_path / name / "st_reba_attention.py").is_file() == (name == "gemma2")


# Without numbers


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt2", "bloom"])
@pytest.mark.parametrize("what", ["last", "copy", "plan"])
def test_on_a_gpu_without_numbers(name: str, what: str) -> None:
    """Nothing between the first layer and the last waits for the device, nor lies on another one."""
    from architectures import _MAIN

    if what == "plan" and name in HOOKED:
        pytest.skip("what layers see cannot be changed there")
    model_type, settings = _MAIN[name]
    config = AutoConfig.for_model(model_type, **settings, vocab_size=64, pad_token_id=None, eos_token_id=None)
    places = [(1, 5, 12), (1, 3, 8)]
    with fake_gpu() as device, torch.no_grad():
        with torch.device(device):
            model = AutoModel.from_config(config).eval()
        ids = torch.zeros(2, 12, dtype=torch.long, device=device)
        capture = Capture("last" if what == "last" else "copy")
        if what == "plan":
            capture = Planned(capture.rows)
        hidden, added = run(model, ids, places, capture)
        rows = 1 if what == "last" else 5
        assert added["backward_attention"].shape == (2, rows, 12) and str(hidden.device) == device


class Planned(Capture):
    def begin(self, run: Any) -> None:
        super().begin(run)
        run.kinds = Layers(PassMasks(run, 1), "bidirectional", "nosink-forward", "rerouted")


def test_padding_that_is_not_there(base: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host knows it, and reads no mask to find out."""
    model = AutoModel.from_pretrained(base("llama"))
    switch_on(model)
    given: list[Any] = []
    made = attention.sdpa_mask
    monkeypatch.setattr(
        attention, "sdpa_mask", lambda **options: given.append(options["attention_mask"]) or made(**options)
    )
    with torch.no_grad():
        run(model, *batch([[5, 6, 7], [5, 6, 8]]))
        run(model, *batch([[5, 6, 7], [5, 6]]))
    assert given[0] is None and given[1] is not None
