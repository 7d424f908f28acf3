"""The trials of tune: passes run over the items that choose, and every readout becomes a candidate."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor

from ..files import whole_path
from ..methods import Method
from ..modules.outputs import shows_attention
from ..modules.version import __version__
from .items import TuningItems, input_options_of
from .readouts import build_with_prompts, depth_of
from .shared_pass import run_pass, transformer_of
from .tried_passes import Pass

# A method is clearly better than another if its gain exceeds this many standard errors of it.
CLEAR_ERRORS = 3
# Bytes of vectors that a pass may hold.
_MAX_BYTES = 1 << 30


@dataclass(frozen=True, eq=False)
class Candidate:
    """A method with the score of each item that chooses.

    Args:
        method: Without a filter.
        filter_kind: Kind of the filter behind it; None: there is none.
        cost: Positions that are computed, times layers, as a multiple of one pass of the text
            through the whole base.
        evidence: [items] float32.
    """

    method: Method
    filter_kind: str | None
    cost: float
    evidence: Tensor

    @property
    def score(self) -> float:
        """The mean over the items."""
        return float(self.evidence.mean())


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
    most_cost: float | None = None,
    default: Candidate | None = None,
) -> Candidate:
    """The best by score, ties going to the cheapest; but the default, unless that is clearly worse.

    Args:
        candidates: Scored on the same items.
        most_cost: Highest cost of the choice.
        default: One of the candidates; None: the best is chosen.

    Raises:
        ValueError: No candidate is that cheap.
    """
    affordable = [
        candidate for candidate in candidates if most_cost is None or candidate.cost <= most_cost
    ]
    if not affordable:
        lowest_cost = min(candidate.cost for candidate in candidates)
        raise ValueError(f"most_cost={most_cost}: the cheapest method costs {lowest_cost:.2f}.")
    best_candidate = max(affordable, key=lambda candidate: (candidate.score, -candidate.cost))
    if default in affordable and not is_clearly_better(best_candidate, default):
        return default
    return best_candidate


def is_clearly_better(candidate: Candidate, standard: Candidate) -> bool:
    """Whether a candidate's score is above another's by more than chance would explain."""
    gains = candidate.evidence - standard.evidence
    standard_error = float(gains.std()) / math.sqrt(len(gains))
    return float(gains.mean()) > CLEAR_ERRORS * standard_error


class Trials:
    """Runs passes over the items that choose, and scores their readouts.

    Args:
        base_model: A model from :func:`~st_reba.evaluation.readouts.load_base`, with the prompts
            that stand before the texts.
        items: The items that choose.
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
        self.pass_seconds = 0.0
        self.depth = depth_of(base_model)
        self.plain_positions = items.count_positions(base_model)

    def passes_with_room(self, passes: Sequence[Pass], say: Callable[[str], object]) -> list[Pass]:
        """The passes that can run; ``say`` gets a line for each of the others."""
        passes_with_room: list[Pass] = []
        for planned_pass in passes:
            refusal = self.why_not(planned_pass)
            if refusal is None:
                passes_with_room.append(planned_pass)
            else:
                say(f"left out: {planned_pass.method}: {refusal}")
        return passes_with_room

    def why_not(self, planned_pass: Pass) -> str | None:
        """Why a pass cannot run, as max_seq_length may leave no room behind its prompt; None: it can."""
        try:
            model = build_with_prompts(self.base_model, planned_pass.method, check=False)
            for role in self.items.texts_by_role:
                transformer_of(model).budget(**input_options_of(model, role))
        except ValueError as error:
            return str(error)
        return None

    def score_pass(self, planned_pass: Pass) -> list[Candidate]:
        """All candidates of a pass, which runs now, or was kept in the folder."""
        if self.folder is None:
            return self._run_pass(planned_pass)
        path = self.folder / f"{self.pass_key(planned_pass)}.pt"
        if not path.exists():
            candidates = self._run_pass(planned_pass)
            saved_rows = [
                {**vars(candidate), "method": str(candidate.method)} for candidate in candidates
            ]
            path.parent.mkdir(parents=True, exist_ok=True)
            with whole_path(path) as unfinished_path:
                torch.save(saved_rows, unfinished_path)
            return candidates
        candidates = []
        for saved_row in torch.load(path, weights_only=True):
            saved_row["method"] = Method.parse(saved_row["method"])
            candidates.append(Candidate(**saved_row))
        return candidates

    def _run_pass(self, planned_pass: Pass) -> list[Candidate]:
        model = build_with_prompts(self.base_model, planned_pass.method)
        readouts = planned_pass.readouts(self.depth)
        if not shows_attention(transformer_of(model).model):
            readouts = [readout for readout in readouts if readout.first_layer is None]
        cost_per_layer = self.items.count_positions(model) / (self.plain_positions * self.depth)
        vector_bytes = 4 * transformer_of(model).get_embedding_dimension() * self.items.text_count
        # The pass runs again for readouts whose vectors do not fit.
        step = max(1, _MAX_BYTES // vector_bytes)
        candidates: list[Candidate] = []
        for start in range(0, len(readouts), step):
            start_time = time.perf_counter()
            run_texts = partial(run_pass, model, readouts[start : start + step])
            encoded_items = self.items.encode(run_texts, model)
            self.pass_seconds += time.perf_counter() - start_time
            for readout, vectors_by_role in encoded_items.items():
                method = planned_pass.method_of_readout(readout, self.depth)
                for filter_kind in self.filter_kinds:
                    evidence = self.items.score(vectors_by_role, filter_kind, model.device)
                    candidates.append(
                        Candidate(method, filter_kind, cost_per_layer * readout.layer, evidence)
                    )
        return candidates

    def pass_key(self, planned_pass: Pass) -> str:
        """A name that no other pass, base, prompts, texts or version of this code has."""
        model = transformer_of(self.base_model).model
        embeddings = next(model.get_input_embeddings().parameters())
        first_weights = embeddings[:64].detach().float().cpu().numpy()
        limits = self.base_model.max_seq_length, self.plain_positions
        prompts = [input_options_of(self.base_model, role) for role in self.items.texts_by_role]
        base_facts = model.config.to_json_string(), model.dtype, limits, prompts
        facts = __version__, self.filter_kinds, planned_pass, self.items
        digest = hashlib.sha256(repr((facts, base_facts)).encode())
        digest.update(first_weights.tobytes())
        return digest.hexdigest()[:24]
