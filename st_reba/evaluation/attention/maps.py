"""Attention maps: one text's attention in every layer, mean over heads."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ...modules import DecoderTransformer
from ...modules.capture import Capture
from ...modules.plan import LayerKind
from ...modules.state import current

# Maps of all layers are held at once: 16 MiB each at this length.
MAX_TOKENS = 2048


class AttentionMaps(Capture):
    """Keeps each pass through a layer as one map: its attention, mean over heads.

    Args:
        length: Sequence length T, padding included.

    Attributes:
        calls: The layer's index and what it sees, of each pass, in the order in which they ran.
        matrices: [B, T, T] float32 of each pass, row = query, column = key, on the CPU.

    Example:
        >>> capture = AttentionMaps(2)
        >>> capture.begin()
        >>> capture.update(torch.tensor([[[[1.0]], [[1.0]]]]), 0)
        >>> capture.update(torch.tensor([[[[0.5, 0.5]], [[1.0, 0.0]]]]), 1)
        >>> capture.calls, capture.matrices[0].tolist()
        ([(0, 'forward')], [[[1.0, 0.0], [0.75, 0.25]]])
    """

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length
        self.calls: list[tuple[int, LayerKind]] = []
        self.matrices: list[Tensor] = []

    def update(self, probabilities: Tensor, first_query: int) -> None:
        """Keep one block of a layer; see :meth:`Capture.update`."""
        if len(self.matrices) < self.layers:
            # The state knows the pass only after it has begun.
            self.calls.append(self._call())
            self.matrices.append(torch.zeros(probabilities.shape[0], self.length, self.length))
        queries, keys = probabilities.shape[2:]
        mean = probabilities.detach().mean(dim=1, dtype=torch.float32)
        self.matrices[-1][:, first_query : first_query + queries, :keys] = mean.cpu()

    def _call(self) -> tuple[int, LayerKind]:
        state = current()
        if state is None or state.last is None:
            # Eager attention through hooks: each layer runs once, in order, as it is.
            return len(self.calls), "forward"
        module, kind = state.last
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
    features = transformer.preprocess([text], prompt=prompt, **kwargs)
    features = {name: value.to(model.device) for name, value in features.items() if isinstance(value, Tensor)}
    ids, length = features["input_ids"][0], features["input_ids"].shape[1]
    if length > MAX_TOKENS:
        raise ValueError(
            f"The text takes {length} tokens (copies and template included), and maps of more than {MAX_TOKENS} are "
            f"too large to keep. Shorten the text, or set model.max_seq_length = {MAX_TOKENS}."
        )
    capture = AttentionMaps(length)
    transformer.show_attention()
    model.eval()
    with torch.inference_mode():
        transformer(features, capture=capture)
    # A tokenizer may pad even a single text, on one side.
    mask = features["attention_mask"][0]
    first = int(mask.argmax())
    real = slice(first, first + int(mask.sum()))
    runs: Counter[int] = Counter()
    layers = []
    for (layer, kind), padded in zip(capture.calls, capture.matrices, strict=True):
        runs[layer] += 1
        matrix: NDArray[np.float32] = padded[0, real, real].numpy()
        layers.append(LayerMap(layer, _named(kind, transformer.stack.m, matrix), matrix, runs[layer]))
    tokenizer = transformer.text_tokenizer
    return Maps(tuple(_shown(tokenizer, token) for token in ids[real].tolist()), tuple(layers))


def _named(kind: LayerKind, m: int, matrix: NDArray[np.float32]) -> str:
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
