"""Count what methods cost on models of real sizes: products and memory on paper, of tensors without numbers.

    python scripts/count_costs.py > costs.md

Nothing is computed and no weights are needed: each pass runs on a device that knows shapes only, by the kernels that a
GPU runs. All layers of a kind cost the same, so that only the first ones run, and the others are reckoned from them.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModel, Gemma2Config, LlamaConfig, PreTrainedConfig, PreTrainedModel, Qwen3Config

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from fake_device import FakeDevice, Living, fake_device  # noqa: E402
from pipelines import pipeline  # noqa: E402

from st_reba import NoSink  # noqa: E402

LENGTHS = (512, 4096, 32768)
POSITIONS = 1 << 17
CHUNK = 512
PLAIN = "transformers alone"

CONFIGS: dict[str, Callable[[], PreTrainedConfig]] = {
    "Llama-2-7B": lambda: LlamaConfig(
        hidden_size=4096,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=32,
        intermediate_size=11008,
        vocab_size=32000,
        max_position_embeddings=POSITIONS,
    ),
    "Qwen3-8B": lambda: Qwen3Config(
        hidden_size=4096,
        num_hidden_layers=36,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        intermediate_size=12288,
        vocab_size=151936,
        max_position_embeddings=POSITIONS,
    ),
    "Gemma-2-9B": lambda: Gemma2Config(
        hidden_size=3584,
        num_hidden_layers=42,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=256,
        query_pre_attn_scalar=256,
        intermediate_size=14336,
        vocab_size=256000,
        attn_logit_softcapping=50.0,
        sliding_window=4096,
        max_position_embeddings=POSITIONS,
    ),
}
# Name: method, stages, fields and copies of the text in a row.
METHODS: dict[str, tuple[str, list[Any], dict[str, Any], int]] = {
    "classical": ("classical", [], {}, 1),
    "Echo-2": ("echo", [], {}, 2),
    "ReBA-2 last": ("reba", [], {}, 2),
    "ReBA-2 mean": ("reba", [], {"pooling": "mean"}, 2),
    "NoSink, MASK0-BIDIR, all layers": ("nosink", [NoSink("mask0-bidir", k="all")], {}, 1),
    "ReBA-2 mean with MASK0-BIDIR": ("reba", [NoSink("mask0-bidir", k="all")], {"pooling": "mean"}, 2),
    f"ReBA by pieces of {CHUNK}, mean": ("reba", [], {"pooling": "mean", "chunk": CHUNK}, 0),
}


@dataclass(frozen=True)
class Cost:
    """What one text costs.

    Args:
        model: The model's shape.
        method: The method.
        length: Positions of the row, all copies.
        flops: Floating-point operations of all products, attention as if nothing were hidden.
        peak: Most bytes of tensors that lived at one time, without the weights.
        largest: Bytes of the largest of these tensors.
        shape: Its shape.
        dtype: Its number type.
    """

    model: str
    method: str
    length: int
    flops: float
    peak: int
    largest: int
    shape: tuple[int, ...]
    dtype: str


class LayerFlops:
    """What of a counter's operations happened in layers, for a backbone that is deeper than what runs.

    Args:
        model: The backbone, as far as it runs.
        counter: The running counter.
    """

    def __init__(self, model: PreTrainedModel, counter: FlopCounterMode) -> None:
        self.inside = self._start = 0
        self._counter = counter
        layers: Any = model.layers
        self._hooks = [
            layers[0].register_forward_pre_hook(self._begin),
            layers[-1].register_forward_hook(self._end),
        ]

    def _begin(self, module: nn.Module, given: Any) -> None:
        self._start = self._counter.get_total_flops()

    def _end(self, module: nn.Module, given: Any, output: Any) -> None:
        self.inside += self._counter.get_total_flops() - self._start

    def close(self) -> None:
        """Forget the layers."""
        for hook in self._hooks:
            hook.remove()


def backbone(config: PreTrainedConfig, layers: int | None, attention: str, device: FakeDevice) -> PreTrainedModel:
    """A model of that shape without numbers, its first layers alone."""
    whole = config.num_hidden_layers
    if layers is not None:
        config.num_hidden_layers = min(layers, whole)
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types[:layers]
    with torch.device("meta"):
        model: PreTrainedModel = AutoModel.from_config(config, attn_implementation=attention, dtype=torch.bfloat16)
    device.take(model.eval())
    return model


def features(length: int, copies: int) -> dict[str, Any]:
    """A text whose copies fill ``length`` positions; 0 copies: in pieces, of as many tokens as where there are two."""
    row = length if copies else length // 2
    count = row // max(1, copies)
    numbers = torch.arange(row)[None] // count + 1
    ids = torch.zeros(1, row, dtype=torch.long)
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "copy_ids": numbers,
        "places": [(0, count, row)],
    }


def count(name: str, method: str, length: int, layers: int | None) -> Cost:
    """Run one text through a method."""
    config = CONFIGS[name]()
    depth = config.num_hidden_layers
    capped = getattr(config, "attn_logit_softcapping", None) is not None
    kind, stages, fields, copies = METHODS.get(method, ("classical", [], {}, 1))
    run: Any = pipeline("mini", kind, stages, width=config.hidden_size, **fields)
    with fake_device() as device:
        # SDPA has no soft cap; ours takes its place.
        model = backbone(config, layers, "eager" if capped else "sdpa", device)
        given = device.features(features(length, copies))
        if method == PLAIN:
            run = partial(model, attention_mask=given["attention_mask"], use_cache=False)
            given = given["input_ids"]
        else:
            run[0].rebind(run[0].stages, model)
        with Living(model, given) as living, FlopCounterMode(display=False) as counter:
            inside = LayerFlops(model, counter)
            output = run(given)
            inside.close()
        del output
    total = counter.get_total_flops()
    flops = total + inside.inside * (depth / config.num_hidden_layers - 1)
    shape, dtype = living.shown
    return Cost(name, method, length, flops, living.peak, living.largest, shape, str(dtype).removeprefix("torch."))


def table(costs: list[Cost]) -> str:
    """Markdown: a table for each model, products and memory by length, and the largest tensor at the longest."""
    parts = []
    for name in dict.fromkeys(cost.model for cost in costs):
        own = [cost for cost in costs if cost.model == name]
        lengths = sorted({cost.length for cost in own})
        shown = [f"{length:,}" for length in lengths]
        lines = [
            f"| {name} | TFLOP at {' | '.join(shown)} | GiB at {' | '.join(shown)} | largest tensor at {shown[-1]} |",
            f"|---|{'--:|' * 2 * len(lengths)}---|",
        ]
        for method in dict.fromkeys(cost.method for cost in own):
            found = {cost.length: cost for cost in own if cost.method == method}
            flops = [f"{found[length].flops / 1e12:,.2f}" if length in found else "–" for length in lengths]
            peaks = [f"{found[length].peak / 2**30:,.2f}" if length in found else "–" for length in lengths]
            last = found.get(lengths[-1])
            largest = "–" if last is None else f"{' × '.join(f'{n:,}' for n in last.shape)} {last.dtype}"
            lines.append(f"| {method} | {' | '.join(flops)} | {' | '.join(peaks)} | {largest} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def build_parser() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n")[0],
        epilog="example:\n  python scripts/count_costs.py --models Llama-2-7B --lengths 512 4096",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    methods = [PLAIN, *METHODS]
    add = parser.add_argument
    add("--models", nargs="+", choices=list(CONFIGS), default=list(CONFIGS), metavar="M", help=", ".join(CONFIGS))
    add("--methods", nargs="+", choices=methods, default=methods, metavar="M", help="; ".join(methods))
    add("--lengths", nargs="+", type=int, default=list(LENGTHS), metavar="T", help="positions of a row, all copies")
    add("--layers", type=int, default=4, metavar="N", help="layers that run, an even number; 0: all (default: 4)")
    add("--json", metavar="FILE", type=Path, help="also write every number there")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Print the tables."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    if options.layers < 0 or options.layers % 2:
        parser.error(f"--layers={options.layers}: give an even number, as layers with a window and without alternate.")
    if too_short := [length for length in options.lengths if length < 64 or length > POSITIONS]:
        parser.error(f"--lengths={too_short[0]}: give 64 to {POSITIONS:,} positions.")
    transformers.utils.logging.disable_progress_bar()
    costs = []
    for name in options.models:
        for method in options.methods:
            for length in options.lengths:
                start = time.perf_counter()
                cost = count(name, method, length, options.layers or None)
                costs.append(cost)
                took = f"{time.perf_counter() - start:.0f} s"
                print(f"{name}, {method}, {length:,}: {cost.flops / 1e12:,.2f} TFLOP, {took}", file=sys.stderr)
    print(table(costs))
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(cost) for cost in costs], indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
