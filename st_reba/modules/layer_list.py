"""A backbone's list of layers, which a pass may cut short."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from torch import nn

from .stages import current


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
    """Let passes run fewer of a backbone's layers.

    Raises:
        ValueError: The list is of another kind than a plain ``ModuleList``.
    """
    if type(layers) is nn.ModuleList:
        # In place: parents, hooks, replicas and whoever shares the backbone keep the same list.
        layers.__class__ = LayerList
    elif not isinstance(layers, LayerList):
        raise ValueError(f"the backbone keeps its layers in a {type(layers).__name__}, which cannot be cut short")
