"""What the papers call tasks and metrics, and what mteb and the evaluations call them."""

from __future__ import annotations

# The papers' names of tasks that mteb calls otherwise.
TASKS = {
    "CMedQAv1": "CMedQAv1-reranking",
    "CMedQAv2": "CMedQAv2-reranking",
}
# The papers' names of metrics, those of mteb's earlier versions, and what they are called now.
METRICS = {
    "cos_sim_accuracy": ("cosine_accuracy",),
    "cos_sim_pearson": ("cosine_pearson",),
    "cos_sim_spearman": ("cosine_spearman",),
    "map": ("map_at_1000",),
    "f1": ("f1", "entity F1"),
    "micro_f1": ("micro_f1", "micro F1"),
    "macro_f1": ("macro_f1", "macro F1"),
    "weighted_f1": ("weighted_f1", "weighted F1"),
}
# A paper's set of tasks, and the suite of st-reba evaluate mteb that is the same; MTEB-MINI's is not whole.
SUITES = {"C-MTEB": "C-MTEB", "MTEB": "MTEB-56", "MTEB-15": "MTEB-15"}
KINDS = {
    "classification": "Classification",
    "pair classification": "PairClassification",
    "clustering": "Clustering",
    "retrieval": "Retrieval",
    "reranking": "Reranking",
    "STS": "STS",
    "summarization": "Summarization",
}


def task_name(name: str) -> str:
    """What a task is called here; spelling apart.

    Example:
        >>> task_name("CMedQAv1") == task_name("CMedQAv1-reranking"), task_name("CoNLL-2003")
        (True, 'conll2003')
    """
    return "".join(letter for letter in TASKS.get(name, name).casefold() if letter.isalnum())


def metric_names(name: str) -> tuple[str, ...]:
    """What a paper's metric may be called here.

    Example:
        >>> metric_names("cos_sim_pearson"), metric_names("v_measure")
        (('cosine_pearson',), ('v_measure',))
    """
    return METRICS.get(name, (name,))
