"""tune for search: prompts of queries and documents, layers and readings, and what search needs of vectors."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor

from ..encode import computed_positions, encode_texts
from ..filters import Filter
from ..methods import DEFAULT, Method
from ..prompts import TEMPLATES
from ..sentences import QUERY_SAMPLE, sample_sentences
from .readouts import Readout, depth_of, of_base, read, vectors
from .retrieval_labels import labelled_items, relevant_documents
from .retrieval_views import RetrievalItems, Scores, draw_documents, retrieval_views
from .search import Pass, Scored, Search
from .search_filter import EncodedItems, Vectors, usable_kinds
from .tasks import Task
from .tune_plan import (
    CHOOSING_SHARE,
    MOST_CHOOSING,
    MOST_REPORTING,
    TuneRow,
    TuningPlan,
)
from .views import draw_texts, script_of
from .word_scores import word_scores

Wording = str | Mapping[str, str]
# Beside the named templates for search, in the language of a script.
WORDINGS: Mapping[str, tuple[Wording, ...]] = {
    "": (
        {
            "query": 'Search query: "{text}" One keyword for it: "',
            "document": 'Search result: "{text}" One keyword for it: "',
        },
        {
            "query": 'A question: "{text}" In one word, its answer is about: "',
            "document": 'A text: "{text}" In one word, it is about: "',
        },
        "prompteol-says",
    ),
    "CJK": (
        {
            "query": "搜索：“{text}”的关键词是：“",
            "document": "文章：“{text}”的关键词是：“",
        },
        {
            "query": "问：“{text}”用一个词概括，答案是关于：“",
            "document": "文：“{text}”用一个词概括，内容是关于：“",
        },
        "prompteol-zh",
    ),
}
# For ``build(base, "auto")``: fewer documents, and fewer wordings.
AUTO_CHOOSING = 200
AUTO_WORDINGS = 2

_VIEWS_NOTE = (
    "A score (0 to 1) says how early a search for a sentence of a document finds the rest of the document, "
    "among those of all others. It only compares methods."
)
_LABELS_NOTE = "Scores are nDCG@10 of the labelled queries."
_WHITENED_NOTE = "Whitened: half-whitened as an index does by default (whiten=True); the choice brings its own filter."
_NO_FILTER_NOTE = (
    "No filter was best. An index whitens such a model by default: build it with whiten=False (--no-whiten)."
)


def search_wordings(script: str) -> list[Wording]:
    """The templates that are tried: those of ``TEMPLATES`` for search, and the table's, in a script's language."""
    is_cjk = script == "CJK"
    wordings: list[Wording] = []
    for name, template in TEMPLATES.items():
        is_for_search = isinstance(template, Mapping) and name.startswith("prompteol")
        if is_for_search and name.endswith("-zh") == is_cjk:
            wordings.append(name)
    wordings += WORDINGS.get(script, WORDINGS[""])
    return wordings


class RetrievalPass(Pass):
    """A pass of which the attention outputs of the upper half are read too, as ``build`` does by default."""

    def readouts(self, depth: int) -> list[Readout]:
        """The readouts of layers above the lowest changed mask, and of attention outputs."""
        readouts = super().readouts(depth)
        if self.outputs:
            upper_half = Readout(depth, "end", depth // 2 + 1)
            readouts.append(upper_half)
        return readouts


def retrieval_passes(depth: int, script: str, *, small: bool = False) -> list[Pass]:
    """The inputs and masks that are tried.

    Args:
        depth: The base's number of layers L.
        script: Script of the texts; see :func:`~st_reba.evaluation.views.script_of`.
        small: The few that cover most.
    """
    wordings = search_wordings(script)
    if small:
        wordings = wordings[:AUTO_WORDINGS]
    passes: list[Pass] = []
    for wording in wordings:
        prompt_method = Method("prompteol", template=wording)
        passes.append(RetrievalPass(prompt_method, ("end", "mean"), outputs=True))
    bare_method = Method("classical", pooling="mean")
    passes.append(Pass(bare_method, ("mean", "last")))
    if not small:
        half_depth = depth // 2
        masked_method = replace(bare_method, setting="mask0-bidir", k=depth - half_depth)
        passes.append(Pass(masked_method, ("mean",), half_depth))
    return passes


class RetrievalSearch(Search):
    """Runs passes over queries and over documents, and scores their readouts with each filter.

    Args:
        base: A model from :func:`~st_reba.evaluation.readouts.opened`.
        items: The items that choose.
        documents: Documents that the filter of the choice is fitted on.
        folder: Where finished passes are kept; None: nowhere.
    """

    items: RetrievalItems

    def __init__(
        self,
        base: SentenceTransformer,
        items: RetrievalItems,
        documents: Sequence[str],
        folder: Path | None = None,
    ) -> None:
        self.query_texts = list(dict.fromkeys([*items.queries, *items.query_sample]))
        super().__init__(base, items, documents, folder)

    @property
    def text_count(self) -> int:
        """Number of texts that a pass runs."""
        return len(self.query_texts) + len(self.items.documents)

    def count_positions(self, model: SentenceTransformer) -> int:
        """Positions that a model computes for queries and documents."""
        return item_positions(model, self.items)

    def usable_filters(self, texts: Sequence[str]) -> list[str | None]:
        """Kinds of filters that are tried, None for none."""
        document_count = min(len(texts), len(self.items.documents))
        return usable_kinds(document_count, len(self.items.query_sample))

    def judged(
        self,
        model: SentenceTransformer,
        readouts: Sequence[Readout],
    ) -> Iterator[tuple[Readout, str | None, Tensor]]:
        """Run a pass over queries and one over documents, and give the scores of each readout with each filter."""
        start_time = time.perf_counter()
        query_vectors = read(model, readouts, self.query_texts, task="query")
        document_vectors = read(model, readouts, self.items.documents, task="document")
        self.seconds += time.perf_counter() - start_time
        for readout in readouts:
            encoded_items = self._encoded(query_vectors[readout], document_vectors[readout])
            for kind in self.filters:
                scores = self.items.score(encoded_items.similarities(kind))
                yield readout, kind, torch.from_numpy(scores).float()

    def _encoded(self, query_vectors: Vectors, document_vectors: Vectors) -> EncodedItems:
        row_of_query = {text: row for row, text in enumerate(self.query_texts)}
        sample_rows = [row_of_query[sentence] for sentence in self.items.query_sample]
        return EncodedItems(
            queries=query_vectors[: len(self.items.queries)],
            query_sample=query_vectors[sample_rows],
            documents=document_vectors,
        )


def item_positions(model: SentenceTransformer, items: RetrievalItems) -> int:
    """Positions that a model computes for queries and documents."""
    query_positions = computed_positions(model[0], items.queries, {"task": "query"})
    document_positions = computed_positions(model[0], items.documents, {"task": "document"})
    return sum(query_positions) + sum(document_positions)


def fit_search_filter(
    model: SentenceTransformer,
    documents: Sequence[str],
    kind: str = "whiten",
) -> Filter:
    """Fit the filter of a kind of ``usable_kinds`` on documents, and on sentences of them in place of queries."""
    query_sentences = sample_sentences(documents, QUERY_SAMPLE)
    query_vectors = encode_texts(model, query_sentences, task="query")
    document_vectors = encode_texts(model, documents, task="document")
    if kind == "center":
        return Filter.fit(document_vectors, "center", query_vectors=query_vectors, model=model)
    whole_filter = Filter.fit_for_search(document_vectors, query_vectors, model=model)
    assert whole_filter is not None  # as usable_kinds counts
    return whole_filter


class RetrievalPlan(TuningPlan):
    """Choose by queries and documents.

    Args:
        choosing, reporting: The items that choose, and that report.
        documents: Documents that filters are fitted on.
    """

    def __init__(
        self,
        choosing: RetrievalItems,
        reporting: RetrievalItems,
        documents: Sequence[str],
    ) -> None:
        kind = "SearchViews"
        if choosing.is_labelled:
            kind = "Retrieval"
        super().__init__(kind, (len(choosing.queries), len(reporting.queries)))
        self.choosing = choosing
        self.reporting = reporting
        self.documents = documents
        self.script = script_of(" ".join(documents[:200]))

    def open_search(self, base: SentenceTransformer, passes_folder: Path | None) -> RetrievalSearch:
        """The search over the items that choose, whose finished passes are kept in a folder."""
        return RetrievalSearch(base, self.choosing, self.documents, passes_folder)

    def passes(self, depth: int, *, small: bool = False) -> list[Pass]:
        """The inputs and masks that are tried."""
        return retrieval_passes(depth, self.script, small=small)

    def fit_filter(self, model: SentenceTransformer, filter_kind: str) -> Filter:
        """Fit a filter for a model without one."""
        return fit_search_filter(model, self.documents, filter_kind)

    def rows(
        self,
        base: SentenceTransformer,
        method: Method,
        candidates: Sequence[Scored],
    ) -> tuple[TuneRow, ...]:
        """The choice, and what it is compared with, on the items that report."""
        return RetrievalReport(base, self.reporting, self.documents).rows(method)

    def notes(self, choice: Scored) -> tuple[str, ...]:
        """How to read the scores, and reasons to doubt the choice."""
        notes = [_VIEWS_NOTE]
        if self.choosing.is_labelled:
            notes = [_LABELS_NOTE]
        notes.append(_WHITENED_NOTE)
        choosing_count = len(self.choosing.queries)
        if choosing_count < 200:
            notes.append(f"Only {choosing_count} items chose: with 200 or more the choice is steadier.")
        if choice.filter_kind is None:
            notes.append(_NO_FILTER_NOTE)
        return tuple(notes)


def plan_by_views(texts: Iterable[str], sample: int, seed: int) -> RetrievalPlan:
    """Sentences of documents look for the rest of them; no document both chooses and reports."""
    documents = sorted(draw_documents(texts, sample, seed))
    Random(seed).shuffle(documents)
    choosing_count = round(CHOOSING_SHARE * len(documents))
    choosing_documents = documents[:choosing_count]
    reporting_documents = documents[choosing_count:]
    return RetrievalPlan(
        retrieval_views(choosing_documents[:MOST_CHOOSING], seed),
        retrieval_views(reporting_documents[:MOST_REPORTING], seed),
        choosing_documents,
    )


def plan_for_auto(texts: Iterable[str], sample: int, seed: int) -> RetrievalPlan:
    """As `plan_by_views`, with fewer documents that choose, and none that reports."""
    documents = draw_documents(texts, sample, seed)
    choosing = retrieval_views(documents[:AUTO_CHOOSING], seed)
    return RetrievalPlan(choosing, choosing, documents)


def plan_by_labels(
    task: Task,
    texts: Iterable[str] | None,
    sample: int,
    seed: int,
) -> RetrievalPlan:
    """Labelled queries look for their documents; no query both chooses and reports.

    Args:
        task: Of the kind Retrieval.
        texts: Documents that filters are fitted on; None: those of the task.
        sample: How many of these are drawn.
        seed: Seed of all draws.
    """
    if texts is None:
        texts = task.texts[task.queries :]
    documents = draw_texts(texts, sample, seed)
    queries = list(relevant_documents(task))
    Random(seed).shuffle(queries)
    choosing_count = round(CHOOSING_SHARE * len(queries))
    choosing_queries = queries[:choosing_count]
    reporting_queries = queries[choosing_count:]
    return RetrievalPlan(
        labelled_items(task, choosing_queries[:MOST_CHOOSING], seed),
        labelled_items(task, reporting_queries[:MOST_REPORTING], seed),
        documents,
    )


@dataclass(frozen=True, eq=False)
class TimedVectors:
    """Vectors of items, and the seconds that a thousand texts took."""

    queries: Vectors
    documents: Vectors
    seconds: float


class RetrievalReport:
    """Scores methods on the items that report.

    Args:
        base: A model from :func:`~st_reba.evaluation.readouts.opened`.
        items: The items that report.
        documents: Other documents, which filters are fitted on.
    """

    def __init__(
        self,
        base: SentenceTransformer,
        items: RetrievalItems,
        documents: Sequence[str],
    ) -> None:
        self.base = base
        self.items = items
        self.documents = documents
        self.plain_work = item_positions(base, items) * depth_of(base)
        self._encoded: dict[Method, TimedVectors] = {}

    def rows(self, choice: Method) -> tuple[TuneRow, ...]:
        """The choice; what ``build`` makes by default, also as an index whitens it; and what papers and words do."""
        default_method = Method.parse(DEFAULT)
        choice_filter = None
        if choice.filter is not None:
            choice_filter = Filter.load(choice.filter)
        default_model = of_base(self.base, default_method, check=False)
        default_filter = fit_search_filter(default_model, self.documents)
        return (
            self.row("chosen", choice, choice_filter),
            self.row("default, whitened", default_method, default_filter),
            self.row("default", default_method),
            self.row("classical, mean", Method("classical", pooling="mean")),
            self.row("PromptEOL", Method("prompteol")),
            self.word_row(),
        )

    def row(
        self,
        name: str,
        method: Method,
        fitted_filter: Filter | None = None,
    ) -> TuneRow:
        """The row of a method with a filter."""
        unfiltered_method = replace(method, filter=None)
        timed_vectors = self._encode(unfiltered_method)
        query_vectors = timed_vectors.queries
        document_vectors = timed_vectors.documents
        if fitted_filter is not None:
            query_vectors = fitted_filter.apply(query_vectors, "query").astype(np.float32)
            document_vectors = fitted_filter.apply(document_vectors, "document").astype(np.float32)
        scored_items = EncodedItems(query_vectors, query_vectors, document_vectors)
        scores = self.items.score(scored_items.similarities(None))
        built_model = of_base(self.base, unfiltered_method, check=False)
        computed_work = item_positions(built_model, self.items) * depth_of(built_model)
        return TuneRow(
            name=name,
            method=method,
            score=float(scores.mean()),
            error=standard_error(scores),
            cost=computed_work / self.plain_work,
            seconds=timed_vectors.seconds,
            megabytes=sum(weight.nbytes for weight in built_model.parameters()) / 1e6,
        )

    def word_row(self) -> TuneRow:
        """The row of BM25."""
        start_time = time.perf_counter()
        scores = self.items.score(word_scores(self.items.queries, self.items.documents))
        seconds = time.perf_counter() - start_time
        return TuneRow(
            name="BM25",
            method=None,
            score=float(scores.mean()),
            error=standard_error(scores),
            cost=0.0,
            seconds=self._per_thousand(seconds),
            megabytes=0.0,
        )

    def _encode(self, method: Method) -> TimedVectors:
        if method not in self._encoded:
            start_time = time.perf_counter()
            query_vectors = vectors(self.base, [method], self.items.queries, task="query", check=False)
            document_vectors = vectors(self.base, [method], self.items.documents, task="document", check=False)
            seconds = time.perf_counter() - start_time
            self._encoded[method] = TimedVectors(
                queries=query_vectors[method],
                documents=document_vectors[method],
                seconds=self._per_thousand(seconds),
            )
        return self._encoded[method]

    def _per_thousand(self, seconds: float) -> float:
        text_count = len(self.items.queries) + len(self.items.documents)
        return 1000 * seconds / text_count


def standard_error(scores: Scores) -> float:
    """Standard error of the mean."""
    return float(scores.std(ddof=1) / np.sqrt(len(scores)))
