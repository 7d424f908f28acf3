"""Commands for texts and vectors: encode, index, search, prune and export."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Option

from .app import CheckedCommand, app, dumped, in_options, quiet, telling_what_is_kept
from .options import AsJson, Device, Dtype, Model, Overwrite, Task, Trust
from .streams import print_next, print_progress, standard_input

if TYPE_CHECKING:
    from ..index import SearchResult

_FILES = (
    ".txt (one text a line), .jsonl, .json, .csv, .tsv, .parquet, .md (one document), or a folder; -: lines of stdin"
)
_STANDARD_INPUT = "standard input"
# Characters of a text in a line of results; --json has all.
SHOWN = 300
Input = Annotated[str, Argument(metavar="INPUT", help=f"Texts: {_FILES}.")]
Folder = Annotated[Path, Argument(metavar="INDEX", help="Folder of the index.")]
TextColumn = Annotated[str | None, Option(metavar="NAME", help="Column of the text. [default: text, content, …]")]
IdColumn = Annotated[str | None, Option(metavar="NAME", help="Column of the id; '': none. [default: id, _id, …]")]
Passages = Annotated[str | None, Option(metavar="N:M", help="Cut texts into passages of N tokens that overlap by M.")]
Workers = Annotated[int | None, Option(metavar="N", min=1, help="Encode in N workers of Ray. [default: here]")]
BatchTokens = Annotated[int | None, Option(metavar="N", min=1, help="Most token positions in a forward pass.")]
Encoding = Annotated[str | None, Option(metavar="NAME", help="Encoding of text files and of stdin. [default: UTF-8]")]
Mode = Annotated[
    Literal["hybrid", "vectors", "words"] | None, Option(help="What is compared. [default: hybrid, if it has words]")
]
Whiten = Annotated[
    bool | None,
    Option("--whiten/--no-whiten", help="Fit what vectors need for search. [default: for decoders without training]"),
]
Strict = Annotated[
    bool, Option("--strict", help="Stop at the first invalid record. [default, into a folder: set it aside]")
]


def parse_where(texts: list[str]) -> dict[str, Any]:
    """Conditions of a command line, as ``lang=zh`` and ``year>=2020``; values are JSON, or strings."""
    found: dict[str, Any] = {}
    for text in texts:
        parts = re.fullmatch(r"\s*([^=<>!]+?)\s*(!=|<=|>=|=|<|>)\s*(.*?)\s*", text, re.DOTALL)
        if parts is None:
            raise ValueError(f"--where {text!r}: write NAME=VALUE, NAME>=VALUE (or !=, <, <=, >)")
        name, operator, value = parts.groups()
        with contextlib.suppress(ValueError):
            value = json.loads(value)
        if operator in found.setdefault(name, {}):
            raise ValueError(f"--where {text!r}: {name}{operator} is given twice")
        found[name][operator] = value
    return found


@app.command(cls=CheckedCommand)
def encode(
    model: Model,
    input: Input = "-",
    out: Annotated[
        Path | None, Option(metavar="OUT", help="X.npy; or a folder, for a corpus of any size. [default: JSON lines]")
    ] = None,
    word: Annotated[str | None, Option(metavar="WORD", help="Encode this word where it occurs in the texts.")] = None,
    task: Task = None,
    text_column: TextColumn = None,
    id_column: IdColumn = None,
    passages: Passages = None,
    float16: Annotated[bool, Option("--float16", help="Store the corpus in half the space.")] = False,
    workers: Workers = None,
    batch_tokens: BatchTokens = None,
    encoding: Encoding = None,
    strict: Strict = False,
    overwrite: Overwrite = False,
    device: Device = None,
    dtype: Dtype = None,
    trust_remote_code: Trust = False,
) -> None:
    """Encode texts into X.npy, into a corpus folder, or as JSON lines.

    If encoding a corpus is stopped, the same command resumes it. st-reba index reads the corpus folder.
    Example: st-reba encode my_model corpus.jsonl --out my_corpus
    """
    in_parts = out is not None and out.suffix != ".npy"
    kind = "a corpus" if in_parts else str(out or "JSON lines; name a folder with --out")
    _refuse(kind, {"--word": out and word})
    of_corpora = {"--passages": passages, "--workers": workers, "--float16": float16}
    _refuse(kind, {"--task": task} if in_parts else of_corpora)
    if out is not None and not in_parts and out.exists() and (not overwrite or out.is_dir()):
        raise FileExistsError(f"{out}: already there; give another path, or --overwrite")
    if in_parts and out is not None and out.exists() and not out.is_dir():
        raise FileExistsError(f"{out}: already there, and no folder; give another path")
    if out is not None and not in_parts and not out.parent.is_dir():
        raise FileNotFoundError(f"{out.parent}: no such folder")
    from tqdm.auto import tqdm

    from ..corpus import Document, encode_corpus
    from ..corpus.records import describe_rejects
    from ..corpus.source import open_source
    from ..encode import encode_texts
    from ..files import write_npy
    from ..safety import load

    reading = {"text_column": text_column, "id_column": id_column, "encoding": encoding}
    source = open_source(_lines(input, **reading), **reading)
    quiet()
    print_progress(f"Loading {model}")
    loaded = load(model, device=device, dtype=dtype, trust_remote_code=trust_remote_code)
    if out is not None and in_parts:
        running: dict[str, Any] = {"passages": passages, "workers": workers, "overwrite": overwrite}
        running |= {"dtype": "float16" if float16 else "float32", "batch_tokens": batch_tokens}
        source = source.unique()
        with telling_what_is_kept(lambda: _describe_encoded(out)):
            corpus = encode_corpus(loaded, source.strict() if strict else source, out, **running)
        totals = corpus.header()["totals"]
        rejects = list(corpus.rejects())
        if not totals["documents"]:
            raise ValueError(f"{input}: {describe_rejects(rejects)}")
        print(f"{out}: {totals['documents']:,} documents, {totals['vectors']:,} vectors in {totals['parts']:,} parts")
        return _tell_rejects(rejects, f"all in {out}/rejects.jsonl", "encode")
    texts = [one.text for one in source.strict().read() if isinstance(one, Document)]
    options: dict[str, Any] = {"task": task, "batch_tokens": batch_tokens}
    if word is not None:
        return _encode_word(loaded, texts, word, options)
    with tqdm(total=len(texts), desc="Texts", unit=" texts", disable=None) as bar:
        vectors = encode_texts(loaded, texts, progress=bar.update, **options)
    if out is not None:
        write_npy(out, vectors)
        return print(f"{out}: {len(vectors):,} vectors of {vectors.shape[1]} dimensions")
    for text, vector in zip(texts, vectors.tolist(), strict=True):
        print(dumped({"text": text, "vector": vector}))


def _encode_word(model: Any, texts: list[str], word: str, options: dict[str, Any]) -> None:
    from ..words import encode_words, words_of

    items = [item for text in texts for item in words_of(text, word)]
    if not items:
        raise ValueError(f"--word {word!r} is not in the texts")
    for (text, (start, end)), vector in zip(items, encode_words(model, items, **options), strict=True):
        print(dumped({"text": text, "word": word, "start": start, "end": end, "vector": vector.tolist()}))


@app.command(cls=CheckedCommand)
def index(
    input: Annotated[str, Argument(metavar="INPUT", help=f"Texts: {_FILES}; or a corpus that st-reba encode wrote.")],
    folder: Folder,
    model: Annotated[str | None, Option(metavar="MODEL", help="Saved model. An existing index knows its own.")] = None,
    add: Annotated[bool, Option("--add", help="Add the documents that the index does not have.")] = False,
    upsert: Annotated[bool, Option("--upsert", help="Add documents, replacing those with the same ids.")] = False,
    overwrite: Overwrite = False,
    factory: Annotated[str, Option(metavar="S", help="FAISS factory: Flat, IVF1024,Flat, IVF1024,SQ8, …")] = "auto",
    parameters: Annotated[str | None, Option(metavar="S", help="FAISS search parameters, such as nprobe=32.")] = None,
    text_column: TextColumn = None,
    id_column: IdColumn = None,
    passages: Passages = None,
    whiten: Whiten = None,
    workers: Workers = None,
    batch_tokens: BatchTokens = None,
    encoding: Encoding = None,
    strict: Strict = False,
    device: Device = None,
    dtype: Dtype = None,
    trust_remote_code: Trust = False,
    as_json: AsJson = False,
) -> int:
    """Build an index, or add to one. If it is stopped, the same command resumes it.

    Long texts, such as whole .md files, need --passages, for a model ignores what is beyond its longest input.
    Examples: st-reba index corpus.jsonl my_index --model my_model; st-reba index more.jsonl my_index --upsert;
    st-reba index notes notes_index --model my_model --passages 256:32
    """
    if add + upsert + overwrite > 1:
        raise ValueError("give one of --add, --upsert and --overwrite")
    if add or upsert:
        own = {"--factory": factory.replace("auto", ""), "--parameters": parameters, "--passages": passages}
        _refuse("an index that is there, which has its own", own)
        if whiten is not None:
            raise ValueError("--whiten and --no-whiten do not go with an index that is there: st-reba prune --compact")
    elif model is None:
        raise ValueError("--model is missing: name a saved model, or give --add or --upsert for an index")
    from ..index import Index
    from ..index.changes import BUILDING

    running: dict[str, Any] = {"device": device, "dtype": dtype, "trust_remote_code": trust_remote_code}
    reading = {"text_column": text_column, "id_column": id_column, "encoding": encoding}
    texts = _lines(input, **reading)
    building = folder / BUILDING
    options: dict[str, Any] = {**reading, "workers": workers, "batch_tokens": batch_tokens, "strict": strict}
    quiet()
    if not as_json:
        print_progress(f"Loading {model or 'the model of the index'}, then encoding {input}")
    if model is None or add or upsert:
        opened = Index.open(folder, model, **running)
        with telling_what_is_kept(lambda: _describe_encoded(building)):
            outcome = asdict((opened.upsert if upsert else opened.add)(texts, **options))
        said = [f"{outcome[name]:,} {name}" for name in ("added", "replaced", "unchanged") if outcome[name]]
    else:
        options |= {"factory": factory, "parameters": parameters, "passages": passages, "overwrite": overwrite}
        options["whiten"] = whiten
        with telling_what_is_kept(lambda: _describe_encoded(building)):
            opened = Index.build(model, texts, folder, **options, **running)
        about = opened.info()
        outcome, said = {}, [f"factory {about['factory']}"]
        if about["whitening"] is not None:
            said.append(f"whitened by {about['whitening']}")
    rejects = opened.rejects() if not outcome or outcome["rejected"] else []
    if as_json:
        print(dumped({**opened.info(), **outcome, "rejects": [asdict(one) for one in rejects]}))
    else:
        print(f"{folder}: {len(opened):,} documents; {', '.join(said) or 'nothing new'}")
        _tell_rejects(rejects, "--json lists all", "index")
        if not outcome:
            print_next(f"st-reba search {quote(str(folder))} 'a question'")
    return int(bool(rejects) and not said)  # all was set aside


@app.command(cls=CheckedCommand)
def search(
    folder: Folder,
    query: Annotated[list[str] | None, Argument(metavar="QUERY", help="Queries. [default: lines of stdin]")] = None,
    top: Annotated[int, Option("--top", "-k", metavar="N", min=1, help="Results per query.")] = 10,
    where: Annotated[list[str] | None, Option(metavar="C", help="Condition, as 'year>=2020'. Repeatable.")] = None,
    mode: Mode = None,
    explain: Annotated[bool, Option("--explain", help="Also show the scores of vectors and of words.")] = False,
    model: Annotated[str | None, Option(metavar="MODEL", help="Saved model, if it is no longer where it was.")] = None,
    encoding: Encoding = None,
    device: Device = None,
    dtype: Dtype = None,
    trust_remote_code: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Search an index by words, by vectors, or by both, which is the default.

    A query is words: quotes and operators mean nothing. Hybrid scores go from 0 to 1, and rank the results of one
    query. Examples: st-reba search my_index 'why do stocks fall' --where 'year>=2020';
    st-reba search my_index --mode words --explain < queries.txt
    """
    from ..index import Index

    if query:
        _refuse("queries on the command line", {"--encoding": encoding})
    chosen = parse_where(where) if where else None
    quiet()
    opened = Index.open(folder, model, device=device, dtype=dtype, trust_remote_code=trust_remote_code)
    one = None
    for one in query or _queries(encoding):
        results = opened.search(one, top, where=chosen, mode=mode, explain=explain)
        if as_json:
            print(dumped({"query": one, "results": [result.to_json() for result in results]}), flush=True)
            continue
        if not query or len(query) > 1:
            print(one)
        for result in results:
            text = " ".join((result.passage or result.text).split())
            text = text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
            print(f"{result.rank:>3}. {_scores(result)}  {_place_of(result)}  {text}", flush=True)
        if not results:
            print("nothing found", file=sys.stderr)
    if one is None:
        raise ValueError("no query: give one, or lines on standard input")


def _place_of(result: SearchResult) -> str:
    """The file and the line or row that a result was read from, or else its id."""
    metadata = result.metadata
    for position in ("line", "row"):
        if {"file", position} <= metadata.keys():
            return f"{metadata['file']}, {position} {metadata[position]}"
    return result.id


def _scores(result: SearchResult) -> str:
    sides = {"vectors": result.vector_score, "words": result.word_score}
    explained = ", ".join(f"{side} {score:.4f}" for side, score in sides.items() if score is not None)
    return f"{result.score:.4f} ({explained})" if explained else f"{result.score:.4f}"


@app.command(cls=CheckedCommand)
def prune(
    folder: Folder,
    ids: Annotated[list[str] | None, Argument(metavar="ID", help="Ids of documents to delete.")] = None,
    compact: Annotated[bool, Option("--compact", help="Also write all anew without what was deleted.")] = False,
    whiten: Annotated[
        bool | None, Option("--whiten/--no-whiten", help="With --compact: fit the whitening anew, or take it away.")
    ] = None,
    model: Annotated[str | None, Option(metavar="MODEL", help="Saved model, if it is no longer where it was.")] = None,
    device: Device = None,
    dtype: Dtype = None,
    trust_remote_code: Trust = False,
) -> None:
    """Delete documents from an index by id, or compact it. Only --whiten needs the model.

    Example: st-reba prune my_index doc-17 doc-18 --compact
    """
    if not ids and not compact:
        raise ValueError("nothing to do: give an id, or --compact")
    if whiten is not None and not compact:
        raise ValueError("--whiten and --no-whiten write all vectors anew: give --compact too")
    from ..index import Index

    quiet()
    opened = Index.open(folder, model, device=device, dtype=dtype, trust_remote_code=trust_remote_code)
    if ids:
        change = opened.delete(ids)
        print(f"{folder}: {change.deleted:,} deleted; {change.count:,} documents")
    if compact:
        change = opened.compact(whiten=whiten)
        print(f"{folder}: {change.deleted:,} vectors removed from the disk; {change.count:,} documents")


@app.command(cls=CheckedCommand)
def export(
    folder: Folder,
    out: Annotated[Path, Argument(metavar="OUT", help="X.parquet: documents and vectors; X.faiss: vectors by key.")],
    overwrite: Overwrite = False,
) -> None:
    """Export an index for other tools. Example: st-reba export my_index everything.parquet"""
    from ..index import Index

    print(f"{out}: {Index.open(folder).export(out, overwrite=overwrite):,} vectors")


def _refuse(kind: str, useless: dict[str, Any]) -> None:
    for option, value in useless.items():
        if value:
            raise ValueError(f"{option} {value} does not go with {kind}")


def _lines(input: str, *, encoding: str | None, **useless: Any) -> Any:
    """The input; of "-", the lines of standard input."""
    if input != "-":
        return input
    _refuse("standard input", {f"--{name.replace('_', '-')}": value for name, value in useless.items()})
    from ..corpus.source import read_stream
    from ..corpus.text_files import check_encoding

    check_encoding(encoding)
    records = read_stream(standard_input(), _STANDARD_INPUT, encoding)
    first_record = next(records, None)
    if first_record is None:
        raise ValueError(f"{_STANDARD_INPUT}: no documents: it is empty")
    return chain([first_record], records)


def _queries(encoding: str | None) -> Iterator[str]:
    """The lines of standard input, each as soon as it is there."""
    from ..corpus.text_files import check_encoding, decode_stream, named_errors, read_text_lines

    check_encoding(encoding)
    with named_errors(_STANDARD_INPUT):
        stream = decode_stream(standard_input(), _STANDARD_INPUT, encoding, is_interactive=True)
        for place, row in read_text_lines(stream):
            if isinstance(row, str):
                raise ValueError(f"{_STANDARD_INPUT}, {place}: {row}")
            yield row["text"]


def _describe_encoded(folder: Path) -> str:
    """What a stopped command leaves in the folder of an encoded corpus, and how it goes on."""
    from ..corpus.folder import read_progress

    progress = read_progress(folder)
    if progress is None:
        return "Nothing was encoded yet; the same command begins again."
    return f"{progress}; the same command goes on from there."


def _tell_rejects(rejects: list[Any], remedy: str, command: str) -> None:
    if rejects:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in Counter(one.kind for one in rejects).items())
        first = in_options(str(rejects[0]), command)
        print(f"set aside: {kinds}; first {first} ({remedy})", file=sys.stderr)
