"""Measure st_reba.Index beside FAISS with a list and LanceDB, with the same documents.

Vectors are random, of length one; texts have about 100 characters. Nothing is encoded: st_reba gets
a model that returns these vectors, so the times of ``Index.build`` and ``add`` are those of all
their other work. Each tool and size runs in processes of its own: one builds, some open, one searches,
one changes; the files are in the system's memory, imports are not counted. A change is on the disk
when its time ends. All are exact.

    python scripts/benchmark_index.py --sizes 100000 1000000 --json results.json
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import import_module, util
from pathlib import Path
from typing import Any

import numpy as np
from process_memory import peak_bytes

ROOT = Path(__file__).resolve().parent.parent
DIMENSIONS = 384
HIT_COUNT = 10
QUERY_COUNT = 100
REPEATS = 20
BLOCK_SIZE = 5000
LANGUAGES = ("en", "zh", "de", "fr", "es")
WORDS = (
    *("harbour", "河边", "letter", "面包", "evening", "孩子"),
    *("paper", "车站", "winter", "市场", "window"),
)
# What is measured, and its title in the table.
TITLES = {
    "build": "build, s",
    "peak": "peak memory of that, MiB",
    "disk": "on disk, MiB",
    "open": "open + first search, new process, ms",
    "one": "search, 1 query, ms",
    "batch": "search, 100 queries, ms",
    "where_first": "1 query, lang = zh, the first time, ms",
    "where_one": "1 query, lang = zh, again, ms",
    "where_batch": "100 queries, lang = zh, ms",
    "add": "add one, ms",
    "after_add": "the first search after that, ms",
    "delete": "delete one, ms",
}
# Seconds, or a list of them; MiB.
Figures = dict[str, Any]
Hits = list[list[str]]  # for each query, ids


def text_of(document_row: int) -> str:
    words = [str(document_row)]
    for position in range(17):
        word_index = document_row * 7 + position * (1 + document_row % 5)
        words.append(WORDS[word_index % len(WORDS)])
    return " ".join(words)


def metadata_of(document_row: int) -> dict[str, Any]:
    language_index = document_row * 2654435761 % 2**32 % len(LANGUAGES)
    return {"lang": LANGUAGES[language_index], "year": 2000 + document_row % 25}


class Tool:
    """What is measured. A document's number is its row of the vectors, and its id."""

    module_name = ""

    def __init__(self, folder: Path, vectors: Any) -> None:
        self.folder = folder
        self.vectors = vectors
        self.module = import_module(self.module_name)


class StReba(Tool):
    module_name = "st_reba.index"

    def __init__(self, folder: Path, vectors: Any) -> None:
        super().__init__(folder, vectors)
        # Else some modules are imported when an index is opened.
        import_module("st_reba").build("mini")
        import faiss  # noqa: F401
        import torch
        from sentence_transformers import SentenceTransformer
        from torch.nn import Identity

        class ReadyVectors(SentenceTransformer):
            def preprocess(  # type: ignore[override]
                self, texts: Any, *args: Any, **options: Any
            ) -> dict[str, Any]:
                return {}

            def encode_document(  # type: ignore[override]
                self, texts: Any, *args: Any, **options: Any
            ) -> Any:
                rows: list[int] = []
                for text in texts:
                    first_word = text.partition(" ")[0]
                    # What the fingerprint asks for has no number.
                    rows.append(int(first_word) if first_word.isdecimal() else len(first_word))
                ready_vectors = np.asarray(vectors[rows])
                if options.get("convert_to_tensor"):
                    return torch.from_numpy(ready_vectors)
                return ready_vectors

        self.model = ReadyVectors(modules=[Identity()], device="cpu", similarity_fn_name="cosine")

    def document(self, document_row: int) -> Any:
        return self.module.Document(
            text_of(document_row), str(document_row), metadata_of(document_row)
        )

    def build(self, document_count: int) -> None:
        documents = map(self.document, range(document_count))
        index = self.module.Index.build(
            self.model, documents, self.folder / "index", factory="Flat"
        )
        index.close()

    def open(self) -> None:
        self.index = self.module.Index.open(self.folder / "index")
        self.index._model.loaded = self.model

    def search(self, queries: Any, **where: Any) -> Hits:
        hits: Hits = []
        for results in self.index.search(queries, HIT_COUNT, where=where or None):
            hits.append([result.id for result in results])
        return hits

    def add(self, document_row: int) -> None:
        self.index.add([self.document(document_row)])

    def delete(self, document_row: int) -> None:
        self.index.delete([str(document_row)])


class Faiss(Tool):
    """IndexFlatIP, and a list of documents."""

    module_name = "faiss"

    def build(self, document_count: int) -> None:
        self.index = self.module.IndexFlatIP(DIMENSIONS)
        self.index.add(self.vectors[:document_count])
        self.documents = [
            (str(document_row), text_of(document_row), metadata_of(document_row))
            for document_row in range(document_count)
        ]
        self.save()

    def save(self) -> None:
        self.module.write_index(self.index, str(self.folder / "vectors.faiss"))
        (self.folder / "rows.pickle").write_bytes(pickle.dumps(self.documents))

    def open(self) -> None:
        self.index = self.module.read_index(str(self.folder / "vectors.faiss"))
        self.documents = pickle.loads((self.folder / "rows.pickle").read_bytes())

    def search(self, queries: Any, **where: Any) -> Hits:
        parameters = None
        if where:
            matching_rows: list[int] = []
            for document_row, (_, _, metadata) in enumerate(self.documents):
                if where.items() <= metadata.items():
                    matching_rows.append(document_row)
            selector = self.module.IDSelectorArray(np.array(matching_rows))
            parameters = self.module.SearchParameters(sel=selector)
        _, nearest_rows = self.index.search(queries, HIT_COUNT, params=parameters)
        hits: Hits = []
        for rows in nearest_rows.tolist():
            hits.append([self.documents[document_row][0] for document_row in rows])
        return hits

    def add(self, document_row: int) -> None:
        self.index.add(self.vectors[document_row : document_row + 1])
        self.documents.append((str(document_row), text_of(document_row), metadata_of(document_row)))
        self.save()

    def delete(self, document_row: int) -> None:
        document_ids = [document_id for document_id, _, _ in self.documents]
        position = document_ids.index(str(document_row))
        self.index.remove_ids(np.array([position]))
        del self.documents[position]
        self.save()


class LanceDB(Tool):
    """Without a vector index, so exact."""

    module_name = "lancedb"

    def record_batch(self, rows: range) -> Any:
        import pyarrow as pa

        numbers = pa.array(self.vectors[rows.start : rows.stop].ravel())
        columns: dict[str, Any] = {}
        for name in metadata_of(0):
            columns[name] = [metadata_of(document_row)[name] for document_row in rows]
        columns["id"] = list(map(str, rows))
        columns["text"] = list(map(text_of, rows))
        columns["vector"] = pa.FixedSizeListArray.from_arrays(numbers, DIMENSIONS)
        return pa.RecordBatch.from_pydict(columns)

    def record_batches(self, document_count: int) -> Iterator[Any]:
        for start in range(0, document_count, BLOCK_SIZE):
            yield self.record_batch(range(start, min(start + BLOCK_SIZE, document_count)))

    def build(self, document_count: int) -> None:
        database = self.module.connect(self.folder / "lance")
        schema = self.record_batch(range(1)).schema
        database.create_table("documents", self.record_batches(document_count), schema=schema)

    def open(self) -> None:
        database = self.module.connect(self.folder / "lance")
        self.table = database.open_table("documents")

    def search(self, queries: Any, **where: Any) -> Hits:
        lance_query = self.table.search(queries if len(queries) > 1 else queries[0])
        lance_query = lance_query.distance_type("dot").limit(HIT_COUNT)
        for name, value in where.items():
            lance_query = lance_query.where(f"{name} = '{value}'", prefilter=True)
        results = lance_query.select(["id", "text", "lang", "year", "_distance"]).to_list()
        results.sort(key=lambda result: result["_distance"])
        hits: Hits = [[] for _ in queries]
        for result in results:
            hits[result.get("query_index", 0)].append(result["id"])
        return hits

    def add(self, document_row: int) -> None:
        self.table.add(self.record_batch(range(document_row, document_row + 1)))

    def delete(self, document_row: int) -> None:
        self.table.delete(f"id = '{document_row}'")


TOOLS: dict[str, type[Any]] = {
    "st_reba": StReba,
    "LanceDB": LanceDB,
    "FAISS + list": Faiss,
}


def time_call(function: Callable[..., object], *args: Any, **options: Any) -> float:
    start_time = time.perf_counter()
    function(*args, **options)
    return time.perf_counter() - start_time


def run_phase(phase: str, tool_name: str, document_count: int, folder: Path) -> Figures:
    """One phase of one tool, in a process of its own."""
    vectors = np.load(folder.parent / "vectors.npy", "r")
    queries = np.load(folder.parent / "queries.npy")
    tool = TOOLS[tool_name](folder, vectors)
    if phase == "build":
        seconds = time_call(tool.build, document_count)
        return {"build": [seconds], "peak": peak_bytes() / 2**20}

    def open_and_search() -> None:
        tool.open()
        tool.search(queries[:1])

    open_seconds = time_call(open_and_search)
    if phase == "open":
        return {"open": [open_seconds]}
    if phase == "search":
        return time_searches(tool, tool_name, document_count, queries)
    # Seconds for each change.
    is_slow = document_count > 200_000 and tool_name == "FAISS + list"
    return time_changes(tool, document_count, queries[:1], 5 if is_slow else REPEATS)


def time_searches(tool: Any, tool_name: str, document_count: int, queries: Any) -> Figures:
    query = queries[:1]
    figures: Figures = {"where_first": [time_call(tool.search, query, lang="zh")]}
    conditions: dict[str, dict[str, Any]] = {"": {}, "where_": {"lang": "zh"}}
    for prefix, where in conditions.items():
        figures[f"{prefix}one"] = [time_call(tool.search, query, **where) for _ in range(REPEATS)]
        figures[f"{prefix}batch"] = [
            time_call(tool.search, queries, **where) for _ in range(REPEATS // 4)
        ]
        matching_rows = [
            document_row
            for document_row in range(document_count)
            if where.items() <= metadata_of(document_row).items()
        ]
        scores = tool.vectors[matching_rows] @ query[0]
        nearest_id = str(matching_rows[int(scores.argmax())])
        assert tool.search(query, **where)[0][0] == nearest_id, (
            f"{tool_name} does not find {nearest_id}"
        )
    return figures


def time_changes(tool: Any, document_count: int, query: Any, repeats: int) -> Figures:
    row_count = len(tool.vectors)
    add_seconds: list[float] = []
    search_seconds: list[float] = []
    delete_seconds: list[float] = []
    for document_row in range(row_count - repeats - 1, row_count):
        add_seconds.append(time_call(tool.add, document_row))
        search_seconds.append(time_call(tool.search, query))
        added_vector = np.asarray(tool.vectors[document_row : document_row + 1])
        assert tool.search(added_vector)[0][0] == str(document_row)
        delete_seconds.append(time_call(tool.delete, document_row - row_count + document_count))
    # The first of each also loads code.
    return {
        "add": add_seconds[1:],
        "after_add": search_seconds[1:],
        "delete": delete_seconds[1:],
    }


def measure(tool_name: str, document_count: int, scratch: Path) -> Figures:
    """All phases of one tool at one size."""
    folder = Path(tempfile.mkdtemp(dir=scratch))
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "ignore",
        "LANCE_LOG": "error",
        "HF_HUB_OFFLINE": "1",
    }
    figures: Figures = {"tool": tool_name, "size": document_count}
    open_seconds: list[float] = []
    for phase in ("build", "open", "open", "open", "search", "change"):
        command = [
            sys.executable,
            __file__,
            "--worker",
            phase,
            tool_name,
            str(document_count),
            str(folder),
        ]
        completed = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
        phase_figures = json.loads(completed.stdout.splitlines()[-1])
        open_seconds += phase_figures.pop("open", [])
        figures |= phase_figures
        if phase == "build":
            figures["disk"] = mebibytes_on_disk(folder)
    figures["open"] = open_seconds
    shutil.rmtree(folder)
    return figures


def mebibytes_on_disk(folder: Path) -> float:
    total_bytes = 0
    for path in folder.rglob("*"):
        if path.is_file():
            total_bytes += path.stat().st_size
    return total_bytes / 2**20


def format_figure(name: str, value: Any) -> str:
    """A number; of times that were repeated, median and quartiles in milliseconds."""
    if name == "build":
        return f"{value[0]:,.1f}"
    if name in ("peak", "disk"):
        return f"{value:,.1f}"
    lower, median, upper = np.quantile(value, (0.25, 0.5, 0.75)) * 1000
    return f"{median:,.3g} ({lower:,.3g}–{upper:,.3g})"


def write_random_vectors(path: Path, count: int, random_state: np.random.Generator) -> None:
    """Of length one."""
    array = np.lib.format.open_memmap(path, "w+", np.float32, (count, DIMENSIONS))
    for start in range(0, count, BLOCK_SIZE):
        block_size = min(BLOCK_SIZE, count - start)
        block = random_state.standard_normal((block_size, DIMENSIONS), np.float32)
        array[start : start + BLOCK_SIZE] = block / np.linalg.norm(block, axis=1, keepdims=True)


def print_table(results: list[Figures]) -> None:
    heads = [f"{result['tool']}, {result['size']:,}" for result in results]
    print(" | ".join(["|", *heads]) + " |")
    print("|---" + "|---:" * len(results) + "|")
    for name, title in TITLES.items():
        cells = [format_figure(name, result[name]) for result in results]
        print(" | ".join([f"| {title}", *cells]) + " |")


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--sizes",
        type=int,
        nargs="+",
        default=[100_000, 1_000_000],
        help="numbers of documents",
    )
    parser.add_argument(
        "--tools",
        nargs="+",
        choices=list(TOOLS),
        default=list(TOOLS),
        help="which (default: all)",
    )
    parser.add_argument(
        "--json",
        type=Path,
        default=os.devnull,
        metavar="FILE",
        help="write every figure here",
    )
    return parser.parse_args()


def installed_tools(tool_names: list[str]) -> list[str]:
    sys.path.insert(0, str(ROOT))
    absent_names = {name for name in tool_names if not util.find_spec(TOOLS[name].module_name)}
    print(
        f"Left out, as not installed: {', '.join(absent_names) or 'none'}",
        file=sys.stderr,
    )
    return [name for name in tool_names if name not in absent_names]


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        phase, tool_name, document_count, folder = sys.argv[2:]
        print(json.dumps(run_phase(phase, tool_name, int(document_count), Path(folder))))
        return
    options = parse_options()
    tool_names = installed_tools(options.tools)
    results: list[Figures] = []
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(temporary)
        random_state = np.random.default_rng(0)
        write_random_vectors(
            scratch / "vectors.npy",
            max(options.sizes) + REPEATS + 1,
            random_state,
        )
        write_random_vectors(scratch / "queries.npy", QUERY_COUNT, random_state)
        for document_count in options.sizes:
            for tool_name in tool_names:
                results.append(measure(tool_name, document_count, scratch))
            options.json.write_text(json.dumps(results, indent=2), encoding="utf-8")
    print_table(results)


if __name__ == "__main__":
    main()
