"""Part `long`: one long text through ReBA, whole and by pieces, against Echo-2."""

from __future__ import annotations

import argparse

from .aims import Aim
from .batches import draw_lengths, make_texts
from .methods import LAST, ROOM
from .models import saved_model
from .pipelines import Loader, chunked_works, plain_works, reba_works
from .report import Report
from .works import measure_works

LONGEST = 8192
MEMORY = Aim(2 * 2**30, "bytes")


def aims_for(name: str, length: int) -> tuple[Aim, ...]:
    """What a variant should reach at a length."""
    return (MEMORY,) if name == LAST and length == LONGEST else ()


def run_long(options: argparse.Namespace, report: Report) -> None:
    """Measure one text of each length."""
    import torch

    longest = max(options.lengths)
    with saved_model(options.model, 2 * longest + ROOM) as folder:
        loader = Loader(folder, options.dtype, options.device, {})
        baseline, *_ = plain_works(loader)
        # Words would need every token's row of a matrix that is as large as the text is long, squared.
        (last, mean, _), _ = reba_works(loader)
        chunked = chunked_works(loader, options.chunk, longest, report.notes)
    with torch.inference_mode():
        for length in options.lengths:
            texts = make_texts(draw_lengths(length, "uniform", 1, options.seed), options.seed)
            works = [baseline, last, mean, *(work for work in chunked if length >= work.shortest)]
            case = {"length": length, "lengths": "uniform", "batch": "1", "batch_size": 1, "tokens": length}
            report.add(measure_works("long", case, works, texts, aims_for, options))
