"""What layers look at: attention maps of a text, and the share of the attention that falls on its first tokens."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import batch_to_device
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..files import whole_file
from ..modules.capture import AttentionObserver
from ..modules.decoder import DecoderTransformer
from ..modules.stages import current
from ..optional import required
from .figures import new_figure, save_figure

Scale = Literal["linear", "log"]

# Maps of all layers are held at once: 16 MiB each at this length.
MAX_TOKENS = 2048
# More are no longer told apart in a figure, and up to this many are named.
MAX_DRAWN = 512
MAX_NAMED = 24
# The log scale's lower end; what is below has its colour.
FAINTEST = 1e-3


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
        return f"layer {_numbered(self.layer, self.run)}, {self.kind}"


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
    observer = _Maps(length, [n for n, each in types if "attention" in each and "linear" not in each])
    model.eval()
    with torch.inference_mode():
        transformer(features, watch=[observer])
    # A tokenizer may pad even a single text.
    real = slice(features["places"][0][2])
    m = transformer.stack.m if transformer.stack is not None else 1
    runs: Counter[int] = Counter()
    layers = []
    for (layer, kind), padded in zip(observer.calls, observer.matrices, strict=True):
        runs[layer] += 1
        matrix: NDArray[np.float32] = padded[0, real, real].numpy()
        if kind == "forward" and np.triu(matrix, 1).max(initial=0.0) > 1e-6:
            # A plan leaves these layers as they are, and this backbone's look both ways by themselves.
            kind = "bidirectional"
        if kind.startswith("nosink") and m != 1:
            kind += f"({m})"
        layers.append(LayerMap(layer, kind, matrix, runs[layer]))
    tokenizer = transformer.text_tokenizer
    return Maps(tuple(_shown(tokenizer, token) for token in ids[real].tolist()), tuple(layers))


class _Maps(AttentionObserver):
    """Keeps each pass through a layer as one map [B, T, T], mean over heads, and which layer it was and what it saw.

    ``length`` is T, padding included; ``numbers`` are the indices of the layers that have attention, from the bottom.
    """

    def __init__(self, length: int, numbers: Sequence[int]) -> None:
        super().__init__()
        self.length, self.numbers = length, numbers
        self.calls: list[tuple[int, str]] = []
        self.matrices: list[Tensor] = []

    def update(self, probabilities: Tensor, first_query: int) -> None:
        if len(self.matrices) < self.layers:
            # The layer is known only after it has begun.
            self.calls.append(self._call())
            self.matrices.append(torch.zeros(probabilities.shape[0], self.length, self.length))
        queries, keys = probabilities.shape[2:]
        mean = probabilities.detach().mean(dim=1, dtype=torch.float32)
        self.matrices[-1][:, first_query : first_query + queries, :keys] = mean.cpu()

    def _call(self) -> tuple[int, str]:
        run, place = current(), len(self.calls)
        if run is None or run.kinds is None or run.kinds.last is None:
            # Without a plan each layer runs once, in order, as it is.
            return (self.numbers[place] if place < len(self.numbers) else place), "forward"
        module, kind = run.kinds.last
        layer = getattr(module, "layer_idx", None)
        return (layer if isinstance(layer, int) else place), kind


def _shown(tokenizer: PreTrainedTokenizerBase, token: int) -> str:
    """A token as a reader knows it."""
    text = str(tokenizer.decode([token]))
    if "\ufffd" in text or not text:
        # A leading space, or part of a character: its bytes, if the vocabulary names them legibly.
        name = str(tokenizer.convert_ids_to_tokens([token])[0]).replace("\u2581", "\u2423")
        return name if name == "\u2423" or (name and name.isascii()) else f"#{token}"
    text = text.strip(" ") or "\u2423"
    return text if text.isprintable() else repr(text)[1:-1]


@dataclass(frozen=True)
class SinkShare:
    """Where the attention of one layer goes: a mean over heads, texts, and the queries behind the sink tokens.

    Args:
        layer: The layer's index, from the bottom.
        kind: What it saw.
        run: As for :class:`LayerMap`.
        sink: Share on the first m tokens, 0 to 1.
        even: What that would be if every query looked evenly at all tokens that it sees: in a forward layer early
            tokens get more than late ones even then.
        itself: Share on the query's own token.
        top_position: Position, from 0, of the token that gets the largest share, ``top_share``.
        top_token: That token; empty where the texts differ there.
    """

    layer: int
    kind: str
    run: int
    sink: float
    even: float
    itself: float
    top_position: int
    top_token: str
    top_share: float


def sink_table(texts: Iterable[Maps], m: int = 1) -> list[SinkShare]:
    """Measure the sink in each layer, mean over texts, each text counting alike.

    Args:
        texts: The maps of each, from :func:`attention_maps`; a generator needs the memory of one text.
        m: Number of sink tokens. One more than a plan hides tells whether the next token has become the sink: its
            ``sink`` is then well above ``even``.

    Returns:
        One row a map: a mean over the queries from position ``m`` on, of each the mean over heads. The most attended
        position is counted from the start of each text; a text that is too short to have it pays it no attention.

    Raises:
        ValueError: There is no text, or one of them has no token behind the first ``m``.

    Source:
        NoSink, section 3.4; section 3.5, finding 4 (the second token becomes the sink where the first is hidden).

    Example:
        >>> matrix = np.array([[1.0, 0.0, 0.0], [0.75, 0.25, 0.0], [0.25, 0.5, 0.25]], dtype=np.float32)
        >>> (row,) = sink_table([Maps(("<s>", "a", "b"), (LayerMap(0, "forward", matrix),))])
        >>> row.sink, round(row.even, 3), row.itself, row.top_token
        (0.5, 0.417, 0.25, '<s>')
    """
    if isinstance(m, bool) or not isinstance(m, int) or m < 1:
        raise ValueError(f"m={m!r} must be a whole number from 1 on.")
    layers: Sequence[LayerMap] = ()
    tokens, shares, others = [], [], []
    for maps in texts:
        if len(maps.tokens) <= m:
            raise ValueError(
                f"A text takes {len(maps.tokens)} tokens, {' '.join(maps.tokens)!r:.80}, so none stands behind the "
                f"first {m} to look at them. Give a longer text."
            )
        layers = maps.layers
        tokens.append(maps.tokens)
        shares.append(np.array([layer.matrix[m:].mean(axis=0, dtype=np.float64) for layer in layers]))
        others.append([_even_and_own(layer.matrix, m) for layer in layers])
    if not tokens:
        raise ValueError("There are no texts to measure: the input is empty.")
    longest = max(map(len, tokens))
    received = np.mean([np.pad(each, ((0, 0), (0, longest - each.shape[1]))) for each in shares], axis=0)
    measured = []
    for layer, mean, (even, itself) in zip(layers, received, np.mean(others, axis=0), strict=True):
        top = int(mean.argmax())
        there = {each[top] for each in tokens if top < len(each)}
        own = float(mean[:m].sum()), float(even), float(itself)
        name = there.pop() if len(there) == 1 else ""
        measured.append(SinkShare(layer.layer, layer.kind, layer.run, *own, top, name, float(mean[top])))
    return measured


def _even_and_own(matrix: NDArray[np.float32], m: int) -> tuple[float, float]:
    """What the first m tokens would get if all that is seen got alike, and what queries give to themselves."""
    seen = matrix[m:] > 0
    even = seen[:, :m].sum(axis=1) / seen.sum(axis=1).clip(min=1)
    return float(even.mean()), float(np.diagonal(matrix)[m:].mean(dtype=np.float64))


def markdown_table(rows: Sequence[SinkShare], m: int = 1) -> str:
    """The rows of :func:`sink_table` in Markdown; shares to three digits, 0 where there is no attention at all.

    Example:
        >>> print(markdown_table([SinkShare(3, "forward", 1, 0.5, 0.125, 0.25, 0, "<s>", 0.5)]))
        | layer | kind | on the first token | if even | on itself | most attended | its share |
        | --- | --- | --- | --- | --- | --- | --- |
        | 3 | forward | 0.500 | 0.125 | 0.250 | 0 `<s>` | 0.500 |
    """
    sink = "on the first token" if m == 1 else f"on the first {m} tokens"
    lines = [["layer", "kind", sink, "if even", "on itself", "most attended", "its share"], ["---"] * 7]
    for row in rows:
        top = f"{row.top_position} {code(row.top_token)}" if row.top_token else str(row.top_position)
        shares = [f"{each:.3f}" if each else "0" for each in (row.sink, row.even, row.itself, row.top_share)]
        lines.append([_numbered(row.layer, row.run), row.kind, *shares[:3], top, shares[3]])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def code(token: str) -> str:
    """A token as Markdown code that may stand in a table."""
    escaped = token.replace("|", "\\|")
    return f"`` {escaped} ``" if "`" in token else f"`{escaped}`"


def write_attention(maps: Maps, out: str | os.PathLike[str], *, m: int = 1, scale: Scale = "log") -> list[SinkShare]:
    """Draw a text's attention and measure the sink: write ``attention.png`` and ``attention.csv``.

    Args:
        maps: From :func:`attention_maps`.
        out: The folder, made where it is not there. These two files in it are replaced.
        m: As for :func:`sink_table`, whose rows it returns.
        scale: As for :func:`draw_attention`.

    Raises:
        ValueError: As :func:`sink_table` and :func:`draw_attention`; nothing is written then.
        ImportError: matplotlib is not installed.

    Example:
        >>> import st_reba
        >>> rows = write_attention(attention_maps(st_reba.build("mini"), "天气很好"), "maps")
        >>> sorted(os.listdir("maps")), len(rows)
        (['attention.csv', 'attention.png'], 6)
    """
    rows, figure, folder = sink_table([maps], m), draw_attention(maps, scale), Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    save_figure(figure, folder / "attention.png")
    table = required("pandas", "evaluation").DataFrame(map(asdict, rows))
    with whole_file(folder / "attention.csv") as stream:
        stream.write(table.to_csv(index=False, lineterminator="\n").encode())
    return rows


def draw_attention(maps: Maps, scale: Scale = "log") -> Any:
    """Draw a heat map of each layer, all in one figure on one colour scale from 0 to 1.

    What a query does not see (exactly no attention) stays white. Up to 24 tokens are named; else the axes count
    positions, from 0.

    Args:
        maps: From :func:`attention_maps`.
        scale: ``"log"``, which tells faint attention apart down to 0.001, or ``"linear"``.

    Returns:
        A matplotlib ``Figure``; :func:`st_reba.evaluation.figures.save_figure` writes it, and shows Chinese where a
        font that has it is installed.

    Raises:
        ValueError: An unknown scale, or more than 512 tokens.
        ImportError: matplotlib is not installed.

    Source:
        NoSink, figures 3, 8 and 9.

    Example:
        >>> import st_reba
        >>> figure = draw_attention(attention_maps(st_reba.build("mini", "classical"), "a cat"))
        >>> [label.get_text() for label in figure.axes[0].get_yticklabels()]
        ['<s>', 'a', 'c', 'at']
    """
    if scale not in get_args(Scale):
        raise ValueError(f"scale={scale!r} is not known: choose one of {list(get_args(Scale))}.")
    length, count = len(maps.tokens), len(maps.layers)
    if length > MAX_DRAWN:
        raise ValueError(
            f"The text takes {length} tokens (copies and template included), too many to draw: {MAX_DRAWN} at most. "
            f"Shorten the text, set model.max_seq_length = {MAX_DRAWN}, or measure it alone with sink_table."
        )
    labels = [token if len(token) <= 12 else f"{token[:11]}\u2026" for token in maps.tokens]
    named = length <= MAX_NAMED
    columns = math.ceil(math.sqrt(count))
    lines = math.ceil(count / columns)
    # In inches. A single token's column must be a pixel wide at least, or the sink itself would vanish.
    side, margin = max(2.6, (0.16 if named else 0.01) * length), 0.1 * max(map(len, labels)) if named else 0.3
    figure, grid = new_figure(columns * side + margin + 1.2, lines * (side + 0.15) + margin + 0.4, lines, columns)
    colors = required("matplotlib.colors", "evaluation")
    norm = colors.LogNorm(FAINTEST, 1.0, clip=True) if scale == "log" else colors.Normalize(0.0, 1.0)
    integers = required("matplotlib.ticker", "evaluation").MaxNLocator
    image: Any = None
    for index, axes in enumerate(grid.flat):
        if index >= count:
            axes.set_axis_off()
            continue
        layer = maps.layers[index]
        image = axes.imshow(np.ma.masked_equal(layer.matrix, 0.0), norm=norm, cmap="viridis", interpolation="nearest")
        axes.set_title(str(layer), fontsize=9)
        # Some room, or the frame would cover the first token of a long text.
        edge = 0.5 + 0.015 * length
        axes.set(xlim=(-edge, length - 1 + edge), ylim=(length - 1 + edge, -edge))
        for axis, outer in ((axes.xaxis, index + columns >= count), (axes.yaxis, index % columns == 0)):
            if named:
                upright = {"rotation": "vertical"} if axis is axes.xaxis else {}
                axis.set_ticks(range(length), labels, parse_math=False, **upright)
            else:
                axis.set_major_locator(integers(nbins=6, integer=True))
            axis.set_tick_params(length=2, labelsize=7, labelleft=outer, labelbottom=outer)
            if outer:
                axis.set_label_text("key" if axis is axes.xaxis else "query", fontsize=8)
    bar = figure.colorbar(image, ax=grid, shrink=min(1.0, 1.5 / lines), format="%g")
    faint = f" ({FAINTEST} and less in one colour)" if scale == "log" else ""
    bar.set_label(f"attention, mean over heads{faint}", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    return figure


def _numbered(layer: int, run: int) -> str:
    """A pass through a layer, for readers."""
    return str(layer) if run == 1 else f"{layer} (pass {run})"
