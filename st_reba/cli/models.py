"""The commands that make and show a model: demo, build, info."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from ..modules import Stage
from ..spec import METHODS
from .options import add_fields, add_running, fields_of, new_command, positive, print_description


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
        print(json.dumps(report, ensure_ascii=False, indent=2))


def add_build(commands: Any) -> None:
    command = new_command(
        commands,
        "build",
        "Turn a base model into a text embedder and save it for SentenceTransformer(OUT).",
        "  st-reba build mini my_model\n"
        "  st-reba build mini my_encoder --method nosink --setting 'mask0&bidir' --k 4 --k0 2\n"
        "  st-reba build mini my_half --method echo:pooling=mean --stage read:layers=3 --truncate-layers\n"
        "  st-reba build Qwen/Qwen3-0.6B qwen3-echo --method echo --pooling mean --max-seq-length 1024\n"
        "  st-reba build zoo:mini-nosink my_encoder",
        build,
    )
    command.add_argument(
        "base",
        metavar="BASE",
        help="'mini' (embedded), a folder, a Hub id, zoo:NAME (st-reba zoo list), or a recipe.yaml",
    )
    command.add_argument("out", metavar="OUT", type=Path, help="the folder to write")
    command.add_argument(
        "--method",
        help=f"{', '.join(METHODS)}; or with its fields, as echo:pooling=mean (default: the recipe's, or reba)",
    )
    command.add_argument(
        "--stage",
        action="append",
        metavar="STAGE",
        help="what happens around the layers, as nosink:setting=mask0-bidir,k=4; may be repeated: "
        + ", ".join(sorted(Stage.registry)),
    )
    add_fields(command)
    command.add_argument("--truncate-layers", action="store_true", help="do not save layers above the one that is read")
    command.add_argument("--no-check", action="store_true", help="do not check that each layer obeys its plan")
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
    from ..building import build as build_model
    from ..describe import describe
    from ..hub.saving import check_out, save

    check_out(options.out, overwrite=options.overwrite)
    fields = fields_of(options)
    loading = {
        "prompts": prompts or None,
        "device": options.device,
        "revision": options.revision,
        "trust_remote_code": options.trust_remote_code or None,
    }
    model = build_model(
        options.base,
        options.method,
        stages=options.stage,
        tokenizer=options.tokenizer,
        dtype=options.dtype,
        check=not options.no_check,
        **fields,
        **{name: value for name, value in loading.items() if value is not None},
    )
    changed = options.method or options.stage or fields
    save(
        model,
        options.out,
        overwrite=options.overwrite,
        golden=not options.no_golden,
        truncate_layers=options.truncate_layers,
        **({} if changed else _facts(options.base)),
    )
    print_description(describe(options.out, trust_remote_code=options.trust_remote_code), options.json)


def _facts(base: str) -> dict[str, Any]:
    """What a recipe says of its model, for the card."""
    from ..recipe import is_recipe
    from ..zoo import load

    if not base.startswith("zoo:") and not is_recipe(base):
        return {}
    recipe = load(base.removeprefix("zoo:"))
    return {"about": recipe.about, "name": recipe.name}


def add_info(commands: Any) -> None:
    command = new_command(
        commands,
        "info",
        "Tell what a model folder or an index holds, without loading weights.",
        "  st-reba info my_model\n  st-reba info my_model --json\n  st-reba info my_index --rejects",
        info,
    )
    command.add_argument("model", metavar="MODEL", help="a folder that st-reba build or index wrote, or a Hub id")
    command.add_argument("--revision", help="Hub revision")
    command.add_argument("--trust-remote-code", action="store_true", help="allow the model's own Python code")
    command.add_argument("--rejects", action="store_true", help="of an index: list what its last change set aside")
    command.add_argument("--json", action="store_true", help="print JSON")


def info(options: argparse.Namespace) -> None:
    if options.rejects or os.path.isfile(os.path.join(options.model, "index.sqlite")):
        from .index import print_info

        print_info(Path(options.model), rejects=options.rejects, as_json=options.json)
        return
    from ..describe import describe

    description = describe(options.model, revision=options.revision, trust_remote_code=options.trust_remote_code)
    print_description(description, options.json)
