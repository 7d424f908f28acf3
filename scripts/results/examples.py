#!/usr/bin/env python
"""What examples in a prompt bring, by wordings, numbers of examples, and draws of them.

    python scripts/results/examples.py similarity DATA smollm2=FOLDER gemma3=FOLDER
    python scripts/results/examples.py similarity DATA gemma3=FOLDER --language zh
    python scripts/results/examples.py similarity DATA gemma3=FOLDER --own --pairs 3000 --counts 0 4
    python scripts/results/examples.py search DATA smollm2=FOLDER --collections cranfield stard

DATA is a folder of public sets: sts/ has sts-dev.csv, sts-test.csv, semeval/YEAR.NAME.test.tsv and,
in Chinese, cnsd-sts-dev.txt and cnsd-sts-test.txt; retrieval/ has folders in BEIR's layout.

Similarity is Spearman's correlation × 100 on pairs of STS-B's dev part and of STS 2012 that share
no sentence with STS-B's test part or with STS 2013 to 2016; in Chinese, on STS-B's dev part without
the sentences of its test part. Search is nDCG@10 × 100 of whitened vectors, in collections cut to
some of the documents that are relevant to a query. Prints one line per wording and number of
examples: the mean over draws, and the range. With --own, the examples are the package's own.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import retrieval
from example_texts import (
    MORE_EXAMPLES,
    MORE_EXAMPLES_ZH,
    PASSAGES,
    PASSAGES_ZH,
    Passage,
)
from numpy.typing import NDArray
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer

from st_reba.evaluation.readouts import encode_methods, load_base
from st_reba.linear_filter import Filter
from st_reba.methods import Method
from st_reba.prompts import (
    EXAMPLES,
    EXAMPLES_ZH,
    TEMPLATES,
    TOPIC_LINE_ZH,
    TOPIC_QUESTION_ZH,
    WORD_LINE,
    WORD_QUESTION,
    join_examples,
)
from st_reba.sentences import QUERY_SAMPLE, sample_sentences

VectorsByMethod = dict[Method, NDArray[np.float32]]
Pair = tuple[float, str, str]
# Columns, from 0 on, that hold the score of a pair; both sentences come right after it.
STSB_SCORE_COLUMN = 4
SEMEVAL_SCORE_COLUMN = 0
READINGS = ("states", "attention")
CLOSING_QUOTES = {"en": '"', "zh": "”"}
CAPITALIZED_EXAMPLES = tuple((text, word.capitalize()) for text, word in EXAMPLES)
# Draws show words as they would begin a line.
SENTENCES = {
    "en": (*CAPITALIZED_EXAMPLES, *MORE_EXAMPLES),
    "zh": (*EXAMPLES_ZH, *MORE_EXAMPLES_ZH),
}
# A question before the examples, and the line of a text.
SENTENCE_WORDINGS = {
    "en": {
        "topic": (WORD_QUESTION, 'Text: "{text}" Topic: "'),
        "in a word": (WORD_QUESTION, WORD_LINE),
        "keyword": ("", 'Text: "{text}" Keyword: "'),
    },
    "zh": {
        "topic": (TOPIC_QUESTION_ZH, TOPIC_LINE_ZH),
        "in a word": (TOPIC_QUESTION_ZH, "文本：“{text}”一个词：“"),
        "keyword": ("", "文本：“{text}”关键词：“"),
    },
}
# The line of a query, and that of a document.
PASSAGE_WORDINGS = {
    "en": {
        "the default's": (
            TEMPLATES["prompteol-search"]["query"],
            TEMPLATES["prompteol-search"]["document"],
        ),
        "word": ('Query: "{text}" Word: "', 'Passage: "{text}" Word: "'),
        "keyword": ('Question: "{text}" Keyword: "', 'Text: "{text}" Keyword: "'),
    },
    "zh": {
        "the default's": (
            TEMPLATES["prompteol-search-zh"]["query"],
            TEMPLATES["prompteol-search-zh"]["document"],
        ),
        "word": ("问题：“{text}”一个词：“", "文档：“{text}”一个词：“"),
        "keyword": ("问题：“{text}”关键词：“", "文本：“{text}”关键词：“"),
    },
}


def read_pairs(path: Path, score_column: int) -> list[Pair]:
    """Scored pairs of a file whose columns are separated by tabs."""
    scored_pairs: list[Pair] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        columns = line.split("\t")
        first_text, second_text = columns[score_column + 1 : score_column + 3]
        scored_pairs.append((float(columns[score_column]), first_text, second_text))
    return scored_pairs


def read_captions(folder: Path) -> list[str]:
    """The captions of STS-B's test part, each once."""
    captions: dict[str, None] = {}
    path = folder / "sts" / "sts-test.csv"
    for line in path.read_text(encoding="utf-8").splitlines():
        columns = line.split("\t")
        if columns[0] == "main-captions":
            captions |= dict.fromkeys(columns[STSB_SCORE_COLUMN + 1 : STSB_SCORE_COLUMN + 3])
    return list(captions)


def read_chinese_pairs(path: Path) -> list[Pair]:
    """Scored pairs of a file of STS-B in Chinese: a name, two texts and a score, between double bars."""
    scored_pairs: list[Pair] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        _, first_text, second_text, score = line.split("||")
        scored_pairs.append((float(score), first_text, second_text))
    return scored_pairs


def read_years(folder: Path, years: Sequence[int]) -> list[Pair]:
    """All pairs of SemEval's years."""
    scored_pairs: list[Pair] = []
    for year in years:
        for path in sorted(folder.glob(f"sts/semeval/{year}.*.tsv")):
            scored_pairs += read_pairs(path, SEMEVAL_SCORE_COLUMN)
    return scored_pairs


def draw_unseen(scored_pairs: Sequence[Pair], reported: Sequence[Pair], size: int) -> list[Pair]:
    """Some pairs that share no sentence with what results report."""
    reported_texts: set[str] = set()
    for _, first_text, second_text in reported:
        reported_texts |= {first_text, second_text}
    unseen_pairs = [pair for pair in scored_pairs if reported_texts.isdisjoint(pair[1:])]
    return Random(7).sample(unseen_pairs, min(size, len(unseen_pairs)))


def development_sets(folder: Path, language: str, size: int) -> list[list[Pair]]:
    """The pairs that choose."""
    sts = folder / "sts"
    if language == "zh":
        reported = read_chinese_pairs(sts / "cnsd-sts-test.txt")
        return [draw_unseen(read_chinese_pairs(sts / "cnsd-sts-dev.txt"), reported, size)]
    stsb_test = read_pairs(sts / "sts-test.csv", STSB_SCORE_COLUMN)
    stsb_dev = read_pairs(sts / "sts-dev.csv", STSB_SCORE_COLUMN)
    reported = stsb_test + read_years(folder, range(2013, 2017))
    return [
        draw_unseen(stsb_dev, reported, size),
        draw_unseen(read_years(folder, [2012]), reported, size),
    ]


def correlation(
    text_vectors: NDArray[np.float32],
    row_of_text: dict[str, int],
    scored_pairs: Sequence[Pair],
) -> float:
    """Spearman's correlation × 100 of cosines and scores."""
    first_rows = [row_of_text[pair[1]] for pair in scored_pairs]
    second_rows = [row_of_text[pair[2]] for pair in scored_pairs]
    cosines = np.sum(text_vectors[first_rows] * text_vectors[second_rows], axis=1)
    scores = [pair[0] for pair in scored_pairs]
    return 100 * float(spearmanr(cosines, scores).statistic)


@dataclass
class Similarity:
    """Scores a base's templates by the mean over sets of pairs.

    Args:
        base_model: The base, loaded.
        development: Sets of pairs.
    """

    base_model: SentenceTransformer
    development: list[list[Pair]]

    def score(self, template: str) -> dict[str, float]:
        """Scores by reading."""
        row_of_text: dict[str, int] = {}
        for scored_pairs in self.development:
            for _, *texts in scored_pairs:
                for text in texts:
                    row_of_text.setdefault(text, len(row_of_text))
        methods = [Method("prompteol", template=template, read=reading) for reading in READINGS]
        vectors_by_method = encode_methods(self.base_model, methods, list(row_of_text), check=False)
        scores: dict[str, float] = {}
        for method, text_vectors in vectors_by_method.items():
            correlations = [
                correlation(text_vectors, row_of_text, scored_pairs)
                for scored_pairs in self.development
            ]
            scores[method.read] = float(np.mean(correlations))
        return scores


class CutCollection(retrieval.Collection):
    """Some documents that are relevant to a query, and queries that have one of them.

    Args:
        path: A folder in BEIR's layout.
        document_count: How many documents are drawn.
        query_count: How many queries, at most.
    """

    def __init__(self, path: Path, document_count: int, query_count: int) -> None:
        super().__init__(path)
        relevant_documents: dict[str, None] = {}
        for grades in self.grades.values():
            for document, grade in grades.items():
                if grade > 0:
                    relevant_documents[document] = None
        generator = Random(5)
        size = min(document_count, len(relevant_documents))
        self.documents = generator.sample(list(relevant_documents), size)
        answered_queries: list[str] = []
        for query, grades in self.grades.items():
            self.grades[query] = {
                document: grade for document, grade in grades.items() if document in self.documents
            }
            if any(grade > 0 for grade in self.grades[query].values()):
                answered_queries.append(query)
        self.queries = generator.sample(answered_queries, min(query_count, len(answered_queries)))


@dataclass
class Search:
    """Scores a base's templates by what they find in a collection.

    Args:
        base_model: The base, loaded.
        collection: Documents and judged queries.
        positions: Positions that are read of a document, besides its prompt.
    """

    base_model: SentenceTransformer
    collection: CutCollection
    positions: int

    def score(self, template: dict[str, str]) -> dict[str, float]:
        """Scores by reading."""
        tokenizer = self.base_model.tokenizer
        prompt_length = max(len(tokenizer(prompt)["input_ids"]) for prompt in template.values())
        self.base_model.max_seq_length = self.positions + prompt_length
        methods = [Method("prompteol", template=template, read=reading) for reading in READINGS]
        sentences = sample_sentences(self.collection.documents, QUERY_SAMPLE)
        queries = self.collection.queries
        document_vectors = self.encode(methods, self.collection.documents, "document")
        query_vectors = self.encode(methods, [*sentences, *queries], "query")
        scores: dict[str, float] = {}
        for method in methods:
            sentence_part, query_part = np.split(query_vectors[method], [len(sentences)])
            cosines = whitened_cosines(document_vectors[method], sentence_part, query_part)
            scores[method.read] = self.score_ranking(cosines)
        return scores

    def encode(self, methods: Sequence[Method], texts: Sequence[str], task: str) -> VectorsByMethod:
        """Vectors of texts by each method, from one pass."""
        return encode_methods(self.base_model, methods, texts, check=False, task=task)

    def score_ranking(self, cosines: NDArray[np.float64]) -> float:
        """nDCG@10 × 100 of documents by their cosines, [queries, documents]."""
        ndcgs: list[float] = []
        for query, query_cosines in zip(self.collection.queries, cosines, strict=True):
            order = np.argsort(-query_cosines, kind="stable")[: retrieval.DEPTH]
            listed = [self.collection.documents[number] for number in order]
            ndcgs.append(retrieval.ndcg_at_10(listed, self.collection.grades[query]))
        return 100 * float(np.mean(ndcgs))


def whitened_cosines(
    document_vectors: NDArray[np.float32],
    sentence_vectors: NDArray[np.float32],
    query_vectors: NDArray[np.float32],
) -> NDArray[np.float64]:
    """Cosines [queries, documents] as an index without tokens compares them; sentences stand for queries in the fit."""
    whitening = Filter.fit_for_search(document_vectors, sentence_vectors)
    assert whitening is not None  # there are documents enough
    whitened_documents = whitening.apply(document_vectors, "document")
    whitened_queries = whitening.apply(query_vectors, "query")
    whitened_documents /= np.linalg.norm(whitened_documents, axis=1, keepdims=True)
    whitened_queries /= np.linalg.norm(whitened_queries, axis=1, keepdims=True)
    return whitened_queries @ whitened_documents.T


def sentence_templates(language: str, count: int, draw: int) -> Iterator[tuple[str, str]]:
    """Wordings with their template for a draw of examples."""
    examples = Random(100 * count + draw).sample(SENTENCES[language], count)
    closing_quote = CLOSING_QUOTES[language]
    for wording, (question, line) in SENTENCE_WORDINGS[language].items():
        yield wording, join_examples(question, line, examples, closing_quote)


def own_templates(language: str, count: int, draw: int) -> Iterator[tuple[str, str]]:
    """Wordings with their template for the package's own examples; in English, also with words in lower case."""
    closing_quote = CLOSING_QUOTES[language]
    for wording, (question, line) in SENTENCE_WORDINGS[language].items():
        examples = SENTENCES[language][:count]
        yield wording, join_examples(question, line, examples, closing_quote)
        if language == "en" and count > 0:
            lower_case = f"{wording}, lower case"
            yield lower_case, join_examples(question, line, EXAMPLES[:count], closing_quote)


def passage_templates(language: str, count: int, draw: int) -> Iterator[tuple[str, dict[str, str]]]:
    """Wordings with their templates of queries and of documents for a draw of examples."""
    passages = PASSAGES_ZH if language == "zh" else PASSAGES
    shown: list[Passage] = Random(100 * count + draw).sample(passages, count)
    closing_quote = CLOSING_QUOTES[language]
    questions = [(passage.question, passage.word) for passage in shown]
    texts = [(passage.text, passage.word) for passage in shown]
    for wording, (query_line, document_line) in PASSAGE_WORDINGS[language].items():
        yield (
            wording,
            {
                "query": join_examples("", query_line, questions, closing_quote),
                "document": join_examples("", document_line, texts, closing_quote),
            },
        )


Templates = Callable[[str, int, int], Iterator[tuple[str, Any]]]


def print_rows(
    first_cells: str,
    task: Similarity | Search,
    templates: Templates,
    options: argparse.Namespace,
) -> None:
    """Print one line per wording and number of examples."""
    for count in options.counts:
        draw_count = options.draws if count else 1
        scores_by_wording: dict[str, dict[str, list[float]]] = {}
        for draw in range(draw_count):
            for wording, template in templates(options.language, count, draw):
                if options.wordings and wording.split(",")[0] not in options.wordings:
                    continue
                scores_by_reading = scores_by_wording.setdefault(wording, {})
                for reading, score in task.score(template).items():
                    scores_by_reading.setdefault(reading, []).append(score)
        for wording, scores_by_reading in scores_by_wording.items():
            cells = " | ".join(range_of(scores) for scores in scores_by_reading.values())
            print(f"| {first_cells} | {wording} | {count} | {draw_count} | {cells} |", flush=True)


def range_of(scores: Sequence[float]) -> str:
    """The mean, and from where to where."""
    if len(scores) == 1:
        return f"{scores[0]:.1f}"
    return f"{np.mean(scores):.1f} ({min(scores):.1f} to {max(scores):.1f})"


def measure_similarity(options: argparse.Namespace) -> None:
    """Print the table of similarity."""
    development = development_sets(options.data, options.language, options.pairs)
    templates = sentence_templates
    if options.own:
        options.draws = 1
        templates = own_templates
    print("| base | wording | examples | draws | states | attention outputs |")
    print("|---|---|--:|--:|--:|--:|")
    for name, folder in options.bases:
        task = Similarity(load_base(folder, dtype="bfloat16"), development)
        print_rows(name, task, templates, options)


def measure_search(options: argparse.Namespace) -> None:
    """Print the table of search."""
    print("| base | collection | wording | examples | draws | states | attention outputs |")
    print("|---|---|---|--:|--:|--:|--:|")
    for name, folder in options.bases:
        base_model = load_base(folder, dtype="bfloat16")
        for collection_name in options.collections:
            path = options.data / "retrieval" / collection_name
            collection = CutCollection(path, options.documents, options.queries)
            task = Search(base_model, collection, options.positions)
            print_rows(f"{name} | {collection_name}", task, passage_templates, options)


def named_folder(argument: str) -> tuple[str, str]:
    """A base's name in the table, and its folder."""
    name, separator, folder = argument.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"{argument!r} is not NAME=FOLDER.")
    return name, folder


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    similarity = commands.add_parser("similarity", help="examples that are sentences")
    similarity.add_argument("--pairs", type=int, default=250, help="pairs of each set")
    similarity.add_argument(
        "--own", action="store_true", help="the package's own examples instead of draws"
    )
    similarity.set_defaults(run=measure_similarity)
    search = commands.add_parser("search", help="examples that are passages and queries")
    search.add_argument("--collections", nargs="+", required=True, metavar="NAME")
    search.add_argument("--documents", type=int, default=150, help="documents of a collection")
    search.add_argument("--queries", type=int, default=60, help="queries, at most")
    search.add_argument(
        "--positions", type=int, default=128, help="positions of a document, besides its prompt"
    )
    search.set_defaults(run=measure_search)
    for command in (similarity, search):
        command.add_argument("data", metavar="DATA", type=Path)
        command.add_argument("bases", metavar="NAME=FOLDER", type=named_folder, nargs="+")
        command.add_argument("--language", choices=("en", "zh"), default="en")
        command.add_argument(
            "--counts", type=int, nargs="+", default=[0, 1, 4, 8], help="numbers of examples"
        )
        command.add_argument(
            "--wordings", nargs="+", metavar="WORDING", help="of those of the table; default: all"
        )
        command.add_argument(
            "--draws", type=int, default=5, help="draws of examples for each number"
        )
    options = parser.parse_args()
    wordings = SENTENCE_WORDINGS if options.run is measure_similarity else PASSAGE_WORDINGS
    known_wordings = wordings[options.language]
    for wording in options.wordings or ():
        if wording not in known_wordings:
            parser.error(f"--wordings {wording!r}: choose from {', '.join(known_wordings)}.")
    options.run(options)


if __name__ == "__main__":
    main()
