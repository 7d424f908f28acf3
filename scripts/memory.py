"""Memory that embedding with a base takes, counted from its shape; and measured, on a GPU if there is one.

    python scripts/memory.py                                  the table of docs/how-to/large-models.md
    python scripts/memory.py BASE NUMBER METHOD [METHOD ...]  a base: counted, and as a process or GPU holds it

BASE is a folder, or a name of that table: then weights are drawn at random, and saved in the folder for temporary
files. NUMBER is float32, bfloat16, int8 or nf4. Counted are the weights, and what is alive at once inside a layer: per
position 4 vectors of the hidden size (the embedding, the layer's input, the state behind its attention, and its norm)
and 3 of the MLP's size (gate, up, their product). A GPU needs about 1 GB more, for its context.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModel

# On a CPU, larger tensors are given back to the system at once, so that the peak is that of tensors.
ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "TOKENIZERS_PARALLELISM": "false",
}
# Type, layers, hidden size, MLP, heads, key-value heads, size of a head, vocabulary: as the models' configurations say.
SHAPES = {
    "Llama-3.2-1B": ("llama", 16, 2048, 8192, 32, 8, 64, 128256),
    "Llama-3.2-3B": ("llama", 28, 3072, 8192, 24, 8, 128, 128256),
    "Qwen3-4B": ("qwen3", 36, 2560, 9728, 32, 8, 128, 151936),
    "Llama-2-7B": ("llama", 32, 4096, 11008, 32, 32, 128, 32000),
    "Mistral-7B": ("mistral", 32, 4096, 14336, 32, 8, 128, 32000),
    "Qwen2.5-7B": ("qwen2", 28, 3584, 18944, 28, 4, 128, 152064),
    "Llama-3.1-8B": ("llama", 32, 4096, 14336, 32, 8, 128, 128256),
    "Qwen3-8B": ("qwen3", 36, 4096, 12288, 32, 8, 128, 151936),
    "Llama-2-13B": ("llama", 40, 5120, 13824, 40, 40, 128, 32000),
    "Llama-3.1-70B": ("llama", 80, 8192, 28672, 64, 8, 128, 128256),
}
FIELDS = (
    "num_hidden_layers",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
)
# Bytes of a weight of a linear layer. nf4: 4 bits, and a scale of float32 for 64 weights. Others stay in 16 bits.
BYTES = {"float32": 4.0, "bfloat16": 2.0, "int8": 1.0, "nf4": 0.5 + 4 / 64}
POSITIONS, BATCH = 4096, 8


def weights(config: Any, number: str) -> float:
    """GB of the weights of a base without its head."""
    with torch.device("meta"):
        model = AutoModel.from_config(config)
    linear = sum(each.weight.numel() for each in model.modules() if isinstance(each, torch.nn.Linear))
    rest = sum(each.numel() for each in model.parameters()) - linear
    return (linear * BYTES[number] + rest * (4 if number == "float32" else 2)) / 1e9


def activations(config: Any, positions: int, number: str = "bfloat16") -> float:
    """GB that a pass of so many positions holds beside the weights."""
    text = config.get_text_config()
    return (4 if number == "float32" else 2) * positions * (4 * text.hidden_size + 3 * text.intermediate_size) / 1e9


def held(most: bool = False) -> float:
    """GB that the card's tensors, or this process, hold now, or (``most``) held at most since this was last asked."""
    if torch.cuda.is_available():
        found = torch.cuda.max_memory_allocated() if most else torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        return found / 1e9
    line = re.search(
        rf"{'VmHWM' if most else 'VmRSS'}:\s*(\d+)",
        Path("/proc/self/status").read_text("utf-8"),
    )
    Path("/proc/self/clear_refs").write_text("5", "utf-8")
    return int(line[1]) * 1024 / 1e9 if line else 0.0


def shape(name: str) -> Any:
    """The configuration of a base of the table."""
    kind, *numbers, head, vocabulary = SHAPES[name]
    sizes = dict(zip(FIELDS, numbers, strict=True))
    return AutoConfig.for_model(
        kind,
        **sizes,
        head_dim=head,
        vocab_size=vocabulary,
        use_sliding_window=False,
    )


def drawn(name: str) -> str:
    """A folder with a base of the table's shape, random weights in bfloat16, and the embedded model's tokenizer."""
    import st_reba

    folder = Path(tempfile.gettempdir(), name)
    if not folder.exists():
        with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
            AutoModel.from_config(shape(name), dtype=torch.bfloat16).save_pretrained(folder)
        st_reba.build("mini").tokenizer.save_pretrained(folder)
    return str(folder)


def measure(base: str, number: str, methods: list[str]) -> None:
    """Print the tensors of the base, and the peak of a pass of eight texts over what was held before."""
    from st_reba.evaluation.readouts import of_base, opened
    from st_reba.methods import Method

    how: dict[str, Any] = {"quantization": number} if number in ("int8", "nf4") else {"dtype": number}
    folder = drawn(base) if base in SHAPES else base
    model, config = (
        opened(folder, max_seq_length=1024, **how),
        AutoConfig.from_pretrained(folder),
    )
    tensors = sum(each.numel() * each.element_size() for each in model.state_dict().values()) / 1e9
    texts = ["The committee read the report twice before it agreed to fund the bridge. " * 80] * BATCH
    print("| base | method | numbers | weights, GB: counted | held | positions | pass, GB: counted | held | seconds |")
    print("|---|---|---|--:|--:|--:|--:|--:|--:|")
    for method in methods:
        pipeline = of_base(model, Method.parse(method), check=False)
        positions = int(pipeline.preprocess(texts)["input_ids"].numel())
        pipeline.encode(texts if torch.cuda.is_available() else texts[:1])
        before, began = held(), time.perf_counter()
        pipeline.encode(texts, batch_size=BATCH)
        seconds, peak = time.perf_counter() - began, held(most=True) - before
        cells = f"{weights(config, number):.2f} | {tensors:.2f} | {positions:,} | "
        cells += f"{activations(config, positions, number):.2f} | {peak:.2f} | {seconds:.2f}"
        print(f"| {Path(base).name} | {method} | {number} | {cells} |", flush=True)
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        print(f"{(total - free) / 1e9:.2f} GB of the card are taken, with its context and what torch keeps.")


def main() -> None:
    if len(sys.argv) > 3:
        if any(os.environ.get(name) != value for name, value in ENVIRONMENT.items()):
            os.execve(
                sys.executable,
                [sys.executable, *sys.argv],
                {**os.environ, **ENVIRONMENT},
            )
        return measure(*sys.argv[1:3], sys.argv[3:])
    print(f"| base | bfloat16 | int8 | nf4 | a pass of {POSITIONS:,} positions |\n|---|--:|--:|--:|--:|")
    for name in SHAPES:
        config = shape(name)
        cells = [weights(config, number) for number in ("bfloat16", "int8", "nf4")]
        cells.append(activations(config, POSITIONS))
        print(
            f"| {name} | {' | '.join(f'{each:.1f}' for each in cells)} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
