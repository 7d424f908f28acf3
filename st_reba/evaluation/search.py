"""Search of candidates: passes run over the items that choose, and their readouts are scored from coarse to fine."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from ..encode import encode_texts
from ..filters import Filter
from ..methods import Method
from .candidates import FILTERS, Fitted, Pass, Scored, Use
from .readouts import Readout, of_base, positions, read
from .views import Items, views_of

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# Bytes of vectors that a pass may hold; numbers are held as so many times their value, where 16 bits are finer.
_MOST_BYTES, _SCALE = 1 << 30, 64.0
# Texts that a filter needs: at the least, and for each dimension.
_FEWEST, _TEXTS_A_DIMENSION = 100, {"abtt": 1, "whiten": 4}
# Changes with what is stored of a pass, or how it comes about.
_VERSION = 3


class Held:
    """Vectors of length 1 in 16 bits, as differences from the first batch's mean."""

    def __init__(self, count: int, batch: Tensor) -> None:
        self.mean = batch.mean(dim=0)
        self.differences = torch.empty(count, batch.shape[1], dtype=torch.float16, device=batch.device)

    def put(self, rows: Sequence[int], units: Tensor) -> None:
        """Keep a batch's vectors."""
        self.differences[list(rows)] = ((units - self.mean) * _SCALE).half()

    def units(self) -> Tensor:
        """All vectors, [N, d] float32."""
        return normalize(self.differences.float() / _SCALE + self.mean, dim=1)


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
        self,
        base: SentenceTransformer,
        items: Items,
        texts: Sequence[str],
        use: Use,
        folder: Path | None = None,
    ) -> None:
        self.base, self.items, self.use, self.folder = base, items, use, folder
        self.depth = depth_of(base)
        self.plain = sum(positions(base[0], items.texts)) * self.depth
        self.width = base.get_embedding_dimension() or 0
        self.filters = [name for name in FILTERS if sample_of(texts, self.width, name) is not None]

    def scored(self, each: Pass) -> list[Scored]:
        """All that is read from a pass, run now or found in the folder."""
        path = None if self.folder is None else self.folder / f"{self._key(each)}.npz"
        if path is not None and path.exists():
            return _stored(path)
        model = of_base(self.base, each.method)
        layers = self._layers(each)
        held: dict[Readout, Held] = {}
        for rows, batch in read(model, each.readouts(layers), self.items.texts):
            for readout, pooled in batch.items():
                units = normalize(pooled, dim=1)
                held.setdefault(readout, Held(len(self.items.texts), units)).put(rows, units)
        cost = sum(positions(model[0], self.items.texts)) / self.plain
        made = [
            Scored(each.of(readout, self.depth), name, cost * readout.layer, evidence)
            for pooling in each.poolings
            for (readout, name), evidence in self._searched(held, layers, pooling).items()
        ]
        if path is not None:
            _store(path, made)
        return made

    def _searched(
        self, held: Mapping[Readout, Held], layers: Sequence[int], pooling: str
    ) -> dict[tuple[Readout, str], Tensor]:
        """Every second of the layers that are read, then the neighbours of the best, then whitening of these three."""
        found: dict[tuple[Readout, str], Tensor] = {}

        def score(places: Iterable[int], names: Sequence[str]) -> None:
            for place in places:
                readout = Readout(layers[place], pooling)
                units = held[readout].units()
                fitted = Fitted(units)
                for name in names:
                    found[readout, name] = scores_of(self.items, fitted.apply(name, units), self.use, pooling).cpu()

        def near() -> list[int]:
            best = layers.index(max(found, key=lambda key: float(found[key].mean()))[0].layer)
            return [place for place in (best - 1, best, best + 1) if 0 <= place < len(layers)]

        everywhere = [name for name in self.use.filters if name in self.filters] or ["none"]
        score(range(len(layers) - 1, -1, -2), everywhere)
        score([place for place in near() if (Readout(layers[place], pooling), everywhere[0]) not in found], everywhere)
        if "whiten-half" in self.filters:
            score(near(), ["whiten-half"])
        return found

    def _layers(self, each: Pass) -> list[int]:
        """The layers that are read, ascending, the last among them: not all of many, nor more than fit."""
        lowest = 1 if each.first is None else each.first + 1
        one = 2 * self.width * len(self.items.texts) * len(each.poolings)
        step = max(-(-self.depth // 16), -(-(self.depth - lowest + 1) * one // _MOST_BYTES))
        return list(range(self.depth, lowest - 1, -step))[::-1]

    def _key(self, each: Pass) -> str:
        """A name that no other pass, base, texts or version of this code has."""
        model: Any = self.base[0].model
        weights = model.get_input_embeddings().weight[:64].detach().float().cpu().numpy().tobytes()
        facts = (_VERSION, self.use, self.filters, each, self.items, model.config.to_json_string(), model.dtype)
        return hashlib.sha256(repr(facts).encode() + weights).hexdigest()[:24]


def _store(path: Path, made: Sequence[Scored]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"method": one.method.to_dict(), "filter": one.filter, "cost": one.cost} for one in made]
    part = path.with_suffix(".part")
    with part.open("wb") as out:
        np.savez(out, rows=json.dumps(rows), evidence=torch.stack([one.evidence for one in made]).numpy())
    os.replace(part, path)


def _stored(path: Path) -> list[Scored]:
    with np.load(path) as file:
        rows, evidence = json.loads(str(file["rows"])), torch.from_numpy(file["evidence"])
    return [
        Scored(Method(**row["method"]), row["filter"], row["cost"], each)
        for row, each in zip(rows, evidence, strict=True)
    ]


def sample_of(texts: Sequence[str], width: int, name: str) -> list[str] | None:
    """What a filter of ``FILTERS`` for d dimensions (``width``) is fitted on.

    The texts; if they are too few their views too; None if these are too few.
    """
    least = max(_FEWEST, _TEXTS_A_DIMENSION.get(FILTERS[name].get("kind", ""), 0) * width)
    if len(texts) >= least or name == "none":
        return list(texts)
    more = list(dict.fromkeys([*texts, *views_of(texts).texts]))
    return more[:least] if len(more) >= least else None


def fitted_filter(model: SentenceTransformer, name: str, texts: Sequence[str]) -> Any:
    """Fit a filter of ``FILTERS`` on a model's vectors of texts."""
    options = dict(FILTERS[name])
    sample = sample_of(texts, model.get_embedding_dimension() or 0, name) or list(texts)
    return Filter.fit(encode_texts(model, sample), options.pop("kind"), model=model, **options)


def scores_of(items: Items, units: Tensor, use: Use, pooling: str) -> Tensor:
    """What vectors of length 1 say of each item, [number of items]."""
    bonus = use.end_bonus if pooling == "end" and items.kind == "views" else 0.0
    return items.evidence(units, use.halves) + bonus


def depth_of(model: SentenceTransformer) -> int:
    """Number of layers L."""
    transformer: Any = model[0]
    return int(transformer.depth)
