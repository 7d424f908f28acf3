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

import st_reba
from st_reba.explore import DEFAULT_MODELS, compute
from st_reba.explore.draw import WORDS

pytestmark = pytest.mark.slow
expect.set_options(timeout=30_000)

MODELS = [*DEFAULT_MODELS, "mini prompteol"]
TABS = ("compare", "inside", "search")


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    return {name: compute.open_model("mini", st_reba.Method.parse(name.partition(" ")[2])) for name in MODELS}


@pytest.fixture(scope="module")
def server(models: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of the page, with an index."""
    folder = tmp_path_factory.mktemp("explore")
    models[DEFAULT_MODELS[1]].save_pretrained(str(folder / "model"))
    texts = ["猫在沙发上睡觉。", "船在海上航行。", "The bank raised its interest rate."]
    st_reba.Index.build(str(folder / "model"), texts, folder / "index", show_progress_bar=False).close()
    code = "import sys, st_reba.explore as e; e.launch(sys.argv[2:], port=0, index=sys.argv[1])"
    command = [sys.executable, "-c", code, str(folder / "index"), *MODELS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"}) as run:
        try:
            assert run.stdout is not None
            yield run.stdout.readline().split()[0]
        finally:
            run.terminate()


@pytest.fixture
def opened(browser: Browser, server: str) -> Iterator[Any]:
    """``opened(language, width)``: the page. No request may leave this machine, and no script may fail."""
    asked: list[str] = []
    problems: list[str] = []

    def new(language: str = "zh-CN", width: int = 1280) -> Page:
        page = browser.new_context(locale=language, viewport={"width": width, "height": 900}).new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(server)
        expect(page.locator("#compare-answer .reba")).to_be_attached(timeout=60_000)
        return page

    yield new
    assert asked and not [url for url in asked if not url.startswith((server, "data:", "blob:"))] and not problems


def tab(page: Page, name: str) -> Locator:
    page.get_by_role("tab").nth(TABS.index(name)).click()
    answer = page.locator(f"#{name}-answer")
    expect(answer.locator(".reba")).to_be_visible()
    return answer


def fill(page: Page, box: str, text: str) -> None:
    page.locator(f"#{box} textarea, #{box} input").first.fill(text)


def test_compare(opened: Any) -> None:
    page = opened()
    answer = tab(page, "compare")
    texts = ["今天天气很好", "天气不错", "<img src=x> ${1+1}", "a cat"]
    fill(page, "sentences", "\n".join(texts))
    page.locator("#compare-run").click()
    expect(answer.locator("figure").first.locator("tbody th").nth(2)).to_have_text("3 <img src=x> ${1+1}")
    expect(answer.locator("figcaption")).to_have_text(MODELS)
    page.locator("#compare-models").get_by_label(MODELS[0]).uncheck()
    expect(answer.locator("figcaption")).to_have_text(MODELS[1:])
    fill(page, "sentences", "短\n" + "长" * 301)
    page.locator("#compare-run").click()
    said = WORDS["zh"]["too_long"].format(number=2, count=301, most=300)
    expect(answer.get_by_role("alert")).to_contain_text(said)


def test_look_inside(opened: Any) -> None:
    page = opened()
    answer = tab(page, "inside")
    page.locator("#inside-model input").click()
    page.get_by_role("option", name=DEFAULT_MODELS[2]).click()
    # The slider is free again once it fits the model, whose tokens are shown: no template.
    expect(page.locator("#inside-repeats input[type=number]")).to_be_enabled()
    expect(answer.locator(".chip.none")).to_have_count(1)
    fill(page, "text", "他坐在河边取了钱")
    fill(page, "which_word", "取了")
    page.locator("#inside-run").click()
    page.locator("#inside-repeats input[type=number]").fill("3")
    expect(answer.locator(".line")).to_have_count(4)
    page.locator("#inside-layer input[type=number]").fill("4")
    expect(answer.locator("h3").last).to_have_text(WORDS["zh"]["layer_title"].format(layer=4))
    for weighting, marked in {"last": 1, "word": len("取了"), "mean": 0}.items():
        page.locator("#inside-weighting").get_by_label(WORDS["zh"][weighting], exact=True).check()
        # One more row is that of the layer.
        expect(answer.locator("tr.chosen")).to_have_count(marked + 1)


def test_search_and_languages(opened: Any, models: dict[str, Any]) -> None:
    page = opened("en-US")
    answer = tab(page, "search")
    fill(page, "query", "where is the Cat")
    fill(page, "documents", "船在海上航行。\nThe cat sleeps.")
    page.locator("#search-run").click()
    expect(answer.locator("mark").first).to_have_text("The")
    found = compute.ranked(models[MODELS[0]], "where is the Cat", ["船在海上航行。", "The cat sleeps."])
    expect(answer.locator("figure").first.locator("b")).to_have_text([f"{score:.3f}" for score, _ in found])
    page.locator("#search-where").get_by_label(WORDS["en"]["index"]).check()
    expect(answer.locator("figcaption").first).to_have_text(WORDS["en"]["index_column"])
    page.locator("#language a").click()
    expect(page.locator("#title h1")).to_have_text(WORDS["zh"]["title"])
    expect(page.get_by_role("tab")).to_have_text([WORDS["zh"][name] for name in TABS])


def test_a_phone_and_the_figures(opened: Any, server: str, tmp_path: Path) -> None:
    """Nothing is wider than a phone; what cannot be narrower scrolls by itself."""
    folder = Path(os.environ.get("ST_REBA_FIGURES", tmp_path))
    for name, language in (("compare", "en-US"), ("inside", "zh-CN"), ("search", "en-US")):
        page = opened(language, 390)
        tab(page, name)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.set_viewport_size({"width": 1280, "height": 900})
        page.wait_for_timeout(500)
        page.screenshot(path=folder / f"explore-{name}.png", full_page=True)
    with urllib.request.urlopen(server) as answer:
        assert answer.headers["content-security-policy"].startswith("default-src 'self'")
