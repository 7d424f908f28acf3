"""Write model_cards/: a table of the zoo, and the cards of models that are built here.

python scripts/zoo_cards.py
python scripts/zoo_cards.py --check     writes nothing; status 1 if a file is stale
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from st_reba import build  # noqa: E402
from st_reba.hub import save  # noqa: E402
from st_reba.recipe import Recipe  # noqa: E402
from st_reba.zoo import recipe, zoo  # noqa: E402

FOLDER = ROOT / "model_cards"
BUILT = ("mini-reba", "mini-echo", "mini-nosink")
PAPERS = {"reba": "ReBA", "echo": "Echo", "nosink": "NoSink"}
HEAD = """# The zoo

Written by `python scripts/zoo_cards.py` from `st_reba/zoo.yaml`. `st-reba zoo NAME` prints a recipe, and
`st-reba build zoo:NAME FOLDER` builds its model. This folder has the cards of models that were built here; any other
card is written when its model is saved. Scores are the papers' own and were not measured with these models.

- ready: can be built now. Only the models of the embedded base were built here.
- remote-code: the base needs code from its own repository; `--trust-remote-code` allows it.
- old-transformers: the base's code does not run with the versions of transformers that st_reba needs.
- tune: first find the numbers of layers with `st-reba tune`.

| model | base | method | parameters | language | licence | the paper's score | status |
|---|---|---|---|---|---|---|---|
"""


def row(found: Recipe) -> str:
    """A model's line of the table."""
    about, score = found.about, "-"
    if about.get("scores"):
        first = about["scores"][0]
        score = f"{first['value']} ({first['task']}, {first['table']} of {PAPERS[about['paper']]})"
    elif about.get("paper"):
        score = f"- ({PAPERS[about['paper']]})"
    name = f"[{found.name}]({found.name}.md)" if found.name in BUILT else found.name
    method = ",".join(f"{key}={value}" for key, value in found.method.items() if key != "name")
    method = f"`{found.method['name']}{':' if method else ''}{method}`"
    languages = " ".join(about.get("language", ()))
    cells = (name, found.base, method, about.get("parameters"), languages, about.get("licence"), score, found.status)
    return f"| {' | '.join(map(str, cells))} |\n"


def wanted() -> dict[str, str]:
    """The files of the folder, by name."""
    files = {"README.md": HEAD + "".join(row(recipe(name)) for name in zoo())}
    for name in BUILT:
        with tempfile.TemporaryDirectory() as temporary:
            save(build(f"zoo:{name}", device="cpu"), Path(temporary, name), name=name, about=recipe(name).about)
            files[f"{name}.md"] = Path(temporary, name, "README.md").read_text(encoding="utf-8")
    return files


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, name what is stale")
    check = parser.parse_args(arguments).check
    files = wanted()
    found = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
    stale = sorted({name for name in {*files, *found} if found.get(name) != files.get(name)})
    for name in stale:
        print(f"{'stale' if check else 'renewed'}: {FOLDER.name}/{name}")
        if not check and name in files:
            (FOLDER / name).write_text(files[name], encoding="utf-8")
        elif not check:
            (FOLDER / name).unlink()
    return int(check and bool(stale))


if __name__ == "__main__":
    raise SystemExit(main())
