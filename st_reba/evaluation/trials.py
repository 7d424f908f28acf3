"""The trials of tune: passes run over the selection items, and every method becomes a candidate."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor

from ..encode import transformer_of
from ..files import whole_path
from ..methods import Method
from ..modules.outputs import shows_attention
from ..modules.version import __version__
from .items import TuningItems, input_options_of
from .readouts import MethodGroup, build_on, depth_of, group_by_pass

# A method is clearly better than another if its mean gain exceeds this many standard errors of the
# gain.
CLEAR_ERRORS = 3
# The most bytes of vectors per pass; normalizing them takes as much again.
_MAX_BYTES = 1 << 30


@dataclass(frozen=True, eq=False)
class Candidate:
    """A method with its score on each selection item.

    Args:
        method: Without a filter.
        filter_kind: Kind of the filter after it; None: there is none.
        cost: Positions that are computed, times layers, as a multiple of one pass of the text
            through the whole base.
        item_scores: [items] float32.
    """

    method: Method
    filter_kind: str | None
    cost: float
    item_scores: Tensor

    @property
    def score(self) -> float:
        """The mean over the items."""
        return float(self.item_scores.mean())


def find_candidate(
    candidates: Sequence[Candidate], method: Method, filter_kind: str | None
) -> Candidate | None:
    """The candidate of a method and a kind of filter; None: it was not tried."""
    for candidate in candidates:
        if candidate.method == method and candidate.filter_kind == filter_kind:
            return candidate
    return None


def select_best(
    candidates: Sequence[Candidate],
    max_cost: float | None = None,
    default: Candidate | None = None,
) -> Candidate:
    """The best by score, ties going to the cheapest; but the default, unless that is clearly worse or too expensive.

    Args:
        candidates: Scored on the same items.
        max_cost: Highest cost of the choice.
        default: One of the candidates; None: the best is chosen.

    Raises:
        ValueError: No candidate is that cheap.
    """
    affordable = [
        candidate for candidate in candidates if max_cost is None or candidate.cost <= max_cost
    ]
    if not affordable:
        lowest_cost = min(candidate.cost for candidate in candidates)
        raise ValueError(
            f"max_cost={max_cost}: the cheapest method costs {lowest_cost:.2f}. Raise it."
        )
    best_candidate = max(affordable, key=lambda candidate: (candidate.score, -candidate.cost))
    if default in affordable and not is_clearly_better(best_candidate, default):
        return default
    return best_candidate


def is_clearly_better(candidate: Candidate, other: Candidate) -> bool:
    """Whether a candidate's score is above another's by more than chance would explain; there are two items or more."""
    gains = candidate.item_scores - other.item_scores
    standard_error = float(gains.std()) / math.sqrt(len(gains))
    return float(gains.mean()) > CLEAR_ERRORS * standard_error


def _save_candidates(candidates: Sequence[Candidate], path: Path) -> None:
    rows = [{**vars(candidate), "method": str(candidate.method)} for candidate in candidates]
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_path(path) as unfinished_path:
        torch.save(rows, unfinished_path)


def _load_candidates(path: Path) -> list[Candidate]:
    candidates: list[Candidate] = []
    for row in torch.load(path, weights_only=True):
        row["method"] = Method.parse(row["method"])
        candidates.append(Candidate(**row))
    return candidates


class Trials:
    """Runs passes over the selection items, and scores the methods that are read from them.

    Args:
        base_model: A model from :func:`~st_reba.evaluation.readouts.load_base`, with the prompts
            that stand before the texts.
        items: The selection items.
        filter_kinds: Kinds of filters that are tried, None for none.
        folder: Where finished passes are kept; None: nowhere.
    """

    def __init__(
        self,
        base_model: SentenceTransformer,
        items: TuningItems,
        filter_kinds: Sequence[str | None],
        folder: Path | None = None,
    ) -> None:
        self.base_model = base_model
        self.items = items
        self.filter_kinds = filter_kinds
        self.folder = folder
        self.pass_seconds = 0.0  # of the passes that ran here, not of those that were kept
        self.depth = depth_of(base_model)
        self.plain_positions = items.count_positions(base_model, base_model)

    def plan_passes(
        self, methods: Sequence[Method], report_step: Callable[[str], object]
    ) -> list[list[Method]]:
        """The methods of each pass that can run; ``report_step`` gets a line for each pass that cannot.

        Methods that read attention outputs are left out where the base has none.
        """
        if not shows_attention(transformer_of(self.base_model).model):
            methods = [method for method in methods if method.read != "attention"]
        passes: list[list[Method]] = []
        for methods_of_pass in group_by_pass(methods, self.depth).values():
            refusal = self.find_refusal(methods_of_pass[0])  # all of them have the same input
            if refusal is None:
                passes.append(methods_of_pass)
            else:
                report_step(f"left out: {methods_of_pass[0]}: {refusal}")
        return passes

    def find_refusal(self, method: Method) -> str | None:
        """Why a method cannot run; None: it can.

        For example, its prompt leaves no room within max_seq_length.
        """
        try:
            transformer = transformer_of(build_on(self.base_model, method, check=False))
            for role in self.items.texts_by_role:
                transformer.budget(**input_options_of(self.base_model, role))  # raises the error
        except ValueError as error:
            return str(error)
        return None

    def score_pass(self, methods: Sequence[Method]) -> list[Candidate]:
        """All candidates of the methods of a pass, which runs now, or was kept in the folder."""
        if self.folder is None:
            return self._run_pass(methods)
        path = self.folder / f"{self.pass_key(methods)}.pt"
        if path.exists():
            return _load_candidates(path)
        candidates = self._run_pass(methods)
        _save_candidates(candidates, path)
        return candidates

    def _run_pass(self, methods: Sequence[Method]) -> list[Candidate]:
        width = transformer_of(self.base_model).get_embedding_dimension()
        # If the vectors of all methods would take more than that, the pass runs several times.
        methods_at_once = max(1, _MAX_BYTES // (4 * width * self.items.text_count))
        candidates: list[Candidate] = []
        for start in range(0, len(methods), methods_at_once):
            method_group = MethodGroup(self.base_model, methods[start : start + methods_at_once])
            positions = self.items.count_positions(method_group.model, self.base_model)
            start_time = time.perf_counter()
            encoded_items = self.items.encode(method_group, self.base_model)
            self.pass_seconds += time.perf_counter() - start_time
            for method, vectors_by_role in encoded_items.items():
                last_layer = method.read_layers(self.depth)[1]
                cost = positions * last_layer / (self.plain_positions * self.depth)
                for filter_kind in self.filter_kinds:
                    item_scores = self.items.score(
                        vectors_by_role, filter_kind, self.base_model.device
                    )
                    candidates.append(Candidate(method, filter_kind, cost, item_scores))
        return candidates

    def pass_key(self, methods: Sequence[Method]) -> str:
        """A digest of the pass, base, prompts, texts and version of st_reba."""
        facts = __version__, self.filter_kinds, methods, self.items, self._base_digest
        return hashlib.sha256(repr(facts).encode()).hexdigest()[:24]

    @cached_property
    def _base_digest(self) -> str:
        """A digest of the base's settings, of all its weights, and of the token ids that it gives to the texts."""
        transformer = transformer_of(self.base_model)
        model = transformer.model
        digest = hashlib.sha256(model.config.to_json_string().encode())
        limits = self.base_model.max_seq_length, self.plain_positions
        digest.update(repr((model.dtype, limits)).encode())
        for role, texts in self.items.texts_by_role.items():
            token_ids = transformer.tokenize_content(list(texts))["input_ids"]
            digest.update(repr((input_options_of(self.base_model, role), token_ids)).encode())
        for weight in model.parameters():
            weight_bytes = weight.detach().flatten().view(torch.uint8)
            digest.update(weight_bytes.cpu().numpy().data)
        return digest.hexdigest()
