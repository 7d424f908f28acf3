"""Part `instruction`: texts that all begin with the same instruction, which is run once for all or with every one."""

from __future__ import annotations

import argparse
from typing import Any, cast

from .batches import draw_lengths, make_texts
from .methods import ROOM
from .models import saved_model
from .pipelines import Loader, Work, sentences
from .report import Report
from .works import measure_works

METHODS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "classical last": ("classical", "{text}", {}),
    "Echo-2 last": ("echo", "{text} {text}", {}),
    "ReBA-2 last": ("reba", "{text} {text}", {}),
    "ReBA-2 mean": ("reba", "{text} {text}", {"pooling": "mean"}),
}


def run_instruction(options: argparse.Namespace, report: Report) -> None:
    """Measure every method against itself, with the instruction run with every text."""
    import torch

    instruction = " ".join(str(number) for number in range(1, options.instruction + 1))
    longest = max(options.lengths)
    with saved_model(options.model, 2 * longest + options.instruction + ROOM) as folder:
        loader = Loader(folder, options.dtype, options.device, options.padding, {})
        pairs = [_pair(loader, name, instruction) for name in METHODS]
    with torch.inference_mode():
        for length in options.lengths:
            for mix in options.mix:
                lengths = draw_lengths(length, mix, options.batch_size, options.seed)
                texts = make_texts(lengths, options.seed)
                case = {
                    "length": length,
                    "lengths": mix,
                    "batch": str(options.batch_size),
                    "batch_size": options.batch_size,
                    "tokens": sum(lengths),
                    "instruction": options.instruction,
                }
                for pair in pairs:
                    report.add(measure_works("instruction", case, pair, texts, lambda name, length: (), options))


def _pair(loader: Loader, name: str, instruction: str) -> list[Work]:
    """A method twice: the instruction with every text, and once."""
    method, slots, options = METHODS[name]
    works = []
    for shared in (False, None):
        model = loader.build(method, template=f"{instruction} {slots}", **options)
        cast(Any, model[0]).shares_prefix = shared
        works.append(sentences(f"{name}, {'with every text' if shared is False else 'once'}", model, None))
    return works
