"""What of the retrievers needs no framework; tests/consumers/test_retrievers.py has the rest."""

from __future__ import annotations

from typing import Any

import pytest

from st_reba.index import retrievers
from st_reba.index.retrievers import _conditions

YEAR = {"field": "meta.year", "operator": "<", "value": 2006}
LANG = {"field": "lang", "operator": "in", "value": ["zh", "fr"]}


def test_filters_hold_besides_conditions() -> None:
    nested = {"operator": "AND", "conditions": [YEAR, {"operator": "AND", "conditions": [LANG, YEAR]}]}
    where = {"year": {">=": 2003}, "kind": "news"}
    expected = {"year": {">=": 2003, "<": 2006}, "kind": {"=": "news"}, "lang": {"in": ["zh", "fr"]}}
    assert _conditions(where, nested) == expected
    assert where["year"] == {">=": 2003}, "the caller's own stay as they are"
    assert _conditions(None, None) is None and _conditions(None, YEAR) == {"year": {"<": 2006}}


def test_refused_filters() -> None:
    # What was set for good cannot be widened.
    with pytest.raises(ValueError, match="'meta.year' is compared by '<' twice"):
        _conditions({"year": {"<": 2003}}, YEAR)
    for unknown in ({"operator": "OR", "conditions": [YEAR, LANG]}, {**YEAR, "operator": "not in"}, {"year": 2000}):
        with pytest.raises(ValueError, match="is not known; give a comparison by one of =="):
            _conditions(None, unknown)


@pytest.mark.parametrize(
    ("name", "package"),
    [("langchain", "langchain-core"), ("llama_index", "llama-index-core"), ("haystack", "haystack-ai")],
)
def test_not_installed(monkeypatch: pytest.MonkeyPatch, name: str, package: str) -> None:
    def missing(module: str) -> Any:
        raise ModuleNotFoundError(f"No module named {module.partition('.')[0]!r}")

    monkeypatch.setattr(retrievers, "import_module", missing)
    with pytest.raises(ImportError, match=f"pip install {package}$"):
        getattr(retrievers, name)(None)
