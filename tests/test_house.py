"""What ruff does not see: sizes, names of classes, and imports that run in circles."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
TREES = {
    path.relative_to(ROOT): ast.parse(path.read_bytes())
    for folder in ("st_reba", "tests", "scripts", "examples")
    for path in sorted((ROOT / folder).rglob("*.py"))
}
PACKAGE = {path: tree for path, tree in TREES.items() if path.parts[0] == "st_reba"}
MODULES = {path.parent if path.stem == "__init__" else path.with_suffix(""): path for path in PACKAGE}


def test_sizes() -> None:
    assert [str(path) for path in TREES if (ROOT / path).read_bytes().count(b"\n") > 600] == []
    for path, tree in TREES.items():
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        assert [f"{path}: {one.name}" for one in functions if (one.end_lineno or 0) - one.lineno >= 80] == []


def test_no_two_classes_of_a_name() -> None:
    names = [node.name for tree in PACKAGE.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    assert len(names) == len(set(names))


def imported(path: Path, tree: ast.Module) -> set[Path]:
    """The files of the package that one imports when it is imported itself."""
    found = set()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.level:
            home = path.parents[node.level - 1] / (node.module or "").replace(".", "/")
            found |= {MODULES.get(home / alias.name) or MODULES[home] for alias in node.names}
    return found - {path}


def test_imports_run_one_way() -> None:
    TopologicalSorter({path: imported(path, tree) for path, tree in PACKAGE.items()}).prepare()
