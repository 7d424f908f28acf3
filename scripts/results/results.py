"""The tables of docs/results on public sets, a page a run.

    python scripts/results/results.py PAGE DATA smollm2=FOLDER gemma3=FOLDER --trained MINILM

PAGE is sentences-en, sentences-zh, captions, chunk, nosink, quantized or words. DATA is a folder of
public sets (docs/results/sentences-en.md lists them), FOLDER a base. Vectors are cached. A table
goes into its page, between ``<!-- NAME -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from bases import (
    PAPERS,
    SELECTION_PAIRS,
    Base,
    Methods,
    nosink_label,
    nosink_method,
    read_stsb,
    score_vectors,
)
from pages import add_old_rows, fill_page, format_table

from examples import named_folder, read_captions
from st_reba.encode import computed_positions
from st_reba.evaluation import Task, compare, read_task
from st_reba.evaluation.attention import attention_maps, sink_table
from st_reba.evaluation.readouts import build_on
from st_reba.evaluation.tables import read_frame
from st_reba.evaluation.vectors import Vectors, normalize_rows
from st_reba.filters import Filter
from st_reba.methods import Method

# Texts that a filter is fitted on.
FILTER_TEXTS = 1000
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
        row_label: method for row_label, method in methods.items() if re.search(pattern, row_label)
    }


def sentences_en(base: Base, page_options: argparse.Namespace) -> None:
    """STS-B, STS13 to STS16 and StackOverflow, by method and base."""
    all_tasks = [read_stsb(page_options.data, "test")]
    for year in (2013, 2014, 2015, 2016):
        pairs = pd.concat(map(read_frame, sorted(page_options.data.glob(f"sts/semeval/{year}.*"))))
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
    """Add rows of some methods with a filter that is fitted on a sample of texts."""
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
            score_frame.loc[f"{row_label} + filter", scored_task.name] = score_vectors(
                scored_task, filtered_vectors
            )


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
    "PromptEOL in Chinese with an example": "prompteol:template=prompteol-example-zh",
    "PromptEOL in Chinese, attention outputs": "prompteol:template=prompteol-zh,read=attention",
    "both word orders": "prompteol:template=reverseol-zh",
    "both word orders, attention outputs": "prompteol:template=reverseol-zh,read=attention",
    "a topic in Chinese, four examples": "prompteol:template=prompteol-topic-4-zh",
    "the same topic, attention outputs (the Chinese default)": "prompteol:template=prompteol-topic-4-zh,read=attention",
    "the English default": "prompteol:template=prompteol-word-4,read=attention",
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
        index for index, line in enumerate(lines) if re.fullmatch(r".{2,40} 1996-\d\d-\d\d", line)
    ]
    articles: list[list[str]] = []
    for start, next_start in zip(starts, [*starts[1:], len(lines) + 1], strict=True):
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
    ranks: np.ndarray = np.take_along_axis(is_right, order, axis=1).argmax(axis=1) + 1
    return ranks


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
        fitted_filter = Filter.fit(method_vectors[: len(texts)], "abtt", r=2)
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
    scores = base.scores(methods, read_stsb(page_options.data, "dev", SELECTION_PAIRS))
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
    score_frame = (100 * shares).set_axis(sinks["layer"] + 1, axis=0)
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
                    score_frame.loc[f"{row_label}, cosine", f"layer {layer}"] = (
                        100 * scores["accuracy cosine"]
                    )
                    score_frame.loc[f"{row_label}, Euclidean", f"layer {layer}"] = (
                        100 * scores["accuracy euclidean"]
                    )
        fill_page(
            "words.md", f"{base.name} {name}", format_table(score_frame, f"{base.name}, {name}")
        )


FILL_FUNCTIONS: dict[str, Callable[[Base, argparse.Namespace], None]] = {
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
    parser.add_argument("bases", nargs="*", type=named_folder, metavar="NAME=FOLDER", help="bases")
    parser.add_argument("--trained", help="folder of all-MiniLM-L6-v2")
    parser.add_argument("--skip", help="pattern of methods that are left out")
    parser.add_argument(
        "--only", default="", help="sentences-*: pattern of rows that are run; others stay"
    )
    parser.add_argument(
        "--whole", action="store_true", help="sentences-en: all pairs of STS13 to STS16"
    )
    parser.add_argument(
        "--cache",
        type=Path,
        default=Path("results-cache"),
        help="folder of vectors",
    )
    page_options = parser.parse_args()
    bases: list[Base] = []
    for name, folder in page_options.bases:
        bases.append(Base(name, folder, page_options.cache, dtype="bfloat16"))
    if page_options.trained:
        bases.append(Base("all-MiniLM-L6-v2", page_options.trained, page_options.cache))
    for base in bases:
        FILL_FUNCTIONS[page_options.page](base, page_options)


if __name__ == "__main__":
    main()
