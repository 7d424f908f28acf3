"""The page in Chromium, against what Python computes: scripts/test --browser.

With ST_REBA_FIGURES=FOLDER the figures of docs/how-to/explore.md are written there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from sentence_transformers import SentenceTransformer

import st_reba
from st_reba.explore import DEFAULT_MODELS, compute
from st_reba.explore.draw import WORDS

pytestmark = pytest.mark.slow
expect.set_options(timeout=30_000)

MODELS = [*DEFAULT_MODELS, "mini prompteol"]
TABS = ("compare", "inside", "search")
LAUNCH_SCRIPT = """
import sys
import st_reba.explore
st_reba.explore.launch(sys.argv[2:], port=0, index=sys.argv[1])
"""


@pytest.fixture(scope="module")
def page_models() -> dict[str, SentenceTransformer]:
    models: dict[str, SentenceTransformer] = {}
    for model_name in MODELS:
        _, _, method_text = model_name.partition(" ")
        method = st_reba.Method.parse(method_text)
        models[model_name] = compute.open_model("mini", method)
    return models


@pytest.fixture(scope="module")
def server(
    page_models: dict[str, SentenceTransformer],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[str]:
    """Address of the page, with an index."""
    folder = tmp_path_factory.mktemp("explore")
    page_models[DEFAULT_MODELS[1]].save_pretrained(str(folder / "model"))
    texts = [
        "猫在沙发上睡觉。",
        "船在海上航行。",
        "The bank raised its interest rate.",
    ]
    st_reba.Index.build(
        str(folder / "model"), texts, folder / "index", show_progress_bar=False
    ).close()
    command_line = [
        sys.executable,
        "-c",
        LAUNCH_SCRIPT,
        str(folder / "index"),
        *MODELS,
    ]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    with subprocess.Popen(
        command_line, stdout=subprocess.PIPE, text=True, env=environment
    ) as server_process:
        try:
            assert server_process.stdout is not None
            first_line = server_process.stdout.readline()
            yield first_line.split()[0]
        finally:
            server_process.terminate()


@pytest.fixture
def open_page(browser: Browser, server: str) -> Iterator[Any]:
    """``open_page(language, width)``: the page. No request may leave this machine, and no script may fail."""
    requested_urls: list[str] = []
    script_errors: list[str] = []

    def open_new(language: str = "zh-CN", width: int = 1280) -> Page:
        context = browser.new_context(locale=language, viewport={"width": width, "height": 900})
        browser_page = context.new_page()
        browser_page.on("request", lambda request: requested_urls.append(request.url))
        browser_page.on("pageerror", lambda error: script_errors.append(str(error)))
        browser_page.goto(server)
        expect(browser_page.locator("#compare-answer .reba")).to_be_attached(timeout=60_000)
        return browser_page

    yield open_new
    assert requested_urls
    for url in requested_urls:
        assert url.startswith((server, "data:", "blob:"))
    assert not script_errors


def open_tab(browser_page: Page, tab_name: str) -> Locator:
    browser_page.get_by_role("tab").nth(TABS.index(tab_name)).click()
    answer_element = browser_page.locator(f"#{tab_name}-answer")
    expect(answer_element.locator(".reba")).to_be_visible()
    return answer_element


def fill(browser_page: Page, box: str, text: str) -> None:
    browser_page.locator(f"#{box} textarea, #{box} input").first.fill(text)


def test_similarities_of_entered_sentences(open_page: Any) -> None:
    browser_page = open_page()
    answer_element = open_tab(browser_page, "compare")
    texts = ["今天天气很好", "天气不错", "<img src=x> ${1+1}", "a cat"]
    fill(browser_page, "sentences", "\n".join(texts))
    browser_page.locator("#compare-run").click()
    row_names = answer_element.locator("figure").first.locator("tbody th")
    expect(row_names.nth(2)).to_have_text("3 <img src=x> ${1+1}")
    expect(answer_element.locator("figcaption")).to_have_text(MODELS)
    browser_page.locator("#compare-models").get_by_label(MODELS[0]).uncheck()
    expect(answer_element.locator("figcaption")).to_have_text(MODELS[1:])
    fill(browser_page, "sentences", "短\n" + "长" * 301)
    browser_page.locator("#compare-run").click()
    message = WORDS["zh"]["too_long"].format(number=2, count=301, most=300)
    expect(answer_element.get_by_role("alert")).to_contain_text(message)


def test_weights_and_layers_of_a_text(open_page: Any) -> None:
    browser_page = open_page()
    answer_element = open_tab(browser_page, "inside")
    browser_page.locator("#inside-model input").click()
    browser_page.get_by_role("option", name=DEFAULT_MODELS[2]).click()
    # The slider is free again once it fits the model, whose tokens are shown: no template.
    expect(browser_page.locator("#inside-repeats input[type=number]")).to_be_enabled()
    expect(answer_element.locator(".chip.none")).to_have_count(1)
    fill(browser_page, "text", "他坐在河边取了钱")
    fill(browser_page, "which_word", "取了")
    browser_page.locator("#inside-run").click()
    browser_page.locator("#inside-repeats input[type=number]").fill("3")
    expect(answer_element.locator(".line")).to_have_count(4)
    browser_page.locator("#inside-layer input[type=number]").fill("4")
    expect(answer_element.locator("h3").last).to_have_text(
        WORDS["zh"]["layer_title"].format(layer=4)
    )
    for weighting, token_count in {
        "last": 1,
        "word": len("取了"),
        "mean": 0,
    }.items():
        browser_page.locator("#inside-weighting").get_by_label(
            WORDS["zh"][weighting], exact=True
        ).check()
        # One more row is that of the layer.
        expect(answer_element.locator("tr.chosen")).to_have_count(token_count + 1)


def test_results_and_the_other_language(
    open_page: Any, page_models: dict[str, SentenceTransformer]
) -> None:
    browser_page = open_page("en-US")
    answer_element = open_tab(browser_page, "search")
    fill(browser_page, "query", "where is the Cat")
    fill(browser_page, "documents", "船在海上航行。\nThe cat sleeps.")
    browser_page.locator("#search-run").click()
    expect(answer_element.locator("mark").first).to_have_text("The")
    first_model = page_models[MODELS[0]]
    hits = compute.ranked(first_model, "where is the Cat", ["船在海上航行。", "The cat sleeps."])
    shown_scores = answer_element.locator("figure").first.locator("b")
    expect(shown_scores).to_have_text([f"{score:.3f}" for score, _ in hits])
    browser_page.locator("#search-where").get_by_label(WORDS["en"]["index"]).check()
    expect(answer_element.locator("figcaption").first).to_have_text(WORDS["en"]["index_column"])
    browser_page.locator("#language a").click()
    expect(browser_page.locator("#title h1")).to_have_text(WORDS["zh"]["title"])
    tab_titles = [WORDS["zh"][tab_name] for tab_name in TABS]
    expect(browser_page.get_by_role("tab")).to_have_text(tab_titles)


def test_nothing_is_wider_than_a_phone(open_page: Any, server: str, tmp_path: Path) -> None:
    """What cannot be narrower scrolls by itself. Writes the figures."""
    folder = Path(os.environ.get("ST_REBA_FIGURES", tmp_path))
    for tab_name, language in (
        ("compare", "en-US"),
        ("inside", "zh-CN"),
        ("search", "en-US"),
    ):
        browser_page = open_page(language, 390)
        open_tab(browser_page, tab_name)
        assert browser_page.evaluate("document.documentElement.scrollWidth") <= 390
        browser_page.set_viewport_size({"width": 1280, "height": 900})
        browser_page.wait_for_timeout(500)
        browser_page.screenshot(path=folder / f"explore-{tab_name}.png", full_page=True)
    with urllib.request.urlopen(server) as response:
        assert response.headers["content-security-policy"].startswith("default-src 'self'")
