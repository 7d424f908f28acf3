"""The attention function and the hooks: against transformers' own attention, entry by entry."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from architectures import ARCHITECTURES, EXTRA
from oracle import TEXTS, folder, loaded
from reference import symmetrized_max
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PreTrainedModel, PreTrainedTokenizerFast

import st_reba
from st_reba.modules import blocked
from st_reba.modules.attention import ATTENTION_NAME, attend, hook_in, switch_on
from st_reba.modules.capture import BackwardAttention, CaptureSpec
from st_reba.modules.state import ForwardState, running

Base = Callable[..., str]
HOOKED = {"bloom", "falcon", "falcon_alibi", "codegen", "gpt_neo", "gptj", "mpt"}


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", [*ARCHITECTURES, *EXTRA, "mini", "stories260K"])
def test_whole_matrix(base: Base, name: str, side: str) -> None:
    """All of A^new, in both triangles, for a padded batch, against output_attentions=True on each text alone."""
    path = base(name)
    eager, tokenizer = loaded(path)
    sequences = [tokenizer(text)["input_ids"] for text in TEXTS]
    length = max(map(len, sequences))
    ids, mask = torch.zeros(len(TEXTS), length, dtype=torch.long), torch.zeros(len(TEXTS), length, dtype=torch.long)
    places = []
    for row, sequence in enumerate(sequences):
        start = length - len(sequence) if side == "left" else 0
        places.append(slice(start, start + len(sequence)))
        ids[row, places[row]] = torch.tensor(sequence)
        mask[row, places[row]] = 1
    transformer = st_reba.RepeatTransformer(folder(path))
    transformer.model.float()
    # Every real position an anchor, every column kept.
    transformer.capture = CaptureSpec("copy", both=True)
    assert (transformer.config._attn_implementation == ATTENTION_NAME) == (name not in HOOKED)
    with torch.no_grad():
        output = transformer.eval()({"input_ids": ids, "attention_mask": mask, "copy_ids": mask})
    for row, sequence in enumerate(sequences):
        with torch.no_grad():
            wanted = eager(
                torch.tensor([sequence]), attention_mask=torch.ones(1, len(sequence)), output_attentions=True
            )
        fused = symmetrized_max(torch.stack([layer[0] for layer in wanted.attentions]).double())
        got = output["backward_attention"][row, : len(sequence), places[row]].double()
        torch.testing.assert_close(got, fused, atol=1e-5, rtol=0)
        assert not output["backward_attention"][row, len(sequence) :].any()


@pytest.mark.parametrize("mask", ["none", "boolean", "additive"])
@pytest.mark.parametrize("extra", ["plain", "softcap", "sinks", "bias"])
def test_blocks(monkeypatch: pytest.MonkeyPatch, mask: str, extra: str) -> None:
    """Any block size gives what one softmax over the whole matrix gives, in output and in capture."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    batch, heads, groups, length, width = 2, 6, 2, 37, 8
    query, key = 2 * normal(batch, heads, length, width), 2 * normal(batch, groups, length, width)
    value = normal(batch, groups, length, 5)
    visible = torch.ones(length, length, dtype=torch.bool).tril()[None, None].repeat(batch, 1, 1, 1)
    if mask != "none":
        visible = visible & (torch.arange(length) >= torch.tensor([0, 4])[:, None, None, None])
    arguments = {
        "plain": {},
        "softcap": {"softcap": 1.5},
        "sinks": {"s_aux": normal(heads)},
        "bias": {"position_bias": normal(1, heads, length, length)},
    }[extra]
    given = {
        "none": None,
        "boolean": visible,
        "additive": torch.zeros(visible.shape, dtype=torch.float64).masked_fill(~visible, -1e30),
    }[mask]

    scores = torch.einsum("bhqd,bhkd->bhqk", query, key.repeat_interleave(3, dim=1)) * 0.3
    if "softcap" in arguments:
        scores = torch.tanh(scores / 1.5) * 1.5
    if "position_bias" in arguments:
        scores = scores + arguments["position_bias"]
    exponent = scores.masked_fill(~visible, -torch.inf).exp()
    total = exponent.sum(-1, keepdim=True)
    if "s_aux" in arguments:
        total = total + arguments["s_aux"].exp()[None, :, None, None]
    probabilities = torch.nan_to_num(exponent / total)
    wanted = torch.einsum("bhqk,bhkd->bqhd", probabilities, value.repeat_interleave(3, dim=1))
    real = visible[:, 0].diagonal(dim1=1, dim2=2)

    for numbers in (1, batch * heads * length * 19, 1 << 30):
        monkeypatch.setattr(blocked, "BLOCK_NUMBERS", numbers)
        anchors = BackwardAttention(*CaptureSpec("copy").anchors(real.long(), real.long()), length)
        with running(ForwardState(real, capture=anchors)):
            got, weights = attend(nn.Module(), query, key, value, given, scaling=0.3, **arguments)
        assert weights is None and anchors.layers == 1
        torch.testing.assert_close(got[real], wanted[real])
        for row in range(batch):
            fused = symmetrized_max(probabilities[row][None]).triu()[real[row]][:, real[row]]
            matrix = anchors.matrix()[row, : int(real[row].sum())][:, real[row]].double()
            torch.testing.assert_close(matrix, fused, atol=1e-6, rtol=0)


def test_nothing_is_captured_outside() -> None:
    """A backbone that is used directly runs without a capture, and a finished one takes nothing more."""
    model = st_reba.build("mini")
    features = model[0].preprocess(["你好"])
    anchors = BackwardAttention(torch.tensor([1]), torch.tensor([1]), features["input_ids"].shape[1])
    with running(ForwardState(features["attention_mask"], capture=anchors)), torch.no_grad():
        inside = model[0].model(features["input_ids"]).last_hidden_state
    assert anchors.layers == 6
    with torch.no_grad():
        outside = model[0].model(features["input_ids"]).last_hidden_state
    assert anchors.layers == 6
    torch.testing.assert_close(inside, outside)


def test_backbone_that_looks_ahead_is_refused(tmp_path: object, base: Base) -> None:
    """BERT serves as a classical baseline, but has no backward attention."""
    path = _saved("bert", tmp_path, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48)
    model = st_reba.build(path, "classical", pooling="cls", normalize=False)
    features = model[0].preprocess(["天气"])
    with torch.no_grad():
        wanted = AutoModel.from_pretrained(path).eval()(features["input_ids"]).last_hidden_state[0, 0]
    torch.testing.assert_close(torch.as_tensor(model.encode("天气")), wanted)
    with pytest.raises(ValueError, match="looks both ways"):
        st_reba.build(path)


@pytest.mark.parametrize("side", ["left", "right"])
def test_encoder_with_positions_of_its_own(tmp_path: object, side: str) -> None:
    """RoBERTa counts positions from its padding id on; a text's vector is the same in any batch all the same."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    path = _saved("roberta", tmp_path, **sizes)
    model = st_reba.build(path, "classical", pooling="mean", normalize=False, padding_side=side)
    alone = torch.stack([torch.as_tensor(model.encode(text)) for text in TEXTS])
    torch.testing.assert_close(torch.as_tensor(model.encode(list(TEXTS))), alone, atol=1e-5, rtol=0)
    features = model[0].preprocess(["天气"])
    with torch.no_grad():
        wanted = AutoModel.from_pretrained(path).eval()(features["input_ids"]).last_hidden_state[0, 1:-1].mean(0)
    torch.testing.assert_close(torch.as_tensor(model.encode("天气")), wanted)


@pytest.mark.parametrize("model_type", ["rembert", "deberta-v2", "mpnet"])
@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_older_encoders_are_refused(tmp_path: object, model_type: str, pooling: str) -> None:
    """Encoders that neither call the interface nor say that they look both ways: by what they do."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    path = _saved(model_type, tmp_path, **sizes)
    with pytest.raises(ValueError, match="looks both ways"):
        st_reba.build(path, pooling=pooling)
    transformer = st_reba.RepeatTransformer(path)
    transformer.capture = CaptureSpec("copy")
    assert not transformer.takes_left_padding
    with torch.no_grad(), pytest.raises(ValueError, match="looks both ways|attention of 0 of"):
        transformer.eval()(transformer.preprocess(["今天天气很好"]))


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss", "gpt2", "bloom"])
def test_autocast(base: Base, name: str) -> None:
    """Under autocast queries and scores differ in type."""
    model = st_reba.build(base(name))
    wanted = model.encode(list(TEXTS), convert_to_tensor=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = model.encode(list(TEXTS), convert_to_tensor=True)
    assert (1 - torch.cosine_similarity(got.float(), wanted)).max() < 1e-2


def test_backbone_without_attention_is_refused(tmp_path: object) -> None:
    path = _saved("mamba", tmp_path, hidden_size=32, num_hidden_layers=2, state_size=4)
    with pytest.raises(ValueError, match="attention of 0 of its [02] attention layers.*classical"):
        st_reba.build(path)


def test_partly_captured_backbone_is_refused(base: Base) -> None:
    """A layer that never calls the function would change the vectors silently."""
    model = st_reba.build(base("llama"))
    model[0].config.num_hidden_layers += 1
    with pytest.raises(ValueError, match="2 of its 3"):
        model.encode("天气")


def test_unknown_argument_is_refused() -> None:
    query = torch.zeros(1, 1, 2, 4)
    with pytest.raises(ValueError, match="'block_indices'"):
        attend(nn.Module(), query, query, query, None, block_indices=query)


def test_learned_prefix_is_refused() -> None:
    query, key = torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 3, 4)
    anchors = BackwardAttention(torch.tensor([0]), torch.tensor([1]), 2)
    state = ForwardState(torch.ones(1, 2), capture=anchors)
    with running(state), pytest.raises(ValueError, match="more keys than tokens"):
        attend(nn.Module(), query, key, key, torch.zeros(1, 1, 2, 3))


def test_switching(base: Base, caplog: pytest.LogCaptureFixture) -> None:
    """The private attribute that tells whether a backbone calls the interface still does so."""
    llama = AutoModel.from_pretrained(base("llama"))
    assert switch_on(llama) and switch_on(llama) and not caplog.records
    bloom: PreTrainedModel = AutoModel.from_pretrained(base("bloom"))
    assert not switch_on(bloom) and bloom.config._attn_implementation != ATTENTION_NAME
    hook_in(bloom)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "BloomModel does not call transformers' attention interface" in caplog.text
    hooks = [len(module._forward_hooks) for module in bloom.modules()]
    hook_in(bloom)
    assert not switch_on(bloom)
    assert [len(module._forward_hooks) for module in bloom.modules()] == hooks


def _saved(model_type: str, folder: object, **settings: int) -> str:
    from architectures import TOKENIZERS

    tokenizer: PreTrainedTokenizerFast = TOKENIZERS["cls_sep"]()
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, vocab_size=512, **settings)
    AutoModel.from_config(config).save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
    return str(folder)
