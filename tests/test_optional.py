"""What an extra installs is imported when it is needed, and the error has the remedy."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import st_reba
from st_reba.optional import required

EXTRAS = ("matplotlib", "mteb", "seaborn", "seqeval")


def test_nothing_but_the_page_needs_evaluation_to_be_imported() -> None:
    package = Path(st_reba.__file__).parent
    for file in package.rglob("*.py"):
        here = ["st_reba", *file.relative_to(package).parts[:-1]]
        # At the top of a file; inside a function an import is made when it is needed.
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                origin = here[: len(here) + 1 - node.level] if node.level else []
                origin = [*origin, *([node.module] if node.module else [])]
                names = [".".join([*origin, alias.name]) for alias in node.names]
            for name in names:
                # The page shows what evaluation finds.
                inside = {"evaluation", "explore"} & set(here)
                assert inside or not name.startswith("st_reba.evaluation"), file
                assert name.partition(".")[0] not in EXTRAS, file


def test_what_is_missing_is_told_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "seqeval.metrics", None)
    with pytest.raises(ImportError, match=r"needs seqeval.*Run: pip install 'st-reba\[evaluation\]'"):
        required("seqeval.metrics", "evaluation")
