"""The page's parts, and what answers its buttons, on a stand-in for gradio; browser/ has the real page."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any
from unittest.mock import MagicMock, Mock, call, patch

import pytest
from sentence_transformers import SentenceTransformer

import st_reba
from st_reba.explore import draw
from st_reba.explore.answers import Answers

WORDS = draw.WORDS["en"]
# What is entered into the components of each tab, in the order of the answer's arguments.
ENTERED: dict[str, dict[str, Any]] = {
    "compare": {"compare-models": ["b"], "sentences": "a\nb"},
    "inside": {
        "inside-model": "d",
        "text": "天气",
        "inside-repeats": 2,
        "inside-weighting": "last",
        "which_word": "",
        "inside-layer": 1,
    },
    "search": {
        "search-models": ["b"],
        "search-where": "pasted",
        "search-mode": "hybrid",
        "query": "a",
        "documents": "a",
    },
}


class FakeGradio:
    """Keeps each component by its id; its ``made`` is the call that made it, without its label."""

    def __init__(self) -> None:
        self.components: dict[str, Any] = {}
        self.on = Mock()

    def __getattr__(self, kind: str) -> Any:
        def make_component(
            *arguments: Any,
            elem_id: str | None = None,
            label: str = "",
            **options: Any,
        ) -> Any:
            component = MagicMock(made=call(*arguments, **options))
            component.__enter__.return_value = component
            self.components[elem_id or options.get("id", kind)] = component
            return component

        return make_component


def open_page(page_models: dict[str, SentenceTransformer], index: Any = None) -> FakeGradio:
    fake_gradio = FakeGradio()
    with patch.dict(sys.modules, gradio=fake_gradio):
        sys.modules.pop("st_reba.explore.page", None)
        import_module("st_reba.explore.page").Page(page_models, index, "en")
    return fake_gradio


@pytest.fixture(scope="module")
def page_models() -> dict[str, SentenceTransformer]:
    """The first cannot be looked at; the others have two, two and five copies, the third runs layers twice."""
    ensemble = st_reba.build("mini", template="metaeol", check=False)
    page_models = {"a": ensemble}
    for name, options in (
        ("b", {"template": "echo"}),
        ("c", {"setting": "extra-bidir", "k": 2}),
        ("d", {"repeats": 5}),
    ):
        page_models[name] = st_reba.build("mini", "reba", check=False, **options)
    return page_models


@pytest.fixture(scope="module")
def fake_gradio(page_models: dict[str, SentenceTransformer]) -> FakeGradio:
    return open_page(page_models)


def choices(*keys: str) -> list[tuple[str, str]]:
    return [(WORDS[key], key) for key in keys]


def slider(minimum: int, maximum: int, value: int, **options: Any) -> Any:
    return call(minimum, maximum, value, step=1, buttons=[], **options)


def test_the_page_has_a_title_and_languages(fake_gradio: FakeGradio) -> None:
    blocks = fake_gradio.components["Blocks"].made
    assert blocks == call(title=WORDS["title"], analytics_enabled=False, fill_width=True)
    links = '<nav><b lang="en">English</b><a href="../zh/" lang="zh">中文</a></nav>'
    assert fake_gradio.components["language"].made == call(links, padding=False)
    assert fake_gradio.components["title"].made.kwargs == {"padding": False}


@pytest.mark.parametrize("tab_name", ENTERED)
def test_each_tab_has_a_button_and_an_answer(tab_name: str, fake_gradio: FakeGradio) -> None:
    assert fake_gradio.components[tab_name].made == call(WORDS[tab_name], id=tab_name)
    button = call(WORDS[f"run_{tab_name}"], variant="primary", elem_classes="run")
    assert fake_gradio.components[f"{tab_name}-run"].made == button
    assert fake_gradio.components[f"{tab_name}-answer"].made == call()


COMPONENTS = {
    "compare-models": call(["a", "b", "c", "d"], value=["a", "b", "c", "d"]),
    "sentences": call(WORDS["some_sentences"], lines=5, max_lines=8),
    "inside-model": call(["b", "c", "d"], value="d"),
    "inside-repeats": slider(1, 5, 5, interactive=True),
    "inside-layer": slider(0, 5, 0),
    "text": call(WORDS["some_text"], lines=1, max_lines=1),
    "inside-weighting": call(choices("last", "mean", "word"), value="mean", scale=2),
    "which_word": call(WORDS["some_word"], lines=1, max_lines=1),
    "State": call("d"),
    "search-models": call(["a", "b", "c", "d"], value=["a", "b", "c", "d"]),
    "search-where": call(choices("pasted", "index"), value="pasted", visible=False),
    "search-mode": call(choices("hybrid", "vectors", "words"), value="hybrid", visible=False),
    "query": call(WORDS["some_query"], lines=1, max_lines=1),
    "documents": call(WORDS["some_documents"], lines=6, max_lines=8),
}


@pytest.mark.parametrize("elem_id", COMPONENTS)
def test_components_have_their_choices(elem_id: str, fake_gradio: FakeGradio) -> None:
    assert fake_gradio.components[elem_id].made == COMPONENTS[elem_id]


def test_the_page_has_no_other_component(fake_gradio: FakeGradio) -> None:
    other_ids = {"Blocks", "Row", "Tabs", "top", "title", "language"}
    for tab_name in ENTERED:
        other_ids |= {tab_name, f"{tab_name}-run", f"{tab_name}-answer"}
    assert fake_gradio.components.keys() == COMPONENTS.keys() | other_ids


def test_answers_take_what_was_entered(
    fake_gradio: FakeGradio, page_models: dict[str, SentenceTransformer]
) -> None:
    answers = Answers(page_models, None, WORDS)
    functions = (answers.compare, answers.look, answers.search)
    page_components = fake_gradio.components
    calls = fake_gradio.on.mock_calls
    for direct_function, tab_name, (_, arguments, options) in zip(
        functions, ENTERED, calls, strict=True
    ):
        triggers, answer_function, inputs, output = arguments
        assert triggers[:2] == [
            page_components["Blocks"].load,
            page_components[f"{tab_name}-run"].click,
        ]
        assert len(triggers) > 2
        assert inputs == [page_components[elem_id] for elem_id in ENTERED[tab_name]]
        assert output is page_components[f"{tab_name}-answer"]
        values = ENTERED[tab_name].values()
        assert answer_function(*values) == direct_function(*values)
        assert options["concurrency_limit"] == 1


def test_the_sliders_fit_another_model_once(fake_gradio: FakeGradio) -> None:
    page_components = fake_gradio.components
    (fit_sliders, inputs, outputs), _ = page_components["inside-model"].change.call_args
    assert inputs == [page_components["inside-model"], page_components["State"]]
    sliders = [
        page_components["inside-repeats"],
        page_components["inside-layer"],
    ]
    assert outputs == [*sliders, page_components["State"]]
    repeats, layer, fitted_model = fit_sliders("c", "d")
    assert repeats.made == slider(1, 4, 2, interactive=True)
    assert layer.made == slider(0, 7, 0)
    assert fitted_model == "c"
    skipped_repeats, skipped_layer, fitted_model = fit_sliders("d", "d")
    assert skipped_repeats.made == skipped_layer.made == call()
    assert fitted_model == "d"


def test_tabs_and_choices_that_need_something_are_left_out(
    page_models: dict[str, SentenceTransformer],
) -> None:
    page_components = open_page({"a": page_models["a"]}, index=Mock()).components
    assert "inside" not in page_components
    assert page_components["search-where"].made.kwargs["visible"]
