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
LAYER_MATRIX = [
    [1.0, 0, 0, 0],
    [0.5, 0.5, 0, 0],
    [0.5, 0.25, 0.25, 0],
    [0.4, 0.2, 0.2, 0.2],
]


def inside_of(*tokens: str) -> Inside:
    """A text of two tokens in copy 1 and one in copy 2, in a model whose layer runs twice."""
    matrix = np.array(LAYER_MATRIX, dtype=np.float32)
    layers = (
        LayerMap(0, "forward", matrix),
        LayerMap(0, "forward", matrix, run=2),
    )
    maps = Maps(tokens, layers)
    return Inside([0, 1, 1, 2], ROWS, maps, list(sink_table([maps]).itertuples()))


def draw_chinese_text() -> str:
    """Its second token and second layer are chosen."""
    inside = inside_of("<s>", "看", "水", "看")
    return draw.draw_inside(inside, inside.weights([1]), [1], 1, WORDS["zh"])


def numbers_of_rows(answer_html: str) -> list[list[float]]:
    rows: list[list[float]] = []
    for row_html in re.findall(r"<tr[^>]*>(.*?)</tr>", answer_html):
        if "<td" in row_html:
            cell_numbers = re.findall(r"<td[^>]*>([-\d.]+)</td>", row_html)
            rows.append(list(map(float, cell_numbers)))
    return rows


def shares_of_cells(answer_html: str) -> list[float]:
    return list(map(float, re.findall(r"--s:([\d.]+)", answer_html)))


@pytest.fixture
def two_tables() -> str:
    near = np.array([[1.0, 0.5], [0.5, 1.0]])
    far = np.array([[1.0, -0.25], [-0.25, 1.0]])
    return draw.draw_comparison({"near": near, "far": far}, ["a", "b"], WORDS["en"])


def test_tables_show_their_numbers_and_texts(two_tables: str) -> None:
    assert numbers_of_rows(two_tables) == [
        [1.0, 0.5],
        [0.5, 1.0],
        [1.0, -0.25],
        [-0.25, 1.0],
    ]
    names = re.findall(r"<th title=.*?>(.*?)</th>", two_tables)
    assert names == ["1", "2", "1 a", "2 b"] * 2


def test_tables_have_one_scale(two_tables: str) -> None:
    assert shares_of_cells(two_tables) == [
        1.0,
        0.6,
        0.6,
        1.0,
        1.0,
        0.0,
        0.0,
        1.0,
    ]
    assert "-0.250<span" in two_tables  # beside the colours
    classes = re.findall(r'<td( class="deep")? style', two_tables)
    assert classes[:2] == [' class="deep"', ""]


def test_cosines_of_1_need_no_scale() -> None:
    answer_html = draw.draw_comparison({"same": np.ones((2, 2))}, ["a", "a"], WORDS["zh"])
    assert "nan" not in answer_html


def test_tokens_have_their_weights_in_lines_of_copies() -> None:
    answer_html = draw_chinese_text()
    chips = re.findall(r'<span class="chip[^>]*>(.*?)<small>(.*?)</small>', answer_html)
    assert chips == [
        ("&lt;s&gt;", "–"),
        ("看", "0.000"),
        ("水", "0.010"),
        ("看", "0.020"),
    ]
    cell_shares = re.findall(r'<span class="chip ([^"]*)" style="--s:([^"]*)"', answer_html)
    assert cell_shares[0][0] == "none"
    assert cell_shares[1:] == [("", "0.000"), ("", "0.500"), ("deep", "1.000")]
    labels = re.findall(r'<div class="line"><b>(.*?)</b>', answer_html)
    assert labels == ["文本之外", "第 1 遍", "第 2 遍"]


def test_weights_of_0_need_no_scale() -> None:
    inside = inside_of("<s>", "看", "水", "看")
    answer_html = draw.draw_inside(inside, np.zeros(4), [], 0, WORDS["en"])
    assert "nan" not in answer_html


def test_maps_and_the_sink_of_a_text_are_drawn() -> None:
    answer_html = draw_chinese_text()
    assert escape(WORDS["zh"]["sink_about"].format(token="<s>")) in answer_html
    assert 'title="看 → 水: 0.250"' in answer_html
    assert answer_html.count("heat small") == 2
    assert "第 0 (2) 层的注意力" in answer_html
    assert [0.467, 0.361, 0.317] in numbers_of_rows(answer_html)


def test_the_chosen_token_and_layer_are_set_off() -> None:
    chosen_rows = re.findall(r'<tr class="chosen"><th[^>]*>(.*?)</th>', draw_chinese_text())
    assert chosen_rows == ["水", "0 (2) forward"]


def test_shares_of_attention_are_logarithmic() -> None:
    cell_shares = draw.logarithmic_shares(np.array([1.0, 10**-1.5, 1e-3, 0.0]))
    assert cell_shares.tolist() == pytest.approx([1.0, 0.5, 0.0, 0.0])


EVIL_TEXT = "<img src=x onerror=alert(1)> ${1+1} {{x}}"


@pytest.mark.parametrize(
    "answer_html",
    [
        draw.draw_comparison({EVIL_TEXT: np.eye(2)}, [EVIL_TEXT, EVIL_TEXT], WORDS["en"]),
        draw.draw_results({EVIL_TEXT: [(0.5, EVIL_TEXT)]}, "onerror", EVIL_TEXT),
        draw.draw_problem(EVIL_TEXT, EVIL_TEXT),
        draw.draw_inside(inside_of(*[EVIL_TEXT] * 4), ROWS[0], [0], 0, WORDS["en"]),
    ],
    ids=["comparison", "results", "problem", "inside"],
)
def test_texts_stay_texts(answer_html: str) -> None:
    assert "<img" not in answer_html
    assert "&lt;img" in answer_html


@pytest.mark.parametrize(
    ("query", "text", "marked_html"),
    [
        ("a cat", "The Cat & I", "The <mark>Cat</mark> &amp; I"),
        ("猫在哪里", "小猫在睡觉", "小<mark>猫</mark><mark>在</mark>睡觉"),
        ("art", "a party", "a party"),
        ("onerror", "<img onerror=1>", "&lt;img <mark>onerror</mark>=1&gt;"),
    ],
)
def test_shared_words_are_marked(query: str, text: str, marked_html: str) -> None:
    answer = draw.draw_results({"reba": [(0.5, text)]}, query, "")
    assert f"<b>0.500</b><span>{marked_html}</span>" in answer


def test_both_languages_have_the_same_keys() -> None:
    assert WORDS.keys() == LANGUAGES.keys()
    assert WORDS["en"].keys() == WORDS["zh"].keys()


def fields_of(text: str) -> set[str]:
    field_names = {field_name for _, field_name, _, _ in string.Formatter().parse(text)}
    return {field_name for field_name in field_names if field_name is not None}


@pytest.mark.parametrize("key", WORDS["en"])
def test_both_languages_say_the_same(key: str) -> None:
    chinese = WORDS["zh"][key]
    assert fields_of(chinese) == fields_of(WORDS["en"][key])
    is_example = key.startswith("some_")
    assert is_example or re.search("[\u4e00-\u9fff]", chinese)
