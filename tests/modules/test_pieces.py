"""ReBA by pieces against the float64 oracle."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from itertools import cycle, pairwise
from typing import Any

import pytest
import torch
from marks import Base
from oracle import TEXTS, assert_close, double, oracle
from pipelines import build, encoded, features_of
from reference import hidden_and_attention, symmetrized_max
from reference_chunked import Run, chunked_pooled, chunked_tokens, cut

from st_reba.modules import pieces
from st_reba.modules.pieces import ChunkedReBAPooling, cuts


def run_of(path: str) -> Run:
    @cache
    def run(ids: tuple[int, ...]) -> Any:
        hidden, maps = hidden_and_attention(double(path), ids)
        return hidden, symmetrized_max(maps)

    return run


BASES = [("gpt2", 4), ("llama", 3), ("llama", 1), ("gemma2", 7), ("gpt_oss", 64)]
OPTIONS: list[dict[str, Any]] = [{}, {"include_special": True}, {"normalize_weights": True}, {"repeats": 3}] * 2


@pytest.mark.parametrize(("of", "options"), zip(cycle(BASES), OPTIONS, strict=False), ids=str)
def test_pieces(base: Base, of: tuple[str, int], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    name, chunk = of
    path, run = base(name, "bos_eos"), run_of(base(name, "bos_eos"))
    monkeypatch.setattr(pieces, "_POSITIONS", 64)  # several passes
    last, mean = (build(path, pooling=pooling, chunk=chunk, **options) for pooling in ("last", "mean"))
    with torch.inference_mode():
        features = mean[0](features_of(mean), capture=mean[1].token_capture)
        tokens = mean[1].token_vectors(features)
        assert last[1].token_vectors(last[0](features_of(last))).shape[1] == 1, "of the last pieces alone"
    repeats = options.get("repeats", 2)
    special = {key: value for key, value in options.items() if key != "repeats"}
    for text, one, other, rows in zip(TEXTS, encoded(last), encoded(mean), tokens, strict=True):
        placed = oracle(path, text, (None,))[0]
        wanted = chunked_tokens(run, placed, chunk, repeats, **special)
        assert_close(one, chunked_pooled(wanted, "last"))
        assert_close(other, chunked_pooled(wanted, "mean"))
        assert_close(rows[: placed.n], wanted)


def test_positions_that_pieces_take(base: Base) -> None:
    """Those of the longest, wherever its text stands."""
    model: Any = build(base("llama"), chunk=20, check=False)
    features = features_of(model, ["a", "x" * 100])
    sizes = [stop - start for start, stop in pairwise(cuts(features["spans"][1].length, 20))]
    for room in (0, -1):
        model[0].config.max_position_embeddings = 1 + 2 * max(sizes) + room
        with pytest.raises(ValueError, match="chunk=20") if room else nullcontext():
            model(dict(features))


def test_copies_of_a_piece() -> None:
    assert ChunkedReBAPooling(32, chunk=4).repeats == 2 and ChunkedReBAPooling(32, chunk=4, repeats=1).repeats == 1
    with pytest.raises(ValueError, match="repeats=65"):
        ChunkedReBAPooling(32, chunk=4, repeats=65)


def test_cuts() -> None:
    for count in range(1, 40):
        for chunk in range(1, 12):
            assert cuts(count, chunk)[:-1] == [piece.start for piece in cut(count, chunk)]
            assert cuts(count, chunk)[-1] == count
