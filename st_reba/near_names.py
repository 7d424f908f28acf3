"""Suggestions for a mistyped name of a base or a model."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined, unused-ignore]

from .bases import BUNDLED
from .packaged import PACKAGED
from .recipe import zoo, zoo_recipe

# Names like "mini" and "mnii" reach it; words that only share some letters do not.
_MIN_SIMILARITY = 0.7
_MAX_SUGGESTIONS = 3


def suggest_bases(name: str) -> str:
    """Ask whether a base of the package, of the zoo or of the same folder was meant.

    Args:
        name: A base that could not be loaded.

    Returns:
        A question and a space; "": no name is near, or there is something of this very name.

    Example:
        >>> suggest_bases("mnii"), suggest_bases("smolm2"), suggest_bases("no/such-name")
        ("Did you mean 'mini'? ", "Did you mean 'smollm2'? ", '')
    """
    zoo_names = {zoo_name: f"zoo:{zoo_name}" for zoo_name in zoo()}
    hub_ids = [zoo_recipe(zoo_name).base for zoo_name in zoo_names]
    known_names = [*BUNDLED, *PACKAGED, *zoo_names, *hub_ids, *_list_neighbours(name)]
    return _ask_for(name, known_names, zoo_names)


def suggest_models(name: str) -> str:
    """Ask whether a saved model of the same folder was meant, as `suggest_bases` does.

    Example:
        >>> Path("my_model").mkdir()
        >>> suggest_models("my_modle"), suggest_models("my_model")
        ("Did you mean 'my_model'? ", '')
    """
    return _ask_for(name, _list_neighbours(name), {})


def describe_failure(name: str, message: str) -> str:
    """Why a name could not be loaded: a library's message, or a shorter one where it is the name's fault.

    Example:
        >>> describe_failure("./model", "Repo id must use alphanumeric chars …")
        'There is no such folder, and no model of the Hub can have this name.'
    """
    if not os.path.exists(name):
        try:
            validate_repo_id(name)
        except HFValidationError:
            return "There is no such folder, and no model of the Hub can have this name."
    return message


def _list_neighbours(name: str) -> list[str]:
    """Folders and GGUF files in the same folder as a name, taken as a path."""
    parent_folder = Path(name).parent
    try:
        siblings = sorted(parent_folder.iterdir())
    except (OSError, ValueError):  # not a folder, or not a possible name of one
        return []
    return [str(path) for path in siblings if path.is_dir() or path.suffix == ".gguf"]


def _ask_for(name: str, known_names: Sequence[str], full_names: Mapping[str, str]) -> str:
    """Ask for the nearest known names, by their full names where these differ."""
    if os.path.exists(name) or name in known_names:
        return ""
    near_names = get_close_matches(name, set(known_names), _MAX_SUGGESTIONS, _MIN_SIMILARITY)
    if not near_names:
        return ""
    quoted_names = " or ".join(repr(full_names.get(near, near)) for near in near_names)
    return f"Did you mean {quoted_names}? "
