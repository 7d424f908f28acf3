"""Write model_cards/: a table of the zoo, and the cards of models that are built here.

    python scripts/zoo_cards.py
    python scripts/zoo_cards.py smollm2-135m-prompteol=FILE

The second writes the card of a base that is here as well: ``FILE`` is a folder or a GGUF file, and
no card names its path. A card of a base that is not given stays as it is.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from st_reba import build
from st_reba.hub import save
from st_reba.methods import Method
from st_reba.recipe import Recipe, zoo, zoo_recipe

FOLDER = Path(__file__).resolve().parents[1] / "model_cards"
BUILT_HERE = ("mini-reba", "mini-echo", "mini-nosink")
PAPERS = {"reba": "ReBA", "echo": "Echo", "nosink": "NoSink"}
HEAD = """# The zoo

Written by `python scripts/zoo_cards.py` from `st_reba/zoo.yaml`. `st-reba info zoo:NAME` prints a recipe, and
`st-reba build zoo:NAME FOLDER` builds its model. This folder has the cards of models that were built here: those with
a link. Other cards are written when their model is saved. The papers' scores were not measured with these models.

*GB* is the size of the weights in 16 bits, two bytes per parameter. Every method needs this memory, 0.1 to 0.6 GB for a
pass of 4,096 positions, and about 1 GB for a GPU's context; 4 bits take a third of the weights' size
([A 7B on your card](../docs/how-to/large-models.md)).

- ready: can be built now.
- remote-code: the base needs code from its own repository; `--trust-remote-code` allows it.
- old-transformers: the base's code does not run with the versions of transformers that st_reba needs.
- tune: the recipe lacks `k`, `k0` or both; `st_reba.evaluation.nosink.choose_k` chooses them on labelled pairs.

| model | base | method | parameters | GB | language | licence | the paper's score | status |
|---|---|---|--:|--:|---|---|---|---|
"""


def table_row(recipe: Recipe) -> str:
    """A model's line of the table."""
    facts = recipe.about
    name = recipe.name
    if (FOLDER / f"{name}.md").is_file():
        name = f"[{name}]({name}.md)"
    cells = [
        name,
        recipe.base,
        f"`{recipe.short_form}`",
        facts["parameters"],
        f"{weight_gigabytes(facts['parameters']):.2g}",
        " ".join(facts.get("language", ())),
        str(facts.get("licence")),
        describe_score(facts),
        recipe.status,
    ]
    return f"| {' | '.join(cells)} |\n"


def describe_score(facts: Mapping[str, Any]) -> str:
    """The paper's first score, or that it has none."""
    if facts.get("scores"):
        score = facts["scores"][0]
        return f"{score['value']} ({score['task']}, {score['table']} of {PAPERS[facts['paper']]})"
    if facts.get("paper"):
        return f"- ({PAPERS[facts['paper']]})"
    return "-"


def weight_gigabytes(parameters: str) -> float:
    """Of 7B or 135M parameters in 16 bits."""
    billions = float(parameters[:-1])
    if parameters.endswith("M"):
        billions /= 1000
    return 2 * billions


def build_card(name: str, local_base: str | None = None) -> str:
    """The card of a recipe's model, built from its base or from the same base in a local folder or GGUF file."""
    recipe = zoo_recipe(name)
    if local_base is None:
        model = build(f"zoo:{name}", device="cpu")
    else:
        model = build(local_base, Method(**recipe.method), device="cpu")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, name)
        save(model, folder, name=name, about=recipe.about)
        return (folder / "README.md").read_text(encoding="utf-8")


def write_card(name: str, local_base: str | None = None) -> None:
    (FOLDER / f"{name}.md").write_text(build_card(name, local_base), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("bases", nargs="*", metavar="NAME=FILE", help="a recipe and its base")
    options = parser.parse_args()
    for name in BUILT_HERE:
        write_card(name)
    for base in options.bases:
        name, local_base = base.split("=", 1)
        write_card(name, local_base)
    rows = [table_row(zoo_recipe(name)) for name in zoo()]
    (FOLDER / "README.md").write_text(HEAD + "".join(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
