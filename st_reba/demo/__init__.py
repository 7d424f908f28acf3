"""The whole job on the embedded model and the sentences shipped with it: build, save, load, index, search, compare."""

from __future__ import annotations

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
# What is compared.
METHODS = ("classical", "echo", "reba")


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
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        taken = "not empty" if folder.is_dir() else "a file"
        raise FileExistsError(f"--keep {str(folder)!r} is {taken}. Name a new folder.")
    documents = sentences()
    texts = [document.text for document in documents]

    say("1. Build: the embedded model 'mini' as a text embedder, ReBA with two copies, no training.")
    model = build("mini", "reba", pooling="mean")
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
    results: dict[str, list[dict[str, Any]]] = {}
    for query, found in zip(queries, index.search(list(queries), k), strict=True):
        say(f"   {query}")
        results[query] = [{"rank": one.rank, "score": one.score, "id": one.id, "text": one.text} for one in found]
        for one in found:
            say(f"     {one.rank}. {one.score:.3f}  {one.text}")
    index.close()

    say("5. The same queries under three methods: the first result of each.")
    comparison: dict[str, dict[str, dict[str, Any]]] = {query: {} for query in queries}
    for method in METHODS:
        model = build("mini", method, pooling="mean")
        scores = model.encode_query(list(queries)) @ model.encode_document(texts).T
        for query, row in zip(queries, scores, strict=True):
            comparison[query][method] = {"score": float(row.max()), "text": texts[int(row.argmax())]}
    for query, best in comparison.items():
        say(f"   {query}")
        for method, first in best.items():
            say(f"     {method:<9}  {first['score']:.3f}  {first['text']}")
    return {
        "model": loaded[0].base_model,
        "documents": len(documents),
        "round_trip": round_trip,
        "results": results,
        "comparison": comparison,
    }
