"""Commands that encode texts: encode and index."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from .. import progress
from .app import command, describing_stops, in_options, silence_loading, to_json
from .options import (
    AsJson,
    Device,
    Dtype,
    IndexFolder,
    Model,
    Overwrite,
    Task,
    TextColumn,
    TextEncoding,
    Trust,
    WithoutTokens,
    refuse_options,
)
from .streams import STANDARD_INPUT, STARTING, announced_step, print_error, standard_input

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from ..corpus import Document, Source
    from ..corpus.records import Reject
    from ..encode import Role
    from ..index import Index
    from ..index.changes import Change

_FILE_TYPES = ".txt (one text per line, blank lines aside), .jsonl, .json, .csv, .tsv, .parquet, .md (one document)"
_INPUT_HELP = f"Texts: {_FILE_TYPES}, or a folder; -: lines of stdin"
Input = Annotated[str, Argument(metavar="INPUT", help=f"{_INPUT_HELP}.")]
IdColumn = Annotated[
    str | None, Option(metavar="NAME", help="Column of the id; '': none. [default: id, _id, …]")
]
Passages = Annotated[
    str | None, Option(metavar="N:M", help="Cut texts into passages of N tokens that overlap by M.")
]
Workers = Annotated[
    int | None, Option(metavar="N", min=1, help="Encode in N workers of Ray. [default: here]")
]
BatchTokens = Annotated[
    int | None, Option(metavar="N", min=1, help="Most token positions in a forward pass.")
]
Strict = Annotated[
    bool,
    Option(
        "--strict", help="Stop at the first invalid record. [default, into a folder: set it aside]"
    ),
]


EncodeOut = Annotated[
    Path | None,
    Option(
        metavar="OUT",
        help="X.npy; or a folder, for a corpus of any size. [default: JSON lines]",
    ),
]
Word = Annotated[
    str | None, Option(metavar="WORD", help="Encode this word where it occurs in the texts.")
]
IsFloat16 = Annotated[bool, Option("--float16", help="Store the corpus in half the space.")]


@command
def encode(
    model: Model,
    input: Input = "-",
    out: EncodeOut = None,
    word: Word = None,
    task: Task = None,
    text_column: TextColumn = None,
    id_column: IdColumn = None,
    passages: Passages = None,
    is_float16: IsFloat16 = False,
    workers: Workers = None,
    batch_tokens: BatchTokens = None,
    text_encoding: TextEncoding = None,
    is_strict: Strict = False,
    overwrite: Overwrite = False,
    device: Device = None,
    dtype: Dtype = None,
    trust_remote_code: Trust = False,
) -> None:
    """Encode texts into X.npy, into a corpus folder, or as JSON lines.

    If encoding a corpus is stopped, the same command resumes it. st-reba index reads the corpus
    folder.
    Example: st-reba encode my_model corpus.jsonl --out my_corpus
    """
    corpus_folder = None if out is None or out.suffix == ".npy" else out
    if corpus_folder is None:
        output_name = str(out or "JSON lines; name a folder with --out")
        refuse_options(output_name, {"--word": out and word, "--passages": passages})
        refuse_options(output_name, {"--workers": workers, "--float16": is_float16})
        if out is not None:
            _check_file(out, overwrite)
    else:
        refuse_options("a corpus", {"--word": word, "--task": task})
        if corpus_folder.exists() and not corpus_folder.is_dir():
            raise FileExistsError(
                f"{corpus_folder}: already there, and not a folder; give another path"
            )
    with progress.step(STARTING):
        from ..corpus.source import open_source
        from ..safety import load

        silence_loading()
    documents = _read_input(input, text_encoding, text_column=text_column, id_column=id_column)
    source = open_source(
        documents, text_column=text_column, id_column=id_column, encoding=text_encoding
    )
    with announced_step(f"Loading {model}"):
        loaded_model = load(model, device=device, dtype=dtype, trust_remote_code=trust_remote_code)
    if corpus_folder is not None:
        unique_source = source.reject_repeated_ids()
        _encode_corpus(
            loaded_model,
            unique_source.strict() if is_strict else unique_source,
            corpus_folder,
            input_name=input,
            passages=passages,
            workers=workers,
            overwrite=overwrite,
            dtype="float16" if is_float16 else "float32",
            batch_tokens=batch_tokens,
        )
    elif word is not None:
        _print_word_vectors(loaded_model, _texts_of(source), word, task, batch_tokens)
    else:
        _write_vectors(loaded_model, _texts_of(source), out, task, batch_tokens)


def _check_file(out: Path, overwrite: bool) -> None:
    """Before a model is loaded, refuse an output file that cannot be written."""
    if out.is_dir() or (out.exists() and not overwrite):
        raise FileExistsError(f"{out}: already there; give another path, or --overwrite")
    if not out.parent.is_dir():
        raise FileNotFoundError(f"{out.parent}: no such folder")
    if not os.access(out.parent, os.W_OK):
        raise PermissionError(f"{out.parent}: nothing can be written there; give another path")


def _texts_of(source: Source) -> list[str]:
    from ..corpus import Document

    records = source.strict().read()
    return [record.text for record in records if isinstance(record, Document)]


def _encode_corpus(
    model: SentenceTransformer, source: Source, folder: Path, *, input_name: str, **options: Any
) -> None:
    from ..corpus import encode_corpus
    from ..corpus.records import describe_rejects

    with (
        describing_stops(lambda: _describe_progress(folder)),
        progress.step(f"Encoding {input_name}"),
    ):
        corpus = encode_corpus(model, source, folder, **options)
    totals = corpus.header()["totals"]
    rejects = list(corpus.rejects())
    if not totals["documents"]:
        raise ValueError(f"{input_name}: {describe_rejects(rejects)}")
    documents = f"{totals['documents']:,} documents"
    print(f"{folder}: {documents}, {totals['vectors']:,} vectors in {totals['parts']:,} parts")
    _report_rejects(rejects, f"all in {folder}/rejects.jsonl", "encode")


def _write_vectors(
    model: SentenceTransformer,
    texts: Sequence[str],
    file: Path | None,
    task: Role | None,
    batch_tokens: int | None,
) -> None:
    from ..encode import encode_texts
    from ..files import write_npy

    with progress.progress_bar("Encoding", "texts", len(texts)) as bar:
        vectors = encode_texts(
            model, texts, task=task, batch_tokens=batch_tokens, progress=bar.update
        )
    if file is not None:
        write_npy(file, vectors)
        print(f"{file}: {len(vectors):,} vectors of {vectors.shape[1]} dimensions")
        return
    for text, vector in zip(texts, vectors.tolist(), strict=True):
        print(to_json({"text": text, "vector": vector}))


def _print_word_vectors(
    model: SentenceTransformer,
    texts: Sequence[str],
    word: str,
    task: Role | None,
    batch_tokens: int | None,
) -> None:
    from ..words import encode_words, words_of

    occurrences: list[tuple[str, tuple[int, int]]] = []
    for text in texts:
        occurrences += words_of(text, word)
    if not occurrences:
        raise ValueError(f"--word {word!r} is not in the texts")
    with progress.step(f"Encoding {word!r}, {len(occurrences):,} times"):
        vectors = encode_words(model, occurrences, task=task, batch_tokens=batch_tokens)
    for (text, (start, end)), vector in zip(occurrences, vectors.tolist(), strict=True):
        line = {"text": text, "word": word, "start": start, "end": end, "vector": vector}
        print(to_json(line))


IndexInput = Annotated[
    str,
    Argument(metavar="INPUT", help=f"{_INPUT_HELP}; or a corpus that st-reba encode wrote."),
]
NewModel = Annotated[
    str | None, Option(metavar="MODEL", help="Saved model. An existing index knows its own.")
]
Factory = Annotated[
    str, Option(metavar="S", help="FAISS factory: Flat, IVF1024,Flat, IVF1024,SQ8, …")
]
SearchParameters = Annotated[
    str | None, Option(metavar="S", help="FAISS search parameters, such as nprobe=32.")
]
Whiten = Annotated[
    bool | None,
    Option(
        "--whiten/--no-whiten",
        help="Fit what vectors need for search. [default: for decoders without training]",
    ),
]
AddsDocuments = Annotated[
    bool, Option("--add", help="Add the documents that the index does not have.")
]
UpsertsDocuments = Annotated[
    bool, Option("--upsert", help="Add documents, replacing those with the same ids.")
]


@command
def index(
    input: IndexInput,
    index_folder: IndexFolder,
    model: NewModel = None,
    adds_documents: AddsDocuments = False,
    upserts_documents: UpsertsDocuments = False,
    overwrite: Overwrite = False,
    factory: Factory = "auto",
    parameters: SearchParameters = None,
    text_column: TextColumn = None,
    id_column: IdColumn = None,
    passages: Passages = None,
    whiten: Whiten = None,
    without_tokens: WithoutTokens = False,
    workers: Workers = None,
    batch_tokens: BatchTokens = None,
    text_encoding: TextEncoding = None,
    is_strict: Strict = False,
    device: Device = None,
    dtype: Dtype = None,
    trust_remote_code: Trust = False,
    as_json: AsJson = False,
) -> int:
    """Build an index, or add to one. If it is stopped, the same command resumes it.

    Long texts, such as whole .md files, need --passages: a model ignores whatever exceeds its
    longest input.
    Examples: st-reba index corpus.jsonl my_index --model my_model; st-reba index more.jsonl
    my_index --upsert; st-reba index notes notes_index --model my_model --passages 256:32
    """
    if adds_documents + upserts_documents + overwrite > 1:
        raise ValueError("give one of --add, --upsert and --overwrite")
    extends_index = adds_documents or upserts_documents
    if extends_index:
        settings = {
            "--factory": None if factory == "auto" else factory,
            "--parameters": parameters,
            "--passages": passages,
        }
        _refuse_settings(settings, whiten, without_tokens)
    elif model is None:
        raise ValueError(
            "--model is missing: name a saved model, or give --add or --upsert for an index"
        )
    with progress.step(STARTING):
        from ..index import Index
        from ..index.changes import BUILDING

        silence_loading()
    documents = _read_input(input, text_encoding, text_column=text_column, id_column=id_column)
    options: dict[str, Any] = {
        "text_column": text_column,
        "id_column": id_column,
        "encoding": text_encoding,
        "batch_tokens": batch_tokens,
        "workers": workers,
        "strict": is_strict,
    }
    if not extends_index:
        options |= {
            "factory": factory,
            "parameters": parameters,
            "passages": passages,
            "whiten": whiten,
            "tokens": not without_tokens,
            "overwrite": overwrite,
        }
    loading: dict[str, Any] = {
        "device": device,
        "dtype": dtype,
        "trust_remote_code": trust_remote_code,
    }
    change: Change | None = None
    indexing_step = f"Indexing {input} with {model or 'the model of the index'}"
    with (
        describing_stops(lambda: _describe_progress(index_folder / BUILDING)),
        announced_step(indexing_step, is_announced=not as_json),
    ):
        if model is not None and not extends_index:
            opened_index = Index.build(model, documents, index_folder, **options, **loading)
        else:
            opened_index = Index.open(index_folder, model, **loading)
            add_documents = opened_index.upsert if upserts_documents else opened_index.add
            change = add_documents(documents, **options)
    return _report_index(opened_index, change, as_json)


def _refuse_settings(
    settings: dict[str, str | None], whiten: bool | None, without_tokens: bool
) -> None:
    """Refuse settings of a new index where documents are added to an existing one."""
    refuse_options("an existing index, which has its own", settings)
    if whiten is not None or without_tokens:
        raise ValueError(
            "--whiten, --no-whiten and --no-tokens do not go with an existing index: use st-reba prune --compact"
        )


def _report_index(index: Index, change: Change | None, as_json: bool) -> int:
    """Print what was written to an index; the exit status is 1 if all records were set aside."""
    facts = index.info()
    outcome: list[str] = []
    if change is None:
        outcome.append(f"factory {facts['factory']}")
        if facts["whitening"] is not None:
            outcome.append(f"whitened by {facts['whitening']}")
    else:
        facts |= asdict(change)
        for name in ("added", "replaced", "unchanged"):
            if facts[name]:
                outcome.append(f"{facts[name]:,} {name}")
    rejects = index.rejects() if change is None or change.rejected else []
    if as_json:
        print(to_json(facts | {"rejects": list(map(asdict, rejects))}))
    else:
        print(f"{index.path}: {len(index):,} documents; {', '.join(outcome) or 'nothing new'}")
        _report_rejects(rejects, "--json lists all", "index")
        if change is None:
            print_error(f"Next: st-reba search {quote(str(index.path))} 'a question'")
    all_rejected = bool(rejects) and not outcome
    return int(all_rejected)


def _read_input(
    input: str, text_encoding: str | None, *, text_column: str | None, id_column: str | None
) -> str | Iterator[Document | Reject]:
    """The input as the package takes it: a path, or the lines of standard input for "-"."""
    if input != "-":
        return input
    refuse_options(STANDARD_INPUT, {"--text-column": text_column, "--id-column": id_column})
    from ..corpus.source import read_stream

    records = read_stream(standard_input(), STANDARD_INPUT, text_encoding)
    # A fault in the first line is reported before any work is done.
    return chain([next(records)], records)


def _describe_progress(folder: Path) -> str:
    """How far a stopped command encoded the corpus in a folder, and how to resume it."""
    from ..corpus.folder import read_progress

    encoded = read_progress(folder)
    if encoded is None:
        return "Nothing was encoded yet; run the same command to start again."
    return f"{encoded}; run the same command to resume."


def _report_rejects(rejects: Sequence[Reject], remedy: str, command_name: str) -> None:
    if not rejects:
        return
    counts = Counter(reject.kind for reject in rejects)
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
    first_reject = in_options(str(rejects[0]), command_name)
    print(f"set aside: {kinds}; first {first_reject} ({remedy})", file=sys.stderr)
