"""What a bound on the gain of whitening costs, and whether vectors still depend on their texts alone.

    python scripts/filter_gain.py DATA

Ten pipelines are whitened on two samples each: 4,000 sentences, and 900 to 1,000 short ones that are much alike. For
each bound: Spearman correlation on STS pairs (dev and test), the mean over all twenty, and the largest difference of a
text's vector alone and in batches of others.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer

import st_reba
from st_reba import filters
from st_reba.filters import PostFilter

BOUNDS = (float("inf"), 1000.0, 500.0, 300.0, 200.0, 100.0, 50.0, 30.0)
SIZES = (3, 8, 32, 100)
READ_1, READ_2 = [st_reba.ReadLayers(1)], [st_reba.ReadLayers(2)]
PIPELINES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "classical, mean": ("mini", "classical", {"pooling": "mean"}),
    "classical, last": ("mini", "classical", {}),
    "layer 1, last": ("mini", "classical", {"stages": READ_1}),
    "layer 1, mean": ("mini", "classical", {"pooling": "mean", "stages": READ_1}),
    "layers 0 and 1": (
        "mini",
        "classical",
        {"pooling": "mean", "stages": [st_reba.ReadLayers([0, 1], join="concat")]},
    ),
    "ReBA, mean": ("mini", "reba", {"pooling": "mean"}),
    "MASK0-BIDIR": ("mini", "nosink", {"setting": "mask0-bidir", "k": 4}),
    "260K, mean": ("models/stories260K", "classical", {"pooling": "mean"}),
    "260K, layer 1, last": ("models/stories260K", "classical", {"stages": READ_1}),
    "260K, layer 2, mean": ("models/stories260K", "classical", {"pooling": "mean", "stages": READ_2}),
}
Vectors = NDArray[np.float32]


def pairs(data: Path, part: str, chinese: bool) -> tuple[list[str], list[str], list[float]]:
    file, mark, first = (f"cnsd-sts-{part}.txt", "||", 1) if chinese else (f"sts-{part}.csv", "\t", 5)
    rows = [line.split(mark) for line in (data / "sts" / file).read_text(encoding="utf-8").splitlines()]
    scores = [float(row[3 if chinese else 4]) for row in rows]
    return [row[first] for row in rows], [row[first + 1] for row in rows], scores


def samples(data: Path, chinese: bool) -> tuple[list[str], list[str]]:
    """Sentences that are not among the pairs, and combinations of few words."""
    if chinese:
        files = ("sts/afqmc-dev.jsonl", "pairs/ocnli-dev.jsonl")
        rows = [json.loads(line) for file in files for line in (data / file).read_text(encoding="utf-8").splitlines()]
        found = sorted({row[key] for row in rows for key in ("sentence1", "sentence2")})
        names = "Ann|王芳|Tom|the old man|my neighbour|一个孩子|nobody|李老师|we|他"
        deeds, things = (
            "sells|likes|买了|忘记了|saw|画|breaks|吃|reads|想要",
            "rice|two boats|苹果|the rain|a letter|电影|old maps|红色的花|salt",
        )
    else:
        titles = (data / "clustering/title_StackOverflow.txt").read_text(encoding="utf-8").split("\n")
        news = (data / "ner/train.txt").read_text(encoding="utf-8").split("\n\n")
        found = [" ".join(line.split()[0] for line in each.splitlines()) for each in news if each.count("\n") > 3]
        found = Random(0).sample(found, 2500) + Random(0).sample(titles, 1500)
        names = "Ann|Tom|the old man|my neighbour|nobody|we|Ben|Lily|a dog|the cat"
        deeds = "sells|likes|saw|breaks|reads|takes|wants|found|lost|made"
        things = "rice|two boats|the rain|a letter|old maps|salt|a ball|the tree|some cake"
    short = [" ".join(words) for words in itertools.product(names.split("|"), deeds.split("|"), things.split("|"))]
    return Random(0).sample(found, 4000), short


def filtered(fitted: PostFilter, vectors: Vectors, size: int) -> Vectors:
    """As the module behind the pooling computes it, some rows at a time."""
    dense = fitted.dense()
    parts = []
    with torch.inference_mode():
        for start in range(0, len(vectors), size):
            given = {"sentence_embedding": torch.from_numpy(vectors[start : start + size])}
            parts.append(torch.nn.functional.normalize(dense(given)["sentence_embedding"], dim=-1).numpy())
    return np.concatenate(parts)


def batched(model: SentenceTransformer, texts: Sequence[str], size: int) -> Vectors:
    """Each text among others, drawn anew for each size."""
    order = Random(size).sample(range(len(texts)), len(texts))
    vectors = np.zeros((len(texts), model.get_embedding_dimension() or 0), dtype=np.float32)
    for start in range(0, len(order), size):
        rows = order[start : start + size]
        vectors[rows] = model.encode([texts[row] for row in rows], batch_size=size)
    return vectors


def measured(model: SentenceTransformer, data: Path, chinese: bool) -> dict[tuple[int, float], tuple[float, ...]]:
    """By sample and bound: correlation on dev and on test, and the largest difference."""
    parts = {part: pairs(data, part, chinese) for part in ("dev", "test")}
    given = {part: (model.encode(first), model.encode(second)) for part, (first, second, _) in parts.items()}
    both = samples(data, chinese)
    some = Random(1).sample(parts["test"][0], 190)
    texts = some[:120] + both[1][::23] + [" ".join(some[at : at + 1 + at % 9]) for at in range(130, 180)]
    alone = np.stack([model.encode(text) for text in texts])
    among = {size: batched(model, texts, size) for size in SIZES}
    found: dict[tuple[int, float], tuple[float, ...]] = {}
    for place, sample in enumerate(both):
        vectors = model.encode(sample).astype(np.float64)
        spread = np.linalg.svd(vectors - vectors.mean(axis=0), compute_uv=False)
        for bound in BOUNDS:
            filters.MOST_GAIN = bound
            fitted = PostFilter.fit(vectors, "whiten", dimensions=int((spread > 1.01e-4 * spread[0]).sum()))
            scores = []
            for part, (first, second) in given.items():
                one, two = (filtered(fitted, each, 1000).astype(np.float64) for each in (first, second))
                scores.append(float(spearmanr((one * two).sum(axis=1), parts[part][2])[0]))
            still = filtered(fitted, alone, 1)
            apart = max(float(np.abs(filtered(fitted, among[size], size) - still).max()) for size in SIZES)
            found[place, bound] = (*scores, apart)
    return found


def main() -> None:
    data = Path(sys.argv[1])
    torch.set_num_threads(1)
    rows: list[dict[tuple[int, float], tuple[float, ...]]] = []
    for name, (base, method, options) in PIPELINES.items():
        path = base if base == "mini" else str(data / base)
        model = st_reba.build(path, method, device="cpu", dtype="float32", **options)
        rows.append(measured(model, data, base == "mini"))
        print(name, file=sys.stderr, flush=True)
    print("| gain at most | dev | test | largest difference | over 1e-5 |\n|--:|--:|--:|--:|--:|")
    for bound in BOUNDS:
        each = np.array([values for row in rows for (_, at), values in row.items() if at == bound])
        dev, test, apart = each[:, 0].mean(), each[:, 1].mean(), each[:, 2]
        name = "no bound" if np.isinf(bound) else f"{bound:g}"
        print(f"| {name} | {dev:.4f} | {test:.4f} | {apart.max():.1e} | {(apart > 1e-5).sum()} of {len(apart)} |")


if __name__ == "__main__":
    main()
