"""ReBA, whole and by pieces, Echo, classical and PromptEOL against the float64 oracle, in a batch of mixed lengths."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from itertools import product
from typing import Any

import pytest
import reference
import torch
from marks import Base
from oracle import TEXTS, assert_close, double, oracle
from pipelines import build, encoded, features_of
from reference import hidden_and_attention, symmetrized_max
from reference_chunked import chunked_pooled, chunked_tokens, cut
from sentence_transformers import SentenceTransformer
from transformers import AutoModel

from st_reba.modules import ChunkedReBAPooling, ReBAPooling, blocks, pieces

TWICE = (None, None)
POOLINGS: Any = ("last", "mean")
SPECIAL, NORMALIZED = {"include_special": True}, {"normalize_weights": True}
# Base and tokenizer, options of ReBA, parts of the input, and what the oracle calls the options. At the end families:
# windows alone, sinks, hooks in place of the attention interface, the embedded model.
CASES: list[tuple[tuple[str, str], dict[str, Any], tuple[str | None, ...], dict[str, bool]]] = [
    (("gpt2", "plain"), {"repeats": 1}, (None,), {}),
    (("llama", "bos_eos"), {"repeats": 3}, (None,) * 3, {}),
    (("gemma2", "cls_sep"), SPECIAL, TWICE, SPECIAL),
    (("gpt2", "plain"), NORMALIZED, TWICE, NORMALIZED),
    (("llama", "bos_eos"), {"template": "A {text} B {text} C {{}}"}, ("A ", None, " B ", None, " C {}"), {}),
    (("gemma2", "cls_sep"), {"template": "{text}{text} 又", **SPECIAL}, (*TWICE, " 又"), SPECIAL),
    *(((of, "bos"), {}, TWICE, {}) for of in ("gemma3_text", "gpt_oss", "bloom", "mini")),
]


@pytest.mark.parametrize(("of", "options", "parts", "as_called"), CASES, ids=str)
def test_reba(base: Base, of: Any, options: Any, parts: Any, as_called: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK", 1 << 13)  # of a few texts, and some of their queries
    path = base(*of)
    last, mean = (build(path, pooling=pooling, **options) for pooling in POOLINGS)
    tokens = mean.encode(list(TEXTS), output_value="token_embeddings", batch_size=9)
    for text, one, other, rows in zip(TEXTS, encoded(last), encoded(mean), tokens, strict=True):
        placed, hidden, fused = oracle(path, text, parts)
        wanted = reference.reba_tokens(hidden, fused, placed, **as_called)
        assert_close(one, wanted[-1])
        assert_close(other, wanted.mean(dim=0))
        assert_close(rows, wanted)


@pytest.mark.parametrize(("of", "tokenizer"), [("gpt2", "plain"), ("gpt_oss", "bos_eos"), ("bloom", "cls_sep")])
def test_authors(base: Base, of: str, tokenizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Special tokens count, and rows look both ways."""
    monkeypatch.setattr(blocks, "BLOCK", 1 << 13)
    path = base(of, tokenizer)
    for pooling, wanted in (("last", reference.published_last), ("mean", reference.published_mean)):
        model = build(path, implementation="authors", pooling=pooling)
        for text, got in zip(TEXTS, encoded(model), strict=True):
            assert_close(got, wanted(*oracle(path, text, TWICE)[1:]))


@pytest.mark.parametrize("tokenizer", ["plain", "bos_eos", "cls_sep"])
@pytest.mark.parametrize(
    ("pooled", "pooling"),
    [("last_copy", "last"), *((each, "mean") for each in ("last_copy", "repeats", "last_copy_and_end", "end", "all"))],
)
def test_echo(base: Base, tokenizer: str, pooled: Any, pooling: Any) -> None:
    """The end is special tokens but no template words."""
    path, parts = base("llama", tokenizer), ("A ", None, " B ", None, None, " C")
    model = build(path, "echo", template="A {text} B {text}{text} C", pooling=pooling, pooled=pooled)
    for text, got in zip(TEXTS, encoded(model), strict=True):
        placed, hidden, _ = oracle(path, text, parts)
        other = {"end": reference.very_last(hidden), "all": hidden.mean(dim=0)}
        assert_close(got, other[pooled] if pooled in other else reference.echo(hidden, placed, pooling, pooled))


def test_prompteol(base: Base) -> None:
    path, quoted = base("llama", "bos"), ('This sentence: "', None, '" means in one word:"')
    for text, got in zip(TEXTS, encoded(build(path, "prompteol")), strict=True):
        assert_close(got, reference.very_last(oracle(path, text, quoted)[1]))


@pytest.mark.parametrize("options", [{}, {"implementation": "authors"}], ids=str)
def test_pipelines_share_no_transformer(base: Base, options: dict[str, Any]) -> None:
    """The second pipeline's pooling asks for other rows; the first does not give a wrong vector."""
    model, other = build(base("llama"), **options), ReBAPooling(32, "mean")
    assert not other.include_special and not other.normalize_weights
    SentenceTransformer(modules=[model[0], other])
    with pytest.raises(ValueError, match="RepeatTransformer of its own"):
        model.encode("a")


def test_bfloat16(base: Base) -> None:
    """8 bits of every number: 1 − cosine to float32, and between alone and together, is below 1e-3."""
    for of, pooling in (("gpt_oss", "last"), ("llama", "mean"), ("mini", "mean")):
        exact = encoded(build(base(of), pooling=pooling))
        model = build(base(of), pooling=pooling, dtype="bfloat16")
        together, alone = encoded(model).float(), encoded(model, alone=True).float()
        assert model.dtype == torch.bfloat16
        assert (1 - torch.cosine_similarity(exact, together)).max() <= 1e-3
        assert (1 - torch.cosine_similarity(together, alone)).max() <= 1e-3


def test_attention_that_is_not_the_models_own_is_refused(base: Base) -> None:
    """Falcon's eager attention counts ALiBi twice: ReBA says so, Echo runs the model's own."""
    path, text = base("falcon_alibi"), ["他在银行"]
    with pytest.raises(ValueError, match="hidden states change"):
        build(path)
    echo, own = build(path, "echo"), AutoModel.from_pretrained(path, attn_implementation="sdpa").eval()
    ids = features_of(echo, text)["input_ids"]
    with torch.no_grad():
        wanted = own(ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0, -1]
    assert_close(encoded(echo, text)[0], wanted.double())


@pytest.mark.parametrize(
    ("name", "chunk", "options"),
    [
        ("gpt2", 4, {}), ("llama", 3, SPECIAL), ("llama", 1, NORMALIZED), ("gemma2", 7, {"repeats": 3}),
        ("gpt_oss", 64, {}), ("llama", 3, NORMALIZED),
    ],
    ids=str,
)  # fmt: skip
def test_pieces(base: Base, name: str, chunk: int, options: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = base(name, "bos_eos")

    @cache
    def run(ids: tuple[int, ...]) -> Any:
        hidden, maps = hidden_and_attention(double(path), ids)
        return hidden, symmetrized_max(maps)

    monkeypatch.setattr(pieces, "_POSITIONS", 64)  # several passes
    last, mean = (build(path, pooling=pooling, chunk=chunk, **options) for pooling in POOLINGS)
    with torch.inference_mode():
        features = mean[0](features_of(mean), capture=mean[1].token_capture)
        tokens = mean[1].token_vectors(features)
        assert last[1].token_vectors(last[0](features_of(last))).shape[1] == 1, "of the last pieces alone"
    special = {key: value for key, value in options.items() if key != "repeats"}
    for text, one, other, rows in zip(TEXTS, encoded(last), encoded(mean), tokens, strict=True):
        placed = oracle(path, text, (None,))[0]
        wanted = chunked_tokens(run, placed, chunk, options.get("repeats", 2), **special)
        assert_close(one, chunked_pooled(wanted, "last"))
        assert_close(other, chunked_pooled(wanted, "mean"))
        assert_close(rows[: placed.n], wanted)


def test_positions_that_pieces_take(base: Base) -> None:
    """Those of the longest, wherever its text stands."""
    model: Any = build(base("llama"), chunk=20, check=False)
    features = features_of(model, ["a", "x y z"])
    for room in (0, -1):
        model[0].config.max_position_embeddings = 1 + 2 * features["spans"][1].length + room
        with pytest.raises(ValueError, match="chunk=20") if room else nullcontext():
            model(dict(features))


def test_pieces_and_their_copies() -> None:
    for count, chunk in product(range(1, 40), range(1, 12)):
        assert pieces.chunk_bounds(count, chunk) == [*(piece.start for piece in cut(count, chunk)), count]
    assert ChunkedReBAPooling(32, chunk=4).repeats == 2 and ChunkedReBAPooling(32, chunk=4, repeats=1).repeats == 1
    with pytest.raises(ValueError, match="repeats=65"):
        ChunkedReBAPooling(32, chunk=4, repeats=65)
