"""Attention maps of a text, and the share of each layer's attention that falls on the first tokens: the sink."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import batch_to_device
from torch import Tensor

from ..encode import saved_prompt
from ..modules.attention import install_attention
from ..modules.blocks import ScoreTerms, attend
from ..modules.masks import MASKS

# Maps of all layers are held at once: 16 MiB each at this length.
MAX_TOKENS = 2048


@dataclass(frozen=True)
class LayerMap:
    """The attention of one run of a layer.

    Args:
        layer: The layer's index, from the bottom.
        mask: The layer's mask, with m where that is not 1: ``"nosink-bidirectional(3)"``.
        matrix: [T, T] float32, mean over heads, row = query, column = key. Rows sum to 1, or to less where the
            architecture lets a part go to no token.
        run: How often the layer has run by then: more than 1 in INTER, EXTRA and EXTEND.
    """

    layer: int
    mask: str
    matrix: NDArray[np.float32]
    run: int = 1


class Maps(NamedTuple):
    """The T tokens of a text as readable strings, and the maps of its layers in the order in which they ran."""

    tokens: tuple[str, ...]
    layers: tuple[LayerMap, ...]


def attention_maps(model: SentenceTransformer, text: str, *, prompt: str | None = None, **kwargs: Any) -> Maps:
    """Run one text and keep the attention of every layer, mean over heads.

    Args:
        model: A model from :func:`st_reba.build`, or one loaded.
        text: The text.
        prompt: As for ``encode``; None: the model's default prompt, if it has one.
        **kwargs: ``task``, and values of the template's fields.

    Returns:
        Tokens as the model reads them (all copies, template and special tokens) and one [T, T] map a run of a layer.

    Raises:
        ValueError: The model is not one of this package's, or has several templates, or T is more than 2048.

    Source:
        NoSink, section 3.4 and figures 3, 8 and 9.

    Example:
        >>> import st_reba
        >>> maps = attention_maps(st_reba.build("mini", "nosink", setting="mask0-bidir", k=2), "天气很好")
        >>> maps.tokens, maps.layers[-1].mask, maps.layers[-1].matrix[1:, 0].tolist()
        (('<s>', '天', '气', '很', '好'), 'nosink-bidirectional', [0.0, 0.0, 0.0, 0.0])
    """
    transformer: Any = model[0]
    if not hasattr(transformer, "copies"):
        raise ValueError(f"Attention maps need a model from st_reba.build, not {type(transformer).__name__}.")
    if transformer.rows > 1:
        raise ValueError(f"Each text stands in {transformer.rows} templates. Build with one.")
    prompt = saved_prompt(model) if prompt is None else prompt
    features = transformer.preprocess([text], prompt=prompt, **kwargs)
    length = features["spans"][0].total
    if length > MAX_TOKENS:
        raise ValueError(f"The text takes {length} tokens, all copies together; {MAX_TOKENS} at most are kept.")
    recorder = _Recorder()
    model.eval()
    with torch.inference_mode():
        transformer(batch_to_device(features, model.device), capture=recorder)
    m, runs, layers = getattr(transformer, "m", 1), Counter[int](), []
    for layer, mask, kept in recorder.layers:
        runs[layer] += 1
        matrix: NDArray[np.float32] = kept[:length, :length].numpy()
        name = f"{mask}({m})" if MASKS[mask].hides_sink and m != 1 else mask
        layers.append(LayerMap(layer, name, matrix, runs[layer]))
    ids = features["input_ids"][0][:length].tolist()
    return Maps(tuple(_shown(transformer.tokenizer, token) for token in ids), tuple(layers))


class _Recorder:
    """Takes the place of a Capture, and keeps the attention of each layer, mean over heads."""

    pieces, zeros = None, False

    def __init__(self) -> None:
        self.layers: list[tuple[int, str, Tensor]] = []
        self.state: Any = None

    def before_layers(self, state: Any) -> None:
        if not install_attention(state.model):
            raise ValueError(f"{type(state.model).__name__} shows no attention.")
        self.state, state.attention_reader = state, self

    def after_layers(self, state: Any, hidden: Tensor) -> Tensor:
        return hidden

    def attend(self, query: Tensor, key: Tensor, value: Tensor, terms: ScoreTerms, looks_ahead: bool) -> Tensor:
        masks = self.state.masks
        module, mask = (None, "forward") if masks is None or masks.last_attention is None else masks.last_attention
        kept = torch.zeros(query.shape[2], key.shape[2])

        def see(probabilities: Tensor, _: slice, start: int) -> None:
            block = probabilities[0].mean(dim=0, dtype=torch.float32).cpu()
            kept[start : start + block.shape[0], : block.shape[1]] = block

        output = attend(query, key, value, terms, see)
        self.layers.append((getattr(module, "layer_idx", len(self.layers)), mask, kept))
        return output


def _shown(tokenizer: Any, token: int) -> str:
    """A token's text; its name in the vocabulary if it is no whole character."""
    text = str(tokenizer.decode([token]))
    if "\ufffd" in text or not text:
        name = str(tokenizer.convert_ids_to_tokens([token])[0]).replace("\u2581", "\u2423")
        return name if name == "\u2423" or (name and name.isascii()) else f"#{token}"
    text = text.strip(" ") or "\u2423"
    return text if text.isprintable() else repr(text)[1:-1]


def sink_table(texts: Iterable[Maps], m: int = 1) -> pd.DataFrame:
    """Measure the sink in each layer, mean over texts, each text counting alike.

    Args:
        texts: The maps of each, from :func:`attention_maps`; a generator needs the memory of one text.
        m: Number of sink tokens. With one more than a setting hides, a high ``sink`` shows that the next is one now.

    Returns:
        A row a map, a mean over heads and the queries from position ``m`` on: ``layer``, ``mask``, ``run``; ``sink``,
        the share on the first m tokens; ``even``, what that would be if each query looked evenly at what it sees;
        ``itself``, the share on the query's own token.

    Raises:
        ValueError: There is no text, or one of them has no token behind the first ``m``.

    Source:
        NoSink, section 3.4; section 3.5, finding 4 (the second token becomes the sink where the first is hidden).

    Example:
        >>> matrix = np.array([[1.0, 0.0, 0.0], [0.75, 0.25, 0.0], [0.25, 0.5, 0.25]], dtype=np.float32)
        >>> table = sink_table([Maps(("<s>", "a", "b"), (LayerMap(0, "forward", matrix),))])
        >>> table[["sink", "even", "itself"]].round(3).values.tolist()
        [[0.5, 0.417, 0.25]]
    """
    if m < 1:
        raise ValueError(f"m={m} must be 1 at least.")
    rows = []
    for maps in texts:
        if len(maps.tokens) <= m:
            raise ValueError(f"{' '.join(maps.tokens)!r:.60} has no token behind the first {m}. Take a longer text.")
        for place, each in enumerate(maps.layers):
            queries = each.matrix[m:].astype(np.float64)
            even = ((queries[:, :m] > 0).sum(axis=1) / (queries > 0).sum(axis=1).clip(min=1)).mean()
            shares = {"sink": queries[:, :m].sum(axis=1).mean(), "even": even, "itself": np.diagonal(queries, m).mean()}
            rows.append({"place": place, "layer": each.layer, "mask": each.mask, "run": each.run, **shares})
    if not rows:
        raise ValueError("There is no text to measure.")
    named = ["place", "layer", "mask", "run"]
    return pd.DataFrame(rows).groupby(named, as_index=False).mean().drop(columns="place")
