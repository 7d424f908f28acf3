"""What readability means here, measured over the package: short lines, names that say something, few decisions."""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "st_reba"
MAX_TOKENS_OF_LINE = 25
MANY_DECISIONS = 15
# Names that say nothing of what they name.
VAGUE_NAMES = """
    about each found given kept known made needed one other own part place plain rest said shown
    some thing wanted what whole
"""
LAYOUT_TOKENS = frozenset(
    {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
)
DECISIONS = (ast.If, ast.For, ast.While, ast.With, ast.ExceptHandler, ast.IfExp, ast.comprehension)


@cache
def sources() -> tuple[str, ...]:
    return tuple(path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py")))


@cache
def nodes() -> tuple[ast.AST, ...]:
    trees = map(ast.parse, sources())
    return tuple(chain.from_iterable(map(ast.walk, trees)))


def tokens_by_line(source: str) -> Counter[int]:
    """How many tokens each line of code holds; comments and docstrings are none."""
    docstring_lines: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            docstring_lines |= set(range(node.lineno, (node.end_lineno or 0) + 1))
    token_counts: Counter[int] = Counter()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        line = token.start[0]
        if token.type not in LAYOUT_TOKENS and line not in docstring_lines:
            token_counts[line] += 1
    return token_counts


def bound_names() -> Iterator[str]:
    """The names that functions, arguments and assignments bind."""
    for node in nodes():
        if isinstance(node, ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.arg) and node.arg not in ("self", "cls"):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def decisions_of(function: ast.FunctionDef) -> int:
    """Branches, loops, ``with`` blocks, handlers and conditions, also of the functions inside."""
    count = 0
    for node in ast.walk(function):
        count += isinstance(node, DECISIONS)
        if isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
        if isinstance(node, ast.comprehension):
            count += len(node.ifs)
    return count


def test_lines_hold_few_tokens() -> None:
    token_counts: list[int] = []
    for source in sources():
        token_counts += tokens_by_line(source).values()
    long_lines = [count for count in token_counts if count > MAX_TOKENS_OF_LINE]
    assert sum(token_counts) / len(token_counts) <= 9
    assert len(long_lines) / len(token_counts) <= 0.025


def test_names_say_what_they_name() -> None:
    names = [name.strip("_") for name in bound_names()]
    vague_names = Counter(name for name in names if name in VAGUE_NAMES.split())
    assert vague_names.total() / len(names) <= 0.02, vague_names.most_common(10)


def test_functions_make_few_decisions() -> None:
    functions = [node for node in nodes() if isinstance(node, ast.FunctionDef)]
    branching_functions = [node.name for node in functions if decisions_of(node) >= MANY_DECISIONS]
    assert len(branching_functions) / len(functions) <= 0.01, branching_functions


def test_a_line_is_measured_by_its_tokens() -> None:
    source = 'def double(x):\n    """Twice."""\n    # a comment\n    return 2 * x\n'
    assert tokens_by_line(source) == {1: 6, 4: 4}


def test_decisions_are_counted_inside_expressions() -> None:
    function = ast.parse("def f(x):\n    return [y for y in x if y and x] if x else []").body[0]
    assert isinstance(function, ast.FunctionDef) and decisions_of(function) == 4
