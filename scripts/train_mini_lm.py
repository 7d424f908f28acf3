"""Make `mini`, the tiny bilingual language model: corpus and tokenizer, training.

    python scripts/train_mini_lm.py prepare zhwiki enwiki published corpus
    python scripts/train_mini_lm.py train corpus mini

`prepare` needs opencc-python-reimplemented, WikiExtractor's output of both Wikipedias, and LCTT's
published articles. `train` runs two phases: short windows make more steps of the same time, long
ones then teach the reach that is left.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mini_corpus import prepare
from torch.nn import functional
from tqdm import trange
from transformers import (  # type: ignore[attr-defined]
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
)


@dataclass(frozen=True)
class Phase:
    """A part of the training, with an optimizer of its own."""

    steps: int
    window_length: int  # tokens
    windows_a_step: int
    learning_rate: float
    rate_falls: bool


PHASES = (
    Phase(
        steps=4000,
        window_length=256,
        windows_a_step=16,
        learning_rate=3e-3,
        rate_falls=False,
    ),
    Phase(
        steps=2250,
        window_length=512,
        windows_a_step=8,
        learning_rate=2.4e-3,
        rate_falls=True,
    ),
)
HELD_OUT_TOKENS = 16_384
WARM_UP_STEPS = 100
RATE_FLOOR = 0.015


def config_of(tokenizer: Any) -> LlamaConfig:
    """The model: 3.9 million parameters."""
    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=6,
        head_dim=32,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def optimizer_of(model: Any) -> Any:
    """AdamW with weight decay on matrices only: pulling a norm's gain to zero helps nothing."""
    matrices = [weight for weight in model.parameters() if weight.dim() > 1]
    vectors = [weight for weight in model.parameters() if weight.dim() <= 1]
    groups = [
        {"params": matrices, "weight_decay": 0.1},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=PHASES[0].learning_rate, betas=(0.9, 0.95))


def next_token_loss(model: Any, batch: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of each next token, in nats; the softmax is taken in float32."""
    with torch.autocast(batch.device.type, dtype=torch.bfloat16):
        hidden_states = model.model(input_ids=batch, use_cache=False).last_hidden_state
        logits = functional.linear(hidden_states[:, :-1], model.lm_head.weight)
    return functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())


def rate_at(phase: Phase, step: int) -> float:
    """It rises over the first steps, and falls from then on if the phase says so."""
    warm_up = min(1.0, (step + 1) / WARM_UP_STEPS)
    decay = max(RATE_FLOOR, 1 - step / phase.steps) if phase.rate_falls else 1.0
    return phase.learning_rate * warm_up * decay


def batch_at(phase: Phase, step: int, tokens: Any, window_order: np.ndarray) -> torch.Tensor:
    """The windows of a step, in an order that repeats."""
    rows: list[np.ndarray] = []
    first_window = step * phase.windows_a_step
    for window in range(first_window, first_window + phase.windows_a_step):
        start = int(window_order[window % len(window_order)]) * phase.window_length
        rows.append(tokens[start : start + phase.window_length])
    return torch.from_numpy(np.stack(rows).astype(np.int64))


def run_phase(model: Any, tokens: Any, phase_index: int) -> None:
    phase = PHASES[phase_index]
    optimizer = optimizer_of(model)
    window_count = (len(tokens) - HELD_OUT_TOKENS) // phase.window_length
    window_order = np.random.RandomState(phase_index).permutation(window_count)
    mean_loss: float | None = None
    model.train()
    progress_bar = trange(phase.steps, desc=f"phase {phase_index + 1}")
    for step in progress_bar:
        for group in optimizer.param_groups:
            group["lr"] = rate_at(phase, step)
        batch = batch_at(phase, step, tokens, window_order)
        loss = next_token_loss(model, batch.to(model.device))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        mean_loss = loss.item() if mean_loss is None else 0.98 * mean_loss + 0.02 * loss.item()
        progress_bar.set_postfix(loss=f"{mean_loss:.3f}", refresh=False)
    if mean_loss is not None:
        print(f"phase {phase_index + 1}: {phase.steps:,} steps, loss {mean_loss:.3f} nats a token")


@torch.inference_mode()
def held_out_loss(model: Any, tokens: Any) -> float:
    """The float32 loss, in nats a token, on the last tokens of the corpus, which training never sees."""
    last_tokens = np.array(tokens[-HELD_OUT_TOKENS:], dtype=np.int64)
    rows = torch.from_numpy(last_tokens.reshape(-1, PHASES[-1].window_length))
    model.eval()
    losses: list[float] = []
    for batch in torch.split(rows.to(model.device), 8):
        logits = model(input_ids=batch, use_cache=False).logits
        loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch[:, 1:].flatten())
        losses.append(loss.item())
    return sum(losses) / len(losses)


def train(corpus: Path, out_folder: Path) -> None:
    """Train a model from nothing, and save it in bfloat16 with its tokenizer."""
    tokens = np.load(corpus / "tokens.npy", mmap_mode="r")
    tokenizer: Any = AutoTokenizer.from_pretrained(corpus)
    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(config_of(tokenizer))
    for phase_index in range(len(PHASES)):
        run_phase(model, tokens, phase_index)
    model.to(torch.bfloat16).save_pretrained(out_folder)
    tokenizer.model_max_length = model.config.max_position_embeddings
    for name in ("is_local", "local_files_only"):
        # How this process found the tokenizer says nothing about the tokenizer; some versions would
        # save it.
        tokenizer.init_kwargs.pop(name, None)
    tokenizer.save_pretrained(out_folder)
    # The rounded weights are what users get, so they are what is measured.
    print(f"{out_folder}: held-out loss {held_out_loss(model.float(), tokens):.3f} nats a token")


def main() -> None:
    match sys.argv[1:]:
        case ["prepare", zh_wiki, en_wiki, lctt, corpus]:
            prepare(Path(zh_wiki), Path(en_wiki), Path(lctt), Path(corpus))
        case ["train", corpus, out_folder]:
            train(Path(corpus), Path(out_folder))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
