"""What every purpose of tune has in common: the steps that a plan fills, and the report with the files beside it."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..hub.save import save
from ..methods import Method
from ..recipe import LOADING, save_recipe

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from ..filters import Filter
    from .search import Pass, Scored, Search

Purpose = Literal["similarity", "search"]
# Of the items, this share chooses and the others report, each up to so many.
CHOOSING_SHARE = 2 / 3
MOST_CHOOSING = 400
MOST_REPORTING = 300

_ITEM_NAMES = {
    "Views": "texts",
    "SearchViews": "documents",
    "Classification": "labelled texts",
    "Reranking": "labelled queries",
    "Retrieval": "labelled queries",
}
_TABLE_HEAD = (
    "| method | score | standard error | work | seconds per 1,000 texts | MB |",
    "|---|--:|--:|--:|--:|--:|",
)
_WHAT_WORK_IS = (
    "\nWork: positions that are computed, times layers, as a multiple of one pass of the text through the whole base."
)


@dataclass(frozen=True)
class TuneRow:
    """A method on the items that report.

    Args:
        name: Its name in the report.
        method: The method, with its filter's file; None: it needs no model.
        score: The mean over the items.
        error: The standard error of the score.
        cost: Positions that are computed, times layers, as a multiple of one pass of the text through the base.
        seconds: For 1,000 of the texts that were run, as measured.
        megabytes: Size of the model's weights.
    """

    name: str
    method: Method | None
    score: float
    error: float
    cost: float
    seconds: float
    megabytes: float


@dataclass(frozen=True)
class TuneReport:
    """The choice, and beside it what else could be taken, on items that did not choose.

    Args:
        method: The choice.
        rows: A row a method, the choice first.
        kind: ``"Views"``, ``"SearchViews"``, or the kind of the labelled items.
        counts: Items that chose, and that report.
        tried: Number of methods and layers that were scored.
        seconds, passes: Seconds in all, and in the search's forward passes alone.
        folder: Where recipe, filter, model and this report are.
        notes: How to read the scores, and reasons to doubt the choice.
    """

    method: Method
    rows: tuple[TuneRow, ...]
    kind: str
    counts: tuple[int, int]
    tried: int
    seconds: float
    passes: float
    folder: str
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        item_name = _ITEM_NAMES.get(self.kind, "labelled pairs")
        choosing_count, reporting_count = self.counts
        report_lines = [
            f"Chosen: {self.method}\n",
            f"{choosing_count} {item_name} chose it from {self.tried} methods and layers, "
            f"in {self.seconds:.0f} seconds, {self.passes:.0f} of them in forward passes.",
            f"Scores on {reporting_count} other {item_name}, which had no part in the choice:\n",
            *_TABLE_HEAD,
        ]
        for row in self.rows:
            score_cells = f"{row.score:.3f} | {row.error:.3f}"
            cost_cells = f"{row.cost:.2f} | {row.seconds:.1f} | {row.megabytes:.0f}"
            report_lines.append(f"| {row.name} | {score_cells} | {cost_cells} |")
        return "\n".join([*report_lines, _WHAT_WORK_IS, *self.notes])


class TuningPlan(ABC):
    """What tune does for one purpose.

    Args:
        kind: See :class:`TuneReport`.
        counts: Items that choose, and that report.
    """

    def __init__(self, kind: str, counts: tuple[int, int]) -> None:
        self.kind = kind
        self.counts = counts

    @abstractmethod
    def open_search(self, base: SentenceTransformer, passes_folder: Path | None) -> Search:
        """The search over the items that choose, whose finished passes are kept in a folder."""

    @abstractmethod
    def passes(self, depth: int, *, small: bool = False) -> list[Pass]:
        """The inputs and masks that are tried, or the few that cover most, on a base of L layers (``depth``)."""

    @abstractmethod
    def fit_filter(self, model: SentenceTransformer, filter_kind: str) -> Filter:
        """Fit a filter for a model without one, on texts that do not report."""

    @abstractmethod
    def rows(
        self,
        base: SentenceTransformer,
        method: Method,
        candidates: Sequence[Scored],
    ) -> tuple[TuneRow, ...]:
        """The choice, and what it is compared with, on the items that report."""

    @abstractmethod
    def notes(self, choice: Scored) -> tuple[str, ...]:
        """How to read the scores, and reasons to doubt the choice."""


def write_report(
    report: TuneReport,
    base: object,
    saved_model: SentenceTransformer,
    loading_options: Mapping[str, Any],
) -> None:
    """Write recipe, report and model into the report's folder.

    Args:
        report: The report; its method's filter is there already.
        base: What ``build`` was given.
        saved_model: The model of the choice.
        loading_options: Further arguments of ``build``.
    """
    report_folder = Path(report.folder)
    kept_loading: dict[str, Any] = {name: loading_options.get(name) for name in LOADING}
    # Objects, where a loaded model is the base.
    kept_loading["tokenizer"] = _as_name(loading_options.get("tokenizer"))
    base_name = _as_name(base) or str(saved_model[0].base_model)
    save_recipe(report_folder / "recipe.yaml", base_name, report.method, **kept_loading)
    (report_folder / "report.md").write_text(f"{report}\n", encoding="utf-8")
    report_json = json.dumps(asdict(report), indent=1, ensure_ascii=False)
    (report_folder / "report.json").write_text(report_json, encoding="utf-8")
    save(saved_model, report_folder / "model", overwrite=True)


def _as_name(base: object) -> str | None:
    if isinstance(base, (str, os.PathLike)):
        return os.fspath(base)
    return None
