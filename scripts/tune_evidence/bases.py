"""Train the evidence's small bases in minutes: language models of other widths and depths than mini.

    python scripts/tune_evidence/bases.py FOLDER/mini/tokens-30M.u16.xz bases

``early`` starts from nothing. ``shallow`` and ``deep`` have new layers between mini's embeddings, turned onto their
first principal directions. ``pruned`` is mini without two of its layers, and healed.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

import st_reba

sys.path.insert(0, str(Path(__file__).parents[1]))
from train_mini_lm import new_optimizer, next_token_loss, read_tokens

MINI = Path(st_reba.__file__).parent / "mini"
WINDOWS, LENGTH = 16, 128
HELD_OUT = 64


@dataclass(frozen=True)
class Plan:
    """How a base is made: its sizes, how many steps it learns at which highest rate, and where it starts from."""

    hidden: int
    layers: int
    heads: int
    steps: int
    rate: float
    start: str


PLANS = {
    "shallow": Plan(128, 4, 4, 400, 3e-3, "embeddings"),
    "deep": Plan(96, 9, 6, 300, 3e-3, "embeddings"),
    "early": Plan(192, 6, 6, 250, 3e-3, "nothing"),
    "pruned": Plan(192, 4, 6, 80, 6e-4, "layers 0 2 3 5"),
}


def started(plan: Plan, mini: Any, tokenizer: Any) -> Any:
    """The model before it learns."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=plan.hidden,
        intermediate_size=plan.hidden * 8 // 3 // 8 * 8,
        num_hidden_layers=plan.layers,
        num_attention_heads=plan.heads,
        num_key_value_heads=2,
        head_dim=plan.hidden // plan.heads,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(config)
    with torch.no_grad():
        if plan.start == "embeddings":
            known = mini.model.embed_tokens.weight
            directions = torch.linalg.svd(known - known.mean(0), full_matrices=False).Vh[: plan.hidden]
            model.model.embed_tokens.weight.copy_(known @ directions.T)
        elif plan.start.startswith("layers"):
            model = LlamaForCausalLM.from_pretrained(MINI, dtype=torch.float32)
            kept = [model.model.layers[int(number)] for number in plan.start.split()[1:]]
            for number, layer in enumerate(kept):
                layer.self_attn.layer_idx = number
            model.model.layers = torch.nn.ModuleList(kept)
            model.config.num_hidden_layers = len(kept)
            # Only some versions list the kinds of layers.
            if getattr(model.config, "layer_types", None):
                model.config.layer_types = model.config.layer_types[: len(kept)]
    return model


def learned(model: Any, plan: Plan, tokens: Any, name: str) -> float:
    """Train it; return the loss on the last tokens, which are never learnt from, in nats a token."""
    generator = np.random.default_rng(0)
    optimizer = new_optimizer(model)
    end = len(tokens) - HELD_OUT * LENGTH
    began = time.process_time()
    model.train()
    for step in range(plan.steps):
        for group in optimizer.param_groups:
            group["lr"] = plan.rate * min(1.0, (step + 1) / 40) * max(0.02, 1 - step / plan.steps)
        starts = generator.integers(end - LENGTH, size=WINDOWS)
        rows = np.stack([tokens[start : start + LENGTH] for start in starts]).astype(np.int64)
        loss = next_token_loss(model, torch.from_numpy(rows))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 20 == 19:
            seconds = time.process_time() - began
            print(
                f"{name}: step {step + 1} of {plan.steps}, loss {loss.item():.3f}, {seconds:.0f} s of CPU", flush=True
            )
    model.eval()
    rows = torch.from_numpy(tokens[end:].astype(np.int64).reshape(HELD_OUT, LENGTH))
    with torch.inference_mode():
        return float(sum(next_token_loss(model, part).item() for part in rows.split(8)) * 8 / HELD_OUT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokens", type=Path, help="tokens-30M.u16.xz, what mini learnt from")
    parser.add_argument("out", type=Path, help="where the bases are written, a folder each")
    parser.add_argument("--only", nargs="*", choices=PLANS, default=list(PLANS), help="these alone")
    options = parser.parse_args()
    tokens = read_tokens(options.tokens)
    tokenizer: Any = AutoTokenizer.from_pretrained(MINI)
    mini: Any = LlamaForCausalLM.from_pretrained(MINI, dtype=torch.float32)
    for name in options.only:
        model = started(PLANS[name], mini, tokenizer)
        loss = learned(model, PLANS[name], tokens, name)
        model.save_pretrained(options.out / name)
        tokenizer.save_pretrained(options.out / name)
        count = sum(each.numel() for each in model.parameters())
        print(f"{name}: {count:,} parameters, held-out loss {loss:.3f} nats a token", flush=True)


if __name__ == "__main__":
    main()
