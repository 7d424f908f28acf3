"""Vectors of many layers and poolings from one forward pass; methods with the same input and masks share it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..encode import DEFAULT_BATCH_TOKENS, copied_positions, encode_texts, token_batches
from ..methods import Method, masks_of
from ..modules.capture import Capture
from ..modules.reader import watch_layers

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

Vectors = NDArray[np.float32]
Progress = Callable[[int, int], object]
# "mean" and "last" are of the last copy's content, "end" is the very last position.
POOLINGS = ("mean", "last", "end", "reba-mean", "reba-last")
# Numbers of hidden states, of all layers that are read, that a batch may hold.
_MOST_NUMBERS = 1 << 25


class Readout(NamedTuple):
    """One layer of a pass, pooled: layer 1 to L (0: the embeddings; its ReBA is not defined), one of ``POOLINGS``."""

    layer: int
    pooling: str


def opened(base: Any, **loading: Any) -> SentenceTransformer:
    """Load a base once, for all the functions here.

    Args:
        base: As for :func:`st_reba.build`.
        **loading: Further arguments of ``build``, as ``dtype``, ``device`` and ``max_seq_length``.

    Example:
        >>> opened("mini")[0].depth
        6
    """
    from ..build import build

    return build(base, "classical", pooling="mean", check=False, **loading)


def of_base(base: SentenceTransformer, method: Method, **options: Any) -> SentenceTransformer:
    """Build a method on the weights of an opened base; nothing is copied."""
    from ..build import build

    transformer: Any = base[0]
    length = {} if transformer.recipe is None else {"max_seq_length": transformer.recipe.get("max_seq_length")}
    given = {name: value for name, value in length.items() if value is not None and method.max_seq_length is None}
    return build(transformer.model, replace(method, **given), tokenizer=transformer.tokenizer, **options)


def vectors(
    base: SentenceTransformer,
    methods: Sequence[Method],
    texts: Sequence[str],
    *,
    task: str | None = None,
    prompt: str | None = None,
    parts: Sequence[tuple[int, int]] | None = None,
    batch_tokens: int = DEFAULT_BATCH_TOKENS,
    progress: Progress | None = None,
    check: bool = True,
) -> dict[Method, Vectors]:
    """What each method's model gives for texts; methods with the same input and masks run once.

    Args:
        base: Of :func:`opened`.
        methods: The methods.
        texts: The texts.
        task, prompt: As for ``encode``; ``task`` is ``"query"`` or ``"document"``.
        parts: Of each text, the content tokens (first, end) of a word, whose vector it is then. Mean and last are over
            its tokens in the last copy, ReBA's mean over their e_i. Only for methods that share passes.
        batch_tokens: Positions a forward pass.
        progress: Called after each batch with its number of texts and of positions.
        check: As for ``build``.

    Returns:
        By method, [N, d] float32, scaled to length 1 where the method normalizes.

    Example:
        >>> methods = [Method("echo"), Method("reba", pooling="mean", layer=4)]
        >>> [each.shape for each in vectors(opened("mini"), methods, ["你好", "Hello"]).values()]
        [(2, 192), (2, 192)]
    """
    from ..filters import Filter

    unique = list(dict.fromkeys(texts)) if parts is None else list(texts)
    found: dict[Method, Vectors] = {}
    options: dict[str, Any] = {"task": task, "prompt": prompt, "batch_tokens": batch_tokens}
    transformer: Any = base[0]
    for first, group in shared(methods, transformer.depth).items():
        model = of_base(base, replace(first, filter=None), check=check)
        if first not in group:
            raise ValueError(f"{first}: a pass must be one of its methods.")
        readouts = {method: readout_of(method, transformer.depth) for method in group}
        if readouts[first] is None:
            if parts is not None:
                raise ValueError(f"{first}: words have no vector here. Use st_reba.encode_words.")
            found[first] = np.asarray(encode_texts(model, unique, **options), np.float32)
            if progress is not None:
                progress(len(unique), len(unique))
        else:
            wanted = [each for each in dict.fromkeys(readouts.values()) if each is not None]
            made = gathered(read(model, wanted, unique, parts=parts, progress=progress, **options), len(unique))
            found |= {method: made[each] for method, each in readouts.items() if each is not None}
    for method in methods:
        if method.normalize:
            found[method] = _units(found[method])
        if method.filter is not None:
            found[method] = np.asarray(Filter.load(method.filter).apply(found[method]), np.float32)
            found[method] = _units(found[method]) if method.normalize else found[method]
    if len(unique) < len(texts):
        place = {text: row for row, text in enumerate(unique)}
        rows = [place[text] for text in texts]
        found = {method: each[rows] for method, each in found.items()}
    return {method: found[method] for method in methods}


def readout_of(method: Method, depth: int) -> Readout | None:
    """What a method reads of its pass; None: its model has to run by itself.

    Args:
        method: The method.
        depth: The base's number of layers L.

    Example:
        >>> readout_of(Method("reba", pooling="mean"), 6), readout_of(Method("prompteol", layer=-2), 6)
        (Readout(layer=6, pooling='reba-mean'), Readout(layer=5, pooling='end'))
    """
    plain = method.templates is None and method.implementation == "paper" and method.chunk is None
    plain = plain and method.pooled is None and not method.include_special and not method.normalize_weights
    pooling = method.sentence_pooling
    if not plain or pooling == "cls" or isinstance(method.layer, tuple) or not method.final_norm:
        return None
    layer = depth if method.layer is None else int(method.layer) % (depth + 1)
    if layer == 0 or (method.setting is not None and _masks(method, layer) is None):
        return None
    return Readout(layer, {"reba": f"reba-{pooling}", "prompteol": "end"}.get(method.name, pooling))


def shared(methods: Sequence[Method], depth: int) -> dict[Method, list[Method]]:
    """Group methods by the pass that they are read from, named by that of them which runs the most layers.

    Example:
        >>> groups = shared([Method("echo"), Method("reba", layer=3), Method("classical")], 6)
        >>> {str(first): [str(each) for each in group] for first, group in groups.items()}
        {'echo': ['echo', 'reba:layer=3'], 'classical': ['classical']}
    """
    groups: dict[Method, list[Method]] = {}
    readouts = {method: readout_of(method, depth) for method in methods}
    for method in sorted(readouts, key=lambda each: -readouts[each].layer if readouts[each] else 0):  # type: ignore[union-attr]
        mine = readouts[method]
        for first, group in groups.items():
            other = readouts[first]
            if mine is not None and other is not None and _input(first) == _input(method):
                masks = _masks(method, mine.layer)
                if masks is not None and (_masks(first, other.layer) or [])[: mine.layer] == masks:
                    group.append(method)
                    break
        else:
            groups[method] = [method]
    return groups


def _input(method: Method) -> tuple[Any, ...]:
    """What decides over the input: two methods that agree here see the same tokens."""
    once = method.name not in ("reba", "echo")
    template = method.template or ("prompteol" if method.name == "prompteol" else None)
    copies = None if template is not None else 1 if once else method.repeats or 2
    m = 1 if method.setting is None else method.m
    shown = repr(sorted(template.items())) if isinstance(template, Mapping) else template
    return shown, copies, method.instruction, method.compute_matched, method.max_seq_length, m


def _masks(method: Method, layers: int) -> list[str] | None:
    """The masks of a model of so many layers; None: some of them run twice."""
    if method.setting is None:
        return ["forward"] * layers
    found = masks_of(method.setting, layers, k=method.k, k0=method.k0, m=method.m)
    return None if found["second"] else list(found["layer_masks"])


def read(
    model: SentenceTransformer,
    readouts: Sequence[Readout],
    texts: Sequence[str],
    *,
    task: str | None = None,
    prompt: str | None = None,
    parts: Sequence[tuple[int, int]] | None = None,
    batch_tokens: int = DEFAULT_BATCH_TOKENS,
    progress: Progress | None = None,
) -> Iterator[tuple[list[int], dict[Readout, Tensor]]]:
    """Run texts through a model once and pool every readout, batch after batch.

    A readout of layer k is what a model built with ``layer=k`` gives: its states pass the final norm, and ReBA's maxima
    are those of the layers up to k.

    Args:
        model: Of :func:`st_reba.build`, one template, no layers that run twice; its pooling is not used.
        readouts: What to read.
        texts, task, prompt, parts, batch_tokens, progress: As for :func:`vectors`.

    Yields:
        Rows of ``texts``, and by readout their vectors, [B, d] float32 on the model's device, not scaled.
    """
    transformer: Any = model[0]
    layers = sorted({each.layer for each in readouts})
    if not layers or layers[0] < 0 or layers[-1] > transformer.depth or {p for _, p in readouts} - set(POOLINGS):
        raise ValueError(f"readouts: layers are 0 to {transformer.depth}, poolings {', '.join(POOLINGS)}.")
    reba = {each.pooling for each in readouts if each.pooling.startswith("reba")}
    capture = None if not reba else Capture("last" if reba == {"reba-last"} and parts is None else "copy")
    lengths = positions(transformer, texts, task=task, prompt=prompt)
    width = int(getattr(transformer.config.get_text_config(), "hidden_size", 1024))
    budget = max(1, min(batch_tokens, _MOST_NUMBERS // (width * len(layers))))
    watch_layers(transformer.model)
    model.eval()
    for batch in token_batches(lengths, budget):
        features = transformer.preprocess([texts[row] for row in batch], prompt=prompt, task=task)
        features = {name: _on(each, transformer.model.device) for name, each in features.items()}
        bounds = _bounds(features, None if parts is None else [parts[row] for row in batch])
        watch = _Watch(layers, transformer.depth, features["copy_ids"] > 0, bounds if reba else None)
        before, transformer.reader = transformer.reader, watch
        try:
            with torch.inference_mode():
                transformer(features, capture=capture)
                found = _pooled(features, transformer.copies, watch, readouts, bounds)
        finally:
            transformer.reader = before
        yield batch, found
        if progress is not None:
            progress(len(batch), sum(lengths[row] for row in batch))


def positions(
    transformer: Any, texts: Sequence[str], *, task: str | None = None, prompt: str | None = None
) -> list[int]:
    """Positions that each text takes: all copies as cut to the budget, template and special tokens."""
    return copied_positions(transformer, texts, {"prompt": prompt, "task": task})


def gathered(batches: Iterator[tuple[list[int], dict[Readout, Tensor]]], count: int) -> dict[Readout, Vectors]:
    """The vectors [N, d] of all batches, in the texts' order."""
    found: dict[Readout, Vectors] = {}
    for rows, batch in batches:
        for readout, each in batch.items():
            if readout not in found:
                found[readout] = np.empty((count, each.shape[1]), np.float32)
            found[readout][rows] = each.cpu().numpy()
    return found


class _Watch:
    """A part of a pass, in the place of a transformer's reader: it keeps what several layers hand on.

    Args:
        layers: The layers that are read, ascending.
        depth: L.
        summed: [B, T] bool, the positions that ReBA sums over.
        bounds: First and end of the content tokens of ReBA's vector, [B, 1] each; None: no ReBA.
    """

    def __init__(self, layers: Sequence[int], depth: int, summed: Tensor, bounds: tuple[Tensor, Tensor] | None) -> None:
        self.layers, self.depth, self.summed, self.bounds = layers, depth, summed, bounds
        self.states: list[Tensor] = []
        # By layer, the weights [B, 2, T] of ReBA's mean and last.
        self.weights: dict[int, Tensor] = {}

    def begin(self, state: Any) -> None:
        def see(index: int, entered: Tensor, hidden: Tensor, again: Any) -> Tensor:
            if index == 0 and self.layers[0] == 0:
                self.states.append(entered)
            if index + 1 in self.layers:
                self.states.append(hidden)
                if self.bounds is not None:
                    self.weights[index + 1] = self._so_far(state.capture)
            # All pass what follows the layers, the final norm, side by side in the batch.
            return torch.cat(self.states) if index + 1 == self.depth else hidden

        state.after_layer.append(see)

    def _so_far(self, captured: Any) -> Tensor:
        assert self.bounds is not None
        now = copy.copy(captured)
        now.maxima = list(captured.maxima)
        rows: Tensor = now.rows() * self.summed[:, None]
        if rows.shape[1] == 1:
            return rows.expand(-1, 2, -1)
        first, end = self.bounds
        token = torch.arange(rows.shape[1], device=rows.device)
        chosen = torch.stack([(token >= first) & (token < end), token == end - 1], dim=1).to(rows.dtype)
        return torch.bmm(chosen / chosen.sum(dim=2, keepdim=True), rows)

    def finish(self, state: Any, hidden: Tensor) -> Tensor:
        self.states = list(hidden.reshape(len(self.layers), -1, *hidden.shape[1:]).unbind())
        return self.states[-1]


def _bounds(features: dict[str, Any], parts: Sequence[tuple[int, int]] | None) -> tuple[Tensor, Tensor]:
    """First and end of the content tokens that a vector is of, [B, 1] each."""
    counts = [span.length for span in features["spans"]]
    pairs = [(0, count) for count in counts] if parts is None else list(parts)
    for (first, end), count in zip(pairs, counts, strict=True):
        if not 0 <= first < end <= count:
            raise ValueError(f"parts: tokens {first} to {end} are not among the {count} tokens of the text, as cut.")
    both = torch.tensor(pairs, device=features["copy_ids"].device)
    return both[:, :1], both[:, 1:]


def _pooled(
    features: dict[str, Any], copies: int, watch: _Watch, readouts: Sequence[Readout], bounds: tuple[Tensor, Tensor]
) -> dict[Readout, Tensor]:
    inside = features["copy_ids"] == copies
    token, (first, end) = inside.cumsum(dim=1) - 1, bounds
    totals = torch.tensor([[span.total] for span in features["spans"]], device=inside.device)
    chosen = [
        inside & (token >= first) & (token < end),
        inside & (token == end - 1),
        torch.arange(inside.shape[1], device=inside.device) == totals - 1,
    ]
    plain = torch.stack(chosen, dim=1).float()
    plain = plain / plain.sum(dim=2, keepdim=True)
    found: dict[Readout, Tensor] = {}
    for layer, hidden in zip(watch.layers, watch.states, strict=True):
        wanted = {each.pooling for each in readouts if each.layer == layer}
        states = hidden.float()
        for names, weights in ((POOLINGS[:3], plain), (POOLINGS[3:], watch.weights.get(layer))):
            if wanted & set(names) and weights is not None:
                pooled = torch.bmm(weights.float(), states)
                found |= {Readout(layer, name): pooled[:, row] for row, name in enumerate(names) if name in wanted}
    return found


def _on(value: Any, device: torch.device) -> Any:
    return value.to(device) if isinstance(value, Tensor) else value


def _units(vectors: Vectors) -> Vectors:
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12), np.float32)
