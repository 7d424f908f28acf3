"""Shards are encoded one after another, in this process, on the model's device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..folder import Corpus
from ..settings import EncodeSettings
from ..shard import Progress, encode_shard
from . import Report

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


@dataclass(frozen=True)
class SingleEngine:
    """The engine without a choice; see :class:`~st_reba.corpus.engines.Engine`."""

    def encode(
        self,
        model: SentenceTransformer,
        corpus: Corpus,
        numbers: Sequence[int],
        settings: EncodeSettings,
        report: Report,
        progress: Progress,
    ) -> None:
        """Encode the shards with these numbers, in order; arguments as for the protocol."""
        for number in numbers:
            report(number, encode_shard(model, corpus, number, settings, progress))
