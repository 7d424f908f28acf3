"""The command that publishes a model: push."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from .options import add_running, new_command


def add_push(commands: Any) -> None:
    command = new_command(
        commands,
        "push",
        "Publish a model on the Hub: check it, say what will be sent, then one commit.\n\n"
        "The token is the one of `hf auth login`, or HF_TOKEN. A push that was cut off goes on when it is run again.",
        "  st-reba push my_model org/my-model --private\n"
        "  st-reba push my_model org/my-model --dry-run\n"
        "  st-reba push my_model_onnx org/my-model-onnx\n"
        "  st-reba push llama2-chinese-reba org/llama2-chinese-reba --no-weights --revision v2",
        push,
    )
    command.add_argument(
        "source", metavar="RECIPE|FOLDER", help="a saved or exported model, a recipe of the zoo, or a recipe.yaml"
    )
    command.add_argument("repo_id", metavar="ORG/NAME", help="the repository; made where it is missing")
    command.add_argument("--private", action="store_true", help="make a new repository private")
    command.add_argument("--revision", metavar="BRANCH", help="the branch to write to, made from main if missing")
    command.add_argument("--message", metavar="TEXT", help="of the commit")
    command.add_argument("--create-pr", action="store_true", help="open a pull request instead of writing to main")
    command.add_argument("--dry-run", action="store_true", help="say what would be sent and removed, send nothing")
    command.add_argument("--no-weights", action="store_true", help="a recipe: publish no weights, name the pinned base")
    add_running(command)
    command.add_argument("--json", action="store_true", help="print the result as JSON; the rest goes to stderr")


def push(options: argparse.Namespace) -> None:
    from ..hub.push import push as push_folder
    from ..hub.push import push_recipe

    how: dict[str, Any] = {
        "private": options.private,
        "revision": options.revision,
        "create_pr": options.create_pr,
        "message": options.message,
        "dry_run": options.dry_run,
        "say": partial(print, file=sys.stderr if options.json else sys.stdout, flush=True),
    }
    building = {
        "dtype": options.dtype,
        "device": options.device,
        "trust_remote_code": options.trust_remote_code or None,
    }
    if Path(options.source).is_dir():
        if options.no_weights or any(building.values()):
            raise ValueError(
                "--no-weights, --dtype, --device and --trust-remote-code go with a recipe, which is built first; a "
                "folder is published as it is."
            )
        pushed = push_folder(options.source, options.repo_id, **how)
    else:
        pushed = push_recipe(options.source, options.repo_id, weights=not options.no_weights, building=building, **how)
    if options.json:
        print(json.dumps(asdict(pushed), ensure_ascii=False, indent=2))
