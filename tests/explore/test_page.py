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
        def make_component(*arguments: Any, elem_id: str | None = None, label: str = "", **options: Any) -> Any:
            component = MagicMock(made=call(*arguments, **options))
            component.__enter__.return_value = component
            self.components[elem_id or options.get("id", kind)] = component
            return component

        return make_component


def open_page(models: dict[str, SentenceTransformer], index: Any = None) -> FakeGradio:
    gradio = FakeGradio()
    with patch.dict(sys.modules, gradio=gradio):
        sys.modules.pop("st_reba.explore.page", None)
        import_module("st_reba.explore.page").Page(models, index, "en")
    return gradio


@pytest.fixture(scope="module")
def models() -> dict[str, SentenceTransformer]:
    """The first cannot be looked at; the others have two, two and five copies, the third runs layers twice."""
    ensemble = st_reba.build("mini", template="metaeol", check=False)
    models = {"a": ensemble}
    for name, options in (
        ("b", {"template": "echo"}),
        ("c", {"setting": "extra-bidir", "k": 2}),
        ("d", {"repeats": 5}),
    ):
        models[name] = st_reba.build("mini", "reba", check=False, **options)
    return models


@pytest.fixture(scope="module")
def gradio(models: dict[str, SentenceTransformer]) -> FakeGradio:
    return open_page(models)


def choices(*keys: str) -> list[tuple[str, str]]:
    return [(WORDS[key], key) for key in keys]


def slider(minimum: int, maximum: int, value: int, **options: Any) -> Any:
    return call(minimum, maximum, value, step=1, buttons=[], **options)


def test_the_page_has_a_title_and_languages(gradio: FakeGradio) -> None:
    blocks = gradio.components["Blocks"].made
    assert blocks == call(title=WORDS["title"], analytics_enabled=False, fill_width=True)
    links = '<nav><b lang="en">English</b><a href="../zh/" lang="zh">中文</a></nav>'
    assert gradio.components["language"].made == call(links, padding=False)
    assert gradio.components["title"].made.kwargs == {"padding": False}


@pytest.mark.parametrize("tab", ENTERED)
def test_each_tab_has_a_button_and_an_answer(tab: str, gradio: FakeGradio) -> None:
    assert gradio.components[tab].made == call(WORDS[tab], id=tab)
    button = call(WORDS[f"run_{tab}"], variant="primary", elem_classes="run")
    assert gradio.components[f"{tab}-run"].made == button
    assert gradio.components[f"{tab}-answer"].made == call()


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
def test_components_have_their_choices(elem_id: str, gradio: FakeGradio) -> None:
    assert gradio.components[elem_id].made == COMPONENTS[elem_id]


def test_the_page_has_no_other_component(gradio: FakeGradio) -> None:
    other_ids = {"Blocks", "Row", "Tabs", "top", "title", "language"}
    for tab in ENTERED:
        other_ids |= {tab, f"{tab}-run", f"{tab}-answer"}
    assert gradio.components.keys() == COMPONENTS.keys() | other_ids


def test_answers_take_what_was_entered(gradio: FakeGradio, models: dict[str, SentenceTransformer]) -> None:
    answers = Answers(models, None, WORDS)
    functions = (answers.compare, answers.look, answers.search)
    components = gradio.components
    calls = gradio.on.mock_calls
    for function, tab, (_, arguments, options) in zip(functions, ENTERED, calls, strict=True):
        triggers, answer_function, inputs, output = arguments
        assert triggers[:2] == [components["Blocks"].load, components[f"{tab}-run"].click]
        assert len(triggers) > 2
        assert inputs == [components[elem_id] for elem_id in ENTERED[tab]]
        assert output is components[f"{tab}-answer"]
        values = ENTERED[tab].values()
        assert answer_function(*values) == function(*values)
        assert options["concurrency_limit"] == 1


def test_the_sliders_fit_another_model_once(gradio: FakeGradio) -> None:
    components = gradio.components
    (fit_sliders, inputs, outputs), _ = components["inside-model"].change.call_args
    assert inputs == [components["inside-model"], components["State"]]
    sliders = [components["inside-repeats"], components["inside-layer"]]
    assert outputs == [*sliders, components["State"]]
    repeats, layer, fitted_model = fit_sliders("c", "d")
    assert repeats.made == slider(1, 4, 2, interactive=True)
    assert layer.made == slider(0, 7, 0)
    assert fitted_model == "c"
    skipped_repeats, skipped_layer, fitted_model = fit_sliders("d", "d")
    assert skipped_repeats.made == skipped_layer.made == call()
    assert fitted_model == "d"


def test_tabs_and_choices_that_need_something_are_left_out(
    models: dict[str, SentenceTransformer],
) -> None:
    components = open_page({"a": models["a"]}, index=Mock()).components
    assert "inside" not in components
    assert components["search-where"].made.kwargs["visible"]
