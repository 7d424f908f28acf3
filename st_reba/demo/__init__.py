"""The whole job on the embedded model and the sentences shipped with it: build, save, load, index, search, compare."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer

from st_reba import build
from st_reba.index import Document, Index, read_documents

SENTENCES = Path(__file__).parent / "sentences.jsonl"
QUERIES = (
    "出国证件快到期了还能过关吗？",
    "苹果公司发布新电脑",
    "股票为什么下跌",
    "Should I chill an onion before chopping it?",
    "Will it rain tomorrow?",
)
# What is compared: the same query, base and corpus under each method, each with the pooling that suits it.
METHODS: dict[str, dict[str, Any]] = {
    "classical": {"method": "classical", "pooling": "mean"},
    "echo": {"method": "echo", "pooling": "mean"},
    "reba": {"method": "reba", "pooling": "mean"},
}


def sentences() -> list[Document]:
    """The sentences shipped with the package: 160 Chinese and 160 English ones, ten a topic."""
    return list(read_documents(SENTENCES))


def run(
    folder: Path | None = None, *, queries: tuple[str, ...] = QUERIES, k: int = 3, say: Callable[[str], None] = print
) -> dict[str, Any]:
    """Run the demo.

    Args:
        folder: Where to keep the model and the index; None: a temporary folder, removed at the end.
        queries: What to search for.
        k: Results a query.
        say: Takes each line of the report.

    Returns:
        The report: ``model``, ``documents``, ``round_trip`` (largest difference of a vector after saving and
        loading), ``results`` (per query) and ``comparison`` (per query and method).

    Raises:
        FileExistsError: The folder is not empty.
    """
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="st_reba_demo_") as temporary:
            return run(Path(temporary), queries=queries, k=k, say=say)
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"--keep {str(folder)!r} is a file. Name a new folder.")
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"--keep {str(folder)!r} is not empty. Name another folder, or empty it.")
    documents = sentences()
    texts = [document.text for document in documents]

    say("1. Build: the embedded model 'mini' as a text embedder, ReBA with two copies, no training.")
    model = build("mini", **METHODS["reba"])
    say(f"   {' → '.join(type(module).__name__ for module in model)}, {model.get_embedding_dimension()} dimensions")

    model_folder = folder / "model"
    say("2. Save it, and load it with plain SentenceTransformer(folder).")
    model.save_pretrained(str(model_folder))
    loaded = SentenceTransformer(str(model_folder))
    round_trip = float(np.abs(model.encode(texts[:32]) - loaded.encode(texts[:32])).max())
    say(f"   largest difference of a vector after the round trip: {round_trip:g}")

    say(f"3. Index {len(documents)} sentences, Chinese and English.")
    started = time.perf_counter()
    index = Index.build(loaded, documents, folder / "index", show_progress_bar=False, model_source=model_folder)
    say(f"   {len(index)} vectors in {time.perf_counter() - started:.1f} s (exact inner product, FAISS)")

    say("4. Search.")
    results = dict(zip(queries, index.search(list(queries), k), strict=True))
    for query, found in results.items():
        say(f"   {query}")
        for result in found:
            say(f"     {result.rank}. {result.score:.3f}  {result.text}")
    index.close()

    say("5. The same queries under three methods: the first result of each.")
    comparison = _compare(texts, queries)
    for query, best in comparison.items():
        say(f"   {query}")
        for method, (score, text) in best.items():
            say(f"     {method:<9}  {score:.3f}  {text}")
    return {
        "model": loaded[0].base_model,
        "documents": len(documents),
        "round_trip": round_trip,
        "results": {
            query: [{"rank": one.rank, "score": one.score, "id": one.id, "text": one.text} for one in found]
            for query, found in results.items()
        },
        "comparison": {
            query: {method: {"score": score, "text": text} for method, (score, text) in best.items()}
            for query, best in comparison.items()
        },
    }


def _compare(texts: list[str], queries: tuple[str, ...]) -> dict[str, dict[str, tuple[float, str]]]:
    """The best text and its cosine, for each query and method."""
    best: dict[str, dict[str, tuple[float, str]]] = {query: {} for query in queries}
    for name, options in METHODS.items():
        model = build("mini", **options)
        scores = model.encode_query(list(queries)) @ model.encode_document(texts).T
        for query, row in zip(queries, scores, strict=True):
            best[query][name] = (float(row.max()), texts[int(row.argmax())])
    return best


def report_as_json(report: dict[str, Any]) -> str:
    """The report as one JSON object."""
    return json.dumps(report, ensure_ascii=False, indent=2)
