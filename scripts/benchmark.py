"""Measure what st_reba costs: time and memory against what transformers does by itself, on the same batches.

One command a part, each with its own --help:

    layers     each kind of layer, and plans that add passes, against plain causal attention

Models are made here, from configurations with random weights: time does not depend on the weights, and nothing is
downloaded. What is compared runs in one process by turns, and a ratio is taken between neighbours, so that a machine
that is busy with other things slows both sides of it.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import math
import os
import platform
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from torch import Tensor

    from st_reba import LayerPlan, RepeatTransformer

AIM = 1.10
VOCABULARY = 1024
PADDINGS = ("none", "right", "left")
# Where a clock says how long the process itself computed, threads included, waiting for a core does not count.
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}


class UsageError(Exception):
    """A mistake in what the user gave; its message is shown without a traceback."""


# models


@dataclass(frozen=True)
class Architecture:
    """A model type and its size, as transformers' configuration takes it."""

    model_type: str
    description: str
    positions: str
    settings: Mapping[str, Any]


MODELS = {
    "gpt2": Architecture("gpt2", "12 × 768, 12 heads", "n_positions", {}),
    "llama": Architecture(
        "llama",
        "24 × 1024, 16 heads, 4 key/value heads",
        "max_position_embeddings",
        {
            "hidden_size": 1024,
            "intermediate_size": 2816,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
        },
    ),
    "tiny": Architecture("gpt2", "3 × 64, 4 heads", "n_positions", {"n_embd": 64, "n_layer": 3, "n_head": 4}),
}


def save_model(name: str, positions: int, folder: Path) -> None:
    """Write a model with random weights, and a tokenizer that transformers can load, into a folder."""
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import AutoConfig, AutoModel, PreTrainedTokenizerFast

    architecture = MODELS[name]
    settings = {**architecture.settings, architecture.positions: positions, "vocab_size": VOCABULARY}
    config = AutoConfig.for_model(architecture.model_type, **settings, bos_token_id=0, eos_token_id=0)
    torch.manual_seed(0)
    AutoModel.from_config(config).save_pretrained(folder)
    words = Tokenizer(WordLevel({str(number): number for number in range(VOCABULARY)}, unk_token="0"))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="0", model_max_length=positions).save_pretrained(folder)


@dataclass(frozen=True)
class Pair:
    """One backbone twice, with shared weights: as transformers runs it, and for plans. The first is never converted."""

    plain: RepeatTransformer
    converted: RepeatTransformer


def load_pair(name: str, positions: int, dtype: str, device: str) -> Pair:
    """Make a model and load it both ways, every position of a text visible to what follows."""
    import st_reba

    with tempfile.TemporaryDirectory() as folder:
        save_model(name, positions, Path(folder))
        plain, converted = (
            cast("RepeatTransformer", st_reba.build(folder, "classical", span="all", dtype=dtype, device=device)[0])
            for _ in range(2)
        )
    for each in (plain, converted):
        each.eval()
    converted.model.load_state_dict(plain.model.state_dict(), assign=True)
    # What transformers chooses by itself wherever it can; said here, so that nothing else is ever measured.
    plain.model.set_attn_implementation("sdpa")
    return Pair(plain, converted)


# batches


@dataclass(frozen=True)
class Batch:
    """Features of texts of some lengths; `length` tokens is the longest."""

    length: int
    padding: str
    rows: int
    tokens: int
    features: dict[str, Tensor]


def make_batch(length: int, padding: str, rows: int, fill: float, seed: int, device: str = "cpu") -> Batch:
    """Random ids; with padding, the lengths are spread evenly from `fill` · length to length, in random order."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    shape = (rows, length)
    ids = torch.randint(1, VOCABULARY, shape, generator=generator)
    lengths = torch.full((rows,), length)
    if padding != "none":
        # Spread and not drawn: a small batch is as full as a large one.
        spread = torch.linspace(length, max(1, math.ceil(fill * length)), rows).round().long()
        lengths = spread[torch.randperm(rows, generator=generator)]
    place = torch.arange(length).expand(shape)
    real = (place < lengths[:, None]) if padding != "left" else (place >= length - lengths[:, None])
    mask = real.long()
    # As st_reba's own layout has it: padding holds an id of the text's own, and belongs to no copy.
    features = {"input_ids": torch.where(real, ids, ids[:, :1]), "attention_mask": mask, "copy_ids": mask.clone()}
    moved = {name: tensor.to(device) for name, tensor in features.items()}
    return Batch(length, padding, rows, int(lengths.sum()), moved)


# measuring


Run = Callable[[], object]


@dataclass(frozen=True)
class Spread:
    """What several rounds gave."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarize at least one value."""
        return cls(statistics.median(values), min(values), max(values))

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.min:.3f}–{self.max:.3f})"


@dataclass(frozen=True)
class Variant:
    """Something to measure: `prepare` makes ready what is not to be timed, and returns what is."""

    name: str
    prepare: Callable[[], Run]
    aim: float | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Record:
    """One variant on one batch, in a form fit for JSON."""

    part: str
    case: Mapping[str, Any]
    variant: str
    detail: Mapping[str, Any]
    seconds: Spread
    ratio: Spread
    tokens_per_second: float
    peak_bytes: int | None
    aim: float | None

    @property
    def within_aim(self) -> bool | None:
        """Whether the median ratio is as small as it should be; None where nothing is asked."""
        return None if self.aim is None else self.ratio.median <= self.aim

    def as_json(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {**asdict(self), "within_aim": self.within_aim}


@dataclass(frozen=True)
class Meter:
    """How to measure: on which device, with which clock, how often."""

    device: str
    clock: str
    rounds: int
    warm_up: int = 1

    def seconds(self, run: Run) -> float:
        """Time one run."""
        now = CLOCKS[self.clock]
        self._wait()
        start = now()
        run()
        self._wait()
        return now() - start

    def by_turns(
        self, baseline: Variant, variants: Sequence[Variant], tick: Callable[[], object]
    ) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
        """Seconds and ratios of every variant, round by round.

        Every variant runs between two runs of the baseline, and its ratio is to their mean. Odd rounds go backwards, so
        that none always follows the same one.
        """
        seconds: dict[str, list[float]] = {each.name: [] for each in (baseline, *variants)}
        ratios: dict[str, list[float]] = {each.name: [] for each in variants}
        for _ in range(self.warm_up):
            for each in (baseline, *variants):
                each.prepare()()
        for number in range(self.rounds):
            before = self.seconds(baseline.prepare())
            seconds[baseline.name].append(before)
            for each in variants if number % 2 == 0 else reversed(variants):
                took = self.seconds(each.prepare())
                after = self.seconds(baseline.prepare())
                seconds[baseline.name].append(after)
                seconds[each.name].append(took)
                ratios[each.name].append(2 * took / (before + after))
                before = after
                tick()
        return seconds, ratios

    def peak(self, run: Run) -> int | None:
        """Bytes that one run needs at its peak above what was held before it, the weights; None: cannot be measured.

        On a GPU: of torch's allocator. On Linux: the kernel's own high-water mark of the process's resident memory
        (VmHWM, reset through /proc/self/clear_refs), after memory that was freed has been given back.
        """
        gc.collect()
        if self.device != "cpu":
            import torch

            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            held = torch.cuda.memory_allocated()
            run()
            torch.cuda.synchronize()
            return int(torch.cuda.max_memory_allocated() - held)
        try:
            _give_back()
            Path("/proc/self/clear_refs").write_text("5")
            before = _resident("VmRSS")
            run()
            return max(0, _resident("VmHWM") - before)
        except OSError:
            return None

    def _wait(self) -> None:
        if self.device != "cpu":
            import torch

            torch.cuda.synchronize()


def keep_memory() -> bool:
    """Let the C library (glibc) keep what is freed, as torch's own allocator on a GPU does; return whether it does.

    Else every large tensor's memory goes back to the kernel and comes anew, page by page: that takes a tenth of the
    time, both with and without st_reba, and varies by more than what is to be measured.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    mmap_max, trim_threshold = -4, -1
    return set_option is not None and bool(set_option(mmap_max, 0)) and bool(set_option(trim_threshold, -1))


def _give_back() -> None:
    """Make the C library hand free memory back, or it would be used again unseen."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:
        raise OSError("this C library keeps what is free")
    trim(0)


def _resident(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"the kernel tells no {name}")


def measure(
    part: str,
    case: Mapping[str, Any],
    tokens: int,
    baseline: Variant,
    variants: Sequence[Variant],
    meter: Meter,
    tick: Callable[[], object] = lambda: None,
) -> list[Record]:
    """Time variants against a baseline, then their memory; the baseline's own record comes first."""
    seconds, ratios = meter.by_turns(baseline, variants, tick)
    records = []
    for each in (baseline, *variants):
        spread = Spread.of(seconds[each.name])
        records.append(
            Record(
                part=part,
                case=case,
                variant=each.name,
                detail=each.detail,
                seconds=spread,
                ratio=Spread.of(ratios.get(each.name, [1.0])),
                tokens_per_second=tokens / spread.median,
                peak_bytes=meter.peak(each.prepare()),
                aim=each.aim,
            )
        )
    return records


def fitting_rows(run: Callable[[int], Run], seconds: float, most: int = 256) -> int:
    """Rows of a batch, an even number, that one run takes about so long for; `run` makes a run of some rows."""
    rows = 2
    while True:
        once = run(rows)
        once()
        start = time.perf_counter()
        once()
        took = time.perf_counter() - start
        if took > seconds / 4 or rows >= most:
            return min(most, max(2, 2 * round(rows * seconds / took / 2)))
        rows *= 2


# layers


def layer_variants(pair: Pair, features: dict[str, Tensor], m: int) -> tuple[Variant, list[Variant]]:
    """The baseline, and each kind in every layer; for information, the paper's combination and the added passes."""
    from st_reba import LayerPlan, named_plan

    depth = pair.converted.depth
    # The paper's combination on 12 layers, and two thirds of any other depth.
    k = max(2, round(depth * 2 / 3))
    plans: dict[str, LayerPlan] = {
        "backward": LayerPlan(kind="backward", k="all"),
        "bidirectional": LayerPlan(kind="bidirectional", k="all"),
        "nosink-forward": LayerPlan(kind="nosink-forward", k="all", m=m),
        "nosink-bidirectional": LayerPlan(kind="nosink-bidirectional", k="all", m=m),
        "mask0&bidir": named_plan("mask0&bidir", k=k, k0=k // 2, m=m),
    }
    unasked = {
        "not converted": LayerPlan(),
        "inter-bidir": named_plan("inter-bidir", k=2),
        "extra-bidir": named_plan("extra-bidir", k=2),
        "extend-bidir": named_plan("extend-bidir", k=2),
    }

    def converted(name: str, plan: LayerPlan, aim: float | None) -> Variant:
        def prepare() -> Run:
            pair.converted.layers = plan
            return lambda: pair.converted.forward(features)

        stack = plan.resolve(depth)
        return Variant(name, prepare, aim, {"plan": str(stack), "passes": len(stack.calls) / depth})

    def plain() -> Run:
        return lambda: pair.plain.forward(features)

    detail = {"plan": f"{depth} forward", "passes": 1.0}
    variants = [Variant("plain SDPA again", plain, None, detail)]
    variants += [converted(name, plan, AIM) for name, plan in plans.items()]
    variants += [converted(name, plan, None) for name, plan in unasked.items()]
    return Variant("plain SDPA", plain, None, detail), variants


def run_layers(options: argparse.Namespace) -> list[Record]:
    """Measure every kind of layer on every length and padding."""
    import torch
    from tqdm import tqdm

    pair = load_pair(options.model, max(options.lengths), options.dtype, options.device)
    meter = Meter(options.device, options.clock, options.rounds)
    paddings = options.padding or PADDINGS
    records: list[Record] = []
    with torch.inference_mode():
        for length in options.lengths:
            rows = options.batch_size

            def once(rows: int, length: int = length) -> Run:
                features = make_batch(length, "none", rows, options.fill, options.seed, options.device).features
                return lambda: pair.plain.forward(features)

            if rows is None:
                rows = fitting_rows(once, options.seconds)
            for padding in paddings:
                batch = make_batch(length, padding, rows, options.fill, options.seed, options.device)
                baseline, variants = layer_variants(pair, batch.features, options.m)
                title = f"n = {length}, padding {padding}, {rows} texts"
                case = {"length": length, "padding": padding, "batch_size": rows, "tokens": batch.tokens}
                with tqdm(total=options.rounds * len(variants), desc=title, unit="run", file=sys.stderr) as bar:
                    records += measure("layers", case, batch.tokens, baseline, variants, meter, bar.update)
    return records


# reports


def header(options: argparse.Namespace, arguments: Sequence[str]) -> dict[str, Any]:
    """What a reader needs to know to judge the numbers, and to get them again."""
    import sentence_transformers
    import torch
    import transformers

    import st_reba

    device = torch.cuda.get_device_name() if options.device == "cuda" else torch.backends.cpu.get_cpu_capability()
    return {
        "command": shlex.join(["scripts/benchmark.py", *arguments]),
        "model": f"{options.model} ({MODELS[options.model].description}), random weights",
        "dtype": options.dtype,
        "device": f"{options.device} ({device})",
        "threads": torch.get_num_threads(),
        "processors": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "clock": options.clock,
        "rounds": options.rounds,
        "keeps_memory": options.keeps_memory,
        "peak_memory": "of torch's allocator, above the weights"
        if options.device == "cuda"
        else "of one run's resident memory (VmHWM), above what was resident before it, the weights",
        "versions": {
            "st_reba": st_reba.__version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "sentence_transformers": sentence_transformers.__version__,
            "python": platform.python_version(),
        },
        "aim": AIM,
    }


def as_markdown(head: Mapping[str, Any], records: Iterable[Record]) -> str:
    """A list of what was run, and a table a case."""
    versions = ", ".join(f"{name} {version}" for name, version in head["versions"].items())
    lines = [
        f"- `{head['command']}`",
        f"- {head['model']}, {head['dtype']}, {head['device']}, {head['threads']} of {head['processors']} threads",
        f"- {versions}",
        f"- ratio: {head['clock']} time to the mean of the runs of the first row directly before and after, median "
        f"(min–max) of {head['rounds']} rounds; aim: at most {head['aim']:.2f}",
        f"- memory: {head['peak_memory']}"
        + ("; freed memory stays with the process while time is measured" if head["keeps_memory"] else ""),
    ]
    last: Mapping[str, Any] | None = None
    for record in records:
        if record.case != last:
            last = record.case
            told = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in record.case.items())
            lines += [
                "",
                f"### {record.part}: {told}",
                "",
                "| | passes | ratio | aim | seconds | tokens/s | peak MiB |",
                "|---|--:|--:|---|--:|--:|--:|",
            ]
        lines.append(f"| {' | '.join(_cells(record))} |")
    return "\n".join(lines) + "\n"


def _cells(record: Record) -> Iterator[str]:
    yield record.variant
    yield f"{record.detail['passes']:.2f}" if "passes" in record.detail else ""
    yield str(record.ratio)
    yield {None: "", True: "met", False: "missed"}[record.within_aim]
    yield f"{record.seconds.median:.3f}"
    yield f"{record.tokens_per_second:.0f}"
    yield "–" if record.peak_bytes is None else f"{record.peak_bytes / 2**20:.0f}"


def report(options: argparse.Namespace, arguments: Sequence[str], records: Sequence[Record]) -> None:
    """Print the tables, and write the files that were asked for."""
    head = header(options, arguments)
    markdown = as_markdown(head, records)
    print(markdown, end="")
    if options.markdown:
        options.markdown.write_text(markdown, encoding="utf-8")
    if options.json:
        content = {"header": head, "records": [record.as_json() for record in records]}
        options.json.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


# command line


PARTS: dict[str, Callable[[argparse.Namespace], list[Record]]] = {"layers": run_layers}
# So little that it only shows that everything runs.
SMOKE: dict[str, Any] = {"model": "tiny", "lengths": [24], "rounds": 2, "batch_size": 4, "threads": 1}


def positive(text: str) -> int:
    """Parse a whole number above zero."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number above 0")
    return number


def count(text: str) -> int:
    """Parse a whole number from zero on."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 0 on")
    return number


def duration(text: str) -> float:
    """Parse a finite number above zero."""
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return number


def fraction(text: str) -> float:
    """Parse a number above zero and at most one."""
    number = float(text)
    if not 0 < number <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and at most 1")
    return number


def common_options() -> argparse.ArgumentParser:
    """What every part takes."""
    common = argparse.ArgumentParser(add_help=False)
    model = common.add_argument_group("model")
    sizes = "; ".join(f"{name}: {each.description}" for name, each in MODELS.items())
    model.add_argument("--model", choices=tuple(MODELS), default="gpt2", help=f"{sizes} (default: %(default)s)")
    model.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32", help="of the weights (default: %(default)s)"
    )
    model.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default: %(default)s")
    batches = common.add_argument_group("batches")
    batches.add_argument(
        "--lengths",
        type=positive,
        nargs="+",
        default=[128, 512],
        metavar="N",
        help="tokens of the longest text of a batch (default: 128 512)",
    )
    batches.add_argument(
        "--padding",
        choices=PADDINGS,
        action="append",
        help="none: all texts are of that length; right, left: of mixed lengths, padded there; may be given more than "
        "once (default: all three)",
    )
    batches.add_argument(
        "--fill",
        type=fraction,
        default=0.25,
        metavar="F",
        help="with padding, lengths are spread evenly from F · N to N (default: %(default)s)",
    )
    batches.add_argument(
        "--batch-size", type=positive, metavar="B", help="texts of a batch (default: what --seconds asks for)"
    )
    batches.add_argument("--seed", type=int, default=0, help="of ids and lengths (default: %(default)s)")
    measuring = common.add_argument_group("measuring")
    measuring.add_argument("--rounds", type=positive, default=7, metavar="R", help="default: %(default)s")
    measuring.add_argument(
        "--seconds",
        type=duration,
        default=0.5,
        metavar="S",
        help="choose the batch so that one run of the baseline takes about this long (default: %(default)s)",
    )
    measuring.add_argument(
        "--threads",
        type=positive,
        metavar="T",
        help="torch's threads (default: torch's choice); 1 is steadiest where others use the machine too",
    )
    measuring.add_argument(
        "--clock",
        choices=tuple(CLOCKS),
        default="wall",
        help="cpu: the process's processor time, in which waiting for a busy core does not count; with one thread "
        "the steadier of the two (default: %(default)s)",
    )
    measuring.add_argument("--smoke", action="store_true", help="a run of seconds that shows that everything works")
    output = common.add_argument_group("output")
    output.add_argument("--json", type=Path, metavar="FILE", help="write header and records as JSON")
    output.add_argument("--markdown", type=Path, metavar="FILE", help="write what is printed")
    return common


def build_parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    commands = parser.add_subparsers(dest="part", required=True)
    common = common_options()
    command = commands.add_parser(
        "layers",
        parents=[common],
        formatter_class=raw,
        help="each kind of layer against plain causal attention",
        description="Run one batch through the unconverted backbone (transformers' own causal SDPA), and through\n"
        "the same weights with every layer converted to a kind: backward, bidirectional, nosink-forward, nosink-\n"
        "bidirectional; then with the paper's combination of them, and with INTER, EXTRA and EXTEND, whose passes\n"
        "are more by themselves (column 'passes', relative to the backbone's layers).\n\n"
        "'plain SDPA again' is the baseline once more: how far it is from 1 is the measurement's noise.\n"
        "'not converted' is what st_reba itself adds.",
        epilog="examples:\n"
        "  %(prog)s --threads 1 --markdown layers.md --json layers.json\n"
        "  %(prog)s --model llama --dtype bfloat16 --lengths 512 --padding right --rounds 5\n"
        "  %(prog)s --smoke",
    )
    command.add_argument(
        "-m", type=count, default=1, metavar="M", help="sink tokens that nosink kinds hide (default: %(default)s)"
    )
    return parser


def check(options: argparse.Namespace) -> None:
    """Find mistakes before anything is measured."""
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: torch sees no GPU")
    for name in ("json", "markdown"):
        file: Path | None = getattr(options, name)
        if file and not file.parent.is_dir():
            raise UsageError(f"--{name} {file}: no such folder")


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the libraries' own progress bars off the terminal."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def main(arguments: list[str] | None = None) -> int:
    """Run one part; return the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = build_parser().parse_args(arguments)
    if options.smoke:
        vars(options).update(SMOKE)
    try:
        check(options)
        if options.threads:
            import torch

            torch.set_num_threads(options.threads)
        options.keeps_memory = keep_memory()
        with quiet():
            records = PARTS[options.part](options)
    except UsageError as error:
        print(f"{Path(sys.argv[0]).name}: error: {error}", file=sys.stderr)
        return 2
    report(options, arguments, records)
    return 0


if __name__ == "__main__":
    sys.exit(main())
