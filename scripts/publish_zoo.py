"""Publish recipes of the zoo as repositories ORG/NAME, one after the other.

    python scripts/publish_zoo.py mini-reba mini-echo --org my-org --private
    python scripts/publish_zoo.py --all-ready --org my-org
    python scripts/publish_zoo.py --all-ready --org my-org --dry-run

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
from st_reba.hub.push import Pushed, access_token, push_recipe  # noqa: E402


def publish(
    names: list[str], organization: str, *, private: bool, weights: bool, revision: str | None, dry_run: bool
) -> dict[str, tuple[Pushed | None, str]]:
    """Name → what was published, or None, and a word on it."""
    outcome: dict[str, tuple[Pushed | None, str]] = {}
    for number, name in enumerate(names, 1):
        print(f"[{number}/{len(names)}] {name}", flush=True)
        options = {"weights": weights, "private": private, "revision": revision, "dry_run": dry_run}
        try:
            pushed = push_recipe(name, f"{organization}/{name}", **options)
        except (OSError, ValueError, TypeError, ImportError, RuntimeError) as error:
            outcome[name] = None, f"failed: {' '.join(str(error).split())}"
            print(outcome[name][1], file=sys.stderr, flush=True)
            continue
        outcome[name] = pushed, "not sent" if dry_run else "unchanged" if pushed.unchanged else "published"
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


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="recipes, as `st-reba zoo` names them")
    parser.add_argument("--all-ready", action="store_true", help="all recipes that can be built as they are")
    parser.add_argument("--org", help="the user or organization on the Hub")
    parser.add_argument("--private", action="store_true", help="make new repositories private")
    parser.add_argument("--no-weights", action="store_true", help="publish no weights, name the pinned bases")
    parser.add_argument("--revision", metavar="BRANCH", help="the branch to write to")
    parser.add_argument("--dry-run", action="store_true", help="build and check each, publish nothing")
    options = parser.parse_args(arguments)
    if not options.org:
        parser.error("the following arguments are required: --org")
    if bool(options.names) == options.all_ready:
        parser.error("name recipes, or give --all-ready")
    known = zoo.names()
    if unknown := [name for name in options.names if name not in known]:
        parser.error(f"no recipes of the zoo: {', '.join(unknown)} (all names: st-reba zoo)")
    names = options.names or [name for name in known if zoo.load(name).about.status == "ready"]
    if not options.dry_run:
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
