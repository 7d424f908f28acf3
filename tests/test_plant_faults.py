"""scripts/plant_faults.py: what it plants is one change that runs, and it tells found from missed."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
import plant_faults  # noqa: E402

SOURCE = '''
def mean(values: list[float], least: int = 1) -> float:
    """At least 1 value."""
    if not values or len(values) < least:
        raise ValueError(f"{len(values)} values, not {least + 1}")
    total = -0.5
    for value in values:
        if value is None:
            continue
        total += (value) * (max(2, 1))
    print("a" + "b")
    return total / len(values)
'''
WANTED = {
    ("1", "2"),
    ("not values", "(values)"),
    ("or", " and "),
    ("<", " <= "),
    ('raise ValueError(f"{len(values)} values, not {least + 1}")', "pass"),
    ("-0.5", "(0.5)"),
    ("is", " is not "),
    ("continue", "break"),
    ("*", " / "),
    ("max", "min"),
    ("2", "3"),
    ('print("a" + "b")', "pass"),
    ("/", " * "),
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(plant_faults, "ROOT", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "planted_here.py"
    file.write_text("# 中文 stands before.\n" + SOURCE, encoding="utf-8")
    return file


def test_every_fault_is_one_change_that_can_be_compiled(package: Path) -> None:
    source = package.read_bytes()
    faults = list(plant_faults.changes(package))
    assert {(fault.old.strip(), fault.new) for fault in faults} == WANTED
    for fault in faults:
        assert source[fault.start : fault.end].decode() == fault.old
        assert fault.old in package.read_text(encoding="utf-8").splitlines()[fault.line - 1]
        ast.parse(source[: fault.start] + fault.new.encode() + source[fault.end :])


def test_the_fault_is_what_is_imported(package: Path) -> None:
    (fault,) = [each for each in plant_faults.changes(package) if each.new == " * "]
    finder = plant_faults.Planted(fault)
    sys.meta_path.insert(0, finder)
    try:
        assert importlib.import_module("planted_here").mean([1.0, 2.0]) == (1 * 2 + 2 * 2 - 0.5) * 2
    finally:
        sys.meta_path.remove(finder)
        sys.modules.pop("planted_here", None)
    assert importlib.import_module("planted_here").mean([1.0, 2.0]) == (1 * 2 + 2 * 2 - 0.5) / 2
    sys.modules.pop("planted_here", None)


def test_what_nobody_could_see_is_still_there() -> None:
    for row in yaml.safe_load(plant_faults.SAME.read_text("utf-8")):
        lines = (ROOT / row["file"]).read_text("utf-8").splitlines()
        planted = {
            (lines[each.line - 1].strip(), each.new.strip()) for each in plant_faults.changes(ROOT / row["file"])
        }
        assert (row["line"], row["new"]) in planted and row["why"], row


@pytest.mark.slow
def test_found_and_missed(package: Path) -> None:
    """The second test is blind to the fault; a third fails with and without it, and says nothing."""
    sees = package.with_name("test_sees.py")
    sees.write_text("import planted_here\n\ndef test():\n    assert planted_here.mean([1.0, 2.0]) == 2.75\n", "utf-8")
    package.write_text(
        package.read_text("utf-8").replace("At least 1 value.", "\n    >>> mean([1.0, 2.0])\n    2.75\n    "), "utf-8"
    )
    blind = package.with_name("test_blind.py")
    blind.write_text("import planted_here\n\ndef test():\n    assert planted_here.mean([1.0]) > 0\n", "utf-8")
    (fault,) = [each for each in plant_faults.changes(package) if each.new == " * "]
    seen, blind_too, unsound = f"{sees.name}::test", str(blind), package.with_name("test_unsound.py")
    unsound.write_text("def test():\n    assert False\n", "utf-8")
    assert plant_faults.failed(fault, [seen]) == ("found", seen)
    example = f"{package.name}::planted_here.mean"
    assert plant_faults.failed(fault, ["--doctest-modules", example]) == ("found", example)
    assert plant_faults.failed(fault, [f"{sees.name}::test_of_another_name"]) == ("found", seen)
    assert plant_faults.failed(fault, [blind_too]) == ("missed", "")
    assert plant_faults.judged(fault, [[], [str(unsound), blind_too], [str(sees)]], {}, set()) == ("found", seen)
    assert plant_faults.judged(fault, [[str(unsound)], [blind_too]], {}, set()) == ("missed", "")
