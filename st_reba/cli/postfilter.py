"""The command that fits a linear filter on unlabelled texts: postfilter."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, get_args

from ..modules.filter import Kind
from .options import add_reading, add_running, count, load_model, new_command, positive

_SUFFIX = ".safetensors"


def add_postfilter(commands: Any) -> None:
    command = new_command(
        commands,
        "postfilter",
        "Fit a linear filter on a saved model's vectors of unlabelled texts, and save the model with it.",
        "  st-reba postfilter my_model corpus.jsonl my_filtered --sample 2000\n"
        "  st-reba postfilter my_model corpus.txt my_filter.safetensors --kind whiten --dimensions 128",
        postfilter,
    )
    command.add_argument("model", metavar="MODEL", help="a folder that st-reba build wrote, or a Hub id")
    command.add_argument(
        "texts", metavar="TEXTS", help="texts like those to be embedded: .txt (one a line), .jsonl, .csv or .tsv"
    )
    command.add_argument(
        "out",
        metavar="OUT",
        type=Path,
        help=f"the folder to write; or a file that ends in {_SUFFIX}: the filter alone, for a recipe's stage filter",
    )
    command.add_argument(
        "--kind",
        choices=get_args(Kind),
        default="abtt",
        help="take away the mean; also the top principal directions; or the dimensions' spread; or all covariance "
        "(default: %(default)s)",
    )
    command.add_argument(
        "--r", type=count, metavar="R", help="directions that are taken away (default: abtt 3, whiten 0)"
    )
    command.add_argument(
        "--dimensions", type=positive, metavar="D", help="whiten: dimensions that are kept (default: all)"
    )
    command.add_argument(
        "--power",
        type=float,
        default=1.0,
        metavar="P",
        help="whiten: divide by the standard deviations to this power; less than 1 whitens in part (default: 1)",
    )
    command.add_argument("--sample", type=positive, metavar="N", help="fit on N of the texts, drawn at random")
    command.add_argument("--seed", type=count, default=0, metavar="N", help="of that draw (default: %(default)s)")
    command.add_argument("--prompt", help="text in front, or the template's {instruction}")
    command.add_argument("--no-golden", action="store_true", help="write no golden.json, which st-reba verify reads")
    command.add_argument("--overwrite", action="store_true", help="replace a saved model or a filter that is there")
    command.add_argument("--json", action="store_true", help="print what was fitted as JSON")
    add_reading(command)
    add_running(command)


def postfilter(options: argparse.Namespace) -> None:
    from ..corpus import read_documents
    from ..filters import postfilter_of, told, with_postfilter
    from ..hub.saving import check_out, save

    alone = options.out.suffix == _SUFFIX
    if not alone:
        check_out(options.out, overwrite=options.overwrite)
    elif options.out.exists() and not options.overwrite:
        raise FileExistsError(f"{options.out}: already there; give another path, or --overwrite to replace it")
    documents = read_documents(options.texts, text_column=options.text_column)
    model = load_model(options)
    fitted = postfilter_of(
        model,
        (document.text for document in documents),
        options.kind,
        r=options.r,
        dimensions=options.dimensions,
        power=options.power,
        sample=options.sample,
        seed=options.seed,
        prompt=options.prompt,
        batch_size=options.batch_size,
        batch_tokens=options.batch_tokens,
    )
    record = fitted.record()
    if alone:
        fitted.save(options.out)
    else:
        save(with_postfilter(model, fitted), options.out, overwrite=options.overwrite, golden=not options.no_golden)
    if options.json:
        about = {"path": str(options.out), **record.to_dict(), "dimension": fitted.out_dimension}
        print(json.dumps(about, ensure_ascii=False))
    else:
        print(f"{options.out}: {told(record)}; vectors of {fitted.out_dimension} dimensions")
