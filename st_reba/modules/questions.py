"""Several questions about one text: shared prefix and content run once, then each question."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from transformers import Cache, DynamicCache

from .extensions import extensions
from .layout import Features, Span
from .shared_prefix import (
    BranchLayer,
    continue_cache,
    run_prefix,
    run_stage,
    select_positions,
    stage_cost,
)


class KeptLayer(BranchLayer):  # type: ignore[no-untyped-call]
    """A BranchLayer that a later stage continues."""

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        *args: object,
        **kwargs: object,
    ) -> tuple[Tensor, Tensor]:
        """Keys and values that the stage's tokens may see, which are kept."""
        self.keys, self.values = super().update(key_states, value_states)
        return self.keys, self.values


class QuestionBatch:
    """A batch in which a text has several rows, one for each template; it runs in stages.

    Args:
        transformer: The RepeatTransformer.
        features: Of whole rows, as its ``preprocess`` makes them.
        hooks: The hooks of every pass.
    """

    def __init__(self, transformer: Any, features: Features, hooks: Sequence[object]) -> None:
        self.transformer = transformer
        self.features = features
        self.hooks = hooks
        self.spans: list[Span] = features["spans"]
        self.token_ids = features["input_ids"].cpu().numpy()
        self.stage_cost = stage_cost(features["input_ids"].device)
        # [B, T, d], which the stages fill.
        self.hidden_states: Tensor | None = None

    def run(self) -> Tensor | None:
        """Hidden states [B, T, d], anything at padding; None: the rows have to run whole."""
        whole_rows: list[int] = []
        all_rows = range(len(self.spans))
        for prefix_rows in self.group_rows(all_rows, self.text_start):
            texts = self.group_rows(prefix_rows, self.text_end)
            if self.saves_texts(texts):
                self.run_texts(prefix_rows, texts)
            elif self.saves_prefix(prefix_rows):
                self.run_after_prefix(prefix_rows)
            else:
                whole_rows += prefix_rows
        if whole_rows and self.hidden_states is not None:
            self.fill_states(whole_rows, 0, self.row_end(whole_rows), None)
        return self.hidden_states

    def group_rows(self, rows: Sequence[int], end_of_row: Callable[[int], int]) -> list[list[int]]:
        """Rows that have the same ids up to an end."""
        groups: dict[bytes, list[int]] = {}
        for row in rows:
            beginning = self.token_ids[row, : end_of_row(row)]
            groups.setdefault(beginning.tobytes(), []).append(row)
        return list(groups.values())

    def text_start(self, row: int) -> int:
        """Position of the first token of a row's content."""
        return self.spans[row].start

    def text_end(self, row: int) -> int:
        """Position after a row's content."""
        return self.spans[row].start + self.spans[row].text_length

    def row_end(self, rows: Sequence[int]) -> int:
        """Position after the longest of some rows."""
        return max(self.spans[row].row_length for row in rows)

    def saves_prefix(self, rows: Sequence[int]) -> bool:
        """Whether a stage for the prefix of rows saves more than it costs."""
        saved_positions = self.text_start(rows[0]) * (len(rows) - 1)
        return saved_positions >= self.stage_cost

    def saves_texts(self, texts: Sequence[list[int]]) -> bool:
        """Whether stages for questions save more than they cost: one after the texts of each length."""
        saved_positions = 0
        distinct_lengths: set[int] = set()
        for text_rows in texts:
            text_length = self.spans[text_rows[0]].text_length
            saved_positions += text_length * (len(text_rows) - 1)
            distinct_lengths.add(text_length)
        return saved_positions >= self.stage_cost * len(distinct_lengths)

    def run_prefix(self, rows: Sequence[int]) -> Cache:
        """Run the prefix of rows once, and return its keys and values."""
        prefix_cache, prefix_states = run_prefix(
            self.transformer,
            self.features,
            rows[0],
            self.text_start(rows[0]),
            self.hooks,
        )
        self.store_states(rows, 0, prefix_states)
        return prefix_cache

    def run_after_prefix(self, rows: Sequence[int]) -> None:
        """Run rows that share a prefix and nothing more."""
        prefix_end = self.text_start(rows[0])
        prefix_cache = self.run_prefix(rows)
        branch_cache = continue_cache(prefix_cache, [0] * len(rows), prefix_end)
        self.fill_states(rows, prefix_end, self.row_end(rows), branch_cache)

    def run_texts(self, prefix_rows: Sequence[int], texts: Sequence[list[int]]) -> None:
        """Run rows that have one prefix: each text once, and its questions after it."""
        leading_rows = [text_rows[0] for text_rows in texts]
        text_ends = list(map(self.text_end, leading_rows))
        start = 0
        text_cache: Cache = DynamicCache()
        if self.saves_prefix(leading_rows):
            start = self.text_start(leading_rows[0])
            prefix_cache = self.run_prefix(prefix_rows)
            text_cache = continue_cache(prefix_cache, [0] * len(texts), start, KeptLayer)
        self.fill_states(leading_rows, start, max(text_ends), text_cache)
        assert self.hidden_states is not None
        for text_rows, text_end in zip(texts, text_ends, strict=True):
            # Cloned, because torch refuses to write into memory that the source overlaps.
            text_states = self.hidden_states[text_rows[0], start:text_end].clone()
            self.hidden_states[text_rows[1:], start:text_end] = text_states
        # After texts of one length, questions have no padding before them.
        for text_end in sorted(set(text_ends)):
            self.run_questions(texts, text_end, text_cache)

    def run_questions(self, texts: Sequence[list[int]], text_end: int, text_cache: Cache) -> None:
        """Run what follows texts with this end."""
        question_rows: list[int] = []
        source_rows: list[int] = []
        for text_number, text_rows in enumerate(texts):
            if self.text_end(text_rows[0]) == text_end:
                question_rows += text_rows
                source_rows += [text_number] * len(text_rows)
        row_end = self.row_end(question_rows)
        if row_end > text_end:
            branch_cache = continue_cache(text_cache, source_rows, text_end)
            self.fill_states(question_rows, text_end, row_end, branch_cache)

    def fill_states(self, rows: Sequence[int], start: int, end: int, cache: Cache | None) -> None:
        """Run positions of some rows, and store their states; None: run them by themselves."""
        stage_features = select_positions(self.features, rows, start, end)
        if cache is None:
            stage_states = self.transformer.run_pass(stage_features, self.hooks)
        else:
            stage_states = run_stage(self.transformer, stage_features, self.hooks, cache)
        self.store_states(rows, start, stage_states)

    def store_states(self, rows: Sequence[int], start: int, stage_states: Tensor) -> None:
        """Put states [1 or B, T, d] of a stage where they belong."""
        _, length, width = stage_states.shape
        if self.hidden_states is None:
            batch_shape = self.features["input_ids"].shape
            self.hidden_states = stage_states.new_zeros(*batch_shape, width)
        self.hidden_states[rows, start : start + length] = stage_states


extensions.question_batch = QuestionBatch
