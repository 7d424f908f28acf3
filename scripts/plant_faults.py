"""Plant faults in the package, one at a time, and see whether the tests find them.

    python -m pytest -m "not slow" --cov=st_reba --cov-context=test --cov-report= --junitxml=junit.xml
    python scripts/plant_faults.py --faults 150 --seed 0 --out faults.jsonl

The first, by pytest-cov, writes which tests run a line, and how long they take; the second a line a fault, and counts.

A fault is one small change: a comparison, a sign, a number, a condition, a statement left out. The tests that run the
changed line are run until one fails: first those in the file of the same name, then the quickest; then that file as a
whole, and those of a line that few tests run, as a fixture's counts for the first alone. A test that finds a fault is
seen to pass without it. Processes are forked from one that holds the heavy libraries, so a fault costs seconds. A
program that a test starts is without the fault.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import resource
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import pytest
import torch
from coverage import CoverageData

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 90  # of processor time, and thrice what the tests take; a fault that makes them run on and on is found
FIRST, MOST = 25, 150  # tests of a line: so many are tried first, and so many in all

SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Continue: ast.Break, ast.Break: ast.Continue,
}  # fmt: skip
# Imported once, for all processes to come.
HEAVY = (
    *(f"transformers.models.{name}.modeling_{name}" for name in ("llama", "gpt2", "gemma2", "gpt_oss", "qwen2")),
    *("sentence_transformers", "faiss", "pandas", "pyarrow.parquet", "sklearn.linear_model", "sklearn.cluster"),
    *("scipy.stats", "matplotlib.pyplot", "seqeval.metrics", "onnxruntime", "typer.testing", "datasets", "hypothesis"),
)
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any", "argmax": "argmin", "cumsum": "cumprod"}


class Fault(NamedTuple):
    """The change with this number of all that could be made in a file."""

    file: str
    number: int
    line: int
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.old!r} -> {self.new!r}"


def changed(node: ast.AST) -> ast.AST | None:
    """A node with a fault, or None."""
    match node:
        case ast.Raise() | ast.Expr(value=ast.Call()):
            return ast.Pass()
        case ast.Continue() | ast.Break():
            return SWAPS[type(node)]()
        case ast.Compare(left=left, ops=[op], comparators=right):
            return ast.Compare(left, [SWAPS[type(op)]()], right)  # type: ignore[list-item]
        case ast.BoolOp(op=op, values=values):
            return ast.BoolOp(SWAPS[type(op)](), values)  # type: ignore[arg-type]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in SWAPS:
            texts = (ast.JoinedStr, ast.List, ast.Tuple)
            sides = (left, right)
            is_text = any(isinstance(each, texts) or isinstance(getattr(each, "value", 0), str) for each in sides)
            return None if is_text else ast.BinOp(left, SWAPS[type(op)](), right)  # type: ignore[arg-type]
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            return operand
        case ast.IfExp(test=test, body=body, orelse=other):
            return ast.IfExp(test, other, body)
        case ast.Constant(value=bool(value)):
            return ast.Constant(not value)
        case ast.Constant(value=int(value)):
            return ast.Constant(value + 1)
        case ast.Name(id=name) if name in CALLS:
            return ast.Name(CALLS[name], node.ctx)
        case ast.Attribute(attr=name, value=value) if name in CALLS:
            return ast.Attribute(value, CALLS[name], node.ctx)
    return None


class Planter(ast.NodeTransformer):
    """Lists the faults that could be planted in a tree, and plants the one with a number."""

    def __init__(self, plant: int | None = None) -> None:
        self.plant = plant
        self.found: list[tuple[int, str, str]] = []

    def visit(self, node: ast.AST) -> Any:
        match node:
            case ast.Assert() | ast.JoinedStr() | ast.keyword(arg="strict") | ast.Expr(value=ast.Constant()):
                return node
            case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.FunctionDef(name="__repr__"):
                return node
        new = changed(node)
        if new is not None:
            self.found.append((node.lineno, ast.unparse(node), ast.unparse(new)))  # type: ignore[attr-defined]
            if len(self.found) - 1 == self.plant:
                return ast.fix_missing_locations(ast.copy_location(new, node))
        # Types are no code, and the words of an error no fault.
        names = {"annotation", "returns", "decorator_list", "type_params", *(["exc"] if new is not None else [])}
        for name, value in ast.iter_fields(node):
            if name not in names and isinstance(value, ast.AST):
                setattr(node, name, self.visit(value))
            elif name not in names and isinstance(value, list):
                value[:] = [self.visit(each) if isinstance(each, ast.AST) else each for each in value]
        return node


def faults_of(file: Path) -> Iterator[Fault]:
    """Every fault that could be planted in a file."""
    planter = Planter()
    planter.visit(ast.parse(file.read_bytes()))
    for number, (line, old, new) in enumerate(planter.found):
        yield Fault(str(file.relative_to(ROOT)), number, line, old, new)


class Planted(MetaPathFinder):
    """Imports one file with a fault."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.name = fault.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != self.name:
            return None
        file, number = ROOT / self.fault.file, self.fault.number

        class Loader(SourceFileLoader):
            def get_code(self, fullname: str) -> Any:
                tree = Planter(number).visit(ast.parse(file.read_bytes()))
                return compile(tree, str(file), "exec", dont_inherit=True)

        places = [str(file.parent)] if file.name == "__init__.py" else None
        return spec_from_file_location(name, file, loader=Loader(name, str(file)), submodule_search_locations=places)


def run(tests: list[str], fault: Fault | None, seconds: float, without: set[str]) -> tuple[str, str]:
    """Run tests in a fork: ``found``, ``missed`` or ``time``, and the test that failed."""

    class Told:
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.failed:
                os.write(writing, f"{report.nodeid}\n".encode())

    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        os.dup2(os.open(os.environ.get("ST_REBA_FAULTS_LOG", os.devnull), os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
        os.dup2(1, 2)
        resource.setrlimit(resource.RLIMIT_CPU, (limit := SECONDS + round(3 * seconds), limit))
        os.setpgrp()
        if fault is not None:
            sys.meta_path.insert(0, Planted(fault))
        # With rewritten assertions pytest itself would read a file whose examples are asked for, so without the fault.
        arguments = ["-x", "-q", "--tb=line", "-p", "no:cacheprovider", "-m", "not slow", "--assert=plain"]
        status = 1
        try:
            status = int(pytest.main([*arguments, *(f"--deselect={test}" for test in without), *tests], [Told()]))
        finally:
            os._exit(status)
    os.close(writing)
    _, status = os.waitpid(child, 0)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    with os.fdopen(reading, "rb") as pipe:
        by = pipe.read().decode().partition("\n")[0]
    if os.WIFSIGNALED(status):
        return ("time" if os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL) else "found"), by
    return ("missed" if os.WEXITSTATUS(status) in (0, 5) else "found"), by


def judge(fault: Fault, lists: list[list[str]], seconds: dict[str, float], known: dict[str, bool]) -> tuple[str, str]:
    """Run lists of tests until a test fails that passes without the fault; `known`: whether a test does."""
    for tests in filter(None, lists):
        took = sum(time for test, time in seconds.items() if test in tests or test.partition("::")[0] in tests)
        while True:
            outcome, by = run(tests, fault, took, {test for test, passes in known.items() if not passes})
            if outcome == "missed":
                break
            # Without a name, nothing ran: the fault is in what is imported.
            if (by or fault.file) not in known:
                known[by or fault.file] = run([by] if by else tests[:1], None, took, set())[0] == "missed"
            if known[by or fault.file]:
                return outcome, by
            if not by:
                raise SystemExit(f"They cannot be run: {tests}")
            print(f"fails without a fault: {by}", flush=True)
    return "missed", ""


def durations(junit: Path) -> dict[str, float]:
    """How long each test took, those that failed left out."""
    found = {}
    for case in ElementTree.parse(junit).iter("testcase"):
        if not {each.tag for each in case} & {"failure", "error"}:
            file = case.attrib["classname"].replace(".", "/") + ".py"
            found[f"{file}::{case.attrib['name']}"] = float(case.attrib["time"])
    return found


def tests_of(fault: Fault, coverage: Any, seconds: dict[str, float]) -> list[list[str]]:
    """The tests to run, a list after the other."""
    lines: dict[int, list[str]] = coverage.contexts_by_lineno(str(ROOT / fault.file))
    # A line that runs when the file is imported is no test's.
    contexts = {*lines.get(fault.line, ())} - {""} or {each for some in lines.values() for each in some}
    name = f"test_{Path(fault.file).stem}.py"
    tests = [test for test in (each.rpartition("|")[0] for each in contexts) if test in seconds]
    tests.sort(key=lambda test: (seconds[test], test))
    # One case of every test before the second of any.
    functions = [test.partition("[")[0] for test in tests]
    places = {test: functions[:n].count(functions[n]) for n, test in enumerate(tests)}
    tests.sort(key=lambda test: (name not in test, places[test]))
    # Those of consumers, of browsers and of the wheel need environments of their own.
    files = {str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob(name)}
    files |= {test.partition("::")[0] for test in tests if len(tests) < 9}
    named = [file for file in sorted(files) if not {"browser", "consumers", "wheel"} & {*file.split("/")}]
    return [tests[:FIRST], [*tests[FIRST:MOST], *named]]


def main() -> int:
    """Run; returns the exit status: 1 if a fault was not found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=150, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (default: %(default)s)")
    parser.add_argument("--under", default="st_reba", help="a folder or file of the package (default: all)")
    parser.add_argument("--out", type=Path, help="a JSON line a fault; what is there is not tried again (none: list)")
    options = parser.parse_args()
    under = ROOT / options.under
    files = [under] if under.is_file() else sorted(under.rglob("*.py"))
    every = [fault for file in files for fault in faults_of(file)]
    faults = random.Random(options.seed).sample(every, min(options.faults, len(every)))
    if options.out is None:
        print("\n".join(map(str, faults)))
        return 0
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    coverage, seconds, known = CoverageData(".coverage"), durations(Path("junit.xml")), {}
    coverage.read()
    rows = map(json.loads, options.out.open(encoding="utf-8")) if options.out.is_file() else ()
    done = {Fault(*(row[name] for name in Fault._fields)): row["outcome"] for row in rows}
    for name in HEAVY:
        import_module(name)
    torch.set_num_threads(1)
    for fault in (each for each in faults if each not in done):
        done[fault], by = judge(fault, tests_of(fault, coverage, seconds), seconds, known)
        with options.out.open("a", encoding="utf-8") as out:
            print(json.dumps({**fault._asdict(), "outcome": done[fault], "by": by}), file=out)
        print(f"{done[fault]:7} {fault}", flush=True)
    counts = Counter(done[fault] for fault in faults)
    print(", ".join(f"{name} {number}" for name, number in counts.most_common()))
    return int(counts["missed"] > 0)


if __name__ == "__main__":
    raise SystemExit(main())
