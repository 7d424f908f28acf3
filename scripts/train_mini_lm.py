"""Make `mini`, the tiny bilingual language model: corpus and tokenizer, training, a quick check.

    python scripts/train_mini_lm.py prepare --zh-wiki zhwiki --en-wiki enwiki --lctt published --out corpus
    python scripts/train_mini_lm.py train --tokens corpus/tokens.npy --tokenizer corpus --out mini
    python scripts/train_mini_lm.py evaluate mini --sts cnsd-sts-test.txt --pairs 1200 --method reba --pooling last

`prepare` needs opencc-python-reimplemented, WikiExtractor's output of both Wikipedias, and LCTT's published articles.
`train` runs two phases: short windows make more steps of the same time, long ones then teach the reach that is left.
`evaluate` prints the Spearman correlation of the pairs' cosine with their scores as JSON.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mini_corpus import prepare
from torch.nn import functional
from tqdm import trange
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

# Tokens a window, windows a step, learning rate, whether it falls.
PHASES = ((256, 16, 3e-3, False), (512, 8, 2.4e-3, True))
HELD_OUT_TOKENS = 16_384
WARM_UP_STEPS = 100
RATE_FLOOR = 0.015
CONTENT_LIMIT = 120


def config_of(tokenizer: Any) -> LlamaConfig:
    """The model: 3.9 million parameters."""
    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=6,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def optimizer_of(model: Any) -> Any:
    """AdamW with weight decay on matrices only: pulling a norm's gain to zero helps nothing."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=PHASES[0][2], betas=(0.9, 0.95))


def next_token_loss(model: Any, batch: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of each next token, in nats; the softmax is taken in float32."""
    with torch.autocast(batch.device.type, dtype=torch.bfloat16):
        hidden = model.model(input_ids=batch, use_cache=False).last_hidden_state
        logits = functional.linear(hidden[:, :-1], model.lm_head.weight)
    return functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())


def run_phase(model: Any, tokens: Any, number: int, steps: int, seed: int) -> None:
    """Train one phase, with an optimizer of its own."""
    length, batch, rate, falling = PHASES[number]
    optimizer = optimizer_of(model)
    starts = np.random.RandomState(seed + number).permutation((len(tokens) - HELD_OUT_TOKENS) // length)
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
    rows = np.array(tokens[-HELD_OUT_TOKENS:], dtype=np.int64).reshape(-1, PHASES[-1][0])
    model.eval()
    losses = []
    for batch in torch.split(torch.from_numpy(rows).to(model.device), 8):
        logits = model(input_ids=batch, use_cache=False).logits
        losses.append(functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch[:, 1:].flatten()).item())
    return sum(losses) / len(losses)


def train(options: argparse.Namespace) -> None:
    """Train a model from nothing, and save it in bfloat16 with its tokenizer."""
    tokens = np.load(options.tokens, mmap_mode="r")
    tokenizer: Any = AutoTokenizer.from_pretrained(options.tokenizer)
    if tokens.max() >= len(tokenizer):
        raise SystemExit(f"--tokens {options.tokens}: of another tokenizer than --tokenizer {options.tokenizer}")
    torch.manual_seed(options.seed)
    model: Any = LlamaForCausalLM(config_of(tokenizer)).to(options.device)
    for number, steps in enumerate(options.steps):
        run_phase(model, tokens, number, steps, options.seed)
    model.to(torch.bfloat16).save_pretrained(options.out)
    tokenizer.model_max_length = model.config.max_position_embeddings
    for name in ("is_local", "local_files_only"):
        # How this process found the tokenizer says nothing about the tokenizer; some versions would save it.
        tokenizer.init_kwargs.pop(name, None)
    tokenizer.save_pretrained(options.out)
    # The rounded weights are what users get, so they are what is measured.
    print(f"{options.out}: held-out loss {held_out_loss(model.float(), tokens):.3f} nats a token")


def evaluate(options: argparse.Namespace) -> None:
    """Print the Spearman correlation of cosine similarity, in float32, with the given scores."""
    from scipy.stats import spearmanr

    import st_reba

    lines = options.sts.read_text(encoding="utf-8").splitlines()[: options.pairs]
    _, first, second, scores = zip(*(line.split("||") for line in lines), strict=True)
    copies = 1 if options.method == "classical" else options.repeats
    model = st_reba.build(
        options.model,
        options.method,
        pooling=options.pooling,
        max_seq_length=copies * CONTENT_LIMIT + 1,  # BOS
        dtype="float32",
        device=options.device,
        **({} if copies == 1 else {"repeats": copies}),
    )
    one, two = (model.encode(list(texts), batch_size=64) for texts in (first, second))
    spearman = float(spearmanr((one * two).sum(axis=1), [float(score) for score in scores]).statistic)
    shown = {name: str(getattr(options, name)) for name in ("model", "method", "pooling", "sts")}
    print(json.dumps({**shown, "repeats": copies, "pairs": len(lines), "spearman": round(spearman, 4)}, indent=2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)

    command = commands.add_parser("prepare", help="clean text, train the tokenizer, write tokens.npy")
    for name in ("--zh-wiki", "--en-wiki", "--lctt", "--out"):
        command.add_argument(name, type=Path, required=True, metavar="DIR")
    command.set_defaults(run=lambda given: prepare(given.zh_wiki, given.en_wiki, given.lctt, given.out, given.seed))

    command = commands.add_parser("train", help="train a model on a file of tokens")
    command.add_argument("--tokens", type=Path, required=True, metavar="FILE", help="token ids: .npy of uint16")
    command.add_argument("--tokenizer", type=Path, required=True, metavar="DIR", help="tokenizer that made the tokens")
    command.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the model is written")
    command.add_argument(
        "--steps", type=int, nargs=2, default=(4000, 2250), help="of each phase (default: %(default)s)"
    )
    command.set_defaults(run=train)

    command = commands.add_parser("evaluate", help="Spearman correlation on sentence pairs")
    command.add_argument("model", type=Path, metavar="MODEL", help="model folder")
    command.add_argument("--sts", type=Path, required=True, metavar="FILE", help="lines id||sentence||sentence||score")
    command.add_argument("--method", choices=("classical", "echo", "reba"), default="classical")
    command.add_argument("--pooling", choices=("last", "mean"), default="mean")
    command.add_argument("--repeats", type=int, default=2, metavar="K", help="copies (default: %(default)s)")
    command.add_argument("--pairs", type=int, metavar="N", help="the first N only")
    command.set_defaults(run=evaluate)

    for command in commands.choices.values():
        command.add_argument("--seed", type=int, default=0, help="of all that is random (default: %(default)s)")
        command.add_argument("--device", default="cpu", help="(default: %(default)s)")
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
