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

import st_reba.index.changes as changes
from st_reba.corpus import Corpus, encode_corpus
from st_reba.index import Document, Index

QUERIES = ["cat ship", "gold", "moon rain king"]


@cache
def model() -> SentenceTransformer:
    """The tiny model."""
    return tiny_model()


def texts(count: int, seed: int = 0) -> list[str]:
    """Texts of one to six words."""
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(WORDS[:12], size=random.integers(1, 7))) for _ in range(count)]


def documents(count: int, seed: int = 0, prefix: str = "d") -> list[Document]:
    """Documents with ids and metadata."""
    return [Document(text, f"{prefix}{n}", {"n": n}) for n, text in enumerate(texts(count, seed))]


def index_state(path: Path) -> State:
    """Contents and findings of an index; None: there is none yet."""
    try:
        index = Index.open(path)
    except FileNotFoundError:
        return None
    about = index.verify()
    names = ("documents", "vectors", "factory", "parameters", "columns", "pending")
    state: dict[str, Any] = {name: about[name] for name in names}
    queries = np.asarray(model().encode_query(QUERIES, show_progress_bar=False))
    state["found"] = [[(one.id, one.score, one.text) for one in row] for row in index.search(queries, k=8)]
    state["texts"] = [(one.id, one.text, one.metadata) for one in index]
    state["rejects"] = index.rejects()
    out = path.with_name(f"{path.name} vectors.parquet")
    index.export(out)
    state["values"] = out.read_bytes()
    out.unlink()
    return state


def corpus_state(path: Path) -> State:
    """Contents of a corpus; None: it is not complete."""
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


def operations(size: int = 24) -> list[Operation]:
    """All of them; ``size``: documents of the index that is built first."""
    more = max(4, size // 3)
    # Ids of its own, ids that are there, none, and what is set aside.
    mixed: list[dict[str, Any]] = [
        *({"id": one.id, "text": one.text, "n": one.metadata["n"]} for one in documents(more, 1, "e")),
        *({"id": f"d{n}", "text": text} for n, text in enumerate(texts(more, 2))),
        *({"text": text} for text in texts(more, 3)),
        *({"text": "  "}, {"text": 7}, {"id": "e0", "text": "cat"}),
    ]
    inputs = {"in.jsonl": mixed, "plain.jsonl": [{"text": text} for text in texts(more, 4)]}
    parts: dict[str, Any] = {"part_size": max(2, size // 3), "show_progress_bar": False}
    ivf, sq8 = (f"IVF{max(2, size // 12)},{code}" for code in ("Flat", "SQ8"))
    most = [f"d{n}" for n in range(size)]

    def empty(folder: Path) -> None:
        for name, rows in inputs.items():
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            (folder / name).write_text(lines, encoding="utf-8")

    def built(folder: Path, factory: str = "Flat") -> None:
        empty(folder)
        index = Index.build(model(), documents(size), folder / "index", factory=factory, show_progress_bar=False)
        index.add(texts(more, 5), show_progress_bar=False)
        index.delete(["d1", "d4"])

    def changing(title: str, run: Callable[[Index, Path], object], factory: str = "Flat") -> Operation:
        def change(folder: Path) -> None:
            run(Index.open(folder / "index", model()), folder)

        title = f"{title} ({factory})" if factory != "Flat" else title
        return Operation(title, lambda folder: built(folder, factory), change, lambda f: index_state(f / "index"))

    def encode(folder: Path) -> None:
        encode_corpus(model(), folder / "in.jsonl", folder / "corpus", **parts)

    def exporting(name: str) -> Operation:
        def export(folder: Path) -> None:
            Index.open(folder / "index").export(folder / name)

        def state(folder: Path) -> State:
            return (folder / name).read_bytes() if (folder / name).exists() else None

        return Operation(f"export {name}", built, export, state, FileExistsError)

    def building(title: str, factory: str, prepare: Callable[[Path], None] = empty, **options: Any) -> Operation:
        def build(folder: Path) -> None:
            options.update(factory=factory, strict=False, **parts)
            Index.build(model(), folder / "in.jsonl", folder / "index", **options)

        return Operation(title, prepare, build, lambda f: index_state(f / "index"), FileExistsError)

    def folding(index: Index, folder: Path) -> None:
        usual, changes.FEWEST_PENDING = changes.FEWEST_PENDING, 1
        try:
            index.add(folder / "plain.jsonl", **parts)
        finally:
            changes.FEWEST_PENDING = usual

    return [
        Operation("encode_corpus", empty, encode, lambda folder: corpus_state(folder / "corpus")),
        *(building(f"build {factory}", factory) for factory in ("Flat", ivf, sq8)),
        building("build overwrite", "Flat", built, overwrite=True),
        changing("add a file with ids", lambda i, f: i.add(f / "in.jsonl", strict=False, **parts)),
        changing("add a file without ids", lambda i, f: i.add(f / "plain.jsonl", **parts)),
        changing("add a list", lambda i, f: i.add(texts(more, 4), **parts), ivf),
        changing("add that folds", folding),
        changing("add that folds", folding, sq8),
        changing("upsert", lambda i, f: i.upsert(f / "in.jsonl", strict=False, **parts)),
        changing("upsert", lambda i, f: i.upsert(f / "in.jsonl", strict=False, **parts), sq8),
        changing("delete a few", lambda i, f: i.delete(["d0", "d2"])),
        changing("delete most", lambda i, f: i.delete(most), ivf),
        *(changing("compact", lambda i, f: i.compact(), factory) for factory in ("Flat", ivf, sq8)),
        *(exporting(name) for name in ("out.parquet", "out.faiss")),
    ]
