"""What only a GPU can show, in one command: the same vectors, no waiting, and what each method costs there.

    python scripts/check_gpu.py --json gpu.json      on one CUDA card, in less than ten minutes
    python scripts/check_gpu.py --cpu                the same on a CPU, with small models
    python scripts/check_gpu.py --dry                shapes, devices and kernels, on a device without numbers

Vectors and kernels are compared with blocks of float32 on the CPU. Inside passes CUDA makes an error of every wait.
Exit status 1: something differs, or waits.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import transformers
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests"), str(ROOT)]

import count_costs  # noqa: E402
from architectures import save  # noqa: E402
from count_costs import METHODS, PLAIN  # noqa: E402
from fake_device import CASES, Living, Reading, fake_device, trusted  # noqa: E402
from oracle import TEXTS  # noqa: E402
from pipelines import pipeline  # noqa: E402

from st_reba.modules import decoder, kernels  # noqa: E402
from st_reba.modules.layer_list import layers_of  # noqa: E402
from st_reba.modules.scores import Scores, additive, blocked_attention  # noqa: E402

DTYPES = ("float32", "bfloat16", "float16")
# Of a vector's length: the largest distance that rounding may make.
TOLERANCES = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
# Grouped heads, heads of their own, a window, a soft cap with windows.
BASES = ("mini", "llama", "gpt2", "mistral", "gemma2")
# Heads, key heads, widths of queries and values.
HEADS = ((8, 8, 64, 64), (8, 2, 128, 128), (4, 1, 80, 80), (4, 4, 96, 64), (4, 2, 256, 256))
LARGE = "Llama-2-7B"


@dataclass(frozen=True)
class Check:
    """One comparison: of vectors, or of a kernel.

    Args:
        part: ``"vectors"`` or ``"kernels"``.
        what: Base and method; or shape, mask and kernel.
        dtype: Number type.
        difference: From float32 in blocks; None: it did not run.
        tolerance: At most this.
        problem: What is wrong, in words.
    """

    part: str
    what: str
    dtype: str
    difference: float | None
    tolerance: float
    problem: str = ""

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problem and self.difference is not None and self.difference <= self.tolerance


@dataclass(frozen=True)
class Speed:
    """One method on one model, beside transformers alone.

    Args:
        model: Its name.
        method: The method.
        texts: Texts in the batch.
        length: Positions of a row, all copies.
        seconds: The median.
        ratio: To transformers alone on as many positions, run directly before and after it.
        peak: Most bytes above the weights.
    """

    model: str
    method: str
    texts: int
    length: int
    seconds: float
    ratio: float
    peak: int


def to_device(features: dict[str, Any], device: str) -> dict[str, Any]:
    """Features with their tensors there."""
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in features.items()}


# ---------------------------------------------------------------------------------------------------------------------
# The same vectors, without waiting


@contextmanager
def no_waiting(first: Any, device: str) -> Iterator[list[str]]:
    """What the host waits for from the first layer on, but for a pass's one flag, is an error; a CPU lists it."""
    if device == "cpu":
        with trusted(), Reading(layers_of(first.backbone)[0]) as reading:
            yield reading.read
        return
    mode: Callable[[str], None] = torch.cuda.set_sync_debug_mode

    def finite(flag: Tensor) -> bool:
        mode("default")
        value = bool(flag)
        mode("error")
        return value

    # Before it transformers' own attention reads whether anything is padded.
    hook = layers_of(first.backbone)[0].register_forward_pre_hook(lambda module, given: mode("error"))
    try:
        with patch.object(decoder, "on_host", finite):
            yield []
    finally:
        mode("default")
        hook.remove()


@cache
def wanted(base: str, name: str, dtype: str) -> Tensor:
    """A method's vectors on the CPU: weights rounded to a number type, everything else float32, attention in blocks."""
    method, stages, fields = CASES[name]
    model = pipeline(base, method, stages, dtype=dtype, **fields).float()
    with torch.inference_mode(), patch.dict(kernels.KERNELS, {"cpu": ()}):
        found: Tensor = model(model.preprocess(list(TEXTS)))["sentence_embedding"]
    return found


def vectors(base: str, folder: str, name: str, dtype: str, device: str) -> Check:
    """One method on one base: the same vectors, twice, the second time without waiting."""
    method, stages, fields = CASES[name]
    check = partial(Check, "vectors", f"{base}, {name}", dtype, tolerance=TOLERANCES[dtype])
    try:
        model = pipeline(folder, method, stages, dtype=dtype, **fields).to(device)
        features = to_device(model.preprocess(list(TEXTS)), device)
        with torch.inference_mode():
            # Kernels are tried in the first pass.
            model(features)
            with no_waiting(model[0], device) as reads:
                found = model(features)["sentence_embedding"]
        flags = (2 if "chunk" in name else 1) * ("published" not in name)
        problem = "" if device != "cpu" or len(reads) == flags else f"{len(reads)} numbers read, not {flags}"
    except (AssertionError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        return check(difference=None, problem=f"{type(error).__name__}: {str(error).splitlines()[0]}")
    exact = wanted(folder, name, dtype)
    distance = (found.float().cpu() - exact).norm(dim=-1) / exact.norm(dim=-1).clamp_min(1e-12)
    return check(difference=float(distance.nan_to_num(torch.inf).max()), problem=problem)


def kernel(heads: tuple[int, int, int, int], masked: bool, sinks: bool, dtype: str, device: str) -> Check:
    """Attention's kernel for one shape of heads, against blocks of float32 on the CPU."""
    number, groups, width, narrow = heads
    length, kind = 200, getattr(torch, dtype)
    generator = torch.Generator().manual_seed(0)
    shapes = ((number, width), (groups, width), (groups, narrow))
    query, key, value = (torch.randn(2, h, length, d, generator=generator).to(kind) for h, d in shapes)
    logits = torch.randn(number, generator=generator).to(kind) if sinks else None
    window = torch.ones(1, 1, length, length, dtype=torch.bool).tril().triu(-20) if masked else None
    exact = Scores(query.float(), key.float(), window, True)
    output, totals = blocked_attention(exact, value.float(), sinks=None if logits is None else logits.float())
    moved = [each.to(device) for each in (query, key, value)]
    mask = None if window is None else additive(window.to(device), kind)
    chosen = kernels.kernel_for(*moved, mask)
    shown = "blocks" if chosen is None else chosen.__name__
    extras = f"{', window' * masked}{', sinks' * sinks}"
    what = f"{number} heads of {width}, {groups} of keys, values {narrow}{extras}: {shown}"
    check = partial(Check, "kernels", what, dtype, tolerance=TOLERANCES[dtype])
    sink = None if logits is None else logits.to(device)
    given = Scores(moved[0], moved[1], mask, True)
    found = kernels.attention_with_totals(given, moved[2], sink) or blocked_attention(given, moved[2], sinks=sink)
    problem = "" if chosen is not None or device == "cpu" else "no kernel: such layers run in blocks"
    pairs = zip(found, (output, totals), strict=True)
    return check(difference=max(float((a.float().cpu() - b).abs().max()) for a, b in pairs), problem=problem)


def compared(device: str, folders: dict[str, str]) -> Iterator[Check]:
    """Every kernel and every method."""
    for dtype in DTYPES:
        for heads in HEADS:
            for masked, sinks in ((False, False), (True, False), (False, True)):
                yield kernel(heads, masked, sinks, dtype, device)
        for base, folder in folders.items():
            for name in CASES:
                yield vectors(base, folder, name, dtype, device)


# ---------------------------------------------------------------------------------------------------------------------
# Time and memory


def backbone(name: str, device: str) -> Any:
    """mini, or random weights of a large model's shape."""
    if name == "mini":
        model = pipeline("mini", "classical", dtype="bfloat16" if device == "cuda" else "float32")[0].model
        return model.to(device)
    with torch.device(device):
        return transformers.AutoModel.from_config(count_costs.CONFIGS[name](), dtype=torch.bfloat16).eval()


def measured(run: Callable[[], Any], device: str, *before: Any) -> tuple[float, int]:
    """Seconds of one run, and the most bytes that lived above what was there before."""
    if device == "cpu":
        start = time.perf_counter()
        run()
        seconds = time.perf_counter() - start
        with Living(*before) as living:
            run()
        return seconds, living.peak
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    held, start = torch.cuda.memory_allocated(), time.perf_counter()
    run()
    torch.cuda.synchronize()
    return time.perf_counter() - start, torch.cuda.max_memory_allocated() - held


def speeds(name: str, shapes: list[tuple[int, int]], rounds: int, device: str, until: float) -> Iterator[Speed]:
    """Each method on each shape (texts, positions), beside transformers alone on as many positions."""
    model = backbone(name, device)
    for texts, length in shapes:
        plain = count_costs.features(length, 1)["input_ids"].expand(texts, -1).to(device)
        alone = partial(model, plain, attention_mask=torch.ones_like(plain), use_cache=False)
        for method, (kind, stages, fields, copies) in METHODS.items():
            if time.monotonic() > until:
                say(f"out of time: {name}, {texts} × {length}, {method} is left out")
                continue
            model.set_attn_implementation("sdpa")
            embedder: Any = pipeline("mini", kind, stages, width=model.config.hidden_size, **fields)
            embedder[0].rebind(embedder[0].stages, model)
            one = count_costs.features(length, copies)
            rows = {key: value.expand(texts, -1) for key, value in one.items() if isinstance(value, Tensor)}
            given = {**to_device(rows, device), "places": one["places"] * texts}
            runs: list[tuple[float, int, float]] = []
            with torch.inference_mode():
                embedder(given)
                # A method may have switched the model's attention, which takes time.
                switched = model.config._attn_implementation
                for number in range(rounds + 1):
                    model.set_attn_implementation("sdpa")
                    before, held = measured(alone, device, model, plain)
                    model.set_attn_implementation(switched)
                    seconds, peak = measured(partial(embedder, given), device, model, given)
                    model.set_attn_implementation("sdpa")
                    after, _ = measured(alone, device, model, plain)
                    if number:  # The first warms up.
                        runs.append((seconds, peak, 2 * seconds / (before + after)))
            if method == next(iter(METHODS)):
                yield Speed(name, PLAIN, texts, length, (before + after) / 2, 1.0, held)
            seconds, ratio = (statistics.median(each[place] for each in runs) for place in (0, 2))
            yield Speed(name, method, texts, length, seconds, ratio, max(each[1] for each in runs))


# ---------------------------------------------------------------------------------------------------------------------
# Without numbers


def dry(folders: dict[str, str]) -> Iterator[Check]:
    """Every method's pass on a device without numbers: nothing waits, nothing mixes devices, shapes are right."""
    for dtype in ("float32", "bfloat16"):
        for base, folder in folders.items():
            for name, (method, stages, fields) in CASES.items():
                model = pipeline(folder, method, stages, dtype=dtype, **fields)
                features, problem = model.preprocess(list(TEXTS)), ""
                try:
                    with fake_device() as device:
                        device.take(model)
                        shape = model(device.features(features))["sentence_embedding"].shape
                    if shape != (len(TEXTS), model.get_embedding_dimension()):
                        problem = f"vectors of shape {tuple(shape)}"
                except Exception as error:  # Those of tensors without numbers have no base in common.
                    problem = f"{type(error).__name__}: {str(error).splitlines()[0]}"
                yield Check("without numbers", f"{base}, {name}", dtype, 0.0, 0.0, problem)


# ---------------------------------------------------------------------------------------------------------------------
# The command


def summary(checks: list[Check], found: list[Speed]) -> str:
    """Markdown."""
    lines = ["| | number type | compared | wrong | largest difference | tolerance |", "|---|---|--:|--:|--:|--:|"]
    for part, dtype in dict.fromkeys((check.part, check.dtype) for check in checks):
        own = [check for check in checks if (check.part, check.dtype) == (part, dtype)]
        largest = max((check.difference for check in own if check.difference is not None), default=float("nan"))
        wrong = sum(not check.passed for check in own)
        lines.append(f"| {part} | {dtype} | {len(own)} | {wrong} | {largest:.1e} | {own[0].tolerance:.0e} |")
    for check in checks:
        if not check.passed:
            said = check.problem or f"differs by {check.difference:.2e}"
            lines.append(f"\nWRONG: {check.part}, {check.dtype}, {check.what}: {said}")
    if found:
        lines += ["", "| model | texts × positions | | seconds | × transformers alone | MiB above the weights |"]
        lines += ["|---|--:|---|--:|--:|--:|"]
    for each in found:
        row = (each.model, f"{each.texts} × {each.length:,}", each.method, f"{each.seconds:.4f}", f"{each.ratio:.3f}")
        lines.append(f"| {' | '.join(row)} | {each.peak / 2**20:,.0f} |")
    return "\n".join(lines)


def build_parser() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--cpu", action="store_true", help="on the CPU, mini and tiny models alone")
    where.add_argument("--dry", action="store_true", help="on a device without numbers")
    add = parser.add_argument
    add("--large", action="store_true", help=f"with --cpu: also {LARGE}'s shape, 13 GB of weights, slow")
    add("--only", choices=("exact", "speed"), help="one of both parts")
    add("--bases", nargs="+", choices=BASES, default=list(BASES), metavar="B", help=f"to compare: {', '.join(BASES)}")
    add("--rounds", type=int, default=5, metavar="N", help="runs of each method (default: %(default)s)")
    add("--minutes", type=float, default=9.0, metavar="M", help="begin nothing after so many (default: %(default)s)")
    add("--json", type=Path, metavar="FILE", help="write every number there")
    return parser


def say(line: str) -> None:
    """Progress."""
    print(f"  {line}", file=sys.stderr, flush=True)


def all_checks(options: argparse.Namespace, device: str) -> list[Check]:
    """Compare, or run without numbers."""
    checks = []
    with tempfile.TemporaryDirectory() as scratch:
        folders = {
            name: "mini" if name == "mini" else str(save(name, Path(scratch) / name, "bos")) for name in options.bases
        }
        for check in dry(folders) if options.dry else compared(device, folders):
            checks.append(check)
            result = "well" if check.passed else f"WRONG {check.problem}"
            difference = "" if check.difference is None else f"{check.difference:.1e} "
            say(f"{check.part}, {check.dtype}, {check.what}: {difference}{result}")
    return checks


def all_speeds(options: argparse.Namespace, device: str, until: float) -> list[Speed]:
    """Time and memory of every method."""
    found = []
    shapes = {"mini": [(8, 128), (1, 512)] if device == "cpu" else [(64, 128), (8, 1024), (1, 4096)]}
    if device == "cuda" or options.large:
        shapes[LARGE] = [(1, 128)] if device == "cpu" else [(8, 512), (1, 4096), (1, 16384)]
    for name, sizes in shapes.items():
        for speed in speeds(name, sizes, options.rounds, device, until):
            found.append(speed)
            each = f"{speed.seconds:.4f} s, {speed.ratio:.3f}, {speed.peak / 2**20:,.0f} MiB"
            say(f"{name}, {speed.texts} × {speed.length:,}, {speed.method}: {each}")
    return found


def all_costs() -> list[count_costs.Cost]:
    """What a large model would cost, counted."""
    costs = []
    for method in (PLAIN, *METHODS):
        costs += [count_costs.count(LARGE, method, length, 4) for length in (512, 4096)]
        say(f"{method}: {costs[-1].flops / 1e12:.2f} TFLOP at 4,096")
    return costs


def main(arguments: list[str] | None = None) -> int:
    """Run the checks; returns the exit status."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    if options.large and not options.cpu:
        parser.error(f"--large belongs to --cpu: a GPU runs {LARGE}'s shape anyway.")
    if options.rounds < 1:
        parser.error(f"--rounds={options.rounds}: give 1 or more.")
    if not (options.cpu or options.dry or torch.cuda.is_available()):
        parser.error(
            "torch finds no CUDA device. Use a machine with one; --dry and --cpu show what can be seen without."
        )
    transformers.utils.logging.disable_progress_bar()
    device = "cpu" if options.cpu else "cuda"
    begun = time.monotonic()
    checks = [] if options.only == "speed" else all_checks(options, device)
    costs = all_costs() if options.dry and options.only != "exact" else []
    timed = not options.dry and options.only != "exact"
    found = all_speeds(options, device, begun + 60 * options.minutes) if timed else []
    print(summary(checks, found))
    if costs:
        print(f"\n{count_costs.table(costs)}")
    if options.json is not None:
        name = torch.cuda.get_device_name() if torch.cuda.is_available() and device == "cuda" else platform.processor()
        result = {
            "device": "none" if options.dry else device,
            "name": name,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "seconds": time.monotonic() - begun,
            "checks": [{**asdict(check), "passed": check.passed} for check in checks],
            "speeds": [asdict(speed) for speed in found],
            "costs": [asdict(cost) for cost in costs],
        }
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0 if all(check.passed for check in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
