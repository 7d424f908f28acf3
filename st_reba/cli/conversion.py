"""The commands that look for the best conversion and look inside: tune, attention."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from .composing import add_composing, check_search, compose
from .labelled import add_labelled, add_words, reading
from .options import add_running, count, layer_count, load_model, new_command, positive


def add_tune(commands: Any) -> None:
    command = new_command(
        commands,
        "tune",
        "Find NoSink's k and k0 for a base model on a labelled file; or, with --compose, which input, layers, pooling\n"
        "and post-filter go best together. Writes a recipe for st-reba build.\n\n"
        "FILE holds pairs with scores or texts with classes (.csv, .tsv, .jsonl), id||text||text||score lines, or\n"
        "words with tags (CoNLL columns); with --compose also triples (text, nearer, farther) or a ranking (query,\n"
        "document, relevance). Every trial is kept: the same command goes on where it was stopped.",
        "  st-reba tune mini pairs.tsv tuned\n  st-reba build tuned/recipe.yaml my_model\n\n"
        "  st-reba tune mini pairs.tsv composed --compose --minutes 30\n"
        "  st-reba tune mini clicks.jsonl composed --compose --kind ranking --space small.yaml\n"
        "  st-reba build composed/recipe.yaml my_model",
        tune,
    )
    command.add_argument("base", metavar="BASE", help="'mini' (embedded), a folder, or a Hub id")
    command.add_argument("file", metavar="FILE", help="the labelled file; its validation part chooses")
    command.add_argument("out", metavar="OUT", type=Path, help="the folder of the run: table, figure, recipe")
    add_composing(command)
    command.add_argument("--everything", action="store_true", help="every setting and k, as the paper's figures")
    command.add_argument(
        "--kind",
        choices=("pairs", "classes", "tags", "triples", "ranking"),
        help="of FILE (default: recognized, but for ranking)",
    )
    command.add_argument("--train", metavar="FILE", help="classes, tags: train on this, and on nothing of FILE")
    command.add_argument("--test", metavar="FILE", help="hold out this file, and nothing of FILE")
    command.add_argument(
        "--validation",
        type=float,
        metavar="SHARE",
        help="of FILE (default: 0.5 of pairs, else 0.2; with --compose 0.5)",
    )
    add_labelled(command)
    add_words(command)
    command.add_argument("--limit", type=positive, metavar="N", help="use N items of each file, drawn by the seed")
    command.add_argument("--seed", type=count, default=0, help="of the draws (default: %(default)s)")
    command.add_argument("--pooling", choices=("last", "mean", "cls"), help="(default: mean)")
    command.add_argument("--m", type=positive, help="sink tokens (default: 1)")
    command.add_argument("--max-seq-length", type=positive, help="positions of a text")
    command.add_argument("--prompt", help="in front of every text, not pooled")
    command.add_argument("--batch-size", type=positive, help="texts at once (default: 64)")
    command.add_argument("--revision", help="Hub revision of the base")
    command.add_argument("--json", action="store_true", help="print what was found as JSON")
    add_running(command)


def tune(options: argparse.Namespace) -> None:
    check_search(options)
    if options.compose:
        return compose(options)
    from ..evaluation import read_task
    from ..evaluation import tune as search

    task = read_task(
        options.file,
        options.kind,
        train=options.train,
        test=options.test,
        validation=options.validation,
        **reading(options),
    )
    report = search(
        options.base,
        task,
        options.out,
        everything=options.everything,
        pooling=options.pooling or "mean",
        m=options.m or 1,
        dtype=options.dtype,
        device=options.device,
        batch_size=options.batch_size or 64,
        max_seq_length=options.max_seq_length,
        prompt=options.prompt,
        revision=options.revision,
        trust_remote_code=options.trust_remote_code,
        say=(lambda line: None) if options.json else print,
    )
    if options.json:
        print(json.dumps(report.to_json(), ensure_ascii=False, indent=2))


def add_attention(commands: Any) -> None:
    command = new_command(
        commands,
        "attention",
        "Draw a text's attention, layer by layer, and measure the share that falls on the first token: the sink.",
        '  st-reba attention my_model "他在银行取钱" --out maps\n'
        '  st-reba attention mini "The cat sat on the mat." --out maps --setting mask0-bidir --k all',
        attention,
    )
    command.add_argument("model", metavar="MODEL", help="a saved model; or a base model, converted by --setting")
    command.add_argument("text", metavar="TEXT", help="the text")
    command.add_argument("--out", type=Path, default=Path("attention"), help="folder to write (default: %(default)s)")
    command.add_argument("--setting", help="of a base model: what the layers see (default: baseline)")
    command.add_argument("--k", type=layer_count, metavar="K", help="--setting: converted layers from the top, or all")
    command.add_argument("--k0", type=count, metavar="K0", help="--setting: those of them that hide the sink")
    command.add_argument("--m", type=positive, default=1, help="sink tokens (default: %(default)s)")
    command.add_argument("--prompt", help="in front of the text")
    command.add_argument("--scale", choices=("log", "linear"), default="log", help="of colours (default: %(default)s)")
    command.add_argument("--json", action="store_true", help="print the table as JSON")
    add_running(command)


def attention(options: argparse.Namespace) -> None:
    from dataclasses import asdict

    from ..evaluation.attention.maps import attention_maps
    from ..evaluation.attention.sink import report, sink_shares

    model = _model(options)
    table = report(model, options.text, options.out, prompt=options.prompt, m=options.m, scale=options.scale)
    if options.json:
        maps = attention_maps(model, options.text, prompt=options.prompt)
        rows = [asdict(row) for row in sink_shares(maps, options.m)]
        print(json.dumps({"tokens": maps.tokens, "layers": rows}, ensure_ascii=False, indent=2))
    else:
        print(f"{model[0].stack}\n\n{table}\n\n{options.out / 'attention.png'}, {options.out / 'attention.csv'}")


def _model(options: argparse.Namespace) -> Any:
    """The saved model, or the base model, converted."""
    from ..bases import is_repository
    from ..building import build
    from ..modules.decoder import DecoderTransformer

    if options.setting is None and is_repository(options.model, {}):
        model = load_model(options)
        if isinstance(model[0], DecoderTransformer):
            for name in ("k", "k0"):
                if getattr(options, name) is not None:
                    raise ValueError(
                        f"--{name} {getattr(options, name)}: MODEL={options.model!r} is converted already."
                    )
            return model
    given = {"k": options.k, "k0": options.k0, "device": options.device}
    if (options.setting or "").lower().startswith("mask0"):
        # Where no layer hides a token, m only says how many are measured.
        given["m"] = options.m
    return build(
        options.model,
        "nosink",
        setting=options.setting or "baseline",
        dtype=options.dtype,
        trust_remote_code=options.trust_remote_code,
        **{name: value for name, value in given.items() if value is not None},
    )
