"""Publish recipes of the zoo as repositories ORG/NAME, one after the other.

    python scripts/publish_zoo.py mini-reba mini-echo --org my-org --private
    python scripts/publish_zoo.py --all-ready --org my-org
    python scripts/publish_zoo.py --all-ready --org my-org --dry-run uploads
    python scripts/publish_zoo.py --cards           writes the card of every recipe to model_cards/
    python scripts/publish_zoo.py --cards --check   writes nothing; status 1 if a card is stale

A recipe whose repository holds the same content already makes no commit, so that a run that was cut off is simply
started again; one that fails is told at the end (status 1), and the others are published.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from st_reba import zoo  # noqa: E402
from st_reba.hub.contents import amount  # noqa: E402
from st_reba.hub.push import Pushed, push_recipe  # noqa: E402
from st_reba.hub.remote import access_token  # noqa: E402
from st_reba.hub.zoo_cards import stale_cards, write_cards  # noqa: E402


def publish(
    names: list[str], organization: str, *, private: bool, weights: bool, revision: str | None, dry_run: Path | None
) -> dict[str, tuple[Pushed | None, str]]:
    """Name → what was published, or None, and a word on it."""
    outcome: dict[str, tuple[Pushed | None, str]] = {}
    for number, name in enumerate(names, 1):
        print(f"[{number}/{len(names)}] {name}", flush=True)
        out = None if dry_run is None else dry_run / name
        if out is not None and (out / "modules.json").is_file():
            outcome[name] = None, "skipped: written before"
            continue
        try:
            pushed = push_recipe(
                name, f"{organization}/{name}", weights=weights, private=private, revision=revision, dry_run=out
            )
        except (OSError, ValueError, TypeError, ImportError, RuntimeError) as error:
            outcome[name] = None, f"failed: {' '.join(str(error).split())}"
            print(outcome[name][1], file=sys.stderr, flush=True)
            continue
        if out is not None:
            word = f"written: {amount(sum((out / file).stat().st_size for file in pushed.files))}"
        else:
            word = "published" if pushed.changed or pushed.removed else "unchanged"
        outcome[name] = pushed, word
    return outcome


def table(outcome: dict[str, tuple[Pushed | None, str]]) -> str:
    """One line a recipe: its name, what became of it, the commit."""
    width = max(map(len, outcome), default=0)
    rows = [
        f"{name:{width}}  {word}{f'  {pushed.commit[:12]}' if pushed is not None and pushed.commit else ''}"
        for name, (pushed, word) in outcome.items()
    ]
    failed = sum(word.startswith("failed") for _, word in outcome.values())
    return "\n".join([*rows, f"{len(outcome) - failed} of {len(outcome)} done"])


def cards(folder: Path, *, check: bool) -> int:
    """Bring the folder of cards up to date, or name what is stale; the exit status."""
    stale = list(stale_cards(folder)) if check else write_cards(folder)
    for name in stale:
        print(f"{'stale' if check else 'renewed'}: {folder.name}/{name}")
    print(f"{len(stale)} of the zoo's cards {'are stale' if check else 'were stale'}")
    return int(check and bool(stale))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="recipes, as `st-reba zoo list` names them")
    parser.add_argument("--all-ready", action="store_true", help="all recipes that can be built as they are")
    parser.add_argument("--org", help="the user or organization on the Hub")
    parser.add_argument("--private", action="store_true", help="make new repositories private")
    parser.add_argument("--no-weights", action="store_true", help="publish no weights, name the pinned bases")
    parser.add_argument("--revision", metavar="BRANCH", help="the branch to write to")
    parser.add_argument("--dry-run", type=Path, metavar="FOLDER", help="write each to FOLDER/NAME, publish nothing")
    parser.add_argument("--cards", action="store_true", help="write model_cards/ anew, publish nothing")
    parser.add_argument("--check", action="store_true", help="with --cards: write nothing, name stale cards")
    options = parser.parse_args(arguments)
    if options.check and not options.cards:
        parser.error("--check goes with --cards")
    if options.cards:
        if options.names or options.all_ready or options.org:
            parser.error("--cards writes every recipe's card and publishes none: name no recipes and no --org")
        return cards(ROOT / "model_cards", check=options.check)
    if not options.org:
        parser.error("the following arguments are required: --org")
    if bool(options.names) == options.all_ready:
        parser.error("name recipes, or give --all-ready")
    known = zoo.names()
    if unknown := [name for name in options.names if name not in known]:
        parser.error(f"no recipes of the zoo: {', '.join(unknown)} (all names: st-reba zoo list)")
    names = options.names or [name for name in known if zoo.load(name).about.status == "ready"]
    if options.dry_run is None:
        try:
            access_token(None)
        except ValueError as error:
            parser.error(str(error))
    outcome = publish(
        names,
        options.org,
        private=options.private,
        weights=not options.no_weights,
        revision=options.revision,
        dry_run=options.dry_run,
    )
    print(table(outcome))
    return int(any(word.startswith("failed") for _, word in outcome.values()))


if __name__ == "__main__":
    raise SystemExit(main())
