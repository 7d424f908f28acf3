"""Weights that stay with the base: what is saved in their place, and how they are found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from oracle import TEXTS
from pipelines import features_of, transformer

from st_reba import RepeatTransformer
from st_reba.modules.at_base import base_of, left_at_base, looked_for

Base = Callable[..., str]


def test_saved_without_weights_it_loads_those_of_its_base(base: Base, tmp_path: Path) -> None:
    path = base("qwen3")
    first: Any = transformer(path, "echo", max_seq_length=100)
    with left_at_base(first, path, None):
        first.save(str(tmp_path / "left"))
    names = {file.name for file in (tmp_path / "left").iterdir()}
    assert {"config.json", "sentence_bert_config.json", "st_reba_at_base.py"} <= names
    assert not [name for name in names if "token" in name or name.endswith("safetensors")]
    # Behind the block weights are saved again, and no code for those that stay elsewhere.
    first.save(str(tmp_path / "whole"))
    whole = {file.name for file in (tmp_path / "whole").iterdir()}
    assert {"model.safetensors", "tokenizer.json"} <= whole and "st_reba_at_base.py" not in whole
    loaded: Any = RepeatTransformer.load(str(tmp_path / "left"))
    assert loaded.max_seq_length == 100
    features = features_of([first], TEXTS)  # type: ignore[arg-type]
    with torch.inference_mode():
        assert torch.equal(loaded(features)["token_embeddings"], first(features)["token_embeddings"])


def test_what_is_asked_of_the_base() -> None:
    """Its own revision and root, no pickle, and the number type of who loads it rather than the file's."""
    asked: dict[str, Any] = {
        "model_kwargs": {"subfolder": "0", "revision": "x", "dtype": "float32", "torch_dtype": "bfloat16"},
        "processor_kwargs": None,
    }
    assert base_of("folder", "org/base", "abc", asked) == "org/base"
    own = {"revision": "abc", "subfolder": ""}
    assert asked["model_kwargs"] == {**own, "dtype": "bfloat16", "use_safetensors": True}
    assert asked["processor_kwargs"] == asked["config_kwargs"] == own


def test_the_base_is_what_could_not_be_loaded() -> None:
    message = r"names those of 'org/base' \(revision abc\).*Download that model first.*no such file"
    with pytest.raises(OSError, match=message), looked_for("org/base", "abc"):
        raise OSError("no such file")
    with pytest.raises(ValueError, match="^another$"), looked_for("org/base", "abc"):
        raise ValueError("another")
