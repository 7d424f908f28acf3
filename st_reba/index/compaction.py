"""Compaction: an index is written anew without deleted documents, and whitened on request."""

from __future__ import annotations

import logging
from contextlib import suppress

from .changes import Change, changing, sole_encoder
from .model import IndexModel, OtherModelError
from .snapshots import Snapshots
from .state import IndexState
from .store import Store
from .whitening import Whitening, check_whiten, tell_what_was_fitted

logger = logging.getLogger(__name__)


def compact(
    store: Store,
    snapshots: Snapshots,
    index_model: IndexModel,
    *,
    factory: str | None,
    parameters: str | None,
    whiten: bool | None,
    tokens: bool,
) -> Change:
    """Write an index anew; arguments as for ``Index.compact``."""
    if factory is None and parameters is not None:
        raise ValueError(
            f"parameters={parameters!r}: these are for another index; name its factory"
        )
    check_whiten(whiten, tokens)
    if not tokens and not whiten:
        raise ValueError("tokens=False: give whiten=True too, which fits everything again")
    fitted_whitening = None
    fitted_state = None
    if whiten:
        fitted_state, fitted_whitening = _fit_whitening(
            store, snapshots, index_model, with_tokens=tokens
        )
    with changing(store) as writer:
        deleted_count = writer.state.deleted
        if fitted_state is not None and fitted_state.model != writer.state.model:
            raise OtherModelError(
                f"{store.folder}: another model's index has taken its place; compact it again"
            )
        if whiten is not None:
            writer.whiten(fitted_whitening, index_model.loaded)
        writer.write_words()
        writer.rewrite_vectors((), factory, parameters)
    if not store.clear_log():
        logger.warning(
            "%s: being read, so deleted data stays on the disk until the next compact",
            store.folder,
        )
    with suppress(BlockingIOError), sole_encoder(store.folder, patience=0):
        pass  # this also removes the texts of an addition that failed
    return Change(writer.state.documents, deleted=deleted_count)


def _fit_whitening(
    store: Store,
    snapshots: Snapshots,
    index_model: IndexModel,
    *,
    with_tokens: bool,
) -> tuple[IndexState, Whitening | None]:
    """Fit on the index's documents before the change, as up to 200 sentences must be encoded."""
    with store.reading() as connection:
        snapshot = snapshots.read(connection, check_digest=True)
        index_model.check(snapshot.state)
        sample = snapshot.raw_sample(connection)
    model = index_model.load()
    metric = snapshot.state.metric
    whitening = Whitening.fit(model, sample, metric, with_tokens=with_tokens)
    tell_what_was_fitted(whitening, store.folder, is_asked_for=True)
    return snapshot.state, whitening
