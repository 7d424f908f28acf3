"""Token Prepending against the oracle: architectures × methods × padding side × alone or in a batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
import reference_nosink
import torch
from marks import slow_but
from oracle import TEXTS, assert_close, loaded
from reference import Layout
from reference_nosink import plan
from reference_stages import ensemble, placed_behind, prepended, prepended_by_hooks
from sentence_transformers import SentenceTransformer
from torch import Tensor
from transformers import PreTrainedModel

import st_reba
from st_reba import LayerPlan
from st_reba.batches import copied_positions
from st_reba.modules import repeat
from st_reba.modules.tokens import empty_id

DEPTH = 3
_USUAL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 32, "n_layer": DEPTH, "n_head": 4, "n_positions": 256},
    "llama": _USUAL,
    "mistral": {**_USUAL, "sliding_window": 5},
    "qwen2": _USUAL,
    "gemma2": {
        **_USUAL,
        "head_dim": 8,
        "query_pre_attn_scalar": 8,
        "attn_logit_softcapping": 3.0,
        "sliding_window": 6,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
}
PROMPT = 'Say "{text}" in one word: "'
METHODS: dict[str, dict[str, Any]] = {
    "classical": {"method": "classical", "pooling": "mean"},
    "last": {"method": "classical", "pooling": "last"},
    "echo": {"method": "echo", "pooling": "mean"},
    "reba": {"method": "reba", "pooling": "last"},
    "reba-mean": {"method": "reba", "pooling": "mean"},
    "prompteol": {"method": "prompteol", "template": PROMPT},
}
PIECES: dict[str, list[str | None]] = {"echo": [None, None], "reba": [None, None], "prompteol": PROMPT.split("{text}")}
PIECES = {**PIECES, "reba-mean": [None, None]}
PIECES["prompteol"].insert(1, None)

Deep = Callable[..., str]


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Deep:
    made: dict[tuple[str, str], str] = {}

    def get(name: str, tokenizer: str = "bos_eos") -> str:
        if (name, tokenizer) not in made:
            folder = tmp_path_factory.mktemp(name)
            made[name, tokenizer] = str(reference_nosink.save(name, FAMILIES[name], folder, tokenizer))
        return made[name, tokenizer]

    return get


@lru_cache(maxsize=4)
def double(path: str) -> PreTrainedModel:
    return reference.as_double(loaded(path)[0])


def layout(path: str, text: str, method: str) -> tuple[Layout, int]:
    tokenizer = loaded(path)[1]
    placed = reference.layout(tokenizer, text, PIECES.get(method, [None]))
    token = empty_id(tokenizer)
    assert token is not None
    return placed_behind(placed, token)


def pooled(method: str, placed: Layout, hidden: Tensor, maps: Tensor) -> Tensor:
    if method.startswith("reba"):
        return reference.reba(hidden, reference.symmetrized_max(maps), placed, "mean" if "mean" in method else "last")
    if method == "prompteol":
        return reference.very_last(hidden)
    if method == "echo":
        return reference.echo(hidden, placed, "mean")
    return reference.classical(hidden, placed, "mean" if method == "classical" else "last")


def built(path: str, method: str, **options: Any) -> SentenceTransformer:
    return st_reba.build(path, **{"normalize": False, **METHODS[method], **options})


def together(model: SentenceTransformer, texts: tuple[str, ...] = TEXTS) -> Tensor:
    vectors: Tensor = model.encode(list(texts), batch_size=len(texts), convert_to_tensor=True)
    return vectors


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", slow_but(FAMILIES, "gpt2"))
def test_exact(deep: Deep, name: str, method: str) -> None:
    path = deep(name)
    for prepend in (1, 2):
        expected = []
        for text in TEXTS:
            placed, at = layout(path, text, method)
            expected.append(pooled(method, placed, *prepended_by_hooks(double(path), placed.ids, at, prepend)))
        for side in ("left", "right"):
            model = built(path, method, prepend=prepend, padding_side=side)
            for wanted, got in zip(expected, together(model), strict=True):
                assert_close(got, wanted)
            assert_close(model.encode(TEXTS[1]), expected[1])


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize(
    ("kind", "k", "k0", "m"), [("bidirectional", 2, 1, 1), ("backward", 1, 0, 1), ("nosink-forward", 3, 0, 2)]
)
def test_with_plans(deep: Deep, name: str, kind: Any, k: int, k0: int, m: int) -> None:
    path = deep(name)
    wanted = plan(DEPTH, "inplace", kind, k, k0, m=m)
    for method in ("classical", "reba-mean"):
        for side in ("left", "right"):
            model = built(path, method, prepend=2, padding_side=side, layers=LayerPlan(kind=kind, k=k, k0=k0, m=m))
            for text, got in zip(TEXTS[:4], together(model, TEXTS[:4]), strict=True):
                placed, at = layout(path, text, method)
                assert_close(got, pooled(method, placed, *prepended(double(path), placed.ids, at, 2, wanted)))


@pytest.mark.parametrize("side", ["left", "right"])
def test_of_an_inner_layer(deep: Deep, side: Any) -> None:
    path = deep("llama")
    model = built(path, "classical", prepend=1, layer=2, padding_side=side)
    for text, got in zip(TEXTS, together(model), strict=True):
        placed, at = layout(path, text, "classical")
        hidden, _ = prepended(double(path), placed.ids, at, 1, plan(DEPTH), runs=2)
        assert_close(got, reference.classical(hidden, placed, "mean"))
    model = built(path, "classical", prepend=1)
    with pytest.raises(ValueError, match=r"prepend=1, but 1 layers run.*Give 0 to 0"):
        model[0].layer = 1  # type: ignore[union-attr]
        model.encode("a")


def test_ensemble(deep: Deep) -> None:
    """Each row has its placeholder where its own template puts the text."""
    path, templates = deep("llama"), ["Say {text}!", "{text} in one word:"]
    for side in ("left", "right"):
        model = built(path, "prompteol", template=templates, weights=[1, -0.5], prepend=2, padding_side=side)
        for text, got in zip(TEXTS, together(model), strict=True):
            vectors = []
            for pieces in (["Say ", None, "!"], [None, " in one word:"]):
                tokenizer = loaded(path)[1]
                placed, at = placed_behind(reference.layout(tokenizer, text, pieces), empty_id(tokenizer) or 0)
                vectors.append(reference.very_last(prepended_by_hooks(double(path), placed.ids, at, 2)[0]))
            assert_close(got, ensemble(vectors, [1, -0.5]))


def test_layout(deep: Deep) -> None:
    model = built(deep("llama"), "echo", prepend=1, template="a {text} b {text}")
    plain = built(deep("llama"), "echo", template="a {text} b {text}")
    with_one, without = (each[0].preprocess(["hi"]) for each in (model, plain))  # type: ignore[operator]
    ids, copies = with_one["input_ids"][0].tolist(), with_one["copy_ids"][0].tolist()
    at = copies.index(1) - 1
    assert ids[at] == empty_id(model.tokenizer)
    assert ids[:at] + ids[at + 1 :] == without["input_ids"][0].tolist()
    assert copies[:at] + copies[at + 1 :] == without["copy_ids"][0].tolist()
    # Both take all of their room; the placeholder has a position of its own.
    model.max_seq_length = plain.max_seq_length = 40
    assert copied_positions(model[0], ["hi"])[0] == copied_positions(plain[0], ["hi"])[0] + 1  # type: ignore[arg-type]
    for each in (model, plain):
        first: Any = each[0]
        frame = first.frame()
        assert first.budget() == (40 - frame.overhead) // 2
    assert model[0].frame().overhead == plain[0].frame().overhead + 1  # type: ignore[operator]


def test_none_changes_no_bit(deep: Deep) -> None:
    for method in METHODS:
        without, with_none = built(deep("llama"), method), built(deep("llama"), method, prepend=0)
        assert torch.equal(together(with_none), together(without))
        assert not torch.allclose(together(built(deep("llama"), method, prepend=1)), together(without), atol=1e-2)


def test_a_common_beginning_is_not_shared(deep: Deep) -> None:
    """It holds the placeholder's row of another text."""
    template = "The meaning of a word depends on the words around it: {text}"
    model = built(deep("llama"), "classical", prepend=2, template=template, padding_side="right")
    texts = tuple(f"{number} {text}" for number in range(8) for text in TEXTS)
    for text, got in zip(texts, together(model, texts), strict=True):
        assert_close(got, model.encode(text, convert_to_tensor=True).double())


def test_words(deep: Deep) -> None:
    path, text = deep("llama"), "The bank of the river is steep."
    model = built(path, "classical", prepend=2)
    tokenizer = loaded(path)[1]
    word = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    inside = [i for i, (first, last) in enumerate(word) if first < 8 and last > 4]
    placed, at = layout(path, text, "classical")
    hidden, _ = prepended_by_hooks(double(path), placed.ids, at, 2)
    assert_close(st_reba.encode_words(model, [(text, (4, 8))])[0], reference.echo_word(hidden, placed, inside))


def test_gradient(deep: Deep) -> None:
    """The embeddings of the last token learn through the placeholder as well."""
    path, text = deep("llama"), TEXTS[2]
    model = built(path, "last", prepend=1)
    first: Any = model[0]
    features = first.preprocess([text])
    model(features)["sentence_embedding"].sum().backward()
    found = first.model.embed_tokens.weight.grad
    placed, at = layout(path, text, "last")
    whole = double(path)
    ids = torch.tensor([placed.ids])

    def put(module: Any, arguments: Any, output: Any) -> Any:
        rows = [output[:, -1] if row == at else output[:, row] for row in range(output.shape[1])]
        return torch.stack(rows, dim=1)

    hook = whole.layers[0].register_forward_hook(put)
    whole.zero_grad()
    hidden = whole(input_ids=ids, use_cache=False).last_hidden_state[0]
    hidden[placed.positions(1)[-1]].sum().backward()
    hook.remove()
    assert_close(found, whole.embed_tokens.weight.grad, 1e-4)


def test_saved(tmp_path: Path) -> None:
    model = st_reba.build("mini", "reba", prepend=2)
    model.save_pretrained(str(tmp_path))
    again: Any = SentenceTransformer(str(tmp_path), device="cpu")
    assert again[0].prepend == 2
    np.testing.assert_array_equal(again.encode(list(TEXTS)), model.encode(list(TEXTS)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prepend": -1}, "prepend=-1 must be a whole number from 0 on"),
        ({"prepend": True}, "prepend=True must be a whole number"),
        ({"prepend": 6}, r"prepend=6, but 6 layers run.*Give 0 to 5"),
        ({"prepend": 1, "setting": "inter-bidir", "k": 1}, r"prepend=1: .*second pass.*inplace"),
        ({"prepend": 1, "method": "reba", "chunk": 8}, r"prepend=1: the pieces of a text \(chunk\)"),
    ],
)
def test_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        st_reba.build("mini", **{"method": "classical", **options})


def test_refused_later(deep: Deep, monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = built(deep("llama"), "classical", prepend=1)
    model[0].layers = LayerPlan("extra", k=1)
    with pytest.raises(ValueError, match="prepend=1: .*second pass"):
        model.encode("a")
    model[0].layers = LayerPlan()
    model[0].model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    with pytest.raises(ValueError, match="prepend=1 does not go with gradient checkpointing"):
        model(model[0].preprocess(["a"]))
    model.eval()
    for layer in model[0].model.layers:
        layer._forward_hooks.clear()
    with pytest.raises(ValueError, match="replaced behind 0 layers only"):
        model.encode("a")
    monkeypatch.setattr(repeat, "empty_id", lambda tokenizer: None)
    with pytest.raises(ValueError, match="prepend=1: the tokenizer has no special token"):
        model.encode("a")


def test_no_graph() -> None:
    from st_reba.hub.onnx.method import method_of

    with pytest.raises(ValueError, match="prepend=1: a token that is replaced between layers cannot be exported"):
        method_of(st_reba.build("mini", "classical", prepend=1, device="cpu"))
