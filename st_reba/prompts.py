"""The prompts that have a name: those of the papers, and this project's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# Sentences with the word that PromptEOL should say. The first one, and the first four, are
# templates too.
EXAMPLES = (
    ("The cat watches a bird from the window.", "cat"),
    ("She waters her roses every evening.", "gardening"),
    ("Their daughter was born in May.", "birth"),
    ("Do not mix bleach with vinegar.", "danger"),
    ("The company will close two factories.", "closing"),
    ("How can I learn to swim as an adult?", "swimming"),
    ("A loud storm broke the trees behind our house.", "storm"),
    ("The president will visit Japan next week.", "visit"),
)
EXAMPLES_ZH = (
    ("猫从窗口看着一只鸟。", "猫"),
    ("她每天晚上给玫瑰浇水。", "园艺"),
    ("他们的女儿五月出生。", "出生"),
    ("不要把漂白剂和醋混在一起。", "危险"),
    ("公司将关闭两家工厂。", "关闭"),
    ("成年人怎样学会游泳？", "游泳"),
    ("一场暴风雨刮断了我们屋后的树。", "风暴"),
    ("总统下周将访问日本。", "访问"),
)
EXAMPLE_COUNTS = (1, 4, 8)

WORD_QUESTION = "In one word, what each text says.\n"
WORD_LINE = 'The text: "{text}" In a word: "'
TOPIC_QUESTION_ZH = "用一个词说出每段文本的意思。\n"
TOPIC_LINE_ZH = "文本：“{text}”主题：“"


def join_examples(
    question: str,
    line: str,
    examples: Sequence[tuple[str, str]],
    closing_quote: str,
) -> str:
    """A template that shows examples before the text: its prefix is computed once for many texts."""
    shown_lines: list[str] = []
    for text, word in examples:
        shown_line = line.replace("{text}", text)
        shown_lines.append(shown_line + word + closing_quote + "\n")
    return question + "".join(shown_lines) + line


def templates_with_examples() -> dict[str, str]:
    """Templates that ask for a text in a word, in Chinese for its topic, without examples and with some."""
    templates = {
        "prompteol-word": WORD_QUESTION + WORD_LINE,
        "prompteol-topic-zh": TOPIC_QUESTION_ZH + TOPIC_LINE_ZH,
    }
    for count in EXAMPLE_COUNTS:
        examples = EXAMPLES[:count]
        templates[f"prompteol-word-{count}"] = join_examples(
            WORD_QUESTION, WORD_LINE, examples, '"'
        )
        examples_zh = EXAMPLES_ZH[:count]
        templates[f"prompteol-topic-{count}-zh"] = join_examples(
            TOPIC_QUESTION_ZH, TOPIC_LINE_ZH, examples_zh, "”"
        )
    return templates


_WITH_EXAMPLES = templates_with_examples()
# A mapping has one for encode_query, one for encode_document, and perhaps one for encode,
# "similarity".
TEMPLATES: dict[str, Any] = {
    # Echo, section 4.2: zero-shot, and its classical counterpart.
    "echo": "Rewrite the following paragraph: {text}. The rewritten paragraph: {text}",
    "echo-classical": "Write a paragraph: {text}",
    # Echo, section 4.4: fine-tuned with instructions.
    "echo-instruct": {
        "query": "Instruct: {instruction}\nQuery: {text}\nQuery again: {text}",
        "document": "Document: {text}\nDocument again: {text}",
    },
    # PromptEOL, as in Echo, section 4.2 and appendix D; all others are this project's own words.
    "prompteol": 'This sentence: "{text}" means in one word:"',
    "prompteol-says": 'The text: "{text}" In one word, what it says is: "',
    "prompteol-zh": "这句话：“{text}”的意思用一个词概括是：“",
    "prompteol-example": (
        'This sentence: "The chef chops onions in a small kitchen." means in one word:"Cooking". '
        'This sentence: "{text}" means in one word:"'
    ),
    "prompteol-example-zh": (
        "这句话：“厨师在小厨房里切洋葱。”的意思用一个词概括是：“做饭”。这句话：“{text}”的意思用一个词概括是：“"
    ),
    **_WITH_EXAMPLES,
    # One model for search and for all else.
    "prompteol-search": {
        "query": 'Query: "{text}" Its topic, as a single lowercase word, is: "',
        "document": 'Passage: "{text}" Its topic, as a single lowercase word, is: "',
        "similarity": _WITH_EXAMPLES["prompteol-word-4"],
    },
    "prompteol-search-zh": {
        "query": "问题：“{text}”为了便于检索，用一个词概括这个问题。这个词是：“",
        "document": "文档：“{text}”为了便于检索，用一个词概括这篇文档。这个词是：“",
        "similarity": _WITH_EXAMPLES["prompteol-topic-4-zh"],
    },
}
# Lists of templates. MetaEOL asks from several sides; in a contrastive list, the last one is
# subtracted.
ENSEMBLES: dict[str, tuple[str, ...]] = {
    "metaeol": (
        TEMPLATES["prompteol-says"],
        'The text: "{text}" In one word, its subject is: "',
        'The text: "{text}" In one word, its mood is: "',
        'The text: "{text}" In one word, its main fact is: "',
        'The text: "{text}" In one word, said differently: "',
    ),
    "contrastive": (
        'This sentence: "{text}" means in one word:"',
        'A word that has nothing to do with this sentence: "{text}" is: "',
    ),
}


def reversed_ensembles() -> dict[str, tuple[str, str]]:
    """ReverseEOL: the text, and its words (in Chinese its characters) in reverse order, by each prompt."""
    ensembles: dict[str, tuple[str, str]] = {}
    for name, template in TEMPLATES.items():
        if name.startswith("prompteol") and isinstance(template, str):
            reversed_template = template.replace("{text}", "{reversed}")
            ensembles[name.replace("prompteol", "reverseol")] = (template, reversed_template)
    return ensembles


ENSEMBLES |= reversed_ensembles()
# With an example, in reverse, and in other words.
ENSEMBLES["three-questions"] = (
    TEMPLATES["prompteol-example"],
    ENSEMBLES["reverseol"][1],
    TEMPLATES["prompteol-says"],
)
