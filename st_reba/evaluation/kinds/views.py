"""Views: parts of unlabelled texts, which find each other where vectors are good."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from ..measures import column_means
from ..task import Evidence, Task, TaskKind, TextIndex, declare_kind
from ..task_source import TaskSource
from ..texts import MIN_PIECES, split_pieces
from ..vectors import Vectors, normalize_rows

# Only the beginning of a longer text is used.
_MAX_PIECES = 150
# Cosines that differ by less are the same: rounding is not a rank.
SAME_COSINE = 1e-6


def views_of(texts: Iterable[str]) -> Task:
    """Make items from texts: two overlapping crops, the first and last two thirds; and both halves.

    Lengths are counted in words, or in characters if the script has no spaces. Texts of fewer than
    four are left out.

    Source:
        Crops as a pair: Izacard et al. (2022), Contriever (arXiv 2112.09118), section 3.1; there
        they are drawn.
    """
    view_texts: TextIndex[str] = TextIndex()
    view_items: list[tuple[int, ...]] = []
    for text in texts:
        pieces = split_pieces(text)[:_MAX_PIECES]
        piece_count = len(pieces)
        if piece_count < MIN_PIECES:
            continue
        two_thirds = -(-2 * piece_count // 3)
        half = piece_count // 2
        item: list[int] = []
        for first, end in (
            (0, two_thirds),
            (piece_count - two_thirds, piece_count),
            (0, half),
            (half, piece_count),
        ):
            start_character = pieces[first][0]
            end_character = pieces[end - 1][1]
            item.append(view_texts.add(text[start_character:end_character]))
        view_items.append(tuple(item))
    return Task("texts", Views.name, view_texts.texts, tuple(view_items))


def information(first_views: Tensor, second_views: Tensor) -> Tensor:
    """Score how well two views [N, d] of the same texts find each other, by cosine: [N], 1 at rank 1, 0 at rank N."""
    cosines = first_views @ second_views.T
    own_cosines = cosines.diagonal()
    lowest_equals = own_cosines - SAME_COSINE
    ranks_of_second = (cosines >= lowest_equals[:, None]).sum(dim=1)
    ranks_of_first = (cosines >= lowest_equals).sum(dim=0)
    log_ranks = ranks_of_second.float().log() + ranks_of_first.float().log()
    text_count = torch.tensor(float(max(2, len(cosines))))
    return 1 - log_ranks / (2 * text_count.log())


class Views(TaskKind):
    """How well the parts of a text find each other among those of the other texts."""

    name = "Views"
    metrics = column_means(["information"])
    main_metric = "information"
    min_items = 1
    item_name = "texts"

    def read(self, task_source: TaskSource) -> Task:
        """Refuse: views are made of texts."""
        raise ValueError("kind='Views' is not read from labelled files. Choose another kind.")

    def evidence(self, task: Task, vectors: Vectors) -> Evidence:
        """The scores of the items."""
        unit_vectors = torch.from_numpy(normalize_rows(vectors, np.float64))
        return np.asarray(self.score_items(task, unit_vectors)[:, None], np.float64)

    def score_items(self, task: Task, unit_vectors: Tensor) -> Tensor:
        """How far the two halves, and each half and the crop at the other end, find each other.

        Both crops share a third of the text, which would reward vectors of single words.
        """
        columns = map(list, zip(*task.items, strict=True))
        first_crops, last_crops, first_halves, last_halves = (
            unit_vectors[column] for column in columns
        )
        halves = information(first_halves, last_halves)
        first_and_last = information(first_crops, last_halves)
        last_and_first = information(first_halves, last_crops)
        return (halves + first_and_last + last_and_first) / 3


declare_kind(Views())
