"""RepeatTransformer: tokenize a text once, place its token ids in every copy, run the decoder."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .decoder import DecoderTransformer
from .layout import TASKS, Frame, Layout, TokenLayout
from .options import shown
from .stages import Bound, Place, Stage, stages_of
from .vendoring import published

logger = logging.getLogger(__name__)


@published
class RepeatTransformer(DecoderTransformer):
    """Repeats a text's tokens and runs the decoder over all copies at once.

    The content is tokenized once (special-token strings in it are ordinary text), cut to the budget, and placed k
    times. The tokenizer's own special tokens stand once, around the whole. k = 1 is the classical input.

    Args:
        model_name_or_path: Folder or Hub id of the backbone.
        layout: Where the copies stand, and which positions a following ``Pooling`` sees through ``attention_mask``.
        **kwargs: In place of ``layout`` its fields, as ``repeats=3``; and all that :class:`DecoderTransformer` takes.

    Source:
        ReBA, section 3.2 (repetition); Echo, sections 4.2 and 4.4 (templates).

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini")
        >>> model[0].preprocess(["你好"])["copy_ids"].tolist()
        [[0, 1, 1, 2, 2]]
    """

    config_keys = [*DecoderTransformer.config_keys, "layout"]

    def __init__(
        self,
        model_name_or_path: str,
        *,
        layout: Layout | Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        fields = {name: kwargs.pop(name) for name in Layout.names() if name in kwargs}
        if layout is not None and fields:
            raise ValueError(f"layout={shown(layout)} and {shown(fields)} exclude each other. Drop one of both.")
        if not isinstance(layout, Layout):
            layout = Layout.of(fields if layout is None else layout)
        self.__dict__["layout"] = layout
        super().__init__(model_name_or_path, **kwargs)

    def rebind(self, stages: Sequence[Stage], model: Any = None) -> None:
        """As :meth:`DecoderTransformer.rebind`; stages may have templates of their own, or add to the layout."""
        token_layout = TokenLayout(self.text_tokenizer, self.layout, stages_of(stages))
        super().rebind(stages, model)
        self.token_layout = token_layout
        self._warned_of_cut = False

    def get_config_dict(self) -> dict[str, Any]:
        return {**super().get_config_dict(), "layout": self.layout.to_dict()}

    @property
    def repeats(self) -> int:
        """Number of copies k."""
        return self.token_layout.copies

    @property
    def rows(self) -> int:
        """Sequences that a text becomes: 1, or the number of an ensemble's templates."""
        return len(self.token_layout.templates)

    def fields(self, task: str | None = None) -> frozenset[str]:
        """Names of the fields of a task's templates; of ``document`` where none is given."""
        return self.token_layout.fields(task)

    @property
    def forward_kwargs(self) -> set[str]:  # type: ignore[override]
        """The templates' fields, which ``encode`` takes as keyword arguments."""
        return {field for task in TASKS for field in self.fields(task)}

    def frames(self, prompt: str | None = None, task: str | None = None, **fields: str) -> tuple[Frame, ...]:
        """The token ids that surround the content, in each row of a text.

        Args:
            prompt: Value of ``{instruction}`` where a template has that field, else literal text in front of all.
            task: ``"query"`` or ``"document"``; None: ``"document"``, unless only the query's template has a place for
                the prompt or a field.
            **fields: Values of the templates' fields; each template takes those that it has.
        """
        return self.token_layout.frames(prompt, task, **fields)

    def budget(self, prompt: str | None = None, task: str | None = None, **fields: str) -> int | None:
        """How many content tokens a copy may hold (None: no limit), in all templates of an ensemble alike."""
        return self._budget(self.frames(prompt, task, **fields))

    def _budget(self, frames: Sequence[Frame]) -> int | None:
        limit = self.token_layout.limit()
        positions = getattr(self.config.get_text_config(), "max_position_embeddings", None)
        if limit is not None and positions is not None and limit > positions > 0:
            raise ValueError(
                f"max_seq_length={limit} is more than the backbone's {positions} positions. Set it to at most that."
            )
        return None if limit is None else self.token_layout.budget(frames, limit)

    def check_single(self) -> None:
        """Refuse what needs one sequence a text, where there are several templates."""
        if self.rows > 1:
            raise ValueError(
                f"Each text stands in {self.rows} templates, so it has a sentence vector, but no single sequence: word "
                "vectors, pieces of texts (chunk) and graphs (ONNX) need one template. Build without the ensemble."
            )

    def content(self, texts: Sequence[str], *, offsets: bool = False) -> dict[str, list[Any]]:
        """Tokenize texts as content; see :meth:`TokenLayout.content`."""
        if offsets:
            self.check_single()
        return self.token_layout.content(texts, offsets=offsets)

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
            prompt, task, **fields: See :meth:`frames`.
            processing_kwargs: Refused: the layout is this module's own.

        Returns:
            ``input_ids``, ``attention_mask`` and ``copy_ids``, each [B, T] int64, padded on the right, and ``places``,
            a list of B; of P templates B·P rows, those of a text one after another.

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
            if not ids:
                token = self.token_layout.stand_in()
                if token is None:
                    raise ValueError(
                        f"The text {text[:80]!r} holds no token, and the tokenizer has no special token to stand for "
                        "it. Drop such texts."
                    )
                ids = [token]
            contents.append(ids)
        return self.place(contents, *frames)

    def place(self, contents: Sequence[Sequence[int]], *frames: Frame) -> dict[str, Any]:
        """Place the copies of tokenized texts, which fit the budget, in one frame, or in all of an ensemble's."""
        # A text's rows stand together, so that whoever splits a batch can keep texts whole.
        return padded([frame.place(ids) for ids in contents for frame in frames])

    def forward(
        self, features: dict[str, Any], *, watch: Sequence[Bound] | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """As :meth:`DecoderTransformer.forward`; ``attention_mask`` then covers ``span``, ``real_mask`` all."""
        real = features["attention_mask"]
        result = super().forward(features, watch=watch, **kwargs)
        return {
            **result,
            "real_mask": real,
            "attention_mask": self._spanned(features["copy_ids"], real, result["places"]),
        }

    def on_model_ready(self, model: Any) -> None:
        """Refuse several rows a text where nothing makes one vector of them."""
        super().on_model_ready(model)
        # By its name: the class may be that of a copy of this code.
        if self.rows > 1 and not any(type(module).__name__ == "PromptEnsemble" for module in model):
            raise ValueError(
                f"Each text stands in {self.rows} templates, so PromptEnsemble has to follow the pooling. Build "
                "with st_reba.build, or add it."
            )

    def _spanned(self, copy_ids: Tensor, real: Tensor, places: Sequence[Place]) -> Tensor:
        span = self.layout.span
        if span == "all":
            return real
        last = copy_ids == self.repeats
        if span == "repeats" and self.repeats > 1:
            return (copy_ids >= 2).to(real.dtype)
        if span not in ("end", "last_copy_and_end"):
            return last.to(real.dtype)
        position = torch.arange(real.shape[1], device=real.device)
        end = torch.tensor([[length - 1] for _, _, length in places]).to(real.device, non_blocking=True)
        if span == "end":
            return (position == end).to(real.dtype)
        special = len(self.token_layout.special[1])
        return (last | ((position > end - special) & real.bool())).to(real.dtype)

    def _warn_of_cut(self, length: int, budget: int) -> None:
        if not self._warned_of_cut:
            self._warned_of_cut = True
            logger.warning(
                f"A text of {length} tokens was cut to {budget} a copy: "
                f"max_seq_length={self.token_layout.limit()} holds no more, with repeats={self.repeats}. Longer texts "
                "are cut alike from here on, without a further warning."
            )


def padded(rows: Sequence[tuple[list[int], list[int], Place]]) -> dict[str, Any]:
    """Rows as :meth:`Frame.place` gives them, as features [B, T] padded on the right."""
    places = [place for _, _, place in rows]
    length = max((place[2] for place in places), default=0)
    # Padding is masked, so any id will do, and many tokenizers have none for it. One of the row's own cannot bring in
    # an embedding that is not finite.
    ids = [ids + [ids[0]] * (length - len(ids)) for ids, _, _ in rows]
    copies = [copies + [0] * (length - len(copies)) for _, copies, _ in rows]
    position, last = torch.arange(length), torch.tensor([[place[2]] for place in places], dtype=torch.long)
    return {
        "input_ids": torch.tensor(ids, dtype=torch.long),
        "attention_mask": (position < last).long(),
        "copy_ids": torch.tensor(copies, dtype=torch.long),
        "places": places,
    }
