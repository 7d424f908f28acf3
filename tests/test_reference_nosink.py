"""The masks of NoSink's oracle, written out."""

from __future__ import annotations

import pytest
from reference_nosink import visible

MASKS: dict[tuple[str, int, int, int | None], list[str]] = {
    ("forward", 4, 1, None): ["x...", "xx..", "xxx.", "xxxx"],
    ("backward", 4, 1, None): ["xxxx", ".xxx", "..xx", "...x"],
    ("bidirectional", 4, 1, None): ["xxxx", "xxxx", "xxxx", "xxxx"],
    ("nosink-forward", 4, 1, None): ["x...", ".x..", ".xx.", ".xxx"],
    ("nosink-forward", 4, 2, None): ["x...", "xx..", "..x.", "..xx"],
    ("nosink-bidirectional", 4, 1, None): ["xxxx", ".xxx", ".xxx", ".xxx"],
    ("nosink-bidirectional", 4, 2, None): ["xxxx", "xxxx", "..xx", "..xx"],
    # All tokens are among the first m: the rows keep what the kind gives without nosink.
    ("nosink-forward", 2, 5, None): ["x.", "xx"],
    ("nosink-bidirectional", 2, 5, None): ["xx", "xx"],
    ("forward", 4, 1, 2): ["x...", "xx..", ".xx.", "..xx"],
    ("backward", 4, 1, 2): ["xx..", ".xx.", "..xx", "...x"],
    ("bidirectional", 4, 1, 2): ["xx..", "xxx.", ".xxx", "..xx"],
    ("nosink-forward", 4, 1, 2): ["x...", ".x..", ".xx.", "..xx"],
    ("nosink-bidirectional", 4, 1, 2): ["xx..", ".xx.", ".xxx", "..xx"],
    ("nosink-bidirectional", 5, 2, 3): ["xxx..", "xxxx.", "..xxx", "..xxx", "..xxx"],
}


@pytest.mark.parametrize(("kind", "length", "m", "window"), MASKS)
def test_visible(kind: str, length: int, m: int, window: int | None) -> None:
    rows = [[cell == "x" for cell in row] for row in MASKS[kind, length, m, window]]
    assert visible(kind, length, m, window).tolist() == rows
