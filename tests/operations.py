"""Everything of st_reba that writes a corpus or an index, small, to be killed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from kills import Operation, State
from tiny import WORDS, tiny_model

import st_reba.index.changes as changes
from st_reba.corpus import Corpus, encode_corpus
from st_reba.index import Document, Index

QUERIES, EXPORTS = ["cat ship", "gold", "moon rain king"], ("out.parquet", "out.faiss")


model = cache(tiny_model)


def texts(count: int, seed: int = 0) -> list[str]:
    """Texts of one to six words."""
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(WORDS[:12], size=random.integers(1, 7))) for _ in range(count)]


def documents(count: int, seed: int = 0, prefix: str = "d") -> list[Document]:
    """Documents with ids and metadata."""
    return [Document(text, f"{prefix}{n}", {"n": n}) for n, text in enumerate(texts(count, seed))]


def state(folder: Path) -> State:
    """All that a reader can see: an index and what it finds, a whole corpus, and what was exported."""
    exported = {path.name: path.read_bytes() for name in EXPORTS if (path := folder / name).exists()}
    return {**index_state(folder / "index"), "corpus": corpus_state(Corpus(folder / "corpus")), "exported": exported}


class Nearly(float):
    """A number that equals others which rounding alone makes different."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, float) and math.isclose(self, other, abs_tol=1e-5)

    __hash__ = None  # type: ignore[assignment]


def state_but_for_rounding(folder: Path) -> State:
    """The state of an index whose vectors each repetition computes from those that are there."""
    whole_state = state(folder)
    results_by_query = []
    for results in whole_state["found"]:
        results_by_query.append([(identifier, Nearly(score), text) for identifier, score, text in results])
    whole_state["found"] = results_by_query
    del whole_state["values"]  # bytes of vectors, which the scores stand for
    return whole_state


def index_state(path: Path) -> dict[str, Any]:
    try:
        index = Index.open(path)
    except FileNotFoundError:
        return {}
    out = path.with_name("vectors.parquet")
    index.export(out)
    values = out.read_bytes()
    out.unlink()
    about = index.verify()
    queries = np.asarray(model().encode_query(QUERIES, show_progress_bar=False))
    return {
        **{
            name: about[name]
            for name in ("documents", "vectors", "factory", "parameters", "columns", "pending", "whitening")
        },
        "found": [[(one.id, one.score, one.text) for one in row] for row in index.search(queries, k=8)],
        "words": [[(one.id, one.score) for one in row] for row in index.search(QUERIES, k=8, mode="words")],
        "texts": [(one.id, one.text, one.metadata) for one in index],
        "rejects": index.rejects(),
        "values": values,
    }


def corpus_state(corpus: Corpus) -> dict[str, Any]:
    try:
        header = corpus.header()
        found = {name: header[name] for name in ("totals", "files")}
    except (FileNotFoundError, KeyError):
        return {}
    corpus.verify()
    parts = [[(row, vectors.tobytes()) for row, vectors in corpus.read(part)] for part in range(corpus.parts())]
    return {**found, "parts": parts, "rejects": list(corpus.rejects())}


def build_whitened(folder: Path) -> None:
    """An index of as many different texts as a whitening needs."""
    Index.build(model(), documents(300), folder / "index", whiten=True, part_size=150, show_progress_bar=False)


def change_whitened(folder: Path) -> None:
    build_whitened(folder)
    index = Index.open(folder / "index", model())
    index.add(texts(8, 5), show_progress_bar=False)
    index.delete([f"d{number}" for number in range(20)])


def whiten_anew(folder: Path) -> None:
    Index.open(folder / "index", model()).compact(whiten=True)


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

    def empty(folder: Path) -> None:
        for name, rows in inputs.items():
            (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    def built(folder: Path, factory: str = "Flat") -> None:
        empty(folder)
        index = Index.build(model(), documents(size), folder / "index", factory=factory, show_progress_bar=False)
        index.add(texts(more, 5), show_progress_bar=False)
        index.delete(["d1", "d4"])

    def encode(folder: Path) -> None:
        encode_corpus(model(), folder / "in.jsonl", folder / "corpus", **parts)

    def building(title: str, factory: str, prepare: Callable[[Path], None] = empty, **options: Any) -> Operation:
        def build(folder: Path) -> None:
            options.update(factory=factory, strict=False, **parts)
            Index.build(model(), folder / "in.jsonl", folder / "index", **options)

        return Operation(title, prepare, build, state, FileExistsError)

    def changing(title: str, run: Callable[[Index, Path], object], *factories: str) -> Iterator[Operation]:
        def change(folder: Path) -> None:
            run(Index.open(folder / "index", model()), folder)

        for factory in factories or ("Flat",):
            name = f"{title} ({factory})" if factory != "Flat" else title
            yield Operation(name, partial(built, factory=factory), change, state)

    def exporting(name: str) -> Operation:
        def export(folder: Path) -> None:
            Index.open(folder / "index").export(folder / name)

        return Operation(f"export {name}", built, export, state, FileExistsError)

    def folding(index: Index, folder: Path) -> None:
        with patch.object(changes, "MIN_PENDING", 1):
            index.add(folder / "plain.jsonl", **parts)

    return [
        Operation("build whitened", empty, build_whitened, state, FileExistsError),
        Operation("compact whitened", change_whitened, whiten_anew, state_but_for_rounding),
        Operation("encode_corpus", empty, encode, state),
        *(building(f"build {factory}", factory) for factory in ("Flat", ivf, sq8)),
        building("build overwrite", "Flat", built, overwrite=True),
        *changing("add a file with ids", lambda i, f: i.add(f / "in.jsonl", strict=False, **parts)),
        *changing("add a file without ids", lambda i, f: i.add(f / "plain.jsonl", **parts)),
        *changing("add a list", lambda i, f: i.add(texts(more, 4), **parts), ivf),
        *changing("add that folds", folding, "Flat", sq8),
        *changing("upsert", lambda i, f: i.upsert(f / "in.jsonl", strict=False, **parts), "Flat", sq8),
        *changing("delete a few", lambda i, f: i.delete(["d0", "d2"])),
        *changing("delete most", lambda i, f: i.delete([f"d{n}" for n in range(size)]), ivf),
        *changing("compact", lambda i, f: i.compact(), "Flat", ivf, sq8),
        *map(exporting, EXPORTS),
    ]
