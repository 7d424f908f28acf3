"""The tables of docs/results on public sets, a page a run.

    python scripts/results/results.py PAGE DATA smollm2=FOLDER gemma3=FOLDER --trained MINILM

PAGE is sentences-en, sentences-zh, captions, chunk, nosink, quantized or words. DATA is a folder of public sets
(docs/results/sentences-en.md lists them), FOLDER a base. Vectors are cached. A table goes into its page, between
``<!-- NAME -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import argparse
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

from st_reba.encode import computed_positions
from st_reba.evaluation import Task, compare, read_task
from st_reba.evaluation.attention import attention_maps, sink_table
from st_reba.evaluation.encoding import compute_evidence
from st_reba.evaluation.readouts import build_on, encode_methods, group_by_pass, load_base
from st_reba.evaluation.tables import read_frame
from st_reba.evaluation.vectors import Vectors, normalize_rows
from st_reba.filters import Filter
from st_reba.methods import Method
from st_reba.safety import load

PAGES = Path(__file__).parents[2] / "docs" / "results"
Methods = dict[str, str]
"""The short form of each method, by its label in a table."""
# The papers' methods at their published settings; NoSink's k is chosen by labels, in `Base.best_nosink`.
PAPERS = {
    "classical, last": "classical",
    "classical, mean": "classical:pooling=mean",
    "PromptEOL": "prompteol",
    "Echo-2, last": "echo",
    "Echo-2, mean": "echo:pooling=mean",
    "ReBA-2, last": "reba",
    "ReBA-2, mean": "reba:pooling=mean",
}
# PromptEOL's other readings, and inner layers; {half}, {two_thirds}: of their number.
READINGS = {
    "PromptEOL with an example": "prompteol:template=prompteol-example",
    "PromptEOL, attention outputs": "prompteol:read=attention",
    "PromptEOL, both word orders": "prompteol:template=reverseol",
    "both word orders, attention outputs": "prompteol:template=reverseol,read=attention",
    "the same with an example": "prompteol:template=reverseol-example,read=attention",
    "three questions, attention outputs": "prompteol:template=three-questions,read=attention",
    "another wording": "prompteol:template=prompteol-says",
    "another wording, attention outputs": "prompteol:template=prompteol-says,read=attention",
    "another wording, both word orders": "prompteol:template=reverseol-says",
    "another wording, both word orders, attention outputs": "prompteol:template=reverseol-says,read=attention",
    "a topic, attention outputs": "prompteol:template=prompteol-topic,read=attention",
    "a topic, one example, attention outputs": "prompteol:template=prompteol-topic-1,read=attention",
    "a topic, four examples": "prompteol:template=prompteol-topic-4",
    "a topic, four examples, attention outputs (the default)": "prompteol:template=prompteol-topic-4,read=attention",
    "a topic, eight examples, attention outputs": "prompteol:template=prompteol-topic-8,read=attention",
    "a topic, four examples, both word orders, attention outputs": (
        "prompteol:template=reverseol-topic-4,read=attention"
    ),
    "PromptEOL, layer {two_thirds}": "prompteol:layer={two_thirds}",
    "classical, mean, layer {half}": "classical:pooling=mean,layer={half}",
    "Echo-2, mean, layer {half}": "echo:pooling=mean,layer={half}",
    "Echo-2, mean, layer {two_thirds}": "echo:pooling=mean,layer={two_thirds}",
}
# The reading of a model that is no base.
ITSELF = "itself"
# Texts that are encoded before the cache is written.
CACHED_TEXTS = 1000
# Texts that a filter is fitted on.
FILTER_TEXTS = 1000
# Pairs that choose NoSink's k.
CHOOSING_PAIRS = 300
# Of bases whose sequences may be longer.
MAX_POSITIONS = 4096
# Queries among the captions of STS-B's test part; a right caption matches every pattern.
QUERIES = {
    "a man plays the guitar": (r"\b(man|boy)\b", r"guitar", r"play|sing"),
    "someone is cutting onions": (r"onion", r"\b(slic|cut|chop|dic)"),
    "a dog runs in the snow": (r"\b(dogs?|poodles)\b", r"snow", r"run|walk|play|frolic"),
    "a woman dances": (r"\b(wom[ae]n|lady|girls?|ballerina)\b", r"danc"),
    "kids jump on a trampoline": (r"kids|children", r"trampoline"),
    "a person rides a horse": (r"horse", r"\brid(e|es|ing)\b"),
    "he is peeling a potato": (r"\b(man|guy|person)\b", r"peel", r"potato"),
    "soccer players kick a ball": (r"soccer|kick", r"play|ball"),
    "a cat lies on the sofa": (r"\bcats?\b", r"couch|sofa|coach|chair"),
    "a plane in the sky": (r"plane", r"flight|fly"),
    "a train on the rails": (r"train", r"track"),
    "a boy on a skateboard": (r"skateboard",),
    "cows behind a fence": (r"cow", r"fence|\bpen\b"),
    "people eating in a restaurant": (r"restaurant|dining table|eating in",),
    "a man holds a sleeping baby": (r"\b(man|father)\b", r"sleep|napping", r"baby|infant"),
    "surfing on a big wave": (r"surf", r"wave"),
    "a lady puts on lipstick": (r"make-?up|lipstick|eyeliner",),
    "somebody climbs a mountain": (r"climb", r"cliff|rock|hill"),
    "a couple kisses": (r"kiss",),
    "a woman talks on the phone": (r"\b(woman|girls?)\b", r"phone"),
}


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

    def _encode_batch(
        self,
        methods: list[str],
        texts: list[str],
    ) -> dict[str, Vectors]:
        """Vectors of methods that share a pass, from the cache if all are there."""
        files: dict[str, Path] = {}
        for method in methods:
            key = hashlib.sha256(
                repr(
                    [
                        method,
                        *texts,
                    ]
                ).encode()
            ).hexdigest()[:24]
            files[method] = self.cache / f"{key}.npy"
        if not all(file.exists() for file in files.values()):
            print(f"{self.name} {methods}: {len(texts)} texts", file=sys.stderr, flush=True)
            for method, rows in self._run(methods, texts).items():
                np.save(files[method], rows)
        return {method: np.load(file) for method, file in files.items()}

    def _run(
        self,
        methods: list[str],
        texts: list[str],
    ) -> dict[str, Vectors]:
        if methods == [ITSELF]:
            return {ITSELF: self.model.encode(texts, normalize_embeddings=True)}
        parsed_methods = list(map(Method.parse, methods))
        method_vectors = encode_methods(self.model, parsed_methods, texts, check=False)
        return dict(zip(methods, method_vectors.values(), strict=True))

    def scores(
        self,
        methods: Mapping[Any, str],
        scored_task: Task,
    ) -> dict[Any, float]:
        """The task's main score × 100 of each labelled method."""
        method_vectors = self.vectors(
            dict.fromkeys(methods.values()),
            scored_task.texts,
        )
        return {
            row_label: score_vectors(
                scored_task,
                method_vectors[method],
            )
            for row_label, method in methods.items()
        }

    def table(
        self,
        methods: Mapping[Any, str],
        all_tasks: Iterable[Task],
    ) -> pd.DataFrame:
        """The scores of labelled methods, a column a task."""
        return pd.DataFrame(
            {
                scored_task.name: self.scores(
                    methods,
                    scored_task,
                )
                for scored_task in all_tasks
            }
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
        scores = self.scores(methods, read_stsb(data_folder, "dev", CHOOSING_PAIRS))
        return max(
            scores,
            key=lambda layer_count: (round(scores[layer_count], 4), -layer_count),
        )

    def all_methods(
        self,
        data_folder: Path,
        skipped_pattern: str | None,
    ) -> Methods:
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
        return {row_label: method for row_label, method in methods.items() if not is_skipped(method)}


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


def read_stackoverflow(data_folder: Path) -> Task:
    """Titles of questions with their topics."""
    columns: dict[str, list[str]] = {}
    for column, name in (("text", "title"), ("label", "label")):
        path = data_folder / f"clustering/{name}_StackOverflow.txt"
        columns[column] = path.read_text(encoding="utf-8").splitlines()
    return read_task(pd.DataFrame(columns), "Clustering", name="StackOverflow", limit=500)


def select_labels(methods: Methods, pattern: str) -> Methods:
    """The methods whose labels match a pattern."""
    return {
        row_label: method
        for row_label, method in methods.items()
        if re.search(
            pattern,
            row_label,
        )
    }


def sentences_en(base: Base, page_options: argparse.Namespace) -> None:
    """STS-B, STS13 to STS16 and StackOverflow, by method and base."""
    all_tasks = [read_stsb(page_options.data, "test")]
    for year in (2013, 2014, 2015, 2016):
        pairs = pd.concat(
            map(
                read_frame,
                sorted(page_options.data.glob(f"sts/semeval/{year}.*")),
            )
        )
        limit = None if page_options.whole else 125
        all_tasks.append(read_task(pairs, "STS", name=f"STS{year % 100}", limit=limit))
    all_tasks.append(read_stackoverflow(page_options.data))
    all_methods = base.all_methods(page_options.data, page_options.skip)
    methods = select_labels(all_methods, page_options.only)
    score_frame = base.table(methods, all_tasks)
    add_filtered_rows(
        score_frame,
        base,
        methods,
        all_tasks,
        read_stsb(page_options.data, "dev").texts[:FILTER_TEXTS],
    )
    score_frame.insert(
        len(all_tasks) - 1,
        "mean of STS",
        score_frame.iloc[:, :-1].mean(axis=1),
    )
    place_name = base.name + " whole" * page_options.whole
    score_frame = add_old_rows(score_frame, "sentences-en.md", place_name)
    if base.loading_options:
        score_frame.insert(
            0,
            "work",
            relative_work(base, all_methods, score_frame.index, all_tasks[0].texts),
        )
    fill_page("sentences-en.md", place_name, format_table(score_frame, base.name))


def add_filtered_rows(
    score_frame: pd.DataFrame,
    base: Base,
    methods: Methods,
    all_tasks: Sequence[Task],
    sample: Sequence[str],
) -> None:
    """Add rows of some methods behind a filter that is fitted on a sample of texts."""
    endings = (
        "PromptEOL",
        "PromptEOL, attention outputs",
        "orders, attention outputs",
        "questions, attention outputs",
        "another wording",
        "(the default)",
        f"Echo-2, mean, layer {base.depth // 2}",
    )
    for row_label, method in methods.items():
        if not row_label.endswith(endings):
            continue
        sample_vectors = base.vectors([method], sample)[method]
        fitted_filter = Filter.fit(sample_vectors, "abtt", r=2)
        for scored_task in all_tasks:
            method_vectors = base.vectors([method], scored_task.texts)[method]
            filtered_vectors = fitted_filter.apply(method_vectors).astype(np.float32)
            score_frame.loc[f"{row_label} + filter", scored_task.name] = score_vectors(scored_task, filtered_vectors)


def relative_work(
    base: Base,
    methods: Methods,
    labels: Iterable[str],
    texts: Sequence[str],
) -> pd.Series:
    """Positions that each labelled method computes, as a multiple of the fewest."""
    work: dict[str, int] = {}
    for row_label in labels:
        if row_label in methods:
            model = build_on(base.model, Method.parse(methods[row_label]))
            work[row_label] = sum(computed_positions(model[0], texts, {}))
    work_of_label = pd.Series(work)
    return work_of_label / work_of_label.min()


CHINESE_METHODS = {
    "PromptEOL, another wording": "prompteol:template=prompteol-says",
    "PromptEOL in Chinese": "prompteol:template=prompteol-zh",
    "the same with an example": "prompteol:template=prompteol-example-zh",
    "the same, attention outputs": "prompteol:template=prompteol-zh,read=attention",
    "both word orders": "prompteol:template=reverseol-zh",
    "both word orders, attention outputs": "prompteol:template=reverseol-zh,read=attention",
    "a topic in Chinese, four examples": "prompteol:template=prompteol-topic-4-zh",
    "the same, attention outputs (the Chinese default)": "prompteol:template=prompteol-topic-4-zh,read=attention",
    "the English default": "prompteol:template=prompteol-topic-4,read=attention",
}


def read_chinese_tasks(data_folder: Path) -> list[Task]:
    """Seven Chinese sets."""
    sts_folder = data_folder / "sts"
    topics_folder = data_folder / "classification"
    entailment = {"entailment": 1, "contradiction": 0}
    ranking = pd.read_json(data_folder / "ranking" / "qbqtc-dev.json", lines=True)
    all_tasks = [
        read_task(sts_folder / "cnsd-sts-test.txt", "STS", name="STS-B-zh", limit=200),
        read_task(sts_folder / "afqmc-dev.jsonl", "STS", name="AFQMC", limit=200),
        read_task(
            data_folder / "pairs" / "ocnli-dev.jsonl",
            "PairClassification",
            name="OCNLI",
            limit=200,
            labels=entailment,
        ),
        read_task(ranking, "Reranking", name="QBQTC", limit=60),
        read_task(topics_folder / "waimai_10k.csv", "Classification", name="waimai", limit=200),
    ]
    for name, row_label in (("tnews", "label_desc"), ("eprstmt", "label")):
        rows = pd.read_json(topics_folder / name / "test_public.json", lines=True)
        columns = {"text": "sentence", "label": row_label}
        scored_task = read_task(
            rows,
            "Classification",
            name=name.upper(),
            limit=200,
            columns=columns,
        )
        all_tasks.append(scored_task)
    return all_tasks


def sentences_zh(base: Base, page_options: argparse.Namespace) -> None:
    """Seven Chinese sets, by method and base."""
    half = base.depth // 2
    all_methods = {**PAPERS, nosink_label(half): nosink_method(half), **CHINESE_METHODS}
    methods = select_labels(all_methods, page_options.only)
    score_frame = base.table(methods, read_chinese_tasks(page_options.data))
    score_frame = score_frame.assign(mean=score_frame.mean(axis=1))
    score_frame = add_old_rows(score_frame, "sentences-zh.md", base.name)
    fill_page("sentences-zh.md", base.name, format_table(score_frame, base.name))


def read_articles(path: Path) -> list[list[str]]:
    """The sentences of the long articles of a CoNLL file."""
    lines: list[str] = []
    for block in path.read_text(encoding="utf-8").split("\n\n"):
        words = [line.split()[0] for line in block.splitlines() if line.strip()]
        lines.append(" ".join(words))
    # Before an article come a headline, and then a place and date.
    starts = [
        index
        for index, line in enumerate(lines)
        if re.fullmatch(
            r".{2,40} 1996-\d\d-\d\d",
            line,
        )
    ]
    articles: list[list[str]] = []
    for start, next_start in zip(
        starts,
        [*starts[1:], len(lines) + 1],
        strict=True,
    ):
        sentences = lines[start + 1 : next_start - 1]
        word_count = len(" ".join(sentences).split())
        # Tables of results have short lines.
        if word_count >= 300 and word_count >= 18 * len(sentences):
            articles.append(sentences)
    return articles


def chunk(base: Base, page_options: argparse.Namespace) -> None:
    """Halves of news articles find each other, by ReBA whole and by pieces."""
    pairs: list[tuple[str, str, int]] = []
    for split in ("train", "valid", "test"):
        for sentences in read_articles(page_options.data / "ner" / f"{split}.txt"):
            half = len(sentences) // 2
            pairs.append((" ".join(sentences[:half]), " ".join(sentences[half:]), 1))
    score_frame = pd.DataFrame(pairs, columns=["query", "document", "relevance"])
    sample = score_frame.drop_duplicates().sample(50, random_state=0)
    scored_task = read_task(sample, "Retrieval", name="nDCG@10 × 100")
    methods: Methods = {}
    for row_label in ("classical, mean", "Echo-2, mean", "ReBA-2, last", "ReBA-2, mean"):
        methods[row_label] = PAPERS[row_label]
    for size in (128, 32):
        methods[f"ReBA-2, mean, pieces of {size}"] = f"reba:pooling=mean,chunk={size}"
    fill_page(
        "chunk.md",
        base.name,
        format_table(base.table(methods, [scored_task]), base.name),
    )


def read_captions(data_folder: Path) -> list[str]:
    """The captions of STS-B's test part, each once."""
    captions_so_far: dict[str, None] = {}
    path = data_folder / "sts" / "sts-test.csv"
    for line in path.read_text(encoding="utf-8").splitlines():
        genre, *fields = line.split("\t")
        if genre == "main-captions":
            captions_so_far |= dict.fromkeys(fields[4:6])
    return list(captions_so_far)


def find_right_captions(texts: Sequence[str]) -> np.ndarray:
    """Which captions are right for each query, [queries, captions]."""
    is_right = np.zeros((len(QUERIES), len(texts)), bool)
    for query_index, patterns in enumerate(QUERIES.values()):
        for text_index, text in enumerate(texts):
            matches = [re.search(pattern, text, re.IGNORECASE) for pattern in patterns]
            is_right[query_index, text_index] = all(matches)
    return is_right


def rank_first_right(method_vectors: Vectors, is_right: np.ndarray) -> np.ndarray:
    """The rank of the first right caption of each query; vectors of captions come first."""
    caption_count = is_right.shape[1]
    unit_vectors = normalize_rows(method_vectors)
    similarities = unit_vectors[caption_count:] @ unit_vectors[:caption_count].T
    order = similarities.argsort(axis=1)[:, ::-1]
    return (
        np.take_along_axis(
            is_right,
            order,
            axis=1,
        ).argmax(axis=1)
        + 1
    )


def captions(base: Base, page_options: argparse.Namespace) -> None:
    """The rank of the first right caption of each query."""
    texts = read_captions(page_options.data)
    is_right = find_right_captions(texts)
    methods = base.all_methods(page_options.data, page_options.skip)
    if base.loading_options:
        third = base.depth // 3
        methods[nosink_label(third)] = nosink_method(third)
    vectors_by_method = base.vectors(methods.values(), [*texts, *QUERIES])
    score_frame = pd.DataFrame(dtype=float)
    for row_label, method in methods.items():
        method_vectors = vectors_by_method[method]
        fitted_filter = Filter.fit(
            method_vectors[: len(texts)],
            "abtt",
            r=2,
        )
        filtered_vectors = fitted_filter.apply(method_vectors).astype(np.float32)
        for ending, compared_vectors in (("", method_vectors), (", filter", filtered_vectors)):
            ranks = rank_first_right(compared_vectors, is_right)
            score_frame.loc[row_label, f"first is right{ending}"] = (ranks == 1).sum()
            score_frame.loc[row_label, f"MRR × 100{ending}"] = 100 * (1 / ranks).mean()
            score_frame.loc[row_label, f"guitar{ending}"] = ranks[0]
    fill_page(
        "captions.md",
        base.name,
        format_table(score_frame, base.name, digits=0, marks_best=False),
    )


def nosink(base: Base, page_options: argparse.Namespace) -> None:
    """NoSink's k on STS-B, and the share of attention that the first token gets."""
    methods = {0: "classical:pooling=mean"}
    for layer_count in base.layer_counts:
        methods[layer_count] = nosink_method(layer_count)
    scores = base.scores(methods, read_stsb(page_options.data, "dev", CHOOSING_PAIRS))
    score_frame = pd.DataFrame({"STS-B, dev": scores})
    fill_page("nosink.md", f"{base.name} k", format_table(score_frame, f"{base.name}, k"))
    model = build_on(base.model, Method("classical"))
    texts = read_stsb(page_options.data, "dev").texts[:50]
    sinks = sink_table(attention_maps(model, text) for text in texts)
    shares = pd.DataFrame(
        {
            "on the first token": sinks["sink"],
            "if it were even": sinks["even"],
            "on the token itself": sinks["itself"],
        }
    )
    score_frame = (100 * shares).set_axis(
        sinks["layer"] + 1,
        axis=0,
    )
    content = format_table(score_frame, f"{base.name}, layer", digits=0, marks_best=False)
    fill_page("nosink.md", f"{base.name} sink", content)


def quantized(base: Base, page_options: argparse.Namespace) -> None:
    """Methods by the number type of the base."""
    half = base.depth // 2
    scored_task = read_stsb(page_options.data, "test", 100)
    methods = {
        **PAPERS,
        nosink_label(half): nosink_method(half),
        "PromptEOL, attention outputs": "prompteol:read=attention",
        f"Echo-2, mean, layer {half}": f"echo:pooling=mean,layer={half}",
    }
    scores: dict[str, dict[str, float]] = {}
    for option, name in (
        ("dtype", "float32"),
        ("dtype", "bfloat16"),
        ("quantization", "int8"),
        ("quantization", "nf4"),
    ):
        typed_base = Base(
            base.name,
            base.folder,
            page_options.cache,
            **{option: name},
        )
        scores[name] = typed_base.scores(methods, scored_task)
    content = format_table(pd.DataFrame(scores), base.name, marks_best=False)
    fill_page("quantized.md", base.name, content)


def words(base: Base, page_options: argparse.Namespace) -> None:
    """Word senses: which of four sentences uses a word otherwise, by method and layer."""
    half = base.depth // 2
    methods: dict[tuple[str, int], str] = {}
    for sixths in (2, 3, 4, 5, 6):
        layer = base.depth * sixths // 6
        for row_label, name in (("classical", "classical"), ("Echo-2", "echo"), ("ReBA-2", "reba")):
            methods[row_label, layer] = f"{name}:layer={layer}"
        # From the middle layer on, masks look both ways.
        if layer > half:
            methods["MASK0-BIDIR", layer] = f"{nosink_method(layer - half)},layer={layer}"
    for name in ("SLPWC", "WSD"):
        scored_task = read_task(page_options.data / "words" / f"{name}_v1.csv", limit=100)
        results = compare(
            base.model,
            scored_task,
            list(methods.values()),
            draws=0,
        ).results
        scores_of_method = {result.method: result.scores for result in results}
        score_frame = pd.DataFrame(dtype=float)
        for row_label in ("classical", "Echo-2", "ReBA-2", "MASK0-BIDIR"):
            for (method_label, layer), method in methods.items():
                if method_label == row_label:
                    scores = scores_of_method[str(Method.parse(method))]
                    score_frame.loc[f"{row_label}, cosine", f"layer {layer}"] = 100 * scores["accuracy cosine"]
                    score_frame.loc[f"{row_label}, Euclidean", f"layer {layer}"] = 100 * scores["accuracy euclidean"]
        fill_page("words.md", f"{base.name} {name}", format_table(score_frame, f"{base.name}, {name}"))


def format_table(
    score_frame: pd.DataFrame,
    first_heading: str,
    digits: int = 1,
    marks_best: bool = True,
) -> str:
    """A table in Markdown, the best of each column in bold."""
    lines = [
        f"| {first_heading} | {' | '.join(map(str, score_frame.columns))} |",
        f"|---|{'--:|' * len(score_frame.columns)}",
    ]
    rounded_frame = score_frame.round(digits)
    best_values = rounded_frame.max()
    for row_label, values in rounded_frame.iterrows():
        cells: list[str] = []
        for column, value in values.items():
            cell = "" if np.isnan(value) else f"{value:.{digits}f}"
            if marks_best and column != "work" and value == best_values[column]:
                cell = f"**{cell}**"
            cells.append(cell)
        lines.append(f"| {row_label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def add_old_rows(
    score_frame: pd.DataFrame,
    page: str,
    place_name: str,
) -> pd.DataFrame:
    """Rows that a page has already, as they are, and those that were run."""
    content = (PAGES / page).read_text(encoding="utf-8")
    _, _, rest = content.partition(f"<!-- {place_name} -->")
    old_table, _, _ = rest.partition("<!-- end -->")
    old_rows: dict[str, list[float]] = {}
    header: list[str] = []
    for line in old_table.strip().splitlines():
        row_label, *cells = [cell.strip(" *") for cell in line.strip("|").split("|")]
        if not header:
            header = cells
        elif not row_label.startswith("---"):
            old_rows[row_label] = [float(cell or "nan") for cell in cells]
    old_frame = pd.DataFrame.from_dict(old_rows, orient="index", columns=header)
    remaining_rows = old_frame.drop(index=score_frame.index, columns="work", errors="ignore")
    return pd.concat([remaining_rows, score_frame])


def fill_page(
    page: str,
    place_name: str,
    text: str,
) -> None:
    """Replace the text between ``<!-- place_name -->`` and the next ``<!-- end -->`` of a page, and print it."""
    path = PAGES / page
    content_before, place, content_after = path.read_text(encoding="utf-8").partition(f"<!-- {place_name} -->\n")
    if not place:
        raise SystemExit(f"{path}: there is no <!-- {place_name} -->.")
    _, end, remaining_content = content_after.partition("<!-- end -->")
    path.write_text(f"{content_before}{place}\n{text}\n\n{end}{remaining_content}", encoding="utf-8")
    print(f"{page}, {place_name}\n{text}\n", flush=True)


FILL_FUNCTIONS: dict[
    str,
    Callable[
        [
            Base,
            argparse.Namespace,
        ],
        None,
    ],
] = {
    "sentences-en": sentences_en,
    "sentences-zh": sentences_zh,
    "captions": captions,
    "chunk": chunk,
    "nosink": nosink,
    "quantized": quantized,
    "words": words,
}


def main() -> None:
    """Fill a page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", choices=FILL_FUNCTIONS)
    parser.add_argument("data", type=Path, help="folder of public sets")
    parser.add_argument("bases", nargs="*", metavar="NAME=FOLDER", help="bases")
    parser.add_argument("--trained", help="folder of all-MiniLM-L6-v2")
    parser.add_argument("--skip", help="pattern of methods that are left out")
    parser.add_argument("--only", default="", help="sentences-*: pattern of rows that are run; others stay")
    parser.add_argument("--whole", action="store_true", help="sentences-en: all pairs of STS13 to STS16")
    parser.add_argument(
        "--cache",
        type=Path,
        default=Path("results-cache"),
        help="folder of vectors",
    )
    page_options = parser.parse_args()
    bases: list[Base] = []
    for base_name in page_options.bases:
        name, _, folder = base_name.partition("=")
        bases.append(Base(name, folder, page_options.cache, dtype="bfloat16"))
    if page_options.trained:
        bases.append(Base("all-MiniLM-L6-v2", page_options.trained, page_options.cache))
    for base in bases:
        FILL_FUNCTIONS[page_options.page](base, page_options)


if __name__ == "__main__":
    main()
