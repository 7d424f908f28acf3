"""What a card says about its own folder: the code, what that touches, weights, golden vectors."""

from __future__ import annotations

import ast
import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..modules import RepeatTransformer
from .golden import GOLDEN_FILE, read_golden

CODE_FILES = "st_reba*.py"


@dataclass(frozen=True)
class CodeFile:
    """A file of code in a saved model.

    Args:
        name: Of the file.
        line_count: Its lines.
        sha256: Its digest.
        packages: What it imports besides Python's standard library.
        registers_attention: It enters an attention function in transformers' table.
        hooks_layers: It registers hooks in the model's layers.
        keeps_prefixes: It keeps keys and values of a prompt between calls.
    """

    name: str
    line_count: int
    sha256: str
    packages: tuple[str, ...]
    registers_attention: bool
    hooks_layers: bool
    keeps_prefixes: bool


@dataclass(frozen=True)
class FolderDescription:
    """The folder of a saved model, as it was saved; this description fits no other copy.

    Args:
        code: Its files of code.
        stored_dtype: Number type of its weights.
        golden: What its golden.json holds; None: it has none.
        requirements: Versions that the code needs, by package.
    """

    code: list[CodeFile]
    stored_dtype: str
    golden: dict[str, Any] | None
    requirements: Mapping[str, str]


def describe_folder(transformer: RepeatTransformer, folder: Path) -> FolderDescription:
    """Describe a folder into which the model was saved."""
    settings_file = folder / "config_sentence_transformers.json"
    settings = json.loads(settings_file.read_text(encoding="utf-8"))
    code_paths = sorted(folder.glob(CODE_FILES))
    golden = None
    if (folder / GOLDEN_FILE).is_file():
        golden = read_golden(folder / GOLDEN_FILE)
    return FolderDescription(
        code=[describe_code(path) for path in code_paths],
        stored_dtype=_stored_dtype(transformer),
        golden=golden,
        requirements=settings.get("requirements", {}),
    )


def describe_code(path: Path) -> CodeFile:
    """Describe a file of code by its bytes and its imports."""
    content = path.read_bytes()
    text = content.decode("utf-8")
    return CodeFile(
        name=path.name,
        line_count=content.count(b"\n"),
        sha256=hashlib.sha256(content).hexdigest(),
        packages=_imported_packages(text),
        registers_attention="AttentionInterface.register(" in text,
        hooks_layers="register_forward_hook(" in text,
        keeps_prefixes="\nclass PrefixMemory" in text,
    )


@lru_cache(maxsize=10)
def _imported_packages(code: str) -> tuple[str, ...]:
    modules: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            modules.add(str(node.module))
    packages = {module.partition(".")[0] for module in modules}
    return tuple(sorted(packages - sys.stdlib_module_names))


def _stored_dtype(transformer: RepeatTransformer) -> str:
    text_config = transformer.model.config.get_text_config()
    dtype = transformer.stored_dtype or text_config.dtype or transformer.model.dtype
    return str(dtype).removeprefix("torch.")
