"""Passages cover their text, overlap as asked, and need a tokenizer that says where its tokens stand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from contents import LONG
from tiny import tiny_model
from transformers import PreTrainedTokenizerFast

from st_reba.corpus import encode_corpus
from st_reba.corpus.passages import cutter, parse_passages


@pytest.mark.parametrize("passages", ["8:3", "8", "1", "12:11"])
@pytest.mark.parametrize("spaces", [True, False], ids=["spaces belong to tokens", "spaces are dropped"])
def test_passages_cover_the_text_and_overlap(model: Any, passages: str, spaces: bool) -> None:
    if not spaces:
        fast: Any = PreTrainedTokenizerFast
        model = SimpleNamespace(tokenizer=fast(tokenizer_object=tiny_model().tokenizer, unk_token="[UNK]"))
    size, overlap = parse_passages(passages) or (0, 0)
    (bounds,) = cutter(model, passages)([LONG])
    starts, stops = bounds[::2], bounds[1::2]
    assert starts[0] == 0 and stops[-1] == len(LONG)
    assert all(start <= stop for start, stop in zip(starts[1:], stops[:-1], strict=True)), "nothing between them"
    # A character of several tokens may be cut through: it then belongs to the later passage, or to both.
    places = model.tokenizer([LONG], add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"][0]
    plain = [number for number, place in enumerate(places) if places.count(place) == 1]
    first, last = range(0, len(places) - size, size - overlap), len(places) - size
    for bound, (start, stop) in zip([*first, last], zip(starts, stops, strict=True), strict=True):
        tokens = [number for number in plain if start <= places[number][0] and places[number][1] <= stop]
        assert tokens == [number for number in plain if bound <= number < bound + size]


def test_passages_that_cannot_be(tmp_path: Path) -> None:
    for passages in ("0", "8:8", "a", "8:-1", "8:2:1", ""):
        with pytest.raises(ValueError, match="passages='.*give the tokens"):
            encode_corpus(tiny_model(), ["cat"], tmp_path / "c", passages=passages)
    with pytest.raises(ValueError, match="passages='8' needs a tokenizer that says where"):
        encode_corpus(tiny_model(), ["cat"], tmp_path / "c", passages="8")
    assert not (tmp_path / "c").exists()
