"""The small models are fit to prove something: they load, their attention is causal, and it is far from uniform."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from architectures import ARCHITECTURES, EXTRA, SINKS, SLIDING, TOKENIZERS, VOCABULARY, save
from reference import hidden_and_attention, layout, symmetrized_max
from transformers import AutoModel, AutoTokenizer

TEXTS = ("The bank of the river, 河边的银行。", "她打算明天 play the old piano")


def first_ids(tokenizer: object, text: str, length: int = 24) -> list[int]:
    """The start of the text as it is encoded twice over."""
    return layout(tokenizer, text, [None, None], limit=length).ids  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [*ARCHITECTURES, *EXTRA])
def test_architecture(name: str, tmp_path: Path) -> None:
    tokenizers = list(TOKENIZERS)
    convention = tokenizers[[*ARCHITECTURES, *EXTRA].index(name) % len(tokenizers)]
    save(name, tmp_path, convention)
    model = AutoModel.from_pretrained(tmp_path, attn_implementation="eager")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    made = {**ARCHITECTURES, **EXTRA}[name]()
    assert type(model) is type(made)
    assert model.dtype == torch.float32 and not model.training
    stored = model.state_dict()
    assert all(torch.equal(stored[key], value) for key, value in made.state_dict().items())
    assert [tokenizer(text)["input_ids"] for text in TEXTS] == [
        TOKENIZERS[convention]()(text)["input_ids"] for text in TEXTS
    ]

    # A batch of two rows of one length: no padding, so nothing but the causal mask.
    rows = [first_ids(tokenizer, text) for text in TEXTS]
    length = min(len(row) for row in rows)
    batch = torch.tensor([row[:length] for row in rows])
    assert length >= 22 and batch.max() < VOCABULARY
    with torch.no_grad():
        output = model(input_ids=batch, output_attentions=True)
    config = model.config
    assert len(output.attentions) == config.num_hidden_layers
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    for layer, matrix in enumerate(output.attentions):
        assert matrix.shape == (2, config.num_attention_heads, length, length)
        assert (matrix[..., future] == 0).all()
        sums = matrix.sum(-1)
        if name in SINKS:
            # The sink's share differs from head to head and from query to query.
            assert (sums < 1 + 1e-6).all() and (sums > 0).all() and sums.mean() < 0.95 and sums.std() > 0.1
        else:
            torch.testing.assert_close(sums, torch.ones_like(sums))
        window, layers = SLIDING.get(name, (length, ()))
        beyond = torch.ones(length, length, dtype=torch.bool).tril(-window)
        if layer in layers:
            assert (matrix[..., beyond] == 0).all()
            # The furthest key inside the window is seen.
            assert (matrix.diagonal(1 - window, dim1=-2, dim2=-1) > 0).all()
        elif name in SLIDING:
            assert (matrix[..., beyond] > 0).all()

    # The float64 model of the reference is the same model.
    results = [hidden_and_attention(model, row) for row in batch.tolist()]
    for row, (hidden, attention) in enumerate(results):
        torch.testing.assert_close(hidden, output.last_hidden_state[row].double(), rtol=1e-3, atol=1e-3)
        for layer, matrix in enumerate(output.attentions):
            torch.testing.assert_close(attention[layer], matrix[row].double(), rtol=1e-3, atol=1e-4)
    assert model.dtype == torch.float32

    # The premise of every comparison: what the fused attention weighs differs from token to token, ...
    fused = [symmetrized_max(attention) for _, attention in results]
    for A_new in fused:
        below = A_new[torch.ones_like(A_new, dtype=torch.bool).tril(-1)]
        assert below.max() > 0.25 and below.min() < 0.08
        assert below.std() > 0.5 * below.mean()
        # ... also among the keys in one query's reach, ...
        last = A_new[-1, -5:-1]
        assert last.max() > 1.2 * last.min()
    # ... from text to text, ...
    assert (fused[0] - fused[1]).abs().mean() > 0.02
    # ... and no layer or head decides alone.
    _, attention = results[0]
    matrices = attention.flatten(0, 1)
    winners = matrices.argmax(0)[torch.ones_like(fused[0], dtype=torch.bool).tril()]
    assert len(winners.unique()) > config.num_attention_heads
    # A token's state is not the same in its two copies, nor are the states of two tokens. (Only the start of the
    # copies: where every layer has a window and positions are relative, later tokens see the same in both.)
    text = layout(tokenizer, TEXTS[0], [None, None], limit=length)
    hidden, _ = hidden_and_attention(model, text.ids)
    first, second = hidden[text.positions(1)[:5]], hidden[text.positions(2)[:5]]
    assert ((first - second).norm(dim=1) > 0.05 * first.norm(dim=1)).all()
    assert torch.nn.functional.cosine_similarity(hidden[0], hidden[-1], dim=0) < 0.95


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "bloom"])
def test_body_of_a_causal_lm(name: str, tmp_path: Path) -> None:
    model = AutoModel.from_pretrained(save(name, tmp_path, "plain", causal_lm=True), attn_implementation="eager")
    expected = ARCHITECTURES[name]()
    ids = torch.tensor([[5, 60, 7, 80, 9, 60]])
    with torch.no_grad():
        torch.testing.assert_close(model(ids).last_hidden_state, expected(ids).last_hidden_state)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokenizer(name: str, tmp_path: Path) -> None:
    tokenizer = TOKENIZERS[name]()
    assert len(tokenizer) <= VOCABULARY
    special = {
        "plain": {"eos_token"},
        "bos": {"bos_token", "eos_token"},
        "bos_eos": {"bos_token", "eos_token"},
        "cls_sep": {"cls_token", "sep_token", "pad_token", "unk_token"},
        "no_pad_no_eos": {"unk_token"},
        "chat": {"bos_token", "eos_token", "pad_token"},
    }[name]
    assert set(tokenizer.special_tokens_map) == special
    assert (tokenizer.chat_template is not None) == (name == "chat")
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert set(loaded.special_tokens_map) == special
    assert loaded.chat_template == tokenizer.chat_template
    for text in TEXTS:
        ids = tokenizer(text)["input_ids"]
        assert loaded(text)["input_ids"] == ids
        assert tokenizer.decode(ids, skip_special_tokens=True) == text
    if name == "chat":
        messages = [{"role": "user", "content": "河流"}]
        said = loaded.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert said == "<s><|user|>\n河流\n<|assistant|>\n"
