"""The commands of the model zoo: list, show, build."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from .options import METHODS, add_running, count, layer_count, new_command, print_description

# Written out, so that parsing needs no library; the tests hold it against the package.
STATUSES = ("ready", "remote-code", "old-transformers", "tune")


def add_zoo(commands: Any) -> None:
    group = commands.add_parser(
        "zoo",
        help="Recipes of models that are known: list them, show one, build one.",
        description="Recipes of models that are known: the papers', today's, and tiny ones that run offline.",
        epilog="example:\n  st-reba zoo list --language zh\n  st-reba zoo build mini-reba my_model",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = group.add_subparsers(required=True, metavar="ACTION")
    command = new_command(
        actions,
        "list",
        "List the recipes.",
        "  st-reba zoo list --language zh --method reba --status ready",
        list_recipes,
    )
    command.add_argument("--language", metavar="CODE", help="those for this language, as zh")
    command.add_argument("--method", choices=METHODS, help="those of this method")
    command.add_argument("--status", choices=STATUSES, help="those of this status")
    command.add_argument("--json", action="store_true", help="print whole recipes as JSON")

    command = new_command(
        actions,
        "show",
        "Show a recipe: build's arguments, and the licence, the paper's scores and the like.",
        "  st-reba zoo show llama2-chinese-reba\n  st-reba zoo show tuned/recipe.yaml --json",
        show,
    )
    command.add_argument("name", metavar="NAME", help="a name that zoo list prints, or a recipe.yaml")
    command.add_argument("--json", action="store_true", help="print JSON")

    command = new_command(
        actions,
        "build",
        "Build a recipe's model and save it for SentenceTransformer(OUT).",
        "  st-reba zoo build mini-reba my_model\n"
        "  st-reba zoo build llama3.2-3b-nosink my_encoder --k 8 --dtype bfloat16",
        build,
    )
    command.add_argument("name", metavar="NAME", help="a name that zoo list prints, or a recipe.yaml")
    command.add_argument("out", metavar="OUT", type=Path, help="the folder to write")
    command.add_argument("--k", type=layer_count, metavar="K", help="converted layers from the top, or all")
    command.add_argument("--k0", type=count, metavar="K0", help="those of them that hide the sink")
    command.add_argument("--revision", help="Hub revision of the base")
    command.add_argument("--truncate-layers", action="store_true", help="do not save layers above the one that is read")
    command.add_argument("--overwrite", action="store_true", help="replace a saved model that is there")
    command.add_argument("--json", action="store_true", help="print the description as JSON")
    add_running(command)


def list_recipes(options: argparse.Namespace) -> None:
    from .. import zoo

    recipes = [zoo.load(name) for name in zoo.names()]
    chosen = [
        recipe
        for recipe in recipes
        if options.language in (None, *recipe.about.language)
        and options.method in (None, recipe.arguments.get("method", METHODS[0]))
        and options.status in (None, recipe.about.status)
    ]
    if options.json:
        print(json.dumps([recipe.to_json() for recipe in chosen], ensure_ascii=False, indent=2))
        return
    rows = [("NAME", "BASE", "PARAMETERS", "LANGUAGE", "LICENCE", "PAPER", "STATUS")]
    for recipe in chosen:
        about = recipe.about
        shown = (about.parameters, " ".join(about.language), about.licence, about.paper, about.status)
        rows.append((recipe.name, recipe.arguments["base"], *(each or "-" for each in shown)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def show(options: argparse.Namespace) -> None:
    from .. import zoo

    recipe = zoo.load(options.name)
    if options.json:
        print(json.dumps(recipe.to_json(), ensure_ascii=False, indent=2))
    else:
        print(recipe.path.read_text(encoding="utf-8"), end="")


def build(options: argparse.Namespace) -> None:
    from .. import zoo
    from ..describe import describe
    from ..hub.saving import check_out, save

    recipe = zoo.load(options.name)
    given = {name: getattr(options, name) for name in ("k", "k0", "revision", "dtype", "device")}
    overrides = {name: value for name, value in given.items() if value is not None}
    if options.trust_remote_code:
        overrides["trust_remote_code"] = True
    check_out(options.out, overwrite=options.overwrite)
    model = recipe.build(**overrides)
    save(
        model,
        options.out,
        overwrite=options.overwrite,
        recipe=recipe,
        truncate_layers=options.truncate_layers,
    )
    print_description(describe(options.out, trust_remote_code=options.trust_remote_code), options.json)
