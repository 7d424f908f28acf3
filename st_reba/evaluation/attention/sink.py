"""The attention sink, measured: the share of each layer's attention that falls on the first tokens."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer

from ...files import whole_file
from ..figures import save_figure
from .figure import MAX_NAMED, Scale, attention_figure
from .maps import LayerMap, Maps, attention_maps, numbered


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
        top_position: Position, from 0, of the token that gets the largest share.
        top_token: That token; empty where the texts differ there.
        top_share: Its share.
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


def sink_shares(maps: Maps, m: int = 1) -> list[SinkShare]:
    """Measure the sink in each layer of one text.

    Args:
        maps: From :func:`attention_maps`.
        m: Number of sink tokens. One more than a plan hides tells whether the next token has become the sink: its
            ``sink`` is then well above ``even``.

    Returns:
        One row a map: a mean over the queries from position ``m`` on, of each the mean over heads.

    Raises:
        ValueError: No token stands behind the first ``m``.

    Source:
        NoSink, section 3.4; section 3.5, finding 4 (the second token becomes the sink where the first is hidden).

    Example:
        >>> matrix = np.array([[1.0, 0.0, 0.0], [0.75, 0.25, 0.0], [0.25, 0.5, 0.25]], dtype=np.float32)
        >>> (row,) = sink_shares(Maps(("<s>", "a", "b"), (LayerMap(0, "forward", matrix),)))
        >>> row.sink, round(row.even, 3), row.itself, row.top_token
        (0.5, 0.417, 0.25, '<s>')
    """
    return _measure([maps], m)


def sink_table(
    model: SentenceTransformer, texts: Iterable[str], *, prompt: str | None = None, m: int = 1, **kwargs: Any
) -> list[SinkShare]:
    """Measure the sink in each layer, mean over texts, each text counting alike.

    Args:
        model: As for :func:`attention_maps`.
        texts: The texts, run one by one.
        prompt: As for :func:`attention_maps`.
        m: Number of sink tokens.
        **kwargs: As for :func:`attention_maps`.

    Returns:
        One row a map. The most attended position is counted from the start of each text; a text that is too short to
        have it pays it no attention.

    Raises:
        ValueError: There is no text, one of them has no token behind the first ``m``, or as :func:`attention_maps`.

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini", "nosink", setting="inplace-back", k="all")
        >>> {row.sink for row in sink_table(model, ["天气很好", "A good day."])}
        {0.0}
    """
    if isinstance(texts, str):
        raise TypeError("texts is one str; give a list or another iterable of them")
    return _measure((attention_maps(model, text, prompt=prompt, **kwargs) for text in texts), m)


def markdown_table(rows: Sequence[SinkShare], m: int = 1) -> str:
    """The rows as a Markdown table.

    Args:
        rows: From :func:`sink_shares` or :func:`sink_table`.
        m: The number of sink tokens they were measured with.

    Returns:
        A line a row; shares to three digits, and 0 where there is no attention at all.

    Example:
        >>> print(markdown_table([SinkShare(3, "forward", 1, 0.5, 0.125, 0.25, 0, "<s>", 0.5)]))
        | layer | kind | on the first token | if even | on itself | most attended | its share |
        |---|---|---|---|---|---|---|
        | 3 | forward | 0.500 | 0.125 | 0.250 | 0 `<s>` | 0.500 |
    """
    sink = "on the first token" if m == 1 else f"on the first {m} tokens"
    heads = ("layer", "kind", sink, "if even", "on itself", "most attended", "its share")
    lines = [_row(heads), f"|{'---|' * len(heads)}"]
    for row in rows:
        top = f"{row.top_position} {_code(row.top_token)}" if row.top_token else str(row.top_position)
        own, even, itself, share = (
            f"{each:.3f}" if each else "0" for each in (row.sink, row.even, row.itself, row.top_share)
        )
        lines.append(_row((numbered(row.layer, row.run), row.kind, own, even, itself, top, share)))
    return "\n".join(lines)


def report(
    model: SentenceTransformer,
    text: str,
    out: str | os.PathLike[str],
    *,
    prompt: str | None = None,
    m: int = 1,
    scale: Scale = "log",
    **kwargs: Any,
) -> str:
    """Draw a text's attention and measure the sink: write ``attention.png`` and ``attention.csv``.

    Args:
        model: As for :func:`attention_maps`.
        text: The text.
        out: The folder to write into; made where it is not there. These two files in it are replaced.
        prompt: As for :func:`attention_maps`.
        m: As for :func:`sink_shares`.
        scale: As for :func:`draw`.
        **kwargs: As for :func:`attention_maps`.

    Returns:
        The table as Markdown and, of a text that is short enough, which token stands where.

    Raises:
        ValueError: As :func:`attention_maps`, :func:`sink_shares` and :func:`draw`; nothing is written then.
        ImportError: matplotlib is not installed.

    Example:
        >>> import st_reba
        >>> table = report(st_reba.build("mini"), "天气很好", "maps")
        >>> sorted(os.listdir("maps")), table.splitlines()[0].split(" | ")[2]
        (['attention.csv', 'attention.png'], 'on the first token')
    """
    maps = attention_maps(model, text, prompt=prompt, **kwargs)
    rows = sink_shares(maps, m)
    figure = attention_figure(maps, scale)
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    save_figure(figure, folder / "attention.png")
    lines = io.StringIO()
    writer = csv.DictWriter(lines, [field.name for field in fields(SinkShare)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    with whole_file(folder / "attention.csv") as stream:
        stream.write(lines.getvalue().encode())
    table = markdown_table(rows, m)
    if len(maps.tokens) > MAX_NAMED:
        return table
    return f"{table}\n\nTokens: {', '.join(f'{place} {_code(token)}' for place, token in enumerate(maps.tokens))}"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _code(token: str) -> str:
    """Markdown code that may stand in a table."""
    escaped = token.replace("|", "\\|")
    return f"`` {escaped} ``" if "`" in token else f"`{escaped}`"


def _measure(texts: Iterable[Maps], m: int) -> list[SinkShare]:
    if isinstance(m, bool) or not isinstance(m, int) or m < 1:
        raise ValueError(f"m={m!r} must be a whole number from 1 on.")
    count = 0
    layers: Sequence[LayerMap] = ()
    names: list[set[str]] = []
    # Sums over texts, [layers, T] and [layers, 2].
    received, others = np.zeros((0, 0)), np.zeros((0, 2))
    for maps in texts:
        length = len(maps.tokens)
        if length <= m:
            raise ValueError(
                f"A text takes {length} tokens, {' '.join(maps.tokens)!r:.80}, so none stands behind the first {m} to "
                "look at them. Give a longer text."
            )
        if not count:
            layers, received, others = maps.layers, np.zeros((len(maps.layers), 0)), np.zeros((len(maps.layers), 2))
        count += 1
        received = np.pad(received, ((0, 0), (0, max(0, length - received.shape[1]))))
        for row, layer in enumerate(maps.layers):
            behind = layer.matrix[m:]
            received[row, :length] += behind.mean(axis=0, dtype=np.float64)
            seen = behind > 0
            even = seen[:, :m].sum(axis=1) / seen.sum(axis=1).clip(min=1)
            others[row] += even.mean(), np.diagonal(layer.matrix)[m:].mean(dtype=np.float64)
        names += [set() for _ in range(length - len(names))]
        for known, token in zip(names, maps.tokens, strict=False):
            known.add(token)
    if not count:
        raise ValueError("There are no texts to measure: the input is empty.")
    measured = []
    for layer, shares, (even, itself) in zip(layers, received / count, others / count, strict=True):
        top = int(shares.argmax())
        measured.append(
            SinkShare(
                layer.layer,
                layer.kind,
                layer.run,
                sink=float(shares[:m].sum()),
                even=float(even),
                itself=float(itself),
                top_position=top,
                top_token=next(iter(names[top])) if len(names[top]) == 1 else "",
                top_share=float(shares[top]),
            )
        )
    return measured
