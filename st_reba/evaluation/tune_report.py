"""The report of tune: the choice next to other methods, on items that had no part in it."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer
from torch import Tensor

from ..filters import Filter
from ..hub.save import save
from ..methods import Method
from ..recipe import LOADING_OPTIONS, save_recipe
from .items import TuningItems, VectorsByRole
from .readouts import MethodGroup, build_on, depth_of, group_by_pass
from .task import KINDS

FILTER_FILE = "filter.safetensors"
# A pass that takes less is measured again.
_STEADY_SECONDS = 1.0

_TABLE_HEAD = (
    "| method | score | standard error | work | seconds per 1,000 texts | MB |",
    "|---|--:|--:|--:|--:|--:|",
)
_WORK_NOTE = (
    "\nWork: positions that are computed, times layers, as a multiple of one pass of the text "
    "through the whole base."
)


@dataclass(frozen=True)
class TuneRow:
    """A method on the test items.

    Args:
        name: Its name in the report.
        method: The method, with its filter's file; None: it needs no model.
        score: The mean over the items.
        error: The standard error of the score.
        cost: Positions that are computed, times layers, as a multiple of one pass of the text
            through the base.
        seconds: Measured time for 1,000 of the texts that were run.
        megabytes: Size of the model's weights.
    """

    name: str
    method: Method | None
    score: float
    error: float
    cost: float = 0.0
    seconds: float = 0.0
    megabytes: float = 0.0

    @classmethod
    def of_scores(
        cls,
        name: str,
        method: Method | None,
        scores: Tensor,
        **measures: float,
    ) -> TuneRow:
        """Make a row from the scores of the items."""
        error = float(scores.std()) / len(scores) ** 0.5
        return cls(
            name,
            method,
            float(scores.mean()),
            error,
            **measures,
        )


@dataclass(frozen=True)
class TuneReport:
    """The choice and its alternatives, scored on the test items.

    Args:
        method: The choice.
        rows: One row per method, the choice first.
        kind: ``"Views"``, ``"SearchViews"``, or the kind of the labelled items.
        selection_count, test_count: Numbers of selection and test items.
        tried_count: Number of methods and layers that were scored.
        seconds, pass_seconds: In all, and in the forward passes that were tried.
        folder: Where recipe, filter, model and this report are.
        notes: How to read the scores, and reasons to doubt the choice.
    """

    method: Method
    rows: tuple[TuneRow, ...]
    kind: str
    selection_count: int
    test_count: int
    tried_count: int
    seconds: float
    pass_seconds: float
    folder: str
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        item_name = KINDS[self.kind].item_name if self.kind in KINDS else "documents"
        report_lines = [
            f"Chosen: {self.method}\n",
            f"{self.selection_count} {item_name} chose it from {self.tried_count} methods and layers, "
            f"in {self.seconds:.0f} seconds, {self.pass_seconds:.0f} of them in forward passes.",
            f"Scores on {self.test_count} other {item_name}, which had no part in the choice:\n",
            *_TABLE_HEAD,
        ]
        for row in self.rows:
            score_cells = f"{row.score:.3f} | {row.error:.3f}"
            cost_cells = f"{row.cost:.2f} | {row.seconds:.1f} | {row.megabytes:.0f}"
            report_lines.append(f"| {row.name} | {score_cells} | {cost_cells} |")
        return "\n".join([*report_lines, _WORK_NOTE, *self.notes])


@dataclass(frozen=True, eq=False)
class ReportEntry:
    """A method to report, and its filter."""

    name: str
    method: Method
    fitted_filter: Filter | None = None

    @property
    def unfiltered_method(self) -> Method:
        """The method without the filter."""
        return replace(self.method, filter=None)


def report_rows(
    base_model: SentenceTransformer,
    items: TuningItems,
    entries: Sequence[ReportEntry],
) -> tuple[TuneRow, ...]:
    """Score methods on items, by one pass for all that share it, and measure their cost.

    Args:
        base_model: A model from :func:`~st_reba.evaluation.readouts.load_base`.
        items: The test items.
        entries: The methods; rows are in their order.
    """
    plain_work = items.count_positions(base_model, base_model) * depth_of(base_model)
    methods = dict.fromkeys(entry.unfiltered_method for entry in entries)
    row_of_entry: dict[str, TuneRow] = {}
    for methods_of_pass in group_by_pass(list(methods), depth_of(base_model)).values():
        method_group = MethodGroup(base_model, methods_of_pass, check=False)
        encoded_items, pass_seconds = _encode_timed(items, method_group, base_model)
        seconds = pass_seconds * 1000 / items.text_count
        for entry in entries:
            method = entry.unfiltered_method
            if method not in methods_of_pass:
                continue
            vectors_by_role = encoded_items[method]
            if entry.fitted_filter is not None:
                vectors_by_role = _filter_vectors(entry.fitted_filter, vectors_by_role)
            model = build_on(base_model, method, check=False)
            row_of_entry[entry.name] = TuneRow.of_scores(
                entry.name,
                entry.method,
                items.score(vectors_by_role, None, base_model.device),
                cost=items.count_positions(model, base_model) * depth_of(model) / plain_work,
                seconds=seconds * depth_of(model) / depth_of(method_group.model),
                megabytes=sum(weight.nbytes for weight in model.parameters()) / 1e6,
            )
    return tuple(row_of_entry[entry.name] for entry in entries)


def _encode_timed(
    items: TuningItems, method_group: MethodGroup, base_model: SentenceTransformer
) -> tuple[dict[Method, VectorsByRole], float]:
    """Encode the items, and give the seconds of a pass: if it is short, of the shortest of three."""
    shortest_seconds = math.inf
    for _ in range(3):
        start_time = time.perf_counter()
        encoded_items = items.encode(method_group, base_model)
        seconds = time.perf_counter() - start_time
        shortest_seconds = min(seconds, shortest_seconds)
        if seconds >= _STEADY_SECONDS:
            break
    return encoded_items, shortest_seconds


def _filter_vectors(fitted_filter: Filter, vectors_by_role: VectorsByRole) -> VectorsByRole:
    filtered_vectors: VectorsByRole = {}
    for role, vectors in vectors_by_role.items():
        filtered_vectors[role] = fitted_filter.apply(vectors, role).astype(np.float32)
    return filtered_vectors


def write_report(
    report: TuneReport,
    base_model: object,
    saved_model: SentenceTransformer,
    fitted_filter: Filter | None,
    loading_options: Mapping[str, Any],
) -> None:
    """Write recipe, filter, report and model into the report's folder.

    Args:
        report: The report.
        base_model: The base that ``build`` got.
        saved_model: The model of the choice.
        fitted_filter: The filter of that model.
        loading_options: Further arguments of ``build``.
    """
    report_folder = Path(report.folder)
    recipe_options = {name: loading_options.get(name) for name in LOADING_OPTIONS}
    # An object if the base is a loaded model; a recipe can hold only a path.
    recipe_options["tokenizer"] = _path_of(loading_options.get("tokenizer"))
    base_name = _path_of(base_model) or str(saved_model[0].base_model)
    if fitted_filter is not None:
        fitted_filter.save(report_folder / FILTER_FILE)
    save_recipe(report_folder / "recipe.yaml", base_name, report.method, **recipe_options)
    (report_folder / "report.md").write_text(f"{report}\n", encoding="utf-8")
    report_json = json.dumps(asdict(report), indent=1, ensure_ascii=False)
    (report_folder / "report.json").write_text(report_json, encoding="utf-8")
    save(saved_model, report_folder / "model", overwrite=True)


def _path_of(value: object) -> str | None:
    if isinstance(value, (str, os.PathLike)):
        return os.fspath(value)
    return None
