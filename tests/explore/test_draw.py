"""HTML of the page: scales, marks, and texts that stay texts."""

from __future__ import annotations

import re
import string
from html import escape

import numpy as np
import pytest

from st_reba.evaluation.attention import LayerMap, Maps, sink_table
from st_reba.explore import draw
from st_reba.explore.compute import Inside
from st_reba.explore.draw import LANGUAGES, WORDS

ROWS = np.array([[0.0, 0.5, 0.25, 0.1], [0.0, 0.0, 0.01, 0.02]])


def inside(*tokens: str) -> Inside:
    matrix = np.array([[1.0, 0, 0, 0], [0.5, 0.5, 0, 0], [0.5, 0.25, 0.25, 0], [0.4, 0.2, 0.2, 0.2]], dtype=np.float32)
    maps = Maps(tokens, (LayerMap(0, "forward", matrix), LayerMap(0, "forward", matrix, run=2)))
    return Inside([0, 1, 1, 2], ROWS, maps, list(sink_table([maps]).itertuples()))


def cells(html: str) -> list[list[float]]:
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", html)
    return [[float(each) for each in re.findall(r"<td[^>]*>([-\d.]+)</td>", row)] for row in rows if "<td" in row]


def test_tables_have_one_scale() -> None:
    one, other = np.array([[1.0, 0.5], [0.5, 1.0]]), np.array([[1.0, -0.25], [-0.25, 1.0]])
    html = draw.draw_comparison({"one": one, "other": other}, ["a", "b"], WORDS["en"])
    assert cells(html) == [[1.0, 0.5], [0.5, 1.0], [1.0, -0.25], [-0.25, 1.0]]
    assert [float(each) for each in re.findall(r"--s:([\d.]+)", html)] == [1.0, 0.6, 0.6, 1.0, 1.0, 0.0, 0.0, 1.0]
    assert "-0.250<span" in html  # beside the colours
    assert re.findall(r'<td( class="deep")? style', html)[:2] == [' class="deep"', ""]
    assert re.findall(r"<th title=.*?>(.*?)</th>", html) == ["1", "2", "1 a", "2 b"] * 2
    # No scale is possible where all cosines are 1.
    assert "nan" not in draw.draw_comparison({"one": np.ones((2, 2))}, ["a", "a"], WORDS["zh"])


def test_a_text_inside() -> None:
    text = inside("<s>", "看", "水", "看")
    html = draw.draw_inside(text, text.weights("last"), [1], 1, WORDS["zh"])
    shown = re.findall(r'<span class="chip[^>]*>(.*?)<small>(.*?)</small>', html)
    assert shown == [("&lt;s&gt;", "–"), ("看", "0.000"), ("水", "0.010"), ("看", "0.020")]
    shares = re.findall(r'<span class="chip ([^"]*)" style="--s:([^"]*)"', html)
    assert shares[1:] == [("", "0.000"), ("", "0.500"), ("deep", "1.000")] and shares[0][0] == "none"
    assert re.findall(r'<div class="line"><b>(.*?)</b>', html) == ["文本之外", "第 1 遍", "第 2 遍"]
    assert escape(WORDS["zh"]["sink_about"].format(token="<s>")) in html
    assert 'title="看 → 水: 0.250"' in html and html.count("heat small") == 2 and "第 0 (2) 层的注意力" in html
    assert [0.467, 0.361, 0.317] in cells(html)
    # The rows of the chosen token and layer.
    assert re.findall(r'<tr class="chosen"><th[^>]*>(.*?)</th>', html) == ["水", "0 (2) forward"]
    assert draw.logarithmic_shares(np.array([1.0, 10**-1.5, 1e-3, 0.0])).tolist() == pytest.approx([1.0, 0.5, 0.0, 0.0])


def test_texts_stay_texts() -> None:
    evil = "<img src=x onerror=alert(1)> ${1+1} {{x}}"
    answers = [
        draw.draw_comparison({evil: np.eye(2)}, [evil, evil], WORDS["en"]),
        draw.draw_results({evil: [(0.5, evil)]}, "onerror", evil),
        draw.draw_problem(evil, evil),
        draw.draw_inside(inside(*[evil] * 4), ROWS[0], [0], 0, WORDS["en"]),
    ]
    assert not any("<img" in html for html in answers) and all("&lt;img" in html for html in answers)
    assert "<mark>onerror</mark>" in answers[1]


def test_shared_words_are_marked() -> None:
    for query, text, shown in (
        ("a cat", "The Cat & I", "The <mark>Cat</mark> &amp; I"),
        ("猫在哪里", "小猫在睡觉", "小<mark>猫</mark><mark>在</mark>睡觉"),
        ("art", "a party", "a party"),
    ):
        assert f"<b>0.500</b><span>{shown}</span>" in draw.draw_results({"reba": [(0.5, text)]}, query, "")


def test_both_languages_say_the_same() -> None:
    assert set(WORDS) == set(LANGUAGES) and set(WORDS["en"]) == set(WORDS["zh"])
    for key, english in WORDS["en"].items():
        chinese = WORDS["zh"][key]
        named = [{name for _, name, _, _ in string.Formatter().parse(each)} for each in (english, chinese)]
        assert named[0] | {None} == named[1] | {None}, key
        assert key.startswith("some_") or re.search("[\u4e00-\u9fff]", chinese), key
