"""Plant faults in the package, one at a time, and see whether the tests find them.

    python -m pytest -m "not slow" --cov=st_reba --cov-context=test --cov-report= --junitxml=junit.xml
    python scripts/plant_faults.py --faults 150 --seed 0 --out faults.jsonl

The first writes which tests run a line (.coverage), and for how long; the second a line a fault, and a table.

A fault is one small change: a comparison, a sign, a number, a condition, a statement left out. The tests that run the
changed line are run until one fails: first those in the file of the same name, then the quickest; and that file as a
whole, as a line that ran for one test may be what another relies on. A test that finds a fault is seen
to pass without it. A fault that no test finds says that a test is missing, or it is one of scripts/same_faults.yaml:
changes that nobody could see, and why.
Processes are forked from one that holds the heavy libraries, so a fault costs seconds. A program that a test starts is
without the fault. Needs pytest-cov.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import resource
import signal
import sqlite3
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import yaml

ROOT = Path(__file__).resolve().parents[1]
# Part of the package: its share of the faults, its files, and the tests of lines that run when a file is imported.
PARTS: dict[str, tuple[float, list[str], list[str]]] = {
    "modules": (0.40, ["st_reba/modules"], ["tests/modules"]),
    "methods": (0.13, ["st_reba/methods.py", "st_reba/assembly.py"], ["tests/test_methods.py", "tests/test_bases.py"]),
    "index": (0.22, ["st_reba/index"], ["tests/index"]),
    "evaluation": (0.25, ["st_reba/evaluation"], ["tests/evaluation"]),
}
SAME = ROOT / "scripts/same_faults.yaml"
SECONDS = 90  # of processor time, and thrice what the tests take; a fault that makes them run on and on is found
FIRST, MANY = 25, 150  # tests of a line: so many are tried first, then so many, and the others last

# What is imported when it is used.
LATE = [
    *(
        f"transformers.models.{name}.modeling_{name}"
        for name in ("llama", "gpt2", "qwen2", "mistral", "gemma2", "bloom")
    ),
    *("sklearn.linear_model", "sklearn.cluster", "matplotlib.pyplot", "seqeval.metrics", "pandas", "pyarrow.parquet"),
]

COMPARE = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
ARITHMETIC = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "//"}
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any", "argmax": "argmin", "cumsum": "cumprod"}


@dataclass(frozen=True)
class Fault:
    """One change of a file: what stands between two offsets of its text is replaced."""

    file: str
    line: int
    start: int
    end: int
    old: str
    new: str


def changes(file: Path) -> Iterator[Fault]:
    """Every fault that could be planted in a file."""
    text = file.read_bytes().decode()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    source = text.encode()

    def at(line: int, column: int) -> int:
        return starts[line - 1] + column

    def fault(start: int, end: int, new: str) -> Fault:
        line = source[:start].count(b"\n") + 1
        return Fault(str(file.relative_to(ROOT)), line, start, end, source[start:end].decode(), new)

    def between(left: ast.expr, right: ast.expr, new: str) -> Fault:
        start = at(left.end_lineno or 0, left.end_col_offset or 0)
        end = at(right.lineno, right.col_offset)
        gap = source[start:end].decode()
        # Brackets that belong to the operands stay.
        close = len(gap) - len(gap.lstrip(") \n"))
        open_ = len(gap) - len(gap.rstrip("( \n"))
        return fault(start + close, end - open_, new)

    def whole(node: ast.expr | ast.stmt, new: str) -> Fault:
        return fault(at(node.lineno, node.col_offset), at(node.end_lineno or 0, node.end_col_offset or 0), new)

    def walk(node: ast.AST) -> Iterator[Fault]:
        match node:
            case ast.Raise():
                yield whole(node, "pass")
                return  # no wrong word in a message
            case ast.Assert() | ast.JoinedStr() | ast.Import() | ast.ImportFrom():
                return
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                return
            case ast.AnnAssign(value=value):
                if value is not None:
                    yield from walk(value)
                return
            case ast.FunctionDef(name="__repr__"):
                return
            case ast.FunctionDef(body=body, args=arguments):
                for each in [*body, *arguments.defaults, *(one for one in arguments.kw_defaults if one is not None)]:
                    yield from walk(each)
                return
            case ast.Expr(value=ast.Constant()):
                return
            case ast.Expr(value=ast.Call()):
                yield whole(node, "pass")
            case ast.Continue():
                yield whole(node, "break")
            case ast.Break():
                yield whole(node, "continue")
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in COMPARE:
                yield between(left, right, f" {COMPARE[type(op)]} ")
            case ast.BoolOp(op=op, values=[left, right, *_]):
                yield between(left, right, " or " if isinstance(op, ast.And) else " and ")
            case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
                if not any(
                    isinstance(each, ast.Constant | ast.JoinedStr | ast.List)
                    and not isinstance(getattr(each, "value", None), int | float)
                    for each in (left, right)
                ):
                    yield between(left, right, f" {ARITHMETIC[type(op)]} ")
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield whole(node, f"({ast.unparse(operand)})")
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                yield whole(node, f"({ast.unparse(operand)})")
            case ast.IfExp(test=test, body=body, orelse=other):
                yield whole(node, f"({ast.unparse(other)} if {ast.unparse(test)} else {ast.unparse(body)})")
            case ast.Constant(value=bool(value)):
                yield whole(node, str(not value))
            case ast.Constant(value=int(value)):
                yield whole(node, str(value + 1))
            case ast.Call(func=ast.Name(id=name) as called) if name in CALLS:
                yield whole(called, CALLS[name])
        for child in ast.iter_child_nodes(node):
            yield from walk(child)

    yield from walk(ast.parse(text))


def drawn(faults: int, seed: int) -> list[tuple[str, Fault]]:
    """So many faults of each part, at random."""
    generator = random.Random(seed)
    found = []
    for part, (share, folders, _) in PARTS.items():
        files = [
            file
            for each in folders
            for file in ([ROOT / each] if each.endswith(".py") else (ROOT / each).rglob("*.py"))
        ]
        every = [fault for file in sorted(files) for fault in changes(file)]
        found += [(part, fault) for fault in generator.sample(every, round(share * faults))]
    # So that a part of a run tells of all.
    generator.shuffle(found)
    return found


class Planted(MetaPathFinder):
    """Imports one file with a fault."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.name = fault.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != self.name:
            return None
        fault, file = self.fault, ROOT / self.fault.file

        class Loader(SourceFileLoader):
            def get_code(self, fullname: str) -> Any:
                source = file.read_bytes()
                changed = source[: fault.start] + fault.new.encode() + source[fault.end :]
                return compile(changed, str(file), "exec", dont_inherit=True)

        places = [str(file.parent)] if file.name == "__init__.py" else None
        return spec_from_file_location(name, file, loader=Loader(name, str(file)), submodule_search_locations=places)


def failed(fault: Fault | None, tests: list[str], seconds: float = 0.0, without: Sequence[str] = ()) -> tuple[str, str]:
    """Run tests in a process of its own: ``found``, ``missed`` or ``time``, and the test that failed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.environ.get("ST_REBA_FAULTS_LOG", os.devnull), os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
        os.dup2(1, 2)
        limit = SECONDS + round(3 * seconds)
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        os.setpgrp()
        if fault is not None:
            sys.meta_path.insert(0, Planted(fault))
        import pytest

        class Told:
            def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
                if report.failed:
                    os.write(writing, f"{report.nodeid}\n".encode())

        status: int = 1
        arguments = ["-x", "-q", "--no-header", "--tb=line", "-p", "no:cacheprovider", "-m", "not slow"]
        # Else pytest itself would read a file whose examples are asked for by its path, and so without the fault.
        arguments += ["--assert=plain", *(f"--deselect={test}" for test in without)]
        try:
            status = int(pytest.main([*arguments, *tests], plugins=[Told()]))
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
    if os.WEXITSTATUS(status) == 4 and any("::" in test for test in tests):
        # No test has such a name now: its file cannot be imported, or the fault is in what its name is made of.
        return failed(fault, sorted({test.partition("::")[0] for test in tests}), seconds, without)
    return ("missed" if os.WEXITSTATUS(status) in (0, 5) else "found"), by


def judged(fault: Fault, runs: list[list[str]], seconds: dict[str, float], sound: set[str]) -> tuple[str, str]:
    """Run the tests of each list until one fails that passes without the fault."""
    unsound: list[str] = []
    for tests in filter(None, runs):
        while True:
            took = sum(time for test, time in seconds.items() if test in tests or test.partition("::")[0] in tests)
            outcome, by = failed(fault, tests, took, unsound)
            if outcome == "missed":
                break
            if by in sound or failed(None, [by] if by else tests[:1], took)[0] == "missed":
                sound.update([by] if by else ())
                return outcome, by
            if not by:
                raise SystemExit(f"They cannot be run: {tests}")
            print(f"fails without a fault: {by}", flush=True)
            unsound.append(by)
    return "missed", ""


def warm(tests: list[str]) -> None:
    """Import what the tests import of others, for all processes to come."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        import pytest

        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        pytest.main(["-q", "-p", "no:cacheprovider", "--collect-only", *tests])
        with os.fdopen(writing, "w") as pipe:
            pipe.write(json.dumps([name for name, each in sys.modules.items() if "-packages" in str(each)]))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        names = json.load(pipe)
    os.waitpid(child, 0)
    for name in (*names, *LATE):
        if not name.startswith(("pytest", "_pytest")):
            with suppress(Exception):
                import_module(name)
    import torch

    torch.set_num_threads(1)


def lasted(junit: Sequence[Path]) -> dict[str, float]:
    """How long each test took, those that failed left out."""
    found = {}
    for case in (case for file in junit for case in ElementTree.parse(file).iter("testcase")):
        if not {each.tag for each in case} & {"failure", "error"}:
            file = case.attrib["classname"].replace(".", "/") + ".py"
            found[f"{file}::{case.attrib['name']}"] = float(case.attrib["time"])
    return found


def running(coverage: Path, seconds: dict[str, float]) -> dict[str, dict[int, list[str]]]:
    """Which tests run which lines, the best first: ``[file][line]``."""
    from coverage.numbits import numbits_to_nums

    found: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    with sqlite3.connect(coverage) as database:
        rows = database.execute(
            "select path, context, numbits from line_bits"
            " join file on file.id = file_id join context on context.id = context_id"
        )
        for path, context, numbits in rows:
            test = context.rpartition("|")[0]
            if test in seconds and "/st_reba/" in path:
                for line in numbits_to_nums(numbits):
                    found["st_reba/" + path.rpartition("/st_reba/")[2]][line].add(test)
    return {
        file: {
            line: sorted(tests, key=lambda test: (f"test_{Path(file).stem}.py" not in test, seconds[test], test))
            for line, tests in lines.items()
        }
        for file, lines in found.items()
    }


def choose(fault: Fault, lines: dict[int, list[str]]) -> list[list[str]]:
    """The tests to run, a list after the other: what runs the line, and last the files of its name."""
    # A line that runs when the file is imported is no test's.
    tests = lines.get(fault.line) or list(dict.fromkeys(test for each in lines.values() for test in each))
    named = sorted((ROOT / "tests").rglob(f"test_{Path(fault.file).stem}.py"))
    return [tests[:FIRST], tests[FIRST:MANY], [str(path.relative_to(ROOT)) for path in named], tests[MANY:]]


def main() -> int:
    """Run; returns the exit status: 1 if a fault was not found."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", type=int, default=150, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (default: %(default)s)")
    parser.add_argument("--coverage", type=Path, default=ROOT / ".coverage", help="(default: .coverage)")
    parser.add_argument(
        "--junit",
        type=Path,
        nargs="+",
        default=[ROOT / "junit.xml"],
        help="of each run in .coverage (default: junit.xml)",
    )
    parser.add_argument("--out", type=Path, help="a JSON line a fault; what is there is not tried again")
    parser.add_argument("--part", choices=PARTS, nargs="+", default=list(PARTS), help="(default: all)")
    parser.add_argument("--list", action="store_true", help="print the faults, run nothing")
    options = parser.parse_args()
    faults = [each for each in drawn(options.faults, options.seed) if each[0] in options.part]
    if options.list:
        for part, fault in faults:
            print(f"{part:10} {fault.file}:{fault.line}: {fault.old!r} -> {fault.new!r}")
        return 0
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    seconds = lasted(options.junit)
    lines = running(options.coverage, seconds)
    same = {(row["file"], row["line"], row["new"].strip()) for row in yaml.safe_load(SAME.read_text("utf-8"))}
    known = {}
    if options.out and options.out.exists():
        for row in map(json.loads, options.out.read_text("utf-8").splitlines()):
            known[row["file"], row["start"], row["new"]] = row["outcome"]

    warm(sorted({test for part in options.part for test in PARTS[part][2]}))
    if loaded := [name for name in sys.modules if name.partition(".")[0] == "st_reba"]:
        raise SystemExit(f"Imported before a fault was planted: {loaded}")
    table: dict[str, Counter[str]] = {part: Counter() for part in options.part}
    sound: set[str] = set()
    for part, fault in faults:
        began = time.monotonic()
        outcome = known.get((fault.file, fault.start, fault.new))
        if outcome is None:
            outcome, by = judged(fault, choose(fault, lines.get(fault.file, {})), seconds, sound)
            if options.out:
                with options.out.open("a", encoding="utf-8") as out:
                    print(json.dumps({"part": part, **asdict(fault), "outcome": outcome, "by": by}), file=out)
        text = (ROOT / fault.file).read_text("utf-8").splitlines()[fault.line - 1].strip()
        if outcome == "missed" and (fault.file, text, fault.new.strip()) in same:
            outcome = "same"
        table[part][outcome] += 1
        said = f"{fault.file}:{fault.line}: {fault.old!r} -> {fault.new!r}"
        print(f"{outcome:7} {time.monotonic() - began:6.1f} s  {said}", flush=True)
    kinds = ["found", "time", "same", "missed"]
    print(f"\n{'part':12}" + "".join(f"{each:>8}" for each in ("faults", *kinds)))
    for part, counts in [*table.items(), ("all", sum(table.values(), Counter()))]:
        print(f"{part:12}{counts.total():8}" + "".join(f"{counts[kind]:8}" for kind in kinds))
    return int(any(counts["missed"] for counts in table.values()))


if __name__ == "__main__":
    raise SystemExit(main())
