"""Layer plans: what each layer of a decoder sees, and which layers run twice or are added.

A :class:`LayerPlan` is what a configuration stores; it counts layers from the top and knows no depth.
:meth:`LayerPlan.resolve` makes the :class:`Stack` of a backbone with L layers from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from .kinds import KINDS, PassMasks, kind_of
from .options import MOST_LAYERS, option, shown
from .stages import Bound, Decoder, Pass, Stage

if TYPE_CHECKING:
    from torch import Tensor, nn

Architecture = Literal["inplace", "inter", "extra", "extend"]
PlanVariant = Literal["paper", "published"]
# Layers, numbered from the bottom, and what each sees.
Layers = tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class Stack:
    """A plan for a backbone of known depth.

    Args:
        kinds: What each of the backbone's layers sees when it runs as usual.
        second: The further passes, in order: the layer whose weights run, and what it sees.
        architecture: How the further passes are joined to the usual ones.
        m: Sink tokens that nosink kinds hide.
        variant: Reading of INTER and EXTRA, see :class:`LayerPlan`.
    """

    kinds: tuple[str, ...]
    second: Layers = ()
    architecture: Architecture = "inplace"
    m: int = 1
    variant: PlanVariant = "paper"

    @property
    def is_plain(self) -> bool:
        """Whether this is the unconverted backbone."""
        return not self.second and all(kind == "forward" for kind in self.kinds)

    @property
    def calls(self) -> Layers:
        """Every pass through a layer: its index and what it sees."""
        return (*enumerate(self.kinds), *self.second)

    @property
    def stream(self) -> int | None:
        """The layer at which a second stream of hidden states begins; None: there is one stream."""
        if not self.second or self.architecture == "extend":
            return None
        if self.architecture == "extra":
            return 0
        return self.second[0][0] if self.variant == "published" else None

    @property
    def side_by_side(self) -> bool:
        """Whether each stream goes through the final norm by itself before they are summed."""
        return self.stream is not None and self.variant == "paper"

    def __str__(self) -> str:
        names = [self._named(kind) for kind in self.kinds]
        further = [self._named(kind) for _, kind in self.second]
        if self.stream is not None:
            begin = "the embeddings" if self.architecture == "extra" else f"the input of layer {self.stream}"
            layers = ", ".join(str(layer) for layer, _ in self.second)
            beside = f"beside it, from {begin}: {_runs(further)} (layers {layers})"
            return f"{_runs(names)}; {beside}, summed {'after' if self.side_by_side else 'before'} the norm"
        if self.second and self.architecture == "extend":
            return f"{_runs(names)} → {_runs(further)} (the last layer again)"
        for (layer, _), name in zip(self.second, further, strict=True):
            names[layer] += f" + {name}"
        return _runs(names)

    def _named(self, kind: str) -> str:
        return f"{kind}({self.m})" if KINDS[kind].hides_sink and self.m != 1 else kind


def _runs(names: Iterable[str]) -> str:
    return " → ".join(f"{len(list(run))} {name}" for name, run in groupby(names))


@dataclass(frozen=True)
class LayerPlan(Stage):
    """How a decoder's layers are converted, without training, into an encoder's.

    ``inplace``: converted layers replace forward ones. ``inter``: each converted layer runs twice, forward and
    converted. ``extra``: a second stack of the converted layers runs on the embeddings. ``extend``: k further passes
    through the last layer, converted, on top. What each kind of layer sees: :data:`KINDS`.

    By the paper, INTER sums both passes in every converted layer, and EXTRA the outputs of both stacks, each after the
    final norm. By its published code, INTER keeps two streams from the first converted layer on, one of them forward;
    INTER and EXTRA sum both before the final norm.

    Raises:
        ValueError: A value that is not known or contradicts another.

    Source:
        NoSink, sections 3.1, 3.5 and 3.6, and appendix D. ``"rerouted"``: KV re-routing (KV-Embedding, 2026), which
        puts a copy of the last token's key and value in front of all tokens.

    Example:
        >>> print(LayerPlan(k=4, k0=2).resolve(6))
        2 forward → 2 bidirectional → 2 nosink-bidirectional
    """

    name: ClassVar[str] = "layers"
    order: ClassVar[int] = 20

    architecture: Architecture = option("inplace", "how converted layers are joined to the others")
    kind: str = option("bidirectional", "what converted layers see", choices=KINDS)
    k: int | Literal["all"] = option(0, "converted layers, from the top", least=0, most=MOST_LAYERS)
    k0: int = option(0, "the topmost of them that are nosink-bidirectional", least=0, most=MOST_LAYERS)
    m: int = option(1, "sink tokens that are hidden", least=0, most=MOST_LAYERS)
    others: Literal["forward", "nosink-forward"] = option("forward", "what the other layers see")
    layers: Mapping[str, Any] | None = option(
        None, "in place of k, k0 and kind: layers by kind, as {'backward': [-1, -2]}; -1 is the topmost"
    )
    variant: PlanVariant = option("paper", "reading of inter and extra: the paper's, or its published code's")

    def __post_init__(self) -> None:
        super().__post_init__()
        k, k0, extend = self.k, self.k0, self.architecture == "extend"
        for wrong, message in (
            (k == "all" and extend, "k='all' names the backbone's layers, but 'extend' adds new ones. Give a number."),
            (k0 and self.kind != "bidirectional", f"k0={k0} needs kind='bidirectional', not {self.kind!r}. Drop k0."),
            (k != "all" and k0 > k, f"k0={k0} is more than k={k}: of k converted layers, k0 hide the sink."),
            (self.layers == {}, "layers={} names no layer: give a mapping as {'backward': [-1]}."),
            (self.layers and (k or k0 or extend), f"give layers, or one of k={k}, k0={k0} and 'extend', not both."),
        ):
            if wrong:
                raise ValueError(f"layers: {message}")
        for kind, indices in (self.layers or {}).items():
            kind_of(kind)
            listed = isinstance(indices, (list, tuple)) and 0 < len(indices) <= MOST_LAYERS
            if not listed or not all(type(index) is int and abs(index) <= MOST_LAYERS for index in indices):
                raise ValueError(f"layers: {kind}={shown(indices)} must be a list of up to {MOST_LAYERS} layers.")
        if self.layers:
            # In one form, in which equal plans are equal.
            layers = {kind: list(self.layers[kind]) for kind in KINDS if kind in self.layers}
            object.__setattr__(self, "layers", layers)

    @property
    def plan(self) -> LayerPlan:
        """Itself: a named setting has a plan too."""
        return self

    def resolve(self, depth: int) -> Stack:
        """The plan for a backbone of which ``depth`` layers run.

        Raises:
            ValueError: The plan names more layers than there are, or one layer twice.
        """
        converted = self._topmost(depth) if self.layers is None else self._listed(self.layers, depth)
        kinds: list[str] = [self.others] * depth
        if self.architecture == "inplace":
            for layer, kind in converted:
                kinds[layer] = kind
            converted = []
        elif self.architecture == "inter" and self.variant == "published" and converted:
            chosen = dict(converted)
            converted = [(layer, chosen.get(layer, self.others)) for layer in range(converted[0][0], depth)]
        return Stack(tuple(kinds), tuple(converted), self.architecture, self.m, self.variant)

    def _topmost(self, depth: int) -> list[tuple[int, str]]:
        k = depth if self.k == "all" else self.k
        for name, number in (("k", k), ("k0", self.k0)):
            if number > depth and self.architecture != "extend":
                raise ValueError(f"{name}={number}, but {depth} layers of the backbone run. Give at most {depth}.")
        indices = [depth - 1] * k if self.architecture == "extend" else range(depth - k, depth)
        return list(zip(indices, [self.kind] * (k - self.k0) + ["nosink-bidirectional"] * self.k0, strict=True))

    def _listed(self, layers: Mapping[str, list[int]], depth: int) -> list[tuple[int, str]]:
        chosen: dict[int, str] = {}
        for kind, index in ((kind, index) for kind, indices in layers.items() for index in indices):
            layer, problem = index % depth, None
            if not -depth <= index < depth:
                problem = f"{index}, but {depth} layers of the backbone run. Give {-depth} to {depth - 1}."
            elif layer in chosen:
                problem = f"{layer} twice, as {chosen[layer]} and as {kind}. Drop one."
            if problem:
                raise ValueError(f"layers={shown(layers)} names layer {problem}")
            chosen[layer] = kind
        return sorted(chosen.items())

    def bind(self, decoder: Decoder) -> Bound:
        return planned(decoder, self)


# The paper's settings: what each fixes of a plan; a k0 of None is to be given.
SETTINGS: dict[str, dict[str, Any]] = {
    "baseline": {},
    "inplace-back": {"architecture": "inplace", "kind": "backward"},
    "inplace-bidir": {"architecture": "inplace"},
    "inter-back": {"architecture": "inter", "kind": "backward"},
    "inter-bidir": {"architecture": "inter"},
    "extra-back": {"architecture": "extra", "kind": "backward"},
    "extra-bidir": {"architecture": "extra"},
    "extend-back": {"architecture": "extend", "kind": "backward"},
    "extend-bidir": {"architecture": "extend"},
    "mask0-for": {"kind": "nosink-forward"},
    "mask0-bidir": {"kind": "nosink-bidirectional"},
    "mask0-all": {"kind": "nosink-bidirectional", "others": "nosink-forward"},
    "mask0&bidir": {"k0": None},
    "mask0-1": {"k0": 1},
    "mask0-2": {"k0": 2},
    "mask0-3": {"k0": 3},
    "mask0-last": {"k0": None},
    "mask0-mid": {"k0": None},
}


@dataclass(frozen=True)
class NoSink(Stage):
    """One of the NoSink paper's settings of the layers.

    ``mask0-1``, ``mask0-2`` and ``mask0-3`` are ``mask0&bidir`` with k0 = 1, 2, 3. ``mask0-last`` and ``mask0-mid``
    take as k0 the best k of MASK0-BIDIR, and use it or half of it, at least 1.

    Raises:
        ValueError: An unknown setting, or a number that is missing or that the setting does not take.

    Source:
        NoSink, figures 2 and 4 to 6.

    Example:
        >>> print(NoSink("mask0&bidir", k=4, k0=1).plan.resolve(6))
        2 forward → 3 bidirectional → 1 nosink-bidirectional
    """

    name: ClassVar[str] = "nosink"
    order: ClassVar[int] = LayerPlan.order

    setting: str = option("baseline", "the paper's setting of the layers, in any case", choices=SETTINGS)
    k: int | Literal["all"] | None = option(None, "converted layers, from the top", least=0, most=MOST_LAYERS)
    k0: int | None = option(None, "the topmost of them that hide the sink", least=0, most=MOST_LAYERS)
    m: int = option(1, "sink tokens that are hidden", least=0, most=MOST_LAYERS)
    variant: PlanVariant = option("paper", "reading of inter and extra: the paper's, or its published code's")

    def __post_init__(self) -> None:
        if isinstance(self.setting, str):
            object.__setattr__(self, "setting", self.setting.lower())
        super().__post_init__()
        # Refuses what does not go together, before any base is loaded.
        self.plan  # noqa: B018

    @property
    def plan(self) -> LayerPlan:
        """The layer plan that the setting means."""
        fixed = dict(SETTINGS[self.setting])
        takes = {
            "k": self.setting != "baseline",
            "k0": fixed.get("k0", 0) is None,
            "m": self.setting.startswith("mask0"),
            "variant": fixed.get("architecture") in ("inter", "extra"),
        }
        for name, taken in takes.items():
            if name in self.to_dict() and not taken:
                given = f"{name}={getattr(self, name)!r}: setting={self.setting!r}"
                raise ValueError(f"nosink: {given} takes no {name}. Drop it.")
            if taken and getattr(self, name) is None:
                raise ValueError(f"nosink: setting={self.setting!r} needs {name}, a number of layers from the top.")
        if self.k0 is not None:
            fixed["k0"] = min(self.k0, max(1, self.k0 // 2)) if self.setting == "mask0-mid" else self.k0
        return LayerPlan(**fixed, k=self.k or 0, m=self.m, variant=self.variant)

    def bind(self, decoder: Decoder) -> Bound:
        return planned(decoder, self)


def planned(decoder: Decoder, stage: LayerPlan | NoSink) -> PlannedLayers:
    """What a plan, or a named setting, makes of a decoder's layers; an error where they cannot be converted so."""
    try:
        stack = stage.plan.resolve(decoder.runs)
    except ValueError as error:
        raise ValueError(f"{stage.name}: {error}") from None
    if not stack.second:
        return PlannedLayers(decoder, stage, stack)
    from .vendoring import extra

    twice: PlannedLayers = extra("second").LayersTwice(decoder, stage, stack)
    return twice


class PlannedLayers(Bound):
    """A decoder's layers, each of which sees what a plan says."""

    def __init__(self, decoder: Decoder, stage: LayerPlan | NoSink, stack: Stack) -> None:
        self.stage, self.stack = stage, stack
        if stack.is_plain:
            return
        from .attention import switch_on

        backbone = decoder.backbone
        name = type(backbone.decoder).__name__
        if not backbone.is_causal and not all("bidirectional" in kind for _, kind in stack.calls):
            raise ValueError(
                f"{stage}: {name} looks both ways already, so no layer can look forward or backward. Convert all to "
                "'bidirectional' or 'nosink-bidirectional' (k='all')."
            )
        if not switch_on(decoder.model):
            raise ValueError(
                f"{stage}: {name} does not call transformers' attention interface, so what its layers see cannot be "
                "changed. Use another base (llama, qwen, mistral, gpt2, …), or drop the plan."
            )

    def begin(self, run: Pass) -> None:
        """From here on attention asks this plan what it sees."""
        if not self.stack.is_plain:
            run.kinds = PlannedPass(self.stack, run)

    def finish(self, run: Pass, hidden: Tensor) -> Tensor:
        """Raise where the plan did not run, as one that silently does nothing would give another model's vectors."""
        seen = run.kinds
        if seen is not None and (seen.last is None or seen.ran != len(self.stack.second)):
            from .attention import ATTENTION_NAME

            backbone = run.decoder.backbone
            raise ValueError(
                f"{self.stage}: {backbone.name} did not run it: its attention implementation is {backbone.attention!r} "
                f"({ATTENTION_NAME!r} is needed), or layers were replaced or left out. Build the model anew, or "
                "use another plan."
            )
        return hidden


class PlannedPass:
    """What a pass's layers see; the attention function asks it."""

    def __init__(self, stack: Stack, run: Pass) -> None:
        self.stack = stack
        self.masks = PassMasks(run, stack.m)
        # The attention module that ran last and what it saw, and further passes that ran; for checks.
        self.last: tuple[nn.Module, str] | None = None
        self.ran = 0
        # What the further pass that runs now sees.
        self.further: str | None = None

    def kind(self, module: nn.Module) -> str:
        """What the attention module that runs now sees.

        Raises:
            ValueError: The module does not say which layer it belongs to.
        """
        kind = self.further
        if kind is None:
            layer = getattr(module, "layer_idx", None)
            if not isinstance(layer, int) or not 0 <= layer < len(self.stack.kinds):
                raise ValueError(
                    f"{type(module).__name__} says layer_idx={layer!r}, which is none of {len(self.stack.kinds)} "
                    "layers, so that they cannot be converted. Drop the plan."
                )
            kind = self.stack.kinds[layer]
        self.last = (module, kind)
        return kind
