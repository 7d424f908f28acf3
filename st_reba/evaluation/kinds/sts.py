"""STS: pairs of texts with a score of their similarity."""

from __future__ import annotations

from ..measures import correlate_columns, correlate_ranks
from ..tables import read_score, read_text
from ..task import declare_kind
from .pairs import PairKind


class STS(PairKind):
    """How well cosines follow the scores."""

    name = "STS"
    chooses_methods = True
    column_readers = {"text1": read_text, "text2": read_text, "score": read_score}
    detection_order = 60
    metrics = {"cosine_spearman": correlate_ranks, "cosine_pearson": correlate_columns}
    main_metric = "cosine_spearman"
    paper_metric = "cosine_pearson"


declare_kind(STS())
