"""What the page is opened with: names are read, and mistakes told before anything is loaded."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from st_reba.explore.names import DEFAULT, MOST_MODELS, base_and_method, check_language, checked, on_this_machine


def test_names_lose_their_spare_spaces() -> None:
    assert checked(["mini  echo:pooling=mean", " mini "]) == ["mini echo:pooling=mean", "mini"]
    assert checked(DEFAULT) == list(DEFAULT)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], f"you named 0 models, and the page shows 1 to {MOST_MODELS}"),
        (["mini"] * 7, "you named 7 models"),
        (["mini echo", "mini  echo"], "MODEL 'mini echo' is given twice"),
        (["mini ehco"], "Did you mean 'echo'"),
        (["mini echo:poling=mean"], "Did you mean 'pooling'"),
    ],
)
def test_mistakes(names: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        checked(names)


def test_a_language_that_the_page_does_not_speak() -> None:
    check_language(None)
    check_language("zh")
    with pytest.raises(ValueError, match="language.*choose from"):
        check_language("de")


def test_what_is_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder may have a space in its name, or that of an embedded model."""
    monkeypatch.chdir(tmp_path)
    for folder in ("my model", "mini"):
        Path(folder).mkdir()
    assert base_and_method("my model") == ("my model", "")
    assert base_and_method("mini echo") == ("mini", "echo")
    Path("recipe.yaml").touch()
    found = [on_this_machine(name) for name in ("my model", "recipe.yaml", "mini echo", "org/model reba")]
    assert found == [True, True, False, False]
