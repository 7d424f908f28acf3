"""What tune does for each purpose: the items, the methods, the filter, and what the choice is compared with."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Literal, TypeVar

import torch
from sentence_transformers import SentenceTransformer

from ..encode import encode_texts
from ..filter_options import MIN_FOR_DIRECTIONS
from ..filters import Filter
from ..methods import Method
from ..sentences import QUERY_SAMPLE, sample_sentences
from .items import TaskItems
from .kinds.views import views_of
from .readouts import build_with_prompts, depth_of
from .retrieval_items import (
    RetrievalItems,
    draw_documents,
    labelled_items,
    relevant_documents,
    retrieval_views,
)
from .task import KINDS, Task, TextIndex
from .texts import common_script, draw_texts, script_of
from .trials import CLEAR_ERRORS, Candidate, find_candidate
from .tried_methods import (
    default_on,
    published_methods,
    search_methods,
    similarity_methods,
)
from .tune_report import ReportEntry, TuneRow, report_rows
from .vectors import REMOVED_DIRECTIONS, search_filter_kinds
from .word_scores import word_scores

Purpose = Literal["similarity", "search"]
Item = TypeVar("Item")
# Share of the items by which the method is selected; it is then scored on the others.
SELECTION_SHARE = 2 / 3
# The most selection and test items, for unlabelled texts and for labelled items.
MAX_SELECTION_VIEWS = 200
MAX_TEST_VIEWS = 150
MAX_SELECTION_LABELS = 400
MAX_TEST_LABELS = 300
# With fewer labels, the choice would be chance.
MIN_LABELS = 30
# With fewer items, the report warns that the choice is uncertain.
STEADY_COUNT = 200
# For ``build(base, "auto")``: texts that are drawn, and how many of them are selection items.
AUTO_SAMPLE = 1000
AUTO_SELECTION: Mapping[str, int] = {"similarity": 300, "search": 200}

_VIEWS_NOTE = (
    "A score (0 to 1) says how well parts of a text find each other. It only compares methods."
)
_SEARCH_VIEWS_NOTE = (
    "A score (0 to 1) says how early a search for a sentence of a document finds the rest of the document, "
    "among those of all others. It only compares methods."
)
_KEPT_DEFAULT_NOTE = (
    "The default of build is kept unless another method's score is above its own by "
    f"{CLEAR_ERRORS} standard errors. Labels (--labels) tell more."
)
_SEARCH_LABELS_NOTE = "Scores are nDCG@10 of the labelled queries."
_WHITENED_NOTE = (
    "Whitened: half-whitened as an index does by default (whiten=True); "
    "the choice brings its own filter."
)
_NO_FILTER_NOTE = (
    "No filter was best. An index whitens such a model by default: "
    "build it with whiten=False (--no-whiten)."
)
_SCRIPTS_NOTE = (
    "The texts are in several scripts. Where languages are not compared, tune on each by itself."
)


@dataclass(frozen=True, eq=False)
class SimilarityPlan:
    """Choose by parts of texts, or by labelled items.

    Args:
        selection_items, test_items: Items by which the method is selected, and items, not used for
            that, on which it is then scored.
        filter_texts: Texts that filters are fitted on; none of them is in the test items.
        texts: All texts.
    """

    selection_items: TaskItems
    test_items: TaskItems
    filter_texts: Sequence[str]
    texts: Sequence[str]

    @property
    def is_by_views(self) -> bool:
        """Whether the method is selected by parts of texts, not by labels."""
        return self.selection_items.kind == "Views"

    @property
    def script(self) -> str:
        """The script of most texts."""
        return common_script(self.texts)

    def methods(self, depth: int, *, is_small: bool = False) -> list[Method]:
        """The methods that are tried, or the few that cover most cases, on a base of L layers (``depth``)."""
        has_labels = not self.is_by_views
        return similarity_methods(depth, self.script, is_small=is_small, has_labels=has_labels)

    def filter_kinds(self, base_model: SentenceTransformer) -> list[str | None]:
        """Kinds of filters that are tried, None for none."""
        if not sample_for_filter(self.filter_texts, base_model.get_embedding_dimension() or 0):
            return [None]
        return [None, "abtt"]

    def find_default(
        self, candidates: Sequence[Candidate], base_model: SentenceTransformer
    ) -> Candidate | None:
        """The default of `build`, which stays unless another candidate is clearly better.

        Args:
            candidates: All that were scored.
            base_model: A model from :func:`~st_reba.evaluation.readouts.load_base`.

        Returns:
            None: the method is selected by labels, or the default was left out.
        """
        if not self.is_by_views:
            return None
        return find_candidate(candidates, default_on(base_model, self.script), None)

    def with_all_texts(self) -> SimilarityPlan:
        """The plan with filters that are fitted on all texts, for what is saved once the test items are scored."""
        return replace(self, filter_texts=self.texts)

    def fit_filter(self, model: SentenceTransformer, filter_kind: str) -> Filter:
        """Fit a filter for a model without one; there is one kind."""
        sample = sample_for_filter(self.filter_texts, model.get_embedding_dimension() or 0)
        sample_vectors = encode_texts(model, sample)
        return Filter.fit(sample_vectors, "abtt", r=REMOVED_DIRECTIONS, model=model)

    def report(
        self,
        base_model: SentenceTransformer,
        choice: ReportEntry,
        candidates: Sequence[Candidate],
    ) -> tuple[TuneRow, ...]:
        """The choice, the default of ``build`` and the papers' methods, on the test items."""
        entries = [choice]
        default = default_on(base_model, self.script)
        if find_candidate(candidates, default, None):
            entries.append(ReportEntry("default", default))
        scores = {candidate.method: candidate.score for candidate in candidates}
        masks_changed = any(candidate.method.setting for candidate in candidates)
        for name, method in published_methods(
            depth_of(base_model),
            self.script,
            scores,
        ).items():
            if masks_changed or not method.setting:
                entries.append(ReportEntry(name, method))
        return report_rows(base_model, self.test_items, entries)

    def notes(self, choice: Candidate) -> list[str]:
        """How to read the scores, and reasons to doubt the choice."""
        notes = [_VIEWS_NOTE, _KEPT_DEFAULT_NOTE] if self.is_by_views else []
        notes += note_few_items(self.selection_items.item_count)
        script_counts = Counter(map(script_of, self.texts))
        rare_count = len(self.texts) / 20
        if sum(count > rare_count for count in script_counts.values()) > 1:
            notes.append(_SCRIPTS_NOTE)
        return notes


def note_few_items(item_count: int) -> list[str]:
    """A note where there are few selection items."""
    if item_count >= STEADY_COUNT:
        return []
    return [f"Only {item_count} items chose: with {STEADY_COUNT} or more the choice is steadier."]


def sample_for_filter(texts: Sequence[str], width: int) -> list[str]:
    """Texts to fit a filter for d dimensions (``width``) on, with their views if needed.

    Returns:
        An empty list if even the views do not suffice.
    """
    min_texts = max(MIN_FOR_DIRECTIONS, width)
    if len(texts) >= min_texts:
        return list(texts)
    if not texts:
        return []
    distinct_texts = list(dict.fromkeys([*texts, *views_of(texts).texts]))
    if len(distinct_texts) < min_texts:
        return []
    return distinct_texts[:min_texts]


@dataclass(frozen=True, eq=False)
class RetrievalPlan:
    """Choose by queries and documents.

    Args:
        selection_items, test_items: As for :class:`SimilarityPlan`.
        documents: Documents that filters are fitted on.
        all_documents: These, and those of the test items.
    """

    selection_items: RetrievalItems
    test_items: RetrievalItems
    documents: Sequence[str]
    all_documents: Sequence[str]

    @property
    def _script(self) -> str:
        """The script of most documents."""
        return common_script(self.documents)

    def methods(self, depth: int, *, is_small: bool = False) -> list[Method]:
        """As for :class:`SimilarityPlan`."""
        return search_methods(depth, self._script, is_small=is_small)

    def filter_kinds(self, base_model: SentenceTransformer) -> list[str | None]:
        """As for :class:`SimilarityPlan`."""
        document_count = min(len(self.documents), len(self.selection_items.documents))
        return search_filter_kinds(document_count, len(self.selection_items.query_sample))

    def find_default(
        self, candidates: Sequence[Candidate], base_model: SentenceTransformer
    ) -> Candidate | None:
        """The default of `build`, as an index whitens it; otherwise as for `SimilarityPlan`."""
        if self.selection_items.is_labelled:
            return None
        strongest_filter = self.filter_kinds(base_model)[-1]
        return find_candidate(candidates, default_on(base_model, self._script), strongest_filter)

    def with_all_texts(self) -> RetrievalPlan:
        """As for :class:`SimilarityPlan`."""
        return replace(self, documents=self.all_documents)

    def fit_filter(self, model: SentenceTransformer, filter_kind: str) -> Filter:
        """Fit a filter on documents, and on sentences of them in place of queries, for a model without one."""
        query_vectors = encode_texts(
            model, sample_sentences(self.documents, QUERY_SAMPLE), task="query"
        )
        document_vectors = encode_texts(model, self.documents, task="document")
        if filter_kind == "center":
            return Filter.fit(document_vectors, "center", query_vectors=query_vectors, model=model)
        search_filter = Filter.fit_for_search(document_vectors, query_vectors, model=model)
        assert search_filter is not None  # search_filter_kinds counts the vectors
        return search_filter

    def report(
        self,
        base_model: SentenceTransformer,
        choice: ReportEntry,
        candidates: Sequence[Candidate],
    ) -> tuple[TuneRow, ...]:
        """The choice; the default of ``build``, also as an index whitens it; papers' methods, and BM25."""
        default = default_on(base_model, self._script)
        default_model = build_with_prompts(base_model, default, check=False)
        default_filter = self.fit_filter(default_model, "whiten")
        entries = [
            choice,
            ReportEntry("default, whitened", default, default_filter),
            ReportEntry("default", default),
            ReportEntry("classical, mean", Method("classical", pooling="mean")),
            ReportEntry("PromptEOL", Method("prompteol")),
        ]
        return (
            *report_rows(base_model, self.test_items, entries),
            self._score_words(),
        )

    def _score_words(self) -> TuneRow:
        """The row of BM25."""
        start_time = time.perf_counter()
        similarities = word_scores(self.test_items.queries, self.test_items.documents)
        scores = self.test_items.score_similarities(similarities)
        seconds = time.perf_counter() - start_time
        return TuneRow.of_scores(
            "BM25",
            None,
            torch.from_numpy(scores),
            seconds=1000 * seconds / self.test_items.text_count,
        )

    def notes(self, choice: Candidate) -> list[str]:
        """How to read the scores, and reasons to doubt the choice."""
        notes = [_SEARCH_VIEWS_NOTE, _KEPT_DEFAULT_NOTE]
        if self.selection_items.is_labelled:
            notes = [_SEARCH_LABELS_NOTE]
        notes.append(_WHITENED_NOTE)
        notes += note_few_items(self.selection_items.item_count)
        if choice.filter_kind is None:
            notes.append(_NO_FILTER_NOTE)
        return notes


TuningPlan = SimilarityPlan | RetrievalPlan


def divide(items: Iterable[Item], seed: int) -> tuple[list[Item], list[Item]]:
    """Selection and test items."""
    shuffled_items = list(items)
    Random(seed).shuffle(shuffled_items)
    selection_count = round(SELECTION_SHARE * len(shuffled_items))
    return shuffled_items[:selection_count], shuffled_items[selection_count:]


def plan_by_views(
    texts: Iterable[str],
    sample_size: int,
    seed: int,
) -> SimilarityPlan:
    """Plan a choice by whether parts of texts find each other; no text is in both sets of items."""
    drawn_texts = draw_texts(texts, sample_size, seed)
    selection_items, test_items = divide(sorted(drawn_texts), seed)
    return SimilarityPlan(
        TaskItems(views_of(selection_items[:MAX_SELECTION_VIEWS])),
        TaskItems(views_of(test_items[:MAX_TEST_VIEWS])),
        selection_items,
        drawn_texts,
    )


def plan_by_labels(
    task: Task,
    texts: Iterable[str] | None,
    sample_size: int,
    seed: int,
) -> SimilarityPlan:
    """Plan a choice by labelled items; a filter sees no text of the test items.

    Args:
        task: The items.
        texts: Texts that filters are fitted on; None: those of the task.
        sample_size: Number of texts to draw.
        seed: Seed of all draws.
    """
    if not task.task_kind.chooses_methods or task.train or len(task.items) < MIN_LABELS:
        kinds = ", ".join(kind.name for kind in KINDS.values() if kind.chooses_methods)
        raise ValueError(
            f"labels: {task}. Give {MIN_LABELS} or more items of {kinds}, without train."
        )
    drawn_texts = draw_texts(task.texts if texts is None else texts, sample_size, seed)
    selection_items, test_items = divide(task.items, seed)
    test_task = restrict_task(task, test_items[:MAX_TEST_LABELS])
    hidden_texts = set(test_task.texts)
    return SimilarityPlan(
        TaskItems(restrict_task(task, selection_items[:MAX_SELECTION_LABELS])),
        TaskItems(test_task),
        [text for text in drawn_texts if text not in hidden_texts],
        drawn_texts,
    )


def restrict_task(task: Task, items: Iterable[tuple[Any, ...]]) -> Task:
    """A task of some items, over only their texts."""
    texts: TextIndex[str] = TextIndex()

    def move_indices(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(move_indices, value))
        return texts.add(task.texts[value])

    moved_items: list[tuple[Any, ...]] = []
    for *indices, label in items:
        moved_items.append((*map(move_indices, indices), label))
    return Task(
        task.name,
        task.kind,
        texts.texts,
        tuple(moved_items),
    )


def plan_search_by_views(
    texts: Iterable[str],
    sample_size: int,
    seed: int,
) -> RetrievalPlan:
    """Plan a choice by whether sentences find the rest of their documents.

    No document is in both sets of items.
    """
    selection_items, test_items = divide(
        sorted(draw_documents(texts, sample_size, seed)),
        seed,
    )
    return RetrievalPlan(
        retrieval_views(selection_items[:MAX_SELECTION_VIEWS], seed),
        retrieval_views(test_items[:MAX_TEST_VIEWS], seed),
        selection_items,
        [*selection_items, *test_items],
    )


def plan_search_by_labels(
    task: Task,
    texts: Iterable[str] | None,
    sample_size: int,
    seed: int,
) -> RetrievalPlan:
    """Plan a choice by labelled queries; no query is in both sets of items.

    Args:
        task: Of the kind Retrieval.
        texts, sample_size, seed: As for `plan_by_labels`.
    """
    documents = draw_texts(
        task.texts[task.query_count :] if texts is None else texts,
        sample_size,
        seed,
    )
    selection_items, test_items = divide(relevant_documents(task), seed)
    return RetrievalPlan(
        labelled_items(task, selection_items[:MAX_SELECTION_LABELS], seed),
        labelled_items(task, test_items[:MAX_TEST_LABELS], seed),
        documents,
        documents,
    )


def plan_for_auto(
    texts: Iterable[str],
    purpose: Purpose,
    seed: int,
) -> TuningPlan:
    """A plan with fewer selection items; nothing is reported, so they stand for the test items too."""
    if purpose == "search":
        documents = draw_documents(texts, AUTO_SAMPLE, seed)
        views = retrieval_views(documents[: AUTO_SELECTION[purpose]], seed)
        return RetrievalPlan(views, views, documents, documents)
    drawn_texts = draw_texts(texts, AUTO_SAMPLE, seed)
    Random(seed).shuffle(drawn_texts)
    text_items = TaskItems(views_of(drawn_texts[: AUTO_SELECTION[purpose]]))
    return SimilarityPlan(text_items, text_items, drawn_texts, drawn_texts)
