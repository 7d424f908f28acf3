"""The command that looks at a text's attention: attention."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from .options import add_running, count, layer_count, load_model, new_command, positive


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
    command.add_argument("--k0", type=count, metavar="K0", help="--setting: how many of these hide the sink")
    command.add_argument("--m", type=positive, default=1, help="sink tokens (default: %(default)s)")
    command.add_argument("--prompt", help="in front of the text")
    command.add_argument("--scale", choices=("log", "linear"), default="log", help="of colours (default: %(default)s)")
    command.add_argument("--json", action="store_true", help="print the table as JSON")
    add_running(command)


def attention(options: argparse.Namespace) -> None:
    from dataclasses import asdict

    from ..evaluation.attention import MAX_NAMED, attention_maps, code, markdown_table, write_attention

    model = _model(options)
    maps = attention_maps(model, options.text, prompt=options.prompt)
    rows = write_attention(maps, options.out, m=options.m, scale=options.scale)
    if options.json:
        shown = {"tokens": maps.tokens, "layers": [asdict(row) for row in rows]}
        print(json.dumps(shown, ensure_ascii=False, indent=2))
        return
    plan = model[0].stack
    parts = [*([] if plan is None else [str(plan)]), markdown_table(rows, options.m)]
    if len(maps.tokens) <= MAX_NAMED:
        parts.append(f"Tokens: {', '.join(f'{place} {code(token)}' for place, token in enumerate(maps.tokens))}")
    print("\n\n".join([*parts, f"{options.out / 'attention.png'}, {options.out / 'attention.csv'}"]))


def _model(options: argparse.Namespace) -> Any:
    """The saved model, or the base model, converted."""
    from ..bases import EMBEDDED, is_repository
    from ..building import build
    from ..modules.decoder import DecoderTransformer

    if options.setting is None and options.model not in EMBEDDED and is_repository(options.model, {}):
        model = load_model(options)
        if isinstance(model[0], DecoderTransformer):
            for name in ("k", "k0"):
                if getattr(options, name) is not None:
                    raise ValueError(
                        f"--{name} {getattr(options, name)}: MODEL={options.model!r} is converted already. Drop it."
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
