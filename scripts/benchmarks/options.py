"""The command line."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from .batches import MIXES, PADDINGS
from .measuring import CLOCKS
from .models import MODELS

DESCRIPTION = """Measure what st_reba costs: time and memory against what transformers does alone, on the same batches.

One command a part, each with its own --help; without one, it is `methods`:

    methods      every method, and ReBA without st_reba, against Echo-2 with transformers' own SDPA, over the length
    long         one long text: ReBA, whole and by pieces, against Echo-2
    layers       each kind of layer, and plans that add passes, against plain causal attention
    depth        an inner layer, above which none is run, against all layers
    padding      a file of texts, in batches of so many texts or of so many tokens
    report       tables and figures anew, from files that --json wrote

Models are made here, from configurations with random weights: time does not depend on the weights, and nothing is
downloaded. What is compared runs in one process by turns, and a ratio is taken between neighbours, so that a machine
that is busy with other things slows both sides of it."""


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


def rows(text: str) -> int | None:
    """Parse a number of texts, or `fits` as None."""
    return None if text == "fits" else positive(text)


def common_options(model: str, lengths: list[int], rounds: int) -> argparse.ArgumentParser:
    """What every part that measures takes, with a part's own defaults."""
    common = argparse.ArgumentParser(add_help=False)
    models = common.add_argument_group("model")
    sizes = "; ".join(f"{name}: {each.description}" for name, each in MODELS.items())
    models.add_argument("--model", choices=tuple(MODELS), default=model, help=f"{sizes} (default: %(default)s)")
    models.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32", help="of the weights (default: %(default)s)"
    )
    models.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default: %(default)s")
    batches = common.add_argument_group("batches")
    batches.add_argument(
        "--lengths",
        type=positive,
        nargs="+",
        default=lengths,
        metavar="N",
        help=f"tokens of the longest text of a batch (default: {' '.join(map(str, lengths))})",
    )
    batches.add_argument("--seed", type=count, default=0, help="of ids and lengths (default: %(default)s)")
    measuring = common.add_argument_group("measuring")
    measuring.add_argument("--rounds", type=positive, default=rounds, metavar="R", help="default: %(default)s")
    measuring.add_argument(
        "--case-limit",
        type=duration,
        metavar="S",
        help="begin no further round of a case after so many seconds; one is always run (default: none)",
    )
    measuring.add_argument(
        "--seconds",
        type=duration,
        default=0.5,
        metavar="S",
        help="where the batch is as large as fits: so that one run of the baseline takes about this long (default: "
        "%(default)s)",
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
    output = _output(common)
    output.add_argument("--json", type=Path, metavar="FILE", help="write header and records as JSON")
    return common


def _output(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    output = parser.add_argument_group("output")
    output.add_argument("--markdown", type=Path, metavar="FILE", help="write what is printed")
    output.add_argument("--figures", type=Path, metavar="FOLDER", help="draw time and memory over the length as PNG")
    return output


def _end_to_end(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--end-to-end",
        action="store_true",
        help="time encode, from text to vectors, in place of the modules' forward on features that are ready",
    )


def _chunk(parser: argparse.ArgumentParser, default: int) -> None:
    parser.add_argument(
        "--chunk", type=positive, default=default, metavar="L0", help="tokens of a piece (default: %(default)s)"
    )


def build_parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="benchmark.py", description=DESCRIPTION, formatter_class=raw)
    commands = parser.add_subparsers(dest="part", required=True)

    methods = commands.add_parser(
        "methods",
        parents=[common_options("gpt2", [32, 128, 512, 1024], 5)],
        formatter_class=raw,
        help="every method against Echo-2 with transformers' own SDPA",
        description="Run the same texts through every method on the same weights. The baseline is Echo-2, last token,\n"
        "with transformers' own SDPA. What is timed is the modules' forward on features that are ready: tokenization\n"
        "is left out, unless --end-to-end is given.\n\n"
        "'output_attentions' and 'double loop' are ReBA-2 last without st_reba: transformers' eager attention hands\n"
        "out all probabilities, reduced afterwards in one tensor, or by a loop over layers and heads. Both are\n"
        "checked to give the same vectors before they are timed, and left out where there is no memory for them.\n\n"
        "'Echo-2 last again' is the baseline once more: how far it is from 1 is the measurement's noise.",
        epilog="examples:\n"
        "  %(prog)s --quick\n"
        "  %(prog)s --threads 1 --clock cpu --markdown methods.md --json methods.json --figures figures\n"
        "  %(prog)s --model llama --device cuda --dtype bfloat16 --batch-size 1 32\n"
        "  %(prog)s --only ReBA-2 --rounds 15 --lengths 512 --batch-size 1 --mix uniform\n"
        "  %(prog)s --smoke",
    )
    methods.add_argument(
        "--quick",
        action="store_true",
        help="few cases, in place of --lengths, --mix and --batch-size: the whole picture in under three minutes on "
        "two cores",
    )
    methods.add_argument(
        "--mix",
        nargs="+",
        choices=MIXES,
        default=list(MIXES),
        help="lengths: all the same, or short and long ones (default: both)",
    )
    methods.add_argument(
        "--batch-size",
        nargs="+",
        type=rows,
        default=[1, None],
        metavar="B",
        help="texts of a batch, or 'fits': what --seconds asks for (default: 1 fits)",
    )
    methods.add_argument(
        "--only",
        nargs="+",
        metavar="WORD",
        help="measure, beside the baseline, only what has one of these in its name, as ReBA-2 (default: all)",
    )
    _end_to_end(methods)
    _chunk(methods, 256)

    long = commands.add_parser(
        "long",
        parents=[common_options("mini", [1024, 2048, 4096, 8192], 3)],
        formatter_class=raw,
        help="one long text through ReBA, whole and by pieces",
        description="Run one text of random tokens through Echo-2 with transformers' own SDPA, and through ReBA-2\n"
        "with both poolings, whole and by pieces. The model's positions are raised for it.",
        epilog="examples:\n"
        "  %(prog)s --threads 2 --json long.json --figures figures\n"
        "  %(prog)s --lengths 8192 --rounds 1",
    )
    _end_to_end(long)
    _chunk(long, 512)

    layers = commands.add_parser(
        "layers",
        parents=[common_options("gpt2", [128, 512], 7)],
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
    layers.add_argument(
        "--padding",
        choices=PADDINGS,
        action="append",
        help="none: all texts are of that length; right: of mixed lengths, padded; may be given more than once "
        "(default: both)",
    )
    layers.add_argument(
        "--fill",
        type=fraction,
        default=0.25,
        metavar="F",
        help="with padding, lengths are spread evenly from F · N to N (default: %(default)s)",
    )
    layers.add_argument(
        "--batch-size", type=positive, metavar="B", help="texts of a batch (default: what --seconds asks for)"
    )
    layers.add_argument(
        "-m", type=count, default=1, metavar="M", help="sink tokens that nosink kinds hide (default: %(default)s)"
    )

    depth = commands.add_parser(
        "depth",
        parents=[common_options("gpt2", [128], 7)],
        formatter_class=raw,
        help="an inner layer against all layers",
        description="Run one batch through all of the backbone's layers (transformers' own causal SDPA), and through\n"
        "the same weights, of which layer l is read, for every l, and the mean of several; no layer above is run. The\n"
        "column 'passes' is the part of the layers that runs: about what the time should be. ('all layers again' is\n"
        "the noise.)",
        epilog="examples:\n  %(prog)s --threads 1 --clock cpu --markdown depth.md\n  %(prog)s --smoke",
    )
    depth.add_argument(
        "--batch-size", type=positive, default=4, metavar="B", help="texts of a batch (default: %(default)s)"
    )

    padding = commands.add_parser(
        "padding",
        parents=[common_options("mini", [512], 3)],
        formatter_class=raw,
        help="batches of so many texts, and of so many tokens",
        description="Encode texts with ReBA-2 in batches of 32, and of so many tokens: how\n"
        " much of what the model reads is padding, and how many texts a second it makes. Longer texts are cut.",
        epilog="examples:\n  %(prog)s --texts corpus.txt --batch-tokens 2048 8192",
    )
    padding.add_argument("--texts", type=Path, metavar="FILE", help="one text a line (default: a realistic mix)")
    padding.add_argument(
        "--count", type=positive, default=256, metavar="C", help="texts, at most (default: %(default)s)"
    )
    padding.add_argument("--together", type=positive, metavar="C", help="texts that are given at a time (default: all)")
    padding.add_argument(
        "--free-padding",
        type=count,
        nargs="*",
        default=[],
        metavar="N",
        help="positions of padding that a batch may have in any case, with batches of the default size",
    )
    padding.add_argument(
        "--batch-tokens",
        type=positive,
        nargs="+",
        default=[4096, 16384],
        metavar="N",
        help="tokens of a batch (default: 4096 16384)",
    )

    report = commands.add_parser(
        "report", formatter_class=raw, help="tables and figures anew, from files that --json wrote"
    )
    report.add_argument("files", type=Path, nargs="+", metavar="JSON", help="such a file")
    _output(report)
    return parser
