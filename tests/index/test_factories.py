"""Factories and parameters are tried, with a search, before anything is encoded or replaced."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from indexes import build, make_documents

from st_reba.index import Index, factories
from st_reba.index.factories import _check_list_count, try_factory
from st_reba.index.scoring import Neighbors

UNUSABLE = [
    ("IVF0,Flat", None),
    ("IVF1000000000,Flat", None),
    ("IVF5M,Flat", None),
    ("IVF4,FlatDedup", None),
    ("IVF2,Flat", "nprobe=0"),
    ("IVF2,Flat", "nprobe=0.5"),
    ("IVF2,Flat", "nprobe=-5"),
    ("IVF2,Flat", "nprobe=nan"),
    ("IVF2,Flat", "nprobe=1e30"),
    ("IVF2,Flat", "nprobe=2,nprobe=0"),
    ("IVF2,Flat", "nprobe=3x"),
    (5, None),
]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return build(tmp_path_factory.mktemp("factories") / "index", make_documents(12))


@pytest.mark.parametrize(("factory", "parameters"), UNUSABLE)
def test_compact_refuses_an_index_that_cannot_be_searched(
    index: Index,
    factory: str,
    parameters: str | None,
) -> None:
    with pytest.raises(ValueError, match="factory="):
        index.compact(factory=factory, parameters=parameters)
    assert len(index.search("cat", 12)) == 12


@pytest.mark.parametrize(("factory", "parameters"), UNUSABLE)
def test_build_refuses_an_index_that_cannot_be_searched(
    index_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    factory: str,
    parameters: str | None,
) -> None:
    monkeypatch.setattr("st_reba.corpus.encode_part.encode_texts", None)  # nothing is encoded
    with pytest.raises(ValueError, match="factory="):
        build(index_path, factory=factory, parameters=parameters)


@pytest.mark.parametrize("list_count", ["1", "4194304", "4096k", "4M"])
def test_as_many_lists_are_allowed_as_memory_holds(list_count: str) -> None:
    _check_list_count(f"IVF{list_count},Flat")


@pytest.mark.parametrize("list_count", ["0", "4194305", "4097k", "5M"])
def test_more_lists_than_memory_holds_are_refused(list_count: str) -> None:
    with pytest.raises(ValueError, match=f"{list_count} inverted lists, where 1 to 4,194,304"):
        _check_list_count(f"IVF{list_count},Flat")


def test_parameters_other_than_nprobe_may_be_zero() -> None:
    try_factory("IVF2,Flat", 8, "nprobe=1,max_codes=0")


@pytest.mark.parametrize(("score", "key"), [(0.5, -1), (np.nan, 7)])
def test_an_index_that_finds_nothing_is_refused(
    monkeypatch: pytest.MonkeyPatch, score: float, key: int
) -> None:
    neighbors = Neighbors(np.full((4, 1), score, np.float32), np.full((4, 1), key))
    monkeypatch.setattr(factories, "search_lists", lambda *_: neighbors)
    with pytest.raises(ValueError, match="a search finds nothing"):
        try_factory("IVF2,Flat", 8)


@pytest.mark.parametrize("factory", ["IVF-5,Flat", "IVF2,PQ7", "IVF4,FlatDedup"])
def test_errors_of_faiss_do_not_name_lines_of_its_source(factory: str) -> None:
    with pytest.raises(ValueError, match="factory=") as caught:
        try_factory(factory, 8)
    error_message = str(caught.value)
    assert ".cpp" not in error_message
    assert "parameters=None" not in error_message
