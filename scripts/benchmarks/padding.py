"""Part `padding`: a file of texts encoded in batches of so many texts, and of so many tokens."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from unittest import mock

from .batches import draw_lengths, make_texts
from .measuring import AGAIN, Meter, Record, Run, Variant, measure
from .methods import ROOM
from .mistakes import UsageError
from .models import saved_model
from .pipelines import Loader
from .report import Report

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from st_reba import RepeatTransformer

BATCH_SIZE = 32


def read_texts(file: Path | None, count: int, longest: int, seed: int) -> list[str]:
    """The lines of a file that hold something, or a realistic mix of random texts."""
    if file is None:
        return make_texts(draw_lengths(longest, "realistic", count, seed), seed)
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"--texts {file}: cannot be read ({error}). Give a text file in UTF-8, one text a line."
        ) from error
    texts = [line for line in lines if line.strip()]
    if not texts:
        raise UsageError(f"--texts {file}: there is no text in it. Give one text a line.")
    return texts[:count]


def padding_share(model: SentenceTransformer, run: Run) -> tuple[float, int]:
    """Which part of all positions of a run is padding, and its number of batches."""
    seen: list[tuple[int, int]] = []

    def look(module: object, inputs: tuple[Any, ...]) -> None:
        mask = inputs[0]["attention_mask"]
        seen.append((int(mask.sum()), mask.numel()))

    handle = model[0].register_forward_pre_hook(look)
    try:
        run()
    finally:
        handle.remove()
    real, positions = (sum(numbers) for numbers in zip(*seen, strict=True))
    return 1 - real / positions, len(seen)


def run_padding(options: argparse.Namespace, report: Report) -> None:
    """Measure encode_stream with either kind of batch."""
    longest = max(options.lengths)
    report.add(_measured(read_texts(options.texts, options.count, longest, options.seed), longest, options))


def _measured(texts: list[str], longest: int, options: argparse.Namespace) -> list[Record]:
    import torch
    from tqdm import tqdm

    from st_reba import batches as sizes
    from st_reba.encode import encode_stream

    with saved_model(options.model, 2 * longest + ROOM) as folder:
        model = Loader(folder, options.dtype, options.device, {}).build("reba", repeats=2)

    together = options.together or len(texts)

    def variant(name: str, free: int = sizes.FREE_PADDING, **batches: Any) -> Variant:
        def run() -> int:
            stream = encode_stream(model, texts, chunk_size=together, show_progress_bar=False, **batches)
            with mock.patch.object(sizes, "FREE_PADDING", free):
                return sum(len(vectors) for _, vectors in stream)

        share, number = padding_share(model, run)
        return Variant(name, lambda: run, (), {"padding": share, "batches": number})

    transformer = cast("RepeatTransformer", model[0])
    ids = transformer.content(texts)["input_ids"]
    budget = transformer.budget() or longest
    tokens = sum(min(len(each), budget) for each in ids)
    case = {
        "texts": len(texts),
        "from": options.texts.name if options.texts else f"realistic lengths up to {longest}",
        "together": together,
        "tokens": tokens,
        "timed": "from text to vectors",
    }
    with torch.inference_mode():
        baseline = variant(f"{BATCH_SIZE} texts a batch", batch_size=BATCH_SIZE)
        variants = [variant(baseline.name + AGAIN, batch_size=BATCH_SIZE)]
        variants += [variant(f"{number} tokens a batch", batch_tokens=number) for number in options.batch_tokens]
        variants += [variant(f"{number} positions of padding free", number) for number in options.free_padding]
        meter = Meter(options.device, options.clock, options.rounds, limit=options.case_limit)
        with tqdm(total=options.rounds * len(variants), desc="padding", unit="run", file=sys.stderr) as bar:
            return measure("padding", case, tokens, baseline, variants, meter, bar.update)
