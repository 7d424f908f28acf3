"""Layer plans: which way each layer of a decoder looks, and which layers run twice or are added.

A :class:`LayerPlan` is what a configuration stores; it counts layers from the top and knows no depth.
:meth:`LayerPlan.resolve` makes the :class:`Stack` of a backbone with L layers from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import groupby, islice
from typing import Any, Literal, cast, get_args

from .limits import MOST_LAYERS, MOST_SINK_TOKENS, check_whole, shown

LayerKind = Literal["forward", "backward", "bidirectional", "nosink-forward", "nosink-bidirectional", "rerouted"]
Architecture = Literal["inplace", "inter", "extra", "extend"]
PlanVariant = Literal["paper", "published"]

KINDS: tuple[LayerKind, ...] = get_args(LayerKind)


@dataclass(frozen=True)
class Stack:
    """A plan for a backbone of known depth.

    Args:
        kinds: What each of the backbone's L layers sees when it runs as usual.
        second: The further passes, in order: the layer whose weights run, and what it sees.
        architecture: How the further passes are joined to the usual ones.
        m: Sink tokens that nosink kinds hide.
        variant: Reading of INTER and EXTRA, see :class:`LayerPlan`.
    """

    kinds: tuple[LayerKind, ...]
    second: tuple[tuple[int, LayerKind], ...] = ()
    architecture: Architecture = "inplace"
    m: int = 1
    variant: PlanVariant = "paper"

    @property
    def is_plain(self) -> bool:
        """Whether this is the unconverted backbone."""
        return not self.second and all(kind == "forward" for kind in self.kinds)

    @property
    def side_by_side(self) -> bool:
        """Whether two stacks go through the final norm, each by itself, before they are summed."""
        return bool(self.second) and self.architecture == "extra" and self.variant == "paper"

    @property
    def calls(self) -> tuple[tuple[int, LayerKind], ...]:
        """Every pass through a layer: its index and what it sees."""
        return (*enumerate(self.kinds), *self.second)

    def __str__(self) -> str:
        names = [_named(kind, self.m) for kind in self.kinds]
        converted = [_named(kind, self.m) for _, kind in self.second]
        if self.architecture == "inter" and self.variant == "paper":
            for (layer, _), name in zip(self.second, converted, strict=True):
                names[layer] += f" + {name}"
        main = " → ".join(_runs(names))
        if not self.second or (self.architecture == "inter" and self.variant == "paper"):
            return main
        if self.architecture == "extend":
            return f"{main} → {' → '.join(_runs(converted))} (the last layer again)"
        start = "the embeddings" if self.architecture == "extra" else f"the input of layer {self.second[0][0]}"
        norm = "after" if self.side_by_side else "before"
        layers = ", ".join(str(layer) for layer, _ in self.second)
        beside = " → ".join(_runs(converted))
        return f"{main}; beside it, from {start}: {beside} (layers {layers}), summed {norm} the norm"


@dataclass(frozen=True, repr=False)
class LayerPlan:
    """How a decoder's layers are converted, without training, into an encoder's.

    Args:
        architecture: ``"inplace"``: converted layers replace forward ones. ``"inter"``: each converted layer runs
            twice, forward and converted. ``"extra"``: a second stack of the converted layers runs on the
            embeddings. ``"extend"``: k further passes through the last layer, converted, on top.
        kind: What converted layers see. ``"backward"``: token i sees t ≥ i. ``"bidirectional"``: all t.
            ``"nosink-forward"``, ``"nosink-bidirectional"``: all but the first ``m`` tokens, of t ≤ i and of all t.
            ``"rerouted"``: t ≤ i and the text's very last token (template and special tokens included), whose key and
            value sum up the text; a window does not hide it, and its key keeps the rotary position that it has.
        k: Number of converted layers, from the top, at most 1024; ``"all"``: the whole backbone.
        k0: The topmost of these that are nosink-bidirectional (with kind="bidirectional").
        m: Number of sink tokens that nosink kinds hide, at most 1024. The first m tokens themselves see what the
            kind without nosink shows them, so that no token is left without a key.
        others: What the other layers see: ``"forward"``, or ``"nosink-forward"``.
        layers: Instead of k, k0 and kind: the converted layers by kind, as ``{"backward": [-1, -2]}``; negative
            indices count from the top.
        variant: ``"paper"``: INTER sums both passes in every converted layer; EXTRA sums the outputs of both stacks,
            each after the final norm. ``"published"``: from the first converted layer on INTER keeps two streams,
            one of them forward; INTER and EXTRA sum both before the final norm.

    Raises:
        ValueError: A value that is not known or contradicts another; what was given is named.

    Source:
        NoSink, sections 3.1, 3.5 and 3.6, and appendix D. ``"rerouted"``: KV re-routing (KV-Embedding, 2026), which
        puts a copy of the last token's key and value in front of all tokens, the last one's own view included.

    Example:
        >>> plan = LayerPlan(k=4, k0=2)
        >>> plan
        <LayerPlan INPLACE: L-4 forward → 2 bidirectional → 2 nosink-bidirectional>
        >>> print(plan.resolve(6))
        2 forward → 2 bidirectional → 2 nosink-bidirectional
    """

    architecture: Architecture = "inplace"
    kind: LayerKind = "bidirectional"
    k: int | Literal["all"] = 0
    k0: int = 0
    m: int = 1
    others: Literal["forward", "nosink-forward"] = "forward"
    layers: Mapping[LayerKind, Sequence[int]] | None = None
    variant: PlanVariant = "paper"

    def __post_init__(self) -> None:
        _choose("architecture", self.architecture, get_args(Architecture))
        _choose("kind", self.kind, KINDS)
        _choose("others", self.others, ("forward", "nosink-forward"))
        _choose("variant", self.variant, get_args(PlanVariant))
        if self.k != "all":
            check_whole("k", self.k, MOST_LAYERS, least=0, also=", or 'all'")
        check_whole("k0", self.k0, MOST_LAYERS, least=0)
        check_whole("m", self.m, MOST_SINK_TOKENS, least=0)
        if self.k == "all" and self.architecture == "extend":
            raise ValueError("k='all' names the backbone's own layers, but 'extend' adds new ones. Give a number.")
        if self.k0 and self.kind != "bidirectional":
            raise ValueError(
                f"k0={self.k0} with kind={self.kind!r}: k0 says how many of the bidirectional layers hide the sink. "
                "Use kind='bidirectional', or drop k0."
            )
        if self.k != "all" and self.k0 > self.k:
            raise ValueError(f"k0={self.k0} is more than k={self.k}: of k converted layers, k0 hide the sink.")
        if self.layers is not None:
            self._check_layers(self.layers)

    def _check_layers(self, layers: object) -> None:
        if not isinstance(layers, Mapping) or not layers:
            raise ValueError(
                f"layers={shown(layers)} must be a mapping of kinds to layer indices, as {{'backward': [-1]}}."
            )
        if self.k or self.k0:
            raise ValueError(f"layers={layers!r} names the converted layers, so k={self.k} and k0={self.k0} must be 0.")
        if self.architecture == "extend":
            raise ValueError(f"layers={layers!r} names the backbone's layers, but 'extend' adds new ones. Give k.")
        given: dict[str, tuple[int, ...]] = {}
        for kind, indices in layers.items():
            _choose("layers: the kind", kind, KINDS)
            if not isinstance(indices, Iterable) or isinstance(indices, (str, Mapping)):
                raise ValueError(f"layers={layers!r}: {indices!r} must be a list of layer indices.")
            given[kind] = tuple(islice(indices, MOST_LAYERS + 1))
            if len(given[kind]) > MOST_LAYERS:
                raise ValueError(
                    f"layers={shown(given[kind])} of kind {kind!r} are too many: the most that st_reba takes is "
                    f"{MOST_LAYERS}. Name fewer."
                )
            for index in given[kind]:
                if isinstance(index, bool) or not isinstance(index, int):
                    raise ValueError(f"layers={layers!r}: the layer {index!r} must be a whole number.")
                check_whole("layers: the layer", abs(index), MOST_LAYERS, least=0)
        # One immutable form, so that equal plans are equal.
        object.__setattr__(self, "layers", _Layers({kind: given[kind] for kind in KINDS if kind in given}))
        self._converted_layers(None)

    def resolve(self, depth: int) -> Stack:
        """The plan for a backbone.

        Args:
            depth: Its number of layers L.

        Returns:
            What each layer sees.

        Raises:
            ValueError: The plan names more layers than there are, or one layer twice.
        """
        converted = self._converted(depth)
        others = [self.others] * depth
        if not converted and self.others == "forward":
            return Stack(cast("tuple[LayerKind, ...]", tuple(others)), m=self.m)
        kinds: list[LayerKind] = [*others]
        second: list[tuple[int, LayerKind]] = []
        if self.architecture == "inplace":
            for layer, kind in converted:
                kinds[layer] = kind
        elif self.architecture == "inter" and self.variant == "published" and converted:
            chosen = dict(converted)
            second = [(layer, chosen.get(layer, self.others)) for layer in range(converted[0][0], depth)]
        else:
            second = converted
        return Stack(tuple(kinds), tuple(second), self.architecture, self.m, self.variant)

    def _converted(self, depth: int) -> list[tuple[int, LayerKind]]:
        """Converted layers and their kinds, from the bottom up."""
        if self.layers is not None:
            return self._converted_layers(depth)
        k = depth if self.k == "all" else self.k
        if self.architecture == "extend":
            indices = [depth - 1] * k
        elif k > depth:
            raise ValueError(f"k={k}, but the backbone has {depth} layers. Give k=0 to {depth}.")
        else:
            indices = list(range(depth - k, depth))
        if self.k0 > k:
            raise ValueError(f"k0={self.k0} is more than the {k} layers of the backbone, which k='all' converts.")
        kinds: list[LayerKind] = [self.kind] * (k - self.k0) + ["nosink-bidirectional"] * self.k0
        return list(zip(indices, kinds, strict=True))

    def _converted_layers(self, depth: int | None) -> list[tuple[int, LayerKind]]:
        """The explicit lists; without a depth only what is wrong at any depth is found."""
        assert self.layers is not None
        chosen: dict[int, LayerKind] = {}
        for kind, indices in self.layers.items():
            for index in indices:
                if depth is not None and not -depth <= index < depth:
                    raise ValueError(
                        f"layers={self.layers!r} names layer {index}, but the backbone has {depth} layers. Give "
                        f"{-depth} to {depth - 1}."
                    )
                layer = index % depth if depth is not None else index
                if layer in chosen:
                    raise ValueError(
                        f"layers={self.layers!r} names layer {layer} twice, as {chosen[layer]} and as {kind}. Lists "
                        "may not overlap."
                    )
                chosen[layer] = kind
        return sorted(chosen.items())

    def to_dict(self) -> dict[str, Any]:
        """A JSON-serializable form, which :meth:`from_dict` reads."""
        plan = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.layers is not None:
            plan["layers"] = {kind: list(indices) for kind, indices in self.layers.items()}
        return plan

    @classmethod
    def from_dict(cls, plan: Mapping[str, Any]) -> LayerPlan:
        """The plan that :meth:`to_dict` wrote.

        Args:
            plan: Its fields; what is missing has its default.

        Raises:
            ValueError: An unknown field, or one whose value is not known.
        """
        known = [field.name for field in fields(cls)]
        if not isinstance(plan, Mapping):
            raise ValueError(f"layers={shown(plan)} must be a LayerPlan or a mapping of its fields, {known}.")
        if unknown := [name for name in plan if name not in known]:
            raise ValueError(f"layers={shown(dict(plan))}: a plan has no {unknown[0]!r}; it has {known}.")
        return cls(**plan)

    def __repr__(self) -> str:
        reading = ", published reading" if self.variant == "published" else ""
        return f"<LayerPlan {self.architecture.upper()}{reading}: {self._relative()}>"

    def _relative(self) -> str:
        """The stack in terms of an unknown depth L."""
        others = _named(self.others, self.m)
        if self.layers is not None:
            lists = ", ".join(f"{_named(kind, self.m)} {list(indices)}" for kind, indices in self.layers.items())
            return f"{others}; {lists}"
        bidirectional = "L" if self.k == "all" else str(self.k)
        if self.k0:
            bidirectional = f"L-{self.k0}" if self.k == "all" else str(self.k - self.k0)
        converted = [] if bidirectional == "0" else [f"{bidirectional} {_named(self.kind, self.m)}"]
        if self.k0:
            converted.append(f"{self.k0} {_named('nosink-bidirectional', self.m)}")
        if not converted:
            return f"L {others}"
        if self.architecture == "inplace":
            rest = [] if self.k == "all" else [f"L-{self.k} {others}"]
            return " → ".join([*rest, *converted])
        joint = {"inter": " + in parallel, on top: ", "extra": " + from the embeddings: ", "extend": " → "}
        return f"L {others}{joint[self.architecture]}{' → '.join(converted)}"


class _Layers(dict[LayerKind, tuple[int, ...]]):
    """Layer lists by kind; hashable, as a frozen plan must be."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self.items()))


def _named(kind: LayerKind, m: int) -> str:
    return f"{kind}({m})" if kind.startswith("nosink") and m != 1 else kind


def _runs(names: Sequence[str]) -> list[str]:
    return [f"{len(list(run))} {name}" for name, run in groupby(names)]


def _choose(name: str, value: object, allowed: Sequence[str]) -> None:
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name}={shown(value)} is not known: choose one of {list(allowed)}.")
