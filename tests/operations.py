"""Everything of st_reba that writes a corpus or an index, small, to be killed."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from kills import Operation, State
from sentence_transformers import SentenceTransformer
from tiny import WORDS, tiny_model

import st_reba
import st_reba.index.changes as changes
from st_reba.corpus import encode_corpus
from st_reba.corpus.folder import Corpus
from st_reba.index import Document, Index
from st_reba.index.ann import load_faiss
from st_reba.index.export import all_vectors

QUERIES = ["cat ship", "gold", "moon rain king"]
QUIET: dict[str, Any] = {"show_progress_bar": False}


@cache
def model(name: str) -> SentenceTransformer:
    """The tiny model, or mini."""
    return tiny_model() if name == "tiny" else st_reba.build("mini", pooling="mean")


def texts(count: int, seed: int = 0) -> list[str]:
    """Texts of one to six words."""
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(WORDS[:12], size=random.integers(1, 7))) for _ in range(count)]


def documents(count: int, seed: int = 0, prefix: str = "d") -> list[Document]:
    """Documents with ids and metadata."""
    return [Document(text, f"{prefix}{n}", {"n": n}) for n, text in enumerate(texts(count, seed))]


def write_lines(path: Path, values: list[Any]) -> None:
    """A .jsonl file, always of the same time, as its identity tells it."""
    path.write_text("".join(json.dumps(value) + "\n" for value in values), encoding="utf-8")


def index_state(path: Path) -> State:
    """What an index holds and finds; None: there is none yet."""
    try:
        index = Index.open(path)
    except FileNotFoundError:
        return None
    with index:
        about = index.verify()
        queries = np.asarray(model("tiny").encode_query(QUERIES, show_progress_bar=False))
        found: Any = index.search(np.resize(queries, (3, about["dimension"])), k=8)
        state = {name: about[name] for name in ("documents", "vectors", "factory", "parameters", "recall", "reading")}
        state["found"] = [[(result.id, result.score, result.text) for result in one] for one in found]
        state["texts"] = [(one.id, one.text, one.metadata) for one in index]
        state["rejects"] = index.rejects()
        with index._store.reading() as tx:
            present = index._present().state
            state["numbers"] = (present.next_key, present.next_number, present.pending)
            state["values"] = b"".join(block.tobytes() for block in all_vectors(index._store, tx, present).blocks())
    return state


def corpus_state(path: Path) -> State:
    """What a corpus holds; None: it is not complete."""
    corpus = Corpus(path)
    try:
        header = corpus.header()
    except FileNotFoundError:
        return None
    if "totals" not in header:
        return None
    corpus.verify()
    parts = [[(row, vectors.tobytes()) for row, vectors in corpus.read(part)] for part in range(corpus.parts())]
    return {"totals": header["totals"], "files": header["files"], "parts": parts, "rejects": list(corpus.rejects())}


def export_state(path: Path) -> State:
    """The bytes of an export; None: there is none."""
    if not path.exists():
        return None
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return {file.name: file.read_bytes() for file in files}


def operations(name: str = "tiny", size: int = 24) -> list[Operation]:
    """All of them.

    Args:
        name: The model, "tiny" or "mini".
        size: Documents of the index that is built first; additions and corpora go by it.
    """
    load_faiss().omp_set_num_threads(1)
    more = max(4, size // 3)
    # Ids of its own, ids that are there, none, and what is set aside.
    mixed = [
        *({"id": one.id, "text": one.text, "n": one.metadata["n"]} for one in documents(more, 1, "e")),
        *({"id": f"d{n}", "text": text} for n, text in enumerate(texts(more, 2))),
        *({"text": text} for text in texts(more, 3)),
        *({"text": "  "}, {"text": 7}, {"id": "e0", "text": "cat"}),
    ]
    plain = texts(more, 4)
    parts: dict[str, Any] = {"part_size": max(2, size // 3), **QUIET}

    def empty(folder: Path) -> None:
        write_lines(folder / "in.jsonl", mixed)

    def built(folder: Path, factory: str = "Flat") -> None:
        empty(folder)
        write_lines(folder / "plain.jsonl", [{"text": text} for text in plain])
        with Index.build(model(name), documents(size), folder / "index", factory=factory, **QUIET) as index:
            index.add(texts(more, 5), **QUIET)
            index.delete(["d1", "d4"])

    def changing(title: str, run: Callable[[Index, Path], object], factory: str = "Flat") -> Operation:
        def change(folder: Path) -> None:
            with Index.open(folder / "index", model(name)) as index:
                run(index, folder)

        title = f"{title} ({factory})" if factory != "Flat" else title
        return Operation(
            title, lambda folder: built(folder, factory), change, lambda folder: index_state(folder / "index")
        )

    def encode(folder: Path) -> None:
        encode_corpus(model(name), folder / "in.jsonl", folder / "corpus", **parts)

    def encoded(folder: Path) -> None:
        empty(folder)
        encode(folder)

    def exporting(suffix: str) -> Operation:
        def export(folder: Path) -> None:
            with Index.open(folder / "index") as index:
                index.export(folder / f"out{suffix}", **QUIET)

        title = f"export {suffix or 'a folder'}"
        return Operation(title, built, export, lambda folder: export_state(folder / f"out{suffix}"), (FileExistsError,))

    def building(title: str, run: Callable[[Path], Index], prepare: Callable[[Path], None] = empty) -> Operation:
        return Operation(
            title, prepare, lambda folder: run(folder).close(), lambda folder: index_state(folder / "index"),
            (FileExistsError,),
        )  # fmt: skip

    def of_factory(factory: str) -> Operation:
        return building(
            f"Index.build {factory}",
            lambda folder: Index.build(model(name), documents(size), folder / "index", factory=factory, **parts),
        )

    def folding(index: Index, folder: Path) -> None:
        usual, changes.FEWEST_PENDING = changes.FEWEST_PENDING, 1
        try:
            index.add(folder / "plain.jsonl", **parts)
        finally:
            changes.FEWEST_PENDING = usual

    def overwrite(folder: Path) -> Index:
        return Index.build(model(name), plain, folder / "index", overwrite=True, **parts)

    lists = f"IVF{max(2, size // 12)}"
    most = [f"d{n}" for n in range(size)]
    return [
        Operation("encode_corpus", empty, encode, lambda folder: corpus_state(folder / "corpus")),
        building(
            "Index.build",
            lambda folder: Index.build(model(name), folder / "in.jsonl", folder / "index", strict=False, **parts),
        ),
        of_factory(f"{lists},Flat"),
        of_factory("HNSW8"),
        of_factory(f"{lists},SQ8"),
        building("Index.build overwrite", overwrite, built),
        building(
            "Index.from_corpus",
            lambda folder: Index.from_corpus(folder / "corpus", folder / "index", **QUIET),
            encoded,
        ),
        changing("add a file with ids", lambda i, f: i.add(f / "in.jsonl", strict=False, **parts)),
        changing("add a file without ids", lambda i, f: i.add(f / "plain.jsonl", **parts)),
        changing("add a list without ids", lambda i, f: i.add(plain, **parts)),
        changing("add that folds", folding),
        changing("add that folds", folding, f"{lists},SQ8"),
        changing("upsert", lambda i, f: i.upsert(f / "in.jsonl", strict=False, **parts)),
        changing("delete a few", lambda i, f: i.delete(["d0", "d2"], missing="ignore")),
        changing("delete most", lambda i, f: i.delete(most, missing="ignore")),
        changing("compact", lambda i, f: i.compact(**QUIET)),
        changing("compact", lambda i, f: i.compact(**QUIET), f"{lists},Flat"),
        *(exporting(suffix) for suffix in (".parquet", ".faiss", "")),
    ]
