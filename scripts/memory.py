"""Memory that embedding with a base takes, counted from its shape; and measured, on a GPU if there is one.

    python scripts/memory.py
    python scripts/memory.py BASE NUMBER METHOD [METHOD ...]

The first prints the table of docs/how-to/large-models.md; the second counts for a base, and
measures what a process or GPU holds. BASE is a folder, or a name of that table: then weights are
drawn at random, and saved in the folder for temporary files. NUMBER is float32, bfloat16, int8 or
nf4. Counted are the weights, and what is alive at once inside a layer: per position 4 vectors of
the hidden size (the embedding, the layer's input, the state after its attention, and its norm) and
3 of the MLP's size (gate, up, their product). A GPU needs about 1 GB more, for its context.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from process_memory import held_bytes, peak_bytes
from transformers import AutoConfig, AutoModel  # type: ignore[attr-defined]

# On a CPU, larger tensors are given back to the system at once, so that the peak is that of
# tensors.
ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "TOKENIZERS_PARALLELISM": "false",
}


class Shape(NamedTuple):
    """As a model's configuration says."""

    model_type: str
    num_hidden_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int


SHAPES = {
    "Llama-3.2-1B": Shape("llama", 16, 2048, 8192, 32, 8, 64, 128256),
    "Llama-3.2-3B": Shape("llama", 28, 3072, 8192, 24, 8, 128, 128256),
    "Qwen3-4B": Shape("qwen3", 36, 2560, 9728, 32, 8, 128, 151936),
    "Llama-2-7B": Shape("llama", 32, 4096, 11008, 32, 32, 128, 32000),
    "Mistral-7B": Shape("mistral", 32, 4096, 14336, 32, 8, 128, 32000),
    "Qwen2.5-7B": Shape("qwen2", 28, 3584, 18944, 28, 4, 128, 152064),
    "Llama-3.1-8B": Shape("llama", 32, 4096, 14336, 32, 8, 128, 128256),
    "Qwen3-8B": Shape("qwen3", 36, 4096, 12288, 32, 8, 128, 151936),
    "Llama-2-13B": Shape("llama", 40, 5120, 13824, 40, 40, 128, 32000),
    "Llama-3.1-70B": Shape("llama", 80, 8192, 28672, 64, 8, 128, 128256),
}
# Bytes of a weight of a linear layer. nf4: 4 bits, and a scale of float32 for 64 weights.
LINEAR_BYTES = {
    "float32": 4.0,
    "bfloat16": 2.0,
    "int8": 1.0,
    "nf4": 0.5 + 4 / 64,
}
TABLE_POSITIONS = 4096
BATCH_SIZE = 8
TEXT = "The committee read the report twice before it agreed to fund the bridge. " * 80


def dense_bytes(number_type: str) -> int:
    """Bytes of other weights and of activations: they stay in 16 bits."""
    return 4 if number_type == "float32" else 2


def count_weights(config: Any, number_type: str) -> float:
    """GB of the weights of a base without its head."""
    with torch.device("meta"):
        model = AutoModel.from_config(config)
    linear_count = 0
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            linear_count += module.weight.numel()
    other_count = sum(weight.numel() for weight in model.parameters()) - linear_count
    total_bytes = linear_count * LINEAR_BYTES[number_type] + other_count * dense_bytes(number_type)
    return float(total_bytes) / 1e9


def count_activations(config: Any, positions: int, number_type: str = "bfloat16") -> float:
    """GB that a pass of this many positions holds besides the weights."""
    text_config = config.get_text_config()
    numbers_a_position = 4 * text_config.hidden_size + 3 * text_config.intermediate_size
    return float(dense_bytes(number_type) * positions * numbers_a_position) / 1e9


def held_gigabytes() -> float:
    """What the card's tensors, or this process, hold now; from here on a new peak is measured."""
    if torch.cuda.is_available():
        allocated = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        return allocated / 1e9
    resident = held_bytes() / 1e9
    Path("/proc/self/clear_refs").write_text("5", "utf-8")
    return resident


def peak_gigabytes() -> float:
    """The most that they held since :func:`held_gigabytes` was called."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1e9
    return peak_bytes() / 1e9


def config_of(name: str) -> Any:
    """The configuration of a base of the table."""
    settings = SHAPES[name]._asdict()
    model_type = settings.pop("model_type")
    return AutoConfig.for_model(model_type, **settings, use_sliding_window=False)


def random_base(name: str) -> str:
    """A folder with a base of the table's shape, random weights in bfloat16, and the bundled model's tokenizer."""
    import st_reba

    folder = Path(tempfile.gettempdir(), name)
    if not folder.exists():
        device = "cuda" if torch.cuda.is_available() else "cpu"
        with torch.device(device):
            model = AutoModel.from_config(config_of(name), dtype=torch.bfloat16)
        model.save_pretrained(folder)
        st_reba.build("mini").tokenizer.save_pretrained(folder)
    return str(folder)


def open_base(folder: str, number_type: str) -> Any:
    from st_reba.evaluation.readouts import load_base

    if number_type in ("int8", "nf4"):
        return load_base(folder, max_seq_length=1024, quantization=number_type)
    return load_base(folder, max_seq_length=1024, dtype=number_type)


def tensor_gigabytes(model: Any) -> float:
    total_bytes = 0
    for tensor in model.state_dict().values():
        total_bytes += tensor.numel() * tensor.element_size()
    return float(total_bytes) / 1e9


def measure(base: str, number_type: str, methods: list[str]) -> None:
    """Print the tensors of the base, and the peak of a pass of eight texts over what was held before."""
    from st_reba.evaluation.readouts import build_on
    from st_reba.methods import Method

    folder = random_base(base) if base in SHAPES else base
    model = open_base(folder, number_type)
    config = AutoConfig.from_pretrained(folder)
    texts = [TEXT] * BATCH_SIZE
    print(
        "| base | method | numbers | weights, GB: counted | held | positions | pass, GB: counted | held | seconds |"
    )
    print("|---|---|---|--:|--:|--:|--:|--:|--:|")
    for method in methods:
        pipeline = build_on(model, Method.parse(method), check=False)
        positions = int(pipeline.preprocess(texts)["input_ids"].numel())
        pipeline.encode(texts if torch.cuda.is_available() else texts[:1])
        held_before = held_gigabytes()
        start_time = time.perf_counter()
        pipeline.encode(texts, batch_size=BATCH_SIZE)
        seconds = time.perf_counter() - start_time
        pass_gigabytes = peak_gigabytes() - held_before
        cells = [
            Path(base).name,
            method,
            number_type,
            f"{count_weights(config, number_type):.2f}",
            f"{tensor_gigabytes(model):.2f}",
            f"{positions:,}",
            f"{count_activations(config, positions, number_type):.2f}",
            f"{pass_gigabytes:.2f}",
            f"{seconds:.2f}",
        ]
        print(f"| {' | '.join(cells)} |", flush=True)
    if torch.cuda.is_available():
        free_bytes, total_bytes = torch.cuda.mem_get_info()
        taken_gigabytes = (total_bytes - free_bytes) / 1e9
        print(
            f"{taken_gigabytes:.2f} GB of the card are taken, with its context and what torch keeps."
        )


def print_table() -> None:
    """The table of docs/how-to/large-models.md."""
    print(
        f"| base | bfloat16 | int8 | nf4 | a pass of {TABLE_POSITIONS:,} positions |\n|---|--:|--:|--:|--:|"
    )
    for name in SHAPES:
        config = config_of(name)
        gigabytes = [
            count_weights(config, number_type) for number_type in ("bfloat16", "int8", "nf4")
        ]
        gigabytes.append(count_activations(config, TABLE_POSITIONS))
        cells = " | ".join(f"{value:.1f}" for value in gigabytes)
        print(f"| {name} | {cells} |", flush=True)


def main() -> None:
    if len(sys.argv) <= 3:
        print_table()
        return
    # These variables take effect only when a process starts, so it is started again with them.
    if not ENVIRONMENT.items() <= os.environ.items():
        os.execve(
            sys.executable,
            [sys.executable, *sys.argv],
            os.environ | ENVIRONMENT,
        )
    _, base, number_type, *methods = sys.argv
    measure(base, number_type, methods)


if __name__ == "__main__":
    main()
