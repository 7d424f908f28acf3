"""Attention maps of a text, and the share of each layer's attention that falls on the first tokens: the sink."""

from __future__ import annotations

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
from ..modules.blocks import ScoreTerms, attend_in_blocks
from ..modules.masks import MASKS
from ..modules.nosink import LayerMasks
from ..modules.passes import ForwardPass
from ..modules.transformer import RepeatTransformer

# Maps of all layers are held at once: 16 MiB each at this length.
MAX_TOKENS = 2048
_SPACE = "\u2423"


@dataclass(frozen=True)
class LayerMap:
    """The attention of one run of a layer.

    Args:
        layer: The layer's index, from the bottom.
        mask: The layer's mask, with m where that is not 1: ``"nosink-bidirectional(3)"``.
        matrix: [T, T] float32, mean over heads, row = query, column = key. Rows sum to 1, or to
            less where the architecture lets a part go to no token.
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


def attention_maps(
    model: SentenceTransformer,
    text: str,
    *,
    prompt: str | None = None,
    **kwargs: Any,
) -> Maps:
    """Run one text and keep the attention of every layer, mean over heads.

    Args:
        model: A model from :func:`st_reba.build`, or one loaded.
        text: The text.
        prompt: As for ``encode``; None: the model's default prompt, if it has one.
        **kwargs: ``task``, and values of the template's fields.

    Returns:
        Tokens as the model reads them (all copies, template and special tokens) and one [T, T] map
        for each run of a layer.

    Raises:
        ValueError: The model is not one of this package's, or has several templates, or T is more
            than 2048.

    Source:
        NoSink, section 3.4 and figures 3, 8 and 9.

    Example:
        >>> import st_reba
        >>> maps = attention_maps(st_reba.build("mini", "nosink", setting="mask0-bidir", k=2), "天气很好")
        >>> maps.tokens, maps.layers[-1].mask, maps.layers[-1].matrix[1:, 0].tolist()
        (('<s>', '天', '气', '很', '好'), 'nosink-bidirectional', [0.0, 0.0, 0.0, 0.0])
    """
    transformer = model[0]
    if not isinstance(transformer, RepeatTransformer):
        raise ValueError(
            f"Attention maps need a model from st_reba.build, not {type(transformer).__name__}."
        )
    if transformer.template_count > 1:
        raise ValueError(f"Each text is in {transformer.template_count} templates. Build with one.")
    if prompt is None:
        prompt = saved_prompt(model)
    features = transformer.preprocess([text], prompt=prompt, **kwargs)
    length = features["spans"][0].row_length
    if length > MAX_TOKENS:
        raise ValueError(
            f"The text takes {length} tokens, all copies together; at most {MAX_TOKENS} can be kept."
        )
    recorder = AttentionRecorder(length, transformer.m)
    model.eval()
    with torch.inference_mode():
        transformer(batch_to_device(features, model.device), capture=recorder)
    token_ids = features["input_ids"][0][:length].tolist()
    tokens = tuple(readable_token(transformer.tokenizer, token_id) for token_id in token_ids)
    return Maps(tokens, tuple(recorder.layer_maps))


class AttentionRecorder:
    """A hook and attention observer that keeps the attention of each layer, mean over heads.

    Args:
        length: Number of tokens T.
        m: For the names of masks that hide the sink.
    """

    # As those of a `Capture`, in whose place it is given.
    chunk_plan = None
    zeroes_nonfinite_texts = False

    def __init__(self, length: int, m: int) -> None:
        self.length = length
        self.m = m
        self.layer_maps: list[LayerMap] = []
        self.masks: LayerMasks | None = None

    def before_layers(self, forward_pass: ForwardPass) -> None:
        """Read the attention of a pass."""
        if not install_attention(forward_pass.model):
            raise ValueError(f"{type(forward_pass.model).__name__} shows no attention.")
        if isinstance(forward_pass.masks, LayerMasks):
            self.masks = forward_pass.masks
        forward_pass.observer = self

    def after_layers(self, forward_pass: ForwardPass, hidden_states: Tensor) -> Tensor:
        """Leave the hidden states as they are."""
        return hidden_states

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        terms: ScoreTerms,
        looks_ahead: bool,
    ) -> Tensor:
        """Compute and keep the attention of one layer, [B, T, H, D']."""
        layer_index = len(self.layer_maps)
        mask_name = "forward"
        if self.masks is not None and self.masks.last_attention is not None:
            module, mask_name = self.masks.last_attention
            layer_index = getattr(module, "layer_idx", layer_index)
            if MASKS[mask_name].hides_sink and self.m != 1:
                mask_name = f"{mask_name}({self.m})"
        matrix = torch.zeros(query.shape[2], key.shape[2])

        def keep_block(
            probabilities: Tensor,
            texts: slice,
            start: int,
        ) -> None:
            block = probabilities[0].mean(dim=0, dtype=torch.float32).cpu()
            matrix[start : start + block.shape[0], : block.shape[1]] = block

        output = attend_in_blocks(query, key, value, terms, keep_block)
        layer_matrix = matrix[: self.length, : self.length].numpy()
        former_runs = [layer_map.layer for layer_map in self.layer_maps].count(layer_index)
        self.layer_maps.append(LayerMap(layer_index, mask_name, layer_matrix, former_runs + 1))
        return output


def readable_token(tokenizer: Any, token_id: int) -> str:
    """A token's text; its name in the vocabulary if it is not a whole character."""
    text = str(tokenizer.decode([token_id]))
    if text and "\ufffd" not in text:
        text = text.strip(" ") or _SPACE
        return text if text.isprintable() else repr(text)[1:-1]
    name = str(tokenizer.convert_ids_to_tokens([token_id])[0]).replace("\u2581", _SPACE)
    if name == _SPACE or (name and name.isascii()):
        return name
    return f"#{token_id}"


def sink_table(texts: Iterable[Maps], m: int = 1) -> pd.DataFrame:
    """Measure the sink in each layer, averaged over texts with equal weight.

    Args:
        texts: The maps of each text, from :func:`attention_maps`; a generator needs the memory of
            one text only.
        m: Number of sink tokens. With one more than a setting hides, a high ``sink`` shows that the
            next token has become the sink.

    Returns:
        One row per map, a mean over heads and queries from position ``m`` on: ``layer``, ``mask``,
        ``run``; ``sink``, the share on the first m tokens; ``even``, the same if each query looked
        evenly at all that it sees; ``itself``, the share on the query's own token.

    Raises:
        ValueError: There is no text, or one of them has no token after the first ``m``.

    Source:
        NoSink, section 3.4; section 3.5, finding 4 (the second token becomes the sink where the
        first is hidden).

    Example:
        >>> matrix = np.array([[1.0, 0.0, 0.0], [0.75, 0.25, 0.0], [0.25, 0.5, 0.25]], dtype=np.float32)
        >>> table = sink_table([Maps(("<s>", "a", "b"), (LayerMap(0, "forward", matrix),))])
        >>> table[["sink", "even", "itself"]].round(3).values.tolist()
        [[0.5, 0.417, 0.25]]
    """
    if m < 1:
        raise ValueError(f"m={m} must be 1 at least.")
    table_rows: list[dict[str, object]] = []
    for maps in texts:
        if len(maps.tokens) <= m:
            raise ValueError(
                f"{' '.join(maps.tokens)!r:.60} has no token after the first {m}. Take a longer text."
            )
        for layer_map in maps.layers:
            run = {"layer": layer_map.layer, "mask": layer_map.mask, "run": layer_map.run}
            table_rows.append(run | _measure_sink(layer_map.matrix[m:].astype(np.float64), m))
    if not table_rows:
        raise ValueError("There is no text to measure.")
    runs = pd.DataFrame(table_rows).groupby(["layer", "mask", "run"], as_index=False, sort=False)
    return runs.mean()


def _measure_sink(queries: NDArray[np.float64], m: int) -> dict[str, object]:
    """Means over the queries [T - m, T]."""
    visible_sinks = (queries[:, :m] > 0).sum(axis=1)
    visible_tokens = (queries > 0).sum(axis=1)
    return {
        "sink": queries[:, :m].sum(axis=1).mean(),
        "even": (visible_sinks / visible_tokens.clip(min=1)).mean(),
        "itself": np.diagonal(queries, m).mean(),
    }
