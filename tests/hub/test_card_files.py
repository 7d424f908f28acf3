"""What a card says of the code: what it touches, and the check that runs without the package."""

from __future__ import annotations

import ast
import builtins
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sentence_transformers import SentenceTransformer

import st_reba
from st_reba.hub import save
from st_reba.hub.card_files import describe_code
from st_reba.modules import MODULES, code

SECTIONS = [
    *(declaration.section for declaration in MODULES.values()),
    *(f"st_reba.modules.{name}" for name in code.OPTIONAL_SECTIONS),
]
# Names by which Python code reaches files, the network, other processes, or the environment.
REACHING_FUNCTIONS = {"open", "exec", "eval", "compile", "__import__"}
REACHING_ATTRIBUTES = {
    *(
        "system",
        "popen",
        "Popen",
        "spawn",
        "fork",
        "socket",
        "urlopen",
        "environ",
        "getenv",
        "putenv",
        "run_path",
    ),
    *(
        "open",
        "unlink",
        "rename",
        "mkdir",
        "rmtree",
        "chmod",
        "copyfile",
        "is_file",
        "resolve",
    ),
    *("read_text", "write_text", "read_bytes", "write_bytes"),
}
# Modules of the standard library that the code may import: none of them reaches out by itself.
HARMLESS_MODULES = {
    *(
        "__future__",
        "collections",
        "contextlib",
        "contextvars",
        "copyreg",
        "dataclasses",
        "functools",
        "importlib",
    ),
    *(
        "inspect",
        "itertools",
        "json",
        "logging",
        "math",
        "pathlib",
        "re",
        "shutil",
        "string",
        "threading",
        "typing",
    ),
    "weakref",
}


@pytest.fixture(scope="module")
def whole_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of all sections, as no model needs."""
    path = tmp_path_factory.mktemp("code") / "st_reba.py"
    path.write_text(code.join_sections(code.with_imports(SECTIONS)), encoding="utf-8")
    return path


def test_the_code_imports_what_the_card_says(whole_code: Path) -> None:
    description = describe_code(whole_code)
    assert description.packages == (
        "sentence_transformers",
        "torch",
        "transformers",
    )
    assert description.registers_attention
    imported: set[str] = set()
    for node in ast.walk(ast.parse(whole_code.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            imported.add(str(node.module))
    modules = {name.partition(".")[0] for name in imported}
    assert modules - set(description.packages) <= HARMLESS_MODULES


def test_only_saving_touches_files(whole_code: Path) -> None:
    functions: set[str] = set()
    attributes: set[str] = set()
    tree = ast.parse(whole_code.read_text(encoding="utf-8"))
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and function.name == "save":
            function.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            functions.add(node.id)
        elif isinstance(node, ast.Attribute):
            attributes.add(node.attr)
    assert not functions & REACHING_FUNCTIONS
    assert not attributes & REACHING_ATTRIBUTES


@pytest.fixture(scope="module")
def cut_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved model whose vectors are cut."""
    folder = tmp_path_factory.mktemp("cut") / "model"
    save(st_reba.build("mini", "echo", truncate_dim=64, device="cpu"), folder)
    return folder


def python_blocks(folder: Path) -> list[str]:
    card = (folder / "README.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", card, re.DOTALL)


def test_each_block_of_the_card_imports_what_it_uses(saved_folder: Path) -> None:
    blocks = python_blocks(saved_folder)
    assert len(blocks) == 3
    for block in blocks:
        known_names = set(dir(builtins))
        used_names: set[str] = set()
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.alias):
                known_names.add(node.asname or node.name)
            elif isinstance(node, ast.Name):
                names = used_names if isinstance(node.ctx, ast.Load) else known_names
                names.add(node.id)
        assert used_names <= known_names, block


def test_the_check_of_a_card_compares_whole_vectors(
    cut_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the installed code here; the test below runs that of the folder."""
    (check,) = [block for block in python_blocks(cut_folder) if block.startswith("import json")]
    check = check.replace("trust_remote_code=True, ", "").replace("path/to/model", str(cut_folder))
    exec(check, {})
    distance, _, tolerance = capsys.readouterr().out.partition(" of at most ")
    assert float(distance) < float(tolerance) < 1e-3
    assert SentenceTransformer(str(cut_folder), device="cpu").truncate_dim == 64
    card = (cut_folder / "README.md").read_text(encoding="utf-8")
    assert "for 20 texts when it was saved, in all 192 dimensions\n" in card


def test_only_a_card_of_cut_vectors_speaks_of_cuts(saved_folder: Path) -> None:
    assert "truncate_dim" not in (saved_folder / "README.md").read_text(encoding="utf-8")


# Runs the check that the card prints, where st_reba cannot be imported, and lists what the
# repository's code does.
STRANGER = """
import re, sys
sys.modules["st_reba"] = None
folder, copy = sys.argv[1:]
card = open(f"{folder}/README.md", encoding="utf-8").read()
(check,) = re.findall(r"```python\\n(import json.*?)```", card, re.DOTALL)
touched = []
def watch(event, arguments):
    if event.split(".")[0] in ("open", "socket", "subprocess", "os", "shutil", "ctypes", "urllib"):
        frame = sys._getframe(1)
        while frame is not None and "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        if frame is not None and frame.f_code.co_filename.endswith("st_reba.py"):
            touched.append(event)
sys.addaudithook(watch)
exec(check.replace("path/to/model", folder))
print(f"touched: {touched}")
model.save_pretrained(copy)
"""


@pytest.mark.slow
def test_the_check_of_the_card_runs_without_the_package(saved_folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    command = [sys.executable, "-c", STRANGER, str(saved_folder), str(copy)]
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "HF_MODULES_CACHE": str(tmp_path / "modules"),
    }
    process = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert process.returncode == 0, process.stderr
    distance_line, touched_line = process.stdout.splitlines()
    distance, _, tolerance = distance_line.partition(" of at most ")
    assert float(distance) < float(tolerance) < 1e-3
    assert touched_line == "touched: []"
    card = (copy / "README.md").read_text(encoding="utf-8")
    assert "golden.json" not in card and "stored in" not in card
