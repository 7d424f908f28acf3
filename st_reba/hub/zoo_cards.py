"""The cards of the zoo's recipes, kept beside the code: written anew, or held against the recipes."""

from __future__ import annotations

from pathlib import Path

from tqdm.auto import tqdm

from .. import zoo
from ..files import whole_file
from .card import TEMPLATE, recipe_card

_KEPT = TEMPLATE.name


def stale_cards(folder: Path) -> dict[str, str | None]:
    """What differs between a folder of cards and the zoo.

    Args:
        folder: Holds a file NAME.md a recipe.

    Returns:
        Names of files that are missing, other than they should be, or of no recipe; and what each should hold (None:
        it should not be there). No base is loaded but the embedded one.
    """
    wanted = {f"{name}.md": recipe_card(zoo.load(name)) for name in tqdm(zoo.names(), desc="Cards", disable=None)}
    found = {path.name: path.read_bytes() for path in sorted(folder.glob("*.md")) if path.name != _KEPT}
    stale: dict[str, str | None] = {
        name: text for name, text in wanted.items() if found.get(name) != text.encode("utf-8")
    }
    return stale | dict.fromkeys(name for name in found if name not in wanted)


def write_cards(folder: Path) -> list[str]:
    """Bring a folder of cards up to date.

    Args:
        folder: Where the cards are; made where it is missing.

    Returns:
        Names of the files that were written or removed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stale = stale_cards(folder)
    for name, text in stale.items():
        if text is None:
            (folder / name).unlink()
            continue
        with whole_file(folder / name) as stream:
            stream.write(text.encode("utf-8"))
    return list(stale)
