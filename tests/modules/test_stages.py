"""What a pass in stages asks of a model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from marks import Base
from pipelines import build, encoded

from st_reba.modules import shared_prefix


def test_a_model_that_keeps_no_states_for_the_next_stage_is_refused(
    base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it is told to share a prefix all the same."""
    monkeypatch.setitem(shared_prefix.STAGE_COST, "cpu", 1)
    model: Any = build(base("llama"), "prompteol", template="Text: {text} Word:")
    monkeypatch.setattr(model[0], "run_pass", lambda *arguments: torch.zeros(1, 1, 32))
    with pytest.raises(ValueError, match="LlamaModel hides the cache of its layers"):
        encoded(model)
