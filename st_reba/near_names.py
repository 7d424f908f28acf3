"""Names that somebody may have meant who mistyped the name of a base or a model."""

from __future__ import annotations

import os
from difflib import get_close_matches
from pathlib import Path

from .bases import EMBEDDED
from .packaged import PACKAGED
from .recipe import recipe, zoo

# Between "mini" and "mnii"; between words that only share some letters, it is lower.
_LEAST_SIMILARITY = 0.7
_MOST_SUGGESTIONS = 3


def suggest_bases(name: str) -> str:
    """Ask whether a base of the package, of the zoo or of the same folder was meant.

    Args:
        name: A base that could not be loaded.

    Returns:
        A question with a space behind it; "": nothing has such a name, or the base is there.

    Example:
        >>> suggest_bases("mnii"), suggest_bases("smolm2"), suggest_bases("no/such-name")
        ("Did you mean 'mini'? ", "Did you mean 'smollm2'? ", '')
    """
    spelling_of_name: dict[str, str] = {}
    for package_name in (*EMBEDDED, *PACKAGED):
        spelling_of_name[package_name] = package_name
    for zoo_name in zoo():
        spelling_of_name[zoo_name] = f"zoo:{zoo_name}"
        hub_id = recipe(zoo_name).base
        spelling_of_name[hub_id] = hub_id
    for neighbour_path in _list_neighbours(name):
        spelling_of_name[neighbour_path] = neighbour_path
    return _ask_for(name, spelling_of_name)


def suggest_models(name: str) -> str:
    """Ask whether a saved model of the same folder was meant, as `suggest_bases` does.

    Example:
        >>> Path("my_model").mkdir()
        >>> suggest_models("my_modle"), suggest_models("my_model")
        ("Did you mean 'my_model'? ", '')
    """
    neighbour_paths = _list_neighbours(name)
    return _ask_for(name, dict(zip(neighbour_paths, neighbour_paths, strict=True)))


def _list_neighbours(name: str) -> list[str]:
    """Folders and GGUF files beside the path that a name may be."""
    parent_folder = Path(name).parent
    try:
        siblings = sorted(parent_folder.iterdir())
    except (OSError, ValueError):  # no folder, or no name of one
        return []
    neighbour_paths: list[str] = []
    for sibling in siblings:
        if sibling.is_dir() or sibling.suffix == ".gguf":
            neighbour_paths.append(str(sibling))
    return neighbour_paths


def _ask_for(name: str, spelling_of_name: dict[str, str]) -> str:
    if os.path.exists(name):
        return ""
    near_names = get_close_matches(
        name,
        spelling_of_name,
        _MOST_SUGGESTIONS,
        _LEAST_SIMILARITY,
    )
    if not near_names:
        return ""
    quoted_names = " or ".join(repr(spelling_of_name[near_name]) for near_name in near_names)
    return f"Did you mean {quoted_names}? "
