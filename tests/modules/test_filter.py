"""The record of a filter: what it may say, and that it opens no file."""

from __future__ import annotations

from typing import Any, cast

import pytest

from st_reba.modules.filter import Filter
from st_reba.modules.stages import stages_of


def test_the_record() -> None:
    good = {"kind": "abtt", "r": 3, "texts": 200, "sha256": "0" * 64}
    stage = Filter.of(good)
    assert stage.to_dict() == good and stages_of([{"filter": good}]) == (stage,)
    for changed, message in (
        ({"kind": None}, "filter: kind is missing"),
        ({"kind": "center"}, "filter: r=3 belongs to"),
        ({"texts": -1}, "filter: texts=-1"),
        ({"seed": 1.5}, "filter: seed=1.5"),
        ({"sha256": "G" * 64}, "filter: sha256="),
        ({"more": 1}, "filter: more"),
        ({"file": "one.safetensors"}, "filter: kind='abtt': the file 'one.safetensors' says what the filter is"),
    ):
        with pytest.raises(ValueError, match=message):
            Filter.of({**good, **changed})
    # A saved model holds the filter itself, so a file that one names is never opened.
    with pytest.raises(ValueError, match="filter: file='one.safetensors'.*st_reba.build"):
        Filter(file="one.safetensors").bind(cast(Any, None))
