"""RepeatTransformer: tokenize a text once, place its token ids in every copy, run the decoder."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from .capture import Capture, CaptureSpec
from .limits import MOST_COPIES, check_text, check_whole, shown
from .templates import TASKS, Frame, Template, task_templates
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
) -> dict[str, Template]:
    """The templates of :class:`RepeatTransformer`'s settings, each of which is checked.

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
    return task_templates(template, repeats, separator)


class RepeatTransformer(DecoderTransformer):
    """Repeats a text's tokens and runs the decoder over all copies at once.

    The content is tokenized once, without special tokens (special-token strings inside a text are ordinary text),
    cut to the budget, and placed k times: every copy holds the same ids. The tokenizer's own special tokens stand
    once, around the whole. k = 1 is the classical input.

    Args:
        model_name_or_path: Folder or Hub id of the backbone.
        template: Literal text with ``{text}`` slots, one a copy; or the name of a template (see ``TEMPLATES``); or
            a mapping with the keys ``query`` and ``document``. None: ``repeats`` copies with ``separator`` between.
            Like separator and instruction, at most 65,536 characters.
        repeats: Number of copies k, at most 64; None: as many as the template has slots, or 2 without a template.
        separator: Literal text between the copies, without a template.
        instruction: Value of the template's ``{instruction}`` where no prompt is given.
        span: The positions that a following ``Pooling`` sees through ``attention_mask``. ``"last_copy"``: the
            content of copy k. ``"repeats"``: of copies 2 .. k. ``"last_copy_and_end"``: of copy k and the special
            tokens after it. ``"end"``: the very last position. ``"all"``: every real position.
        compute_matched: Halve the content budget, so that two copies cost what one did.
        **kwargs: All that :class:`DecoderTransformer` takes.

    Source:
        ReBA, section 3.2 (repetition); Echo, sections 4.2 and 4.4 (templates).

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
    ]

    def __init__(
        self,
        model_name_or_path: str,
        *,
        template: str | Mapping[str, str] | None = None,
        repeats: int | None = None,
        separator: str = "",
        instruction: str = "",
        span: Span = "last_copy",
        compute_matched: bool = False,
        **kwargs: Any,
    ) -> None:
        templates = check_layout(template, repeats, separator, instruction, span, compute_matched)
        super().__init__(model_name_or_path, **kwargs)
        self._template_given = template if template is None or isinstance(template, str) else dict(template)
        self._separator = separator
        self.instruction = instruction
        self.span: Span = span
        self.compute_matched = compute_matched
        self._templates = templates
        self._warned_of_cut = False

    # Read only: the layout follows from them when the module is made.
    @property
    def template(self) -> str | dict[str, str] | None:
        """The template as given; None: plain repetition."""
        return self._template_given

    @property
    def repeats(self) -> int:
        """Number of copies k."""
        return self._templates["document"].copies

    @property
    def separator(self) -> str:
        """Literal text between the copies, without a template."""
        return self._separator

    def fields(self, task: str | None = None) -> frozenset[str]:
        """Names of the fields of a task's template (None: the document's)."""
        return self._templates[task or "document"].fields

    @property
    def forward_kwargs(self) -> set[str]:  # type: ignore[override]
        """The template's fields, which ``encode`` takes as keyword arguments."""
        return {field for template in self._templates.values() for field in template.fields}

    def frame(self, prompt: str | None = None, task: str | None = None, **fields: str) -> Frame:
        """The token ids that surround the content.

        Args:
            prompt: Value of ``{instruction}`` where the template has that field, else literal text in front of all.
            task: ``"query"`` or ``"document"``; None: ``"document"``, unless only the query's template has a place for
                the prompt or a field.
            **fields: Values of the template's fields.

        Returns:
            The filled template, the tokenizer's special tokens around it.

        Raises:
            ValueError: A field without a value, or a value without a field.
        """
        if task is not None and task not in TASKS:
            raise ValueError(f"task={task!r} is not known: choose one of {list(TASKS)}, or None.")
        template = self._template(prompt, task, fields)
        values = {"instruction": self.instruction, **fields}
        if unknown := sorted(set(fields) - template.fields):
            raise ValueError(
                f"{unknown[0]}={fields[unknown[0]]!r}: the template for this task has no such field; it has "
                f"{sorted(template.fields)}."
            )
        for name, value in {**values, "prompt": prompt or ""}.items():
            if not isinstance(value, str):
                raise ValueError(f"{name}={value!r} must be a string.")
        prefix = prompt or ""
        if "instruction" in template.fields and prompt:
            values["instruction"], prefix = prompt, ""
        if missing := sorted(name for name in template.fields if not values.get(name)):
            raise ValueError(
                f"The template needs a value for {{{missing[0]}}}: pass encode(…, {missing[0]}='…')"
                + (", a prompt, or build with instruction='…'." if missing[0] == "instruction" else ".")
            )
        return frame(self.text_tokenizer, template.fill(values, prefix))

    def _template(self, prompt: str | None, task: str | None, fields: Mapping[str, str]) -> Template:
        query, document = self._templates["query"], self._templates["document"]
        if task is None:
            # Plain encode knows no task: whoever gives a prompt or a field that only queries take means a query.
            given = {*fields, "instruction"} if prompt else set(fields)
            return query if given & (query.fields - document.fields) else document
        return self._templates[task]

    def budget(self, prompt: str | None = None, task: str | None = None, **fields: str) -> int | None:
        """How many content tokens a copy may hold (None: no limit); arguments as for :meth:`frame`."""
        return self._budget(self.frame(prompt, task, **fields))

    def _budget(self, frame: Frame) -> int | None:
        limit = position_limit(self.text_tokenizer)
        positions = getattr(self.config.get_text_config(), "max_position_embeddings", None)
        if limit is not None and positions is not None and limit > positions > 0:
            raise ValueError(
                f"max_seq_length={limit} is more than the backbone's {positions} positions. Set it to at most that."
            )
        budget = frame.budget(limit)
        return max(1, budget // 2) if budget is not None and self.compute_matched else budget

    def content(self, texts: Sequence[str], *, offsets: bool = False) -> dict[str, list[Any]]:
        """Tokenize texts as content.

        Args:
            texts: The texts.
            offsets: Also return each token's character span.

        Returns:
            ``input_ids``: token ids a text, never cut, maybe none; with ``offsets``, ``offset_mapping``.

        Raises:
            ValueError: An input that is not a string.
        """
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
            ``input_ids``, ``attention_mask`` and ``copy_ids``, each [B, T] int64, padded on the tokenizer's side.

        Raises:
            ValueError: An input that is not a string, or one that no token can stand for.
        """
        if processing_kwargs:
            raise ValueError(
                f"processing_kwargs={processing_kwargs!r} is not supported: this module lays out its own input. Set "
                "model.max_seq_length to change the length."
            )
        frame = self.frame(prompt, task, **fields)
        budget = self._budget(frame)
        contents = []
        for text, ids in zip(inputs, self.content(inputs)["input_ids"], strict=True):
            if budget is not None and len(ids) > budget:
                self._warn_of_cut(len(ids), budget)
                ids = ids[:budget]
            contents.append(ids or [self._stand_in(text)])
        return self.place(contents, frame)

    def forward(
        self, features: dict[str, Any], *, capture: CaptureSpec | Capture | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Run the decoder; see :meth:`DecoderTransformer.forward`.

        Returns:
            As there; ``attention_mask`` then covers the positions of ``span``, and ``real_mask`` all real ones.
        """
        real = features["attention_mask"]
        result = super().forward(features, capture=capture, **kwargs)
        return {**result, "real_mask": real, "attention_mask": self._spanned(features["copy_ids"], real)}

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

    def place(self, contents: Sequence[Sequence[int]], frame: Frame) -> dict[str, Tensor]:
        """Place the copies of tokenized texts.

        Args:
            contents: Token ids of each text, within the budget.
            frame: What surrounds them.

        Returns:
            As :meth:`preprocess`.
        """
        sequences = [frame.place(ids) for ids in contents]
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
