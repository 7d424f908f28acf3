"""A method in three parts: an arm, which costs a forward pass; what is read from it; and the filter behind."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from ...filters import KINDS
from ...modules import LayerPlan, ReadLayers
from ...modules.layout import Layout, task_templates

Join = Literal["mean", "concat"]
Pooled = Literal["mean", "last", "end", "reba mean", "reba last"]
POOLED: tuple[Pooled, ...] = ("mean", "last", "end", "reba mean", "reba last")
# What a single paper proposes, whole depth, last layer, no filter; "composed" is all else.
PAPERS = ("classical", "echo", "prompteol", "reba", "nosink")


def whole(value: object, least: int) -> bool:
    """Whether a value is a whole number from ``least`` on."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@dataclass(frozen=True)
class Arm:
    """One input and one plan: the forward pass that several readings share.

    Args:
        template: As of :class:`st_reba.Echo`, or None.
        repeats: Copies without a template.
        separator: Between them.
        kind: What converted layers see; ``"forward"``: none is converted.
        first: Index of the first converted layer, from the bottom; the layers above are converted too.
        sink: With kind ``"bidirectional"``: index of the first layer that hides the sink too.

    Example:
        >>> print(Arm(repeats=2, kind="nosink-bidirectional", first=4))
        repeat-2, nosink-bidirectional from layer 5
    """

    template: str | None = None
    repeats: int = 1
    separator: str = ""
    kind: str = "forward"
    first: int = 0
    sink: int | None = None

    @property
    def copies(self) -> int:
        """Copies of the text."""
        return task_templates(self.layout.template, self.layout.repeats)["document"].copies

    @property
    def layout(self) -> Layout:
        """Where the copies stand."""
        if self.template is None and self.separator and self.repeats > 1:
            between = self.separator.replace("{", "{{").replace("}", "}}")
            return Layout(between.join(["{text}"] * self.repeats))
        return Layout(self.template, None if self.template is not None else self.repeats)

    def plan(self, runs: int) -> LayerPlan:
        """The plan of a model that runs so many layers, counted from its top."""
        if self.kind == "forward" or self.first >= runs:
            return LayerPlan()
        k0 = 0 if self.sink is None else max(0, runs - self.sink)
        return LayerPlan(kind=self.kind, k=runs - self.first, k0=k0)

    def __str__(self) -> str:
        words = [f"template {self.template!r}" if self.template else f"repeat-{self.repeats}"]
        if self.separator:
            words.append(f"separator {self.separator!r}")
        if self.kind != "forward":
            words.append(f"{self.kind} from layer {self.first + 1}")
        if self.sink is not None:
            words.append(f"sink hidden from layer {self.sink + 1}")
        return ", ".join(words)


@dataclass(frozen=True)
class Read:
    """What is read from a pass: one layer, or several joined, pooled.

    Args:
        first: The lowest layer, from 0 (embeddings) to L.
        last: The highest; no layer above it need run.
        final_norm: Read behind the final norm.
        pooled: How.
        join: How several layers make one.
    """

    first: int
    last: int
    final_norm: bool
    pooled: Pooled
    join: Join = "mean"

    @property
    def layers(self) -> range:
        """The layers that are joined."""
        return range(self.first, self.last + 1)

    @property
    def runs(self) -> int:
        """How many layers have to run."""
        return max(1, self.last)

    def __str__(self) -> str:
        several = f"layers {self.first}-{self.last}{' side by side' if self.join == 'concat' else ''}"
        layer = f"layer {self.last}" if self.first == self.last else several
        return f"{layer}{'' if self.final_norm else ' before the norm'}, {self.pooled}"


@dataclass(frozen=True)
class Filter:
    """A post-filter's kind and numbers; no kind: none.

    Args:
        kind: See :class:`PostFilter`.
        r: Principal directions that abtt or whiten takes away.
        share: Of whiten: d' as a share of d.
        power: Of whiten.
    """

    kind: Literal["none", "center", "abtt", "standardize", "whiten"] = "none"
    r: int = 0
    share: float = 1.0
    power: float = 1.0

    def __post_init__(self) -> None:
        kinds = ("none", *KINDS)
        if self.kind not in kinds:
            raise ValueError(f"filters: kind={self.kind!r} is not known: choose one of {list(kinds)}.")
        least = 1 if self.kind == "abtt" else 0
        if not whole(self.r, least):
            raise ValueError(f"filters: r={self.r!r} of {self.kind} must be a whole number from {least} on.")
        for name, value in (("share", self.share), ("power", self.power)):
            if not _number(value) or not 0 < value <= 1:
                raise ValueError(f"filters: {name}={value!r} must be a number above 0, and at most 1.")
        own = {"abtt": ("r",), "whiten": ("r", "share", "power")}.get(self.kind, ())
        for name, default in (("r", 0), ("share", 1), ("power", 1)):
            if name not in own and getattr(self, name) != default:
                raise ValueError(f"filters: {name}={getattr(self, name)!r} does not belong to kind={self.kind!r}.")

    def dimensions(self, width: int) -> int:
        """d' of whiten, for vectors of d dimensions."""
        return max(1, min(round(self.share * width), width - self.r))

    def options(self, width: int) -> dict[str, Any]:
        """For :meth:`PostFilter.fit`."""
        if self.kind == "abtt":
            return {"kind": "abtt", "r": self.r}
        if self.kind == "whiten":
            return {"kind": "whiten", "dimensions": self.dimensions(width), "power": self.power, "r": self.r}
        return {"kind": self.kind}

    def __str__(self) -> str:
        if self.kind == "abtt":
            return f"abtt-{self.r}"
        if self.kind == "whiten":
            words = [f"whiten power {self.power:g}" if self.power != 1 else "whiten"]
            words += [f"without the top {self.r}"] if self.r else []
            return " ".join(words + ([f"to {self.share:.0%}"] if self.share != 1 else []))
        return "no filter" if self.kind == "none" else self.kind


NO_FILTER = Filter()


@dataclass(frozen=True)
class Trial:
    """A whole method: an arm, what is read from it, and the filter behind.

    Args:
        arm: The input and the plan.
        read: The layer and the pooling.
        filter: The post-filter.
    """

    arm: Arm
    read: Read
    filter: Filter = NO_FILTER

    @property
    def own(self) -> Trial:
        """The same method as it is told best: of an arm whose conversions reach into the layers that run.

        Example:
            >>> print(Trial(Arm(kind="bidirectional", first=2), Read(0, 1, True, "mean")).own.arm)
            repeat-1
        """
        arm, runs = self.arm, self.read.runs
        if arm.sink is not None and arm.sink >= runs:
            arm = replace(arm, sink=None)
        if arm.kind != "forward" and arm.first >= runs:
            arm = replace(arm, kind="forward", first=0)
        return self if arm is self.arm else replace(self, arm=arm)

    def paper(self, depth: int) -> str:
        """Which paper's method it is by itself, of ``PAPERS``; else ``"composed"``.

        Args:
            depth: The base's number of layers L.
        """
        arm, read = self.arm, self.read
        if self.filter != NO_FILTER or (read.first, read.last, read.final_norm) != (depth, depth, True):
            return "composed"
        converted = arm.kind != "forward" and arm.first < depth
        if read.pooled.startswith("reba"):
            return "reba" if arm.template is None and arm.repeats > 1 and not converted else "composed"
        if converted:
            plain = arm.template is None and arm.repeats == 1 and read.pooled == "mean" and arm.kind != "rerouted"
            return "nosink" if plain else "composed"
        if arm.copies > 1:
            return "echo" if read.pooled in ("mean", "last") else "composed"
        if read.pooled == "end":
            return "prompteol" if arm.template is not None else "composed"
        return "classical"

    def arguments(self, depth: int, postfilter: str | None = None) -> dict[str, Any]:
        """Keyword arguments of :func:`st_reba.build`, as a recipe has them.

        Args:
            depth: The base's number of layers L.
            postfilter: The file of the fitted filter.

        Example:
            >>> Trial(Arm(repeats=2), Read(3, 3, True, "mean")).arguments(6)
            {'method': 'echo', 'repeats': 2, 'pooling': 'mean', 'stages': [{'read': {'layers': 3}}]}
        """
        arm, read = self.arm, self.read
        reba = read.pooled.startswith("reba")
        method = "reba" if reba else "prompteol" if read.pooled == "end" else "echo" if arm.copies > 1 else "classical"
        values: dict[str, Any] = {"method": method, **arm.layout.to_dict()}
        if method == "classical":
            # It has the text once by itself.
            values.pop("repeats", None)
        values["pooling"] = {"end": "last"}.get(read.pooled, read.pooled.removeprefix("reba "))
        stages: list[dict[str, Any]] = []
        plan = arm.plan(read.runs)
        if plan != LayerPlan():
            stages.append({plan.name: plan.to_dict()})
        if read.first != read.last or read.last != depth or not read.final_norm:
            layers = read.last if read.first == read.last else (read.first, read.last)
            reading = ReadLayers(layers, read.join, read.final_norm)
            stages.append({reading.name: reading.to_dict()})
        if postfilter is not None:
            stages.append({"filter": {"file": postfilter}})
        return {**values, **({"stages": stages} if stages else {})}

    def __str__(self) -> str:
        words = f"{self.arm}; {self.read}"
        return words if self.filter == NO_FILTER else f"{words}; {self.filter}"
