"""Measure st_reba.Index beside what else one would take: FAISS with lists, LanceDB, Chroma, Qdrant's local mode.

Each tool gets the same random vectors of length one, texts of about 100 characters and metadata: it is built, opened,
searched, and one document at a time is added and deleted. Each tool and size runs in processes of its own, one after
another: one that builds, some that open and search, one that changes. Nothing is encoded: st_reba is given a model that
hands out the ready vectors, so all that ``Index.build`` and ``add`` do besides is in their time.

    python -m venv bench && bench/bin/pip install . lancedb chromadb qdrant-client
    git archive 1243e07 st_reba | tar -x -C OLD        # an older state of st_reba, to compare with
    bench/bin/python scripts/benchmark_index.py --sizes 100000 1000000 --old OLD --json results.json
    bench/bin/python scripts/benchmark_index.py --growth 1000 10000 100000 1000000

The times are those of a system that has the files in memory; imports are not in them. A change is on the disk when its
time ends: plain FAISS writes its files anew for it. Recall is against exact search; random vectors are hard for graphs.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
DIM, K, QUERIES, EXTRA, BLOCK, OPENED = 384, 10, 100, 200, 5000, 3
LANGS = ("en", "zh", "de", "fr", "es")
WORDS = ("harbour", "河边", "letter", "面包", "evening", "孩子", "paper", "车站", "winter", "市场", "window")
ROWS = {
    "build": "build, s",
    "build_peak": "peak memory of that (libraries alone), MiB",
    "disk": "on disk, MiB",
    "open": "open + first search, new process, ms",
    "one": "search, 1 query, ms",
    "batch": "search, 100 queries, ms",
    "where_first": "1 query, lang = zh, the first time, ms",
    "where_one": "1 query, lang = zh, again, ms",
    "where_batch": "100 queries, lang = zh, ms",
    "recall": "recall@10",
    "where_recall": "recall@10, lang = zh",
    "search_peak": "peak memory of searching (of it not mapped from files), MiB",
    "add": "add one, ms",
    "after_add": "the first search after that, ms",
    "delete": "delete one, ms",
}


def text(number: int) -> str:
    """About 100 characters, which begin with the number."""
    return f"{number} " + " ".join(WORDS[(number * 7 + place * (1 + number % 5)) % len(WORDS)] for place in range(17))


def about(number: int) -> dict[str, Any]:
    """The metadata of a document."""
    return {"lang": LANGS[number * 2654435761 % 2**32 % len(LANGS)], "year": 2000 + number % 25}


# The tools. A search finds, for [q, d] queries, q lists of (id, text, metadata).


class Tool:
    """What is measured; a document's number is its row of ``vectors``, and as text its id."""

    def __init__(self, folder: Path, vectors: Any, module: str) -> None:
        self.folder, self.vectors, self.module = folder, vectors, import_module(module)

    def build(self, size: int) -> None:
        self.create()
        for start in range(0, size, BLOCK):
            self.put(range(start, min(start + BLOCK, size)))
        self.save()

    def add(self, number: int) -> None:
        self.put(range(number, number + 1))
        self.save()

    def values(self, block: range) -> Any:
        return self.vectors[block.start : block.stop]

    def save(self) -> None: ...
    def create(self) -> None: ...
    def put(self, block: range) -> None: ...


class StReba(Tool):
    """st_reba.Index, of this state or of an older one."""

    def __init__(self, folder: Path, vectors: Any, module: str) -> None:
        super().__init__(folder, vectors, module)
        from sentence_transformers import SentenceTransformer
        from torch.nn import Module

        class Rows(Module):
            def preprocess(self, texts: Any, *args: Any, **options: Any) -> dict[str, Any]:
                return {}

        class Ready(SentenceTransformer):  # type: ignore[misc]
            def encode_document(self, texts: Any, *args: Any, **options: Any) -> Any:
                # What the fingerprint asks for has no number.
                heads = [one.partition(" ")[0] for one in texts]
                return np.asarray(vectors[[int(head) if head.isdecimal() else len(head) for head in heads]])

        self.model = Ready(modules=[Rows()], device="cpu", similarity_fn_name="cosine")

    def document(self, number: int) -> Any:
        return self.module.Document(text(number), str(number), about(number))

    def build(self, size: int) -> None:
        options = {"batch_size": 1024, "show_progress_bar": False}
        self.module.Index.build(self.model, map(self.document, range(size)), self.folder / "index", **options).close()

    def open(self) -> None:
        self.index = self.module.Index.open(self.folder / "index")

    def search(self, queries: Any, **where: Any) -> Any:
        found = self.index.search(queries, K, **({"where": where} if where else {}))
        return [[(one.id, one.text, one.metadata) for one in mine] for mine in found]

    def put(self, block: range) -> None:
        self.index.add(list(map(self.document, block)), model=self.model, show_progress_bar=False)

    def delete(self, number: int) -> None:
        self.index.delete([str(number)])


class Faiss(Tool):
    """IndexFlatIP beside a Python list."""

    def create(self) -> None:
        self.index, self.rows = self.module.IndexFlatIP(DIM), []

    def put(self, block: range) -> None:
        self.index.add(self.values(block))
        self.rows += [(str(number), text(number), about(number)) for number in block]

    def save(self) -> None:
        self.module.write_index(self.index, str(self.folder / "vectors.faiss"))
        (self.folder / "rows.pickle").write_bytes(pickle.dumps(self.rows))

    def open(self) -> None:
        self.index = self.module.read_index(str(self.folder / "vectors.faiss"))
        self.rows = pickle.loads((self.folder / "rows.pickle").read_bytes())

    def search(self, queries: Any, **where: Any) -> Any:
        options = {}
        if where:
            rows = np.array([row for row, one in enumerate(self.rows) if where.items() <= one[2].items()])
            options = {"params": self.module.SearchParameters(sel=self.module.IDSelectorArray(rows))}
        return [[self.rows[row] for row in one] for one in self.index.search(queries, K, **options)[1].tolist()]

    def delete(self, number: int) -> None:
        row = next(row for row, one in enumerate(self.rows) if one[0] == str(number))
        self.index.remove_ids(np.array([row]))
        del self.rows[row]
        self.save()


class LanceDB(Tool):
    """A table without an index of its vectors, so exact."""

    def batch(self, block: range) -> Any:
        import pyarrow as pa

        vectors = pa.FixedSizeListArray.from_arrays(pa.array(self.values(block).ravel()), DIM)
        columns = {name: [about(one)[name] for one in block] for name in about(0)}
        columns |= {"id": list(map(str, block)), "text": list(map(text, block))}
        return pa.RecordBatch.from_pydict({**columns, "vector": vectors})

    def build(self, size: int) -> None:
        batches = (self.batch(range(start, min(start + BLOCK, size))) for start in range(0, size, BLOCK))
        schema = self.batch(range(1)).schema
        self.module.connect(self.folder / "lance").create_table("documents", batches, schema=schema)

    def open(self) -> None:
        self.table = self.module.connect(self.folder / "lance").open_table("documents")

    def search(self, queries: Any, **where: Any) -> Any:
        asked = self.table.search(queries if len(queries) > 1 else queries[0]).distance_type("dot").limit(K)
        for name, value in where.items():
            asked = asked.where(f"{name} = '{value}'", prefilter=True)
        found: list[list[Any]] = [[] for _ in queries]
        rows = asked.select(["id", "text", "lang", "year", "_distance"]).to_list()
        for row in sorted(rows, key=lambda row: row["_distance"]):
            mine = found[row.get("query_index", 0)]
            mine.append((row["id"], row["text"], {"lang": row["lang"], "year": row["year"]}))
        return found

    def put(self, block: range) -> None:
        self.table.add(self.batch(block))

    def delete(self, number: int) -> None:
        self.table.delete(f"id = '{number}'")


class Chroma(Tool):
    """PersistentClient as it comes, with an HNSW graph, so approximate."""

    def open(self) -> None:
        client = self.module.PersistentClient(str(self.folder / "chroma"))
        options = {"configuration": {"hnsw": {"space": "ip"}}, "embedding_function": None}
        self.collection = client.get_or_create_collection("documents", **options)

    create = open

    def put(self, block: range) -> None:
        texts, metadata = list(map(text, block)), list(map(about, block))
        self.collection.add(list(map(str, block)), self.values(block), metadatas=metadata, documents=texts)

    def search(self, queries: Any, **where: Any) -> Any:
        found = self.collection.query(query_embeddings=queries, n_results=K, where=where or None)
        parts = zip(found["ids"], found["documents"], found["metadatas"], strict=True)
        return [list(zip(*mine, strict=True)) for mine in parts]

    def delete(self, number: int) -> None:
        self.collection.delete(ids=[str(number)])


class Qdrant(Tool):
    """Qdrant without a server: SQLite, and NumPy over all vectors, so exact."""

    def open(self) -> None:
        self.client, self.models = self.module.QdrantClient(path=str(self.folder / "qdrant")), self.module.models

    def create(self) -> None:
        self.open()
        self.client.create_collection("documents", self.models.VectorParams(size=DIM, distance="Dot"))

    def put(self, block: range) -> None:
        payloads = [{"text": text(number), **about(number)} for number in block]
        batch = self.models.Batch(ids=list(block), vectors=self.values(block).tolist(), payloads=payloads)
        self.client.upsert("documents", batch)

    def search(self, queries: Any, **where: Any) -> Any:
        must = [self.models.FieldCondition(key=key, match={"value": value}) for key, value in where.items()]
        options = {"limit": K, "with_payload": True, "filter": self.models.Filter(must=must) if where else None}
        asked = [self.models.QueryRequest(query=query.tolist(), **options) for query in queries]
        found = self.client.query_batch_points("documents", asked)
        return [[(str(one.id), one.payload["text"], one.payload) for one in mine.points] for mine in found]

    def delete(self, number: int) -> None:
        self.client.delete("documents", self.models.PointIdsList(points=[number]))


BEFORE = "st_reba before"
TOOLS: dict[str, tuple[type[Any], str]] = {
    "st_reba": (StReba, "st_reba.index"),
    BEFORE: (StReba, "st_reba.index"),
    "FAISS + list": (Faiss, "faiss"),
    "LanceDB": (LanceDB, "lancedb"),
    "Chroma": (Chroma, "chromadb"),
    "Qdrant local": (Qdrant, "qdrant_client"),
}


# What a process measures


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def memory(field: str) -> float:
    """MiB of this process: VmHWM, the most that was resident; RssAnon, what of it now is in no file."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / 1024


def work(phase: str, job: dict[str, Any]) -> dict[str, Any]:
    kind, module = TOOLS[job["tool"]]
    vectors, queries = np.load(job["vectors"], mmap_mode="r"), np.load(job["queries"])
    tool, repeats, new = kind(Path(job["folder"]), vectors, module), job["repeats"], job["new"]
    if phase == "build":
        libraries = memory("VmHWM")
        return {"build": timed(lambda: tool.build(job["size"])), "build_peak": [memory("VmHWM"), libraries]}
    opened = timed(lambda: (tool.open(), tool.search(queries[:1])))
    if phase == "open":
        return {"open": opened}
    if phase == "search":
        result = searched(tool, queries, repeats, job["exact"]["all"])
        if job["tool"] != BEFORE:
            found = searched(tool, queries, repeats, job["exact"]["zh"], lang="zh")
            result |= {"where_first": found["one"].pop(0)} | {f"where_{name}": one for name, one in found.items()}
        return {**result, "search_peak": [memory("VmHWM"), memory("RssAnon")]}
    result = {"add": [], "after_add": [], "delete": []}
    for number in range(new, new + repeats + 1):
        result["add"].append(timed(partial(tool.add, number)))
        result["after_add"].append(timed(lambda: tool.search(queries[:1])))
    if (nearest := tool.search(np.asarray(vectors[new : new + 1]))[0][0][0]) != str(new):
        print(f"{job['tool']}: document {new} was added, but {nearest} is found for it", file=sys.stderr)
    for number in range(1, job["size"], max(1, job["size"] // (repeats + 1)))[: repeats + 1]:
        result["delete"].append(timed(partial(tool.delete, number)))
    # The first of each also loads code.
    return {name: values[1:] for name, values in result.items()}


def searched(tool: Any, queries: Any, repeats: int, exact: list[list[str]], **where: Any) -> dict[str, Any]:
    one = [timed(lambda: tool.search(queries[:1], **where)) for _ in range(repeats + 1)]
    batch = [timed(lambda: tool.search(queries, **where)) for _ in range(max(3, repeats // 4))]
    found = [{identity for identity, *_ in mine} for mine in tool.search(queries, **where)]
    hits = sum(len(mine & set(best)) for mine, best in zip(found, exact, strict=True))
    return {"one": one, "batch": batch, "recall": hits / sum(map(len, exact))}


# All tools, one after another


def prepare(scratch: Path, size: int) -> None:
    """Vectors of the largest size and some more, and queries."""
    random = np.random.default_rng(0)
    vectors = np.lib.format.open_memmap(scratch / "vectors.npy", "w+", np.float32, (size + EXTRA, DIM))
    queries = np.lib.format.open_memmap(scratch / "queries.npy", "w+", np.float32, (QUERIES, DIM))
    for block in (*(vectors[start : start + BLOCK] for start in range(0, len(vectors), BLOCK)), queries):
        block[:] = random.standard_normal(block.shape, np.float32)
        block /= np.linalg.norm(block, axis=1, keepdims=True)


def exact(scratch: Path, size: int, lang: str | None = None) -> list[list[str]]:
    """The ids that each query must find."""
    vectors, queries = np.load(scratch / "vectors.npy", mmap_mode="r"), np.load(scratch / "queries.npy")
    scores = np.concatenate([queries @ vectors[at : min(at + BLOCK, size)].T for at in range(0, size, BLOCK)], axis=1)
    if lang is not None:
        scores[:, [about(number)["lang"] != lang for number in range(size)]] = -np.inf
    return [[str(row) for row in one] for one in np.argpartition(-scores, K, axis=1)[:, :K].tolist()]


def measure(name: str, size: int, answers: Any, options: argparse.Namespace, phases: list[str]) -> dict[str, Any]:
    """All of one tool at one size."""
    scratch = options.scratch
    folder, job_path, out = scratch / "tool", scratch / "job.json", scratch / "out.json"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    # What takes seconds each time is repeated less.
    repeats = 5 if size > 200_000 and name in (BEFORE, "FAISS + list", "Qdrant local") else options.repeats
    job = {"tool": name, "size": size, "new": options.most, "repeats": repeats, "exact": answers}
    job |= {"vectors": f"{scratch}/vectors.npy", "queries": f"{scratch}/queries.npy", "folder": str(folder)}
    job_path.write_text(json.dumps(job))
    environment = os.environ | {"PYTHONPATH": str(options.old if name == BEFORE else ROOT), "LANCE_LOG": "error"}
    environment |= {"ANONYMIZED_TELEMETRY": "False", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    result: dict[str, Any] = {"tool": name, "size": size, "open": []}
    for phase in phases:
        command = [sys.executable, __file__, "--worker", phase, str(job_path), str(out)]
        try:
            subprocess.run(command, env=environment, check=True, timeout=options.limit)
        except subprocess.SubprocessError as error:
            over = isinstance(error, subprocess.TimeoutExpired)
            result["failed"] = f"{phase}: " + (f"over {options.limit:g} s" if over else "an error")
            break
        found = json.loads(out.read_text())
        result |= {**found, "open": result["open"] + ([found["open"]] if phase == "open" else [])}
        if phase == "build":
            result["disk"] = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 2**20
    shutil.rmtree(folder)
    return result


def shown(name: str, result: dict[str, Any]) -> str:
    """A cell of the table."""
    value = result.get(name)
    if name.endswith("_peak") and value:
        return f"{value[0]:,.0f} ({value[1]:,.0f})"
    if not value:
        return result.get("failed", "—")
    if name.endswith("recall"):
        return f"{value:.3f}"
    number = value if name in ("build", "disk") else 1000 * statistics.median(np.atleast_1d(value).tolist())
    return f"{number:,.{2 if number < 10 else 1 if number < 100 else 0}f}"


def table(results: list[dict[str, Any]]) -> str:
    """The results of one size."""
    lines = [f"{results[0]['size']:,} vectors | " + " | ".join(one["tool"] for one in results)]
    lines += ["|".join(["---", *["---:"] * len(results)])]
    lines += [" | ".join([label, *(shown(name, one) for one in results)]) for name, label in ROWS.items()]
    return "\n".join(f"| {line} |" for line in lines)


def grown(results: list[dict[str, Any]]) -> str:
    """Changes at several sizes: the median, and the quarters beside it."""
    names = ("add", "delete", "after_add")
    lines = ["vectors | " + " | ".join(ROWS[name] for name in names), "---:|---:|---:|---:"]
    for one in results:
        quarters = [np.quantile(one[name], (0.25, 0.5, 0.75)) * 1000 for name in names]
        cells = [f"{middle:.2f} ({low:.2f} to {high:.2f})" for low, middle, high in quarters]
        lines.append(f"{one['size']:,} | {' | '.join(cells)}")
    return "\n".join(f"| {line} |" for line in lines)


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        warnings.filterwarnings("ignore")
        Path(sys.argv[4]).write_text(json.dumps(work(sys.argv[2], json.loads(Path(sys.argv[3]).read_text()))))
        return
    options = _options()
    sys.path.insert(0, str(ROOT))
    absent = {n for n in options.tools if not find_spec(TOOLS[n][1]) or (n == BEFORE and not options.old)}
    if absent:
        print(f"Left out, as not installed or (with --old) not given: {', '.join(absent)}", file=sys.stderr)
    sizes = options.growth or options.sizes
    tools = ["st_reba"] if options.growth else [name for name in options.tools if name not in absent]
    phases = ["build", "change"] if options.growth else ["build", *["open"] * OPENED, "search", "change"]
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        options.scratch, options.most = Path(scratch), max(sizes)
        prepare(options.scratch, options.most)
        for size in sizes:
            answers = {"all": exact(options.scratch, size), "zh": exact(options.scratch, size, "zh")}
            for name in tools:
                results.append(measure(name, size, answers, options, phases))
                print(json.dumps(results[-1]), file=sys.stderr)
                if options.json:
                    options.json.write_text(json.dumps({"absent": sorted(absent), "results": results}, indent=2))
    by_size = [[one for one in results if one["size"] == size] for size in sizes]
    print(grown(results) if options.growth else "\n\n".join(map(table, by_size)))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100_000, 1_000_000], help="numbers of documents")
    parser.add_argument("--growth", type=int, nargs="+", help="only changes, of st_reba alone, at these sizes")
    parser.add_argument("--tools", nargs="+", choices=list(TOOLS), default=list(TOOLS), help="which (default: all)")
    parser.add_argument("--old", type=Path, metavar="FOLDER", help="where an older state of the package st_reba is")
    parser.add_argument("--repeats", type=int, default=20, help="of what is short (default: %(default)s)")
    parser.add_argument("--limit", type=float, default=3600, help="seconds that a process may take")
    parser.add_argument("--scratch", type=Path, help="where to write (default: the system's temporary folder)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure here")
    return parser.parse_args()


if __name__ == "__main__":
    main()
