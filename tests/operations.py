"""Everything of st_reba that writes a corpus or an index, small, to be killed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from kills import Operation, State
from sentence_transformers import SentenceTransformer
from tiny import WORDS, tiny_model

import st_reba
from st_reba.corpus import encode_corpus
from st_reba.corpus.folder import Corpus
from st_reba.index import Document, Index, add, compact, delete, export
from st_reba.index.folder.generation import Generation
from st_reba.index.vectors.flat import load_faiss

QUERIES = ["cat ship", "gold", "moon rain king"]
# Where and when; and numbers that a second overwriting raises.
_VOLATILE = ("created", "changed", "model_source", "addition")
_COUNTERS = ("generation", "next_segment", "segments")


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


def index_state(path: Path, *, counters: bool = True) -> State:
    """What an index holds and finds; None: there is none yet."""
    if not (path / "manifest.json").exists():
        return None
    with Index.open(path) as index:
        about = asdict(index.manifest)
        queries = np.asarray(model("tiny").encode_query(QUERIES, show_progress_bar=False))
        found = index.search(np.resize(queries, (3, index.manifest.dim)), k=8)
    state = {key: value for key, value in about.items() if key not in _VOLATILE and (counters or key not in _COUNTERS)}
    state["found"] = [[(result.id, result.score, result.text) for result in one] for one in found]
    generation = Generation.open(path)
    live, vectors = [], []
    for segment in generation.segments:
        rows = segment.live_rows()
        live += [(one.id, one.text, one.metadata) for one in segment.store.get(rows.tolist())]
        vectors.append(segment.vectors(0, segment.record.count)[rows].tobytes())
    generation.retire()
    state["documents"] = live
    state["vectors"] = b"".join(vectors)
    assert len({identity for identity, _, _ in live}) == len(live) == about_count(index)
    return state


def about_count(index: Index) -> int:
    """How many documents the manifest tells."""
    return index.manifest.count


def corpus_state(path: Path) -> State:
    """What a corpus holds; None: it is not complete."""
    corpus = Corpus(path)
    try:
        header = corpus.header()
    except FileNotFoundError:
        return None
    if header["status"] != "complete":
        return None
    corpus.check()
    shards = [(list(store.records()), vectors.tobytes()) for store, vectors in corpus.shards()]
    rejects = (path / "rejects.jsonl").read_text(encoding="utf-8")
    return {"totals": header["totals"], "files": header["files"], "shards": shards, "rejects": rejects}


def export_state(path: Path) -> State:
    """The bytes of an export; None: there is none."""
    if not path.exists():
        return None
    beside = path.with_suffix(".documents.jsonl")
    return path.read_bytes(), beside.read_bytes() if path.suffix == ".npy" else b""


def operations(name: str = "tiny", size: int = 24) -> list[Operation]:
    """All of them.

    Args:
        name: The model, "tiny" or "mini".
        size: Documents of the index that is built first; additions and corpora go by it.
    """
    load_faiss().omp_set_num_threads(1)
    quiet: dict[str, Any] = {"show_progress_bar": False}
    more = max(4, size // 3)
    # Ids of its own, ids that are there, none, and what is set aside.
    mixed = [
        *({"id": one.id, "text": one.text, "n": one.metadata["n"]} for one in documents(more, 1, "e")),
        *({"id": f"d{n}", "text": text} for n, text in enumerate(texts(more, 2))),
        *({"text": text} for text in texts(more, 3)),
        *({"text": "  "}, {"text": 7}, {"id": "e0", "text": "cat"}),
    ]
    plain = texts(more, 4)
    shards: dict[str, Any] = {"shard_size": max(2, size // 3), **quiet}

    def empty(folder: Path) -> None:
        write_lines(folder / "in.jsonl", mixed)

    def built(folder: Path, factory: str = "Flat") -> None:
        empty(folder)
        write_lines(folder / "plain.jsonl", plain)
        Index.build(model(name), documents(size), folder / "index", factory=factory, **quiet).close()
        add(folder / "index", model(name), texts(more, 5), **quiet)
        delete(folder / "index", ["d1", "d4"])

    def changing(title: str, run: Callable[[Path], object], factory: str = "Flat") -> Operation:
        return Operation(
            f"{title} ({factory})" if factory != "Flat" else title,
            lambda folder: built(folder, factory),
            lambda folder: _ignored(run(folder)),
            lambda folder: index_state(folder / "index"),
        )

    def encode(folder: Path) -> None:
        encode_corpus(model(name), folder / "in.jsonl", folder / "corpus", **shards)

    def encoded(folder: Path) -> None:
        empty(folder)
        encode(folder)

    def exporting(suffix: str) -> Operation:
        out = f"out{suffix}"
        return Operation(
            f"export {suffix}",
            built,
            lambda folder: _ignored(export(folder / "index", folder / out, **quiet)),
            lambda folder: export_state(folder / out),
            (FileExistsError,),
        )

    def building(title: str, run: Callable[[Path], Index], prepare: Callable[[Path], None] = empty) -> Operation:
        return Operation(
            title,
            prepare,
            lambda folder: run(folder).close(),
            lambda folder: index_state(folder / "index", counters=prepare is not built),
            (FileExistsError,),
            renumbered=prepare is built,
        )

    inverted = f"IVF{max(2, size // 12)},Flat"
    return [
        Operation("encode_corpus", empty, encode, lambda folder: corpus_state(folder / "corpus")),
        building(
            "Index.build",
            lambda folder: Index.build(model(name), folder / "in.jsonl", folder / "index", strict=False, **shards),
        ),
        building(
            f"Index.build {inverted}",
            lambda folder: Index.build(model(name), documents(size), folder / "index", factory=inverted, **shards),
        ),
        building(
            "Index.from_corpus",
            lambda folder: Index.from_corpus(folder / "corpus", folder / "index", **quiet),
            encoded,
        ),
        building(
            "Index.build overwrite",
            lambda folder: Index.build(model(name), plain, folder / "index", overwrite=True, **shards),
            built,
        ),
        changing("add a file", lambda f: add(f / "index", model(name), f / "in.jsonl", strict=False, **shards)),
        changing("add a file without ids", lambda f: add(f / "index", model(name), f / "plain.jsonl", **shards)),
        changing("add a list without ids", lambda f: add(f / "index", model(name), plain, **shards)),
        changing(
            "upsert", lambda f: add(f / "index", model(name), f / "in.jsonl", upsert=True, strict=False, **shards)
        ),
        changing("delete a few", lambda f: delete(f / "index", ["d0", "d2"], missing="ignore")),
        changing("delete most", lambda f: delete(f / "index", [f"d{n}" for n in range(size)], missing="ignore")),
        changing("compact", lambda f: compact(f / "index", **quiet)),
        changing("compact", lambda f: compact(f / "index", **quiet), inverted),
        exporting(".npy"),
        exporting(".parquet"),
    ]


def _ignored(result: object) -> None:
    """Results are not what is compared."""
