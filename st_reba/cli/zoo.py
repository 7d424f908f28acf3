"""The commands of the model zoo: list, show."""

from __future__ import annotations

import argparse
import json
from typing import Any, get_args, get_type_hints

from ..recipe import About
from ..spec import METHODS
from .options import new_command

STATUSES = get_args(get_type_hints(About)["status"])


def add_zoo(commands: Any) -> None:
    group = commands.add_parser(
        "zoo",
        help="Models that are known: list them, show one.",
        description="Models that are known: the papers', today's, and tiny ones that run offline.",
        epilog="example:\n  st-reba zoo list --language zh\n  st-reba build zoo:mini-reba my_model",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = group.add_subparsers(required=True, metavar="ACTION")
    command = new_command(
        actions,
        "list",
        "List the models.",
        "  st-reba zoo list --language zh --method reba --status ready",
        list_recipes,
    )
    command.add_argument("--language", metavar="CODE", help="those for this language, as zh")
    command.add_argument("--method", choices=METHODS, help="those of this method")
    command.add_argument("--status", choices=STATUSES, help="those of this status")
    command.add_argument("--json", action="store_true", help="print all of their recipes as JSON")

    command = new_command(
        actions,
        "show",
        "Show a model's recipe: the base, the method, the licence, the paper's scores.",
        "  st-reba zoo show llama2-chinese-reba\n  st-reba zoo show tuned/recipe.yaml --json",
        show,
    )
    command.add_argument("name", metavar="NAME", help="a name that zoo list prints, or a recipe.yaml")
    command.add_argument("--json", action="store_true", help="print JSON")


def list_recipes(options: argparse.Namespace) -> None:
    from .. import zoo

    chosen = [
        recipe
        for recipe in map(zoo.load, zoo.names())
        if options.language in (None, *recipe.about.language)
        and options.method in (None, recipe.values.get("method"))
        and options.status in (None, recipe.about.status)
    ]
    if options.json:
        print(
            json.dumps([{"name": recipe.name, **recipe.to_dict()} for recipe in chosen], ensure_ascii=False, indent=2)
        )
        return
    rows: list[tuple[str, ...]] = [("NAME", "BASE", "PARAMETERS", "LANGUAGE", "LICENCE", "PAPER", "STATUS")]
    for recipe in chosen:
        about = recipe.about
        shown = (about.parameters, " ".join(about.language), about.licence, about.paper, about.status)
        rows.append((recipe.name, recipe.base, *(each or "-" for each in shown)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def show(options: argparse.Namespace) -> None:
    import yaml

    from .. import zoo

    recipe = zoo.load(options.name)
    if options.json:
        print(json.dumps({"name": recipe.name, **recipe.to_dict()}, ensure_ascii=False, indent=2))
    else:
        print(yaml.safe_dump(recipe.to_dict(), allow_unicode=True, sort_keys=False, default_flow_style=None), end="")
