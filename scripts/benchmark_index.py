"""Measure st_reba.Index beside FAISS with a list and LanceDB, with the same documents.

Vectors are random, of length one; texts have about 100 characters. Nothing is encoded: st_reba gets a model that hands
out the ready vectors, so all that ``Index.build`` and ``add`` do besides is in their time. Each tool and size runs in
processes of its own: one builds, some open, one searches, one changes; the files are in the system's memory, imports
are not counted. A change is on the disk when its time ends. All are exact.

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
from collections.abc import Callable
from importlib import import_module, util
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
DIM, K, QUERIES, REPEATS, BLOCK = 384, 10, 100, 20, 5000
LANGS = ("en", "zh", "de", "fr", "es")
WORDS = (
    "harbour",
    "河边",
    "letter",
    "面包",
    "evening",
    "孩子",
    "paper",
    "车站",
    "winter",
    "市场",
    "window",
)
ROWS = {
    "build": "build, s", "peak": "peak memory of that, MiB", "disk": "on disk, MiB",
    "open": "open + first search, new process, ms", "one": "search, 1 query, ms", "batch": "search, 100 queries, ms",
    "where_first": "1 query, lang = zh, the first time, ms", "where_one": "1 query, lang = zh, again, ms",
    "where_batch": "100 queries, lang = zh, ms", "add": "add one, ms", "after_add": "the first search after that, ms",
    "delete": "delete one, ms",
}  # fmt: skip


def text(number: int) -> str:
    return f"{number} " + " ".join(WORDS[(number * 7 + place * (1 + number % 5)) % len(WORDS)] for place in range(17))


def about(number: int) -> dict[str, Any]:
    return {
        "lang": LANGS[number * 2654435761 % 2**32 % len(LANGS)],
        "year": 2000 + number % 25,
    }


class Tool:
    # A document's number is its row of the vectors, and its id. A search finds a list of ids for each query.
    def __init__(self, folder: Path, vectors: Any, module: str) -> None:
        self.folder, self.vectors, self.module = (
            folder,
            vectors,
            import_module(module),
        )


class StReba(Tool):
    def __init__(self, folder: Path, vectors: Any, module: str) -> None:
        super().__init__(folder, vectors, module)
        import_module("st_reba").build("mini")  # else some modules are imported when an index is opened
        import faiss  # noqa: F401
        import torch
        from sentence_transformers import SentenceTransformer
        from torch.nn import Identity

        class Ready(SentenceTransformer):  # type: ignore[misc]
            def preprocess(self, texts: Any, *args: Any, **options: Any) -> dict[str, Any]:
                return {}

            def encode_document(self, texts: Any, *args: Any, **options: Any) -> Any:
                heads = [one.partition(" ")[0] for one in texts]  # what the fingerprint asks for has no number
                found = np.asarray(vectors[[int(head) if head.isdecimal() else len(head) for head in heads]])
                return torch.from_numpy(found) if options.get("convert_to_tensor") else found

        self.model = Ready(modules=[Identity()], device="cpu", similarity_fn_name="cosine")

    def build(self, size: int) -> None:
        documents = (self.module.Document(text(number), str(number), about(number)) for number in range(size))
        self.module.Index.build(self.model, documents, self.folder / "index", factory="Flat").close()

    def open(self) -> None:
        self.index = self.module.Index.open(self.folder / "index")
        self.index._model.loaded = self.model

    def search(self, queries: Any, **where: Any) -> Any:
        return [[one.id for one in mine] for mine in self.index.search(queries, K, where=where or None)]

    def add(self, number: int) -> None:
        self.index.add([self.module.Document(text(number), str(number), about(number))])

    def delete(self, number: int) -> None:
        self.index.delete([str(number)])


class Faiss(Tool):  # IndexFlatIP
    def build(self, size: int) -> None:
        self.index = self.module.IndexFlatIP(DIM)
        self.index.add(self.vectors[:size])
        self.rows = [(str(number), text(number), about(number)) for number in range(size)]
        self.save()

    def save(self) -> None:
        self.module.write_index(self.index, str(self.folder / "vectors.faiss"))
        (self.folder / "rows.pickle").write_bytes(pickle.dumps(self.rows))

    def open(self) -> None:
        self.index = self.module.read_index(str(self.folder / "vectors.faiss"))
        self.rows = pickle.loads((self.folder / "rows.pickle").read_bytes())

    def search(self, queries: Any, **where: Any) -> Any:
        chosen = None
        if where:
            rows = np.array([row for row, one in enumerate(self.rows) if where.items() <= one[2].items()])
            chosen = self.module.SearchParameters(sel=self.module.IDSelectorArray(rows))
        return [[self.rows[row][0] for row in one] for one in self.index.search(queries, K, params=chosen)[1].tolist()]

    def add(self, number: int) -> None:
        self.index.add(self.vectors[number : number + 1])
        self.rows.append((str(number), text(number), about(number)))
        self.save()

    def delete(self, number: int) -> None:
        row = next(row for row, one in enumerate(self.rows) if one[0] == str(number))
        self.index.remove_ids(np.array([row]))
        del self.rows[row]
        self.save()


class LanceDB(Tool):  # without a vector index, so exact
    def batch(self, block: range) -> Any:
        import pyarrow as pa

        vectors = pa.FixedSizeListArray.from_arrays(pa.array(self.vectors[block.start : block.stop].ravel()), DIM)
        columns = {name: [about(one)[name] for one in block] for name in about(0)}
        columns |= {"id": list(map(str, block)), "text": list(map(text, block))}
        return pa.RecordBatch.from_pydict({**columns, "vector": vectors})

    def build(self, size: int) -> None:
        blocks = (self.batch(range(start, min(start + BLOCK, size))) for start in range(0, size, BLOCK))
        database = self.module.connect(self.folder / "lance")
        database.create_table("documents", blocks, schema=self.batch(range(1)).schema)

    def open(self) -> None:
        self.table = self.module.connect(self.folder / "lance").open_table("documents")

    def search(self, queries: Any, **where: Any) -> Any:
        asked = self.table.search(queries if len(queries) > 1 else queries[0]).distance_type("dot").limit(K)
        for name, value in where.items():
            asked = asked.where(f"{name} = '{value}'", prefilter=True)
        found: list[list[str]] = [[] for _ in queries]
        rows = asked.select(["id", "text", "lang", "year", "_distance"]).to_list()
        for row in sorted(rows, key=lambda row: row["_distance"]):
            found[row.get("query_index", 0)].append(row["id"])
        return found

    def add(self, number: int) -> None:
        self.table.add(self.batch(range(number, number + 1)))

    def delete(self, number: int) -> None:
        self.table.delete(f"id = '{number}'")


TOOLS: dict[str, tuple[type[Any], str]] = {
    "st_reba": (StReba, "st_reba.index"),
    "LanceDB": (LanceDB, "lancedb"),
}
TOOLS["FAISS + list"] = (Faiss, "faiss")


def timed(work: Callable[..., object], *values: Any, **options: Any) -> float:
    began = time.perf_counter()
    work(*values, **options)
    return time.perf_counter() - began


def work(phase: str, name: str, size: int, folder: Path) -> dict[str, Any]:
    """One phase of one tool, in a process of its own: seconds, or a list of them."""
    vectors, queries = (
        np.load(folder.parent / "vectors.npy", "r"),
        np.load(folder.parent / "queries.npy"),
    )
    tool = TOOLS[name][0](folder, vectors, TOOLS[name][1])
    if phase == "build":
        seconds, status = (
            timed(tool.build, size),
            Path("/proc/self/status").read_text(encoding="utf-8"),
        )
        return {
            "build": [seconds],
            "peak": int(status.partition("VmHWM:")[2].split()[0]) / 1024,
        }
    opened, one, repeats = (
        timed(lambda: (tool.open(), tool.search(queries[:1]))),
        queries[:1],
        REPEATS,
    )
    if phase == "open":
        return {"open": [opened]}
    if phase == "search":
        result = {"where_first": [timed(tool.search, one, lang="zh")]}
        for prefix, where in (("", {}), ("where_", {"lang": "zh"})):
            result[f"{prefix}one"] = [timed(tool.search, one, **where) for _ in range(repeats)]
            result[f"{prefix}batch"] = [timed(tool.search, queries, **where) for _ in range(repeats // 4)]
            mine = [number for number in range(size) if where.items() <= about(number).items()]
            best = str(mine[int((vectors[mine] @ one[0]).argmax())])
            assert tool.search(one, **where)[0][0] == best, f"{name} does not find {best}"
        return result
    repeats = 5 if size > 200_000 and name == "FAISS + list" else repeats  # seconds for each change
    result = {"add": [], "after_add": [], "delete": []}
    for number in range(len(vectors) - repeats - 1, len(vectors)):  # the first of each also loads code
        result["add"].append(timed(tool.add, number))
        result["after_add"].append(timed(tool.search, one))
        assert tool.search(np.asarray(vectors[number : number + 1]))[0][0] == str(number)
        result["delete"].append(timed(tool.delete, number - len(vectors) + size))
    return {row: values[1:] for row, values in result.items()}


def measure(name: str, size: int, scratch: Path) -> dict[str, Any]:
    """All phases of one tool at one size."""
    folder, result = (
        Path(tempfile.mkdtemp(dir=scratch)),
        dict[str, Any](tool=name, size=size, open=[]),
    )
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "ignore",
    }
    environment |= {"LANCE_LOG": "error", "HF_HUB_OFFLINE": "1"}
    for phase in ("build", "open", "open", "open", "search", "change"):
        command = [
            sys.executable,
            __file__,
            "--worker",
            phase,
            name,
            str(size),
            str(folder),
        ]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
        result |= {**found, "open": result["open"] + found.get("open", [])}
        result.setdefault(
            "disk",
            sum(one.stat().st_size for one in folder.rglob("*") if one.is_file()) / 2**20,
        )
    shutil.rmtree(folder)
    return result


def shown(row: str, value: Any) -> str:
    if row in ("peak", "disk", "build"):
        return f"{value[0] if row == 'build' else value:,.1f}"
    low, middle, high = np.quantile(value, (0.25, 0.5, 0.75)) * 1000
    return f"{middle:,.3g} ({low:,.3g}–{high:,.3g})"


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        phase, name, size, folder = sys.argv[2:]
        print(json.dumps(work(phase, name, int(size), Path(folder))))
        return
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
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    absent = {name for name in options.tools if not util.find_spec(TOOLS[name][1])}
    print(
        f"Left out, as not installed: {', '.join(absent) or 'none'}",
        file=sys.stderr,
    )
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        random, count = (
            np.random.default_rng(0),
            max(options.sizes) + REPEATS + 1,
        )
        for name, rows in (("vectors", count), ("queries", QUERIES)):
            array = np.lib.format.open_memmap(f"{scratch}/{name}.npy", "w+", np.float32, (rows, DIM))
            for start in range(0, rows, BLOCK):
                block = random.standard_normal((min(BLOCK, rows - start), DIM), np.float32)
                array[start : start + BLOCK] = block / np.linalg.norm(block, axis=1, keepdims=True)
        for size in options.sizes:
            results += [measure(name, size, Path(scratch)) for name in options.tools if name not in absent]
            options.json.write_text(json.dumps(results, indent=2), encoding="utf-8")
    print(" | ".join(["|", *(f"{one['tool']}, {one['size']:,}" for one in results)]) + " |")
    print("|---" + "|---:" * len(results) + "|")
    for row, title in ROWS.items():
        print(" | ".join([f"| {title}", *(shown(row, one[row]) for one in results)]) + " |")


if __name__ == "__main__":
    main()
