"""What hub may import: it stands below onnx, which saves and describes its folders by it."""

from __future__ import annotations

import ast
from pathlib import Path

import st_reba.hub

HUB_FILES = sorted(Path(st_reba.hub.__file__).parent.glob("*.py"))


def test_hub_does_not_import_onnx() -> None:
    """Not inside a function either, where no circle shows at import."""
    importing_files: list[str] = []
    for path in HUB_FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_relative = isinstance(node, ast.ImportFrom) and node.level == 2
            if is_relative and str(node.module).partition(".")[0] == "onnx":
                importing_files.append(path.name)
    assert not importing_files
