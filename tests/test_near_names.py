"""A mistyped name of a base or a model is answered by the names that may have been meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import st_reba
from st_reba.hub import verify
from st_reba.near_names import suggest_bases, suggest_models


@pytest.mark.parametrize(
    ("mistyped_name", "suggestion"),
    [
        ("mnii", "Did you mean 'mini'? "),
        ("smolm2", "Did you mean 'smollm2'? "),
        ("google/gemma-3-1b-p", "Did you mean 'google/gemma-3-1b-pt' or "),
        ("mini-ekho", "Did you mean 'zoo:mini-echo'"),
        ("Qwen/Qwen3-0.7B", "Did you mean 'Qwen/Qwen3-1.7B' or 'Qwen/Qwen3-0.6B' or "),
        ("a-name-like-no-other", ""),
        ("Qwen/Qwen3-0.6B", ""),
        ("no-folder/mini\0", ""),
    ],
)
def test_the_nearest_base_is_suggested(mistyped_name: str, suggestion: str) -> None:
    question = suggest_bases(mistyped_name)
    assert question.startswith(suggestion) and bool(question) == bool(suggestion)
    assert question.count(" or ") < 3


def test_a_mistyped_base_is_answered_before_the_network_is_blamed() -> None:
    with pytest.raises(
        OSError,
        match=r"^base='mnii' could not be loaded, .* Did you mean 'mini'\? .*connect",
    ):
        st_reba.build("mnii")


def test_a_mistyped_model_is_answered_by_the_folders_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my_model").mkdir()
    Path("my_model.txt").touch()
    assert suggest_models("my_modle") == "Did you mean 'my_model'? "
    assert suggest_models(str(tmp_path / "my_modle")) == f"Did you mean '{tmp_path / 'my_model'}'? "
    with pytest.raises(
        ValueError,
        match=r"^'my_modle' could not be loaded: Did you mean 'my_model'\? ",
    ):
        st_reba.load("my_modle")


@pytest.mark.parametrize(
    "load", [st_reba.build, st_reba.load, verify], ids=["build", "load", "verify"]
)
def test_a_name_that_the_hub_cannot_have_is_a_folder_that_is_not_there(load: Any) -> None:
    with pytest.raises((OSError, ValueError), match=r"^\S+ could not .* There is no such folder"):
        load("./模型")


def test_a_folder_that_holds_a_model_names_it(tmp_path: Path) -> None:
    """As that of tune does; one with a base is to be built."""
    with pytest.raises(ValueError, match="Name a folder that st-reba build wrote"):
        st_reba.load(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "modules.json").touch()
    with pytest.raises(ValueError, match=r"Name '.*model', which is one\.$"):
        st_reba.load(tmp_path)
    (tmp_path / "config.json").touch()
    with pytest.raises(ValueError, match="Run: st-reba build .* FOLDER"):
        st_reba.load(tmp_path)
