"""Is a table of tokens better when each token's vector is its mean in context, as a method gives it?

    python scripts/static_tables.py DATA

A text's vector is the mean of its tokens' rows. Every table of mini gets the same weights (SIF: a / (a + frequency))
and the same filter (whitening), fitted on 5,000 unlabelled texts of the files in SOURCES, none of which is scored. A
token that these texts lack has its vector alone, moved by the mean difference of in context and alone; that also counts
as RARE occurrences of every other token. Prints a Markdown table. Two of its rows need the package model2vec.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from tqdm.auto import tqdm

import st_reba
from st_reba.evaluation import read_task
from st_reba.filters import PostFilter

Array = NDArray[np.float64]
SIF, RARE = 1e-3, 3
PACKAGE = Path(st_reba.__file__).parent
LABELS = {"entailment": 1, "contradiction": 0, "neutral": 0}
# A file of texts, how it is read, and its share of the draw: half are Chinese, half English.
SOURCES: tuple[tuple[str, dict[str, Any], float], ...] = (
    ("sts/cnsd-sts-dev.txt", {}, 1 / 8),
    ("sts/afqmc-dev.jsonl", {}, 1 / 8),
    ("pairs/ocnli-dev.jsonl", {"kind": "PairClassification", "labels": LABELS}, 1 / 8),
    ("classification/tnews/train_few_all.json", {}, 1 / 8),
    ("sts/sts-dev.csv", {}, 1 / 4),
    ("clustering/{}_StackOverflow.txt", {"kind": "Clustering"}, 1 / 4),
)
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "ReBA-2 mean": ("mini", {"method": "reba", "pooling": "mean"}),
    "Echo-2 mean": ("mini", {"method": "echo", "pooling": "mean"}),
    "MASK0-BIDIR mean, k = 4": ("mini", {"method": "nosink", "setting": "mask0-bidir", "k": 4}),
    "`mini-quality`": (str(PACKAGE / "zoo/recipes/mini-quality.yaml"), {}),
}


def sample(data: Path, count: int, seed: int, scored: set[str]) -> list[str]:
    texts: list[str] = []
    for name, options, share in SOURCES:
        parts = {"text": data / name.format("title"), "label": data / name.format("label")}
        found = read_task(parts if "{}" in name else data / name, **options).items.texts
        texts += Random(seed).sample(sorted(set(found) - scored), round(count * share))
    return texts


def summed(model: SentenceTransformer, texts: Sequence[str], what: str) -> tuple[Array, Array]:
    """By token: the sum of its vectors (e_i of ReBA, else the hidden state in the last copy), and their number."""
    transformer: Any = model[0]
    total = np.zeros((len(model.tokenizer), transformer.get_embedding_dimension()))
    number = np.zeros(len(total))
    ordered = sorted(texts, key=len)
    for start in tqdm(range(0, len(ordered), 64), desc=what):
        batch = ordered[start : start + 64]
        with torch.inference_mode():
            features = transformer(transformer.preprocess(batch))
            chosen = features["copy_ids"] == transformer.repeats
            if isinstance(model[1], st_reba.ReBAPooling):
                features = model[1](features)
                chosen = features["attention_mask"].bool()
            vectors = features["token_embeddings"][chosen].double().numpy()
        ids = np.concatenate(transformer.content(batch)["input_ids"]).astype(int)
        np.add.at(total, ids, vectors)
        np.add.at(number, ids, 1)
    return total, number


def in_context(model: SentenceTransformer, texts: Sequence[str], what: str) -> Array:
    words = [model.tokenizer.decode([token]) for token in range(len(model.tokenizer))]
    alone, single = summed(model, [word for word in words if word.strip()], f"{what}, tokens alone")
    total, number = summed(model, texts, f"{what}, in context")
    alone[single == 0] = alone.sum(axis=0) / single.sum()
    alone /= np.maximum(single, 1)[:, None]
    seen = number > 0
    alone += (total[seen] / number[seen, None] - alone[seen]).mean(axis=0)
    return np.asarray((total + RARE * alone) / (number + RARE)[:, None])


def distilled(known: dict[str, int]) -> tuple[Array, Any]:
    """model2vec's vectors of mini's tokens, in mini's order; and its model as it comes."""
    from model2vec.distill import distill

    bare = distill(str(PACKAGE / "mini"), quantize_to="float32", sif_coefficient=None, pca_dims=None)
    places = bare.tokenizer.get_vocab()
    table = np.zeros((len(known), bare.embedding.shape[1]))
    for token in known.keys() & places.keys():
        table[known[token]] = bare.embedding[places[token]]
    return table, distill(str(PACKAGE / "mini"), quantize_to="float32")


def bags(table: Array, ids: Sequence[Sequence[int]]) -> Array:
    return np.stack([table[list(each)].sum(axis=0) / max(len(each), 1) for each in ids])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, metavar="DATA", help="a folder with the files of SOURCES and of the sets")
    parser.add_argument("--texts", type=int, default=5000, help="how many to draw (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (default: %(default)s)")
    options = parser.parse_args()
    data, topics = options.data, options.data / "classification/tnews"
    tasks = [
        read_task(data / "sts/cnsd-sts-test.txt", name="STS-B-zh"),
        read_task(data / "sts/sts-test.csv", name="STSBenchmark"),
        read_task(topics / "test_public.json", train=topics / "train_few_all.json", name="TNEWS"),
        read_task(data / "ranking/qbqtc-dev.json", "Reranking", name="QBQTC-reranking"),
    ]
    texts = sample(data, options.texts, options.seed, {text for task in tasks for text in task.items.texts})
    plain = st_reba.build("mini", "classical", pooling="mean")
    transformer: Any = plain[0]
    ids, *asked = (transformer.content(each)["input_ids"] for each in [texts, *(list(t.whole.texts) for t in tasks)])
    counts = np.bincount(np.concatenate(ids), minlength=len(plain.tokenizer))
    weights = (SIF / (SIF + counts / counts.sum()))[:, None]

    def scores(vectors: Sequence[Any]) -> list[float]:
        found = []
        for task, each in zip(tasks, vectors, strict=True):
            evidence = task.evidence(each / np.linalg.norm(each, axis=1, keepdims=True))
            found.append(float(task.whole.metrics[task.whole.main](evidence)))
        return [*found, float(np.mean(found))]

    def of_table(table: Array) -> list[float]:
        fitted = PostFilter.fit(bags(table * weights, ids), "whiten")
        return scores([fitted.apply(bags(table * weights, each)) for each in asked])

    def of_model(model: Any) -> list[float]:
        return scores([model.encode(list(task.whole.texts)).astype(float) for task in tasks])

    embeddings = transformer.model.get_input_embeddings().weight.detach().double().numpy()
    rows: list[tuple[str, list[float], str]] = [("the base's input embedding", of_table(embeddings), "")]
    if find_spec("model2vec"):
        table, whole = distilled(plain.tokenizer.get_vocab())
        rows.append(("alone, by model2vec", of_table(table), ""))
        rows.append(("alone, model2vec as it comes (its own weights, PCA)", of_model(whole), ""))
    else:
        print("model2vec is not installed, so its two rows are left out.", file=sys.stderr)
    for name, (base, given) in METHODS.items():
        model = st_reba.build(base, device="cpu", dtype="float32", **given)
        rows.append((f"in context, {name}", of_table(in_context(model, texts, name)), f"{of_model(model)[-1]:.3f}"))
    print(f"| a token's vector | {' | '.join(task.name for task in tasks)} | average | the model itself |")
    print(f"|---|{'--:|' * (len(tasks) + 2)}")
    best = np.round([found for _, found, _ in rows], 3).max(axis=0)
    for name, found, itself in rows:
        cells = (f"**{x:.3f}**" if round(x, 3) == most else f"{x:.3f}" for x, most in zip(found, best, strict=True))
        print(f"| {name} | {' | '.join(cells)} | {itself} |")


if __name__ == "__main__":
    main()
