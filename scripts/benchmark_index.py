"""Measure st_reba.Index beside FAISS with a list, LanceDB, Chroma and Qdrant's local mode, with the same documents.

Vectors are random, of length one; texts have about 100 characters. Nothing is encoded: st_reba gets a model that hands
out the ready vectors, so all that ``Index.build`` and ``add`` do besides is in their time. Each tool and size runs in
processes of its own: one builds, some open, one searches, one changes; the files are in the system's memory, imports
are not counted. A change is on the disk when its time ends. Recall is against exact search: random vectors are hard.

    git archive 8900937 st_reba | tar -x -C OLD        # an older state of st_reba, to compare with
    python scripts/benchmark_index.py --sizes 100000 1000000 --old OLD --json results.json
    python scripts/benchmark_index.py --growth 1000 10000 100000 1000000
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

ROOT, BEFORE = Path(__file__).resolve().parent.parent, "st_reba before"
DIM, K, QUERIES, EXTRA, BLOCK, OPENED = 384, 10, 100, 200, 5000, 3
LANGS = ("en", "zh", "de", "fr", "es")
WORDS = ("harbour", "河边", "letter", "面包", "evening", "孩子", "paper", "车站", "winter", "市场", "window")
ROWS = {
    "build": "build, s", "build_peak": "peak memory of that (libraries alone), MiB", "disk": "on disk, MiB",
    "open": "open + first search, new process, ms", "one": "search, 1 query, ms", "batch": "search, 100 queries, ms",
    "where_first": "1 query, lang = zh, the first time, ms", "where_one": "1 query, lang = zh, again, ms",
    "where_batch": "100 queries, lang = zh, ms", "recall": "recall@10", "where_recall": "recall@10, lang = zh",
    "search_peak": "peak memory of searching (of it not mapped from files), MiB",
    "add": "add one, ms", "after_add": "the first search after that, ms", "delete": "delete one, ms",
}  # fmt: skip


def text(number: int) -> str:
    return f"{number} " + " ".join(WORDS[(number * 7 + place * (1 + number % 5)) % len(WORDS)] for place in range(17))


def about(number: int) -> dict[str, Any]:
    return {"lang": LANGS[number * 2654435761 % 2**32 % len(LANGS)], "year": 2000 + number % 25}


def blocks(size: int) -> list[range]:
    return [range(start, min(start + BLOCK, size)) for start in range(0, size, BLOCK)]


class Tool:
    # A document's number is its row of the vectors, and its id. A search finds a list of (id, text, metadata) a query.
    def __init__(self, folder: Path, vectors: Any, module: str) -> None:
        self.folder, self.vectors, self.module = folder, vectors, import_module(module)

    def build(self, size: int) -> None:
        self.create()
        for block in blocks(size):
            self.put(block)
        self.save()

    def add(self, number: int) -> None:
        self.put(range(number, number + 1))
        self.save()

    def save(self) -> None: ...


class StReba(Tool):  # this state or an older one
    def __init__(self, folder: Path, vectors: Any, module: str) -> None:
        super().__init__(folder, vectors, module)
        import faiss  # noqa: F401  (else loaded when an index is opened)
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

    def documents(self, block: range) -> Any:
        return (self.module.Document(text(number), str(number), about(number)) for number in block)

    def build(self, size: int) -> None:
        if hasattr(self.module.Index, "from_corpus"):  # the older one
            options: dict[str, Any] = {"batch_size": 1024}
        else:
            from st_reba.corpus import Settings

            options = {"settings": Settings(batch_tokens=2**16), "factory": "Flat"}
        self.module.Index.build(self.model, self.documents(range(size)), self.folder / "index", **options).close()

    def open(self) -> None:
        self.index = self.module.Index.open(self.folder / "index")
        self.index._model = self.model

    def search(self, queries: Any, **where: Any) -> Any:
        found = self.index.search(queries, K, **({"where": where} if where else {}))
        return [[(one.id, one.text, one.metadata) for one in mine] for mine in found]

    def put(self, block: range) -> None:
        self.index.add(list(self.documents(block)))

    def delete(self, number: int) -> None:
        self.index.delete([str(number)])


class Faiss(Tool):  # IndexFlatIP
    def create(self) -> None:
        self.index, self.rows = self.module.IndexFlatIP(DIM), []

    def put(self, block: range) -> None:
        self.index.add(self.vectors[block.start : block.stop])
        self.rows += [(str(number), text(number), about(number)) for number in block]

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
        return [[self.rows[row] for row in one] for one in self.index.search(queries, K, params=chosen)[1].tolist()]

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
        database, schema = self.module.connect(self.folder / "lance"), self.batch(range(1)).schema
        database.create_table("documents", map(self.batch, blocks(size)), schema=schema)

    def open(self) -> None:
        self.table = self.module.connect(self.folder / "lance").open_table("documents")

    def search(self, queries: Any, **where: Any) -> Any:
        asked = self.table.search(queries if len(queries) > 1 else queries[0]).distance_type("dot").limit(K)
        for name, value in where.items():
            asked = asked.where(f"{name} = '{value}'", prefilter=True)
        found: list[list[Any]] = [[] for _ in queries]
        rows = asked.select(["id", "text", "lang", "year", "_distance"]).to_list()
        for row in sorted(rows, key=lambda row: row["_distance"]):
            found[row.get("query_index", 0)].append((row["id"], row["text"], {name: row[name] for name in about(0)}))
        return found

    def put(self, block: range) -> None:
        self.table.add(self.batch(block))

    def delete(self, number: int) -> None:
        self.table.delete(f"id = '{number}'")


class Chroma(Tool):  # as it comes: an HNSW graph, approximate
    def open(self) -> None:
        client = self.module.PersistentClient(str(self.folder / "chroma"))
        options = {"configuration": {"hnsw": {"space": "ip"}}, "embedding_function": None}
        self.collection = client.get_or_create_collection("documents", **options)

    create = open

    def put(self, block: range) -> None:
        ids, texts, metadata = (list(map(each, block)) for each in (str, text, about))
        self.collection.add(ids, self.vectors[block.start : block.stop], metadatas=metadata, documents=texts)

    def search(self, queries: Any, **where: Any) -> Any:
        found = self.collection.query(query_embeddings=queries, n_results=K, where=where or None)
        parts = (found[name] for name in ("ids", "documents", "metadatas"))
        return [list(zip(*mine, strict=True)) for mine in zip(*parts, strict=True)]

    def delete(self, number: int) -> None:
        self.collection.delete(ids=[str(number)])


class Qdrant(Tool):  # no server: NumPy over all vectors, exact
    def open(self) -> None:
        self.client, self.models = self.module.QdrantClient(path=str(self.folder / "qdrant")), self.module.models
        if not self.client.collection_exists("documents"):
            self.client.create_collection("documents", self.models.VectorParams(size=DIM, distance="Dot"))

    create = open

    def put(self, block: range) -> None:
        payloads = [{"text": text(number), **about(number)} for number in block]
        vectors = self.vectors[block.start : block.stop].tolist()
        self.client.upsert("documents", self.models.Batch(ids=list(block), vectors=vectors, payloads=payloads))

    def search(self, queries: Any, **where: Any) -> Any:
        must = [self.models.FieldCondition(key=key, match={"value": value}) for key, value in where.items()]
        options = {"limit": K, "with_payload": True, "filter": self.models.Filter(must=must) if where else None}
        asked = [self.models.QueryRequest(query=query.tolist(), **options) for query in queries]
        found = self.client.query_batch_points("documents", asked)
        return [[(str(one.id), one.payload["text"], one.payload) for one in mine.points] for mine in found]

    def delete(self, number: int) -> None:
        self.client.delete("documents", self.models.PointIdsList(points=[number]))


TOOLS: dict[str, tuple[type[Any], str]] = {"st_reba": (StReba, "st_reba.index"), BEFORE: (StReba, "st_reba.index")}
TOOLS |= {"FAISS + list": (Faiss, "faiss"), "LanceDB": (LanceDB, "lancedb"), "Chroma": (Chroma, "chromadb")}
TOOLS |= {"Qdrant local": (Qdrant, "qdrant_client")}


def timed(work: Callable[..., object], *values: Any) -> float:
    began = time.perf_counter()
    work(*values)
    return time.perf_counter() - began


def memory(field: str) -> float:
    return int(Path("/proc/self/status").read_text(encoding="utf-8").partition(field)[2].split()[1]) / 1024


def work(phase: str, job: dict[str, Any]) -> dict[str, Any]:
    (kind, module), vectors, queries = TOOLS[job["tool"]], np.load(job["vectors"], "r"), np.load(job["queries"])
    tool, repeats, new = kind(Path(job["folder"]), vectors, module), job["repeats"], job["new"]
    if phase == "build":
        libraries = memory("VmHWM")
        return {"build": timed(tool.build, job["size"]), "build_peak": [memory("VmHWM"), libraries]}
    opened = {"open": timed(lambda: (tool.open(), tool.search(queries[:1])))}
    result: dict[str, Any] = {"add": [], "after_add": [], "delete": []}
    if phase == "search":
        result = searched(tool, queries, repeats, job["exact"]["all"])
        found = searched(tool, queries, repeats, job["exact"]["zh"], lang="zh")
        result |= {"where_first": found["one"].pop(0)} | {f"where_{name}": one for name, one in found.items()}
        return {**result, "search_peak": [memory("VmHWM"), memory("RssAnon")]}
    if phase == "open":
        return opened
    for number in range(new, new + repeats + 1):
        result["add"].append(timed(tool.add, number))
        result["after_add"].append(timed(tool.search, queries[:1]))
    if (nearest := tool.search(np.asarray(vectors[new : new + 1]))[0][0][0]) != str(new):
        print(f"{job['tool']}: document {new} was added, but {nearest} is found for it", file=sys.stderr)
    for number in range(1, job["size"], max(1, job["size"] // (repeats + 1)))[: repeats + 1]:
        result["delete"].append(timed(tool.delete, number))
    return {name: values[1:] for name, values in result.items()}  # the first of each also loads code


def searched(tool: Any, queries: Any, repeats: int, exact: list[list[str]], **where: Any) -> dict[str, Any]:
    one = [timed(lambda: tool.search(queries[:1], **where)) for _ in range(repeats + 1)]
    batch = [timed(lambda: tool.search(queries, **where)) for _ in range(max(3, repeats // 4))]
    found = [{identity for identity, *_ in mine} for mine in tool.search(queries, **where)]
    hits = sum(len(mine & set(best)) for mine, best in zip(found, exact, strict=True))
    return {"one": one, "batch": batch, "recall": hits / sum(map(len, exact))}


def exact(vectors: Any, queries: Any, size: int, lang: str | None = None) -> list[list[str]]:
    scores = np.concatenate([queries @ vectors[one.start : one.stop].T for one in blocks(size)], axis=1)
    scores[:, [lang not in (None, about(number)["lang"]) for number in range(size)]] = -np.inf
    return [[str(row) for row in one] for one in np.argpartition(-scores, K, axis=1)[:, :K].tolist()]


def measure(name: str, size: int, answers: Any, options: argparse.Namespace, phases: list[str]) -> dict[str, Any]:
    scratch = options.scratch
    folder, job_path, out = Path(tempfile.mkdtemp(dir=scratch)), scratch / "job.json", scratch / "out.json"
    few = size > 200_000 and name in (BEFORE, "FAISS + list", "Qdrant local")  # seconds for each change
    job = {"tool": name, "size": size, "new": options.most, "exact": answers, "repeats": 5 if few else options.repeats}
    job |= {"vectors": f"{scratch}/vectors.npy", "queries": f"{scratch}/queries.npy", "folder": str(folder)}
    job_path.write_text(json.dumps(job))
    environment = os.environ | {"PYTHONPATH": str(options.old if name == BEFORE else ROOT), "LANCE_LOG": "error"}
    environment |= {"PYTHONWARNINGS": "ignore", "ANONYMIZED_TELEMETRY": "False", "HF_HUB_OFFLINE": "1"}
    result: dict[str, Any] = {"tool": name, "size": size, "open": []}
    for phase in phases:
        command = ["timeout", str(options.limit), sys.executable, __file__, "--worker", phase, str(job_path), str(out)]
        if code := subprocess.run(command, env=environment).returncode:
            result["failed"] = f"{phase}: " + (f"over {options.limit:g} s" if code == 124 else "an error")
            break
        found = json.loads(out.read_text())
        result |= {**found, "open": result["open"] + ([found["open"]] if phase == "open" else [])}
        result.setdefault("disk", sum(one.stat().st_size for one in folder.rglob("*") if one.is_file()) / 2**20)
    shutil.rmtree(folder)
    return result


def shown(name: str, result: dict[str, Any]) -> str:
    if not (value := result.get(name)):
        return result.get("failed", "—")
    if isinstance(value, float) and name != "where_first":
        return f"{value:,.3f}" if name.endswith("recall") else f"{value:,.1f}"
    if name.endswith("_peak"):
        return f"{value[0]:,.0f} ({value[1]:,.0f})"
    low, middle, high = np.quantile(value, (0.25, 0.5, 0.75)) * 1000
    return f"{middle:,.3g} ({low:,.3g}–{high:,.3g})" if middle < 100 else f"{middle:,.0f} ({low:,.0f}–{high:,.0f})"


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        Path(sys.argv[4]).write_text(
            json.dumps(work(sys.argv[2], json.loads(Path(sys.argv[3]).read_text(encoding="utf-8")))), encoding="utf-8"
        )
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100_000, 1_000_000], help="numbers of documents")
    parser.add_argument("--growth", type=int, nargs="+", help="only changes, of st_reba alone, at these sizes")
    parser.add_argument("--tools", nargs="+", choices=list(TOOLS), default=list(TOOLS), help="which (default: all)")
    parser.add_argument("--old", type=Path, metavar="FOLDER", help="where an older state of the package st_reba is")
    parser.add_argument("--repeats", type=int, default=20, help="of what is short (default: %(default)s)")
    parser.add_argument("--limit", type=float, default=3600, help="seconds that a process may take")
    parser.add_argument("--json", type=Path, default=os.devnull, metavar="FILE", help="write every figure here")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    absent = {n for n in options.tools if not util.find_spec(TOOLS[n][1]) or (n == BEFORE and not options.old)}
    print(f"Left out, as not installed or (--old) not given: {', '.join(absent) or 'none'}", file=sys.stderr)
    sizes = options.growth or options.sizes
    tools = ["st_reba"] if options.growth else [name for name in options.tools if name not in absent]
    phases = ["build", "change"] if options.growth else ["build", *["open"] * OPENED, "search", "change"]
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        options.scratch, options.most = Path(scratch), max(sizes)
        random, create = np.random.default_rng(0), np.lib.format.open_memmap
        vectors = create(options.scratch / "vectors.npy", "w+", np.float32, (options.most + EXTRA, DIM))
        queries = create(options.scratch / "queries.npy", "w+", np.float32, (QUERIES, DIM))
        for block in (*(vectors[one.start : one.stop] for one in blocks(len(vectors))), queries):
            block[:] = random.standard_normal(block.shape, np.float32)
            block /= np.linalg.norm(block, axis=1, keepdims=True)
        for size in sizes:
            answers = {name: exact(vectors, queries, size, lang) for name, lang in (("all", None), ("zh", "zh"))}
            for name in tools:
                results.append(measure(name, size, answers, options, phases))
                print(json.dumps(results[-1]), file=sys.stderr)
                options.json.write_text(json.dumps({"absent": sorted(absent), "results": results}, indent=2))
    for some in [results] if options.growth else [[one for one in results if one["size"] == size] for size in sizes]:
        print("\n" + " | ".join(["|", *(f"{one['tool']}, {one['size']:,}" for one in some)]) + " |")
        print("|---" + "|---:" * len(some) + "|")
        for name in ("add", "after_add", "delete") if options.growth else ROWS:
            print(" | ".join([f"| {ROWS[name]}", *(shown(name, one) for one in some)]) + " |")


if __name__ == "__main__":
    main()
