"""A part is encoded in batches of alike length, and tells what was run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from contents import TEXTS, vectors_of
from sentence_transformers import SentenceTransformer
from tiny import tiny_model

from st_reba.batches import position_counts
from st_reba.corpus import encode_corpus
from st_reba.corpus.encode import Run
from st_reba.corpus.part import encode_part


def test_batches_are_made_by_positions(model: SentenceTransformer, tmp_path: Path, batches: Any) -> None:
    done = batches()
    texts = ["long " * 200, *["short"] * 20]
    encode_corpus(model, texts, tmp_path / "c", batch_tokens=600, show_progress_bar=False)
    assert done[0] == 1 and sum(done) == 21 and len(done) < 8


def test_a_model_without_padding(tmp_path: Path) -> None:
    """Positions of a bag of words are not counted."""
    bag, run = tiny_model(), Run()
    corpus = encode_corpus(bag, TEXTS, tmp_path / "c", run=run)
    np.testing.assert_allclose(vectors_of(corpus), bag.encode_document(TEXTS), atol=1e-6)
    assert (run.texts, run.positions) == (26, 0)


def test_progress_is_told_batch_by_batch(model: SentenceTransformer, tmp_path: Path) -> None:
    corpus = encode_corpus(model, TEXTS[:9], tmp_path / "c", batch_size=4, show_progress_bar=False)
    before = corpus.vectors_path(0).read_bytes()
    told: list[tuple[int, int]] = []
    texts, positions = encode_part(model, corpus, 0, lambda *progress: told.append(progress))
    counts = position_counts(model, TEXTS[:9], prompt="Text: ", task="document")
    assert counts and (texts, positions) == (9, sum(counts)) and [number for number, _ in told] == [4, 4, 1]
    assert sum(number for _, number in told) == positions and corpus.vectors_path(0).read_bytes() == before
