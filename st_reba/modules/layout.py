"""Where the copies of a text stand between literal words and special tokens: templates → token ids with copy ids."""

from __future__ import annotations

import re
import string
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from .options import MOST_CHARACTERS, Options, option, shown
from .stages import Place, Stage

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Span = Literal["last_copy", "repeats", "last_copy_and_end", "end", "all"]
Template = str | Mapping[str, str] | None

MOST_COPIES = 64
# The help of options that methods have too.
TEMPLATE = "text with a {text} slot for each copy, a template's name, or a mapping with query and document"
REPEATS = "copies of the text; None: the template's slots, else 2"
INSTRUCTION = "value of the template's {instruction} where no prompt is given"
SPAN = "positions that are pooled; last_copy: the last copy's content"
TASKS = ("query", "document")
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
# Arguments that encode takes for itself: a field of such a name could never get a value.
_RESERVED = frozenset(
    (
        *("inputs", "sentences", "prompt", "prompt_name", "batch_size", "batch_tokens", "show_progress_bar", "device"),
        *("output_value", "precision", "convert_to_numpy", "convert_to_tensor", "normalize_embeddings", "task"),
        *("truncate_dim", "pool", "chunk_size", "processing_kwargs"),
    )
)
# A fast tokenizer's settings are state that calls with other arguments change: one call at a time.
_tokenizing = threading.Lock()
_SURROGATES = re.compile("[\ud800-\udfff]")
# A limit beyond this is transformers' way of saying that a tokenizer knows none.
NO_LIMIT = 10**12


@dataclass(frozen=True)
class Layout(Options):
    """Where the copies of a text stand, and which positions are pooled.

    These are the content of the ``last_copy``, of copies 2 .. k (``repeats``), of the last copy with the special tokens
    after it (``last_copy_and_end``), the very last position (``end``), or every real one (``all``).
    """

    name: ClassVar[str] = "layout"

    template: Template = option(None, TEMPLATE)
    repeats: int | None = option(None, REPEATS, least=1, most=MOST_COPIES)
    instruction: str = option("", INSTRUCTION)
    span: Span = option("last_copy", SPAN)
    compute_matched: bool = option(False, "halve the tokens that a copy may hold, so that two cost what one did")


@dataclass(frozen=True)
class TextTemplate:
    """Literal text with ``{text}`` slots, one a copy, and named fields such as ``{instruction}``."""

    # Literals and the slot behind each: (literal, field's name or None).
    pieces: tuple[tuple[str, str | None], ...]

    @classmethod
    def parse(cls, template: str) -> TextTemplate:
        """Parse a template; braces of its own are doubled, as in ``str.format``."""
        given = f"template={shown(template)}"
        if len(template) > MOST_CHARACTERS:
            raise ValueError(f"{given} has {len(template)} characters: the most is {MOST_CHARACTERS}.")
        try:
            parsed = list(string.Formatter().parse(template))
        except ValueError as error:
            raise ValueError(f"{given} is malformed ({error}). Double a literal brace: {{{{.") from error
        for _, name, spec, conversion in parsed:
            if name is not None and (not name.isidentifier() or spec or conversion):
                raise ValueError(
                    f"{given} has the field {{{name}}}: only plain names such as {{text}} or {{instruction}} are "
                    "allowed. Double a literal brace: {{."
                )
            if name in _RESERVED:
                raise ValueError(f"{given}: {{{name}}} is an argument of encode. Rename the field.")
        made = cls(tuple((literal, name) for literal, name, _, _ in parsed))
        if not 1 <= made.copies <= MOST_COPIES:
            found = f"{made.copies} {{text}} slots" if made.copies else "no {text} slot"
            raise ValueError(f"{given} has {found}: give one for each copy of the text; the most is {MOST_COPIES}.")
        return made

    @property
    def copies(self) -> int:
        """Number of ``{text}`` slots: k."""
        return sum(name == "text" for _, name in self.pieces)

    @property
    def fields(self) -> frozenset[str]:
        """Names of the fields other than ``text``."""
        return frozenset(name for _, name in self.pieces if name is not None and name != "text")

    def fill(self, values: Mapping[str, str], prefix: str = "") -> list[str | None]:
        """Literal runs with the fields filled in, None for each copy; ``prefix`` is literal text in front of all."""
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


def task_templates(template: str | Mapping[str, str] | None, repeats: int | None = None) -> dict[str, TextTemplate]:
    """The template of each task; of None, the text ``repeats`` times, 2 by default."""
    if template is None:
        return dict.fromkeys(TASKS, TextTemplate((("", "text"),) * (2 if repeats is None else repeats)))
    written = TEMPLATES.get(template, template) if isinstance(template, str) else template
    if isinstance(written, str):
        if "{" not in written:
            raise ValueError(
                f"template={shown(template)} is neither a template with a {{text}} slot nor the name of one: "
                f"{sorted(TEMPLATES)}."
            )
        written = dict.fromkeys(TASKS, written)
    texts = isinstance(written, Mapping) and all(isinstance(each, str) for each in written.values())
    if not texts or set(written) != set(TASKS):
        raise ValueError(f"template={shown(template)}: give a text, or a mapping with exactly the keys {list(TASKS)}.")
    parsed = {task: TextTemplate.parse(written[task]) for task in TASKS}
    copies = {each.copies for each in parsed.values()}
    if len(copies) > 1:
        raise ValueError(f"template={shown(template)}: the query's and the document's number of copies differ.")
    if repeats is not None and copies != {repeats}:
        raise ValueError(
            f"repeats={repeats} does not fit the template, which has {copies.pop()} {{text}} slots. Drop repeats, or "
            "write as many slots."
        )
    return parsed


@dataclass(frozen=True)
class Frame:
    """A filled template as token ids: all that surrounds the content, the tokenizer's special tokens included."""

    # Token ids of the literal runs, and None for each copy of the content.
    pieces: tuple[tuple[int, ...] | None, ...]

    @property
    def copies(self) -> int:
        """Number of copies of the content: k."""
        return self.pieces.count(None)

    @property
    def overhead(self) -> int:
        """Number of special and template tokens: s."""
        return sum(len(piece) for piece in self.pieces if piece is not None)

    def place(self, content: Sequence[int]) -> tuple[list[int], list[int], Place]:
        """Place one text: token ids, copy ids (0 at special and template tokens, c in copy c), and its place."""
        ids: list[int] = []
        copy_ids: list[int] = []
        copy = 0
        for piece in self.pieces:
            copy += piece is None
            part = content if piece is None else piece
            ids += part
            copy_ids += [copy if piece is None else 0] * len(part)
        before = sum(len(piece) for piece in self.pieces[: self.pieces.index(None)] if piece is not None)
        return ids, copy_ids, (before, len(content), len(ids))

    def budget(self, limit: int) -> int:
        """How many content tokens each copy may hold: floor((M - s) / k); ``limit`` is M."""
        budget = (limit - self.overhead) // self.copies
        if budget < 1:
            raise ValueError(
                f"max_seq_length={limit} leaves no room for the text: the template, the prompt and the special "
                f"tokens take {self.overhead} positions, and {self.copies} copies need one each. Raise "
                "max_seq_length, or shorten the template or the prompt."
            )
        return budget


class TokenLayout:
    """A layout in a tokenizer's ids, with what ``stages`` add: rows of templates of their own, further tokens."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, layout: Layout, stages: Sequence[Stage] = ()) -> None:
        self.tokenizer = tokenizer
        self.layout = layout
        self.stages = stages
        self._special: tuple[object, tuple[tuple[int, ...], tuple[int, ...]]] | None = None
        own = next((found for stage in stages if (found := stage.rows()) is not None), None)
        # Those of each task, for every row that a text makes.
        self.templates = (task_templates(layout.template, layout.repeats),) if own is None else own
        if own is not None and layout.template not in (None, "prompteol"):
            raise ValueError(f"template={shown(layout.template)} and the templates of an ensemble exclude each other.")
        if layout.repeats not in (None, self.copies):
            raise ValueError(
                f"repeats={layout.repeats} does not fit the ensemble's templates, which have {self.copies} slots. "
                "Write as many slots, or use a method that repeats the text so often."
            )

    @property
    def copies(self) -> int:
        """Number of copies k of the content in each row."""
        return self.templates[0]["document"].copies

    @property
    def special(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The ids that the tokenizer puts before and after a text."""
        # A setting such as add_eos_token replaces the post-processor, which says what is put around.
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        added = [getattr(self.tokenizer, f"add_{name}_token", None) for name in ("bos", "eos")]
        state = (str(getattr(backend, "post_processor", None)), added)
        if self._special is None or self._special[0] != state:
            self._special = (state, special_ids(self.tokenizer))
        return self._special[1]

    def fields(self, task: str | None = None) -> frozenset[str]:
        """Names of the fields of a task's templates (None: the document's)."""
        return frozenset(name for templates in self.templates for name in templates[task or "document"].fields)

    def frames(self, prompt: str | None = None, task: str | None = None, **fields: str) -> tuple[Frame, ...]:
        """See :meth:`RepeatTransformer.frames`."""
        if task is not None and task not in TASKS:
            raise ValueError(f"task={task!r} is not known: choose one of {list(TASKS)}, or None.")
        task = self._task(prompt, fields) if task is None else task
        known = self.fields(task)
        if extra := sorted(set(fields) - known):
            raise ValueError(
                f"{extra[0]}={fields[extra[0]]!r}: this task's template has no such field; it has {sorted(known)}."
            )
        values = {"instruction": self.layout.instruction, **fields}
        for name, value in {**values, "prompt": prompt or ""}.items():
            if not isinstance(value, str):
                raise ValueError(f"{name}={value!r} must be a string.")
        if "instruction" in known and prompt:
            values["instruction"] = prompt
        if missing := sorted(name for name in known if not values.get(name)):
            raise ValueError(
                f"The template needs a value for {{{missing[0]}}}: pass encode(…, {missing[0]}='…')"
                + (", a prompt, or build with instruction='…'." if missing[0] == "instruction" else ".")
            )
        before, after = self.special
        frames = []
        for each in (templates[task] for templates in self.templates):
            literals = each.fill(values, "" if "instruction" in each.fields else prompt or "")
            pieces = [x if x is None else tuple(self._tokenize([x], special=True)["input_ids"][0]) for x in literals]
            frame = Frame((before, *pieces, after))
            for stage in self.stages:
                frame = stage.framed(frame, self)
            frames.append(frame)
        return tuple(frames)

    def budget(self, frames: Sequence[Frame], limit: int) -> int:
        """How many content tokens a copy may hold, in all frames alike; ``limit`` is M."""
        budget = min(frame.budget(limit) for frame in frames)
        return max(1, budget // 2) if self.layout.compute_matched else budget

    def _task(self, prompt: str | None, fields: Mapping[str, str]) -> str:
        # Plain encode knows no task: whoever gives a prompt or a field that only queries take means a query.
        given = {*fields, "instruction"} if prompt else set(fields)
        return "query" if given & (self.fields("query") - self.fields("document")) else "document"

    def content(self, texts: Sequence[str], *, offsets: bool = False) -> dict[str, list[Any]]:
        """Tokenize texts as content, never cut: ``input_ids``, and with ``offsets`` the tokens' ``offset_mapping``."""
        for text in texts:
            # Not by its number: sentence-transformers has sorted the texts by length.
            if not isinstance(text, str):
                raise ValueError(f"An input is no string but {type(text).__name__}: {text!r:.80}. Pass texts.")
        if offsets and not self.tokenizer.is_fast:
            raise ValueError(
                f"{type(self.tokenizer).__name__} knows no character offsets, so words cannot be found in a text. Use "
                "a fast tokenizer (tokenizer.json)."
            )
        return self._tokenize(texts, special=False, offsets=offsets)

    def stand_in(self) -> int | None:
        """The id that stands for a text without a single token; None where there is no special token at all."""
        for name in ("eos", "sep", "bos", "cls", "unk", "pad"):
            if (token := getattr(self.tokenizer, f"{name}_token_id", None)) is not None:
                return int(token)
        return None

    def limit(self) -> int | None:
        """How many positions a sequence may have; None: no limit is known."""
        limit = self.tokenizer.model_max_length
        return None if limit is None or limit > NO_LIMIT else int(limit)

    def _tokenize(self, texts: Sequence[str], *, special: bool, offsets: bool = False) -> dict[str, list[Any]]:
        # Half of a surrogate pair is no character and has no UTF-8 form; its length is kept for the offsets.
        characters = [_SURROGATES.sub("\ufffd", text) for text in texts]
        with _tokenizing:
            return dict(
                self.tokenizer(
                    characters,
                    add_special_tokens=False,
                    split_special_tokens=not special,
                    padding=False,
                    truncation=False,
                    return_attention_mask=False,
                    return_token_type_ids=False,
                    return_offsets_mapping=offsets,
                    verbose=False,
                )
            )


def special_ids(tokenizer: PreTrainedTokenizerBase) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids that the tokenizer's own convention puts before and after a text."""
    for probe in ("a", "0", "the", "\u4e2d"):
        with _tokenizing:
            settings = {"padding": False, "truncation": False, "verbose": False}
            whole = list(tokenizer(probe, add_special_tokens=True, **settings)["input_ids"])
            inner = list(tokenizer(probe, add_special_tokens=False, **settings)["input_ids"])
        starts = [i for i in range(len(whole) - len(inner) + 1) if whole[i : i + len(inner)] == inner]
        if inner and starts:
            return tuple(whole[: starts[0]]), tuple(whole[starts[0] + len(inner) :])
    raise ValueError(
        f"{type(tokenizer).__name__} tokenizes a word otherwise with special tokens than without, so that they cannot "
        "be placed once around the copies. Use a tokenizer that adds them around the text."
    )
