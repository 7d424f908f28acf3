"""Pair classification: pairs of texts that belong together, and pairs that do not."""

from __future__ import annotations

from sentence_transformers.sentence_transformer.evaluation import BinaryClassificationEvaluator
from sklearn.metrics import average_precision_score

from ..tables import read_text, read_truth
from ..task import Evidence, declare_kind
from .pairs import PairKind


def average_precision(evidence: Evidence) -> float:
    """Average precision of the cosines, 0 where no pair belongs together."""
    cosines, truth = evidence.T
    if not truth.any():
        return 0.0
    return float(average_precision_score(truth, cosines))


def best_accuracy(evidence: Evidence) -> float:
    """Accuracy at the best threshold."""
    cosines, truth = evidence.T
    accuracy, _ = BinaryClassificationEvaluator.find_best_acc_and_threshold(cosines, truth, True)
    return float(accuracy)


class PairClassification(PairKind):
    """How well cosines tell the pairs apart."""

    name = "PairClassification"
    chooses_methods = True
    column_readers = {"text1": read_text, "text2": read_text, "label": read_truth}
    detection_order = 70
    metrics = {"cosine_ap": average_precision, "cosine_accuracy": best_accuracy}
    main_metric = "cosine_ap"
    paper_metric = "cosine_accuracy"


declare_kind(PairClassification())
