"""Views of unlabelled texts, and scores of views or labelled items, one by one."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random
from typing import Any

import torch
from scipy.stats import rankdata
from torch import Tensor

from ..modules.reversal import _CJK
from .scores import SCORINGS
from .tasks import Task

# Chinese and Japanese have no spaces between words: there a piece is one character, with what closes it.
_PIECE = re.compile(rf"[{_CJK}][^\w\s]*|[^\s{_CJK}]+")
# A text of fewer pieces has no views that differ; of a longer one the first are shown.
_FEWEST_PIECES, _MOST_PIECES = 4, 150
FEWEST_TEXTS = 50
SAME_COSINE = 1e-6  # cosines that differ by less are the same: rounding is no rank


def views_of(texts: Iterable[str]) -> Task:
    """Items of texts: two crops that overlap, the first and the last two thirds; and the two halves.

    They are counted in words, or in characters where the script has no spaces. Texts of fewer than four are left out.

    Source:
        Crops as a pair: Izacard et al. (2022), Contriever (arXiv 2112.09118), section 3.1; there they are drawn.
    """
    places: dict[str, int] = {}
    items = []
    for text in texts:
        spans = [match.span() for match in _PIECE.finditer(text)][:_MOST_PIECES]
        if (count := len(spans)) >= _FEWEST_PIECES:
            most, half = -(-2 * count // 3), count // 2
            cuts = ((0, most), (count - most, count), (0, half), (half, count))
            shown = [text[spans[first][0] : spans[end - 1][1]] for first, end in cuts]
            items.append(tuple(places.setdefault(each, len(places)) for each in shown))
    return Task("texts", "Views", tuple(places), tuple(items))


def evidence(task: Task, units: Tensor) -> Tensor:
    """Score each item of a task; the mean is the task's score.

    Views: how far the two halves, and each half and the crop at the other end, find each other among those of all
    texts (both crops share a third of the text, which would reward vectors of single words). Pairs: products of the
    standardized ranks of cosine and label, whose mean is Spearman's correlation. Classes: 1 if the nearest centroid, of
    the other items of each class, is the own. Reranking: average precision.

    Args:
        task: Views, pairs, classes or a reranking task.
        units: [number of texts, d] vectors of length 1.

    Returns:
        [number of items] float32.

    Example:
        >>> task = Task("t", "STS", tuple("abcd"), tuple((n % 2, 2 + n % 2, n % 2) for n in range(10)))
        >>> units = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
        >>> round(float(evidence(task, units).mean()), 2)
        1.0
    """
    if task.kind == "Reranking":
        precisions = SCORINGS[task.kind].evidence(task, units.cpu().numpy())[:, 0]
        return torch.from_numpy(precisions).to(units)
    if task.kind == "Classification":
        places, labels = zip(*task.items, strict=True)
        return _nearest_centroid(units[list(places)], labels)
    columns = [list(each) for each in zip(*task.items, strict=True)]
    if task.kind == "Views":
        first, last, early, late = (units[each] for each in columns)
        return (information(early, late) + information(first, late) + information(early, last)) / 3
    cosines = (units[columns[0]] * units[columns[1]]).sum(dim=1)
    return _standard_ranks(cosines) * _standard_ranks(torch.tensor(columns[2], device=units.device))


def information(first: Tensor, second: Tensor) -> Tensor:
    """Score how well two views [N, d] of the same texts find each other, by cosine: [N], 1 at rank 1, 0 at rank N."""
    near = first @ second.T
    own = near.diagonal()
    ranks = [(near >= own[:, None] - SAME_COSINE).sum(dim=1), (near >= own - SAME_COSINE).sum(dim=0)]
    return 1 - sum(rank.float().log() for rank in ranks) / (2 * torch.tensor(float(max(2, len(own)))).log())


def _standard_ranks(values: Tensor) -> Tensor:
    ranks = torch.from_numpy(rankdata(values.cpu().numpy())).to(values.device)
    return ((ranks - ranks.mean()) / ranks.std(correction=0).clamp_min(1e-12)).float()


def _nearest_centroid(units: Tensor, labels: Sequence[Any]) -> Tensor:
    names = {name: number for number, name in enumerate(dict.fromkeys(labels))}
    own = torch.tensor([names[label] for label in labels], device=units.device)
    member = torch.nn.functional.one_hot(own, len(names)).to(units.dtype)
    sums, counts = member.T @ units, member.sum(dim=0)
    products = units @ sums.T  # with the text itself in its own class' sum
    lengths = sums.norm(dim=1).expand_as(products).clone()
    row = torch.arange(len(own), device=units.device)
    products[row, own] -= (units * units).sum(dim=1)
    lengths[row, own] = (sums[own] - units).norm(dim=1)
    cosines = torch.where(counts[None] - member > 0, products / lengths.clamp_min(1e-12), -torch.inf)
    return (cosines.argmax(dim=1) == own).float()


def has_views(text: str) -> bool:
    """Whether a text has four words, or characters where the script has no spaces."""
    return len(_PIECE.findall(text[:2000])) >= _FEWEST_PIECES


def draw_texts(texts: Iterable[str], count: int, seed: int = 0) -> list[str]:
    """Draw different texts of which views can be made.

    Raises:
        ValueError: There are fewer than 50.
    """
    unique = dict.fromkeys(text.strip() for text in texts)
    usable = [text for text in unique if has_views(text)]
    if len(usable) < FEWEST_TEXTS:
        raise ValueError(f"texts: {len(usable)} different texts of four words or more: give {FEWEST_TEXTS} at least.")
    return Random(seed).sample(usable, min(count, len(usable)))


def script_of(text: str) -> str:
    """The script of most of a text's letters, as Unicode names it; kana count as ``"CJK"``, "" where there are none."""
    names = (unicodedata.name(letter, "").partition(" ")[0] for letter in text[:200] if letter.isalpha())
    counts = Counter("CJK" if name in ("HIRAGANA", "KATAKANA") else name for name in names)
    return counts.most_common(1)[0][0] if counts else ""
