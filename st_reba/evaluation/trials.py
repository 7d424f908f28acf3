"""A whole method in its parts: an arm, which costs a forward pass; what is read from it; and the filter behind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, get_args

from ..modules import LayerPlan, NoSink, ReadLayers
from ..modules.layout import Layout, task_templates
from ..modules.options import Options, option

Join = Literal["mean", "concat"]
Pooled = Literal["mean", "last", "end", "reba mean", "reba last"]
POOLED: tuple[Pooled, ...] = get_args(Pooled)
# What a single paper proposes, in its published form; "composed" is all else.
PAPERS = ("classical", "echo", "prompteol", "reba", "nosink")


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
        nosink: One of NoSink's settings, in place of kind, first and sink; its last layer alone is read.

    Example:
        >>> print(Arm(repeats=2, kind="nosink-bidirectional", first=4))
        repeat-2, nosink-bidirectional from layer 5
        >>> print(Arm(nosink=NoSink("mask0&bidir", k=4, k0=2)))
        repeat-1, MASK0&BIDIR k=4 k0=2
    """

    template: str | None = None
    repeats: int = 1
    separator: str = ""
    kind: str = "forward"
    first: int = 0
    sink: int | None = None
    nosink: NoSink | None = None

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
        if self.nosink is not None:
            return self.nosink.plan
        if self.kind == "forward" or self.first >= runs:
            return LayerPlan()
        k0 = 0 if self.sink is None else max(0, runs - self.sink)
        return LayerPlan(kind=self.kind, k=runs - self.first, k0=k0)

    def to_json(self) -> dict[str, Any]:
        """What is not at its default, as JSON holds it; :meth:`of` reads it."""
        given = {each.name: value for each in fields(self) if (value := getattr(self, each.name)) != each.default}
        return given if self.nosink is None else {**given, "nosink": self.nosink.to_dict()}

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Arm:
        """Read what :meth:`to_json` gave."""
        return cls(**{**values, "nosink": NoSink.of(values["nosink"])} if "nosink" in values else values)

    def __str__(self) -> str:
        words = [f"template {self.template!r}" if self.template else f"repeat-{self.repeats}"]
        if self.separator:
            words.append(f"separator {self.separator!r}")
        if self.kind != "forward":
            words.append(f"{self.kind} from layer {self.first + 1}")
        if self.sink is not None:
            words.append(f"sink hidden from layer {self.sink + 1}")
        if self.nosink is not None:
            words.append(setting(self.nosink))
        return ", ".join(words)


def setting(nosink: NoSink) -> str:
    """A setting's name as the paper has it, with its numbers.

    Example:
        >>> setting(NoSink("mask0-mid", k=5, k0=4)), setting(NoSink("mask0-2", k=3))
        ('MASK0-MID k=5 k0=2', 'MASK0-2 k=3')
    """
    numbers = {
        "k": nosink.k,
        "k0": None if nosink.k0 is None else nosink.plan.k0,
        "m": None if nosink.m == 1 else nosink.m,
    }
    given = [f"{name}={value}" for name, value in numbers.items() if value is not None]
    return " ".join([nosink.setting.upper(), *given])


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
class Filter(Options):
    """A post-filter's kind and numbers, see :class:`st_reba.PostFilter`.

    Example:
        >>> Filter.of({"kind": "whiten", "r": 1, "share": 0.5}).options(96)
        {'kind': 'whiten', 'dimensions': 48, 'power': 1.0, 'r': 1}
    """

    name: ClassVar[str] = "filters"

    kind: Literal["none", "center", "abtt", "standardize", "whiten"] = option("none", "what is filtered")
    r: int = option(0, "principal directions that abtt or whiten takes away", least=0)
    share: float = option(1.0, "of the dimensions, which whiten keeps", least=0.001, most=1)
    power: float = option(1.0, "of the standard deviations that whiten divides by", least=0.001, most=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        own = {"abtt": ("r",), "whiten": ("r", "share", "power")}.get(self.kind, ())
        for name, value in self.to_dict().items():
            if name not in ("kind", *own):
                raise ValueError(f"filters: {name}={value!r} does not belong to kind={self.kind!r}. Drop it.")
        if self.kind == "abtt" and self.r < 1:
            raise ValueError(f"filters: r={self.r} of abtt must be a whole number from 1 on.")

    def dimensions(self, width: int) -> int:
        """d' of whiten, for vectors of d dimensions."""
        return max(1, min(round(self.share * width), width - self.r))

    def options(self, width: int) -> dict[str, Any]:
        """For :meth:`PostFilter.fit`, of vectors of d dimensions (``width``)."""
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
    """A whole method: an arm, what is read from it, and the filter behind."""

    arm: Arm
    read: Read
    filter: Filter = NO_FILTER

    @property
    def own(self) -> Trial:
        """The same method, told without conversions of layers that it does not run.

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
        """Which paper's method it is in its published form, of ``PAPERS``; else ``"composed"``.

        Args:
            depth: The base's number of layers L.

        Example:
            >>> last = Read(6, 6, True, "mean")
            >>> Trial(Arm(), last).paper(6), Trial(Arm("prompteol"), last).paper(6)
            ('classical', 'composed')
        """
        arm, read = self.arm, self.read
        if self.filter != NO_FILTER or (read.first, read.last, read.final_norm) != (depth, depth, True):
            return "composed"
        plain, once = arm.template is None and not arm.separator, arm.repeats == 1
        if arm.nosink is not None or (arm.kind != "forward" and arm.first < depth):
            return "nosink" if plain and once and read.pooled == "mean" and arm.kind != "rerouted" else "composed"
        if read.pooled.startswith("reba"):
            return "reba" if plain and not once else "composed"
        if read.pooled == "end":
            return "prompteol" if arm.template == "prompteol" else "composed"
        if plain:
            return "classical" if once else "echo"
        return "echo" if arm.template == "echo" else "composed"

    def layers(self, depth: int) -> int:
        """How many layers run, those that run twice counted twice."""
        return self.read.runs if self.arm.nosink is None else len(self.arm.plan(depth).resolve(depth).calls)

    def arguments(self, depth: int, postfilter: str | None = None) -> dict[str, Any]:
        """Keyword arguments of :func:`st_reba.build`, as a recipe has them.

        Args:
            depth: The base's number of layers L.
            postfilter: The file of the fitted filter.

        Example:
            >>> Trial(Arm(repeats=2), Read(3, 3, True, "mean")).arguments(6)
            {'method': 'echo', 'repeats': 2, 'pooling': 'mean', 'stages': [{'read': {'layers': 3}}]}
            >>> Trial(Arm(nosink=NoSink("mask0-bidir", k=4)), Read(6, 6, True, "mean")).arguments(6)
            {'method': 'nosink', 'setting': 'mask0-bidir', 'k': 4, 'pooling': 'mean'}
        """
        arm, read = self.arm, self.read
        pooling = {"end": "last"}.get(read.pooled, read.pooled.removeprefix("reba "))
        if arm.nosink is not None:
            return {"method": "nosink", "setting": arm.nosink.setting, **arm.nosink.to_dict(), "pooling": pooling}
        reba = read.pooled.startswith("reba")
        method = "reba" if reba else "prompteol" if read.pooled == "end" else "echo" if arm.copies > 1 else "classical"
        values: dict[str, Any] = {"method": method, **arm.layout.to_dict()}
        if method == "classical":
            # It has the text once by itself.
            values.pop("repeats", None)
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
        return {**values, "pooling": pooling, **({"stages": stages} if stages else {})}

    def __str__(self) -> str:
        words = f"{self.arm}; {self.read}"
        return words if self.filter == NO_FILTER else f"{words}; {self.filter}"
