"""Layout and events of the page, in one language. Gradio calls the functions here; draw writes the HTML."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any

from . import compute, draw
from .serve import LANGUAGES

gr: Any = import_module("gradio")
logger = logging.getLogger(__name__)


class Page:
    """The page with its three tabs, in a language of words.yaml."""

    def __init__(self, models: Mapping[str, Any], index: Any, language: str) -> None:
        self.models, self.index, self.words = models, index, draw.WORDS[language]
        # Kept, so that a slider does not run a model again; all layers' attention is large.
        self.similar = lru_cache(64)(lambda name, texts: compute.similarities(models[name], texts))
        self.inside = lru_cache(4)(lambda name, text, repeats: compute.look(models[name], text, repeats))
        self.ranked = lru_cache(64)(lambda name, query, texts: compute.ranked(models[name], query, texts))
        links = "".join(
            f'<b lang="{code}">{name}</b>' if code == language else f'<a href="../{code}/" lang="{code}">{name}</a>'
            for code, name in LANGUAGES.items()
        )
        title = f"<h1>{self.words['title']}</h1><p>{self.words['about']}</p>"
        tabs = {"compare": self._compare_tab, "inside": self._inside_tab, "search": self._search_tab}
        self.looked = [name for name, model in models.items() if compute.can_look(model)]
        with gr.Blocks(title=self.words["title"], analytics_enabled=False, fill_width=True) as self.blocks:
            with gr.Row(elem_id="top"):
                gr.HTML(title, elem_id="title", padding=False)
                gr.HTML(f"<nav>{links}</nav>", elem_id="language", padding=False)
            with gr.Tabs():
                for name, fill in tabs.items():
                    if name != "inside" or self.looked:
                        with gr.Tab(self.words[name], id=name):
                            fill()

    def _compare_tab(self) -> None:
        models = self._choice("compare-models")
        texts = self._box("sentences", "some_sentences", lines=5)
        self._answer("compare", self._compare, [models, texts], [models.change])

    def _compare(self, names: Sequence[str], text: str) -> str:
        texts = tuple(compute.lines_of(text, least=2, most=compute.MAX_SENTENCES))
        return draw.comparison({name: self.similar(name, texts) for name in _some(names)}, texts, self.words)

    def _inside_tab(self) -> None:
        own = self.looked[-1]
        with gr.Row():
            model = gr.Dropdown(self.looked, value=own, label=self.words["model"], elem_id="inside-model")
            repeats, layer = self._sliders(own)
        text = self._box("text", "some_text")
        with gr.Row():
            choices, label = self._choices("last", "mean", "word"), self.words["weighting"]
            weighting = gr.Radio(choices, value="mean", label=label, scale=2, elem_id="inside-weighting")
            word = self._box("which_word", "some_word")
        fitted = gr.State(own)

        def fit(name: str, last: str) -> tuple[Any, ...]:
            # Gradio tells one choice several times: a late one must not reset what was entered meanwhile.
            return (gr.skip(), gr.skip(), name) if name == last else (*self._sliders(name), name)

        model.change(fit, [model, fitted], [repeats, layer, fitted], api_visibility="private")
        changes = [model.change, repeats.change, layer.change, weighting.change, text.submit, word.submit]
        self._answer("inside", self._look, [model, text, repeats, weighting, word, layer], changes)

    def _sliders(self, name: str) -> tuple[Any, Any]:
        model = self.models[name]
        copies, free = compute.copies_of(model)
        of_copies: dict[str, Any] = {"label": self.words["repeats"], "elem_id": "inside-repeats", "interactive": free}
        of_layers: dict[str, Any] = {"label": self.words["layer"], "elem_id": "inside-layer"}
        most, last = max(copies, compute.MAX_COPIES), compute.passes_of(model) - 1
        return gr.Slider(1, most, copies, step=1, buttons=[], **of_copies), gr.Slider(
            0, last, 0, step=1, buttons=[], **of_layers
        )

    def _look(self, name: str, text: str, repeats: float, weighting: compute.Weighting, word: str, layer: float) -> str:
        (text,) = compute.lines_of(text, least=1, most=1)
        inside = self.inside(name, text, int(repeats))
        chosen = {"mean": [], "last": [len(inside.rows) - 1]}.get(weighting)
        if chosen is None:
            chosen = compute.tokens_of(self.models[name], text, word)
        shown = min(int(layer), len(inside.maps.layers) - 1)
        return draw.inside_text(inside, inside.weights(weighting, chosen), chosen, shown, self.words)

    def _search_tab(self) -> None:
        models = self._choice("search-models")
        choices, there = self._choices("pasted", "index"), self.index is not None
        where = gr.Radio(choices, value="pasted", label=self.words["corpus"], elem_id="search-where", visible=there)
        query = self._box("query", "some_query")
        texts = self._box("documents", "some_documents", lines=6)
        self._answer("search", self._search, [models, where, query, texts], [query.submit, models.change, where.change])

    def _search(self, names: Sequence[str], where: str, query: str, text: str) -> str:
        (query,) = compute.lines_of(query, least=1, most=1)
        about, found = self.words["found"], {}
        if where == "index" and self.index is not None:
            hits = [(hit.score, hit.passage or hit.text) for hit in self.index.search(query, k=compute.MAX_FOUND)]
            found[self.words["index_column"]] = hits[: compute.MAX_RESULTS]
            texts = [text for _, text in hits]
            about += " " + self.words["index_about"].format(most=compute.MAX_FOUND, read=compute.MAX_READ)
        else:
            texts = compute.lines_of(text, least=1, most=compute.MAX_DOCUMENTS)
        found |= {name: self.ranked(name, query, tuple(texts)) for name in _some(names)}
        return draw.results(found, query, about)

    def _box(self, key: str, example: str, *, lines: int = 1) -> Any:
        most = 8 if lines > 1 else 1
        return gr.Textbox(self.words[example], lines=lines, max_lines=most, label=self.words[key], elem_id=key)

    def _choice(self, elem_id: str) -> Any:
        names = list(self.models)
        return gr.CheckboxGroup(names, value=names, label=self.words["models"], elem_id=elem_id)

    def _choices(self, *keys: str) -> list[tuple[str, str]]:
        return [(self.words[key], key) for key in keys]

    def _answer(self, tab: str, run: Callable[..., str], inputs: Sequence[Any], events: Sequence[Any]) -> None:
        """Answer at the tab's button, on events, and when the page opens; errors take the answer's place."""

        def answered(*values: Any) -> str:
            try:
                return run(*values)
            except compute.Refused as refused:
                return draw.problem(self.words["problem"], self.words[refused.key].format(**refused.values))
            except Exception as error:
                logger.exception("The page could not answer.")
                return draw.problem(self.words["problem"], f"{type(error).__name__}: {error}")

        button = gr.Button(self.words[f"run_{tab}"], variant="primary", elem_id=f"{tab}-run", elem_classes="run")
        answer = gr.HTML(elem_id=f"{tab}-answer")
        # While one runs, only the last of further events is kept, so that the answer fits the input.
        order: dict[str, Any] = {"trigger_mode": "always_last", "concurrency_id": "page", "concurrency_limit": 1}
        shown: dict[str, Any] = {"api_visibility": "private", "show_progress": "minimal"}
        gr.on([self.blocks.load, button.click, *events], answered, list(inputs), answer, **order, **shown)


def _some(names: Sequence[str]) -> Sequence[str]:
    if not names:
        raise compute.Refused("no_model")
    return names
