"""Vectors of many layers and poolings from one forward pass; methods with the same input and masks share it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..encode import DEFAULT_BATCH_TOKENS, copied_positions, encode_texts, token_batches
from ..methods import Method
from ..modules import PromptEnsemble
from ..modules.capture import Capture
from ..modules.layers import watch_layers
from ..modules.outputs import watch_attention
from ..settings import masks_of

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

Vectors = NDArray[np.float32]
Progress = Callable[[int, int], object]
# "mean" and "last" are of the last copy's content, "end" is the very last position.
POOLINGS = ("mean", "last", "end", "reba-mean", "reba-last")
# Numbers of hidden states, of all layers that are read, that a batch may hold.
_MOST_NUMBERS = 1 << 25


class Readout(NamedTuple):
    """One layer of a pass, pooled.

    Args:
        layer: 1 to L; 0: the embeddings, of which there is no ReBA.
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
    from ..build import build

    return build(base, "classical", pooling="mean", check=False, **loading)


def of_base(base: SentenceTransformer, method: Method, **options: Any) -> SentenceTransformer:
    """Build a method on the weights of an opened base; nothing is copied."""
    from ..build import build

    transformer: Any = base[0]
    length = (transformer.recipe or {}).get("max_seq_length")
    given = {"max_seq_length": length} if length is not None and method.max_seq_length is None else {}
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
            its tokens in the last copy, ReBA's mean over their e_i. Only for methods of one template that share passes.
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
        readouts = {method: readout_of(method, transformer.depth) for method in group}
        if parts is not None and (readouts[first] is None or first.templates is not None):
            raise ValueError(f"{first}: words have no vector here. Use st_reba.encode_words.")
        if readouts[first] is None:
            found[first] = np.asarray(encode_texts(model, unique, **options), np.float32)
            if progress is not None:
                progress(len(unique), len(unique))
        else:
            wanted = [each for each in dict.fromkeys(readouts.values()) if each is not None]
            made = gathered(read(model, wanted, unique, parts=parts, progress=progress, **options), len(unique))
            found |= {method: made[each] for method, each in readouts.items() if each is not None}
    for method in methods:
        found[method] = _units(found[method]) if method.normalize else found[method]
        if method.filter is not None:
            found[method] = np.asarray(Filter.load(method.filter).apply(found[method]), np.float32)
            found[method] = _units(found[method]) if method.normalize else found[method]
    if len(unique) < len(texts):
        place = {text: row for row, text in enumerate(unique)}
        rows = [place[text] for text in texts]
        found = {method: each[rows] for method, each in found.items()}
    return {method: found[method] for method in methods}


def readout_of(method: Method, depth: int) -> Readout | None:
    """What a method reads of its pass, of a base with L layers (``depth``); None: its model has to run by itself.

    Example:
        >>> readout_of(Method("reba", pooling="mean"), 6), readout_of(Method("prompteol", layer=-2), 6)
        (Readout(layer=6, pooling='reba-mean', first=None), Readout(layer=5, pooling='end', first=None))
    """
    plain = method.implementation == "paper" and method.chunk is None and method.pooled is None
    plain = plain and not method.include_special and not method.normalize_weights and method.final_norm
    pooling, outputs = method.sentence_pooling, method.read == "attention"
    if not plain or pooling == "cls" or (method.name == "reba" and outputs):
        return None
    given = method.layer if method.layer is not None else (depth // 2 + 1, depth) if outputs else depth
    if isinstance(given, tuple) and not outputs:
        return None
    first, layer = (int(each) % (depth + 1) for each in (given if isinstance(given, tuple) else (given, given)))
    if layer == 0 or (method.setting is not None and _masks(method, layer) is None):
        return None
    name = {"reba": f"reba-{pooling}", "prompteol": "end"}.get(method.name, pooling)
    return Readout(layer, name, first if outputs else None)


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
    layout = method.layout
    copies = None if layout is not None else method.repeats or 2 if method.name in ("reba", "echo") else 1
    joined = None if method.templates is None else (method.template_weights, method.equal_norms)
    m = 1 if method.setting is None else method.m
    return repr(layout), copies, joined, method.instruction, method.compute_matched, method.max_seq_length, m


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
        model: Of :func:`st_reba.build`, no layers that run twice; its pooling is not used, its PromptEnsemble is.
        readouts: What to read.
        texts, task, prompt, parts, batch_tokens, progress: As for :func:`vectors`.

    Yields:
        Rows of ``texts``, and by readout their vectors, [B, d] float32 on the model's device, not scaled.
    """
    transformer: Any = model[0]
    layers = sorted({each.layer for each in readouts})
    if (
        not layers
        or layers[0] < 0
        or layers[-1] > transformer.depth
        or {each.pooling for each in readouts} - {*POOLINGS}
    ):
        raise ValueError(f"readouts: layers are 0 to {transformer.depth}, poolings {', '.join(POOLINGS)}.")
    reba = {each.pooling for each in readouts if each.pooling.startswith("reba")}
    capture = None if not reba else Capture("last" if reba == {"reba-last"} and parts is None else "copy")
    lengths = positions(transformer, texts, task=task, prompt=prompt)
    width = int(getattr(transformer.config.get_text_config(), "hidden_size", 1024))
    budget = max(1, min(batch_tokens, _MOST_NUMBERS // (width * len(layers))))
    watch_layers(transformer.model)
    if any(each.first is not None for each in readouts):
        watch_attention(transformer.model)
    join = next((each for each in model if isinstance(each, PromptEnsemble)), None)
    model.eval()
    for batch in token_batches(lengths, budget):
        features = transformer.preprocess([texts[row] for row in batch], prompt=prompt, task=task)
        features = {name: _on(each, transformer.model.device) for name, each in features.items()}
        watch = _Watch(readouts, transformer, features, None if parts is None else [parts[row] for row in batch])
        before, transformer.reader = transformer.reader, watch
        try:
            with torch.inference_mode():
                transformer(features, capture=capture)
                found = watch.pooled()
                if join is not None:
                    found = {
                        each: join({"sentence_embedding": row})["sentence_embedding"] for each, row in found.items()
                    }
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
    """A part of a pass, in the place of a transformer's reader: it pools what several layers hand on.

    Args:
        readouts: What to pool.
        transformer: The module that runs.
        features: Of its ``preprocess``, on its device.
        parts: As for :func:`vectors`, of this batch.
    """

    def __init__(
        self, readouts: Sequence[Readout], transformer: Any, features: dict[str, Any], parts: Any = None
    ) -> None:
        self.readouts, self.depth = readouts, transformer.depth
        self.layers = sorted({each.layer for each in readouts if each.first is None})
        self.summed = features["copy_ids"] > 0  # [B, T], the positions that ReBA sums over
        counts = [span.length for span in features["spans"]]
        pairs = [(0, count) for count in counts] if parts is None else list(parts)
        for (first, end), count in zip(pairs, counts, strict=True):
            if not 0 <= first < end <= count:
                raise ValueError(f"parts: tokens {first} to {end} are not among the {count} of the text, as cut.")
        # First and end of the content tokens that a vector is of, [B, 1] each.
        both = torch.tensor(pairs, device=self.summed.device)
        self.first, self.end = both[:, :1], both[:, 1:]
        inside = features["copy_ids"] == transformer.copies
        totals = torch.tensor([[span.total] for span in features["spans"]], device=inside.device)
        chosen = [*self._of_tokens(inside.cumsum(dim=1) - 1, inside), self._places() == totals - 1]
        self.plain = _means(torch.stack(chosen, dim=1))  # [B, 3, T]: mean, last, end
        self.states: list[Tensor] = []
        self.weights: dict[int, Tensor] = {}  # by layer, [B, 2, T]: ReBA's mean and last
        self.sums = {each.first: torch.zeros(()) for each in readouts if each.first is not None}
        self.outputs: dict[tuple[int | None, int], Tensor] = {}  # by first and last layer, [B, 3, d]

    def begin(self, state: Any) -> None:
        def see(index: int, entered: Tensor, hidden: Tensor, again: Any) -> Tensor:
            if index == 0 and 0 in self.layers:
                self.states.append(entered)
            if index + 1 in self.layers:
                self.states.append(hidden)
                if state.capture is not None:
                    self.weights[index + 1] = self._so_far(state.capture)
            # All pass what follows the layers, the final norm, side by side in the batch.
            return torch.cat(self.states) if index + 1 == self.depth and self.states else hidden

        def add(index: int, output: Tensor) -> None:
            pooled = torch.bmm(self.plain, output.float())
            for first, total in self.sums.items():
                if first <= index + 1:
                    self.sums[first] = total.to(pooled.device) + pooled
                    self.outputs[first, index + 1] = self.sums[first] / (index + 2 - first)

        state.after_layer.append(see)
        if self.sums:
            state.after_attention.append(add)

    def finish(self, state: Any, hidden: Tensor) -> Tensor:
        if self.states:
            self.states = list(hidden.reshape(len(self.layers), -1, *hidden.shape[1:]).unbind())
        return self.states[-1] if self.states else hidden

    def pooled(self) -> dict[Readout, Tensor]:
        """The vectors of each readout, [B, d] float32."""
        found: dict[Readout, Tensor] = {}
        for layer, hidden in zip(self.layers, self.states, strict=True):
            mine = [each for each in self.readouts if each.layer == layer and each.first is None]
            for names, weights in ((POOLINGS[:3], self.plain), (POOLINGS[3:], self.weights.get(layer))):
                if weights is not None and any(each.pooling in names for each in mine):
                    rows = torch.bmm(weights.float(), hidden.float())
                    found |= {each: rows[:, names.index(each.pooling)] for each in mine if each.pooling in names}
        outputs = [each for each in self.readouts if each.first is not None]
        return found | {each: self.outputs[each.first, each.layer][:, POOLINGS.index(each.pooling)] for each in outputs}

    def _places(self) -> Tensor:
        return torch.arange(self.summed.shape[1], device=self.summed.device)

    def _of_tokens(self, token: Tensor, inside: Tensor | bool = True) -> list[Tensor]:
        """Which places hold the content tokens of a vector, and the last of them, [B, T] each."""
        return [inside & (token >= self.first) & (token < self.end), inside & (token == self.end - 1)]

    def _so_far(self, captured: Any) -> Tensor:
        """ReBA's weights by the layers that have run."""
        now = copy.copy(captured)
        now.maxima = list(captured.maxima)
        rows: Tensor = now.rows() * self.summed[:, None]
        if rows.shape[1] == 1:
            return rows.expand(-1, 2, -1)
        chosen = torch.stack(self._of_tokens(torch.arange(rows.shape[1], device=rows.device)), dim=1)
        return torch.bmm(_means(chosen).to(rows.dtype), rows)


def _means(chosen: Tensor) -> Tensor:
    """Weights of means over what is chosen in the last dimension, float32."""
    return chosen.float() / chosen.sum(dim=-1, keepdim=True)


def _on(value: Any, device: torch.device) -> Any:
    return value.to(device) if isinstance(value, Tensor) else value


def _units(vectors: Vectors) -> Vectors:
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12), np.float32)
