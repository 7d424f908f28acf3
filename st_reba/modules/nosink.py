"""NoSinkTransformer: the NoSink paper's named settings of a layer plan."""

from __future__ import annotations

from typing import Any, Literal

from .limits import shown
from .plan import Architecture, LayerKind, LayerPlan, PlanVariant
from .repeat import RepeatTransformer

# INPLACE, INTER, EXTRA and EXTEND with backward or bidirectional layers take k alone.
_ARCHITECTURES: dict[str, Architecture] = {"inplace": "inplace", "inter": "inter", "extra": "extra", "extend": "extend"}
_KINDS: dict[str, LayerKind] = {"back": "backward", "bidir": "bidirectional"}
_CONVERTED: dict[str, tuple[Architecture, LayerKind]] = {
    f"{architecture}-{kind}": (_ARCHITECTURES[architecture], _KINDS[kind])
    for architecture in _ARCHITECTURES
    for kind in _KINDS
}
# MASK0 hides the sink in k layers.
_MASKED: dict[str, tuple[LayerKind, Literal["forward", "nosink-forward"]]] = {
    "mask0-for": ("nosink-forward", "forward"),
    "mask0-bidir": ("nosink-bidirectional", "forward"),
    "mask0-all": ("nosink-bidirectional", "nosink-forward"),
}
# MASK0&BIDIR: of k bidirectional layers, k0 hide the sink; k0 is given, fixed, or halved.
_COMBINED: dict[str, int | None] = {
    "mask0&bidir": None,
    "mask0-1": 1,
    "mask0-2": 2,
    "mask0-3": 3,
    "mask0-last": None,
    "mask0-mid": None,
}

SETTINGS: tuple[str, ...] = ("baseline", *_CONVERTED, *_MASKED, *_COMBINED)


def named_plan(
    setting: str,
    k: int | Literal["all"] | None = None,
    k0: int | None = None,
    m: int = 1,
    variant: PlanVariant = "paper",
) -> LayerPlan:
    """The layer plan of one of the paper's settings.

    Args:
        setting: One of ``SETTINGS``, in any case: ``"baseline"``; ``"inplace-back"`` to ``"extend-bidir"``;
            ``"mask0-for"``, ``"mask0-bidir"``, ``"mask0-all"``; ``"mask0&bidir"`` and its cases ``"mask0-1"``,
            ``"mask0-2"``, ``"mask0-3"`` (k0 = 1, 2, 3), ``"mask0-last"`` (k0 = the best k of MASK0-BIDIR) and
            ``"mask0-mid"`` (half of that, at least 1).
        k: Converted layers, from the top, or ``"all"``.
        k0: For ``mask0&bidir``, the nosink-bidirectional ones among them; for ``mask0-last`` and ``mask0-mid`` the
            best k of MASK0-BIDIR.
        m: Sink tokens that are hidden: 1 in the paper's settings, more in its variants.
        variant: Reading of INTER and EXTRA, see :class:`LayerPlan`.

    Returns:
        The plan.

    Raises:
        ValueError: An unknown setting, or a number that is missing or that the setting does not take.

    Source:
        NoSink, figures 2 and 4 to 6.

    Example:
        >>> named_plan("MASK0&BIDIR", k=4, k0=1)
        <LayerPlan INPLACE: L-4 forward → 3 bidirectional → 1 nosink-bidirectional>
    """
    name = setting.lower() if isinstance(setting, str) else setting
    if name not in SETTINGS:
        raise ValueError(f"setting={shown(setting)} is not known: choose one of {list(SETTINGS)}.")
    LayerPlan(m=m, variant=variant)  # refuses values that are not known, whether the setting uses them or not
    if m != 1 and name not in _MASKED and name not in _COMBINED:
        raise ValueError(f"m={m!r}: setting={setting!r} hides no tokens. Drop it.")
    if variant != "paper" and name not in ("inter-back", "inter-bidir", "extra-back", "extra-bidir"):
        raise ValueError(f"variant={variant!r}: setting={setting!r} has one reading. Drop it.")
    if name == "baseline":
        _refuse(setting, k=k, k0=k0)
        return LayerPlan()
    if k is None:
        raise ValueError(f"setting={setting!r} needs k, the number of converted layers, counted from the top.")
    if name in _CONVERTED:
        _refuse(setting, k0=k0)
        architecture, kind = _CONVERTED[name]
        return LayerPlan(architecture, kind, k, variant=variant)
    if name in _MASKED:
        _refuse(setting, k0=k0)
        kind, others = _MASKED[name]
        return LayerPlan(kind=kind, k=k, m=m, others=others)
    fixed = _COMBINED[name]
    if fixed is not None:
        _refuse(setting, k0=k0)
        k0 = fixed
    elif k0 is None:
        raise ValueError(f"setting={setting!r} needs k0, the number of converted layers that hide the sink.")
    elif name == "mask0-mid" and type(k0) is int and k0 > 0:
        k0 = max(1, k0 // 2)
    return LayerPlan(k=k, k0=k0, m=m)


def _refuse(setting: str, **numbers: object) -> None:
    for name, value in numbers.items():
        if value is not None:
            raise ValueError(f"{name}={value!r}: setting={setting!r} takes no {name}. Drop it.")


class NoSinkTransformer(RepeatTransformer):
    """Runs a decoder whose layers look both ways and whose attention sink is hidden, as one of the paper's settings.

    The text stands once; all that :class:`RepeatTransformer` takes is there too. (With ``layers=`` that class takes
    any plan, and with ``repeats=2`` both papers' ideas at once.)

    Args:
        model_name_or_path: Folder or Hub id of the backbone.
        setting: See :func:`named_plan`.
        k: See :func:`named_plan`.
        k0: See :func:`named_plan`.
        m: See :func:`named_plan`.
        plan_variant: ``"paper"`` or ``"published"``: reading of INTER and EXTRA, see :class:`LayerPlan`.
        repeats: Number of copies.
        **kwargs: All else that :class:`RepeatTransformer` takes, but ``layers``.

    Source:
        NoSink, section 3.

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini", "nosink", setting="mask0-bidir", k=2)
        >>> print(model[0].stack)
        4 forward → 2 nosink-bidirectional
    """

    config_keys = [
        *(key for key in RepeatTransformer.config_keys if key != "layers"),
        "setting",
        "k",
        "k0",
        "m",
        "plan_variant",
    ]

    def __init__(
        self,
        model_name_or_path: str,
        setting: str,
        *,
        k: int | Literal["all"] | None = None,
        k0: int | None = None,
        m: int = 1,
        plan_variant: PlanVariant = "paper",
        repeats: int | None = None,
        **kwargs: Any,
    ) -> None:
        if "layers" in kwargs:
            raise ValueError(
                f"layers={kwargs['layers']!r}: NoSinkTransformer takes a setting; RepeatTransformer takes any plan."
            )
        plan = named_plan(setting, k, k0, m, plan_variant)
        if repeats is None and kwargs.get("template") is None:
            repeats = 1
        super().__init__(model_name_or_path, repeats=repeats, layers=plan, **kwargs)
        self._given = {"setting": setting, "k": k, "k0": k0, "m": m, "plan_variant": plan_variant}

    # Read only: the layers follow from them when the module is made.
    @property
    def setting(self) -> str:
        """The paper's setting."""
        return str(self._given["setting"])

    @property
    def k(self) -> Any:
        """Number of converted layers, as given."""
        return self._given["k"]

    @property
    def k0(self) -> Any:
        """How many of them hide the sink, as given."""
        return self._given["k0"]

    @property
    def m(self) -> Any:
        """Number of sink tokens, as given."""
        return self._given["m"]

    @property
    def plan_variant(self) -> Any:
        """Reading of INTER and EXTRA, as given."""
        return self._given["plan_variant"]

    @property
    def layers(self) -> LayerPlan:
        """The setting's plan."""
        return self._plan

    @layers.setter
    def layers(self, plan: object) -> None:
        raise ValueError(
            f"layers={plan!r}: this model's layers follow from its setting={self.setting!r}. Build it anew with "
            "layers=… in place of a setting."
        )
