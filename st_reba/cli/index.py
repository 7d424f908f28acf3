"""The commands of an index: index, search, add, upsert, delete, compact, export."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .corpus import counted, opened
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
    positive,
)

if TYPE_CHECKING:
    from ..index import Change

_GOES_ON = (
    "Searches see the index before the change or after it. A command that is killed goes on where it was when it is "
    "run again, and adds nothing twice."
)


def add_index(commands: Any) -> None:
    """Register the commands."""
    command = new_command(
        commands,
        "index",
        "Write a folder that st-reba search reads, from texts or from an encoded corpus. Killed while it encodes, the\n"
        "same command goes on.",
        "  st-reba index my_model corpus.jsonl my_index\n"
        "  st-reba index my_model my_corpus my_index --factory IVF4096,PQ48,RFlat --recall-aim 0.98",
        index,
    )
    command.add_argument("model", metavar="MODEL", help="a folder that st-reba build wrote, or a Hub id")
    command.add_argument(
        "input", metavar="INPUT", help=f"texts: {CORPUS_FILES}; or a folder that st-reba encode-corpus wrote"
    )
    command.add_argument("out", metavar="OUT", type=Path, help="the folder to write")
    kind = command.add_mutually_exclusive_group()
    kind.add_argument(
        "--factory",
        metavar="S",
        default="Flat",
        help="a FAISS factory string, as HNSW32, IVF1024,Flat or IVF4096,PQ48,RFlat (default: %(default)s, exact)",
    )
    kind.add_argument("--auto", action="store_true", help="choose it by the number of vectors")
    _add_recipe(command)
    add_corpus(command)
    add_engine(command)
    command.add_argument("--overwrite", action="store_true", help="replace an index that is there")
    command.add_argument("--json", action="store_true", help="print what was built as JSON")
    add_running(command)
    _add_search(commands)
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
        f"that have not changed are left as they are, and not encoded. {_GOES_ON}",
        "  st-reba upsert my_index corrected.jsonl",
    )
    _add_delete(commands)
    _add_compact(commands)
    _add_export(commands)


@contextmanager
def _kept(folder: Path) -> Iterator[None]:
    """An interruption says what it has not cost."""
    try:
        yield
    except KeyboardInterrupt:
        from ..index.work import unfinished

        begun = unfinished(folder)
        parts, left = sum(one.parts() for one in begun), sum(len(one.pending()) for one in begun)
        done = f"{parts - left:,} of {parts:,} parts are encoded and kept" if parts else "nothing was encoded yet"
        raise KeyboardInterrupt(f"{done}; the same command goes on") from None


def _add_recipe(command: argparse.ArgumentParser) -> None:
    """How a FAISS index is trained."""
    command.add_argument(
        "--parameters", metavar="P", help='FAISS search parameters, as "nprobe=32" (default: found by measuring)'
    )
    command.add_argument(
        "--recall-aim", metavar="R", type=float, help="recall@10 that they are to reach (default: 0.95)"
    )
    command.add_argument(
        "--train-size", metavar="N", type=positive, help="vectors to train on (default: by the factory)"
    )
    command.add_argument("--seed", metavar="N", type=count, help="of that sample (default: 0)")


def _recipe(options: argparse.Namespace) -> dict[str, Any]:
    names = ("parameters", "recall_aim", "train_size", "seed")
    return {name: getattr(options, name) for name in names if getattr(options, name) is not None}


def index(options: argparse.Namespace) -> None:
    from ..corpus.folder import is_corpus
    from ..index import Index

    settings = {
        "factory": "auto" if options.auto else options.factory,
        "overwrite": options.overwrite,
        "model_source": options.model,
        **_recipe(options),
    }
    if is_corpus(options.input):
        built = Index.from_corpus(options.input, options.out, load_model(options), **settings)
    else:
        source = opened(options)
        given = {**engine_settings(options), **corpus_settings(options)}
        with _kept(options.out):
            built = Index.build(load_model(options), source, options.out, **given, **settings)
    with built:
        about = built.info() | {"rejected": built.change.rejected, "why": built.change.why} if built.change else {}
    print(json.dumps(about, ensure_ascii=False) if options.json else _said(about))


def _said(about: dict[str, Any]) -> str:
    lines = ["{path}: {documents:,} documents, {vectors:,} vectors of {dimension} dimensions".format(**about)]
    chosen = f" ({about['why']})" if about["why"] else ""
    lines.append(f"factory: {about['factory']}{chosen}")
    recall = about["recall"]
    if recall is None:
        lines.append("recall@10: 1, the search is exact")
    else:
        given = f" with {about['parameters']}" if about["parameters"] else ""
        lines.append(
            f"recall@{recall['k']}: {recall['recall']:.3f}{given}, of {recall['queries']} documents as queries"
        )
    if about["rejected"]:
        lines.append(f"set aside: {counted(about['rejected'])}; st-reba info --rejects lists them")
    return "\n".join(lines)


def _add_search(commands: Any) -> None:
    command = new_command(
        commands,
        "search",
        "Search an index for the texts nearest to one or more queries; without a query, ask for one after the other.",
        "  st-reba search my_index 股票为什么下跌 -k 5\n"
        "  st-reba search my_index 'why do stocks fall' --where lang=en --where 'year>=2020' --json\n"
        "  st-reba search my_index --queries questions.txt --ids-only --json",
        search,
    )
    command.add_argument("index", metavar="INDEX", type=Path, help="the folder that st-reba index wrote")
    command.add_argument("query", metavar="QUERY", nargs="*", help="what to search for")
    command.add_argument("--queries", metavar="FILE", help="a file with a query a line; -: standard input")
    command.add_argument("-k", type=positive, default=10, help="results a query (default: %(default)s)")
    command.add_argument(
        "--where",
        metavar="CONDITION",
        action="append",
        default=[],
        help='on the metadata, as lang=zh, year>=2020, or {"tags": {"has": "a"}}; several must all hold',
    )
    command.add_argument("--ids-only", action="store_true", help="print ids and scores, without the texts")
    command.add_argument("--prompt", help="text in front of the queries, or the template's {instruction}")
    command.add_argument("--model", help="the model, where it is no longer where the index was built with it")
    command.add_argument("--json", action="store_true", help="print one JSON object a query (query, results)")
    add_running(command)


def search(options: argparse.Namespace) -> None:
    from ..index import Index
    from ..index.where import parse_where

    where = parse_where(options.where) if options.where else None
    queries = _queries(options)
    with Index.open(options.index) as index:
        options.model = options.model or index.find_model()
        settings = {
            "where": where,
            "ids_only": options.ids_only,
            "model": load_model(options),
            "prompt": options.prompt,
        }
        if queries is None:
            for query in _asked():
                _show(options, query, index.search(query, options.k, **settings), several=False)
            return
        for query, results in zip(queries, index.search(queries, options.k, **settings), strict=True):
            _show(options, query, results, several=len(queries) > 1)


def _queries(options: argparse.Namespace) -> list[str] | None:
    """The queries of a command; None: they are asked for."""
    queries = list(options.query)
    if options.queries is not None or (not queries and not sys.stdin.isatty()):
        named = options.queries not in (None, "-")
        text = Path(options.queries).read_text(encoding="utf-8-sig") if named else sys.stdin.read()
        queries += [line for line in text.splitlines() if line.strip()]
        if not queries:
            raise ValueError("search needs a query: st-reba search INDEX QUERY ..., or --queries FILE with one a line.")
    return queries or None


def _asked() -> Iterator[str]:
    print("One query a line; an empty line or Ctrl-D ends.", file=sys.stderr)
    while True:
        try:
            query = input("> ").strip()
        except EOFError:
            return
        if not query:
            return
        yield query


def _show(options: argparse.Namespace, query: str, results: list[Any], *, several: bool) -> None:
    if options.json:
        kept = ("rank", "score", "id") if options.ids_only else None
        rows = [{name: value for name, value in asdict(one).items() if not kept or name in kept} for one in results]
        print(json.dumps({"query": query, "results": rows}, ensure_ascii=False))
        return
    if several:
        print(query)
    for one in results:
        print(f"{one.rank:>3}. {one.score:.4f}  {one.id}  {one.passage or one.text}".rstrip())


def _add_addition(commands: Any, name: str, summary: str, example: str) -> None:
    command = new_command(commands, name, summary, example, _addition)
    command.add_argument("index", metavar="INDEX", type=Path, help="the folder that st-reba index wrote")
    command.add_argument("input", metavar="INPUT", help=f"the texts: {CORPUS_FILES}")
    command.add_argument("--model", help="the model, where it is no longer where the index was built with it")
    add_corpus(command)
    add_engine(command)
    command.add_argument("--again", action="store_true", help="add a file once more that the last command added")
    command.add_argument("--json", action="store_true", help="print what was done as JSON")
    command.set_defaults(kind=name)
    add_running(command)


def _addition(options: argparse.Namespace) -> None:
    from ..index import Index

    with Index.open(options.index) as index:
        # The columns are the index's own, unless others are named.
        reading = index.info()["reading"]
        options.text_column = options.text_column or reading.get("text_column")
        options.id_column = reading.get("id_column") if options.id_column is None else options.id_column
        source = opened(options)
        options.model = options.model or index.find_model()
        given = {**engine_settings(options), **corpus_settings(options)}
        with _kept(options.index):
            change = getattr(index, options.kind)(source, model=load_model(options), again=options.again, **given)
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
    from ..index import Index

    ids = list(options.id)
    if options.ids == "-":
        ids += [line.rstrip("\r\n") for line in sys.stdin]
    elif options.ids is not None:
        ids += Path(options.ids).read_text(encoding="utf-8-sig").splitlines()
    ids = [one for one in ids if one]
    if not ids:
        raise ValueError("delete needs ids: st-reba delete INDEX ID ..., or --ids FILE with an id a line.")
    with Index.open(options.index) as index:
        _print(options, index.delete(ids, missing=options.missing))


def _add_compact(commands: Any) -> None:
    command = new_command(
        commands,
        "compact",
        "Write the FAISS file of an index anew: what was deleted is gone from the disk, and what was added is part of "
        "it. Nothing is encoded again.",
        "  st-reba compact my_index\n  st-reba compact my_index --factory HNSW32",
        _compact,
    )
    command.add_argument("index", metavar="INDEX", type=Path, help="the folder that st-reba index wrote")
    command.add_argument("--factory", metavar="F", help="another FAISS index, as Flat, HNSW32 or IVF1024,Flat; or auto")
    _add_recipe(command)
    command.add_argument("--json", action="store_true", help="print what was done as JSON")


def _compact(options: argparse.Namespace) -> None:
    from ..index import Index

    with Index.open(options.index) as index:
        _print(options, index.compact(factory=options.factory, **_recipe(options)))


def _add_export(commands: Any) -> None:
    command = new_command(
        commands,
        "export",
        "Write all documents and vectors of an index for other tools. X.parquet: the columns id, text, metadata "
        "(JSON), passage and vector. X.faiss: one FAISS file, its ids the keys. Another name: a folder with "
        "vectors.npy, documents.jsonl (key, id, text, metadata) and index.faiss.",
        "  st-reba export my_index everything.parquet\n  st-reba export my_index my_export",
        _export,
    )
    command.add_argument("index", metavar="INDEX", type=Path, help="the folder that st-reba index wrote")
    command.add_argument("out", metavar="OUT", help="X.parquet, X.faiss, or a folder")
    command.add_argument("--overwrite", action="store_true", help="replace what is there")
    command.add_argument("--json", action="store_true", help="print what was written as JSON")


def _export(options: argparse.Namespace) -> None:
    from ..index import Index

    with Index.open(options.index) as index:
        written = index.export(options.out, overwrite=options.overwrite)
    if options.json:
        print(json.dumps({"path": options.out, "vectors": written}))
    else:
        print(f"{options.out}: {written:,} vectors")


def _print(options: argparse.Namespace, change: Change) -> None:
    if options.json:
        print(json.dumps({"path": str(options.index), **asdict(change)}, ensure_ascii=False))
        return
    what = [
        f"{number:,} {name}"
        for name, number in (
            ("added", change.added),
            ("replaced", change.replaced),
            ("vectors removed from the disk" if change.kind == "compact" else "deleted", change.deleted),
            ("unchanged", change.unchanged),
        )
        if number
    ]
    if change.rejected:
        taken = "already there" if "id in the index" in change.rejected and change.kind == "add" else ""
        remedy = "; st-reba upsert replaces documents" if taken else ""
        what.append(f"set aside: {counted(change.rejected)} (st-reba info --rejects lists them{remedy})")
    print(f"{options.index}: {', '.join(what) or 'nothing to do'}; {change.count:,} documents")


def print_info(folder: Path, *, rejects: bool, as_json: bool) -> None:
    """Print what an index holds, or what it has set aside."""
    from ..index import Index

    with Index.open(folder) as index:
        if rejects:
            for reject in index.rejects():
                print(json.dumps(asdict(reject), ensure_ascii=False) if as_json else reject)
            return
        about = index.info()
    if as_json:
        print(json.dumps(about, ensure_ascii=False, indent=2))
        return
    width = max(map(len, about))
    for name, value in about.items():
        if value not in (None, [], {}):
            print(f"{name:{width}}  {value}")


def verify_index(folder: Path) -> str:
    """Read every file of an index and hold it against its digests."""
    from ..index import Index

    with Index.open(folder) as index:
        about = index.verify()
    return "{path}: {documents:,} documents and {vectors:,} vectors are as they were written".format(**about)
