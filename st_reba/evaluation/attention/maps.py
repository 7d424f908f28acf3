"""Attention maps: one text's attention in every layer, mean over heads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import batch_to_device
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ...modules.capture import AttentionObserver
from ...modules.decoder import DecoderTransformer
from ...modules.stages import current

# Maps of all layers are held at once: 16 MiB each at this length.
MAX_TOKENS = 2048


class AttentionMaps(AttentionObserver):
    """Keeps each pass through a layer as one map: its attention, mean over heads.

    Args:
        length: Sequence length T, padding included.
        numbers: Indices of the layers that have attention, from the bottom; none: all.

    Attributes:
        calls: The layer's index and what it sees, of each pass, in the order in which they ran.
        matrices: [B, T, T] float32 of each pass, row = query, column = key, on the CPU.

    Example:
        >>> maps = AttentionMaps(2)
        >>> maps.begin_layer()
        >>> maps.update(torch.tensor([[[[1.0]], [[1.0]]]]), 0)
        >>> maps.update(torch.tensor([[[[0.5, 0.5]], [[1.0, 0.0]]]]), 1)
        >>> maps.calls, maps.matrices[0].tolist()
        ([(0, 'forward')], [[[1.0, 0.0], [0.75, 0.25]]])
    """

    def __init__(self, length: int, numbers: Sequence[int] = ()) -> None:
        super().__init__()
        self.length, self.numbers = length, numbers
        self.calls: list[tuple[int, str]] = []
        self.matrices: list[Tensor] = []

    def update(self, probabilities: Tensor, first_query: int) -> None:
        """Keep one block of a layer; see :meth:`Observer.update`."""
        if len(self.matrices) < self.layers:
            # The layer is known only after it has begun.
            self.calls.append(self._call())
            self.matrices.append(torch.zeros(probabilities.shape[0], self.length, self.length))
        queries, keys = probabilities.shape[2:]
        mean = probabilities.detach().mean(dim=1, dtype=torch.float32)
        self.matrices[-1][:, first_query : first_query + queries, :keys] = mean.cpu()

    def _call(self) -> tuple[int, str]:
        run = current()
        if run is None or run.kinds is None or run.kinds.last is None:
            # Without a plan each layer runs once, in order, as it is.
            place = len(self.calls)
            return (self.numbers[place] if place < len(self.numbers) else place), "forward"
        module, kind = run.kinds.last
        layer = getattr(module, "layer_idx", None)
        return (layer if isinstance(layer, int) else len(self.calls)), kind


@dataclass(frozen=True)
class LayerMap:
    """The attention of one pass through a layer.

    Args:
        layer: The layer's index, from the bottom.
        kind: What it saw, with the number of hidden sink tokens where that is not 1: ``"nosink-bidirectional(3)"``.
        matrix: [T, T] float32, mean over heads, row = query, column = key. Rows sum to 1, or to less where the
            architecture lets a part go to no token.
        run: How often the layer has run by then: 2 and more are further passes of INTER, EXTRA or EXTEND.
    """

    layer: int
    kind: str
    matrix: NDArray[np.float32]
    run: int = 1

    def __str__(self) -> str:
        return f"layer {numbered(self.layer, self.run)}, {self.kind}"


@dataclass(frozen=True)
class Maps:
    """The attention of all layers over one text.

    Args:
        tokens: The T tokens as readable strings; one that is no whole character as its name in the vocabulary.
        layers: The maps, in the order in which the layers ran.
    """

    tokens: tuple[str, ...]
    layers: tuple[LayerMap, ...]


def attention_maps(model: SentenceTransformer, text: str, *, prompt: str | None = None, **kwargs: Any) -> Maps:
    """Run one text and keep the attention of every layer, mean over heads.

    The backbone's attention stays visible to captures afterwards; vectors do not change.

    Args:
        model: A model from :func:`st_reba.build`, or one loaded.
        text: The text.
        prompt: As for ``encode``; None: the model's default prompt, if it has one.
        **kwargs: As for ``encode``: ``task``, and values of the template's fields.

    Returns:
        Tokens as the model reads them (all copies, template and special tokens) and one [T, T] map a pass.

    Raises:
        ValueError: The pipeline starts with another module, the text is no string, or T is more than 2048.

    Source:
        NoSink, section 3.4 and figures 3, 8 and 9.

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini", "nosink", setting="mask0-bidir", k=2)
        >>> maps = attention_maps(model, "天气很好")
        >>> maps.tokens, str(maps.layers[-1])
        (('<s>', '天', '气', '很', '好'), 'layer 5, nosink-bidirectional')
        >>> maps.layers[-1].matrix[1:, 0].tolist()
        [0.0, 0.0, 0.0, 0.0]
    """
    transformer = model[0]
    if not isinstance(transformer, DecoderTransformer):
        raise ValueError(
            f"Attention maps need a pipeline that starts with a module of st_reba, not {type(transformer).__name__}. "
            "Build the model with st_reba.build; method='nosink', setting='baseline' leaves its layers as they are."
        )
    if getattr(transformer, "rows", 1) > 1:
        raise ValueError(
            f"Each text stands in {transformer.rows} templates, so it has as many maps. Build with one template."
        )
    if not isinstance(text, str):
        raise ValueError(f"text is no string but {type(text).__name__}: {text!r:.80}. Pass one text.")
    if prompt is None and model.default_prompt_name is not None:
        prompt = model.prompts.get(model.default_prompt_name)
    features = batch_to_device(transformer.preprocess([text], prompt=prompt, **kwargs), model.device)
    ids, length = features["input_ids"][0], features["input_ids"].shape[1]
    if length > MAX_TOKENS:
        raise ValueError(
            f"The text takes {length} tokens (copies and template included), and maps of more than {MAX_TOKENS} are "
            f"too large to keep. Shorten the text, or set model.max_seq_length = {MAX_TOKENS}."
        )
    types = enumerate(transformer.backbone.layer_types)
    observer = AttentionMaps(length, [n for n, each in types if "attention" in each and "linear" not in each])
    model.eval()
    with torch.inference_mode():
        transformer(features, watch=[observer])
    # A tokenizer may pad even a single text.
    real = slice(features["places"][0][2])
    runs: Counter[int] = Counter()
    layers = []
    m = transformer.stack.m if transformer.stack is not None else 1
    for (layer, kind), padded in zip(observer.calls, observer.matrices, strict=True):
        runs[layer] += 1
        matrix: NDArray[np.float32] = padded[0, real, real].numpy()
        layers.append(LayerMap(layer, _named(kind, m, matrix), matrix, runs[layer]))
    tokenizer = transformer.text_tokenizer
    return Maps(tuple(_shown(tokenizer, token) for token in ids[real].tolist()), tuple(layers))


def _named(kind: str, m: int, matrix: NDArray[np.float32]) -> str:
    if kind == "forward" and np.triu(matrix, 1).max(initial=0.0) > 1e-6:
        # A plan leaves these layers as they are, and this backbone's look both ways by themselves.
        return "bidirectional"
    return f"{kind}({m})" if kind.startswith("nosink") and m != 1 else kind


def numbered(layer: int, run: int) -> str:
    """A pass through a layer, for readers."""
    return str(layer) if run == 1 else f"{layer} (pass {run})"


def _shown(tokenizer: PreTrainedTokenizerBase, token: int) -> str:
    """A token as a reader knows it."""
    text = str(tokenizer.decode([token]))
    if "\ufffd" in text or not text:
        # A leading space, or part of a character: its bytes, if the vocabulary names them legibly.
        name = str(tokenizer.convert_ids_to_tokens([token])[0]).replace("\u2581", "\u2423")
        return name if name == "\u2423" or (name and name.isascii()) else f"#{token}"
    text = text.strip(" ") or "\u2423"
    return text if text.isprintable() else repr(text)[1:-1]
