"""Part `depth`: what a model costs that reads an inner layer, and runs none above."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from .aims import Aim
from .batches import make_batch
from .layers import Pair, load_pair
from .measuring import AGAIN, Meter, Run, Variant, measure
from .report import Report

# Above a layer's share of all, which embeddings, final norm and masks come on top of.
ROOM = 1.15


def depth_variants(pair: Pair, features: dict[str, Any]) -> tuple[Variant, list[Variant]]:
    """The baseline, which runs all layers, and a model that reads layer l, for every l; last the mean of several."""
    from st_reba import ReadLayers

    depth = pair.converted.depth

    def reading(layer: int | tuple[int, ...]) -> Variant:
        last = layer if isinstance(layer, int) else layer[-1]

        def prepare() -> Run:
            pair.converted.rebind([ReadLayers(layer)])
            return lambda: pair.converted.forward(features)

        name = f"layer {layer}" if isinstance(layer, int) else f"mean of layers {layer[0]} to {layer[1]}"
        share = last / depth
        return Variant(name, prepare, (Aim(ROOM * share),), {"plan": f"{last} forward", "passes": share})

    def plain() -> Run:
        return lambda: pair.plain.forward(features)

    detail = {"plan": f"{depth} forward", "passes": 1.0}
    variants = [Variant("all layers" + AGAIN, plain, (), detail)]
    variants += [reading(layer) for layer in range(1, depth + 1)]
    variants.append(reading((max(1, depth // 3), max(1, depth * 2 // 3))))
    return Variant("all layers", plain, (), detail), variants


def run_depth(options: argparse.Namespace, report: Report) -> None:
    """Measure every layer on every length."""
    import torch
    from tqdm import tqdm

    pair = load_pair(options.model, max(options.lengths), options.dtype, options.device)
    meter = Meter(options.device, options.clock, options.rounds, limit=options.case_limit)
    with torch.inference_mode():
        for length in options.lengths:
            batch = make_batch(length, "none", options.batch_size, 1.0, options.seed, options.device)
            baseline, variants = depth_variants(pair, batch.features)
            case = {"length": length, "batch_size": options.batch_size, "tokens": batch.tokens}
            title = f"n = {length}, {options.batch_size} texts"
            with tqdm(total=options.rounds * len(variants), desc=title, unit="run", file=sys.stderr) as bar:
                report.add(measure("depth", case, batch.tokens, baseline, variants, meter, bar.update))
