"""Bases, the methods that are compared on them, and a cache of their vectors."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sentence_transformers import SentenceTransformer

from st_reba.evaluation import Task, read_task
from st_reba.evaluation.encoding import compute_evidence
from st_reba.evaluation.readouts import encode_methods, group_by_pass, load_base
from st_reba.evaluation.tried_methods import PAPERS as PAPERS
from st_reba.evaluation.vectors import Vectors
from st_reba.methods import Method
from st_reba.safety import load

Methods = dict[str, str]
"""The short form of each method, by its label in a table."""
# PromptEOL's other readings, and inner layers; {half}, {two_thirds}: of their number.
READINGS = {
    "PromptEOL with an example": "prompteol:template=prompteol-example",
    "PromptEOL, attention outputs": "prompteol:read=attention",
    "PromptEOL, both word orders": "prompteol:template=reverseol",
    "both word orders, attention outputs": "prompteol:template=reverseol,read=attention",
    "both word orders with an example, attention outputs": "prompteol:template=reverseol-example,read=attention",
    "three questions, attention outputs": "prompteol:template=three-questions,read=attention",
    "another wording": "prompteol:template=prompteol-says",
    "another wording, attention outputs": "prompteol:template=prompteol-says,read=attention",
    "another wording, both word orders": "prompteol:template=reverseol-says",
    "another wording, both word orders, attention outputs": "prompteol:template=reverseol-says,read=attention",
    "in a word, attention outputs": "prompteol:template=prompteol-word,read=attention",
    "in a word, one example, attention outputs": "prompteol:template=prompteol-word-1,read=attention",
    "in a word, four examples": "prompteol:template=prompteol-word-4",
    "in a word, four examples, attention outputs (the default)": "prompteol:template=prompteol-word-4,read=attention",
    "in a word, eight examples, attention outputs": "prompteol:template=prompteol-word-8,read=attention",
    "in a word, four examples, both word orders, attention outputs": (
        "prompteol:template=reverseol-word-4,read=attention"
    ),
    "PromptEOL, layer {two_thirds}": "prompteol:layer={two_thirds}",
    "classical, mean, layer {half}": "classical:pooling=mean,layer={half}",
    "Echo-2, mean, layer {half}": "echo:pooling=mean,layer={half}",
    "Echo-2, mean, layer {two_thirds}": "echo:pooling=mean,layer={two_thirds}",
}
# The reading of a model that is not a base.
ITSELF = "itself"
# Texts that are encoded before the cache is written.
CACHED_TEXTS = 1000
# Pairs that choose NoSink's k.
SELECTION_PAIRS = 300
# Of bases whose sequences may be longer.
MAX_POSITIONS = 4096


class Base:
    """A base, or a sentence-transformers model (method ``"itself"``, no loading), and a cache of its vectors."""

    def __init__(
        self,
        name: str,
        folder: str,
        cache: Path,
        **loading_options: Any,
    ) -> None:
        self.name = name
        self.folder = folder
        self.loading_options = loading_options
        cache_name = "-".join(
            [
                name,
                *map(str, loading_options.values()),
            ]
        )
        self.cache = cache / cache_name
        self.cache.mkdir(parents=True, exist_ok=True)

    @cached_property
    def model(self) -> SentenceTransformer:
        """The base or model, loaded."""
        if not self.loading_options:
            return load(self.folder)
        max_length = min(MAX_POSITIONS, self.config["max_position_embeddings"])
        return load_base(self.folder, max_seq_length=max_length, **self.loading_options)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The base's config.json."""
        text = Path(self.folder, "config.json").read_text(encoding="utf-8")
        config: dict[str, Any] = json.loads(text)
        return config

    @property
    def depth(self) -> int:
        """Number of layers L."""
        return int(self.config["num_hidden_layers"])

    def vectors(
        self,
        methods: Iterable[str],
        texts: Sequence[str],
    ) -> dict[str, Vectors]:
        """Vectors [N, d] of texts by each method; methods with the same input share the passes that are missing."""
        batches_by_method: dict[str, list[Vectors]] = {}
        for method_group in self._group_methods(list(methods)):
            for start in range(0, len(texts), CACHED_TEXTS):
                batch = list(texts[start : start + CACHED_TEXTS])
                for method, rows in self._encode_batch(method_group, batch).items():
                    batches_by_method.setdefault(method, []).append(rows)
        return {method: np.concatenate(batches) for method, batches in batches_by_method.items()}

    def _group_methods(self, methods: list[str]) -> list[list[str]]:
        """The methods of each pass."""
        if ITSELF in methods:
            return [[ITSELF]]
        name_of_method = {Method.parse(name): name for name in methods}
        groups: list[list[str]] = []
        for method_group in group_by_pass(list(name_of_method), self.depth).values():
            groups.append([name_of_method[method] for method in method_group])
        return groups

    def _encode_batch(self, methods: list[str], texts: list[str]) -> dict[str, Vectors]:
        """Vectors of methods that share a pass, from the cache if all are there."""
        files: dict[str, Path] = {}
        for method in methods:
            key = hashlib.sha256(repr([method, *texts]).encode()).hexdigest()[:24]
            files[method] = self.cache / f"{key}.npy"
        if not all(file.exists() for file in files.values()):
            print(f"{self.name} {methods}: {len(texts)} texts", file=sys.stderr, flush=True)
            for method, rows in self._run(methods, texts).items():
                np.save(files[method], rows)
        return {method: np.load(file) for method, file in files.items()}

    def _run(self, methods: list[str], texts: list[str]) -> dict[str, Vectors]:
        if methods == [ITSELF]:
            return {ITSELF: self.model.encode(texts, normalize_embeddings=True)}
        parsed_methods = list(map(Method.parse, methods))
        method_vectors = encode_methods(self.model, parsed_methods, texts, check=False)
        return dict(zip(methods, method_vectors.values(), strict=True))

    def scores(self, methods: Mapping[Any, str], scored_task: Task) -> dict[Any, float]:
        """The task's main score × 100 of each labelled method."""
        method_vectors = self.vectors(
            dict.fromkeys(methods.values()),
            scored_task.texts,
        )
        return {
            row_label: score_vectors(scored_task, method_vectors[method])
            for row_label, method in methods.items()
        }

    def table(
        self,
        methods: Mapping[Any, str],
        all_tasks: Iterable[Task],
    ) -> pd.DataFrame:
        """The scores of labelled methods, a column a task."""
        return pd.DataFrame(
            {scored_task.name: self.scores(methods, scored_task) for scored_task in all_tasks}
        )

    @property
    def layer_counts(self) -> list[int]:
        """The numbers of converted layers that are tried."""
        step = -(-self.depth // 10)
        return sorted(
            {
                1,
                2,
                self.depth,
                *range(step, self.depth, step),
            }
        )

    def best_nosink(
        self,
        data_folder: Path,
        is_skipped: Callable[[str], object],
    ) -> int:
        """NoSink's k that is best on labelled pairs; where it is skipped, any."""
        methods = {layer_count: nosink_method(layer_count) for layer_count in self.layer_counts}
        if is_skipped(methods[1]):
            return 1
        scores = self.scores(methods, read_stsb(data_folder, "dev", SELECTION_PAIRS))
        best_count: int = max(
            scores,
            key=lambda layer_count: (round(scores[layer_count], 4), -layer_count),
        )
        return best_count

    def all_methods(self, data_folder: Path, skipped_pattern: str | None) -> Methods:
        """PAPERS, NoSink with the k that is best on labelled pairs, and READINGS, without those that are skipped."""
        if not self.loading_options:
            return {self.name: ITSELF}
        is_skipped = re.compile(skipped_pattern or "(?!)").search
        layer_count = self.best_nosink(data_folder, is_skipped)
        layers = {
            "half": self.depth // 2,
            "two_thirds": 2 * self.depth // 3,
        }
        methods = {**PAPERS, nosink_label(layer_count): nosink_method(layer_count)}
        for row_label, method in READINGS.items():
            methods[row_label.format(**layers)] = method.format(**layers)
        return {
            row_label: method for row_label, method in methods.items() if not is_skipped(method)
        }


def nosink_method(layer_count: int) -> str:
    """MASK0-BIDIR in the upper layers."""
    return f"nosink:setting=mask0-bidir,k={layer_count}"


def nosink_label(layer_count: int) -> str:
    """Its label in tables."""
    return f"NoSink: MASK0-BIDIR, k = {layer_count}, mean"


def score_vectors(scored_task: Task, method_vectors: Vectors) -> float:
    """A task's main score, times 100."""
    kind = scored_task.task_kind
    main_metric = kind.metrics[kind.main_metric]
    return 100 * main_metric(compute_evidence(scored_task, method_vectors, scored_task.name))


def read_stsb(
    data_folder: Path,
    split: str,
    limit: int | None = None,
) -> Task:
    """STSBenchmark's dev or test part."""
    return read_task(data_folder / "sts" / f"sts-{split}.csv", name="STS-B", limit=limit)
