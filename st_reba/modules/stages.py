"""What can be done around a decoder's layers: the protocol of stages, and the state of one forward pass.

A :class:`Stage` is a set of options that a configuration stores. Bound to a decoder it becomes a :class:`Bound`, which
the decoder calls before a pass, behind each layer and after the pass. The decoder knows this protocol and no stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from .options import Options, shown, unknown

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedModel

    from .backbone import Backbone

# First content position, number of content tokens of a copy, number of real positions.
Place = tuple[int, int, int]


class Decoder(Protocol):
    """What a stage knows of the decoder that it is bound to: see :class:`DecoderTransformer`."""

    backbone: Backbone

    @property
    def model(self) -> PreTrainedModel: ...
    @property
    def depth(self) -> int: ...
    @property
    def runs(self) -> int: ...
    @property
    def stack(self) -> Any: ...


class Stage(Options):
    """Options of something that happens around a decoder's layers; a subclass registers itself by its ``name``."""

    # By name, of all that were imported.
    registry: ClassVar[dict[str, type[Stage]]] = {}
    # Stages run in this order, whatever order they are given in; of two with the same number only one can be used.
    order: ClassVar[int] = 0

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.name:
            Stage.registry[cls.name] = cls

    def bind(self, decoder: Decoder) -> Bound:
        """What runs in the decoder's passes; an error where this decoder cannot do it."""
        return Bound()

    def runs(self, depth: int) -> int:
        """How many of a backbone's ``depth`` layers run, from the bottom."""
        return depth

    def rows(self) -> Any:
        """The templates by task, one mapping for each row that a text makes; None: this stage has none."""
        return None

    def framed(self, frame: Any, layout: Any) -> Any:
        """The ``Frame`` around a text in a ``TokenLayout``, with what this stage adds."""
        return frame


class Bound:
    """What a stage does in one decoder's passes; also the base of what a pooling asks a pass to watch.

    Before a pass and behind layers they are called in the stages' order, after it in the reverse.
    """

    # Vectors that stand side by side in one hidden state.
    width: int = 1
    # Whether it is shown all attention, so that the pass is given the mask of its padding.
    sees_all: bool = False

    def begin(self, run: Pass) -> None:
        """Before the pass."""

    def after_layer(self, run: Pass, call: LayerCall) -> Tensor:
        """Behind a layer: its hidden states [B, T, d], or what goes on in their place."""
        return call.hidden

    def finish(self, run: Pass, hidden: Tensor) -> Tensor:
        """After the pass: what the backbone handed out, or what is read in its place, [B, T, d]."""
        return hidden

    def features(self, run: Pass) -> dict[str, Any]:
        """What is added to the features that go to the next module."""
        return {}


@dataclass
class LayerCall:
    """One layer as it ran: its index from 0, its module, what it took and its hidden states [B, T, d]."""

    index: int
    module: nn.Module
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    hidden: Tensor

    @property
    def entered(self) -> Tensor:
        """The hidden states that the layer took."""
        taken: Tensor = self.arguments[0] if self.arguments else self.keywords["hidden_states"]
        return taken


class Pass:
    """The state of one forward pass. It lives in a context variable, so that threads and models do not meet.

    ``mask`` [B, T] is 1 at real positions, the first of each row among them. ``places`` says where each row's content
    stands, on the host: nothing in a pass waits for the device. ``bound`` is all that acts in the pass.
    """

    def __init__(self, decoder: Decoder, mask: Tensor, places: Sequence[Place], bound: Sequence[Bound]) -> None:
        self.decoder = decoder
        self.real = mask.bool()
        self.places = places
        self.bound = bound
        self.length = mask.shape[1]
        self.padded = any(place[2] < self.length for place in places)
        # How many layers run, from the bottom, set by a reading; None: all.
        self.runs: int | None = None
        # Whether the backbone is not told of padding, as nothing in it looks ahead.
        self.unmasked = False
        # What each layer sees, set by a layer plan; None: what it sees by itself.
        self.kinds: Any = None
        # Observes every layer's attention, set by a capture.
        self.observer: Any = None
        # What has to hold, as flags on the device, and the error where it does not: the host reads them after the pass.
        self.doubts: list[tuple[Tensor, str]] = []
        # What bound stages keep for the length of the pass.
        self.kept: dict[Bound, Any] = {}


_current: ContextVar[Pass | None] = ContextVar("st_reba_pass", default=None)


def current() -> Pass | None:
    """The pass that runs now, if it is one of ours."""
    return _current.get()


@contextmanager
def running(run: Pass | None) -> Iterator[None]:
    """Inside the ``with`` block, ``run`` is the current pass."""
    token = _current.set(run)
    try:
        yield
    finally:
        _current.reset(token)


def stages_of(given: Sequence[Stage | Mapping[str, Any]] | None) -> tuple[Stage, ...]:
    """Stages in their order, from what a caller or a configuration gives: stages, or ``{"name": {field: value}}``."""
    if isinstance(given, (str, Mapping, Stage)) or not isinstance(given or (), Sequence):
        raise ValueError(f"stages={shown(given)} must be a list, as [st_reba.Prepend(4)].")
    found: dict[int, Stage] = {}
    for each in given or ():
        if isinstance(each, Mapping) and len(each) == 1:
            name = next(iter(each))
            stage = stage_kind(name).of(each[name])
        elif isinstance(each, Stage):
            stage = each
        else:
            raise ValueError(f"stages: {shown(each)} must be a stage, or a mapping of its name to its options.")
        if stage.order in found:
            raise ValueError(f"stages: {found[stage.order].name!r} and {stage.name!r} do the same thing. Keep one.")
        found[stage.order] = stage
    return tuple(found[order] for order in sorted(found))


def stage_kind(name: object) -> type[Stage]:
    """The stage of a name."""
    if name not in Stage.registry:
        raise ValueError(unknown("stages", name, sorted(Stage.registry), name))
    return Stage.registry[str(name)]


def as_stored(stages: Sequence[Stage]) -> list[dict[str, Any]]:
    """Stages as a configuration stores them; :func:`stages_of` reads it."""
    return [{stage.name: stage.to_dict()} for stage in stages]
