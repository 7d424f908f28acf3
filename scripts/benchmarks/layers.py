"""Part `layers`: each kind of layer, and plans that add passes, against plain causal attention."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from .aims import Aim
from .batches import PADDINGS, make_batch
from .measuring import AGAIN, Meter, Run, Variant, fitting_rows, measure
from .models import saved_model
from .report import Report

if TYPE_CHECKING:
    from st_reba import LayerPlan, RepeatTransformer

AIM = Aim(1.10)


@dataclass(frozen=True)
class Pair:
    """One backbone twice, with shared weights: as transformers runs it, and for plans. The first is never converted."""

    plain: RepeatTransformer
    converted: RepeatTransformer


def load_pair(name: str, positions: int, dtype: str, device: str) -> Pair:
    """Make a model and load it both ways, every position of a text visible to what follows."""
    import st_reba

    with saved_model(name, positions) as folder:
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


def layer_variants(pair: Pair, features: dict[str, Any], m: int) -> tuple[Variant, list[Variant]]:
    """The baseline, and each kind in every layer; for information, the paper's combination and the added passes."""
    from st_reba import LayerPlan, NoSink

    depth = pair.converted.depth
    # The paper's combination on 12 layers, and two thirds of any other depth.
    k = max(2, round(depth * 2 / 3))
    plans: dict[str, LayerPlan] = {
        "backward": LayerPlan(kind="backward", k="all"),
        "bidirectional": LayerPlan(kind="bidirectional", k="all"),
        "nosink-forward": LayerPlan(kind="nosink-forward", k="all", m=m),
        "nosink-bidirectional": LayerPlan(kind="nosink-bidirectional", k="all", m=m),
        "mask0&bidir": NoSink("mask0&bidir", k=k, k0=k // 2, m=m).plan,
    }
    unasked = {
        "not converted": LayerPlan(),
        "inter-bidir": NoSink("inter-bidir", k=2).plan,
        "extra-bidir": NoSink("extra-bidir", k=2).plan,
        "extend-bidir": NoSink("extend-bidir", k=2).plan,
    }

    def converted(name: str, plan: LayerPlan, aims: tuple[Aim, ...]) -> Variant:
        def prepare() -> Run:
            pair.converted.rebind([plan])
            return lambda: pair.converted.forward(features)

        stack = plan.resolve(depth)
        return Variant(name, prepare, aims, {"plan": str(stack), "passes": len(stack.calls) / depth})

    def plain() -> Run:
        return lambda: pair.plain.forward(features)

    detail = {"plan": f"{depth} forward", "passes": 1.0}
    variants = [Variant("plain SDPA" + AGAIN, plain, (), detail)]
    variants += [converted(name, plan, (AIM,)) for name, plan in plans.items()]
    variants += [converted(name, plan, ()) for name, plan in unasked.items()]
    return Variant("plain SDPA", plain, (), detail), variants


def run_layers(options: argparse.Namespace, report: Report) -> None:
    """Measure every kind of layer on every length and padding."""
    import torch
    from tqdm import tqdm

    pair = load_pair(options.model, max(options.lengths), options.dtype, options.device)
    meter = Meter(options.device, options.clock, options.rounds, limit=options.case_limit)
    paddings = options.padding or PADDINGS
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
                    report.add(measure("layers", case, batch.tokens, baseline, variants, meter, bar.update))
