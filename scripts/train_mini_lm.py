"""Make `mini`, the tiny bilingual language model: corpus and tokenizer, training.

    python scripts/train_mini_lm.py prepare zhwiki enwiki published corpus
    python scripts/train_mini_lm.py train corpus mini

`prepare` needs opencc-python-reimplemented, WikiExtractor's output of both Wikipedias, and LCTT's published articles.
`train` runs two phases: short windows make more steps of the same time, long ones then teach the reach that is left.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mini_corpus import prepare
from torch.nn import functional
from tqdm import trange
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

# Steps, tokens a window, windows a step, learning rate, whether it falls.
PHASES = ((4000, 256, 16, 3e-3, False), (2250, 512, 8, 2.4e-3, True))
HELD_OUT_TOKENS = 16_384
WARM_UP_STEPS = 100
RATE_FLOOR = 0.015


def config_of(tokenizer: Any) -> LlamaConfig:
    """The model: 3.9 million parameters."""
    sizes: dict[str, Any] = {
        "hidden_size": 192,
        "intermediate_size": 512,
        "num_hidden_layers": 6,
        "head_dim": 32,
    }
    sizes |= {
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
    }
    ids = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    return LlamaConfig(vocab_size=len(tokenizer), tie_word_embeddings=True, **sizes, **ids)


def optimizer_of(model: Any) -> Any:
    """AdamW with weight decay on matrices only: pulling a norm's gain to zero helps nothing."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.1},
        {
            "params": [p for p in parameters if p.dim() <= 1],
            "weight_decay": 0.0,
        },
    ]
    return torch.optim.AdamW(groups, lr=PHASES[0][3], betas=(0.9, 0.95))


def next_token_loss(model: Any, batch: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of each next token, in nats; the softmax is taken in float32."""
    with torch.autocast(batch.device.type, dtype=torch.bfloat16):
        hidden = model.model(input_ids=batch, use_cache=False).last_hidden_state
        logits = functional.linear(hidden[:, :-1], model.lm_head.weight)
    return functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())


def run_phase(model: Any, tokens: Any, number: int) -> None:
    """Train one phase, with an optimizer of its own."""
    steps, length, batch, rate, falling = PHASES[number]
    optimizer = optimizer_of(model)
    starts = np.random.RandomState(number).permutation((len(tokens) - HELD_OUT_TOKENS) // length)
    mean: float | None = None
    model.train()
    for step in (bar := trange(steps, desc=f"phase {number + 1}")):
        decay = max(RATE_FLOOR, 1 - step / steps) if falling else 1.0
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / WARM_UP_STEPS) * decay
        windows = [int(starts[i % len(starts)]) * length for i in range(step * batch, (step + 1) * batch)]
        rows = np.stack([tokens[start : start + length] for start in windows]).astype(np.int64)
        loss = next_token_loss(model, torch.from_numpy(rows).to(model.device))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        mean = loss.item() if mean is None else 0.98 * mean + 0.02 * loss.item()
        bar.set_postfix(loss=f"{mean:.3f}", refresh=False)
    if mean is not None:
        print(f"phase {number + 1}: {steps:,} steps, loss {mean:.3f} nats a token")


@torch.inference_mode()
def held_out_loss(model: Any, tokens: Any) -> float:
    """The float32 loss, in nats a token, on the last tokens of the corpus, which training never sees."""
    rows = np.array(tokens[-HELD_OUT_TOKENS:], dtype=np.int64).reshape(-1, PHASES[-1][1])
    model.eval()
    losses = []
    for batch in torch.split(torch.from_numpy(rows).to(model.device), 8):
        logits = model(input_ids=batch, use_cache=False).logits
        losses.append(functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch[:, 1:].flatten()).item())
    return sum(losses) / len(losses)


def train(corpus: Path, out: Path) -> None:
    """Train a model from nothing, and save it in bfloat16 with its tokenizer."""
    tokens = np.load(corpus / "tokens.npy", mmap_mode="r")
    tokenizer: Any = AutoTokenizer.from_pretrained(corpus)
    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(config_of(tokenizer))
    for number in range(len(PHASES)):
        run_phase(model, tokens, number)
    model.to(torch.bfloat16).save_pretrained(out)
    tokenizer.model_max_length = model.config.max_position_embeddings
    for name in ("is_local", "local_files_only"):
        # How this process found the tokenizer says nothing about the tokenizer; some versions would save it.
        tokenizer.init_kwargs.pop(name, None)
    tokenizer.save_pretrained(out)
    # The rounded weights are what users get, so they are what is measured.
    print(f"{out}: held-out loss {held_out_loss(model.float(), tokens):.3f} nats a token")


if __name__ == "__main__":
    command, *folders = sys.argv[1:] or [""]
    commands: dict[str, tuple[Callable[..., None], int]] = {
        "prepare": (prepare, 4),
        "train": (train, 2),
    }
    if command not in commands or len(folders) != commands[command][1]:
        raise SystemExit(__doc__)
    commands[command][0](*map(Path, folders))
