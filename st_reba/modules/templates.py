"""Templates: where the copies of a text stand between literal words, and the token layout that follows from it."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .limits import MOST_COPIES, check_text, shown

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


def _resolved(template: str | Mapping[str, str]) -> dict[str, Template]:
    if isinstance(template, str) and "{" not in template:
        if template not in TEMPLATES:
            raise ValueError(
                f"template={shown(template)} is neither the name of a template {sorted(TEMPLATES)} nor a template with "
                "a {text} slot."
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
