"""Everything of st_reba that writes a corpus or an index, small, to be killed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from kills import Operation, State
from sentence_transformers import SentenceTransformer
from tiny import WORDS, tiny_model

import st_reba
import st_reba.index.changes as changes
from st_reba.corpus import Corpus, encode_corpus
from st_reba.index import Document, Index, SearchResult

QUERIES = ["cat ship", "gold", "moon rain king"]
EXPORTS = ("out.parquet", "out.faiss")
_VISIBLE_FACTS = (
    "documents",
    "vectors",
    "factory",
    "parameters",
    "columns",
    "pending",
    "whitening",
    "token_dimension",
)

model = cache(tiny_model)


@cache
def decoder() -> SentenceTransformer:
    """A model whose indexes are whitened, with a part for tokens."""
    return st_reba.build("mini", "echo", pooling="mean", device="cpu")


def make_texts(count: int, seed: int = 0) -> list[str]:
    """Texts of one to six words."""
    random = np.random.default_rng(seed)
    drawn_texts = []
    for _ in range(count):
        drawn_words = random.choice(WORDS[:12], size=random.integers(1, 7))
        drawn_texts.append(" ".join(drawn_words))
    return drawn_texts


def make_documents(count: int, seed: int = 0, prefix: str = "d") -> list[Document]:
    """Documents with ids and metadata."""
    drawn_documents = []
    for row, text in enumerate(make_texts(count, seed)):
        drawn_documents.append(Document(text, f"{prefix}{row}", {"n": row}))
    return drawn_documents


def state(work_folder: Path) -> State:
    """All that a reader can see: an index and its results, a whole corpus, and exports."""
    exported_files = {}
    for name in EXPORTS:
        export_path = work_folder / name
        if export_path.exists():
            exported_files[name] = export_path.read_bytes()
    whole_state = index_state(work_folder / "index")
    whole_state["corpus"] = corpus_state(Corpus(work_folder / "corpus"))
    whole_state["exported"] = exported_files
    return whole_state


class Nearly(float):
    """A number that equals every number within 1e-5 of it."""

    def __eq__(self, other_number: object) -> bool:
        return isinstance(other_number, float) and math.isclose(self, other_number, abs_tol=1e-5)

    __hash__ = None  # type: ignore[assignment]


def _round_score(result: SearchResult) -> SearchResult:
    return replace(result, score=Nearly(result.score))


def state_but_for_rounding(work_folder: Path) -> State:
    """The state of an index whose vectors are computed anew by every repetition.

    They may differ by rounding.
    """
    whole_state = state(work_folder)
    results_by_query = []
    for results in whole_state["found"]:
        results_by_query.append([_round_score(result) for result in results])
    whole_state["found"] = results_by_query
    del whole_state["values"]  # bytes of vectors, which the scores stand for
    return whole_state


def index_state(index_path: Path) -> State:
    try:
        index = Index.open(index_path)
    except FileNotFoundError:
        return {}
    out = index_path.with_name("vectors.parquet")
    index.export(out)
    exported_bytes = out.read_bytes()
    out.unlink()
    facts = index.verify()
    index_facts = {name: facts[name] for name in _VISIBLE_FACTS}
    index_model = model()
    if facts["token_dimension"]:
        index_model = decoder()
    query_vectors = np.asarray(index_model.encode_query(QUERIES, show_progress_bar=False))
    opened_index = Index.open(index_path, index_model)
    nearest = opened_index.search(QUERIES, k=8, mode="vectors", vectors=query_vectors)
    found_by_words = index.search(QUERIES, k=8, mode="words")
    index_facts |= {
        "found": nearest,
        "words": found_by_words,
        "documents in order": list(index),
        "rejects": index.rejects(),
        "values": exported_bytes,
    }
    return index_facts


def corpus_state(corpus: Corpus) -> State:
    try:
        header = corpus.header()
        corpus_facts = {name: header[name] for name in ("totals", "digest")}
    except (FileNotFoundError, KeyError):
        return {}
    corpus.verify()
    rows = []
    for part_number in range(corpus.part_count()):
        for row, vectors in corpus.read(part_number):
            rows.append((part_number, row, vectors.tobytes()))
    corpus_facts["rows"] = rows
    corpus_facts["rejects"] = list(corpus.rejects())
    corpus_facts["rejects.jsonl"] = (corpus.path / "rejects.jsonl").read_bytes()
    return corpus_facts


def build_whitened(work_folder: Path) -> None:
    """An index of as many different texts as a whitening needs."""
    Index.build(
        decoder(),
        make_documents(300),
        work_folder / "index",
        part_size=150,
        show_progress_bar=False,
    )


def change_whitened(work_folder: Path) -> None:
    build_whitened(work_folder)
    index = Index.open(work_folder / "index", decoder())
    index.add(make_texts(8, 5), show_progress_bar=False)
    index.delete([f"d{id_number}" for id_number in range(20)])


def whiten_anew(work_folder: Path) -> None:
    Index.open(work_folder / "index", decoder()).compact(whiten=True)


def _mixed_rows(row_count: int) -> list[dict[str, Any]]:
    """Rows with ids of their own, with ids that are there, without ids, and rejects."""
    rows: list[dict[str, Any]] = []
    for document in make_documents(row_count, 1, "e"):
        rows.append({"id": document.id, "text": document.text, "n": document.metadata["n"]})
    for id_number, text in enumerate(make_texts(row_count, 2)):
        rows.append({"id": f"d{id_number}", "text": text})
    rows += [{"text": text} for text in make_texts(row_count, 3)]
    rows += [{"text": "  "}, {"text": 7}, {"id": "e0", "text": "cat"}]
    return rows


class _Operations:
    """Operations on an index.

    Args:
        size: Documents of the index that is built first.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.added_count = max(4, size // 3)
        list_count = max(2, size // 12)
        self.flat_lists = f"IVF{list_count},Flat"
        self.coded_lists = f"IVF{list_count},SQ8"
        self.options: dict[str, Any] = {
            "part_size": max(2, size // 3),
            "show_progress_bar": False,
        }

    def write_inputs(self, work_folder: Path) -> None:
        plain_rows = [{"text": text} for text in make_texts(self.added_count, 4)]
        inputs = {"in.jsonl": _mixed_rows(self.added_count), "plain.jsonl": plain_rows}
        for name, rows in inputs.items():
            lines = [json.dumps(row) + "\n" for row in rows]
            (work_folder / name).write_text("".join(lines), encoding="utf-8")

    def prepare_index(
        self,
        work_folder: Path,
        factory: str = "Flat",
    ) -> None:
        self.write_inputs(work_folder)
        index = Index.build(
            model(),
            make_documents(self.size),
            work_folder / "index",
            factory=factory,
            show_progress_bar=False,
        )
        index.add(make_texts(self.added_count, 5), show_progress_bar=False)
        index.delete(["d1", "d4"])

    def encode(self, work_folder: Path) -> None:
        encode_corpus(model(), work_folder / "in.jsonl", work_folder / "corpus", **self.options)

    def building(self, factory: str) -> Operation:
        build = partial(self.build, factory)
        return Operation(f"build {factory}", self.write_inputs, build, state, FileExistsError)

    def build(
        self,
        factory: str,
        work_folder: Path,
        *,
        overwrite: bool = False,
    ) -> None:
        Index.build(
            model(),
            work_folder / "in.jsonl",
            work_folder / "index",
            factory=factory,
            strict=False,
            overwrite=overwrite,
            **self.options,
        )

    def overwriting(self) -> Operation:
        build = partial(self.build, "Flat", overwrite=True)
        return Operation("build overwrite", self.prepare_index, build, state, FileExistsError)

    def changing(
        self,
        title: str,
        change: Callable[[Index, Path], object],
        *factories: str,
    ) -> Iterator[Operation]:
        """A change of an index of each factory; none: of a flat one."""

        def run(work_folder: Path) -> None:
            change(Index.open(work_folder / "index", model()), work_folder)

        for factory in factories or ("Flat",):
            name = title
            if factory != "Flat":
                name = f"{title} ({factory})"
            prepare = partial(self.prepare_index, factory=factory)
            yield Operation(name, prepare, run, state)

    def exporting(self, name: str) -> Operation:
        def export(work_folder: Path) -> None:
            Index.open(work_folder / "index").export(work_folder / name)

        return Operation(f"export {name}", self.prepare_index, export, state, FileExistsError)

    def add_mixed(
        self,
        index: Index,
        work_folder: Path,
    ) -> None:
        index.add(work_folder / "in.jsonl", strict=False, **self.options)

    def upsert_mixed(
        self,
        index: Index,
        work_folder: Path,
    ) -> None:
        index.upsert(work_folder / "in.jsonl", strict=False, **self.options)

    def add_plain(
        self,
        index: Index,
        work_folder: Path,
    ) -> None:
        index.add(work_folder / "plain.jsonl", **self.options)

    def add_list(
        self,
        index: Index,
        work_folder: Path,
    ) -> None:
        index.add(make_texts(self.added_count, 4), **self.options)

    def add_and_rewrite(
        self,
        index: Index,
        work_folder: Path,
    ) -> None:
        with patch.object(changes, "MIN_PENDING", 1):
            self.add_plain(index, work_folder)

    def delete_few(
        self,
        index: Index,
        work_folder: Path,
    ) -> None:
        index.delete(["d0", "d2"])

    def delete_most(
        self,
        index: Index,
        work_folder: Path,
    ) -> None:
        index.delete([f"d{id_number}" for id_number in range(self.size)])

    def compact(
        self,
        index: Index,
        work_folder: Path,
    ) -> None:
        index.compact()


def operations(size: int = 24) -> list[Operation]:
    """All operations; ``size``: documents of the index that is built first."""
    cases = _Operations(size)
    all_factories = ("Flat", cases.flat_lists, cases.coded_lists)
    return [
        Operation("build whitened", cases.write_inputs, build_whitened, state, FileExistsError),
        Operation("compact whitened", change_whitened, whiten_anew, state_but_for_rounding),
        Operation("encode_corpus", cases.write_inputs, cases.encode, state),
        *map(cases.building, all_factories),
        cases.overwriting(),
        *cases.changing("add a file with ids", cases.add_mixed),
        *cases.changing("add a file without ids", cases.add_plain),
        *cases.changing("add a list", cases.add_list, cases.flat_lists),
        *cases.changing("add that folds", cases.add_and_rewrite, "Flat", cases.coded_lists),
        *cases.changing("upsert", cases.upsert_mixed, "Flat", cases.coded_lists),
        *cases.changing("delete a few", cases.delete_few),
        *cases.changing("delete most", cases.delete_most, cases.flat_lists),
        *cases.changing("compact", cases.compact, *all_factories),
        *map(cases.exporting, EXPORTS),
    ]
