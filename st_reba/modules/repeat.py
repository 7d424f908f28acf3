"""RepeatTransformer: tokenize a text once, place its token ids in every copy, run the decoder."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from .capture import Capture, CaptureSpec
from .limits import MOST_COPIES, MOST_LAYERS, check_text, check_whole, shown
from .prepending import check_prepend, prepare_prepending, prepending_pass, started
from .templates import TASKS, Frame, Template, as_stored, ensemble_templates
from .tokens import content, empty_id, frame, position_limit, special_ids
from .transformer import DecoderTransformer

Span = Literal["last_copy", "repeats", "last_copy_and_end", "end", "all"]

logger = logging.getLogger(__name__)


def check_layout(
    template: Any = None,
    repeats: Any = None,
    separator: Any = "",
    instruction: Any = "",
    span: Any = "last_copy",
    compute_matched: Any = False,
) -> tuple[dict[str, Template], ...]:
    """The templates of :class:`RepeatTransformer`'s settings, each of which is checked; more than one of an ensemble.

    Raises:
        ValueError: A setting of the wrong type, beyond its limit, or that contradicts another.
    """
    for name, value in (("separator", separator), ("instruction", instruction)):
        check_text(name, value)
    if not isinstance(compute_matched, bool):
        raise ValueError(f"compute_matched={shown(compute_matched)} must be True or False.")
    if span not in get_args(Span):
        raise ValueError(f"span={shown(span)} is not known: choose one of {list(get_args(Span))}.")
    if repeats is not None:
        check_whole("repeats", repeats, MOST_COPIES, also=", or None")
    return ensemble_templates(template, repeats, separator)


class RepeatTransformer(DecoderTransformer):
    """Repeats a text's tokens and runs the decoder over all copies at once.

    The content is tokenized once, without special tokens (special-token strings inside a text are ordinary text),
    cut to the budget, and placed k times: every copy holds the same ids. The tokenizer's own special tokens stand
    once, around the whole. k = 1 is the classical input.

    Args:
        model_name_or_path: Folder or Hub id of the backbone.
        template: Literal text with ``{text}`` slots, one a copy; or the name of a template (see ``TEMPLATES``); or
            a mapping with the keys ``query`` and ``document``. None: ``repeats`` copies with ``separator`` between.
            Like separator and instruction, at most 65,536 characters. A list of templates, or the name of an ensemble
            (see ``ENSEMBLES``): each text stands in every one, and a following :class:`PromptEnsemble` puts the
            vectors together.
        repeats: Number of copies k, at most 64; None: as many as the template has slots, or 2 without a template.
        separator: Literal text between the copies, without a template.
        instruction: Value of the template's ``{instruction}`` where no prompt is given.
        span: The positions that a following ``Pooling`` sees through ``attention_mask``. ``"last_copy"``: the
            content of copy k. ``"repeats"``: of copies 2 .. k. ``"last_copy_and_end"``: of copy k and the special
            tokens after it. ``"end"``: the very last position. ``"all"``: every real position.
        compute_matched: Halve the content budget, so that two copies cost what one did.
        prepend: Token Prepending: a placeholder (the token that stands for an empty text, else the end of a text)
            stands directly in front of the first copy, and behind each of the first ``prepend`` layers its hidden
            state is replaced by that of the row's very last token, so that all tokens see it. It is not pooled.
        **kwargs: All that :class:`DecoderTransformer` takes.

    Source:
        ReBA, section 3.2 (repetition); Echo, sections 4.2 and 4.4 (templates); Token Prepending (Fu et al., 2024).

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini")
        >>> model[0].preprocess(["你好"])["copy_ids"].tolist()
        [[0, 1, 1, 2, 2]]
    """

    config_keys = [
        *DecoderTransformer.config_keys,
        "template",
        "repeats",
        "separator",
        "instruction",
        "span",
        "compute_matched",
        "prepend",
    ]

    def __init__(
        self,
        model_name_or_path: str,
        *,
        template: str | Mapping[str, str] | Sequence[str | Mapping[str, str]] | None = None,
        repeats: int | None = None,
        separator: str = "",
        instruction: str = "",
        span: Span = "last_copy",
        compute_matched: bool = False,
        prepend: int = 0,
        **kwargs: Any,
    ) -> None:
        check_whole("prepend", prepend, MOST_LAYERS, least=0)
        templates = check_layout(template, repeats, separator, instruction, span, compute_matched)
        super().__init__(model_name_or_path, **kwargs)
        self._template_given = as_stored(template)
        self._separator = separator
        self.instruction = instruction
        self.span: Span = span
        self.compute_matched = compute_matched
        self._templates = templates
        self._warned_of_cut = False
        self._prepend = prepend
        if prepend:
            prepare_prepending(self.model, self.depth)
            # What a text begins with sees its end.
            self.shares_prefix = False
            check_prepend(self)

    # Read only: the layout follows from them when the module is made.
    @property
    def template(self) -> str | dict[str, str] | list[str | dict[str, str]] | None:
        """The template as given; None: plain repetition."""
        return self._template_given

    @property
    def repeats(self) -> int:
        """Number of copies k."""
        return self._templates[0]["document"].copies

    @property
    def rows(self) -> int:
        """Sequences that a text becomes: 1, or the number of an ensemble's templates."""
        return len(self._templates)

    @property
    def prepend(self) -> int:
        """Layers behind which the placeholder is replaced; 0: there is none."""
        return self._prepend

    @property
    def separator(self) -> str:
        """Literal text between the copies, without a template."""
        return self._separator

    def fields(self, task: str | None = None) -> frozenset[str]:
        """Names of the fields of a task's templates (None: the document's)."""
        return frozenset(name for templates in self._templates for name in templates[task or "document"].fields)

    @property
    def forward_kwargs(self) -> set[str]:  # type: ignore[override]
        """The templates' fields, which ``encode`` takes as keyword arguments."""
        return {field for task in TASKS for field in self.fields(task)}

    def frame(self, prompt: str | None = None, task: str | None = None, **fields: str) -> Frame:
        """The token ids that surround the content, where there is one template.

        Args:
            prompt: Value of ``{instruction}`` where the template has that field, else literal text in front of all.
            task: ``"query"`` or ``"document"``; None: ``"document"``, unless only the query's template has a place for
                the prompt or a field.
            **fields: Values of the template's fields.

        Returns:
            The filled template, the tokenizer's special tokens around it.

        Raises:
            ValueError: A field without a value, a value without a field, or several templates.
        """
        self._check_single()
        return self.frames(prompt, task, **fields)[0]

    def frames(self, prompt: str | None = None, task: str | None = None, **fields: str) -> tuple[Frame, ...]:
        """As :meth:`frame`, for each of an ensemble's templates; each takes the fields that it has."""
        if task is not None and task not in TASKS:
            raise ValueError(f"task={task!r} is not known: choose one of {list(TASKS)}, or None.")
        task = self._task(prompt, fields) if task is None else task
        known = self.fields(task)
        values = {"instruction": self.instruction, **fields}
        if unknown := sorted(set(fields) - known):
            raise ValueError(
                f"{unknown[0]}={fields[unknown[0]]!r}: the template for this task has no such field; it has "
                f"{sorted(known)}."
            )
        for name, value in {**values, "prompt": prompt or ""}.items():
            if not isinstance(value, str):
                raise ValueError(f"{name}={value!r} must be a string.")
        prefix = prompt or ""
        if "instruction" in known and prompt:
            values["instruction"] = prompt
        if missing := sorted(name for name in known if not values.get(name)):
            raise ValueError(
                f"The template needs a value for {{{missing[0]}}}: pass encode(…, {missing[0]}='…')"
                + (", a prompt, or build with instruction='…'." if missing[0] == "instruction" else ".")
            )
        chosen = [templates[task] for templates in self._templates]
        filled = [each.fill(values, "" if "instruction" in each.fields else prefix) for each in chosen]
        placed = tuple(frame(self.text_tokenizer, each) for each in filled)
        if not self.prepend:
            return placed
        if (token := empty_id(self.text_tokenizer)) is None:
            raise ValueError(
                f"prepend={self.prepend}: the tokenizer has no special token that could be the placeholder. Use "
                "prepend=0, or give it one."
            )
        return tuple(each.with_placeholder(token) for each in placed)

    def _check_single(self) -> None:
        if self.rows > 1:
            raise ValueError(
                f"template={shown(self.template)}: each text stands in {self.rows} templates, so it has a sentence "
                "vector, but no single sequence: word vectors, pieces of texts (chunk) and graphs (ONNX) need one "
                "template. Build with one."
            )

    def _task(self, prompt: str | None, fields: Mapping[str, str]) -> str:
        # Plain encode knows no task: whoever gives a prompt or a field that only queries take means a query.
        given = {*fields, "instruction"} if prompt else set(fields)
        return "query" if given & (self.fields("query") - self.fields("document")) else "document"

    def budget(self, prompt: str | None = None, task: str | None = None, **fields: str) -> int | None:
        """How many content tokens a copy may hold (None: no limit); arguments as for :meth:`frame`.

        A text is cut alike in all templates of an ensemble: to the least of their budgets.
        """
        return self._budget(self.frames(prompt, task, **fields))

    def _budget(self, frames: Sequence[Frame]) -> int | None:
        limit = position_limit(self.text_tokenizer)
        positions = getattr(self.config.get_text_config(), "max_position_embeddings", None)
        if limit is not None and positions is not None and limit > positions > 0:
            raise ValueError(
                f"max_seq_length={limit} is more than the backbone's {positions} positions. Set it to at most that."
            )
        if limit is None:
            return None
        budget = min(each.budget(limit) or limit for each in frames)
        return max(1, budget // 2) if self.compute_matched else budget

    def content(self, texts: Sequence[str], *, offsets: bool = False) -> dict[str, list[Any]]:
        """Tokenize texts as content.

        Args:
            texts: The texts.
            offsets: Also return each token's character span.

        Returns:
            ``input_ids``: token ids a text, never cut, maybe none; with ``offsets``, ``offset_mapping``.

        Raises:
            ValueError: An input that is not a string, or offsets where a text stands in several templates: whoever
                asks for them looks for words in one sequence.
        """
        if offsets:
            self._check_single()
        return content(self.text_tokenizer, texts, offsets=offsets)

    def preprocess(
        self,
        inputs: Sequence[Any],
        prompt: str | None = None,
        processing_kwargs: Any = None,
        *,
        task: str | None = None,
        **fields: Any,
    ) -> dict[str, Any]:
        """Tokenize texts and place their copies.

        Args:
            inputs: The texts.
            prompt: See :meth:`frame`.
            processing_kwargs: Refused: the layout is this module's own.
            task: See :meth:`frame`.
            **fields: See :meth:`frame`.

        Returns:
            ``input_ids``, ``attention_mask`` and ``copy_ids``, each [B, T] int64, padded on the tokenizer's side; of
            an ensemble of P templates [B·P, T], a text's rows one after another.

        Raises:
            ValueError: An input that is not a string, or one that no token can stand for.
        """
        if processing_kwargs:
            raise ValueError(
                f"processing_kwargs={processing_kwargs!r} is not supported: this module lays out its own input. Set "
                "model.max_seq_length to change the length."
            )
        frames = self.frames(prompt, task, **fields)
        budget = self._budget(frames)
        contents = []
        for text, ids in zip(inputs, self.content(inputs)["input_ids"], strict=True):
            if budget is not None and len(ids) > budget:
                self._warn_of_cut(len(ids), budget)
                ids = ids[:budget]
            contents.append(ids or [self._stand_in(text)])
        return self.place(contents, *frames)

    def forward(
        self, features: dict[str, Any], *, capture: CaptureSpec | Capture | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Run the decoder; see :meth:`DecoderTransformer.forward`.

        Returns:
            As there; ``attention_mask`` then covers the positions of ``span``, and ``real_mask`` all real ones.
        """
        real = features["attention_mask"]
        prepending = started(self, features) if self.prepend else None
        with prepending_pass(prepending):
            result = super().forward(features, capture=capture, **kwargs)
        if prepending is not None:
            prepending.check()
        return {**result, "real_mask": real, "attention_mask": self._spanned(features["copy_ids"], real)}

    def laid_out(self, template: Any = None, repeats: int | None = None, separator: str = "") -> RepeatTransformer:
        """A module with another layout, of this one's options but ``prepend``, which shares its backbone."""
        other = copy.copy(self)
        other._modules = dict(self._modules)
        other._templates = check_layout(template, repeats, separator)
        other._template_given, other._separator, other._prepend = as_stored(template), separator, 0
        return other

    def on_model_ready(self, model: Any) -> None:
        """See that what follows can do with these rows: several a text need a module that makes one vector of them."""
        super().on_model_ready(model)
        # By its name: the class may be that of a copy of this code.
        if self.rows > 1 and not any(type(module).__name__ == "PromptEnsemble" for module in model):
            raise ValueError(
                f"template={shown(self.template)}: each text stands in {self.rows} templates, so "
                "st_reba.PromptEnsemble has to follow the pooling. Build with st_reba.build, or add it."
            )
        if self.prepend and any(type(module).__name__ == "ChunkedReBAPooling" for module in model):
            raise ValueError(f"prepend={self.prepend}: the pieces of a text (chunk) have no placeholder. Drop one.")

    def _spanned(self, copy_ids: Tensor, real: Tensor) -> Tensor:
        position = torch.arange(real.shape[1], device=real.device)
        end = (position * real).amax(dim=1, keepdim=True)
        if self.span == "all":
            return real
        if self.span == "end":
            return (position == end).to(real.dtype)
        if self.span == "repeats" and self.repeats > 1:
            return (copy_ids >= 2).to(real.dtype)
        last = copy_ids == self.repeats
        if self.span == "last_copy_and_end":
            special = len(special_ids(self.text_tokenizer)[1])
            return (last | ((position > end - special) & real.bool())).to(real.dtype)
        return last.to(real.dtype)

    def _stand_in(self, text: str) -> int:
        token = empty_id(self.text_tokenizer)
        if token is None:
            raise ValueError(
                f"The text {text[:80]!r} holds no token, and the tokenizer has no special token to stand for it. Drop "
                "such texts."
            )
        return token

    def place(self, contents: Sequence[Sequence[int]], *frames: Frame) -> dict[str, Tensor]:
        """Place the copies of tokenized texts.

        Args:
            contents: Token ids of each text, within the budget.
            *frames: What surrounds them: one, or all of an ensemble's.

        Returns:
            As :meth:`preprocess`.
        """
        # A text's rows stand together, so that whoever splits a batch can keep texts whole.
        sequences = [frame.place(ids) for ids in contents for frame in frames]
        length = max(len(ids) for ids, _ in sequences)
        shape = (len(sequences), length)
        features = {name: torch.zeros(shape, dtype=torch.long) for name in ("input_ids", "attention_mask", "copy_ids")}
        left = self.text_tokenizer.padding_side == "left" and self.takes_left_padding
        for row, (ids, copy_ids) in enumerate(sequences):
            place = slice(length - len(ids), length) if left else slice(0, len(ids))
            # Padding is masked, so any id will do, and many tokenizers have none for it. One of the row's own cannot
            # bring in an embedding that is not finite.
            features["input_ids"][row] = ids[0]
            features["input_ids"][row, place] = torch.tensor(ids)
            features["attention_mask"][row, place] = 1
            features["copy_ids"][row, place] = torch.tensor(copy_ids)
        return features

    def _warn_of_cut(self, length: int, budget: int) -> None:
        if not self._warned_of_cut:
            self._warned_of_cut = True
            limit = position_limit(self.text_tokenizer)
            logger.warning(
                f"A text of {length} tokens was cut to {budget} a copy: max_seq_length={limit} holds no more, with "
                f"repeats={self.repeats}. Longer texts are cut alike from here on, without a further warning."
            )
