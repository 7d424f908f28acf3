"""tune for search: its candidates, its filters, what chooses and what reports, and what it leaves behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import st_reba
from st_reba import Filter, Method
from st_reba.cli.app import main
from st_reba.encode import encode_texts
from st_reba.evaluation import tune_retrieval
from st_reba.evaluation.readouts import of_base, opened, read, readout_of, vectors
from st_reba.evaluation.retrieval_labels import read_rankings
from st_reba.evaluation.retrieval_views import retrieval_views
from st_reba.evaluation.search import Scored
from st_reba.evaluation.search_filter import EncodedItems, normalize_rows, usable_kinds
from st_reba.evaluation.tune import tune
from st_reba.evaluation.tune_plan import TuneReport
from st_reba.evaluation.tune_retrieval import (
    RetrievalSearch,
    fit_search_filter,
    plan_by_labels,
    plan_by_views,
    plan_for_auto,
    retrieval_passes,
    search_wordings,
)
from st_reba.methods import DEFAULT
from st_reba.prompts import TEMPLATES

WHAT = ["plays the guitar", "reads a long letter", "is buying bread", "walks home late", "sings"]
WHERE = ["in the street", "near the river", "on a Sunday morning", "behind the school", "without a word"]
WHO = ["man", "woman", "neighbour", "cat", "teacher", "bird"]
STORIES = [(who, what, where) for who in WHO for what in WHAT for where in WHERE]
DOCUMENTS = [
    f"The {who} {what} {where}. Nobody saw the {who} of house {number}. It ended {where} in year {number}."
    for number, (who, what, where) in enumerate(STORIES)
]
QUIET: dict[str, Any] = {"say": lambda line: None}


@pytest.fixture(scope="module")
def small(base: Callable[..., str]) -> str:
    return base("deep")


@pytest.fixture(scope="module")
def report(small: str, tmp_path_factory: pytest.TempPathFactory) -> TuneReport:
    return tune(small, DOCUMENTS, tmp_path_factory.mktemp("tuned") / "out", purpose="search", **QUIET)


def test_every_wording_is_tried_with_queries_and_documents_apart() -> None:
    english = search_wordings("LATIN")
    assert "prompteol-search" in english and "prompteol-search-zh" not in english
    assert "prompteol-search-zh" in search_wordings("CJK")
    for wording in english[:-1]:
        template = TEMPLATES[wording] if isinstance(wording, str) else wording
        assert template["query"] != template["document"]
    passes = retrieval_passes(6, "LATIN")
    assert [each.method.template for each in passes[: len(english)]] == english
    assert len({each.method for each in passes}) == len(passes) == len(english) + 2
    assert len(retrieval_passes(6, "LATIN", small=True)) == 3


def test_what_build_takes_by_default_is_a_candidate() -> None:
    candidates = [(each, readout) for each in retrieval_passes(6, "LATIN") for readout in each.readouts(6)]
    readouts = {(each.method.template, readout) for each, readout in candidates}
    default = Method.parse(DEFAULT)
    assert (default.template, readout_of(default, 6)) in readouts


def test_a_readout_is_what_its_model_gives(small: str) -> None:
    base = opened(small)
    items = retrieval_views(DOCUMENTS[:12], 0)
    for each in retrieval_passes(6, "LATIN"):
        readouts = [readout for readout in each.readouts(6) if readout.layer in (4, 6)]
        encoded = {
            "query": read(of_base(base, each.method), readouts, items.queries, task="query"),
            "document": read(of_base(base, each.method), readouts, items.documents, task="document"),
        }
        for readout in readouts:
            model = of_base(base, each.of(readout, 6))
            for task, texts in (("query", items.queries), ("document", items.documents)):
                pooled = encoded[task][readout]
                units = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
                expected = encode_texts(model, texts, task=task)  # type: ignore[arg-type]
                np.testing.assert_allclose(units, expected, atol=2e-6)


@pytest.mark.parametrize("document_count", [30, 120, 300])
def test_cosines_are_those_of_the_filter(document_count: int) -> None:
    """Fewer documents than dimensions, and more."""
    generator = np.random.default_rng(0)
    scales = np.linspace(3, 0.1, 160)
    drawn = [
        (generator.normal(size=(count, 160)) * scales + 2).astype(np.float32) for count in (40, 25, document_count)
    ]
    queries, query_sample, documents = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in drawn)
    encoded_items = EncodedItems(3 * queries, 5 * query_sample, documents)
    for kind in usable_kinds(document_count, 25):
        expected_queries, expected_documents = queries, documents
        if kind is not None:
            power = 0.25 if kind == "whiten" else None
            fitted = Filter.fit(documents, kind, power=power, query_vectors=query_sample)  # type: ignore[arg-type]
            expected_queries = fitted.apply(queries, "query").astype(np.float32)
            expected_documents = fitted.apply(documents, "document").astype(np.float32)
        expected = normalize_rows(expected_queries) @ normalize_rows(expected_documents).T
        np.testing.assert_allclose(encoded_items.similarities(kind), expected, atol=2e-5)


def test_few_vectors_allow_fewer_filters() -> None:
    assert [usable_kinds(*counts) for counts in ((19, 50), (20, 19), (99, 20), (100, 20))] == [
        [None],
        [None],
        [None, "center"],
        [None, "center", "whiten"],
    ]


def test_a_candidate_has_the_score_of_its_model(small: str) -> None:
    base = opened(small)
    items = retrieval_views(DOCUMENTS, 0)
    search = RetrievalSearch(base, items, DOCUMENTS)
    assert search.filters == [None, "center", "whiten"]
    candidates = search.scored(retrieval_passes(6, "LATIN")[0])
    assert len(candidates) == 3 * 14
    for candidate in candidates[:: len(candidates) // 4]:
        model = of_base(base, candidate.method)
        query_vectors = encode_texts(model, items.queries, task="query")
        sample_vectors = encode_texts(model, items.query_sample, task="query")
        document_vectors = encode_texts(model, items.documents, task="document")
        encoded_items = EncodedItems(query_vectors, sample_vectors, document_vectors)
        scores = items.score(encoded_items.similarities(candidate.filter_kind))
        assert candidate.score == pytest.approx(float(scores.mean()), abs=5e-3)


def test_no_document_both_chooses_and_reports() -> None:
    plan = plan_by_views(DOCUMENTS, 1000, 0)
    assert plan.counts == (100, 50) and len(plan.documents) == 100
    reporting = {*plan.reporting.queries, *plan.reporting.documents}
    assert not any(text in document for text in reporting for document in plan.documents)


def test_no_labelled_query_both_chooses_and_reports() -> None:
    rows = [(f"what is {n}", document) for n, document in enumerate(DOCUMENTS)]
    task = read_rankings(pd.DataFrame(rows, columns=["query", "document"]))
    plan = plan_by_labels(task, None, 1000, 0)
    assert (plan.kind, plan.counts) == ("Retrieval", (100, 50))
    assert not {*plan.choosing.queries} & {*plan.reporting.queries}
    assert {*plan.documents} == {*DOCUMENTS} == {*plan.choosing.documents}
    assert len(plan.choosing.query_sample) == 200 and not {*plan.choosing.query_sample} & {*plan.choosing.queries}


def test_what_is_left_behind(small: str, report: TuneReport) -> None:
    folder = Path(report.folder)
    assert (folder / "report.md").read_text(encoding="utf-8") == f"{report}\n"
    assert json.loads((folder / "report.json").read_text(encoding="utf-8"))["kind"] == "SearchViews"
    assert [row.name for row in report.rows] == [
        "chosen",
        "default, whitened",
        "default",
        "classical, mean",
        "PromptEOL",
        "BM25",
    ]
    loaded = st_reba.load(str(folder / "model"))
    rebuilt = st_reba.build(folder / "recipe.yaml")
    assert loaded[0].depth == (report.method.layer if isinstance(report.method.layer, int) else 6)
    for task in ("query", "document"):
        expected = vectors(opened(small), [report.method], DOCUMENTS[:9], task=task)[report.method]
        for model in (loaded, rebuilt):
            found = encode_texts(model, DOCUMENTS[:9], task=task)  # type: ignore[arg-type]
            np.testing.assert_allclose(found, expected, atol=3e-5)


def test_the_report_scores_the_saved_model(report: TuneReport) -> None:
    plan = plan_by_views(DOCUMENTS, 1000, 0)
    model = st_reba.load(str(Path(report.folder) / "model"))
    query_vectors = model.encode_query(list(plan.reporting.queries))
    document_vectors = model.encode_document(list(plan.reporting.documents))
    scores = plan.reporting.score(query_vectors @ document_vectors.T)
    assert report.rows[0].score == pytest.approx(float(scores.mean()), abs=1e-2)
    assert report.rows[0].error == pytest.approx(float(scores.std(ddof=1)) / len(scores) ** 0.5, abs=1e-2)


def test_an_index_whitens_no_model_that_brings_a_filter(
    small: str, report: TuneReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert report.method.filter is not None
    index = st_reba.Index.build(str(Path(report.folder) / "model"), DOCUMENTS[:120], tmp_path / "filtered")
    assert index.info()["whitening"] is None
    # Without a filter an index would whiten it: the report says how to keep it from that.
    plan = plan_by_views(DOCUMENTS, 1000, 0)
    unfiltered = Scored(Method("prompteol"), None, 1.0, np.zeros(3))  # type: ignore[arg-type]
    assert "--no-whiten" in plan.notes(unfiltered)[-1]
    assert "--no-whiten" not in " ".join(plan.notes(replace(unfiltered, filter_kind="center")))
    model = st_reba.build(small, "prompteol")
    index = st_reba.Index.build(model, DOCUMENTS[:120], tmp_path / "raw")
    assert index.info()["whitening"] is not None


def test_means_alone_are_a_filter_too(small: str) -> None:
    model = of_base(opened(small), Method("prompteol", template="prompteol-search"))
    kinds = {kind: fit_search_filter(model, DOCUMENTS, kind) for kind in ("center", "whiten")}
    assert [fitted.kind for fitted in kinds.values()] == list(kinds)
    assert all(fitted.query_mean is not None for fitted in kinds.values())


def test_finished_passes_are_found(small: str, report: TuneReport, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("a pass ran again")

    monkeypatch.setattr(tune_retrieval, "read", refuse)
    again = tune(small, DOCUMENTS, report.folder, purpose="search", **QUIET)
    assert again.method == report.method


def test_labels_choose_for_search(small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = retrieval_passes(6, "LATIN", small=True)[2:]
    monkeypatch.setattr(tune_retrieval, "retrieval_passes", lambda *arguments, **options: passes)
    pairs = pd.DataFrame({"query": [text.split(".")[1] + "?" for text in DOCUMENTS], "document": DOCUMENTS})
    pairs.drop_duplicates("query").to_csv(tmp_path / "pairs.csv", index=False)
    (tmp_path / "texts.txt").write_text("\n".join(DOCUMENTS), encoding="utf-8")
    rows = [(f"{text.split('.')[0]}?", text) for text in DOCUMENTS]
    pd.DataFrame(rows, columns=["query", "document"]).to_csv(tmp_path / "pairs.csv", index=False)
    arguments = [str(tmp_path / "texts.txt"), str(tmp_path / "out"), "--for", "search"]
    assert main(["tune", small, *arguments, "--labels", str(tmp_path / "pairs.csv")]) == 0
    saved = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert (saved["kind"], saved["counts"]) == ("Retrieval", [100, 50])
    assert main(["tune", small, *arguments, "--labels", str(tmp_path / "pairs.csv"), "--kind", "STS"]) == 2


def test_auto_for_search_gives_the_model(small: str) -> None:
    model = st_reba.build(small, "auto", texts=DOCUMENTS, purpose="search")
    again = st_reba.build(small, "auto", texts=DOCUMENTS, purpose="search")
    np.testing.assert_array_equal(model.encode_query(DOCUMENTS[:3]), again.encode_query(DOCUMENTS[:3]))
    assert plan_for_auto(DOCUMENTS, 1000, 0).counts[0] == 150


@pytest.mark.parametrize(
    "options",
    [
        {"purpose": "search"},
        {"method": "auto", "texts": DOCUMENTS, "purpose": "clusters"},
        {"method": "auto", "texts": ["A single sentence of a text, one"] * 90, "purpose": "search"},
    ],
)
def test_refusals(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        st_reba.build("mini", **options)
