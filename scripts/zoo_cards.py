"""Write model_cards/: a table of the zoo, and the cards of models that are built here.

    python scripts/zoo_cards.py
    python scripts/zoo_cards.py smollm2-135m-prompteol=FILE    the card of a base that is here as well

A card of a base that is not given stays as it is. ``FILE`` is a folder or a GGUF file; a card names no path.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from st_reba import build
from st_reba.hub import save
from st_reba.recipe import Recipe, recipe, zoo

FOLDER = Path(__file__).resolve().parents[1] / "model_cards"
BUILT = ("mini-reba", "mini-echo", "mini-nosink")
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


def row(found: Recipe) -> str:
    """A model's line of the table."""
    about, score = found.about, "-"
    if about.get("scores"):
        first = about["scores"][0]
        score = f"{first['value']} ({first['task']}, {first['table']} of {PAPERS[about['paper']]})"
    elif about.get("paper"):
        score = f"- ({PAPERS[about['paper']]})"
    name = f"[{found.name}]({found.name}.md)" if (FOLDER / f"{found.name}.md").is_file() else found.name
    method = ",".join(f"{key}={value}" for key, value in found.method.items() if key != "name")
    method = f"`{found.method['name']}{':' if method else ''}{method}`"
    languages, parameters = (
        " ".join(about.get("language", ())),
        about["parameters"],
    )  # as 7B or 135M
    size = f"{2 * float(parameters[:-1]) / (1 if parameters.endswith('B') else 1000):.2g}"
    cells = (
        name,
        found.base,
        method,
        parameters,
        size,
        languages,
        about.get("licence"),
        score,
        found.status,
    )
    return f"| {' | '.join(map(str, cells))} |\n"


def card(name: str, local: str | None = None) -> str:
    """The card of a recipe's model, built from its base or from the same base in a local folder or GGUF file."""
    found = recipe(name)
    options = {key: value for key, value in found.method.items() if key != "name"}
    given: dict[str, Any] = {} if local is None else {"method": found.method["name"], **options}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, name)
        model = build(local or f"zoo:{name}", device="cpu", **given)
        save(model, folder, name=name, about=found.about)
        return (folder / "README.md").read_text(encoding="utf-8")


def main() -> None:
    given = dict(each.split("=", 1) for each in sys.argv[1:])
    for name in (*BUILT, *given):
        (FOLDER / f"{name}.md").write_text(card(name, given.get(name)), encoding="utf-8")
    (FOLDER / "README.md").write_text(HEAD + "".join(row(recipe(name)) for name in zoo()), encoding="utf-8")


if __name__ == "__main__":
    main()
