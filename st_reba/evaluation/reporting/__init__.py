"""Tables and figures of results, beside the numbers that the papers print."""

from __future__ import annotations

from .papers import PaperScore, paper_scores
from .report import Report, make_report, write_report

__all__ = ["PaperScore", "Report", "make_report", "paper_scores", "write_report"]
