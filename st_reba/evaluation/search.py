"""Search of candidates: passes run over the items that choose, and their readouts are scored from coarse to fine."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ..encode import encode_texts
from ..filters import Filter
from ..methods import Method
from .candidates import FILTERS, Pass, Scored, Use, filtered
from .readouts import Readout, gathered, of_base, positions, read
from .tasks import Task
from .views import evidence, views_of

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# Bytes of vectors that a pass may hold.
_MOST_BYTES = 1 << 30
# Texts that a filter needs: at the least, and for each dimension.
_FEWEST, _TEXTS_A_DIMENSION = 100, {"abtt": 1, "whiten": 4}
# Changes with what is stored of a pass, or how it comes about.
_VERSION = 4


class Search:
    """Runs passes over the items that choose, and scores their readouts.

    Args:
        base: Of :func:`~st_reba.evaluation.readouts.opened`.
        items: The items that choose.
        texts: What a filter will be fitted on; those that they are too few for are not tried.
        use: How views choose.
        folder: Where finished passes are kept; None: nowhere.
    """

    def __init__(
        self, base: SentenceTransformer, items: Task, texts: Sequence[str], use: Use, folder: Path | None = None
    ) -> None:
        self.base, self.items, self.use, self.folder = base, items, use, folder
        self.depth = depth_of(base)
        self.plain = sum(positions(base[0], items.texts)) * self.depth
        self.width = base.get_embedding_dimension() or 0
        self.filters = [name for name in FILTERS if sample_of(texts, self.width, name) is not None]

    def scored(self, each: Pass) -> list[Scored]:
        """All that is read from a pass, run now or found in the folder."""
        path = None if self.folder is None else self.folder / f"{self._key(each)}.pt"
        if path is not None and path.exists():
            return _stored(path)
        model = of_base(self.base, each.method)
        readouts = each.readouts(self._layers(each))
        made = gathered(read(model, readouts, self.items.texts), len(self.items.texts))
        cost = sum(positions(model[0], self.items.texts)) / self.plain
        found: list[Scored] = []
        for kind in dict.fromkeys((readout.pooling, readout.first) for readout in readouts):
            mine = [readout for readout in readouts if (readout.pooling, readout.first) == kind]
            units = {each: normalize(torch.from_numpy(made[each]).to(model.device), dim=1) for each in mine}
            for (readout, name), values in self._searched(mine, units).items():
                found.append(Scored(each.of(readout, self.depth), name, cost * readout.layer, values))
        if path is not None:
            _store(path, found)
        return found

    def _searched(self, readouts: Sequence[Readout], units: dict[Readout, Tensor]) -> dict[tuple[Readout, str], Tensor]:
        """Every second of the readouts of one kind, then the neighbours of the best, then whitening of these three."""
        found: dict[tuple[Readout, str], Tensor] = {}

        def score(places: Iterable[int], names: Sequence[str]) -> None:
            for readout in (readouts[place] for place in places):
                for name in names:
                    after = filtered(name, units[readout])
                    found[readout, name] = evidence(self.items, after, self.use.halves).cpu()

        def near() -> list[int]:
            best = readouts.index(max(found, key=lambda key: float(found[key].mean()))[0])
            return [place for place in (best - 1, best, best + 1) if 0 <= place < len(readouts)]

        everywhere = [name for name in self.use.filters if name in self.filters] or ["none"]
        score(range(len(readouts) - 1, -1, -2), everywhere)
        score([place for place in near() if (readouts[place], everywhere[0]) not in found], everywhere)
        if "whiten-half" in self.filters:
            score(near(), ["whiten-half"])
        return found

    def _layers(self, each: Pass) -> list[int]:
        """The layers that are read, ascending, the last among them: not all of many, nor more than fit."""
        lowest = 1 if each.first is None else each.first + 1
        one = 4 * self.width * len(self.items.texts) * (len(each.poolings) + each.outputs)
        step = max(-(-self.depth // 16), -(-(self.depth - lowest + 1) * one // _MOST_BYTES))
        return list(range(self.depth, lowest - 1, -step))[::-1]

    def _key(self, each: Pass) -> str:
        """A name that no other pass, base, texts or version of this code has."""
        model: Any = self.base[0].model
        weights = model.get_input_embeddings().weight[:64].detach().float().cpu().numpy().tobytes()
        facts = (_VERSION, self.use, self.filters, each, repr(self.items), model.config.to_json_string(), model.dtype)
        return hashlib.sha256(repr(facts).encode() + weights).hexdigest()[:24]


def _store(path: Path, made: Sequence[Scored]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    torch.save([{**vars(one), "method": str(one.method)} for one in made], part)
    os.replace(part, path)


def _stored(path: Path) -> list[Scored]:
    return [Scored(**{**row, "method": Method.parse(row["method"])}) for row in torch.load(path, weights_only=True)]


def sample_of(texts: Sequence[str], width: int, name: str) -> list[str] | None:
    """What a filter of ``FILTERS`` for d dimensions (``width``) is fitted on.

    The texts; if they are too few their views too; None if these are too few.
    """
    least = max(_FEWEST, _TEXTS_A_DIMENSION.get(FILTERS[name].get("kind", ""), 0) * width)
    if len(texts) >= least or name == "none":
        return list(texts)
    more = list(dict.fromkeys([*texts, *views_of(texts).texts]))
    return more[:least] if len(more) >= least else None


def fitted_filter(model: SentenceTransformer, name: str, texts: Sequence[str]) -> Filter:
    """Fit a filter of ``FILTERS`` on a model's vectors of texts."""
    options = dict(FILTERS[name])
    sample = sample_of(texts, model.get_embedding_dimension() or 0, name) or list(texts)
    return Filter.fit(encode_texts(model, sample), options.pop("kind"), model=model, **options)


def depth_of(model: SentenceTransformer) -> int:
    """Number of layers L."""
    transformer: Any = model[0]
    return int(transformer.depth)
