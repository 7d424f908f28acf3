"""NoSinkTransformer: the text once, through layers of one of the NoSink paper's settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from .plan import NoSink, PlanVariant
from .repeat import RepeatTransformer
from .stages import Stage, stages_of
from .vendoring import published


@published
class NoSinkTransformer(RepeatTransformer):
    """Runs a decoder by one of the NoSink paper's settings of its layers.

    (With ``stages=[NoSink(…)]`` RepeatTransformer does the same to a repeated text: both papers' ideas at once.)

    Args:
        model_name_or_path: Folder or Hub id of the backbone.
        setting: See :class:`NoSink`, as are k, k0, m and variant. A stored configuration has it among its stages.
        repeats: Number of copies; None: 1, unless a template or layout says so.
        stages: Further stages.
        **kwargs: All else that :class:`RepeatTransformer` takes.

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
        k: int | Literal["all"] | None = None,
        k0: int | None = None,
        m: int = 1,
        variant: PlanVariant = "paper",
        repeats: int | None = None,
        stages: Sequence[Stage | Mapping[str, Any]] = (),
        **kwargs: Any,
    ) -> None:
        given = stages_of(stages) if setting is None else (NoSink(setting, k, k0, m, variant), *stages_of(stages))
        if not any(isinstance(stage, NoSink) for stage in given):
            raise ValueError("NoSinkTransformer needs setting=…, as setting='mask0-bidir', k=2.")
        if repeats is None and kwargs.get("template") is None and kwargs.get("layout") is None:
            repeats = 1
        super().__init__(model_name_or_path, repeats=repeats, stages=given, **kwargs)
