"""What unlabelled texts alone say about how good their vectors are.

A text is shown in two views that share a part; good vectors of the first find that of the second among those of all
texts. What was tried beside it, and worse, is in scripts/tune_evidence.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .items import DIGITS, units

# Chinese, Japanese and Korean have no spaces between words: there a piece is one character, with what closes it.
DENSE = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_PIECE = re.compile(rf"[{DENSE}][^\w\s]*|[^\s{DENSE}]+")
# A text of fewer pieces has no two views that differ.
_FEWEST_PIECES = 4
# What stands behind so many is not shown: models cut long texts, and two parts that were cut would no longer overlap.
_MOST_PIECES = 150


@dataclass(frozen=True)
class Views:
    """Two views of each of some texts.

    Args:
        rows: Which texts; those that are too short are left out.
        first, second: A view of each.
    """

    rows: tuple[int, ...]
    first: tuple[str, ...]
    second: tuple[str, ...]


def views(texts: Sequence[str]) -> Views:
    """Show each text by two crops that overlap: its first two thirds, and its last two thirds.

    They are counted in words, or in characters where the script has no spaces, so that titles of some words have them
    too. Of a long text the first 150 are shown.

    Source:
        Crops as a pair: Izacard et al. (2022), Contriever (arXiv 2112.09118), section 3.1; there they are drawn.

    Example:
        >>> views(["one two three four five six", "short", "北京今天下大雪"])
        Views(rows=(0, 2), first=('one two three four', '北京今天下'), second=('three four five six', '今天下大雪'))
    """
    rows, first, second = [], [], []
    for row, text in enumerate(texts):
        shown = spans(text)
        count = len(shown)
        if count >= _FEWEST_PIECES:
            most = -(-2 * count // 3)
            rows.append(row)
            first.append(text[shown[0][0] : shown[most - 1][1]])
            second.append(text[shown[count - most][0] : shown[-1][1]])
    return Views(tuple(rows), tuple(first), tuple(second))


def spans(text: str) -> list[tuple[int, int]]:
    """Where the pieces of a text begin and end that are shown."""
    return [match.span() for match in islice(_PIECE.finditer(text), _MOST_PIECES)]


def reciprocal_ranks(first: NDArray[Any], second: NDArray[Any]) -> NDArray[np.float64]:
    """How well two views of the same texts find each other; their mean is the MRR.

    Args:
        first: Vectors [N, d] of the first views.
        second: Vectors [N, d] of the second views, row n of the same text.

    Returns:
        [N]: of each text the mean of 1/rank in both directions, by cosine. What cannot be told from a text's other view
        stands before it, so vectors that are all alike earn 1/N.

    Example:
        >>> one = np.array([[1.0, 0.0], [0.0, 1.0], [0.7, 0.7]])
        >>> reciprocal_ranks(one, one).tolist(), reciprocal_ranks(one, one[[1, 0, 2]]).round(2).tolist()
        ([1.0, 1.0, 1.0], [0.33, 0.33, 1.0])
    """
    near = np.round(units(first) @ units(second).T, DIGITS)
    own = near.diagonal()
    return np.asarray((1 / (near >= own[:, None]).sum(axis=1) + 1 / (near >= own).sum(axis=0)) / 2)
