"""Every method against the oracle: architectures × k × pooling × padding side × alone or in a batch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import reference
import torch
from architectures import ARCHITECTURES, EXTRA
from marks import slow_but
from oracle import TEXTS, assert_close, oracle
from transformers import AutoModel

import st_reba

# transformers' own eager attention counts ALiBi twice in Falcon, so that it has no oracle here: see below.
NAMES = [*(name for name in ARCHITECTURES if name != "falcon_alibi"), "mini", "stories260K"]
SIDES = ["left", "right"]
# Two copies on both sides, one and three on one each, in turn: every pair of architecture, side and copies is there.
CASES = [
    (name, side, k)
    for number, name in enumerate(NAMES)
    for k, sides in ((1, SIDES[number % 2 :][:1]), (2, SIDES), (3, SIDES[1 - number % 2 :][:1]))
    for side in sides
]
BF16_TO_FP32 = 1e-3
BF16_ALONE_TO_BATCHED = 1e-3
Base = Callable[..., str]


def encode(model: object, batched: bool) -> list[torch.Tensor]:
    """TEXTS as one batch of mixed lengths, or each alone."""
    if batched:
        return list(model.encode(list(TEXTS), batch_size=len(TEXTS), convert_to_tensor=True))
    return [model.encode(text, convert_to_tensor=True) for text in TEXTS]


@pytest.mark.parametrize(("name", "side", "k"), slow_but(CASES, "llama", "gpt2", rows=True))
def test_reba(base: Base, name: str, side: str, k: int) -> None:
    path = base(name)
    for pooling in ("last", "mean"):
        model = st_reba.build(path, repeats=k, pooling=pooling, padding_side=side, normalize=False)
        for batched in (True, False):
            for text, got in zip(TEXTS, encode(model, batched), strict=True):
                placed, hidden, fused = oracle(path, text, (None,) * k)
                assert_close(got, reference.reba(hidden, fused, placed, pooling))
    tokens = model.encode(list(TEXTS), output_value="token_embeddings")
    for text, got in zip(TEXTS, tokens, strict=True):
        placed, hidden, fused = oracle(path, text, (None,) * k)
        assert_close(got, reference.reba_tokens(hidden, fused, placed))


@pytest.mark.parametrize(("name", "side", "k"), slow_but(CASES, "llama", "gpt2", rows=True))
def test_echo(base: Base, name: str, side: str, k: int) -> None:
    path = base(name)
    for pooling in ("last", "mean"):
        model = st_reba.build(path, "echo", repeats=k, pooling=pooling, padding_side=side, normalize=False)
        for batched in (True, False):
            for text, got in zip(TEXTS, encode(model, batched), strict=True):
                placed, hidden, _ = oracle(path, text, (None,) * k)
                assert_close(got, reference.echo(hidden, placed, pooling))


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", slow_but([*NAMES, *EXTRA], "llama", "gpt2", "gemma2"))
def test_one_copy(base: Base, name: str, side: str) -> None:
    """Classical last, mean and cls, and PromptEOL, whose vector is the template's last position."""
    path = base(name)
    for pooling in ("last", "mean", "cls"):
        model = st_reba.build(path, "classical", pooling=pooling, padding_side=side, normalize=False)
        for text, got in zip(TEXTS, encode(model, True), strict=True):
            placed, hidden, _ = oracle(path, text, (None,))
            assert_close(got, reference.classical(hidden, placed, pooling))
    model = st_reba.build(path, "prompteol", padding_side=side, normalize=False)
    for text, got in zip(TEXTS, encode(model, True), strict=True):
        _, hidden, _ = oracle(path, text, ('This sentence: "', None, '" means in one word:"'))
        assert_close(got, reference.very_last(hidden))


@pytest.mark.parametrize("name", EXTRA)
def test_reba_elsewhere(base: Base, name: str) -> None:
    """Further architectures, by the interface or by hooks, once each."""
    path = base(name)
    model = st_reba.build(path, normalize=False, padding_side="left")
    for text, got in zip(TEXTS, encode(model, True), strict=True):
        placed, hidden, fused = oracle(path, text, (None, None))
        assert_close(got, reference.reba(hidden, fused, placed, "last"))


def test_disagreeing_attention_is_refused(base: Base) -> None:
    """Where transformers' eager attention is not the model's own, ReBA says so; Echo still runs the model's own."""
    path = base("falcon_alibi")
    hidden = []
    for implementation in ("sdpa", "eager"):
        model = AutoModel.from_pretrained(path, attn_implementation=implementation).eval()
        ids = torch.arange(5, 25)[None]
        with torch.no_grad():
            hidden.append(model(ids, attention_mask=torch.ones_like(ids)).last_hidden_state)
    if torch.allclose(*hidden, atol=1e-4):
        st_reba.build(path)
    else:
        with pytest.raises(ValueError, match="hidden states change by .*method='echo'"):
            st_reba.build(path)
    model = AutoModel.from_pretrained(path).eval()
    echo = st_reba.build(path, "echo", normalize=False)
    features = echo[0].preprocess(["他在银行"])
    with torch.no_grad():
        wanted = model(features["input_ids"], attention_mask=features["attention_mask"]).last_hidden_state[0, -1]
    assert_close(echo.encode("他在银行"), wanted.double())


@pytest.mark.parametrize("tokenizer", ["plain", "bos", "bos_eos", "cls_sep", "no_pad_no_eos", "chat"])
@pytest.mark.parametrize("name", slow_but(["gpt2", "llama", "bloom"], "llama"))
def test_published(base: Base, name: str, tokenizer: str) -> None:
    """What the ReBA authors' code computes: special tokens count, and rows look both ways."""
    path = base(name, tokenizer)
    for side in SIDES:
        last = st_reba.build(path, variant="published", padding_side=side, normalize=False)
        mean = st_reba.build(path, variant="published", pooling="mean", padding_side=side, normalize=False)
        for text, by_last, by_mean in zip(TEXTS, encode(last, True), encode(mean, True), strict=True):
            _, hidden, fused = oracle(path, text, (None, None))
            assert_close(by_last, reference.published_last(hidden, fused))
            assert_close(by_mean, reference.published_mean(hidden, fused))


@pytest.mark.parametrize("tokenizer", ["plain", "bos_eos", "cls_sep"])
@pytest.mark.parametrize("options", [{"include_special": True}, {"normalize_weights": True}])
def test_reba_options(base: Base, tokenizer: str, options: dict[str, bool]) -> None:
    path = base("qwen3", tokenizer)
    for pooling in ("last", "mean"):
        for side in SIDES:
            model = st_reba.build(path, pooling=pooling, padding_side=side, normalize=False, **options)
            for text, got in zip(TEXTS, encode(model, True), strict=True):
                placed, hidden, fused = oracle(path, text, (None, None))
                assert_close(got, reference.reba(hidden, fused, placed, pooling, **options))


@pytest.mark.parametrize("tokenizer", ["plain", "bos_eos", "cls_sep"])
@pytest.mark.parametrize("span", ["last_copy", "repeats", "last_copy_and_end"])
def test_echo_spans(base: Base, tokenizer: str, span: str) -> None:
    path = base("llama", tokenizer)
    for side in SIDES:
        model = st_reba.build(path, "echo", repeats=3, pooling="mean", span=span, padding_side=side, normalize=False)
        for text, got in zip(TEXTS, encode(model, True), strict=True):
            placed, hidden, _ = oracle(path, text, (None, None, None))
            assert_close(got, reference.echo(hidden, placed, "mean", span))


def test_span_takes_special_tokens_but_no_template_words(base: Base) -> None:
    path = base("llama", "bos_eos")
    pieces = ("A ", None, " B ", None, " C")
    for side in SIDES:
        options = {"template": "A {text} B {text} C", "span": "last_copy_and_end", "padding_side": side}
        model = st_reba.build(path, "echo", pooling="mean", normalize=False, **options)
        for text, got in zip(TEXTS, encode(model, True), strict=True):
            placed, hidden, _ = oracle(path, text, pieces)
            assert_close(got, reference.echo(hidden, placed, "mean", "last_copy_and_end"))


def test_classical_last_with_eos(base: Base) -> None:
    path = base("llama", "bos_eos")
    model = st_reba.build(path, "classical", span="end", normalize=False)
    for text, got in zip(TEXTS, encode(model, True), strict=True):
        _, hidden, _ = oracle(path, text, (None,))
        assert_close(got, reference.very_last(hidden))


TEMPLATES: dict[str, tuple[str | None, ...]] = {
    "echo": ("Rewrite the following paragraph: ", None, ". The rewritten paragraph: ", None),
    "A {text} B {text} C {{}}": ("A ", None, " B ", None, " C {}"),
    "{text}{text} 又": (None, None, " 又"),
}


@pytest.mark.parametrize("template", TEMPLATES)
def test_templates(base: Base, template: str) -> None:
    """Template words are read but not pooled, for ReBA and Echo alike."""
    path = base("qwen2", "bos_eos")
    pieces = TEMPLATES[template]
    for side in SIDES:
        reba = st_reba.build(path, template=template, pooling="mean", padding_side=side, normalize=False)
        echo = st_reba.build(path, "echo", template=template, pooling="mean", padding_side=side, normalize=False)
        for text, by_reba, by_echo in zip(TEXTS, encode(reba, True), encode(echo, True), strict=True):
            placed, hidden, fused = oracle(path, text, pieces)
            assert_close(by_reba, reference.reba(hidden, fused, placed, "mean"))
            assert_close(by_echo, reference.echo(hidden, placed, "mean"))


def test_separator(base: Base) -> None:
    path = base("gpt2", "plain")
    model = st_reba.build(path, repeats=3, separator=" ", normalize=False)
    for text, got in zip(TEXTS, encode(model, True), strict=True):
        placed, hidden, fused = oracle(path, text, (None, " ", None, " ", None))
        assert_close(got, reference.reba(hidden, fused, placed, "last"))


@pytest.mark.parametrize("method", ["reba", "echo"])
@pytest.mark.parametrize("limit", [12, 25])
def test_cut(base: Base, method: str, limit: int, caplog: pytest.LogCaptureFixture) -> None:
    """Both copies are cut alike, with one warning; compute-matched input has half the content."""
    path = base("llama", "bos_eos")
    model = st_reba.build(path, method, max_seq_length=limit, normalize=False)
    vectors = encode(model, True)
    encode(model, False)
    for text, got in zip(TEXTS, vectors, strict=True):
        placed, hidden, fused = oracle(path, text, (None, None), limit)
        assert len(placed.ids) <= limit
        wanted = reference.reba(hidden, fused, placed) if method == "reba" else reference.echo(hidden, placed)
        assert_close(got, wanted)
    assert model[0].budget() == (limit - 2) // 2
    matched = st_reba.build(path, method, max_seq_length=limit, compute_matched=True)
    assert matched[0].budget() == (limit - 2) // 4


@pytest.mark.parametrize(
    "name", slow_but(["gpt2", "llama", "gemma2", "gpt_oss", "bloom", "mini", "stories260K"], "gpt_oss")
)
def test_bfloat16(base: Base, name: str) -> None:
    """bf16 keeps 8 bits of every number; the README states these bounds on 1 - cosine, measured on these models."""
    path = base(name)
    for method, pooling in (("reba", "last"), ("reba", "mean"), ("echo", "mean")):
        exact = st_reba.build(path, method, pooling=pooling).encode(list(TEXTS), convert_to_tensor=True)
        model = st_reba.build(path, method, pooling=pooling, dtype="bfloat16")
        assert model.dtype == torch.bfloat16
        together = torch.stack(encode(model, True)).float()
        alone = torch.stack(encode(model, False)).float()
        assert (1 - torch.cosine_similarity(exact, together)).max() <= BF16_TO_FP32
        assert (1 - torch.cosine_similarity(together, alone)).max() <= BF16_ALONE_TO_BATCHED
