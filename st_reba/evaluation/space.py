"""What is searched: arms, which cost a forward pass each; what is read from a pass; and the filter behind it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

import yaml

from ..filters import KINDS
from ..modules import LayerPlan, NoSink, ReadLayers
from ..modules.ensemble import ENSEMBLES
from ..modules.kinds import KINDS as LAYER_KINDS
from ..modules.layout import Layout, task_templates
from ..modules.plan import SETTINGS
from ..recipe import read_yaml

Join = Literal["mean", "concat"]
Pooled = Literal["mean", "last", "end", "reba mean", "reba last"]
POOLED: tuple[Pooled, ...] = get_args(Pooled)
# What a single paper proposes, in its published form; "composed" is all else.
PAPERS = ("classical", "echo", "prompteol", "reba", "nosink")
# What converted layers may see.
_CONVERTED = tuple(kind for kind in LAYER_KINDS if kind != "forward")


def _whole(value: object, least: int) -> bool:
    return type(value) is int and value >= least


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
        """What is not at its default, as JSON holds it."""
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        values = {name: value for name, value in given.items() if value != getattr(Arm, name)}
        return values | ({"nosink": self.nosink.to_dict()} if self.nosink is not None else {})

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Arm:
        """Read what :meth:`to_json` gave."""
        nosink = values.get("nosink")
        return cls(**{**values, "nosink": None if nosink is None else NoSink.of(nosink)})

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
class Filter:
    """A post-filter's kind and numbers; no kind: none.

    Args:
        kind: See :class:`st_reba.PostFilter`.
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
        if not _whole(self.r, least):
            raise ValueError(f"filters: r={self.r!r} of {self.kind} must be a whole number from {least} on.")
        for name, value in (("share", self.share), ("power", self.power)):
            if type(value) not in (int, float) or not 0 < value <= 1:
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


@dataclass(frozen=True)
class Space:
    """What a search goes through; the papers' methods in their published form come on top.

    Args:
        templates: Templates, by name or as text; None: the text by itself.
        repeats: Numbers of copies, where there is no template.
        separators: Between copies.
        kinds: What converted layers see.
        sinks: Whether bidirectional layers are also tried with the sink hidden in their upper part.
        pooled: Poolings.
        layers: Layers to read, the first and the last each; None: every one; the means from the embeddings up to each
            and from each up to the last; and each two neighbours side by side.
        norms: Behind the final norm, or before it.
        filters: Post-filters; the last stands for all of them where readings are chosen to try all on. None at all is
            always tried.

    Raises:
        ValueError: A field has a value that it cannot have; it is named.
    """

    templates: tuple[str | None, ...] = (None, "echo", "prompteol")
    repeats: tuple[int, ...] = (1, 2)
    separators: tuple[str, ...] = ("",)
    kinds: tuple[str, ...] = ("bidirectional", "nosink-bidirectional")
    sinks: bool = True
    pooled: tuple[Pooled, ...] = POOLED
    layers: tuple[tuple[int, int, Join], ...] | None = None
    norms: tuple[bool, ...] = (True,)
    filters: tuple[Filter, ...] = (
        NO_FILTER,
        Filter("center"),
        *(Filter("abtt", r) for r in (1, 2, 3, 8)),
        Filter("standardize"),
        Filter("whiten", share=0.5),
        *(Filter("whiten", r, power=power) for power in (0.5, 1.0, 0.9, 0.75) for r in (2, 1, 0)),
    )

    def __post_init__(self) -> None:
        allowed = {
            "templates": (_is_template, "one template's name or text with {text}, for all texts alike, or null"),
            "repeats": (lambda value: _whole(value, 1), "a whole number from 1 on"),
            "separators": (lambda value: isinstance(value, str), "a text, which may be empty"),
            "kinds": (lambda value: value in _CONVERTED, f"one of {list(_CONVERTED)}"),
            "pooled": (lambda value: value in POOLED, f"one of {list(POOLED)}"),
            "norms": (lambda value: isinstance(value, bool), "true or false"),
            "layers": (_are_layers, "a layer from 0 (embeddings) on, or [first, last] or [first, last, concat]"),
            "filters": (lambda value: isinstance(value, Filter), "a filter"),
        }
        for name, (fits, wanted) in allowed.items():
            values = getattr(self, name)
            if values is None and name == "layers":
                continue
            if not isinstance(values, tuple):
                raise ValueError(f"{name}={values!r:.60} must be a tuple.")
            if not values and name not in ("kinds", "filters"):
                raise ValueError(f"{name} is empty, so there is nothing to search; drop it for the default.")
            if wrong := [value for value in values if not fits(value)]:
                raise ValueError(f"{name}: {wrong[0]!r:.60} must be {wanted}.")
        if not isinstance(self.sinks, bool):
            raise ValueError(f"sinks={self.sinks!r:.60} must be true or false.")
        if NO_FILTER not in self.filters:
            object.__setattr__(self, "filters", (NO_FILTER, *self.filters))

    def arms(self, depth: int) -> list[Arm]:
        """All arms, those of the papers' methods first.

        Args:
            depth: The base's number of layers L.

        Raises:
            ValueError: A layer is named that the base has not.
        """
        found = dict.fromkeys([Arm(), Arm(repeats=2), Arm("echo"), Arm("prompteol")])
        for kind in ("bidirectional", "nosink-bidirectional"):
            found.update(dict.fromkeys(Arm(kind=kind, first=first) for first in spread(depth)))
        inputs = [Arm(template) for template in self.templates if template is not None]
        if None in self.templates:
            for repeats in self.repeats:
                separators = self.separators if repeats > 1 else ("",)
                inputs += [Arm(None, repeats, separator) for separator in separators]
        found.update(dict.fromkeys(inputs))
        for first in spread(depth):
            for kind in self.kinds:
                for each in inputs:
                    found[replace(each, kind=kind, first=first)] = None
                    if kind == "bidirectional" and self.sinks:
                        sinks = [sink for sink in spread(depth) if sink > first]
                        found.update(dict.fromkeys(replace(each, kind=kind, first=first, sink=sink) for sink in sinks))
        # An input that nothing is read from would be run for nothing.
        return [arm for arm in found if self.reads(arm, depth)]

    def reads(self, arm: Arm, depth: int) -> list[Read]:
        """What is read from an arm's pass: the papers' readings of it, and the space's.

        Args:
            arm: The arm.
            depth: The base's number of layers L.

        Raises:
            ValueError: A layer is named that the base has not.
        """
        layers = self.layers
        if layers is not None and (most := max(last for _, last, _ in layers)) > depth:
            raise ValueError(f"layers: there is no layer {most}: the base has 0 (embeddings) to {depth}.")
        if layers is None:
            means = [(0, last) for last in range(1, depth + 1)] + [(first, depth) for first in range(1, depth)]
            layers = (
                *((layer, layer, "mean") for layer in range(depth + 1)),
                *((*ends, "mean") for ends in means),
                *((layer, layer + 1, "concat") for layer in range(depth)),
            )
        fitting = _fitting(arm)
        whole = [Read(depth, depth, True, pooled) for pooled in fitting]
        found = dict.fromkeys(read for read in whole if Trial(arm, read).paper(depth) != "composed")
        for first, last, join in layers:
            for norm in self.norms:
                # A single token's vector is no better for being several layers'.
                pooled = [each for each in self.pooled if each in fitting and (first == last or each.endswith("mean"))]
                found.update(dict.fromkeys(Read(first, last, norm, each, join) for each in pooled))
        return list(found)

    def to_json(self) -> dict[str, Any]:
        """As JSON and YAML hold it; :func:`space_of` reads it."""
        values = {name: _plain(value) for name, value in vars(self).items()}
        default = asdict(NO_FILTER)
        values["filters"] = [
            {name: value for name, value in asdict(each).items() if name == "kind" or value != default[name]}
            for each in self.filters
        ]
        return values


def spread(depth: int, most: int = 8) -> list[int]:
    """Layer indices from 0 to ``depth`` − 1: all of a shallow model, evenly spread ones of a deep model.

    Example:
        >>> spread(6), spread(32)
        ([0, 1, 2, 3, 4, 5], [0, 4, 9, 13, 18, 22, 27, 31])
    """
    if depth <= most:
        return list(range(depth))
    return sorted({round(n * (depth - 1) / (most - 1)) for n in range(most)})


def nosink_arms(name: str, numbers: Sequence[int], m: int = 1, k0: int | None = None) -> list[Arm]:
    """The arms of a NoSink setting, one a number k of converted layers."""
    given = {"m": m} if name.startswith("mask0") and m != 1 else {}
    given |= {} if k0 is None or SETTINGS[name].get("k0", 0) is not None else {"k0": k0}
    return [Arm(nosink=NoSink.of({"setting": name, "k": k, **given})) for k in numbers]


def read_space(path: str | os.PathLike[str]) -> Space:
    """Read a space from a YAML file; what it does not name is as by default.

    Args:
        path: A mapping of :class:`Space`'s fields. A filter is a name, or a mapping of :class:`Filter`'s fields; layers
            are numbers, ``[first, last]`` or ``[first, last, join]``.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is no mapping, or has a key or a value that the space has not; it is named.

    Example:
        >>> with open("space.yaml", "w", encoding="utf-8") as file:
        ...     _ = file.write("layers: [3, [0, 3], [2, 3, concat]]\\nfilters: [{kind: abtt, r: 2}]\\n")
        >>> space = read_space("space.yaml")
        >>> space.layers
        ((3, 3, 'mean'), (0, 3, 'mean'), (2, 3, 'concat'))
        >>> [str(each) for each in space.filters]
        ['no filter', 'abtt-2']
    """
    file = os.fspath(path)
    if not os.path.isfile(path):
        raise FileNotFoundError(f"space={file!r}: no such file. Write one: docs/COMPOSING.md has an example.")
    with open(path, encoding="utf-8") as stream:
        values = read_yaml(stream, file)
    try:
        return space_of(values)
    except ValueError as error:
        raise ValueError(f"space={file!r}: {error}") from None


def space_of(values: Any) -> Space:
    """The space of a mapping as YAML gives it; see :func:`read_space`."""
    names = [field.name for field in fields(Space)]
    if not isinstance(values, Mapping):
        raise ValueError(f"{values!r:.60} is no mapping of {names}; write for example 'repeats: [1, 2]'.")
    if wrong := [name for name in values if name not in names]:
        raise ValueError(f"{wrong[0]!r} is not known; a space has {names}.")
    given: dict[str, Any] = {}
    for name, value in values.items():
        if name == "sinks" or (name == "layers" and value is None):
            given[name] = value
        elif not isinstance(value, list):
            raise ValueError(f"{name}={value!r:.60} must be a list.")
        else:
            given[name] = tuple(
                {"filters": _filter, "layers": _layers}.get(name, lambda each: each)(each) for each in value
            )
    return Space(**given)


def write_space(space: Space) -> str:
    """The YAML that :func:`read_space` reads as this space."""
    return yaml.safe_dump(space.to_json(), sort_keys=False, allow_unicode=True, default_flow_style=None, width=100)


def _filter(value: Any) -> Filter:
    if isinstance(value, str):
        value = {"kind": value}
    names = [field.name for field in fields(Filter)]
    if not isinstance(value, Mapping) or "kind" not in value:
        raise ValueError(f"filters: {value!r:.60} is no filter; write a name, as center, or {{kind: abtt, r: 2}}.")
    if wrong := [name for name in value if name not in names]:
        raise ValueError(f"filters: {wrong[0]!r} is not known; a filter has {names}.")
    return Filter(**value)


def _layers(value: Any) -> Any:
    """A number, or the first, the last and how they are joined."""
    if isinstance(value, list) and len(value) in (2, 3):
        return (value[0], value[1], value[2] if len(value) == 3 else "mean")
    return (value, value, "mean")


def _plain(value: Any) -> Any:
    return [_plain(each) for each in value] if isinstance(value, (tuple, list)) else value


def _is_template(template: Any) -> bool:
    """Whether it is one template, of queries and documents alike, without further fields."""
    if template is None:
        return True
    if not isinstance(template, str) or template in ENSEMBLES:
        return False
    try:
        tasks = task_templates(template)
    except ValueError as error:
        raise ValueError(f"templates: {error}") from None
    return tasks["query"] == tasks["document"] and not tasks["document"].fields


def _are_layers(layers: Any) -> bool:
    if not isinstance(layers, tuple) or len(layers) != 3 or layers[2] not in get_args(Join):
        return False
    return all(_whole(each, 0) for each in layers[:2]) and layers[0] <= layers[1]


def _fitting(arm: Arm) -> list[Pooled]:
    """The poolings that make sense of an arm."""
    copies = arm.copies
    # Behind the text there is more than the text only where a template has an end of its own.
    end = arm.template is not None and copies == 1
    return [each for each in POOLED if (end if each == "end" else copies > 1 or not each.startswith("reba"))]
