"""Search of candidates: passes run over the items that choose, and their readouts are scored."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import normalize

from ..encode import encode_texts
from ..filters import Filter
from ..methods import Method
from .candidates import DIRECTIONS, Pass, Scored, filtered
from .readouts import gathered, of_base, positions, read
from .tasks import Task
from .views import evidence, views_of

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# Texts that a filter needs at the least; each dimension needs one more.
_FEWEST = 100
# Bytes of vectors that a pass may hold.
_MOST_BYTES = 1 << 30
# Changes with what is stored of a pass, or how it comes about.
_VERSION = 5


class Search:
    """Runs passes over the items that choose, and scores their readouts.

    Args:
        base: Of :func:`~st_reba.evaluation.readouts.opened`.
        items: The items that choose. Views judge vectors with a filter, as it helps nearly always; labels judge both.
        texts: What a filter will be fitted on; with too few there is none.
        folder: Where finished passes are kept; None: nowhere.
    """

    def __init__(
        self, base: SentenceTransformer, items: Task, texts: Sequence[str], folder: Path | None = None
    ) -> None:
        self.base, self.items, self.folder = base, items, folder
        self.depth = depth_of(base)
        self.plain = sum(positions(base[0], items.texts)) * self.depth
        usable = bool(sample_of(texts, base.get_embedding_dimension() or 0))
        self.filters = [False] if not usable else [True] if items.kind == "Views" else [False, True]

    def scored(self, each: Pass) -> list[Scored]:
        """All that is read from a pass, run now or found in the folder."""
        path = None if self.folder is None else self.folder / f"{self._key(each)}.pt"
        if path is not None and path.exists():
            rows = torch.load(path, weights_only=True)
            return [Scored(**{**row, "method": Method.parse(row["method"])}) for row in rows]
        model, texts = of_base(self.base, each.method), self.items.texts
        readouts, cost = each.readouts(self.depth), sum(positions(model[0], texts)) / self.plain
        # Where not all fit, the pass runs again.
        one = 4 * (model.get_embedding_dimension() or 1) * len(texts)
        step = max(1, _MOST_BYTES // one)
        found = []
        for start in range(0, len(readouts), step):
            made = gathered(read(model, readouts[start : start + step], texts), len(texts))
            for readout, vectors in made.items():
                units = normalize(torch.from_numpy(vectors).to(model.device), dim=1)
                for with_filter in self.filters:
                    values = evidence(self.items, filtered(units) if with_filter else units).cpu()
                    found.append(Scored(each.of(readout, self.depth), with_filter, cost * readout.layer, values))
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(".part")
            torch.save([{**vars(one), "method": str(one.method)} for one in found], part)
            os.replace(part, path)
        return found

    def _key(self, each: Pass) -> str:
        """A name that no other pass, base, texts or version of this code has."""
        model: Any = self.base[0].model
        weights = model.get_input_embeddings().weight[:64].detach().float().cpu().numpy().tobytes()
        facts = (_VERSION, self.filters, each, self.items, model.config.to_json_string(), model.dtype)
        return hashlib.sha256(repr(facts).encode() + weights).hexdigest()[:24]


def sample_of(texts: Sequence[str], width: int) -> list[str]:
    """What a filter for d dimensions (``width``) is fitted on.

    The texts; if they are too few, their views too; nothing if these are too few.
    """
    least = max(_FEWEST, width)
    if len(texts) >= least:
        return list(texts)
    more = list(dict.fromkeys([*texts, *views_of(texts).texts])) if texts else []
    return more[:least] if len(more) >= least else []


def fitted_filter(model: SentenceTransformer, texts: Sequence[str]) -> Filter:
    """Fit the filter on a model's vectors of texts."""
    sample = sample_of(texts, model.get_embedding_dimension() or 0)
    return Filter.fit(encode_texts(model, sample), "abtt", r=DIRECTIONS, model=model)


def depth_of(model: SentenceTransformer) -> int:
    """Number of layers L."""
    transformer: Any = model[0]
    return int(transformer.depth)
