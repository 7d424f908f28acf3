"""What the tests of safety do to a sound repository."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from st_reba.bases import EMBEDDED
from st_reba.safety import RepositoryRefused, load

MINI = str(EMBEDDED["mini"])
FIRST, CONFIG = "sentence_bert_config.json", "config.json"
KERNEL = "evil/kernel"
Damage = Callable[[Path], Any]


def refused(place: Path, word: str, trust: bool = False) -> None:
    """Loading refuses, in a short message that names the place of the fault."""
    with pytest.raises(RepositoryRefused) as error:
        load(place, trust_remote_code=trust, device="cpu")
    assert word in str(error.value) and len(str(error.value)) < 1500, str(error.value)


def change(place: Path, number: int = 0, **fields: Any) -> None:
    """Change an entry of modules.json."""
    file = place / "modules.json"
    modules = json.loads(file.read_text(encoding="utf-8"))
    modules[number].update(fields)
    file.write_text(json.dumps(modules), encoding="utf-8")


def plant(folder: Path) -> None:
    """A module that would write the marker if it were imported."""
    folder.mkdir(exist_ok=True)
    code = "import os, pathlib\npathlib.Path(os.environ['PLANTED_MARKER']).write_text(__name__)\n"
    code += "from sentence_transformers.base.modules import Module\nclass Module(Module):\n    pass\n"
    (folder / "evil.py").write_text(code, encoding="utf-8")


class Planted:
    """Unpickled, it writes the marker."""

    def __reduce__(self) -> Any:
        return exec, ("import os, pathlib; pathlib.Path(os.environ['PLANTED_MARKER']).write_text('pickle')",)


def lose(name: str) -> Damage:
    return lambda place: (place / name).unlink()


def keep(*numbers: int) -> Damage:
    def change(place: Path) -> None:
        file = place / "modules.json"
        modules = json.loads(file.read_text(encoding="utf-8"))
        file.write_text(json.dumps([modules[number] for number in numbers]), encoding="utf-8")

    return change


def header(place: Path) -> None:
    """The header's length says more than there is."""
    file = place / "model.safetensors"
    file.write_bytes((1 << 60).to_bytes(8, "little") + file.read_bytes()[8:])


def half(place: Path) -> None:
    file = place / "model.safetensors"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def no_map(place: Path) -> None:
    (place / "model.safetensors").unlink()
    (place / "model.safetensors.index.json").write_text('{"weight_map": {"x": 1, "y": "a"}}', encoding="utf-8")


def pickled(place: Path) -> None:
    (place / "model.safetensors").write_bytes(pickle.dumps(Planted()))


def shard(place: Path) -> None:
    (place / "model.safetensors").rename(place / "a.safetensors")
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
    (place / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def elsewhere(place: Path) -> None:
    """An adapter, whose base is in a folder beside."""
    base = place.with_name("base")
    shutil.copytree(MINI, base)
    (base / CONFIG).write_text(json.dumps({"model_type": "llama", "_attn_implementation": KERNEL}), encoding="utf-8")
    adapter = {"peft_type": "LORA", "base_model_name_or_path": str(base)}
    (place / "adapter_config.json").write_text(json.dumps(adapter), encoding="utf-8")


def older_name(place: Path) -> None:
    """Under which sentence-transformers finds the settings where the usual file says nothing."""
    (place / FIRST).write_text("{}", encoding="utf-8")
    settings = {"model_args": {"attn_implementation": KERNEL}}
    (place / "sentence_xlnet_config.json").write_text(json.dumps(settings), encoding="utf-8")


def add(name: str, **values: Any) -> Damage:
    def change(place: Path) -> None:
        file = place / name
        stored = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        file.write_text(json.dumps({**stored, **values}), encoding="utf-8")

    return change
