"""Make a tiny bilingual causal language model: corpus and tokenizer, training, a quick check.

Three commands, each with its own --help:

    prepare    text folders -> tokenizer and tokens.npy
    train      tokens -> a model folder that transformers loads
    evaluate   a model folder and a file of sentence pairs -> Spearman correlation as JSON
"""

import argparse
import json
import lzma
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mini_corpus import UsageError, prepare

if TYPE_CHECKING:
    import numpy as np
    import torch

HELD_OUT_TOKENS = 16_384
WARM_UP_STEPS = 100
RATE_FLOOR = 0.015
CHECKPOINT = "checkpoint.pt"
CONTENT_LIMIT = 120


# train: token ids to a model folder


@dataclass(frozen=True)
class Phase:
    """One of the two legs of training: windows of `length` tokens, `batch` of them a step."""

    length: int
    batch: int
    rate: float
    falling: bool

    def learning_rate(self, step: int, done: float) -> float:
        """Return the rate of a step (counted from 0) when the fraction `done` of the phase has passed."""
        decay = max(RATE_FLOOR, 1.0 - done) if self.falling else 1.0
        return self.rate * min(1.0, (step + 1) / WARM_UP_STEPS) * decay


# Short windows first: they make more steps of the same time. The long ones then teach the reach that is left.
PHASES = (
    Phase(length=256, batch=16, rate=3e-3, falling=False),
    Phase(length=512, batch=8, rate=2.4e-3, falling=True),
)


@dataclass
class Progress:
    """Where training stands; what a checkpoint holds beside the weights and the optimizer."""

    phase: int = 0
    step: int = 0
    seconds: float = 0.0
    loss: float | None = None


def read_tokens(path: Path) -> "np.ndarray":
    """Read one row of token ids from a .npy file or from lzma-compressed little-endian uint16 (.xz)."""
    import numpy as np

    if not path.is_file():
        raise UsageError(f"--tokens {path}: no such file; `prepare` writes one")
    tokens: np.ndarray
    try:
        if path.suffix == ".npy":
            tokens = np.load(path, mmap_mode="r")
        elif path.suffix == ".xz":
            tokens = np.frombuffer(lzma.decompress(path.read_bytes()), dtype="<u2")
        else:
            raise UsageError(f"--tokens {path}: unknown ending {path.suffix!r}; give a .npy or an .xz file")
    except (ValueError, EOFError, lzma.LZMAError) as error:
        raise UsageError(f"--tokens {path}: not readable ({error}); give a file of uint16 numbers") from error
    if tokens.ndim != 1 or tokens.dtype != np.uint16:
        raise UsageError(f"--tokens {path}: {tokens.dtype} of shape {tokens.shape}; give one row of uint16")
    needed = HELD_OUT_TOKENS + max(phase.length for phase in PHASES)
    if len(tokens) < needed:
        raise UsageError(f"--tokens {path}: {len(tokens):,} tokens, at least {needed:,} are needed; give more text")
    return tokens


def build_config(options: argparse.Namespace, tokenizer: Any) -> Any:
    """Check the sizes and return the LlamaConfig they make."""
    from transformers import LlamaConfig

    hidden, heads, kv_heads = options.hidden_size, options.heads, options.kv_heads
    if hidden % (2 * heads):
        raise UsageError(f"--hidden-size {hidden}: must be a multiple of twice --heads {heads}; try {2 * heads * 16}")
    if heads % kv_heads:
        raise UsageError(f"--kv-heads {kv_heads}: must divide --heads {heads}; try 1 or {heads}")
    longest = max(phase.length for phase in PHASES)
    if options.context < longest:
        raise UsageError(f"--context {options.context}: training uses {longest} tokens; give at least {longest}")
    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=options.intermediate_size,
        num_hidden_layers=options.layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=hidden // heads,
        max_position_embeddings=options.context,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def new_optimizer(model: Any) -> Any:
    """Return AdamW with weight decay on matrices only: pulling a norm's gain to zero helps nothing."""
    import torch

    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=PHASES[0].rate, betas=(0.9, 0.95))


def next_token_loss(model: Any, batch: "torch.Tensor") -> Any:
    """Return the mean cross-entropy of each next token, in nats; the softmax is taken in float32."""
    import torch
    from torch.nn import functional

    with torch.autocast(batch.device.type, dtype=torch.bfloat16):
        hidden = model.model(input_ids=batch, use_cache=False).last_hidden_state
        logits = functional.linear(hidden[:, :-1], model.lm_head.weight)
    return functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())


def save_checkpoint(path: Path, identity: dict[str, Any], model: Any, optimizer: Any, progress: Progress) -> None:
    """Write a checkpoint under another name and rename it, so that a kill leaves the old one whole."""
    import torch

    state = {
        "identity": identity,
        "progress": vars(progress),
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict() if optimizer is not None else None,
    }
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def load_checkpoint(folder: Path, identity: dict[str, Any]) -> dict[str, Any]:
    """Load the checkpoint of a run that was started with the same sizes, seed and tokens."""
    import torch

    path = folder / CHECKPOINT
    if not path.is_file():
        raise UsageError(f"--resume {folder}: no {CHECKPOINT} there; give the --out of a run that was interrupted")
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    for name, value in identity.items():
        if state["identity"][name] != value:
            raise UsageError(
                f"--resume {folder}: it was started with {name} {state['identity'][name]}, now it is {value}; "
                "give the same options and files"
            )
    return state


def run_phase(
    model: Any,
    optimizer: Any,
    tokens: "np.ndarray",
    progress: Progress,
    budget: float,
    timed: bool,
    seed: int,
    checkpoint: Callable[[], None],
    checkpoint_steps: int,
) -> None:
    """Train until the phase's budget is spent: seconds when `timed`, else steps. Changes model and progress."""
    import numpy as np
    import torch
    from tqdm import tqdm

    phase = PHASES[progress.phase]
    device = next(model.parameters()).device
    starts = np.random.RandomState(seed + progress.phase).permutation((len(tokens) - HELD_OUT_TOKENS) // phase.length)
    began = time.monotonic() - progress.seconds

    def spent() -> float:
        return progress.seconds if timed else float(progress.step)

    model.train()
    with tqdm(
        desc=f"phase {progress.phase + 1}",
        total=budget,
        initial=min(spent(), budget),
        bar_format="{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}{postfix}",
    ) as bar:
        while spent() < budget:
            rate = phase.learning_rate(progress.step, spent() / budget)
            for group in optimizer.param_groups:
                group["lr"] = rate
            first = progress.step * phase.batch
            windows = [int(starts[i % len(starts)]) * phase.length for i in range(first, first + phase.batch)]
            rows = np.stack([tokens[start : start + phase.length] for start in windows]).astype(np.int64)
            loss = next_token_loss(model, torch.from_numpy(rows).to(device))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

            value = loss.item()
            if not math.isfinite(value):
                raise UsageError(f"loss {value} at step {progress.step} of {bar.desc}; give another --seed")
            progress.loss = value if progress.loss is None else 0.98 * progress.loss + 0.02 * value
            progress.step += 1
            progress.seconds = time.monotonic() - began
            bar.update(min(spent(), budget) - bar.n)
            pace = progress.step * phase.batch * phase.length / progress.seconds
            bar.set_postfix_str(
                f"step {progress.step}, loss {progress.loss:.3f}, rate {rate:.5f}, {pace:.0f} tokens/s", refresh=False
            )
            if progress.step % checkpoint_steps == 0:
                checkpoint()


def held_out_loss(model: Any, tokens: "np.ndarray") -> float:
    """Return the float32 loss, in nats a token, on the last tokens of the corpus, which training never sees."""
    import numpy as np
    import torch
    from torch.nn import functional

    rows = np.array(tokens[-HELD_OUT_TOKENS:], dtype=np.int64).reshape(-1, PHASES[-1].length)
    losses = []
    model.eval()
    with torch.inference_mode():
        for batch in torch.split(torch.from_numpy(rows).to(model.device), 8):
            logits = model(input_ids=batch, use_cache=False).logits
            losses.append(functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch[:, 1:].flatten()).item())
    return sum(losses) / len(losses)


def train(options: argparse.Namespace) -> None:
    """Train a model from nothing, or go on from a checkpoint, and save it in bfloat16 with its tokenizer."""
    import torch
    from transformers import AutoTokenizer, LlamaForCausalLM

    if options.device == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: torch sees no CUDA device; give --device cpu")
    timed = options.steps is None
    budgets = [60.0 * minutes for minutes in options.minutes] if timed else [float(steps) for steps in options.steps]

    tokens = read_tokens(options.tokens)
    if not (options.tokenizer / "tokenizer.json").is_file():
        raise UsageError(f"--tokenizer {options.tokenizer}: no tokenizer.json there; give the folder `prepare` wrote")
    tokenizer: Any = AutoTokenizer.from_pretrained(options.tokenizer)
    config = build_config(options, tokenizer)
    largest = int(tokens.max())
    if largest >= config.vocab_size:
        raise UsageError(
            f"--tokens {options.tokens}: token {largest} is outside the {config.vocab_size} entries of "
            f"--tokenizer {options.tokenizer}; give the tokenizer that made the file"
        )
    with torch.device("meta"):
        parameters = sum(p.numel() for p in LlamaForCausalLM(config).parameters())
    if parameters > options.max_parameters:
        raise UsageError(
            f"the sizes make {parameters:,} parameters, above --max-parameters {options.max_parameters:,}; "
            "give a smaller --hidden-size or fewer --layers, or raise the limit"
        )
    sizes = ("hidden_size", "layers", "heads", "kv_heads", "intermediate_size", "context", "seed")
    identity = {f"--{name.replace('_', '-')}": getattr(options, name) for name in sizes}
    identity |= {"vocabulary": config.vocab_size, "number of tokens": len(tokens)}

    torch.manual_seed(options.seed)
    model: Any = LlamaForCausalLM(config)
    progress = Progress()
    optimizer_state = None
    if options.resume is not None:
        state = load_checkpoint(options.resume, identity)
        model.load_state_dict(state["model"])
        progress = Progress(**state["progress"])
        optimizer_state = state["optimizer"]
    model.to(options.device)
    print(f"{parameters:,} parameters, {len(tokens):,} tokens")

    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / CHECKPOINT
    while progress.phase < len(PHASES):
        optimizer = new_optimizer(model)
        if optimizer_state is not None:
            optimizer.load_state_dict(optimizer_state)
            optimizer_state = None

        def checkpoint(optimizer: Any = optimizer, progress: Progress = progress) -> None:
            save_checkpoint(path, identity, model, optimizer, progress)

        run_phase(
            model,
            optimizer,
            tokens,
            progress,
            budgets[progress.phase],
            timed,
            options.seed,
            checkpoint,
            options.checkpoint_steps,
        )
        if progress.loss is not None:
            print(f"phase {progress.phase + 1}: {progress.step:,} steps, loss {progress.loss:.3f} nats a token")
        progress = Progress(phase=progress.phase + 1)
        save_checkpoint(path, identity, model, None, progress)

    model.to(torch.bfloat16)
    model.save_pretrained(options.out)
    tokenizer.model_max_length = options.context
    for name in ("is_local", "local_files_only"):
        # How this process found the tokenizer says nothing about the tokenizer; some versions would save it.
        tokenizer.init_kwargs.pop(name, None)
    tokenizer.save_pretrained(options.out)
    path.unlink()
    # The rounded weights are what users get, so they are what is measured.
    loss = held_out_loss(model.float(), tokens)
    size = sum(file.stat().st_size for file in options.out.glob("*.safetensors"))
    print(f"{options.out}: weights {size / 1e6:.1f} MB, held-out loss {loss:.3f} nats a token")


# evaluate: sentence pairs to a rank correlation


def read_pairs(path: Path) -> tuple[list[str], list[float]]:
    """Read lines `id||sentence||sentence||score`.

    Returns:
        The 2n sentences, the two of a pair side by side, and the n scores.
    """
    if not path.is_file():
        raise UsageError(f"--sts {path}: no such file")
    sentences: list[str] = []
    scores: list[float] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        fields = line.split("||")
        try:
            _, first, second, score = fields
            scores.append(float(score))
        except ValueError as error:
            raise UsageError(f"--sts {path}: line {number} is {line!r}; write id||sentence||sentence||score") from error
        sentences += [first, second]
    if len(scores) < 2:
        raise UsageError(f"--sts {path}: {len(scores)} pairs; a correlation needs at least 2")
    return sentences, scores


def evaluate(options: argparse.Namespace) -> dict[str, Any]:
    """Return the Spearman correlation of cosine similarity (float32) with the given scores."""
    import torch
    from scipy.stats import spearmanr

    import st_reba

    if options.device == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: torch sees no CUDA device; give --device cpu")
    if not (options.model / "config.json").is_file():
        raise UsageError(f"MODEL {options.model}: no config.json there; give a folder that `train` wrote")
    sentences, scores = read_pairs(options.sts)
    sentences, scores = sentences[: 2 * options.pairs], scores[: options.pairs]
    copies = 1 if options.method == "classical" else options.repeats
    model = st_reba.build(
        options.model,
        options.method,
        pooling=options.pooling,
        # One position more than the content, for BOS.
        max_seq_length=copies * CONTENT_LIMIT + 1,
        dtype="float32",
        device=options.device,
        **({} if options.method == "classical" else {"repeats": copies}),
    )
    vectors: Any = model.encode(sentences, batch_size=options.batch_size, convert_to_tensor=True)
    cosine = (vectors[0::2] * vectors[1::2]).sum(dim=1).cpu()
    return {
        "model": options.model.name,
        "method": options.method,
        "repeats": copies,
        "pooling": options.pooling,
        "sts": options.sts.name,
        "pairs": len(scores),
        "spearman": round(float(spearmanr(cosine, scores).statistic), 4),
    }


# command line


def positive(text: str) -> int:
    """Parse a whole number above zero."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number above 0")
    return number


def amount(text: str) -> float:
    """Parse a finite number that is not negative; 0 leaves a phase out."""
    number = float(text)
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 up")
    return number


def steps_amount(text: str) -> int:
    """Parse a whole number that is not negative; 0 leaves a phase out."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 0 up")
    return number


def build_parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    commands = parser.add_subparsers(dest="command", required=True)

    command = commands.add_parser(
        "prepare",
        formatter_class=raw,
        help="clean text, train the tokenizer, write tokens.npy",
        description="Clean Chinese and English text, train a byte-fallback BPE tokenizer of 8,192 entries on it and\n"
        "write tokenizer.json, tokenizer_config.json and tokens.npy (uint16). Needs opencc-python-reimplemented.",
        epilog="example:\n  %(prog)s --zh-wiki zhwiki --en-wiki enwiki --lctt TranslateProject/published --out corpus",
    )
    wiki = "WikiExtractor output (AA/wiki_00, …)"
    command.add_argument("--zh-wiki", type=Path, required=True, metavar="DIR", help=f"Chinese Wikipedia: {wiki}")
    command.add_argument("--en-wiki", type=Path, required=True, metavar="DIR", help=f"English Wikipedia: {wiki}")
    command.add_argument("--lctt", type=Path, required=True, metavar="DIR", help="LCTT's articles: markdown files")
    command.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the three files are written")
    command.add_argument("--seed", type=int, default=0, help="order of the documents (default: %(default)s)")

    command = commands.add_parser(
        "train",
        formatter_class=raw,
        help="train a model on a file of tokens",
        description="Train a small LLaMA in two phases: 16 windows of 256 tokens a step at a constant rate of 3e-3,\n"
        "then 8 windows of 512 at 2.4e-3 falling linearly to 1.5 % of that. Writes the weights in bfloat16.\n"
        f"Every so often {CHECKPOINT} is written to --out; it is removed when training is complete.",
        epilog="examples:\n"
        "  %(prog)s --tokens corpus/tokens.npy --tokenizer corpus --out mini\n"
        "  %(prog)s --tokens tokens.u16.xz --tokenizer corpus --out trial --steps 200 100\n"
        "  %(prog)s --tokens corpus/tokens.npy --tokenizer corpus --out mini --resume mini",
    )
    command.add_argument(
        "--tokens", type=Path, required=True, metavar="FILE", help="token ids: .npy, or .xz (little-endian uint16)"
    )
    command.add_argument("--tokenizer", type=Path, required=True, metavar="DIR", help="tokenizer that made the tokens")
    command.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the model is written")
    length = command.add_mutually_exclusive_group()
    length.add_argument(
        "--minutes",
        type=amount,
        nargs=2,
        default=(43.0, 24.0),
        metavar=("ONE", "TWO"),
        help="length of the two phases in minutes (default: 43 24)",
    )
    length.add_argument(
        "--steps", type=steps_amount, nargs=2, metavar=("ONE", "TWO"), help="length of the two phases in steps instead"
    )
    for option, default, meaning in (
        ("--hidden-size", 192, "width of the model"),
        ("--layers", 6, "number of layers"),
        ("--heads", 6, "attention heads"),
        ("--kv-heads", 2, "key/value heads"),
        ("--intermediate-size", 512, "width of the feed-forward layers"),
        ("--context", 1024, "positions the model claims; training uses 512"),
        ("--max-parameters", 8_000_000, "refuse a larger model"),
        ("--checkpoint-steps", 500, "steps between checkpoints"),
    ):
        command.add_argument(
            option, type=positive, default=default, metavar="N", help=f"{meaning} (default: %(default)s)"
        )
    command.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default: %(default)s")
    command.add_argument("--seed", type=int, default=0, help="weights and order of windows (default: %(default)s)")
    command.add_argument("--resume", type=Path, metavar="DIR", help=f"go on from the {CHECKPOINT} in this folder")

    command = commands.add_parser(
        "evaluate",
        formatter_class=raw,
        help="Spearman correlation on sentence pairs",
        description=f"Embed each sentence (at most {CONTENT_LIMIT} tokens of it) and print the Spearman\n"
        "correlation of the pairs' cosine with their scores as JSON.",
        epilog="examples:\n  %(prog)s st_reba/mini --sts cnsd-sts-dev.txt\n"
        "  %(prog)s st_reba/mini --sts cnsd-sts-test.txt --pairs 1200 --method reba --pooling last",
    )
    command.add_argument("model", type=Path, metavar="MODEL", help="model folder")
    command.add_argument("--sts", type=Path, required=True, metavar="FILE", help="lines id||sentence||sentence||score")
    command.add_argument(
        "--method", choices=("classical", "echo", "reba"), default="classical", help="default: %(default)s"
    )
    command.add_argument("--pooling", choices=("last", "mean"), default="mean", help="default: %(default)s")
    command.add_argument("--repeats", type=positive, default=2, metavar="K", help="copies (default: %(default)s)")
    command.add_argument("--pairs", type=positive, metavar="N", default=sys.maxsize, help="the first N only")
    command.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default: %(default)s")
    command.add_argument("--batch-size", type=positive, default=64, metavar="N", help="default: %(default)s")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return the exit status."""
    options = build_parser().parse_args(arguments)
    try:
        if options.command == "prepare":
            prepare(options.zh_wiki, options.en_wiki, options.lctt, options.out, options.seed)
        elif options.command == "train":
            train(options)
        else:
            print(json.dumps(evaluate(options), indent=2))
    except UsageError as error:
        print(f"{Path(sys.argv[0]).name}: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
