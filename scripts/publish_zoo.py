"""Publish recipes of the zoo as repositories ORG/NAME, one after the other.

    python scripts/publish_zoo.py my-org mini-reba mini-echo --private
    python scripts/publish_zoo.py my-org

The second publishes every recipe that is ready. One that fails is named at the end (status 1), and
the others are published. A run that was cut off is started again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from st_reba import build
from st_reba.hub import push, save
from st_reba.recipe import zoo, zoo_recipe


def publish(name: str, organization: str, *, private: bool) -> str:
    """Build, save and push one model; returns its page."""
    with tempfile.TemporaryDirectory(prefix="st-reba-zoo-") as temporary:
        folder = Path(temporary, name)
        # In the base's own number type, so that weights are not widened to be saved.
        model = build(f"zoo:{name}", dtype="auto")
        save(model, folder, name=name, about=zoo_recipe(name).about)
        pushed = push(folder, f"{organization}/{name}", private=private)
        return str(pushed.url)


def ready_names() -> list[str]:
    return [name for name in zoo() if zoo_recipe(name).status == "ready"]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("organization", help="a user or an organization on the Hub")
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="recipes, as `st-reba zoo` names them (default: all)",
    )
    parser.add_argument("--private", action="store_true", help="make new repositories private")
    options = parser.parse_args(arguments)
    failure_count = 0
    for name in options.names or ready_names():
        try:
            url = publish(name, options.organization, private=options.private)
            print(name, url, flush=True)
        except (OSError, ValueError, ImportError, RuntimeError) as error:
            message = " ".join(str(error).split())
            print(f"{name} failed: {message}", file=sys.stderr, flush=True)
            failure_count += 1
    return int(failure_count > 0)


if __name__ == "__main__":
    raise SystemExit(main())
