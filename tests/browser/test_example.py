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

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, Route, expect
from sentence_transformers import SentenceTransformer

import st_reba
from st_reba.comparison import GOLDEN_TEXTS
from st_reba.onnx import export

PAGE_FILE = Path(__file__).parents[2] / "examples" / "browser" / "index.html"
CDN_ADDRESS = re.compile(
    r"https://cdn\.jsdelivr\.net/npm/(@huggingface/transformers|onnxruntime-web)@([^/]+)(/.*)?"
)
ALLOW_ALL_ORIGINS = {"Access-Control-Allow-Origin": "*"}
# Texts that spell special tokens.
SPELLED_TOKENS = ["<s>", "a</s>b", "The <pad> runs.", "银行<s><s> 关门"]
PASTED_TEXTS = ["银行在河边。", "A <b>bank</b> by the river", "今天下雨"]


class FolderHandler(SimpleHTTPRequestHandler):
    """Serves a folder, and what npm installed below /npm/."""

    extensions_map = SimpleHTTPRequestHandler.extensions_map | {
        ".mjs": "text/javascript",
        ".wasm": "application/wasm",
    }

    def translate_path(self, path: str) -> str:
        if not path.startswith("/npm/"):
            return super().translate_path(path)
        modules_folder = Path(os.environ["ST_REBA_NODE"]) / "node_modules"
        return str(modules_folder / path.removeprefix("/npm/"))

    def end_headers(self) -> None:
        for name, value in ALLOW_ALL_ORIGINS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def embedding_model() -> SentenceTransformer:
    """A model of two layers, as tracing all takes its time."""
    return st_reba.build("mini", "reba", pooling="mean", layer=2, dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def server_address(
    embedding_model: SentenceTransformer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The folder of the example as its first lines make it."""
    folder = tmp_path_factory.mktemp("browser")
    shutil.copy(PAGE_FILE, folder)
    export(embedding_model, folder / "my_onnx")
    handler = functools.partial(FolderHandler, directory=str(folder))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture(scope="module")
def browser_page(browser: Browser, server_address: str) -> Iterator[Page]:
    """The page, when it has found something; it asks no server but its own and the CDN."""
    foreign_urls: list[str] = []
    script_errors: list[str] = []

    def answer_request(route: Route) -> None:
        url = route.request.url
        cdn_match = CDN_ADDRESS.fullmatch(url)
        if cdn_match is not None:
            package, _, file_path = cdn_match.groups()
            # An address without a file is that of the one that package.json names for this CDN.
            file_path = file_path or "/dist/transformers.min.js"
            location = {"Location": f"{server_address}/npm/{package}{file_path}"}
            route.fulfill(status=302, headers=location | ALLOW_ALL_ORIGINS)
        elif url.startswith(server_address):
            route.continue_()
        else:
            foreign_urls.append(url)
            route.abort()

    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.route("**/*", answer_request)
    page.on("pageerror", lambda error: script_errors.append(str(error)))
    page.goto(f"{server_address}/index.html")
    final_status = re.compile(r"texts; \d+ new vectors|could not")
    expect(page.locator("#status")).to_have_text(final_status, timeout=120_000)
    yield page
    page.context.close()
    assert not foreign_urls
    assert not script_errors


def test_the_page_computes_the_models_vectors(
    browser_page: Page, embedding_model: SentenceTransformer
) -> None:
    texts = [text for text in GOLDEN_TEXTS if text] + SPELLED_TOKENS
    vectors: list[list[float]] = []
    for text in texts:
        script = "async (text) => Array.from(await embed(text))"
        vectors.append(browser_page.evaluate(script, text))
    expected_vectors = embedding_model.encode(texts)
    np.testing.assert_allclose(vectors, expected_vectors, atol=1e-5, rtol=0)


def test_the_page_fits_a_narrow_screen(browser_page: Page) -> None:
    browser_page.set_viewport_size({"width": 390, "height": 900})
    assert browser_page.evaluate("document.documentElement.scrollWidth") == 390


def assert_ranked(
    browser_page: Page, model: SentenceTransformer, query: str, texts: list[str]
) -> None:
    """The page lists the texts by their cosines with the query."""
    scores = model.encode(texts) @ model.encode(query)
    order = np.argsort(-scores)
    shown_texts: list[str] = []
    shown_scores: list[float] = []
    for item in browser_page.locator("#found li").all_inner_texts():
        text, score = item.rsplit("\n", 1)
        shown_texts.append(text)
        shown_scores.append(float(score))
    assert shown_texts == [texts[index] for index in order]
    np.testing.assert_allclose(shown_scores, scores[order], atol=6e-4)


def test_the_page_ranks_texts(browser_page: Page, embedding_model: SentenceTransformer) -> None:
    texts = browser_page.locator("#texts").input_value().split("\n")
    assert len(texts) == 8
    assert_ranked(browser_page, embedding_model, "明天天气怎么样？", texts)
    first_text, *other_texts = PASTED_TEXTS
    browser_page.locator("#texts").fill("\n".join([first_text, "", *other_texts]))
    browser_page.locator("#query").fill("rain")
    expect(browser_page.locator("#found li")).to_have_count(3)
    expect(browser_page.locator("#status")).to_have_text(re.compile("^3 texts"))
    assert_ranked(browser_page, embedding_model, "rain", PASTED_TEXTS)
