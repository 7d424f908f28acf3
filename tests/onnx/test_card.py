"""The card of an exported folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from marks import Base
from pipelines import build

from st_reba import TokenPart
from st_reba.hub import save
from st_reba.onnx.card import write_graph_card
from st_reba.onnx.graph import EmbeddingGraph

WARNING = "(u above) are made of the 240 tokens that are read, with special\n  tokens."


@pytest.mark.parametrize("has_tokens", [True, False])
@pytest.mark.parametrize("has_limit", [True, False])
def test_a_card_tells_where_texts_that_are_cut_differ(
    base: Base, tmp_path: Path, *, has_tokens: bool, has_limit: bool
) -> None:
    model: Any = build(base("llama"), "classical", check=False)
    if has_limit:
        model[0].tokenizer.model_max_length = 240
    else:
        model[0].tokenizer.model_max_length = int(1e30)
        model[0].config.max_position_embeddings = 0
    if has_tokens:
        model.append(TokenPart(32, len(model.tokenizer), 32, 3, share=0.4))
    save(model, tmp_path / "model", golden=False)
    graph = EmbeddingGraph(model, "document")
    write_graph_card(model, graph, tmp_path / "model", int8=None, tolerance=1e-4)
    card = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    assert (WARNING in card) == (has_tokens and has_limit)
    assert ("vectors of longer texts differ" in card) == (has_tokens and has_limit)
