"""Template.parse and fill, the named templates, and where a frame puts the copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from architectures import POSITIONS

import st_reba
from st_reba.modules.templates import TASKS, TEMPLATES, Frame, Template, repeat_template, task_templates

Base = Callable[..., str]


def test_named_templates() -> None:
    """Letter for letter what the papers write."""
    assert TEMPLATES == {
        "echo": "Rewrite the following paragraph: {text}. The rewritten paragraph: {text}",
        "echo-classical": "Write a paragraph: {text}",
        "echo-instruct": {
            "query": "Instruct: {instruction}\nQuery: {text}\nQuery again: {text}",
            "document": "Document: {text}\nDocument again: {text}",
        },
        "prompteol": 'This sentence: "{text}" means in one word:"',
    }
    assert [task_templates(name)["document"].copies for name in TEMPLATES] == [2, 1, 2, 1]


@pytest.mark.parametrize(
    ("template", "values", "prefix", "filled"),
    [
        ("{text}", {}, "", [None]),
        ("{text}{text}", {}, "", [None, None]),
        ("{text} {text}", {}, "", [None, " ", None]),
        ("a {text} b", {}, "", ["a ", None, " b"]),
        ("{text:}", {}, "", [None]),
        ("{{text}} {text} {{}}", {}, "", ["{text} ", None, " {}"]),
        ("{text}", {}, "Query: ", ["Query: ", None]),
        ("a {text}", {}, "Query: ", ["Query: a ", None]),
        ("{x}{text}{y}{x}{text}", {"x": "1", "y": "2"}, "", ["1", None, "21", None]),
        ("{x}{text}{x}", {"x": ""}, "", [None]),
        # Values are literal text, whatever they hold.
        ("{x}: {text}", {"x": "{text} {y} {{"}, "", ["{text} {y} {{: ", None]),
        ("{text}", {}, "{x}{text}", ["{x}{text}", None]),
        ("{说明}：{text}\n", {"说明": "找"}, "", ["找：", None, "\n"]),
        ("\x00{text}\ud800", {}, "", ["\x00", None, "\ud800"]),
    ],
)
def test_parse_and_fill(template: str, values: dict[str, str], prefix: str, filled: list[str | None]) -> None:
    parsed = Template.parse(template)
    assert parsed.fill(values, prefix) == filled
    assert parsed.copies == filled.count(None)
    assert parsed.fields == set(values)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{text} }", r"malformed \(Single '}' encountered.*Double a literal brace: \{\{"),
        ("{ {text}", "malformed .*Double a literal brace"),
        ("{text} {", r"malformed \(Single '\{' encountered"),
        ("{text", "malformed .*Double a literal brace"),
        ("{0} {text}", r"the field \{0\}: only plain names"),
        ("{} {text}", r"the field \{\}: only plain names"),
        ("{a-b} {text}", r"the field \{a-b\}"),
        ("{text.upper}", r"the field \{text.upper\}"),
        ("{text[0]}", r"the field \{text\[0\]\}"),
        ("{ text }", r"the field \{ text \}"),
        ("{text!r}", "only plain names"),
        ("{text:x}", "only plain names"),
        ("{text:{x}}", "only plain names"),
        ("{instruction:>8} {text}", "only plain names"),
        ("", r"no \{text\} slot"),
        ("text", r"no \{text\} slot"),
        ("{instruction}", r"no \{text\} slot"),
        ("{Text}", r"no \{text\} slot"),
        ("{{text}}", r"no \{text\} slot"),
    ],
)
def test_bad_templates(template: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        Template.parse(template)
    assert f"template={template!r}" in str(caught.value)


def test_repeat_template() -> None:
    assert [repeat_template(k).fill({}) for k in (1, 2, 3)] == [[None], [None, None], [None, None, None]]
    assert repeat_template(3, "{x} ").fill({}) == [None, "{x} ", None, "{x} ", None]
    assert repeat_template(1, " ").fill({}) == [None]
    assert repeat_template(3).copies == 3
    assert repeat_template(3, "{x}").fields == frozenset()


def test_task_templates() -> None:
    assert task_templates(None) == dict.fromkeys(TASKS, repeat_template(2))
    assert task_templates(None, 3, " ") == dict.fromkeys(TASKS, repeat_template(3, " "))
    assert task_templates("{text} {text}") == dict.fromkeys(TASKS, Template.parse("{text} {text}"))
    assert task_templates("echo", 2) == task_templates(str(TEMPLATES["echo"]))
    by_name = task_templates("echo-instruct")
    assert by_name == task_templates(TEMPLATES["echo-instruct"])
    assert by_name["query"].fields == {"instruction"}
    assert by_name["document"].fields == frozenset()
    assert by_name["query"].fill({"instruction": "find"}) == [
        "Instruct: find\nQuery: ",
        None,
        "\nQuery again: ",
        None,
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ecko",), r"'ecko'.*\['echo', 'echo-classical', 'echo-instruct', 'prompteol'\]"),
        (("Echo",), "echo-classical"),
        (("",), "echo-classical"),
        (({"query": "{text}"},), r"exactly the keys \['query', 'document'\]"),
        (({"query": "{text}", "document": "{text}", "passage": "{text}"},), "exactly the keys"),
        (({"q": "{text}", "d": "{text}"},), "exactly the keys"),
        (({},), "exactly the keys"),
        ((3,), "template=3: give a string, or a mapping"),
        ((["{text}"],), "give a string, or a mapping"),
        (({"query": "{text}", "document": "{text} {text}"},), "number of copies differ"),
        (({"query": "{text}", "document": "none"},), r"no \{text\} slot"),
        (("{text}", 2), r"repeats=2 does not fit the template, which has 1 \{text\} slots"),
        (("echo", 3), "repeats=3 does not fit"),
        (("{text}{text}", None, " "), "separator=' ' does not go with a template"),
    ],
)
def test_bad_task_templates(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        task_templates(*arguments)


def test_templates_that_are_no_strings() -> None:
    with pytest.raises(ValueError, match="template=.*string"):
        task_templates({"query": 3, "document": "{text}"})  # type: ignore[dict-item]


def test_frame() -> None:
    frame = Frame(((1,), None, (7, 8), None, (2,)))
    assert frame.copies == 2
    assert frame.overhead == 4
    assert frame.place([5, 6]) == ([1, 5, 6, 7, 8, 5, 6, 2], [0, 1, 1, 0, 0, 2, 2, 0])
    assert frame.place([]) == ([1, 7, 8, 2], [0, 0, 0, 0])
    content = [5, 6]
    ids, _ = Frame((None, None)).place(content)
    ids.append(9)
    assert content == [5, 6]
    assert Frame((None,)).place([3]) == ([3], [1])


@pytest.mark.parametrize("limit", range(1, 40))
@pytest.mark.parametrize("copies", [1, 2, 3])
@pytest.mark.parametrize("special", [0, 1, 4])
def test_budget(limit: int, copies: int, special: int) -> None:
    """floor((M - s) / k): with that many tokens a copy the limit holds, with one more it would not."""
    frame = Frame((tuple(range(special)), *(None for _ in range(copies))))
    if limit - special < copies:
        with pytest.raises(ValueError, match=f"max_seq_length={limit} leaves no room.*take {special} positions"):
            frame.budget(limit)
        return
    budget = frame.budget(limit)
    assert budget is not None
    assert len(frame.place([0] * budget)[0]) <= limit < len(frame.place([0] * (budget + 1))[0])


def test_no_limit() -> None:
    assert Frame((None, None)).budget(None) is None


def test_values_at_encode_time(base: Base) -> None:
    """A template whose fields get their values from ``encode`` can be built, and needs them there."""
    model = st_reba.build(base("llama"), "echo", template="{topic}: {text} {text}", normalize=False)
    filled = st_reba.build(base("llama"), "echo", template="birds: {text} {text}", normalize=False)
    np.testing.assert_allclose(model.encode("hi", topic="birds"), filled.encode("hi"), atol=1e-5)
    assert model[0].budget(topic="birds") == filled[0].budget() < POSITIONS
    with pytest.raises(ValueError, match=r"needs a value for \{topic\}: pass encode\(…, topic='…'\)"):
        model.encode("hi")
    with pytest.raises(ValueError, match="place"):
        model.encode("hi", topic="birds", place="here")


@pytest.mark.parametrize("method", ["reba", "echo"])
def test_instruction(base: Base, method: str) -> None:
    """From the prompt, from the keyword, or as built in."""
    options: dict[str, Any] = {"normalize": False, "pooling": "mean"}
    wanted = st_reba.build(
        base("llama"), method, template="Instruct: find {{x}}\nQuery: {text}\nQuery again: {text}", **options
    ).encode("hi")
    model = st_reba.build(base("llama"), method, template="echo-instruct", **options)
    built = st_reba.build(base("llama"), method, template="echo-instruct", instruction="find {x}", **options)
    for vector in (
        model.encode_query("hi", prompt="find {x}"),
        model.encode_query("hi", instruction="find {x}"),
        model.encode("hi", task="query", instruction="find {x}"),
        built.encode_query("hi"),
        built.encode_query("hi", prompt=""),
    ):
        np.testing.assert_allclose(vector, wanted, atol=1e-5)
    document = st_reba.build(base("llama"), method, template="Document: {text}\nDocument again: {text}", **options)
    for vector in (model.encode("hi"), model.encode_document("hi"), built.encode_document("hi")):
        np.testing.assert_allclose(vector, document.encode("hi"), atol=1e-5)
    with pytest.raises(ValueError, match=r"needs a value for \{instruction\}"):
        model.encode_query("hi")


def test_instruction_only_at_encode_time(base: Base) -> None:
    """One template for both tasks, its instruction still open."""
    model = st_reba.build(base("llama"), "echo", template="Instruct: {instruction}\n{text} {text}", normalize=False)
    filled = st_reba.build(base("llama"), "echo", template="Instruct: find\n{text} {text}", normalize=False)
    np.testing.assert_allclose(model.encode("hi", prompt="find"), filled.encode("hi"), atol=1e-5)


@pytest.mark.parametrize("name", ["prompt", "task", "batch_size"])
def test_fields_that_encode_cannot_fill(base: Base, name: str) -> None:
    """A field by the name of one of encode's own arguments could never get a value: it is refused at once."""
    with pytest.raises(ValueError, match=name) as caught:
        st_reba.build(base("llama"), "echo", template=f"{{{name}}} {{text}}")
    assert "pass encode" not in str(caught.value)
