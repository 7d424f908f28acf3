"""The page's parts, and what answers its buttons, on a stand-in for gradio; browser/ has the real page."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any
from unittest.mock import MagicMock, Mock, call, patch

import st_reba
from st_reba.explore import draw
from st_reba.explore.answers import Answers

WORDS = draw.WORDS["en"]
INSIDE = ("inside-model", "text", "inside-repeats", "inside-weighting", "which_word", "inside-layer")
# What is entered in the parts of a tab.
ENTERED: dict[str, dict[str, Any]] = {
    "compare": {"compare-models": ["b"], "sentences": "a\nb"},
    "inside": dict(zip(INSIDE, ("d", "天气", 2, "last", "", 1), strict=True)),
    "search": {
        "search-models": ["b"],
        "search-where": "pasted",
        "search-mode": "hybrid",
        "query": "a",
        "documents": "a",
    },
}


class Gradio:
    """Keeps each part by its id, and in ``made`` what it was made of, but for its label."""

    def __init__(self) -> None:
        self.parts: dict[str, Any] = {}
        self.on = Mock()

    def __getattr__(self, kind: str) -> Any:
        def make(*given: Any, elem_id: str | None = None, label: str = "", **named: Any) -> Any:
            part = self.parts[elem_id or named.get("id", kind)] = MagicMock(made=call(*given, **named))
            part.__enter__.return_value = part
            return part

        return make


def opened(models: dict[str, Any], index: Any = None) -> Gradio:
    with patch.dict(sys.modules, gradio=(gradio := Gradio())):
        sys.modules.pop("st_reba.explore.page", None)
        import_module("st_reba.explore.page").Page(models, index, "en")
    return gradio


def test_page() -> None:
    own = {"b": {"template": "echo"}, "c": {"setting": "extra-bidir", "k": 2}, "d": {"repeats": 5}}
    models = {name: st_reba.build("mini", "reba", check=False, **each) for name, each in own.items()}
    models = {"a": (ensemble := st_reba.build("mini", template="metaeol", check=False)), **models}
    gradio, line, steps = opened(models), {"lines": 1, "max_lines": 1}, {"step": 1, "buttons": []}
    parts, ways = gradio.parts, [(WORDS[name], name) for name in ("last", "mean", "word", "pasted", "index")]
    modes = [(WORDS[name], name) for name in ("hybrid", "vectors", "words")]
    made = {name: part.made for name, part in parts.items() if name not in ("Row", "Tabs", "top", "title")}
    assert made == {
        "Blocks": call(title=WORDS["title"], analytics_enabled=False, fill_width=True),
        "language": call('<nav><b lang="en">English</b><a href="../zh/" lang="zh">中文</a></nav>', padding=False),
        **{name: call(WORDS[name], id=name) for name in ENTERED},
        **{f"{name}-run": call(WORDS[f"run_{name}"], variant="primary", elem_classes="run") for name in ENTERED},
        **{f"{name}-answer": call() for name in ENTERED},
        **{f"{name}-models": call(list(models), value=list(models)) for name in ("compare", "search")},
        "sentences": call(WORDS["some_sentences"], lines=5, max_lines=8),
        "inside-model": call(["b", "c", "d"], value="d"),
        "inside-repeats": call(1, 5, 5, interactive=True, **steps),
        "inside-layer": call(0, 5, 0, **steps),
        "text": call(WORDS["some_text"], **line),
        "inside-weighting": call(ways[:3], value="mean", scale=2),
        "which_word": call(WORDS["some_word"], **line),
        "State": call("d"),
        "search-where": call(ways[3:], value="pasted", visible=False),
        "search-mode": call(modes, value="hybrid", visible=False),
        "query": call(WORDS["some_query"], **line),
        "documents": call(WORDS["some_documents"], lines=6, max_lines=8),
    }
    assert parts["title"].made.kwargs == {"padding": False}
    answers = Answers(models, None, WORDS)
    runs = zip((answers.compare, answers.look, answers.search), ENTERED.items(), gradio.on.mock_calls, strict=True)
    for run, (tab, entered), (_, (triggers, answered, inputs, answer), options) in runs:
        assert triggers[:2] == [parts["Blocks"].load, parts[f"{tab}-run"].click] and len(triggers) > 2
        assert inputs == [parts[name] for name in entered] and answer is parts[f"{tab}-answer"]
        assert answered(*entered.values()) == run(*entered.values()) and options["concurrency_limit"] == 1
    # The sliders fit another model, once.
    (fit, inputs, outputs), _ = parts["inside-model"].change.call_args
    assert [inputs, outputs] == [[*map(parts.get, [*names, "State"])] for names in (INSIDE[:1], INSIDE[2::3])]
    assert [one.made for one in fit("c", "d")[:2]] == [call(1, 4, 2, interactive=True, **steps), call(0, 7, 0, **steps)]
    assert [one.made for one in fit("d", "d")[:2]] == [call(), call()]
    other = opened({"a": ensemble}, index=Mock()).parts
    assert "inside" not in other and other["search-where"].made.kwargs["visible"]
