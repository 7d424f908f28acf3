"""Numbers as HTML: scales, marks, and texts that stay texts."""

from __future__ import annotations

import re

import numpy as np
import pytest

import st_reba
from st_reba.evaluation.attention import FAINTEST
from st_reba.explore import draw, page
from st_reba.explore.compute import Hit, look

WORDS = page.words()


def cells(html: str) -> list[list[float]]:
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", html)
    return [[float(each) for each in re.findall(r"<td[^>]*>([-\d.]+)</td>", row)] for row in rows if "<td" in row]


def test_tables_have_one_scale() -> None:
    one, other = np.array([[1.0, 0.5], [0.5, 1.0]]), np.array([[1.0, -0.25], [-0.25, 1.0]])
    html = draw.comparison({"one": one, "other": other}, ["a", "b"], WORDS["en"])
    assert cells(html) == [[1.0, 0.5], [0.5, 1.0], [1.0, -0.25], [-0.25, 1.0]]
    shares = [float(each) for each in re.findall(r"--s:([\d.]+)", html)]
    assert shares == [1.0, 0.6, 0.6, 1.0, 1.0, 0.0, 0.0, 1.0]
    # The smallest cosine is said beside the colours.
    assert "-0.250<span" in html


def test_tables_of_the_same_texts() -> None:
    """No scale can be made where all cosines are 1."""
    html = draw.comparison({"one": np.ones((2, 2))}, ["a", "a"], WORDS["zh"])
    assert cells(html) == [[1.0, 1.0], [1.0, 1.0]] and "nan" not in html


def test_a_text_inside() -> None:
    inside = look(st_reba.build("mini"), "看河水", 2)
    weights = inside.weights("last")
    html = draw.inside_text(inside, weights, [2], 4, WORDS["zh"])
    shown = re.findall(r'<span class="chip[^>]*>(.*?)<small>(.*?)</small>', html)
    assert shown == [("&lt;s&gt;", "–"), *((t, f"{w:.3f}") for t, w in zip("看河水看河水", weights[1:], strict=True))]
    assert re.findall(r'<div class="line"><b>(.*?)</b>', html) == ["文本之外", "第 1 遍", "第 2 遍"]
    assert f'title="水 → 看: {inside.rows[2, 4]:.3f}"' in html and "第 4 层的注意力" in html
    assert cells(html)[-13:-7] == [[round(s, 3) for s in (x.sink, x.even, x.itself)] for x in inside.sinks]
    # The chosen token's row, and the chosen layer's.
    assert re.findall(r'<tr class="chosen"><th[^>]*>(.*?)</th>', html) == ["水", "4 forward"]


def test_texts_stay_texts() -> None:
    evil = "<img src=x onerror=alert(1)> ${1+1} {{x}}"
    table = np.eye(2)
    answers = [
        draw.comparison({evil: table}, [evil, evil], WORDS["en"]),
        draw.results({evil: [Hit(0.5, evil)]}, evil, evil),
        draw.problem(evil, evil),
        draw.inside_text(inside := look(st_reba.build("mini"), "<b>", 2), inside.rows[0], [0], 0, WORDS["en"]),
    ]
    for html in answers:
        assert "<img" not in html and "<b>&lt;" in html.replace("</", "") or "&lt;" in html
        assert not re.search("<(img|b><)", html)


def test_shared_words_are_marked() -> None:
    html = draw.results({"reba": [Hit(0.5, "The Cat & I")]}, "a cat", "")
    assert "<b>0.500</b><span>The <mark>Cat</mark> &amp; I</span>" in html


def test_small_weights_have_a_scale_of_their_own() -> None:
    shares = draw._logarithmic(np.array([1.0, FAINTEST**0.5, FAINTEST, 0.0]))
    assert shares.tolist() == pytest.approx([1.0, 0.5, 0.0, 0.0])
