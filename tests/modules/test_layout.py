"""Templates, what they are filled with, where a frame puts the copies, and which template a call means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from architectures import TOKENIZERS
from pipelines import pipeline

from st_reba.modules import Layout
from st_reba.modules.layout import TASKS, TEMPLATES, Frame, TextTemplate, TokenLayout, special_ids, task_templates
from st_reba.modules.options import shown

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
        ("{{text}}" * 65 + "{text}", {}, "", ["{text}" * 65, None]),
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
    parsed = TextTemplate.parse(template)
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
        ("{instruction}", r"no \{text\} slot"),
        ("{Text}", r"no \{text\} slot"),
        ("{{text}}", r"no \{text\} slot"),
        # A field by the name of one of encode's own arguments could never get a value.
        *(
            (f"{{{name}}} {{text}}", f"{{{name}}} is an argument of encode")
            for name in ("prompt", "task", "batch_size")
        ),
        ("{text}" * 65, "has 65 {text} slots: .*the most is 64"),
        ("{text:}" * 5_000, "has 5000 {text} slots: .*the most is 64"),
        ("x" * 70_000 + "{text}", "70006 characters"),
    ],
)
def test_bad_templates(template: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        TextTemplate.parse(template)
    assert f"template={shown(template)}" in str(caught.value) and len(str(caught.value)) < 500


def test_task_templates() -> None:
    assert [task_templates(None, k)["query"].fill({}) for k in (None, 1, 3)] == [[None] * 2, [None], [None] * 3]
    assert task_templates("{text} {text}") == dict.fromkeys(TASKS, TextTemplate.parse("{text} {text}"))
    assert task_templates("echo", 2) == task_templates(str(TEMPLATES["echo"]))
    by_name = task_templates("echo-instruct")
    assert by_name == task_templates(TEMPLATES["echo-instruct"])
    assert (by_name["query"].fields, by_name["document"].fields) == ({"instruction"}, frozenset())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ecko",), r"'ecko'.*\['echo', 'echo-classical', 'echo-instruct', 'prompteol'\]"),
        (("",), "echo-classical"),
        (({"query": "{text}"},), r"exactly the keys \['query', 'document'\]"),
        (({"query": "{text}", "document": "{text}", "passage": "{text}"},), "exactly the keys"),
        (({},), "exactly the keys"),
        ((3,), "template=3: give a text, or a mapping"),
        ((["{text}"],), "give a text, or a mapping"),
        (({"query": 3, "document": "{text}"},), "give a text, or a mapping"),
        (({"query": "{text}", "document": "{text} {text}"},), "number of copies differ"),
        (({"query": "{text}", "document": "none"},), r"no \{text\} slot"),
        (("{text}", 2), r"repeats=2 does not fit the template, which has 1 \{text\} slots"),
        (("echo", 3), "repeats=3 does not fit"),
    ],
)
def test_bad_task_templates(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        task_templates(*arguments)


def test_frame() -> None:
    frame = Frame(((1,), None, (7, 8), None, (2,)))
    assert (frame.copies, frame.overhead) == (2, 4)
    assert frame.place([5, 6]) == ([1, 5, 6, 7, 8, 5, 6, 2], [0, 1, 1, 0, 0, 2, 2, 0], (1, 2, 8))
    assert frame.place([]) == ([1, 7, 8, 2], [0, 0, 0, 0], (1, 0, 4))
    content = [5, 6]
    Frame((None, None)).place(content)[0].append(9)
    assert content == [5, 6]


@pytest.mark.parametrize("copies", [1, 2, 3])
@pytest.mark.parametrize("special", [0, 1, 4])
def test_budget(copies: int, special: int) -> None:
    """floor((M - s) / k): with that many tokens a copy the limit holds, with one more it would not."""
    frame = Frame((tuple(range(special)), *(None for _ in range(copies))))
    for limit in range(1, 40):
        if limit - special < copies:
            with pytest.raises(ValueError, match=f"max_seq_length={limit} leaves no room.*take {special} positions"):
                frame.budget(limit)
            continue
        budget = frame.budget(limit)
        assert len(frame.place([0] * budget)[0]) <= limit < len(frame.place([0] * (budget + 1))[0])


class _Scrambling:
    """Writes a text backwards where it adds special tokens."""

    def __call__(self, text: str, add_special_tokens: bool = True, **options: Any) -> dict[str, list[int]]:
        ids = [2, 3, ord(text[0])]
        return {"input_ids": [1, *ids[::-1]] if add_special_tokens else ids}


def test_special_tokens_that_are_not_around_the_text() -> None:
    with pytest.raises(ValueError, match="_Scrambling tokenizes a word otherwise with special tokens than without"):
        special_ids(_Scrambling())  # type: ignore[arg-type]


def literals(layout: TokenLayout, **given: Any) -> list[str | None]:
    """The pieces of the only frame, decoded, without the tokenizer's own."""
    (frame,) = layout.frames(**given)
    return [None if piece is None else layout.tokenizer.decode(piece) for piece in frame.pieces[1:-1]]


def test_values_of_fields() -> None:
    """A prompt fills {instruction} or stands in front of all; a keyword fills its field; neither is lost in silence."""
    tokenizer = TOKENIZERS["bos_eos"]()
    topic = TokenLayout(tokenizer, Layout("{topic}: {text} {text}"))
    assert literals(topic, topic="birds") == ["birds: ", None, " ", None]
    assert literals(topic, topic="birds", prompt="On ") == ["On birds: ", None, " ", None]
    with pytest.raises(ValueError, match=r"needs a value for \{topic\}: pass encode\(…, topic='…'\)"):
        topic.frames()
    with pytest.raises(ValueError, match=r"place='here': .*no such field; it has \['topic'\]"):
        topic.frames(topic="birds", place="here")
    instructed, query = (
        TokenLayout(tokenizer, Layout("echo-instruct")),
        ["Instruct: find {x}\nQuery: ", None, "\nQuery again: ", None],
    )
    built = TokenLayout(tokenizer, Layout("echo-instruct", instruction="find {x}"))
    for layout, given in (
        (instructed, {"task": "query", "prompt": "find {x}"}),
        (instructed, {"task": "query", "instruction": "find {x}"}),
        # Plain encode knows no task: a prompt that only queries have a place for means a query.
        (instructed, {"prompt": "find {x}"}),
        (instructed, {"instruction": "find {x}"}),
        (built, {"task": "query"}),
        (built, {"task": "query", "prompt": ""}),
    ):
        assert literals(layout, **given) == query
    document = ["Document: ", None, "\nDocument again: ", None]
    for layout, given in ((instructed, {}), (instructed, {"task": "document"}), (built, {}), (built, {"prompt": ""})):
        assert literals(layout, **given) == document
    with pytest.raises(ValueError, match=r"needs a value for \{instruction\}: .*a prompt, or build with"):
        instructed.frames(task="query")
    with pytest.raises(ValueError, match="querry.*query.*document"):
        instructed.frames(task="querry")


def test_tasks_of_a_pipeline(base: Base) -> None:
    """encode_query and encode_document take each their template; what is no string is refused.

    (sentence-transformers would answer a TypeError by prompts inside the content.)
    """
    model = pipeline(base("llama"), "echo", template="echo-instruct")
    filled = pipeline(base("llama"), "echo", template="Instruct: find\nQuery: {text}\nQuery again: {text}").encode("hi")
    for vector in (
        model.encode_query("hi", prompt="find"),
        model.encode_query("hi", instruction="find"),
        model.encode("hi", task="query", instruction="find"),
    ):
        assert vector.tolist() == filled.tolist()
    plain = pipeline(base("llama"), "echo", template="Document: {text}\nDocument again: {text}").encode("hi").tolist()
    assert model.encode_document("hi").tolist() == model.encode("hi").tolist() == plain
    for options in ({"prompt": 3}, {"instruction": 3}, {"instruction": ["a"]}):
        with pytest.raises(ValueError, match="string") as caught:
            model.encode("hi", **options)
        assert str(next(iter(options.values()))) in str(caught.value)
    with pytest.raises(ValueError, match="querry"):
        model.encode("hi", task="querry")
