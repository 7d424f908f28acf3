"""The commands that change an index or give it away: add, upsert, delete, compact, export."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .options import (
    CORPUS_FILES,
    add_corpus,
    add_engine,
    add_running,
    corpus_settings,
    count,
    engine_settings,
    load_model,
    new_command,
)

if TYPE_CHECKING:
    from ..index import Change

_GOES_ON = (
    "One command may change an index at a time; searches see the index before the change or after it. A command that "
    "is killed goes on where it was when it is run again, and adds nothing twice."
)


def add_life(commands: Any) -> None:
    """Register the commands."""
    _add_addition(
        commands,
        "add",
        "Add documents to an index. An id that is there already with another text is set aside, or an error with "
        f"--strict; st-reba upsert replaces. {_GOES_ON}",
        "  st-reba add my_index more.jsonl\n  st-reba add my_index more.csv --text-column abstract --strict",
    )
    _add_addition(
        commands,
        "upsert",
        "Add documents to an index, in place of those that have the same ids. Both happen in one step, and documents "
        f"that have not changed are left as they are. {_GOES_ON}",
        "  st-reba upsert my_index corrected.jsonl",
    )
    _add_delete(commands)
    _add_compact(commands)
    _add_export(commands)


def _add_addition(commands: Any, name: str, summary: str, example: str) -> None:
    command = new_command(commands, name, summary, example, _addition)
    command.add_argument("index", metavar="INDEX", type=Path, help="the folder that st-reba index wrote")
    command.add_argument("input", metavar="INPUT", help=f"the texts: {CORPUS_FILES}")
    command.add_argument("--model", help="the model, where it is no longer where the index was built with it")
    add_corpus(command)
    add_engine(command)
    command.add_argument("--again", action="store_true", help="add a file once more that the last command added")
    command.add_argument("--json", action="store_true", help="print what was done as JSON")
    command.set_defaults(upsert=name == "upsert")
    add_running(command)


def _addition(options: argparse.Namespace) -> None:
    from ..index import Index, add

    if options.model is None:
        with Index.open(options.index, verify=False) as index:
            options.model = index.find_model()
    change = add(
        options.index,
        load_model(options),
        options.input,
        upsert=options.upsert,
        again=options.again,
        **engine_settings(options),
        **corpus_settings(options),
    )
    _print(options, change)


def _add_delete(commands: Any) -> None:
    command = new_command(
        commands,
        "delete",
        "Delete documents of an index by id. They are no longer found; st-reba compact removes their texts and vectors "
        "from the disk.",
        "  st-reba delete my_index doc-17 doc-18\n  st-reba delete my_index --ids old.txt --missing ignore",
        _delete,
    )
    command.add_argument("index", metavar="INDEX", type=Path, help="the folder that st-reba index wrote")
    command.add_argument("id", metavar="ID", nargs="*", help="which documents")
    command.add_argument("--ids", metavar="FILE", help="a file with an id a line; - : standard input")
    command.add_argument(
        "--missing",
        choices=("error", "ignore"),
        default="error",
        help="of an id that is not there: delete nothing and say so, or pass it over (default: %(default)s)",
    )
    command.add_argument("--json", action="store_true", help="print what was done as JSON")


def _delete(options: argparse.Namespace) -> None:
    from ..index import delete

    ids = list(options.id)
    if options.ids == "-":
        ids += [line.rstrip("\r\n") for line in sys.stdin]
    elif options.ids is not None:
        ids += Path(options.ids).read_text(encoding="utf-8-sig").splitlines()
    ids = [one for one in ids if one]
    if not ids:
        raise ValueError("delete needs ids: st-reba delete INDEX ID ..., or --ids FILE with an id a line.")
    _print(options, delete(options.index, ids, missing=options.missing))


def _add_compact(commands: Any) -> None:
    command = new_command(
        commands,
        "compact",
        "Write an index anew as one segment: what was deleted is gone from the disk, and what was added is part of the "
        "FAISS index itself. Nothing is encoded again.",
        "  st-reba compact my_index\n  st-reba compact my_index --factory HNSW32",
        _compact,
    )
    command.add_argument("index", metavar="INDEX", type=Path, help="the folder that st-reba index wrote")
    command.add_argument("--factory", metavar="F", help="another FAISS index, as Flat, HNSW32 or IVF1024,Flat; or auto")
    command.add_argument(
        "--parameters", metavar="P", help="FAISS search parameters, as nprobe=32 (default: as they are)"
    )
    command.add_argument("--seed", metavar="N", type=count, default=0, help="of the training sample (default: 0)")
    command.add_argument("--json", action="store_true", help="print what was done as JSON")


def _compact(options: argparse.Namespace) -> None:
    from ..index import compact

    change = compact(options.index, factory=options.factory, parameters=options.parameters, seed=options.seed)
    _print(options, change)


def _add_export(commands: Any) -> None:
    command = new_command(
        commands,
        "export",
        "Write the vectors and documents of an index into a file. X.npy holds the vectors [documents, dimension] "
        "float32, and X.documents.jsonl beside it their ids, texts and metadata; X.parquet holds all of it in the "
        "columns id, text, metadata (JSON) and vector.",
        "  st-reba export my_index vectors.npy\n  st-reba export my_index everything.parquet",
        _export,
    )
    command.add_argument("index", metavar="INDEX", type=Path, help="the folder that st-reba index wrote")
    command.add_argument("out", metavar="OUT", help="X.npy or X.parquet")
    command.add_argument("--overwrite", action="store_true", help="replace a file that is there")
    command.add_argument("--json", action="store_true", help="print what was written as JSON")


def _export(options: argparse.Namespace) -> None:
    from ..index import export

    written = export(options.index, options.out, overwrite=options.overwrite)
    if options.json:
        print(json.dumps({"path": options.out, "count": written}))
    else:
        print(f"{options.out}: {written} documents")


def _print(options: argparse.Namespace, change: Change) -> None:
    if options.json:
        rejects = None if change.rejects is None else str(change.rejects)
        print(json.dumps({"path": str(options.index), **asdict(change), "rejects": rejects}, ensure_ascii=False))
        return
    what = [
        f"{number} {name}"
        for name, number in (
            ("added", change.added),
            ("replaced", change.replaced),
            ("removed from the disk" if change.kind == "compact" else "deleted", change.deleted),
            ("unchanged", change.unchanged),
            (f"set aside ({change.rejects})", change.rejected),
        )
        if number
    ]
    print(f"{options.index}: {', '.join(what) or 'nothing to do'}; {change.count} documents")
