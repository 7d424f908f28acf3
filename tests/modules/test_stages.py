"""The protocol of stages: their order and names, as they are stored, and the one pass that is the current one."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from stubs import new_pass

from st_reba import Ensemble, LayerPlan, NoSink, Prepend, ReadLayers
from st_reba.modules import Stage
from st_reba.modules.stages import as_stored, current, running, stages_of


def test_stages_have_one_order_however_they_are_given() -> None:
    given: list[Any] = [Prepend(2), NoSink("mask0-bidir", k=1), ReadLayers(3), Ensemble("metaeol")]
    wanted = stages_of(given)
    assert stages_of(given[::-1]) == stages_of(as_stored(wanted)) == stages_of([*as_stored(given[:2]), *given[2:]])
    assert set(wanted) == set(given) and stages_of(None) == stages_of([]) == ()
    # Each does its own thing, so no two of a pipeline have one place.
    assert [stage.order for stage in wanted] == sorted({stage.order for stage in given})
    assert all(Stage.registry[stage.name] is type(stage) for stage in given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        *(
            (each, r"stages=.* must be a list, as \[st_reba.Prepend")
            for each in (3, "layers", LayerPlan(), {"read": {}})
        ),
        *(([each], "must be a stage, or a mapping of its name") for each in (3, None, {"layers": {}, "read": {}}, {})),
        ([{"lairs": {}}], "Did you mean 'layers'"),
        ([{"read": {"layer": 1}}], "Did you mean 'layers'"),
        ([{"read": 3}], "read: 3 must be a mapping"),
        ([LayerPlan(k=1), NoSink()], "'layers' and 'nosink' do the same thing. Keep one"),
    ],
)
def test_what_is_no_stage(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        stages_of(given)


def test_a_pass_is_current_in_its_block_and_thread_alone() -> None:
    outer, inner = new_pass([(0, 2, 2)]), new_pass([(0, 1, 3), (0, 2, 2)])
    assert inner.padded and inner.length == 3 and not outer.padded
    seen: list[object] = []
    with running(outer):
        with pytest.raises(RuntimeError, match="in the midst"), running(inner):
            assert current() is inner
            thread = threading.Thread(target=lambda: seen.append(current()))
            thread.start()
            thread.join()
            raise RuntimeError("in the midst")
        assert current() is outer
    assert current() is None and seen == [None]
