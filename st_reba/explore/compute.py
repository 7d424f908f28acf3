"""Numbers on the page: similarity tables, weights and attention of a text's tokens, results of a search."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import batch_to_device, cos_sim, load_file_path

from ..build import build
from ..evaluation.attention import Maps, attention_maps, sink_table
from ..methods import Method, method_of
from ..modules import RepeatTransformer
from ..modules.capture import Capture
from ..safety import load

Weighting = Literal["last", "mean", "word"]
Hit = tuple[float, str]
"""The cosine of a text that was found (from an index: its score), and the text."""

# Each sentence, position and result becomes a table that has to be read.
MAX_SENTENCES = 12
MAX_DOCUMENTS = 100
MAX_CHARACTERS = 300
MAX_COPIES = 4
MAX_POSITIONS = 192
MAX_RESULTS = 5
# Results of an index, and characters of each, that methods rank anew.
MAX_FOUND = 30
MAX_READ = 1000


class Refused(ValueError):
    """Input that the page does not take; ``key`` is the message in words.yaml, ``values`` its fields."""

    def __init__(self, key: str, **values: Any) -> None:
        super().__init__(f"{key}: {values}")
        self.key, self.values = key, values


def open_model(base: str, method: Method | None, **options: Any) -> SentenceTransformer:
    """Load a saved model; or build one, where the base is none or a method is given."""
    named = method is None and ("/" in base or os.path.isdir(base))
    saved = named and load_file_path(base, "modules.json") is not None
    return load(base, **options) if saved else build(base, method, **options)


def lines_of(text: str, *, least: int, most: int) -> list[str]:
    """Lines of a text, as many and as long as the page takes; else :class:`Refused`."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) < least:
        raise Refused("too_few", count=len(lines), least=least)
    if len(lines) > most:
        raise Refused("too_many", count=len(lines), most=most)
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_CHARACTERS:
            raise Refused("too_long", number=number, count=len(line), most=MAX_CHARACTERS)
    return lines


def similarities(model: SentenceTransformer, texts: Sequence[str]) -> NDArray[np.float32]:
    """Cosines between all texts, [N, N]."""
    vectors = model.encode(list(texts), show_progress_bar=False)
    return np.asarray(cos_sim(vectors, vectors))


@dataclass(frozen=True)
class Inside:
    """One text in a model.

    Args:
        copies: [T] c in copy c, 0 at special and template tokens.
        rows: [n, T] rows of A^new of the n tokens of copy 1, at content positions from the token on; else 0.
        maps: The T tokens, and the attention of every layer.
        sinks: Rows of :func:`st_reba.evaluation.attention.sink_table`.
    """

    copies: list[int]
    rows: NDArray[np.float64]
    maps: Maps
    sinks: list[Any]

    def weights(self, weighting: Weighting, chosen: Sequence[int] = ()) -> NDArray[np.float64]:
        """Weight of each position, [T]: in e_n, in the mean (alpha_t, not yet divided by n), or of a word's tokens."""
        if weighting == "mean":
            return np.asarray(self.rows.sum(axis=0))
        return np.asarray(self.rows[-1] if weighting == "last" else self.rows[list(chosen)].mean(axis=0))


def can_look(model: SentenceTransformer) -> bool:
    """Whether :func:`look` can show a model: it reads texts by one template of ours."""
    return isinstance(model[0], RepeatTransformer) and model[0].rows == 1


def copies_of(model: SentenceTransformer) -> tuple[int, bool]:
    """Number of copies, and whether it can be changed: a template fixes it."""
    first: Any = model[0]
    return int(first.copies), first.template is None and method_of(model) is not None


def passes_of(model: SentenceTransformer) -> int:
    """Number of passes through layers; a layer that runs twice counts twice."""
    first: Any = model[0]
    return int(first.depth + len(getattr(first, "second", None) or ()))


def look(model: SentenceTransformer, text: str, repeats: int) -> Inside:
    """Run a text and keep its backward attention and the attention of every layer (ReBA, 3.3; NoSink, 3.4).

    Args:
        model: A model that :func:`can_look` allows. It stays as it is.
        text: The text.
        repeats: Number of copies, where :func:`copies_of` says that it can be changed.

    Example:
        >>> import st_reba
        >>> inside = look(st_reba.build("mini", "reba"), "天气很好", repeats=2)
        >>> inside.copies, inside.rows.shape, len(inside.maps.layers)
        ([0, 1, 1, 1, 1, 2, 2, 2, 2], (4, 9), 6)
    """
    own, free = copies_of(model)
    prompt = model.prompts.get(model.default_prompt_name or "")
    if repeats != own and free:
        first, method = model[0], method_of(model)
        kept = {name: getattr(method, name) for name in ("max_seq_length", "setting", "k", "k0", "m")}
        model = build(first.model, Method("reba", repeats=repeats, **kept), tokenizer=first.tokenizer, check=False)
    transformer: Any = model[0]
    features = batch_to_device(transformer.preprocess([text], prompt=prompt), model.device)
    span = features["spans"][0]
    if span.total > MAX_POSITIONS:
        raise Refused("too_many_positions", count=span.total, most=MAX_POSITIONS)
    if span.length < (count := len(transformer.content([text])["input_ids"][0])):
        raise Refused("cut", count=count, kept=span.length)
    model.eval()
    with torch.inference_mode():
        captured = transformer(features, capture=Capture("copy"))["backward_attention"]
    copies = features["copy_ids"][0, : span.total].cpu()
    rows = captured[0, :, : span.total].double().cpu().numpy()
    maps = attention_maps(model, text, prompt=prompt)
    return Inside(copies.tolist(), rows, maps, list(sink_table([maps]).itertuples()))


def tokens_of(model: SentenceTransformer, text: str, word: str) -> list[int]:
    """Content tokens, from 0, of the word's first occurrence in the text; else :class:`Refused`."""
    if not (word := word.strip()) or word not in text:
        raise Refused("no_word", word=word)
    first: Any = model[0]
    offsets = first.content([text], offsets=True)["offset_mapping"][0]
    start = text.index(word)
    end = start + len(word)
    return [place for place, (left, right) in enumerate(offsets) if left < end and start < right]


def ranked(model: SentenceTransformer, query: str, texts: Sequence[str]) -> list[Hit]:
    """The texts nearest to a query by cosine, the best first; each as its cosine and the text."""
    documents = model.encode_document([text[:MAX_READ] for text in texts], show_progress_bar=False)
    scores = cos_sim(model.encode_query([query], show_progress_bar=False), documents)[0].tolist()
    return sorted(zip(scores, texts, strict=True), key=lambda hit: -hit[0])[:MAX_RESULTS]
