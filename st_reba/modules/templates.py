"""Templates: where the copies of a text stand between literal words, and the token layout that follows from it."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .limits import MOST_COPIES, MOST_PROMPTS, check_text, shown

# Named templates, as the papers write them. A mapping holds one template a task (encode_query, encode_document).
TEMPLATES: dict[str, str | dict[str, str]] = {
    # Echo, section 4.2: zero-shot, and its classical counterpart.
    "echo": "Rewrite the following paragraph: {text}. The rewritten paragraph: {text}",
    "echo-classical": "Write a paragraph: {text}",
    # Echo, section 4.4: fine-tuned with instructions.
    "echo-instruct": {
        "query": "Instruct: {instruction}\nQuery: {text}\nQuery again: {text}",
        "document": "Document: {text}\nDocument again: {text}",
    },
    # PromptEOL, as in Echo, section 4.2 and appendix D.
    "prompteol": 'This sentence: "{text}" means in one word:"',
}
# Named ensembles: each text stands in all of their templates, whose vectors are put together. MetaEOL asks for one word
# from several sides; a contrastive ensemble asks for what is to be taken away. The wording is this project's own.
ENSEMBLES: dict[str, tuple[str, ...]] = {
    "metaeol": (
        'The text: "{text}" In one word, what it says is: "',
        'The text: "{text}" In one word, its subject is: "',
        'The text: "{text}" In one word, its mood is: "',
        'The text: "{text}" In one word, its main fact is: "',
        'The text: "{text}" In one word, said differently: "',
    ),
    "metaeol-zh": (
        "这句话：“{text}”的意思用一个词概括是：“",
        "这句话：“{text}”的主题用一个词说是：“",
        "这句话：“{text}”的感情用一个词说是：“",
        "这句话：“{text}”里最重要的事用一个词说是：“",
        "换一种说法，这句话：“{text}”用一个词说是：“",
    ),
    "contrastive": (
        'This sentence: "{text}" means in one word:"',
        'A word that has nothing to do with this sentence: "{text}" is: "',
    ),
    "contrastive-zh": (
        "这句话：“{text}”的意思用一个词概括是：“",
        "与这句话：“{text}”无关的一个词是：“",
    ),
}
# What their vectors are multiplied by, where that is not the same for all.
WEIGHTS: dict[str, tuple[float, ...]] = {"contrastive": (1.0, -0.25), "contrastive-zh": (1.0, -0.25)}
TASKS = ("query", "document")
# Keyword arguments that encode takes for itself: a field of such a name could never get a value.
_RESERVED = frozenset(
    (
        "inputs",
        "sentences",
        "prompt",
        "prompt_name",
        "batch_size",
        "batch_tokens",
        "show_progress_bar",
        "output_value",
        "precision",
        "convert_to_numpy",
        "convert_to_tensor",
        "device",
        "normalize_embeddings",
        "truncate_dim",
        "pool",
        "chunk_size",
        "task",
        "processing_kwargs",
    )
)


@dataclass(frozen=True)
class Template:
    """Literal text with ``{text}`` slots, one a copy, and named fields such as ``{instruction}``.

    Args:
        pieces: Runs of literals and slots: (literal, field name or None), in the order of ``string.Formatter``.

    Example:
        >>> template = Template.parse("Query: {text} Again: {text}")
        >>> template.copies
        2
        >>> template.fill({})
        ['Query: ', None, ' Again: ', None]
    """

    pieces: tuple[tuple[str, str | None], ...]

    @classmethod
    def parse(cls, template: str) -> Template:
        """Parse a template string; braces of its own are doubled, as in ``str.format``.

        Raises:
            ValueError: No ``{text}`` slot or more than 64, more than 65,536 characters, an unbalanced brace, or a
                field that is not a plain name.
        """
        check_text("template", template)
        # Counted before it is parsed and shown; a doubled brace makes no slot, and no sane template has so many.
        if (slots := template.count("{text}")) > MOST_COPIES:
            raise ValueError(
                f"template={shown(template)} has {slots} {{text}} slots: the most that st_reba takes is {MOST_COPIES}. "
                "Drop some."
            )
        try:
            parsed = list(string.Formatter().parse(template))
        except ValueError as error:
            raise ValueError(
                f"template={shown(template)} is malformed ({error}). Double a literal brace: {{{{."
            ) from error
        for _, name, spec, conversion in parsed:
            if name is not None and (not name.isidentifier() or spec or conversion):
                raise ValueError(
                    f"template={shown(template)} has the field {{{name}}}: only plain names such as {{text}} or "
                    "{instruction} are allowed. Double a literal brace: {{."
                )
            if name in _RESERVED:
                raise ValueError(
                    f"template={shown(template)}: {{{name}}} is an argument of encode. Give the field another name."
                )
        if not any(name == "text" for _, name, _, _ in parsed):
            raise ValueError(f"template={shown(template)} has no {{text}} slot: name at least one place for the text.")
        return cls(tuple((literal, name) for literal, name, _, _ in parsed))

    @property
    def copies(self) -> int:
        """Number of ``{text}`` slots: k."""
        return sum(name == "text" for _, name in self.pieces)

    @property
    def fields(self) -> frozenset[str]:
        """Names of the fields other than ``text``."""
        return frozenset(name for _, name in self.pieces if name not in (None, "text") and name is not None)

    def fill(self, values: Mapping[str, str], prefix: str = "") -> list[str | None]:
        """Fill the named fields.

        Args:
            values: A value for every field.
            prefix: Literal text in front of all.

        Returns:
            Literal runs and None for each copy of the text; neighbouring literals are joined, empty ones dropped.
        """
        filled: list[str | None] = []
        literal = prefix
        for text, name in self.pieces:
            literal += text
            if name == "text":
                filled += [literal, None] if literal else [None]
                literal = ""
            elif name is not None:
                literal += values[name]
        return [*filled, literal] if literal else filled


def repeat_template(repeats: int, separator: str = "") -> Template:
    """The plain repetition: the text ``repeats`` times with ``separator`` between the copies."""
    return Template((("", "text"), *((separator, "text"),) * (repeats - 1)))


def task_templates(
    template: str | Mapping[str, str] | None, repeats: int | None = None, separator: str = ""
) -> dict[str, Template]:
    """The template of each task.

    Args:
        template: A template, the name of one, a mapping of tasks to templates, or None: plain repetition.
        repeats: Number of copies; None: the template's, or 2 without a template.
        separator: Literal text between the copies, without a template.

    Raises:
        ValueError: Unknown name or task, or numbers of copies that differ.
    """
    if template is None:
        return dict.fromkeys(TASKS, repeat_template(2 if repeats is None else repeats, separator))
    templates = _resolved(template)
    copies = templates["document"].copies
    if repeats is not None and repeats != copies:
        raise ValueError(f"repeats={repeats} does not fit the template, which has {copies} {{text}} slots. Drop one.")
    if separator:
        raise ValueError(f"separator={separator!r} does not go with a template: write it between the {{text}} slots.")
    return templates


def ensemble_templates(
    template: str | Mapping[str, str] | Sequence[str | Mapping[str, str]] | None,
    repeats: int | None = None,
    separator: str = "",
) -> tuple[dict[str, Template], ...]:
    """The templates that every text stands in: one, or those of an ensemble.

    Args:
        template: As for :func:`task_templates`; or a list of such, or the name of an ensemble.
        repeats: As for :func:`task_templates`.
        separator: As for :func:`task_templates`.

    Returns:
        The template of each task, once for each template of the ensemble.

    Raises:
        ValueError: As for :func:`task_templates`, or an ensemble of fewer than two templates, of more than 64, or of
            such with different numbers of copies.

    Example:
        >>> [each["document"].copies for each in ensemble_templates(["{text}", "Read this: {text}"])]
        [1, 1]
    """
    if isinstance(template, str) and template in ENSEMBLES:
        template = ENSEMBLES[template]
    if isinstance(template, (str, Mapping)) or template is None:
        return (task_templates(template, repeats, separator),)
    if not isinstance(template, (list, tuple)):
        raise ValueError(
            f"template={shown(template)} must be a template, a mapping with the keys 'query' and 'document', or a list "
            "of such."
        )
    if not 2 <= len(template) <= MOST_PROMPTS:
        raise ValueError(
            f"template={shown(template)} lists {len(template)} templates: an ensemble has from 2 to {MOST_PROMPTS}. "
            "Give one template by itself."
        )
    for each in template:
        if not isinstance(each, (str, Mapping)) or (isinstance(each, str) and each in ENSEMBLES):
            raise ValueError(f"template={shown(template)}: {shown(each)} must be one template, or a mapping.")
    found = tuple(task_templates(each, repeats, separator) for each in template)
    if len(copies := {each["document"].copies for each in found}) > 1:
        raise ValueError(
            f"template={shown(template)}: its templates have {sorted(copies)} {{text}} slots, but all of an ensemble "
            "must have as many, as one pooling serves them all."
        )
    return found


def as_stored(template: Any) -> str | dict[str, str] | list[str | dict[str, str]] | None:
    """A template in a form of its own that JSON can hold."""
    if template is None or isinstance(template, str):
        return template
    if isinstance(template, Mapping):
        return dict(template)
    return [each if isinstance(each, str) else dict(each) for each in template]


def _resolved(template: str | Mapping[str, str]) -> dict[str, Template]:
    if isinstance(template, str) and "{" not in template:
        if template not in TEMPLATES:
            raise ValueError(
                f"template={shown(template)} is neither the name of a template {sorted(TEMPLATES)} or of an ensemble "
                f"{sorted(ENSEMBLES)}, nor a template with a {{text}} slot."
            )
        template = TEMPLATES[template]
    if isinstance(template, str):
        return dict.fromkeys(TASKS, Template.parse(template))
    if not isinstance(template, Mapping) or set(template) != set(TASKS):
        raise ValueError(
            f"template={shown(template)}: give a string, or a mapping with exactly the keys {list(TASKS)}."
        )
    for task in TASKS:
        if not isinstance(template[task], str):
            raise ValueError(f"template={shown(dict(template))}: the {task}'s template must be a string.")
    parsed = {task: Template.parse(template[task]) for task in TASKS}
    if len({each.copies for each in parsed.values()}) > 1:
        raise ValueError(f"template={shown(dict(template))}: the query's and the document's number of copies differ.")
    return parsed


def written(template: Any, repeats: int | None, separator: str) -> dict[str, str]:
    """Each task's template in full, for readers; ⊕ stands between those of an ensemble."""
    if isinstance(template, str):
        template = ENSEMBLES.get(template, template)
    if isinstance(template, (list, tuple)):
        each = [written(one, repeats, separator) for one in template]
        return {task: " ⊕ ".join(one[task] for one in each) for task in each[0]}
    if template is None:
        return dict.fromkeys(("query", "document"), separator.join(["{text}"] * (2 if repeats is None else repeats)))
    full = TEMPLATES.get(template, template) if isinstance(template, str) else template
    return dict.fromkeys(("query", "document"), full) if isinstance(full, str) else dict(full)


@dataclass(frozen=True)
class Frame:
    """A filled template as token ids: all that surrounds the content, the tokenizer's special tokens included.

    Args:
        pieces: Token ids of the literal runs and None for each copy of the content.
    """

    pieces: tuple[tuple[int, ...] | None, ...]

    @property
    def copies(self) -> int:
        """Number of copies of the content: k."""
        return sum(piece is None for piece in self.pieces)

    @property
    def overhead(self) -> int:
        """Number of special and template tokens: s."""
        return sum(len(piece) for piece in self.pieces if piece is not None)

    def with_placeholder(self, token: int) -> Frame:
        """The same with one more token, directly in front of the first copy."""
        first = self.pieces.index(None)
        return Frame((*self.pieces[:first], (token,), *self.pieces[first:]))

    def place(self, content: Sequence[int]) -> tuple[list[int], list[int]]:
        """Place one text.

        Args:
            content: Its token ids.

        Returns:
            Token ids and copy ids of the whole sequence: 0 at special and template tokens, c in copy c.
        """
        ids: list[int] = []
        copy_ids: list[int] = []
        copy = 0
        for piece in self.pieces:
            if piece is None:
                copy += 1
                ids += content
                copy_ids += [copy] * len(content)
            else:
                ids += piece
                copy_ids += [0] * len(piece)
        return ids, copy_ids

    def budget(self, limit: int | None) -> int | None:
        """How many content tokens each copy may hold: floor((M - s) / k).

        Args:
            limit: Positions M that the model takes; None: no limit.

        Raises:
            ValueError: Not one content token fits.
        """
        if limit is None:
            return None
        budget = (limit - self.overhead) // self.copies
        if budget < 1:
            raise ValueError(
                f"max_seq_length={limit} leaves no room for the text: the template, the prompt and the special "
                f"tokens take {self.overhead} positions, and {self.copies} copies need one each. Raise "
                "max_seq_length, or shorten the template or the prompt."
            )
        return budget
