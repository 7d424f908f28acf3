"""The page in Chromium: what is typed, clicked and read there, against what Python computes. scripts/test --browser.

With ST_REBA_FIGURES=FOLDER the figures of docs/how-to/explore.md are written there.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvicorn
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

import st_reba
from st_reba.explore import compute
from st_reba.explore.names import DEFAULT
from st_reba.explore.page import words
from st_reba.explore.serve import make_app

pytestmark = pytest.mark.slow

MODELS = [*DEFAULT, "mini prompteol"]
WORDS = words()
INDEXED = ["猫在沙发上睡觉。", "船在海上航行。", "The bank raised its interest rate."]
TABS = ("compare", "inside", "search")
# Whatever the server looks up or connects to, beside this machine, is said.
SERVER = """
import sys
def watch(event, given):
    if event == "socket.connect" and isinstance(given[1], tuple):
        host = given[1][0]
    elif event == "socket.getaddrinfo":
        host = given[0]
    else:
        return
    if host not in (None, "127.0.0.1", "::1", "localhost"):
        print("OUTSIDE", event, host, flush=True)
sys.addaudithook(watch)
import st_reba.explore
st_reba.explore.launch(sys.argv[3:], port=int(sys.argv[1]), index=sys.argv[2])
"""


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    return compute.open_models(MODELS)


@pytest.fixture(scope="module")
def server(models: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The page's address, and what its process says."""
    folder = tmp_path_factory.mktemp("explore")
    st_reba.Index.build(models[DEFAULT[1]], INDEXED, folder / "index", show_progress_bar=False).close()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    command = [sys.executable, "-c", SERVER, port, str(folder / "index"), *MODELS]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "HF_HUB_OFFLINE": "1"})
        try:
            url = f"http://127.0.0.1:{port}"
            for _ in range(300):
                assert process.poll() is None, (folder / "log").read_text()
                try:
                    urllib.request.urlopen(url, timeout=5).close()
                    break
                except OSError:
                    time.sleep(0.5)
            yield url, folder / "log"
        finally:
            process.terminate()
            process.wait(timeout=30)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = os.environ.get("ST_REBA_CHROMIUM", "/usr/bin/chromium")
    with sync_playwright() as playwright:
        # As root, Chromium starts without its sandbox alone.
        chromium = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def opened(browser: Browser, server: tuple[str, Path]) -> Iterator[Any]:
    """``opened(language, width)``: the page, when it has answered; no request of it may leave this machine."""
    asked: list[str] = []
    problems: list[str] = []
    contexts = []

    def new(language: str = "zh-CN", width: int = 1280) -> Page:
        contexts.append(browser.new_context(locale=language, viewport={"width": width, "height": 900}))
        page = contexts[-1].new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(server[0])
        expect(page.locator("#compare-answer .reba")).to_be_attached(timeout=60_000)
        return page

    yield new
    for context in contexts:
        context.close()
    assert asked and not [url for url in asked if not url.startswith((server[0], "data:", "blob:"))]
    assert not problems and "OUTSIDE" not in server[1].read_text() and "Traceback" not in server[1].read_text()


def tab(page: Page, name: str) -> Locator:
    """Go to a tab; its answer."""
    page.get_by_role("tab").nth(TABS.index(name)).click()
    answer = page.locator(f"#{name}-answer")
    expect(answer.locator(".reba")).to_be_visible()
    return answer


def fill(page: Page, box: str, text: str) -> None:
    page.locator(f"#{box} textarea, #{box} input").first.fill(text)


def table(figure: Locator) -> np.ndarray[Any, Any]:
    rows = [row.locator("td").all_inner_texts() for row in figure.locator("tbody tr").all()]
    return np.array(rows, dtype=float)


def test_compare(opened: Any, models: dict[str, Any]) -> None:
    page = opened()
    answer = tab(page, "compare")
    texts = ["今天天气很好", "天气不错", "银行在河边", "a cat"]
    fill(page, "sentences", "\n".join(texts))
    page.locator("#compare-run").click()
    expect(answer.locator("figure").first.locator("tbody th").nth(3)).to_have_text("4 a cat")
    assert answer.locator("figcaption").all_inner_texts() == MODELS
    for name, figure in zip(MODELS, answer.locator("figure").all(), strict=True):
        np.testing.assert_allclose(table(figure), compute.similarities(models[name], texts), atol=6e-4)
    page.locator("#compare-models").get_by_label(MODELS[0]).uncheck()
    expect(answer.locator("figure")).to_have_count(len(MODELS) - 1)
    assert answer.locator("figcaption").all_inner_texts() == MODELS[1:]


def test_look_inside(opened: Any, models: dict[str, Any]) -> None:
    page = opened()
    answer = tab(page, "inside")
    page.locator("#inside-model input").click()
    page.get_by_role("option", name=DEFAULT[2]).click()
    # Its own number of copies is set then, and the first layer.
    expect(page.locator("#inside-repeats input[type=number]")).to_be_enabled()
    text = "他坐在河边取了钱"
    fill(page, "text", text)
    fill(page, "which_word", "取了")
    page.locator("#inside-run").click()
    page.locator("#inside-repeats input[type=number]").fill("3")
    expect(answer.locator(".line")).to_have_count(4)
    page.locator("#inside-layer input[type=number]").fill("4")
    expect(answer.locator("h3").last).to_have_text(WORDS["zh"]["layer_title"].format(layer=4))
    inside = compute.look(models[DEFAULT[2]], text, 3)
    chosen = compute.tokens_of(models[DEFAULT[2]], text, "取了")
    marked = {"last": [len(inside.rows) - 1], "mean": [], "word": chosen}
    for weighting in ("last", "mean", "word"):
        page.locator("#inside-weighting").get_by_label(WORDS["zh"][weighting], exact=True).check()
        # One more row stands for the chosen layer.
        expect(answer.locator("tr.chosen")).to_have_count(len(marked[weighting]) + 1)
        chips = answer.locator(".chip").all_inner_texts()
        assert [chip.split("\n")[0] for chip in chips] == list(inside.tokens)
        shown = [float(chip.split("\n")[-1].replace("–", "0")) for chip in chips]
        np.testing.assert_allclose(shown, inside.weights(weighting, marked[weighting]), atol=6e-4)
    titles = answer.locator("section").nth(1).locator("td").evaluate_all("all => all.map(each => each.title)")
    shown = [float(title.rsplit(" ", 1)[1]) for title in titles]
    np.testing.assert_allclose(np.reshape(shown, inside.rows.shape), inside.rows, atol=6e-4)
    sinks = [
        row.locator("td").all_inner_texts()[:3] for row in answer.locator("section").nth(2).locator("tbody tr").all()
    ]
    wanted = [(each.sink, each.even, each.itself) for each in inside.sinks]
    np.testing.assert_allclose(np.array(sinks, dtype=float), wanted, atol=6e-4)


def test_a_template_fixes_the_copies(opened: Any) -> None:
    page = opened()
    answer = tab(page, "inside")
    # The last model is chosen first.
    expect(page.locator("#inside-repeats input[type=number]")).to_be_disabled()
    expect(answer.locator(".line")).to_have_count(3)
    # Another model is looked at as soon as it is chosen, though it has as many copies.
    page.locator("#inside-model input").click()
    page.get_by_role("option", name=DEFAULT[0]).click()
    expect(page.locator("#inside-repeats input[type=number]")).to_be_enabled()
    expect(answer.locator(".line")).to_have_count(2)


def test_search(opened: Any, models: dict[str, Any]) -> None:
    page = opened("en-US")
    answer = tab(page, "search")
    texts = ["河边有猫", "The Cat sleeps.", "利率提高了"]
    fill(page, "documents", "\n".join(texts))
    fill(page, "query", "a cat 猫")
    page.locator("#search-run").click()
    expect(answer.locator("mark")).to_have_count(2 * len(MODELS))
    for name, figure in zip(MODELS, answer.locator("figure").all(), strict=True):
        hits = compute.ranked(models[name], "a cat 猫", texts)
        assert figure.locator("li span").all_inner_texts() == [hit.text for hit in hits]
        shown = [float(each) for each in figure.locator("li b").all_inner_texts()]
        np.testing.assert_allclose(shown, [hit.score for hit in hits], atol=6e-4)
    page.locator("#search-where").get_by_label(WORDS["en"]["index"], exact=True).check()
    expect(answer.locator("figure")).to_have_count(len(MODELS) + 1)
    own, echo = answer.locator("figure").first, answer.locator("figure").nth(2)
    hits = compute.ranked(models[DEFAULT[1]], "a cat 猫", INDEXED)
    # The index is this model's, so that both columns say the same.
    for figure in (own, echo):
        assert figure.locator("li span").all_inner_texts() == [hit.text for hit in hits]


def test_the_language_is_the_browsers_and_can_be_changed(opened: Any) -> None:
    page = opened("en-GB")
    for code, name in (("en", None), ("zh", "中文"), ("en", "English")):
        said = WORDS[code]
        if name is not None:
            page.locator("#language").get_by_label(name).check()
        expect(page.locator("#title h1")).to_have_text(said["title"])
        expect(page.get_by_role("tab")).to_have_text([said[each] for each in TABS])
        expect(page.locator("#compare-answer p").first).to_contain_text(said["cosines"])
        expect(page.locator("#compare-run")).to_have_text(said["run_compare"])
        # What somebody has written stays; an example that nobody has touched is said in the other language.
        box = page.locator("#sentences textarea")
        expect(box).to_have_value(said["some_sentences"] if name is None else "一\n二")
        tab(page, "search")
        expect(page.locator("#query").locator("textarea, input").first).to_have_value(said["some_query"])
        expect(page.locator("#search-answer p").first).to_contain_text(said["found"])
        tab(page, "inside")
        expect(page.locator("#inside-answer h3").first).to_have_text(said["copies_title"])
        expect(page.locator("#inside-weighting label")).to_have_text([said[each] for each in ("last", "mean", "word")])
        tab(page, "compare")
        fill(page, "sentences", "一\n二")


def test_a_language_that_is_given_is_not_the_browsers(browser: Browser, models: dict[str, Any]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        some = {name: models[name] for name in MODELS[:2]}
        served = uvicorn.Server(uvicorn.Config(make_app(some, None, "zh"), log_level="warning"))
        thread = threading.Thread(target=served.run, kwargs={"sockets": [taken]})
        thread.start()
        try:
            with browser.new_page(locale="en-US") as page:
                page.goto(f"http://127.0.0.1:{taken.getsockname()[1]}")
                expect(page.locator("#compare-answer p").first).to_contain_text(WORDS["zh"]["cosines"], timeout=60_000)
                expect(page.locator("#title h1")).to_have_text(WORDS["zh"]["title"])
                page.locator("#language").get_by_label("English").check()
                expect(page.locator("#compare-answer p").first).to_contain_text(WORDS["en"]["cosines"])
                # There is no index, so nothing is asked about one.
                tab(page, "search")
                expect(page.locator("#search-where")).to_have_count(0)
        finally:
            served.should_exit = True
            thread.join()


def test_what_is_refused_is_said_on_the_page(opened: Any) -> None:
    page = opened()
    answer = tab(page, "compare")
    fill(page, "sentences", "短\n" + "长" * 301)
    page.locator("#compare-run").click()
    problem = answer.get_by_role("alert")
    expect(problem).to_contain_text(WORDS["zh"]["too_long"].format(number=2, count=301, most=300))
    page.locator("#language").get_by_label("English").check()
    expect(problem).to_contain_text(WORDS["en"]["too_long"].format(number=2, count=301, most=300))
    fill(page, "sentences", "短\n<img src=x onerror=alert(1)> ${1+1} {{x}}")
    page.locator("#compare-run").click()
    expect(problem).to_have_count(0)
    expect(answer.locator("tbody th").nth(1)).to_have_text("2 <img src=x onerror=alert(1)> ${1+1} {{x}}")
    answer = tab(page, "inside")
    fill(page, "text", "天" * 200)
    page.locator("#inside-run").click()
    expect(answer.get_by_role("alert")).to_contain_text("Shorten it")
    for name in MODELS:
        tab(page, "search")
        page.locator("#search-models").get_by_label(name, exact=True).uncheck()
    expect(page.locator("#search-answer").get_by_role("alert")).to_contain_text(WORDS["en"]["no_model"])


@pytest.mark.parametrize("name", TABS)
def test_a_phone(opened: Any, name: str) -> None:
    page = opened(width=390)
    answer = tab(page, name)
    if name == "compare":
        fill(page, "sentences", "\n".join(f"第{number}句" for number in range(compute.MOST_SENTENCES)))
        page.locator("#compare-run").click()
        expect(answer.locator("figure").first.locator("tbody tr")).to_have_count(compute.MOST_SENTENCES)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    # What is wider can be moved with a finger.
    wide = (
        "all => all.filter(each => each.scrollWidth > each.clientWidth).map(each => getComputedStyle(each).overflowX)"
    )
    assert set(answer.locator("table").locator("..").evaluate_all(wide)) == ({"auto"} if name != "search" else set())
    right = page.locator(f"#{name}-answer .reba").evaluate("each => each.getBoundingClientRect().right")
    assert right <= 390


def test_the_browser_loads_nothing_from_elsewhere(opened: Any, server: tuple[str, Path]) -> None:
    page = opened()
    with urllib.request.urlopen(server[0]) as answer:
        assert answer.headers["content-security-policy"].startswith("default-src 'self'")
    refused = "fetch('http://192.0.2.1/').then(() => 'loaded', error => error.message)"
    assert "Failed to fetch" in page.evaluate(refused)


def test_figures(opened: Any, tmp_path: Path) -> None:
    folder = Path(os.environ.get("ST_REBA_FIGURES", tmp_path))
    for name, language in (("compare", "en-US"), ("inside", "zh-CN"), ("search", "en-US")):
        page = opened(language)
        tab(page, name)
        for models in ("#compare-models", "#search-models"):
            if name in models:
                page.locator(models).get_by_label(MODELS[3], exact=True).uncheck()
                expect(page.locator(f"#{name}-answer figure")).to_have_count(3)
        if name == "inside":
            page.locator("#inside-model input").click()
            page.get_by_role("option", name=DEFAULT[2]).click()
            expect(page.locator("#inside-answer .line")).to_have_count(3)
        page.mouse.move(0, 0)
        page.wait_for_timeout(500)
        path = folder / f"explore-{name}.png"
        page.screenshot(path=path, full_page=True)
        assert path.stat().st_size < 200_000
