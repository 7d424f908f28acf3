"""Plans of tune: how many items choose and report, and which labels are taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from inspect import signature
from typing import Any

import pytest

from st_reba import Method
from st_reba.evaluation import Task, trials
from st_reba.evaluation.items import TaskItems
from st_reba.evaluation.kinds.views import views_of
from st_reba.evaluation.readouts import MethodGroup, load_base
from st_reba.evaluation.retrieval_items import labelled_items
from st_reba.evaluation.trials import Trials
from st_reba.evaluation.tune import build_for_texts
from st_reba.evaluation.tune_plan import (
    Purpose,
    RetrievalPlan,
    SimilarityPlan,
    plan_by_labels,
    plan_for_auto,
    plan_search_by_labels,
    plan_search_by_views,
    sample_for_filter,
)

DOCUMENTS = [
    f"Ship {number} left the old harbour. Captain {number} was glad of it."
    for number in range(1100)
]


def labelled_pairs(count: int) -> Task:
    pairs = tuple((number, number + 1, float(number % 3)) for number in range(count))
    return Task("t", "STS", tuple(DOCUMENTS[: count + 1]), pairs)


def labelled_queries(count: int) -> Task:
    """As many queries, each with a document of its own."""
    queries = tuple(f"Which ship is number {number}?" for number in range(count))
    rankings = tuple((number, (count + number,), (1.0,)) for number in range(count))
    texts = (*queries, *DOCUMENTS[:count])
    return Task("t", "Retrieval", texts, rankings, query_count=count)


def item_counts(plan: SimilarityPlan | RetrievalPlan) -> tuple[int, int]:
    return plan.selection_items.item_count, plan.test_items.item_count


def test_of_many_labels_some_choose_and_some_report() -> None:
    assert item_counts(plan_by_labels(labelled_pairs(1000), None, 100, 0)) == (400, 300)
    assert item_counts(plan_search_by_labels(labelled_queries(1000), None, 100, 0)) == (400, 300)


def test_of_many_documents_some_choose_and_some_report() -> None:
    plan = plan_search_by_views(DOCUMENTS, 1000, 0)
    assert (*item_counts(plan), len(plan.documents)) == (200, 150, 667)


@pytest.mark.parametrize(("purpose", "count"), [("similarity", 300), ("search", 200)])
def test_auto_draws_a_thousand_texts_and_chooses_by_some(purpose: Purpose, count: int) -> None:
    plan = plan_for_auto(DOCUMENTS, purpose, 0)
    texts = plan.documents if isinstance(plan, RetrievalPlan) else plan.texts
    assert (plan.selection_items.item_count, len(texts)) == (count, 1000)


def test_a_labelled_query_searches_at_most_a_thousand_other_documents() -> None:
    items = labelled_items(labelled_queries(1100), ["Which ship is number 7?"], 0)
    assert len(items.documents) == 1 + 1000


def test_labels_are_thirty_items_without_others_to_learn_from() -> None:
    texts = DOCUMENTS[:60]
    assert sum(item_counts(plan_by_labels(labelled_pairs(30), texts, 100, 0))) == 30
    with pytest.raises(ValueError, match="t: STS, 29 items. Give 30 or more items"):
        plan_by_labels(labelled_pairs(29), texts, 100, 0)
    classes = tuple((number, str(number % 2)) for number in range(30))
    task = Task("t", "Classification", tuple(texts), classes)
    assert sum(item_counts(plan_by_labels(task, texts, 100, 0))) == 30
    with pytest.raises(ValueError, match="30 to learn from. Give 30 .*, without train"):
        plan_by_labels(replace(task, train=classes), texts, 100, 0)


def test_auto_without_a_seed_draws_by_0() -> None:
    assert signature(build_for_texts).parameters["seed"].default == 0


def test_without_texts_no_filter_is_fitted() -> None:
    assert sample_for_filter([], 32) == []


def test_a_method_whose_vectors_alone_are_too_large_is_read_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    method_counts: list[int] = []

    def counted_group(base_model: Any, methods: Sequence[Method]) -> MethodGroup:
        method_counts.append(len(methods))
        return MethodGroup(base_model, methods)

    monkeypatch.setattr(trials, "MethodGroup", counted_group)
    monkeypatch.setattr(trials, "_MAX_BYTES", 1)
    text_views = TaskItems(views_of(DOCUMENTS[:3]))
    methods = [Method("classical"), Method("classical", pooling="mean")]
    candidates = Trials(load_base("mini"), text_views, [None]).score_pass(methods)
    assert method_counts == [1, 1]
    assert [candidate.method for candidate in candidates] == methods


def test_another_limit_of_the_input_is_another_pass() -> None:
    """Though none of the texts is cut: two copies of one may be."""
    text_views = TaskItems(views_of(DOCUMENTS[:2]))
    keys = set[str]()
    for max_seq_length in (64, 65):
        base_model = load_base("mini", max_seq_length=max_seq_length)
        keys.add(Trials(base_model, text_views, [None]).pass_key([Method("echo")]))
    assert len(keys) == 2


def test_attention_is_not_read_where_a_base_shows_none(monkeypatch: pytest.MonkeyPatch) -> None:
    text_views = TaskItems(views_of(DOCUMENTS[:20]))
    base_trials = Trials(load_base("mini"), text_views, [None])
    methods = [Method("prompteol", read="attention"), Method("prompteol")]

    def planned_methods() -> Sequence[Sequence[Method]]:
        return base_trials.plan_passes(methods, pytest.fail)

    assert planned_methods() == [methods]
    monkeypatch.setattr(trials, "shows_attention", lambda model: False)
    assert planned_methods() == [methods[1:]]
