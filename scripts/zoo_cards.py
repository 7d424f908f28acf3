"""Write model_cards/: a table of the zoo, and the cards of the models that are built here.

python scripts/zoo_cards.py
python scripts/zoo_cards.py --check     writes nothing; status 1 if a file is stale
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from st_reba import build, zoo  # noqa: E402
from st_reba.hub.card import card_of  # noqa: E402
from st_reba.recipe import Recipe  # noqa: E402

FOLDER = ROOT / "model_cards"
KEPT = "template.md"
PAPERS = {"reba": "ReBA", "echo": "Echo", "nosink": "NoSink"}
HEAD = """# The zoo

Written by `python scripts/zoo_cards.py` from `st_reba/zoo/`. `st-reba zoo NAME` prints a recipe, and
`st-reba build zoo:NAME FOLDER` builds its model. This folder
has the cards of the models that were built here; any other card is written when its model is saved. Scores are the
papers' own and were not measured with these models.

- ready: can be built now. Only the models of the embedded base were built here.
- remote-code: the base needs code from its own repository; `--trust-remote-code` allows it.
- old-transformers: the base's code does not run with the versions of transformers that st_reba needs.
- tune: first find the numbers of layers with `st-reba compose --preset nosink`.

| model | base | method | parameters | language | licence | the paper's score | status |
|---|---|---|---|---|---|---|---|
"""


def row(recipe: Recipe) -> str:
    """A model's line of the table."""
    about = recipe.about
    score = "-"
    if about.scores:
        first = about.scores[0]
        score = f"{first['value']} ({first['task']}, {first['table']} of {PAPERS[str(about.paper)]})"
    elif about.paper:
        score = f"- ({PAPERS[about.paper]})"
    name = f"[{recipe.name}]({recipe.name}.md)" if recipe.base == "mini" else recipe.name
    cells = (name, recipe.base, f"`{method(recipe)}`", about.parameters, " ".join(about.language), about.licence, score)
    return f"| {' | '.join(map(str, cells))} | {about.status} |\n"


def method(recipe: Recipe) -> str:
    """The method in its short form."""
    if recipe.about.status == "ready":
        return re.sub(r"file=[^,+]*/", "file=", str(recipe.spec))  # wherever st_reba is installed
    values = ",".join(f"{name}={value}" for name, value in recipe.values.items() if name != "method")
    return f"{recipe.values['method']}:{values}"


def wanted() -> dict[str, str]:
    """The files of the folder, by name."""
    recipes = [zoo.load(name) for name in zoo.names()]
    files = {"README.md": HEAD + "".join(map(row, recipes))}
    for recipe in recipes:
        if recipe.base == "mini":
            model = build(f"zoo:{recipe.name}", device="cpu")
            files[f"{recipe.name}.md"] = card_of(model, about=recipe.about, name=recipe.name)
    return files


def stale(folder: Path = FOLDER) -> dict[str, str | None]:
    """The files that are missing, other than they should be, or not known; and what each should hold."""
    files = wanted()
    found = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.md") if path.name != KEPT}
    differ: dict[str, str | None] = {name: text for name, text in files.items() if found.get(name) != text}
    return differ | dict.fromkeys(set(found) - set(files))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, name what is stale")
    check = parser.parse_args(arguments).check
    differ = stale()
    for name, text in sorted(differ.items()):
        print(f"{'stale' if check else 'renewed'}: {FOLDER.name}/{name}")
        if not check and text is None:
            (FOLDER / name).unlink()
        elif not check:
            (FOLDER / name).write_text(str(text), encoding="utf-8")
    return int(check and bool(differ))


if __name__ == "__main__":
    raise SystemExit(main())
