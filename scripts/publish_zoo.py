"""Publish recipes of the zoo as repositories ORG/NAME, one after the other.

    python scripts/publish_zoo.py mini-reba mini-echo --org my-org --private
    python scripts/publish_zoo.py --all-ready --org my-org --dry-run

One that fails is named at the end (status 1), and the others are published. A run that was cut off is started again.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from st_reba import build  # noqa: E402
from st_reba.hub import push, save  # noqa: E402
from st_reba.zoo import recipe, zoo  # noqa: E402


def publish(name: str, organization: str, *, private: bool, revision: str | None, dry_run: bool) -> str:
    """Build, save and push one model; returns its page."""
    with tempfile.TemporaryDirectory(prefix="st-reba-zoo-") as temporary:
        folder = Path(temporary, name)
        # In the base's own number type, so that weights are not widened to be saved.
        model = build(f"zoo:{name}", dtype="auto")
        save(model, folder, name=name, about=recipe(name).about)
        del model
        gc.collect()
        pushed = push(folder, f"{organization}/{name}", private=private, revision=revision, dry_run=dry_run)
    return pushed.url or "not sent"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="recipes, as `st-reba zoo` names them")
    parser.add_argument("--all-ready", action="store_true", help="all recipes that can be built as they are")
    parser.add_argument("--org", required=True, help="the user or organization on the Hub")
    parser.add_argument("--private", action="store_true", help="make new repositories private")
    parser.add_argument("--revision", metavar="BRANCH", help="the branch to write to")
    parser.add_argument("--dry-run", action="store_true", help="build and verify each, publish nothing")
    options = parser.parse_args(arguments)
    if bool(options.names) == options.all_ready:
        parser.error("name recipes, or give --all-ready")
    if unknown := sorted(set(options.names) - set(zoo())):
        parser.error(f"no recipes of the zoo: {', '.join(unknown)}")
    names = options.names or [name for name in zoo() if recipe(name).status == "ready"]
    given = {"private": options.private, "revision": options.revision, "dry_run": options.dry_run}
    outcome = {}
    for name in names:
        print(name, flush=True)
        try:
            outcome[name] = publish(name, options.org, **given)
        except (OSError, ValueError, ImportError, RuntimeError) as error:
            outcome[name] = f"failed: {' '.join(str(error).split())}"
    print("\n".join(f"{name:40}  {word}" for name, word in outcome.items()))
    return int(any(word.startswith("failed") for word in outcome.values()))


if __name__ == "__main__":
    raise SystemExit(main())
