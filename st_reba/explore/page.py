"""Layout and events of the page, in one language."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from . import compute, draw
from .answers import Answers
from .serve import LANGUAGES

gr: Any = import_module("gradio")


class Page:
    """The page with its three tabs, in a language of words.yaml."""

    def __init__(self, models: Mapping[str, Any], index: Any, language: str) -> None:
        self.models, self.index, self.words = models, index, draw.WORDS[language]
        self.answers = Answers(models, index, self.words)
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
        self._answer("compare", self.answers.compare, [models, texts], [models.change])

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
        self._answer("inside", self.answers.look, [model, text, repeats, weighting, word, layer], changes)

    def _sliders(self, name: str) -> tuple[Any, Any]:
        model = self.models[name]
        copies, free = compute.copies_of(model)
        most, last = max(copies, compute.MAX_COPIES), compute.passes_of(model) - 1
        shown: dict[str, Any] = {"label": self.words["repeats"], "interactive": free, "elem_id": "inside-repeats"}
        repeats = gr.Slider(1, most, copies, step=1, buttons=[], **shown)
        return repeats, gr.Slider(0, last, 0, step=1, buttons=[], label=self.words["layer"], elem_id="inside-layer")

    def _search_tab(self) -> None:
        models = self._choice("search-models")
        choices, there = self._choices("pasted", "index"), self.index is not None
        where = gr.Radio(choices, value="pasted", label=self.words["corpus"], elem_id="search-where", visible=there)
        modes = self._choices("hybrid", "vectors", "words")
        mode = gr.Radio(modes, value="hybrid", label=self.words["mode"], elem_id="search-mode", visible=there)
        query = self._box("query", "some_query")
        texts = self._box("documents", "some_documents", lines=6)
        changes = [query.submit, models.change, where.change, mode.change]
        self._answer("search", self.answers.search, [models, where, mode, query, texts], changes)

    def _box(self, key: str, example: str, *, lines: int = 1) -> Any:
        size = {"lines": lines, "max_lines": 1 if lines == 1 else 8}
        return gr.Textbox(self.words[example], label=self.words[key], elem_id=key, **size)

    def _choice(self, elem_id: str) -> Any:
        return gr.CheckboxGroup(list(self.models), value=[*self.models], label=self.words["models"], elem_id=elem_id)

    def _choices(self, *keys: str) -> list[tuple[str, str]]:
        return [(self.words[key], key) for key in keys]

    def _answer(self, tab: str, run: Callable[..., str], inputs: Sequence[Any], events: Sequence[Any]) -> None:
        """Answer at the tab's button, on events, and when the page opens."""
        button = gr.Button(self.words[f"run_{tab}"], variant="primary", elem_id=f"{tab}-run", elem_classes="run")
        answer = gr.HTML(elem_id=f"{tab}-answer")
        # While one runs, only the last of further events is kept, so that the answer fits the input.
        order: dict[str, Any] = {"trigger_mode": "always_last", "concurrency_id": "page", "concurrency_limit": 1}
        shown: dict[str, Any] = {"api_visibility": "private", "show_progress": "minimal"}
        triggers, answered = [self.blocks.load, button.click, *events], self.answers.or_problem(run)
        gr.on(triggers, answered, list(inputs), answer, **order, **shown)
