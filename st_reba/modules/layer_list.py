"""A backbone's list of layers: what stages do behind each, and how a pass cuts it short."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from torch import nn

from .backbone import Backbone
from .stages import LayerCall, current


def layers_of(backbone: Backbone) -> nn.ModuleList:
    """Its list of layers, each with the hook that calls a pass's stages; an error where it has none."""
    # A tower beside the decoder may be as deep, and its layers may say their layer_idx too.
    for module in backbone.decoder.modules():
        if (
            isinstance(module, nn.ModuleList)
            and len(module) == backbone.depth
            and all(map(_is_layer, module, range(backbone.depth)))
        ):
            for index, layer in enumerate(module):
                if not any(isinstance(hook, AfterLayer) for hook in layer._forward_hooks.values()):
                    layer.register_forward_hook(AfterLayer(index), with_kwargs=True)
            return module
    name = type(backbone.decoder).__name__
    raise ValueError(f"{name} has no list of {backbone.depth} layers that say their layer_idx")


def _is_layer(module: nn.Module, index: int) -> bool:
    return any(getattr(part, "layer_idx", None) == index for part in module.modules())


@dataclass(frozen=True)
class AfterLayer:
    """The hook behind a decoder layer: it knows the layer's number, so that copies of the backbone keep it."""

    index: int

    def __call__(self, module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], output: Any) -> Any:
        run = current()
        if run is None:
            return output
        hidden = output[0] if isinstance(output, tuple) else output
        call = LayerCall(self.index, module, arguments, keywords, hidden)
        for each in run.bound:
            call.hidden = each.after_layer(run, call)
        return (call.hidden, *output[1:]) if isinstance(output, tuple) else call.hidden


class LayerList(nn.ModuleList):
    """A backbone's list of layers, which shows as many as the running pass needs, and all of them to everyone else.

    The backbone's own forward then goes through these only, and on to its final norm.
    """

    def __iter__(self) -> Iterator[nn.Module]:
        return islice(super().__iter__(), _shown_layers())

    def __len__(self) -> int:
        shown_layers = _shown_layers()
        length = super().__len__()
        return length if shown_layers is None else min(length, shown_layers)

    def __getitem__(self, index: Any) -> Any:
        # By number every layer is found: one that should not run then says so itself.
        found = list(super().__iter__())[index]
        return LayerList(found) if isinstance(index, slice) else found


def _shown_layers() -> int | None:
    run = current()
    return None if run is None else run.runs


def cut_short(layers: nn.ModuleList) -> None:
    """Let passes run fewer of a backbone's layers; an error where the list is of another kind than a ``ModuleList``."""
    if type(layers) is nn.ModuleList:
        # In place: parents, hooks, replicas and whoever shares the backbone keep the same list.
        layers.__class__ = LayerList
    elif not isinstance(layers, LayerList):
        raise ValueError(f"the backbone keeps its layers in a {type(layers).__name__}, which cannot be cut short")
