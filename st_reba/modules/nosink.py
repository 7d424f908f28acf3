"""NoSinkTransformer: the text once, through layers of one of the NoSink paper's settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .plan import NoSink
from .repeat import RepeatTransformer
from .stages import Stage, stages_of
from .vendoring import published


@published
class NoSinkTransformer(RepeatTransformer):
    """Runs a decoder by one of the NoSink paper's settings of its layers.

    (With ``stages=[NoSink(…)]`` RepeatTransformer does the same to a repeated text: both papers' ideas at once.)

    Args:
        model_name_or_path: Folder or Hub id of the backbone.
        setting: The paper's setting. A stored configuration has it among its stages.
        stages: Further stages.
        **kwargs: The other fields of :class:`NoSink`, as ``k=2``; and all that :class:`RepeatTransformer` takes, but
            that the text stands once where nothing else is said.

    Source:
        NoSink, section 3.

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini", "nosink", setting="mask0-bidir", k=2)
        >>> print(model[0].stack)
        4 forward → 2 nosink-bidirectional
    """

    def __init__(
        self,
        model_name_or_path: str,
        setting: str | None = None,
        *,
        stages: Sequence[Stage | Mapping[str, Any]] = (),
        **kwargs: Any,
    ) -> None:
        fields = {name: kwargs.pop(name) for name in NoSink.names() if name in kwargs}
        if setting is not None:
            fields["setting"] = setting
        given = stages_of([*([NoSink.of(fields)] if fields else []), *stages_of(stages)])
        if not any(isinstance(stage, NoSink) for stage in given):
            raise ValueError("NoSinkTransformer needs setting=…, as setting='mask0-bidir', k=2.")
        if all(kwargs.get(name) is None for name in ("repeats", "template", "layout")):
            kwargs["repeats"] = 1
        super().__init__(model_name_or_path, stages=given, **kwargs)
