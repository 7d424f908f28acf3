"""What ruff does not see: sizes, names of classes, and imports that run in circles."""

from __future__ import annotations

import ast
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
TREES = {
    path.relative_to(ROOT): ast.parse(path.read_bytes())
    for folder in ("st_reba", "tests", "scripts", "examples")
    for path in sorted((ROOT / folder).rglob("*.py"))
}
PACKAGE = {
    ".".join(path.with_suffix("").parts).removesuffix(".__init__"): tree
    for path, tree in TREES.items()
    if path.parts[0] == "st_reba"
}


def test_sizes() -> None:
    assert [str(path) for path in TREES if (ROOT / path).read_bytes().count(b"\n") > 400] == []
    for path, tree in TREES.items():
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        assert [f"{path}: {one.name}" for one in functions if (one.end_lineno or 0) - one.lineno >= 80] == []


def test_no_two_classes_of_a_name() -> None:
    names = Counter(node.name for tree in PACKAGE.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1] == []


def imported(name: str, tree: ast.Module) -> set[str]:
    """The modules of the package that one imports when it is imported itself."""
    parts = name.split(".") + [""] * (ROOT / Path(*name.split("."))).is_dir()
    found = set()
    for node in tree.body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            own = [node.module] if node.module else []
            home = ".".join([*parts[: -node.level], *own]) if node.level else node.module
            found |= {each if (each := f"{home}.{alias.name}") in PACKAGE else str(home) for alias in node.names}
    return found & PACKAGE.keys() - {name}


def test_imports_run_one_way() -> None:
    TopologicalSorter({name: imported(name, tree) for name, tree in PACKAGE.items()}).prepare()
