"""The model of an index: loaded when a text needs it, and recognized by its probe."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..probe import Probe
from .state import IndexState
from .store import Store

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


class OtherModelError(ValueError):
    """The model is not the one that built the index."""


class IndexModel:
    """The model that an index encodes with.

    Args:
        store: The store of the index.
        model: None: the one that the index remembers.
        loading_options: Of the remembered model, as `st_reba.load` takes them.
    """

    def __init__(
        self,
        store: Store,
        model: SentenceTransformer | None,
        loading_options: Mapping[str, object],
    ) -> None:
        self.loaded = model
        self._store = store
        self._loading_options = loading_options
        self._loading = threading.Lock()
        # The one that the loaded model was last compared with.
        self._checked_probe: dict[str, Any] | None = None

    def load(self) -> SentenceTransformer:
        """The model; if it is not in memory, it is loaded from where the index remembers it."""
        with self._loading:
            if self.loaded is None:
                remembered_probe = Probe.from_json(self._store.state().model)
                self.loaded = remembered_probe.load_model(self._store.folder, self._loading_options)
            return self.loaded

    def check(self, state: IndexState, *, load_if_needed: bool = True) -> None:
        """Refuse a model that is not that of a state.

        Args:
            state: The state.
            load_if_needed: False: no text is encoded, so a model is not loaded for this, nor compared
                twice with the same state, which takes longer than a search.
        """
        if not load_if_needed and (self.loaded is None or self._checked_probe == state.model):
            return
        loaded_model = self.load()
        try:
            Probe.from_json(state.model).check_same(loaded_model, "the index")
        except ValueError as error:
            raise OtherModelError(str(error)) from error
        self._checked_probe = state.model
