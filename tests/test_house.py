"""What ruff does not see: sizes, names of classes, and the way that imports go."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
MAX_LINES_OF_FILE = 600
MAX_LINES_OF_FUNCTION = 60
FOLDERS = ("st_reba", "tests", "scripts", "examples")

# Files besides the packages and files that CONTRIBUTING's line of layers names.
FILES_OF_LAYER = {
    "modules": "files optional sentences filter_options progress prompts",
    "methods": "poolings encode processor words gguf_files packaged",
    "recipe": "request bases near_names",
    "safety": "adapters backbones",
    "assembly": "comparison probe linear_filter token_means filters named_base loaded_base graph_rules",
    "build": "__init__",
    "cli": "__main__",
}

Imports = Mapping[str, set[str]]


def parse_folders(*folders: str) -> dict[str, ast.Module]:
    """The syntax tree of every file, by its path."""
    trees: dict[str, ast.Module] = {}
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            trees[path.relative_to(ROOT).as_posix()] = parse_file(path)
    return trees


@cache
def parse_file(path: Path) -> ast.Module:
    return ast.parse(path.read_bytes())


def path_of_module(module: Path) -> str | None:
    """The file of a module or package; None: there is none."""
    for path in (module.with_suffix(".py"), module / "__init__.py"):
        if (ROOT / path).is_file():
            return path.as_posix()
    return None


def imported_files(path: str, tree: ast.Module) -> Iterator[str]:
    """The files of the package that one imports, also inside functions and for types."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or not node.level:
            continue
        folder = Path(path).parents[node.level - 1]
        module = folder / (node.module or "").replace(".", "/")
        for alias in node.names:
            imported_path = path_of_module(module / alias.name) or path_of_module(module)
            assert imported_path is not None, f"{path}: no module {module}"
            yield imported_path


def imports_of_package() -> dict[str, set[str]]:
    imports: dict[str, set[str]] = {}
    for path, tree in parse_folders("st_reba").items():
        imports[path] = set(imported_files(path, tree)) - {path}
    return imports


def layers_of_contributing() -> list[list[str]]:
    """The layers that CONTRIBUTING draws, the lowest first."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    line = re.search(r"Imports go one way: ([^.]*)\.", text)
    assert line is not None
    layers: list[list[str]] = []
    for layer in line[1].split("←"):
        layers.append([name.strip() for name in layer.split(",")])
    return layers


def layer_numbers() -> dict[str, int]:
    """The layer of each package and file that stands directly in st_reba, by its name."""
    numbers: dict[str, int] = {}
    for number, layer in enumerate(layers_of_contributing()):
        for name in layer:
            for member in (name, *FILES_OF_LAYER.get(name, "").split()):
                numbers[member] = number
    return numbers


def name_in_package(path: str) -> str:
    """``hub`` of ``st_reba/hub/card.py``, ``build`` of ``st_reba/build.py``."""
    return path.split("/")[1].removesuffix(".py")


def find_circle(imports: Imports) -> list[str]:
    """Files that import one another; empty: there are none."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        return circle
    return []


def test_files_are_not_too_long() -> None:
    for path in parse_folders(*FOLDERS):
        line_count = (ROOT / path).read_bytes().count(b"\n")
        assert line_count <= MAX_LINES_OF_FILE, path


def test_functions_are_not_too_long() -> None:
    for path, tree in parse_folders(*FOLDERS).items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                line_count = (node.end_lineno or 0) - first_code_line(node) + 1
                is_short = line_count <= MAX_LINES_OF_FUNCTION
                assert is_short, f"{path}: {node.name}"


def first_code_line(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The first line after a function's docstring."""
    has_docstring = ast.get_docstring(function) is not None
    body = function.body[1:] if has_docstring else function.body
    return body[0].lineno if body else function.lineno


def test_no_two_classes_have_the_same_name() -> None:
    names: list[str] = []
    for tree in parse_folders("st_reba").values():
        names += [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    assert len(names) == len(set(names))


def test_every_file_has_a_layer() -> None:
    numbers = layer_numbers()
    for path in parse_folders("st_reba"):
        assert name_in_package(path) in numbers, path


def test_imports_go_to_the_same_layer_or_a_lower_one() -> None:
    numbers = layer_numbers()
    for path, imported_paths in imports_of_package().items():
        for imported_path in imported_paths:
            layer = numbers[name_in_package(path)]
            imported_layer = numbers[name_in_package(imported_path)]
            assert imported_layer <= layer, f"{path} imports {imported_path}"


def test_no_files_import_one_another() -> None:
    imports = imports_of_package()
    assert find_circle(imports) == []


def test_a_circle_inside_functions_and_for_types_is_found() -> None:
    in_function = ast.parse("def load():\n    from .files import whole_file")
    for_types = ast.parse("if TYPE_CHECKING:\n    from . import optional")
    imports = {
        "st_reba/optional.py": set(imported_files("st_reba/optional.py", in_function)),
        "st_reba/files.py": set(imported_files("st_reba/files.py", for_types)),
    }
    assert set(find_circle(imports)) == {"st_reba/optional.py", "st_reba/files.py"}
