"""Examples of the classes that a published model has: pytest takes them for those of another module."""

from __future__ import annotations

import doctest
from importlib import import_module

import pytest

import st_reba
from st_reba.modules import MODULES


@pytest.mark.parametrize("name", MODULES)
def test_the_example_of_a_module_class_runs(name: str) -> None:
    finder = doctest.DocTestFinder(recurse=False)
    names_of_its_file = vars(import_module(MODULES[name].section))
    (example,) = finder.find(getattr(st_reba, name), name, globs=names_of_its_file)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(example)
    results = runner.summarize()
    assert results.attempted > 0
    assert results.failed == 0
