"""Two views of a text: how well they find each other, against plain loops."""

from __future__ import annotations

import numpy as np
import pytest
from searched import found_each_other

from st_reba.evaluation.views import Viewed


def test_a_score_is_how_well_views_find_each_other() -> None:
    random = np.random.default_rng(0)
    views = [(f"a{n}", f"b{n // 2}") for n in range(30)]
    items = Viewed.of([f"text {n}" for n in range(30)], views)
    vectors = random.normal(size=(len(items.texts), 3))
    vectors[5:9] = vectors[4]
    rows = np.array([1, 2, 3, 8, 11, 12, 20, 29])
    for chosen in (None, rows):
        pairs = [views[row] for row in (range(30) if chosen is None else rows)]
        first, second = ([vectors[items.texts.index(pair[side])] for pair in pairs] for side in (0, 1))
        assert items.metrics["mrr"](items.evidence(vectors, chosen)) == pytest.approx(found_each_other(first, second))
    part = items.subset(rows)
    assert part.fitted_on[:8] == tuple(f"text {row}" for row in rows) and set(part.fitted_on[8:]) == set(part.texts)
