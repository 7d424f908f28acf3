r"""Plant faults in the package, one at a time, and see whether the tests find them.

    python -m pytest -m "not slow" --cov=st_reba --cov-context=test --cov-report= \
        --junitxml=junit.xml
    python scripts/plant_faults.py --faults 150 --seed 0 --out faults.jsonl

The first records, with pytest-cov, which tests run each line and how long each test takes. The
second writes one line of JSON for each fault and prints the counts.

A fault is one small change: a comparison, a sign, a number, a condition, a statement left out. The
tests that run the changed line are run until one fails: those in the test file of the same name
first, then the quickest. Then that whole file is run, and also the whole files of a line that few
tests run, because coverage counts a fixture only for the first test that uses it; of a line that
runs only at import, such as the default of an option, all test files of its folder. Last come other
tests of the line, as many as take two minutes together. A test that finds a fault is run again
without it, and must pass. Tests run in forks of a process that has imported the heavy libraries, so
that a fault costs seconds. Programs that a test starts do not have the fault.
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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Any, NamedTuple, TextIO
from xml.etree import ElementTree

import pytest
import torch
from coverage import CoverageData

ROOT = Path(__file__).resolve().parents[1]
# Seconds of processor time, on top of three times what the tests take; a fault that makes them run
# longer counts as found.
TIME_LIMIT = 90
# Of real time, a multiple of that: other work may take the processor.
WAITING_FACTOR = 10
# Tests of a line: those that are tried first, those that are tried with the test file as a whole, and
# the seconds that the others may take together.
QUICKEST_TESTS = 25
MORE_TESTS = 125
OTHER_SECONDS = 120

SWAPPED_OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Continue: ast.Break,
    ast.Break: ast.Continue,
}
SWAPPED_CALLS = {
    "min": "max",
    "max": "min",
    "any": "all",
    "all": "any",
    "argmax": "argmin",
    "cumsum": "cumprod",
}
# Types are not code.
FIELDS_WITHOUT_FAULTS = {
    "annotation",
    "returns",
    "decorator_list",
    "type_params",
}
# Imported once, for all processes to come.
ARCHITECTURES = ("llama", "gpt2", "gemma2", "gpt_oss", "qwen2")
HEAVY_MODULES = (
    *(f"transformers.models.{name}.modeling_{name}" for name in ARCHITECTURES),
    *("sentence_transformers", "faiss", "pandas", "pyarrow.parquet"),
    *("sklearn.linear_model", "sklearn.cluster", "scipy.stats"),
    *("matplotlib.pyplot", "seqeval.metrics", "onnxruntime"),
    *("typer.testing", "datasets", "hypothesis"),
)
# These need environments of their own.
OTHER_ENVIRONMENTS = {"browser", "consumers", "wheel"}
# With rewritten assertions pytest itself would read a file whose examples are asked for, so without
# the fault.
PYTEST_OPTIONS = [
    *("-x", "-q", "--tb=line", "-p", "no:cacheprovider"),
    *("-m", "not slow", "--assert=plain"),
]


class Fault(NamedTuple):
    """The change with this number of all that could be made in a file."""

    file: str
    number: int
    line: int
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.old!r} -> {self.new!r}"


def change(node: ast.AST) -> ast.AST | None:
    """A node with a fault, or None."""
    match node:
        case ast.Raise() | ast.Expr(value=ast.Call()):
            return ast.Pass()
        case ast.Continue() | ast.Break():
            return SWAPPED_OPERATORS[type(node)]()
        case ast.Compare(left=left, ops=[operator], comparators=right):
            return ast.Compare(left, [swap(operator)], right)
        case ast.BoolOp(op=operator, values=values):
            return ast.BoolOp(swap(operator), values)
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in SWAPPED_OPERATORS:
            if is_text(left) or is_text(right):
                return None
            return ast.BinOp(left, swap(operator), right)
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            return operand
        case ast.IfExp(test=test, body=body, orelse=other_body):
            return ast.IfExp(test, other_body, body)
        case ast.Constant(value=bool(value)):
            return ast.Constant(not value)
        case ast.Constant(value=int(value)):
            return ast.Constant(value + 1)
        case ast.Name(id=name) if name in SWAPPED_CALLS:
            return ast.Name(SWAPPED_CALLS[name], node.ctx)
        case ast.Attribute(attr=name, value=value) if name in SWAPPED_CALLS:
            return ast.Attribute(value, SWAPPED_CALLS[name], node.ctx)
    return None


def swap(operator: ast.AST) -> Any:
    return SWAPPED_OPERATORS[type(operator)]()


def is_text(node: ast.AST) -> bool:
    """Whether a node is a text, list or tuple, which `+` joins."""
    if isinstance(node, (ast.JoinedStr, ast.List, ast.Tuple)):
        return True
    return isinstance(getattr(node, "value", 0), str)


class Planter(ast.NodeTransformer):
    """Lists the faults that could be planted in a tree, and plants the one with a number."""

    def __init__(self, planted_number: int | None = None) -> None:
        self.planted_number = planted_number
        self.faults: list[tuple[int, str, str]] = []  # line, old and new code

    def visit(self, node: ast.AST) -> Any:
        match node:
            case (
                ast.Assert()
                | ast.JoinedStr()
                | ast.keyword(arg="strict")
                | ast.Expr(value=ast.Constant())
            ):
                return node
            case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.FunctionDef(name="__repr__"):
                return node
        changed_node = change(node)
        if changed_node is not None:
            line = node.lineno  # type: ignore[attr-defined]
            self.faults.append((line, ast.unparse(node), ast.unparse(changed_node)))
            if len(self.faults) - 1 == self.planted_number:
                return ast.fix_missing_locations(ast.copy_location(changed_node, node))
        self._visit_fields(node, has_fault=changed_node is not None)
        return node

    def _visit_fields(self, node: ast.AST, *, has_fault: bool) -> None:
        for name, value in ast.iter_fields(node):
            # The words of an error are not a fault.
            if name in FIELDS_WITHOUT_FAULTS or (has_fault and name == "exc"):
                continue
            if isinstance(value, ast.AST):
                setattr(node, name, self.visit(value))
            elif isinstance(value, list):
                for index, item in enumerate(value):
                    if isinstance(item, ast.AST):
                        value[index] = self.visit(item)


def faults_of(file: Path) -> Iterator[Fault]:
    """Every fault that could be planted in a file."""
    planter = Planter()
    planter.visit(ast.parse(file.read_bytes()))
    for fault_number, (line, old_code, new_code) in enumerate(planter.faults):
        yield Fault(str(file.relative_to(ROOT)), fault_number, line, old_code, new_code)


class FaultyImport(MetaPathFinder):
    """Imports one file with a fault."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        module_path = fault.file.removesuffix(".py").removesuffix("/__init__")
        self.module_name = module_path.replace("/", ".")

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != self.module_name:
            return None
        file = ROOT / self.fault.file
        planted_number = self.fault.number

        class Loader(SourceFileLoader):
            def get_code(self, fullname: str) -> Any:
                tree = Planter(planted_number).visit(ast.parse(file.read_bytes()))
                return compile(tree, str(file), "exec", dont_inherit=True)

        return spec_from_file_location(
            name,
            file,
            loader=Loader(name, str(file)),
            submodule_search_locations=[str(file.parent)] if file.name == "__init__.py" else None,
        )


class Result(NamedTuple):
    """Of a run of tests."""

    outcome: str  # "found", "missed" or "time"
    failed_test: str


class FailureReporter:
    """A plugin of pytest that writes the name of each test that fails."""

    def __init__(self, pipe: int) -> None:
        self.pipe = pipe

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            os.write(self.pipe, f"{report.nodeid}\n".encode())


def run_tests(
    test_ids: list[str],
    fault: Fault | None,
    test_seconds: float,
    excluded_tests: list[str],
) -> Result:
    """Run tests in a fork."""
    reading_end, writing_end = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            time_limit = TIME_LIMIT + round(3 * test_seconds)
            prepare_child(fault, time_limit)
            excluded = [f"--deselect={test}" for test in excluded_tests]
            status = int(
                pytest.main(
                    [*PYTEST_OPTIONS, *excluded, *test_ids],
                    [FailureReporter(writing_end)],
                )
            )
        finally:
            os._exit(status)
    os.close(writing_end)
    _, status = os.waitpid(child, 0)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    with os.fdopen(reading_end, "rb") as pipe:
        failed_test = pipe.read().decode().partition("\n")[0]
    return Result(outcome_of(status), failed_test)


def prepare_child(fault: Fault | None, time_limit: int) -> None:
    """Redirect the output, limit the time, and install the fault."""
    log_file = os.environ.get("ST_REBA_FAULTS_LOG", os.devnull)
    os.dup2(os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
    os.dup2(1, 2)
    resource.setrlimit(resource.RLIMIT_CPU, (time_limit, time_limit))
    # A fault may also make it wait without end.
    signal.alarm(WAITING_FACTOR * time_limit)
    os.setpgrp()
    if fault is not None:
        sys.meta_path.insert(0, FaultyImport(fault))


def outcome_of(status: int) -> str:
    """Of a fork's status; 5 is pytest's where it ran no test."""
    if os.WIFSIGNALED(status):
        is_out_of_time = os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL, signal.SIGALRM)
        return "time" if is_out_of_time else "found"
    return "missed" if os.WEXITSTATUS(status) in (0, 5) else "found"


@dataclass
class Judge:
    """Tells by the tests whether a fault is found."""

    coverage: CoverageData
    test_seconds: dict[str, float]  # of each test
    # Whether a test passes without a fault; by a fault's file, whether tests can be run at all.
    passes_without_fault: dict[str, bool] = field(default_factory=dict)

    def judge(self, fault: Fault) -> Result:
        """Run lists of tests until a test fails that passes without the fault."""
        for test_ids in self.tests_of(fault):
            if not test_ids:
                continue
            result = self._run_until_sure(test_ids, fault)
            if result.outcome != "missed":
                return result
        return Result("missed", "")

    def _run_until_sure(self, test_ids: list[str], fault: Fault) -> Result:
        needed_seconds = self._seconds_of(test_ids)
        while True:
            excluded_tests = [
                test for test, passes in self.passes_without_fault.items() if not passes
            ]
            result = run_tests(test_ids, fault, needed_seconds, excluded_tests)
            if result.outcome == "missed":
                return result
            # Without a name, nothing ran: the fault is in what is imported.
            failed_test = result.failed_test or fault.file
            if failed_test not in self.passes_without_fault:
                repeated_tests = [result.failed_test] if result.failed_test else test_ids[:1]
                repeated_result = run_tests(repeated_tests, None, needed_seconds, [])
                self.passes_without_fault[failed_test] = repeated_result.outcome == "missed"
            if self.passes_without_fault[failed_test]:
                return result
            if not result.failed_test:
                raise SystemExit(f"They cannot be run: {test_ids}")
            print(f"fails without a fault: {failed_test}", flush=True)

    def _seconds_of(self, test_ids: list[str]) -> float:
        """How long tests take, or all tests of a file."""
        total = 0.0
        for test, seconds in self.test_seconds.items():
            if test in test_ids or test.partition("::")[0] in test_ids:
                total += seconds
        return total

    def tests_of(self, fault: Fault) -> list[list[str]]:
        """The tests to run, a list after the other."""
        file_name = f"test_{Path(fault.file).stem}.py"
        contexts_by_line = self.coverage.contexts_by_lineno(str(ROOT / fault.file))
        test_ids = self._tests_of_line(fault, contexts_by_line)
        test_ids.sort(key=lambda test: (self.test_seconds[test], test))
        case_numbers = number_cases(test_ids)
        # One case of every test before the second of any.
        test_ids.sort(key=lambda test: (file_name not in test, case_numbers[test]))
        files = {str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob(file_name)}
        if len(test_ids) < 9:
            files |= {test.partition("::")[0] for test in test_ids}
        if not contexts_of([fault.line], contexts_by_line):
            files |= test_files_beside(fault)
        whole_files: list[str] = []
        for file in sorted(files):
            if OTHER_ENVIRONMENTS.isdisjoint(file.split("/")):
                whole_files.append(file)
        quickest = test_ids[:QUICKEST_TESTS]
        others = test_ids[QUICKEST_TESTS:]
        last_tests: list[str] = []
        total_seconds = 0.0
        for test in others[MORE_TESTS:]:
            total_seconds += self.test_seconds[test]
            if total_seconds > OTHER_SECONDS:
                break
            last_tests.append(test)
        return [quickest, [*others[:MORE_TESTS], *whole_files], last_tests]

    def _tests_of_line(
        self, fault: Fault, contexts_by_line: Mapping[int, Sequence[str]]
    ) -> list[str]:
        """The tests that run the line. If it runs only at import: those of its function, or of the whole file."""
        contexts = contexts_of([fault.line], contexts_by_line)
        if not contexts:
            function_lines = lines_of_function(ROOT / fault.file, fault.line)
            contexts = contexts_of(function_lines, contexts_by_line)
        if not contexts:
            contexts = contexts_of(contexts_by_line, contexts_by_line)
        test_ids: list[str] = []
        for context in contexts:
            test = context.rpartition("|")[0]
            if test in self.test_seconds:
                test_ids.append(test)
        return test_ids


def contexts_of(lines: Iterable[int], contexts_by_line: Mapping[int, Sequence[str]]) -> set[str]:
    """What coverage calls the tests that run some lines; none for lines that run only at import."""
    contexts: set[str] = set()
    for line in lines:
        contexts.update(contexts_by_line.get(line, ()))
    return contexts - {""}


def test_files_beside(fault: Fault) -> set[str]:
    """The test files of a fault's folder, if it is one inside the package."""
    folder = ROOT / "tests" / Path(fault.file).parent.relative_to("st_reba")
    if folder == ROOT / "tests":
        return set()
    return {str(path.relative_to(ROOT)) for path in folder.glob("test_*.py")}


def lines_of_function(file: Path, line: int) -> range:
    """The lines of the innermost function that has a line in its head or body."""
    lines = range(0)
    for node in ast.walk(ast.parse(file.read_bytes())):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if node.lineno <= line <= (node.end_lineno or 0):  # inner functions come later
            lines = range(node.lineno, (node.end_lineno or 0) + 1)
    return lines


def number_cases(test_ids: list[str]) -> dict[str, int]:
    """For each test, how many cases of its function are before it."""
    case_counts: Counter[str] = Counter()
    case_numbers: dict[str, int] = {}
    for test in test_ids:
        function = test.partition("[")[0]
        case_numbers[test] = case_counts[function]
        case_counts[function] += 1
    return case_numbers


def durations(junit_file: Path) -> dict[str, float]:
    """How long each test took, those that failed left out."""
    test_seconds: dict[str, float] = {}
    for case in ElementTree.parse(junit_file).iter("testcase"):
        has_failed = any(child.tag in ("failure", "error") for child in case)
        if not has_failed:
            test_file = case.attrib["classname"].replace(".", "/") + ".py"
            test_seconds[f"{test_file}::{case.attrib['name']}"] = float(case.attrib["time"])
    return test_seconds


def draw_faults(folder: Path, count: int, seed: int) -> list[Fault]:
    files = [folder] if folder.is_file() else sorted(folder.rglob("*.py"))
    all_faults: list[Fault] = []
    for file in files:
        all_faults += faults_of(file)
    return random.Random(seed).sample(all_faults, min(count, len(all_faults)))


def read_outcomes(out_file: Path) -> dict[Fault, str]:
    """Of faults that an earlier run has tried."""
    outcomes: dict[Fault, str] = {}
    if out_file.is_file():
        for line in out_file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            fault = Fault(*(row[name] for name in Fault._fields))
            outcomes[fault] = row["outcome"]
    return outcomes


def write_outcome(stream: TextIO, fault: Fault, result: Result) -> None:
    row = fault._asdict() | {
        "outcome": result.outcome,
        "by": result.failed_test,
    }
    print(json.dumps(row), file=stream)


def main() -> int:
    """Run; returns the exit status: 1 if a fault was not found."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--faults",
        type=int,
        default=150,
        help="how many (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the draw (default: %(default)s)")
    parser.add_argument(
        "--under",
        default="st_reba",
        help="a folder or file of the package (default: all)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="a JSON line a fault; what is there is not tried again (none: list)",
    )
    options = parser.parse_args()
    faults = draw_faults(ROOT / options.under, options.faults, options.seed)
    if options.out is None:
        print("\n".join(map(str, faults)))
        return 0
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    coverage = CoverageData(".coverage")
    coverage.read()
    judge = Judge(coverage, durations(Path("junit.xml")))
    outcomes = read_outcomes(options.out)
    for name in HEAVY_MODULES:
        import_module(name)
    torch.set_num_threads(1)
    for fault in faults:
        if fault in outcomes:
            continue
        result = judge.judge(fault)
        outcomes[fault] = result.outcome
        with options.out.open("a", encoding="utf-8") as stream:
            write_outcome(stream, fault, result)
        print(f"{result.outcome:7} {fault}", flush=True)
    outcome_counts = Counter(outcomes[fault] for fault in faults)
    print(", ".join(f"{outcome} {count}" for outcome, count in outcome_counts.most_common()))
    return int(outcome_counts["missed"] > 0)


if __name__ == "__main__":
    raise SystemExit(main())
