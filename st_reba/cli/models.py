"""The commands that make and show a model: demo, build, info."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .options import (
    JOINS,
    METHODS,
    POOLINGS,
    SPANS,
    add_running,
    count,
    layer,
    layer_count,
    new_command,
    numbers,
    plan,
    positive,
    print_description,
)


def add_demo(commands: Any) -> None:
    command = new_command(
        commands,
        "demo",
        "The whole job offline: build, save, load, index a few hundred sentences, search, compare methods.",
        "  st-reba demo\n  st-reba demo --keep demo_files --query 股票为什么下跌",
        demo,
    )
    command.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the model and the index in this new folder")
    command.add_argument("--query", action="append", metavar="TEXT", help="search for this instead; may be repeated")
    command.add_argument("-k", type=positive, default=3, help="results a query (default: %(default)s)")
    command.add_argument("--json", action="store_true", help="print the report as JSON instead")


def demo(options: argparse.Namespace) -> None:
    from .. import demo as demonstration

    report = demonstration.run(
        options.keep,
        queries=tuple(options.query or demonstration.QUERIES),
        k=options.k,
        say=(lambda line: None) if options.json else print,
    )
    if options.json:
        print(demonstration.report_as_json(report))


def add_build(commands: Any) -> None:
    command = new_command(
        commands,
        "build",
        "Turn a base model into a text embedder and save it for SentenceTransformer(OUT).",
        "  st-reba build mini my_model\n"
        "  st-reba build mini my_encoder --method nosink --setting 'mask0&bidir' --k 4 --k0 2\n"
        "  st-reba build mini my_half --method echo --pooling mean --layer 3 --truncate-layers\n"
        "  st-reba build Qwen/Qwen3-0.6B qwen3-echo --method echo --pooling mean --max-seq-length 1024",
        build,
    )
    command.add_argument("base", metavar="BASE", help="'mini' (embedded), a folder, a Hub id, or a recipe.yaml")
    command.add_argument("out", metavar="OUT", type=Path, help="the folder to write")
    command.add_argument("--method", choices=METHODS, default="reba", help="(default: %(default)s)")
    command.add_argument("--repeats", type=positive, default=2, help="copies of the text (default: %(default)s)")
    command.add_argument("--pooling", choices=POOLINGS, help="(default: mean for nosink, else last)")
    command.add_argument(
        "--template",
        action="append",
        help="text with {text} slots, one a copy; or the name of a template, or of an ensemble (metaeol, contrastive); "
        "given several times: an ensemble of them, each text's vectors added",
    )
    command.add_argument(
        "--weights",
        type=numbers,
        metavar="W,W",
        help="--template, several: what their vectors are multiplied by, as --weights=1,-0.5 (default: the average)",
    )
    command.add_argument(
        "--no-equal-norms", action="store_true", help="--template, several: do not divide each vector by its length"
    )
    command.add_argument("--separator", default="", help="text between the copies")
    command.add_argument("--instruction", default="", help="value of the template's {instruction}")
    command.add_argument("--variant", choices=("paper", "published"), default="paper", help="(default: %(default)s)")
    command.add_argument("--setting", help="any method: what the layers see, as mask0-bidir or inplace-back")
    command.add_argument("--k", type=layer_count, metavar="K", help="--setting: converted layers from the top, or all")
    command.add_argument("--k0", type=count, metavar="K0", help="--setting: those of them that hide the sink")
    command.add_argument("--m", type=count, default=1, help="--setting: sink tokens (default: %(default)s)")
    command.add_argument("--layers", type=plan, metavar="JSON", help="instead of --setting: a plan of your own")
    command.add_argument(
        "--prepend",
        type=count,
        default=0,
        metavar="N",
        help="Token Prepending in the first N layers: a placeholder before the text takes over the last token's state",
    )
    command.add_argument(
        "--layer",
        type=layer,
        metavar="L",
        help="read this layer's hidden states and run none above: 0 (embeddings) to the last, or --layer=-1 (the last) "
        "downwards; 2:4: several, joined. --k and --layers count from the top of those that run",
    )
    command.add_argument("--join", choices=JOINS, default="mean", help="--layer of several (default: %(default)s)")
    command.add_argument("--no-final-norm", action="store_true", help="--layer: read before the base's final norm")
    command.add_argument("--truncate-layers", action="store_true", help="--layer: do not save the layers above")
    command.add_argument("--no-check", action="store_true", help="do not check that each layer obeys the plan")
    command.add_argument("--span", choices=SPANS, help="positions that echo and classical pool")
    command.add_argument(
        "--postfilter",
        metavar="FILE",
        help="a filter behind all that, fitted on this very model by st-reba postfilter",
    )
    command.add_argument("--no-normalize", action="store_true", help="do not scale vectors to length 1")
    command.add_argument("--normalize-weights", action="store_true", help="reba: divide each sum of weights to 1")
    command.add_argument("--include-special", action="store_true", help="reba: sum over template and special tokens")
    command.add_argument("--compute-matched", action="store_true", help="halve the content of each copy")
    command.add_argument(
        "--chunk", type=positive, metavar="L0", help="reba: repeat pieces of at most L0 tokens instead"
    )
    command.add_argument("--max-seq-length", type=positive, help="positions of all copies together")
    command.add_argument("--prompt", action="append", default=[], metavar="NAME=TEXT", help="saved prompt; repeatable")
    command.add_argument("--revision", help="Hub revision of the base")
    command.add_argument("--tokenizer", metavar="NAME", help="a folder's or Hub id's tokenizer, in place of the base's")
    command.add_argument("--no-golden", action="store_true", help="write no golden.json, which st-reba verify reads")
    command.add_argument("--overwrite", action="store_true", help="replace a saved model that is there")
    command.add_argument("--json", action="store_true", help="print the description as JSON")
    add_running(command)


def build(options: argparse.Namespace) -> None:
    prompts = {}
    for prompt in options.prompt:
        name, equals, text = prompt.partition("=")
        if not name or not equals:
            raise ValueError(f"--prompt {prompt!r}: write NAME=TEXT, as in --prompt 'query=query: '.")
        prompts[name] = text
    from ..build import build as build_model
    from ..describe import describe
    from ..hub.saving import check_out, save

    check_out(options.out, overwrite=options.overwrite)
    model = build_model(
        options.base,
        options.method,
        repeats=options.repeats,
        pooling=options.pooling,
        template=_one_or_several(options.template),
        weights=options.weights,
        equal_norms=not options.no_equal_norms,
        separator=options.separator,
        instruction=options.instruction,
        normalize=not options.no_normalize,
        variant=options.variant,
        setting=options.setting,
        k=options.k,
        k0=options.k0,
        m=options.m,
        layers=options.layers,
        prepend=options.prepend,
        layer=options.layer,
        final_norm=not options.no_final_norm,
        join=options.join,
        check=not options.no_check,
        postfilter=options.postfilter,
        span=options.span,
        normalize_weights=options.normalize_weights,
        include_special=options.include_special,
        compute_matched=options.compute_matched,
        chunk=options.chunk,
        max_seq_length=options.max_seq_length,
        prompts=prompts or None,
        dtype=options.dtype,
        device=options.device,
        revision=options.revision,
        tokenizer=options.tokenizer,
        trust_remote_code=options.trust_remote_code,
    )
    save(
        model,
        options.out,
        overwrite=options.overwrite,
        golden=not options.no_golden,
        truncate_layers=options.truncate_layers,
    )
    print_description(describe(options.out, trust_remote_code=options.trust_remote_code), options.json)


def _one_or_several(templates: list[str] | None) -> str | list[str] | None:
    return templates[0] if templates is not None and len(templates) == 1 else templates


def add_info(commands: Any) -> None:
    command = new_command(
        commands,
        "info",
        "Tell what a model folder holds, without loading its weights.",
        "  st-reba info my_model\n  st-reba info my_model --json",
        info,
    )
    command.add_argument("model", metavar="MODEL", help="a folder that st-reba build wrote, or a Hub id")
    command.add_argument("--revision", help="Hub revision")
    command.add_argument("--trust-remote-code", action="store_true", help="allow the model's own Python code")
    command.add_argument("--json", action="store_true", help="print JSON")


def info(options: argparse.Namespace) -> None:
    from ..describe import describe

    description = describe(options.model, revision=options.revision, trust_remote_code=options.trust_remote_code)
    print_description(description, options.json)
