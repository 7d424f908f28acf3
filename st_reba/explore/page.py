"""Layout and events of the page, in one language."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from sentence_transformers import SentenceTransformer

from . import compute, draw
from .answers import Answers

if TYPE_CHECKING:
    from ..index import Index

gr: Any = import_module("gradio")
Component = Any  # of gradio


class Page:
    """The page with its three tabs, in a language of words.yaml."""

    def __init__(
        self,
        models: Mapping[str, SentenceTransformer],
        index: Index | None,
        language: str,
    ) -> None:
        self.models = models
        self.has_index = index is not None
        self.words = draw.WORDS[language]
        self.answers = Answers(models, index, self.words)
        self.inside_models = [name for name, model in models.items() if compute.can_look(model)]
        title = f"<h1>{self.words['title']}</h1><p>{self.words['about']}</p>"
        links = _language_links(language)
        self.blocks = gr.Blocks(title=self.words["title"], analytics_enabled=False, fill_width=True)
        with self.blocks:
            with gr.Row(elem_id="top"):
                gr.HTML(title, elem_id="title", padding=False)
                gr.HTML(f"<nav>{links}</nav>", elem_id="language", padding=False)
            with gr.Tabs():
                with self._tab("compare"):
                    self._fill_compare_tab()
                if self.inside_models:
                    with self._tab("inside"):
                        self._fill_inside_tab()
                with self._tab("search"):
                    self._fill_search_tab()

    def _tab(self, key: str) -> Component:
        return gr.Tab(self.words[key], id=key)

    def _fill_compare_tab(self) -> None:
        model_choice = self._model_choice("compare-models")
        texts_box = self._textbox("sentences", "some_sentences", line_count=5)
        self._add_answer(
            "compare",
            self.answers.compare,
            [model_choice, texts_box],
            [model_choice.change],
        )

    def _fill_inside_tab(self) -> None:
        first_name = self.inside_models[-1]
        with gr.Row():
            model_choice = gr.Dropdown(
                self.inside_models,
                value=first_name,
                label=self.words["model"],
                elem_id="inside-model",
            )
            repeats_slider, layer_slider = self._sliders(first_name)
        text_box = self._textbox("text", "some_text")
        with gr.Row():
            weighting_choice = gr.Radio(
                self._choices("last", "mean", "word"),
                value="mean",
                label=self.words["weighting"],
                scale=2,
                elem_id="inside-weighting",
            )
            word_box = self._textbox("which_word", "some_word")
        fitted_model = gr.State(first_name)

        def fit_sliders(model_name: str, fitted_name: str) -> tuple[Component, ...]:
            # Gradio reports one choice several times: a late report must not reset what was entered
            # meanwhile.
            if model_name == fitted_name:
                return gr.skip(), gr.skip(), model_name
            return *self._sliders(model_name), model_name

        outputs = [repeats_slider, layer_slider, fitted_model]
        model_choice.change(
            fit_sliders,
            [model_choice, fitted_model],
            outputs,
            api_visibility="private",
        )
        choices = [model_choice, repeats_slider, layer_slider, weighting_choice]
        changes = [component.change for component in choices]
        self._add_answer(
            "inside",
            self.answers.look,
            [
                model_choice,
                text_box,
                repeats_slider,
                weighting_choice,
                word_box,
                layer_slider,
            ],
            [*changes, text_box.submit, word_box.submit],
        )

    def _sliders(self, model_name: str) -> tuple[Component, Component]:
        """The sliders of copies and layers, which fit a model."""
        model = self.models[model_name]
        copy_count, can_change = compute.copies_of(model)
        repeats = gr.Slider(
            1,
            max(copy_count, compute.MAX_COPIES),
            copy_count,
            step=1,
            buttons=[],
            label=self.words["repeats"],
            interactive=can_change,
            elem_id="inside-repeats",
        )
        layer = gr.Slider(
            0,
            compute.passes_of(model) - 1,
            0,
            step=1,
            buttons=[],
            label=self.words["layer"],
            elem_id="inside-layer",
        )
        return repeats, layer

    def _fill_search_tab(self) -> None:
        model_choice = self._model_choice("search-models")
        corpus_choice = gr.Radio(
            self._choices("pasted", "index"),
            value="pasted",
            label=self.words["corpus"],
            elem_id="search-where",
            visible=self.has_index,
        )
        mode_choice = gr.Radio(
            self._choices("hybrid", "vectors", "words"),
            value="hybrid",
            label=self.words["mode"],
            elem_id="search-mode",
            visible=self.has_index,
        )
        query_box = self._textbox("query", "some_query")
        texts_box = self._textbox("documents", "some_documents", line_count=6)
        inputs = [
            model_choice,
            corpus_choice,
            mode_choice,
            query_box,
            texts_box,
        ]
        changes = [component.change for component in (model_choice, corpus_choice, mode_choice)]
        self._add_answer("search", self.answers.search, inputs, [query_box.submit, *changes])

    def _textbox(self, key: str, example_key: str, *, line_count: int = 1) -> Component:
        return gr.Textbox(
            self.words[example_key],
            label=self.words[key],
            elem_id=key,
            lines=line_count,
            max_lines=1 if line_count == 1 else 8,
        )

    def _model_choice(self, elem_id: str) -> Component:
        names = list(self.models)
        return gr.CheckboxGroup(names, value=names, label=self.words["models"], elem_id=elem_id)

    def _choices(self, *keys: str) -> list[tuple[str, str]]:
        return [(self.words[key], key) for key in keys]

    def _add_answer(
        self,
        tab: str,
        run: Callable[..., str],
        inputs: Sequence[Component],
        events: Sequence[Component],
    ) -> None:
        """Answer at the tab's button, on events, and when the page opens."""
        button = gr.Button(
            self.words[f"run_{tab}"],
            variant="primary",
            elem_id=f"{tab}-run",
            elem_classes="run",
        )
        gr.on(
            [self.blocks.load, button.click, *events],
            self.answers.or_problem(run),
            inputs,
            gr.HTML(elem_id=f"{tab}-answer"),
            # Of the events that arrive during a computation, only the last is kept, so that the
            # answer matches the input.
            trigger_mode="always_last",
            concurrency_id="page",
            concurrency_limit=1,
            api_visibility="private",
            show_progress="minimal",
        )


def _language_links(current_language: str) -> str:
    links = ""
    for language, language_name in draw.LANGUAGES.items():
        if language == current_language:
            links += f'<b lang="{language}">{language_name}</b>'
        else:
            links += f'<a href="../{language}/" lang="{language}">{language_name}</a>'
    return links
