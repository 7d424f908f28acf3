"""Layer plans: which way each layer of a decoder looks, and which layers run twice or are added.

A :class:`LayerPlan` is what a configuration stores; it counts layers from the top and knows no depth.
:meth:`LayerPlan.resolve` makes the :class:`Stack` of a backbone with L layers from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from .kinds import KINDS, PassMasks
from .options import MOST_LAYERS, option, shown, unknown
from .stages import Bound, LayerCall, Pass, Stage

if TYPE_CHECKING:
    from torch import Tensor, nn

    from .decoder import DecoderTransformer

Architecture = Literal["inplace", "inter", "extra", "extend"]
PlanVariant = Literal["paper", "published"]
# Layers, numbered from the bottom, and what each sees.
Layers = tuple[tuple[int, str], ...]


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
    def side_by_side(self) -> bool:
        """Whether two stacks go through the final norm, each by itself, before they are summed."""
        return bool(self.second) and self.architecture == "extra" and self.variant == "paper"

    @property
    def calls(self) -> Layers:
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
class LayerPlan(Stage):
    """How a decoder's layers are converted, without training, into an encoder's.

    Args:
        architecture: ``"inplace"``: converted layers replace forward ones. ``"inter"``: each converted layer runs
            twice, forward and converted. ``"extra"``: a second stack of the converted layers runs on the
            embeddings. ``"extend"``: k further passes through the last layer, converted, on top.
        kind: What converted layers see. ``"backward"``: token i sees t ≥ i. ``"bidirectional"``: all t.
            ``"nosink-forward"``, ``"nosink-bidirectional"``: all but the first ``m`` tokens, of t ≤ i and of all t.
            ``"rerouted"``: t ≤ i and the text's very last token (template and special tokens included), whose key and
            value sum up the text; a window does not hide it, and its key keeps the rotary position that it has.
        k: Number of converted layers, from the top, at most 1024; ``"all"``: all that run.
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

    name: ClassVar[str] = "layers"
    order: ClassVar[int] = 20

    architecture: Architecture = option("inplace", "how converted layers are joined to the others")
    kind: str = option("bidirectional", "what converted layers see", choices=KINDS)
    k: int | Literal["all"] = option(0, "converted layers, from the top", least=0, most=MOST_LAYERS)
    k0: int = option(0, "the topmost of them that hide the sink too", least=0, most=MOST_LAYERS)
    m: int = option(1, "sink tokens that are hidden", least=0, most=MOST_LAYERS)
    others: Literal["forward", "nosink-forward"] = option("forward", "what the other layers see")
    layers: Mapping[str, Any] | None = option(None, "in place of k and kind: layer indices by kind")
    variant: PlanVariant = option("paper", "reading of inter and extra: the paper's, or its published code's")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.k == "all" and self.architecture == "extend":
            raise ValueError(
                "layers: k='all' names the backbone's own layers, but 'extend' adds new ones. Give a number."
            )
        if self.k0 and self.kind != "bidirectional":
            raise ValueError(
                f"layers: k0={self.k0} with kind={self.kind!r}: k0 says how many of the bidirectional layers hide the "
                "sink. Use kind='bidirectional', or drop k0."
            )
        if self.k != "all" and self.k0 > self.k:
            raise ValueError(f"layers: k0={self.k0} is more than k={self.k}: of k converted layers, k0 hide the sink.")
        if self.layers is not None:
            object.__setattr__(self, "layers", self._listed(self.layers))

    def _listed(self, layers: Mapping[str, Any]) -> dict[str, list[int]]:
        """The explicit lists in one form, in which equal plans are equal."""
        if not layers:
            raise ValueError("layers: layers={} names no layer: give a mapping as {'backward': [-1]}.")
        if self.k or self.k0 or self.architecture == "extend":
            raise ValueError(
                f"layers: layers={shown(layers)} names the backbone's layers, so k={self.k} and k0={self.k0} must be "
                "0, and architecture='extend', which adds new ones, needs k instead."
            )
        for kind, indices in layers.items():
            if kind not in KINDS:
                raise ValueError(unknown("layers: the kind", kind, list(KINDS), kind))
            if (
                not isinstance(indices, (list, tuple))
                or not 0 < len(indices) <= MOST_LAYERS
                or not all(type(index) is int and abs(index) <= MOST_LAYERS for index in indices)
            ):
                raise ValueError(
                    f"layers: {kind}={shown(indices)} must be a list of up to {MOST_LAYERS} layer indices."
                )
        return {kind: list(layers[kind]) for kind in KINDS if kind in layers}

    @property
    def plan(self) -> LayerPlan:
        """Itself: a named setting has a plan too."""
        return self

    def resolve(self, depth: int) -> Stack:
        """The plan for a backbone of which ``depth`` layers run.

        Raises:
            ValueError: The plan names more layers than there are, or one layer twice.
        """
        converted = self._converted(depth)
        kinds = [str(self.others)] * depth
        second: Layers = ()
        if self.architecture == "inplace":
            for layer, kind in converted:
                kinds[layer] = kind
        elif self.architecture == "inter" and self.variant == "published" and converted:
            chosen = dict(converted)
            second = tuple((layer, chosen.get(layer, self.others)) for layer in range(converted[0][0], depth))
        else:
            second = tuple(converted)
        return Stack(tuple(kinds), second, self.architecture, self.m, self.variant)

    def _converted(self, depth: int) -> list[tuple[int, str]]:
        """Converted layers and their kinds, from the bottom up."""
        if self.layers is not None:
            return self._chosen(depth)
        k = depth if self.k == "all" else self.k
        if self.architecture != "extend" and k > depth:
            raise ValueError(f"k={k}, but {depth} layers of the backbone run. Give k=0 to {depth}.")
        if self.k0 > k:
            raise ValueError(f"k0={self.k0} is more than the {k} layers of the backbone, which k='all' converts.")
        indices = [depth - 1] * k if self.architecture == "extend" else list(range(depth - k, depth))
        return list(zip(indices, [self.kind] * (k - self.k0) + ["nosink-bidirectional"] * self.k0, strict=True))

    def _chosen(self, depth: int) -> list[tuple[int, str]]:
        chosen: dict[int, str] = {}
        for kind, indices in (self.layers or {}).items():
            for index in indices:
                if not -depth <= index < depth:
                    raise ValueError(
                        f"layers: {kind}={indices} names layer {index}, but {depth} layers of the backbone run. Give "
                        f"{-depth} to {depth - 1}."
                    )
                if index % depth in chosen:
                    raise ValueError(
                        f"layers={self.layers!r} names layer {index % depth} twice, as {chosen[index % depth]} and as "
                        f"{kind}. Lists may not overlap."
                    )
                chosen[index % depth] = kind
        return sorted(chosen.items())

    def bind(self, decoder: DecoderTransformer) -> Bound:
        """The plan of the decoder's layers, once it is known that they can be converted."""
        try:
            stack = self.plan.resolve(decoder.runs)
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from None
        return PlannedLayers(decoder, self, stack)

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


# INPLACE, INTER, EXTRA and EXTEND with backward or bidirectional layers take k alone.
_KINDS = {"back": "backward", "bidir": "bidirectional"}
# MASK0 hides the sink in k layers: what these see, and what the others see.
_MASKED = {
    "mask0-for": ("nosink-forward", "forward"),
    "mask0-bidir": ("nosink-bidirectional", "forward"),
    "mask0-all": ("nosink-bidirectional", "nosink-forward"),
}
# MASK0&BIDIR: of k bidirectional layers, k0 hide the sink; k0 is given (None), or fixed.
_COMBINED = {"mask0&bidir": None, "mask0-1": 1, "mask0-2": 2, "mask0-3": 3, "mask0-last": None, "mask0-mid": None}
Setting = Literal[
    "baseline",
    "inplace-back",
    "inplace-bidir",
    "inter-back",
    "inter-bidir",
    "extra-back",
    "extra-bidir",
    "extend-back",
    "extend-bidir",
    "mask0-for",
    "mask0-bidir",
    "mask0-all",
    "mask0&bidir",
    "mask0-1",
    "mask0-2",
    "mask0-3",
    "mask0-last",
    "mask0-mid",
]


@dataclass(frozen=True)
class NoSink(Stage):
    """One of the NoSink paper's settings of the layers.

    Args:
        setting: In any case: ``"baseline"``; ``"inplace-back"`` to ``"extend-bidir"``; ``"mask0-for"``,
            ``"mask0-bidir"``, ``"mask0-all"``; ``"mask0&bidir"`` and its cases ``"mask0-1"``, ``"mask0-2"``,
            ``"mask0-3"`` (k0 = 1, 2, 3), ``"mask0-last"`` (k0 = the best k of MASK0-BIDIR) and ``"mask0-mid"`` (half of
            that, at least 1).
        k: Converted layers, from the top, or ``"all"``.
        k0: For ``mask0&bidir``, the nosink-bidirectional ones among them; for ``mask0-last`` and ``mask0-mid`` the
            best k of MASK0-BIDIR.
        m: Sink tokens that are hidden: 1 in the paper's settings, more in its variants.
        variant: Reading of INTER and EXTRA, see :class:`LayerPlan`.

    Raises:
        ValueError: An unknown setting, or a number that is missing or that the setting does not take.

    Source:
        NoSink, figures 2 and 4 to 6.

    Example:
        >>> NoSink("mask0&bidir", k=4, k0=1).plan
        <LayerPlan INPLACE: L-4 forward → 3 bidirectional → 1 nosink-bidirectional>
    """

    name: ClassVar[str] = "nosink"
    order: ClassVar[int] = LayerPlan.order

    setting: Setting = option("baseline", "the paper's setting of the layers")
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
        setting, k, k0 = self.setting, self.k, self.k0
        if self.m != 1 and setting not in _MASKED and setting not in _COMBINED:
            raise ValueError(f"nosink: m={self.m}: setting={setting!r} hides no tokens. Drop m.")
        if self.variant != "paper" and setting not in ("inter-back", "inter-bidir", "extra-back", "extra-bidir"):
            raise ValueError(f"nosink: variant={self.variant!r}: setting={setting!r} has one reading. Drop variant.")
        if setting == "baseline" and k is not None:
            raise ValueError(f"nosink: k={k!r}: setting='baseline' converts no layers. Drop k.")
        if setting != "baseline" and k is None:
            raise ValueError(
                f"nosink: setting={setting!r} needs k, the number of converted layers from the top, or 'all'."
            )
        takes_k0 = setting in _COMBINED and _COMBINED[setting] is None
        if k0 is not None and not takes_k0:
            raise ValueError(f"nosink: k0={k0!r}: setting={setting!r} takes no k0. Drop it.")
        if k0 is None and takes_k0:
            raise ValueError(
                f"nosink: setting={setting!r} needs k0, the number of converted layers that hide the sink."
            )
        if setting == "baseline":
            return LayerPlan()
        assert k is not None
        if setting in _MASKED:
            kind, others = _MASKED[setting]
            return LayerPlan(kind=kind, k=k, m=self.m, others=cast(Any, others))
        if setting in _COMBINED:
            if setting == "mask0-mid" and k0:
                k0 = max(1, k0 // 2)
            return LayerPlan(k=k, k0=_COMBINED[setting] or k0 or 0, m=self.m)
        architecture, _, kind = setting.partition("-")
        return LayerPlan(cast(Architecture, architecture), _KINDS[kind], k, variant=self.variant)

    def bind(self, decoder: DecoderTransformer) -> Bound:
        """As of the plan."""
        return LayerPlan.bind(cast(LayerPlan, self), decoder)


class PlannedLayers(Bound):
    """A decoder's layers as a plan says.

    Args:
        decoder: The decoder.
        stage: The plan or the named setting, for messages.
        stack: What each layer that runs sees.

    Raises:
        ValueError: The backbone's layers cannot be converted like this.
    """

    def __init__(self, decoder: DecoderTransformer, stage: LayerPlan | NoSink, stack: Stack) -> None:
        self.stage, self.stack = stage, stack
        if stack.is_plain:
            return
        from .attention import switch_on

        backbone = decoder.backbone
        name = type(backbone.decoder).__name__
        shared: int = getattr(backbone.text_config, "num_kv_shared_layers", 0)
        if stack.second and shared:
            raise ValueError(
                f"{stage}: layers of {name} read the keys and values of layers below, which a second pass through "
                "those would replace. Use a plan of architecture 'inplace'."
            )
        if not backbone.is_causal and not all("bidirectional" in kind for _, kind in stack.calls):
            raise ValueError(
                f"{stage}: {name} looks both ways already, so none of its layers can look forward or backward. "
                "Convert all of them to 'bidirectional' or 'nosink-bidirectional' (k='all')."
            )
        if not switch_on(decoder.model):
            raise ValueError(
                f"{stage}: {name} does not call transformers' attention interface, so what its layers see cannot be "
                "changed. Use a base model that does (llama, qwen, mistral, gpt2, …), or drop the plan."
            )
        if stack.second:
            try:
                backbone.layers()
            except ValueError as error:
                raise ValueError(
                    f"{stage}: {error}, so none can run twice. Use a plan of architecture 'inplace'."
                ) from None

    def begin(self, run: Pass) -> None:
        """From here on attention asks this plan what it sees."""
        if not self.stack.is_plain:
            run.kinds = PlannedPass(self, run)

    def after_layer(self, run: Pass, call: LayerCall) -> Tensor:
        """Run the layer's further passes and join them to its output."""
        return call.hidden if run.kinds is None or not self.stack.second else _further(run.kinds, call)

    def finish(self, run: Pass, hidden: Tensor) -> Tensor:
        """Raise where the plan did not run, as one that silently does nothing would give another model's vectors."""
        planned, stack = run.kinds, self.stack
        if planned is None:
            return hidden
        if planned.last is None or planned.ran != len(stack.second):
            from .attention import ATTENTION_NAME

            attention = run.decoder.backbone.attention
            raise ValueError(
                f"{self.stage}: {run.decoder.backbone.name} did not run it: its attention implementation is "
                f"{attention!r} ({ATTENTION_NAME!r} is needed), or layers were replaced or left out. Build the model "
                "anew, or use another plan."
            )
        if stack.side_by_side:
            hidden = hidden.reshape(2, -1, *hidden.shape[1:]).sum(dim=0)
        return hidden


class PlannedPass:
    """What a pass's layers see; the attention function asks it.

    Args:
        planned: The plan.
        run: The pass.
    """

    def __init__(self, planned: PlannedLayers, run: Pass) -> None:
        self.stack = planned.stack
        self.masks = PassMasks(run, planned.stack.m)
        # The attention module that ran last and what it saw, and further passes that ran; for checks.
        self.last: tuple[nn.Module, str] | None = None
        self.ran = 0
        # The second stream of hidden states [B, T, d], where there is one.
        self.stream: Tensor | None = None
        self._further: str | None = None

    def kind(self, module: nn.Module) -> str:
        """What the attention module that runs now sees.

        Raises:
            ValueError: The module does not say which layer it belongs to.
        """
        kind = self._further
        if kind is None:
            layer = getattr(module, "layer_idx", None)
            if not isinstance(layer, int) or not 0 <= layer < len(self.stack.kinds):
                raise ValueError(
                    f"{type(module).__name__} says layer_idx={layer!r}, so its place among {len(self.stack.kinds)} "
                    "layers is not known, and its layers cannot be converted. Drop the plan."
                )
            kind = self.stack.kinds[layer]
        self.last = (module, kind)
        return kind

    @contextmanager
    def further_pass(self, kind: str) -> Iterator[None]:
        """Inside the ``with`` block, whichever layer runs sees what ``kind`` says."""
        before, self._further = self._further, kind
        try:
            yield
        finally:
            self._further = before


def _further(planned: PlannedPass, call: LayerCall) -> Tensor:
    """INTER, EXTRA and EXTEND: the layer runs again, with the same arguments, on another input."""
    stack, hidden = planned.stack, call.hidden
    kinds = [kind for layer, kind in stack.second if layer == call.index]
    if hidden.ndim != 3:
        raise ValueError(
            f"{type(call.module).__name__} passes on {hidden.ndim}-dimensional hidden states in place of [B, T, d], so "
            "its layers cannot run twice. Use a plan of architecture 'inplace'."
        )
    planned.ran += len(kinds)
    if stack.architecture == "extend":
        for kind in kinds:
            hidden = _again(planned, call, hidden, kind)
        return hidden
    if stack.architecture == "inter" and stack.variant == "paper":
        for kind in kinds:
            hidden = hidden + _again(planned, call, call.entered, kind)
        return hidden
    if call.index == (0 if stack.architecture == "extra" else stack.second[0][0]):
        planned.stream = call.entered
    for kind in kinds:
        planned.stream = _again(planned, call, cast("Tensor", planned.stream), kind)
    if call.index < len(stack.kinds) - 1:
        return hidden
    stream = cast("Tensor", planned.stream)
    if not stack.side_by_side:
        return hidden + stream
    import torch

    # As further rows of the batch, which the final norm takes each by itself; finish sums them.
    return torch.cat([hidden, stream])


def _again(planned: PlannedPass, call: LayerCall, entering: Tensor, kind: str) -> Tensor:
    """One more pass through a layer; its forward alone, as its hooks would call this again."""
    arguments, keywords = call.arguments, call.keywords
    if arguments:
        arguments = (entering, *arguments[1:])
    else:
        keywords = {**keywords, "hidden_states": entering}
    with planned.further_pass(kind):
        output = call.module.forward(*arguments, **keywords)
    return cast("Tensor", output[0] if isinstance(output, tuple) else output)


def _named(kind: str, m: int) -> str:
    return f"{kind}({m})" if kind.startswith("nosink") and m != 1 else kind


def _runs(names: Sequence[str]) -> list[str]:
    return [f"{len(list(run))} {name}" for name, run in groupby(names)]
