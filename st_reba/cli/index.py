"""The commands of an index: search; and index build, add, upsert, delete, compact, export."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import typer

from . import places
from .app import app, command, group
from .options import (
    CORPUS_FILES,
    MODEL,
    OUT,
    OVERWRITE,
    PROMPT,
    TOP,
    Engine,
    Output,
    Records,
    Running,
    arg,
    choice,
    dumped,
    opt,
)
from .vectors import counted

if TYPE_CHECKING:
    from ..index import Change

_PANEL = "Search"
grouped = group("Build an index of texts, change it, export it. st-reba search and st-reba info read it.")
app.add_typer(grouped, name="index", rich_help_panel=_PANEL)
# Written out, so that help needs no library; the tests hold them against the package.
EXPORTS = ("npy", "parquet", "faiss", "lancedb")
INDEX = arg("INDEX", "A folder of st-reba index build.")
OTHER_MODEL = opt(
    None, "The model, if it is no longer where the index remembers it.", "MODEL", "--model", rich_help_panel="Options"
)
_KEPT = "the index is as it was; run the same command again to continue"
_FACTORY = re.compile("Flat|IVF|IMI|HNSW|NSG|OPQ|PQ|SQ|RQ|LSQ|RFlat|Refine|LSH")


def _factory(value: str | None) -> str | None:
    """FAISS's names are known by their capitals; whatever else is wrong, FAISS itself says."""
    for part in (value or "").split(","):
        known = next((name for name in _FACTORY.pattern.split("|") if part.lower().startswith(name.lower())), None)
        if known and not _FACTORY.match(part):
            raise typer.BadParameter(f"{value!r}. Did you mean {known + part[len(known) :]!r} for {part!r}?")
    return value


@dataclass
class Training:
    """How a FAISS index is trained."""

    panel: ClassVar[str] = "The FAISS index"
    parameters: str | None = opt(None, 'Search parameters, as "nprobe=32"; without: found by measuring.', "P")
    recall_aim: float | None = opt(None, "The recall@10 that they are to reach. [default: 0.95]", "R", min=0, max=1)
    train_size: int | None = opt(None, "Vectors to train on; without: by the factory.", "N", min=1)
    seed: int | None = opt(None, "Of that sample. [default: 0]", "N", min=0)

    @property
    def given(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None}


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
        raise KeyboardInterrupt(f"{done}; run the same command again to continue") from None


@command(grouped)
def build(
    *,
    model: str = MODEL,
    input: str = arg("INPUT", f"Texts: {CORPUS_FILES}; -: standard input; or a folder of encode-corpus."),
    folder: Path = OUT,
    training: Training,
    records: Records,
    engine: Engine,
    run: Running,
    out: Output,
    factory: str = opt(
        "Flat",
        "A FAISS factory string, as HNSW32, IVF1024,Flat or IVF4096,PQ48,RFlat; or auto, which goes "
        "by the number of vectors. Flat is exact.",
        "S",
        callback=_factory,
        rich_help_panel="The FAISS index",
    ),
    overwrite: bool = OVERWRITE,
) -> None:
    """Write the folder that st-reba search reads, from texts or from an encoded corpus.

    If it is killed, run the same command again to continue.

    Examples:
        st-reba index build my_model corpus.jsonl my_index
        st-reba index build my_model my_corpus my_ann --factory HNSW32
    """
    places.expect_model("MODEL", model)
    from ..index import Index as Built
    from ..index.ann import Recipe
    from ..index.index import check_target

    check_target(Path(folder).resolve(), overwrite=overwrite)
    Recipe(factory, **training.given)
    settings: dict[str, Any] = {
        "factory": factory,
        "overwrite": overwrite,
        "model_source": model,
        "show_progress_bar": out.bar,
    }
    settings |= training.given
    with _kept(folder):
        if places.kind_of(input) == "an encoded corpus":
            built = Built.from_corpus(input, folder, run.load(model), **settings)
        else:
            source = records.open(input)
            built = Built.build(run.load(model), source, folder, **engine.settings, **records.settings, **settings)
    with built:
        about = built.info() | ({"rejected": built.change.rejected, "why": built.change.why} if built.change else {})
    out.report(_said(about), about)


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


@command(app, _PANEL, interrupted="the index is as it was", names={"k": "--top"})
def search(
    *,
    folder: Path = INDEX,
    run: Running,
    out: Output,
    query: list[str] | None = arg(
        "[QUERY]...", "What to search for. [default: lines of standard input; on a terminal st-reba asks]", None
    ),
    queries: str | None = opt(None, "A file with a query on each line; -: standard input.", "FILE"),
    top: int = TOP,
    where: list[str] | None = opt(
        None,
        'On the metadata, as lang=zh, year>=2020 or {"tags": {"has": "a"}}; repeatable, all must hold.',
        "CONDITION",
    ),
    ids_only: bool = opt(False, "Print ids and scores, without the texts."),
    prompt: str | None = PROMPT,
    model: str | None = OTHER_MODEL,
) -> None:
    """Search an index for the texts nearest to one or more queries.

    Without a query it asks for one after the other. With --json, one object for each query (query, results).

    Examples:
        st-reba search my_index 股票为什么下跌 --top 5
        st-reba search my_index 'why do stocks fall' --where 'year>=20' --json
        st-reba search my_index --queries questions.txt --ids-only --json
    """
    places.expect("INDEX", folder, "an index")
    if model is not None:
        places.expect_model("--model", model)
    from ..index import Index as Opened
    from ..index.where import conditions, parse_where

    chosen = parse_where(where) if where else None
    conditions(chosen or {})
    asked = _queries(query or [], queries)
    with Opened.open(folder) as index:
        given: dict[str, Any] = {"where": chosen, "ids_only": ids_only, "prompt": prompt}
        given["model"] = run.load(model or index.find_model())
        if asked is None:
            for one in _ask():
                _show(out, one, index.search(one, top, **given), ids_only=ids_only, several=False)
            return
        for one, results in zip(asked, index.search(asked, top, **given), strict=True):
            _show(out, one, results, ids_only=ids_only, several=len(asked) > 1)


def _queries(given: list[str], file: str | None) -> list[str] | None:
    """The queries of a command; None: they are asked for."""
    queries = list(given)
    if file is not None or (not queries and not sys.stdin.isatty()):
        if named := file not in (None, "-"):
            places.expect("--queries", str(file), "a file")
        text = Path(str(file)).read_text(encoding="utf-8-sig") if named else sys.stdin.read()
        queries += [line for line in text.splitlines() if line.strip()]
        if not queries:
            raise ValueError(
                "There is no query: st-reba search INDEX QUERY ..., or --queries FILE with one on each line."
            )
    if not all(query.strip() for query in queries):
        raise ValueError("A QUERY is empty: leave it out, or give it a text.")
    return queries or None


def _ask() -> Iterator[str]:
    print("One query a line; an empty line or Ctrl-D ends.", file=sys.stderr)
    while True:
        try:
            query = input("> ").strip()
        except EOFError:
            return
        if not query:
            return
        yield query


def _show(out: Output, query: str, results: list[Any], *, ids_only: bool, several: bool) -> None:
    if out.json:
        kept = ("rank", "score", "id") if ids_only else None
        rows = [{name: value for name, value in asdict(one).items() if not kept or name in kept} for one in results]
        print(dumped({"query": query, "results": rows}))
        return
    if several:
        print(query)
    for one in results:
        file = f"  ({one.metadata['file']})" if "file" in (one.metadata or {}) else ""
        print(f"{one.rank:>3}. {one.score:.4f}  {one.id}  {one.passage or one.text}".rstrip() + file)


@dataclass
class Addition(Records):
    """What is added to an index."""

    folder: Path = INDEX
    input: str = arg("INPUT", f"Texts: {CORPUS_FILES}; -: standard input.")
    again: bool = opt(False, "Add a file once more that the last command added.", rich_help_panel="Options")
    model: str | None = OTHER_MODEL


@command(grouped)
def add(*, what: Addition, engine: Engine, run: Running, out: Output) -> None:
    """Add documents to an index.

    An id that is there already with another text is set aside, or an error with --strict; st-reba index upsert
    replaces. Searches see the index before the change or after it. If it is killed, run the same command again; nothing
    is added twice.

    Examples:
        st-reba index add my_index more.jsonl
        st-reba index add my_index more.csv --text-column abstract --strict
    """
    _add("add", what, engine, run, out)


@command(grouped)
def upsert(*, what: Addition, engine: Engine, run: Running, out: Output) -> None:
    """Add documents to an index, in place of those with the same ids.

    Both happen in one step, and documents that have not changed are not encoded. Searches see the index before the
    change or after it. If it is killed, run the same command again; nothing is added twice.

    Examples:
        st-reba index upsert my_index corrected.jsonl
        st-reba index upsert my_index corrected.csv --id-column key
    """
    _add("upsert", what, engine, run, out)


def _add(kind: str, what: Addition, engine: Engine, run: Running, out: Output) -> None:
    places.expect("INDEX", what.folder, "an index")
    if what.model is not None:
        places.expect_model("--model", what.model)
    from ..index import Index as Opened

    with Opened.open(what.folder) as index:
        # The columns are the index's own, unless others are named.
        reading = index.info()["reading"]
        what.text_column = what.text_column or reading.get("text_column")
        what.id_column = reading.get("id_column") if what.id_column is None else what.id_column
        source = what.open(what.input)
        given = {**engine.settings, **what.settings, "again": what.again, "show_progress_bar": out.bar}
        with _kept(what.folder):
            change = getattr(index, kind)(source, model=run.load(what.model or index.find_model()), **given)
    _tell(out, what.folder, change)


@command(grouped, interrupted=_KEPT)
def delete(
    *,
    folder: Path = INDEX,
    out: Output,
    id: list[str] | None = arg("[ID]...", "Which documents.", None),
    ids: str | None = opt(None, "A file with an id on each line; -: standard input.", "FILE"),
    missing: str = choice(
        "error", ("error", "ignore"), "Of an id that is not there: error deletes nothing; ignore passes it over."
    ),
) -> None:
    """Delete documents of an index by id.

    They are no longer found; st-reba index compact removes their texts and vectors from the disk.

    Examples:
        st-reba index delete my_index doc-17 doc-18
        st-reba index delete my_index --ids old.txt --missing ignore
    """
    places.expect("INDEX", folder, "an index")
    chosen = list(id or [])
    if ids == "-":
        chosen += [line.rstrip("\r\n") for line in sys.stdin]
    elif ids is not None:
        places.expect("--ids", ids, "a file")
        chosen += Path(ids).read_text(encoding="utf-8-sig").splitlines()
    chosen = [one for one in chosen if one]
    if not chosen:
        raise ValueError("There is no id: st-reba index delete INDEX ID ..., or --ids FILE with an id on each line.")
    from ..index import Index as Opened

    with Opened.open(folder) as index:
        _tell(out, folder, index.delete(chosen, missing=missing))  # type: ignore[arg-type]


@command(grouped, interrupted=_KEPT)
def compact(
    *,
    folder: Path = INDEX,
    training: Training,
    out: Output,
    factory: str | None = opt(
        None,
        "Another FAISS index, as Flat, HNSW32 or IVF1024,Flat; or auto.",
        "S",
        callback=_factory,
        rich_help_panel="The FAISS index",
    ),
) -> None:
    """Write the FAISS file of an index anew.

    What was deleted is gone from the disk, and what was added is part of it. Nothing is encoded again.

    Examples:
        st-reba index compact my_index
        st-reba index compact my_index --factory HNSW32
    """
    places.expect("INDEX", folder, "an index")
    from ..index import Index as Opened

    with Opened.open(folder) as index:
        _tell(out, folder, index.compact(factory=factory, show_progress_bar=out.bar, **training.given))


@command(grouped)
def export(
    *,
    folder: Path = INDEX,
    file: Path = arg("OUT", "Where to: X.parquet, X.lancedb, X.faiss, or a folder."),
    out: Output,
    to: str | None = choice(None, EXPORTS, f"{', '.join(EXPORTS)}; without: as the name says, a folder is npy."),
    overwrite: bool = OVERWRITE,
) -> None:
    """Write all documents and vectors of an index for other tools.

    parquet: the columns id, text, metadata (JSON), passage and vector. lancedb: a LanceDB database, whose table
    documents has the same columns. faiss: one FAISS file, its ids the keys. npy: a folder with vectors.npy,
    documents.jsonl (key, id, text, metadata) and index.faiss.

    Examples:
        st-reba index export my_index everything.parquet
        st-reba index export my_index my_database --to lancedb
    """
    places.expect("INDEX", folder, "an index")
    if file.is_file() and not overwrite:
        raise FileExistsError(f"{file}: already there; give another path, or --overwrite.")
    from ..index import Index as Opened

    with Opened.open(folder) as index:
        written = index.export(file, to, overwrite=overwrite, show_progress_bar=out.bar)  # type: ignore[arg-type]
    out.report(f"{file}: {written:,} vectors", {"path": str(file), "vectors": written})


def _tell(out: Output, folder: Path, change: Change) -> None:
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
        remedy = "; st-reba index upsert replaces documents" if taken else ""
        what.append(f"set aside: {counted(change.rejected)} (st-reba info --rejects lists them{remedy})")
    said = f"{folder}: {', '.join(what) or 'nothing to do'}; {change.count:,} documents"
    out.report(said, {"path": str(folder), **asdict(change)})


def show_index(folder: Path, out: Output, *, rejects: bool) -> None:
    """Print what an index holds, or what it has set aside."""
    from ..index import Index as Opened

    with Opened.open(folder) as index:
        if rejects:
            for reject in index.rejects():
                print(dumped(asdict(reject)) if out.json else reject)
            return
        about = index.info()
    width = max(map(len, about))
    shown = {name: value for name, value in about.items() if value not in (None, [], {})}
    out.answer("\n".join(f"{name:{width}}  {value}" for name, value in shown.items()), about, indent=2)


def verify_index(folder: Path, out: Output) -> None:
    """Read every file of an index and hold it against its digests."""
    from ..index import Index as Opened

    with Opened.open(folder) as index:
        about = index.verify()
    said = "{path}: {documents:,} documents and {vectors:,} vectors are as they were written".format(**about)
    out.report(said, about)
