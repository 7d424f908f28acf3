"""Retrieval: queries with relevant documents, which each has to find among all documents."""

from __future__ import annotations

from ..task import Task, declare_kind
from ..task_source import TaskSource
from .reranking import RankingKind


class Retrieval(RankingKind):
    """How well a query finds its documents among all."""

    name = "Retrieval"
    detection_order = 20
    main_metric = "ndcg_at_10"
    paper_metric = "recall_at_1000"
    ranks_all_documents = True

    def matches(self, task_source: TaskSource) -> bool:
        """Only folders: tables with these columns are read as Reranking."""
        return task_source.is_beir

    def check(self, task: Task) -> None:
        """Refuse a ranking of one document."""
        super().check(task)
        if len(task.texts) - task.query_count < 2:
            raise ValueError(
                f"{task.name}: a ranking of one document says nothing. Give two documents at least."
            )


declare_kind(Retrieval())
