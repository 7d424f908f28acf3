"""examples/browser/ in Chromium, with transformers.js from npm in the CDN's place. ``scripts/test --browser``."""

from __future__ import annotations

import functools
import os
import re
import shutil
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, Route, expect

import st_reba
from st_reba.comparison import GOLDEN_TEXTS
from st_reba.onnx import export

PAGE = Path(__file__).parents[2] / "examples" / "browser" / "index.html"
CDN = re.compile(r"https://cdn\.jsdelivr\.net/npm/(@huggingface/transformers|onnxruntime-web)@([^/]+)(/.*)?")
SPELLED = ["<s>", "a</s>b", "The <pad> runs.", "银行<s><s> 关门"]


class _Served(SimpleHTTPRequestHandler):
    """A folder, and what npm installed below /npm/."""

    extensions_map = {**SimpleHTTPRequestHandler.extensions_map, ".mjs": "text/javascript", ".wasm": "application/wasm"}

    def translate_path(self, path: str) -> str:
        if path.startswith("/npm/"):
            return str(Path(os.environ["ST_REBA_NODE"]) / "node_modules" / path.removeprefix("/npm/"))
        return super().translate_path(path)

    def end_headers(self) -> None:
        self.send_header("Access-Control-Allow-Origin", "*")
        super().end_headers()

    def log_message(self, *given: Any) -> None:
        pass


@pytest.fixture(scope="module")
def model() -> Any:
    """Of two layers, as tracing all takes its time."""
    return st_reba.build("mini", "reba", pooling="mean", layer=2, dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def server(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The folder of the example as its first lines make it."""
    folder = tmp_path_factory.mktemp("browser")
    shutil.copy(PAGE, folder)
    export(model, folder / "my_onnx")
    served = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Served, directory=str(folder)))
    threading.Thread(target=served.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{served.server_port}"
    served.shutdown()


@pytest.fixture(scope="module")
def page(browser: Browser, server: str) -> Iterator[Page]:
    """The page, when it has found something; it asks nobody but its server and the CDN."""
    outside: list[str] = []
    problems: list[str] = []

    def answer(route: Route) -> None:
        if known := CDN.fullmatch(route.request.url):
            # An address without a file is that of the one that package.json names for this CDN.
            place = f"{server}/npm/{known[1]}{known[3] or '/dist/transformers.min.js'}"
            route.fulfill(status=302, headers={"Location": place, "Access-Control-Allow-Origin": "*"})
        elif route.request.url.startswith(server):
            route.continue_()
        else:
            outside.append(route.request.url)
            route.abort()

    shown = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    shown.route("**/*", answer)
    shown.on("pageerror", lambda error: problems.append(str(error)))
    shown.goto(f"{server}/index.html")
    expect(shown.locator("#status")).to_have_text(re.compile(r"texts; \d+ new vectors|could not"), timeout=120_000)
    yield shown
    shown.context.close()
    assert not outside and not problems


def vectors(page: Page, texts: list[str]) -> Any:
    return np.array([page.evaluate("async (text) => Array.from(await embed(text))", text) for text in texts])


def test_same_vectors(page: Page, model: Any) -> None:
    """On a narrow screen too."""
    page.set_viewport_size({"width": 390, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    texts = [*(text for text in GOLDEN_TEXTS if text), *SPELLED]
    np.testing.assert_allclose(vectors(page, texts), model.encode(texts), atol=1e-5, rtol=0)


def test_search(page: Page, model: Any) -> None:
    found = page.locator("#found li")

    def check(query: str, texts: list[str]) -> None:
        scores = model.encode(texts) @ model.encode(query)
        order = np.argsort(-scores)
        shown, numbers = zip(*(each.rsplit("\n", 1) for each in found.all_inner_texts()), strict=True)
        assert list(shown) == [texts[place] for place in order]
        np.testing.assert_allclose(np.array(numbers, dtype=float), scores[order], atol=6e-4)

    texts = page.locator("#texts").input_value().split("\n")
    assert len(texts) == 8
    check("明天天气怎么样？", texts)
    page.locator("#texts").fill("银行在河边。\n\nA <b>bank</b> by the river\n今天下雨")
    page.locator("#query").fill("rain")
    expect(found).to_have_count(3)
    expect(page.locator("#status")).to_have_text(re.compile("^3 texts"))
    check("rain", ["银行在河边。", "A <b>bank</b> by the river", "今天下雨"])
