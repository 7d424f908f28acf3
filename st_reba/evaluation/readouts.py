"""Vectors of many layers and poolings from one forward pass; methods with the same input and masks share it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import batch_to_device
from torch import Tensor

from ..assembly import build_model
from ..encode import DEFAULT_BATCH_TOKENS, batch_positions, computed_positions, encode_texts, token_batches
from ..filters import Filter
from ..methods import Method
from ..modules import PromptEnsemble
from ..modules.capture import BackwardAttention, Capture
from ..modules.layers import watch_layers
from ..modules.layout import Features, Span, copy_starts, pooled_positions
from ..modules.outputs import watch_attention
from ..modules.settings import plan_layers
from ..modules.transformer import RepeatTransformer
from .stacked_reader import StackedReader

Vectors = NDArray[np.float32]
# "mean" and "last" are of the last copy's content, "end" is the very last position.
POOLINGS = ("mean", "last", "end", "reba-mean", "reba-last")
# Numbers of hidden states, of all layers that are read, that a batch may hold.
_MOST_NUMBERS = 1 << 25


class Readout(NamedTuple):
    """One layer of a pass, pooled.

    Args:
        layer: 1 to L.
        pooling: One of ``POOLINGS``.
        first: None: the layer's states. Else the mean of the attention outputs of the layers from this one up to it.
    """

    layer: int
    pooling: str
    first: int | None = None


def opened(base: Any, **loading: Any) -> SentenceTransformer:
    """Load a base once, for all the functions here; arguments as for :func:`st_reba.build`.

    Example:
        >>> opened("mini")[0].depth
        6
    """
    return build_model(base, "classical", pooling="mean", check=False, **loading)


def depth_of(model: SentenceTransformer) -> int:
    """Number of layers L."""
    transformer: Any = model[0]
    return int(transformer.depth)


def of_base(base: SentenceTransformer, method: Method, **options: Any) -> SentenceTransformer:
    """Build a method on the weights of an opened base; nothing is copied."""
    transformer: Any = base[0]
    length = method.max_seq_length or (transformer.recipe or {}).get("max_seq_length")
    method = replace(method, max_seq_length=length)
    return build_model(transformer.model, method, tokenizer=transformer.tokenizer, **options)


def vectors(
    base: SentenceTransformer,
    methods: Sequence[Method],
    texts: Sequence[str],
    *,
    parts: Sequence[tuple[int, int]] | None = None,
    batch_tokens: int = DEFAULT_BATCH_TOKENS,
    progress: Callable[[int], object] | None = None,
    check: bool = True,
    **layout: Any,
) -> dict[Method, Vectors]:
    """Encode texts by each method; methods with the same input and masks run once.

    Args:
        base, methods, texts: An opened base, the methods, the texts.
        parts: For vectors of words: the content tokens (first, end) of a word in each text. Mean and last are over its
            tokens in the last copy, ReBA's mean over their e_i. Only for methods of one template that share passes.
        batch_tokens: Positions a forward pass.
        progress: Called after each batch with the number of positions that it computed for its texts.
        check: As for ``build``.
        **layout: ``task`` and ``prompt``, as for ``encode``; ``task`` is ``"query"`` or ``"document"``.

    Returns:
        By method, [N, d] float32, scaled to length 1 where the method normalizes.

    Example:
        >>> methods = [Method("echo"), Method("reba", pooling="mean", layer=4)]
        >>> [each.shape for each in vectors(opened("mini"), methods, ["你好", "Hello"]).values()]
        [(2, 192), (2, 192)]
    """
    found: dict[Method, Vectors] = {}
    transformer: Any = base[0]
    for first, group in shared(methods, transformer.depth).items():
        model = of_base(base, replace(first, filter=None), check=check)
        readouts = {method: readout for method in group if (readout := readout_of(method, transformer.depth))}
        if parts is not None and (not readouts or first.templates is not None):
            raise ValueError(f"{first}: words have no vector here. Use st_reba.encode_words.")
        if readouts:
            options: dict[str, Any] = {"parts": parts, "batch_tokens": batch_tokens, "progress": progress}
            made = read(model, list(dict.fromkeys(readouts.values())), texts, **options, **layout)
            found |= {method: made[readout] for method, readout in readouts.items()}
            continue
        found[first] = encode_texts(model, texts, batch_tokens=batch_tokens, **layout)
        if progress is not None:
            progress(sum(computed_positions(model[0], texts, layout)))
    for method in methods:
        found[method] = _units(found[method]) if method.normalize else found[method]
        if method.filter is not None:
            of_base(base, method, check=False)  # refuses the filter of another method
            found[method] = np.asarray(Filter.load(method.filter).apply(found[method], layout.get("task")), np.float32)
            found[method] = _units(found[method]) if method.normalize else found[method]
    return {method: found[method] for method in methods}


def readout_of(method: Method, depth: int) -> Readout | None:
    """The readout of a method, on a base with L layers (``depth``); None: its model has to run by itself."""
    is_plain = method.implementation == "paper" and method.chunk is None and method.pooled is None
    if not is_plain or method.include_special or method.normalize_weights or not method.final_norm:
        return None
    pooling = method.pooling_spec.readout
    reads_outputs = method.read == "attention"
    if pooling is None or (method.name == "reba" and reads_outputs):
        return None
    layers = method.layer
    if layers is None:
        layers = (depth // 2 + 1, depth) if reads_outputs else depth
    if not isinstance(layers, tuple):
        layers = (layers, layers)
    elif not reads_outputs:
        return None
    if not all(-depth <= layer <= depth for layer in layers):
        return None  # by itself: build says what cannot be
    first_layer, last_layer = (layer % (depth + 1) for layer in layers)
    if not 0 < first_layer <= last_layer:
        return None
    if method.setting is not None and _masks(method, last_layer) is None:
        return None
    return Readout(last_layer, pooling, first_layer if reads_outputs else None)


def shared(methods: Sequence[Method], depth: int) -> dict[Method, list[Method]]:
    """Group methods by the pass that they are read from, named by that of them which runs the most layers.

    Example:
        >>> groups = shared([Method("echo"), Method("reba", layer=3), Method("classical")], 6)
        >>> {str(first): [str(each) for each in group] for first, group in groups.items()}
        {'echo': ['echo', 'reba:layer=3'], 'classical': ['classical']}
    """
    groups: dict[Method, list[Method]] = {}
    readouts = {method: readout_of(method, depth) for method in methods}
    for method, mine in sorted(readouts.items(), key=lambda item: -item[1].layer if item[1] else 0):
        for first, group in groups.items():
            other = readouts[first]
            if mine is None or other is None or _input(first) != _input(method):
                continue
            if (_masks(first, other.layer) or [])[: mine.layer] == _masks(method, mine.layer):
                group.append(method)
                break
        else:
            groups[method] = [method]
    return groups


def _input(method: Method) -> tuple[Any, ...]:
    """Key of the input: methods with equal keys see the same tokens."""
    layout = method.full_template
    copies = None if layout is not None else method.repeats or 2 if method.name in ("reba", "echo") else 1
    joined = None if method.templates is None else (method.template_weights, method.equal_norms)
    m = 1 if method.setting is None else method.m
    return repr(layout), copies, joined, method.instruction, method.compute_matched, method.max_seq_length, m


def _masks(method: Method, layers: int) -> list[str] | None:
    """The masks of a model of so many layers; None: some of them run twice."""
    if method.setting is None:
        return ["forward"] * layers
    plan = plan_layers(method.setting, layers, k=method.k, k0=method.k0, m=method.m)
    return None if plan.second else plan.layer_masks


def read(
    model: SentenceTransformer,
    readouts: Sequence[Readout],
    texts: Sequence[str],
    *,
    parts: Sequence[tuple[int, int]] | None = None,
    batch_tokens: int = DEFAULT_BATCH_TOKENS,
    progress: Callable[[int], object] | None = None,
    **layout: Any,
) -> dict[Readout, Vectors]:
    """Run texts through a model once and pool every readout, as a model that is built with its layer would.

    So states pass the final norm, and ReBA's maxima are those of the layers up to it.

    Args:
        model: From :func:`st_reba.build`, no layer runs twice; its pooling is not used, its PromptEnsemble is.
        readouts: Layers and poolings to read.
        texts, parts, batch_tokens, progress, layout: As for :func:`vectors`.

    Returns:
        By readout, [N, d] float32, not scaled.
    """
    transformer: Any = model[0]
    _check_readouts(readouts, transformer.depth)
    poolings = {each.pooling for each in readouts}
    reba = {each for each in poolings if each.startswith("reba")}
    capture = None if not reba else Capture("last" if reba == {"reba-last"} and parts is None else "copy")
    layers = sorted({each.layer for each in readouts if each.first is None})
    outputs = sorted({(each.first, each.layer) for each in readouts if each.first is not None})
    width = transformer.get_embedding_dimension()
    watch_layers(transformer.model)
    if outputs:
        watch_attention(transformer.model)
    join = next((each for each in model if isinstance(each, PromptEnsemble)), None)
    found = {each: np.empty((len(texts), width), np.float32) for each in readouts}
    lengths = batch_positions(transformer, texts, layout, whole=capture is not None)
    held = max(1, sum(batch_positions(transformer, texts, layout, whole=True)))
    # Rows that share a prefix hold it all the same: as much memory as whole rows take.
    most_positions = _MOST_NUMBERS // (width * (len(layers) + len(outputs))) * sum(lengths) // held
    computed = computed_positions(transformer, texts, layout)
    for batch in token_batches(lengths, max(1, min(batch_tokens, most_positions))):
        features = batch_to_device(transformer.preprocess([texts[row] for row in batch], **layout), model.device)
        weights = TextWeights(transformer, features, None if parts is None else [parts[row] for row in batch])
        reader = StackedReader(layers, outputs, transformer.depth, weights.keep_backward)
        before, transformer.reader = transformer.reader, reader
        try:
            with torch.inference_mode():
                hidden = transformer(features, capture=capture)["token_embeddings"]
        finally:
            transformer.reader = before
        for each, rows in weights.pooled(readouts, reader, hidden).items():
            joined = rows if join is None else join({"sentence_embedding": rows})["sentence_embedding"]
            found[each][batch] = joined.cpu().numpy()
        if progress is not None:
            progress(sum(computed[row] for row in batch))
    return found


def _check_readouts(readouts: Sequence[Readout], depth: int) -> None:
    for readout in readouts:
        if not 1 <= readout.layer <= depth or readout.pooling not in POOLINGS:
            raise ValueError(f"{readout}: give a layer from 1 to {depth}, and one of {', '.join(POOLINGS)}.")


class TextWeights:
    """By what the positions of a batch are multiplied and summed, for each pooling.

    Args:
        transformer: The module whose batch it is.
        features: What its ``preprocess`` made.
        parts: The content tokens (first, end) of each text that its vector is of; None: all.

    Raises:
        ValueError: A part is not in its text.
    """

    def __init__(
        self,
        transformer: RepeatTransformer,
        features: Features,
        parts: Sequence[tuple[int, int]] | None,
    ) -> None:
        spans: list[Span] = features["spans"]
        copy_ids: Tensor = features["copy_ids"]
        if parts is None:
            parts = [(0, span.length) for span in spans]
        for (first_token, end_token), span in zip(parts, spans, strict=True):
            if not 0 <= first_token < end_token <= span.length:
                raise ValueError(
                    f"parts: tokens {first_token} to {end_token} are not among the {span.length} of the text, as cut."
                )
        # First and end of the content tokens that a vector is of, [B, 1] each.
        self.first, self.end = torch.tensor(parts, device=copy_ids.device)[:, :, None].unbind(dim=1)
        is_last_copy = copy_ids == transformer.copies
        positions = torch.arange(copy_ids.shape[1], device=copy_ids.device)
        is_content, is_last_token = self._chosen(positions - copy_starts(copy_ids, transformer.copies))
        row_lengths = torch.tensor([[span.total] for span in spans], device=copy_ids.device)
        real_tokens = positions < row_lengths
        is_end = pooled_positions("end", transformer.copies, copy_ids, real_tokens, row_lengths, 0)
        chosen = torch.stack([is_content & is_last_copy, is_last_token & is_last_copy, is_end], dim=1)
        self.plain = _means(chosen)  # [B, 3, T]: mean, last, end
        self.backward: dict[int, Tensor] = {}  # by layer, [B, 2, T]: ReBA's mean and last

    def keep_backward(self, layer: int, captured: BackwardAttention) -> None:
        """Keep ReBA's weights of the layers up to this one."""
        self.backward[layer] = self._so_far(captured).float()

    def pooled(
        self,
        readouts: Sequence[Readout],
        reader: StackedReader,
        hidden: Tensor,
    ) -> dict[Readout, Tensor]:
        """Vectors [B, d] of each readout, of what a pass gave."""
        rows_by_reading: dict[tuple[int | None, int], Tensor] = {}
        vectors_by_readout: dict[Readout, Tensor] = {}
        for readout in readouts:
            reading = (readout.first, readout.layer)
            if reading not in rows_by_reading:
                rows_by_reading[reading] = self._pool(readout, reader, hidden)
            pooling_index = POOLINGS.index(readout.pooling)
            vectors_by_readout[readout] = rows_by_reading[reading][:, pooling_index]
        return vectors_by_readout

    def _pool(self, readout: Readout, reader: StackedReader, hidden: Tensor) -> Tensor:
        """One reading by all poolings, [B, 3 or 5, d]."""
        if readout.first is not None:
            outputs = reader.outputs_of(hidden, (readout.first, readout.layer))
            return torch.bmm(self.plain, outputs.float())
        weights = self.plain
        if readout.layer in self.backward:
            weights = torch.cat([weights, self.backward[readout.layer]], dim=1)
        states = reader.states_of(hidden, readout.layer)
        return torch.bmm(weights, states.float())

    def _chosen(self, token: Tensor) -> tuple[Tensor, Tensor]:
        """Masks of the content tokens that a vector is of, and of the last of these, [B, T] each."""
        return (token >= self.first) & (token < self.end), token == self.end - 1

    def _so_far(self, captured: BackwardAttention) -> Tensor:
        now = copy.copy(captured)
        now.maxima = [each.clone() for each in captured.maxima]
        rows: Tensor = now.rows()
        if rows.shape[1] == 1:
            return rows.expand(-1, 2, -1)
        chosen = torch.stack(self._chosen(torch.arange(rows.shape[1], device=rows.device)), dim=1)
        return torch.bmm(_means(chosen).to(rows.dtype), rows)


def _means(chosen: Tensor) -> Tensor:
    return chosen.float() / chosen.sum(dim=-1, keepdim=True)


def _units(vectors: Vectors) -> Vectors:
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12), np.float32)
