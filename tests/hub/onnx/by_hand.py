"""The vectors of the graph that conftest.py makes by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from st_reba.hub.golden import GRAPH

# Weights of a token's vector, which the graph multiplies.
TABLE, MATRIX = "table", "matrix"


def vectors_by_hand(folder: Path, texts: list[str]) -> Any:
    """What the folder's graph must give [texts, d]: the mean of the tokens' rows, of length 1."""
    onnx = pytest.importorskip("onnx")
    stored = onnx.load(str(folder / GRAPH)).graph.initializer
    table, matrix = (
        next(onnx.numpy_helper.to_array(each).astype(np.float64) for each in stored if each.name == name)
        for name in (TABLE, MATRIX)
    )
    tokenizer: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    rows = []
    for text in texts:
        vector = sum(table[number] @ matrix for number in tokenizer.encode(text).ids)
        rows.append(vector / np.sqrt(sum(number**2 for number in vector)))
    return np.array(rows)
