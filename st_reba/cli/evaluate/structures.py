"""evaluate toy: does an embedding see what is said early in a sentence, and what is said late?"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..options import new_command
from .common import add_drawing, add_model, add_results, base_of, methods_of, results_of, running, show

METHODS = "classical,classical:pooling=mean,echo,echo:pooling=mean,reba,reba:pooling=mean"
FIGURE = Path("figures", "toy.png")


def add_toy(commands: Any) -> None:
    command = new_command(
        commands,
        "toy",
        "Score methods on triples (q, s+, s-) of which one part tells s+ from s-: is cos(q, s+) > cos(q, s-)?\n\n"
        "Every sentence has an early part A and a late part B. s+ says the same as q in other words:\n"
        "  S1  s+ = [A+, B+], s- = [A-, B]   the early part tells, the late one is the same\n"
        "  S2  s+ = [A+, B+], s- = [A, B-]   the late part tells, the early one is the same\n"
        "  S3  s+ = [A, B+],  s- = [A, B-]   the late part tells, the early one is the same in all three\n"
        "120 triples each, which come with the package. Every result is kept, its cosines beside it: the same command\n"
        "goes on where it was stopped.",
        "  st-reba evaluate toy --model mini\n"
        "  st-reba evaluate toy --model mini --methods echo:pooling=mean,reba --structures S3 --parts whole,early",
        toy,
    )
    command.add_argument("--structures", type=words, default=["S1", "S2", "S3"], metavar="LIST", help="(default: all)")
    command.add_argument("--language", type=words, default=["zh", "en"], metavar="LIST", help="(default: zh,en)")
    command.add_argument(
        "--parts",
        type=words,
        default=["whole"],
        metavar="LIST",
        help="what stands for a sentence: whole, or the words of its early or late part alone, where they stand: early "
        "in S3 shows whether early tokens hold what comes later (default: whole)",
    )
    command.add_argument(
        "--figure",
        type=Path,
        metavar="FILE",
        help=f"where the distributions of the cosines are drawn, as PNG (default: {FIGURE.as_posix()} in the folder)",
    )
    command.add_argument("--prompt", help="in front of every sentence")
    add_model(command, METHODS)
    add_drawing(command, "triples of each structure")
    add_results(command)


def toy(options: argparse.Namespace) -> None:
    from ...evaluation.figures import save_figure
    from ...evaluation.structures import draw_similarities, evaluate_structures
    from ...optional import required

    # What is missing is told before the work, not after.
    required("matplotlib.figure", "evaluation")
    if options.figure is not None and not options.figure.parent.is_dir():
        raise ValueError(f"--figure {str(options.figure)!r}: the folder does not exist. Make it first.")
    base = base_of(options)
    methods, results = methods_of(options, base, METHODS), results_of(options)
    found = evaluate_structures(
        base,
        methods,
        results,
        structures=options.structures,
        languages=options.language,
        parts=options.parts,
        sample=options.limit,
        seed=options.seed,
        prompt=options.prompt,
        **running(options),
    )
    figure = options.figure or results.folder / FIGURE
    figure.parent.mkdir(exist_ok=True)
    save_figure(draw_similarities(results, found), figure)
    show(found, options)
    if not options.json:
        print(f"{figure}: the distributions of the cosines")


def words(text: str) -> list[str]:
    """Names with commas between."""
    return [word.strip() for word in text.split(",") if word.strip()]
