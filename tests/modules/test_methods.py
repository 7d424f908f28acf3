"""Every method against the float64 oracle: architectures × copies × poolings, alone and in a batch of mixed lengths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import reference
import torch
from architectures import ARCHITECTURES, EXTRA
from marks import slow_but
from oracle import TEXTS, assert_close, oracle
from pipelines import PIPELINES, build, encoded, pipeline
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize
from torch import Tensor
from transformers import AutoModel

import st_reba
from st_reba.modules.pooling import ReBAPooling
from st_reba.modules.repeat import RepeatTransformer

Base = Callable[..., str]
# transformers' own eager attention counts ALiBi twice in Falcon, so that it has no oracle here: see below.
NAMES = [*(name for name in ARCHITECTURES if name != "falcon_alibi"), "mini", "stories260K"]
POOLINGS: Any = ("last", "mean")
BF16_TO_FP32 = 1e-3
BF16_ALONE_TO_BATCHED = 1e-3


def assert_all(got: Any, wanted: Callable[[str], Tensor], texts: tuple[str, ...] = TEXTS) -> None:
    for text, one in zip(texts, got, strict=True):
        assert_close(one, wanted(text))


@pytest.mark.parametrize(
    "name", slow_but([*NAMES, *EXTRA], "gpt2", "llama", "mistral", "gemma2", "gpt_oss", "bloom", "mini")
)
def test_architectures(base: Base, name: str) -> None:
    """Two copies and one, in every architecture, by the attention interface or by hooks."""
    path, twice, quoted = base(name), (None, None), ('This sentence: "', None, '" means in one word:"')
    for pooling in POOLINGS if name in NAMES else ("last",):

        def reba(text: str, pooling: Any = pooling) -> Tensor:
            placed, hidden, fused = oracle(path, text, twice)
            return reference.reba(hidden, fused, placed, pooling)

        def echo(text: str, pooling: Any = pooling) -> Tensor:
            placed, hidden, _ = oracle(path, text, twice)
            return reference.echo(hidden, placed, pooling)

        model = pipeline(path, "reba", pooling=pooling)
        assert_all(encoded(model), reba)
        assert_close(encoded(model, TEXTS[1:2])[0], reba(TEXTS[1]))
        assert_all(encoded(pipeline(path, "echo", pooling=pooling)), echo)
    for text, got in zip(TEXTS, model.encode(list(TEXTS), output_value="token_embeddings"), strict=True):
        placed, hidden, fused = oracle(path, text, twice)
        assert_close(got, reference.reba_tokens(hidden, fused, placed))
    for pooling in ("last", "mean", "cls"):
        for text, got in zip(TEXTS, encoded(pipeline(path, "classical", pooling=pooling)), strict=True):
            placed, hidden, _ = oracle(path, text, (None,))
            assert_close(got, reference.classical(hidden, placed, pooling))  # type: ignore[arg-type]
    assert_all(encoded(pipeline(path, "prompteol")), lambda text: reference.very_last(oracle(path, text, quoted)[1]))


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("name", ["gpt2", "gemma2", "bloom", "mini"])
def test_copies(base: Base, name: str, k: int) -> None:
    path, pieces = base(name), (None,) * k
    for pooling in POOLINGS:
        models = [pipeline(path, method, repeats=k, pooling=pooling) for method in ("reba", "echo")]
        for alone in (False, True):
            for text, by_reba, by_echo in zip(TEXTS, *(encoded(each, alone=alone) for each in models), strict=True):
                placed, hidden, fused = oracle(path, text, pieces)
                assert_close(by_reba, reference.reba(hidden, fused, placed, pooling))
                assert_close(by_echo, reference.echo(hidden, placed, pooling))
    for text, got in zip(TEXTS, models[0].encode(list(TEXTS), output_value="token_embeddings"), strict=True):
        placed, hidden, fused = oracle(path, text, pieces)
        assert_close(got, reference.reba_tokens(hidden, fused, placed))


@pytest.mark.parametrize(
    "name", ["reba-last", "reba-mean", "published-mean", "echo-end", "prompteol", "mask0", "chunked-mean"]
)
def test_modules_by_hand_are_what_build_makes(base: Base, name: str) -> None:
    """The tests' own pipelines, too, are bit for bit those of ``build``."""
    path, (method, fields, stages) = base("llama", "bos_eos"), PIPELINES[name]
    built = st_reba.build(path, method, stages=stages, device="cpu", dtype="float32", **fields)
    assert torch.equal(encoded(build(path, name)), encoded(built))
    if name == "reba-mean":
        modules = [RepeatTransformer(path, repeats=3), ReBAPooling(32, "mean"), Normalize()]
        assert torch.equal(encoded(SentenceTransformer(modules=modules, device="cpu")), encoded(built))


def test_disagreeing_attention_is_refused(base: Base) -> None:
    """Where transformers' eager attention is not the model's own, ReBA says so; Echo still runs the model's own."""
    path, ids = base("falcon_alibi"), torch.arange(5, 25)[None]
    models = [AutoModel.from_pretrained(path, attn_implementation=each).eval() for each in ("sdpa", "eager")]
    with torch.no_grad():
        hidden = [each(ids, attention_mask=torch.ones_like(ids)).last_hidden_state for each in models]
        assert not torch.allclose(*hidden, atol=1e-4), "the premise"
        for chunk in (None, 8):
            with pytest.raises(ValueError, match="hidden states change by .*method='echo'"):
                st_reba.build(path, chunk=chunk)
        echo = pipeline(path, "echo")
        features = echo.preprocess(["他在银行"])
        wanted = models[0](features["input_ids"], attention_mask=features["attention_mask"]).last_hidden_state[0, -1]
    assert_close(echo.encode("他在银行"), wanted.double())


@pytest.mark.parametrize("tokenizer", ["plain", "bos_eos", "cls_sep"])
@pytest.mark.parametrize("name", ["gpt2", "bloom"])
def test_published(base: Base, name: str, tokenizer: str) -> None:
    """What the ReBA authors' code computes: special tokens count, and rows look both ways."""
    path = base(name, tokenizer)
    for pooling, wanted in (("last", reference.published_last), ("mean", reference.published_mean)):
        got = encoded(pipeline(path, variant="published", pooling=pooling))
        assert_all(got, lambda text, wanted=wanted: wanted(*oracle(path, text, (None, None))[1:]))  # type: ignore[misc]


@pytest.mark.parametrize("tokenizer", ["plain", "bos_eos", "cls_sep"])
@pytest.mark.parametrize("options", [{"include_special": True}, {"normalize_weights": True}], ids=str)
def test_reba_options(base: Base, tokenizer: str, options: dict[str, bool]) -> None:
    path = base("qwen3", tokenizer)
    for pooling in POOLINGS:
        for text, got in zip(TEXTS, encoded(pipeline(path, pooling=pooling, **options)), strict=True):
            placed, hidden, fused = oracle(path, text, (None, None))
            assert_close(got, reference.reba(hidden, fused, placed, pooling, **options))


@pytest.mark.parametrize("tokenizer", ["plain", "bos_eos", "cls_sep"])
@pytest.mark.parametrize("span", ["last_copy", "repeats", "last_copy_and_end"])
def test_echo_spans(base: Base, tokenizer: str, span: Any) -> None:
    path = base("llama", tokenizer)
    for text, got in zip(TEXTS, encoded(pipeline(path, "echo", repeats=3, pooling="mean", span=span)), strict=True):
        placed, hidden, _ = oracle(path, text, (None, None, None))
        assert_close(got, reference.echo(hidden, placed, "mean", span))


def test_spans_beside_template_words(base: Base) -> None:
    """The end is special tokens but no template words; all is everything real."""
    path, template, pieces = base("llama", "bos_eos"), "A {text} B {text} C", ("A ", None, " B ", None, " C")
    ends, whole = (
        pipeline(path, "echo", template=template, pooling="mean", span=s) for s in ("last_copy_and_end", "all")
    )
    end = pipeline(path, "classical", span="end")
    for text, by_ends, by_all, by_end in zip(TEXTS, encoded(ends), encoded(whole), encoded(end), strict=True):
        placed, hidden, _ = oracle(path, text, pieces)
        assert_close(by_ends, reference.echo(hidden, placed, "mean", "last_copy_and_end"))
        assert_close(by_all, hidden.mean(dim=0))
        assert_close(by_end, reference.very_last(oracle(path, text, (None,))[1]))


TEMPLATES: dict[str, tuple[str | None, ...]] = {
    "echo": ("Rewrite the following paragraph: ", None, ". The rewritten paragraph: ", None),
    "A {text} B {text} C {{}}": ("A ", None, " B ", None, " C {}"),
    "{text}{text} 又": (None, None, " 又"),
    "{text} {text} {text}": (None, " ", None, " ", None),
}


@pytest.mark.parametrize("template", TEMPLATES)
def test_templates(base: Base, template: str) -> None:
    """Template words are read but not pooled, for ReBA and Echo alike."""
    path = base("qwen2", "bos_eos")
    models = [pipeline(path, method, template=template, pooling="mean") for method in ("reba", "echo")]
    for text, by_reba, by_echo in zip(TEXTS, *map(encoded, models), strict=True):
        placed, hidden, fused = oracle(path, text, TEMPLATES[template])
        assert_close(by_reba, reference.reba(hidden, fused, placed, "mean"))
        assert_close(by_echo, reference.echo(hidden, placed, "mean"))


@pytest.mark.parametrize(
    "name", slow_but(["gpt2", "llama", "gemma2", "gpt_oss", "bloom", "mini", "stories260K"], "gpt_oss")
)
def test_bfloat16(base: Base, name: str) -> None:
    """bf16 keeps 8 bits of every number; the README states these bounds on 1 - cosine, measured on these models."""
    path = base(name)
    for method, pooling in (("reba", "last"), ("reba", "mean"), ("echo", "mean")):
        exact = encoded(pipeline(path, method, pooling=pooling))
        model = pipeline(path, method, pooling=pooling, dtype="bfloat16")
        assert model.dtype == torch.bfloat16
        together, alone = encoded(model).float(), encoded(model, alone=True).float()
        assert (1 - torch.cosine_similarity(exact, together)).max() <= BF16_TO_FP32
        assert (1 - torch.cosine_similarity(together, alone)).max() <= BF16_ALONE_TO_BATCHED
