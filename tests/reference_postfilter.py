"""Linear filters of finished vectors in plain float64 loops: the oracle of st_reba's post-filters.

``sample`` and ``x`` are lists of rows. Every function fits on ``sample`` and gives the filtered rows of ``x``.
"""

from __future__ import annotations

import math

Row = list[float]


def _mean(sample: list[Row]) -> Row:
    return [sum(row[i] for row in sample) / len(sample) for i in range(len(sample[0]))]


def _dot(a: Row, b: Row) -> float:
    return sum(a[i] * b[i] for i in range(len(a)))


def center(sample: list[Row], x: list[Row]) -> list[Row]:
    """Each row less the sample's mean."""
    mean = _mean(sample)
    return [[row[i] - mean[i] for i in range(len(mean))] for row in x]


def principal(sample: list[Row]) -> list[tuple[float, Row]]:
    """Variance and direction of each principal component, the largest first, by Jacobi's rotations.

    A direction has length 1, and the number of largest size in it is positive.
    """
    about, d = center(sample, sample), len(sample[0])
    a = [[sum(row[i] * row[j] for row in about) / len(about) for j in range(d)] for i in range(d)]
    v = [[1.0 if i == j else 0.0 for j in range(d)] for i in range(d)]
    for _ in range(60):
        for p in range(d):
            for q in range(p + 1, d):
                if a[p][q] == 0.0:
                    continue
                theta = (a[q][q] - a[p][p]) / (2 * a[p][q])
                t = math.copysign(1.0, theta) / (abs(theta) + math.sqrt(theta * theta + 1))
                c = 1 / math.sqrt(t * t + 1)
                s = t * c
                for k in range(d):
                    a[k][p], a[k][q] = c * a[k][p] - s * a[k][q], s * a[k][p] + c * a[k][q]
                for k in range(d):
                    a[p][k], a[q][k] = c * a[p][k] - s * a[q][k], s * a[p][k] + c * a[q][k]
                for k in range(d):
                    v[k][p], v[k][q] = c * v[k][p] - s * v[k][q], s * v[k][p] + c * v[k][q]
    found = []
    for j in range(d):
        direction = [v[i][j] for i in range(d)]
        largest = max(direction, key=abs)
        found.append((a[j][j], [value if largest > 0 else -value for value in direction]))
    return sorted(found, key=lambda each: -each[0])


def all_but_the_top(sample: list[Row], x: list[Row], r: int) -> list[Row]:
    """Each row less the sample's mean, less what of that lies along the first r principal directions."""
    top = [direction for _, direction in principal(sample)[:r]]
    result = []
    for row in center(sample, x):
        rest = list(row)
        for direction in top:
            along = _dot(row, direction)
            rest = [rest[i] - along * direction[i] for i in range(len(rest))]
        result.append(rest)
    return result


def whiten(sample: list[Row], x: list[Row], dimensions: int) -> list[Row]:
    """Coordinates along principal directions, each divided by its standard deviation."""
    kept = principal(sample)[:dimensions]
    return [[_dot(row, direction) / math.sqrt(variance) for variance, direction in kept] for row in center(sample, x)]
